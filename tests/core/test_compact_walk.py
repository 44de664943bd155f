"""Fingerprints of done tasks beside a plain set of Python: any order of verbs, many divisions, each bit the same.

`STEPS=100000 pytest -n 0 tests/core/test_compact_walk.py` walks farther; `SEED=7` walks elsewhere.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.rig import fingerprints
from tests.rig.fingerprints import FULL, Sets
from tests.rig.planted import planted
from timeoutq import Lease, Queue
from timeoutq.verbs import sending
from timeoutq.words.model import Record, State

STEPS = int(os.environ.get("STEPS", "2000"))
SEED = int(os.environ.get("SEED", "1"))
LOOK = max(100, STEPS // 40)
"""After so many steps, all sets are read."""
MOST = 8
"""The most ids of a step on small sets; on sets of the usual size, ten times as many."""


class Walk:
    """A queue, a plain set of its done tasks, and the sets that the queue should have."""

    def __init__(self, queue: Queue, client: Any, full: int) -> None:
        self.queue = queue
        self.client = client
        self.dice = random.Random(SEED)
        self.most = MOST if full != FULL else 10 * MOST
        # so many that about half of them are done later on, and sets divide until the end
        self.ids = [f"https://example.com/{number}" for number in range(max(40, STEPS * self.most // 8))]
        self.done: set[str] = set()
        self.ready: set[str] = set()
        self.held: dict[str, Lease] = {}
        queue.stats()
        self.twin = Sets(client.hget(queue.operations.key("seen"), "salt"), full)
        self.divided = 0

    def some(self) -> list[str]:
        """Draw some ids, sometimes one of them twice."""
        found = [self.dice.choice(self.ids) for _ in range(self.dice.randint(1, self.most))]
        return found + found[: self.dice.random() < 0.2]

    def known(self) -> list[str]:
        """Draw some ids that are done, and one that may be."""
        drawn = dict.fromkeys(self.dice.choices(self.ids, k=20))
        return [task for task in drawn if task in self.done][:3] + self.some()[:1]

    def letter(self, task: str) -> str:
        """Say where a task is."""
        if task in self.held:
            return "in_progress"
        return "done" if task in self.done else "todos" if task in self.ready else "unknown"

    def finished(self, tasks: list[str]) -> None:
        """These tasks are done now."""
        self.done.update(tasks)
        for task in tasks:
            self.twin.add(task.encode())

    def gone(self, tasks: list[str]) -> None:
        """These tasks are not done now."""
        self.done.difference_update(tasks)
        for task in tasks:
            self.twin.remove(task.encode())

    # ---- the steps

    def put(self) -> None:
        tasks = self.some()
        self.expect(tasks, list(self.queue.put(tasks)))

    def expect(self, tasks: list[str], answers: list[Any]) -> None:
        """Check the answers to a put, and note what it put."""
        for task, answer in zip(tasks, answers, strict=True):
            where = self.letter(task)
            assert answer == ("added" if where == "unknown" else where)
            if where == "unknown":
                self.ready.add(task)

    def claim(self) -> None:
        for lease in self.queue.claim(self.dice.randint(1, 2 * self.most)):
            self.ready.remove(lease.task)
            self.held[lease.task] = lease

    def ack(self) -> None:
        leases = self.dice.sample(list(self.held.values()), min(len(self.held), self.dice.randint(0, 3 * self.most)))
        if leases:
            assert self.queue.ack(leases).ok == len(leases)
            self.end(leases)

    def end(self, leases: list[Lease]) -> None:
        """These leases were acked."""
        for lease in leases:
            del self.held[lease.task]
        self.finished([lease.task for lease in leases])

    def ack_and_put(self) -> None:
        if self.held:
            lease = self.dice.choice(list(self.held.values()))
            found = self.some()
            assert self.queue.ack(lease, put=found) == "ok"
            for task in found:
                if self.letter(task) == "unknown":
                    self.ready.add(task)
            self.end([lease])

    def pull(self) -> None:
        pulled = [task.task for task in self.queue.pull(self.dice.randint(1, self.most))]
        self.ready.difference_update(pulled)
        self.finished(pulled)

    def restore(self) -> None:
        tasks = self.some()
        records = [Record(task.encode(), State.DONE) for task in tasks]
        answers = self.queue.run(
            sending.answer(self.queue.talk, self.queue.operations.restore(records, self.queue.token))
        )
        for task, answer in zip(tasks, answers, strict=True):
            where = self.letter(task)
            assert answer == ("added" if where == "unknown" else where)
            if where == "unknown":
                self.finished([task])

    def again(self) -> None:
        tasks = self.known()
        answers = list(self.queue.put(tasks, again=True))
        back = [task for task in tasks if task in self.done]
        self.gone(back)
        self.expect(tasks, answers)

    def forget(self) -> None:
        tasks = self.known()
        assert list(self.queue.forget(tasks)) == [self.letter(task) for task in tasks]
        self.gone([task for task in tasks if task in self.done])
        self.ready.difference_update(tasks)
        for task in tasks:
            self.held.pop(task, None)

    def ask(self) -> None:
        tasks = self.some() + self.known()
        assert list(self.queue.states(tasks)) == [self.letter(task) for task in tasks]
        assert (self.queue.inspect(tasks[0]).state or "unknown") == self.letter(tasks[0])
        assert self.queue.stats().done == len(self.done)

    # ---- and what the keys say

    def look(self) -> None:
        """Compare every set with the one that there should be."""
        found = fingerprints.read(self.client, self.queue.operations.key(""), self.twin.full)
        assert found is not None
        assert fingerprints.wrong(found) == []
        assert (found.level, found.split, found.count) == (self.twin.level, self.twin.split, self.twin.count)
        assert found.filled == self.twin.filled
        assert self.queue.states(self.ids[:500]).codes.count(b"d") == len(self.done & set(self.ids[:500]))

    def go(self, steps: int) -> None:
        """Walk."""
        acts: list[Callable[[], None]] = [
            self.put, self.put, self.claim, self.ack, self.ack, self.ack_and_put, self.pull, self.restore, self.restore,
            self.again, self.forget, self.ask,
        ]  # fmt: skip
        for step in range(1, steps + 1):
            self.dice.choice(acts)()
            if step % LOOK == 0 or step == steps:
                self.look()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("full", [1, 3, FULL])
def test_a_walk_of_fingerprints_is_a_walk_of_a_plain_set(url: str, name: str, full: int) -> None:
    # sets divide when they have more than `full` fingerprints each
    sets = f"local full, divisions = {full}, {4 if full == FULL else 500} "
    with (
        planted(url, "local full, divisions = 192, 4 ", sets),
        Queue(name, url, timeout=3600, keep_done="compact") as queue,
        redis.Redis.from_url(url) as client,
    ):
        walk = Walk(queue, client, full)
        walk.go(STEPS if full == 3 else STEPS // 2 if full == FULL else STEPS // 5)
        assert 2**walk.twin.level + walk.twin.split > (15 if full == FULL else 100) * min(1, STEPS / 2000)
        queue.purge()
        assert client.keys(queue.operations.key("*")) == []
