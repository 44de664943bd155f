"""Any order of operations, against a model of the design in dictionaries: Hypothesis looks for a difference.

It runs on fakeredis with a clock that the test advances, so that an hour of leases takes no time and a failure shrinks
to the few calls that show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import fakeredis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.invariants import check_keys
from timeoutq import Lease, flows
from timeoutq.testing import fake_queue

IDS = ["a", "b", "c", "d", "e", "f"]
SUSPECT, LIMIT = 2, 5
some_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=4)


@dataclass
class Known:
    """What the model knows of one task."""

    state: str = "todos"
    due: float = 0.0
    token: str | None = None
    deadline: float = 0.0
    ends: float | None = None
    attempts: int = 0
    crashes: int = 0
    payload: Any = None


@dataclass
class Model:
    """The queue as the design draws it; times are ms."""

    tasks: dict[str, Known] = field(default_factory=dict[str, Known])
    now: float = 0.0
    paused: bool = False

    def within(self, state: str) -> set[str]:
        return {task for task, known in self.tasks.items() if known.state == state}

    def add(self, ids: list[str], payloads: dict[str, Any], again: bool, due: float | None) -> list[str]:
        answers: list[str] = []
        before = {task: known.state for task, known in self.tasks.items()}
        fresh: set[str] = set()
        for task in ids:
            state = before.get(task)
            if task in fresh:
                answers.append("todos" if due is None else "scheduled")
            elif state is None or (again and state in ("done", "failed")):
                old = self.tasks.get(task)
                kept = old.payload if old is not None else None
                given = payloads.get(task)
                self.tasks[task] = Known(payload=kept if given is None else given)
                fresh.add(task)
                answers.append("added")
            else:
                answers.append(state)
        for task, answer in zip(ids, answers, strict=True):
            if due is not None and answer in ("added", "scheduled"):
                self.tasks[task].state, self.tasks[task].due = "scheduled", due
        return answers

    def free(self, task: str, state: str) -> None:
        known = self.tasks[task]
        known.state, known.token, known.ends = state, None, None
        if state == "done":
            self.tasks[task] = Known(state="done")

    def requeue(self) -> int:
        expired = {task for task in self.within("in_progress") if self.tasks[task].deadline <= self.now}
        for task in expired:
            self.tasks[task].crashes += 1
            self.free(task, "failed" if self.tasks[task].crashes >= LIMIT else "todos")
        return len(expired)

    def promote(self) -> int:
        ready = {task for task in self.within("scheduled") if self.tasks[task].due <= self.now}
        for task in ready:
            self.tasks[task].state = "todos"
        return len(ready)

    def holds(self, lease: Lease) -> bool:
        known = self.tasks.get(lease.task)
        return known is not None and known.state == "in_progress" and known.token == lease.token


class QueueMachine(RuleBasedStateMachine):
    """Calls in any order; each answer, and each key afterwards, is what the model says."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = fake_queue("m", timeout=30)
        self.raw: Any = fakeredis.FakeRedis(server=self.queue.clock.server)
        self.model = Model(now=self.queue.clock.now_us // 1000)
        self.leases: list[Lease] = []
        self.ended: set[tuple[str, str, str]] = set()
        self.fence = 0

    def teardown(self) -> None:
        self.queue.purge()
        assert self.raw.keys("*") == []
        self.queue.close()

    def pick(self, numbers: list[int]) -> list[Lease]:
        # among the latest: held ones and ones that were lost a little while ago
        latest = self.leases[-8:]
        return [latest[i] for i in {number % len(latest) for number in numbers}]

    # ---- tasks in

    @rule(ids=some_ids, again=st.booleans())
    def put(self, ids: list[str], again: bool) -> None:
        assert list(self.queue.put(ids, again=again)) == self.model.add(ids, {}, again, None)

    @rule(ids=st.sets(st.sampled_from(IDS), min_size=1), number=st.integers(0, 9))
    def put_payloads(self, ids: set[str], number: int) -> None:
        payloads = {task: {"n": number, "id": task} for task in sorted(ids)}
        assert list(self.queue.put(payloads)) == self.model.add(list(payloads), payloads, False, None)

    @rule(ids=some_ids, again=st.booleans(), after=st.sampled_from([0, 5, 50]))
    def schedule(self, ids: list[str], again: bool, after: int) -> None:
        answers = list(self.queue.schedule(ids, after=after, again=again))
        assert answers == self.model.add(ids, {}, again, self.model.now + after * 1000)

    # ---- leases

    @rule(n=st.sampled_from([1, 2, 500]), timeout=st.sampled_from([10, 30]), runtime=st.sampled_from([None, 20]))
    def claim(self, n: int, timeout: int, runtime: int | None) -> None:
        model = self.model
        found = self.queue.claim(n, timeout=timeout, max_runtime=runtime)
        if not model.within("todos") or model.paused:
            model.requeue()
            model.promote()
        ready = model.within("todos")
        if model.paused or not ready:
            assert found == []
            return
        suspects = {task for task in ready if model.tasks[task].crashes >= SUSPECT}
        taken = {lease.task for lease in found}
        assert len(taken) == len(found) >= 1
        assert taken <= ready
        assert len(taken) == 1 or not taken & suspects
        assert suspects or len(taken) == min(n, len(ready))
        for lease in found:
            known = model.tasks[lease.task]
            assert (lease.attempt, lease.crashes, lease.payload) == (known.attempts + 1, known.crashes, known.payload)
            assert lease.fence > self.fence
            self.fence = lease.fence
            known.state, known.token = "in_progress", lease.token
            known.deadline = model.now + min(timeout, runtime or timeout) * 1000
            known.ends = None if runtime is None else model.now + runtime * 1000
            assert lease.deadline * 1000 == known.deadline
        self.leases += found

    def end(self, verb: str, leases: list[Lease], answers: Sequence[str], state: str) -> None:
        for lease, answer in zip(leases, answers, strict=True):
            if self.model.holds(lease):
                assert answer == "ok"
                self.model.free(lease.task, state)
                self.ended.add((verb, lease.task, lease.token))
            else:
                before = (verb, lease.task, lease.token) in self.ended
                assert answer in (("lost", "already") if before else ("lost",))

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 7), min_size=1, max_size=4))
    def ack(self, numbers: list[int]) -> None:
        leases = self.pick(numbers)
        self.end("ack", leases, list(self.queue.ack(leases)), "done")

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 7), ids=some_ids)
    def ack_and_put(self, number: int, ids: list[str]) -> None:
        (lease,) = self.pick([number])
        held = self.model.holds(lease)
        call = self.queue.operations.ack_put(lease, [task.encode() for task in ids], {})
        answers = list(self.queue.run(flows.answers(self.queue.talk, [call])))
        self.end("ack", [lease], answers, "done")
        if held:
            self.model.add(ids, {}, False, None)

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 7), min_size=1, max_size=4), delay=st.sampled_from([0, 7]))
    def release(self, numbers: list[int], delay: int) -> None:
        leases = self.pick(numbers)
        held = [lease for lease in leases if self.model.holds(lease)]
        answers = list(self.queue.release(leases, delay=delay))
        self.end("release", leases, answers, "scheduled" if delay else "todos")
        for lease in held:
            self.model.tasks[lease.task].due = self.model.now + delay * 1000

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 7), min_size=1, max_size=4), retry=st.sampled_from([None, 0, 9]))
    def fail(self, numbers: list[int], retry: int | None) -> None:
        leases = self.pick(numbers)
        held = [lease for lease in leases if self.model.holds(lease)]
        answers = list(self.queue.fail(leases, "no", retry_in=retry, give_up=retry is None))
        self.end("fail", leases, answers, "failed" if retry is None else "scheduled")
        for lease in held:
            known = self.model.tasks[lease.task]
            known.attempts, known.due = known.attempts + 1, self.model.now + (retry or 0) * 1000

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 7), min_size=1, max_size=4), timeout=st.sampled_from([10, 30]))
    def extend(self, numbers: list[int], timeout: int) -> None:
        leases = self.pick(numbers)
        for lease, answer in zip(leases, self.queue.extend(leases, timeout), strict=True):
            known = self.model.tasks.get(lease.task, Known())
            if not self.model.holds(lease):
                assert answer == "lost"
                continue
            left = timeout * 1000 if known.ends is None else min(timeout * 1000, known.ends - self.model.now)
            assert answer == ("max_runtime" if left <= 0 else "ok")
            if left > 0:
                known.deadline = self.model.now + left

    @rule(n=st.sampled_from([1, 500]))
    def pull(self, n: int) -> None:
        ready = self.model.within("todos")
        found = self.queue.pull(n)
        assert len(found) == (0 if self.model.paused else min(n, len(ready)))
        for task in found:
            assert task.task in ready
            assert task.payload == self.model.tasks[task.task].payload
            self.model.tasks[task.task] = Known(state="done")

    # ---- time, the cleaner's and the operator's

    @precondition(lambda self: self.model.paused)
    @rule()
    def resume(self) -> None:
        self.pause_or_resume(False)

    @rule(seconds=st.sampled_from([1, 9, 31]))
    def advance(self, seconds: int) -> None:
        self.queue.clock.advance(seconds)
        self.model.now += seconds * 1000

    @rule()
    def requeue_expired(self) -> None:
        assert self.queue.requeue_expired() == self.model.requeue()

    @rule()
    def promote_due(self) -> None:
        assert self.queue.promote_due() == self.model.promote()

    @rule()
    def prune(self) -> None:
        assert self.queue.prune() == 0

    @rule(ids=some_ids, every=st.booleans())
    def retry_failed(self, ids: list[str], every: bool) -> None:
        failed = self.model.within("failed")
        chosen = failed if every else failed & set(ids)
        assert (self.queue.retry_failed() if every else self.queue.retry_failed(ids)) == len(chosen)
        for task in chosen:
            self.model.tasks[task] = Known(payload=self.model.tasks[task].payload)

    @rule(ids=st.sets(st.sampled_from(IDS), min_size=1))
    def forget(self, ids: set[str]) -> None:
        known = self.model.tasks
        expected = [known[task].state if task in known else "unknown" for task in sorted(ids)]
        assert list(self.queue.forget(sorted(ids))) == expected
        for task in ids & known.keys():
            del known[task]

    @rule(paused=st.sampled_from([False, False, False, False, True]))
    def pause_or_resume(self, paused: bool) -> None:
        (self.queue.pause if paused else self.queue.resume)()
        self.model.paused = paused

    # ---- after each step

    @invariant()
    def the_keys_say_what_the_model_says(self) -> None:
        raw, model, key = self.raw, self.model, "timeoutq:{m}:"
        for state in ("todos", "in_progress", "done", "failed"):
            assert {task.decode() for task in raw.smembers(key + state)} == model.within(state), state
        dues = {task.decode(): due for task, due in raw.zrange(key + "scheduled", 0, -1, withscores=True)}
        assert dues == {task: model.tasks[task].due for task in model.within("scheduled")}
        deadlines = {task.decode(): end for task, end in raw.zrange(key + "leases", 0, -1, withscores=True)}
        assert deadlines == {task: model.tasks[task].deadline for task in model.within("in_progress")}
        check_keys(raw, "m")


TestAnyOrderOfOperations = QueueMachine.TestCase
TestAnyOrderOfOperations.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
