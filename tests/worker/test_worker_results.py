"""What handlers give as results of their runs, from the handler to who waits for it, on real servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.worker.working import at_work
from timeoutq import Ack, AsyncQueue, GiveUp, Lease, Queue, RetryPolicy, State, Worker
from timeoutq.server.calls import BYTES, Kept
from timeoutq.words.model import Ended
from timeoutq.worker.handlers import Serves, Verdict
from timeoutq.worker.served import Place

HALF = BYTES // 2 + 1
LARGE = b"x" * Kept.MOST


@asynccontextmanager
async def working(queue: Queue, handler: Any, **settings: Any) -> AsyncIterator[Worker]:
    """Give a worker that runs, and ends with the block."""
    async with AsyncQueue(queue.name, queue.given[0], timeout=5) as mine:
        async with at_work(Worker(mine, handler, signals=False, **settings)) as worker:
            yield worker


async def wait_for(queue: Queue, *tasks: str) -> dict[str, Ended]:
    """Wait in a thread, as a program does that has put the tasks."""
    return await asyncio.to_thread(queue.results.wait, *tasks, timeout=30)


async def ended(queue: Queue, handler: Any, *tasks: str, **settings: Any) -> dict[str, Ended]:
    """Put tasks, have a worker do them, and give what a wait tells."""
    async with working(queue, handler, **settings):
        queue.put(tasks)
        return await wait_for(queue, *tasks)


def giving(result: Any) -> Any:
    async def handler(lease: Lease) -> Any:
        return result

    return handler


def key(queue: Queue, what: str) -> str:
    return f"timeoutq:{{{queue.name}}}:{what}"


# ---- from the handler to who waits


async def in_loop(lease: Lease) -> Ack:
    return Ack(result=b"of " + lease.task.encode())


async def raises(lease: Lease) -> None:
    raise Ack(result=b"of " + lease.task.encode())


def in_thread(lease: Lease) -> Ack:
    return Ack(result=b"of " + lease.task.encode())


@pytest.mark.parametrize("handler", [in_loop, raises, in_thread], ids=lambda one: one.__name__)
async def test_who_waits_sees_what_the_handler_gives_as_its_result(queue: Queue, handler: Any) -> None:
    tasks = [f"t{i}" for i in range(30)]
    expected = {task: Ended(task, State.DONE, b"of " + task.encode()) for task in tasks}
    assert await ended(queue, handler, *tasks) == expected
    assert queue.results.look(tasks) == expected


async def test_a_result_is_kept_for_an_hour_or_as_long_as_the_handler_says(queue: Queue, raw: redis.Redis) -> None:
    times = {"usual": Ack(result=b"1"), "short": Ack(result=b"1", keep_result=5)}

    async def handler(lease: Lease) -> Ack:
        return times[lease.task]

    await ended(queue, handler, *times)
    assert 3_590_000 < raw.pttl(key(queue, "result:usual")) <= 3_600_000
    assert 0 < raw.pttl(key(queue, "result:short")) <= 5000


@pytest.mark.parametrize("put", [(), "found"])
async def test_a_task_whose_id_is_kept_for_a_time_blocks_it_until_then(
    queue: Queue, raw: redis.Redis, put: Any
) -> None:
    queue.configure(keep_done=0)
    await ended(queue, giving(Ack(put, keep_id=timedelta(hours=1))), "t")
    assert raw.smembers(key(queue, "done")) >= {"t"}
    left = float(raw.zscore(key(queue, "done_until"), "t") or 0) / 1000 - queue.stats().now
    assert 3500 < left <= 3600
    assert queue.put("t")[0] == "done"


# ---- together with what else an ack may do


@pytest.mark.parametrize(
    "put",
    [["found"], {"found": b"x" * (BYTES - 100)}, {f"found-{i}": b"x" * HALF for i in range(3)}],
    ids=["few", "as much as fits", "much"],
)
async def test_a_result_goes_with_what_the_handler_found(queue: Queue, put: Any) -> None:
    async def handler(lease: Lease) -> Ack | None:
        return Ack(put=put, result=LARGE, keep_id=False) if lease.task == "page" else None

    async with working(queue, handler):
        queue.put("page")
        assert await wait_for(queue, "page") == {"page": Ended("page", None, LARGE)}
        assert await wait_for(queue, *put) == {task: Ended(task, State.DONE) for task in put}


# ---- failures


class Judging(Serves):
    """A handler that fails, and judges its failures."""

    def __init__(self, verdict: Any, error: BaseException | None = None) -> None:
        self.verdict = verdict
        self.error = ValueError("no") if error is None else error
        self.asked: list[tuple[int, str]] = []
        self.made = 0

    def serve(self, place: Place) -> Callable[[Lease], Awaitable[Ack]]:
        return self.fail

    async def fail(self, lease: Lease) -> Ack:
        raise self.error

    def judge(self, lease: Lease, error: BaseException) -> Any:
        self.asked.append((lease.attempt, repr(error)))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def make(self) -> Kept:
        self.made += 1
        return Kept(b"why", 60_000)


def unmade() -> Kept:
    raise ZeroDivisionError


async def test_a_handler_says_when_its_task_is_tried_again_and_what_is_kept_when_it_is_given_up(
    queue: Queue,
) -> None:
    handler = Judging(None)
    handler.verdict = Verdict(RetryPolicy.of([0, 0]), handler.make)
    assert await ended(queue, handler, "t", retry=[3600]) == {"t": Ended("t", State.FAILED, b"why")}
    assert handler.asked == [(attempt, "ValueError('no')") for attempt in (1, 2, 3)]
    assert handler.made == 1, "the result is made once, when the task is given up"
    assert queue.inspect("t").error == "ValueError: no"


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (OSError("no disk"), "OSError: no disk"),
        (Verdict(result=unmade), "ZeroDivisionError"),
    ],
    ids=["raises", "its result raises"],
)
async def test_a_verdict_that_cannot_be_used_is_logged_and_the_task_fails_all_the_same(
    queue: Queue, verdict: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Judging(verdict, GiveUp("no"))
    with caplog.at_level(logging.ERROR):
        assert await ended(queue, handler, "t") == {"t": Ended("t", State.FAILED, error="GiveUp: no")}
    assert said in caplog.text
    assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1
