"""The short forms of the rigs of functions: reruns, waits, chains, the order of queues, and storms."""

from __future__ import annotations

import asyncio
from pathlib import Path

import fakeredis
import pytest

from tests.rig import call_storm, chains, order, reruns, waits


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_follows_the_last_put_with_rerun_whatever_happens(seed: int) -> None:
    found = reruns.walk(1500, seed)
    assert found.reruns > 20


def test_a_walk_notices_a_mark_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    put = reruns.Walk.rerun

    def unmarked(self: reruns.Walk) -> None:
        put(self)
        fakeredis.FakeRedis(server=self.queue.clock.server).delete(self.queue.operations.key("rerun"))

    monkeypatch.setattr(reruns.Walk, "rerun", unmarked)
    with pytest.raises(AssertionError):
        reruns.walk(500, 1)


def test_workers_run_the_newest_arguments_of_an_id_last(tmp_path: Path) -> None:
    began, again = reruns.calls(tmp_path, 300)
    assert began > 10 and again > 10


def test_all_waits_of_a_process_share_one_blocked_connection_and_outlive_its_cuts() -> None:
    verdict = asyncio.run(waits.trial(500, 10, seconds=60))
    assert verdict.good, verdict.line()
    assert (verdict.waits, verdict.cuts) == (500, 10)


def test_no_chain_is_lost_and_no_function_runs_twice_while_the_server_is_full_or_stands_still() -> None:
    verdict = asyncio.run(chains.trial(40, 0.5, 1, 0.7, deadline=0.3, settled=0.0))
    assert verdict.good, verdict.line()


def test_an_urgent_call_begins_within_one_running_call_and_one_pick_up() -> None:
    found = asyncio.run(order.strict(15))
    assert found.good, found.line()


def test_weights_hold_while_all_queues_are_full() -> None:
    share = asyncio.run(order.weighted(2000))
    assert order.is_fair(share), share


@pytest.mark.breaking
def test_a_storm_over_calls_leaves_each_accounted_for(tmp_path: Path) -> None:
    verdict = call_storm.trial(tmp_path, seconds=8, workers=3, every=1.5, seed=3)
    assert verdict.good, verdict.line()
    assert verdict.held > 0, verdict.line()
    assert min(verdict.done, verdict.failed, verdict.cancelled, verdict.batches, verdict.ticks) > 0, verdict.line()
