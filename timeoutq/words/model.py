"""What users of the API get and give: plain frozen values. `replies.py` makes them from replies of the server.

Times are Unix seconds (float) of the server's clock. Task ids are `str`: bytes that are not UTF-8 appear as Python's
surrogate escapes and go back to Redis as the bytes they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, cast, overload

BATCH_DUE = 253_370_764_800.0
"""When the callback of a batch is due that has not ended, Unix seconds: in the year 9999."""
MAX_TIME_MS = 253_402_300_799_000  # the end of the year 9999, the last that datetime can show

TaskId = str | bytes
Payload = Any
"""A value that `json` can write, or `bytes`; `None` is no payload."""


class Deep(bytes):
    """A payload that begins as JSON, and is nested too deeply to be read here."""


@dataclass(frozen=True, slots=True, init=False)
class Task:
    """A task: its id, and what goes with the id. A `Task` may stand wherever an id may, and `pull` gives such tasks.

    All but the id count where the task is put; elsewhere only the id counts.
    """

    task: str
    payload: Payload = field(default=None, compare=False)
    """None is no payload."""
    group: str | None = None
    """On a polite queue, the host that the task counts for. None stands for the `group` of the call, or the host of the
    task's URL."""
    priority: int | None = field(default=None, kw_only=True)
    """On a polite queue, -1000 to 1000: of the tasks that wait for one host, the one with the highest priority is next.
    None stands for the `priority` of the call, or 0."""
    improve: bool = field(default=False, kw_only=True)
    """As `improve=` of `put`, for this task."""
    unique: float | timedelta | None = field(default=None, kw_only=True)
    """For how long after its last error a failed task blocks its id, in seconds or as a timedelta: after that, a put
    adds the task again. None: for ever. A queue with `keep_done="compact"` takes 0 only."""
    rerun: bool = field(default=False, kw_only=True)
    """As `rerun=` of `put`, for this task: in `Ack(put=…)`, too."""

    def __init__(
        self,
        task: TaskId,
        payload: Payload = None,
        group: str | None = None,
        *,
        priority: int | None = None,
        improve: bool = False,
        unique: float | timedelta | None = None,
        rerun: bool = False,
    ) -> None:
        """Name a task; nothing is checked before the task is used."""
        object.__setattr__(self, "task", text(task) if isinstance(task, bytes) else task)
        object.__setattr__(self, "payload", payload)
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "priority", priority)
        object.__setattr__(self, "improve", improve)
        object.__setattr__(self, "unique", unique)
        object.__setattr__(self, "rerun", rerun)


Group = str | Callable[[str], str | None]
"""The host that tasks count for on a polite queue, or a function that gives it for each id, such as
`timeoutq.urls.domain`; where the function gives None, the host is that of the task's URL."""

Tasks = TaskId | Task | Mapping[TaskId, Payload] | Iterable[TaskId | Task]
"""One id or `Task`, a mapping of ids to payloads, or any iterable of ids and `Task`s."""


class State(StrEnum):
    """Where a task is. A task that was accepted is in exactly one of these states."""

    TODOS = "todos"
    WAITING = "waiting"
    """Ready, on a polite queue, and waiting for its host's turn."""
    SCHEDULED = "scheduled"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    FAILED = "failed"


class Answer(StrEnum):
    """What became of one id in a batch."""

    ADDED = "added"
    RAISED = "raised"
    """The task was there with a lower priority, and has the new priority, and the new payload, from now on; a task in
    progress has them in the run that follows this one."""
    RERUN = "rerun"
    """The task is in progress, and runs once more after this run, with the new payload."""
    TODOS = "todos"
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    FAILED = "failed"
    OK = "ok"
    ALREADY = "already"
    """The same call was carried out before; its reply had been lost."""
    LOST = "lost"
    """Another worker has the lease now, or nobody has."""
    MAX_RUNTIME = "max_runtime"
    """The lease has reached its `max_runtime` and is not extended."""
    CANCELLED = "cancelled"
    """The task is in failed now, because somebody has cancelled it. As the answer to an extension: the lease is
    extended, and the handler is to stop, because somebody has cancelled the task."""
    CANCELLING = "cancelling"
    """The task is in progress: its worker is told to stop the handler, and then the task goes to failed."""
    OVERDUE = "overdue"
    """The task has been released like this for as long as the caller allows; it is still leased."""
    UNKNOWN = "unknown"
    """No state holds this id."""
    UNANSWERED = "unanswered"
    """The shard of this id has not answered: nobody knows what became of the id. See `ShardsUnavailable`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a task until `deadline`. `extend` it, and end it with `ack`, `fail` or `release`."""

    task: str
    token: str
    """Names the holder and the claim; only the owner of the token can extend or end the lease."""
    deadline: float
    """When the lease runs out, seconds of the server's clock."""
    attempt: int = 1
    """1 for the first try, one more after each failure. Lost leases and releases do not count."""
    crashes: int = 0
    """How many leases on this task have run out. From two on the task is handed out alone."""
    fence: int = 0
    """Grows with every lease. Guard the place that you write to: refuse a fence that is smaller than the last one."""
    payload: Payload = field(default=None, compare=False)

    @property
    def holder(self) -> str:
        """The worker part of the token."""
        return self.token.partition("#")[0]

    @property
    def shard(self) -> int | None:
        """On a queue over several shards, the shard that holds the task; None on any other queue."""
        _, mark, number = self.token.rpartition("@")
        return int(number) if mark and number.isdecimal() else None

    @property
    def key(self) -> int:
        """Tells this lease from all others of its queue: its fence, and its shard, whose fences are its own."""
        if "@" not in self.token:  # the usual case, made quick: a worker asks several times for each task
            return self.fence
        shard = self.shard
        return self.fence if shard is None else self.fence << 10 | shard


_Unfrozen: Any = make_dataclass("_Unfrozen", [(one.name, Any) for one in fields(Lease)], slots=True)


def leased(*values: Any) -> Lease:
    """Make a lease of all its values. A claim makes many: to freeze a lease that is whole takes a quarter of the time.

    The two classes have the same slots, so a lease may change from one to the other.
    """
    made = _Unfrozen(*values)
    made.__class__ = Lease
    return cast("Lease", made)


@dataclass
class Ack(Exception):  # a decision that a handler may take from any depth: raise Ack(put=…)
    """Return or raise this in a handler: the lease is acked and, in the same atomic step, the found tasks are put."""

    put: Tasks | None = ()
    """Ids and `Task`s as for `put`, or None for none; at most a million, and 256 MiB of ids and payloads. Up to 499
    tasks and 1 MiB are one step with the ack; further tasks are put before the ack. An iterable is read where the
    handler runs, and the time counts as the handler's."""
    again_in: float | None = None
    """Seconds after which the task is done again: the task is scheduled, and not moved to done."""
    payload: Payload = None
    """With `again_in`, the new payload of the task; None keeps the payload that the task has."""
    result: bytes | None = None
    """What the queue keeps as the result of the run, 1 byte to 256 KiB; see `queue.results`. None is no result."""
    keep_result: float | None = None
    """With `result`, for how many seconds the queue keeps the result; None stands for an hour."""
    keep_id: bool | timedelta = True
    """False: the task leaves no id in done, whatever `keep_done` of the queue says. A timedelta: done keeps the id
    for so long, whatever `keep_done` says; then a put adds the task again. With `keep_done="compact"`, the id stays for
    ever, and the worker warns once."""

    def __repr__(self) -> str:
        given = ((one, getattr(self, one.name)) for one in fields(self))
        told = (f"{one.name}={value!r}" for one, value in given if value is not one.default)
        return f"{type(self).__name__}({', '.join(told)})"

    def __str__(self) -> str:
        return repr(self)

    def __hash__(self) -> int:
        return hash(type(self))  # two equal acks may hold lists or mappings, which have no hash


@dataclass(unsafe_hash=True)
class Release(Exception):  # likewise
    """Return or raise this in a handler: the task goes back without blame, and is ready after `delay` seconds."""

    delay: float = 0.0
    block_host: float = 0.0
    """Seconds for which no worker visits the task's host (Retry-After). This works on a polite queue, for a task that
    has a host; elsewhere nothing is blocked, and the release is counted like any other."""

    def __str__(self) -> str:
        return repr(self)


@dataclass(frozen=True, slots=True)
class Politeness:
    """How hosts are visited: at most `per_host` visits at once, and `delay` seconds of pause after each visit."""

    delay: float = 1.0
    per_host: int = 1


@dataclass(frozen=True, slots=True)
class HostInfo:
    """All that a polite queue knows about a host."""

    host: str
    waiting: int
    """How many ready tasks of the host wait for its turn."""
    in_flight: Sequence[str]
    """The first twenty tasks that were handed over: ready to be claimed, or in progress. `busy` counts all of them."""
    turn: float | None
    """When the next task of the host becomes ready. None if none waits, or if the host is full, used up or banned."""
    delay: float
    per_host: int
    budget: int | None
    """The most visits that the host may get; None means any number."""
    visits: int
    """Visits that were acked or failed."""
    failures: int
    next_allowed: float | None
    """The end of the last visit, plus the delay."""
    blocked_until: float | None
    blocked_by: str
    """The reason of the block; if none was given, the client that blocked the host."""
    banned: str | None
    """Why the host is visited no more; None if it is not banned."""
    busy: int
    """How many tasks of the host are ready to be claimed, or in progress."""
    recalling: bool = False
    """The host's ready tasks are being taken back, a part at a time, because its rules have changed."""
    next_task: str | None = None
    """Of its waiting tasks, the one that becomes ready next: that with the highest priority, then the longest wait."""
    next_priority: int = 0

    @property
    def used_up(self) -> bool:
        """Whether the host's budget is spent."""
        return self.budget is not None and self.visits + self.busy >= self.budget


class Outcome(Sequence[Answer]):
    """The answers to a batch, in the order of its ids: `outcome[i]`, or by id or `Task`, `outcome["https://example.com/"]`.

    If an id was named twice, `outcome[id]` is the first answer. An id that was not named raises `KeyError`.
    """

    __slots__ = ("_places", "codes", "tasks")

    def __init__(self, tasks: Sequence[bytes], codes: bytes) -> None:
        self.tasks = tasks
        self.codes = codes
        self._places: dict[bytes, int] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int | TaskId | Task) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice | TaskId | Task) -> Answer | list[Answer]:
        if isinstance(index, slice):
            return [ANSWERS[code] for code in self.codes[index]]
        if isinstance(index, str | bytes | Task):
            if self._places is None:
                self._places = {task: i for i, task in reversed(list(enumerate(self.tasks)))}
            name = index.task if isinstance(index, Task) else index
            task: object = raw(name) if isinstance(name, str) else name
            if task not in self._places:
                raise KeyError(name)
            index = self._places[task]
        return ANSWERS[self.codes[index]]

    def __iter__(self) -> Iterator[Answer]:
        return (ANSWERS[code] for code in self.codes)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(cast("Sequence[object]", other)) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a sequence that compares with lists cannot have their hash

    def __repr__(self) -> str:
        return f"Outcome({dict(self.counts())!r})"

    @property
    def added(self) -> int:
        """How many ids were new."""
        return self.codes.count(b"A")

    @property
    def ok(self) -> int:
        """How many answers are `OK` or `ALREADY`."""
        return sum(map(self.codes.count, (b"O", b"k", b"R")))

    def counts(self) -> dict[str, int]:
        """The number of ids for each answer that was given."""
        found = Counter[str]()
        for code, answer in ANSWERS.items():
            found[str(answer)] += self.codes.count(bytes((code,)))
        return {answer: count for answer, count in found.items() if count}

    def items(self) -> Iterator[tuple[str, Answer]]:
        """The ids with their answers."""
        return ((text(task), ANSWERS[code]) for task, code in zip(self.tasks, self.codes, strict=True))


KEPT = ord("k")
"""The letter of an ack whose task is done, but blocks its id for ever and not for the time that the ack has said."""

ANSWERS = {**dict(zip(b"ArntwspdfORLXcmou?", Answer, strict=True)), KEPT: Answer.OK}
"""The answers by the letters of the scripts."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler is, as it says itself."""

    done: float
    total: float | None
    """What `done` will be at the end; None if nobody knows."""
    text: str
    at: float
    """When the handler said so."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call that has ended."""

    worker: str | None
    """None if the worker was lost, and nothing else is known of the attempt."""
    start: float | None
    """When the function began; None for an attempt that was cut off, by a crash or a cancel."""
    end: float | None
    """When it ended; after a crash, when the queue noticed."""
    how: str
    """done, failed, crashed (the worker was lost) or cancelled."""
    error: str | None = None
    """The first line of the error."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What is kept of a call as long as its result: when it was put, and its attempts, the first and the last 19."""

    task: str
    function: str | None
    put: float | None
    """When the call was put, by the clock of the program that put it; None for one that a schedule has put."""
    attempts: Sequence[Attempt]
    """A run that its worker gave back, because it stopped or the function returned `Release`, is no attempt."""
    ended: float | None = None
    """When the call ended; None while it has not."""
    how: str | None = None
    """How it ended: done, failed, cancelled or expired."""
    error: str | None = None
    """Why it failed, or who has cancelled it."""

    @property
    def starts(self) -> list[float]:
        """When its attempts began, as far as that is known, the first one first."""
        return [one.start for one in self.attempts if one.start is not None]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """All that the queue knows about one id."""

    task: str
    state: State | None
    """None if no state holds the task."""
    due: float | None = None
    """When a scheduled task becomes ready."""
    deadline: float | None = None
    """When the lease on the task runs out."""
    lease_left: float | None = None
    """Seconds until the deadline; negative if the lease ran out and no cleaner has taken the task back yet."""
    holder: str | None = None
    failures: int = 0
    crashes: int = 0
    error: str | None = None
    error_at: float | None = None
    payload: Payload = None
    releases: int = 0
    """How often its handler has released the task, by a `Release` that blocked no host."""
    traceback: str | None = None
    """The traceback of the last error; None if the error was text, or if 200 newer tracebacks have come since."""
    host: str | None = None
    """On a polite queue, the host that the task counts for."""
    host_releases: int = 0
    """How often a release of the task blocked its host; such releases do not count against `max_releases`."""
    unrun_since: float | None = None
    """When a worker that cannot run the task first gave it back, since its last failed attempt; None if none has."""
    priority: int = 0
    again: bool = False
    """Whether a task in progress runs once more after this run, because it was put meanwhile with `improve=True` or
    `rerun=True`."""
    has_result: bool = False
    """Whether the queue keeps the result of the task's last run."""
    cancelled_by: str | None = None
    """Who has cancelled the task, while it is in progress still."""
    progress: Progress | None = None
    """What the handler of a task in progress has last said about how far it is."""
    record: CallRecord | None = None
    """Of a call whose result is kept: the attempts that have ended."""


CANCELLED, EXPIRED = "cancelled by ", "expired: "
"""How the error of a task begins that somebody has cancelled, and that of a call that has expired."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task has ended. It will not run again unless somebody puts it, or retries it."""

    task: str
    state: State | None
    """`DONE` or `FAILED`; None if no state holds the task: it was forgotten, or done and not kept."""
    result: bytes | None = None
    """The result as the worker has written it; empty if the server had no memory for it; None if there is none."""
    error: str | None = None
    """The last error of a failed task that has no result, or an empty one."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the task went to failed because somebody has cancelled it; `error` says who."""
        return self.state is State.FAILED and self.result is None and (self.error or "").startswith(CANCELLED)

    @property
    def is_expired(self) -> bool:
        """Whether the task is a call that had not begun by the time that it was given; `error` says by how much."""
        return self.state is State.FAILED and self.result is None and (self.error or "").startswith(EXPIRED)

    @property
    def is_gone(self) -> bool:
        """Whether nothing is known of the task any more: neither a state nor a result."""
        return self.state is None and self.result is None


@dataclass(frozen=True, slots=True)
class Record:
    """A task as an export holds it: all that is needed to bring the task into another queue as it was."""

    task: bytes
    state: State
    due: float | None = None
    """When a scheduled task becomes ready."""
    acked: float | None = None
    """When a done task was done, if the queue keeps this time."""
    failures: int = 0
    crashes: int = 0
    error: str | None = None
    error_at: float | None = None
    payload: Payload = None
    group: str | None = None
    """The group with which the task was put: its host on a polite queue."""
    priority: int = 0
    until: float | None = None
    """Until when a done task blocks its id, if the ack said so."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host of a polite queue as an export holds it: rules of its own, None where it has none, and its counts."""

    host: bytes
    delay: float | None = None
    per_host: int | None = None
    budget: int | None = None
    visits: int = 0
    failures: int = 0
    next_allowed: float | None = None
    """The end of the last visit, plus the delay; None if that is over."""
    blocked_until: float | None = None
    blocked_by: str = ""
    """The reason of the block."""
    banned: str | None = None
    """Why the host is visited no more; None if it is not banned."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `list`: an id and, where the state has one, its time, holder or last error."""

    task: str
    at: float | None = None
    """scheduled: the due time; in_progress: the deadline of the lease; failed: the time of the last error."""
    holder: str | None = None
    error: str | None = None
    releases: int = 0
    """For scheduled, in_progress and failed: how often its handler has released the task."""
    traceback: str | None = None
    """For failed: the traceback of the last error, if the queue still keeps it."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a state; `cursor` is None on the last one. A task that moves meanwhile may be missed, or seen twice."""

    state: State
    entries: Sequence[Entry]
    cursor: str | None

    def __iter__(self) -> Iterator[Entry]:
        """Go through the entries of this page. To go through a whole state, use `each` of the queue."""
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True)
class HostPage:
    """A page of hosts. `cursor` is None on the last page. A host whose turn moves meanwhile may be missed."""

    hosts: Sequence[HostInfo]
    cursor: str | None

    def __iter__(self) -> Iterator[HostInfo]:
        """Go through the hosts of this page. To go through all hosts, use `queue.hosts.each()`."""
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)


SILENT = 30.0
"""Seconds without a sign of life after which a worker counts as gone: three signs that it owes."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker last said of itself."""

    worker: str
    host: str
    pid: int
    concurrency: int
    held: int
    """0 once its leases must have run out, because it has given no sign of life for that long."""
    acked: int
    failed: int
    started: float
    beat: float
    """When the worker last gave a sign of life."""
    trouble: str = ""
    """What keeps the worker from its work: replicas of a durable queue do not confirm what it does, it has no tasks and
    has asked for none for half a minute, or the server, which may be full, does not take the end of a task."""
    claims: bool = True
    """Whether the worker claims, as far as it says."""
    tends: Sequence[int] | None = None
    """On a queue over several shards, those whose bells the worker hears and whose cleaners it runs; None elsewhere."""

    def is_gone(self, now: float) -> bool:
        """Say whether no sign of life has come for `SILENT` seconds; `now` is the server's time, Unix seconds."""
        return now - self.beat > SILENT


@dataclass(frozen=True, slots=True)
class Failure:
    """One of the last errors."""

    task: str
    at: float
    error: str


def text(task: bytes) -> str:
    """Give the id as `str`; bytes that are not UTF-8 become surrogate escapes."""
    return task.decode("utf-8", "surrogateescape")


def raw(task: str) -> bytes:
    """Give the bytes of an id that `text` has made a `str`."""
    return task.encode("utf-8", "surrogateescape")
