"""Everything that takes more than one exchange with the server: sending again, chunks, waiting for the bell. No I/O.

Each flow is a generator: it yields what it needs (`Send`, `Sleep`, `Bell`) and is sent the result; `client.py` drives
it, blocking or with asyncio. So both faces share every decision: a call is sent again only if it did not run or may be
replayed, after a pause with full jitter, until the deadline of the whole call is over.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from timeoutq import arguments, operations, rights, telling
from timeoutq.arguments import Bodies
from timeoutq.connection import ATTEMPT, CONNECT, SLICE, Server
from timeoutq.errors import (
    AccessDenied,
    InvalidInput,
    LeaseLost,
    NotRedis,
    NotReplicated,
    SchemaMismatch,
    TimeoutqError,
    Unavailable,
    UnsafeServer,
)
from timeoutq.model import Answer, Entry, HostInfo, Lease, Outcome, State, TaskInfo, Tasks
from timeoutq.operations import BATCH, Call, Claimed, Command, Operations, Swept
from timeoutq.patience import SLOWEST
from timeoutq.troubles import is_hopeless, is_script_missing, is_transient, refusal_of

log = logging.getLogger(__name__)

T = TypeVar("T")

BELL_WAIT = 10.0
"""The longest wait for one stroke of the bell, seconds; after it the worker looks even if a stroke was lost."""


LAST_START = 1 - CONNECT - ATTEMPT
"""The part of the deadline after which no attempt is started, because the attempt could not end in time."""

RESEND = 50.0
"""Seconds after which a call that may have run is not sent again: the queue knows the calls of one minute."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send these commands; a list of replies, or the error of the network, comes back."""

    commands: Sequence[Command]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Bell:
    """Wait for the bell, at most `seconds`; whether the bell rang, or the error of the network, comes back."""

    seconds: float


Step = Send | Sleep | Bell
Flow = Generator[Step, Any, T]


class ServerClock:
    """What the server's clock shows, from the last reply with a time: so the clock of no client matters."""

    STEP_MS = 200
    """How much the server's clock may gain between two replies without being taken for one that jumped."""
    TRIP_MS = 1000
    """The longest round trip that is taken for usual."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        # the server's clock is ahead of ours by between `_least_ms` and `_most_ms`, if it has run evenly
        self._least_ms = self._most_ms = self._seen_ms = self._trip_ms = 0

    def seen(self, now_ms: int, asked: float) -> None:
        """Take the time in a reply that has just come; `asked` is when the request went, by the monotonic clock."""
        here_ms = int(time.monotonic() * 1000)
        least, most = now_ms - here_ms, now_ms - int(asked * 1000)
        self._trip_ms = max(self._trip_ms * 7 // 8, min(most - least, self.TRIP_MS))
        slewed_ms = self.STEP_MS + (here_ms - self._seen_ms) // 1000
        if self._offset_ms is None or most < self._least_ms:
            # a step back is believed at once: then the step forward again is seen as a jump
            self._least_ms, self._most_ms, self._seen_ms = least, most, here_ms
        elif least <= self._most_ms + slewed_ms:
            self._least_ms = max(self._least_ms, least)
            self._most_ms = max(self._least_ms, min(self._most_ms, most))
            self._seen_ms = here_ms
        self._offset_ms = least

    def swept(self, now_ms: int, asked: float) -> None:
        """Take the time in the reply of a cleaner's script: the script has already judged whether the clock jumped."""
        self._offset_ms = None
        self.seen(now_ms, asked)

    @property
    def now_ms(self) -> int:
        """The server's time, or 0 while it is unknown."""
        return 0 if self._offset_ms is None else self._offset_ms + int(time.monotonic() * 1000)

    @property
    def expected_ms(self) -> int:
        """The server's time at which a request that leaves now arrives, or 0 while the time is unknown.

        This is right if the server's clock has run evenly since the last sweep, and if the request takes no longer than
        recent round trips.
        """
        return 0 if self._offset_ms is None else self._most_ms + self._trip_ms + int(time.monotonic() * 1000)


@dataclass(slots=True)
class Talk:
    """What the flows of one queue share."""

    operations: Operations
    server: Server
    clock: ServerClock
    deadline: float
    nonce: Callable[[], bytes]
    proved: bool = False
    """Whether the user may run all commands of the scripts; this is tried before the first call that writes."""


def prove(talk: Talk) -> Flow[None]:
    """Raise `AccessDenied` if the user may not run one of the scripts' commands: a script would stop half-way."""
    refused = yield from answer(talk, talk.operations.probe(*rights.trials()))
    if set(refused) - {"INFO"}:
        raise AccessDenied(
            f"{talk.server.url} refuses access: user {talk.server.user or 'default'} may not run {', '.join(refused)} "
            f"on the keys of queue {talk.operations.name}; nothing was written. Let an operator run: "
            f"{rights.cure(talk.server.user, refused)}"  # the script has run, so the keys are allowed
        )
    talk.proved = True


def settle(talk: Talk, calls: Sequence[Call[Any]], replicas: int = 0) -> Flow[list[Any]]:
    """Send calls in one flush until each has an answer or the deadline is over; heavy calls go in several flushes.

    Each flush has a deadline of its own. When the server could not be asked, the flushes after it are not sent.

    Gives for each call what the call read, or the `TimeoutqError` in which it ended. A call that is not replayable is
    sent again only when it surely did not run. With `replicas`, a WAIT follows in the same flush, and so on the same
    connection (on another connection, WAIT would wait for nothing). An answer counts when that many replicas have
    confirmed it; otherwise the call is sent again, and ends in `NotReplicated`.

    The usual case is short: one call without a date, answered at the first attempt. Any other reply to this attempt is
    judged in `_settle`.
    """
    if not talk.proved and any(call.name not in rights.READING for call in calls):
        try:
            yield from prove(talk)
        except TimeoutqError as error:
            return [error] * len(calls)
    given: Any = None
    began = time.monotonic()
    if len(calls) == 1 and not replicas and calls[0].dated is None and calls[0].expects is None:
        given = yield Send((calls[0].command(),))
        value: Any = given if isinstance(given, BaseException) else given[0]
        if not isinstance(value, BaseException):
            return [calls[0].read(value)]
    results: list[Any] = []
    broken: TimeoutqError | None = None
    for flush in operations.flushes(calls):
        results += yield from _settle(talk, flush, replicas, given, began)
        given, began = None, 0.0
        broken = next((result for result in results if type(result) in (Unavailable, NotReplicated)), None)
        if broken is not None:
            break
    return results + [broken] * (len(calls) - len(results))


def _settle(talk: Talk, calls: Sequence[Call[Any]], replicas: int, given: Any, began: float) -> Flow[list[Any]]:
    began = began or time.monotonic()
    # the bytes of a flush need time on the way, in addition to the time for a reply
    weight = sum(call.weight for call in calls)
    carried = weight / SLOWEST
    unconfirmed: dict[int, Any] = {}
    results: list[Any] = [None] * len(calls)
    open_calls = list(range(len(calls)))
    sent_before = False
    tries = 0
    while True:
        if talk.clock.now_ms == 0 and any(calls[i].dated is not None for i in open_calls):
            yield from _ask_time(talk)
        # no attempt is waited for longer than this; after it, the next attempt asks again. The server refuses a dated
        # call a tenth earlier: so neither the way back nor rounding can let it run when nobody waits for the reply
        left = min(talk.deadline - (time.monotonic() - began), talk.deadline * ATTEMPT)
        age_ms = max(1, int((time.monotonic() - began) * 1000)) if sent_before else 0
        now_ms = talk.clock.now_ms
        if given is not None:
            reply, given = given, None
        else:
            commands = [
                calls[i].command(
                    age_ms,
                    not_after=now_ms + int((left + carried) * 900) if now_ms else 0,
                    expected=talk.clock.expected_ms,
                )
                for i in open_calls
            ]
            if replicas:
                commands.append(("WAIT", replicas, max(1, int(left * 800))))
            reply = yield Send(commands)
        tries += 1
        missing: set[str] = set()
        again: list[int] = []
        if isinstance(reply, BaseException):
            error = reply
            for i in open_calls:
                results[i] = reply
                if calls[i].replayable and not is_hopeless(reply):
                    again.append(i)
            sent_before = True
        else:
            error = None
            confirmed: object = reply.pop() if replicas else 0
            for i, value in zip(open_calls, reply, strict=True):
                if not isinstance(value, BaseException):
                    results[i] = unconfirmed.pop(i, None) or calls[i].read(value)
                    if replicas and not (isinstance(confirmed, int) and confirmed >= replicas):
                        unconfirmed[i] = results[i]
                        results[i] = _not_replicated(talk, confirmed, replicas)
                        again.append(i)
                        sent_before = True
                    continue
                error = results[i] = value
                if is_script_missing(value):
                    missing.add(calls[i].name)
                    again.append(i)
                elif is_transient(value):
                    again.append(i)
        open_calls = again
        if not open_calls:
            break
        elapsed = time.monotonic() - began
        if sent_before and elapsed > RESEND:
            for i in open_calls:
                if is_script_missing(results[i]):
                    results[i] = Unavailable(f"{talk.server.url} took {elapsed:.0f} s; the call is not sent again")
            break
        left = talk.deadline * LAST_START - elapsed
        # a server that answers, but has lost the scripts, gets them at once, even if no time is left for a new attempt;
        # how long heavy calls are on their way is not known beforehand
        in_time = elapsed < talk.deadline * (1 - ATTEMPT) + carried or (weight > SLICE and tries < 3)
        if left < 0.001 and not (missing and in_time):
            break
        if missing:
            loaded = yield Send([("SCRIPT", "LOAD", operations.script(name).text) for name in sorted(missing)])
            if (refusal := refusal_of(loaded)) is not None:
                results = [refusal if is_script_missing(result) else result for result in results]
                break
            if tries < 3:
                continue
        if isinstance(error, Exception) and str(error).startswith("LATE"):
            yield from _ask_time(talk)
        yield Sleep(random.uniform(0, min(0.02 * 2 ** min(tries, 5), 0.5, max(0.0, left))))  # noqa: S311  # jitter, not a secret
    for i in unconfirmed:
        if not isinstance(results[i], NotReplicated):  # the call ran, and the server went away only after that
            results[i] = _not_replicated(talk, results[i], replicas)
    return [talk.server.explain(r) if isinstance(r, BaseException) else r for r in results]


def _not_replicated(talk: Talk, confirmed: object, replicas: int) -> NotReplicated:
    of = f"of {replicas} replica{'' if replicas == 1 else 's'}"
    said = (
        f"none {of} confirmed them: {talk.server.explain(confirmed)}"
        if isinstance(confirmed, BaseException)
        else f"only {confirmed} {of} confirmed them"
    )
    return NotReplicated(
        f"the tasks are in the queue at {talk.server.url}, but {said}; a failover now may lose them: put them again, "
        "they are not added twice"
    )


def _ask_time(talk: Talk) -> Flow[None]:
    asked = time.monotonic()
    reply = yield Send([("TIME",)])
    if isinstance(reply, list):
        _tell_time(talk, cast("Any", reply)[0], asked)


def _tell_time(talk: Talk, moment: Any, asked: float) -> None:
    if isinstance(moment, list | tuple):
        seconds, micros = cast("Any", moment)
        talk.clock.seen(int(seconds) * 1000 + int(micros) // 1000, asked)


def answer(talk: Talk, call: Call[T]) -> Flow[T]:
    """Send one call and give its answer, or raise the error in which the call ended."""
    result = (yield from settle(talk, [call]))[0]
    if isinstance(result, TimeoutqError):
        raise result
    return result  # type: ignore[no-any-return]  # settle() gives what the call reads


CALLS = 16
"""The most calls in one flush of a long batch."""


def answers(talk: Talk, calls: Sequence[Call[Outcome]], replicas: int = 0) -> Flow[Outcome]:
    """Send the calls of a long batch, `CALLS` in a flush, and give all their answers as one; see `settle`."""
    tasks: list[bytes] = []
    codes: list[bytes] = []
    for at in range(0, len(calls), CALLS):
        for result in (yield from settle(talk, calls[at : at + CALLS], replicas)):
            if isinstance(result, TimeoutqError):
                raise result
            if len(calls) == 1:
                return result  # type: ignore[no-any-return]  # settle() gives what the call reads
            tasks.extend(result.tasks)
            codes.append(result.codes)
    return Outcome(tasks, b"".join(codes))


def opening(talk: Talk, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
    """Meet the server: refuse one that evicts, learn its time, write the settings that the caller gave."""
    began = time.monotonic()
    while isinstance(reply := (yield Send([("TIME",), ("INFO", "memory")])), BaseException):
        # a server that was not reached was not checked either: the next call checks it
        if is_hopeless(reply) or time.monotonic() - began > talk.deadline * LAST_START:
            raise talk.server.explain(reply)
        yield Sleep(random.uniform(0, 0.2))  # noqa: S311  # jitter, not a secret
    if isinstance(reply, list):
        moment, memory = cast("Any", reply)
        _tell_time(talk, moment, began)
        policy = eviction_policy(memory)
        if policy not in (None, "noeviction") and not allow_eviction:
            raise UnsafeServer(
                f"{talk.server.url} may throw tasks away: maxmemory-policy is {policy}; run "
                "'CONFIG SET maxmemory-policy noeviction' (and put it into its configuration), "
                "or pass allow_eviction=True to accept the loss"
            )
    if settings:
        yield from configure(talk, settings)


def configure(talk: Talk, settings: Mapping[str, bytes]) -> Flow[None]:
    """Write settings; when the politeness has changed, adapt the tasks that are in the queue."""
    changed = yield from answer(talk, talk.operations.configure(settings))
    if changed == 2:
        yield from convert(talk)


def convert(talk: Talk, calls: int = 0) -> Flow[None]:
    """Bring the tasks in line with the queue's politeness, from where anybody has come to; `calls` as for `repair`."""
    sent = 0
    while (yield from answer(talk, talk.operations.convert())) != b"end":
        sent += 1
        if sent == calls:
            return


def drained(talk: Talk, before_ms: int | None = None) -> Flow[bool]:
    """Say whether the queue is drained; if tasks wait and no host will have a turn, look at each waiting task first."""
    cursor = b"0"
    while True:
        done, cursor = yield from answer(talk, talk.operations.drained(before_ms, cursor))
        if not done or cursor == b"0":
            return done


NAMES, TASKS = b"1 ", b"2 0"
"""A walk of `repair.lua` begins with the names of lanes and locks; where the tasks begin."""


def repair(talk: Talk, *, mend: bool = True, calls: int = 0) -> Flow[tuple[Counter[str], bool]]:
    """Walk through the queue and mend it, or only count what is wrong; `calls` is the limit of calls, 0 for none.

    Gives what was found, by its word in `repair.lua`, and whether the walk reached its end.
    """
    found, cursor, sent = Counter[str](), b"", 0
    while True:
        part = yield from answer(talk, talk.operations.repair(cursor=cursor, mend=mend))
        found.update(part.found)
        cursor, sent = part.cursor, sent + 1
        if sent == calls and cursor.startswith(NAMES):
            cursor, sent = TASKS, 0  # a short walk sees a part of both
        if not cursor or sent == calls:
            return found, not cursor


def wait_drained(talk: Talk, timeout: float | None, drained: Callable[[], Flow[bool]]) -> Flow[bool]:
    """Ask until the queue is drained, or `timeout` seconds are over."""
    until, pause = None if timeout is None else time.monotonic() + timeout, 0.01
    while not (yield from drained()):
        left = pause if until is None else until - time.monotonic()
        if left <= 0:
            return False
        yield Sleep(min(pause, left))
        pause = min(0.5, pause * 1.5)
    return True


def eviction_policy(info: object) -> str | None:
    """Read `maxmemory_policy` from an INFO reply, parsed or not; None if the reply does not tell."""
    if isinstance(info, dict):
        found: Any = cast("Any", info).get("maxmemory_policy")
        return str(found) if found else None
    if isinstance(info, bytes):
        for line in info.splitlines():
            if line.startswith(b"maxmemory_policy:"):
                return line.partition(b":")[2].decode()
    return None


def claim(
    talk: Talk, n: int, timeout_ms: int, max_runtime_ms: int, wait: float, token: bytes | None = None
) -> Flow[list[Lease]]:
    """Claim up to n leases; wait for the first one, until the bell rings, a lease runs out, or a task is due."""
    ops, until = talk.operations, time.monotonic() + wait
    while True:
        asked = time.monotonic()
        found: Claimed = yield from answer(talk, ops.claim(token or talk.nonce(), n, timeout_ms, max_runtime_ms))
        token = None
        talk.clock.seen(found.now_ms, asked)
        found = yield from whole(talk, found)
        if found.leases:
            return found.leases
        pause = BELL_WAIT
        if found.next_ms and found.next_ms <= found.now_ms:
            requeued, promoted = yield from clean(talk)
            if (requeued.moved or promoted.moved) and not found.paused:
                continue
            pause = 0.25
        elif found.next_ms:
            pause = min(pause, (found.next_ms - found.now_ms) / 1000 + 0.001)
        left = until - time.monotonic()
        if left <= 0:
            return []
        reply = yield Bell(min(pause, left))
        if isinstance(reply, BaseException):
            if isinstance(talk.server.explain(reply), AccessDenied):
                raise talk.server.explain(reply)
            yield Sleep(random.uniform(0, 0.2))  # noqa: S311  # jitter, not a secret


def whole(talk: Talk, found: Claimed) -> Flow[Claimed]:
    """Complete the answer to a claim that was sent again: the script looks for its leases in parts of all leases."""
    if found.rest is None:
        return found
    leases = {lease.task: lease for lease in found.leases}
    while found.rest is not None:
        try:
            found = yield from answer(talk, found.rest)
        except TimeoutqError:
            if not leases:
                raise
            break  # leases that are not found run out by themselves
        leases.update((lease.task, lease) for lease in found.leases)
    return replace(found, leases=list(leases.values()), rest=None)


def clean(talk: Talk) -> Flow[tuple[Swept, Swept]]:
    """Do one bounded round of the cleaner; give the tasks that it took back and those that it made ready."""
    ops = talk.operations
    asked = time.monotonic()
    requeued, promoted = yield from settle(talk, [ops.requeue_expired(), ops.promote_due()])
    for swept in (requeued, promoted):
        if isinstance(swept, TimeoutqError):
            raise swept
    talk.clock.swept(requeued.now_ms, asked)
    tell_given_up(ops.name, requeued)
    return requeued, promoted


def tell_given_up(queue: str, swept: Swept) -> None:
    """Warn of the tasks that went to failed because their leases ran out too often."""
    if swept.failed:
        error = "the lease ran out too often"
        told = [(task, f"is given up: {error}", {"error": error}) for task in swept.given_up]
        telling.name_tasks(log, queue, told, {}, swept.failed)


def extend(talk: Talk, leases: Sequence[Lease], timeout_ms: int) -> Flow[tuple[float, Outcome]]:
    """Extend leases; give the deadline and the answers."""
    deadline, codes, tasks = 0.0, b"", list[bytes]()
    for result in (yield from settle(talk, talk.operations.extend(leases, timeout_ms))):
        if isinstance(result, TimeoutqError):
            raise result
        deadline, outcome = result
        codes += outcome.codes
        tasks.extend(outcome.tasks)
    return deadline, Outcome(tasks, codes)


def extend_one(talk: Talk, lease: Lease, timeout_ms: int) -> Flow[Lease]:
    """Extend one lease and give it with its new deadline, or raise `LeaseLost`."""
    deadline, outcome = yield from extend(talk, [lease], timeout_ms)
    if outcome[0] is Answer.MAX_RUNTIME:
        raise LeaseLost(
            f"the lease on {lease.task!r} has reached its max_runtime and is not extended: "
            "raise max_runtime= or make the handler faster",
            task=lease.task,
            holder=lease.holder,
            state="in_progress",
        )
    if outcome[0] is Answer.LOST:
        raise (yield from lost(talk, lease))
    return operations.renew(lease, deadline)


def end_one(talk: Talk, lease: Lease, calls: Sequence[Call[Outcome]]) -> Flow[Answer]:
    """End one lease; raise `LeaseLost` if it is not this token's any more."""
    outcome = yield from answers(talk, calls)
    if outcome[0] is Answer.LOST:
        raise (yield from lost(talk, lease))
    return outcome[0]


def lost(talk: Talk, lease: Lease, ends_ms: float = 0.0) -> Flow[LeaseLost]:
    """Find out who has the task now, for an error that says so; `ends_ms` as for `explain_loss`."""
    info: TaskInfo = yield from answer(talk, talk.operations.inspect(lease.task))
    return explain_loss(talk, lease, info, ends_ms)


SLACK = 0.1
"""Seconds by which the server's clock may be ahead of what a client takes it for."""


def explain_loss(talk: Talk, lease: Lease, info: TaskInfo, ends_ms: float = 0.0) -> LeaseLost:
    """Say why a lease is lost, and what to do about it; `ends_ms` is when its max_runtime ended it, 0 if not known."""
    ago = talk.clock.now_ms / 1000 - lease.deadline
    name, where = f"lease on {lease.task!r}", f"is in {info.state.value}" if info.state else "is in no state"
    if info.holder is not None and info.state is not State.IN_PROGRESS:
        message = (
            f"{name} cannot be used: the task {where} now, though worker {info.holder} still has a lease on it. "
            "Somebody moved the task by hand; timeout= is not the cause"
        )
    elif info.state is None:
        message = f"{name} is gone: the task was forgotten, purged, or done and not kept"
    else:
        if info.holder is not None:
            again = info.holder == lease.holder
            has = (
                f"the same worker, {info.holder}, has claimed it again" if again else f"worker {info.holder} has it now"
            )
        elif info.state is State.DONE:
            has = "another worker has finished the task"
        else:
            has = f"the task {where} now"
        cure = "raise timeout=, extend while you work, or make the handler idempotent"
        over = talk.clock.now_ms - ends_ms if ends_ms else -1.0
        if over >= 0:
            message = (
                f"{name} ended {over / 1000:.1f} s ago with its max_runtime, which nothing extends, and {has}: "
                "raise max_runtime=, or find what kept the handler from ending (a blocking call in an `async def`?)"
            )
        elif lease.deadline == math.inf:  # a command was given only the token
            message = f"{name} is lost and {has}: if it ran out, {cure}"
        elif ago > -SLACK:
            message = f"{name} ran out {max(0.0, ago):.1f} s ago and {has}: {cure}"
        else:
            has = "the task is done" if info.state is State.DONE else has
            message = (
                f"{name} was revoked before its time was over and {has}: timeout= is not the cause. Was the lease "
                "ended before, the task moved by hand, or the claim lost in a failover?"
            )
    return LeaseLost(message, task=lease.task, holder=info.holder, state=info.state)


def ack_put(
    talk: Talk, lease: Lease, ids: Sequence[bytes], payloads: Bodies, again_ms: int = -1, payload: bytes | None = None
) -> Flow[Answer]:
    """Ack one lease and put the tasks that it found (as `arguments.tasks` gave them) in one atomic step.

    Tasks beyond 499, or beyond 1 MiB of payloads, are put before the ack, never after it. After a crash between the two
    steps, these tasks are in the queue and the lease is not acked: the handler runs again, and nothing is lost.
    """
    fits = operations.fitting(ids, payloads)
    if fits < len(ids):
        bodies = {i - fits: body for i, body in payloads.items() if i >= fits}
        yield from answers(talk, talk.operations.put_checked(ids[fits:], bodies, talk.nonce))
        payloads = {i: body for i, body in payloads.items() if i < fits}
    call = talk.operations.ack_put(lease, ids[:fits], payloads, again_ms, payload)
    return (yield from end_one(talk, lease, [call]))


def exists(talk: Talk) -> Flow[bool]:
    """Say whether anything was put to the queue or set for it, even if a foreign hand has deleted its settings."""
    key = talk.operations.key
    schema, states = yield from ask(
        talk, [("HEXISTS", key("meta"), "schema"), ("EXISTS", *(key(state.value) for state in State))]
    )
    return bool(schema) or int(states) > 0


def retry_failed(talk: Talk, tasks: tuple[Tasks, ...], *, all: bool = False) -> Flow[int]:
    """Make failed tasks ready again: those named, or all."""
    if arguments.flag(all, "all"):
        if tasks:
            raise InvalidInput("retry_failed() takes tasks or all=True, not both")
    elif not tasks:
        raise InvalidInput("retry_failed() was given no tasks: pass all=True to retry all failed tasks")
    else:
        return (yield from answers(talk, talk.operations.retry_failed(tasks))).ok
    moved = 0
    while True:
        found = yield from answer(talk, talk.operations.retry_any())
        moved += found
        if found < BATCH:
            return moved


def purge(talk: Talk) -> Flow[None]:
    """Remove the queue with all its keys."""
    while not (yield from answer(talk, talk.operations.purge())):
        pass
    # lanes and locks that a foreign hand has made unknown to all other keys are found by their names only
    prefix, cursor = talk.operations.key("").encode(), b"0"
    while True:
        reply = yield Send([("SCAN", cursor, "MATCH", prefix + b"*", "COUNT", 2 * BATCH)])
        if isinstance(reply, BaseException) or isinstance(page := reply[0], BaseException):
            return  # the queue is gone; a user who may not scan leaves what a foreign hand has left
        cursor = page[0] if isinstance(page[0], bytes) else str(page[0]).encode()
        names = [key[len(prefix) :] for key in page[1]]
        strays = [name for name in names if name.startswith((b"host:", b"lock:"))]
        for at in range(0, len(strays), BATCH):
            yield from answer(talk, talk.operations.purge(strays[at : at + BATCH]))
        if cursor == b"0":
            return


def ask(talk: Talk, commands: Sequence[Command]) -> Flow[list[Any]]:
    """Send plain reading commands; raise the first error among the replies."""
    began = time.monotonic()
    while True:
        reply: Any = yield Send(commands)
        errors = [reply] if isinstance(reply, BaseException) else [r for r in reply if isinstance(r, BaseException)]
        if not errors:
            return list(cast("Any", reply))
        hopeless = is_hopeless(errors[0]) or not (isinstance(reply, BaseException) or is_transient(errors[0]))
        if hopeless or time.monotonic() - began > talk.deadline * LAST_START:
            raise talk.server.explain(errors[0])
        yield Sleep(random.uniform(0, 0.2))  # noqa: S311  # jitter, not a secret


def page(talk: Talk, state: str, cursor: str | None, n: int) -> Flow[tuple[list[Entry], str | None]]:
    """Read a page of a state: sets by SSCAN, states with times in the order of these times."""
    key = talk.operations.key
    if state in ("scheduled", "in_progress"):
        start = int(cursor or 0)
        source = key("scheduled" if state == "scheduled" else "leases")
        (pairs,) = yield from ask(talk, [("ZRANGE", source, start, start + n - 1, "WITHSCORES")])
        flat: list[Any] = (
            [word for pair in pairs for word in pair] if pairs and isinstance(pairs[0], list | tuple) else pairs
        )
        ids, scores = flat[::2], flat[1::2]
        tokens: list[Any] = [None] * len(ids)
        counts = list(tokens)
        if ids:
            asked: list[Command] = [("HMGET", key("releases"), *ids)]
            if state == "in_progress":
                asked.append(("HMGET", key("owners"), *ids))
            counts, *held = yield from ask(talk, asked)
            tokens = held[0] if held else tokens
        found = [
            operations.read_entry(id, at=score, token=token, releases=count)
            for id, score, token, count in zip(ids, scores, tokens, counts, strict=True)
        ]
        return found, str(start + n) if len(ids) == n else None
    (reply,) = yield from ask(talk, [("SSCAN", key(state), cursor or "0", "COUNT", n)])
    following, ids = reply
    if state == "failed" and ids:
        found = yield from _failed(talk, ids)
    else:
        found = [operations.read_entry(id) for id in ids]
    after = following.decode() if isinstance(following, bytes) else str(following)
    return found, None if after == "0" else after


START: str | None = "0"
"""The cursor with which a walk begins; None ends it."""


def entries(talk: Talk, state: str, cursor: str) -> Flow[tuple[list[Entry], str | None]]:
    """Read some entries of a state in no order; an entry that stays in the state is not missed, whatever else moves."""
    if state not in ("scheduled", "in_progress"):
        return (yield from page(talk, state, cursor, BATCH))
    key = talk.operations.key
    source = key("scheduled" if state == "scheduled" else "leases")
    (reply,) = yield from ask(talk, [("ZSCAN", source, cursor, "COUNT", BATCH)])
    following, found = reply
    pairs = _pairs_of(found)
    tokens: list[Any] = [None] * len(pairs)
    if state == "in_progress" and pairs:
        (tokens,) = yield from ask(talk, [("HMGET", key("owners"), *(id for id, _ in pairs))])
    read = [operations.read_entry(id, at=score, token=token) for (id, score), token in zip(pairs, tokens, strict=True)]
    return read, _following(following)


def host_rows(talk: Talk, cursor: str) -> Flow[tuple[list[HostInfo] | None, str | None]]:
    """Read some hosts in no order; no host is missed while turns move. None on a queue that is not polite."""
    (reply,) = yield from ask(talk, [("ZSCAN", talk.operations.key("hosts"), cursor, "COUNT", 100)])
    following, found = reply
    rows: list[HostInfo] = []
    names = [name for name, _ in _pairs_of(found)]
    for at in range(0, len(names), 16):
        for row in (yield from settle(talk, [talk.operations.host(name) for name in names[at : at + 16]])):
            if isinstance(row, TimeoutqError):
                raise row
            if row is None:
                return None, None
            rows.append(row)
    return rows, _following(following)


def _pairs_of(found: Any) -> list[tuple[Any, Any]]:
    # RESP3 gives pairs, RESP2 a flat list
    if found and isinstance(found[0], list | tuple):
        return [(member, score) for member, score in found]
    return list(zip(found[::2], found[1::2], strict=True))


def _following(cursor: Any) -> str | None:
    after = cursor.decode() if isinstance(cursor, bytes) else str(cursor)
    return None if after == "0" else after


def _failed(talk: Talk, ids: Sequence[bytes]) -> Flow[list[Entry]]:
    key = talk.operations.key
    kept: list[Command] = [("HMGET", key(what), *ids) for what in ("errors", "releases", "traces")]
    lines, counts, digests = yield from ask(talk, kept)
    # many tasks have failed in the same place: their common traceback is fetched once
    wanted = list({digest for digest in digests if digest})
    texts: dict[Any, bytes | None] = {}
    if wanted:
        (found,) = yield from ask(talk, [("HMGET", key("trace_texts"), *wanted)])
        texts = dict(zip(wanted, found, strict=True))
    return [
        operations.read_entry(id, error=line, releases=count, trace=texts.get(digest))
        for id, line, count, digest in zip(ids, lines, counts, digests, strict=True)
    ]


def is_final(error: TimeoutqError) -> bool:
    """Say whether waiting cannot mend the error. A worker that has reached its server once waits even then."""
    return isinstance(error, AccessDenied | InvalidInput | NotRedis | SchemaMismatch | UnsafeServer)
