"""Tasks of which a foreign hand has deleted all but a trace: they come back, and a purge leaves no trace of them."""

from __future__ import annotations

from typing import Any

import pytest

from timeoutq import Politeness, Queue, State

A, B = "http://a.example/", "http://b.example/"


@pytest.mark.parametrize("politeness", [None, Politeness(0, 1)])
@pytest.mark.parametrize("task", ["x", f"{A}1"])
def test_a_task_of_which_only_its_owner_is_left_comes_back(
    url: str, name: str, raw: Any, task: str, politeness: Politeness | None
) -> None:
    with Queue(name, url, politeness=politeness) as queue:
        queue.put(task)
        queue.claim()
        raw.delete(queue.operations.key("in_progress"), queue.operations.key("leases"), queue.operations.key("slots"))
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
        raw.execute_command(*call.command())
        assert queue.stats().known == 2
        assert raw.exists(queue.operations.key("host:a.example")) == 1
        assert sum(raw.exists(queue.operations.key("lock") + task) for task in (f"{A}1", f"{A}2")) == 1
        queue.purge()
