"""A private cluster of Valkey: embedded servers that know each other, for tests and `timeoutq server --cluster`.

Each primary has an equal part of the 16,384 slots, and the replicas follow the primaries in turn.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from timeoutq.server.cluster import SLOTS
from timeoutq.server.embedded import EmbeddedServer, Setting, quoted
from timeoutq.words.errors import InvalidInput, Unavailable

JOIN_TIMEOUT = 60.0
"""How long the nodes may take to become one cluster, once they all have started, seconds."""

MOST_NODES = 100
"""More nodes are surely asked for by mistake: each is a process with some 10 MB."""

_PORTS = range(10_000, 32_768)
"""Linux and macOS give none of these ports to outgoing connections. So the port of a node that was killed stays free,
though the other nodes try to connect to it all the time."""

_OURS = {"cluster-config-file", "cluster-enabled", "cluster-node-timeout", "cluster-port", "port", "dir"}
"""Settings that the cluster gives each node by itself, so that `config=` may not hold them."""

_SETTINGS: Mapping[str, Setting] = {
    "cluster-announce-ip": "127.0.0.1",  # until a node meets another one, it does not know its own address
    "cluster-enabled": True,
    "repl-diskless-sync": False,  # without a file, a primary waits for five seconds before it sends what it has
    "shutdown-timeout": 0,  # else a primary waits for its replicas, which end at the same time
}

_LINE = re.compile(
    r"^([0-9a-f]{40}) [^ ]*:(\d+)@(\d+)[^ ]* ([^ ]+) (-|[0-9a-f]{40}) \d+ \d+ \d+ (\w+)([^\r\n]*)", re.MULTILINE
)
"""A node in the reply to CLUSTER NODES: id, port, bus, flags, its primary, the state of the link to it, slots."""
_MYSELF = re.compile(r"^\w+ [^ ]*:(\d+)@(\d+)[^ ]* myself", re.MULTILINE)
"""The ports of a node in its own file nodes.conf."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a cluster, as the cluster sees it."""

    id: str
    port: int
    bus: int
    """The port at which the other nodes speak to the node."""
    follows: str
    """The id of the primary that the node is a replica of; '' for a primary."""
    slots: tuple[range, ...]
    sound: bool
    """Whether the node that was asked has a link to this node, and does not think that this node has failed."""

    @property
    def slot_words(self) -> str:
        """The slots of the node, as people write them: 0-5460, 7000."""
        return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in self.slots)


def members(said: str) -> list[Member]:
    """Read the reply to CLUSTER NODES."""
    found: list[Member] = []
    for identity, port, bus, flags, follows, link, slots in _LINE.findall(said):
        words = [word.partition("-") for word in slots.split() if word[0] != "["]  # [7->-…] is a slot on its way
        ranges = [range(int(first), int(last or first) + 1) for first, _, last in words]
        sound = link == "connected" and not re.search("fail|handshake|noaddr", flags)
        found.append(Member(identity, int(port), int(bus), follows.strip("-"), tuple(ranges), sound))
    return found


class ClusterNode(EmbeddedServer):
    """A server that is a node of an `EmbeddedCluster`, with a port for clients and one for the other nodes."""

    _place = "directory"

    def __init__(
        self, directory: Path | None, config: Mapping[str, Setting], binary: str | os.PathLike[str] | None
    ) -> None:
        """Describe a node; if the directory has held a node before, this one gets the same ports."""
        super().__init__(directory, config=config, binary=binary)
        if directory is not None:
            with suppress(FileNotFoundError):
                found = _MYSELF.search((directory / "nodes.conf").read_text("utf-8"))
                if found:
                    self.port, self._config["cluster-port"] = int(found[1]), int(found[2])

    @property
    def place(self) -> str:
        """The address of the node, as people write it."""
        return f"127.0.0.1:{self.port}"

    @property
    def bus(self) -> int:
        """The port at which the other nodes speak to this node; known once the node was started."""
        return int(self._config.get("cluster-port", 0))

    def members(self) -> list[Member]:
        """Ask the node which nodes it knows; none if it does not answer."""
        return members(self.ask("CLUSTER NODES").decode())

    def me(self) -> Member | None:
        """Ask the node what it is itself; None if it does not answer."""
        return next((member for member in self.members() if member.port == self.port), None)

    def _take_ports(self) -> None:
        self.port, self._config["cluster-port"] = _steady_port(), _steady_port()


def _steady_port() -> int:
    for port in random.sample(_PORTS, 1000):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise Unavailable(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free on 127.0.0.1: stop what listens there")


class EmbeddedCluster:
    """A cluster of this process's own; `with EmbeddedCluster() as cluster: Queue("crawl", cluster.url)`.

    `nodes` are its servers, primaries first; each can be killed and started again. A replica takes over from a primary
    that is gone only if more than half of the primaries are left to agree, so this needs three primaries. Without a
    directory, a primary that was killed comes back empty: let a replica take over first.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 3,
        directory: str | os.PathLike[str] | None = None,
        *,
        config: Mapping[str, Setting] | None = None,
        binary: str | os.PathLike[str] | None = None,
        node_timeout_ms: int = 2000,
    ) -> None:
        """Describe a cluster; `start()` or `with` starts it.

        `replicas` is the number of all replicas together. The data is kept in `directory`, with the ports and roles of
        the nodes; without one, nothing is kept. A node that is silent for `node_timeout_ms` is taken for failed.
        `config` and `binary` are those of `EmbeddedServer`, for each node.
        """
        if primaries < 1 or replicas < 0 or primaries + replicas > MOST_NODES:
            raise InvalidInput(
                f"{primaries} primaries and {replicas} replicas are no cluster: 1 primary or more, and {MOST_NODES} "
                "nodes at most"
            )
        if node_timeout_ms < 100:
            raise InvalidInput(f"node_timeout_ms={node_timeout_ms!r}: nodes need 100 ms to hear of each other")
        for name in _OURS & (config or {}).keys():
            raise InvalidInput(
                f"config= may not hold {name}: the cluster sets it for each node, cluster-node-timeout from "
                "node_timeout_ms="
            )
        settings: dict[str, Setting] = {**_SETTINGS, "cluster-node-timeout": node_timeout_ms, **(config or {})}
        self.primaries, self.replicas = primaries, replicas
        self._kept = None if directory is None else Path(directory).absolute()
        if "requirepass" in settings:
            settings.setdefault("masterauth", quoted(str(settings["requirepass"])))
        self._settings, self._binary = settings, binary
        self.nodes = [self._node(number) for number in range(1, primaries + replicas + 1)]

    def _node(self, number: int) -> ClusterNode:
        return ClusterNode(self._kept and self._kept / f"node-{number}", self._settings, self._binary)

    def __repr__(self) -> str:
        kept = str(self._kept) if self._kept else None
        return f"EmbeddedCluster({self.primaries}, {self.replicas}, directory={kept!r})"

    # ---- questions

    @property
    def url(self) -> str:
        """The URL of the cluster, with the addresses of all nodes; known once it was started, and kept by a restart."""
        places = [urlsplit(node.url).netloc for node in self.nodes]
        hosts = ",".join(place.rpartition("@")[2] for place in places[1:])
        return f"redis+cluster://{places[0]},{hosts}".rstrip(",") + "/"

    def members(self) -> list[Member]:
        """Say what each node is now, in the order of `nodes`; raises `Unavailable` if no node answers."""
        for node in self.nodes:
            found = {member.port: member for member in node.members()}
            if found:
                return [found[node.port] for node in self.nodes if node.port in found]
        raise Unavailable("no node of the embedded cluster answers: start() brings the nodes back")

    def lacks(self) -> str:
        """Name the thing that the cluster lacks to be whole, '' if it lacks nothing."""
        said = [node.ask("CLUSTER INFO", "CLUSTER NODES", "INFO replication").decode() for node in self.nodes]
        views = [frozenset(members(text)) for text in said]
        for node, view in zip(self.nodes, views, strict=True):
            if not view:
                return f"{node.place} does not answer"
        for node, text, view in zip(self.nodes, said, views, strict=True):
            if len(view) != len(self.nodes) or view != views[0] or not all(member.sound for member in view):
                return f"{node.place} has no link to all nodes, or another view of them than the others"
            if not _covered(view):
                return f"{node.place} knows no node for some slots"
            if "cluster_state:ok" not in text:
                return f"{node.place} takes no commands"
            mine = next(member for member in view if member.port == node.port)
            if mine.follows and "master_link_status:up" not in text:
                return f"{node.place} has not yet what its primary has"
            if text.count(",state=online,") != sum(member.follows == mine.id for member in view):
                return f"{node.place} has no link to a replica"
        return ""

    # ---- life and death

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the nodes that do not run, and wait until the cluster is whole, which takes two seconds or more.

        Raises what `EmbeddedServer.start` raises; `Unavailable` if the nodes do not become one cluster, `InvalidInput`
        if the directory holds a cluster of another size.
        """
        folders = len(list(self._kept.glob("node-*"))) if self._kept else 0
        if folders not in (0, len(self.nodes)):
            raise InvalidInput(self._other_size(f"{folders} nodes"))
        try:
            for node in self.nodes:
                node.start()
            self._join()
            replicas = sum(bool(me and me.follows) for me in map(ClusterNode.me, self.nodes))
            if replicas != self.replicas:
                raise InvalidInput(self._other_size(f"{len(self.nodes) - replicas} primaries and {replicas} replicas"))
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def wait(self) -> None:
        """Wait until the cluster is whole; raises `Unavailable` if that takes too long, or if a node does not run."""
        self._wait(self.lacks)

    def stop(self) -> None:
        """End all nodes in order: their data is written to the directory that was given, and lost without one."""
        for pid in [node.pid for node in self.nodes]:
            if pid is not None:
                os.kill(pid, signal.SIGTERM)  # all first, so that no node takes another one for failed
        for node in self.nodes:
            node.stop()

    # ---- how the nodes become a cluster

    def _other_size(self, found: str) -> str:
        return f"{self._kept} holds a cluster of {found}: ask for the same, or take another directory"

    def _join(self) -> None:
        # a step that was taken before is refused, or changes nothing: so after a start that was interrupted, the next
        # start does the rest
        meetings: list[str] = []
        for number, node in enumerate(self.nodes):
            view = node.members()
            if len(view) < len(self.nodes) or not _covered(view):
                # a node takes a config epoch only before it knows another node
                steps = [f"CLUSTER SET-CONFIG-EPOCH {number + 1}"]
                if number < self.primaries:
                    first, end = (SLOTS * at // self.primaries for at in (number, number + 1))
                    steps.append(f"CLUSTER ADDSLOTSRANGE {first} {end - 1}")
                node.ask(*steps, *meetings)
            meetings.append(f"CLUSTER MEET 127.0.0.1 {node.port} {node.bus}")
        for replica, primary in zip(self.nodes[self.primaries :], cycle(self.nodes[: self.primaries])):
            self._attach(replica, primary)

    def _attach(self, replica: ClusterNode, primary: ClusterNode) -> None:
        def lacks() -> str:
            me, other = replica.me(), primary.me()
            # a node that has a primary, or slots, has its role already
            if me and other and (me.follows or me.slots or replica.ask(f"CLUSTER REPLICATE {other.id}") == b"+OK\r\n"):
                return ""
            return f"{replica.place} does not know {primary.place}, which it is to follow"

        self._wait(lacks)

    def _wait(self, lacks: Callable[[], str]) -> None:
        until = time.monotonic() + JOIN_TIMEOUT
        while lack := lacks():
            gone = next((node for node in self.nodes if node.pid is None), None)
            if gone or time.monotonic() > until:
                why = f"{gone.place} has ended" if gone else f"after {JOIN_TIMEOUT:g} s {lack}"
                raise Unavailable(f"the nodes of the embedded cluster do not become one cluster: {why}")
            time.sleep(0.05)


def _covered(view: Iterable[Member]) -> bool:
    return sum(len(part) for member in view for part in member.slots) == SLOTS
