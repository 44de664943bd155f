"""Examines the nodes of a cluster: facts gathered once, then one pure function per check. Part of `timeoutq doctor`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from timeoutq.client.shards import AnyQueue
from timeoutq.server.cluster import SLOTS, Node
from timeoutq.verbs import reads
from timeoutq.verbs.sending import Flow, Send
from timeoutq.watch.doctor import Finding

APART = 500
"""How many ms the clocks of two nodes may be apart. A claim that is sent again after a failover finds the leases of its
first call only if the clocks of the two primaries are less than a second apart."""

READS_WHEN_DOWN = "cluster-allow-reads-when-down"
"""The setting with which a node answers reads when it is cut off from the cluster."""

_OPEN = re.compile(r"\[(\d+)-([<>])-([0-9a-f]+)\]")
"""A slot that is being moved, in CLUSTER NODES: its number, `>` (to) or `<` (from), and the other node."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What was seen of one node."""

    node: Node
    primary: bool
    silent: str = ""
    """Why the node cannot be asked; empty if it answers."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cluster: Mapping[str, str] = field(default_factory=dict[str, str])
    """What CLUSTER INFO says."""
    down: Sequence[str] = ()
    """The addresses of the nodes that this node takes for failed."""
    open: Sequence[int] = ()
    """The slots of this node that are being moved."""
    clock_ms: float | None = None
    """How far the node's clock is ahead of this machine's, ms; None if the node does not tell."""
    reads_when_down: bool = False
    """Whether the node answers reads when it is cut off from the cluster."""

    @property
    def name(self) -> str:
        """The node as people write it."""
        return f"{self.node[0]}:{self.node[1]}"


def examine(queue: AnyQueue) -> list[Finding]:
    """Gather the facts and judge them; no finding for a server that is in no cluster. Raises `Unavailable`."""
    # without an opening, which would need the very node of the queue
    nodes = queue._drive(reads.nodes(queue.talk))
    return judge([_gather(queue, node, primary) for node, primary in sorted(nodes.items())]) if nodes else []


def judge(facts: Sequence[NodeFacts]) -> list[Finding]:
    """Run every check; pure."""
    return [finding for check in CHECKS for finding in check(facts)]


# ---- gathering

_ASKED = (
    ("INFO",), ("CLUSTER", "INFO"), ("CLUSTER", "NODES"), ("CONFIG", "GET", READS_WHEN_DOWN), ("TIME",),
)  # fmt: skip


def _gather(queue: AnyQueue, node: Node, primary: bool) -> NodeFacts:
    began = time.time()
    replies = queue._drive(_ask(queue, node))
    ended = time.time()
    if isinstance(replies, str):
        return NodeFacts(node, primary, silent=replies)
    info, state, nodes, config, moment = (None if isinstance(reply, BaseException) else reply for reply in replies)
    down, open = _read_nodes(_text(nodes))
    ahead = None if moment is None else (int(moment[0]) + int(moment[1]) / 1e6 - (began + ended) / 2) * 1000
    return NodeFacts(
        node, primary, info=info or {}, cluster=dict(_pairs(_text(state))), down=down, open=open, clock_ms=ahead,
        reads_when_down=_is_yes(config),
    )  # fmt: skip


def _ask(queue: AnyQueue, node: Node) -> Flow[list[Any] | str]:
    reply = yield Send(_ASKED, node)
    if isinstance(reply, BaseException):
        return str(reply) or type(reply).__name__
    return cast("list[Any]", reply)


def _text(reply: Any) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply or "")


def _pairs(told: str) -> Iterator[tuple[str, str]]:
    for line in told.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()


def _is_yes(config: Any) -> bool:
    words = [*config.items()] if isinstance(config, dict) else config or []  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # a reply
    return "yes" in str(words)  # pyright: ignore[reportUnknownArgumentType]  # a reply


def _read_nodes(told: str) -> tuple[list[str], list[int]]:
    """Read CLUSTER NODES of a node: which nodes it takes for failed, and which of its own slots are being moved."""
    down: list[str] = []
    open: list[int] = []
    for line in told.splitlines():
        words = line.split()
        flags = words[2].split(",")
        if "fail" in flags:
            down.append(words[1].partition("@")[0])
        if "myself" in flags:
            open = [int(slot) for slot, _, _ in _OPEN.findall(line)]
    return down, open


# ---- judging


def reached(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each node answers, and no node takes another one for failed."""
    silent = [fact for fact in facts if fact.silent]
    down = sorted({name for fact in facts for name in fact.down})
    primaries = sum(fact.primary for fact in facts)
    for fact in silent:
        yield Finding(
            "nodes", "red", f"{fact.name} cannot be asked from here: {fact.silent}",
            "start it; or if the other nodes reach it, let it announce an address that clients reach "
            "(cluster-announce-ip, cluster-announce-port), and open the firewall",
        )  # fmt: skip
    if down:
        yield Finding(
            "nodes", "yellow", f"the cluster takes {', '.join(down)} for failed",
            "start it again, or remove it: redis-cli --cluster del-node, CLUSTER FORGET",
        )  # fmt: skip
    if not silent and not down:
        yield Finding("nodes", "green", f"{len(facts)} nodes, {primaries} of them with slots; all answer")


def coverage(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each slot is served, and on all nodes the state of the cluster is ok."""
    asked = [fact for fact in facts if fact.cluster]
    if not asked:
        yield Finding("coverage", "yellow", "no node answers CLUSTER INFO", "allow CLUSTER INFO")
        return
    least = min(int(fact.cluster.get("cluster_slots_ok", 0)) for fact in asked)
    unwell = [fact.name for fact in asked if fact.cluster.get("cluster_state") != "ok"]
    if least < SLOTS or unwell:
        who = f"; cluster_state is not ok on {', '.join(unwell)}" if unwell else ""
        yield Finding(
            "coverage", "red", f"{least:,} of {SLOTS:,} slots are served{who}: queues in the other slots wait",
            "start the nodes that are down, or give their slots to other nodes: redis-cli --cluster fix",
        )  # fmt: skip
    else:
        yield Finding("coverage", "green", f"all {SLOTS:,} slots are served")


def replicas(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Each primary has a replica that follows closely."""
    alone: list[str] = []
    behind: list[str] = []
    furthest = 0
    for fact in facts:
        if not fact.primary or not fact.info:
            continue
        known = [value for name, value in fact.info.items() if re.fullmatch(r"slave\d+", name)]
        online = [one for one in known if one.get("state") == "online"]
        if not online:
            alone.append(fact.name)
            continue
        at = int(fact.info.get("master_repl_offset", 0))
        furthest = max([furthest, *(at - int(one.get("offset", 0)) for one in online)])
        behind += [f"{one['ip']}:{one['port']} of {fact.name}" for one in online if int(one.get("lag", 0)) > 2]
    if alone:
        yield Finding(
            "replicas", "yellow", f"{', '.join(alone)} without a replica: if it crashes, its queues wait for it",
            "add a node, then on it CLUSTER REPLICATE id-of-the-primary",
        )  # fmt: skip
    if behind:
        yield Finding(
            "replicas", "yellow", f"{', '.join(behind)} silent for more than 2 s, which a failover would lose",
            "look at its load and network; with durable=1 nothing that was confirmed is lost",
        )  # fmt: skip
    unknown = [fact.name for fact in facts if fact.primary and not fact.info]
    if unknown:
        yield Finding(
            "replicas", "yellow", f"nobody tells of the replicas of {', '.join(unknown)}",
            "start it if it is down; else allow INFO",
        )  # fmt: skip
    if not alone and not behind and not unknown:
        yield Finding("replicas", "green", f"each primary has a replica; the furthest is {furthest:,} bytes behind")


def open_slots(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No slot is half-way between two nodes."""
    open = sorted({slot for fact in facts for slot in fact.open})
    if open:
        some = ", ".join(map(str, open[:5])) + (f" and {len(open) - 5:,} more" if len(open) > 5 else "")
        what = "slot" if len(open) == 1 else "slots"
        yield Finding(
            "slots", "yellow", f"{what} {some} being moved: queues in it wait until the whole slot has moved",
            "let no node go down until the replicas of the target are in step: a move waits for no replica, not even "
            "of a durable queue; if nobody is moving them, end it: redis-cli --cluster fix",
        )  # fmt: skip


def clocks(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """The clocks of the nodes agree, so that leases keep their length through a failover."""
    known = {fact.name: fact.clock_ms for fact in facts if fact.clock_ms is not None}
    if len(known) < 2:
        return
    first, last = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
    apart = known[last] - known[first]
    if apart > APART:
        yield Finding(
            "clocks", "red", f"the clock of {last} is {apart / 1000:.1f} s ahead of that of {first}: after a failover "
            "leases end too soon or too late", "run NTP on all nodes",
        )  # fmt: skip
    else:
        yield Finding("clocks", "green", f"the clocks of the nodes are {apart:.0f} ms apart")


def policies(facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    """No node throws keys away, and none answers reads while the cluster is down."""
    for fact in facts:
        policy = fact.info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            yield Finding(
                "eviction", "red", f"{fact.name} may throw tasks away: maxmemory-policy is {policy}",
                "CONFIG SET maxmemory-policy noeviction there, and the same in its configuration",
            )  # fmt: skip
    reading = [fact.name for fact in facts if fact.reads_when_down]
    if reading:
        yield Finding(
            "reads", "yellow", f"{', '.join(reading)} answers reads while cut off from the cluster: counts may be old",
            f"CONFIG SET {READS_WHEN_DOWN} no there",
        )  # fmt: skip


CHECKS: tuple[Callable[[Sequence[NodeFacts]], Iterator[Finding]], ...] = (
    reached, coverage, replicas, open_slots, clocks, policies,
)  # fmt: skip
