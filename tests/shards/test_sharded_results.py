"""Results of a queue over several shards: each lies in the shard of its task, and a wait hears of all shards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.rig.waiting import wait_until
from timeoutq import State
from timeoutq.server.calls import Kept
from timeoutq.words.model import Ended

TASKS = [f"t{i}" for i in range(40)]


def ack(queue: Any, leases: Any) -> None:
    def build(talk: Any, places: Any) -> Any:
        part = [leases[at] for at in places]
        results = {at: Kept(b"of " + lease.task.encode(), 60_000) for at, lease in enumerate(part)}
        return talk.operations.ack(part, results=results)

    queue.run(queue.flows._end(leases, leases, build))


def results(tasks: list[str]) -> dict[str, Ended]:
    return {task: Ended(task, State.DONE, b"of " + task.encode()) for task in tasks}


def test_a_wait_for_tasks_of_all_shards_ends_with_the_last_of_them(queue: Any, raw: Any) -> None:
    queue.put(TASKS)
    leases = queue.claim(len(TASKS))
    with ThreadPoolExecutor(2) as pool:
        wait = pool.submit(queue.results.wait, TASKS, timeout=30)
        other = pool.submit(queue.results.wait, TASKS[:3], timeout=30)
        wait_until(lambda: sum(raw.hlen(key) for key in raw.scan_iter("*:awaited")) == len(TASKS), 20)
        ack(queue, leases[:20])
        ack(queue, leases[20:])
        assert wait.result(30) == results(TASKS)
        assert other.result(30) == results(TASKS[:3])
    assert queue.results.look(TASKS) == results(TASKS)


def test_a_task_with_a_group_is_found_in_the_shard_of_its_group(queue: Any) -> None:
    queue.put(TASKS[:5], group="somebody")
    assert queue.results.look(TASKS[:5], "never put") == {"never put": Ended("never put", None)}
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(queue.results.wait, TASKS[:5], timeout=30)
        ack(queue, queue.claim(5))
        assert wait.result(30) == results(TASKS[:5])
    queue.forget(TASKS[:5])
    assert queue.results.wait(TASKS[:5], timeout=5) == {task: Ended(task, None) for task in TASKS[:5]}
