"""A server that has lost its data, or has no memory left: what is told, and what is written again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import redis

from tests.rig.command import Say, say
from tests.rig.waiting import until, wait_until
from timeoutq import Ack, AsyncQueue, Lease, Politeness, Queue, UnsafeServer, Worker
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_async_queue

__all__ = ["say"]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


def test_a_server_that_comes_back_empty_is_told_the_settings_again(server: EmbeddedServer) -> None:
    rules = Politeness(delay=0.5, per_host=4)
    with Queue("crawl", server.url, politeness=rules) as polite, Queue("crawl", server.url) as other:
        polite.put("http://a.example/1")
        server.restart()
        assert polite.claim() == []
        other.put("http://a.example/1")
        assert other.stats().politeness == rules


def test_a_setting_that_was_changed_since_is_not_undone(server: EmbeddedServer) -> None:
    with (
        Queue("changed", server.url, politeness=Politeness(delay=0.5)) as polite,
        redis.Redis.from_url(server.url) as raw,
    ):
        polite.put("http://a.example/1")
        polite.configure(politeness=Politeness(delay=3))
        raw.function_flush()
        polite.put("http://a.example/2")
        assert polite.stats().politeness == Politeness(delay=3)


async def test_a_burst_whose_queue_is_gone_has_not_drained_it() -> None:
    async with fake_async_queue() as queue:
        await queue.put("a", "b")

        async def handler(lease: Lease) -> None:
            await queue.purge()

        with pytest.raises(UnsafeServer, match=f"queue {queue.name} had tasks, and is not at .* any more"):
            await Worker(queue, handler, burst=True, signals=False, concurrency=1).run()
        tally = await Worker(queue, handler, burst=True, signals=False).run()
        assert tally.end == "drained", "nothing was ever put, as far as this worker knows"


def test_a_wait_for_the_end_of_a_queue_does_not_take_its_loss_for_the_end(
    server: EmbeddedServer, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = threading.Event(), Queue.wait_drained

    def told(*args: object) -> bool:
        waits.set()
        return wait(*args)  # type: ignore[arg-type]  # as the command calls it

    monkeypatch.setattr(Queue, "wait_drained", told)

    def lose() -> None:
        waits.wait(10)
        with redis.Redis.from_url(server.url) as raw:
            raw.flushall()

    with Queue("lost", server.url) as queue:
        queue.put("a")
    losing = threading.Thread(target=lose)
    losing.start()
    done = say("drained", "lost", "--wait", "20s")
    losing.join()
    assert (done.code, done.out) == (1, "")
    assert "queue lost is unknown: nothing was put to it at" in done.err
    assert "or its data is gone" in done.err


async def test_why_says_that_a_full_server_does_not_take_the_end_of_a_task(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.url) as raw, Queue("full", server.url) as queue:

        async def handler(lease: Lease) -> Ack | None:
            if lease.task != "page":
                return None
            raw.config_set("maxmemory", 1)
            return Ack(put=["link"])

        def said(words: str) -> bool:
            return words in queue.why("page").message

        queue.put("page")
        async with AsyncQueue("full", server.url) as mine:
            working = asyncio.create_task(Worker(mine, handler, burst=True, signals=False).run())
            untaken = "the worker says: the server does not take the end of a task: "
            await asyncio.to_thread(wait_until, lambda: said(untaken) and said("out of memory"))
            (worker,) = queue.workers()
            assert worker.claims
            assert worker.trouble.startswith("the server does not take the end of a task: ")
            raw.config_set("maxmemory", 0)
            assert (await working).acked == 2
        assert queue.why("page").code == "done"


async def test_a_worker_has_no_trouble_any_more_when_the_server_has_taken_what_goes_before_an_ack(
    server: EmbeddedServer,
) -> None:
    with redis.Redis.from_url(server.url) as raw, Queue("many", server.url) as queue:

        async def handler(lease: Lease) -> Ack | None:
            if lease.task != "page":
                return None
            raw.config_set("maxmemory", 1)
            return Ack(put=[f"link {number}" for number in range(5_000)])  # more than fit into one ack

        queue.put("page")
        async with AsyncQueue("many", server.url) as mine:
            worker = Worker(mine, handler, burst=True, signals=False)
            working = asyncio.create_task(worker.run())
            (leases,) = worker._leases
            await until(lambda: "out of memory" in "".join(leases.untaken.values()))
            raw.config_set("maxmemory", 0)
            assert (await working).acked == 5_001
            assert leases.untaken == {}
