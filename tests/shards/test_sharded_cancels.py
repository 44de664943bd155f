"""Cancels, progress and ids that block for a time, on a queue of five shards."""

from __future__ import annotations

from typing import Any

TASKS = [f"t{i}" for i in range(40)]


def test_tasks_of_all_shards_are_cancelled(queue: Any) -> None:
    queue.put(TASKS)
    leases = queue.claim(10)
    held = {lease.task for lease in leases}
    assert set(queue.cancel(TASKS, "never put", by="kim").items()) == {
        *((task, "cancelling" if task in held else "cancelled") for task in TASKS),
        ("never put", "unknown"),
    }
    assert set(queue.extend(leases)) == {"cancelled"}
    assert set(queue.release(leases)) == {"cancelled"}
    assert queue.stats().failed == len(TASKS)
    assert {queue.inspect(task).error for task in TASKS} == {"cancelled by kim"}


def test_a_task_with_a_group_is_cancelled_in_the_shard_of_its_group(queue: Any) -> None:
    queue.put(TASKS[:5], group="somebody")
    assert set(queue.cancel(TASKS[:5])) == {"cancelled"}
    assert queue.claim(9) == []
    assert queue.stats().failed == 5
