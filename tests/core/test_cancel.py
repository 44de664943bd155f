"""Cancels of tasks that wait, and of tasks whose run ends in any way before or after the cancel; on real servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease, LeaseLost, Politeness, Queue, State, Task
from timeoutq.server.calls import Kept
from timeoutq.verbs import sending

HOST = "http://a.example/"


def meta(raw: redis.Redis, name: str) -> Any:
    return raw.hget(f"timeoutq:{{{name}}}:meta", "uses")


def answers(face: Any, calls: Any) -> list[Any]:
    return list(face.run(sending.answers(face.talk, calls)))


def test_a_task_that_waits_goes_to_failed_and_says_who_has_cancelled_it(face: Any, raw: redis.Redis, name: str) -> None:
    face.put("a")
    face.schedule("s", after=60)
    assert list(face.cancel("a", "s", "x", by="kim")) == ["cancelled", "cancelled", "unknown"]
    assert list(face.cancel("a", by="lee")) == ["failed"]
    for task in ("a", "s"):
        found = face.inspect(task)
        assert (found.state, found.error) == (State.FAILED, "cancelled by kim")
        assert face.why(task).code == "cancelled"
    assert face.claim() == []
    assert face.stats().counters["cancelled"] == 2
    assert face.errors() == [], "a cancel is no error of the queue"
    assert meta(raw, name) is None, "nothing in progress is marked"
    assert face.retry_failed("a") == 1
    assert face.claim()[0].task == "a"


def test_a_task_in_progress_is_marked_and_its_extension_says_so(face: Any, raw: redis.Redis, name: str) -> None:
    face.put("a", "b")
    leases = {lease.task: lease for lease in face.claim(2)}
    assert list(face.cancel("a", "a", by="kim")) == ["cancelling", "cancelling"]
    assert list(face.cancel("a", by="lee")) == ["cancelling"]
    found = face.inspect("a")
    assert (found.state, found.cancelled_by) == (State.IN_PROGRESS, "kim"), "who was first is told"
    assert face.why("a").code == "cancelling"
    before = face.inspect("a").deadline
    assert list(face.extend([leases["a"], leases["b"]], timeout=50)) == ["cancelled", "ok"]
    assert face.inspect("a").deadline > before, "the lease is extended: the handler may clean up"
    with pytest.raises(LeaseLost, match="'a' was cancelled"):
        face.extend(leases["a"])
    assert face.stats().counters["cancelling"] == 1
    assert face.release(leases["a"]) == "cancelled"
    assert face.inspect("a").error == "cancelled by kim"
    assert meta(raw, name) is None, "no task is marked any more"
    assert list(face.release([leases["b"]])) == ["ok"]


# ---- whatever ends first counts

End = Callable[[Any, Lease], object]
ENDS: dict[str, tuple[End, State]] = {
    "ack": (lambda face, lease: face.ack(lease), State.DONE),
    "ack with a result": (
        lambda face, lease: answers(face, face.operations.ack([lease], results={0: Kept(b"8", 9999)})),
        State.DONE,
    ),
    "ack and put": (lambda face, lease: face.ack(lease, put="found"), State.DONE),
    "ack for a time": (lambda face, lease: face.ack(lease, again_in=0), State.SCHEDULED),
    "give up": (lambda face, lease: face.fail(lease, "broken", give_up=True), State.FAILED),
    "retry": (lambda face, lease: face.fail(lease, "broken", retry_in=0), State.SCHEDULED),
    "release": (lambda face, lease: face.release(lease), State.TODOS),
    "release for a time": (lambda face, lease: face.release(lease, delay=60), State.SCHEDULED),
    "release of a handler": (
        lambda face, lease: answers(face, face.operations.release([lease], most=9)),
        State.TODOS,
    ),
    "crash": (lambda face, lease: answers(face, face.operations.crash([lease], "died")), State.TODOS),
    "expiry": (lambda face, lease: expire(face, lease), State.TODOS),
    "forget": (lambda face, lease: face.forget(lease.task), State.TODOS),
}
COUNTS = {"ack", "ack with a result", "ack and put", "give up", "forget"}
"""The ends after which the task would not run again: these count, though the task was cancelled before."""


def expire(face: Any, lease: Lease) -> None:
    face.extend([lease], timeout=0.01)
    wait_until(lambda: face.requeue_expired() == 1, 10)


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_ends_before_the_cancel_ends_as_ever(face: Any, end: str) -> None:
    face.put(HOST)
    lease = face.claim()[0]
    act, state = ENDS[end]
    act(face, lease)
    if end == "forget":
        assert list(face.cancel(HOST, by="kim")) == ["unknown"]
    elif state in (State.DONE, State.FAILED):
        assert list(face.cancel(HOST, by="kim")) == [state.value]
        assert face.inspect(HOST).error == ("broken" if state is State.FAILED else None)
    else:
        assert list(face.cancel(HOST, by="kim")) == ["cancelled"]
        assert face.inspect(HOST).error == "cancelled by kim"
        assert face.promote_due() == 0
    assert [one.task for one in face.claim(9)] == (["found"] if end == "ack and put" else [])


@pytest.mark.parametrize("rules", [None, Politeness(0, 1)], ids=["plain", "polite"])
@pytest.mark.parametrize("end", ENDS)
def test_a_cancelled_run_that_would_run_again_goes_to_failed(
    face: Any, raw: redis.Redis, name: str, end: str, rules: Politeness | None
) -> None:
    face.configure(politeness=rules or "off")
    face.put(HOST)
    lease = face.claim()[0]
    face.cancel(HOST, by="kim")
    act, state = ENDS[end]
    act(face, lease)
    found = face.inspect(HOST)
    if end in COUNTS:
        assert found.state is (None if end == "forget" else state)
        assert found.error == ("broken" if end == "give up" else None)
        assert "cancelled" not in face.stats().counters
    else:
        assert (found.state, found.error) == (State.FAILED, "cancelled by kim")
        assert face.results.look(HOST)[HOST].is_cancelled
        assert face.stats().counters["cancelled"] == 1
    assert "cancel" not in (meta(raw, name) or "").split()
    face.promote_due()
    assert [one.task for one in face.claim(9)] == (["found"] if end == "ack and put" else [])
    if rules is not None:
        face.put(f"{HOST}next")
        assert [one.task for one in face.claim()] == [f"{HOST}next"], "the place of the host is free"


@pytest.mark.parametrize("rules", [None, Politeness(0, 1)], ids=["plain", "polite"])
@pytest.mark.parametrize(
    "end",
    [
        lambda face, leases: face.ack(leases, again_in=0),
        lambda face, leases: face.fail(leases, "broken", retry_in=0),
        lambda face, leases: face.release(leases),
        lambda face, leases: answers(face, face.operations.crash(leases, "died")),
    ],
    ids=["ack for a time", "retry", "release", "crash"],
)
def test_a_cancelled_run_that_ends_twice_in_one_call_counts_once(
    face: Any, end: Callable[[Any, list[Lease]], object], rules: Politeness | None
) -> None:
    face.configure(politeness=rules or "off")
    face.put(HOST)
    leases = face.claim() * 2
    face.cancel(HOST, by="kim")
    end(face, leases)
    stats = face.stats()
    assert (stats.failed, stats.scheduled, stats.counters["cancelled"]) == (1, 0, 1)
    assert set(stats.counters.values()) == {1}
    assert [kind.count for kind in face.failures.list()] == [1]


def test_a_retried_task_is_not_cancelled_any_more(face: Any) -> None:
    face.put("a")
    lease = face.claim()[0]
    face.cancel("a")
    face.release(lease)
    face.retry_failed("a")
    again = face.claim()[0]
    assert list(face.extend([again])) == ["ok"]
    assert (again.attempt, again.crashes) == (1, 0)
    face.ack(again)


def test_a_cancel_that_is_sent_again_answers_as_before(queue: Queue) -> None:
    queue.put("a", "b", "c")
    queue.cancel("nobody's", by="kim")  # from here on the server has the script
    queue.fail(queue.claim(1), "no", give_up=True)
    ready, *_ = [task for task, state in queue.states("a", "b", "c").items() if state == "todos"]
    failed = next(task for task, state in queue.states("a", "b", "c").items() if state == "failed")
    (call,) = queue.operations.cancel(([ready, failed],), b"kim", queue.talk.nonce)
    for age in (0, 5):
        reply = queue.run(sending.ask(queue.talk, [call.command(age)]))[0]
        assert list(call.read(reply)) == ["cancelled", "failed"]
    assert queue.stats().counters["cancelled"] == 1


def test_the_places_and_lanes_of_hosts_are_given_up(queue: Queue) -> None:
    queue.configure(politeness=Politeness(0, 1))
    queue.put(f"{HOST}{i}" for i in range(4))
    (ready,) = [entry.task for entry in queue.list("todos")]
    waiting = [entry.task for entry in queue.list("waiting")]
    assert list(queue.cancel(ready, waiting[0])) == ["cancelled", "cancelled"]
    (lease,) = queue.claim(9)
    assert lease.task in waiting[1:], "the place went to another"
    assert queue.hosts.inspect("a.example").waiting == 1


def test_a_put_that_has_the_task_run_once_more_takes_the_cancel_back(queue: Queue) -> None:
    queue.configure(politeness=Politeness(0, 1))
    queue.put(HOST)
    (lease,) = queue.claim()
    queue.put(Task(HOST, {"n": 1}, priority=3), improve=True)
    queue.cancel(HOST)
    assert not queue.inspect(HOST).again, "what was put before the cancel is cancelled, too"
    queue.put(Task(HOST, {"n": 2}, priority=5), improve=True)
    assert queue.inspect(HOST).again
    assert list(queue.release([lease])) == ["ok"]
    (lease,) = queue.claim()
    assert lease.payload == {"n": 2}
    assert list(queue.extend([lease])) == ["ok"]


def test_a_cancel_wakes_the_cleaners(queue: Queue, raw: redis.Redis) -> None:
    queue.put("a")
    (lease,) = queue.claim()
    queue.run(sending.answer(queue.talk, queue.operations.plan(10_000)))
    before = raw.xrevrange(queue.operations.key("alarm"), count=1)
    queue.cancel("a")
    assert raw.xrevrange(queue.operations.key("alarm"), count=1) != before
    plan = queue.run(sending.answer(queue.talk, queue.operations.plan(10_000)))
    assert plan.cancelling == 1
    queue.ack(lease)
    assert queue.run(sending.answer(queue.talk, queue.operations.plan(10_000))).cancelling == 0


def test_a_retry_of_all_failed_tasks_leaves_those_that_somebody_has_cancelled(face: Any) -> None:
    face.put(f"t{i}" for i in range(1_200))
    face.put("sent by mistake", "unwanted")
    face.cancel("sent by mistake", "unwanted", by="ann")
    while leases := face.claim(500):
        for lease in leases:
            assert lease.task.startswith("t")
        face.fail(leases, "no", give_up=True)
    assert face.stats().failed == 1_202
    assert face.retry_failed(all=True) == 1_200
    assert sorted(entry.task for entry in face.list("failed").entries) == ["sent by mistake", "unwanted"]
    assert face.retry_failed(all=True) == 0
    assert face.retry_failed("unwanted") == 1
    assert face.retry_failed(all=True, cancelled=True) == 1
    with pytest.raises(InvalidInput, match="cancelled=True goes with all=True"):
        face.retry_failed("unwanted", cancelled=True)


def test_a_failure_whose_text_begins_as_a_cancel_does_is_a_failure(face: Any) -> None:
    face.put("order")
    (lease,) = face.claim()
    face.fail(lease, "cancelled by the shop", give_up=True)
    assert face.why("order").code == "failed"
    assert [kind.text for kind in face.failures.list()] == ["failed: cancelled by the shop"]
    assert face.retry_failed(all=True) == 1
