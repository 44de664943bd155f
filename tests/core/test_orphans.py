"""Tasks of which a foreign hand has deleted all but a trace: they come back, and a purge leaves no trace of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig.invariants import a_minute_later
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, State
from timeoutq.server import scripts
from timeoutq.verbs import flows
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
        assert doctor.repair(queue).found == "mended: 3,001 records that no task uses"
        assert raw.exists(key("payload"), key("attempts")) == 0, "all of them, on each server"
        queue.purge()
