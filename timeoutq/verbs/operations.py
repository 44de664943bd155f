"""The table of operations: of each verb the arguments, the call, and the value that is made of the reply. No I/O.

Each method of `Operations` checks what it is given and builds a `Call`, which `sending.py` sends. The arguments of a
call are first the words that each call of its script has, then its options as named sections, such as `again 1 60000`:
the name, how many words follow, the words. So an option that is not given costs nothing, and a new one moves no other
word. `lua/sections.lua` defines the form and reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeVar

from timeoutq.server import scripts
from timeoutq.server.calls import (
    BATCH,
    Argument,
    Call,
    Command,
    Kept,
    T,
    Words,
    batches,
    by_position,
    carried,
    cut,
    digest_of,
    lease_words,
    pairs,
    record_words,
    refuse_rerun,
    result_words,
    section,
    split,
    task_words,
)
from timeoutq.verbs import replies
from timeoutq.verbs.replies import STATES, Claimed, Plan, Pruned, Repaired, Swept, Why, number, said, when, whole
from timeoutq.words import arguments, durations
from timeoutq.words.arguments import AS_IT_IS, Body, How, TaskList
from timeoutq.words.counts import Stats
from timeoutq.words.durations import Delta
from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import foreign_host
from timeoutq.words.model import Lease, Outcome, Record, State, Task, TaskId, TaskInfo, Tasks, leased, text
from timeoutq.words.tracebacks import digest, read_traceback

V = TypeVar("V")

DESCRIBED = 8 * 1024 * 1024  # a call describes no further task when it has met this many bytes of payloads


class Operations:
    """The operations of one queue, as calls."""

    def __init__(self, name: str, stem: str = "") -> None:
        """Name the queue; `stem` is what the names of its keys begin with, if that is not `timeoutq:{name}:`."""
        self.name = arguments.queue_name(name)
        self._prefix = stem or f"timeoutq:{{{self.name}}}:"
        self._heads: dict[str, Command] = {}

    def key(self, name: str) -> str:
        """Give the full key of one of the names in the design's table; `lock` is the prefix of the lock keys."""
        return self._prefix + ("lock:" if name == "lock" else name)

    def call(
        self, name: str, args: Sequence[Argument | Body], read: Callable[[Any], T], *, id: bytes = b"",
        replayable: bool = True, dated: int | None = None, expects: int | None = None, weight: int = 0,
    ) -> Call[T]:  # fmt: skip
        """Build the call of the verb `name`."""
        return Call(name, self._head(name), id, args, read, replayable, dated, expects, weight)

    def _head(self, function: str) -> Command:
        head = self._heads.get(function)
        if head is None:
            command = b"FCALL_RO" if function in scripts.READING else b"FCALL"
            # `lock` is never there: so a node of a cluster from which the slot moves refuses a call before it begins
            keys = [self.key(name).encode() for name in ("meta", "lock")]
            head = self._heads[function] = (command, scripts.function(function).encode(), len(keys), *keys)
        return head

    def if_room(self, call: Call[T], *, links: bool) -> Call[T]:
        """Have a full server refuse a call; without `links`, it then takes the call without its results."""
        full = None if links else replace(call, args=[*call.args, *section("full")])
        return replace(call, head=self._head(f"{call.name}_if_room"), when_full=full)

    # ---- tasks in

    def put(self, tasks: tuple[Tasks, ...], nonce: Callable[[], bytes], how: How = AS_IT_IS) -> list[Call[Outcome]]:
        """Build the calls that put tasks: one for each 500, or each MiB of payloads."""
        found = arguments.tasks(tasks)
        return self.put_checked(found, nonce, how_words(found, how), how.call_id)

    def put_checked(
        self, tasks: TaskList, nonce: Callable[[], bytes], options: Sequence[Argument | Body] = (),
        call_id: bytes | None = None,
    ) -> list[Call[Outcome]]:  # fmt: skip
        """Build the calls that put what `arguments.tasks` gave; a call with a `call_id` may have run before."""
        calls = [
            self.call("put", task_words(part, options), _outcome(part.ids), id=call_id or nonce(), weight=weight)
            for part, weight in batches(tasks)
        ]
        return calls if call_id is None else [replace(call, sent_ms=1) for call in calls]

    def schedule(
        self, tasks: tuple[Tasks, ...], nonce: Callable[[], bytes], *, at: object = None, after: object = None,
        how: How = AS_IT_IS,
    ) -> list[Call[Outcome]]:  # fmt: skip
        """Build the calls that schedule tasks."""
        due, found = arguments.due(at, after), arguments.tasks(tasks)
        refuse_rerun(found, "schedule()")
        return self.schedule_checked(due, found, nonce, how_words(found, how))

    def schedule_checked(
        self, due: bytes, tasks: TaskList, nonce: Callable[[], bytes], options: Sequence[Argument | Body]
    ) -> list[Call[Outcome]]:
        """Build the calls that schedule what `arguments.tasks` gave."""
        return [
            self.call("schedule", [due, *task_words(part, options)], _outcome(part.ids), id=nonce(), weight=weight)
            for part, weight in batches(tasks)
        ]

    # ---- leases

    def claim(
        self, token: bytes, n: int, timeout_ms: int, max_runtime_ms: int = 0, share: int = 1, start: bytes = b"",
        read: Callable[[bytes | None], Any] = arguments.unpack,
    ) -> Call[Claimed]:  # fmt: skip
        """Build a claim of up to `n` leases, whose payloads `read` makes; with `start`, it looks on for older ones."""
        name = token.decode()

        def claimed(reply: Any) -> Claimed:
            if len(reply) in (4, 8):  # it was sent again, and looked for its leases among a part of all
                rest = self.claim(token, n, timeout_ms, max_runtime_ms, share, reply[-1], read)
                return replace(claimed(reply[:-1]), rest=rest)
            if len(reply) == 3:
                return Claimed(reply[0], [], reply[1], bool(reply[2]))
            now_ms, deadline_ms, fence, ids, failures, crashes, bodies = reply
            deadline, fence = deadline_ms / 1000, int(fence)
            tasks = [id.decode("utf-8", "surrogateescape") for id in ids]  # as text() does, without a call for each
            attempts = (whole(one) + 1 for one in failures) if any(failures or ()) else repeat(1)
            lost = map(whole, crashes) if any(crashes or ()) else repeat(0)
            payloads = map(read, bodies) if bodies else repeat(None)
            leases = [
                leased(task, name, deadline, attempt, crashed, fence + i, payload)
                for i, (task, attempt, crashed, payload) in enumerate(
                    zip(tasks, attempts, lost, payloads, strict=False)
                )
            ]
            return Claimed(now_ms, leases)

        options = sections({"max_runtime": max_runtime_ms, "share": share if share != 1 else 0, "from": start})
        return self.call("claim", [min(n, BATCH), timeout_ms, 0, *options], claimed, id=token, dated=2)

    def extend(self, leases: Sequence[Lease], timeout_ms: int) -> list[Call[tuple[float, Outcome]]]:
        """Build the calls that extend leases; each gives the new deadline (seconds) and the answers."""

        def extended(ids: Sequence[bytes]) -> Callable[[Any], tuple[float, Outcome]]:
            return lambda reply: (reply[1] / 1000, Outcome(ids, reply[2]))

        return [
            self.call("extend", [timeout_ms, *words], extended(ids)) for ids, words in map(lease_words, split(leases))
        ]

    def ack(
        self, leases: Sequence[Lease], again_ms: int = -1, results: Mapping[int, Kept] | None = None,
        bare: Collection[int] = (), until: Mapping[int, int] | None = None, records: Mapping[int, bytes] | None = None,
    ) -> list[Call[Outcome]]:  # fmt: skip
        """Build the calls that ack leases; with `again_ms`, their tasks are scheduled for then.

        By the position of a lease: `results` are kept, the tasks at `bare` leave no id in done, and done keeps the ids
        of others for `until` ms, whatever `keep_done` says; `records` are what records of calls say of attempts.
        """
        calls: list[Call[Outcome]] = []
        kept, gone, ends = results or {}, dict.fromkeys(bare, True), until or {}
        for part, weight in cut([len(kept[at].body) if at in kept else 0 for at in range(len(leases))]):
            options = section("again", again_ms) if again_ms >= 0 else []
            if kept or gone or ends:
                options += _end_words(_within(kept, part), _within(gone, part), _within(ends, part), len(leases[part]))
                options += _record_words(records, part)
            call = self._ack(leases[part], options, weight)
            calls.append(self.if_room(call, links=False) if kept else call)
        return calls

    def ack_put(
        self, lease: Lease, found: TaskList, again_ms: int = -1, payload: bytes | None = None,
        result: Kept | None = None, *, bare: bool = False, until_ms: int | None = None, record: bytes | None = None,
    ) -> Call[Outcome]:  # fmt: skip
        """Build the call that acks one lease and puts what it found (no more than `fitting` says); else as `ack`."""
        options = section("again", again_ms) if again_ms >= 0 else []
        if payload is not None:
            options += section("payload", payload)
        if found.ids:
            options += section("put", *found.ids) + carried(found)
        kept = {} if result is None else {0: result}
        options += _end_words(kept, {0: True} if bare else {}, {} if until_ms is None else {0: until_ms}, 1)
        options += [] if record is None else section("records", record)
        bodies = [payload or b"", *found.payloads.values(), *(one.body for one in kept.values())]
        call = self._ack([lease], options, sum(map(len, bodies)))
        return self.if_room(call, links=bool(found.ids)) if found.ids or kept else call

    def _ack(self, leases: Sequence[Lease], options: Words, weight: int) -> Call[Outcome]:
        ids, words = lease_words(leases)
        return self.call("ack", [*words, *options], _outcome(ids), id=digest_of(b"a", words), weight=weight)

    def ack_in_parts(
        self, lease: Lease, found: TaskList, fits: int, nonce: Callable[[], bytes], again_ms: int,
        payload: bytes | None, result: Kept | None = None, *, bare: bool = False, until_ms: int | None = None,
    ) -> tuple[list[Call[Outcome]], Call[Outcome]]:  # fmt: skip
        """Build the puts that go before an ack, and the ack, which puts the first `fits` tasks (see `fitting`)."""
        puts: list[Call[Outcome]] = []
        if fits < len(found.ids):
            # the visit is over: none of the tasks may begin before its host has rested
            visited = section("visited", *lease_words([lease])[0])
            puts = self.put_checked(found.part(fits, len(found.ids)), nonce, visited)
            found = found.part(0, fits)
        return puts, self.ack_put(lease, found, again_ms, payload, result, bare=bare, until_ms=until_ms)

    def release(
        self, leases: Sequence[Lease], delay_ms: int = 0, block_ms: int = 0, most: int = 0, within_ms: int = 0,
        deadline_ms: int = 0, why: bytes = b"", record: bytes = b"",
    ) -> list[Call[Outcome]]:  # fmt: skip
        """Build the calls that give leases back; with `deadline_ms`, only those that run until then.

        With `most`, they are releases of handlers: each that blocks no host is counted, waits longer than the one
        before, and the `most`-th moves its task to failed. With `within_ms`, a task is not released any more when so
        much time has passed since the first such release; the answer is then `OVERDUE`, and the lease is still held.
        Else `why` is kept as the error of the task. `record` is as for `ack`, of one lease whose task is cancelled.
        """
        given = {"delay": delay_ms, "block": block_ms, "deadline": deadline_ms, "most": most, "within": within_ms}
        options = sections(given) + (section("why", why) if why else []) + (section("record", record) if record else [])
        return [
            self.call("release", [*words, *options], _outcome(ids), id=digest_of(b"r", words))
            for ids, words in map(lease_words, split(leases))
        ]

    def publish(self, worker: str, functions: Mapping[str, tuple[str, str]]) -> list[Call[int]]:
        """Build the calls that tell which functions a worker has: of each the digest and the JSON of what it takes."""
        calls: list[Call[int]] = []
        told = [(name, digest, schema) for name, (digest, schema) in functions.items()]
        for part, weight in cut([len(schema) for _, _, schema in told]):
            words = [word for one in told[part] for word in one]
            calls.append(self.call("publish", ["_".join(worker.split()), *words], int, weight=weight))
        return calls

    def fail(
        self, leases: Sequence[Lease], retries_ms: Sequence[int], errors: Sequence[bytes],
        tracebacks: Sequence[bytes] = (), blocks_ms: Mapping[int, int] | None = None,
        results: Mapping[int, Kept] | None = None, records: Mapping[int, bytes] | None = None,
    ) -> list[Call[Outcome]]:  # fmt: skip
        """Build the calls that fail leases: for each the delay before the next attempt, or -1, and the error.

        `tracebacks` are as `tracebacks.trace` gives them; each is sent once a call. By the position of a lease:
        `blocks_ms` is for how long its host is blocked, and `results` are kept if the task goes to failed; `records`
        are as for `ack`.
        """
        calls: list[Call[Outcome]] = []
        traces = tracebacks or [b""] * len(leases)
        blocked, kept = blocks_ms or {}, results or {}
        sizes = [len(error) + len(trace) for error, trace in zip(errors, traces, strict=True)]
        for at, one in kept.items():
            sizes[at] += len(one.body)
        for part, weight in cut(sizes):
            ids, words = lease_words(leases[part])
            digests = {at: digest(trace) for at, trace in enumerate(traces[part]) if trace}
            ends: Words = [word for end in zip(retries_ms[part], errors[part], strict=True) for word in end]
            ends += by_position("blocks", _within(blocked, part)) + result_words(_within(kept, part))
            ends += _record_words(records, part)
            ends += by_position("traces", digests)
            ends += pairs("texts", {name: traces[part][at] for at, name in digests.items()})
            call = self.call("fail", [*words, *ends], _outcome(ids), id=digest_of(b"f", words), weight=weight)
            calls.append(self.if_room(call, links=False) if kept else call)
        return calls

    def note(self, lease: Lease, done: str, total: str, words: bytes) -> Call[Outcome]:
        """Build the call that notes how far a handler is."""
        ids, lease_is = lease_words([lease])
        return self.call("note", [*lease_is, done, total, words], _outcome(ids))

    def crash(self, leases: Sequence[Lease], reason: str) -> list[Call[Outcome]]:
        """Build the calls with which a supervisor ends the leases of tasks that a dead process was running."""
        return [
            self.call("crash", [arguments.error_text(reason), *words], _outcome(ids))
            for ids, words in map(lease_words, split(leases))
        ]

    # ---- tasks out, one way or another

    # an event log names who calls by the id of the call; these verbs need none for anything else
    def pull(self, n: int, nonce: Callable[[], bytes] = bytes) -> Call[list[Task]]:
        """Build the call that takes up to 500 tasks for good; it is never sent twice."""

        def pulled(reply: Any) -> list[Task]:
            return [Task(text(id), arguments.unpack(body)) for id, body in zip(reply[0], reply[1], strict=True)]

        return self.call("pull", [min(n, BATCH)], pulled, id=nonce(), replayable=False)

    def retry_failed(self, tasks: tuple[Tasks, ...], nonce: Callable[[], bytes] = bytes) -> list[Call[Outcome]]:
        """Build the calls that make these failed tasks ready again."""
        return [self.call("retry_failed", [BATCH, *ids], _outcome(ids), id=nonce()) for ids in _only_ids(tasks)]

    def retry_any(self, nonce: Callable[[], bytes] = bytes) -> Call[int]:
        """Build the call that makes any 500 failed tasks ready again."""
        return self.call("retry_failed", [BATCH], int, id=nonce())

    def forget(self, tasks: tuple[Tasks, ...], nonce: Callable[[], bytes] = bytes) -> list[Call[Outcome]]:
        """Build the calls that remove tasks from every state."""
        return [self.call("forget", ids, _outcome(ids), id=nonce()) for ids in _only_ids(tasks)]

    def cancel(self, tasks: tuple[Tasks, ...], by: bytes, nonce: Callable[[], bytes]) -> list[Call[Outcome]]:
        """Build the calls that cancel tasks; `by` says who does."""
        return [self.call("cancel", [by, *ids], _outcome(ids), id=nonce()) for ids in _only_ids(tasks)]

    def purge(self, strays: Sequence[bytes] = ()) -> Call[int]:
        """Build the call that removes the queue; it answers 0 while it has to be called again."""
        return self.call("purge", [BATCH, *strays], int)

    # ---- the cleaner's

    def requeue_expired(self, n: int = 200) -> Call[Swept]:
        """Build a round of taking back expired leases."""

        def swept(reply: Any) -> Swept:
            now_ms, back, failed, more, *given_up = reply
            return Swept(now_ms, back + failed, failed, bool(more), tuple(map(text, given_up)))

        return self.call("requeue_expired", [min(n, BATCH), 0], swept, expects=1)

    def promote_due(self, n: int = BATCH) -> Call[Swept]:
        """Build a round of making due tasks ready."""
        return self.call("promote_due", [min(n, BATCH)], lambda reply: Swept(reply[0], reply[1], 0, bool(reply[2])))

    def prune(self, n: int = BATCH, cursor: bytes = b"0") -> Call[Pruned]:
        """Build a round of dropping done tasks that need not be kept."""
        return self.call("prune", [min(n, BATCH), cursor], lambda r: Pruned(r[0], r[1], bool(r[2]), bool(r[3])))

    def repair(self, n: int = BATCH, cursor: bytes = b"+", *, mend: bool = True) -> Call[Repaired]:
        """Build a part of the walk that mends, or counts, what is wrong; `b"+"` goes on where any walk ended."""

        def repaired(reply: Any) -> Repaired:
            return Repaired(reply[0], reply[1], dict(zip(map(said, reply[2::2]), reply[3::2], strict=True)))

        return self.call("repair", [min(n, BATCH), cursor, int(mend)], repaired)

    def about(self) -> Call[scripts.About]:
        """Build the call that asks which library the server has."""
        return Call("about", (b"FCALL_RO", scripts.function("about").encode(), 0), b"", (), scripts.about)

    def probe(self, harmless: Sequence[Argument], making: Sequence[Argument]) -> Call[list[str]]:
        """Build the call that tries which commands this user may run; it gives the names of those that are refused."""
        return self.call("probe", [*harmless, *making], lambda reply: sorted(set(map(said, reply))))

    def plan(self, longest_ms: int) -> Call[Plan]:
        """Build a cleaner's question: how long may I sleep?"""
        return self.call("plan", [longest_ms], lambda reply: Plan(*reply))

    def beat(self, worker: str, about: Mapping[str, object] | None, ran: Delta | None = None) -> Call[int]:
        """Build a worker's sign of life, or its farewell (None); it answers how many workers live.

        `ran` says how long handlers ran since the last one; the same delta is counted once.
        """
        words: Words = [worker, json.dumps(about) if about else ""]
        if ran is None:
            return self.call("beat", words, int)
        id = digest_of(b"b", (worker, ran.number))
        return self.call("beat", words + pairs("durations", ran.counts), int, id=id)

    # ---- looking

    def inspect(self, task: TaskId | Task) -> Call[TaskInfo]:
        """Build the call that tells all about one task."""
        id = one_id(task)
        return self.call("inspect", [id], lambda reply: _info(id, reply))

    def states(self, tasks: tuple[Tasks, ...]) -> list[Call[Outcome]]:
        """Build the calls that tell where tasks are: one for each 500."""
        return [self.call("states", ids, _outcome(ids)) for ids in _only_ids(tasks)]

    def describe(self, ids: Sequence[bytes]) -> Call[tuple[int, list[Record]]]:
        """Build the call that tells what an export says of up to 500 tasks: how many it looked at, those it found."""

        def described(reply: Any) -> tuple[int, list[Record]]:
            letters, times, failures, crashes, errors, bodies, groups, levels, ends = reply
            records: list[Record] = []
            for i, letter in enumerate(letters):
                state = STATES.get(bytes((letter,)))
                if state is None:
                    continue
                error_at, message = replies.last_error(errors[i])
                at, group = when(times[i]), groups[i] if groups else None
                due, acked = (at if state is one else None for one in (State.SCHEDULED, State.DONE))
                records.append(Record(
                    ids[i], state, due, acked, whole(failures[i]), whole(crashes[i]), message, error_at,
                    payload=arguments.unpack(bodies[i]) if bodies else None,
                    # the host that a client sends with the id is no group
                    group=None if group is None or group == foreign_host(ids[i]) else text(group),
                    priority=whole(levels[i]) if levels else 0, until=when(ends[i]) if ends else None,
                ))  # fmt: skip
            return len(letters), records

        return self.call("describe", [DESCRIBED, *ids], described)

    def restore(self, records: Sequence[Record], nonce: Callable[[], bytes]) -> Call[Outcome]:
        """Build the call that brings up to 500 tasks in as they were, but for those that a state knows."""
        words, ids = record_words(records), [record.task for record in records]
        weight = sum(len(word) for word in words if isinstance(word, bytes))
        return self.call("restore", words, _outcome(ids), id=nonce(), weight=weight)

    def stats(self) -> Call[Stats]:
        """Build the call that counts everything at one moment."""

        def counted(reply: Any) -> Stats:
            (
                now, todos, scheduled, in_progress, done, failed, due, deadline, workers, counters, settings,
                waiting, hosts, turn, spans,
            ) = reply  # fmt: skip
            counts = {
                said(name): count
                for name, value in zip(counters[::2], counters[1::2], strict=True)
                if (count := number(value)) is not None
            }
            kept = {said(name): said(value) for name, value in zip(settings[::2], settings[1::2], strict=True)}
            since = counts.pop("todos_since", None)
            return Stats(
                now=now / 1000, todos=todos, scheduled=scheduled, in_progress=in_progress, done=done, failed=failed,
                paused=kept.get("paused") == "1", counters=counts, next_due=when(due), next_deadline=when(deadline),
                todos_since=since / 1000 if since and todos else None, settings=kept, workers=workers, waiting=waiting,
                hosts=hosts, next_turn=when(turn), durations=durations.read(spans), ran=durations.read_all(spans[2]),
            )  # fmt: skip

        return self.call("stats", [], counted)

    def why(self, task: TaskId | Task) -> Call[Why]:
        """Build the call that tells all that decides whether a task is being worked on."""
        id = one_id(task)
        try:
            host = arguments.host(id)
        except InvalidInput:
            host = b""

        def facts(reply: Any) -> Why:
            found, row, paused, todos, workers, letters, stranded, trace, before, *durable = reply
            states = tuple(STATES[bytes((letter,))] for letter in letters)
            return Why(
                _info(id, found), found[0] / 1000, replies.host(row) if row else None, bool(paused), todos, workers,
                states, bool(stranded), trace.decode(), before, *durable,
            )  # fmt: skip

        return self.call("why", [id, host], facts)

    def drained(
        self, before_ms: int | None = None, cursor: bytes = b"0", *, counted: bool = False
    ) -> Call[tuple[bool, bytes, frozenset[tuple[bytes, bytes]]]]:
        """Build the call that says whether nothing is ready, held or scheduled (before a time); `b"0"`: that is all.

        With `counted`, it gives all counters of the same moment, too.
        """
        return self.call(
            "drained",
            ["+inf" if before_ms is None else before_ms, cursor, int(counted)],
            lambda r: (bool(r[0]), r[1], frozenset(zip(r[2][::2], r[2][1::2], strict=True) if counted else ())),
        )

    def configure(self, settings: Mapping[str, bytes]) -> Call[int]:
        """Build the call that writes settings; it answers 2 when `convert` is to be called until it ends.

        A name that ends in `?` is written only where the queue has no such setting.
        """
        return self.call("configure", [word for pair in settings.items() for word in pair], int)

    def convert(self) -> Call[bytes]:
        """Build a round of bringing the queue in line with its politeness, to be called until it gives `end`."""
        return self.call("convert", [BATCH // 2], bytes)


def sections(given: Mapping[str, Argument]) -> Words:
    """Give the options of one word each that a call has; one that is 0 or empty is left out."""
    return [word for name, value in given.items() if value for word in section(name, value)]


def how_words(found: TaskList, how: How) -> Words:
    """Check the options that put and schedule have for all of their tasks, and give their words."""
    words: Words = []
    if callable(how.group) and not isinstance(how.group, type):
        found.group_by(how.group)
    elif how.group is not None:
        words += section("group", arguments.host(how.group))  # the first option, where `task_words` looks for it
    if arguments.flag(how.again, "again"):
        words += section("again")
    if how.priority is not None:
        words += section("priority", arguments.priority(how.priority))
    if arguments.flag(how.improve, "improve"):
        if how.priority is None and len(found.priorities) < len(found.ids):
            raise InvalidInput(arguments.NO_PRIORITY)
        found.improved.clear()  # for the call says it of all tasks
        words += section("improve")
    if how.batch is not None:
        words += section("batch", how.batch)
    if arguments.flag(how.rerun, "rerun"):
        found.reruns.clear()  # likewise
        words += section("rerun")
    return words


def one_id(task: TaskId | Task) -> bytes:
    """Give the id of a task, checked."""
    return arguments.task_id(task.task if isinstance(task, Task) else task)


def _only_ids(tasks: tuple[Tasks, ...]) -> Iterator[list[bytes]]:
    ids = arguments.ids(tasks)
    return (ids[at : at + BATCH] for at in range(0, len(ids), BATCH))


def _within(found: Mapping[int, V], part: slice) -> dict[int, V]:
    # what belongs to the leases of one call, by their positions in it
    return {at - part.start: one for at, one in found.items() if part.start <= at < part.stop}


def _record_words(records: Mapping[int, bytes] | None, part: slice) -> Words:
    return section("records", *(records.get(at, b"") for at in range(part.start, part.stop))) if records else []


def _end_words(results: Mapping[int, Kept], bare: Collection[int], until: Mapping[int, int], leases: int) -> Words:
    words = result_words(results)
    if bare:
        words += section("bare", *(at + 1 for at in bare if len(bare) < leases))
    return words + by_position("until", until)


def _outcome(ids: Sequence[bytes]) -> Callable[[Any], Outcome]:
    return lambda reply: Outcome(ids, reply)


def _info(task: bytes, reply: Any) -> TaskInfo:
    now_ms, state, due, deadline, token, failures, crashes, error, body, host, trace, releases, level, *rest = reply
    again, kept, by, far, attempts = rest
    error_at, message = replies.last_error(error)
    ends, (own, blocking, since) = when(deadline), replies.releases_of(releases)
    payload = arguments.unpack(body)
    return TaskInfo(
        text(task), STATES.get(state), due=when(due), deadline=ends, holder=replies.holder(token),
        lease_left=None if ends is None else ends - now_ms / 1000, failures=whole(failures), crashes=whole(crashes),
        error=message, error_at=error_at, traceback=read_traceback(trace, message), payload=payload,
        releases=own, host=text(host) if host else None, host_releases=blocking, unrun_since=since,
        priority=whole(level), again=bool(again), has_result=bool(kept), cancelled_by=said(by) if by else None,
        progress=replies.progress(far), record=replies.record(task, attempts, whole(crashes), payload),
    )  # fmt: skip
