"""Carries out several flows at the same time: their commands travel in one flush for each node. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from timeoutq.verbs.sending import Flow, Send, Sends, Sleep
from timeoutq.words.errors import TimeoutqError

T = TypeVar("T")


def together(flows: Sequence[Flow[T]], within: float | None = None) -> Flow[list[T | TimeoutqError]]:
    """Carry out flows in lock-step; give for each flow its result, or the error in which it ended.

    The flows may send and sleep, nothing else. While any flow has something to send, none is waited for. `within` is as
    for `Sends`.
    """
    if len(flows) == 1 and within is None:
        return [(yield from _alone(flows[0]))]
    work = [_Course(flow) for flow in flows]
    try:
        while True:
            sending = [one for one in work if isinstance(one.step, Send)]
            if sending:
                results: Any = yield Sends([one.step for one in sending], within)
                for one, result in zip(sending, results, strict=True):
                    one.go(result)
            asleep = [one for one in work if isinstance(one.step, Sleep)]
            now = time.monotonic()
            if not sending and asleep and (left := max(one.until for one in asleep) - now) > 0:
                yield Sleep(left)  # all of them wake up together, so that their commands travel together
            elif not sending and not asleep:
                return [one.result for one in work]
            for one in asleep:
                if not sending or one.until <= now:
                    one.go(None)
    finally:
        for one in work:
            one.flow.close()


def _alone(flow: Flow[T]) -> Flow[T | TimeoutqError]:
    try:
        return (yield from flow)
    except TimeoutqError as error:
        return error


class _Course:
    """A flow on its way: the step whose result it needs next, or its own result."""

    def __init__(self, flow: Flow[Any]) -> None:
        self.flow = flow
        self.until = 0.0
        self.result: Any = None
        self.step: Any = None
        self.go(None)

    def go(self, result: Any) -> None:
        """Give the flow the result of its step, and take its next step."""
        try:
            self.step = self.flow.send(result)
        except StopIteration as end:
            self.step, self.result = None, end.value
        except TimeoutqError as error:
            self.step, self.result = None, error
        else:
            if isinstance(self.step, Sleep):
                self.until = time.monotonic() + self.step.seconds
            elif not isinstance(self.step, Send):
                raise TypeError(f"flows that go together send and sleep only, and this one wants {self.step!r}")
