"""What a second look finds: records that follow a task, what an error tells, settings that change, many at once."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.rig.waiting import wait_until
from timeoutq import LeaseLost, Queue, State
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.verbs.confirming import UNCONFIRMED

# ---- records


def test_a_payload_follows_its_task_until_it_is_done(face: Any) -> None:
    face.put({"a": {"depth": 3}})
    face.release(face.claim()[0])
    face.fail(face.claim()[0], "no", retry_in=0)
    face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    face.fail(face.claim()[0], "no", give_up=True)
    face.retry_failed("a")
    (lease,) = face.claim()
    assert lease.payload == {"depth": 3}
    face.ack(lease)
    assert face.inspect("a").payload is None


def test_putting_a_known_task_changes_nothing_of_it(face: Any) -> None:
    face.put({"a": 1})
    assert list(face.put({"a": 2})) == ["todos"]
    assert list(face.schedule({"a": 3}, after=60)) == ["todos"]
    assert face.inspect("a").payload == 1
    assert face.inspect("a").state is State.TODOS


def test_failures_and_crashes_are_counted_apart(face: Any) -> None:
    face.put("a")
    face.fail(face.claim()[0], "first", retry_in=0)
    face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    (lease,) = face.claim()
    assert (lease.attempt, lease.crashes) == (2, 1)
    face.fail(lease, "second", retry_in=60)
    info = face.inspect("a")
    assert (info.failures, info.crashes, info.error) == (2, 1, "second")


def test_a_task_that_crashed_too_often_and_is_put_again_has_a_clean_record(face: Any) -> None:
    face.configure(max_crashes=2)
    face.put("a")
    face.fail(face.claim()[0], "no", retry_in=0)
    for _ in range(2):
        face.claim(timeout=0.02)
        wait_until(face.requeue_expired)
    assert face.inspect("a").state is State.FAILED
    assert face.put("a", again=True).added == 1
    info = face.inspect("a")
    assert (info.failures, info.crashes, info.error) == (0, 0, None)


def test_scheduled_and_retried_tasks_come_no_sooner_than_they_should(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    face.fail(lease, "no", retry_in=0.15)
    due = face.inspect("a").due
    (lease,) = face.claim(wait=5)
    assert face.stats().now >= due
    assert lease.task == "a"


def test_an_error_is_kept_to_four_kilobytes(face: Any) -> None:
    face.put("a")
    face.fail(face.claim()[0], "x" * 100_000, give_up=True)
    assert len(face.inspect("a").error) == 4096
    assert len(face.errors()[0].error) == 4096


# ---- leases


def test_a_lease_lost_error_names_task_holder_state_and_cure(face: Any, url: str) -> None:
    face.put("https://example.com/")
    (late,) = face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    with Queue(face.name, url) as other:
        (lease,) = other.claim()
        with pytest.raises(LeaseLost, match="raise timeout=, extend while you work, or make the handler") as caught:
            face.ack(late)
        assert (caught.value.task, caught.value.holder) == ("https://example.com/", other.worker)
        assert caught.value.state == "in_progress"
        assert other.worker in str(caught.value)
        assert "'https://example.com/' ran out" in str(caught.value)
        other.ack(lease)
        with pytest.raises(LeaseLost, match="another worker has finished the task") as caught:
            face.release(late)
        assert (caught.value.holder, caught.value.state) == (None, "done")


def test_a_lease_on_a_task_that_was_moved_by_hand_does_not_blame_the_timeout(face: Any, raw: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    key = f"timeoutq:{{{face.name}}}:"
    raw.smove(f"{key}in_progress", f"{key}todos", "a")
    with pytest.raises(LeaseLost, match=r"the task is in todos now, though worker .* Somebody moved the task by hand"):
        face.ack(lease)
    raw.srem(f"{key}todos", "a")
    with pytest.raises(LeaseLost, match="the task is in no state now, though worker") as caught:
        face.release(lease)
    assert (caught.value.holder, caught.value.state) == (face.worker, None)
    assert "raise timeout=" not in str(caught.value)
    raw.sadd(f"{key}in_progress", "a")
    face.ack(lease)


def test_a_lease_that_was_ended_before_its_time_does_not_blame_the_timeout(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    face.fail(lease, "no", retry_in=60)
    with pytest.raises(LeaseLost, match="before its time was over and the task is in scheduled now: timeout= is not"):
        face.ack(lease)


def test_a_lease_that_ran_out_and_was_claimed_again_by_the_same_worker_says_so(face: Any) -> None:
    face.put("a")
    (late,) = face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    face.claim()
    with pytest.raises(LeaseLost, match=r"ran out .* and the same worker, .*, has claimed it again: raise timeout="):
        face.ack(late)


def test_an_extension_that_max_runtime_cuts_short_says_when_it_ends(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=1, max_runtime=2)
    longer = face.extend(lease, 60)
    assert longer.deadline == face.inspect("a").deadline
    assert longer.deadline == pytest.approx(lease.deadline + 1, abs=0.01)


def test_a_max_runtime_shorter_than_the_timeout_is_the_timeout(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=60, max_runtime=1)
    assert lease.deadline - face.stats().now <= 1


def test_a_new_lease_has_a_new_max_runtime(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=0.05, max_runtime=0.05)
    wait_until(face.requeue_expired)
    (again,) = face.claim(timeout=1)
    assert list(face.extend([again], 60)) == ["ok"]
    assert list(face.extend([lease], 60)) == ["lost"]


def test_a_batch_of_many_claims_is_answered_lease_by_lease(face: Any) -> None:
    face.put([f"t{i}" for i in range(40)])
    late = face.claim(10, timeout=0.02)
    wait_until(face.requeue_expired)
    held = [lease for _ in range(8) for lease in face.claim(5)]
    mixed = [lease for pair in zip(late, held, strict=False) for lease in pair]
    random.Random(1).shuffle(mixed)
    expected = ["ok" if lease in held else "lost" for lease in mixed]
    assert list(face.extend(mixed)) == expected
    assert list(face.ack(mixed)) == expected
    assert face.ack(held[10:]).ok == 30
    assert face.stats().done == 40


# ---- settings


@pytest.mark.parametrize("keep", [0, 4, timedelta(seconds=0.05)])
def test_keep_done_also_counts_for_tasks_that_were_done_before_it_was_set(face: Any, keep: Any) -> None:
    face.put([f"t{i}" for i in range(700)])
    for _ in range(2):
        face.ack(face.claim(500))
    face.configure(keep_done=keep)
    left = 4 if keep == 4 else 0
    wait_until(lambda: face.prune() == 0 and face.stats().done == left)
    assert face.stats().counters["pruned"] == 700 - left


def _is_past(face: Any, moment: float) -> bool:
    return bool(face.stats().now > moment)


def test_pruning_keeps_the_latest(face: Any) -> None:
    face.configure(keep_done=2)
    for task in ("first", "second", "third"):
        face.put(task)
        face.ack(face.claim())
        done_at = face.stats().now
        wait_until(partial(_is_past, face, done_at))
    assert face.prune() == 1
    assert {entry.task for entry in face.list("done").entries} == {"second", "third"}


def test_a_task_that_is_put_again_is_not_pruned_for_when_it_was_done(face: Any) -> None:
    face.configure(keep_done=1)
    face.put("a", "b")
    for _ in range(2):
        face.ack(face.claim())
    face.put("a", "b", again=True)
    assert face.prune() == 0
    assert face.stats().todos == 2


def test_settings_given_to_a_queue_are_shared_by_all_its_clients(url: str, name: str) -> None:
    with Queue(name, url, max_crashes=1, keep_done=0) as one, Queue(name, url) as other:
        one.put("a", "b")
        other.claim(1, timeout=0.02)
        wait_until(other.requeue_expired)
        assert other.stats().failed == 1
        other.ack(other.claim(1))
        assert other.stats().done == 0


# ---- many at once


def test_a_task_is_done_once_although_its_leases_are_too_short_and_its_holders_unreliable(
    url: str, queue: Queue
) -> None:
    """Six clients claim with leases that often run out; some never answer, some answer late, all clean."""
    names = [f"t{i}" for i in range(150)]
    queue.configure(max_crashes=1_000)
    queue.put(names)
    accepted: list[str] = []
    given: list[tuple[str, int, float]] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        with Queue(queue.name, url) as own:
            kept: list[Any] = []
            while not own.drained():
                for lease in own.claim(chance.randint(1, 8), timeout=0.03, wait=0.05):
                    given.append((lease.task, lease.fence, lease.deadline))
                    kept.append(lease)
                chance.shuffle(kept)
                act, kept = kept[:5], kept[5:15]
                what = chance.random()
                if what < 0.5:
                    accepted.extend(
                        lease.task for lease, answer in zip(act, own.ack(act), strict=True) if answer == "ok"
                    )
                elif what < 0.7:
                    own.extend(act, 0.05)
                    kept += act
                elif what < 0.8:
                    own.release(act)
                elif what < 0.9:
                    own.fail(act, "no", retry_in=0.01)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(accepted) == sorted(names)
    fences = [fence for _, fence, _ in given]
    assert len(set(fences)) == len(fences)
    for name in names:
        # whoever had it later, by fence, also had it until later: leases on one task do not overlap backwards
        mine = sorted((fence, deadline) for task, fence, deadline in given if task == name)
        assert [deadline for _, deadline in mine] == sorted(deadline for _, deadline in mine)
    counters = queue.stats().counters
    ended = counters["acked"] + counters.get("released", 0) + counters.get("failed", 0) + counters.get("expired", 0)
    assert counters["claimed"] == ended


def test_a_claim_brings_four_mebibytes_of_payloads_at_most(face: Any) -> None:
    face.put({f"large {i}": b"x" * 2**20 for i in range(9)})
    found: list[int] = []
    while leases := face.claim(9):
        found.append(len(leases))
        assert all(len(lease.payload) == 2**20 for lease in leases)
        face.ack(leases)
    assert found == [4, 4, 1]


def test_a_worker_that_has_left_is_not_counted_any_more(face: Any) -> None:
    def beat(worker: str, about: dict[str, int] | None) -> int:
        return int(face.run(sending.answer(face.talk, face.operations.beat(worker, about))))

    assert beat("w:1:a", {"pid": 1}) == 1
    assert beat("w:2:b", {"pid": 2}) == 2
    assert beat("w:1:a", None) == 1
    assert face.stats().workers == 1
    assert [one.worker for one in face.workers()] == ["w:2:b"]


def test_rights_are_proved_once_and_then_a_call_is_one_script(face: Any, raw: Any) -> None:
    face.put("a", "b", "c")
    face.ack(face.claim())
    raw.config_resetstat()
    face.ack(face.claim())
    face.ack(face.claim(wait=1))
    assert raw.info("commandstats")["cmdstat_fcall"]["calls"] == 4


@pytest.mark.parametrize(("met", "again"), [([ResponseError("LOADING the data")], True), (TimeoutError("cut"), False)])
def test_after_fifty_seconds_only_a_call_is_sent_again_that_surely_has_not_run(
    met: Any, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with fake_queue() as queue:
        talk = replace(queue.talk, deadline=300.0, proved=True)
        flow = sending.settle(talk, talk.operations.put(("a",), talk.nonce), UNCONFIRMED)
        next(flow)
        now[0] += 51.0
        try:
            step: object = flow.send(met)
        except StopIteration:
            step = None
        assert isinstance(step, sending.Sleep) == again


def test_nothing_is_sent_for_calls_of_which_there_are_none(queue: Queue) -> None:
    with pytest.raises(StopIteration) as ended:
        next(sending.settle(queue.talk, []))
    assert ended.value.value == []
