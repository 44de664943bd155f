"""Links to a cluster: each is bound to one slot, finds the node that has the slot, and follows the slot.

`client/driving.py` uses these links where a URL names a cluster. They share one link of `link.py` to each node. What
a cluster asks for is decided in steps, which the blocking link and the one for asyncio carry out.
redis-py's own client for clusters is not used: it sends WAIT to all primaries and adds up what they say, so that
`durable=` would mean nothing.
"""

from __future__ import annotations

import asyncio
import binascii
import random
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Self, TypeVar, cast

from redis.exceptions import (
    AskError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    ResponseError,
    TryAgainError,
)

from timeoutq.server.calls import Command
from timeoutq.server.connection import Server
from timeoutq.server.deadlines import ATTEMPT
from timeoutq.server.link import AsyncLink, Link
from timeoutq.server.troubles import LINK_ERRORS, NoPort, is_hopeless, is_no_cluster, is_transient

T = TypeVar("T")
Node = tuple[str, int]
"""The host and the port of a node."""
Where = int | Node | None
"""Where in a cluster: a slot, or a node; None is the slot of the link itself. A link to a single server ignores it."""

SLOTS = 16384
ASK_EVERY = 0.1
"""Seconds between two questions for the map of a cluster."""
FOLLOWS = 9
"""How many pauses commands make while they follow their slot; each is longer than the one before, a second in all."""


def slot_of(tag: str) -> int:
    """Give the slot of keys by their hash tag, such as a queue's name: its CRC-16/XMODEM (Redis Cluster's rule)."""
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


class Map:
    """Which node has which slot, as far as this process knows."""

    def __init__(self, seeds: Sequence[Node], patience: float) -> None:
        """Prepare; once nodes have been asked in vain for `patience` seconds, no further node is asked."""
        self._seeds = tuple(seeds)
        self.patience = patience
        self.nodes: dict[Node, bool] = {}
        """The nodes that the cluster counts as alive, and for each whether it is a primary with slots."""
        self._owners: list[Node | None] = [None] * SLOTS
        self._asked = -ASK_EVERY
        self.doubted = True
        """Whether the map is to be asked for again before it is used."""
        self._silent: dict[Node, float] = {}  # when each node last gave no map, or no answer

    def owner(self, slot: int) -> Node | None:
        """Give the node that has the slot; None if no node is known to have it."""
        return self._owners[slot]

    def doubt(self, node: Node) -> None:
        """Note that this node does not answer, or is not what the map says."""
        self.doubted = True
        self.ask_late(node)

    def silent_since(self, node: Node) -> float:
        """Give when the node was last silent, by the monotonic clock; 0 if it was not."""
        return self._silent.get(node, 0.0)

    def ask_late(self, node: Node) -> None:
        """Note that other nodes are to be asked for the map before this one."""
        self._silent[node] = time.monotonic()

    def follow(self, slot: int, node: Node) -> None:
        """Note that the slot is at this node now, as another node has just said."""
        self._owners[slot] = node

    def may_ask(self) -> bool:
        """Say whether the map may be asked for again; if so, the question counts as asked now."""
        now = time.monotonic()
        if now - self._asked < ASK_EVERY:
            return False
        self._asked = now
        return True

    def to_ask(self) -> list[Node]:
        """Give all known nodes in the order in which they are to be asked for the map."""
        nodes = list(dict.fromkeys((*self.nodes, *self._seeds)))
        if self.nodes:
            random.shuffle(nodes)  # the first question goes to the nodes of the URL, in the order of the URL
        return sorted(nodes, key=self.silent_since)

    def learn(self, reply: Any, asked: Node) -> None:
        """Take the reply to CLUSTER SLOTS of the node `asked`. Raises the error of a reply that is no map."""
        owners: list[Node | None] = [None] * SLOTS
        nodes: dict[Node, bool] = {}
        try:
            for first, last, *servers in reply:
                found = [_node(_host(server), server[1], asked) for server in servers]
                if any(not port for _, port in found):
                    raise NoPort(
                        f"node {asked[0]}:{asked[1]} names other nodes of the cluster without a port for clients, as "
                        "nodes do that take TLS alone: set tls-cluster yes on all nodes, or give each one a port"
                    )
                nodes.update((node, node == found[0]) for node in found)
                owners[first : last + 1] = [found[0]] * (last + 1 - first)
        except (TypeError, ValueError, LookupError, AttributeError):
            raise InvalidResponse(f"the reply to CLUSTER SLOTS is {str(reply)[:80]!r}") from None
        if not nodes:
            # a node that is new, or has come back empty, knows of no other node: it does not speak for the cluster
            raise ClusterDownError("CLUSTERDOWN the node knows of no node that has slots yet")
        self._owners, self.nodes, self.doubted = owners, nodes, False
        self._silent.pop(asked, None)


NO_HOSTNAME = "?"
"""What stands for a node that has no hostname where nodes are to be called by their hostnames."""


def _host(server: Any) -> Any:
    if server[0] != NO_HOSTNAME.encode():
        return server[0]
    more = server[3]  # names and values in turn: what the host is besides
    return dict(zip(more[::2], more[1::2], strict=True)).get(b"ip")


def _node(host: Any, port: Any, asked: Node) -> Node:
    # no host means that this node is reached at the same host as the node that was asked: because nodes behind a load
    # balancer do not know its name (cluster-preferred-endpoint-type), or because a node does not know its own name
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return name or asked[0], int(port)


@dataclass(frozen=True, slots=True)
class To:
    """Send these commands to a node. The result is a list of replies, or the error of the network."""

    node: Node
    commands: Sequence[Command]

    def ask(self, link: Any) -> Any:
        """Have the link to the node do it."""
        return link.send(self.commands)


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for the bell or for the alarm at a node, by a method of a link. The result is its own, or an error."""

    node: Node
    method: str
    words: tuple[Any, ...]

    def ask(self, link: Any) -> Any:
        """Have the link to the node do it."""
        return getattr(link, self.method)(*self.words)


@dataclass(frozen=True, slots=True)
class ToAll:
    """Send lists of commands to several nodes. The result is what `send_all` of the link to each node gives."""

    parts: Sequence[tuple[Node, Sequence[Sequence[Command]]]]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for `seconds`."""

    seconds: float


Steps = Generator[To | Listen | ToAll | Pause, Any, T]


def _pauses() -> Iterable[Pause]:
    yield Pause(0.0)
    yield Pause(0.0)
    for tries in range(FOLLOWS):
        yield Pause(random.uniform(0.5, 1.0) * 0.002 * 2**tries)  # noqa: S311  # jitter, not a secret


def _is_error(reply: object) -> bool:
    return isinstance(reply, ResponseError)


def _has_no_error(replies: object) -> bool:
    return isinstance(replies, list) and not any(map(_is_error, cast("list[object]", replies)))


class Route:
    """The way to the node of one slot. No I/O: a generator gives the steps, the links carry them out."""

    def __init__(self, map: Map, slot: int, on_move: Callable[[int], None]) -> None:
        self.map = map
        self.slot = slot
        self._on_move = on_move
        self._last: Node | None = None

    def usual(self) -> Node | None:
        """Give the node of the slot, if it is the same as the last time, and the map is not in doubt; else None."""
        node = self.map.owner(self.slot)
        return node if node == self._last and not self.map.doubted else None

    def find(self) -> Steps[Node | None]:
        """Find the node of the slot; None if no node has it now. Raises the error of a cluster that cannot be asked."""
        while self.map.doubted or self.map.owner(self.slot) is None:
            if self.map.may_ask():
                yield from self._learn()
            elif self.map.owner(self.slot) is not None:
                break  # the map was asked for a moment ago: try the node that it names
            elif not self.map.doubted:
                return None
            else:
                yield Pause(ASK_EVERY / 4)  # another thread is asking
        node = self.map.owner(self.slot)
        if node is not None and node != self._last:
            if self._last is not None:
                self._on_move(self.slot)
            self._last = node
        return node

    def _learn(self) -> Steps[None]:
        errors: list[Exception] = []
        until = time.monotonic() + self.map.patience
        for node in self.map.to_ask():
            if errors and time.monotonic() >= until:
                break  # the caller's deadline counts; the next question goes to the nodes that are left
            told: Any = yield To(node, (("CLUSTER", "SLOTS"),))
            told = told if isinstance(told, BaseException) else told[0]
            try:
                if isinstance(told, Exception):
                    raise told
                self.map.learn(told, node)
                return
            except LINK_ERRORS as error:
                self.map.ask_late(node)
                errors.append(self._with_node(error, node))
        # an error that will come again, such as a wrong password, tells the caller more than a silent node does
        raise next((error for error in errors if is_hopeless(error) or is_no_cluster(error)), errors[-1])

    def exchange(self, commands: Sequence[Command], replies: Any = None) -> Steps[list[Any]]:
        """Send commands to the node of the slot until no reply says that the slot is elsewhere; give the replies.

        `replies` are those of a first attempt, which the caller has made at the usual node.
        """
        answers: list[Any] = [None] * len(commands)
        left: list[int] = list(range(len(commands)))
        for pause in _pauses():
            if replies is None:
                if pause.seconds:
                    yield pause
                node = yield from self.find()
                if node is None:
                    error = ClusterDownError(f"no node of the cluster has slot {self.slot}")
                    return [error if i in left else answers[i] for i in range(len(commands))]
                replies = yield To(node, [commands[i] for i in left])
            sent, left = left, list[int]()
            for i, reply in zip(sent, self.judge(replies), strict=True):
                if isinstance(reply, MovedError):
                    left.append(i)
                elif commands[i][0] == "WAIT" and isinstance(answers[i], int) and isinstance(reply, int):
                    reply = min(reply, answers[i])  # some commands ran at another node, and it has replicas of its own
                answers[i] = reply
            if not left:
                return answers
            if commands[-1][0] == "WAIT" and left[-1] != len(commands) - 1:
                left.append(len(commands) - 1)  # this WAIT was about the commands that ran here, not about those left
            replies = None
        moves = TryAgainError(f"slot {self.slot} moves from node to node")
        return [moves if isinstance(answer, MovedError) else answer for answer in answers]

    def judge(self, replies: Any) -> list[Any]:
        """Give the replies of the node that was asked last, and learn from errors. Raises the error of the network."""
        node = self._last
        assert node is not None
        if isinstance(replies, BaseException):
            if not is_hopeless(replies):
                self.map.doubt(node)
            raise self._with_node(replies, node)
        return [self._heed(reply, node) if _is_error(reply) else reply for reply in replies]

    def _heed(self, error: Exception, node: Node) -> Exception:
        if isinstance(error, MovedError):  # first: to redis-py, each MovedError is an AskError, too
            where: Any = error
            if where.host == NO_HOSTNAME:
                self.map.doubted = True  # the map tells the address of the node, too
            else:
                there = _node(where.host, where.port, node)
                if there == self.map.owner(self.slot):
                    self.map.doubt(node)
                self.map.follow(self.slot, there)
        elif isinstance(error, AskError):
            # the other node has only some of the keys as yet, so a script cannot run there either
            error = TryAgainError(f"slot {self.slot} is being moved")
        elif is_transient(error) and not isinstance(error, TryAgainError):
            self.map.doubt(node)  # no majority, or a replica: the slot may be elsewhere by now
        return self._with_node(error, node)

    def _with_node(self, error: T, node: Node) -> T:
        # `Server.explain` tells the note to the caller
        if isinstance(error, BaseException) and not getattr(error, "__notes__", None):
            error.add_note(f"node {node[0]}:{node[1]}, slot {self.slot}")
        return error


def _caught(steps: Steps[T]) -> Steps[T | BaseException]:
    try:
        return (yield from steps)
    except LINK_ERRORS as error:
        return error


L = TypeVar("L", Link, AsyncLink)


class Nodes(Generic[L]):
    """The map of a cluster and a link to each node; the links to several slots share them."""

    def __init__(
        self, kind: Callable[[Server, float], L], server: Server, bell_wait: float, map: Map | None = None
    ) -> None:
        self.server = server
        self.map = map or Map(server.nodes, server.deadline * ATTEMPT)
        self._kind: Callable[[Server, float], L] = kind
        self._bell_wait = bell_wait
        self.links: dict[Node, L] = {}
        self._lock = Lock()

    def link(self, node: Node) -> L:
        """Give the link to a node."""
        found = self.links.get(node)
        if found is None:
            with self._lock:
                found = self.links.get(node) or self._kind(self.server.node(*node), self._bell_wait)
                self.links[node] = found
        return found


def nodes(server: Server, bell_wait: float, map: Map | None = None) -> Nodes[Link]:
    """Give the nodes of a cluster for code that blocks."""
    return Nodes(Link, server, bell_wait, map)


def async_nodes(server: Server, bell_wait: float, map: Map | None = None) -> Nodes[AsyncLink]:
    """Give the nodes of a cluster for asyncio."""
    return Nodes(AsyncLink, server, bell_wait, map)


class _Way(Generic[L]):
    """The way to the node that has a slot. No I/O: its generators give steps, and the two links carry them out."""

    def __init__(self, nodes: Nodes[L], slot: int, on_move: Callable[[int], None]) -> None:
        """Prepare; `on_move(slot)` is called when a slot is found at another node than before."""
        self.server = nodes.server
        self.all: Nodes[L] = nodes
        self.route = Route(nodes.map, slot, on_move)
        self._on_move = on_move
        self._others: dict[int, Self] = {}

    def at(self, where: Where) -> Self | L:
        """Give the link to a slot, or to a node; for None, this one."""
        if where is None or where == self.route.slot:
            return self
        if isinstance(where, tuple):
            return self.all.link(where)
        found = self._others.get(where)
        if found is None:
            found = self._others[where] = type(self)(self.all, where, self._on_move)
        return found

    def _sends(self, commands: Sequence[Command]) -> Steps[list[Any]]:
        replies: Any = None
        node = self.route.usual()
        if node is not None:
            replies = yield To(node, commands)
            if _has_no_error(replies):
                return cast("list[Any]", replies)
        return (yield from self.route.exchange(commands, replies))

    def _sends_all(self, parts: Sequence[Sequence[Command]], places: Sequence[Where]) -> Steps[list[Any]]:
        results: list[Any] = [None] * len(parts)
        routes: list[Route | None] = [getattr(self.at(place), "route", None) for place in places]
        by_node: dict[Node, list[int]] = {}
        for part, (route, place) in enumerate(zip(routes, places, strict=True)):
            node: Any = place if route is None else route.usual() or (yield from _caught(route.find()))
            if isinstance(node, BaseException):
                results[part] = node
            elif node is not None:
                by_node.setdefault(node, []).append(part)
        # a node that was silent is asked last: the others need not wait for it once more
        chosen = sorted(by_node.items(), key=lambda one: self.all.map.silent_since(one[0]))
        answers = yield ToAll([(node, [parts[part] for part in of_node]) for node, of_node in chosen])
        for (_, of_node), answer in zip(chosen, answers, strict=True):
            for part, result in zip(of_node, answer, strict=True):
                results[part] = result
                if (route := routes[part]) is not None and not _has_no_error(result):
                    results[part] = yield from _caught(route.exchange(parts[part], result))
        for part, route in enumerate(routes):
            if route is not None and results[part] is None:  # no node had the slot
                results[part] = yield from _caught(route.exchange(parts[part]))
        return results

    def _listens(self, method: str, key: str, seconds: float, *words: Any) -> Steps[Any]:
        until = time.monotonic() + seconds
        for pause in _pauses():
            yield pause
            node = yield from self.route.find()
            if node is None:
                break
            left = max(0.001, until - time.monotonic())
            answer = yield Listen(node, method, (key, left, *words) if method == "wait_bell" else (key, *words, left))
            if not isinstance(answer, BaseException):
                return answer
            (judged,) = self.route.judge([answer] if isinstance(answer, ResponseError) else answer)
            if not isinstance(judged, MovedError):
                raise judged from answer
        raise ClusterDownError(f"no node of the cluster has slot {self.route.slot}")


class ClusterLink(_Way[Link]):
    """A blocking link to the node that has a slot; it has the methods of `Link`."""

    def _run(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the type of the steps
            if isinstance(step, Pause):
                result = None
                time.sleep(step.seconds)
            elif isinstance(step, ToAll):
                result = [self.all.link(node).send_all(parts) for node, parts in step.parts]
            else:
                try:
                    result = step.ask(self.all.link(step.node))
                except LINK_ERRORS as error:
                    result = error

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush to the node of the slot, as `Link.send` does; they follow the slot."""
        return self._run(self._sends(commands))

    def send_all(self, parts: Sequence[Sequence[Command]], places: Sequence[Where]) -> list[Any]:
        """Send several lists of commands, each to its place, in one flush for each node.

        Gives for each list of commands the list of its replies, or the error of the network.
        """
        return self._run(self._sends_all(parts, places))

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, as `Link.wait_bell` does."""
        return self._run(self._listens("wait_bell", key, seconds, then))

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait for the next sound of the alarm after `last`, as `Link.wait_alarm` does."""
        return self._run(self._listens("wait_alarm", key, seconds, last))  # type: ignore[no-any-return]  # bytes

    def nodes(self) -> dict[Node, bool]:
        """Give the nodes that the cluster counts as alive, and for each whether it is a primary with slots."""
        self._run(self.route.find())
        return self.all.map.nodes

    def close(self) -> None:
        """Close all connections to the nodes."""
        for link in list(self.all.links.values()):
            link.close()


class AsyncClusterLink(_Way[AsyncLink]):
    """A link for asyncio to the node that has a slot; it has the methods of `AsyncLink`."""

    async def _run(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the type of the steps
            if isinstance(step, Pause):
                result = None
                await asyncio.sleep(step.seconds)
            elif isinstance(step, ToAll):
                result = await asyncio.gather(*[self.all.link(node).send_all(parts) for node, parts in step.parts])
            else:
                try:
                    result = await step.ask(self.all.link(step.node))
                except LINK_ERRORS as error:
                    result = error

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush to the node of the slot, as `AsyncLink.send` does; they follow the slot."""
        return await self._run(self._sends(commands))

    async def send_all(self, parts: Sequence[Sequence[Command]], places: Sequence[Where]) -> list[Any]:
        """Send several lists of commands, each to its place, as `ClusterLink.send_all` does; to all nodes at once."""
        return await self._run(self._sends_all(parts, places))

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, as `AsyncLink.wait_bell` does."""
        return await self._run(self._listens("wait_bell", key, seconds, then))

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait for the next sound of the alarm after `last`, as `AsyncLink.wait_alarm` does."""
        return await self._run(self._listens("wait_alarm", key, seconds, last))

    async def nodes(self) -> dict[Node, bool]:
        """Give the nodes that the cluster counts as alive, and for each whether it is a primary with slots."""
        await self._run(self.route.find())
        return self.all.map.nodes

    async def close(self) -> None:
        """Close all connections to the nodes."""
        for link in list(self.all.links.values()):
            await link.close()
