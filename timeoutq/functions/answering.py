"""What stands for the result of a call: it waits for the end of the call, and reads what is kept of it.

`posting.py` makes a `Pending` for each call that it has put. Of a chain, the calls are waited for one after another,
because each is put only when the one before it returns.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, cast

from timeoutq.functions import outcomes
from timeoutq.functions.errors import BadResult, CallCancelled, CallFailed, CallGone
from timeoutq.functions.sender import Answers
from timeoutq.words import arguments, telling
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, Ended, State, TaskInfo, text

T_co = TypeVar("T_co", covariant=True)

STOPPED = (Answer.CANCELLED, Answer.CANCELLING)
"""The answers for a call that was cancelled, or will be as soon as its worker hears of it."""


class Asks(Protocol):
    """Whom a result asks; the queue and the id name the call."""

    def ended(self, queue: str, id: bytes, seconds: float | None) -> Ended | None:
        """Wait until a call has ended, and tell how; None if it has not. Blocks."""
        ...

    async def aended(self, queue: str, id: bytes) -> Ended | None:
        """Wait until a call has ended, and tell how."""
        ...

    def info(self, queue: str, id: bytes) -> TaskInfo:
        """Tell all that a queue knows of a call; blocks."""
        ...

    async def ainfo(self, queue: str, id: bytes) -> TaskInfo:
        """Tell all that a queue knows of a call."""
        ...

    def cancel(self, queue: str, id: bytes, by: str | None) -> Answer:
        """Cancel a call; blocks."""
        ...

    async def acancel(self, queue: str, id: bytes, by: str | None) -> Answer:
        """Cancel a call."""
        ...


class Pending(Generic[T_co]):
    """What a call will return: `await` it, or `wait` for it."""

    __slots__ = ("_answers", "_asks", "answer")

    def __init__(self, asks: Asks, answers: Answers, answer: Answer | None = None) -> None:
        """Prepare; asks nobody yet."""
        self._asks = asks
        self._answers = answers
        self.answer = answer
        """What `put` gave: `ADDED`, or the state that the call was in already; None if the call was put elsewhere."""

    @property
    def id(self) -> str:
        """The id of the call; of a chain, that of its last call."""
        return text(self._answers.id)

    @property
    def queue(self) -> str:
        """The queue of the call; of a chain, that of its last call."""
        return self._answers.queue

    @property
    def added(self) -> bool | None:
        """Whether the call was added. False: a call with this id was there, and `answer` says what became of it.

        None: the call was put elsewhere.
        """
        return None if self.answer is None else self.answer is Answer.ADDED

    def __repr__(self) -> str:
        return f"<result of call {self.id!r} in queue {self.queue!r}>"

    def wait(self, timeout: float | None = None) -> T_co:
        """Wait until the call has ended, at most `timeout` seconds, and give what it returned; blocks.

        Raises `CallFailed` if the call was given up, `CallCancelled` if somebody has cancelled it, `CallGone` if
        nothing is known of it any more, and `TimeoutError`. Raises `InvalidInput` at once if its result is not kept,
        and in an `async def` that a worker runs: await the result there.
        """
        _check_kept(self._answers)
        _refuse_to_block_the_worker()
        until = None if timeout is None else time.monotonic() + arguments.seconds(timeout, "timeout")
        ended: Ended | None = None
        for queue, id in self._answers.places:
            ended = self._asks.ended(queue, id, None if until is None else max(0.0, until - time.monotonic()))
            if ended is None:
                why = f"`timeoutq why {queue} {shlex.quote(text(id))}` says what it waits for"
                raise TimeoutError(f"call {text(id)!r} has not ended within {timeout:g} s: {why}")
            refuse_failed(ended)
        return cast("T_co", value_of(self._answers, ended))

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait until the call has ended, and give what it returned; raises what `wait` raises."""
        return self._waited().__await__()

    async def _waited(self) -> T_co:
        _check_kept(self._answers)
        ended: Ended | None = None
        for queue, id in self._answers.places:
            ended = await self._asks.aended(queue, id)
            if ended is not None:
                refuse_failed(ended)
        return cast("T_co", value_of(self._answers, ended))

    def info(self) -> TaskInfo:
        """Tell all that the queue knows of the call; of a chain, of the call that has come furthest; blocks.

        A call that has returned is done for as long as its result is kept; its attempts are not kept. Where nothing is
        kept, the state is None, as for a call that never was.
        """
        for queue, id in reversed(self._answers.places):
            found = _with_state(self._asks.info(queue, id))
            if found.state is not None:
                return found
        return self._asks.info(*self._answers.places[0])

    async def ainfo(self) -> TaskInfo:
        """Do as `info`, for asyncio."""
        for queue, id in reversed(self._answers.places):
            found = _with_state(await self._asks.ainfo(queue, id))
            if found.state is not None:
                return found
        return await self._asks.ainfo(*self._answers.places[0])

    def cancel(self, by: str | None = None) -> Answer:
        """Cancel the call, if it has not ended; say what became of it, as `Queue.cancel` does; blocks.

        Of a chain, the call is cancelled that is there now, and what follows it is not called. `by` says who it was.
        `DONE` or `FAILED` say that the call has ended before; `UNKNOWN`, that nothing is kept of it.
        """
        for queue, id in self._answers.places:
            found = self._asks.cancel(queue, id, by)
            if found in STOPPED:
                return found
        state = self.info().state
        return Answer.UNKNOWN if state is None else Answer(state.value)

    async def acancel(self, by: str | None = None) -> Answer:
        """Do as `cancel`, for asyncio."""
        for queue, id in self._answers.places:
            found = await self._asks.acancel(queue, id, by)
            if found in STOPPED:
                return found
        state = (await self.ainfo()).state
        return Answer.UNKNOWN if state is None else Answer(state.value)


def _with_state(info: TaskInfo) -> TaskInfo:
    """Say done of what no state holds and whose result is kept: its id went from `done` at once."""
    return replace(info, state=State.DONE) if info.state is None and info.has_result else info


def _refuse_to_block_the_worker() -> None:
    if telling.running.get() is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # a def, which runs in a thread
        return
    raise InvalidInput("wait() would block the worker, and the call with it: in an async def, write `await result`")


def _check_kept(answers: Answers) -> None:
    if not answers.is_kept:
        why = "a result of None is not kept unless you ask for it" if answers.keep_result else "its result is not kept"
        raise InvalidInput(
            f"call {text(answers.id)!r} cannot be waited for, because {why}: give the function or the call "
            "keep_result=, in seconds"
        )


def refuse_failed(ended: Ended) -> None:
    """Raise the error of a call that was given up, or cancelled."""
    if ended.state is not State.FAILED:
        return
    found = outcomes.read_failure(ended.result, ended.error)
    words = str(found)
    if ended.is_cancelled:
        raise CallCancelled(f"call {ended.task!r} was {words}", id=ended.task, message=found.message)
    raise CallFailed(
        f"call {ended.task!r} failed: {words}", id=ended.task, error=found.error, message=found.message,
        traceback=found.traceback,
    )  # fmt: skip


def value_of(answers: Answers, ended: Ended | None) -> Any:
    """Give what a call has returned that has ended, and not failed."""
    id = text(answers.id)
    if ended is None or ended.result is None:
        none = "" if answers.keep_none else ", or it returned None, which is kept only with keep_result="
        raise CallGone(
            f"nothing is known of call {id!r} any more: it was never put, or it was forgotten, or its result has "
            f"expired{none}; to keep results longer, raise keep_result= (seconds)",
            id=id,
        )
    if not ended.result:
        raise CallGone(
            f"call {id!r} has returned, but the server had no memory for its result: give the server more (maxmemory), "
            "or keep results for less time",
            id=id,
        )
    try:
        return outcomes.decode(ended.result, answers.returns)
    except BadResult as error:
        raise CallFailed(
            f"call {id!r} has returned {shown(ended.result.decode('utf-8', 'replace'))}, but {error}", id=id,
            error=type(error).__name__, message=str(error),
        ) from error  # fmt: skip
