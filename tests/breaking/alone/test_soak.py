"""Short soaks on a real server, with and without leaks; and what the rule of slopes says of made-up samples.

`python -m tests.rig.soak --minutes 30` is the long form.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.rig import levels
from tests.rig.processes import ROOT
from tests.rig.servers import REDIS
from tests.rig.soak import LEAKS, ROLES, Report
from tests.rig.trend import MIB, RULES, Point, Samples, Trend, trend
from tests.rig.waiting import wait_until

PATIENCE = 100.0
"""How much longer than it lasts a soak may take on a slow machine, seconds."""


@contextmanager
def soaking(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a soak in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rig.soak", "--json", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()  # its server and its processes end when it does
        process.communicate()


def report_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the end; give the report."""
    said, noise = process.communicate(timeout=PATIENCE)
    assert said, noise.decode("utf-8", "replace")[-5000:]
    report: dict[str, Any] = json.loads(said)
    return report


def verdicts(report: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(one["kind"], one["whose"]): one["verdict"] for one in report["trends"]}


def begun(process: subprocess.Popen[bytes]) -> list[int]:
    """Wait until all its processes run; give their pids: those of the load, of the server, and of what watches it."""

    def children() -> list[int]:
        assert process.poll() is None, process.communicate()[1].decode("utf-8", "replace")[-5000:]
        found = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        return found if len(found) == len(ROLES) + 2 else []

    return wait_until(children, 60)


def state(pid: int) -> str:
    """Give the letter of its state; Z is also one that is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "Z"


def has_ended(pid: int) -> bool:
    return state(pid) == "Z"


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A soak of some seconds, which goes on beside the next: most of it is waiting."""
    folder = tmp_path_factory.mktemp("short")
    with soaking(folder, "--minutes", "0.1") as process:
        yield process, folder


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.usefixtures("short")
def test_a_soak_finds_what_a_handler_leaks_and_loses(tmp_path: Path) -> None:
    leaks = [word for leak in LEAKS for word in ("--leak", leak)]
    words = ("--warm-up", "3", "--least-span", "4", "--server", "redis" if REDIS else "valkey")
    leaky = {("RSS", "worker async"), ("descriptors", "worker async"), ("keys", "server")}
    for minutes in ("0.17", "0.6"):  # on a busy machine little is done, and so leaks little: a longer look sees it
        with soaking(tmp_path, "--minutes", minutes, *words, *leaks) as process:
            report = report_of(process)
        found = verdicts(report)
        grows = {one for one in leaky if found[one] == "grows"}
        if grows == leaky:
            break
    levels.count("soak", leaks_found=len(grows))
    assert process.returncode == 1
    assert not report["valid"]
    assert grows == leaky
    assert found["descriptors", "worker def"] == "steady", "it does not leak"
    assert found["descriptors", "worker idle"] == "steady"
    assert report["lost"] > 0
    assert any(text.startswith("I2: ") and "lost" in text for text in report["violations"]), report["violations"]
    assert any(text.startswith("I10: ") for text in report["violations"]), report["violations"]


@pytest.mark.timeout(2 * PATIENCE)
def test_a_short_soak_loses_nothing_and_ends_in_order(short: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, folder = short
    report = report_of(process)
    levels.count("soak", tasks=report["put"], faults=sum(report["faults"].values()), samples=report["samples"])
    assert report["violations"] == [], f"seed {report['seed']}"
    assert report["valid"]
    assert process.returncode == 0
    assert report["put"] == report["counters"]["put"] == report["done"] + report["failed"] > 0
    assert report["lost"] == 0
    assert report["checks"] == 1
    assert report["samples"] > 3
    assert report["faults"]
    found = verdicts(report)
    for kind in ("RSS", "descriptors", "threads"):
        assert {whose for what, whose in found if what == kind} | {"server"} == {*ROLES, "server"}
    assert {what for what, _ in found} >= RULES.keys()
    assert {"too short"} == {verdict for (what, _), verdict in found.items() if what in RULES}
    assert list(folder.iterdir()) == [], "a soak removes what it wrote"


def test_a_soak_ends_with_all_its_processes_on_ctrl_c(tmp_path: Path) -> None:
    with soaking(tmp_path, "--minutes", "5") as process:
        pids = begun(process)
        process.send_signal(signal.SIGINT)
        report = report_of(process)
    assert process.returncode == 130
    assert report["interrupted"] == signal.SIGINT
    assert report["valid"], report["violations"]
    assert all(map(has_ended, pids))
    assert list(tmp_path.iterdir()) == []


def test_a_killed_soak_takes_its_processes_along_stopped_ones_too(tmp_path: Path) -> None:
    with soaking(tmp_path, "--minutes", "5") as process:
        pids = begun(process)
        (cleaner,) = (pid for pid in pids if b"cleaner" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(cleaner, signal.SIGSTOP)
        wait_until(lambda: state(cleaner) == "T")
        process.kill()
        try:
            wait_until(lambda: all(map(has_ended, pids)), 30)
        finally:
            for pid in pids:
                if not has_ended(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


# ---- the rule, on made-up samples


def series(value: Callable[[float], float], n: int = 60, *, every: float = 5.0, piece: str = "") -> list[Point]:
    """Sample a made-up value: a number each five seconds, for five minutes."""
    return [Point(every * i, value(every * i), piece) for i in range(n)]


def judged(points: list[Point], kind: str = "RSS") -> str:
    return trend(kind, "it", points, least_span=60).verdict


def test_what_grows_by_a_fifth_is_a_leak() -> None:
    found = trend("RSS", "it", series(lambda at: 40 * MIB * (1 + at / 1500)), least_span=60)
    assert found.verdict == "grows"
    assert found.per_hour == pytest.approx(40 * MIB * 3600 / 1500)
    assert found.growth == pytest.approx(40 * MIB * 295 / 1500)
    assert (found.first, found.span, found.points) == (40 * MIB, 295, 60)


def test_what_shrinks_is_no_leak() -> None:
    assert judged(series(lambda at: 40 * MIB * (1 - at / 1500))) == "steady"


def test_a_leak_is_seen_through_noise_of_its_size() -> None:
    rng = random.Random(5)
    assert judged(series(lambda at: 40 * MIB + at * MIB / 15 + rng.gauss(0, 3 * MIB))) == "grows"


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_leak(seed: int) -> None:
    rng = random.Random(seed)
    assert judged(series(lambda _: rng.gauss(200, 60)), "keys") == "steady"
    assert judged(series(lambda _: rng.expovariate(1 / 20)), "descriptors") == "steady"


def test_less_than_a_tenth_is_no_leak() -> None:
    assert judged(series(lambda at: 400 * MIB * (1 + 0.08 * at / 295))) == "steady"
    assert judged(series(lambda at: 400 * MIB * (1 + 0.12 * at / 295))) == "grows"


def test_a_little_more_of_a_small_thing_is_no_leak() -> None:
    assert judged(series(lambda at: 6 + at // 150), "descriptors") == "steady"
    assert judged(series(lambda at: 6 + at // 30), "descriptors") == "grows"


@pytest.mark.parametrize("when", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_step_is_no_leak(when: float) -> None:
    assert judged(series(lambda at: 40 * MIB if at < 295 * when else 60 * MIB)) == "steady"


def test_what_fills_up_and_stays_is_no_leak() -> None:
    assert judged(series(lambda at: min(2000, 20 * at)), "members when quiet") == "steady"
    assert judged(series(lambda at: min(3000, 20 * at)), "members when quiet") == "steady"
    assert judged(series(lambda at: 20 * at), "members when quiet") == "grows"


def test_a_sawtooth_is_no_leak() -> None:
    assert judged(series(lambda at: 4 * MIB + (at % 30) * MIB / 10), "memory") == "steady"


def test_processes_that_replace_each_other_are_not_compared() -> None:
    larger_each = [
        replace(p, value=p.value + 20 * MIB * (p.at // 100), piece=str(p.at // 100)) for p in series(lambda _: 40 * MIB)
    ]
    assert judged(larger_each) == "steady"
    each_leaks = [replace(p, piece=str(p.at // 100)) for p in series(lambda at: 40 * MIB + (at % 100) * MIB / 10)]
    assert judged(each_leaks) == "grows"


def test_nothing_is_said_of_little() -> None:
    assert judged([]) == "too short"
    assert judged(series(lambda at: at * MIB, 3, every=100)) == "too short"
    assert judged(series(lambda at: at * MIB, 12)) == "too short"
    assert judged(series(lambda at: at * MIB, 13)) == "grows"


def test_what_depends_on_the_machine_is_shown_but_not_judged() -> None:
    assert judged(series(lambda at: at), "p99") == "shown"


def test_the_samples_of_days_are_put_together() -> None:
    found = trend("RSS", "it", series(lambda at: 40 * MIB + at * 100 + at % 7, 20_000), least_span=60)
    assert found.verdict == "grows"
    assert found.per_hour == pytest.approx(360_000, rel=0.01)


def test_what_a_warm_up_gives_is_left_out() -> None:
    samples = Samples()
    for point in series(lambda at: 40 * MIB + min(at, 100) * MIB):
        samples.add(point.at, "RSS", "it", point.value, piece=7)
    (late,) = samples.trends(100, 60)
    assert (late.first, late.verdict) == (140 * MIB, "steady")
    (early,) = samples.trends(0, 60)
    assert early.first == 40 * MIB


def test_a_process_that_is_started_later_warms_up_too() -> None:
    samples = Samples()
    for point in series(lambda at: 40 * MIB + (at % 150) * MIB):
        samples.add(point.at, "RSS", "it", point.value, piece=int(point.at // 150))
    (found,) = samples.trends(60, 60)
    assert found.span == (145 - 60) * 2


# ---- the report


def shown(report: Report) -> str:
    file = io.StringIO()
    report.show(Console(file=file, width=130))
    return file.getvalue()


GROWS = Trend("RSS", "worker [red]", 40 * MIB, 60 * MIB, 100 * MIB, 20 * MIB, 0.0, 295.0, 60, "grows")


def test_the_verdict_is_the_exit_code() -> None:
    good = Report(1, "valkey", trends=[replace(GROWS, verdict="steady"), replace(GROWS, verdict="too short")])
    assert (good.code, good.valid) == (0, True)
    assert "everything looks good" in shown(good)
    leaky = replace(good, trends=[GROWS])
    assert leaky.code == 1
    assert "GROWS RSS of worker [red]" in shown(leaky)
    assert "0 violations, 1 leaks" in shown(leaky)
    broken = replace(good, violations=["I2: 1 tasks are lost, such as ['a']"])
    assert broken.code == 1
    assert "VIOLATION I2: 1 tasks are lost, such as ['a']" in shown(broken)
    assert json.loads(broken.json())["valid"] is False


def test_a_soak_that_was_ended_early_tells_what_it_saw() -> None:
    early = Report(1, "valkey", interrupted=signal.SIGINT, trends=[GROWS])
    assert early.code == 130
    assert "0 violations, 1 leaks, ended early by SIGINT" in shown(early)


def test_the_table_shows_units() -> None:
    table = shown(Report(1, "valkey", trends=[GROWS, replace(GROWS, kind="p50", whose="put", points=0)]))
    assert "+20.00 MiB" in table
    assert "–" in table
