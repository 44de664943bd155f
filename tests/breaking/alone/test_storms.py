"""Storms of SIGKILL, SIGSTOP and SIGTERM on real workers; and what their judge says of histories written by hand.

`pytest tests/breaking/alone/test_storms.py --storm 10m` has each storm last that long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.rig.history import After, Event, History, Verdict, judge, read
from tests.rig.processes import report
from tests.rig.servers import binary_of
from tests.rig.waiting import seconds_of

KILLS = {"valkey": 280, "redis": 130}
"""How long a storm is without `--storm`: together more than 400."""

PATIENCE = 90.0
"""How much longer than it lasts a storm may take on a slow machine, seconds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "length" in metafunc.fixturenames:
        given = metafunc.config.getoption("--storm")
        length = seconds_of(given) if given else None
        limit = pytest.mark.timeout(2 * PATIENCE + 1.2 * (length or 0))
        metafunc.parametrize("length", [pytest.param(length, marks=limit)], ids=[given or "short"])


def storm(folder: Path, *words: str, seconds: float = 0.0) -> tuple[int, dict[str, Any]]:
    return report("tests.rig.storm", "--json", "--folder", str(folder), *words, timeout=1.1 * seconds + PATIENCE)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_storm_loses_nothing_and_each_second_start_has_a_cause(
    kind: str, length: float | None, tmp_path: Path
) -> None:
    words = ["--kills", str(KILLS[kind]), "--rate", "30"] if length is None else ["--for", f"{length}s"]
    code, found = storm(tmp_path, "--binary", binary_of(kind), *words, seconds=length or 0)
    assert found["violations"] == [], f"seed {found['seed']}"
    assert code == 0
    totals = found["totals"]
    assert found["kills"] >= (KILLS[kind] if length is None else length)
    assert totals["ok"] == found["tasks"] == totals["acknowledged"] + totals["recovered"] > 0
    assert totals["duplicated"] > 0, "a storm in which nothing was begun twice has not struck"
    assert found["causes"]["struck"] > 0


def test_a_storm_on_hosts_visits_none_early_and_loses_nothing(length: float | None, tmp_path: Path) -> None:
    words = ["--kills", "150", "--rate", "30"] if length is None else ["--for", f"{length}s"]
    code, found = storm(tmp_path, "--hosts", "40", *words, seconds=length or 0)
    assert found["violations"] == [], f"seed {found['seed']}"
    assert code == 0
    assert found["totals"]["ok"] == found["tasks"] > 0
    assert found["causes"]["struck"] > 0


def test_a_storm_finds_an_ack_that_does_not_compare_owners(tmp_path: Path) -> None:
    sharp = ("--stops", "--rate", "16", "--timeout", "0.4", "--yields", "0.15", "--ready", "20")
    code, found = storm(tmp_path, *sharp, "--for", "60s", "--round", "4s", "--bug", "anybody-acks", seconds=60)
    assert code == 1
    assert any("was accepted, but" in text for text in found["violations"]), found


def test_a_storm_on_hosts_finds_a_host_that_has_no_pause(tmp_path: Path) -> None:
    code, found = storm(tmp_path, "--hosts", "10", "--kills", "60", "--round", "4s", "--bug", "no-pause")
    assert code == 1
    assert any("before the pause after the visit" in text for text in found["violations"]), found


# ---- the judge, on histories written by hand


EPOCH = 1_790_000_000_000
"""The server's time, ms, when the clock of the processes shows 0."""


@dataclass
class Story:
    """A history written by hand: times are ms since its begin."""

    events: list[Event] = field(default_factory=list[Event])
    done: set[str] = field(default_factory=set[str])
    others: set[str] = field(default_factory=set[str])
    counters: Counter[str] = field(default_factory=Counter[str])
    fence: int = 100

    def note(self, what: str, at: float, pid: int, task: str = "", token: str = "", **fields: Any) -> None:
        self.events.append(Event(what, int(at * 1_000_000), pid, task, token, **fields))

    def put(self, at: int, *tasks: str, told: bool = True) -> None:
        for task in tasks:
            self.note("put", at, 1, task)
            if told:
                self.note("put_answered", at + 1, 1, task, answer="A")
            self.counters["put"] += 1

    def claim(self, at: int, pid: int, task: str, token: str, *, fence: int = 0, timeout: int = 1000) -> None:
        self.fence += 1
        now = EPOCH + at
        sent = int((at - 0.2) * 1_000_000)
        self.note("claim", at - 0.2, pid, token=token, fence=1)
        self.note(
            "granted", at + 0.2, pid, task, token,
            fence=fence or self.fence, now=now, deadline=now + timeout, sent=sent,
        )  # fmt: skip
        self.counters["claimed"] += 1

    def work(self, at: int, pid: int, task: str, token: str, *, until: int | None = None) -> None:
        self.note("start", at, pid, task, token)
        if until is not None:
            self.note("end", until, pid, task, token)

    def end(self, verb: str, at: int, pid: int, task: str, token: str, answer: str = "O") -> None:
        done = {"ack": "acked", "release": "released", "fail": "failed"}[verb]
        self.note(verb, at, pid, task, token)
        if answer:
            self.note(done, at + 0.2, pid, task, token, answer=answer, sent=at * 1_000_000)
        if answer == "O":
            self.counters[done] += 1
            if verb == "ack":
                self.done.add(task)

    def extend(self, at: int, pid: int, task: str, token: str, answer: str = "O", timeout: int = 1000) -> None:
        self.note("extend", at, pid, task, token)
        now, sent = EPOCH + at, int((at - 0.2) * 1_000_000)
        self.note("extended", at + 0.2, pid, task, token, answer=answer, now=now, deadline=now + timeout, sent=sent)

    def expired(self) -> None:
        self.counters["expired"] += 1

    def whole(self, at: int, pid: int, task: str, token: str) -> None:
        """Claim, work and ack, all well."""
        self.claim(at, pid, task, token)
        self.work(at + 10, pid, task, token, until=at + 20)
        self.end("ack", at + 30, pid, task, token)

    def verdict(self) -> Verdict:
        return judge(self.events, After(frozenset(self.done), frozenset(self.others), dict(self.counters)))

    def violation(self) -> str:
        """Give the one violation that there is."""
        (text,) = self.verdict().violations
        return text


@pytest.fixture
def story() -> Story:
    return Story()


def killed_while_it_works(story: Story, again_at: int) -> None:
    """Process 10 is killed with the task; process 11 does it."""
    story.put(0, "t")
    story.claim(100, 10, "t", "a")
    story.work(110, 10, "t", "a")
    story.note("kill", 200, 10)
    story.expired()
    story.whole(again_at, 11, "t", "b")


def test_a_task_that_is_put_worked_and_acked_is_ok(story: Story) -> None:
    story.put(0, "t")
    story.whole(100, 10, "t", "a")
    verdict = story.verdict()
    assert verdict.violations == []
    assert verdict.totals.words() == {
        "attempts": 1, "acknowledged": 1, "ok": 1, "duplicated": 0, "lost": 0, "unexpected": 0, "recovered": 0,
    }  # fmt: skip


def test_a_second_start_after_a_kill_is_a_duplicate_with_a_cause(story: Story) -> None:
    killed_while_it_works(story, again_at=1100)
    verdict = story.verdict()
    assert verdict.violations == []
    assert verdict.totals.duplicated == 1
    assert verdict.causes == {"struck": 1}


def test_an_acknowledged_task_that_is_nowhere_is_lost(story: Story) -> None:
    story.put(0, "t", "u")
    story.whole(100, 10, "t", "a")
    verdict = story.verdict()
    assert verdict.totals.lost == 1
    assert "u: lost" in verdict.violations[0]


def test_a_task_that_is_done_and_was_never_worked_is_lost(story: Story) -> None:
    story.put(0, "t")
    story.claim(100, 10, "t", "a")
    story.end("ack", 120, 10, "t", "a")
    assert "lost: it was acknowledged and is done, but nobody worked it" in story.violation()


def test_two_leases_that_are_valid_at_once_are_found(story: Story) -> None:
    killed_while_it_works(story, again_at=1099)
    assert "two valid leases: b was given it 1 ms before its deadline of a" in story.violation()


@pytest.mark.parametrize(("answer", "good"), [("O", True), ("", True), ("L", False)])
def test_a_release_ends_a_lease_unless_it_was_refused(story: Story, answer: str, good: bool) -> None:
    story.put(0, "t")
    story.claim(100, 10, "t", "a")
    story.end("release", 150, 10, "t", "a", answer)
    story.whole(170, 11, "t", "b")
    if answer == "":
        story.counters["released"] += 1  # it was carried out, and its answer lost
    if answer == "L":
        story.expired()
    violations = story.verdict().violations
    assert (violations == []) is good
    assert good or "two valid leases: b was given it 930 ms before its deadline" in violations[0]


def test_an_ack_of_a_task_that_was_given_to_another_is_found(story: Story) -> None:
    killed_while_it_works(story, again_at=1200)
    story.end("ack", 1205, 10, "t", "a")
    violations = story.verdict().violations
    assert "the ack of a was accepted, but b was given it afterwards" in violations[0]
    assert any("acked ok 2 times, by a and b" in text for text in violations)


def test_a_fence_that_was_given_twice_is_found(story: Story) -> None:
    story.put(0, "t", "u")
    story.whole(100, 10, "t", "a")
    story.claim(200, 10, "u", "b", fence=101)
    story.work(210, 10, "u", "b", until=220)
    story.end("ack", 230, 10, "u", "b")
    assert "fence 101 was given to ('t', 'a') and to ('u', 'b')" in story.violation()


def test_a_second_lease_that_nothing_explains_is_found(story: Story) -> None:
    killed_while_it_works(story, again_at=1100)
    story.events = [event for event in story.events if event.what != "kill"]
    for at in range(120, 1200, 50):
        story.note("claim", at, 10, token="other", fence=1)  # it lives, and is busy
    assert "handed out again without a cause: a (process 10)" in story.violation()


@pytest.mark.parametrize(
    ("stop", "cont", "good"), [(50, 90, False), (50, 400, True), (150, 900, True), (1090, None, True)]
)
def test_a_stop_explains_a_lost_lease_when_it_fell_into_it(
    story: Story, stop: int, cont: int | None, good: bool
) -> None:
    killed_while_it_works(story, again_at=1100)
    story.events = [event for event in story.events if event.what != "kill"]
    for at in range(120, 1200, 50):
        story.note("nothing", at, 10)
    story.note("stop", stop, 10)
    if cont is not None:
        story.note("cont", cont, 10)
    assert (story.verdict().violations == []) is good


@pytest.mark.parametrize(
    ("fault", "whole", "good"), [(50, 90, False), (50, 400, True), (1090, 1500, True), (1150, 1500, False)]
)
def test_a_fault_of_the_server_explains_a_lost_lease_when_it_fell_into_it(
    story: Story, fault: int, whole: int, good: bool
) -> None:
    killed_while_it_works(story, again_at=1100)
    story.events = [event for event in story.events if event.what != "kill"]
    for at in range(120, 1200, 50):
        story.note("nothing", at, 10)
    story.note("fault", fault, 0)
    story.note("whole", whole, 0)
    verdict = story.verdict()
    assert (verdict.kinds == {}) is good
    assert verdict.causes == ({"fault": 1} if good else {})


def count_one_more(what: str) -> Callable[[Story], None]:
    return lambda story: story.counters.update({what: 1})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (count_one_more("claimed"), "do not explain their ends"),
        (count_one_more("expired"), "do not explain their ends"),
        (count_one_more("acked"), "1 tasks were put and 2 acked, but 1 are done"),
        (count_one_more("put"), "2 tasks were put and 1 acked, but 1 are done"),
        (count_one_more("released"), "the counter says 1 released, the history 0"),
        (count_one_more("failed"), "the counter says 1 failed, the history 0"),
    ],
)
def test_counters_that_the_history_does_not_explain_are_found(
    story: Story, change: Callable[[Story], None], said: str
) -> None:
    story.put(0, "t")
    story.whole(100, 10, "t", "a")
    change(story)
    assert any(said in text for text in story.verdict().violations)


@pytest.mark.parametrize(("at", "said"), [(1080, ""), (1075, "before the pause after the visit")])
def test_a_visit_before_the_pause_of_its_host_has_passed_is_found(story: Story, at: int, said: str) -> None:
    one, other = "http://h/1", "http://h/2"
    story.put(0, one, other)
    story.whole(1000, 10, one, "a")
    story.whole(at, 11, other, "b")
    verdict = judge(story.events, After(frozenset(story.done), frozenset(), dict(story.counters), delay_ms=50))
    assert said in " ".join(verdict.violations)
    assert bool(verdict.violations) is bool(said)


def test_a_history_is_read_as_it_was_written(story: Story, tmp_path: Path) -> None:
    killed_while_it_works(story, again_at=1100)
    one, other = History(tmp_path / "history"), History(tmp_path / "history")
    for event in story.events:
        one.note(event)
    other.note(*story.events * 50)
    one.close()
    other.close()
    expected = sorted(story.events * 51, key=lambda event: event.at)
    assert sorted(read(tmp_path / "history"), key=repr) == sorted(expected, key=repr)
    assert all(len(line) < 4096 for line in (tmp_path / "history").read_bytes().splitlines())
