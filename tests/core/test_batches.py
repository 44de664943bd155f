"""Batches: tasks whose ends are counted together, and a callback that becomes ready when all of them have ended."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease, Queue, State, Task
from timeoutq.rooms import batches as of_batches
from timeoutq.verbs import flows, sending
from timeoutq.words import arguments

KEYS = ("batch:b", "batch_of", "batches")


def batch(face: Any, *tasks: Any, on: str = "ended", name: str = "b") -> None:
    """Put tasks into a batch, and seal it with the callback `after`."""
    face.batches.put(name, *tasks)
    face.batches.seal(name, Task("after", {"n": 1}), on=on)


def counts(face: Any, name: str = "b") -> tuple[Any, ...]:
    found = face.batches.look(name)[name]
    return found.state, found.tasks, found.outstanding, found.failed


def claimed(face: Any, n: int = 100) -> dict[str, Lease]:
    face.promote_due()
    return {lease.task: lease for lease in face.claim(n)}


def state(face: Any, task: str) -> Any:
    return face.inspect(task).state


def end(face: Any, how: str, lease: Lease) -> None:
    """End a lease in one of the ways that leave nothing to do for its task."""
    if how == "ack":
        face.ack(lease)
    elif how == "ack bare":
        face.run(sending.answers(face.talk, face.operations.ack([lease], bare=[0])))
    elif how == "give up":
        face.fail(lease, "no", give_up=True)
    elif how == "forget":
        face.forget(lease.task)
    elif how == "release too often":
        face.run(sending.answers(face.talk, face.operations.release([lease], most=1)))
    elif how == "crash":
        face.run(sending.answers(face.talk, face.operations.crash([lease], "died")))


WELL = {"ack", "ack bare"}
ENDS = ("ack", "ack bare", "give up", "forget", "release too often", "crash")


@pytest.mark.parametrize("how", ENDS)
def test_whoever_ends_the_last_task_makes_the_callback_due_in_the_same_step(face: Any, how: str) -> None:
    face.configure(max_crashes=1)
    batch(face, "a", "b")
    assert (counts(face), state(face, "after")) == (("sealed", 2, 2, 0), State.SCHEDULED)
    leases = claimed(face)
    end(face, how, leases["a"])
    assert counts(face) == ("sealed", 2, 1, 0 if how in WELL else 1)
    assert claimed(face) == {}
    end(face, how, leases["b"])
    assert counts(face) == ("ended", 2, 0, 0 if how in WELL else 2)
    assert {task: lease.payload for task, lease in claimed(face).items()} == {"after": {"n": 1}}


@pytest.mark.parametrize("how", ENDS)
def test_with_on_done_one_failure_sends_the_callback_to_failed_and_both_say_so(face: Any, how: str) -> None:
    face.configure(max_crashes=1)
    batch(face, "a", "b", on="done")
    leases = claimed(face)
    end(face, how, leases["a"])
    face.ack(leases["b"])
    if how in WELL:
        assert (counts(face), list(claimed(face))) == (("ended", 2, 0, 0), ["after"])
        return
    assert counts(face) == ("broken", 2, 0, 1)
    info = face.inspect("after")
    assert (info.state, info.error) == (State.FAILED, "gave up: 1 of the 2 tasks of batch b are not done")
    assert claimed(face) == {}


def test_a_task_that_is_retried_released_or_runs_again_stays_outstanding(face: Any) -> None:
    batch(face, "a", "b", "c", "d")
    leases = claimed(face)
    face.fail(leases["a"], "no", retry_in=0)
    face.release(leases["b"])
    face.ack(leases["c"], again_in=0)
    face.extend(leases["d"], timeout=0.01)
    wait_until(lambda: face.requeue_expired() == 1)
    assert counts(face) == ("sealed", 4, 4, 0)
    for lease in claimed(face).values():
        face.ack(lease)
    assert counts(face) == ("ended", 4, 0, 0)


def test_an_ack_that_comes_twice_or_late_counts_once(face: Any) -> None:
    batch(face, "a", "b")
    leases = claimed(face)
    call = face.operations.ack([leases["a"]])
    for _ in range(3):
        face.run(sending.answers(face.talk, call))
    assert counts(face) == ("sealed", 2, 1, 0)
    face.retry_failed(all=True)
    face.put("a", again=True)
    face.ack(claimed(face)["a"])
    assert counts(face) == ("sealed", 2, 1, 0)


def test_a_task_that_is_cancelled_has_ended_whether_it_was_ready_or_runs(face: Any) -> None:
    batch(face, "a", "b")
    (lease,) = face.claim(1)
    other = "b" if lease.task == "a" else "a"
    face.cancel(other)
    assert counts(face) == ("sealed", 2, 1, 1)
    face.cancel(lease.task)
    assert counts(face) == ("sealed", 2, 1, 1)
    face.fail(lease, "no", retry_in=0)
    assert counts(face) == ("ended", 2, 0, 2)


def test_a_call_that_seals_may_be_sent_again(face: Any) -> None:
    face.batches.put("b", "a")
    call = of_batches.call_seal(face.operations, b"n", "b", arguments.tasks(("after",)), "ended", 5000)
    for _ in range(2):
        assert face.run(sending.answer(face.talk, call))
    face.ack(claimed(face)["a"])
    assert face.run(sending.answer(face.talk, call))
    assert list(claimed(face)) == ["after"]


def test_a_batch_is_not_over_before_it_is_sealed(face: Any) -> None:
    face.batches.put("b", "a")
    face.ack(claimed(face)["a"])
    assert counts(face) == ("open", 1, 0, 0)
    face.batches.put("b", "c")
    face.ack(claimed(face)["c"])
    info = face.batches.seal("b", "after")
    assert (info.state, info.callback, info.on, info.done) == ("ended", "after", "ended", 2)
    assert list(claimed(face)) == ["after"]


def test_tasks_that_are_there_join_and_those_that_have_ended_count_at_once(face: Any) -> None:
    face.put("done", "failed", "held", "ready")
    leases = claimed(face)
    face.ack(leases["done"])
    face.fail(leases["failed"], "no", give_up=True)
    face.release(leases["ready"])
    found = face.batches.put("b", "done", "failed", "held", "ready", "new")
    assert list(found) == ["done", "failed", "in_progress", "todos", "added"]
    assert counts(face) == ("open", 5, 3, 1)


def test_tasks_that_are_put_twice_join_once_and_a_sealed_batch_takes_only_what_it_has(face: Any) -> None:
    face.batches.put("b", "a", "a", "c")
    face.batches.put("b", "c", "d")
    assert counts(face) == ("open", 3, 3, 0)
    face.batches.seal("b", "after")
    face.ack(claimed(face)["a"])
    face.batches.put("b", "a", "c")
    with pytest.raises(
        InvalidInput, match="batch b is sealed, and takes no more tasks: put them into a batch of another"
    ):
        face.batches.put("b", "c", "e")
    assert counts(face) == ("sealed", 3, 2, 0)
    assert state(face, "e") is None


def test_sealing_in_the_same_way_changes_nothing_and_in_another_is_refused(face: Any) -> None:
    batch(face, "a")
    face.batches.seal("b", Task("after", {"n": 1}))
    with pytest.raises(InvalidInput, match="sealed already, with another callback or other options"):
        face.batches.seal("b", Task("after", {"n": 2}))
    face.ack(claimed(face)["a"])
    face.ack(claimed(face)["after"])
    face.batches.seal("b", Task("after", {"n": 1}))
    assert claimed(face) == {}


def test_a_callback_that_could_run_early_or_never_is_refused(face: Any) -> None:
    face.put("ready")
    face.batches.put("b", "a")
    with pytest.raises(
        InvalidInput, match="task ready is in the queue already, and would run before the batch has ended"
    ):
        face.batches.seal("b", "ready")
    with pytest.raises(InvalidInput, match="task a is a task of batch b, and cannot be its callback, too"):
        face.batches.seal("b", "a")
    assert counts(face) == ("open", 1, 1, 0)
    face.batches.seal("b", "after")
    face.batches.put("c", "x")
    with pytest.raises(InvalidInput, match="task after is in the queue already"):
        face.batches.seal("c", "after")


def test_a_callback_may_be_a_task_of_another_batch_and_its_failure_counts_there(face: Any) -> None:
    face.batches.put("inner", "a")
    face.batches.seal("inner", "middle", on="done")
    face.batches.put("outer", "middle")
    face.batches.seal("outer", "last", on="done")
    face.fail(claimed(face)["a"], "no", give_up=True)
    assert (counts(face, "inner")[0], counts(face, "outer")[0]) == ("broken", "broken")
    assert state(face, "last") is State.FAILED
    assert face.results.look("last")["last"].state is State.FAILED


@pytest.mark.parametrize("other", [(), ("other",)])
@pytest.mark.parametrize("how", ["put", "again", "at once", "later", "rerun", "every rerun", "find", "find anew"])
def test_no_put_changes_a_callback_that_waits_for_its_batch(face: Any, how: str, other: tuple[str, ...]) -> None:
    batch(face, "a", "b")
    leases, put = claimed(face), Task("after", {"n": 2})
    due = face.inspect("after").due
    match how:
        case "put":
            answers = face.put(put, *other)
        case "again":
            answers = face.put(put, *other, again=True)
        case "at once":
            answers = face.schedule(put, *other, after=0)
        case "later":
            answers = face.schedule(put, *other, at=due + 1)
        case "rerun":
            answers = face.put(Task("after", {"n": 2}, rerun=True), *other)
        case "every rerun":
            answers = face.put(put, *other, rerun=True)
        case "find":
            answers = face.ack(leases["a"], put=[put, *other]) and ["scheduled"]
        case _:
            answers = face.ack(leases["a"], put=[Task("after", {"n": 2}, rerun=True), *other]) and ["scheduled"]
    assert (answers[0], state(face, "after"), face.inspect("after").due) == ("scheduled", State.SCHEDULED, due)
    for lease in [lease for task, lease in claimed(face).items() if task == "other"]:
        face.ack(lease)
    for task in ("b",) if how.startswith("find") else ("a", "b"):
        face.ack(leases[task])
    found = claimed(face)
    assert found.pop("after").payload == {"n": 1}
    assert found.keys() <= {"other"}


def test_a_task_that_is_due_when_callbacks_are_said_to_be_is_no_callback(face: Any) -> None:
    batch(face, "a")
    due = face.inspect("after").due
    face.schedule("task", at=due)
    assert face.inspect("task").due == due + 0.001
    assert face.schedule("task", after=0)[0] == "scheduled"
    assert sorted(claimed(face)) == ["a", "task"]


def test_a_plain_queue_has_no_key_of_batches_and_a_purge_leaves_none(face: Any, raw: redis.Redis, name: str) -> None:
    face.put("a")
    face.ack(claimed(face)["a"])
    keys = [f"timeoutq:{{{name}}}:{key}" for key in KEYS]
    assert raw.exists(*keys) == 0
    batch(face, *(f"t{n}" for n in range(20)))
    assert raw.exists(*keys) == 3
    face.purge()
    assert list(raw.scan_iter(f"timeoutq:{{{name}}}:*")) == []


def test_a_batch_that_is_over_is_kept_for_its_time(face: Any, raw: redis.Redis, name: str) -> None:
    face.batches.put("b", "a")
    face.ack(claimed(face)["a"])
    face.batches.seal("b", keep=0.05)
    wait_until(lambda: not raw.exists(f"timeoutq:{{{name}}}:batch:b"))
    wait_until(lambda: face.prune() == 0 and face.batches.look("b") == {})
    assert not raw.exists(f"timeoutq:{{{name}}}:batches")
    assert raw.hget(f"timeoutq:{{{name}}}:meta", "uses") is None


@pytest.mark.parametrize("state", ["done", "failed"])
def test_an_end_that_was_refused_half_way_is_counted_by_the_next_walk(
    queue: Queue, raw: redis.Redis, name: str, state: str
) -> None:
    batch(queue, "a")
    raw.smove(f"timeoutq:{{{name}}}:todos", f"timeoutq:{{{name}}}:{state}", "a")
    assert queue.run(flows.repair(queue.talk))[0] == {"leftover": 1}
    assert counts(queue) == ("ended", 1, 0, 0 if state == "done" else 1)
    queue.forget("a")  # which no kind of failure counts
