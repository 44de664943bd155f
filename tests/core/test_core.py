"""The operations, as transcripts, on both faces and both servers."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, LeaseLost, Queue, State
from timeoutq.verbs import sending


def ids(leases: Any) -> set[str]:
    return {lease.task for lease in leases}


# ---- tasks in


def test_put_says_for_each_id_what_it_found(face: Any) -> None:
    assert list(face.put("a", "b")) == ["added", "added"]
    face.schedule("s", after=60)
    (lease,) = face.claim()
    other = "b" if lease.task == "a" else "a"
    assert list(face.put(lease.task, other, "s", "new")) == ["in_progress", "todos", "scheduled", "added"]
    face.ack(lease)
    assert list(face.put(lease.task)) == ["done"]
    assert list(face.put(lease.task, lease.task)) == ["done", "done"]
    (lease,) = face.claim()
    face.fail(lease, "no", give_up=True)
    assert list(face.put(lease.task)) == ["failed"]
    assert list(face.put(lease.task, lease.task, "other")) == ["failed", "failed", "added"]


def test_put_again_brings_done_and_failed_tasks_back_with_a_clean_record(face: Any) -> None:
    face.put("a", "b")
    first, second = face.claim(2)
    face.ack(first)
    face.fail(second, "no", give_up=True)
    assert list(face.put("a", "b", again=True)) == ["added", "added"]
    assert face.inspect(second.task).failures == 0
    assert face.inspect(second.task).error is None
    assert face.stats().todos == 2


def test_payloads_come_back_as_they_were(face: Any) -> None:
    face.put({"json": {"depth": [1, None, "é"]}, "bytes": b"\x00\xff", "none": None})
    got = {lease.task: lease.payload for lease in face.claim(3)}
    assert got == {"json": {"depth": [1, None, "é"]}, "bytes": b"\x00\xff", "none": None}


def test_more_ids_than_one_script_takes(face: Any) -> None:
    names = [f"t{i}" for i in range(1733)]
    assert face.put(iter(names)).added == 1733
    assert face.put(names).counts() == {"todos": 1733}
    leases = [lease for _ in range(4) for lease in face.claim(500)]
    assert ids(leases) == set(names)
    assert face.extend(leases).ok == 1733
    assert face.ack(leases).ok == 1733
    assert face.stats().done == 1733


def test_schedule_at_and_after_and_earlier_and_later(face: Any) -> None:
    now = face.stats().now
    assert list(face.schedule("a", at=now + 100)) == ["added"]
    assert list(face.schedule("b", at=datetime.fromtimestamp(now + 200, UTC))) == ["added"]
    assert list(face.schedule("c", after=300)) == ["added"]
    assert [entry.task for entry in face.list("scheduled").entries] == ["a", "b", "c"]
    assert list(face.schedule("c", at=int(now) + 50)) == ["scheduled"]
    assert list(face.schedule("a", after=1000)) == ["scheduled"]
    assert [entry.task for entry in face.list("scheduled").entries] == ["c", "b", "a"]
    assert face.inspect("c").due == int(now) + 50
    assert face.claim() == []


# ---- leases


def test_a_lease_is_a_task_a_token_and_a_deadline(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=7)
    info = face.inspect("a")
    assert info.state is State.IN_PROGRESS
    assert info.holder == lease.holder == face.worker
    assert 6.5 < info.lease_left <= 7
    assert lease.deadline == info.deadline
    assert lease.attempt == 1


def test_a_put_leaves_one_stroke_of_the_bell(queue: Queue, raw: redis.Redis) -> None:
    queue.put("a", "b")
    queue.put("c")
    assert raw.lrange(queue.operations.key("bell"), 0, -1) == ["1"]
    raw.delete(queue.operations.key("bell"))  # a worker that was woken, and died: the next put wakes another
    queue.put("d")
    assert raw.lrange(queue.operations.key("bell"), 0, -1) == ["1"]


def test_a_claim_that_leaves_tasks_leaves_one_stroke_of_the_bell(queue: Queue, raw: redis.Redis) -> None:
    bell = queue.operations.key("bell")
    queue.put("a", "b", "c", "d", "e")
    for n in (1, 2):  # behind it and beside it, the bell has one
        assert len(queue.claim(n)) == n
        assert raw.lrange(bell, 0, -1) == ["1"]
    raw.delete(bell)
    assert len(queue.claim(1)) == 1
    assert raw.lrange(bell, 0, -1) == ["1"], "for the one that is left"


def test_tasks_that_come_back_one_by_one_leave_one_stroke_of_the_bell(queue: Queue, raw: redis.Redis) -> None:
    bell = queue.operations.key("bell")
    queue.put("a", "b")
    first, second = queue.claim(2)
    raw.delete(bell)
    for lease in (first, second):
        queue.release(lease)
        assert raw.lrange(bell, 0, -1) == ["1"]


def test_stats_tell_since_when_tasks_are_ready(queue: Queue, raw: redis.Redis) -> None:
    queue.put("a")
    raw.hset(queue.operations.key("stats"), "todos_since", 1000)
    queue.put("b")
    assert queue.stats().todos_since == 1.0
    queue.pull(2)
    queue.put("c")
    assert (queue.stats().todos_since or 0) > 1.0


def test_a_claim_of_many_workers_takes_its_share_of_a_short_queue(queue: Queue) -> None:
    queue.put([f"t{i}" for i in range(10)])
    claims = [queue.operations.claim(queue.token(), 100, 5000, share=2) for _ in range(3)]
    found = [queue.run(sending.answer(queue.talk, claim)) for claim in claims]
    assert [len(each.leases) for each in found] == [5, 3, 1]


def test_a_put_wakes_who_waits(face: Any, url: str) -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(face.claim(wait=10)))
    thread.start()
    with Queue(face.name, url) as other, redis.Redis.from_url(url) as client:
        raw: Any = client
        wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
        began = time.monotonic()
        other.put("a")
        thread.join()
    assert ids(got) == {"a"}
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("how", ["due", "lease"])
def test_who_waits_wakes_for_what_becomes_ready_by_time(face: Any, how: str) -> None:
    if how == "due":
        face.schedule("a", after=0.3)
    else:
        face.put("a")
        face.claim(timeout=0.3)
    began = time.monotonic()
    assert ids(face.claim(wait=5)) == {"a"}
    assert 0.2 < time.monotonic() - began < 1.5


def test_extend_moves_the_deadline_and_the_lock(face: Any, url: str) -> None:
    face.put("a", "b")
    one, two = face.claim(2, timeout=1)
    longer = face.extend(one, 60)
    assert longer.deadline > one.deadline + 50
    assert list(face.extend([two], 60)) == ["ok"]
    with redis.Redis.from_url(url) as client:
        raw: Any = client
        assert raw.pttl(f"timeoutq:{{{face.name}}}:lock:a") > 50_000


def test_a_lease_that_ran_out_counts_while_nobody_took_the_task_back(face: Any) -> None:
    face.put("a", "b")
    one, two = face.claim(2, timeout=0.02)
    wait_until(lambda: face.inspect("a").lease_left < 0)
    assert face.extend(one, 5).deadline > one.deadline
    assert face.ack(two) == "ok"
    assert face.ack(one) == "ok"


def test_an_expired_lease_that_was_taken_back_can_do_nothing(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    for act in (face.ack, face.release, face.extend, lambda lease: face.fail(lease, "x")):
        with pytest.raises(LeaseLost, match="the task is in todos now"):
            act(lease)
    assert list(face.ack([lease])) == ["lost"]
    assert list(face.extend([lease])) == ["lost"]
    assert face.stats().counters["expired"] == 1


def test_who_lost_a_lease_can_end_nothing_while_another_holds_the_task(face: Any) -> None:
    face.put("a")
    (lost,) = face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    (held,) = face.claim(timeout=60)
    ends = [face.ack, face.release, lambda lease: face.fail(lease, "no"), face.extend]
    for end in ends:
        with pytest.raises(LeaseLost):
            end(lost)
    assert face.stats().in_progress == 1
    assert list(face.ack([lost])) == ["lost"]
    assert face.ack(held) == "ok"


def test_an_ack_puts_what_it_found_in_the_same_step(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    assert face.ack(lease, put=["a", "b", "c"]) == "ok"
    stats = face.stats()
    assert (stats.todos, stats.done) == (2, 1)
    with pytest.raises(InvalidInput, match="one lease"):
        face.ack([lease], put=["x"])


def test_a_lost_lease_puts_nothing(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    with pytest.raises(LeaseLost):
        face.ack(lease, put=["b"])
    assert face.stats().known == 1


def test_a_lease_says_how_many_leases_of_its_task_were_lost(face: Any) -> None:
    face.put("a")
    face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    (lease,) = face.claim()
    assert (lease.attempt, lease.crashes) == (1, 1)


def test_release_costs_no_attempt(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    assert face.release(lease) == "ok"
    (lease,) = face.claim()
    assert (lease.attempt, lease.crashes) == (1, 0)
    assert face.release([lease], delay=30).ok == 1
    assert face.inspect("a").state is State.SCHEDULED


def test_fail_schedules_another_attempt_or_gives_up(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    assert face.fail(lease, ValueError("bad page"), retry_in=0.02) == "ok"
    info = face.inspect("a")
    assert (info.state, info.failures, info.error) == (State.SCHEDULED, 1, "ValueError: bad page")
    (lease,) = face.claim(wait=5)
    assert lease.attempt == 2
    face.fail(lease, "no", give_up=True)
    assert face.inspect("a").state is State.FAILED
    assert [failure.error for failure in face.errors()] == ["no", "ValueError: bad page"]
    with pytest.raises(InvalidInput, match="not both"):
        face.fail(lease, "x", retry_in=1, give_up=True)


def test_pull_takes_for_good(face: Any) -> None:
    face.put({"a": 1, "b": 2})
    assert {task.task: task.payload for task in face.pull(5)} == {"a": 1, "b": 2}
    assert face.pull() == []
    assert face.stats().done == 2


def test_max_runtime_ends_a_lease_that_is_extended_for_ever(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=0.2, max_runtime=0.5)
    answers: set[str] = set()
    until = time.monotonic() + 5
    while time.monotonic() < until and "max_runtime" not in answers:
        answers |= {str(answer) for answer in face.extend([lease])}
    assert answers == {"ok", "max_runtime"}
    with pytest.raises(LeaseLost, match="max_runtime"):
        face.extend(lease)
    assert face.requeue_expired() == 1


def test_a_queue_uses_the_limits_of_leases_until_prune_finds_none(queue: Queue) -> None:
    queue.put("a", "b")
    (first,) = queue.claim(1, max_runtime=50)
    (second,) = queue.claim(1)
    assert queue.stats().settings["uses"] == "runtime"
    queue.ack(second)
    queue.prune()
    assert queue.stats().settings["uses"] == "runtime", "a lease has one"
    queue.ack(first)
    queue.prune()
    assert queue.stats().settings.get("uses", "") == ""


def test_a_task_that_lost_two_leases_is_handed_out_alone(face: Any) -> None:
    face.put("bad")
    for _ in range(2):
        assert face.claim(timeout=0.02)
        wait_until(face.requeue_expired)
    face.put([f"t{i}" for i in range(20)])
    batches: list[set[str]] = []
    while found := face.claim(5):
        batches.append(ids(found))
    assert {"bad"} in batches
    assert all(len(batch) == 1 or "bad" not in batch for batch in batches)
    assert sum(map(len, batches)) == 21


def test_a_task_that_lost_five_leases_fails_with_the_reason(face: Any) -> None:
    face.put("bad")
    for _ in range(5):
        assert face.claim(timeout=0.02)
        wait_until(face.requeue_expired)
    info = face.inspect("bad")
    assert (info.state, info.crashes) == (State.FAILED, 5)
    assert "crash 5 of 5" in info.error
    assert face.retry_failed("bad") == 1
    assert face.inspect("bad").crashes == 0


def test_fences_grow(face: Any) -> None:
    face.put([f"t{i}" for i in range(30)])
    fences = [lease.fence for _ in range(6) for lease in face.claim(5)]
    assert fences == sorted(set(fences))
    assert len(fences) == 30


# ---- the operator's


def test_retry_failed_takes_some_or_all(face: Any) -> None:
    face.put([f"t{i}" for i in range(520)])
    for _ in range(2):
        face.fail(face.claim(500), "x", give_up=True)
    assert face.inspect("t1").failures == 1
    assert face.retry_failed("t1", "nothing") == 1
    assert face.inspect("t1").failures == 0
    assert face.retry_failed([]) == 0
    for tasks, how in ((), {}), (("t1",), {"all": True}), ((), {"all": "yes"}):
        with pytest.raises(InvalidInput, match="all") as refused:
            face.retry_failed(*tasks, **how)
        assert how or "pass all=True to retry all" in str(refused.value)
    assert face.stats().failed == 519
    assert face.retry_failed(all=True) == 519
    assert face.stats().failed == 0


def test_forget_removes_from_every_state(face: Any) -> None:
    face.put("t", "p", "d", "f")
    leases = {lease.task: lease for lease in face.claim(4)}
    face.ack(leases["d"])
    face.fail(leases["f"], "x", give_up=True)
    face.release(leases["t"])
    face.schedule("s", after=9)
    assert list(face.forget("t", "p", "d", "f", "s", "u")) == [
        "todos", "in_progress", "done", "failed", "scheduled", "unknown",
    ]  # fmt: skip
    assert face.stats().known == 0
    with pytest.raises(LeaseLost, match="forgotten"):
        face.ack(leases["p"])
    assert face.stats().known == 0


def test_stats_add_up(face: Any) -> None:
    face.put("a", "b", "c")
    face.ack(face.claim(1)[0])
    face.schedule("s", after=60)
    stats = face.stats()
    assert stats.known == 4 == stats.todos + stats.scheduled + stats.in_progress + stats.done + stats.failed
    assert stats.counters["put"] == 4
    assert stats.next_due is not None
    assert not stats.drained


def test_pause_stops_claims_and_resume_wakes_them(face: Any, url: str) -> None:
    face.put("a")
    face.pause()
    assert face.stats().paused
    assert face.claim() == []
    assert face.pull() == []
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(face.claim(wait=10)))
    thread.start()
    with Queue(face.name, url) as other:
        other.resume()
    thread.join()
    assert ids(got) == {"a"}


def test_drained_is_one_answer_over_all_states(face: Any) -> None:
    assert face.drained()
    face.schedule("a", after=100)
    assert not face.drained()
    assert face.drained(before=face.stats().now + 50)
    assert not face.drained(before=face.stats().now + 200)
    face.put("b")
    (lease,) = face.claim()
    assert not face.drained(before=1)
    face.ack(lease)
    assert face.drained(before=1)
    assert face.wait_drained(timeout=0, before=face.stats().now + 50)
    assert not face.wait_drained(timeout=0)


def test_purge_leaves_nothing(face: Any, url: str) -> None:
    face.put({f"t{i}": i for i in range(1200)})
    for _ in range(2):
        face.claim(500, timeout=60, max_runtime=90)
    face.purge()
    with redis.Redis.from_url(url) as raw:
        assert list(raw.scan_iter(f"timeoutq:{{{face.name}}}:*")) == []


@pytest.mark.parametrize("keep", [0, 3, timedelta(seconds=0.05)])
def test_done_tasks_are_kept_as_long_as_asked(face: Any, keep: Any) -> None:
    face.configure(keep_done=keep)
    face.put([f"t{i}" for i in range(10)])
    face.ack(face.claim(10))
    assert face.stats().done == (0 if keep == 0 else 10)
    if keep == 0:
        assert list(face.put("t1")) == ["added"]
    elif keep == 3:
        assert face.prune() == 7
        assert face.stats().done == 3
    else:
        wait_until(lambda: face.prune() and face.stats().done == 0)


def test_nothing_is_left_of_a_done_task_but_its_id(face: Any, url: str) -> None:
    face.put({"a": {"x": 1}})
    (lease,) = face.claim()
    face.fail(lease, "once", retry_in=0)
    (lease,) = face.claim(wait=1)
    face.ack(lease)
    with redis.Redis.from_url(url) as client:
        raw: Any = client
        for what in ("payload", "attempts", "crashes", "errors", "owners", "leases"):
            assert raw.exists(f"timeoutq:{{{face.name}}}:{what}") == 0
