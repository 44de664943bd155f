"""A sender for tests of workers: it puts calls with a queue, and reads results from it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import msgspec

from timeoutq import Queue, Task
from timeoutq.arguments import Packed
from timeoutq.functions import outcomes
from timeoutq.functions.sender import Answers, Posted
from timeoutq.model import Answer, Ended, State


class Call:
    """What stands for the result of a call: it looks, and waits, with the queue of the test."""

    def __init__(self, sender: Direct, answers: Answers, answer: Answer) -> None:
        self._sender, self.answers, self.answer = sender, answers, answer

    @property
    def id(self) -> str:
        return self.answers.id.decode()

    def ended(self, seconds: float = 10.0) -> Ended:
        """Wait until the call has ended, and tell how."""
        return self._sender.queue(self.answers.queue).results.wait(self.id, timeout=seconds)[self.id]

    def wait(self, timeout: float | None = None) -> Any:
        ended = self.ended(10.0 if timeout is None else timeout)
        assert ended.state is not State.FAILED, ended
        return msgspec.json.decode(ended.result or b"null", type=self.answers.returns)

    def failure(self, seconds: float = 10.0) -> outcomes.Failure:
        """Wait until the call has failed, and give why."""
        ended = self.ended(seconds)
        assert ended.state is State.FAILED, ended
        return outcomes.read_failure(ended.result)

    def __await__(self) -> Generator[Any, None, Any]:
        raise NotImplementedError


class Direct:
    """Puts calls into the queues of one server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: dict[str, Queue] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def queue(self, name: str) -> Queue:
        """Give the queue of this name."""
        if name not in self._open:
            self._open[name] = self._stack.enter_context(Queue(name, self._url, timeout=5))
        return self._open[name]

    def put(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        answers: list[Answer] = []
        for call in calls:
            queue, task = self.queue(call.queue), Task(call.id, Packed(call.payload), call.group)
            if call.at is None and call.after is None:
                answers += queue.put(task)
            else:
                answers += queue.schedule(task, at=call.at, after=call.after)
        return answers

    async def aput(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        return self.put(calls)

    def result(self, answers: Answers, answer: Answer = Answer.ADDED, /) -> Call:
        return Call(self, answers, answer)

    def close(self) -> None:
        self._stack.close()

    async def aclose(self) -> None:
        self._stack.close()
