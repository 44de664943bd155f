"""A crawl by worker processes, some of which are killed: no visit of a host begins too soon, by the site's log."""

from __future__ import annotations

import asyncio

from tests.rig.spacing import PAIRS, Pair, Visit, judge, trial


def test_no_host_is_visited_too_soon() -> None:
    rows = asyncio.run(trial(20))
    assert [line for row in rows for line in row.early] == []
    assert [row for row in rows if row.visits < row.pair.places] == []


def visit(url: str, claimed: float, start: float, end: float, *, broken: bool = False) -> Visit:
    return Visit(url, claimed, start, end, broken)


def test_the_judge_sees_what_begins_after_an_end_that_the_queue_had_heard_of() -> None:
    pair = Pair(0, 8, 0.2)
    first, second = visit("a", 1.0, 1.01, 1.05), visit("b", 1.1, 1.11, 1.2)
    row = judge(pair, [first, second], {"a": [1.06]})
    assert (len(row.early), round(row.gap, 2)) == (1, 0.06)
    assert judge(pair, [first, visit("b", 1.26, 1.27, 1.3)], {"a": [1.06]}).early == []


def test_what_was_claimed_before_the_queue_had_heard_is_counted_apart() -> None:
    row = judge(Pair(0, 8, 0.2), [visit("a", 1.0, 1.01, 1.05), visit("b", 1.055, 1.06, 1.2)], {"a": [1.07]})
    assert (row.early, row.unheard) == ([], 1)


def test_the_visit_of_a_killed_worker_ends_with_its_lease() -> None:
    first = visit("a", 1.0, 1.01, 1.05, broken=True)
    row = judge(PAIRS[0], [first, visit("b", 3.1, 3.11, 3.2)], {"a": [3.0]})
    assert (len(row.early), round(row.gap, 2)) == (1, 0.11)
