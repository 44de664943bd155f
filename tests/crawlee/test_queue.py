"""The request queue of crawlee on a queue: what crawlee asks of it, and what several processes do to each other."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
from crawlee import Request
from crawlee.configuration import Configuration
from crawlee.storage_clients import MemoryStorageClient
from crawlee.storages import Dataset, KeyValueStore, RequestQueue

from tests.rig.invariants import check
from tests.worker.working import until
from timeoutq import Answer, AsyncQueue, InvalidInput, Politeness, Queue, ServerFull, State
from timeoutq.crawlee import TimeoutqStorageClient
from timeoutq.crawlee import queue as module
from timeoutq.crawlee.queue import TimeoutqRequestQueueClient as Client

Open = Callable[..., Any]


def page(number: int) -> Request:
    return Request.from_url(f"https://a.example/{number}")


@pytest.fixture
async def storage(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TimeoutqStorageClient]:
    """A process: its requests are leased for five seconds, and it does not wait for more of them."""
    monkeypatch.setattr(module, "WAIT", 0.0)
    monkeypatch.setattr(module, "SHORT_WAIT", 0.0)
    async with TimeoutqStorageClient(url, storage=MemoryStorageClient(), timeout=5) as opened:
        yield opened


@pytest.fixture
async def opened(storage: TimeoutqStorageClient, url: str, name: str) -> AsyncIterator[Client]:
    """A queue; after the test its invariants must hold."""
    yield await storage.create_rq_client(name=name)
    check(url, name)


async def told(answer: Any) -> tuple[bool, bool] | None:
    found = await answer
    return None if found is None else (found.was_already_present, found.was_already_handled)


@pytest.mark.parametrize("seed", range(3))
async def test_it_answers_as_a_simple_model_does(opened: Client, seed: int) -> None:
    chosen = random.Random(seed)
    states: dict[str, str] = {}
    held: list[Request] = []
    for _ in range(200):
        step = chosen.choice(["add", "add", "fetch", "fetch", "fetch", "handle", "reclaim", "look"])
        if step == "add":
            requests = [page(chosen.randrange(60)) for _ in range(chosen.randrange(4))]
            response = await opened.add_batch_of_requests(requests, forefront=chosen.random() < 0.3)
            for request, answer in zip(requests, response.processed_requests, strict=True):
                state = states.setdefault(request.unique_key, "new")
                assert (answer.was_already_present, answer.was_already_handled) == (state != "new", state == "done")
                states[request.unique_key] = "ready" if state == "new" else state
        elif step == "fetch":
            assert await opened.is_empty() == ("ready" not in states.values())
            fetched = await opened.fetch_next_request()
            assert (fetched is None) == ("ready" not in states.values())
            if fetched is not None:
                assert states[fetched.unique_key] == "ready"
                states[fetched.unique_key] = "held"
                held.append(fetched)
        elif step == "look":
            key = page(chosen.randrange(60)).unique_key
            found = await opened.get_request(key)
            assert (found is not None, found and found.was_already_handled) == (
                key in states, (states[key] == "done") if key in states else None,
            )  # fmt: skip
        elif held:
            request = held.pop(chosen.randrange(len(held)))
            request.retry_count += 1
            end = opened.mark_request_as_handled if step == "handle" else opened.reclaim_request
            assert await told(end(request)) == (True, step == "handle")
            assert await told(end(request)) is None  # it is not held any more
            states[request.unique_key] = "done" if step == "handle" else "ready"
        counts = await opened.get_metadata()
        done = [*states.values()].count("done")
        assert (counts.total_request_count, counts.handled_request_count) == (len(states), done)
        assert counts.pending_request_count == len(states) - done
        assert await opened.is_finished() == (len(states) == done)


async def test_a_request_that_has_failed_and_is_added_again_was_handled_already(opened: Client) -> None:
    await opened.add_batch_of_requests([page(1)])
    (lease,) = await opened.queue.claim()
    await opened.queue.fail(lease, "it was claimed by hand", give_up=True)
    (answer,) = (await opened.add_batch_of_requests([page(1)])).processed_requests
    assert (answer.was_already_present, answer.was_already_handled) == (True, True)


async def test_a_reclaimed_request_comes_back_as_it_is_now(opened: Client) -> None:
    await opened.add_batch_of_requests([page(1)])
    for count in range(12):  # more often than a task may fail
        request = await opened.fetch_next_request()
        assert request is not None
        assert request.retry_count == count
        request.retry_count, request.user_data["seen"] = count + 1, count
        if count == 11:
            del request.user_data["seen"]
            request.retry_count = 0
        await opened.reclaim_request(request)
    assert await opened.fetch_next_request() == page(1)


async def test_what_another_process_holds_makes_the_queue_empty_but_not_finished(
    url: str, opened: Client, storage: TimeoutqStorageClient
) -> None:
    await opened.add_batch_of_requests([page(1)])
    assert await opened.fetch_next_request()
    async with TimeoutqStorageClient(url) as process:
        other = await process.create_rq_client(name=opened.queue.name)
        assert (await other.is_empty(), await other.is_finished(), await other.fetch_next_request()) == (
            True,
            False,
            None,
        )
        assert (await other.mark_request_as_handled(page(1)), await other.reclaim_request(page(1))) == (None, None)
        await storage.close()  # gives back what it holds
        assert await other.fetch_next_request() == page(1)


async def test_a_lease_is_kept_alive_while_its_handler_runs(url: str, name: str) -> None:
    async with TimeoutqStorageClient(url, timeout=1.5) as process, AsyncQueue(name, url) as other:
        mine = await process.create_rq_client(name=name)
        await mine.add_batch_of_requests([page(1)])
        request = await mine.fetch_next_request()
        assert request is not None
        assert await other.claim(wait=2.5) == []
        assert await told(mine.mark_request_as_handled(request)) == (True, True)


HOLDS = """
import asyncio, sys, time
from crawlee import Request
from timeoutq.crawlee import TimeoutqStorageClient
async def main():
    queue = await TimeoutqStorageClient(timeout=2).create_rq_client(**{sys.argv[1]: sys.argv[2]})
    await queue.add_batch_of_requests([Request.from_url("https://a.example/1")])
    print((await queue.fetch_next_request()).url, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def holder(url: str, how: str, name: str) -> subprocess.Popen[str]:
    """Start a process that holds a request."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, how, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TIMEOUTQ_URL": url},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "https://a.example/1\n"
    return process


async def test_what_a_dead_process_held_comes_back_while_others_are_ready(url: str, opened: Client) -> None:
    await opened.add_batch_of_requests([page(number) for number in range(9)])
    async with AsyncQueue(opened.queue.name, url) as other:
        (dead,) = await other.claim(timeout=0.5)
        assert await opened.fetch_next_request()
        await until_known(lambda: other.states(dead.task), ["todos"])
        assert (await other.stats()).todos == 8


async def until_known(ask: Callable[[], Any], answer: list[str]) -> None:
    async with asyncio.timeout(30):
        while list(await ask()) != answer:
            await asyncio.sleep(0.02)


async def test_a_process_that_is_interrupted_gives_its_requests_back_and_says_farewell(
    url: str, opened: Client
) -> None:
    with holder(url, "name", opened.queue.name) as process:
        process.send_signal(signal.SIGINT)
    (lease,) = await opened.queue.claim()
    assert (lease.task, lease.crashes) == ("https://a.example/1", 0)
    assert await opened.queue.workers() == []


async def test_who_closes_gives_back_what_it_has_claimed_and_nobody_has_fetched(url: str, opened: Client) -> None:
    await opened.add_batch_of_requests([page(1)])
    async with TimeoutqStorageClient(url) as process:
        assert not await (await process.create_rq_client(name=opened.queue.name)).is_empty()
        assert list(await opened.queue.states(page(1).unique_key)) == ["in_progress"]
    assert list(await opened.queue.states(page(1).unique_key)) == ["todos"]


async def test_what_nobody_fetches_is_given_back(url: str, opened: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCHED_WITHIN", 0.05)
    await opened.add_batch_of_requests([page(1)])
    assert not await opened.is_empty()
    async with AsyncQueue(opened.queue.name, url) as other:
        (lease,) = await other.claim(wait=10)
        assert lease.attempt == 1


async def test_a_lease_that_is_lost_ends_nothing(opened: Client, url: str, caplog: pytest.LogCaptureFixture) -> None:
    await opened.add_batch_of_requests([page(1), page(2)])
    first, second = await opened.fetch_next_request(), await opened.fetch_next_request()
    assert first is not None
    assert second is not None
    with Queue(opened.queue.name, url) as hand:
        hand.forget(first.unique_key, second.unique_key)
        hand.put(first.unique_key)
    assert (await opened.mark_request_as_handled(first), await opened.reclaim_request(second)) == (None, None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert await opened.fetch_next_request() == page(1 if first.url == page(1).url else 2)


async def test_late_news_of_a_lost_lease_leaves_the_newer_lease_on_its_request(opened: Client, url: str) -> None:
    await opened.add_batch_of_requests([page(1)])
    assert await opened.fetch_next_request() == page(1)
    (lost,) = opened._held.values()
    with Queue(opened.queue.name, url) as hand:
        hand.forget(lost.task)
        hand.put(lost.task)
    request = await opened.fetch_next_request()
    assert request is not None
    opened._lost(lost, Answer.LOST)  # the keeper hears of it only with its next extension
    assert await told(opened.mark_request_as_handled(request)) == (True, True)


async def test_a_queue_with_a_name_is_purged_also_while_others_live_on_it(url: str, name: str) -> None:
    async with TimeoutqStorageClient(url) as process, TimeoutqStorageClient(url) as other:
        mine, theirs = await process.create_rq_client(name=name), await other.create_rq_client(name=name)
        await mine.add_batch_of_requests([page(1), page(2)])
        assert await mine.fetch_next_request() is not None
        await until(lambda: theirs.queue.workers())
        await theirs.purge()
        assert (await theirs.get_metadata()).total_request_count == 0


async def test_a_cancelled_request_fails_at_once(url: str, name: str) -> None:
    async with TimeoutqStorageClient(url, timeout=1.5) as process:
        mine = await process.create_rq_client(name=name)
        await mine.add_batch_of_requests([page(1)])
        request = await mine.fetch_next_request()
        assert request is not None
        await mine.queue.cancel(request.unique_key, by="kim")
        await until(mine.queue.drained, 10)
        assert (await mine.queue.inspect(request.unique_key)).error == "cancelled by kim"
        counters = (await mine.queue.stats()).counters
        assert (counters.get("released"), counters.get("expired", 0)) == (1, 0), "nobody waits for the lease to run out"
        assert await mine.mark_request_as_handled(request) is None
        assert await mine.is_finished()


async def test_a_request_that_is_cancelled_before_it_is_fetched_is_never_fetched(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FETCHED_WITHIN", 60.0)
    async with TimeoutqStorageClient(url, timeout=1.5) as process:
        mine = await process.create_rq_client(name=name)
        await mine.add_batch_of_requests([page(1)])
        assert not await mine.is_empty()
        await mine.queue.cancel(page(1).unique_key, by="kim")
        await until(mine.queue.drained, 10)
        assert await mine.fetch_next_request() is None


async def test_urls_put_by_hand_are_requests_and_what_is_no_request_fails(opened: Client) -> None:
    await opened.queue.put("https://a.example/1", {"no url": {"n": 1}})
    assert await opened.fetch_next_request() == page(1)
    assert await opened.fetch_next_request() is None
    found = await opened.queue.inspect("no url")
    assert (found.state, "url" in str(found.error)) == (State.FAILED, True)


@pytest.mark.parametrize("again", [False, True])
async def test_a_request_whose_lease_was_lost_keeps_no_crawl_from_its_end(
    opened: Client, url: str, again: bool
) -> None:
    await opened.add_batch_of_requests([page(1)])
    request = await opened.fetch_next_request()
    assert request is not None
    with Queue(opened.queue.name, url) as hand:
        hand.forget(request.unique_key)
    assert await (opened.reclaim_request if again else opened.mark_request_as_handled)(request) is None
    assert await opened.is_finished()


async def test_the_row_of_a_crawler_among_the_workers_counts_what_it_has_handled_and_tried_again(
    opened: Client,
) -> None:
    await opened.add_batch_of_requests([page(number) for number in range(4)])
    held = [await opened.fetch_next_request() for _ in range(3)]
    for request in held[:2]:
        assert request is not None
        await opened.mark_request_as_handled(request)
    assert held[2] is not None
    await opened.reclaim_request(held[2])
    await opened.close()  # its farewell is the last sign of life
    keeper = opened._keeper
    assert (keeper.acked, keeper.failed, keeper.concurrency) == (2, 1, 3)


async def test_a_request_that_has_failed_counts_as_handled(opened: Client) -> None:
    await opened.add_batch_of_requests([page(1)])
    (lease,) = await opened.queue.claim()
    await opened.queue.fail(lease, "it was claimed by hand", give_up=True)
    found = await opened.get_request(page(1).unique_key)
    assert found is not None
    assert found.was_already_handled
    assert (await opened.get_metadata()).handled_request_count == 1


async def test_while_the_server_takes_no_reclaim_the_request_that_came_with_it_is_fetched(
    opened: Client, raw: redis.Redis
) -> None:
    await opened.add_batch_of_requests([page(1), page(2)])
    first = await opened.fetch_next_request()
    assert first is not None
    raw.config_set("maxmemory", "1")
    try:
        with pytest.raises(ServerFull):
            await opened.reclaim_request(first)
    finally:
        raw.config_set("maxmemory", "0")
    second = await opened.fetch_next_request()
    assert second is not None
    assert {first.url, second.url} == {page(1).url, page(2).url}
    assert await told(opened.reclaim_request(first)) == (True, False)
    assert await told(opened.mark_request_as_handled(second)) == (True, True)


async def test_of_a_batch_with_a_request_that_is_no_json_nothing_is_put(opened: Client) -> None:
    with pytest.raises(InvalidInput):
        await opened.add_batch_of_requests([page(1), Request.from_url("https://a.example/2", payload=b"\xff")])
    assert (await opened.get_metadata()).total_request_count == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an event loop leaves its connections
async def test_an_event_loop_that_has_ended_holds_nothing(url: str, name: str) -> None:
    storage = TimeoutqStorageClient(url, storage=MemoryStorageClient())

    async def fetch() -> str:
        queue = await RequestQueue.open(name=name, storage_client=storage)
        await queue.add_request("https://a.example/1")
        assert not await queue.is_finished()
        request = await queue.fetch_next_request()
        return request.url if request else ""

    assert await asyncio.to_thread(asyncio.run, fetch()) == "https://a.example/1"
    assert await asyncio.to_thread(asyncio.run, fetch()) == "https://a.example/1"
    await storage.close()
    gc.collect()


async def test_who_has_fetched_hears_at_once_that_the_crawl_is_over(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TimeoutqStorageClient(url) as process:
        mine = await process.create_rq_client(name=name)
        await mine.add_batch_of_requests([page(1)])
        request = await mine.fetch_next_request()
        assert request is not None
        await mine.mark_request_as_handled(request)
        monkeypatch.setattr(AsyncQueue, "claim", None)  # no claim waits for more
        assert await mine.is_empty()
        assert await mine.is_finished()
        monkeypatch.undo()
        await mine.add_batch_of_requests([page(2)])
        assert not await mine.is_empty()
        await mine.drop()


async def test_who_has_fetched_nothing_waits_for_a_request_and_for_less_while_a_handler_runs(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, claim = list[float](), AsyncQueue.claim

    async def claimed(self: AsyncQueue, n: int, *, wait: float) -> Any:
        waits.append(wait)
        return await claim(self, n)

    monkeypatch.setattr(AsyncQueue, "claim", claimed)
    async with TimeoutqStorageClient(url) as process:
        mine = await process.create_rq_client(name=name)
        assert await mine.is_empty()  # another process may put the first requests
        await mine.add_batch_of_requests([page(1), page(2)])
        request = await mine.fetch_next_request()
        assert request is not None
        assert not await mine.is_empty()
        await mine.mark_request_as_handled(request)
        assert await mine.fetch_next_request()
        assert await mine.is_empty()
        assert waits == [module.WAIT, 0, module.SHORT_WAIT, module.SHORT_WAIT]
        assert module.SHORT_WAIT < module.WAIT
        await mine.drop()


# ---- politeness


async def test_the_politeness_of_the_queue_holds_and_forefront_is_a_priority(url: str, name: str) -> None:
    polite = Politeness(delay=0.2, per_host=1)
    async with TimeoutqStorageClient(url, politeness=polite) as process:
        mine = await process.create_rq_client(name=name)
        await mine.add_batch_of_requests([page(1), page(2), page(3)])
        post = Request.from_url("https://a.example/4", method="POST", payload="x", use_extended_unique_key=True)
        await mine.add_batch_of_requests([post], forefront=True)
        fetched, ends = list[str](), [0.0]
        while not await mine.is_finished():
            if await mine.is_empty():
                continue
            request = await mine.fetch_next_request()
            assert request is not None
            assert time.monotonic() - ends[-1] >= 0.19
            fetched.append(request.url[-1])
            assert await mine.fetch_next_request() is None  # the host has one place
            ends.append(time.monotonic())  # the visit ends later
            if request.url[-1] == "2" and request.retry_count == 0:
                request.retry_count = 1
                await mine.reclaim_request(request, forefront=True)
            else:
                await mine.mark_request_as_handled(request)
        assert "".join(fetched) == "142" + "23"  # page 1 was ready before the request in front came
        await mine.purge()
        assert (await mine.queue.stats()).politeness == polite
        await mine.drop()
    async with AsyncQueue(name, url) as anew:
        assert (await anew.stats()).politeness is None


# ---- queues without a name


async def test_a_queue_without_a_name_is_purged_if_nobody_lives_on_it(url: str) -> None:
    async with TimeoutqStorageClient(url) as process:
        first = await process.create_rq_client()
        await first.add_batch_of_requests([page(1)])
        assert (first.queue.name, (await first.get_metadata()).name) == ("unnamed.default", None)
        async with TimeoutqStorageClient(url) as other:
            second = await other.create_rq_client(alias="__default__")
            assert (await second.get_metadata()).total_request_count == 1
            await second.purge()  # a second run of a crawler wants that
            assert (await second.get_metadata()).total_request_count == 1
    async with TimeoutqStorageClient(url) as process:
        keeps = await process.create_rq_client(configuration=Configuration(purge_on_start=False))
        assert (await keeps.get_metadata()).total_request_count == 1
    async with TimeoutqStorageClient(url) as process:
        anew = await process.create_rq_client()
        assert (await anew.get_metadata()).total_request_count == 0


async def test_a_queue_without_a_name_that_is_opened_by_its_id_is_purged_and_has_no_name(url: str) -> None:
    async with TimeoutqStorageClient(url) as process:
        await (await process.create_rq_client(alias="news")).add_batch_of_requests([page(1)])
    async with TimeoutqStorageClient(url) as process:
        found = await (await process.create_rq_client(id="unnamed.news")).get_metadata()
        assert (found.id, found.name, found.total_request_count) == ("unnamed.news", None, 0)


async def test_the_requests_of_a_killed_process_come_back_within_the_lease_also_on_a_queue_without_a_name(
    url: str, storage: TimeoutqStorageClient
) -> None:
    with holder(url, "alias", "news") as process:
        process.kill()
    found = await storage.create_rq_client(alias="news")
    left = (await found.queue.inspect("https://a.example/1")).lease_left
    assert left is not None
    assert left <= 2
    (lease,) = await found.queue.claim(wait=30)
    assert (lease.task, lease.crashes) == ("https://a.example/1", 1)


async def test_who_opens_a_queue_while_another_process_purges_it_loses_no_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, forget_all = asyncio.Event(), asyncio.Event(), Client._forget_all

    async def slowly(client: Client) -> None:
        begun.set()
        await go_on.wait()
        await forget_all(client)

    async def process(number: int) -> list[str]:
        async with TimeoutqStorageClient(url) as storage:
            client = await storage.create_rq_client()
            await client.add_batch_of_requests([page(number)])
            await together.wait()
            return list(await client.queue.states(page(1).unique_key, page(2).unique_key))

    together = asyncio.Barrier(2)
    monkeypatch.setattr(Client, "_forget_all", slowly)
    first = asyncio.create_task(process(1))
    await begun.wait()
    monkeypatch.setattr(Client, "_forget_all", forget_all)
    second = asyncio.create_task(process(2))
    async with AsyncQueue("unnamed.default", url) as queue:
        async with asyncio.timeout(10):
            while len(await queue.workers()) < 2:
                await asyncio.sleep(0.01)
        await asyncio.wait({second}, timeout=0.3)  # it does not go on before the purge is over
    go_on.set()
    async with asyncio.timeout(10):  # and goes on at once when it is over
        assert [await first, await second] == [["todos"] * 2] * 2


async def test_aliases_and_ids_name_queues(storage: TimeoutqStorageClient) -> None:
    first = (await storage.create_rq_client(alias="a")).queue.name
    odd = (await storage.create_rq_client(alias="a:b")).queue.name
    same = (await storage.create_rq_client(id=first)).queue.name
    assert (first, same, odd.startswith("unnamed."), len(odd)) == ("unnamed.a", "unnamed.a", True, 40)
    with pytest.raises(InvalidInput, match="name"):
        await storage.create_rq_client(name="n" * 65)
    with pytest.raises(InvalidInput, match="timeout"):
        TimeoutqStorageClient(timeout=-1)


# ---- through crawlee


async def test_datasets_and_stores_are_those_of_the_other_client(storage: TimeoutqStorageClient, name: str) -> None:
    dataset = await Dataset.open(name=name, storage_client=storage)
    await dataset.push_data({"n": 1})
    assert [item async for item in dataset.iterate_items()] == [{"n": 1}]
    store = await KeyValueStore.open(name=name, storage_client=storage)
    await store.set_value("k", "v")
    assert await store.get_value("k") == "v"
    queue = await RequestQueue.open(name=name, storage_client=storage)
    await queue.add_requests(["https://a.example/1", "https://a.example/1", "https://a.example/2"])
    assert (await queue.get_total_count(), queue.id, queue.name) == (2, name, name)
    assert await queue.fetch_next_request()
    assert f"heartbeat-{name}" in {thread.name for thread in threading.enumerate()}
    await queue.drop()
    assert f"heartbeat-{name}" not in {thread.name for thread in threading.enumerate()}
    assert await (await RequestQueue.open(name=name, storage_client=storage)).is_finished()


async def test_a_queue_has_several_clients_when_another_process_fetches(url: str, opened: Client) -> None:
    async def has_several(workers: int) -> bool:
        await until(lambda: queue.stats().workers == workers)
        return (await opened.get_metadata()).had_multiple_clients

    with Queue(opened.queue.name, url) as queue:
        await opened.add_batch_of_requests([page(1), page(2)])
        assert await opened.fetch_next_request()
        assert not await has_several(1)
        async with TimeoutqStorageClient(url, storage=MemoryStorageClient(), timeout=5) as other:
            second = await other.create_rq_client(name=opened.queue.name)
            assert await second.fetch_next_request()
            assert await has_several(2)


async def test_two_storage_clients_of_one_process_have_queues_of_their_own(url: str, name: str) -> None:
    configuration = Configuration()
    one, other = (TimeoutqStorageClient(url, storage=MemoryStorageClient()) for _ in range(2))
    async with one, other:
        first, again, second = [
            await RequestQueue.open(name=name, storage_client=client, configuration=configuration)
            for client in (one, one, other)
        ]
        assert first is again
        assert first._client is not second._client


async def test_pages_that_differ_in_case_only_are_one_request_unless_they_have_keys_of_their_own(
    opened: Client,
) -> None:
    urls = ["https://a.example/watch?v=uV", "https://a.example/watch?v=uv"]
    await opened.add_batch_of_requests([Request.from_url(url) for url in urls])
    assert (await opened.get_metadata()).pending_request_count == 1, "crawlee's own key, as the page says"
    await opened.add_batch_of_requests([Request.from_url(url, unique_key=f"own {url}") for url in urls])
    assert (await opened.get_metadata()).pending_request_count == 3
