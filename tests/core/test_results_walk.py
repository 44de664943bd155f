"""A random walk of everything that makes, replaces or removes results, beside a model; on fakeredis with its clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from timeoutq import Lease
from timeoutq.server.calls import Kept
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending

TASKS, CLIENTS, STEPS = [f"t{i}" for i in range(6)], ["one", "two", "three"], 400
OPEN = {"todos", "scheduled", "in_progress"}
LEASE = 30.0


@dataclass
class Model:
    """What the queue must hold, said again in the plainest way."""

    keeps_done: bool
    state: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, tuple[bytes, float]] = field(default_factory=dict[str, tuple[bytes, float]])
    """Of each task: its result, and when it ends."""
    waits: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    told: dict[str, list[str]] = field(default_factory=lambda: {client: list[str]() for client in CLIENTS})
    held: dict[str, Lease] = field(default_factory=dict[str, Lease])

    def end(self, task: str, state: str | None, result: Kept | None, now: float) -> None:
        """A task has ended."""
        self.held.pop(task, None)
        self.state.pop(task, None)
        self.results.pop(task, None)
        if state is not None:
            self.state[task] = state
        if result is not None:
            self.results[task] = result.body, now + result.ms / 1000
        for client in self.waits.pop(task, set()):
            self.told[client].append(task)

    def look(self, now: float) -> dict[str, tuple[str | None, bytes | None]]:
        """Say how tasks have ended, by state and result."""
        live = {task: body for task, (body, ends) in self.results.items() if ends > now}
        return {task: (self.state.get(task), live.get(task)) for task in TASKS if self.state.get(task) not in OPEN}


class Walk:
    """The walk: each step is a method that does the same to the queue and to the model."""

    def __init__(self, queue: Any, seed: int, keep: str) -> None:
        self.queue, self.dice, self.number = queue, random.Random(seed), 0
        self.model = Model(keep != "no")

    @property
    def now(self) -> float:
        return float(self.queue.clock.now)

    def answers(self, calls: Any) -> list[Any]:
        return list(self.queue.run(sending.answers(self.queue.talk, calls)))

    def result(self) -> Kept | None:
        self.number += 1
        body = f"result {self.number}".encode()
        return self.dice.choice([None, Kept(body, 5000), Kept(body, 3_600_000)])

    def put(self) -> None:
        task, again = self.dice.choice(TASKS), self.dice.random() < 0.5
        before = self.model.state.get(task)
        added = self.queue.put(task, again=again)[0] == "added"
        assert added == (before is None or (again and before in ("done", "failed")))
        if added:
            self.model.state[task] = "todos"

    def schedule(self) -> None:
        task = self.dice.choice(TASKS)
        if self.model.state.get(task) is None:
            self.queue.schedule(task, after=1)
            self.model.state[task] = "scheduled"

    def claim(self) -> None:
        for lease in self.queue.claim(2, timeout=LEASE):
            self.model.state[lease.task], self.model.held[lease.task] = "in_progress", lease

    def ack(self) -> None:
        leases = self.some_held()
        results = {at: kept for at in range(len(leases)) if (kept := self.result()) is not None}
        bare = [at for at in range(len(leases)) if self.dice.random() < 0.3]
        calls = self.queue.operations.ack(leases, results=results, bare=bare)
        for _ in range(2):  # and once more, as if the reply had been lost
            got = self.answers(calls)
            assert set(got) <= {"ok", "already"}, got
        for at, lease in enumerate(leases):
            state = "done" if self.model.keeps_done and at not in bare else None
            self.model.end(lease.task, state, results.get(at), self.now)

    def fail(self) -> None:
        for lease in self.some_held():
            kept, retry = self.result(), self.dice.choice([-1, 0])
            results = {} if kept is None else {0: kept}
            assert self.answers(self.queue.operations.fail([lease], [retry], [b"no"], results=results)) == ["ok"]
            if retry < 0:
                self.model.end(lease.task, "failed", kept, self.now)
            else:
                self.model.held.pop(lease.task)
                self.model.state[lease.task] = "scheduled"

    def release(self) -> None:
        for lease in self.some_held():
            self.queue.release(lease)
            self.model.held.pop(lease.task)
            self.model.state[lease.task] = "todos"

    def again(self) -> None:
        for lease in self.some_held():
            self.queue.ack(lease, again_in=1)
            self.model.held.pop(lease.task)
            self.model.state[lease.task] = "scheduled"

    def forget(self) -> None:
        task = self.dice.choice(TASKS)
        self.queue.forget(task)
        self.model.end(task, None, None, self.now)

    def retry(self) -> None:
        self.queue.retry_failed(all=True)
        self.model.state |= {task: "todos" for task, state in self.model.state.items() if state == "failed"}

    def pull(self) -> None:
        for task in self.queue.pull(1):
            self.model.end(task.task, "done" if self.model.keeps_done else None, None, self.now)

    def wait(self) -> None:
        client, tasks = self.dice.choice(CLIENTS), self.dice.sample(TASKS, 3)
        self.queue.run(self.queue.flows.results.look([task.encode() for task in tasks], client))
        for task in tasks:
            if self.model.state.get(task) in OPEN:
                self.model.waits.setdefault(task, set()).add(client)

    def pass_time(self) -> None:
        self.queue.clock.advance(self.dice.choice([0.5, 2, 10]))
        self.queue.promote_due()
        self.queue.requeue_expired()
        for task, state in self.queue.states(TASKS).items():
            was = self.model.state.get(task)
            if was == "in_progress" and state == "failed":
                self.model.end(task, "failed", None, self.now)  # its lease ran out too often
            elif was in ("scheduled", "in_progress") and state == "todos":
                self.model.held.pop(task, None)
                self.model.state[task] = "todos"

    def some_held(self) -> list[Lease]:
        held = [lease for lease in self.model.held.values() if lease.deadline > self.now]
        return self.dice.sample(held, self.dice.randint(0, len(held)))

    def check(self) -> None:
        found = self.queue.results.look(TASKS)
        told = {task: (one.state and one.state.value, one.result) for task, one in found.items()}
        assert told == self.model.look(self.now)

    def check_keys(self) -> None:
        key = self.queue.operations.key
        lists = [("LRANGE", key(f"answers:{client}"), 0, -1) for client in CLIENTS]
        rows, *told = self.ask(("HGETALL", key("awaited")), *lists, *(("DEL", name) for _, name, *_ in lists))
        waits = {task.decode(): set(line.decode().split()) for task, line in dict(rows).items()}
        assert waits == self.model.waits
        for client, tasks in zip(CLIENTS, told, strict=False):
            assert sorted(task.decode() for task in tasks) == sorted(self.model.told[client])
            self.model.told[client] = []
        assert self.queue.stats().done == sum(state == "done" for state in self.model.state.values())

    def ask(self, *commands: Any) -> list[Any]:
        return self.queue.run(sending.ask(self.queue.talk, commands))  # type: ignore[no-any-return]  # the replies


STEP = (
    ["put"] * 6 + ["claim"] * 5 + ["ack"] * 4 + ["wait"] * 5 + ["fail", "fail", "release", "again", "forget", "retry"]
    + ["pull", "schedule", "pass_time", "pass_time"]
)  # fmt: skip


@pytest.mark.parametrize("keep", ["forever", "no", "compact"])
@pytest.mark.parametrize("seed", range(2))
def test_results_and_waits_are_those_of_the_model(keep: str, seed: int) -> None:
    choices: dict[str, dict[str, Any]] = {"no": {"keep_done": 0}, "compact": {"keep_done": "compact"}}
    settings = choices.get(keep, {})
    with fake_queue(timeout=LEASE, max_crashes=3, **settings) as queue:
        walk = Walk(queue, seed, keep)
        for step in range(STEPS):
            getattr(walk, walk.dice.choice(STEP))()
            walk.check()
            if step % 5 == 4:
                walk.check_keys()
        assert walk.number > STEPS / 20
        queue.purge()
        assert walk.ask(("SCAN", 0, "MATCH", queue.operations.key("*"), "COUNT", 1000))[0][1] == []
