"""Short soaks on a real server, with and without leaks; and what the rule of slopes says of made-up samples."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.rig.processes import report
from tests.rig.soak import KINDS, LEAST, MIB, Point, Samples, trend
from tests.rig.storm import LEAKS

PATIENCE = 100.0
"""How much longer than it lasts a soak may take on a slow machine, seconds."""


def soak(*words: str) -> tuple[int, dict[str, Any]]:
    return report("tests.rig.soak", "--json", "--warm-up", "3", "--least-span", "4", *words, timeout=PATIENCE)


def verdicts(found: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(one["kind"], one["whose"]): one["verdict"] for one in found["trends"]}


@pytest.mark.timeout(2 * PATIENCE)
def test_a_short_soak_loses_nothing_and_watches_all_processes() -> None:
    code, found = soak("--minutes", "0.3", "--least-span", "60")
    told = found["report"]
    assert (told["violations"], code, found["valid"]) == ([], 0, True), f"seed {told['seed']}"
    assert found["totals"]["ok"] == told["tasks"] > 0
    assert found["faults"]
    assert {whose for kind, whose in verdicts(found) if kind == "RSS"} == {*KINDS, "producer"}
    assert {kind for kind, _ in verdicts(found)} == LEAST.keys()


@pytest.mark.timeout(2 * PATIENCE)
def test_a_soak_finds_what_a_handler_leaks_and_loses() -> None:
    leaks = [word for leak in LEAKS for word in ("--leak", leak)]
    code, found = soak("--minutes", "0.3", *leaks)
    leaky = {("RSS", "worker"), ("descriptors", "worker"), ("keys", "server")}
    grows = {one for one, verdict in verdicts(found).items() if verdict == "grows"}
    assert (code, found["valid"]) == (1, False)
    assert grows >= leaky
    assert verdicts(found)["descriptors", "producer"] == "steady", "it has no handler"
    assert found["totals"]["lost"] > 0


# ---- the rule, on made-up samples


def series(value: Callable[[float], float], n: int = 60, *, every: float = 5.0) -> list[Point]:
    """Sample a made-up value: a number each five seconds, for five minutes."""
    return [Point(every * i, value(every * i)) for i in range(n)]


def judged(points: list[Point], kind: str = "RSS") -> str:
    return trend(kind, "it", points, least_span=60).verdict


def test_what_grows_by_a_fifth_is_a_leak_also_through_noise() -> None:
    rng = random.Random(5)
    assert judged(series(lambda at: 40 * MIB * (1 + at / 1500))) == "grows"
    assert judged(series(lambda at: 40 * MIB + at * MIB / 15 + rng.gauss(0, 3 * MIB))) == "grows"
    assert judged(series(lambda at: 40 * MIB * (1 - at / 1500))) == "steady"


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_no_leak(seed: int) -> None:
    rng = random.Random(seed)
    assert judged(series(lambda _: rng.gauss(200, 60)), "keys") == "steady"
    assert judged(series(lambda _: rng.expovariate(1 / 20)), "descriptors") == "steady"


def test_a_little_more_is_no_leak() -> None:
    assert judged(series(lambda at: 400 * MIB * (1 + 0.08 * at / 295))) == "steady"
    assert judged(series(lambda at: 400 * MIB * (1 + 0.12 * at / 295))) == "grows"
    assert judged(series(lambda at: 6 + at // 150), "descriptors") == "steady"
    assert judged(series(lambda at: 6 + at // 30), "descriptors") == "grows"


@pytest.mark.parametrize("when", [0.1, 0.5, 0.9])
def test_a_step_is_no_leak(when: float) -> None:
    assert judged(series(lambda at: 40 * MIB if at < 295 * when else 60 * MIB)) == "steady"


def test_a_sawtooth_and_what_fills_up_and_stays_are_no_leaks() -> None:
    assert judged(series(lambda at: 4 * MIB + (at % 30) * MIB / 10), "memory") == "steady"
    assert judged(series(lambda at: min(2000, 20 * at)), "keys") == "steady"


def test_processes_that_replace_each_other_are_not_compared() -> None:
    larger = [replace(p, value=p.value + 20 * MIB * (p.at // 100), piece=str(p.at // 100)) for p in series(lambda _: 0)]
    assert judged(larger) == "steady"
    assert judged([replace(p, piece=str(p.at // 100)) for p in series(lambda at: (at % 100) * MIB / 10)]) == "grows"


def test_nothing_is_said_of_little() -> None:
    assert judged([]) == "too short"
    assert judged(series(lambda at: at * MIB, 3, every=100)) == "too short"
    assert judged(series(lambda at: at * MIB, 13)) == "grows"


def test_what_a_warm_up_gives_is_left_out_also_of_a_process_that_is_started_later() -> None:
    samples = Samples()
    for point in series(lambda at: 40 * MIB + min(at % 150, 60) * MIB):
        samples.add(point.at, "RSS", "it", point.value, piece=int(point.at // 150))
    (found,) = samples.trends(60, 60)
    assert (found.span, found.verdict) == ((145 - 60) * 2, "steady")
