"""Forbids each command, and clobbers each key, of each script in turn: nothing that was accepted may be lost.

`python -m tests.rig.rights` tries all cases on Valkey and on Redis; the tests try a part of them. A client that has
proved its rights calls a verb while one command is forbidden to it, or one key is of a foreign type; then the cause is
removed, prune heals what is left, and every task that had been accepted must be in exactly one state.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import redis

from tests.rig.invariants import STATES, a_minute_later, check_keys
from tests.rig.servers import redis_server
from timeoutq import Lease, Politeness, Queue, Task, flows, sending
from timeoutq.durations import Delta
from timeoutq.embedded import EmbeddedServer
from timeoutq.errors import TimeoutqError
from timeoutq.hosts.operations import restore_hosts
from timeoutq.model import HostRecord, Record, State
from timeoutq.scripts import SIZES, script

A, B = "http://a.example/", "http://b.example/"
RULES = {"plain": None, "polite": Politeness(0, 1), "ranked": Politeness(0, 1)}
"""The queues on which each verb is called; on a ranked one, tasks have priorities, and some are to run once more."""
USER = "half"

RECORDS = [
    Record(b"new", State.SCHEDULED, due=2e9, payload=1),
    Record(b"old", State.DONE),
    Record(b"bad", State.FAILED, error="x"),
]
RANKED = [Record(f"{A}{n}".encode(), State.TODOS, payload=n, priority=n) for n in range(2, 5)]
"""On a ranked queue, one of them is there already."""

HOSTS = [
    HostRecord(b"a.example", 5.0, 1, 9, 3, 2, 4e9, banned="asked"),
    HostRecord(b"b.example", blocked_until=4e9, blocked_by="me"),
    HostRecord(b"new.example", visits=3),
]

Verb = Callable[[Queue, list[Lease]], object]
VERBS: dict[str, tuple[str, Verb]] = {
    "put": ("put", lambda q, _: q.put({"new": {"n": 1}, f"{A}new": {"n": 2}, f"{B}1": None})),
    "put again": ("put", lambda q, _: q.put("fails", "ends", f"{A}ends", again=True)),
    "put with a group": ("put", lambda q, _: q.put("new", f"{A}new", group="b.example")),
    "raise": ("put", lambda q, _: q.put(Task(f"{A}1", {"n": 2}, priority=9), Task(f"{A}due", priority=9))),
    "improve": ("put", lambda q, _: q.put(f"{A}ends", f"{A}0", f"{A}1", f"{A}2", f"{B}0", priority=9, improve=True)),
    "schedule": ("schedule", lambda q, _: q.schedule("new", "fails", "ends", after=60, again=True)),
    "claim": ("claim", lambda q, _: q.claim(3, timeout=60, max_runtime=90)),
    "extend": ("extend", lambda q, held: q.extend(held)),
    "ack": ("ack", lambda q, held: q.ack(held)),
    "ack and put": ("ack", lambda q, held: q.ack(held[0], put={"new": {"n": 1}, f"{A}new": None})),
    "ack and improve": (
        "ack",
        lambda q, held: q.ack(held[0], put=[Task(task, priority=8, improve=True) for task in (held[0].task, f"{A}9")]),
    ),
    "ack for a time": ("ack", lambda q, held: q.ack(held[0], again_in=60, payload={"n": 3})),
    "fail": ("fail", lambda q, held: q.fail(held, "no", retry_in=60)),
    "give up": ("fail", lambda q, held: q.fail(held, "no", give_up=True)),
    "release": ("release", lambda q, held: q.release(held)),
    "release for a time": ("release", lambda q, held: q.release(held, delay=60, block_host=60)),
    "crash": ("crash", lambda q, held: q.run(sending.answers(q.talk, q.operations.crash(held, "died")))),
    "requeue_expired": ("requeue_expired", lambda q, _: q.requeue_expired()),
    "promote_due": ("promote_due", lambda q, _: q.promote_due()),
    "retry_failed": ("retry_failed", lambda q, _: q.retry_failed(all=True)),
    "pull": ("pull", lambda q, _: q.pull(2)),
    "forget": ("forget", lambda q, _: q.forget("ends", "later")),
    "prune": ("prune", lambda q, _: q.prune()),
    "configure": ("configure", lambda q, _: q.configure(keep_done=900)),
    "begin politeness": ("convert", lambda q, _: q.configure(politeness=Politeness(1, 2))),
    "end politeness": ("convert", lambda q, _: q.configure(politeness="off")),
    "block a host": ("host", lambda q, _: q.hosts.block("a.example", for_=60)),
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
    "plan": ("plan", lambda q, _: q.run(sending.answer(q.talk, q.operations.plan(1000)))),
    "beat": ("beat", lambda q, _: q.run(sending.answer(q.talk, q.operations.beat("w", {"pid": 1}, Delta(1, {0: 1}))))),
}
LOSES = {"pull": {"pulled"}, "forget": {"ends", "later"}, "prune": {"pruned"}}
"""What a verb is there to remove."""


@dataclass(frozen=True, slots=True)
class Case:
    """A verb, on a plain or a polite queue, and the command that is forbidden or the key that is clobbered."""

    verb: str
    rule: str
    command: str = ""
    key: str = ""


def cases() -> Iterator[Case]:
    """Give all cases: of each script the commands that its text names, and the keys that it knows."""
    for verb, (name, _) in VERBS.items():
        found = script(name)
        text = re.sub("--.*", "", found.text)
        commands = sorted(set(re.findall(r"call\(\s*'([A-Z]+)'", text)) - {"INFO", "TIME"})
        keys = sorted(
            (set(found.keys) - {"lock", "meta"})
            | {"waiting", "hosts", "slots", "places", "groups", "error_log", "priorities", "rerun"}
        )
        for rule in RULES:
            yield from (Case(verb, rule, command=command) for command in commands)
            yield from (
                Case(verb, rule, key=key) for key in keys if any(key in names.split() for names in SIZES.values())
            )


def fill(queue: Queue, ranked: bool = False) -> list[Lease]:
    """Put tasks into every state; give two leases that run."""
    queue.put("fails", "ends", f"{A}ends")
    for lease in queue.claim(5):
        queue.fail(lease, "x", give_up=True) if lease.task == "fails" else queue.ack(lease)
    for lease in queue.claim(5):
        queue.ack(lease)
    queue.put({"held": {"n": 0}, "expires": None})
    (expires,) = [lease for lease in queue.claim(2, timeout=60) if lease.task == "expires"]
    queue.extend(expires, timeout=0.01)
    if ranked:
        queue.put([Task(f"{A}{i}", priority=i) for i in range(3)], [Task(f"{B}{i}", priority=-i) for i in range(3)])
    queue.put([f"{A}{i}" for i in range(3)], [f"{B}{i}" for i in range(3)], {"free": {"n": 1}})
    held = queue.claim(2)
    if ranked:
        again = [Task(lease.task, {"n": 7}, priority=7) for lease in held if "//" in lease.task]
        queue.put(again, improve=bool(again))
    queue.schedule("later", after=60)
    queue.schedule("due", f"{A}due", after=0)
    return held


def where(client: Any, prefix: str) -> dict[bytes, str]:
    """Say in which state each task is."""
    found = {task: state for state in STATES for task in client.smembers(prefix + state)}
    return found | dict.fromkeys(client.zrange(prefix + "scheduled", 0, -1), "scheduled")


def play(url: str, client: Any, case: Case) -> str | None:
    """Play one case; give what went wrong, or None."""
    client.flushdb()
    client.execute_command("ACL", "SETUSER", USER, "reset", "on", ">secret", "~*", "&*", "+@all")
    mine = re.sub("//[^@/]*@|//", f"//{USER}:secret@", url, count=1)
    with Queue("q", url, timeout=60, politeness=RULES[case.rule], keep_done=1000) as owner, Queue("q", mine) as half:
        held = fill(owner, case.rule == "ranked")
        half.run(sending.prove(half.talk))
        half.stats()
        prefix = owner.operations.key("")
        accepted = where(client, prefix)
        whole = prefix + case.key
        if case.command:
            client.execute_command("ACL", "SETUSER", USER, f"-{case.command.lower()}")
        else:
            client.rename(whole, "aside") if client.exists(whole) else None
            client.set(whole, "a string")
        pulled: list[bytes] = []
        try:
            answer = VERBS[case.verb][1](half, held)
            if case.verb == "pull":
                pulled = [task.task.encode() for task in answer]  # type: ignore[attr-defined]  # tasks
        except TimeoutqError:
            pass
        if case.command:
            client.execute_command("ACL", "SETUSER", USER, "+@all")
        else:
            if client.type(whole) == b"string":
                client.delete(whole)
            client.rename("aside", whole) if client.exists("aside") else None
        for _ in range(6):
            owner.prune()
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
    """Play all cases on both servers; say how many there were, and which went wrong."""
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
