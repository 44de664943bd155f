"""One call of a script, and how tasks and leases are cut into calls that a server carries out in a moment.

No I/O happens here. `operations.py` makes the calls, `flows.py` sends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from timeoutq import arguments
from timeoutq.arguments import Bodies, Body
from timeoutq.model import Lease, Record, State

T = TypeVar("T")
Argument = bytes | str | int
Command = tuple[Argument, ...]

BATCH = 500
"""The most ids in one script call: a script runs alone, and this bounds for how long."""

BYTES = 1024 * 1024
"""The most bytes of payloads and errors in one script call, but for a single task that has more."""

FLUSH = 4 * 1024 * 1024
"""The most bytes of them that are sent before the answers are read, but for a single call that has more."""

LETTERS = {State.SCHEDULED: b"s", State.DONE: b"d", State.FAILED: b"f"}
"""What a task is brought in as; any other state is ready there."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of a script: `command()` gives what is sent, `read` makes the answer from the reply."""

    name: str
    head: Command
    id: bytes
    args: Sequence[Argument | Body]
    read: Callable[[Any], T]
    replayable: bool = True
    """False: it must not be sent again when its reply is lost."""
    dated: int | None = None
    """Where in `args` the server time stands after which nobody waits for the answer any more."""
    expects: int | None = None
    """Where in `args` the server time stands that the client expects, to notice a clock that jumped."""
    weight: int = 0
    """How many bytes of payloads and errors it carries."""

    def command(self, age_ms: int = 0, *, not_after: int = 0, expected: int = 0) -> Command:
        """Give the words of the command, for a call that was first sent `age_ms` ago."""
        args: Any = self.args
        if self.weight:
            args = [arg.pack() if type(arg) is Body else arg for arg in args]
        if self.dated is not None or self.expects is not None:
            args = list(args)
            if self.dated is not None:
                args[self.dated] = not_after
            if self.expects is not None:
                args[self.expects] = expected
        return (*self.head, self.id, age_ms, *args)


def cut(weights: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Cut items, whose sizes in bytes are given, into parts for one call each: at most 500 items and about a MiB."""
    start = weight = 0
    for at, more in enumerate(weights):
        if at > start and (at - start == BATCH or (weight and weight + more > BYTES)):
            yield slice(start, at), weight
            start, weight = at, 0
        weight += more
    if weights:
        yield slice(start, len(weights)), weight


def fitting(ids: Sequence[bytes], payloads: Bodies) -> int:
    """Say how many of these tasks, the first ones, go with the ack of the task that found them: 499, and a MiB."""
    found = min(len(ids), BATCH - 1)
    weight = 0
    for at in payloads:
        weight += len(payloads[at])
        if weight > BYTES and weight > len(payloads[at]):
            return min(found, at)
    return found


def flushes(calls: Sequence[Call[Any]]) -> Iterator[Sequence[Call[Any]]]:
    """Cut calls into what is sent at once: 4 MiB of payloads and errors, unless one call alone has more."""
    start = weight = 0
    for at, call in enumerate(calls):
        if weight and weight + call.weight > FLUSH:
            yield calls[start:at]
            start, weight = at, 0
        weight += call.weight
    yield calls[start:]


def batches(ids: Sequence[bytes], payloads: Bodies) -> Iterator[tuple[Sequence[bytes], Bodies, int]]:
    if not payloads:
        for at in range(0, len(ids), BATCH):
            yield (ids if len(ids) <= BATCH else ids[at : at + BATCH]), {}, 0
        return
    weights = [0] * len(ids)
    for i, body in payloads.items():
        weights[i] = len(body)
    for part, weight in cut(weights):
        start, stop = part.start, part.stop
        yield ids[part], {i - start: payloads[i] for i in range(start, stop) if i in payloads}, weight


def task_words(ids: Sequence[bytes], payloads: Bodies) -> list[Argument | Body]:
    words: list[Argument | Body] = [len(ids), *ids, len(payloads)]
    for position, payload in payloads.items():
        words += (position + 1, payload)
    return words


def restored(record: Record) -> tuple[Argument, ...]:
    time = record.due if record.state is State.SCHEDULED else record.acked
    error = b""
    if record.error is not None:
        error = b"%d %s" % (round((record.error_at or 0.0) * 1000), arguments.error_text(record.error))
    return (
        record.task,
        LETTERS.get(record.state, b"t"),
        b"" if time is None else b"%d" % round(time * 1000),
        record.failures,
        record.crashes,
        error,
        arguments.pack(record.payload, record.task) or b"",
        b"" if record.group is None else arguments.host(record.group),
    )


def split(leases: Sequence[Lease]) -> Iterable[Sequence[Lease]]:
    return (leases[at : at + BATCH] for at in range(0, len(leases), BATCH))


def lease_words(leases: Sequence[Lease]) -> tuple[list[bytes], list[Argument]]:
    # runs of leases of the same claim share their token: a batch that is acked as it was claimed names it once
    ids = [lease.task.encode("utf-8", "surrogateescape") for lease in leases]
    words: list[Argument] = [len(ids)]
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or leases[end].token != leases[start].token:
            words += (leases[start].token, end - start)
            words += ids[start:end]
            start = end
    return ids, words


def digest_of(verb: bytes, words: Sequence[Argument]) -> bytes:
    # the same leases ended the same way are the same call, also when the caller asks again after an error
    hashed = hashlib.blake2b(digest_size=12)
    hashed.update(b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in words))
    return verb + hashed.hexdigest().encode()
