"""Turns the `put=` of an `Ack` into a list of ids and payloads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from timeoutq.words import arguments
from timeoutq.words.arguments import TaskList
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Ack, Task
from timeoutq.worker.handlers import Hopeless

MOST = 1_000_000  # the most tasks of one `Ack(put=…)`
MOST_BYTES = 256 * 1024 * 1024  # the most bytes of their ids and payloads
PLAIN = (list, tuple, dict, set, frozenset)  # types that are read in one go: reading them runs no code of the user
TURN = 0.005  # after this many seconds, pause and let other asyncio tasks run


@dataclass(slots=True)
class Found(TaskList):
    """Tasks of an `Ack(put=…)` without those that no queue takes, such as a link that is too long for an id."""

    left_out: int = 0  # how many were left out
    why: InvalidInput | None = None  # the error of the first of them

    def add_good(self, task: object, payload: Any = None) -> None:
        """Add a task, or leave it out. Raises `Hopeless` for what is no task: then the handler is wrong."""
        try:
            if payload is None:
                self.add(task)
            else:
                self.add_mapping({cast("Any", task): payload})
        except InvalidInput as error:
            if not isinstance(task, str | bytes | Task):
                raise Hopeless(error) from error
            self.left_out += 1
            self.why = self.why or error


async def listed(result: Any) -> Any:
    """Return the handler's result unchanged; but if it is an `Ack` with tasks, a copy whose `put` is a `TaskList`.

    Raises what the iterable raises, and `Hopeless` for what is no task, and when there are too many.
    """
    if not isinstance(result, Ack) or is_nothing(result.put) or isinstance(result.put, TaskList):
        return result
    put: Any = result.put
    is_plain, given = type(put) in PLAIN, cast("object", put)
    if isinstance(given, Iterable) and not is_plain and not isinstance(given, str | bytes | bytearray | memoryview):
        found: TaskList = await _walk(put)
    else:
        if is_plain and len(put) > MOST:
            raise _too_many()
        try:
            found = arguments.tasks((put,))
        except InvalidInput:
            found = await _walk(put if is_plain else [put])
        if len(found.ids) > MOST or sum(map(len, found.ids)) + sum(map(len, found.payloads.values())) > MOST_BYTES:
            raise _too_many()
    again = result.again_in, result.payload
    return Ack(cast("Any", found), *again, result.result, result.keep_result, result.keep_id)


def listed_here(result: Any, given_up: Callable[[], object]) -> Any:
    """Do the same for a handler in a thread; returns None as soon as it was `given_up`."""
    steps = listed(result)
    while not given_up():
        try:
            steps.send(None)  # it awaits nothing but turns for others
        except StopIteration as end:
            return end.value
    steps.close()
    return None


def is_nothing(put: object) -> bool:
    """Say whether this is the `put` of an `Ack` that puts nothing: the usual case, made quick."""
    return put is None or (type(put) is tuple and not put)


async def _walk(put: Iterable[Any]) -> Found:
    found = Found()
    size, since = 0, time.monotonic()
    pairs = isinstance(put, Mapping)
    for nth, item in enumerate(cast("Mapping[Any, Any]", put).items() if pairs else put):
        at = len(found.ids)
        if pairs:
            task, payload = item
            found.add_good(task, payload)
        else:
            found.add_good(item)
        size += sum(map(len, found.ids[at:])) + len(found.payloads.get(at, b""))
        if nth >= MOST or size > MOST_BYTES:
            raise _too_many()
        if time.monotonic() - since > TURN:
            await asyncio.sleep(0)
            since = time.monotonic()
    return found


def _too_many() -> Hopeless:
    words = (
        f"Ack(put=…) holds more than {MOST:,} tasks, or more than {MOST_BYTES >> 20} MiB of ids and payloads. Put the "
        "tasks in parts with the queue's put() inside the handler, then return Ack(). If put= is a generator, check "
        "that it ends"
    )
    return Hopeless(InvalidInput(words))
