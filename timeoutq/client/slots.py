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
from timeoutq.verbs.sending import Alarm, Bell, Flow, Nodes, Send, Sends, Sleep, Step

T = TypeVar("T")

FOLLOWS = 9
"""How many pauses commands make while they follow their slot; each is longer than the one before, a second in all."""


def _pauses() -> Iterable[Sleep]:
    yield Sleep(0.0)
    yield Sleep(0.0)
    for tries in range(FOLLOWS):
        yield Sleep(random.uniform(0.5, 1.0) * 0.002 * 2**tries)  # noqa: S311  # jitter, not a secret


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
        """Prepare; steps that name nothing are for this `slot`.

        `on_move(slot)` is called when a slot is found at another node than before.
        """
        self.map = map
        self._slot, self._on_move = slot, on_move
        self._last: dict[int, Node] = {}  # at which node each slot was found last

    def lead(self, flow: Flow[T]) -> Flow[T]:
        """Give the flow whose steps name nodes."""
        go_on: Callable[[Any], Any] = flow.send
        result: Any = None
        while True:
            try:
                step = go_on(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the flow's own type
            try:
                go_on, result = flow.send, (yield from self._take(step))
            except GeneratorExit:
                raise
            except BaseException as error:  # what has interrupted the step
                go_on, result = flow.throw, error

    def _take(self, step: Step) -> Flow[Any]:
        try:
            if isinstance(step, Sends):
                steps = self._send_all(step)
                return (yield from steps if step.within is None else _hurried(steps, step.within))
            if isinstance(step, Nodes):
                yield from self._find(self._slot)
                return self.map.nodes
            if isinstance(step, Sleep) or isinstance(step.at, tuple):
                return (yield step)
            slot = self._slot_of(step.at)
            return (yield from self._send(slot, step.commands) if isinstance(step, Send) else self._listen(slot, step))
        except LINK_ERRORS as error:
            return error

    def _slot_of(self, where: Where) -> int:
        return where if isinstance(where, int) else self._slot

    def _usual(self, slot: int) -> Node | None:
        # the node of the slot, if it is the same as the last time, and the map is not in doubt
        node = self.map.owner(slot)
        return node if node == self._last.get(slot) and not self.map.doubted else None

    def _find(self, slot: int) -> Flow[Node | None]:
        # the node of the slot; None if no node has it now. Raises the error of a cluster that cannot be asked
        while self.map.doubted or self.map.owner(slot) is None:
            if self.map.may_ask():
                yield from self._learn(slot)
            elif self.map.owner(slot) is not None:
                break  # the map was asked for a moment ago: try the node that it names
            elif not self.map.doubted:
                return None
            else:
                yield Sleep(ASK_EVERY / 4)  # another thread is asking
        node = self.map.owner(slot)
        if node is not None:
            if self._last.get(slot, node) != node:
                self._on_move(slot)
            self._last[slot] = node
        return node

    def _learn(self, slot: int) -> Flow[None]:
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
                errors.append(with_node(error, node, slot))
        # an error that will come again, such as a wrong password, tells the caller more than a silent node does
        raise next((error for error in errors if is_hopeless(error) or is_no_cluster(error)), errors[-1])

    def _send(self, slot: int, commands: Sequence[Command]) -> Flow[list[Any]]:
        # the usual case is short: the slot is where it was, and no reply is an error
        replies: Any = None
        if (node := self._usual(slot)) is not None:
            replies = yield Send(commands, node)
            if are_fine(replies):
                return cast("list[Any]", replies)
        return (yield from self._follow(slot, commands, node, replies))

    def _follow(self, slot: int, commands: Sequence[Command], node: Node | None, replies: Any) -> Flow[list[Any]]:
        """Send commands to the node of a slot until no reply says that the slot is elsewhere; give the replies.

        `replies` are those of a first attempt, if one was made, at this `node`.
        """
        answers: list[Any] = [None] * len(commands)
        left: list[int] = list(range(len(commands)))
        for pause in _pauses():
            if node is None:
                if pause.seconds:
                    yield pause
                node = yield from self._find(slot)
                if node is None:
                    error = nowhere(slot)
                    return [error if i in left else answers[i] for i in range(len(commands))]
                replies = yield Send([commands[i] for i in left], node)
            sent, left = left, list[int]()
            for i, reply in zip(sent, self.map.judge(replies, node, slot), strict=True):
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
        moves = restless(slot)
        return [moves if is_moved(answer) else answer for answer in answers]

    def _listen(self, slot: int, step: Bell | Alarm) -> Flow[Any]:
        # who waits goes on waiting where the slot goes
        until = time.monotonic() + step.seconds
        for pause in _pauses():
            yield pause
            node = yield from self._find(slot)
            if node is None:
                break
            answer: Any = yield replace(step, at=node, seconds=max(0.001, until - time.monotonic()))
            if not isinstance(answer, Exception):
                return answer
            error = self.map.heed(answer, node, slot)
            if not is_moved(error):
                raise error
        raise nowhere(slot)

    def _send_all(self, step: Sends) -> Flow[list[Any]]:
        found: list[Any] = []  # the node of each part; None if no node has its slot; or the error of the cluster
        for part in step.parts:
            at_node, slot = isinstance(part.at, tuple), self._slot_of(part.at)
            found.append(part.at if at_node else self._usual(slot) or (yield from _caught(self._find(slot))))
        known = [at for at, node in enumerate(found) if isinstance(node, tuple)]
        # a node that was silent is asked last: the others need not wait for it once more
        known.sort(key=lambda at: self.map.silent_since(found[at]))
        answers: Any = yield Sends([Send(step.parts[at].commands, found[at]) for at in known])
        results: dict[int, Any] = dict(zip(known, answers, strict=True))
        for at, (part, node) in enumerate(zip(step.parts, found, strict=True)):
            if isinstance(node, Exception):
                results[at] = node
            elif not isinstance(part.at, tuple) and not are_fine(results.get(at)):
                again = self._follow(self._slot_of(part.at), part.commands, node, results.get(at))
                results[at] = yield from _caught(again)
        return [results[at] for at in range(len(found))]
