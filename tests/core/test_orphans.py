"""Tasks of which a foreign hand has deleted all but a trace: they come back, and a purge leaves no trace of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig.invariants import a_minute_later
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, State, flows, scripts
from timeoutq.watch import doctor

A, B = "http://a.example/", "http://b.example/"


@pytest.mark.parametrize("politeness", [None, Politeness(0, 1)])
@pytest.mark.parametrize("task", ["x", f"{A}1"])
def test_a_task_of_which_only_its_owner_is_left_comes_back(
    url: str, name: str, raw: Any, task: str, politeness: Politeness | None
) -> None:
    with Queue(name, url, politeness=politeness) as queue:
        queue.put(task)
        queue.claim()
        raw.delete(*map(queue.operations.key, ("in_progress", "leases", "slots")), queue.operations.key("lock") + task)
        assert not queue.drained()
        queue.prune()
        queue.prune()
        assert queue.inspect(task).state is State.TODOS
        (lease,) = queue.claim()
        queue.ack(lease)
        assert queue.drained()
        queue.purge()


@pytest.mark.parametrize(
    "hand", ["deletes hosts", "hosts is a string", "deletes hosts and waiting", "a lock of no task"]
)
def test_a_purge_removes_what_a_foreign_hand_has_cut_off(url: str, name: str, raw: Any, hand: str) -> None:
    with Queue(name, url, politeness=Politeness(60, 1)) as queue:
        key = queue.operations.key
        queue.put(f"{A}1", f"{A}2", f"{B}1")
        queue.claim(1)
        if hand == "a lock of no task":
            raw.set(key("lock") + "nobody's", "w#1")
        else:
            raw.delete(key("hosts"))
        if hand == "hosts is a string":
            raw.set(key("hosts"), "x")
        if hand == "deletes hosts and waiting":
            raw.delete(key("waiting"))
        queue.purge()
        assert list(raw.scan_iter(key("") + "*")) == []
        assert not queue.exists()


def test_the_lanes_and_locks_of_a_new_queue_are_no_strays(url: str, name: str, raw: Any) -> None:
    with Queue(name, url, politeness=Politeness(60, 1)) as queue:
        queue.put(f"{A}1", f"{A}2")
        queue.claim()
        call = queue.operations.purge([b"host:a.example", f"lock:{A}1".encode(), f"lock:{A}2".encode()])
        raw.function_load(scripts.library(), replace=True)
        raw.execute_command(*call.command())
        assert queue.stats().known == 2
        assert raw.exists(queue.operations.key("host:a.example")) == 1
        assert sum(raw.exists(queue.operations.key("lock") + task) for task in (f"{A}1", f"{A}2")) == 1
        queue.purge()


GONE = [
    ("waiting", "hosts"),
    ("hosts", "slots"),
    ("waiting", "hosts", "slots", "places", "resting", "policies"),
]


def seen_by_doctor(queue: Queue) -> str:
    """Say what doctor finds wrong with the tasks."""
    return " ".join(finding.found for finding in doctor.examine(queue) if finding.check == "tasks")


@pytest.mark.parametrize("keys", GONE, ids=" ".join)
def test_tasks_in_lanes_that_no_host_knows_come_back(url: str, name: str, raw: Any, keys: tuple[str, ...]) -> None:
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        key = queue.operations.key
        tasks = {f"{host}{i}" for host in (A, B) for i in range(3)}
        queue.put(tasks)
        for lease in queue.claim(2):
            queue.ack(lease)
        left = {task for lane in ("host:a.example", "host:b.example") for task in raw.zrange(key(lane), 0, -1)}
        assert len(left) == 2
        queue.ack(queue.claim(2))  # which hands over the last task of each host
        queue.put(f"{A}last", f"{B}last")
        raw.delete(key("todos"), *(key(one) for one in keys))
        assert not queue.drained()
        (orphan,) = (task for task in raw.zrange(key("host:a.example"), 0, -1))
        if "waiting" in keys:
            assert "has removed it from waiting" in queue.why(orphan).message
        assert "waiting where no host would hand them over" in seen_by_doctor(queue)
        wait_until(lambda: queue.prune() or not seen_by_doctor(queue))
        found = []
        while leases := queue.claim(5):
            queue.ack(leases)
            found += [lease.task for lease in leases]
        assert {f"{A}last", f"{B}last"} <= set(found)
        assert queue.drained()
        queue.purge()


def test_long_lanes_from_which_alone_their_tasks_are_known_bring_all_of_them_back(
    url: str, name: str, raw: Any
) -> None:
    with Queue(name, url, politeness=Politeness(3600, 1)) as queue:
        key = queue.operations.key
        queue.put([f"{A}{i}" for i in range(1300)], [f"{B}{i}" for i in range(700)])
        raw.delete(key("waiting"))
        queue.run(flows.repair(queue.talk))
        assert (queue.stats().waiting, queue.stats().known) == (1998, 2000)
        assert queue.run(flows.repair(queue.talk)) == ({}, True)
        queue.purge()


@pytest.mark.parametrize("after", ["polite again", "impolite"])
@pytest.mark.parametrize("keys", [("meta", "waiting"), ("meta", "waiting", "hosts", "slots")], ids=" ".join)
def test_tasks_in_lanes_of_a_queue_that_has_lost_its_politeness_wait_for_a_person(
    url: str, name: str, raw: Any, keys: tuple[str, ...], after: str
) -> None:
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        queue.put([f"{A}{i}" for i in range(700)], [f"{B}{i}" for i in range(3)])
        queue.ack(queue.claim(2))
        raw.delete(queue.operations.key("todos"), *(queue.operations.key(one) for one in keys))
    with Queue(name, url) as queue:
        key = queue.operations.key
        assert not queue.drained()
        lanes = {task for one in "ab" for task in raw.zrange(key(f"host:{one}.example"), 0, -1)}
        last = raw.zrange(key("host:b.example"), -1, -1)[0]
        assert "has removed it from waiting" in queue.why(last).message
        assert "on a queue that is not polite" in seen_by_doctor(queue)
        wait_until(lambda: queue.prune() or raw.scard(key("waiting")) == len(lanes) == 699)
        assert not queue.drained()
        assert "the queue is not polite" in queue.why(last).message
        queue.configure(politeness="off" if after == "impolite" else Politeness(0, 500))
        found: list[str] = []

        def work() -> bool:
            leases = queue.claim(500)
            queue.ack(leases)
            found.extend(lease.task for lease in leases)
            queue.prune()
            return queue.drained()

        wait_until(work)
        assert len(found) == len(set(found))
        assert lanes <= set(found)
        queue.purge()


def test_a_task_of_which_only_its_lock_is_left_is_its_workers_still(url: str, name: str, raw: Any) -> None:
    with Queue(name, url, timeout=60) as queue:
        key = queue.operations.key
        queue.put("x")
        (lease,) = queue.claim()
        raw.delete(key("in_progress"), key("leases"), key("owners"))
        assert "only a lock is left of it" in queue.why("x").message
        assert "but in no state" in seen_by_doctor(queue)
        queue.prune()
        info = queue.inspect("x")
        assert info.state is State.IN_PROGRESS
        assert 0 < (info.lease_left or 0) <= 60
        assert not queue.claim(), "its worker still holds it, and nobody else may"
        queue.ack(lease)
        assert queue.inspect("x").state is State.DONE
        assert queue.drained()
        queue.purge()


@pytest.mark.parametrize("ending", [None, 60])
def test_a_lock_that_a_hand_made_is_reported_and_removed(url: str, name: str, raw: Any, ending: int | None) -> None:
    with Queue(name, url) as queue:
        queue.put("a")
        raw.set(queue.operations.key("lock") + "x", "mine", ex=ending)
        assert "1 task known by a lock only, which is no lease" in seen_by_doctor(queue)
        assert "only a lock is left of it" in queue.why("x").message
        assert "1 task known by a lock only" in doctor.repair(queue).found
        assert raw.exists(queue.operations.key("lock") + "x") == 0
        assert queue.inspect("x").state is None
        queue.purge()


def test_the_keys_of_others_do_not_hide_a_lane_or_a_lock(url: str, name: str, raw: Any) -> None:
    with Queue(name, url, politeness=Politeness(0, 1)) as queue:
        key = queue.operations.key
        queue.put([f"{A}{i}" for i in range(3)])
        with raw.pipeline(transaction=False) as pipe:
            for i in range(30_000):
                pipe.set(f"another:{i}", "1")
            pipe.execute()
        raw.delete(key("hosts"), key("waiting"), key("slots"))
        raw.set(key("lock") + "x", "mine")
        raw.delete(key("todos"))
        assert not queue.drained()
        assert "lock" in doctor.repair(queue).found
        assert raw.exists(key("lock") + "x") == 0
        assert queue.stats().todos == 1
        raw.set(key("lock") + "y", "mine")
        wait_until(lambda: queue.prune() or not raw.exists(key("lock") + "y"))
        wait_until(lambda: queue.prune() or not raw.hexists(key("meta"), "scan"))
        queue.purge()


def test_records_stay_for_a_minute_after_a_state_was_renamed(url: str, name: str, raw: Any) -> None:
    with Queue(name, url) as queue:
        key = queue.operations.key
        queue.put({str(i): {"n": i} for i in range(1200)}, group="g")
        raw.rename(key("todos"), key("aside"))
        for _ in range(20):
            queue.prune()
        assert "2,400 records of tasks in no state, which go if" in doctor.repair(queue).found
        assert raw.hlen(key("payload")) == 1200
        raw.rename(key("aside"), key("todos"))
        wait_until(lambda: queue.prune() or not raw.exists(key("leftovers")))
        assert len({lease.payload["n"] for lease in queue.claim(500)}) == 500
        queue.purge()


def test_records_of_no_task_are_removed_when_a_minute_has_gone_by(url: str, name: str, raw: Any) -> None:
    with Queue(name, url) as queue:
        key = queue.operations.key
        queue.put({str(i): {"n": "x" * 100} for i in range(3000)})
        raw.hset(key("attempts"), "7", "2")
        raw.delete(key("todos"))
        assert "nothing to mend; noted: 3,001 records" in doctor.repair(queue).found
        assert raw.hlen(key("payload")) == 3000
        a_minute_later(raw, name)
        assert doctor.repair(queue).found == "mended: 3,001 records of tasks in no state"
        assert raw.exists(key("payload"), key("attempts")) == 0, "all of them, on each server"
        queue.purge()
