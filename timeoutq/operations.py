"""The table of operations: which script, which keys, which arguments, how to read the reply, may it be sent again.

No I/O happens here: each method of `Operations` gives a `Call`, which `flows.py` sends and `client.py` carries.

                    schedule(at)                         fail, retries left / release(delay)
        +--------------------------> scheduled <-------------------------------------+
        |                                | promote_due (its time has come)           |
     put|                                v                                           |
    ----+--------------------------->  todos  --- claim(timeout) --->  in_progress --+
                                         ^                              | | |
                                         +--- requeue_expired ----------+ | |   ack
                                         |    (the lease ran out),        | +--------> done
                                         |    release()                   |
                                         +--- retry_failed --- failed <---+ fail, no retries left / crashed too often

On a polite queue, whatever becomes ready waits for its host's turn: ---> waiting ---> todos (`lua/parts/polite.lua`).

The text of a script is the prelude that binds its KEYS line to names, the parts that its PARTS line names, and its own
file. Arguments 1 and 2 of every script are the call's id and its age in ms, 0 when it is sent for the first time.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from timeoutq import arguments
from timeoutq.arguments import Bodies, Body
from timeoutq.durations import Delta
from timeoutq.durations import read as read_durations
from timeoutq.errors import InvalidInput
from timeoutq.model import (
    MAX_TIME_MS,
    Entry,
    Failure,
    HostInfo,
    Lease,
    Outcome,
    Record,
    Sample,
    State,
    Stats,
    Task,
    TaskId,
    TaskInfo,
    Tasks,
    WorkerInfo,
    text,
)
from timeoutq.tracebacks import digest, read_traceback

T = TypeVar("T")
Argument = bytes | str | int
Command = tuple[Argument, ...]

BATCH = 500
"""The most ids in one script call: a script runs alone, and this bounds for how long."""

BYTES = 1024 * 1024
"""The most bytes of payloads and errors in one script call, but for a single task that has more."""

FLUSH = 4 * 1024 * 1024
"""The most bytes of them that are sent before the answers are read, but for a single call that has more."""

STATES = {
    b"t": State.TODOS,
    b"w": State.WAITING,
    b"s": State.SCHEDULED,
    b"p": State.IN_PROGRESS,
    b"d": State.DONE,
    b"f": State.FAILED,
}


LETTERS = {State.SCHEDULED: b"s", State.DONE: b"d", State.FAILED: b"f"}
"""What a task is brought in as; any other state is ready there."""

DESCRIBED = 8 * 1024 * 1024
"""After so many bytes of payloads a call describes no more tasks."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server runs it."""

    name: str
    keys: tuple[str, ...]
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Read and assemble one of the files in `lua/`."""
    folder = files("timeoutq") / "lua"
    body = (folder / f"{name}.lua").read_text("utf-8")
    keys = tuple(_header(body, "KEYS").split())
    parts = [(folder / "parts" / f"{part}.lua").read_text("utf-8") for part in _header(body, "PARTS").split()]
    prelude = f"local {', '.join(keys)} = {', '.join(f'KEYS[{i}]' for i in range(1, len(keys) + 1))}\n"
    if checked := _header(body, "SOUND"):
        parts[1:1] = [_sound(checked, keys, polite="polite" in _header(body, "PARTS").split())]
    whole = prelude + "".join(parts) + body
    return Script(name, keys, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


SIZES = {
    "SCARD": "todos in_progress done failed waiting",
    "ZCARD": "scheduled leases done_at calls workers hosts places trace_at leftovers",
    "HLEN": "owners payload attempts crashes errors runtime stats worker_info "
    "traces trace_uses trace_texts releases durations0 durations1 slots resting policies groups host_failures",
    "LLEN": "bell error_log history",
    "XLEN": "alarm",
}
"""Which command tells the size of each key, in constant time, and is refused where the key is of a foreign type."""

POLITE = (
    "waiting hosts slots alarm todos failed; places resting policies groups host_failures; "
    "errors error_log traces trace_uses trace_texts trace_at"
)
"""The keys that a script may write on a polite queue, besides."""


def _sound(checked: str, keys: Sequence[str], *, polite: bool) -> str:
    # A script does not roll back, so it must notice a key of a foreign type before its first write: it asks each key
    # that it may write, and has not read by then, for its size. Behind a semicolon stand keys that are often not there:
    # one EXISTS for all of them is cheaper; the function says whether any key of the first such group is there, and any
    # of the groups behind it.
    def asked(names: str, first: str = "", rest: str = "") -> list[str]:
        often, *groups = (group.split() for group in names.split(";"))
        lines = [f"redis.call('{_sizes()[name]}', {_bound(name, keys)})" for name in often]
        for group in groups:
            flag = first if group is groups[0] else rest
            lines.append(f"if redis.call('EXISTS', {', '.join(_bound(name, keys) for name in group)}) > 0 then")
            lines += [f"redis.call('{_sizes()[name]}', {_bound(name, keys)})" for name in group]
            lines.append(f"{flag} = true end" if flag else "end")
        return lines

    lines = ["local recorded, others = false, false"]
    lines += asked(checked, "recorded", "others")
    if polite:
        lines += ["if politeness then", *asked(POLITE), "end"]
    return "\n".join(("local function sound()", *lines, "return recorded, others", "end", ""))


def _bound(name: str, keys: Sequence[str]) -> str:
    return name if name in keys else f"prefix .. '{name}'"


@cache
def _sizes() -> Mapping[str, str]:
    return {name: command for command, names in SIZES.items() for name in names.split()}


def _header(body: str, word: str) -> str:
    found = re.search(rf"^-- {word} +(.*)$", body, re.MULTILINE)
    return found.group(1) if found else ""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script call: `command()` is what goes on the wire, `read` makes the answer of the reply."""

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


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim found: leases, or when to look again (server ms; 0 for no known time)."""

    now_ms: int
    leases: list[Lease] = field(default_factory=list[Lease])
    next_ms: int = 0
    paused: bool = False
    rest: Call[Claimed] | None = None
    """Sent again, it looked for its leases among a part of all: the call that goes on; see `flows.whole`."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a round of the cleaner did."""

    now_ms: int
    moved: int
    failed: int = 0
    more: bool = False
    given_up: tuple[str, ...] = ()
    """Up to ten of the tasks that went to failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Until when a cleaner may sleep (server ms)."""

    now_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Why:
    """What `timeoutq.why` finds its reason in."""

    info: TaskInfo
    now: float
    host: HostInfo | None
    paused: bool
    todos: int
    workers: int
    states: tuple[State, ...] = ()
    """All that hold it: one, unless a foreign hand was at work."""
    stranded: bool = False
    """It waits where nobody will hand it over."""
    trace: str = ""
    """What is left of a task that is in no state: `lane` or `lock`."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did, and where the next one goes on."""

    pruned: int
    cursor: bytes
    more: bool
    converting: bool
    """Whether the queue is not yet in line with its politeness, because who changed it died, or is still at it."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a part of the walk through a queue found, and where the walk goes on; empty at its end."""

    cursor: bytes
    looked: int
    found: Mapping[str, int]


class Operations:
    """The operations of one queue, as calls."""

    def __init__(self, name: str) -> None:
        self.name = arguments.queue_name(name)
        self._prefix = f"timeoutq:{{{self.name}}}:"
        self._heads: dict[str, Command] = {}

    def key(self, name: str) -> str:
        """Give the full key of one of the names in the design's table; `lock` is the prefix of the lock keys."""
        return self._prefix + ("lock:" if name == "lock" else name)

    def call(
        self,
        name: str,
        args: Sequence[Argument | Body],
        read: Callable[[Any], T],
        *,
        id: bytes = b"",
        replayable: bool = True,
        dated: int | None = None,
        expects: int | None = None,
        weight: int = 0,
    ) -> Call[T]:
        """Build the call of the script `name`."""
        head = self._heads.get(name)
        if head is None:
            found = script(name)
            keys = [self.key(key).encode() for key in found.keys]
            head = self._heads[name] = (b"EVALSHA", found.sha.encode(), len(keys), *keys)
        return Call(name, head, id, args, read, replayable, dated, expects, weight)

    # ---- tasks in

    def put(
        self, tasks: tuple[Tasks, ...], nonce: Callable[[], bytes], *, again: bool = False, group: object = None
    ) -> list[Call[Outcome]]:
        """Build the calls that put tasks: one for each 500, or each MiB of payloads."""
        ids, payloads = arguments.tasks(tasks)
        host = b"" if group is None else arguments.host(group)
        return self.put_checked(ids, payloads, nonce, again=again, host=host)

    def put_checked(
        self,
        ids: Sequence[bytes],
        payloads: Bodies,
        nonce: Callable[[], bytes],
        *,
        again: bool = False,
        host: bytes = b"",
    ) -> list[Call[Outcome]]:
        """Build the calls that put what `arguments.tasks` gave."""
        return [
            self.call(
                "put",
                [arguments.flag(again, "again"), host, *_tasks(part, bodies)],
                _outcome(part),
                id=nonce(),
                weight=weight,
            )
            for part, bodies, weight in _batches(ids, payloads)
        ]

    def schedule(
        self,
        tasks: tuple[Tasks, ...],
        nonce: Callable[[], bytes],
        *,
        at: object = None,
        after: object = None,
        again: bool = False,
        group: object = None,
    ) -> list[Call[Outcome]]:
        """Build the calls that schedule tasks."""
        host = b"" if group is None else arguments.host(group)
        due = arguments.due(at, after)
        ids, payloads = arguments.tasks(tasks)
        return [
            self.call(
                "schedule",
                [arguments.flag(again, "again"), due, host, *_tasks(part, bodies)],
                _outcome(part),
                id=nonce(),
                weight=weight,
            )
            for part, bodies, weight in _batches(ids, payloads)
        ]

    # ---- leases

    def claim(
        self, token: bytes, n: int, timeout_ms: int, max_runtime_ms: int = 0, share: int = 1, start: bytes = b""
    ) -> Call[Claimed]:
        """Build a claim of up to `n` leases; with `start`, what goes on to look for those that it took before."""
        name = token.decode()

        def rest(start: bytes) -> Call[Claimed]:
            return self.claim(token, n, timeout_ms, max_runtime_ms, share, start)

        return self.call(
            "claim",
            [min(n, BATCH), timeout_ms, max_runtime_ms, 0, share, start],
            lambda reply: _claimed(reply, name, rest),
            id=token,
            dated=3,
        )

    def extend(self, leases: Sequence[Lease], timeout_ms: int) -> list[Call[tuple[float, Outcome]]]:
        """Build the calls that extend leases; each gives the new deadline (seconds) and the answers."""
        return [
            self.call("extend", [timeout_ms, *words], _extended(ids)) for ids, words in map(_leases, _split(leases))
        ]

    def ack(self, leases: Sequence[Lease], again_ms: int = -1) -> list[Call[Outcome]]:
        """Build the calls that ack leases; with `again_ms`, their tasks are scheduled for then."""
        return [
            self.call("ack", [again_ms, b"", *words], _outcome(ids), id=_digest(b"a", words))
            for ids, words in map(_leases, _split(leases))
        ]

    def ack_put(
        self,
        lease: Lease,
        ids: Sequence[bytes],
        payloads: Bodies,
        again_ms: int = -1,
        payload: bytes | None = None,
    ) -> Call[Outcome]:
        """Build the call that acks one lease and puts what it found: no more than `fitting` says.

        With `again_ms` it is scheduled for then, with the payload if one is given.
        """
        mine, words = _leases([lease])
        weight = len(payload or b"") + sum(map(len, payloads.values()))
        args = [again_ms, payload or b"", *words, *_tasks(ids, payloads)]
        return self.call("ack", args, _outcome(mine), id=_digest(b"a", words), weight=weight)

    def release(
        self, leases: Sequence[Lease], delay_ms: int = 0, block_ms: int = 0, most: int = 0
    ) -> list[Call[Outcome]]:
        """Build the calls that give leases back.

        With `most`, they are releases of handlers: each that blocks no host is counted, waits longer than the one
        before, and the `most`-th moves its task to failed.
        """
        return [
            self.call("release", [delay_ms, block_ms, most, *words], _outcome(ids), id=_digest(b"r", words))
            for ids, words in map(_leases, _split(leases))
        ]

    def fail(
        self,
        leases: Sequence[Lease],
        retries_ms: Sequence[int],
        errors: Sequence[bytes],
        tracebacks: Sequence[bytes] = (),
        blocks_ms: Mapping[int, int] | None = None,
    ) -> list[Call[Outcome]]:
        """Build the calls that fail leases: for each the delay before the next attempt, or -1, and the error.

        `tracebacks` are as `tracebacks.trace` gives them, empty for an error that has none. Each is sent once a call,
        however many leases it belongs to. `blocks_ms` says, by the position of a lease, for how long its host is
        blocked.
        """
        calls: list[Call[Outcome]] = []
        traces = tracebacks or [b""] * len(leases)
        retries: list[Argument] = list(retries_ms)
        for at, block_ms in (blocks_ms or {}).items():
            retries[at] = f"{retries_ms[at]} {block_ms}"
        for part, weight in cut([len(error) + len(trace) for error, trace in zip(errors, traces, strict=True)]):
            ids, words = _leases(leases[part])
            ends: list[Argument] = []
            texts: dict[bytes, bytes] = {}
            for retry, error, trace in zip(retries[part], errors[part], traces[part], strict=True):
                name = digest(trace) if trace else b""
                if name:
                    texts[name] = trace
                ends += (retry, error, name)
            for pair in texts.items():
                ends += pair
            calls.append(self.call("fail", [*words, *ends], _outcome(ids), id=_digest(b"f", words), weight=weight))
        return calls

    def crash(self, leases: Sequence[Lease], reason: str) -> list[Call[Outcome]]:
        """Build the calls with which a supervisor ends the leases of tasks that a dead process was running."""
        return [
            self.call("crash", [arguments.error_text(reason), *words], _outcome(ids))
            for ids, words in map(_leases, _split(leases))
        ]

    # ---- tasks out, one way or another

    def pull(self, n: int) -> Call[list[Task]]:
        """Build the call that takes up to 500 tasks for good; it is never sent twice."""
        return self.call("pull", [min(n, BATCH)], _pulled, replayable=False)

    def retry_failed(self, tasks: tuple[Tasks, ...]) -> list[Call[Outcome]]:
        """Build the calls that make these failed tasks ready again."""
        ids, _ = arguments.tasks(tasks)
        return [self.call("retry_failed", [BATCH, *part], _outcome(part)) for part, _, _ in _batches(ids, {})]

    def retry_any(self) -> Call[int]:
        """Build the call that makes any 500 failed tasks ready again."""
        return self.call("retry_failed", [BATCH], int)

    def forget(self, tasks: tuple[Tasks, ...]) -> list[Call[Outcome]]:
        """Build the calls that remove tasks from every state."""
        ids, _ = arguments.tasks(tasks)
        return [self.call("forget", part, _outcome(part)) for part, _, _ in _batches(ids, {})]

    def purge(self, strays: Sequence[bytes] = ()) -> Call[int]:
        """Build the call that removes the queue; it answers 0 while it has to be called again."""
        return self.call("purge", [BATCH, *strays], int)

    # ---- the cleaner's

    def requeue_expired(self, n: int = 200) -> Call[Swept]:
        """Build a round of taking back expired leases."""
        return self.call("requeue_expired", [min(n, BATCH), 0], _swept, expects=1)

    def promote_due(self, n: int = BATCH) -> Call[Swept]:
        """Build a round of making due tasks ready."""
        return self.call("promote_due", [min(n, BATCH)], lambda reply: Swept(reply[0], reply[1], 0, bool(reply[2])))

    def prune(self, n: int = BATCH, cursor: bytes = b"0") -> Call[Pruned]:
        """Build a round of dropping done tasks that need not be kept."""
        return self.call("prune", [min(n, BATCH), cursor], lambda r: Pruned(r[0], r[1], bool(r[2]), bool(r[3])))

    def repair(self, n: int = BATCH, cursor: bytes = b"+", *, mend: bool = True) -> Call[Repaired]:
        """Build a part of the walk that mends, or counts, what is wrong; `b"+"` goes on where any walk ended."""
        return self.call(
            "repair",
            [min(n, BATCH), cursor, int(mend)],
            lambda r: Repaired(r[0], r[1], {r[i].decode("utf-8", "replace"): r[i + 1] for i in range(2, len(r), 2)}),
        )

    def probe(self, harmless: Sequence[Argument], making: Sequence[Argument]) -> Call[list[str]]:
        """Build the call that tries which commands this user may run; it gives the names of those that are refused."""
        return self.call("probe", [*harmless, *making], lambda reply: sorted(name.decode() for name in reply))

    def plan(self, longest_ms: int) -> Call[Plan]:
        """Build a cleaner's question: how long may I sleep?"""
        return self.call("plan", [longest_ms], lambda reply: Plan(reply[0], reply[1]))

    def beat(self, worker: str, about: Mapping[str, object] | None, durations: Delta | None = None) -> Call[int]:
        """Build a worker's sign of life, or its farewell (None); it answers how many workers live.

        `durations` says how long handlers ran since the last one. The same delta is counted once, also when it is sent
        again in another call, within a minute.
        """
        words: list[Argument] = [worker, json.dumps(about) if about else ""]
        if durations is None:
            return self.call("beat", words, int)
        id = _digest(b"b", (worker, durations.number))
        for pair in durations.counts.items():
            words += pair
        return self.call("beat", words, int, id=id)

    # ---- looking

    def inspect(self, task: TaskId) -> Call[TaskInfo]:
        """Build the call that tells all about one task."""
        id = arguments.task_id(task)
        return self.call("inspect", [id], lambda reply: _info(text(id), reply))

    def states(self, tasks: tuple[Tasks, ...]) -> list[Call[Outcome]]:
        """Build the calls that tell where tasks are: one for each 500."""
        ids, _ = arguments.tasks(tasks)
        return [self.call("states", part, _outcome(part)) for part, _, _ in _batches(ids, {})]

    def describe(self, ids: Sequence[bytes]) -> Call[tuple[int, list[Record]]]:
        """Build the call that tells what an export says of up to 500 tasks: how many it looked at, those it found."""
        return self.call("describe", [DESCRIBED, *ids], lambda reply: _described(ids, reply))

    def restore(self, records: Sequence[Record], nonce: Callable[[], bytes]) -> Call[Outcome]:
        """Build the call that brings up to 500 tasks in as they were, but for those that a state knows."""
        words = [word for record in records for word in _restored(record)]
        weight = sum(len(word) for word in words if isinstance(word, bytes))
        return self.call("restore", words, _outcome([record.task for record in records]), id=nonce(), weight=weight)

    def stats(self) -> Call[Stats]:
        """Build the call that counts everything at one moment."""
        return self.call("stats", [], _stats)

    def why(self, task: TaskId) -> Call[Why]:
        """Build the call that tells all that decides whether a task is being worked on."""
        id = arguments.task_id(task)
        try:
            host = arguments.host(id)
        except InvalidInput:
            host = b""
        return self.call("why", [id, host], lambda reply: _why(text(id), reply))

    def drained(self, before_ms: int | None = None, cursor: bytes = b"0") -> Call[tuple[bool, bytes]]:
        """Build the call that says whether nothing is ready, held or scheduled (before a time); `b"0"`: that is all."""
        before = "+inf" if before_ms is None else before_ms
        return self.call("drained", [before, cursor], lambda reply: (bool(reply[0]), reply[1]))

    def configure(self, settings: Mapping[str, bytes]) -> Call[int]:
        """Build the call that writes settings; it answers 2 when `convert` is to be called until it ends."""
        return self.call("configure", [word for pair in settings.items() for word in pair], int)

    def convert(self) -> Call[bytes]:
        """Build a round of bringing the queue in line with its politeness, to be called until it gives `end`."""
        return self.call("convert", [BATCH // 2], bytes)

    # ---- hosts

    def host(self, name: object, rules: Sequence[tuple[str, Argument]] = ()) -> Call[HostInfo | None]:
        """Build the call that sets rules of a host, if any, and tells all about it; None on a queue without."""
        words = [word for rule in rules for word in rule]
        return self.call("host", [arguments.host(name), *words], lambda reply: reply and _host(reply))

    def hosts(self, start: int, n: int) -> Call[list[HostInfo] | None]:
        """Build the call that reads a page of hosts; None on a queue that is not polite."""
        return self.call("hosts", [start, n], lambda reply: None if reply is None else [_host(row) for row in reply])


# ---- words for the wire


def cut(weights: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Cut what has so many bytes each into parts for one call each: 500, and a MiB unless one alone has more."""
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


def _batches(ids: Sequence[bytes], payloads: Bodies) -> Iterator[tuple[Sequence[bytes], Bodies, int]]:
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


def _tasks(ids: Sequence[bytes], payloads: Bodies) -> list[Argument | Body]:
    words: list[Argument | Body] = [len(ids), *ids, len(payloads)]
    for position, payload in payloads.items():
        words += (position + 1, payload)
    return words


def _restored(record: Record) -> tuple[Argument, ...]:
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


def _split(leases: Sequence[Lease]) -> Iterable[Sequence[Lease]]:
    return (leases[at : at + BATCH] for at in range(0, len(leases), BATCH))


def _leases(leases: Sequence[Lease]) -> tuple[list[bytes], list[Argument]]:
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


def _digest(verb: bytes, words: Sequence[Argument]) -> bytes:
    # the same leases ended the same way are the same call, also when the caller asks again after an error
    hashed = hashlib.blake2b(digest_size=12)
    hashed.update(b"\0".join(word if isinstance(word, bytes) else str(word).encode() for word in words))
    return verb + hashed.hexdigest().encode()


# ---- reading replies: what a foreign hand wrote, and is no number, counts as absent, here as in the scripts

LARGEST = 2**53
"""Larger numbers are none of the queue's: Lua does not tell them apart."""


def number(value: Any) -> int | None:
    """Read a whole number; None for anything else."""
    try:
        found = int(value) if value is not None else None
    except (ValueError, OverflowError, TypeError):
        return None
    return found if found is not None and -LARGEST <= found <= LARGEST else None


def whole(value: Any) -> int:
    """Read a count; 0 where there is none, or where it is no number."""
    return 0 if value is None else number(value) or 0


def when(value: Any) -> float | None:
    """Read a time in ms as seconds; None where there is none, or none before the year 10000."""
    try:
        found = float(value) if value is not None else math.nan
    except (ValueError, TypeError):
        return None
    return max(0.0, found / 1000) if found <= MAX_TIME_MS else None


def said(value: bytes) -> str:
    """Read a word."""
    return value.decode("utf-8", "replace")


def _outcome(ids: Sequence[bytes]) -> Callable[[Any], Outcome]:
    return lambda reply: Outcome(ids, reply)


def _extended(ids: Sequence[bytes]) -> Callable[[Any], tuple[float, Outcome]]:
    return lambda reply: (reply[1] / 1000, Outcome(ids, reply[2]))


def _claimed(reply: Any, token: str, rest: Callable[[bytes], Call[Claimed]]) -> Claimed:
    if len(reply) in (4, 8):
        return replace(_claimed(reply[:-1], token, rest), rest=rest(reply[-1]))
    if len(reply) == 3:
        return Claimed(reply[0], [], reply[1], bool(reply[2]))
    now_ms, deadline_ms, fence, ids, failures, crashes, bodies = reply
    deadline, fence = deadline_ms / 1000, int(fence)
    names = [text(id) for id in ids]
    if not failures and not crashes and not bodies:
        return Claimed(now_ms, [Lease(name, token, deadline, 1, 0, fence + i) for i, name in enumerate(names)])
    return Claimed(
        now_ms,
        [
            Lease(name, token, deadline, whole(failed) + 1, whole(lost), fence + i, arguments.unpack(body))
            for i, (name, failed, lost, body) in enumerate(zip(names, failures, crashes, bodies, strict=True))
        ],
    )


def _pulled(reply: Any) -> list[Task]:
    return [Task(text(id), arguments.unpack(body)) for id, body in zip(reply[0], reply[1], strict=True)]


def _swept(reply: Any) -> Swept:
    now_ms, back, failed, more, *given_up = reply
    return Swept(now_ms, back + failed, failed, bool(more), tuple(map(text, given_up)))


def _error(line: bytes | None) -> tuple[float | None, str | None]:
    if not line:
        return None, None
    at, _, message = line.partition(b" ")
    return when(at), message.decode("utf-8", "replace")


def _releases(value: bytes | None) -> tuple[int, int]:
    """Read how often a task was released, and how often to block its host."""
    own, _, blocking = (value or b"").partition(b" ")
    return whole(own), whole(blocking)


def _info(task: str, reply: Any) -> TaskInfo:
    now_ms, state, due, deadline, token, failures, crashes, error, body, host, trace, releases = reply
    error_at, message = _error(error)
    ends = when(deadline)
    return TaskInfo(
        task=task,
        state=STATES.get(state),
        due=when(due),
        deadline=ends,
        lease_left=None if ends is None else ends - now_ms / 1000,
        holder=token.decode("utf-8", "replace").partition("#")[0] if token else None,
        failures=whole(failures),
        crashes=whole(crashes),
        error=message,
        error_at=error_at,
        payload=arguments.unpack(body),
        releases=_releases(releases)[0],
        traceback=read_traceback(trace, message),
        host=text(host) if host else None,
        host_releases=_releases(releases)[1],
    )


def _why(task: str, reply: Any) -> Why:
    found, row, paused, todos, workers, letters, stranded, trace = reply
    return Why(
        _info(task, found), found[0] / 1000, _host(row) if row else None, bool(paused), todos, workers,
        tuple(STATES[bytes((letter,))] for letter in letters), bool(stranded), trace.decode(),
    )  # fmt: skip


def _host(row: Any) -> HostInfo:
    name, waiting, held, turn, delay, per_host, budget, visits, failures, allowed, until, flag, reason, *rest = row
    busy, recalling = rest
    reason = said(reason)
    return HostInfo(
        host=text(name),
        waiting=waiting,
        in_flight=[text(id) for id in held],
        turn=when(turn),
        delay=delay / 1000,
        per_host=per_host,
        budget=budget if budget >= 0 else None,
        visits=visits,
        failures=failures,
        next_allowed=when(allowed) or None,
        blocked_until=when(until) if flag == b"b" else None,
        blocked_by=reason if flag == b"b" else "",
        banned=reason if flag == b"x" else None,
        busy=busy,
        recalling=bool(recalling),
    )


def _described(ids: Sequence[bytes], reply: Any) -> tuple[int, list[Record]]:
    letters, times, failures, crashes, errors, bodies, groups = reply
    records: list[Record] = []
    for i, letter in enumerate(letters):
        state = STATES.get(bytes((letter,)))
        if state is not None:
            error_at, message = _error(errors[i])
            at = when(times[i])
            records.append(
                Record(
                    task=ids[i],
                    state=state,
                    due=at if state is State.SCHEDULED else None,
                    acked=at if state is State.DONE else None,
                    failures=whole(failures[i]),
                    crashes=whole(crashes[i]),
                    error=message,
                    error_at=error_at,
                    payload=arguments.unpack(bodies[i]) if bodies else None,
                    group=text(groups[i]) if groups and groups[i] else None,
                )
            )
    return len(letters), records


def _stats(reply: Any) -> Stats:
    (
        now, todos, scheduled, in_progress, done, failed, due, deadline, workers, counters, settings,
        waiting, hosts, turn, spans,
    ) = reply  # fmt: skip
    counted = {
        said(name): count
        for name, value in zip(counters[::2], counters[1::2], strict=True)
        if (count := number(value)) is not None
    }
    kept = {said(name): said(value) for name, value in zip(settings[::2], settings[1::2], strict=True)}
    since = counted.pop("todos_since", None)
    return Stats(
        now=now / 1000,
        todos=todos,
        scheduled=scheduled,
        in_progress=in_progress,
        done=done,
        failed=failed,
        paused=kept.get("paused") == "1",
        counters=counted,
        next_due=when(due),
        next_deadline=when(deadline),
        todos_since=since / 1000 if since and todos else None,
        settings=kept,
        workers=workers,
        waiting=waiting,
        hosts=hosts,
        next_turn=when(turn),
        durations=read_durations(spans),
    )


def read_worker(worker: bytes, about: bytes, beat: bytes | float) -> WorkerInfo:
    """Read an entry of `workers` and `worker_info`; what is missing or odd in it becomes zero or empty."""
    try:
        found: Any = json.loads(about)
        get: Any = found.get
    except (ValueError, AttributeError):
        get = dict[str, Any]().get

    def told(name: str) -> float:
        value: Any = get(name, 0)
        return value if isinstance(value, int | float) and abs(value) <= LARGEST else 0

    return WorkerInfo(
        worker=text(worker),
        host=str(get("host", "")),
        pid=int(told("pid")),
        concurrency=int(told("concurrency")),
        held=int(told("held")),
        acked=int(told("acked")),
        failed=int(told("failed")),
        started=float(told("started")),
        beat=when(beat) or 0.0,
    )


def read_sample(line: bytes) -> Sample:
    """Read a line of `history`; the time is 0 where the line cannot be read."""
    at, *counts = (line.split() + [b""] * 6)[:6]
    return Sample(when(at) or 0.0, *map(whole, counts))


def read_failure(line: bytes) -> Failure:
    """Read a line of `error_log`: length of the id, id, time, message."""
    length, _, rest = line.partition(b" ")
    size = whole(length)
    at, message = _error(rest[size:])
    return Failure(text(rest[:size]), at or 0.0, message or "")


def read_entry(
    task: bytes,
    *,
    at: float | bytes | None = None,
    token: bytes | None = None,
    error: bytes | None = None,
    releases: bytes | None = None,
    trace: bytes | None = None,
) -> Entry:
    """Make one line of a page."""
    error_at, message = _error(error)
    return Entry(
        text(task),
        at=error_at if at is None else when(at),
        holder=token.decode("utf-8", "replace").partition("#")[0] if token else None,
        error=message,
        releases=_releases(releases)[0],
        traceback=read_traceback(trace, message),
    )


def renew(lease: Lease, deadline: float) -> Lease:
    """Give the lease with its new deadline."""
    return replace(lease, deadline=deadline)
