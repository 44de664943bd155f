"""`queue.keeper()`: the heartbeat for programs that claim by hand, in a thread or in an asyncio task."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Answer, AsyncQueue, InvalidInput, Lease, Queue, Unavailable
from timeoutq.client import heartbeat
from timeoutq.client.keeper import AsyncKeeper
from timeoutq.testing import fake_queue


def short(queue: Queue, timeout: float = 0.6) -> Queue:
    return Queue(queue.name, queue.given[0], timeout=timeout)


def test_a_lease_outlives_its_timeout_while_a_keeper_holds_it_and_runs_out_after(queue: Queue) -> None:
    queue.put("a", "b")
    with short(queue) as mine, mine.keeper() as keeper:
        kept, other = mine.claim(2)
        keeper.add(kept)
        wait_until(lambda: queue.stats().now > kept.deadline + 0.5)
        assert queue.requeue_expired() == 1
        assert (queue.inspect(kept.task).state, queue.inspect(other.task).state) == ("in_progress", "todos")
        keeper.remove(kept)
        assert keeper.held == []
        wait_until(lambda: (queue.inspect(kept.task).lease_left or 0) < 0)


async def test_the_keeper_of_an_async_queue_does_the_same(queue: Queue) -> None:
    queue.put("a")
    async with AsyncQueue(queue.name, queue.given[0], timeout=0.6) as mine, mine.keeper() as keeper:
        (lease,) = await mine.claim()
        keeper.add(lease)
        await asyncio.sleep(lease.deadline + 0.5 - (await mine.stats()).now)
        assert await mine.requeue_expired() == 0
        keeper.remove(lease)
        assert await mine.ack(lease) == "ok"


def test_a_lost_lease_goes_out_by_the_callback(queue: Queue) -> None:
    queue.put("a", "b")
    lost: list[tuple[Lease, Answer]] = []
    with short(queue) as mine, mine.keeper(lambda lease, answer: lost.append((lease, answer))) as keeper:
        leases = {lease.task: lease for lease in mine.claim(2)}
        keeper.add(*leases.values())
        queue.forget("a")
        wait_until(lambda: lost)
        assert lost == [(leases["a"], Answer.LOST)]
        assert keeper.held == [leases["b"]]
        mine.ack(leases["b"])


def test_a_callback_that_raises_is_told_and_the_other_leases_are_kept(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put("a", "b")

    def raises(lease: Lease, answer: Answer) -> None:
        raise ZeroDivisionError(lease.task)

    with short(queue) as mine, mine.keeper(raises) as keeper:
        leases = mine.claim(2)
        keeper.add(*leases)
        queue.forget("a")
        wait_until(lambda: "on_lost" in caplog.text)
        assert "on_lost of a keeper has raised an error for task 'a': ZeroDivisionError: a" in caplog.text
        (other,) = keeper.held
        wait_until(lambda: queue.stats().now > other.deadline + 0.5)
        assert mine.ack(other) == "ok"


END: list[Callable[[Any, Any], Any]] = [
    lambda queue, leases: queue.ack(leases),
    lambda queue, leases: queue.fail(iter(leases), "no", give_up=True),
    lambda queue, leases: queue.release(leases[0]),
]


@pytest.mark.parametrize("end", END)
def test_a_keeper_lets_go_of_leases_that_its_queue_ends(end: Callable[[Any, Any], Any]) -> None:
    with fake_queue() as mine, mine.keeper() as keeper:
        mine.put("a", "b")
        one, other = mine.claim(2)
        keeper.add(one, other)
        end(mine, [one])
        assert keeper.held == [other]


def test_the_program_shows_as_a_worker_with_what_it_holds_and_says_farewell(queue: Queue) -> None:
    queue.put("a", "b", "c")
    with short(queue, 6) as mine:
        keeper = mine.keeper(concurrency=7)
        assert queue.workers() == []
        keeper.add(*mine.claim(2))
        keeper.acked, keeper.failed = 5, 1

        def told() -> bool:
            return [(w.held, w.concurrency, w.acked, w.failed) for w in queue.workers()] == [(2, 7, 5, 1)]

        wait_until(told)
        (worker,) = queue.workers()
        assert (worker.worker, worker.pid) == (mine.worker, os.getpid())
        assert keeper.peers == 1
        mine.release(keeper.held)
    assert queue.workers() == []  # the keeper ends with its queue
    with pytest.raises(InvalidInput, match="closed"):
        keeper.add()


def test_a_worker_that_has_stopped_holds_nothing_once_its_leases_must_have_run_out(
    queue: Queue, raw: redis.Redis
) -> None:
    with short(queue, 6) as mine, mine.keeper() as keeper:
        mine.put("a", "b")
        keeper.add(*mine.claim(2))
        wait_until(lambda: [one.held for one in queue.workers()] == [2])
        about: Any = raw.hget(queue.operations.key("worker_info"), mine.worker)
        now = queue.stats().now
        mine.release(keeper.held)
    # a lease may have been extended just before the next sign of life was due, which is five seconds after the last
    raw.hset(queue.operations.key("worker_info"), mapping={"w1": about, "w2": about})
    raw.zadd(queue.operations.key("workers"), {"w1": round(now * 1000), "w2": round((now - 6 - 5.1) * 1000)})
    assert {one.worker: one.held for one in queue.workers()} == {"w1": 2, "w2": 0}


def test_a_keeper_says_how_many_workers_of_its_queue_are_alive(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY", 0.05)
    with short(queue) as one, short(queue) as other, one.keeper() as first:
        with other.keeper() as second:
            wait_until(lambda: first.peers == 2)
            wait_until(lambda: second.peers == 2)
        wait_until(lambda: first.peers == 1)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_keeps_its_own_leases_alone(queue: Queue) -> None:
    queue.put("a", "b")
    with short(queue, 0.9) as mine, mine.keeper() as keeper:
        mine_lease = mine.claim()[0]
        keeper.add(mine_lease)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                theirs = mine.claim()[0]
                keeper.add(theirs)
                wait_until(lambda: len(mine.workers()) == 2)
                held_alone = keeper.held == [theirs]
                wait_until(lambda: mine.stats().now > theirs.deadline + 0.5)
                code = 0 if mine.ack(theirs) == "ok" and held_alone else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert keeper.held == [mine_lease]
        assert mine.ack(mine_lease) == "ok"


def test_a_keeper_waits_for_a_server_that_is_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = fake_queue(timeout=0.6)
    mine.put("a")
    plain, away = AsyncQueue.run, [True]

    async def run(self: AsyncQueue, flow: Any) -> object:
        if away[0]:
            raise Unavailable("no server")
        return await plain(self, flow)

    (lease,) = mine.claim()
    monkeypatch.setattr(AsyncQueue, "run", run)
    with caplog.at_level(logging.INFO):
        keeper = mine.keeper()
        keeper.add(lease)
        wait_until(lambda: "cannot reach the server" in caplog.text)
        away[0] = False
        wait_until(lambda: "reaches the server again" in caplog.text)
    assert keeper.held == [lease]
    mine.close()


def test_who_closes_a_keeper_whose_event_loop_has_ended_waits_for_its_farewell(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    says, asked, may_say = heartbeat.Beat._say_farewell, threading.Event(), threading.Event()

    async def when_allowed(beat: heartbeat.Beat) -> None:
        asked.set()
        await asyncio.to_thread(may_say.wait)
        await says(beat)

    monkeypatch.setattr(heartbeat, "NEWS_EVERY", 0.05)
    monkeypatch.setattr(heartbeat.Beat, "_say_farewell", when_allowed)

    async def begin() -> AsyncKeeper:
        keeper = AsyncQueue(queue.name, queue.given[0]).keeper()
        await keeper.__aenter__()
        return keeper

    keeper = asyncio.run(begin())
    assert asked.wait(10)
    threading.Timer(0.2, may_say.set).start()
    asyncio.run(keeper.close())
    assert queue.workers() == []
