"""`queue.keeper()`: the heartbeat for programs that claim by hand, in a thread or in an asyncio task."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import Answer, AsyncQueue, InvalidInput, Lease, LeaseLost, Queue, Unavailable
from timeoutq.client import heartbeat
from timeoutq.testing import fake_async_queue, fake_queue


def short(queue: Queue, timeout: float = 0.6) -> Queue:
    return Queue(queue.name, queue.given[0], timeout=timeout)


async def until(predicate: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await predicate():
            await asyncio.sleep(0.01)


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


async def test_a_lost_lease_of_an_async_queue_goes_out_by_the_callback_in_the_event_loop(queue: Queue) -> None:
    queue.put("a")
    lost: list[tuple[str, Answer, asyncio.AbstractEventLoop]] = []
    async with AsyncQueue(queue.name, queue.given[0], timeout=0.6, max_runtime=1.0) as mine:

        def on_lost(lease: Lease, answer: Answer) -> None:
            lost.append((lease.task, answer, asyncio.get_running_loop()))

        keeper = mine.keeper(on_lost)
        keeper.add(*await mine.claim())
        await until(lambda: _true(bool(lost)))
    assert lost[0][0] == "a"
    assert lost[0][1] in (Answer.MAX_RUNTIME, Answer.LOST)
    assert lost[0][2] is asyncio.get_running_loop()


async def _true(value: bool) -> bool:
    return value


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


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
def test_after_a_callback_that_ends_its_thread_the_other_leases_are_kept(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def ends(lease: Lease, answer: Answer) -> None:
        raise error

    with fake_queue(timeout=0.6) as mine, mine.keeper(ends) as keeper:
        mine.put("a", "b")
        keeper.add(*mine.claim(2))
        mine.forget("a")
        wait_until(lambda: "on_lost" in caplog.text)
        assert f"on_lost of a keeper has raised an error for task 'a': {type(error).__name__}" in caplog.text
        mine.forget("b")
        wait_until(lambda: not keeper.held)


async def test_after_a_callback_that_is_cancelled_the_other_leases_of_an_async_queue_are_kept(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def ends(lease: Lease, answer: Answer) -> None:
        raise asyncio.CancelledError

    queue.put("a", "b")
    async with AsyncQueue(queue.name, queue.given[0], timeout=0.6) as mine, mine.keeper(ends) as keeper:
        keeper.add(*await mine.claim(2))
        await mine.forget("a")
        await until(lambda: _true("on_lost" in caplog.text))
        await mine.forget("b")
        await until(lambda: _true(not keeper.held))
    assert caplog.text.count("on_lost") == 2
    assert "begins again" not in caplog.text


def test_a_thread_that_has_ended_unasked_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    mine = fake_queue(timeout=0.6)
    mine.put("a")
    plain, ends = mine.run, [True]

    def run(flow: object) -> object:
        if ends:
            raise SystemExit(ends.pop())
        return plain(flow)  # type: ignore[arg-type]  # a flow

    leases = mine.claim()
    mine.run = run  # type: ignore[method-assign,assignment]  # pyright: ignore[reportAttributeAccessIssue]  # the way to the server
    keeper = mine.keeper()
    keeper.add(*leases)
    wait_until(lambda: not ends)
    mine.forget("a")
    wait_until(lambda: not keeper.held)
    assert f"the heartbeat of a keeper of queue {mine.name} has ended, and begins again: SystemExit" in caplog.text
    mine.close()


@pytest.mark.parametrize("what", ["keeper", "queue"])
def test_a_callback_may_close_the_keeper_or_its_queue(
    queue: Queue, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put("a")
    mine = short(queue)
    closed: list[str] = []

    def on_lost(lease: Lease, answer: Answer) -> None:
        (keeper if what == "keeper" else mine).close()
        closed.append(lease.task)

    keeper = mine.keeper(on_lost)
    keeper.add(*mine.claim())
    thread = next(one for one in threading.enumerate() if one.name == f"heartbeat-{queue.name}")
    queue.forget("a")
    wait_until(lambda: closed or "on_lost" in caplog.text)
    thread.join(5)
    assert not thread.is_alive()
    assert caplog.text == ""
    assert queue.workers() == [], "it has said farewell"
    assert what == "keeper" or mine._held is None, "no connection was opened after the end"
    mine.close()


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


@pytest.mark.parametrize("end", END)
async def test_a_keeper_of_an_async_queue_lets_go_of_leases_that_it_ends(end: Callable[[Any, Any], Any]) -> None:
    async with fake_async_queue() as mine, mine.keeper() as keeper:
        await mine.put("a", "b")
        one, other = await mine.claim(2)
        keeper.add(one, other)
        await end(mine, [one])
        assert keeper.held == [other]


def test_a_lease_whose_ack_is_under_way_is_not_lost_and_is_kept_if_nobody_answers() -> None:
    lost: list[str] = []
    mine = fake_queue()
    mine.put("a", "b")
    keeper = mine.keeper(lambda lease, answer: lost.append(lease.task))
    leases = mine.claim(2)
    keeper.add(*leases)
    plain = mine.run

    def run(flow: object) -> object:
        plain(flow)  # type: ignore[arg-type]  # a flow
        keeper._lost([(lease, Answer.LOST) for lease in leases])  # as if the heartbeat had asked at this moment
        raise Unavailable("the reply was lost")

    mine.run = run  # type: ignore[method-assign,assignment]  # pyright: ignore[reportAttributeAccessIssue]  # the way to the server
    with pytest.raises(Unavailable):
        mine.ack(leases[0])
    mine.run = plain  # type: ignore[method-assign]  # the way to the server, as it was
    assert lost == [leases[1].task]
    assert keeper.held == [leases[0]]
    mine.forget("a", "b")
    with pytest.raises(LeaseLost):
        mine.release(leases[0])
    assert keeper.held == []
    keeper._lost([(leases[0], Answer.LOST)])
    assert lost == [leases[1].task], "the release has told it"
    mine.close()


def test_a_lease_is_lost_as_any_other_when_the_call_that_would_end_it_was_not_answered() -> None:
    lost: list[str] = []
    with fake_queue() as mine:
        mine.put("a")
        keeper = mine.keeper(lambda lease, answer: lost.append(lease.task))
        (lease,) = mine.claim()
        keeper.add(lease)
        with pytest.raises(Unavailable), mine._keepers.ending([lease]):
            raise Unavailable("the call was not answered")
        keeper._lost([(lease, Answer.LOST)])
        assert (lost, keeper.held) == (["a"], [])


def test_a_worker_that_has_stopped_holds_nothing_once_its_leases_must_have_run_out(
    queue: Queue, raw: redis.Redis
) -> None:
    queue.put("a", "b")
    with short(queue, 6) as mine:
        keeper = mine.keeper()
        keeper.add(*mine.claim(2))
        wait_until(lambda: [one.held for one in queue.workers()] == [2])
        about: Any = raw.hget(queue.operations.key("worker_info"), mine.worker)
        now = queue.stats().now
        mine.release(keeper.held)
    # a lease may have been extended just before the next sign of life was due, which is five seconds after the last
    raw.hset(queue.operations.key("worker_info"), mapping={"w1": about, "w2": about})
    raw.zadd(queue.operations.key("workers"), {"w1": round(now * 1000), "w2": round((now - 6 - 5.1) * 1000)})
    assert {one.worker: one.held for one in queue.workers()} == {"w1": 2, "w2": 0}


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


async def test_the_keeper_of_an_async_queue_shows_as_a_worker_and_ends_with_its_queue(queue: Queue) -> None:
    queue.put("a")
    async with AsyncQueue(queue.name, queue.given[0], timeout=6) as mine:
        keeper = mine.keeper()
        leases = await mine.claim()
        keeper.add(*leases)
        await until(lambda: _shows(mine, 1))
        await mine.release(leases)
    assert queue.workers() == []
    with pytest.raises(InvalidInput, match="closed"):
        keeper.add()


async def _shows(queue: AsyncQueue, held: int) -> bool:
    return [worker.held for worker in await queue.workers()] == [held]


def test_a_keeper_says_how_many_workers_of_its_queue_are_alive(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY", 0.05)
    with short(queue) as one, short(queue) as other, one.keeper() as first:
        with other.keeper() as second:
            wait_until(lambda: first.peers == 2)
            wait_until(lambda: second.peers == 2)
        wait_until(lambda: first.peers == 1)


async def test_the_keeper_of_an_async_queue_says_how_many_workers_are_alive(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY", 0.05)
    name, url = queue.name, queue.given[0]
    async with AsyncQueue(name, url, timeout=0.6) as one, AsyncQueue(name, url, timeout=0.6) as other:
        async with one.keeper() as first:
            async with other.keeper() as second:
                await until(lambda: _true(first.peers == 2))
                await until(lambda: _true(second.peers == 2))
            await until(lambda: _true(first.peers == 1))


def test_a_lease_that_has_little_time_left_is_extended_at_once(queue: Queue) -> None:
    queue.put("a")
    with short(queue, 30) as mine, mine.keeper() as keeper:
        (lease,) = mine.claim(timeout=2.5)
        began = time.monotonic()
        keeper.add(lease)
        wait_until(lambda: (queue.inspect("a").lease_left or 0) > 20)
        assert time.monotonic() - began < 2.4
        mine.ack(lease)


def test_a_lease_with_less_than_half_of_the_timeout_left_does_not_wait_for_the_next_third() -> None:
    with fake_queue(timeout=30) as mine:
        mine.put("a", "b")
        keeper = mine.keeper()
        assert not keeper._took(tuple(mine.claim(timeout=20)))
        assert keeper._took(tuple(mine.claim(timeout=10)))


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


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("make", [fake_queue, fake_async_queue])
def test_a_forked_process_sees_no_leases_of_its_parent(make: Callable[[], Any]) -> None:
    keeper = make().keeper()
    lease = Lease("a", "token", 0.0, fence=1)
    keeper._held[1] = lease
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if keeper.held == [] and repr(keeper).endswith("with 0 leases>") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert keeper.held == [lease]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_was_forked_while_a_thread_used_the_keeper_can_close_it() -> None:
    with fake_queue() as mine:
        keeper = mine.keeper()
        with keeper._lock:  # as another thread may at the moment of the fork
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(3)
                    keeper.close()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        keeper.add()


def test_a_keeper_goes_on_in_a_second_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    mine = fake_async_queue(timeout=0.6)
    keeper = mine.keeper()

    async def take() -> None:
        await mine.put("a", "b")
        keeper.add(*await mine.claim())
        await until(lambda: _shows(mine, len(keeper.held)))

    async def keep() -> None:
        await take()
        await mine.forget("a", "b")
        await until(lambda: _true(keeper.held == []))
        await mine.close()
        assert await mine.workers() == []

    asyncio.run(take())
    asyncio.run(keep())
    assert caplog.text == ""


def test_a_keeper_of_an_async_queue_needs_an_event_loop() -> None:
    with pytest.raises(InvalidInput, match="no event loop runs here"):
        fake_async_queue().keeper().add()


class Awaits:
    """A callback that would have to be awaited."""

    async def __call__(self, lease: Lease, answer: Answer) -> None: ...


@pytest.mark.parametrize("bad", [Awaits(), Awaits().__call__])
def test_a_callback_that_would_have_to_be_awaited_is_refused(bad: Callable[[Lease, Answer], object]) -> None:
    with fake_queue() as mine, pytest.raises(InvalidInput, match="on_lost must be a plain function"):
        mine.keeper(bad)


def test_a_keeper_waits_for_a_server_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    mine = fake_queue(timeout=0.6)
    mine.put("a")
    plain, away = mine.run, [True]

    def run(flow: object) -> object:
        if away[0]:
            raise Unavailable("no server")
        return plain(flow)  # type: ignore[arg-type]  # a flow

    (lease,) = mine.claim()
    mine.run = run  # type: ignore[method-assign,assignment]  # pyright: ignore[reportAttributeAccessIssue]  # the way to the server
    with caplog.at_level(logging.INFO):
        keeper = mine.keeper()
        keeper.add(lease)
        wait_until(lambda: "cannot reach the server" in caplog.text)
        away[0] = False
        wait_until(lambda: "reaches the server again" in caplog.text)
    assert keeper.held == [lease]
    mine.close()


@pytest.mark.parametrize("bad", ["a", None, 5])
def test_what_is_no_lease_is_refused(bad: object) -> None:
    with fake_queue() as mine, mine.keeper() as keeper, pytest.raises(InvalidInput, match="leases that claim"):
        keeper.add(bad)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # on purpose


def test_a_callback_that_is_none_and_a_wrong_concurrency_are_refused() -> None:
    with fake_queue() as mine:
        with pytest.raises(InvalidInput, match="on_lost"):
            mine.keeper("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # on purpose
        with pytest.raises(InvalidInput, match="concurrency"):
            mine.keeper(concurrency=0)
