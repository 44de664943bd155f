"""Makes a plan that fails smaller: it leaves out whatever is not needed for the failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.rig.simulate.plan import Plan

MOST_TRIES = 120


def shrunk(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Give the smallest plan found that still fails; `fails` runs a plan."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            tries += 1
            if tries > MOST_TRIES:
                return plan
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Give plans with a little less, what saves most first."""
    for name in ("faults", "tasks", "calm", "second"):
        items = getattr(plan, name)
        half = len(items) // 2
        if half > 1:
            yield replace(plan, **{name: items[half:]})
            yield replace(plan, **{name: items[:half]})
        for at in range(len(items)):
            yield replace(plan, **{name: items[:at] + items[at + 1 :]})
    if plan.processes > 1:
        yield replace(plan, processes=1)
    if plan.slow_part:
        yield replace(plan, slow_part=0.0)
    if plan.polite:
        yield replace(plan, polite=False)
    if plan.max_tasks is not None:
        yield replace(plan, max_tasks=None)
    if plan.prefetch is not None:
        yield replace(plan, prefetch=None)
    for at, task in enumerate(plan.tasks):
        for less in _less(task.runs):
            yield replace(plan, tasks=(*plan.tasks[:at], replace(task, runs=less), *plan.tasks[at + 1 :]))


def _less(runs: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for at in range(len(runs)):
        yield runs[:at] + runs[at + 1 :]
