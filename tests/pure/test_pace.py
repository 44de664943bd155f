"""How many tasks a worker claims and holds, without a queue and without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.server.calls import BATCH
from timeoutq.worker.decisions import ENOUGH, Pace


def at_work(rate: int, *, trip: float = 0.005, timeout: float = 60.0, prefetch: int | None = None) -> Pace:
    """Give the pace of a worker with 100 handlers, of which `rate` end in a second; an exchange takes `trip`."""
    pace = Pace(100, prefetch, timeout, now=0.0)
    pace.ended(rate, 1.0)
    for _ in range(100):
        pace.took(trip)
    return pace


def test_an_idle_worker_claims_for_all_its_handlers_and_nothing_ahead() -> None:
    pace = Pace(100, None, 60.0, now=0.0)
    assert pace.ahead() == 0
    assert pace.wanted(0, 0, 0, plenty=False) == 100


def test_what_runs_waits_or_comes_already_is_not_claimed_again() -> None:
    pace = Pace(100, 0, 60.0, now=0.0)
    assert pace.wanted(running=50, unstarted=10, claiming=20, plenty=False) == 20
    assert pace.wanted(running=100, unstarted=0, claiming=0, plenty=False) == 0
    assert pace.wanted(running=100, unstarted=50, claiming=50, plenty=False) == 0


def test_a_few_free_slots_are_not_claimed_for_while_other_tasks_are_at_hand() -> None:
    pace = Pace(100, 0, 60.0, now=0.0)
    assert pace.wanted(running=87, unstarted=1, claiming=0, plenty=False) == 12
    assert pace.wanted(running=88, unstarted=1, claiming=0, plenty=False) == 0
    assert pace.wanted(running=99, unstarted=0, claiming=0, plenty=False) == 1


def test_a_worker_that_may_run_few_tasks_more_claims_no_more_than_those() -> None:
    pace = Pace(100, None, 60.0, now=0.0)
    assert pace.wanted(0, 0, 0, still_to_run=3, plenty=False) == 3
    assert pace.wanted(0, 0, 0, still_to_run=0, plenty=False) == 0
    assert pace.wanted(5, 0, 0, still_to_run=-2, plenty=False) == 0


def test_a_quick_worker_holds_what_its_handlers_end_in_two_exchanges_and_ten_milliseconds() -> None:
    assert at_work(10_000, trip=0.005).ahead() == pytest.approx(10_000 * 0.02, abs=5)


def test_after_an_exchange_in_which_the_server_stood_still_little_more_is_held() -> None:
    pace = at_work(200)
    assert pace.ahead() == 4
    pace.took(5.0)
    assert pace.ahead() <= 15
    for _ in range(4):
        pace.took(5.0)  # it has become so slow
    assert pace.ahead() > 500


def test_no_more_is_held_than_is_done_in_a_third_of_a_lease() -> None:
    assert at_work(100, trip=2.0, timeout=0.3).ahead() == 10


def test_no_more_is_held_than_four_claims_bring_however_fast_tasks_end() -> None:
    assert at_work(10_000_000).ahead() == 4 * BATCH


@pytest.mark.parametrize("prefetch", [0, 7])
def test_a_prefetch_that_is_given_is_kept_whatever_is_measured(prefetch: int) -> None:
    assert at_work(100_000, prefetch=prefetch).ahead() == prefetch


def test_an_exchange_beside_another_one_must_be_worth_it() -> None:
    pace = Pace(100, None, 60.0, now=0.0)
    assert pace.is_worth(1, 0, under_way=0) and pace.is_worth(0, 1, under_way=0)
    assert not pace.is_worth(0, 0, under_way=0)
    assert not pace.is_worth(24, 24, under_way=1)
    assert pace.is_worth(25, 0, under_way=1) and pace.is_worth(0, 25, under_way=1)
    assert Pace(2, None, 60.0, now=0.0).is_worth(1, 0, under_way=1)
    assert not Pace(10_000, None, 60.0, now=0.0).is_worth(ENOUGH - 1, 0, under_way=1)


@given(
    st.integers(1, 2000), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 1000), st.integers(0, 100_000),
    st.booleans(),
)  # fmt: skip
def test_a_claim_never_asks_for_more_than_there_is_room_for(
    concurrency: int, running: int, unstarted: int, claiming: int, rate: int, plenty: bool
) -> None:
    pace = Pace(concurrency, None, 60.0, now=0.0)
    pace.ended(rate, 1.0)
    want = pace.wanted(running, unstarted, claiming, plenty=plenty)
    assert 0 <= want <= BATCH
    assert want == 0 or running + unstarted + claiming + want <= concurrency + pace.ahead()
    if not running + unstarted + claiming:
        assert want > 0
