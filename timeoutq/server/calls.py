"""One call of a verb, and how tasks and leases are cut into calls that a server carries out in a moment.

`operations.py` makes the calls, `flows.py` sends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from timeoutq.words import arguments
from timeoutq.words.arguments import Body, TaskList
from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import MAX_TIME_MS, Lease, Record, State, text

T = TypeVar("T")
Argument = bytes | str | int
Command = tuple[Argument, ...]
Words = list[Argument | Body]

BATCH = 500
"""The most ids in one script call: a script runs alone, and this bounds for how long."""

BYTES = 1024 * 1024
"""The most bytes of payloads and errors in one script call, but for a single task that has more."""

FLUSH = 4 * 1024 * 1024
"""The most bytes of them that are sent before the answers are read, but for a single call that has more."""

KEPT_MS = 3_600_000
"""For how many ms a result is kept, unless its `Ack` says otherwise."""

BATCH_KEPT = 86_400.0
"""For how many seconds a batch is kept after its end, unless its `seal` says otherwise."""

LETTERS = {State.SCHEDULED: b"s", State.DONE: b"d", State.FAILED: b"f"}
"""The states in which an import brings tasks in; a task of any other state is ready there."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of a verb: `command()` gives the words to send, `read` makes the answer from the reply."""

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
    sent_ms: int = 0
    """How many ms ago it may have been sent before, behind a wait for the bell; 0: it was not."""
    when_full: Call[T] | None = None
    """What to send instead to a server that has no memory for the call."""

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
        return (*self.head, self.id, age_ms + self.sent_ms, *args)


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a run, which the queue is to keep for a time."""

    body: bytes
    """The result: 1 byte to 256 KiB."""
    ms: int
    """For how many ms it is kept, from the end of the run."""

    MOST: ClassVar[int] = 256 * 1024

    def __post_init__(self) -> None:
        """Check the size; raises `InvalidInput`."""
        if not 0 < len(self.body) <= self.MOST:
            raise InvalidInput(
                f"a result of {len(self.body):,} bytes cannot be kept, only 1 to {self.MOST:,}: store it elsewhere, "
                "and return its address"
            )
        arguments.count(self.ms, "ms", high=MAX_TIME_MS)

    @classmethod
    def of(cls, result: object, seconds: object = None) -> Kept | None:
        """Check the `result` and the `keep_result` of an `Ack`; None: nothing is to be kept. Raises `InvalidInput`."""
        if result is None:
            if seconds is not None:
                raise InvalidInput("keep_result= needs result=: without a result there is nothing to keep")
            return None
        if not isinstance(result, bytes):
            is_buffer = isinstance(result, bytearray | memoryview)
            cure = "bytes(value)" if is_buffer else "json.dumps(value).encode()"
            raise InvalidInput(f"result must be bytes, not {arguments.shown(result)}: give {cure}")
        if not result:
            raise InvalidInput("result must not be empty: leave result= out if there is nothing to keep")
        ms = KEPT_MS if seconds is None else arguments.delay_ms(seconds, "keep_result")
        if ms < 1:
            raise InvalidInput("keep_result must be more than 0 seconds: leave result= out if nothing is to be kept")
        return cls(result, ms)


def cut(weights: Sequence[int], count: int = BATCH, size: int = BYTES) -> Iterator[tuple[slice, int]]:
    """Cut items of these weights into parts of so many items and bytes, but for an item that has more; give both."""
    start = weight = 0
    for at, more in enumerate(weights):
        if at > start and (at - start == count or (weight and weight + more > size)):
            yield slice(start, at), weight
            start, weight = at, 0
        weight += more
    if weights:
        yield slice(start, len(weights)), weight


def fitting(ids: Sequence[bytes], payloads: Mapping[int, bytes | Body], weight: int = 0) -> int:
    """Say how many of these tasks, the first ones, go with the ack of the task that found them: 499, and a MiB.

    `weight` is how many bytes the ack has without them.
    """
    found = min(len(ids), BATCH - 1)
    for at in payloads:
        weight += len(payloads[at])
        if weight > BYTES and weight > len(payloads[at]):
            return min(found, at)
    return found


def flushes(calls: Sequence[Call[Any]]) -> Iterator[Sequence[Call[Any]]]:
    """Cut calls into flushes: 4 MiB of payloads and errors, unless one call alone has more."""
    return (calls[part] for part, _ in cut([call.weight for call in calls], len(calls), FLUSH))


def batches(tasks: TaskList) -> Iterator[tuple[TaskList, int]]:
    """Cut tasks into parts for one call each; give each part with the bytes of its payloads."""
    ids, payloads = tasks.ids, tasks.payloads
    if not payloads:
        for at in range(0, len(ids), BATCH):
            yield (tasks if len(ids) <= BATCH else tasks.part(at, at + BATCH)), 0
        return
    weights = [0] * len(ids)
    for i, body in payloads.items():
        weights[i] = len(body)
    for part, weight in cut(weights):
        yield tasks.part(part.start, part.stop), weight


# ---- the words of a call. How options go as sections is said in `lua/sections.lua`


def section(name: str, *words: Argument | Body) -> Words:
    """Give the words of one option of a call."""
    return [name, len(words), *words]


def pairs(name: str, found: Mapping[Any, Argument | Body]) -> Words:
    """Give the words of an option that is made of pairs; none if there are no pairs."""
    if not found:
        return []
    words: Words = [name, 2 * len(found)]
    for pair in found.items():
        words += pair
    return words


def by_position(name: str, found: Mapping[int, Argument | Body]) -> Words:
    """Do as `pairs`; the positions, which begin at 0 here, begin at 1 on the wire."""
    return pairs(name, {at + 1: word for at, word in found.items()})


def result_words(results: Mapping[int, Kept]) -> Words:
    """Give the results of runs, by the positions of their leases."""
    return by_position("results", {at: one.body for at, one in results.items()}) + by_position(
        "times", {at: one.ms for at, one in results.items()}
    )


def refuse_rerun(found: TaskList, verb: str) -> None:
    """Refuse tasks with `rerun=True` where they are not ready at once."""
    if found.reruns:
        name = arguments.shown(text(found.ids[min(found.reruns)]))
        raise InvalidInput(
            f"task {name}: rerun=True has a run begin after a put, so {verb} does not take it: put the task "
            "with put(), or leave rerun=True out"
        )


def task_words(tasks: TaskList, options: Sequence[Argument | Body]) -> Words:
    """Give the ids, the options that say what goes with them, and those of the call, of which `group` is the first."""
    return [len(tasks.ids), *tasks.ids, *carried(tasks, grouped=bool(options) and options[0] == "group"), *options]


def with_hosts(groups: Mapping[int, bytes], ids: Sequence[bytes]) -> dict[int, bytes]:
    """Add to the groups of tasks, by position, the hosts that go with ids because the server cannot tell them."""
    return {at: host for at, id in enumerate(ids) if (host := groups.get(at) or foreign_host(id))}


def carried(tasks: TaskList, *, grouped: bool = False) -> Words:
    """Give the options that say what goes with the ids of tasks; with `grouped`, the call has a group for all tasks."""
    groups = tasks.groups
    if not grouped and not b"".join(tasks.ids).isascii():
        groups = with_hosts(groups, tasks.ids)
    if not (tasks.payloads or groups or tasks.priorities or tasks.improved or tasks.uniques or tasks.reruns):
        return []
    words = by_position("payloads", tasks.payloads) + by_position("groups", groups)
    words += by_position("priorities", tasks.priorities) + by_position("unique", tasks.uniques)
    if tasks.improved:
        words += section("improve", *(at + 1 for at in tasks.improved))
    return words + section("rerun", *(at + 1 for at in tasks.reruns)) if tasks.reruns else words


def record_words(records: Sequence[Record]) -> Words:
    """Give the tasks of an export as `lua/verbs/restore.lua` takes them."""

    def each(name: str, word: Callable[[Record], Argument | Body | None]) -> Words:
        found = ((at, word(record)) for at, record in enumerate(records))
        return by_position(name, {at: said for at, said in found if said is not None})

    groups = {at: arguments.host(one.group) for at, one in enumerate(records) if one.group is not None}
    return [
        len(records),
        *(record.task for record in records),
        b"".join(LETTERS.get(record.state, b"t") for record in records),
        *each("times", lambda one: _ms(one.due if one.state is State.SCHEDULED else one.acked)),
        *each("failures", lambda one: one.failures or None),
        *each("crashes", lambda one: one.crashes or None),
        *each("errors", _error),
        *each("payloads", lambda one: arguments.pack(one.payload, one.task)),
        *by_position("groups", with_hosts(groups, [record.task for record in records])),
        *each("untils", lambda one: _ms(one.until)),
        *each("priorities", lambda one: one.priority or None),
    ]


def _error(record: Record) -> bytes | None:
    if record.error is None:
        return None
    return b"%d %s" % (_ms(record.error_at) or 0, arguments.error_text(record.error))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def amount(value: object, name: str) -> str:
    """Give a number from 0 up, such as how much is done, as its text."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise InvalidInput(f"{name}={arguments.shown(value)} must be a number from 0 to 1e15")
    return f"{float(value):.15g}"


def split(leases: Sequence[Lease]) -> Iterable[Sequence[Lease]]:
    return (leases[at : at + BATCH] for at in range(0, len(leases), BATCH))


def lease_words(leases: Sequence[Lease]) -> tuple[list[bytes], list[Argument]]:
    # runs of leases of the same claim share their token: a batch that is acked as it was claimed names it once
    ids = [lease.task.encode("utf-8", "surrogateescape") for lease in leases]
    words: list[Argument] = [len(ids)]
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or leases[end].token != leases[start].token:
            token: object = leases[start].token
            if not isinstance(token, str):
                raise InvalidInput(f"the lease on task {leases[start].task!a} has no token: {arguments.shown(token)}")
            words += (token, end - start)
            words += ids[start:end]
            start = end
    return ids, words


def digest_of(verb: bytes, words: Sequence[Argument]) -> bytes:
    # the same leases ended the same way are the same call, also when the caller asks again after an error. Clients in
    # other languages make it, too
    told = b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in words)
    return verb + hashlib.sha256(told).hexdigest()[:24].encode()
