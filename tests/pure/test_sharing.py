"""How lanes share a worker: the strict order and the weights, without any queue."""

from __future__ import annotations

from collections import Counter

import pytest

from timeoutq.worker.decisions import Appetite, Strict, Weighted

HUNGRY, FULL = Appetite(hungry=True), Appetite(hungry=False)


def served(sharing: Strict, lanes: list[Appetite], places: int, times: int) -> Counter[int]:
    """Give how many tasks each lane gets when each claim brings what it asks for, lane after lane."""
    found = Counter[int]()
    for _ in range(times):
        left = places
        for lane in range(len(lanes)):
            n = sharing.portion(lane, left, lanes) if left else 0
            sharing.came(lane, n)
            found[lane] += n
            left -= n
    return found


def test_a_lower_lane_has_nothing_while_one_above_it_is_hungry() -> None:
    strict = Strict()
    assert [strict.portion(lane, 10, [HUNGRY, HUNGRY, HUNGRY]) for lane in range(3)] == [10, 0, 0]
    assert [strict.portion(lane, 10, [FULL, HUNGRY, HUNGRY]) for lane in range(3)] == [10, 10, 0]
    assert [strict.rank(lane) for lane in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("places", [1, 2, 7, 100])
@pytest.mark.parametrize("weights", [[3, 1], [1, 1], [5, 3, 2], [1, 10]])
def test_weights_are_kept_to_the_task(weights: list[int], places: int) -> None:
    times = 1000
    found = served(Weighted(weights), [HUNGRY] * len(weights), places, times)
    total = found.total()
    assert total >= times * places * 0.9
    for lane, weight in enumerate(weights):
        assert found[lane] == pytest.approx(total * weight / sum(weights), abs=places + 2)


def test_what_one_lane_does_not_need_goes_to_the_others() -> None:
    found = served(Weighted([3, 1, 1]), [FULL, HUNGRY, HUNGRY], 10, 100)
    assert found[0] == 0
    assert found.total() == pytest.approx(1000, abs=20)
    assert found[1] == pytest.approx(found[2], abs=12)


@pytest.mark.parametrize(("meanwhile", "share"), [(Appetite(hungry=False, late=True), 100), (FULL, 50)])
def test_a_lane_whose_server_was_late_catches_up_and_one_that_was_empty_has_saved_nothing(
    meanwhile: Appetite, share: int
) -> None:
    weighted = Weighted([1, 1])
    assert served(weighted, [HUNGRY, meanwhile], 10, 10) == {0: 100, 1: 0}
    assert served(weighted, [HUNGRY, HUNGRY], 10, 10)[1] == pytest.approx(share, abs=6)


def test_workers_that_start_do_not_all_begin_with_the_same_queue() -> None:
    first = Counter[int]()
    for _ in range(200):
        weighted = Weighted([1, 1])
        first[next(lane for lane in range(2) if weighted.portion(lane, 1, [HUNGRY, HUNGRY]))] += 1
    assert min(first[0], first[1]) > 50
