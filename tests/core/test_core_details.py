"""What a second look finds: records that follow a task, what an error tells, settings that change, many at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.rig.waiting import wait_until
from timeoutq import LeaseLost, Queue
from timeoutq.verbs import sending

# ---- records


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


# ---- many at once


def test_a_claim_brings_four_mebibytes_of_payloads_at_most(face: Any) -> None:
    face.put({f"large {i}": b"x" * 2**20 for i in range(9)})
    found: list[int] = []
    while leases := face.claim(9):
        found.append(len(leases))
        assert all(len(lease.payload) == 2**20 for lease in leases)
        face.ack(leases)
    assert found == [4, 4, 1]


@pytest.mark.parametrize(("size", "reads"), [(100, 4), (5000, 37)])
def test_a_claim_reads_small_payloads_by_the_hundred_and_others_by_eight(
    queue: Queue, raw: Any, size: int, reads: int
) -> None:
    queue.put({f"t{i}": b"x" * size for i in range(300)})
    queue.claim()  # from here on a claim asks nothing else for the first time
    raw.config_resetstat()
    assert len(queue.claim(292)) == 292
    assert raw.info("commandstats")["cmdstat_hmget"]["calls"] == reads + 1  # and the settings


def test_a_claim_of_many_says_which_have_failed_and_crashed_before(face: Any) -> None:
    face.put({f"t{i}": i for i in range(6)})
    leases = {lease.task: lease for lease in face.claim(6)}
    face.fail(leases.pop("t3"), "no", retry_in=0)
    face.run(sending.answers(face.talk, face.operations.crash([leases.pop("t1")], "died")))
    face.release(list(leases.values()))
    face.promote_due()
    again = {lease.task: (lease.attempt, lease.crashes) for lease in face.claim(6)}
    assert again == {f"t{i}": (1, 0) for i in range(6)} | {"t3": (2, 0), "t1": (1, 1)}


def test_rights_are_proved_once_and_then_a_call_is_one_script(face: Any, raw: Any) -> None:
    face.put("a", "b", "c")
    face.ack(face.claim())
    raw.config_resetstat()
    face.ack(face.claim())
    face.ack(face.claim(wait=1))
    assert raw.info("commandstats")["cmdstat_fcall"]["calls"] == 4


def test_a_task_that_is_not_kept_may_put_itself_again(queue: Queue) -> None:
    queue.configure(keep_done=0)
    queue.put({"a": 1})
    (lease,) = queue.claim()
    assert queue.ack(lease, put={"a": 2, "b": None}) == "ok"
    assert (queue.inspect("a").state, queue.inspect("a").payload) == ("todos", 2)
