"""Random calls on a queue with an event log: after every step, the fold of the log has to be the sets on the server.

python -m tests.rig.log_walk --steps 20000 [--kind polite] [--server redis] [--seed 7]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis

from tests.rig.servers import redis_server, valkey
from timeoutq import InvalidInput, Lease, LeaseLost, Politeness, Queue, Record, State, Task, open_queue
from timeoutq.rooms.events import Fold
from timeoutq.rooms.events.fold import NOWHERE
from timeoutq.server.calls import Call, Kept
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import sending
from timeoutq.words.arguments import How
from timeoutq.words.model import raw, text

KINDS = ("plain", "polite", "functions", "sharded")
PART = 400
"""The steps on one queue: what happens for the first time in a queue happens often so."""
SHARDS = 3
POOL = [f"http://{letter}.example/{n}" for letter in "abcd" for n in range(8)]
POOL.extend(
    ["free", "line\nfeed", "back\\slash", b"\xff\x00".decode("utf-8", "surrogateescape"), "\\n", "nbsp\xa0 blank"]
)
LONG = [f"long{n}".ljust(1024, "x") for n in range(500)]
"""A call with these moves half a MiB of ids, which several entries tell."""


class Differs(AssertionError):
    """The log does not say what the sets say."""


@dataclass(slots=True)
class Verdict:
    """What a walk has done."""

    steps: int = 0
    entries: int = 0
    moves: int = 0
    differences: int = 0
    did: Counter[str] = field(default_factory=Counter[str])
    ways: Counter[str] = field(default_factory=Counter[str])


class Walk:
    """A walk on one queue; `step` does one thing, and compares."""

    def __init__(self, url: str, name: str, kind: str, seed: int) -> None:
        self.random, self.kind, self.url = random.Random(seed), kind, url
        self.queue: Any = open_queue(name, url, shards=SHARDS) if kind == "sharded" else Queue(name, url)
        self.raw: Any = redis.Redis.from_url(url)
        self.verdict, self.leases, self.batches = Verdict(), list[Lease](), 0
        self._begin()
        every: list[Callable[[], object]] = [
            *[self.put] * 8, *[self.claim] * 14, *[self.ack] * 8, *[self.fail] * 4, *[self.release] * 3,
            *[self.clean] * 3, *[self.schedule] * 2, *[self.forget] * 2, self.extend, self.crash, self.pull,
            self.retry, self.cancel, self.twice, self.prune, self.repair, self.restore, self.configure,
            self.stale, self.put_again, self.ack_and_put, self.ack_for_a_time, self.release_by_handler,
        ]  # fmt: skip
        if kind == "polite":
            every += [*[self.host] * 6, *[self.turns] * 2, self.politeness, self.group, *[self.improve] * 3]
        if kind == "functions":
            every += [*[self.batch] * 5, *[self.rerun] * 5, *[self.result] * 4, *[self.tick] * 2, *[self.cancel] * 3]
        kinds = sorted({step.__name__ for step in every})
        done = {kind for kind in kinds if self.random.random() < 0.75} | {"put", "claim", "ack", "clean"}
        self.steps = [step for step in every if step.__name__ in done]

    def _begin(self) -> None:
        rules = Politeness(0.005, 2) if self.kind == "polite" else None
        keep: Any = self.random.choice(["forever", "forever", 0, 5, timedelta(milliseconds=30)])
        self.queue.configure(keep_done=keep, max_crashes=self.random.choice([2, 5]), politeness=rules, events="64MB")
        self.fold, self.places = Fold(), dict.fromkeys(self._prefixes(), "-")

    def _prefixes(self) -> list[str]:
        if self.kind != "sharded":
            return [self.queue.operations.key("")]
        return [talk.operations.key("") for talk in self.queue.flows._shards.talks]

    def close(self) -> None:
        """Remove the queue, and see that nothing is left; close the connections."""
        self.queue.purge()
        left = list(self.raw.scan_iter("timeoutq:*"))
        assert left == [], left
        self.queue.close()
        self.raw.close()

    def step(self) -> None:
        what = self.random.choice(self.steps)
        what()
        self.verdict.did[what.__name__] += 1
        self.verdict.steps += 1
        self.compare(what.__name__)

    # ---- the judge

    def compare(self, what: str) -> None:
        """Fold what is new in the log, and compare with the sets. Raises `Differs`."""
        from timeoutq.rooms.events.entry import event_of

        for shard, prefix in enumerate(self.places):
            begin = self.places[prefix]
            # the plain command: an own client of Redis reads the log as well
            found = self.raw.execute_command("XRANGE", prefix + "events", begin if begin == "-" else f"({begin}", "+")
            for id, words in found:
                fields = [word for pair in words.items() for word in pair] if isinstance(words, dict) else words
                event = event_of(id, fields, shard if self.kind == "sharded" else None)
                self._look(event.moves, what, len(b"".join(fields)))
                self.fold.add(event)
                self.places[prefix] = id.decode()
                self.verdict.entries += 1
        if not self.fold.is_whole:
            raise Differs(f"after {what}: the log does not tell of all")
        kept = self._kept()
        if kept != self.fold.states:
            self.verdict.differences += 1
            states = [state for state in State if kept[state] != self.fold.states[state]]
            lines = [f"{state}: only in the set {kept[state] - self.fold.states[state]!r}, only in the log "
                     f"{self.fold.states[state] - kept[state]!r}" for state in states]  # fmt: skip
            raise Differs(f"after {what}: " + "; ".join(lines))

    def _look(self, moves: Mapping[str, Sequence[str]], what: str, size: int) -> None:
        # each task was where the entry says that it was
        for way, tasks in moves.items():
            was = State(left) if (left := way.partition(">")[0]) != NOWHERE else None
            if wrong := [task for task in tasks if self.fold.where(task) is not was]:
                raise Differs(f"after {what}: {way} names {wrong!r}, which were elsewhere")
            self.verdict.ways[way] += len(tasks)
            self.verdict.moves += len(tasks)
            if not tasks or len(set(tasks)) != len(tasks):
                raise Differs(f"after {what}: {way} names {tasks}")
        if size > 70_000:
            raise Differs(f"after {what}: an entry has {size:,} bytes")

    def _kept(self) -> dict[State, set[str]]:
        found: dict[State, set[str]] = {state: set() for state in State}
        for prefix in self.places:
            pipe = self.raw.pipeline(transaction=True)
            for state in State:
                _ = pipe.zrange(prefix + state, 0, -1) if state is State.SCHEDULED else pipe.smembers(prefix + state)
            for state, tasks in zip(State, pipe.execute(), strict=True):
                found[state] |= set(map(text, tasks))
        return found

    # ---- the steps

    def _tasks(self, most: int = 6) -> list[str]:
        return self.random.sample(POOL, self.random.randint(1, most))

    def _some(self) -> list[Lease]:
        count = min(len(self.leases), self.random.randint(1, 4))
        chosen = self.random.sample(self.leases, count)
        if self.random.random() < 0.8:  # else somebody ends them once more, later
            self.leases = [lease for lease in self.leases if lease not in chosen]
        return chosen

    def put(self) -> None:
        """Put some tasks, and now and then half a MiB of ids."""
        tasks = LONG if self.random.random() < 0.01 else self._tasks()
        if self.random.random() < 0.3:
            tasks = [*tasks, *tasks]
        self.queue.put(tasks)

    def put_again(self) -> None:
        """Put some, done and failed ones too; or with an id that comes back after a failure."""
        if self.random.random() < 0.3:
            unique = timedelta(milliseconds=self.random.choice([1, 50, 60_000]))
            with suppress(InvalidInput):  # keep_done may not go with it
                self.queue.put([Task(task, unique=unique) for task in self._tasks()])
            return
        self.queue.put(self._tasks(), again=True)

    def improve(self) -> None:
        """Put some with a higher priority: done tasks come back, and those in progress run once more."""
        with suppress(InvalidInput):  # the queue may be impolite just now
            tasks = [task for task in self._tasks() if task.startswith("http")] or [POOL[0]]
            self.queue.put(tasks, improve=self.random.random() < 0.7, priority=self.random.randint(-5, 5))

    def schedule(self) -> None:
        self.queue.schedule(self._tasks(), after=self.random.choice([0, 0.002, 10]), again=self.random.random() < 0.3)

    def claim(self) -> None:
        """Claim some, for long or for a moment."""
        n = 500 if self.random.random() < 0.05 else self.random.randint(1, 6)
        limit = self.random.choice([None, None, 0.01])
        self.leases += self.queue.claim(n, timeout=self.random.choice([0.01, 30, 30]), max_runtime=limit)
        self.leases = self.leases[-600:]

    def ack(self) -> None:
        if self.random.random() < 0.05:
            self.queue.ack(self.leases)
            self.leases = []
        elif chosen := self._some():
            self.queue.ack(chosen)

    def ack_for_a_time(self) -> None:
        """Ack some, to be ready again after a while."""
        if chosen := self._some():
            self.queue.ack(chosen, again_in=self.random.choice([0, 0.002, 10]))

    def ack_and_put(self) -> None:
        """Ack one, and put what it found, itself too."""
        if chosen := self._some():
            found: list[Any] = [*self._tasks(), *[chosen[0].task] * self.random.randint(0, 1)]
            if self.kind == "functions" and self.random.random() < 0.5:
                found = [Task(task, rerun=True) for task in dict.fromkeys(found)]
            with suppress(LeaseLost):
                self.queue.ack(chosen[0], put=found, again_in=self.random.choice([None, None, 0.01]))

    def fail(self) -> None:
        if chosen := self._some():
            retry_in = self.random.choice([None, 0, 0.002])
            self.queue.fail(chosen, "no", retry_in=retry_in, give_up=retry_in is None)

    def release(self) -> None:
        if chosen := self._some():
            block = self.random.choice([0, 0.005]) if self.kind == "polite" else 0
            self.queue.release(chosen, self.random.choice([0, 0.002]), block_host=block)

    def release_by_handler(self) -> None:
        """Give some back as a handler does: the last release goes to failed."""
        if chosen := self._some():
            self._run(lambda ops: ops.release(chosen, most=2), chosen[0].task)

    def extend(self) -> None:
        if chosen := self._some():
            self.queue.extend(chosen, 0.01)
            self.leases += chosen

    def stale(self) -> None:
        """Ack, fail and release leases that nobody has given."""
        lease = Lease(self.random.choice(POOL), "stranger#1" + "@1" * (self.kind == "sharded"), 0.0)
        self.queue.ack([lease])
        self.queue.fail([lease], "no")
        self.queue.release([lease])

    def crash(self) -> None:
        """Say that the process of some is dead."""
        if chosen := self._some():
            self._run(lambda ops: ops.crash(chosen[:1], "it died"), chosen[0].task)

    def pull(self) -> None:
        self.queue.pull(self.random.randint(1, 3))

    def clean(self) -> None:
        if self.random.random() < 0.3:
            time.sleep(0.011)
        self.queue.requeue_expired()
        self.queue.promote_due()

    def prune(self) -> None:
        self.queue.prune()

    def repair(self) -> None:
        """Look at everything, and mend what there is to mend."""
        from timeoutq.verbs import flows

        if self.kind != "sharded":
            self.queue.run(flows.repair(self.queue.talk))

    def retry(self) -> None:
        if self.random.random() < 0.5:
            self.queue.retry_failed(all=True)
        else:
            self.queue.retry_failed(self._tasks())

    def forget(self) -> None:
        self.queue.forget(LONG if self.random.random() < 0.05 else self._tasks())

    def cancel(self) -> None:
        self.queue.cancel(self._tasks(2))

    def configure(self) -> None:
        """Change settings: done tasks, pauses, and the length of the log."""
        what = self.random.randrange(4)
        if what == 0:
            self.queue.configure(keep_done=self.random.choice(["forever", 0, 5, timedelta(milliseconds=20)]))
        elif what == 1:
            self.queue.configure(events=self.random.choice(["64MB", "10MB"]), level=self.random.choice([None, "all"]))
        else:
            _ = self.queue.pause() if what == 2 and self.random.random() < 0.3 else self.queue.resume()

    def restore(self) -> None:
        """Bring tasks in, as an import does."""
        if self.kind == "sharded":
            return
        states = (State.TODOS, State.SCHEDULED, State.DONE, State.FAILED)
        records = [Record(raw(task), self.random.choice(states), time.time()) for task in dict.fromkeys(self._tasks())]
        if self.queue.stats().settings.get("keep_done") != "no":
            self._run(lambda ops: ops.restore(records, self.queue.talk.nonce), "")

    def twice(self) -> None:
        """Send a call a second time, as after a lost reply."""
        if self.kind == "sharded":
            return
        ops, nonce, chosen = self.queue.operations, self.queue.talk.nonce, self._some()
        calls: list[Call[Any]] = [*ops.put((self._tasks(),), nonce, How(again=True)), ops.claim(nonce(), 3, 30_000)]
        if chosen:
            calls.append(self.random.choice([ops.ack, ops.release])(chosen)[0])
        call = self.random.choice(calls)
        self.queue.run(sending.answer(self.queue.talk, call))
        self.compare(call.name)
        self.queue._link().at(None).send([call.command(20)])

    def _run(self, build: Callable[[Any], Any], task: str) -> None:
        talk = self.queue.talk
        if self.kind == "sharded":
            shards = self.queue.flows._shards
            talk = shards.talks[shards.of_task(raw(task))]
        calls = build(talk.operations)
        for call in calls if isinstance(calls, list) else [calls]:
            self.queue.run(sending.answer(talk, call))

    # ---- hosts

    def host(self) -> None:
        """Block, ban or unblock a host, or give it rules of its own."""
        hosts, name = self.queue.hosts, f"{self.random.choice('abcd')}.example"
        if "politeness" not in (self.queue.stats().settings.get("uses") or ""):
            return
        what = self.random.randrange(6)
        if what == 0:
            hosts.block(name, for_=self.random.choice([0.003, 20]))
        elif what == 1:
            hosts.ban(name)
        elif what < 4:
            hosts.unblock(name)
        else:
            budget = self.random.choice([None, 5, "none"])
            hosts.set(name, delay=self.random.choice([0, 0.003]), per_host=self.random.randint(1, 3), budget=budget)

    def turns(self) -> None:
        time.sleep(0.006)
        self.queue.promote_due()
        self.queue.run(sending.answer(self.queue.talk, self.queue.operations.plan(1000)))

    def politeness(self) -> None:
        """Begin or end the politeness, or change its rules."""
        rules = self.random.choice([Politeness(0.005, 2), Politeness(0, 1), Politeness(0.002, 3), "off"])
        self.queue.configure(politeness=rules)

    def group(self) -> None:
        """Put tasks with a group of their own."""
        self.queue.put([f"grouped{n}" for n in range(self.random.randint(1, 9))], group="grp", again=True)

    # ---- functions

    def batch(self) -> None:
        """Put a batch and seal it, or forget one."""
        name, callback = f"b{self.batches}", f"callback{self.batches}"
        if self.random.random() < 0.2 and self.batches:
            self.queue.batches.forget(f"b{self.random.randrange(self.batches)}")
            return
        with suppress(InvalidInput):  # a task may be in the queue, and cannot be the callback then
            self.queue.batches.put(name, self._tasks(3), again=True)
            self.queue.batches.seal(name, callback, on=self.random.choice(["ended", "done"]))
        self.batches += 1

    def rerun(self) -> None:
        self.queue.put(self._tasks(), rerun=True)

    def result(self) -> None:
        """Ack some with results, whose ids may stay in done for a time, or not at all."""
        if chosen := self._some():
            kept = {0: Kept(b"1", 1000)}
            until = {at: self.random.choice([5, 60_000]) for at in range(len(chosen)) if self.random.random() < 0.4}
            bare = [at for at in range(len(chosen)) if at not in until and self.random.random() < 0.4]
            self._run(lambda ops: ops.ack(chosen, results=kept, bare=bare, until=until), "")

    def tick(self) -> None:
        """Set a schedule, and put its ticks."""
        self.queue.schedules.set("often", self.random.choice(["tick", None]), every=1)
        self.queue.schedules.tick()


def walk(url: str, kind: str, steps: int, seed: int) -> Verdict:
    """Walk so many steps, on several queues one after another. Raises `Differs`, with the seed of the queue."""
    total = Verdict()
    for part, first in enumerate(range(0, steps, PART)):
        own = seed * 1_000_003 + part
        one = Walk(url, f"log.{kind}.{part}", kind, own)
        try:
            for _ in range(min(PART, steps - first)):
                one.step()
            one.close()
        except AssertionError as error:
            raise Differs(f"{kind}, seed {own}, step {one.verdict.steps}: {error}") from error
        found = one.verdict
        total.steps, total.entries, total.moves = (
            total.steps + found.steps, total.entries + found.entries, total.moves + found.moves,
        )  # fmt: skip
        total.did += found.did
        total.ways += found.ways
    return total


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="on each kind of queue and each server")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--server", choices=("valkey", "redis"))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    programs = {"valkey": valkey, "redis": redis_server}
    good = True
    for server in [given.server] if given.server else programs:
        with EmbeddedServer(binary=Path(programs[server]())) as running:
            for kind in [given.kind] if given.kind else KINDS:
                began = time.monotonic()
                try:
                    found = walk(running.url, kind, given.steps, given.seed)
                except Differs as differs:
                    good = False
                    print(f"{server}, {kind}: DIFFERS: {differs}", flush=True)
                    continue
                print(
                    f"{server}, {kind}: {found.steps:,} steps, {found.entries:,} entries, {found.moves:,} moves of "
                    f"{len(found.ways)} kinds, 0 differences, {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                print(f"  {json.dumps(found.ways)}\n  {json.dumps(found.did)}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
