"""Puts with rerun: a run of each task begins after the put, with the newest payload; on both faces and both servers."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Lease, Politeness, Task
from timeoutq.server.calls import Kept
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.words import arguments


def claim_one(face: Any) -> Lease:
    (lease,) = face.claim()
    found: Lease = lease
    return found


def test_a_task_in_progress_runs_once_more_with_the_newest_payload_and_a_clean_record(face: Any) -> None:
    face.put({"a": 1})
    face.fail(claim_one(face), "no", retry_in=0)
    wait_until(lambda: face.promote_due() or face.stats().todos)
    lease = claim_one(face)
    assert lease.attempt == 2
    assert [face.put({"a": payload}, rerun=True)[0] for payload in (2, 3)] == ["rerun", "rerun"]
    assert face.put("a", rerun=True)[0] == "rerun", "without a payload, the newest one counts"
    assert face.put({"a": 4})[0] == "in_progress", "a plain put changes nothing"
    assert face.ack(lease) == "ok"
    lease = claim_one(face)
    assert (lease.payload, lease.attempt, lease.crashes) == (3, 1, 0)
    face.ack(lease)
    assert (face.stats().done, face.stats().todos, face.stats().counters["reruns"]) == (1, 0, 1)


@pytest.mark.parametrize("end", ["retry", "give up", "again", "bare"])
def test_however_the_run_ends_the_task_is_ready_at_once(face: Any, end: str) -> None:
    face.put({"a": 1})
    lease = claim_one(face)
    face.put({"a": 2}, rerun=True)
    match end:
        case "retry":
            face.fail(lease, "no", retry_in=3600)
        case "give up":
            face.fail(lease, "no", give_up=True)
        case "again":
            face.ack(lease, again_in=3600)
        case _:
            face.run(sending.answers(face.talk, face.operations.ack([lease], bare=[0])))
    assert claim_one(face).payload == 2
    assert face.inspect("a").failures == 0


@pytest.mark.parametrize("polite", [False, True], ids=["plain", "polite"])
@pytest.mark.parametrize("end", ["crash", "release"])
def test_it_is_ready_with_a_clean_record_though_it_has_crashed_or_been_released_too_often(
    end: str, polite: bool
) -> None:
    with fake_queue(max_crashes=1, politeness=Politeness(delay=0, per_host=2) if polite else None) as queue:
        queue.put({"a": 1, "b": 1})
        leases = queue.claim(2)
        queue.put({"a": 2}, rerun=True)
        if end == "crash":
            queue.clock.advance(queue.timeout + 1)
            assert queue.requeue_expired() == 2
        else:
            told = queue.run(sending.answers(queue.talk, queue.operations.release(leases, most=1)))
            assert sorted(told) == ["failed", "ok"]
        assert dict(queue.states("a", "b").items()) == {"a": "todos", "b": "failed"}
        info = queue.inspect("a")
        assert (info.crashes, info.error) == (0, None)
        assert queue.stats().counters["gave_up"] == 1
        assert claim_one(queue).payload == 2
        assert queue.stats().counters["reruns"] == 1


def test_a_run_that_follows_knows_nothing_of_the_error_before_it_nor_of_its_traceback(face: Any) -> None:
    face.put({"a": 1})
    lease = claim_one(face)
    face.put({"a": 2}, rerun=True)
    try:
        raise ValueError("the first traceback of this queue")
    except ValueError as error:
        face.fail(lease, error)
    info = face.inspect("a")
    assert (info.state, info.failures, info.error, info.traceback) == ("todos", 0, None, None)


def test_the_result_is_that_of_the_last_run(face: Any, raw: redis.Redis) -> None:
    face.put({"a": 1})
    lease = claim_one(face)
    face.put({"a": 2}, rerun=True)
    face.run(sending.answers(face.talk, face.operations.ack([lease], results={0: Kept(b"1", 60_000)})))
    assert (face.results.look("a"), raw.keys("*:result:*")) == ({}, [])
    face.run(sending.answers(face.talk, face.operations.ack([claim_one(face)], results={0: Kept(b"2", 60_000)})))
    assert face.results.look("a")["a"].result == b"2"


def test_what_waits_gets_the_payload_and_what_is_done_comes_back_but_failed_tasks_stay(face: Any) -> None:
    face.put({"ready": 1, "done": 1, "failed": 1})
    for lease in face.claim(3):
        if lease.task == "ready":
            face.release(lease)
        elif lease.task == "done":
            face.ack(lease)
        else:
            face.fail(lease, "no", give_up=True)
    face.schedule({"later": 1}, after=3600)
    names = ("ready", "done", "failed", "later", "new")
    answers = face.put([Task(name, 2) for name in names], rerun=True)
    assert list(answers) == ["todos", "added", "failed", "scheduled", "added"]
    assert [face.inspect(name).payload for name in names] == [2, 2, 1, 2, 2]
    assert face.put({"failed": 3}, rerun=True, again=True)[0] == "added"


def test_of_an_id_that_is_named_twice_the_last_payload_counts(face: Any) -> None:
    face.put({"held": 0})
    lease = claim_one(face)
    pairs = [Task("new", 1), Task("held", 1), Task("new", 2), Task("held", 2)]
    assert list(face.put(pairs, rerun=True))[1:] == ["in_progress", "added", "rerun"]
    face.ack(lease)
    assert {lease.task: lease.payload for lease in face.claim(2)} == {"new": 2, "held": 2}


def test_on_a_polite_queue_the_priority_is_replaced_too_higher_or_lower() -> None:
    with fake_queue(timeout=60, politeness=Politeness(0.001, per_host=1)) as queue:
        queue.put(Task("http://h.example/a", 1, priority=5), Task("http://h.example/b", 1, priority=5))
        first = claim_one(queue)
        other = f"http://h.example/{'b' if first.task.endswith('a') else 'a'}"
        queue.put(Task(other, 2, priority=-5), Task(first.task, 2, priority=9), rerun=True)
        queue.put("http://h.example/c")
        queue.ack(first)
        order: list[tuple[str, Any]] = []
        for _ in range(3):
            queue.clock.advance(1)
            leases = queue.claim()
            order += [(lease.task, lease.payload) for lease in leases]
            queue.ack(leases)
        assert order == [(first.task, 2), ("http://h.example/c", None), (other, 2)]
        queue.purge()


def test_each_task_may_say_it_for_itself(face: Any) -> None:
    face.put({"a": 1, "b": 1})
    leases = face.claim(2)
    answers = face.put(Task("a", 2, rerun=True), Task("b", 2), Task("new", 2), Task("new", 3, rerun=True))
    assert list(answers) == ["rerun", "in_progress", "todos", "added"]
    face.ack(leases)
    assert {lease.task: lease.payload for lease in face.claim(5)} == {"a": 2, "new": 3}


@pytest.mark.parametrize("used", [False, True], ids=["for the first time", "as before"])
def test_an_ack_may_have_tasks_run_once_more_that_are_in_progress_or_done(face: Any, used: bool) -> None:
    if used:
        face.put("before")
        lease = claim_one(face)
        face.put("before", rerun=True)
        face.ack(lease)
        face.ack(claim_one(face))
    face.put({"a": 1, "held": 1, "done": 1, "kept": 1})
    leases = {lease.task: lease for lease in face.claim(4)}
    face.ack([leases["done"], leases["kept"]])
    found = [Task("held", 2, rerun=True), Task("done", 2, rerun=True), Task("kept", 2), Task("new", 2, rerun=True)]
    assert face.ack(leases["a"], put=found) == "ok"
    assert face.ack(leases["a"], put=found) == "already", "and nothing is put twice"
    face.ack(leases["held"])
    assert {lease.task: lease.payload for lease in face.claim(5)} == {"held": 2, "done": 2, "new": 2}
    assert face.stats().counters["reruns"] == 1 + used


@pytest.mark.parametrize("end", ["ack", "again", "bare", "no id is kept"])
@pytest.mark.parametrize("used", [False, True], ids=["for the first time", "as before"])
def test_an_ack_may_have_its_own_task_run_once_more(face: Any, raw: redis.Redis, used: bool, end: str) -> None:
    if end == "no id is kept":
        face.configure(keep_done=0)
    if used:
        face.results.wait("other", timeout=0)
        face.put(["other"])
        lease = claim_one(face)
        face.put("other", rerun=True)
        face.ack([lease])
        face.ack(claim_one(face))
    face.put({"a": 1})
    face.fail(claim_one(face), "no", retry_in=0)
    wait_until(lambda: face.promote_due() or face.stats().todos)
    lease, anew = claim_one(face), Task("a", 2, rerun=True)
    if end == "again":
        assert face.ack(lease, put=["b", anew], again_in=3600) == "ok"
    elif end == "bare":
        found = face.operations.ack_put(lease, arguments.tasks((anew,)), -1, None, Kept(b"1", 60_000), bare=True)
        assert face.run(sending.answer(face.talk, found))[0] == "ok"
        assert (face.results.look("a"), raw.keys("*:result:*")) == ({}, []), "the run that counts is still to come"
        face.put("b")
    else:
        assert face.ack(lease, put=["b", anew]) == "ok"
    leases = {lease.task: lease for lease in face.claim(3)}
    assert sorted(leases) == ["a", "b"]
    assert (leases["a"].payload, leases["a"].attempt) == (2, 1)
    face.ack(list(leases.values()))
    assert (face.stats().counters["reruns"], face.drained()) == (1 + used, True)
    assert raw.keys("*:rerun") == []


def test_a_batch_ends_with_the_last_run_of_its_task(face: Any) -> None:
    face.put({"a": 1})
    lease = claim_one(face)
    assert face.batches.put("b", Task("a", 2, rerun=True), "c")[0] == "rerun"
    face.batches.seal("b", "callback")
    face.ack(lease)
    assert face.batches.look("b")["b"].outstanding == 2
    face.ack(face.claim(1))
    assert face.batches.look("b")["b"].outstanding == 1
    face.ack(face.claim(1))
    assert face.batches.look("b")["b"].outstanding == 0
    wait_until(lambda: face.promote_due() or face.stats().todos)
    assert claim_one(face).task == "callback"
