"""Links to a cluster: each is bound to the slot of one queue, finds the node that has the slot, and follows the slot.

`client/driving.py` uses them where a URL names a cluster. The links to the nodes are those of `link.py`, one for each
node. redis-py's own client for clusters is not used: it sends WAIT to all primaries and adds up what they say, so that
`durable=` would mean nothing.
"""

from __future__ import annotations

import asyncio
import binascii
import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Self, TypeVar, cast

from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from timeoutq.calls import Command
from timeoutq.connection import Server
from timeoutq.link import AsyncLink, Link
from timeoutq.troubles import LINK_ERRORS, is_hopeless, is_no_cluster, is_transient

T = TypeVar("T")
Node = tuple[str, int]
"""The host and the port of a node."""
Where = int | Node | None
"""Where in a cluster: a slot, or a node; None is the slot of the queue. Without a cluster, nobody looks at it."""

SLOTS = 16384
ASK_EVERY = 0.1
"""Seconds between two questions for the map of a cluster."""
FOLLOWS = 9
"""How often commands follow their slot; the pauses between become longer, a second in all."""


def slot_of(queue: str) -> int:
    """Give the slot of a queue's keys: CRC-16/XMODEM of its name, which is their hash tag (Redis Cluster's rule)."""
    return binascii.crc_hqx(queue.encode(), 0) % SLOTS


class Map:
    """Which node has which slot, as far as this process knows."""

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = tuple(seeds)
        self.nodes: dict[Node, bool] = {}
        """The nodes that the cluster counts as alive, and for each whether it has slots."""
        self._owners: list[Node | None] = [None] * SLOTS
        self._asked = -ASK_EVERY
        self.doubted = True
        """Whether the map is to be asked for again before it is used."""
        self._silent: Node | None = None

    def owner(self, slot: int) -> Node | None:
        """Give the node that has the slot; None if no node is known to have it."""
        return self._owners[slot]

    def doubt(self, node: Node) -> None:
        """Note that this node does not answer, or is not what the map says."""
        self.doubted, self._silent = True, node

    def follow(self, slot: int, node: Node) -> None:
        """Note that a node has said where the slot is now."""
        self._owners[slot] = node

    def may_ask(self) -> bool:
        """Say whether the last question is long enough ago; if so, the next one begins now."""
        now = time.monotonic()
        if now - self._asked < ASK_EVERY:
            return False
        self._asked = now
        return True

    def to_ask(self) -> list[Node]:
        """Give all known nodes in the order in which they are to be asked for the map."""
        nodes = list(dict.fromkeys((*self.nodes, *self._seeds)))
        if not self.nodes:
            return nodes  # the first question goes to the nodes of the URL, as they stand there
        random.shuffle(nodes)
        return sorted(nodes, key=lambda node: node == self._silent)

    def learn(self, reply: Any, asked: Node) -> None:
        """Take the reply to CLUSTER SLOTS of the node `asked`."""
        owners: list[Node | None] = [None] * SLOTS
        nodes: dict[Node, bool] = {}
        for first, last, *servers in reply:
            found = [_node(server[0], server[1], asked) for server in servers]
            nodes.update((node, node == found[0]) for node in found)
            owners[first : last + 1] = found[:1] * (last + 1 - first)
        self._owners, self.nodes, self.doubted = owners, nodes, False


def _node(host: Any, port: Any, asked: Node) -> Node:
    # a node that does not know its own name leaves it out: then its name is the one by which it was reached
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return name or asked[0], int(port) or asked[1]


@dataclass(frozen=True, slots=True)
class To:
    """Send these commands to a node. The result is a list of replies, or the error of the network."""

    node: Node
    commands: Sequence[Command]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for `seconds`."""

    seconds: float


Steps = Generator[To | Pause, Any, T]


def _pauses() -> Iterable[Pause]:
    yield Pause(0.0)
    yield Pause(0.0)
    for tries in range(FOLLOWS):
        yield Pause(random.uniform(0.5, 1.0) * 0.002 * 2**tries)  # noqa: S311  # jitter, not a secret


def _is_odd(reply: object) -> bool:
    return isinstance(reply, ResponseError)


def _are_usual(replies: object) -> bool:
    return isinstance(replies, list) and not any(map(_is_odd, cast("list[object]", replies)))


class Route:
    """The way to the node of one slot. No I/O: a generator gives the steps, the links carry them out."""

    def __init__(self, map: Map, slot: int, on_move: Callable[[int], None]) -> None:
        self.map = map
        self.slot = slot
        self._on_move = on_move
        self._last: Node | None = None

    def usual(self) -> Node | None:
        """Give the node of the slot, if it is the node of the last time, and there is no doubt."""
        node = self.map.owner(self.slot)
        return node if node == self._last and not self.map.doubted else None

    def find(self) -> Steps[Node | None]:
        """Find the node of the slot; None if no node has it now. Raises the error of a cluster that cannot be asked."""
        while self.map.doubted or self.map.owner(self.slot) is None:
            if self.map.may_ask():
                yield from self._learn()
            elif self.map.owner(self.slot) is None and not self.map.doubted:
                return None
            elif self.map.owner(self.slot) is not None:
                break  # the map was asked for a moment ago
            else:
                yield Pause(ASK_EVERY / 4)  # another thread asks
        node = self.map.owner(self.slot)
        if node is not None and node != self._last:
            if self._last is not None:
                self._on_move(self.slot)
            self._last = node
        return node

    def _learn(self) -> Steps[None]:
        errors: list[Exception] = []
        for node in self.map.to_ask():
            told: Any = yield To(node, (("CLUSTER", "SLOTS"),))
            told = told if isinstance(told, BaseException) else told[0]
            if not isinstance(told, Exception):
                self.map.learn(told, node)
                return
            errors.append(self.at(node, told))
        # what will come again says more than that others are silent
        raise next((error for error in errors if is_hopeless(error) or is_no_cluster(error)), errors[-1])

    def exchange(self, commands: Sequence[Command], replies: Any = None) -> Steps[list[Any]]:
        """Send commands to the node of the slot until none of them is told to go elsewhere; give the replies.

        `replies` are those of a first attempt, at the node of the last time.
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
                    reply = min(reply, answers[i])
                answers[i] = reply
            if not left:
                return answers
            if commands[-1][0] == "WAIT" and left[-1] != len(commands) - 1:
                left.append(len(commands) - 1)  # it has waited for those only that were not told to go elsewhere
            replies = None
        moves = TryAgainError(f"slot {self.slot} moves from node to node")
        return [moves if isinstance(answer, MovedError) else answer for answer in answers]

    def judge(self, replies: Any) -> list[Any]:
        """Look through what the node of the slot has said, and learn from it; raise the error of the network."""
        node = self._last
        assert node is not None
        if isinstance(replies, BaseException):
            if not is_hopeless(replies):
                self.map.doubt(node)
            raise self.at(node, replies)
        return [self._heed(reply, node) if _is_odd(reply) else reply for reply in replies]

    def _heed(self, error: Exception, node: Node) -> Exception:
        if isinstance(error, MovedError):  # redis-py makes each of them an AskError, too
            where: Any = error
            there = _node(where.host, where.port, node)
            if there == self.map.owner(self.slot):
                self.map.doubt(node)
            self.map.follow(self.slot, there)
        elif isinstance(error, AskError):
            # the node that takes the slot over cannot run a script before it has all keys either
            error = TryAgainError(f"slot {self.slot} is being moved")
        elif is_transient(error) and not isinstance(error, TryAgainError):
            self.map.doubt(node)  # no majority, or a replica: the slot may be elsewhere by now
        return self.at(node, error)

    def at(self, node: Node, error: T) -> T:
        """Note at which node the error was met; `Server.explain` says it."""
        if isinstance(error, BaseException) and not getattr(error, "__notes__", None):
            error.add_note(f"node {node[0]}:{node[1]}, slot {self.slot}")
        return error


class Parts:
    """Several lists of commands on their way, each to its place in a cluster. No I/O."""

    def __init__(self, parts: Sequence[Sequence[Command]], places: Sequence[Where], at: Callable[[Where], Any]) -> None:
        self.results: list[Any] = [None] * len(parts)
        self._parts = parts
        self._routes: list[Route | None] = [getattr(at(place), "route", None) for place in places]
        self._nodes: list[Node | None] = [
            route.usual() if route is not None else place if isinstance(place, tuple) else None
            for route, place in zip(self._routes, places, strict=True)
        ]
        self._sent: list[int] = []

    def lost(self) -> Iterable[tuple[int, Route]]:
        """Give the parts whose node is to be found first."""
        for at, (route, node) in enumerate(zip(self._routes, self._nodes, strict=True)):
            if node is None and route is not None:
                yield at, route

    def found(self, at: int, node: Node | BaseException | None) -> None:
        """Take the node of a part, or the error of those who were asked for it; None: no node has the slot now."""
        if isinstance(node, BaseException):
            self.results[at] = node
        else:
            self._nodes[at] = node

    def by_node(self) -> list[tuple[Node, list[int]]]:
        """Give for each node the parts that go to it."""
        found: dict[Node, list[int]] = {}
        for at, node in enumerate(self._nodes):
            if node is not None:
                found.setdefault(node, []).append(at)
        return list(found.items())

    def take(self, chosen: Sequence[int], results: Sequence[Any]) -> None:
        """Take what became of parts at their node."""
        self._sent += chosen
        for at, result in zip(chosen, results, strict=True):
            self.results[at] = result

    def odd(self) -> Iterable[tuple[int, Steps[list[Any]]]]:
        """Give the steps for the parts that have errors among their replies, or whose slot no node had."""
        sent = set(self._sent)
        for at, (route, result) in enumerate(zip(self._routes, self.results, strict=True)):
            if route is not None and (at in sent or result is None) and not _are_usual(result):
                yield at, route.exchange(self._parts[at], result)


class Nodes:
    """The map of a cluster and a blocking link to each node; the links to several slots share them."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        self.server = server
        self.map = Map(server.nodes)
        self._bell_wait = bell_wait
        self._links: dict[Node, Link] = {}
        self._lock = Lock()

    def link(self, node: Node) -> Link:
        """Give the link to a node."""
        found = self._links.get(node)
        if found is None:
            with self._lock:
                found = self._links.get(node) or Link(self.server.node(*node), self._bell_wait)
                self._links[node] = found
        return found

    def close(self) -> None:
        """Close all connections."""
        for link in list(self._links.values()):
            link.close()


class ClusterLink:
    """A blocking link to the node that has a slot; it has the methods of `Link`."""

    def __init__(self, nodes: Nodes, slot: int, on_move: Callable[[int], None]) -> None:
        """Prepare; `on_move(slot)` is called when a slot is found at another node than before."""
        self.server = nodes.server
        self._nodes = nodes
        self.route = Route(nodes.map, slot, on_move)
        self._on_move = on_move
        self._others: dict[int, Self] = {}

    def at(self, where: Where) -> Self | Link:
        """Give the link to a slot, or to a node; for None, this one."""
        if where is None or where == self.route.slot:
            return self
        if isinstance(where, tuple):
            return self._nodes.link(where)
        found = self._others.get(where)
        if found is None:
            found = self._others[where] = type(self)(self._nodes, where, self._on_move)
        return found

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush to the node of the slot, as `Link.send` does; they follow the slot."""
        replies: Any = None
        node = self.route.usual()
        if node is not None:
            replies = self._try(To(node, commands))
            if _are_usual(replies):
                return replies  # type: ignore[no-any-return]  # a list
        return self._drive(self.route.exchange(commands, replies))

    def send_all(self, parts: Sequence[Sequence[Command]], places: Sequence[Where]) -> list[Any]:
        """Send several lists of commands, each to its place, in one flush for each node; give for each what came of it.

        That is the list of its replies, or the error of the network.
        """
        work = Parts(parts, places, self.at)
        for at, route in work.lost():
            work.found(at, self._met(route.find()))
        for node, chosen in work.by_node():
            work.take(chosen, self._nodes.link(node).send_all([parts[at] for at in chosen]))
        for at, steps in work.odd():
            work.results[at] = self._met(steps)
        return work.results

    def _met(self, steps: Steps[T]) -> T | BaseException:
        try:
            return self._drive(steps)
        except LINK_ERRORS as error:
            return error

    def _try(self, step: To) -> Any:
        try:
            return self._nodes.link(step.node).send(step.commands)
        except LINK_ERRORS as error:
            return error

    def _drive(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the type of the steps
            result = None
            if isinstance(step, To):
                result = self._try(step)
            else:
                time.sleep(step.seconds)

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, as `Link.wait_bell` does."""
        return self._wait(lambda link, left: link.wait_bell(key, left, then), seconds)

    def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait for the next sound of the alarm after `last`, as `Link.wait_alarm` does."""
        return self._wait(lambda link, left: link.wait_alarm(key, last, left), seconds)

    def _wait(self, wait: Callable[[Link, float], T], seconds: float) -> T:
        until = time.monotonic() + seconds
        for pause in _pauses():
            time.sleep(pause.seconds)
            node = self._drive(self.route.find())
            if node is None:
                break
            try:
                return wait(self._nodes.link(node), max(0.001, until - time.monotonic()))
            except LINK_ERRORS as error:
                (met,) = self.route.judge([error] if isinstance(error, ResponseError) else error)
                if not isinstance(met, MovedError):
                    raise met from error
        raise ClusterDownError(f"no node of the cluster has slot {self.route.slot}")

    def nodes(self) -> dict[Node, bool]:
        """Give the nodes that the cluster counts as alive, and for each whether it has slots."""
        self._drive(self.route.find())
        return self._nodes.map.nodes

    def close(self) -> None:
        """Close all connections to the nodes."""
        self._nodes.close()


class AsyncNodes:
    """The same for asyncio; used by one event loop."""

    def __init__(self, server: Server, bell_wait: float) -> None:
        self.server = server
        self.map = Map(server.nodes)
        self._bell_wait = bell_wait
        self._links: dict[Node, AsyncLink] = {}

    def link(self, node: Node) -> AsyncLink:
        """Give the link to a node."""
        if node not in self._links:
            self._links[node] = AsyncLink(self.server.node(*node), self._bell_wait)
        return self._links[node]

    async def close(self) -> None:
        """Close all connections."""
        for link in list(self._links.values()):
            await link.close()


class AsyncClusterLink:
    """The same link for asyncio; it has the methods of `AsyncLink`."""

    def __init__(self, nodes: AsyncNodes, slot: int, on_move: Callable[[int], None]) -> None:
        """Prepare; `on_move(slot)` is called when a slot is found at another node than before."""
        self.server = nodes.server
        self._nodes = nodes
        self.route = Route(nodes.map, slot, on_move)
        self._on_move = on_move
        self._others: dict[int, Self] = {}

    def at(self, where: Where) -> Self | AsyncLink:
        """Give the link to a slot, or to a node; for None, this one."""
        if where is None or where == self.route.slot:
            return self
        if isinstance(where, tuple):
            return self._nodes.link(where)
        found = self._others.get(where)
        if found is None:
            found = self._others[where] = type(self)(self._nodes, where, self._on_move)
        return found

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one flush to the node of the slot, as `AsyncLink.send` does; they follow the slot."""
        replies: Any = None
        node = self.route.usual()
        if node is not None:
            replies = await self._try(To(node, commands))
            if _are_usual(replies):
                return replies  # type: ignore[no-any-return]  # a list
        return await self._drive(self.route.exchange(commands, replies))

    async def send_all(self, parts: Sequence[Sequence[Command]], places: Sequence[Where]) -> list[Any]:
        """Send several lists of commands, each to its place, in one flush for each node; give for each what came of it.

        That is the list of its replies, or the error of the network.
        """
        work = Parts(parts, places, self.at)
        for at, route in work.lost():
            work.found(at, await self._met(route.find()))

        async def send(node: Node, chosen: list[int]) -> None:
            work.take(chosen, await self._nodes.link(node).send_all([parts[at] for at in chosen]))

        async with asyncio.TaskGroup() as group:
            for node, chosen in work.by_node():
                group.create_task(send(node, chosen))
        for at, steps in work.odd():
            work.results[at] = await self._met(steps)
        return work.results

    async def _met(self, steps: Steps[T]) -> T | BaseException:
        try:
            return await self._drive(steps)
        except LINK_ERRORS as error:
            return error

    async def _try(self, step: To) -> Any:
        try:
            return await self._nodes.link(step.node).send(step.commands)
        except LINK_ERRORS as error:
            return error

    async def _drive(self, steps: Steps[T]) -> T:
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the type of the steps
            result = None
            if isinstance(step, To):
                result = await self._try(step)
            else:
                await asyncio.sleep(step.seconds)

    async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, at most `seconds`, as `AsyncLink.wait_bell` does."""
        return await self._wait(lambda link, left: link.wait_bell(key, left, then), seconds)

    async def wait_alarm(self, key: str, last: bytes, seconds: float) -> bytes:
        """Wait for the next sound of the alarm after `last`, as `AsyncLink.wait_alarm` does."""
        return await self._wait(lambda link, left: link.wait_alarm(key, last, left), seconds)

    async def _wait(self, wait: Callable[[AsyncLink, float], Awaitable[T]], seconds: float) -> T:
        until = time.monotonic() + seconds
        for pause in _pauses():
            await asyncio.sleep(pause.seconds)
            node = await self._drive(self.route.find())
            if node is None:
                break
            try:
                return await wait(self._nodes.link(node), max(0.001, until - time.monotonic()))
            except LINK_ERRORS as error:
                (met,) = self.route.judge([error] if isinstance(error, ResponseError) else error)
                if not isinstance(met, MovedError):
                    raise met from error
        raise ClusterDownError(f"no node of the cluster has slot {self.route.slot}")

    async def nodes(self) -> dict[Node, bool]:
        """Give the nodes that the cluster counts as alive, and for each whether it has slots."""
        await self._drive(self.route.find())
        return self._nodes.map.nodes

    async def close(self) -> None:
        """Close all connections to the nodes."""
        await self._nodes.close()
