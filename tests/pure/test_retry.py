"""Retry policies: tenacity's objects as data, (attempt, error) -> seconds or give up; when pages and hosts are due."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.words.errors import InvalidInput
from timeoutq.words.retry import COUNTED, LONGEST, GiveUp, Recrawl, Retry, RetryPolicy, retry_after


def waits(policy: RetryPolicy, up_to: int = 10) -> list[float | None]:
    return [policy.decide(attempt, "boom") for attempt in range(1, up_to + 1)]


def test_a_list_waits_so_long_each_time_and_then_gives_up() -> None:
    assert waits(RetryPolicy.of([10, 30.5, timedelta(minutes=1)]), 5) == [10, 30.5, 60, None, None]


def test_the_usual_policy_grows_with_jitter_and_stops_after_five() -> None:
    found = waits(RetryPolicy.of(None), 6)
    assert found[4:] == [None, None]
    for attempt, wait in enumerate(found[:4]):
        assert wait is not None
        assert 2**attempt <= wait <= 2**attempt + 1
    assert len({RetryPolicy.of(None).decide(1, "") for _ in range(20)}) > 1


def test_a_wait_alone_stops_after_five() -> None:
    assert waits(RetryPolicy.of(tenacity.wait_fixed(7)), 6) == [7, 7, 7, 7, None, None]


def test_the_wait_of_an_attempt_of_any_number_is_computed_at_once_and_the_stop_sees_the_number() -> None:
    waited, stopped = list[int](), list[int]()

    def wait(state: tenacity.RetryCallState) -> float:
        waited.append(state.attempt_number)
        return 7.0

    def stop(state: tenacity.RetryCallState) -> bool:
        stopped.append(state.attempt_number)
        return False

    assert RetryPolicy(wait, stop).decide(10**30, "boom") == 7.0
    assert (waited, stopped) == ([COUNTED], [10**30])
    assert RetryPolicy(tenacity.wait_exponential_jitter(max=300), tenacity.stop_never).decide(COUNTED, "boom") == 300


def test_a_policy_may_look_at_the_exception() -> None:
    def by_kind(error: BaseException) -> float:
        return 60.0 if isinstance(error, TimeoutError) else 1.0

    policy = RetryPolicy.of(tenacity.wait_exception(by_kind))
    assert policy.decide(1, TimeoutError()) == 60
    assert policy.decide(1, ValueError()) == 1
    assert policy.decide(1, "only a text") == 1


def test_give_up_gives_up_on_the_first_attempt() -> None:
    assert RetryPolicy.of([10]).decide(1, GiveUp("gone")) is None
    assert str(GiveUp("gone")) == "gone"


def test_retry_sets_the_wait_but_the_stop_still_holds() -> None:
    policy = RetryPolicy.of([10, 20])
    assert policy.decide(1, Retry(after=99)) == 99
    assert policy.decide(1, Retry(after=timedelta(minutes=2))) == 120
    assert policy.decide(1, Retry(after=0)) == 0
    assert policy.decide(2, Retry(reason="not yet")) == 20
    assert policy.decide(3, Retry(after=99)) is None
    assert str(Retry(reason="not yet")) == "not yet"


@pytest.mark.parametrize("error", [Retry(5, "busy"), GiveUp("gone")])
def test_decisions_survive_copies_and_processes(error: Any) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(twin), vars(twin), str(twin)) == (type(error), vars(error), str(error))


@pytest.mark.parametrize("bad", [-1, float("nan"), "5", True, None])
def test_delays_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="finite number of seconds"):
        RetryPolicy.of([1, bad])
    if bad is not None:
        with pytest.raises(InvalidInput, match="finite number of seconds"):
            Retry(after=bad)


@pytest.mark.parametrize("bad", [5, "10,30", tenacity.wait_fixed])
def test_what_is_no_policy_is_refused_with_what_would_be_one(bad: Any) -> None:
    with pytest.raises(InvalidInput, match=r"wait_\*"):
        RetryPolicy.of(bad)


def test_wait_and_stop_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"stop_\* objects|wait_\* objects"):
        RetryPolicy.of((tenacity.stop_after_attempt(3), tenacity.wait_fixed(1)))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidInput, match=r"stop_\* objects"):
        RetryPolicy(tenacity.wait_fixed(1), tenacity.wait_fixed(1))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "stop",
    [
        tenacity.stop_after_delay(10),
        tenacity.stop_before_delay(10),
        tenacity.stop_after_attempt(3) | tenacity.stop_after_delay(10),
        tenacity.stop_never & (tenacity.stop_after_attempt(3) | tenacity.stop_before_delay(10)),
    ],
)
def test_a_stop_that_measures_time_is_refused_because_no_process_saw_the_first_attempt(stop: Any) -> None:
    with pytest.raises(InvalidInput, match=r"stop_(after|before)_delay cannot stop a task"):
        RetryPolicy.of((tenacity.wait_fixed(1), stop))
    with pytest.raises(InvalidInput, match="cannot stop a task"):
        RetryPolicy.of(stop)


def test_an_endless_wait_is_cut_to_a_year() -> None:
    policy = RetryPolicy.of((tenacity.wait_exponential(), tenacity.stop_never))
    assert policy.decide(5_000, "") == LONGEST


@pytest.mark.parametrize("said", [float("nan"), -1.0, None])
def test_a_policy_that_says_what_is_no_wait_is_named(said: Any) -> None:
    def odd(state: tenacity.RetryCallState) -> float:
        return said  # type: ignore[no-any-return]  # wrong on purpose

    with pytest.raises(InvalidInput, match="the wait of RetryPolicy"):
        RetryPolicy.of(odd).decide(1, "boom")


# ---- when a page is visited again

HOUR, DAY = 3600.0, 86_400.0


def test_a_page_is_first_visited_again_after_a_day() -> None:
    assert Recrawl().interval(None, changed=False) == Recrawl().interval(None, changed=True) == DAY
    assert Recrawl(first=2 * HOUR).interval(None, changed=True) == 2 * HOUR
    assert Recrawl(first=1).interval(None, changed=True) == HOUR  # no sooner than the shortest
    assert Recrawl(first=90 * DAY).interval(None, changed=True) == 30 * DAY


@pytest.mark.parametrize(
    "bad",
    [
        {"shortest": 0}, {"shortest": 60 * DAY}, {"longest": float("inf")}, {"first": "1d"}, {"faster": 1},
        {"slower": -0.1}, {"slower": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_bounds_that_leave_no_interval_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"Recrawl\(.* makes no sense: .*shortest <= longest"):
        Recrawl(**bad)


@pytest.mark.parametrize("last", ["3600", float("nan"), -1])
def test_a_last_interval_that_is_none_is_refused(last: Any) -> None:
    with pytest.raises(InvalidInput, match="the last interval must be a finite number of seconds"):
        Recrawl().interval(last, changed=True)


@st.composite
def recrawls(draw: st.DrawFn) -> Recrawl:
    shortest, longest = sorted((draw(st.floats(0.001, 1e9)), draw(st.floats(0.001, 1e9))))
    return Recrawl(
        draw(st.floats(0, 1e9)), shortest, longest, draw(st.floats(0, 1, exclude_max=True)), draw(st.floats(0, 100))
    )


@given(recrawls(), st.none() | st.floats(0, 1e12), st.lists(st.booleans(), min_size=1, max_size=50))
def test_an_interval_never_leaves_its_bounds(policy: Recrawl, last: float | None, visits: list[bool]) -> None:
    for changed in visits:
        last = policy.interval(last, changed=changed)
        assert policy.shortest <= last <= policy.longest


# ---- what a host asks for


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("1.5", 1.5),
        pytest.param("9" * 400, 3600, id="400 digits"),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 59),
        ("Fri, 31 Dec 1999 23:59:59", 59),
        ("Fri, 31 Dec 1999 23:00:00 GMT", None),
        ("", None),
        ("soon", None),
        ("Fri, 99 Dec 1999 99:59:59 GMT", None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    now = 946_684_740.0  # Fri, 31 Dec 1999 23:59:00 GMT
    assert retry_after(value, now, most=3600) == seconds
