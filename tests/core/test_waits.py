"""A thousand waits in one process, one blocked connection, and connections that are cut."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue
from timeoutq.server.calls import Kept
from timeoutq.verbs import sending

WAITS, CUTS = 1000, 20


@pytest.fixture(autouse=True)
def _never_looks_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what was lost with a connection is found because of the cut, not because of the time."""
    monkeypatch.setattr("timeoutq.rooms.results.LOOK_AGAIN", 3600.0)


def blocked(raw: redis.Redis) -> list[str]:
    """Give the ids of the connections that are blocked on a list of answers."""
    clients: Any = raw.client_list()
    return [client["id"] for client in clients if client["cmd"] == "blpop" and "b" in client["flags"]]


def end_all(queue: Queue, raw: redis.Redis) -> list[int]:
    """Ack all tasks with results, and cut the connection that listens again and again; tell how many listened."""
    seen: list[int] = []
    ack(queue, queue.claim(WAITS // CUTS // 2))  # so that the server knows the script
    for _ in range(CUTS):
        wait_until(lambda: bool(blocked(raw)), 20)
        found = blocked(raw)
        seen.append(len(found))
        cut(queue, raw, found)
        ack(queue, queue.claim(WAITS // CUTS // 2))
    return seen


def cut(queue: Queue, raw: redis.Redis, listening: list[str]) -> None:
    """Ack tasks, and cut the connection that was to bring the answers: at one moment, so that all of them are lost."""
    (call,) = acks(queue, queue.claim(WAITS // CUTS // 2))
    clients: Any = raw.hvals(queue.operations.key("awaited"))
    with raw.pipeline(transaction=True) as pipe:
        words: Any = pipe
        words.execute_command(*call.command())
        pipe.delete(*(queue.operations.key(f"answers:{name}") for line in clients for name in line.split()))
        for client in listening:
            pipe.client_kill_filter(_id=client)
        pipe.execute()


def acks(queue: Queue, leases: list[Any]) -> list[Any]:
    results = {at: Kept(f"result of {lease.task}".encode(), 60_000) for at, lease in enumerate(leases)}
    return queue.operations.ack(leases, results=results)


def ack(queue: Queue, leases: list[Any]) -> None:
    queue.run(sending.answers(queue.talk, acks(queue, leases)))


def test_a_thousand_waits_of_an_event_loop_lose_nothing_when_connections_are_cut(
    url: str, queue: Queue, raw: redis.Redis
) -> None:
    tasks = [f"t{i}" for i in range(WAITS)]
    queue.put(tasks)

    async def wait_for_all() -> tuple[list[Any], list[int]]:
        async with AsyncQueue(queue.name, url) as waiting:
            waits = [asyncio.ensure_future(waiting.results.wait(task, timeout=60)) for task in tasks]
            seen = await asyncio.to_thread(end_all, queue, raw)
            return await asyncio.gather(*waits), seen

    found, seen = asyncio.run(wait_for_all())
    assert [one[task].result for one, task in zip(found, tasks, strict=True)] == [
        f"result of {task}".encode() for task in tasks
    ]
    assert seen == [1] * CUTS, "one connection listens for all"


def test_when_the_one_that_listens_leaves_another_one_does(url: str, queue: Queue, raw: redis.Redis) -> None:
    queue.put("a", "b")
    leases = {lease.task: lease for lease in queue.claim(2)}
    with Queue(queue.name, url) as waiting, ThreadPoolExecutor(2) as pool:
        first = pool.submit(waiting.results.wait, "a", timeout=30)
        wait_until(lambda: len(blocked(raw)) == 1, 10)
        second = pool.submit(waiting.results.wait, "b", timeout=30)
        wait_until(lambda: "b" in raw.hkeys(f"timeoutq:{{{queue.name}}}:awaited"), 10)
        ack(queue, [leases["a"]])
        assert first.result(5)
        wait_until(lambda: len(blocked(raw)) == 1, 10)
        ack(queue, [leases["b"]])
        assert second.result(5)


def test_a_wait_outlives_a_server_that_is_away(url: str, queue: Queue, raw: redis.Redis) -> None:
    queue.put("a")
    (lease,) = queue.claim()
    with Queue(queue.name, url, deadline=0.5) as waiting, ThreadPoolExecutor(1) as pool:
        wait = pool.submit(waiting.results.wait, "a", timeout=60)
        wait_until(lambda: len(blocked(raw)) == 1, 10)
        raw.client_pause(1500)
        ack(queue, [lease])
        assert wait.result(20)["a"].result == b"result of a"
