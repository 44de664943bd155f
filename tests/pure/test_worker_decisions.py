"""Tasks that may kill their process, and orders to stop: decisions of a worker, without a queue."""

from __future__ import annotations

import time

import pytest

from timeoutq import AsyncQueue, InvalidInput, Lease
from timeoutq.server.calls import BATCH, BYTES, Kept
from timeoutq.words import arguments
from timeoutq.words.arguments import TaskList
from timeoutq.worker.decisions import AT_ONCE, DRAIN, FOUND_AT_ONCE, GO_ON, NO_LIMIT, WAIT, Life, Pace, Suspects
from timeoutq.worker.ends import AckOfFound, AckOfResult, Ends
from timeoutq.worker.runs import Failure


def lease(task: str, fence: int = 1) -> Lease:
    return Lease(task, f"w#{fence:x}", deadline=0.0, fence=fence)


def test_a_suspect_waits_a_third_of_its_lease_and_not_for_ever() -> None:
    suspects = Suspects()
    suspects.waits(lease("a"), 3.0, 100.0, 0, {})
    assert suspects.until == 101.0
    suspects.waits(lease("a"), 3600.0, 100.0, 0, {})
    assert suspects.until == 100.0 + WAIT


def test_a_suspect_whose_turn_has_not_come_for_a_day_comes_back_each_minute() -> None:
    suspects, one = Suspects(), lease("a")
    assert [suspects.postpone(one) for _ in range(1500)][-1] == 60.0


def test_a_suspect_keeps_others_away_while_it_waits_and_while_it_runs() -> None:
    suspects, one = Suspects(), lease("a")
    held = {one.fence: one}
    assert not suspects.keep_others_away
    suspects.waits(one, 30.0, 0.0, 0, held)
    assert suspects.keep_others_away
    assert suspects.begin() is one
    assert suspects.waiting is None
    assert suspects.keep_others_away
    del held[one.fence]
    assert not suspects.keep_others_away


def test_failures_that_need_several_calls_go_each_with_its_own_lease() -> None:
    ends = Ends(AsyncQueue("q").talk, 100)
    failed = [lease(f"t{i}", i) for i in range(BATCH + 100)]
    ends.fails = [Failure(one, -1, b"no", b"") for one in failed]
    first, second = ends.take()
    assert [*first.leases, *second.leases] == failed
    assert len(first.leases) == BATCH


def test_an_attempt_that_failed_is_owed_while_it_is_asked_whether_its_lease_is_held() -> None:
    ends, one = Ends(AsyncQueue("q").talk, 100), lease("a")
    ends.extend(AckOfFound(one, TaskList(), failure=Failure(one, -1, b"no", b"")), 60_000)
    assert (ends.leases("fail"), ends.leases("ack", "release"), ends.leases(), len(ends)) == ([one], [], [one], 1)
    (call,) = ends.take()
    assert (call.verb, call.leases, len(ends)) == ("extend", [one], 0)


def test_each_ack_of_an_exchange_says_of_its_own_task_how_long_its_id_stays() -> None:
    ends = Ends(AsyncQueue("q").talk, 100)
    ends.acks, ends.bare = [lease("a", 1)], [lease("b", 2)]
    ends.kept = [AckOfResult(lease("c", 3), None, 3_600_000, None)]
    (call,) = ends.take()
    words = call.call.command()
    assert [one.task for one in call.leases] == ["a", "b", "c"]
    assert words[words.index("bare") + 1 :][:2] == (1, 2)
    assert words[words.index("until") + 1 :][:3] == (2, 3, 3_600_000)


def found_by(task: str, number: int, tasks: int) -> AckOfFound:
    return AckOfFound(lease(task, number), arguments.tasks(([f"{task}/{i}" for i in range(tasks)],)))


def taken(ends: Ends, *most: int) -> list[list[str]]:
    return [[one.task for call in ends.take(some) for one in call.leases] for some in most]


def test_an_exchange_takes_only_acks_that_put_few_tasks_and_any_other_ends() -> None:
    ends = Ends(AsyncQueue("q").talk, 100)
    for number in range(4):
        ends.ack_found(found_by(f"p{number}", number, 30))
    ends.acks = [lease("found nothing", 9)]
    assert taken(ends, 60, 60, 60) == [["p0", "p1"], ["p2", "p3", "found nothing"], []]


def test_a_single_ack_may_put_any_number_of_found_tasks() -> None:
    ends = Ends(AsyncQueue("q").talk, 100)
    ends.ack_found(found_by("many", 1, 61))
    ends.ack_found(found_by("one", 2, 1))
    assert taken(ends, 60, 60) == [["many"], ["one"]]


def test_puts_before_an_ack_gather_for_a_quarter_of_a_second_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, now = Ends(AsyncQueue("q").talk, 100), 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    ends.put_first(found_by("a", 1, 1), arguments.tasks(("b",)))
    assert not ends.presses
    now += 0.2
    ends.put_first(found_by("c", 2, 1), arguments.tasks(("d",)))
    assert not ends.presses
    now += 0.05
    assert ends.presses


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([1] * 1200, [500, 500, 200]),
        ([Kept.MOST] * 9, [4, 4, 1]),
        ([BYTES // 8] * 7 + [Kept.MOST, 1, 1], [7, 3]),
        ([0] * 600 + [1], [500, 101]),
        ([Kept.MOST] * 4 + [0] * 3, [7]),
        ([], []),
    ],
    ids=["small", "large", "mixed", "without results", "large and without", "none"],
)
def test_acks_with_results_go_in_calls_of_500_leases_and_a_mebibyte(sizes: list[int], calls: list[int]) -> None:
    ends = Ends(AsyncQueue("q").talk, 100)
    for number, size in enumerate(sizes):
        kept = Kept(b"x" * size, 1000) if size else None
        ends.ack_found(AckOfFound(lease(f"t{number}", number), TaskList(), kept=kept, keep_ms=None if size else 0))
    assert len(ends) == len(sizes) == len(ends.leases("ack"))
    sent = ends.take()
    assert [len(call.leases) for call in sent] == calls
    assert [one.task for call in sent for one in call.leases] == [f"t{i}" for i in range(len(sizes))]
    assert sum(call.call.weight for call in sent) == sum(sizes)
    assert not ends and ends.leases() == []


@pytest.mark.parametrize(
    ("result", "seconds", "says"),
    [
        (None, 60, "without a result there is nothing to keep"),
        ("8", None, "result must be bytes, not '8'"),
        (b"", None, "result must not be empty"),
        (b"8", 0, "keep_result must be more than 0 seconds"),
    ],
)
def test_a_result_that_cannot_be_kept_is_refused(result: object, seconds: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Kept.of(result, seconds)


@pytest.mark.parametrize("size", [1, Kept.MOST])
def test_what_goes_with_a_result_is_so_much_less(size: int) -> None:
    found = arguments.tasks(({"a": b"x" * (BYTES - size - 3), "b": b"x", "c": b"xxx"},))
    ack, talk = AckOfFound(lease("t", 1), found, kept=Kept(b"x" * size, 1000)), AsyncQueue("q").talk
    assert ack.is_long
    assert [one.weight for _, one in ack.take_out([talk], talk)] == [4], "a byte says that it is bytes"
    assert not ack.is_long
    assert ack.call(talk.operations).call.weight == BYTES


def test_exchanges_are_short_while_few_tasks_end() -> None:
    pace = Pace(20, 0, 30.0, now=0.0)
    pace.ended(499, now=1.0)
    assert pace.found_at_once() == FOUND_AT_ONCE
    pace.ended(499 + 1_500, now=2.0)
    assert pace.found_at_once() == NO_LIMIT


def test_the_second_order_gives_everything_back_at_once() -> None:
    stopping = Life(25.0)
    assert (stopping.level, stopping.until) == (GO_ON, 0.0)
    assert not stopping.order(now=False)
    assert stopping.level == DRAIN
    assert stopping.order(now=False)
    assert stopping.level == AT_ONCE
    assert stopping.is_over(gets_on=True)
    assert stopping.why() == "the worker stops at once"


def test_an_order_to_a_worker_that_drains_by_itself_is_the_first_one() -> None:
    stopping = Life(25.0)
    stopping.order(now=False)
    stopping.by_itself = True
    stopping.begin_drain()
    assert not stopping.order(now=False)
    assert (stopping.level, stopping.until, stopping.by_itself) == (DRAIN, 0.0, False)


@pytest.mark.parametrize(
    ("by_itself", "gets_on", "over"), [(False, True, True), (True, True, False), (True, False, True)]
)
def test_a_drain_ends_at_its_deadline_unless_nobody_waits_and_acks_get_on(
    by_itself: bool, gets_on: bool, over: bool
) -> None:
    stopping = Life(0.0)
    stopping.order(now=False)
    stopping.by_itself = by_itself
    stopping.begin_drain()
    assert stopping.until <= time.monotonic()
    assert stopping.is_over(gets_on=gets_on) is over
    assert "drain deadline" in stopping.why()
