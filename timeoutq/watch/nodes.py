"""Examines the nodes of a cluster: facts gathered once, then one pure function per check. Part of `timeoutq doctor`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timeoutq.client.shards import AnyQueue
from timeoutq.server.cluster import SLOTS, Node
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Send
from timeoutq.watch.doctor import Finding, green, named, red, replicas_of, yellow
from timeoutq.watch.facts import ahead, as_text

APART = 500
"""How many ms the clocks of two nodes may be apart. A claim that is sent again after a failover finds the leases of its
first call only if the clocks of the two primaries are less than a second apart."""

READS_WHEN_DOWN = "cluster-allow-reads-when-down"
"""The setting with which a node answers reads when it is cut off from the cluster."""

_OPEN = re.compile(r"\[(\d+)-[<>]-[0-9a-f]+\]")
"""A slot that is being moved, in CLUSTER NODES: its number, `>` (to) or `<` (from), and the other node."""

_ASKED = (("INFO",), ("CLUSTER", "INFO"), ("CLUSTER", "NODES"), ("CONFIG", "GET", READS_WHEN_DOWN), ("TIME",))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str  # as people write it: its host and its port
    primary: bool
    silent: str = ""  # why the node cannot be asked; empty if it answers
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cluster: Mapping[str, str] = field(default_factory=dict[str, str])  # what CLUSTER INFO says
    down: Sequence[str] = ()  # the addresses of the nodes that this node takes for failed
    moving: Sequence[int] = ()  # the slots of this node that are being moved
    clock_ms: float | None = None  # how far its clock is ahead of this machine's; None if the node does not tell
    reads_when_down: bool = False  # whether the node answers reads when it is cut off from the cluster


def examine(queue: AnyQueue) -> list[Finding]:
    """Gather the facts and judge them; no finding for a server that is in no cluster. Raises `Unavailable`."""
    # without an opening, which would need the very node of the queue
    nodes = queue._drive(reads.nodes(queue.talk))
    facts = [_gather(queue, node, primary) for node, primary in sorted(nodes.items())]
    return [said for name, check in CHECKS.items() for said in named(name, check(facts))] if nodes else []


def _gather(queue: AnyQueue, node: Node, primary: bool) -> NodeFacts:
    def ask() -> Flow[Any]:
        return (yield Send(_ASKED, node))

    name, began = f"{node[0]}:{node[1]}", time.time()
    replies = queue._drive(ask())
    ended = time.time()
    if isinstance(replies, BaseException):
        return NodeFacts(name, primary, silent=str(replies) or type(replies).__name__)
    info, state, nodes, config, moment = (None if isinstance(reply, BaseException) else reply for reply in replies)
    known = [line.split() for line in as_text(nodes or "").splitlines()]
    lines = as_text(state or "").split()
    return NodeFacts(
        name, primary, info=info or {}, cluster=dict(line.split(":", 1) for line in lines),
        down=[words[1].partition("@")[0] for words in known if "fail" in words[2].split(",")],
        moving=[int(slot) for words in known if "myself" in words[2] for slot in _OPEN.findall(" ".join(words))],
        clock_ms=ahead(moment, began, ended), reads_when_down="yes" in str(config),
    )  # fmt: skip


# ---- judging


def reached(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each node answers, and no node takes another one for failed."""
    silent = [fact for fact in facts if fact.silent]
    down = sorted({name for fact in facts for name in fact.down})
    for fact in silent:
        yield red(
            f"{fact.name} cannot be asked from here: {fact.silent}",
            "start it; or if the other nodes reach it, let it announce an address that clients reach "
            "(cluster-announce-ip, cluster-announce-port), and open the firewall",
        )
    if down:
        cure = "start it again, or remove it: redis-cli --cluster del-node, CLUSTER FORGET"
        yield yellow(f"the cluster takes {', '.join(down)} for failed", cure)
    if not silent and not down:
        primaries = sum(fact.primary for fact in facts)
        yield green(f"{len(facts)} nodes, {primaries} of them with slots; all answer")


def coverage(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each slot is served, and on all nodes the state of the cluster is ok."""
    asked = [fact for fact in facts if fact.cluster]
    if not asked:
        yield yellow("no node answers CLUSTER INFO", "allow CLUSTER INFO")
        return
    least = min(int(fact.cluster.get("cluster_slots_ok", 0)) for fact in asked)
    unwell = [fact.name for fact in asked if fact.cluster.get("cluster_state") != "ok"]
    if least == SLOTS and not unwell:
        yield green(f"all {SLOTS:,} slots are served")
        return
    who = f"; cluster_state is not ok on {', '.join(unwell)}" if unwell else ""
    yield red(
        f"{least:,} of {SLOTS:,} slots are served{who}: queues in the other slots wait",
        "start the nodes that are down, or give their slots to other nodes: redis-cli --cluster fix",
    )


def replicas(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each primary has a replica that follows closely."""
    told = [fact for fact in facts if fact.primary and fact.info]
    online = [(fact, one) for fact in told for one in replicas_of(fact.info) if one["state"] == "online"]
    alone = [fact.name for fact in told if not any(primary is fact for primary, _ in online)]
    late = [f"{one['ip']}:{one['port']} of {fact.name}" for fact, one in online if int(one["lag"]) > 2]
    unknown = [fact.name for fact in facts if fact.primary and not fact.info]
    if alone:
        cure = "add a node, then on it CLUSTER REPLICATE id-of-the-primary"
        yield yellow(f"{', '.join(alone)} without a replica: if it crashes, its queues wait for it", cure)
    if late:
        cure = "look at its load and network; with durable=1 nothing that was confirmed is lost"
        yield yellow(f"{', '.join(late)} silent for more than 2 s, which a failover would lose", cure)
    if unknown:
        yield yellow(f"nobody tells of the replicas of {', '.join(unknown)}", "start it if it is down; else allow INFO")
    if not (alone or late or unknown):
        far = [int(fact.info["master_repl_offset"]) - int(one["offset"]) for fact, one in online]
        yield green(f"each primary has a replica; the furthest is {max([0, *far]):,} bytes behind")


def open_slots(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No slot is half-way between two nodes."""
    if open := sorted({slot for fact in facts for slot in fact.moving}):
        some = ", ".join(map(str, open[:5])) + (f" and {len(open) - 5:,} more" if len(open) > 5 else "")
        yield yellow(
            f"slot{'s' if len(open) > 1 else ''} {some} being moved: queues in it wait until the whole slot has moved",
            "let no node go down until the replicas of the target are in step: a move waits for no replica, not even "
            "of a durable queue; if nobody is moving them, end it: redis-cli --cluster fix",
        )


def clocks(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """The clocks of the nodes agree, so that leases keep their length through a failover."""
    known = sorted((fact.clock_ms, fact.name) for fact in facts if fact.clock_ms is not None)
    if len(known) < 2:
        return
    (least, first), (most, last) = known[0], known[-1]
    if most - least > APART:
        said = f"the clock of {last} is {(most - least) / 1000:.1f} s ahead of that of {first}"
        yield red(f"{said}: after a failover leases end too soon or too late", "run NTP on all nodes")
    else:
        yield green(f"the clocks of the nodes are {most - least:.0f} ms apart")


def evicting(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No node throws keys away."""
    cure = "CONFIG SET maxmemory-policy noeviction there, and the same in its configuration"
    for fact in facts:
        policy = fact.info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            yield red(f"{fact.name} may throw tasks away: maxmemory-policy is {policy}", cure)


def reading(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No node answers reads while the cluster is down."""
    if names := [fact.name for fact in facts if fact.reads_when_down]:
        said = f"{', '.join(names)} answers reads while cut off from the cluster: counts may be old"
        yield yellow(said, f"CONFIG SET {READS_WHEN_DOWN} no there")


CHECKS: Mapping[str, Callable[[Sequence[NodeFacts]], Iterator[Finding]]] = {
    "nodes": reached, "coverage": coverage, "replicas": replicas, "slots": open_slots, "clocks": clocks,
    "eviction": evicting, "reads": reading,
}  # fmt: skip
