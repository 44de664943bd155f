"""Calls that take more than one exchange with the server: opening, claims that wait, purges. No I/O."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from timeoutq.server.calls import BATCH, Call, Command, fitting
from timeoutq.server.deadlines import ATTEMPT
from timeoutq.server.troubles import IS_SHARDED, is_sharded
from timeoutq.verbs import confirming
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.replies import Claimed, Plan, Swept
from timeoutq.verbs.sending import (
    BELL_WAIT,
    Alarm,
    Bell,
    Flow,
    Send,
    Sleep,
    Talk,
    a_moment,
    answer,
    answers,
    ask,
    count_replicas,
    insist,
    joined,
    once,
    prove,
    settled,
    tell_time,
)
from timeoutq.words import telling
from timeoutq.words.arguments import TaskList
from timeoutq.words.errors import (
    AccessDenied,
    InvalidInput,
    LeaseLost,
    NotRedis,
    NotReplicated,
    SchemaMismatch,
    TimeoutqError,
    UnsafeServer,
)
from timeoutq.words.model import CANCELLED, EXPIRED, Answer, Lease, Outcome, State, TaskInfo, raw

log = logging.getLogger(__name__)


def opening(talk: Talk, settings: Mapping[str, bytes], allow_eviction: bool) -> Flow[None]:
    """Meet the server: refuse one that evicts, learn its time, read and write settings of the queue."""
    began, meta = time.monotonic(), talk.operations.key("meta")
    asked = [("TIME",), ("INFO", "memory"), ("HGET", meta, "schema"), confirming.look(talk.operations)]
    moment, memory, schema, kept = yield from insist(talk, Send(asked, talk.at))
    tell_time(talk, moment, began)
    if isinstance(schema, bytes) and schema.startswith(b"s"):
        raise InvalidInput(f"{talk.operations.name}: {IS_SHARDED}")
    talk.durable.read(kept, time.monotonic())
    policy = eviction_policy(memory)
    if policy not in (None, "noeviction") and not allow_eviction:
        raise UnsafeServer(
            f"{talk.server.url} may throw tasks away: maxmemory-policy is {policy}; run "
            "'CONFIG SET maxmemory-policy noeviction' (and put it into its configuration), "
            "or, in Python, pass allow_eviction=True to Queue or AsyncQueue to accept the loss; an App and the "
            "commands have no such option"
        )
    # a queue that is durable already is opened also while its replicas are away
    new = {name: value for name, value in settings.items() if name != "durable" or int(value) != talk.durable.replicas}
    if new:
        yield from configure(talk, new)
    talk.settings = {f"{name.removesuffix('?')}?": value for name, value in settings.items()}


def configure(talk: Talk, settings: Mapping[str, bytes], converts: int = 0) -> Flow[None]:
    """Write settings; when the politeness has changed, adapt the tasks that are in the queue, `converts` parts at most.

    Raises `NotReplicated`, before anything is written, if `durable` asks for more replicas than there are.
    """
    wanted = int(settings.get("durable", 0))
    if wanted:
        yield from find_replicas(talk, wanted)
    elif settings.keys() & {"politeness", "politeness?"} and "durable" not in settings:
        # hosts must not be visited more often after a failover than the caller was told
        talk.durable.read((yield from ask(talk, [confirming.look(talk.operations)]))[0], time.monotonic())
        wanted = talk.durable.replicas
    changed = yield from answer(talk, talk.operations.configure(settings), wanted)
    if "durable" in settings:
        talk.durable.learn(wanted, time.monotonic())
    if changed == 2:
        yield from convert(talk, converts)


def find_replicas(talk: Talk, wanted: int) -> Flow[None]:
    """Raise `NotReplicated` if the server lacks the replicas with which the queue would be durable; write nothing."""
    name, url = talk.operations.name, talk.server.url
    connected = yield from count_replicas(talk)
    if connected is not None and connected < wanted:
        found = confirming.too_few(connected, name)
    else:
        (confirmed,) = yield from ask(talk, [("WAIT", wanted, max(1, int(talk.deadline * ATTEMPT * 800)))])
        if confirmed >= wanted:
            return
        found = f"{confirming.told(confirmed, wanted)}: is a replica far behind, or is it still being filled?"
    raise NotReplicated(f"queue {name} cannot be durable={wanted} on {url}, and nothing was written: {found}")


CONVERTS = 20  # how many parts of an unfinished conversion one prune does; a part is 250 tasks


def convert(talk: Talk, calls: int = 0) -> Flow[None]:
    """Adapt the tasks to the queue's politeness, from where the last client stopped; `calls` as for `repair`."""
    sent = 0
    while (yield from answer(talk, talk.operations.convert())) != b"end":
        sent += 1
        if sent == calls:
            return


def drained(talk: Talk, before_ms: int | None = None) -> Flow[bool]:
    """Say whether the queue is drained; if tasks wait and no host will have a turn, look at each waiting task first."""
    cursor = b"0"
    while True:
        done, cursor, _ = yield from answer(talk, talk.operations.drained(before_ms, cursor))
        if not done or cursor == b"0":
            return done


def repair(talk: Talk, *, mend: bool = True, calls: int = 0) -> Flow[tuple[Counter[str], bool]]:
    """Walk through the queue and mend it, or only count what is wrong; `calls` is the limit of calls, 0 for none."""
    found, cursor, sent = Counter[str](), b"", 0
    while True:
        part = yield from answer(talk, talk.operations.repair(cursor=cursor, mend=mend))
        found.update(part.found)
        cursor, sent = part.cursor, sent + 1
        if not cursor or sent == calls:
            return found, not cursor


def wait_drained(drained: Callable[[], Flow[bool]], timeout: float | None) -> Flow[bool]:
    """Ask again and again until the queue is drained, or `timeout` seconds are over; `drained` makes the flow."""
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
    if isinstance(info, bytes):
        line = re.search(rb"^maxmemory_policy:(\S+)", info, re.MULTILINE)
        return line[1].decode() if line else None
    return cast("dict[str, str]", info).get("maxmemory_policy") if isinstance(info, dict) else None


def claim(
    talk: Talk, n: int, timeout_ms: int, max_runtime_ms: int, wait: float, nonce: Callable[[], bytes]
) -> Flow[list[Lease]]:
    """Claim up to n leases; wait for the first one. `nonce` makes the token of each call."""
    if not talk.proved:
        yield from prove(talk)  # before there is a token: until then, nothing can have been claimed
    until = time.monotonic() + wait
    found: Claimed | None = None

    def make() -> Call[Claimed]:
        return talk.operations.claim(nonce(), n, timeout_ms, max_runtime_ms)

    call = make()
    while True:
        found = yield from whole(talk, (yield from _claim_now(talk, call)) if found is None else found)
        if found.leases:
            return found.leases
        pause = BELL_WAIT
        if found.next_ms and found.next_ms <= found.now_ms:
            requeued, promoted = yield from clean(talk)
            if (requeued.moved or promoted.moved) and not found.paused:
                found, call = None, make()
                continue
            pause = 0.25
        elif found.next_ms:
            pause = min(pause, (found.next_ms - found.now_ms) / 1000)
        left = until - time.monotonic()
        if left <= 0:
            return []
        asked, call = time.monotonic(), make()
        try:
            found = yield from hear_bell(talk, min(pause, left), call)
        except AccessDenied:
            raise
        except TimeoutqError:
            yield a_moment()
            # the claim may have run: sent again, it gives what it took
            found, call = None, replace(call, sent_ms=int((time.monotonic() - asked) * 1000) + 1)


def _claim_now(talk: Talk, call: Call[Claimed]) -> Flow[Claimed]:
    asked = time.monotonic()
    try:
        found = yield from answer(talk, call)
    except NotReplicated:
        nothing_more = replace(call, args=(0, *call.args[1:]))
        with suppress(TimeoutqError):  # leases that cannot be given back run out by themselves
            yield from give_back(talk, nothing_more, int((time.monotonic() - asked) * 1000) + 1)
        raise
    talk.clock.seen(found.now_ms, asked)
    return found


def hear_bell(talk: Talk, seconds: float, call: Call[Claimed] | None = None) -> Flow[Claimed | None]:
    """Wait for a stroke of the bell, at most `seconds`; the server carries out the claim `call` as soon as it rings.

    Gives what the claim brought; None without a claim, when the server refused it, and when its leases had to be given
    back. Raises if the bell cannot be heard: then the claim may have run, or not.
    """
    then: list[Command] = []
    # on a durable queue, replicas must confirm a claim: a flush with a wait for the bell cannot wait for them
    if call is not None and talk.clock.now_ms and not talk.durable.replicas:
        # the claim runs when the wait is over, at the latest; nobody waits much longer for its reply
        not_after = talk.clock.now_ms + int((seconds + talk.deadline * ATTEMPT) * 1000)
        then = [call.command(not_after=not_after)]
    heard = yield from once(talk, Bell(talk.operations.key("bell"), seconds, talk.at, then))
    if call is None or not then:
        return None
    rang, reply = heard
    found = None if isinstance(reply, BaseException) else call.read(reply)
    if found is None or not found.leases:
        if isinstance(rang, BaseException):
            raise talk.server.explain(rang)
        return found
    # a reply that waited for a client that hung brings leases that run out soon, or have run out
    half_ms = (found.now_ms + found.leases[0].deadline * 1000) / 2
    if talk.durable.replicas or talk.clock.now_ms > half_ms:
        yield from answers(talk, talk.operations.release(found.leases), UNCONFIRMED)
        return None
    return found


def hear_stroke(talk: Talk, seconds: float, has_room: Callable[[], bool]) -> Flow[None]:
    """Wait for a stroke of the bell, at most `seconds`; pass the stroke on if then there is no room for a task."""
    key = talk.operations.key("bell")
    heard = yield from once(talk, Bell(key, seconds, talk.at))
    if heard is not None and heard[0] is not None and not has_room():
        yield Send([("RPUSH", key, "1")], talk.at)


def newest_alarm(talk: Talk) -> Flow[bytes]:
    """Give the id of the newest sound of the alarm; `0-0` if the alarm was never sounded. Asks only once."""
    asked = ("XREVRANGE", talk.operations.key("alarm"), "+", "-", "COUNT", 1)
    (newest,) = yield from once(talk, Send([asked], talk.at))
    return cast("bytes", newest[0][0]) if isinstance(newest, list) and newest else b"0-0"


def hear_alarm(talk: Talk, last: bytes, seconds: float) -> Flow[bytes]:
    """Wait for the next sound of the alarm after `last`, at most `seconds`; give the id of the newest sound."""
    return cast("bytes", (yield from once(talk, Alarm(talk.operations.key("alarm"), last, seconds, talk.at))))


def cancelled(talk: Talk, leases: Sequence[Lease]) -> Flow[list[Lease]]:
    """Give those of the leases whose tasks somebody has cancelled."""
    found: list[Lease] = []
    key = talk.operations.key("cancels")
    for at in range(0, len(leases), BATCH):
        part = leases[at : at + BATCH]
        (by,) = yield from ask(talk, [("HMGET", key, *(raw(lease.task) for lease in part))])
        found += (lease for lease, who in zip(part, by, strict=True) if who is not None)
    return found


def whole(talk: Talk, found: Claimed) -> Flow[Claimed]:
    """Complete the answer to a claim that was sent again: each call looks for its leases in a part of all leases."""
    if found.rest is None:
        return found
    leases = {lease.task: lease for lease in found.leases}
    while found.rest is not None:
        try:
            found = yield from answer(talk, found.rest)
        except TimeoutqError:
            if not leases:
                raise
            break  # leases that were not found run out by themselves
        leases.update((lease.task, lease) for lease in found.leases)
    return replace(found, leases=list(leases.values()), rest=None)


def give_back(talk: Talk, claim: Call[Claimed], age_ms: int) -> Flow[int]:
    """Release what a claim took that was sent `age_ms` ago, and whose reply nobody read; say how many leases.

    `claim` asks for no tasks.
    """
    (reply,) = yield from once(talk, Send([claim.command(age_ms)], talk.at))
    if isinstance(reply, BaseException):
        raise talk.server.explain(reply)
    leases = (yield from whole(talk, claim.read(reply))).leases
    if leases:
        yield from answers(talk, talk.operations.release(leases), UNCONFIRMED)
    return len(leases)


def give_back_unread(talk: Talk, token: bytes, timeout_ms: int, max_runtime_ms: int) -> Flow[int]:
    """Release what the claim with this token took, which may have stood behind a wait for the bell; say how many."""
    call = talk.operations.claim(token, 0, timeout_ms, max_runtime_ms)
    return give_back(talk, call, int((BELL_WAIT + talk.deadline) * 1000))


def clean(talk: Talk, more: Sequence[Call[Any]] = ()) -> Flow[tuple[Any, ...]]:
    """Do one bounded round of the cleaner; give the tasks that it took back, those that it made ready, and more."""
    ops, asked = talk.operations, time.monotonic()
    promoted, requeued, *rest = yield from settled(talk, [ops.promote_due(), ops.requeue_expired(), *more])
    talk.clock.swept(requeued.now_ms, asked)
    tell_given_up(ops.name, requeued)
    return requeued, promoted, *rest


def clean_and_plan(talk: Talk, longest_ms: int) -> Flow[tuple[Swept, Swept, Plan]]:
    """Do one round of the cleaner, and ask in the same exchange when the next one is due, `longest_ms` at most."""
    requeued, promoted, plan = yield from clean(talk, [talk.operations.plan(longest_ms)])
    return requeued, promoted, plan


def requeue_expired(talk: Talk, n: int) -> Flow[int]:
    """Take back up to `n` tasks whose lease ran out; give their number."""
    asked = time.monotonic()
    swept = yield from answer(talk, talk.operations.requeue_expired(n))
    talk.clock.swept(swept.now_ms, asked)
    tell_given_up(talk.operations.name, swept)
    return swept.moved


def promote_due(talk: Talk, n: int) -> Flow[int]:
    """Make up to `n` scheduled tasks ready that are due; give their number."""
    asked = time.monotonic()
    swept = yield from answer(talk, talk.operations.promote_due(n))
    talk.clock.seen(swept.now_ms, asked)
    return swept.moved


def prune(talk: Talk, n: int) -> Flow[int]:
    """Drop up to `n` done tasks, go on with a conversion that was left unfinished, and do a part of the repair."""
    found = yield from answer(talk, talk.operations.prune(n))
    if found.converting:
        yield from convert(talk, calls=CONVERTS)
    yield from answer(talk, talk.operations.repair())
    return found.pruned


def tell_given_up(queue: str, swept: Swept) -> None:
    """Warn of the tasks that went to failed because their leases ran out too often."""
    if swept.failed:
        error = "the lease ran out too often"
        told = [(task, f"is given up: {error}", {"error": error}) for task in swept.given_up]
        telling.name_tasks(log, queue, told, {}, swept.failed)


def extend(talk: Talk, leases: Sequence[Lease], timeout_ms: int, replicas: int = 0) -> Flow[tuple[float, Outcome]]:
    """Extend leases; give the deadline and the answers. `replicas` is as for `settle`."""
    found = yield from settled(talk, talk.operations.extend(leases, timeout_ms), replicas)
    return found[-1][0] if found else 0.0, joined([outcome for _, outcome in found])


def extend_many(talk: Talk, leases: Sequence[Lease], timeout_ms: int, replicas: int = 0) -> Flow[Outcome]:
    """Extend leases; give the answers. `replicas` is as for `settle`."""
    return (yield from extend(talk, leases, timeout_ms, replicas))[1]


def extend_one(talk: Talk, lease: Lease, timeout_ms: int) -> Flow[Lease]:
    """Extend one lease and give it with its new deadline, or raise `LeaseLost`."""
    deadline, outcome = yield from extend(talk, [lease], timeout_ms)
    ended = {
        Answer.MAX_RUNTIME: f"the lease on {lease.task!r} has reached its max_runtime and is not extended: "
        "raise max_runtime= or make the handler faster",
        Answer.CANCELLED: f"{lease.task!r} was cancelled: stop working on it, and end its lease (release)",
    }.get(outcome[0])
    if ended is not None:
        raise LeaseLost(ended, task=lease.task, holder=lease.holder, state="in_progress")
    if outcome[0] is Answer.LOST:
        raise (yield from lost(talk, lease))
    return replace(lease, deadline=deadline)


def end_one(talk: Talk, lease: Lease, calls: Sequence[Call[Outcome]]) -> Flow[Answer]:
    """End one lease; raise `LeaseLost` if it is not this token's any more."""
    outcome = yield from answers(talk, calls)
    if outcome[0] is Answer.LOST:
        raise (yield from lost(talk, lease))
    return outcome[0]


SLACK = 0.1  # seconds by which the server's clock may be ahead of the time that a client expects


def lost(talk: Talk, lease: Lease, ends_ms: float = 0.0) -> Flow[LeaseLost]:
    """Find out who has the task of a lost lease, and give the error that says so, and the cure.

    `ends_ms` is when max_runtime ended the lease, 0 if that is not known.
    """
    info: TaskInfo = yield from answer(talk, talk.operations.inspect(lease.task))
    now_ms = talk.clock.now_ms
    ago = now_ms / 1000 - lease.deadline
    name, where = f"lease on {lease.task!r}", f"is in {info.state.value}" if info.state else "is in no state"
    if info.state is State.DONE:
        has = "another worker has finished the task"
    elif info.holder is None:
        has = f"the task {where} now"
    elif info.holder == lease.holder:
        has = f"the same worker, {info.holder}, has claimed it again"
    else:
        has = f"worker {info.holder} has it now"
    cure = "raise timeout=, extend while you work, or make the handler idempotent"
    if info.holder is not None and info.state is not State.IN_PROGRESS:
        message = (
            f"{name} cannot be used: the task {where} now, though worker {info.holder} still has a lease on it. "
            "Somebody moved the task by hand; timeout= is not the cause"
        )
    elif info.state is None:
        message = f"{name} is gone: the task was forgotten, purged, or done and not kept"
    elif ends_ms and now_ms >= ends_ms:
        message = (
            f"{name} ended {(now_ms - ends_ms) / 1000:.1f} s ago with its max_runtime, which nothing extends, and "
            f"{has}: raise max_runtime=, or find what kept the handler from ending (a blocking call in an `async def`?)"
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
    talk: Talk, lease: Lease, found: TaskList, again_ms: int = -1, payload: bytes | None = None
) -> Flow[Answer]:
    """Ack one lease and put the tasks that it found in one atomic step."""
    fits = fitting(found.ids, found.payloads)
    puts, call = talk.operations.ack_in_parts(lease, found, fits, talk.nonce, again_ms, payload)
    if puts:
        yield from answers(talk, puts)
    return (yield from end_one(talk, lease, [call]))


def retried(retrial: Flow[Outcome]) -> Flow[int]:
    """Make failed tasks ready again that were named; give their number."""
    return (yield from retrial).ok


def retry_all(talk: Talk) -> Flow[int]:
    """Make all failed tasks ready again; give their number."""
    moved = 0
    while True:
        found = yield from answer(talk, talk.operations.retry_any(talk.nonce))
        moved += found
        if found < BATCH:
            return moved


LEFT = {"cancelled": CANCELLED.encode(), "expired": EXPIRED.encode()}
"""How the errors begin of failed tasks that nobody retries together with all others unless asked, by the option."""


def retry_but(talk: Talk, left: Sequence[str]) -> Flow[int]:
    """Make all failed tasks ready again but those with an error of these names of `LEFT`; give their number."""
    moved, cursor, key = 0, b"0", talk.operations.key("failed")
    while True:
        ((cursor, ids),) = yield from ask(talk, [("SSCAN", key, cursor, "COUNT", BATCH)])
        if wanted := (yield from without(talk, ids, left)):
            moved += (yield from answers(talk, talk.operations.retry_failed((wanted,), talk.nonce))).ok
        if int(cursor) == 0:
            return moved


def without(talk: Talk, ids: list[bytes], left: Sequence[str]) -> Flow[list[bytes]]:
    """Give the ids of these failed tasks but those with an error of these names of `LEFT`."""
    if not ids:
        return []
    (errors,) = yield from ask(talk, [("HMGET", talk.operations.key("errors"), *ids)])
    out = tuple(LEFT[name] for name in left)
    return [id for id, error in zip(ids, errors, strict=True) if not (error or b"").partition(b" ")[2].startswith(out)]


def purge(talk: Talk) -> Flow[None]:
    """Remove the queue with all its keys."""
    while not (yield from answer(talk, talk.operations.purge())):
        pass
    # results, the tasks of batches, and lanes and locks whose other traces somebody has deleted are found by name
    prefix, cursor = talk.operations.key("").encode(), b"0"
    while True:
        reply = yield Send([("SCAN", cursor, "MATCH", prefix + b"*", "COUNT", 2 * BATCH)], talk.at)
        if isinstance(reply, BaseException) or isinstance(page := reply[0], BaseException):
            return  # the queue itself is gone; a user who may not SCAN leaves such lanes and locks behind
        cursor, keys = page
        strays = [name for key in keys if (name := key[len(prefix) :]).startswith(STRAYS)]
        for at in range(0, len(strays), BATCH):
            yield from answer(talk, talk.operations.purge(strays[at : at + BATCH]))
        if int(cursor) == 0:
            return


STRAYS = (b"host:", b"lock:", b"seen:", b"result:", b"record:", b"answers:", b"batch:")
"""How the names of keys begin that a purge finds one by one."""


def is_final(error: TimeoutqError, *, met: bool = False) -> bool:
    """Say whether waiting cannot mend the error."""
    final = isinstance(error, AccessDenied | InvalidInput | NotRedis | SchemaMismatch | UnsafeServer)
    return final and (not met or is_sharded(error))
