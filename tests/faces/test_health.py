"""`timeoutq doctor` as a health check: workers that live, failed tasks, ready tasks that wait for too long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.rig.command import Done, Say, say, server
from timeoutq import Queue
from timeoutq.verbs import sending
from timeoutq.watch import doctor
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.model import WorkerInfo

__all__ = ["say", "server"]

NOW = 1000.0
STATS = Stats(NOW, todos=60, scheduled=0, in_progress=0, done=0, failed=3, paused=False, counters={}, todos_since=400.0,
              workers=1)  # fmt: skip


def worker(beat: float, pid: int = 1) -> WorkerInfo:
    return WorkerInfo(f"h:{pid}:x", "h", pid, 1, 0, 0, 0, 0.0, beat)


@pytest.mark.parametrize(
    ("beats", "least", "verdict", "found"),
    [
        ([], 1, "red", "0 alive, wanted 1"),
        ([NOW, NOW - 30], 2, "green", "2 alive"),
        ([NOW, NOW - 30.1], 2, "red", "1 alive, 1 gone without a word, wanted 2"),
        ([NOW, NOW - 30.1], 1, "green", "1 alive, 1 gone without a word"),
    ],
)
def test_fewer_living_workers_than_wanted_are_red(beats: list[float], least: int, verdict: str, found: str) -> None:
    said = doctor.enough_workers(NOW, [worker(beat) for beat in beats], least)
    assert (said.verdict, said.found) == (verdict, found)


def test_a_container_counts_its_own_workers_and_not_those_of_others() -> None:
    other = replace(worker(NOW, 2), host="other")
    assert doctor.enough_workers(NOW, [worker(NOW), other], 2).verdict == "green"
    assert doctor.enough_workers(NOW, [worker(NOW), other], 1, "h").found == "1 alive on h"
    said = doctor.enough_workers(NOW, [worker(NOW - 60), other], 1, "h")
    assert (said.verdict, said.found) == ("red", "0 alive on h, 1 gone without a word, wanted 1")


def test_more_failed_tasks_than_allowed_are_red() -> None:
    assert [doctor.few_failed(STATS, most, "web").verdict for most in (2, 3)] == ["red", "green"]
    said = doctor.few_failed(replace(STATS, failed=1), 0, "web")
    assert (said.found, said.cure) == ("1 task, allowed 0", "timeoutq list web failed; timeoutq retry web --all")


@pytest.mark.parametrize(
    ("stats", "claimed", "longest", "verdict", "says"),
    [
        ({"todos": 0, "todos_since": None}, (0, 0), 1, "green", "no ready tasks"),
        ({}, (0, 0), 600, "green", "60 ready tasks; there have been some for 10 min"),
        # there have been ready tasks for longer: the pace decides, here one task a second
        ({}, (0, 300), 300, "green", "at the present pace they are all claimed in 60 s"),
        ({}, (0, 300), 59, "red", "at the present pace they are all claimed in 60 s, wanted 59 s"),
        ({}, (0, 0), 300, "red", "and none is being claimed"),
        ({"todos_since": 1001.0}, (0, 0), 1, "green", "for 0.0 s"),
        # counters that went back are those of a queue that was purged
        ({}, (300, 0), 300, "red", "and none is being claimed"),
    ],
)
def test_ready_tasks_that_wait_for_too_long_are_red(
    stats: dict[str, Any], claimed: tuple[int, int], longest: float, verdict: str, says: str
) -> None:
    history = [Sample(NOW - 300, claimed=claimed[0]), Sample(NOW, claimed=claimed[1])]
    said = doctor.short_wait(replace(STATS, **stats), history, longest, "web")
    assert (said.verdict, says in said.found) == (verdict, True), said.found


@pytest.mark.parametrize(
    ("stats", "says", "cure"),
    [
        ({"workers": 0}, "for 10 min, and no worker is alive, wanted 60 s", "start one: timeoutq worker web …"),
        ({"paused": True}, "for 10 min, and the queue is paused, wanted 60 s", "timeoutq resume web"),
    ],
)
def test_a_pace_of_the_past_is_no_excuse_while_nobody_can_claim(stats: dict[str, Any], says: str, cure: str) -> None:
    history = [Sample(NOW - 300, claimed=0), Sample(NOW, claimed=90_000)]
    assert doctor.short_wait(STATS, history, 60, "web").verdict == "green"
    said = doctor.short_wait(replace(STATS, **stats), history, 60, "web")
    assert (said.verdict, says in said.found, said.cure) == ("red", True, cure), said.found
    assert "pace" not in said.found
    assert doctor.short_wait(replace(STATS, **stats), history, 600, "web").verdict == "green"


def verdicts(done: Done) -> dict[str, str]:
    return {line[0]: line[1] for line in done.lines}


def test_a_container_is_healthy_while_its_workers_live_and_not_without_them(say: Say, queue: Queue) -> None:
    queue.put("a", "b")
    words = ("doctor", queue.name, "--workers", "1", "--max-failed", "0", "--max-age", "5m")
    done = say(*words)
    assert done.code == 1
    assert {check: verdicts(done)[check] for check in ("workers", "failed", "ready")} == {
        "workers": "red", "failed": "green", "ready": "green",
    }  # fmt: skip
    queue.run(sending.answer(queue.talk, queue.operations.beat("h:1:x", {"pid": 1})))
    assert say(*words).code == 0
    queue.fail(queue.claim()[0], "boom", give_up=True)
    done = say(*words)
    assert (done.code, verdicts(done)["failed"]) == (1, "red")
    assert say("doctor", queue.name, "--max-failed", "1").code == 0
    queue.run(sending.answer(queue.talk, queue.operations.beat("h:1:x", None)))


def test_limits_without_a_queue_are_refused(say: Say) -> None:
    done = say("doctor", "--workers", "1")
    assert done.code == 2
    assert "are about a queue: name one" in done.err
