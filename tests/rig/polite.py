"""A random walk over the calls of a polite queue, and the two that judge it; `test_polite_walk.py` runs it.

Three clients take turns on one server. The follower (`follower.py`) holds each reply and all keys against the model.
The history knows of each host no more than what its clients were told, and the server's time before and after each
call: from that follows the earliest moment at which a host may be visited again. A claim says to the millisecond when
it was, by the deadline of its lease.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from tests.rig.follower import Follower
from tests.rig.invariants import check_keys
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease, Politeness, Queue, Task
from timeoutq.server.calls import Call
from timeoutq.verbs import sending
from timeoutq.words import arguments

USUAL_MS = 10
SHORT_MS, LONG_MS = 20, 5000
LETTERS = "abcde"
GROUP = "grp"
POOL = [*(f"http://{letter}.example/{n}" for letter in LETTERS for n in range(12)), *(f"x{n}" for n in range(8))]
FREE = [f"free{n}" for n in range(4)]


def host_of(task: str) -> str:
    """Give the host of a task of the walk, '' for one that has none."""
    return GROUP if task.startswith("x") else "" if task.startswith("free") else task[7:].split("/")[0]


@dataclass(slots=True)
class Visit:
    """A lease that nobody has ended yet, as far as the walk knows."""

    lease: Lease
    ends_ms: int
    least_ms: int
    """The shortest delay that its host has had since it was taken."""


@dataclass(slots=True)
class Known:
    """What the history knows of a host."""

    delay_ms: int = USUAL_MS
    per_host: int = 1
    most: int = 1
    """The most visits at once that were ever allowed."""
    budget: int | None = None
    banned: bool = False
    allowed_ms: int = 0
    blocked_ms: int = 0
    visited: int = 0
    open: list[Visit] = field(default_factory=list["Visit"])

    def ended(self, at_ms: int) -> None:
        """A visit ended at this time or later."""
        self.allowed_ms = at_ms + self.delay_ms

    def begins(self, name: str, earliest_ms: int, latest_ms: int) -> None:
        """Judge a visit that began in between."""
        assert not self.banned, f"{name} is banned, and was visited"
        assert latest_ms >= self.blocked_ms, (
            f"{name} is blocked, and was visited {self.blocked_ms - latest_ms} ms early"
        )
        running = [visit for visit in self.open if visit.ends_ms > latest_ms]
        assert len(running) < self.most, f"{name} has {len(running) + 1} visits at once, of {self.most}: {running}"
        if self.budget is not None:
            made = self.visited + len(running) + 1
            assert made <= self.budget, f"{name} has its visit number {made}, of {self.budget}"
        if self.most == 1:
            # whoever had the place has lost it, and the delay counts from there
            for visit in self.open:
                self.allowed_ms = max(self.allowed_ms, visit.ends_ms + visit.least_ms)
            self.open.clear()
        early = self.allowed_ms - latest_ms
        assert early <= 0, f"{name} was visited {early} ms early, between {earliest_ms} and {latest_ms}"


class Walk:
    """The walk; `step()` does one thing, `finish()` lets the queue run empty."""

    def __init__(self, url: str, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.name = name
        rules = Politeness(USUAL_MS / 1000, 1)
        self.queues = [Queue(name, url, timeout=LONG_MS / 1000, politeness=rules, max_crashes=4) for _ in range(3)]
        self.raw: Any = redis.Redis.from_url(url)
        self.follower = Follower(url, name)
        for queue in self.queues:
            self.follower.follow(queue)
        self.hosts: defaultdict[str, Known] = defaultdict(Known)
        self.did: Counter[str] = Counter()
        every: list[Callable[[Queue], None]] = [
            *[self.put] * 6, *[self.claim] * 14, *[self.ack] * 8, *[self.fail] * 3, *[self.release] * 3,
            *[self.clean] * 3, self.schedule, self.extend, self.crash, self.pull, self.forget, self.retry,
            self.delay, self.per_host, self.budget, self.block, *[self.unblock] * 2, self.ban, self.ack_twice,
            self.put_twice, self.free, *[self.put_first] * 5, *[self.improve] * 4, *[self.ack_and_improve] * 3,
            self.schedule_first, self.off_and_on, self.release_by_handler, self.retry_some, self.plan, self.all_hosts,
        ]  # fmt: skip
        # what a walk does not do lets the rest happen more often, and in other orders
        kinds = sorted({step.__name__ for step in every})
        done = {kind for kind in kinds if self.random.random() < 0.7} | {"put", "claim", "ack", "unblock", "clean"}
        self.steps = [step for step in every if step.__name__ in done]

    def close(self) -> None:
        """Close the connections."""
        for queue in self.queues:
            queue.close()
        self.follower.close()
        self.raw.close()

    def now(self) -> int:
        """Read the server's clock, ms."""
        seconds, micros = self.raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def step(self) -> None:
        """Do one thing; the follower checks each call, and now and then all is checked that must hold."""
        what = self.random.choice(self.steps)
        what(self.random.choice(self.queues))
        self.did[what.__name__] += 1
        if self.random.random() < 0.2:
            check_keys(self.raw, self.name)

    def finish(self) -> None:
        """Give all hosts what they wait for, and work until nothing is left."""
        queue = self.queues[0]
        queue.release([visit.lease for known in self.hosts.values() for visit in known.open])
        for name in [*(f"{letter}.example" for letter in LETTERS), GROUP]:
            queue.hosts.unblock(name)
            queue.hosts.set(name, delay=0, budget="none")
            self.hosts[name] = Known(most=5)

        def drained() -> bool:
            queue.ack(queue.claim(50, wait=0.02))
            return queue.drained()

        wait_until(drained, 60)
        check_keys(self.raw, self.name)
        stats = queue.stats()
        assert stats.known == stats.done + stats.failed, stats

    # ---- what the walk remembers

    def _claimed(self, leases: Sequence[Lease], timeout_ms: int) -> None:
        for lease in leases:
            name = host_of(lease.task)
            if name:
                ends_ms = round(lease.deadline * 1000)
                known = self.hosts[name]
                known.open = [visit for visit in known.open if visit.lease.task != lease.task]
                known.begins(name, ends_ms - timeout_ms, ends_ms - timeout_ms)
                known.open.append(Visit(lease, ends_ms, known.delay_ms))
        self.did["claimed"] += len(leases)

    def _ended(self, visit: Visit, answer: str, at_ms: int, visited: int) -> None:
        name = host_of(visit.lease.task)
        known = self.hosts[name]
        known.open.remove(visit)
        if answer in ("ok", "failed"):
            known.ended(at_ms)
            known.visited += visited
            self.did["ended"] += 1
        else:
            known.allowed_ms = max(known.allowed_ms, visit.ends_ms + visit.least_ms)

    def _some(self) -> Visit | None:
        visits = [visit for known in self.hosts.values() for visit in known.open]
        return self.random.choice(visits) if visits else None

    def _tasks(self) -> list[str]:
        return self.random.sample(POOL, self.random.randint(1, 6))

    def _host(self) -> str:
        return self.random.choice([*(f"{letter}.example" for letter in LETTERS), GROUP])

    # ---- the steps

    def put(self, queue: Queue) -> None:
        """Put some tasks, done and failed ones too."""
        by_group = self.random.random() < 0.2
        tasks = [task for task in self._tasks() if task.startswith("x") == by_group]
        queue.put(tasks, again=self.random.random() < 0.5, group=GROUP if by_group else None)

    def free(self, queue: Queue) -> None:
        """Put tasks without a host."""
        queue.put(FREE, again=True)
        queue.ack([lease for lease in self._take(queue, LONG_MS) if not host_of(lease.task)])

    def schedule(self, queue: Queue) -> None:
        """Schedule some."""
        queue.schedule([task for task in self._tasks() if not task.startswith("x")], after=self.random.random() / 30)

    def claim(self, queue: Queue) -> None:
        """Claim some, for long or for short."""
        taken = self._take(queue, self.random.choice([SHORT_MS, LONG_MS, LONG_MS]))
        queue.ack([lease for lease in taken if not host_of(lease.task)])

    def _take(self, queue: Queue, timeout_ms: int) -> list[Lease]:
        leases = queue.claim(self.random.randint(1, 5), timeout=timeout_ms / 1000)
        self._claimed(leases, timeout_ms)
        return leases

    def ack(self, queue: Queue) -> None:
        """Ack one: as done, for a time, or with what it found."""
        visit, at_ms = self._some(), self.now()
        if visit is not None:
            again_in = self.random.choice([None, None, 0.0, 0.02])
            (answer,) = queue.ack([visit.lease], again_in=again_in)
            self._ended(visit, answer, at_ms, 1)

    def ack_twice(self, queue: Queue) -> None:
        """Ack one by a call that is sent again."""
        visit, at_ms = self._some(), self.now()
        if visit is not None:
            ops, acked = queue.operations, self.random.random() < 0.5
            (answer,) = self._twice(queue, (ops.ack([visit.lease]) if acked else ops.release([visit.lease]))[0])
            self._ended(visit, answer, at_ms, int(acked))

    def put_twice(self, queue: Queue) -> None:
        """Put some by a call that is sent again."""
        tasks = [task for task in self._tasks() if not task.startswith("x")]
        if tasks:
            self._twice(queue, queue.operations.put((tasks,), queue.talk.nonce)[0])

    def _twice(self, queue: Queue, call: Call[Any]) -> Any:
        found = queue.run(sending.answer(queue.talk, call))
        before = self._kept()
        queue._link().send([call.command(20)])
        assert self._kept() == before, f"{call.name} was sent again, and was carried out again"
        return found

    def _kept(self) -> list[Any]:
        key = f"timeoutq:{{{self.name}}}:"
        kept = [self.raw.hgetall(key + what) for what in ("slots", "policies", "groups", "stats")]
        kept += [self.raw.zrange(key + what, 0, -1, withscores=True) for what in ("hosts", "places")]
        return [*kept, self.raw.smembers(key + "waiting")]

    def fail(self, queue: Queue) -> None:
        """Fail one."""
        visit, at_ms = self._some(), self.now()
        if visit is not None:
            retry_in = self.random.choice([None, 0.0, 0.01])
            (answer,) = queue.fail([visit.lease], "no", retry_in=retry_in, give_up=retry_in is None)
            self._ended(visit, answer, at_ms, 1)

    def release(self, queue: Queue) -> None:
        """Give one back, at once or for later, or with a block of its host."""
        visit, at_ms = self._some(), self.now()
        if visit is not None:
            delay, block_ms = self.random.choice([(0.0, 0), (0.0, 0), (0.01, 0), (0.0, 15)])
            (answer,) = queue.release([visit.lease], delay, block_host=block_ms / 1000)
            self._ended(visit, answer, at_ms, 0)
            known = self.hosts[host_of(visit.lease.task)]
            if answer == "ok" and block_ms and not known.banned:
                known.blocked_ms = max(known.blocked_ms, at_ms + block_ms)

    def extend(self, queue: Queue) -> None:
        """Extend one."""
        visit = self._some()
        if visit is not None:
            (answer,) = queue.extend([visit.lease], SHORT_MS / 1000)
            if answer == "ok":
                ends_ms = self.raw.zscore(f"timeoutq:{{{self.name}}}:leases", visit.lease.task)
                visit.ends_ms = int(ends_ms)

    def crash(self, queue: Queue) -> None:
        """Say that the process of one is dead."""
        visit, at_ms = self._some(), self.now()
        if visit is not None:
            (answer,) = queue.run(sending.answer(queue.talk, queue.operations.crash([visit.lease], "it died")[0]))
            self._ended(visit, answer, at_ms, 0)

    def clean(self, queue: Queue) -> None:
        """Do what the cleaner does."""
        queue.requeue_expired()
        queue.promote_due()

    def pull(self, queue: Queue) -> None:
        """Take some for good."""
        at_ms = self.now()
        names = [name for task in queue.pull(2) if (name := host_of(task.task))]
        for name in names:
            self.hosts[name].begins(name, at_ms, self.now())
        for name in names:
            self.hosts[name].ended(at_ms)
            self.hosts[name].visited += 1

    def forget(self, queue: Queue) -> None:
        """Forget some, wherever they are."""
        tasks, at_ms = self._tasks(), self.now()
        for task, answer in zip(tasks, queue.forget(tasks), strict=True):
            if answer in ("todos", "in_progress"):
                known = self.hosts[host_of(task)]
                known.open = [visit for visit in known.open if visit.lease.task != task]
                known.ended(at_ms)

    def retry(self, queue: Queue) -> None:
        """Try failed ones again."""
        queue.retry_failed(all=True)

    def delay(self, queue: Queue) -> None:
        """Give a host another delay."""
        name, delay_ms, at_ms = self._host(), self.random.choice([None, 0, 5, 25, 50]), self.now()
        known = self.hosts[name]
        queue.hosts.set(name, delay="usual" if delay_ms is None else delay_ms / 1000)
        known.delay_ms = USUAL_MS if delay_ms is None else delay_ms
        known.allowed_ms = min(known.allowed_ms, at_ms + known.delay_ms)
        for visit in known.open:
            visit.least_ms = min(visit.least_ms, known.delay_ms)

    def per_host(self, queue: Queue) -> None:
        """Allow some hosts more visits at once, or fewer; two of them have one for good."""
        name = self.random.choice(["c.example", "d.example", "e.example", GROUP])
        known = self.hosts[name]
        known.per_host = self.random.choice([1, 2, 3, 3, 7, 10_000])
        known.most = max(known.most, known.per_host)
        queue.hosts.set(name, per_host=known.per_host)

    def budget(self, queue: Queue) -> None:
        """Give a host a budget, or none."""
        name = self._host()
        known = self.hosts[name]
        known.budget = self.random.choice([None, None, queue.hosts.inspect(name).visits + self.random.randint(0, 5)])
        queue.hosts.set(name, budget="none" if known.budget is None else known.budget)

    def block(self, queue: Queue) -> None:
        """Block a host for a while."""
        name, for_ms, at_ms = self._host(), self.random.choice([0, 10, 30]), self.now()
        queue.hosts.block(name, for_=for_ms / 1000)
        if not self.hosts[name].banned:
            self.hosts[name].blocked_ms = at_ms + for_ms

    def unblock(self, queue: Queue) -> None:
        """End what keeps everybody from the hosts."""
        for name, known in self.hosts.items():
            if known.banned or known.blocked_ms:
                queue.hosts.unblock(name)
                known.banned, known.blocked_ms = False, 0

    def ban(self, queue: Queue) -> None:
        """Ban a host, now and then."""
        if self.random.random() < 0.4:
            name = self._host()
            queue.hosts.ban(name, "so it is")
            self.hosts[name].banned = True

    # ---- priorities

    def _first(self) -> list[Task]:
        tasks = [task for task in self._tasks() if not task.startswith("x")]
        if self.random.random() < 0.3:
            tasks += self.random.choices(tasks, k=2) if tasks else []
        return [
            Task(task, self._payload(), priority=self._level() if self.random.random() < 0.5 else None)
            for task in tasks
        ]

    def _level(self) -> int:
        return self.random.choice([-1000, -3, -2, -1, 0, 1, 2, 3, 1000])

    def _payload(self) -> object:
        return self.random.choice([None, None, self.random.randint(0, 99)])

    def _group(self) -> str | None:
        return GROUP if self.random.random() < 0.1 else None

    def put_first(self, queue: Queue) -> None:
        """Put some with priorities, of their own or of the call; some twice."""
        level = self.random.choice([None, self._level()])
        queue.put(self._first(), priority=level, again=self.random.random() < 0.2)

    def schedule_first(self, queue: Queue) -> None:
        """Schedule some with priorities, or raise them."""
        queue.schedule(
            self._first(), after=self.random.random() / 30, priority=self._level(), improve=self.random.random() < 0.5
        )

    def improve(self, queue: Queue) -> None:
        """Put some with priorities, so that they run once more: all of them, or each by itself; some with a group."""
        tasks = [Task(task.task, task.payload, priority=self._level()) for task in self._first()]
        held = self._some()
        if held is not None and not held.lease.task.startswith("free"):
            # what is in progress is seldom met otherwise
            group = GROUP if held.lease.task.startswith("x") else None
            tasks.append(Task(held.lease.task, self._payload(), group=group, priority=self._level()))
        if self.random.random() < 0.5:
            queue.put(tasks, improve=True)
        else:
            improved = [self.random.random() < 0.6 for _ in tasks]
            queue.put(
                [
                    Task(task.task, task.payload, group=task.group, priority=task.priority, improve=yes)
                    for task, yes in zip(tasks, improved, strict=True)
                ]
            )

    def ack_and_improve(self, queue: Queue) -> None:
        """Ack one with what it found: with priorities, some to run once more, itself too."""
        visit, at_ms = self._some(), self.now()
        if visit is None:
            return
        found = [
            Task(task, self._payload(), priority=level, improve=level is not None and self.random.random() < 0.5)
            for task in self._tasks()
            if not task.startswith("x")
            for level in [self.random.choice([None, self._level()])]
        ]
        if self.random.random() < 0.2 and not visit.lease.task.startswith("x"):
            found.append(Task(visit.lease.task, self._payload(), priority=self._level(), improve=True))
        with_lost = queue.run(
            sending.answers(queue.talk, [queue.operations.ack_put(visit.lease, arguments.tasks((found,)))])
        )
        self._ended(visit, with_lost[0], at_ms, 1)

    # ---- what is rare

    def off_and_on(self, queue: Queue) -> None:
        """End politeness, now and then, and begin it again while tasks are ready and held."""
        if self.random.random() < 0.7:
            return
        queue.configure(politeness="off")
        try:
            queue.put(self._first() or POOL[0], priority=1)
        except InvalidInput:
            self.did["refused"] += 1
        queue.put([task for task in self._tasks() if task.startswith("x")] or "x0", group=GROUP)
        for lease in queue.claim(self.random.randint(1, 3), timeout=LONG_MS / 1000):
            self._held_without_turn(lease)
        self._end_some(queue)
        # who was visited before rests from here on
        allowed_ms = self.now() + USUAL_MS if self.did["ended"] else 0
        queue.configure(politeness=Politeness(USUAL_MS / 1000, 1))
        for name in list(self.hosts):
            held = self.hosts[name].open
            self.hosts[name] = Known(most=max(1, len(held)), open=held, allowed_ms=allowed_ms)

    def _held_without_turn(self, lease: Lease) -> None:
        known = self.hosts[host_of(lease.task)]
        known.open = [visit for visit in known.open if visit.lease.task != lease.task]
        known.open.append(Visit(lease, round(lease.deadline * 1000), 0))

    def _end_some(self, queue: Queue) -> None:
        ends = [lambda lease: queue.ack([lease]), lambda lease: queue.release([lease])]
        for known in self.hosts.values():
            for visit in list(known.open):
                if not host_of(visit.lease.task) or self.random.random() < 0.3:
                    known.open.remove(visit)
                    self.random.choice(ends)(visit.lease)

    def release_by_handler(self, queue: Queue) -> None:
        """Give one back as a handler does, which may do so three times only."""
        visit, at_ms = self._some(), self.now()
        if visit is not None:
            block_ms = self.random.choice([0, 0, 5])
            calls = queue.operations.release([visit.lease], 0, block_ms, most=3)
            (answer,) = queue.run(sending.answers(queue.talk, calls))
            self._ended(visit, answer, at_ms, 0)
            known = self.hosts[host_of(visit.lease.task)]
            if answer == "ok" and block_ms and not known.banned:
                known.blocked_ms = max(known.blocked_ms, at_ms + block_ms)

    def retry_some(self, queue: Queue) -> None:
        """Try some again by name, wherever they are."""
        queue.retry_failed(self._tasks())

    def plan(self, queue: Queue) -> None:
        """Ask how long a cleaner may sleep."""
        queue.run(sending.answer(queue.talk, queue.operations.plan(10_000)))

    def all_hosts(self, queue: Queue) -> None:
        """Change the rules of all hosts, and change them back."""
        queue.configure(politeness=Politeness(USUAL_MS / 1000, 2))
        queue.configure(politeness=Politeness(USUAL_MS / 1000, 1))
        for known in self.hosts.values():
            known.most = max(known.most, 2)
