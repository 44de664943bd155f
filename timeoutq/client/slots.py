"""Which node of a cluster gets a step of a flow: finds the node that has a slot, and follows the slot. No I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from timeoutq.server.calls import Command
from timeoutq.server.cluster import ASK_EVERY, Map, Node, Where, are_fine, is_moved, nowhere, restless, with_node
from timeoutq.server.troubles import LINK_ERRORS, is_hopeless, is_no_cluster
from timeoutq.verbs.sending import Alarm, Bell, Flow, Nodes, Send, Sends, Sleep

T = TypeVar("T")

FOLLOWS = 9
"""How many pauses commands make while they follow their slot; each is longer than the one before, a second in all."""


def _pauses() -> Iterable[Sleep]:
    yield Sleep(0.0)
    yield Sleep(0.0)
    for tries in range(FOLLOWS):
        yield Sleep(random.uniform(0.5, 1.0) * 0.002 * 2**tries)  # noqa: S311  # jitter, not a secret


class Route:
    """The way to the node of one slot."""

    def __init__(self, map: Map, slot: int, on_move: Callable[[int], None]) -> None:
        self.map = map
        self.slot = slot
        self._on_move = on_move
        self._last: Node | None = None

    def usual(self) -> Node | None:
        """Give the node of the slot, if it is the same as the last time, and the map is not in doubt; else None."""
        node = self.map.owner(self.slot)
        return node if node == self._last and not self.map.doubted else None

    def find(self) -> Flow[Node | None]:
        """Find the node of the slot; None if no node has it now. Raises the error of a cluster that cannot be asked."""
        while self.map.doubted or self.map.owner(self.slot) is None:
            if self.map.may_ask():
                yield from self._learn()
            elif self.map.owner(self.slot) is not None:
                break  # the map was asked for a moment ago: try the node that it names
            elif not self.map.doubted:
                return None
            else:
                yield Sleep(ASK_EVERY / 4)  # another thread is asking
        node = self.map.owner(self.slot)
        if node is not None and node != self._last:
            if self._last is not None:
                self._on_move(self.slot)
            self._last = node
        return node

    def _learn(self) -> Flow[None]:
        errors: list[Exception] = []
        until = time.monotonic() + self.map.patience
        for node in self.map.to_ask():
            if errors and time.monotonic() >= until:
                break  # the caller's deadline counts; the next question goes to the nodes that are left
            told: Any = yield Send((("CLUSTER", "SLOTS"),), node)
            told = told if isinstance(told, BaseException) else told[0]
            try:
                if isinstance(told, Exception):
                    raise told
                self.map.learn(told, node)
                return
            except LINK_ERRORS as error:
                self.map.ask_late(node)
                errors.append(with_node(error, node, self.slot))
        # an error that will come again, such as a wrong password, tells the caller more than a silent node does
        raise next((error for error in errors if is_hopeless(error) or is_no_cluster(error)), errors[-1])

    def exchange(self, commands: Sequence[Command], node: Node | None = None, replies: Any = None) -> Flow[list[Any]]:
        """Send commands to the node of the slot until no reply says that the slot is elsewhere; give the replies.

        `replies` are those of a first attempt, which the caller has made at this `node`.
        """
        answers: list[Any] = [None] * len(commands)
        left: list[int] = list(range(len(commands)))
        for pause in _pauses():
            if node is None:
                if pause.seconds:
                    yield pause
                node = yield from self.find()
                if node is None:
                    error = nowhere(self.slot)
                    return [error if i in left else answers[i] for i in range(len(commands))]
                replies = yield Send([commands[i] for i in left], node)
            sent, left = left, list[int]()
            for i, reply in zip(sent, self.map.judge(replies, node, self.slot), strict=True):
                if is_moved(reply):
                    left.append(i)
                elif commands[i][0] == "WAIT" and isinstance(answers[i], int) and isinstance(reply, int):
                    reply = min(reply, answers[i])  # some commands ran at another node, and it has replicas of its own
                answers[i] = reply
            if not left:
                return answers
            if commands[-1][0] == "WAIT" and left[-1] != len(commands) - 1:
                left.append(len(commands) - 1)  # this WAIT was about the commands that ran here, not about those left
            node = None
        moves = restless(self.slot)
        return [moves if is_moved(answer) else answer for answer in answers]

    def send(self, commands: Sequence[Command]) -> Flow[list[Any]]:
        """Do as `exchange`; the usual case is short: the slot is where it was, and no reply is an error."""
        replies: Any = None
        if (node := self.usual()) is not None:
            replies = yield Send(commands, node)
            if are_fine(replies):
                return cast("list[Any]", replies)
        return (yield from self.exchange(commands, node, replies))

    def listen(self, step: Bell | Alarm) -> Flow[Any]:
        """Wait for a bell or an alarm at the node of the slot, and go on waiting where the slot goes."""
        until = time.monotonic() + step.seconds
        for pause in _pauses():
            yield pause
            node = yield from self.find()
            if node is None:
                break
            answer: Any = yield replace(step, at=node, seconds=max(0.001, until - time.monotonic()))
            if not isinstance(answer, Exception):
                return answer
            error = self.map.heed(answer, node, self.slot)
            if not is_moved(error):
                raise error
        raise nowhere(self.slot)


def _caught(steps: Flow[T]) -> Flow[T | BaseException]:
    try:
        return (yield from steps)
    except LINK_ERRORS as error:
        return error


def _hurried(steps: Flow[T], within: float) -> Flow[T]:
    # whatever is sent on the way has the short deadline, too
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the flow's own type
        if isinstance(step, Send):
            (result,) = yield Sends([step], within)
        else:
            result = yield replace(step, within=within) if isinstance(step, Sends) else step


class Guide:
    """Leads the flows of one queue: each step that names a slot, or nothing, becomes steps that name nodes."""

    def __init__(self, map: Map, slot: int, on_move: Callable[[int], None]) -> None:
        """Prepare; `on_move(slot)` is called when a slot is found at another node than before."""
        self.map = map
        self._on_move = on_move
        self._home = Route(map, slot, on_move)
        self._routes = {slot: self._home}

    def lead(self, flow: Flow[T]) -> Flow[T]:
        """Give the flow whose steps name nodes."""
        result: Any = None
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the flow's own type
            if isinstance(step, Sleep):
                result = yield step
            elif isinstance(step, Sends):
                steps = self._send_all(step)
                result = yield from steps if step.within is None else _hurried(steps, step.within)
            elif isinstance(step, Nodes):
                result = yield from _caught(self._nodes())
            elif isinstance(step.at, tuple):
                result = yield step
            else:
                route = self._route(step.at)
                result = yield from _caught(route.send(step.commands) if isinstance(step, Send) else route.listen(step))

    def _route(self, where: Where) -> Route:
        if where is None or isinstance(where, tuple):
            return self._home
        if where not in self._routes:
            self._routes[where] = Route(self.map, where, self._on_move)
        return self._routes[where]

    def _nodes(self) -> Flow[dict[Node, bool]]:
        yield from self._home.find()
        return self.map.nodes

    def _send_all(self, step: Sends) -> Flow[list[Any]]:
        nodes: list[Any] = []
        for part in step.parts:  # None: no node has the slot; or the error of a cluster that cannot be asked
            route = self._route(part.at)
            found = part.at if isinstance(part.at, tuple) else route.usual() or (yield from _caught(route.find()))
            nodes.append(found)
        results: list[Any] = [node if isinstance(node, Exception) else None for node in nodes]
        known = [at for at, node in enumerate(nodes) if isinstance(node, tuple)]
        # a node that was silent is asked last: the others need not wait for it once more
        known.sort(key=lambda at: self.map.silent_since(nodes[at]))
        answers: Any = yield Sends([Send(step.parts[at].commands, nodes[at]) for at in known])
        for at, answer in zip(known, answers, strict=True):
            results[at] = answer
        for at, part in enumerate(step.parts):
            if not (isinstance(part.at, tuple) or isinstance(nodes[at], Exception) or are_fine(results[at])):
                results[at] = yield from _caught(self._route(part.at).exchange(part.commands, nodes[at], results[at]))
        return results
