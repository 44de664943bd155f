"""Forbids each command, and clobbers each key, of each verb in turn, or fills the server: nothing accepted is lost."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis

from tests.rig import fingerprints
from tests.rig.invariants import STATES, a_minute_later, check_keys
from tests.rig.servers import redis_server
from timeoutq import Lease, Politeness, Queue, Task
from timeoutq.rooms import failures
from timeoutq.rooms.batches import Joined, On, Sealed, restore_batch
from timeoutq.rooms.hosts import restore_hosts
from timeoutq.rooms.schedules import definition as of_schedules
from timeoutq.rooms.schedules.definition import Definition
from timeoutq.rooms.schedules.timing import Timing
from timeoutq.server import scripts
from timeoutq.server.calls import Call, Kept
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.scripts import SIZES
from timeoutq.verbs import flows, sending
from timeoutq.verbs.operations import Operations
from timeoutq.watch import doctor
from timeoutq.words.durations import Delta
from timeoutq.words.errors import InvalidInput, ServerFull, TimeoutqError
from timeoutq.words.model import HostRecord, Record, State

A, B = "http://a.example/", "http://b.example/"
RULES = {"plain": None, **dict.fromkeys(("polite", "ranked", "rude", "compact", "logged"), Politeness(0, 1))}
"""The queues on which each verb is called; on a ranked one, tasks have priorities, and one is to run once more; a
rude one was ranked before, and is polite no longer; a compact one keeps fingerprints of its done tasks; a logged one
has an event log."""
USER = "half"

RECORDS = [
    Record(b"new", State.SCHEDULED, due=2e9, payload=1),
    Record(b"old", State.DONE),
    Record(b"bad", State.FAILED, error="x"),
]
RANKED = [Record(f"{A}{n}".encode(), State.TODOS, priority=n) for n in range(2, 5)]

HOSTS = [
    HostRecord(b"a.example", 5.0, 1, 9, 3, 2, 4e9, banned="asked"),
    HostRecord(b"b.example", blocked_until=4e9, blocked_by="me"),
    HostRecord(b"new.example", visits=3),
]

WAITS = 253_370_764_800
"""When the callback of a batch is due that has not ended, Unix seconds."""

TICKS = Definition(Timing(), b"ticked", b"1")
"""The task that the schedule of the verb `tick` puts."""

Verb = Callable[[Queue, list[Lease]], object]


def asks(build: Callable[[Operations, list[Lease]], Any]) -> Verb:
    """Give a verb that makes calls for which the faces have no method, or not with these words."""

    def verb(queue: Queue, held: list[Lease]) -> object:
        calls = build(queue.operations, held)
        if isinstance(calls, Call):
            return queue.run(sending.answer(queue.talk, calls))
        return queue.run(sending.answers(queue.talk, calls))

    return verb


def each(held: list[Lease], value: Any) -> dict[int, Any]:
    return dict.fromkeys(range(len(held)), value)


KIND = b"ValueError: no"
VERBS: dict[str, tuple[str, Verb]] = {
    "put": ("put", lambda q, _: q.put({"new": {"n": 1}, f"{A}new": {"n": 2}, f"{B}1": None})),
    "put with priorities": ("put", lambda q, _: q.put(f"{A}new", f"{B}new", priority=3)),
    "put again": ("put", lambda q, _: q.put("fails", "ends", f"{A}ends", again=True)),
    "put with a group": ("put", lambda q, _: q.put("new", f"{A}new", group="b.example")),
    "raise": ("put", lambda q, _: q.put(Task(f"{A}1", {"n": 2}, priority=9), Task(f"{A}due", priority=9))),
    "improve": ("put", lambda q, _: q.put(f"{A}ends", f"{A}0", f"{A}1", f"{A}2", f"{B}0", priority=9, improve=True)),
    "put with rerun": (
        "put",
        lambda q, held: q.put([Task(task, 9) for task in (held[0].task, "ends", f"{A}0", "later", "new")], rerun=True),
    ),
    "put what is there": ("put", lambda q, _: q.put("fails", "ends", f"{A}0", "later")),
    "schedule": ("schedule", lambda q, _: q.schedule("new", "fails", "ends", after=60, again=True)),
    "schedule for a host": (
        "schedule",
        lambda q, _: q.schedule("new", f"{A}new", f"{A}due", "later", after=60, group="b.example"),
    ),
    "put into a batch": (
        "put",
        lambda q, _: q.batches.put("batch", {"new": {"n": 1}, "later": None, "ends": None, f"{A}0": None}),
    ),
    "schedule into a batch": ("schedule", lambda q, _: q.batches.put("batch", "new", "later", after=60)),
    "seal": ("seal_batch", lambda q, _: q.batches.seal("batch", Task("after", {"n": 1}))),
    "seal one that has ended": ("seal_batch", lambda q, _: q.batches.seal("batch", "after", on="done")),
    "forget a batch": ("seal_batch", lambda q, _: q.batches.forget("batch")),
    "ack the last of a batch": ("ack", lambda q, held: q.ack(held)),
    "give up the last of a batch": ("fail", lambda q, held: q.fail(held, "no", give_up=True)),
    "forget the last of a batch": ("forget", lambda q, held: q.forget(*(lease.task for lease in held))),
    "claim": ("claim", lambda q, _: q.claim(3, timeout=60, max_runtime=90)),
    "extend": ("extend", lambda q, held: q.extend(held)),
    "ack": ("ack", lambda q, held: q.ack(held)),
    "ack and put": ("ack", lambda q, held: q.ack(held[0], put={"new": {"n": 1}, f"{A}new": None})),
    "ack and improve": (
        "ack",
        lambda q, held: q.ack(held[0], put=[Task(task, priority=8, improve=True) for task in (held[0].task, f"{A}9")]),
    ),
    "ack and rerun": (
        "ack",
        lambda q, held: q.ack(
            held[0], put=[Task(task, {"n": 9}, rerun=True) for task in (held[0].task, held[1].task, "ends", "new")]
        ),
    ),
    "ack and put itself": ("ack", lambda q, held: q.ack(held[0], put=held[0].task)),
    "ack for a time": ("ack", lambda q, held: q.ack(held[0], again_in=60, payload={"n": 3})),
    "ack with results": ("ack", asks(lambda ops, held: ops.ack(held, results=each(held, Kept(b"r", 9999))))),
    "ack that blocks for a time": ("ack", asks(lambda ops, held: ops.ack(held, until=each(held, 9999)))),
    "note": ("note", lambda q, held: q.note(held[0], 1, 2, "reading")),
    "ack bare": ("ack", asks(lambda ops, held: ops.ack(held, bare=[0]))),
    "await": ("await", lambda q, held: q.run(q.flows.results.look_at([lease.task.encode() for lease in held], "c"))),
    "give up with a result": (
        "fail",
        asks(lambda ops, held: ops.fail(held[:1], [-1], [b"no"], results={0: Kept(b"r", 9999)})),
    ),
    "fail": ("fail", lambda q, held: q.fail(held, "no", retry_in=60)),
    "fail and block": (
        "fail",
        asks(lambda ops, held: ops.fail(held, [0] * len(held), [b"no"] * len(held), [b"T"] * len(held), {0: 60_000})),
    ),
    "give up": ("fail", lambda q, held: q.fail(held, "no", give_up=True)),
    "release": ("release", lambda q, held: q.release(held)),
    "release for a time": ("release", lambda q, held: q.release(held, delay=60, block_host=60)),
    "release too often": ("release", asks(lambda ops, held: ops.release(held, most=1))),
    "release what a worker cannot run": (
        "release",
        asks(lambda ops, held: ops.release(held, 5_000, within_ms=60_000)),
    ),
    "crash": ("crash", asks(lambda ops, held: ops.crash(held, "died"))),
    "requeue_expired": ("requeue_expired", lambda q, _: q.requeue_expired()),
    "requeue_expired after a restart": ("requeue_expired", lambda q, _: q.requeue_expired()),
    "requeue_expired of what is gone": ("requeue_expired", lambda q, _: q.requeue_expired()),
    "promote_due": ("promote_due", lambda q, _: q.promote_due()),
    "turns": ("promote_due", lambda q, _: q.promote_due()),
    "retry_failed": ("retry_failed", lambda q, _: q.retry_failed(all=True)),
    "retry some": ("retry_failed", lambda q, _: q.retry_failed("fails", "ends", "later", "nothing", f"{A}0")),
    "publish": ("publish", asks(lambda ops, _: ops.publish("w", {"f": ("d", "{}")})[0])),
    "pull": ("pull", lambda q, _: q.pull(2)),
    "forget": ("forget", lambda q, _: q.forget("ends", "later")),
    "retry a kind": ("kind", asks(lambda ops, _: failures.move_kind(ops, "retry", KIND, 0.0, 9))),
    "forget a kind": ("kind", asks(lambda ops, _: failures.move_kind(ops, "forget", KIND, 0.0, 9))),
    "cancel": ("cancel", lambda q, held: q.cancel(held[0].task, f"{A}0", f"{B}0", "free", "later", by="me")),
    "release what was cancelled": ("release", lambda q, held: q.release(held)),
    "retry what was cancelled": ("fail", lambda q, held: q.fail(held, "no", retry_in=0)),
    "ack for a time what was cancelled": ("ack", lambda q, held: q.ack(held, again_in=60)),
    "crash of what was cancelled": ("crash", asks(lambda ops, held: ops.crash(held, "died"))),
    "prune": ("prune", lambda q, _: q.prune()),
    "configure": ("configure", lambda q, _: q.configure(keep_done=900)),
    "begin politeness": ("convert", lambda q, _: q.configure(politeness=Politeness(1, 2))),
    "end politeness": ("convert", lambda q, _: q.configure(politeness="off")),
    "block a host": ("host", lambda q, _: q.hosts.block("a.example", for_=60)),
    "give rules to a host": ("host", lambda q, _: q.hosts.set("a.example", delay=1, per_host=1, budget=1)),
    "ban a host": ("host", lambda q, _: q.hosts.ban("a.example", "they asked")),
    "repair": ("repair", lambda q, _: q.run(flows.repair(q.talk))),
    "restore": ("restore", lambda q, _: q.run(sending.answer(q.talk, q.operations.restore(RECORDS, q.token)))),
    "restore priorities": (
        "restore",
        lambda q, _: q.run(sending.answer(q.talk, q.operations.restore(RANKED, q.token))),
    ),
    "restore hosts": (
        "restore_hosts",
        lambda q, _: q.run(sending.answer(q.talk, restore_hosts(q.operations, HOSTS, q.token))),
    ),
    "restore a batch": ("restore_batch", lambda q, _: bring(q, "ended")),
    "restore a batch that has ended": ("restore_batch", lambda q, _: bring(q, "done")),
    "restore a batch that is over": ("restore_batch", lambda q, _: bring(q, "done")),
    "set a schedule": ("set_schedule", lambda q, _: q.schedules.set("new", every=60)),
    "tick": ("tick", lambda q, _: tick(q)),
    "declare": ("renew", asks(lambda ops, _: of_schedules.call_renew(ops, {b"s": "d"}))),
    "plan": ("plan", asks(lambda ops, _: ops.plan(1000))),
    "beat": ("beat", asks(lambda ops, _: ops.beat("w", {"pid": 1}, Delta(1, {0: 1})))),
}
LOSES = {
    "pull": {"pulled"},
    "forget": {"ends", "later"},
    "forget a kind": {"fails"},
    "restore a batch that is over": {"after"},
    "prune": {"pruned"},
    "ack and put itself": {"ends", f"{A}ends"},
    "forget the last of a batch": {f"{host}{n}" for host in (A, B) for n in range(3)} | {"free"},
    "ack bare": {f"{host}{n}" for host in (A, B) for n in range(3)} | {"free"},
}
"""The tasks that a verb is there to remove."""

NEW = {"put", "schedule", "restore", "restore_hosts", "restore_batch", "set_schedule", "tick", "note"}

LINKS = {
    "ack and put": {"new", f"{A}new"},
    "ack and improve": {f"{A}9"},
    "ack and rerun": {"new"},
    "ack and put itself": set[str](),
}
"""The acks that put tasks: a full server refuses them, too. Of each what is there for certain if it ends its task."""

DOORS = {"ready": ("ready", "hosts"), "done": ("by_id", "by_print")}
"""The rooms behind the names under which one of several serves."""


@dataclass(frozen=True, slots=True)
class Case:
    """A verb, on a queue, and the command that is forbidden or the key that is clobbered; else the server is full."""

    verb: str
    rule: str
    command: str = ""
    key: str = ""


@cache
def _code(name: str) -> str:
    return re.sub("--.*", "", scripts.source(name))


@cache
def _rooms() -> dict[str, set[str]]:
    """Give for each table of functions the files that fill it."""
    found = {door: set(files) for door, files in DOORS.items()}
    for room in scripts.ROOMS:
        for table in re.findall(r"\bfunction (\w+)\.\w+", _code(room)):
            found.setdefault(table, set()).add(room)
    return found


@cache
def commands_of(name: str) -> list[str]:
    """Give the commands of a verb: those in its own text, in what begins each call, and in the rooms that it names."""
    text = _code(f"verbs/{name}")
    if "tasks.put(" in text:
        text += _code("tasks")  # all that it does is done there
    rooms = {"open"}.union(*(files for table, files in _rooms().items() if re.search(rf"\b{table}\.\w", text)))
    found = re.findall(r"\b(?:call|quiet|try|some)\(\s*'([A-Z]+)'", "\n".join([text, *map(_code, rooms)]))
    return sorted(set(found) - {"INFO", "TIME"})


def cases() -> Iterator[Case]:
    """Give all cases: of each verb the commands that it may run; all keys that there are; and a full server."""
    keys = sorted({key for names in SIZES.values() for key in names.split()})
    for verb, (name, _) in VERBS.items():
        for rule in RULES:
            yield from (Case(verb, rule, command=command) for command in commands_of(name))
            yield from (Case(verb, rule, key=key) for key in [*keys, *["seen:0"] * (rule == "compact")])
            yield Case(verb, rule)


def fill(queue: Queue, ranked: bool = False) -> list[Lease]:
    """Put tasks into every state; give two leases that run."""
    queue.put("fails", "ends", f"{A}ends")
    for lease in queue.claim(5):
        queue.fail(lease, trouble(), give_up=True) if lease.task == "fails" else queue.ack(lease)
    for lease in queue.claim(5):
        queue.ack(lease)
    queue.put({"held": {"n": 0}, "expires": None})
    (expires,) = [lease for lease in queue.claim(2, timeout=60) if lease.task == "expires"]
    queue.extend(expires, timeout=0.01)
    if ranked:
        queue.put([Task(f"{A}{i}", priority=i) for i in range(3)], [Task(f"{B}{i}", priority=-i) for i in range(3)])
    queue.put([f"{A}{i}" for i in range(3)], [f"{B}{i}" for i in range(3)], {"free": {"n": 1}})
    for end in (given_back, broken, crashed):
        for lease in queue.claim(2):
            end(queue, lease)
    held = queue.claim(2)
    if ranked:
        again = [Task(lease.task, {"n": 7}, priority=7) for lease in held if "//" in lease.task]
        queue.put(again[:1], improve=bool(again))
    queue.schedule("later", after=60)
    queue.schedule("due", f"{A}due", after=0)
    return held


def prepare(queue: Queue, client: Any, case: Case) -> None:
    """Have what some verbs need: settings, and what a foreign hand or another server has left; no bell is rung."""
    key, leases = queue.operations.key, queue.operations.key("leases")
    client.delete(key("bell"))
    if case.verb == "ack and put itself" and case.rule != "compact":
        queue.configure(keep_done=0)
    elif case.verb in ("ack with results", "ack bare", "give up with a result"):
        held: list[bytes] = client.zrange(leases, 0, -1)
        queue.run(queue.flows.results.look_at(held, "c"))
        client.set(key("result:" + held[0].decode()), "of a run before")
    elif case.verb.endswith("what was cancelled"):
        queue.cancel([task.decode() for task in client.zrange(leases, 0, -1)], by="me")
    elif case.verb == "requeue_expired after a restart":
        client.hset(key("meta"), "run_id", "another")
        client.zadd(leases, {"expires": 1})
    elif case.verb == "requeue_expired of what is gone":
        client.srem(key("in_progress"), "expires")
        client.zadd(leases, dict.fromkeys(client.zrange(leases, 0, -1), 1) | {b"expires": 2})
    elif case.verb == "tick":
        call = of_schedules.call_write(
            queue.operations, queue.token(), b"s", None, ["r", 5, *TICKS.sections("d", "set")]
        )
        queue.run(sending.answer(queue.talk, call))
    elif case.verb.startswith("restore a batch"):
        queue.schedule("after", at=WAITS)
        if case.verb.endswith("is over"):
            bring(queue, "done")
            queue.forget("after")
            queue.schedule("after", at=WAITS)
    elif case.verb == "seal":
        queue.batches.put("batch", "later", "ends")
    elif case.verb == "seal one that has ended":
        queue.batches.put("batch", "fails", "ends")
    elif case.verb in ("ack the last of a batch", "give up the last of a batch", "forget the last of a batch"):
        queue.batches.put("batch", *client.zrange(leases, 0, -1))
        queue.forget("expires")
        queue.batches.seal("batch", "after", on="done" if case.verb.startswith("give") else "ended")
    elif case.verb == "forget a batch":
        queue.batches.put("batch", "later")
        queue.batches.seal("batch", "after")
    elif case.verb == "turns" and case.rule in ("polite", "ranked"):
        queue.promote_due()
        queue.hosts.block("c.example", for_=60)
        queue.put("http://c.example/")
        client.hset(key("policies"), "c.example", "- - - 1 b me")
        client.zadd(key("hosts"), {"c.example": 1})


def tick(queue: Queue) -> object:
    rows = queue.run(sending.answer(queue.talk, of_schedules.call_rows(queue.operations, "due", 1, 0)))
    call = of_schedules.call_tick(queue.operations, queue.token(), rows.found[0], TICKS, [b"ticked"], 0, 5, 0)
    return queue.run(sending.answer(queue.talk, call))


def bring(queue: Queue, on: On) -> object:
    """Bring a batch of an export in; if all of its tasks must be done, it has ended, and its callback fails."""
    joined = [Joined("batch", b"ends", "done"), Joined("batch", b"fails", "open"), Joined("batch", b"gone", "lost")]
    if on == "ended":
        joined.append(Joined("batch", b"later", "open"))
    call = restore_batch(queue.operations, queue.token, "batch", joined, Sealed("batch", on, 1000, "d", b"after"))
    return queue.run(sending.answer(queue.talk, call))


def trouble() -> BaseException:
    try:
        raise ValueError("no")
    except ValueError as error:
        return error


def given_back(queue: Queue, lease: Lease) -> None:
    """End a lease as a worker does whose handler has released it: that is counted."""
    queue.run(sending.answers(queue.talk, queue.operations.release([lease], most=9)))


def broken(queue: Queue, lease: Lease) -> None:
    queue.fail(lease, trouble(), retry_in=0)
    queue.promote_due()


def crashed(queue: Queue, lease: Lease) -> None:
    queue.run(sending.answers(queue.talk, queue.operations.crash([lease], "died")))


IDS = [
    b"ends", b"fails", b"held", b"expires", b"free", b"old", b"later", b"due", f"{A}ends".encode(),
    *(f"{host}{i}".encode() for host in (A, B) for i in range(3)),
]  # fmt: skip


def where(client: Any, prefix: str) -> dict[bytes, str]:
    found = {task: state for state in STATES for task in client.smembers(prefix + state)}
    found |= dict.fromkeys(fingerprints.holding(fingerprints.read(client, prefix), IDS), "done")
    return found | dict.fromkeys(client.zrange(prefix + "scheduled", 0, -1), "scheduled")


def picture(client: Any) -> dict[bytes, Any]:
    """Give all keys of the server with what they hold; one of the locks may end by itself."""
    names = [name for name in client.scan_iter(count=1000) if not name.endswith(b":lock:expires")]
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.type(name)
    kinds = pipe.execute()
    for name, kind in zip(names, kinds, strict=True):
        # a server may keep sets and hashes in another order as soon as somebody has read them
        {b"set": pipe.smembers, b"hash": pipe.hgetall}.get(kind, pipe.dump)(name)
    return dict(zip(names, pipe.execute(), strict=True))


@contextmanager
def no_halves(queue: Queue, client: Any, *, looks: bool) -> Iterator[list[str]]:
    """Collect the errors of calls that have written something before they ended with the error, if it `looks`."""
    link: Any = queue._link().at(None)
    send, halves = link.send, list[str]()

    def watched(commands: Sequence[Any]) -> list[Any]:
        before = picture(client)
        replies: list[Any] = send(commands)
        errors = [reply for reply in replies if isinstance(reply, redis.RedisError)]
        if errors and len(errors) == len(replies) and (after := picture(client)) != before:
            changed = sorted(key for key in {**before, **after} if before.get(key) != after.get(key))
            halves.append(f"{errors[0]}: {changed}")
        return replies

    link.send = watched if looks else send
    try:
        yield halves
    finally:
        link.send = send


def is_known(client: Any, command: str) -> bool:
    """Say whether the server has a command: one that it lacks cannot be forbidden."""
    return bool(client.command_list(pattern=command.lower()))


def strike(client: Any, case: Case, whole: str) -> None:
    if case.command:
        client.execute_command("ACL", "SETUSER", USER, f"-{case.command.lower()}")
    elif case.key:
        client.rename(whole, "aside") if client.exists(whole) else None
        client.set(whole, "a string")
    else:
        client.config_set("maxmemory", 1)


def mend(client: Any, case: Case, whole: str) -> None:
    if case.command:
        client.execute_command("ACL", "SETUSER", USER, "+@all")
    elif case.key:
        if client.type(whole) == b"string":
            client.delete(whole)
        client.rename("aside", whole) if client.exists("aside") else None
    else:
        client.config_set("maxmemory", 0)


def unasked(case: Case, error: TimeoutqError | None) -> str | None:
    """Say whether a full server has refused what it must not refuse, or the other way round."""
    name, _ = VERBS[case.verb]
    if case.command or case.key or isinstance(error, InvalidInput):
        return None
    is_new = name in NEW or case.verb in LINKS or case.verb.startswith("seal")
    if isinstance(error, ServerFull) == is_new and (error is None or is_new):
        return None
    return f"a full server {'took it' if error is None else f'said {error!r}'}"


def unlinked(client: Any, prefix: str, case: Case, held: list[Lease]) -> str | None:
    """Say which links of an ack are missing, although it has ended its task."""
    if case.verb not in LINKS or client.sismember(prefix + "in_progress", held[0].task):
        return None
    missing = {link.encode() for link in LINKS[case.verb]} - where(client, prefix).keys()
    return f"ended without its links: {sorted(missing)}" if missing else None


def play(url: str, client: Any, case: Case) -> str | None:
    """Play one case; give what went wrong, or None."""
    if case.command and not is_known(client, case.command):
        return None
    client.flushdb()
    client.execute_command("ACL", "SETUSER", USER, "reset", "on", ">secret", "~*", "&*", "+@all")
    mine = re.sub("//[^@/]*@|//", f"//{USER}:secret@", url, count=1)
    keep: Any = "compact" if case.rule == "compact" else 1000
    with Queue("q", url, timeout=60, politeness=RULES[case.rule], keep_done=keep) as owner, Queue("q", mine) as half:
        if case.rule == "logged":
            owner.configure(events="64MB")
        held = fill(owner, case.rule in ("ranked", "rude"))
        if case.rule == "rude":
            owner.configure(politeness="off")
        elif RULES[case.rule]:
            owner.hosts.set("b.example", delay=0.001, budget=50)
        prepare(owner, client, case)
        half.stats()
        half.run(sending.prove(half.talk))
        prefix = owner.operations.key("")
        accepted = where(client, prefix)
        whole = prefix + case.key
        pulled: list[bytes] = []
        said: TimeoutqError | None = None
        halves: list[str] = []
        strike(client, case, whole)
        try:
            with no_halves(half, client, looks=not (case.command or case.key)) as halves:
                answer = VERBS[case.verb][1](half, held)
            if case.verb == "pull":
                pulled = [task.task.encode() for task in answer]  # type: ignore[attr-defined]  # tasks
        except TimeoutqError as error:
            said = error
        finally:
            mend(client, case, whole)
        if halves:
            return f"half-written: {halves}"
        if refused := unasked(case, said):
            return refused
        if left := unlinked(client, prefix, case, held):
            return left
        for _ in range(6):
            doctor.repair(owner)
            owner.prune()
            owner.promote_due()
            a_minute_later(client, "q")
            if not owner.run(flows.repair(owner.talk, mend=False))[0]:
                break
        after = where(client, prefix)
        gone = accepted.keys() - after.keys() - set(pulled) - {name.encode() for name in LOSES.get(case.verb, ())}
        if gone:
            return f"lost: {sorted(gone)}"
        try:
            check_keys(client, "q", counters=False)
        except AssertionError as error:
            return f"not healed: {error}"
    return None


def main() -> int:
    wrong = total = 0
    for binary in (None, redis_server()):
        with EmbeddedServer(binary=binary) as server, redis.Redis.from_url(server.url) as client:
            began = time.monotonic()
            for case in cases():
                total += 1
                said = play(server.url, client, case)
                if said is not None:
                    wrong += 1
                    print(f"{case}: {said}", flush=True)
            print(f"{binary or 'valkey'}: {total} cases so far, {wrong} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
