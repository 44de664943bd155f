"""Goes through every order of steps of a world, and checks each state that can be reached."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from tests.rig.polite_world import POLITE, PoliteLimits, PoliteWorld
from tests.rig.world import Limits, Step, Violation, World, told


@dataclass(frozen=True, slots=True)
class Explored:
    """The size of a complete walk."""

    states: int
    transitions: int
    ends: int
    """States after which nothing more can happen; from each, all tasks come back."""
    seconds: float


class Found(Violation):
    """A violation, and the shortest schedule on this walk that leads to it."""

    def __init__(self, violation: Violation, steps: list[Step]) -> None:
        super().__init__(f"{violation}\n{told(steps)}")
        self.violation = violation
        self.steps = steps

    def __reduce__(self) -> tuple[type[Found], tuple[Violation, list[Step]]]:
        return Found, (self.violation, self.steps)


def explore(limits: Limits) -> Explored:
    """Walk through all states, in breadth, so that what is found first is short. Raises `Found`."""
    began = time.monotonic()
    start: World = PoliteWorld(limits) if isinstance(limits, PoliteLimits) else World(limits)
    seen = {start.key()}
    level: list[tuple[World, tuple[Step, object] | None]] = [(start, None)]
    transitions = ends = 0
    while level:
        following: list[tuple[World, tuple[Step, object] | None]] = []
        for world, path in level:
            end = True
            for step in world.steps():
                end = False
                transitions += 1
                after = world.copy()
                try:
                    after.take(step)
                except Violation as violation:
                    raise Found(violation, _steps((step, path))) from violation
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    following.append((after, (step, path)))
            if end or (world.used["ticks"] == limits.ticks and world.used["faults"] == limits.faults):
                ends += 1
                try:
                    world.copy().quiet()
                except Violation as violation:
                    raise Found(violation, _steps(path)) from violation
        level = following
    return Explored(len(seen), transitions, ends, time.monotonic() - began)


def _steps(path: object) -> list[Step]:
    found: list[Step] = []
    while isinstance(path, tuple):
        step, path = path
        found.append(step)
    return found[::-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.explorer", description="Walk through a whole world.")
    parser.add_argument("--ticks", type=int, default=2, help="how often time passes")
    parser.add_argument("--faults", type=int, default=1, help="how many faults strike, of any kind")
    parser.add_argument("--claims", type=int, default=1, help="how many claims each worker makes")
    parser.add_argument("--ends", type=int, default=0, help="how many extensions, releases and fails there are of each")
    parser.add_argument(
        "--polite",
        action="store_true",
        help="the worlds of a polite queue: two hosts, three tasks with priorities; puts and acks that raise and "
        "improve; blocks, bans, budgets, releases, fails, expiry (the other options then count nothing)",
    )
    given = parser.parse_args()
    limits = Limits(
        ticks=given.ticks, faults=given.faults, claims=given.claims,
        extends=given.ends, releases=given.ends, fails=given.ends,
    )  # fmt: skip
    worlds: dict[str, Limits] = {**POLITE} if given.polite else {"": limits}
    states = 0
    for name, world in worlds.items():
        try:
            seen = explore(world)
        except Found as found:
            print(found)
            return 1
        states += seen.states
        print(
            f"{name}{': ' if name else ''}{seen.states:,} states, {seen.transitions:,} transitions, "
            f"{seen.ends:,} ends, 0 violations, {seen.seconds:.1f} s",
            flush=True,
        )
    if len(worlds) > 1:
        print(f"{states:,} states, 0 violations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
