"""Random steps on schedules, against a model that knows each tick: whatever is set, moved, paused or late.

The queue and the model see the same clock. After each step, the queue has put just the ticks that the model has.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from timeoutq import InvalidInput, Schedule
from timeoutq.testing import fake_queue, fake_sharded_queue

NAMES = ("a", "b", "c")
STEPS = 60


@dataclass
class Model:
    """One schedule, by its rules and nothing else."""

    every: int
    next: int
    missed: str
    state: str = "running"
    source: str = "set"
    declared: int = 0
    start: int = 0
    last: int = 0
    ticks: Counter[int] = field(default_factory=Counter[int])
    left_out: int = 0
    skipped: int = 0

    def tick(self, now: int) -> None:
        """Put what is due, as the documentation says."""
        due = list(range(self.next, now + 1, self.every))
        if self.state != "running" or not due:
            return
        if self.source == "code" and now - self.declared >= 3_600_000:
            self.state = "undeclared"
            return
        put = {"all": due, "last": due[-1:], "none": [at for at in due[-1:] if now - at <= 60_000]}[self.missed]
        self.ticks.update(put)
        self.last = max([self.last, *put])
        self.left_out += len(due) - len(put)
        self.next = due[-1] + self.every

    def leave(self, now: int) -> None:
        """Put what is due before the schedule changes, or skip what came in a pause."""
        self.tick(now)
        if self.state != "running":
            self.skipped += len(range(self.next, now + 1, self.every))

    def go_on(self, every: int, now: int, missed: str) -> None:
        """Count on with another `every`: from the last tick, but nothing is late because of it."""
        self.leave(now)
        since = min(now, max(self.start, self.last))
        self.start, self.every, self.missed = max(since, now - every), every, missed
        self.state, self.declared = "running", now
        self.next = self.start + max(1, -(-(now - self.start) // every)) * every


@pytest.mark.parametrize("make", [fake_queue, fake_sharded_queue])
@pytest.mark.parametrize("seed", range(3))
def test_a_queue_puts_the_ticks_that_the_model_has(make: Any, seed: int) -> None:
    chance, models = random.Random(seed), dict[str, Model]()
    put = dict[str, Counter[int]]()
    with make() as queue:
        for _ in range(STEPS):
            step(queue, chance, models)
            while leases := queue.claim(500):
                for lease in leases:
                    name, _, at = lease.task.partition("@")
                    put.setdefault(name, Counter())[int(at)] += 1
                queue.ack(leases)
            for name in NAMES:
                check(queue.schedules.get(name), models.get(name), name, put)


def check(info: Any, model: Model | None, name: str, put: dict[str, Counter[int]]) -> None:
    """Compare one schedule."""
    if model is None:
        assert info is None
        put.pop(name, None)
        return
    assert (info.state, info.source) == (model.state, model.source)
    assert info.timing["every"] * 1000 == model.every
    assert put.get(name, Counter()) == model.ticks
    assert info.missed_ticks == model.left_out
    assert info.skipped == model.skipped
    if model.state == "running":
        assert round(info.next * 1000) == model.next


def step(queue: Any, chance: random.Random, models: dict[str, Model]) -> None:
    """Do something to the queue and to the model."""
    name, now = chance.choice(NAMES), round(queue.clock.now * 1000)
    model = models.get(name)
    what = chance.choice(["set", "declare", "move", "pause", "resume", "cancel", *["later"] * 5, *["unseen"] * 3])
    every, missed = chance.choice([20, 60, 700]), chance.choice(["last", "all", "none"])
    if what == "unseen":
        queue.clock.advance(chance.choice([21, 61, 600]))  # and nobody ticks
    elif what == "later":
        queue.clock.advance(chance.choice([0.5, 5, 21, 61, 600, 4000]))
        # a call looks at a hundred schedules and a thousand ticks at a time, until nothing is due
        queue.schedules.tick()
        for one in models.values():
            one.tick(round(queue.clock.now * 1000))
    elif what == "set":
        queue.schedules.set(name, every=every, missed=missed, overlap=True)
        if model is not None and model.every == every * 1000:
            model.missed, model.source = missed, "set"
            model.state = "running" if model.state == "undeclared" else model.state
        else:
            anew(models, name, every, now, missed, "set")
    elif what == "declare":
        queue.schedules.declare(Schedule(name, every=every, missed=missed, overlap=True))
        if model is not None and (model.source, model.state) == ("code", "running") and model.every != every * 1000:
            model.go_on(every * 1000, now, missed)
        elif model is None or (model.source == "code" and model.every != every * 1000):
            anew(models, name, every, now, missed, "code")
        elif model.source == "code":
            model.missed = missed
            model.state = "running" if model.state == "undeclared" else model.state
            # a declaration that changes nothing is written once in ten seconds
            model.declared = now if now - model.declared >= 10_000 or missed != model.missed else model.declared
    elif model is None:
        with pytest.raises(InvalidInput):
            {"move": lambda: queue.schedules.move(name, every=every), "pause": lambda: queue.schedules.pause(name)}.get(
                what, lambda: queue.schedules.resume(name)
            )() if what != "cancel" else refuse(queue.schedules.cancel(name))
    elif what == "cancel":
        if model.source == "code" and model.state != "undeclared" and now - model.declared < 180_000:
            with pytest.raises(InvalidInput):
                queue.schedules.cancel(name)
        else:
            assert queue.schedules.cancel(name)
            del models[name]
    elif what == "move":
        queue.schedules.move(name, every=every)
        if model.every != every * 1000:
            anew(models, name, every, now, model.missed, "set")
            models[name].left_out, models[name].skipped = model.left_out, model.skipped
        else:
            model.source = "set"
            model.state = "running" if model.state == "undeclared" else model.state
    elif what == "pause":
        queue.schedules.pause(name)
        model.tick(now)
        model.state = "paused"
    elif model.state != "running":
        queue.schedules.resume(name)
        model.leave(now)
        model.state = "running"
        model.next += max(0, -(-(now + 1 - model.next) // model.every)) * model.every


def anew(models: dict[str, Model], name: str, every: int, now: int, missed: str, source: str) -> None:
    """Give a schedule another timing: it counts from now."""
    before = models.get(name)
    if before is not None:
        before.leave(now)
    paused = before is not None and before.state == "paused"
    models[name] = Model(every * 1000, now + every * 1000, missed, "paused" if paused else "running", source, now, now)
    if before is not None:
        models[name].ticks = before.ticks


def refuse(found: bool) -> None:
    assert not found
    raise InvalidInput("there was none")
