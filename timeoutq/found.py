"""Lists what a handler found, `Ack(put=…)`, where the handler ran: in its thread, or in its asyncio task.

The worker calls it as soon as a handler has ended. What a handler gives may be an iterable that computes for long, or
never ends: so nobody else waits for it, the time counts as the handler's, and there is a bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from timeoutq import arguments
from timeoutq.arguments import Bodies
from timeoutq.errors import InvalidInput
from timeoutq.model import Ack, TaskId

MOST = 1_000_000
"""The most tasks of one `Ack(put=…)`."""
MOST_BYTES = 256 * 1024 * 1024
"""The most bytes of their ids and payloads."""
PLAIN = (list, tuple, dict, set, frozenset, bytearray, memoryview)
"""What is gone through at once: it computes nothing, and its length is known."""
TURN = 0.005
"""Seconds for which an iterable is gone through before others have a turn."""


@dataclass(frozen=True, slots=True)
class Found:
    """Tasks as `arguments.tasks` gives them: they take the place of what the handler has passed as `put`."""

    ids: list[bytes]
    payloads: Bodies


async def listed(came: Any) -> Any:
    """Give what a handler returned; for an `Ack`, one whose `put` is `Found`. Raises what the iterable raises.

    Raises `InvalidInput` for what is no task, and when there are too many.
    """
    if not issubclass(type(came), Ack):
        return came
    steps = _steps(came)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)


async def listed_raised(problem: BaseException) -> BaseException:
    """Give what a handler raised, as `listed` does; or else the error that came meanwhile."""
    try:
        return cast("BaseException", await listed(problem))
    except BaseException as error:  # whatever the iterable raises is the task's failure
        return error


def listed_here(came: Any, given_up: Callable[[], object]) -> Any:
    """Do as `listed`, in a thread. Ends early with None when `given_up` says that nobody waits for the handler."""
    if not issubclass(type(came), Ack):
        return came
    steps = _steps(came)
    while not given_up():
        try:
            next(steps)
        except StopIteration as end:
            return end.value
    return None


def _steps(ack: Ack) -> Generator[None, None, Ack]:
    put = ack.put
    kind: type = type(put)
    if isinstance(put, Iterable) and kind not in PLAIN and not isinstance(put, str | bytes | Mapping):
        ids, payloads = (yield from _walk(put)), dict[int, Any]()
    else:
        if kind in PLAIN and len(cast("list[TaskId]", put)) > MOST:
            raise InvalidInput(_too_many())
        ids, payloads = arguments.tasks((ack.put,))
        if len(ids) > MOST or sum(map(len, ids)) + sum(map(len, payloads.values())) > MOST_BYTES:
            raise InvalidInput(_too_many())
    return Ack(cast("Any", Found(ids, payloads)), ack.again_in, ack.payload)


def _walk(items: Iterable[TaskId]) -> Generator[None, None, list[bytes]]:
    ids: list[bytes] = []
    size, since = 0, time.monotonic()
    for item in items:
        data = arguments.task_id(item)
        ids.append(data)
        size += len(data)
        if len(ids) > MOST or size > MOST_BYTES:
            raise InvalidInput(_too_many())
        if time.monotonic() - since > TURN:
            yield
            since = time.monotonic()
    return ids


def _too_many() -> str:
    return (
        f"Ack(put=…) was given more than {MOST:,} tasks, or more than {MOST_BYTES >> 20} MiB of ids and payloads: if "
        "the iterable ends at all, let the handler put parts of it with the queue's put() before it returns"
    )
