"""Acks that are too long for one call: the handler keeps its place while the rest is put, and there is a bound."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.rig.proxy import Fault, Proxy
from timeoutq import Ack, AsyncQueue, Lease, Payload, Queue, State, Worker
from timeoutq.server.calls import BYTES
from timeoutq.words import arguments
from timeoutq.worker import found
from timeoutq.worker.handlers import Hopeless
from timeoutq.worker.interrupts import LOOKS, Interrupts

HALF = BYTES // 2 + 1
YET = "not all of it could be put yet. The worker tries again"


def links(page: str, n: int = 2, size: int = HALF) -> dict[str, bytes]:
    """Give the links of a page; two of more than half a mebibyte are too long for one exchange."""
    return {f"link-{page}-{i}": b"x" * size for i in range(n)}


async def pages(lease: Lease) -> Ack | None:
    return Ack(put=links(lease.task)) if lease.task.startswith("page") else None


async def until(predicate: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.005)


def know_the_scripts(queue: Queue) -> None:
    """Have the server know the scripts: what is sent to one that does not know them is sent twice."""
    queue.put("first")
    queue.ack(queue.claim(1)[0], ["second"])
    queue.forget("first", "second")


@asynccontextmanager
async def slow(url: str, queue: Queue, rate: int) -> AsyncIterator[tuple[Proxy, AsyncQueue]]:
    """Give a queue whose link carries so many bytes a second."""
    know_the_scripts(queue)
    with Proxy(url, rate=rate) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=10, deadline=2) as mine:
            yield proxy, mine


def not_done(queue: Queue) -> tuple[int, int]:
    stats = queue.stats()
    return stats.in_progress, stats.counters.get("expired", 0)


# ---- the handler keeps its place


@pytest.mark.breaking
async def test_many_long_acks_over_a_slow_link_are_sent_once_each_and_others_beside_them(
    url: str, queue: Queue
) -> None:
    async with slow(url, queue, 3_000_000) as (proxy, mine):
        queue.put(*[f"page{i}" for i in range(6)])
        worker = Worker(mine, pages, concurrency=7, prefetch=0, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: proxy.carried > 100_000)
        queue.put("other")
        await until(lambda: queue.inspect("other").state == State.DONE)
        await until(lambda: queue.stats().done == 19)
        worker.stop()
        tally = await running
    assert (tally.failed, tally.lost) == (0, 0)
    assert proxy.carried < 1.1 * 12 * HALF + 200_000
    assert not_done(queue)[1] == 0


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_keeps_its_place_until_what_its_ack_cannot_carry_is_put(
    url: str, queue: Queue, threads: bool
) -> None:
    seen: list[tuple[str, State | None]] = []

    def found(lease: Lease) -> Ack:
        other = "page2" if lease.task == "page1" else "page1"
        seen.append((lease.task, queue.inspect(f"link-{other}-1").state))
        queue.pause()  # or the links would be claimed
        return Ack(put=links(lease.task))

    async def in_loop(lease: Lease) -> Ack:
        return found(lease)

    async with slow(url, queue, 2_000_000) as (_, mine):
        queue.put("page1", "page2")
        worker = Worker(mine, found if threads else in_loop, concurrency=1, prefetch=1, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.tally.acked == 2)
        worker.stop()
        await running
    assert [state for _, state in seen] == [None, State.TODOS]
    assert queue.stats().todos == 4


@pytest.mark.parametrize("threads", [False, True])
async def test_nothing_is_lost_or_put_twice_when_a_worker_ends_between_the_puts_and_the_ack(
    url: str, queue: Queue, threads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    def found(lease: Lease) -> Ack | None:
        ran.append(lease.task)
        if lease.task != "page":
            return None
        raise Ack(put=[f"link-{i:04}" for i in range(1200)])

    async def in_loop(lease: Lease) -> Ack | None:
        return found(lease)

    handler = found if threads else in_loop
    know_the_scripts(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=10, deadline=1) as mine:
            proxy.arm(Fault.RESET_BEFORE, b"link-1199", times=None)
            queue.put("page")
            worker = Worker(mine, handler, concurrency=1, prefetch=0, signals=False)
            running = asyncio.create_task(worker.run())
            await until(lambda: YET in caplog.text)
            queue.pause()
            worker.stop(now=True)
            await running
    states = [queue.inspect(task).state for task in ("page", "link-0000", "link-0600", "link-1199")]
    assert states == [State.TODOS, None, State.TODOS, None]
    queue.resume()
    async with AsyncQueue(queue.name, url, timeout=10) as mine:
        tally = await Worker(mine, handler, concurrency=10, burst=True, signals=False).run()
    assert (tally.acked, tally.lost) == (1201, 0)
    assert (ran.count("page"), len(ran), len(set(ran))) == (2, 1202, 1201)


async def test_what_the_server_has_taken_of_a_long_ack_is_not_sent_again_after_a_fault(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    know_the_scripts(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=5, deadline=1) as mine:
            queue.put("page")

            async def handler(lease: Lease) -> Ack | None:
                if lease.task != "page":
                    return None
                proxy.arm(Fault.RESET_BEFORE, b"page-9", times=None)
                return Ack(put={f"page-{i}": b"x" * (BYTES - 1) for i in range(10)})

            worker = Worker(mine, handler, concurrency=1, burst=True, signals=False, max_tasks=1)
            running = asyncio.create_task(worker.run())
            await until(lambda: YET in caplog.text)
            before = proxy.carried
            proxy.disarm()
            tally = await running
    assert before > 8 * BYTES
    assert (tally.acked, tally.lost, tally.end) == (1, 0, "max_tasks")
    assert proxy.carried - before < 4 * BYTES
    assert caplog.text.count(YET) == 1


async def test_handlers_that_are_quicker_than_their_long_acks_are_held_back(url: str, queue: Queue) -> None:
    async with slow(url, queue, 1_000_000) as (_, mine):
        queue.put(*[f"page{i}" for i in range(40)])
        worker = Worker(mine, pages, concurrency=2, prefetch=0, signals=False, drain_deadline=0)
        running = asyncio.create_task(worker.run())
        most = 0
        while worker.tally.acked < 1:
            most = max(most, len(worker.held))
            await asyncio.sleep(0.01)
        worker.stop()
        await running
    assert most == 2


async def test_a_lease_whose_long_ack_is_still_tried_is_not_taken_for_forgotten(
    url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = 0
    unattended = Interrupts._unattended

    def look(self: Interrupts) -> set[int]:
        nonlocal looked
        looked += 1
        return unattended(self)

    monkeypatch.setattr(Interrupts, "_unattended", look)
    know_the_scripts(queue)
    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=0.6, deadline=1) as mine:
            proxy.arm(Fault.RESET_BEFORE, b"link-page-1", times=None)
            queue.put("page")
            worker = Worker(mine, pages, concurrency=1, signals=False, max_tasks=1)
            running = asyncio.create_task(worker.run())
            await until(lambda: YET in caplog.text)
            looked = 0
            await until(lambda: looked > LOOKS + 1)
            proxy.disarm()
            tally = await running
    assert (tally.acked, tally.released, tally.lost) == (1, 0, 0)


# ---- drains


@pytest.mark.breaking
@pytest.mark.parametrize("size", [HALF, 700_000])
async def test_what_a_handler_gave_before_sigterm_is_sent_within_the_drain_deadline(
    url: str, queue: Queue, size: int
) -> None:
    async def handler(lease: Lease) -> Ack:
        queue.pause()  # or the links would be claimed
        # the one ack is long, the others are light enough for an exchange
        return Ack(put=links(lease.task, 4 if size == HALF else 1, size))

    tasks = 1 if size == HALF else 3
    async with slow(url, queue, 500_000) as (proxy, mine):
        queue.put(*[f"page{i}" for i in range(tasks)])
        worker = Worker(mine, handler, concurrency=tasks, prefetch=0, signals=False, drain_deadline=20)
        running = asyncio.create_task(worker.run())
        await until(lambda: proxy.carried > 50_000)
        worker.stop()
        began = time.monotonic()
        tally = await running
        assert time.monotonic() - began > 3.1  # longer than all deadlines of single calls
    assert (tally.acked, tally.released, tally.lost) == (tasks, 0, 0)
    assert not_done(queue) == (0, 0)


async def test_after_the_drain_deadline_a_long_ack_is_given_back_and_told_of(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async with slow(url, queue, 400_000) as (proxy, mine):
        queue.put("page")
        worker = Worker(mine, pages, concurrency=1, prefetch=0, signals=False, drain_deadline=0.5)
        with caplog.at_level(logging.WARNING):
            running = asyncio.create_task(worker.run())
            await until(lambda: proxy.carried > 50_000)
            worker.stop()
            tally = await running
    assert (tally.acked, tally.released) == (0, 1)
    assert queue.inspect("page").state == State.TODOS
    assert "task 'page' is cut off: the drain deadline of 0.5 s is over" in caplog.text
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_after_the_drain_deadline_acks_with_much_to_carry_are_given_back_and_told_of(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(lease: Lease) -> Ack:
        queue.pause()  # or the links would be claimed
        return Ack(put=links(lease.task, 1, 900_000))

    async with slow(url, queue, 2_000_000) as (proxy, mine):
        queue.put(*[f"page{i}" for i in range(6)])
        worker = Worker(mine, handler, concurrency=6, prefetch=0, signals=False, drain_deadline=0.2)
        with caplog.at_level(logging.WARNING):
            running = asyncio.create_task(worker.run())
            await until(lambda: proxy.carried > 50_000)
            worker.stop()
            tally = await running
    assert not_done(queue) == (0, 0)
    assert tally.released >= 1
    # a flush that was cut off may have been carried out all the same
    assert caplog.text.count("its ack is not confirmed, because the drain deadline of 0.2 s is over") >= tally.released


async def test_a_second_stop_gives_a_long_ack_back_at_once(url: str, queue: Queue) -> None:
    async with slow(url, queue, 300_000) as (proxy, mine):
        queue.put("page")
        worker = Worker(mine, pages, concurrency=1, prefetch=0, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: proxy.carried > 50_000)
        worker.stop()
        worker.stop()
        began = time.monotonic()
        tally = await running
        assert time.monotonic() - began < 3
    assert (tally.acked, tally.released) == (0, 1)


async def test_after_max_tasks_a_long_ack_has_the_time_that_it_needs(url: str, queue: Queue) -> None:
    async with slow(url, queue, 500_000) as (_, mine):
        queue.put("page")
        worker = Worker(mine, pages, concurrency=1, max_tasks=1, signals=False, drain_deadline=0.1)
        tally = await worker.run()
    assert (tally.acked, tally.released, tally.end) == (1, 0, "max_tasks")
    assert not_done(queue) == (0, 0)


async def test_sigterm_after_max_tasks_is_the_first_one(url: str, queue: Queue) -> None:
    async with slow(url, queue, 600_000) as (proxy, mine):
        queue.put("page")
        worker = Worker(mine, pages, concurrency=1, max_tasks=1, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: proxy.carried > 50_000)
        worker.stop()
        tally = await running
    assert (tally.acked, tally.released) == (1, 0)


async def test_ends_that_cannot_be_sent_are_told_of_with_the_reason(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()

    async def handler(lease: Lease) -> None:
        begun.set()
        await asyncio.sleep(60)

    with Proxy(url) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=5, deadline=0.5) as mine:
            queue.put("page")
            worker = Worker(mine, handler, concurrency=1, signals=False, drain_deadline=0)
            running = asyncio.create_task(worker.run())
            await begun.wait()
            proxy.arm(Fault.HALF_OPEN, b"", times=None)
            with caplog.at_level(logging.WARNING):
                worker.stop()
                await running
    (line,) = [record.getMessage() for record in caplog.records if "could not end" in record.getMessage()]
    assert "could not end 1 leases: " in line
    assert ": ;" not in line


# ---- what a handler found is listed where it ran


async def test_links_that_are_computed_slowly_in_a_thread_stop_nobody_else(url: str, queue: Queue) -> None:
    go_on = threading.Event()

    def slow_links() -> Iterator[str]:
        yield "link"
        go_on.wait(20)

    def handler(lease: Lease) -> Ack | None:
        return Ack(put=slow_links()) if lease.task == "page" else None

    queue.put("page", *[f"t{i}" for i in range(20)])
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        worker = Worker(mine, handler, concurrency=2, burst=True, signals=False)
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.tally.acked == 20)
        go_on.set()
        assert (await running).acked == 22


@pytest.mark.parametrize("threads", [False, True])
async def test_max_runtime_ends_links_that_never_end(url: str, queue: Queue, threads: bool) -> None:
    ended = threading.Event()

    def endless() -> Iterator[str]:
        try:
            for _ in itertools.count():
                time.sleep(0.01)
                yield "again"
        finally:
            ended.set()

    def in_thread(lease: Lease) -> Ack:
        raise Ack(put=endless())

    async def in_loop(lease: Lease) -> Ack:
        return Ack(put=endless())

    queue.put("page")
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        worker = Worker(mine, in_thread if threads else in_loop, max_runtime=0.5, burst=True, retry=[], signals=False)
        async with asyncio.timeout(20):
            tally = await worker.run()
    assert (tally.acked, tally.failed) == (0, 1)
    assert "max_runtime of 0.5 s is over" in (queue.inspect("page").error or "")
    await until(ended.is_set)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("bound", ["MOST", "MOST_BYTES"])
async def test_a_task_that_finds_more_than_the_limit_fails_with_the_cure(
    url: str, queue: Queue, threads: bool, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, bound, 1000)

    def given(task: str) -> Ack:
        match task:
            case "lazy":
                return Ack(put=(f"t{i}" for i in itertools.count()))
            case "list":
                return Ack(put=[f"t{i}" for i in range(1001)])
            case _:
                raise Ack(put={f"t{i}": "x" for i in range(1001)})

    def in_thread(lease: Lease) -> Ack:
        return given(lease.task)

    async def in_loop(lease: Lease) -> Ack:
        return given(lease.task)

    queue.put("lazy", "list", "mapping")
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        worker = Worker(mine, in_thread if threads else in_loop, burst=True, retry=[], signals=False)
        async with asyncio.timeout(20):
            await worker.run()
    errors = {task: queue.inspect(task).error or "" for task in ("lazy", "list", "mapping")}
    for error in errors.values():
        assert "Ack(put=…) holds more than" in error
        assert "Put the tasks in parts with the queue's put() inside the handler" in error
    assert queue.stats().known == 3


def test_a_generator_of_links_is_listed_as_a_list_of_them_is() -> None:
    both: list[str | bytes] = ["a", b"b"]
    lazy = found.listed_here(Ack(put=(link for link in both), again_in=3), bool)
    plain = found.listed_here(Ack(put=both, again_in=3), bool)
    assert lazy.put.ids == plain.put.ids == arguments.tasks((both,)).ids
    assert (lazy.again_in, plain.again_in) == (3, 3)


def test_a_mapping_of_any_kind_is_listed_as_a_dict_is() -> None:
    given: dict[str | bytes, Payload] = {"a": None, b"b": {"n": 1}, "c": "x" * 5000}
    ordered: OrderedDict[str | bytes, Payload] = OrderedDict(given)
    kept = found.listed_here(Ack(put=ordered), bool).put
    plain = found.listed_here(Ack(put=given), bool).put
    assert kept.ids == plain.ids
    assert [(at, pack(body)) for at, body in kept.payloads.items()] == [
        (at, pack(body)) for at, body in plain.payloads.items()
    ]


def pack(body: bytes | arguments.Body) -> bytes:
    return body if isinstance(body, bytes) else body.pack()


class Endless(Mapping[str, str]):
    """A mapping that computes its items one by one, and would go on."""

    def __getitem__(self, key: str) -> str:
        return "x"

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        for i in range(5000):
            yield f"t{i}"
        raise AssertionError("nobody stopped it")


@pytest.mark.parametrize(("bound", "size"), [("MOST", 1000), ("MOST_BYTES", 5000)])
def test_a_mapping_without_end_is_refused_at_the_limit(bound: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, bound, size)
    with pytest.raises(Hopeless, match="holds more than"):
        found.listed_here(Ack(put=Endless()), bool)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_bytes_of_another_kind_are_no_tasks_however_long_they_are(
    kind: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found, "MOST", 10)
    with pytest.raises(Hopeless, match=kind.__name__):
        found.listed_here(Ack(put=kind(b"x" * 11)), bool)
