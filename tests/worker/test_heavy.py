"""Heavy tasks: what has many bytes is slow on a slow link, and never stuck; and nobody copies all of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig.faces import Blocking
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import Ack, AsyncQueue, Lease, Queue, Unavailable, Worker
from timeoutq.server.calls import BATCH, BYTES, FLUSH, Call, cut, fitting, flushes
from timeoutq.server.connection import Server
from timeoutq.server.deadlines import SLOWEST
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.link import AsyncLink, Link
from timeoutq.verbs import operations, sending
from timeoutq.verbs.operations import Operations
from timeoutq.words import arguments

ROOT = Path(__file__).resolve().parent.parent.parent
FACES: list[Any] = [Queue, Blocking]
PAGE = os.urandom(10_000)
MIB = 1024 * 1024
MEBIBYTES = int(os.environ.get("MEBIBYTES", "192"))
"""How much the test of memory puts; the long form is 1100."""


def links(n: int = 499) -> dict[str, bytes]:
    """Give the links of a page, each with 10 kB."""
    return {f"link{i}": PAGE for i in range(n)}


def know_the_scripts(queue: Queue) -> None:
    """Have the server know the scripts: what is sent to one that does not know them is sent twice."""
    queue.put("first")
    queue.ack(queue.claim(1)[0], ["second"])
    queue.forget("first", "second")


async def until(predicate: Callable[[], bool], seconds: float = 40.0) -> None:
    async with asyncio.timeout(seconds):
        while not predicate():
            await asyncio.sleep(0.01)


# ---- over a slow link


async def test_a_worker_acks_499_links_of_10_kb_over_a_slow_link_once_and_goes_on(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> Ack | None:
        return Ack(put=links()) if lease.task == "page" else None

    know_the_scripts(queue)
    with Proxy(url, rate=2_000_000) as proxy:
        async with AsyncQueue(queue.name, proxy.url, timeout=20) as mine:
            worker = Worker(mine, handler, concurrency=4, signals=False)
            queue.put("page")
            running = asyncio.create_task(worker.run())
            await until(lambda: proxy.carried > 100_000)
            # others are worked on beside it
            queue.put("other")
            await until(lambda: queue.inspect("other").state == "done")
            assert queue.inspect("page").state == "in_progress"
            await until(lambda: queue.stats().done == 501)
            worker.stop()
            tally = await running
    assert (tally.acked, tally.lost, tally.failed) == (501, 0, 0)
    assert proxy.carried < 1.3 * 499 * len(PAGE)
    counters = queue.stats().counters
    assert (counters["acked"] - 1, counters.get("expired", 0)) == (501, 0)


@pytest.mark.parametrize("kind", FACES)
def test_a_put_of_499_links_of_10_kb_over_a_slow_link_is_carried_out_once(kind: Any, url: str, queue: Queue) -> None:
    know_the_scripts(queue)
    with Proxy(url, rate=2_000_000) as proxy, kind(queue.name, proxy.url) as slow:
        assert slow.put(links()).added == 499
        assert proxy.carried < 1.1 * 499 * len(PAGE)
    assert queue.claim(1)[0].payload == PAGE


@pytest.mark.breaking
@pytest.mark.parametrize("kind", FACES)
def test_each_flush_of_a_long_put_has_a_deadline_of_its_own(kind: Any, url: str, queue: Queue) -> None:
    know_the_scripts(queue)
    with Proxy(url, rate=4_000_000) as proxy, kind(queue.name, proxy.url, deadline=1) as slow:
        proxy.arm(Fault.RESET_BEFORE, b"heavy-9", times=1)  # in the last flush, a second or two after the first began
        assert slow.put({f"heavy-{i}": os.urandom(MIB) for i in range(10)}).added == 10
    assert queue.stats().todos == 10


@pytest.mark.breaking
@pytest.mark.parametrize("kind", FACES)
def test_a_single_heavy_task_is_put_and_claimed_over_a_slow_link(kind: Any, url: str, queue: Queue) -> None:
    page = os.urandom(MIB)
    with Proxy(url, rate=1_000_000) as proxy, kind(queue.name, proxy.url, deadline=1) as slow:
        assert slow.put({"heavy": page}).added == 1
        (lease,) = slow.claim()
        assert lease.payload == page


@pytest.mark.breaking
@pytest.mark.parametrize("kind", FACES)
def test_a_heavy_put_to_a_server_that_does_not_know_the_script_outlasts_a_slow_link(
    kind: Any, url: str, queue: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SLOWEST", 1024 * 1024)  # the link is slower than any that is expected
    with Proxy(url, rate=100_000) as proxy, kind(queue.name, proxy.url, deadline=1) as slow:
        slow.stats()
        raw.script_flush()
        assert slow.put({"heavy": os.urandom(100_000)}).added == 1
    assert queue.stats().todos == 1


@pytest.mark.parametrize("kind", FACES)
def test_an_ack_with_more_than_fits_puts_the_surplus_first(kind: Any, url: str, queue: Queue) -> None:
    with kind(queue.name, url, timeout=5) as mine:
        mine.put("page")
        (lease,) = mine.claim()
        mine.ack(lease, links(), again_in=60, payload=b"x" * MIB)
        stats = mine.stats()
        assert (stats.todos, stats.scheduled) == (499, 1)
        assert {lease.payload for lease in mine.claim(500)} == {PAGE}


@pytest.mark.breaking
@pytest.mark.parametrize("kind", FACES)
def test_a_link_that_carries_nothing_more_is_given_up_in_time(kind: Any, url: str, queue: Queue) -> None:
    with Proxy(url) as proxy, kind(queue.name, proxy.url, deadline=1) as mine:
        mine.put("light")
        proxy.arm(Fault.HALF_OPEN, b"heavy", times=None)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            mine.put({"heavy": b"x" * 300_000})
        # a second for each 128 KiB, beside the deadline
        assert time.monotonic() - began < 1 + 300_000 / (128 * 1024) + 2


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest, url: str) -> Iterator[Callable[..., Any]]:
    """Sends commands over a link of 1 MB/s, on which a reply may keep silent for 0.3 s."""
    with Proxy(url, rate=1_000_000) as proxy:
        server = Server(proxy.url, None, 1.0)
        if request.param == "sync":
            link = Link(server, 10.0)
            yield lambda *commands: link.send(commands)
            link.close()
            return
        with asyncio.Runner() as runner:
            twin = AsyncLink(server, 10.0)
            yield lambda *commands: runner.run(twin.send(commands))
            runner.run(twin.close())


def test_a_long_reply_is_read_as_long_as_more_of_it_comes(send: Callable[..., Any], raw: redis.Redis) -> None:
    raw.set("long", "x" * 1_500_000)
    short, long, last = send(("ECHO", "short"), ("GET", "long"), ("ECHO", "last"))
    assert (short, len(long), last) == (b"short", 1_500_000, b"last")
    assert send(("ECHO", "next")) == [b"next"]


def test_heavy_commands_are_sent_as_long_as_they_get_on(send: Callable[..., Any], raw: redis.Redis) -> None:
    began = time.monotonic()
    assert send(*[("SET", f"k{i}", "x" * 700_000) for i in range(2)]) == [True, True]
    assert time.monotonic() - began > 1
    assert raw.strlen("k1") == 700_000


def test_a_heavy_command_keeps_its_time_when_a_reply_before_it_comes_in_parts(
    send: Callable[..., Any], raw: redis.Redis
) -> None:
    raw.set("long", "x" * 150_000)
    long, put = send(("GET", "long"), ("SET", "heavy", "x" * 1_500_000))
    assert (len(long), put) == (150_000, True)


# ---- while the server pauses


@pytest.mark.breaking
async def test_a_heavy_ack_while_the_server_pauses_is_carried_out_once_and_the_worker_goes_on(tmp_path: Path) -> None:
    with EmbeddedServer() as server, Queue("q", server.url, deadline=20) as queue:
        pid = server.pid
        assert pid is not None
        stopped = threading.Event()

        def go_on() -> None:
            os.kill(pid, signal.SIGCONT)
            stopped.set()

        async def handler(lease: Lease) -> Ack | None:
            if lease.task != "page":
                return None
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(3.0, go_on).start()
            return Ack(put=links())

        know_the_scripts(queue)
        queue.put("page")
        async with AsyncQueue("q", server.url, timeout=20) as mine:
            worker = Worker(mine, handler, concurrency=4, signals=False)
            running = asyncio.create_task(worker.run())
            await until(lambda: stopped.is_set() and worker.tally.acked == 500)
            queue.put("after")
            await until(lambda: worker.tally.acked == 501)
            worker.stop()
            tally = await running
        counters = queue.stats().counters
    assert (tally.acked, tally.lost, tally.failed) == (501, 0, 0)
    assert (counters["acked"] - 1, counters.get("expired", 0)) == (501, 0)


@pytest.mark.breaking
async def test_acks_while_clients_are_paused_are_carried_out_once_and_the_worker_goes_on(tmp_path: Path) -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as raw:
        with Queue("q", server.url, deadline=20) as queue:

            async def handler(lease: Lease) -> Ack | None:
                if lease.task == "page":
                    raw.client_pause(3000)
                    return Ack(put=links(50))
                return None

            know_the_scripts(queue)
            queue.put("page", "beside")
            async with AsyncQueue("q", server.url, timeout=20) as mine:
                worker = Worker(mine, handler, concurrency=4, signals=False)
                running = asyncio.create_task(worker.run())
                await until(lambda: worker.tally.acked == 52)
                worker.stop()
                tally = await running
            counters = queue.stats().counters
    assert (tally.acked, tally.lost) == (52, 0)
    assert (counters["acked"] - 1, counters.get("expired", 0)) == (52, 0)


async def test_ids_from_a_generator_in_an_ack_are_put_however_many_they_are(url: str, queue: Queue) -> None:
    async def handler(lease: Lease) -> Ack | None:
        return Ack(put=(f"t{i}" for i in range(1200))) if lease.task == "page" else None

    queue.put("page")
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        async with asyncio.timeout(30):
            await Worker(mine, handler, burst=True, signals=False).run()
    assert queue.stats().done == 1201


# ---- memory

PUT = """
import os, re, sys
from pathlib import Path
from timeoutq import {face} as face, Queue
import asyncio

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

page, text = os.urandom(1 << 20), "x" * ((1 << 20) - 2)
n = {n}
queue = face("q", sys.argv[1], deadline=30)

def settled(result):
    return asyncio.get_event_loop().run_until_complete(result) if asyncio.iscoroutine(result) else result

asyncio.set_event_loop(asyncio.new_event_loop())
settled(queue.put("first"))
before = peak()
outcome = settled(queue.put({{f"t{{i}}": page if i % 2 else text for i in range(n)}}))
assert outcome.added == n, outcome
settled(queue.close())
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("face", ["Queue", "AsyncQueue"])
def test_a_put_of_many_mebibytes_takes_little_memory_of_its_own(face: str) -> None:
    with EmbeddedServer() as server:
        done = subprocess.run(
            [sys.executable, "-c", PUT.format(face=face, n=MEBIBYTES), server.url],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < 64
        with Queue("q", server.url) as queue:
            assert queue.stats().todos == MEBIBYTES + 1
            assert len(queue.claim(1)[0].payload or b"x" * MIB) >= MIB - 2


# ---- how batches are cut


def test_parts_have_at_most_500_items_and_a_mebibyte() -> None:
    assert list(cut([])) == []
    assert list(cut([0] * 1001)) == [(slice(0, 500), 0), (slice(500, 1000), 0), (slice(1000, 1001), 0)]
    third = BYTES // 3
    assert [part for part, _ in cut([third] * 4)] == [slice(0, 3), slice(3, 4)]
    assert [part for part, _ in cut([5, 3 * BYTES, 5, 5])] == [slice(0, 1), slice(1, 2), slice(2, 4)]
    assert [weight for _, weight in cut([5, 3 * BYTES, 5, 5])] == [5, 3 * BYTES, 10]


def test_an_ack_takes_499_tasks_or_a_mebibyte_of_what_was_found() -> None:
    ids = [b"%d" % i for i in range(600)]
    assert fitting(ids, {}) == 499
    assert fitting(ids[:3], {}) == 3
    half = b"x" * (BYTES // 2)
    assert fitting(ids, {1: half, 5: half, 9: half}) == 9
    assert fitting(ids, {1: half * 3, 5: b"x"}) == 5
    assert fitting(ids, {520: half * 3}) == 499


def test_a_claim_that_goes_with_heavy_ends_may_come_as_late_as_they_need_for_their_way() -> None:
    talk = replace(Queue("q", deadline=2).talk, proved=True)
    talk.durable.learn(0, time.monotonic())
    talk.clock.seen(1_000_000, time.monotonic())
    talk.durable.learn(0, time.monotonic())
    claim = talk.operations.claim(b"w#1", 5, 1000)
    (heavy,) = talk.operations.put(({"a": b"x" * BYTES},), talk.nonce)

    def not_after(*calls: Call[Any]) -> int:
        step = next(sending.settle(talk, calls))
        assert isinstance(step, sending.Send)
        assert claim.dated is not None
        return int(str(step.commands[-1][-len(claim.args) :][claim.dated]))

    alone, together = not_after(claim), not_after(heavy, claim)
    assert 0 <= alone - 1_000_000 < 2000
    assert together - alone > 800 * BYTES / SLOWEST


def test_a_flush_has_four_mebibytes() -> None:
    ops = Operations("q")
    calls = ops.put(({f"t{i}": bytes(MIB - 1) for i in range(9)},), lambda: b"x")
    assert [len(call.command()[-1]) for call in calls] == [MIB] * 9  # type: ignore[arg-type]  # bytes
    assert [len(flush) for flush in flushes(calls)] == [4, 4, 1]
    assert FLUSH == 4 * MIB
    light = ops.put(([f"t{i}" for i in range(20 * BATCH)],), lambda: b"x")
    assert [len(flush) for flush in flushes(light)] == [20]


def test_long_errors_are_failed_in_parts() -> None:
    leases = [Lease(f"t{i}", "w#1", 1.0, 1, 0, i) for i in range(500)]
    calls = Operations("q").fail(leases, [-1] * 500, [b"x" * 4096] * 500)
    assert [call.args[0] for call in calls] == [256, 244]
    assert b"t256" in calls[1].args


def test_payloads_are_not_copied_before_they_are_sent() -> None:
    page, text = os.urandom(MIB), "x" * 100_000
    tasks = arguments.tasks(({"a": page, "b": text, "c": {"small": 1}},))
    payloads = tasks.payloads
    assert tasks.ids == [b"a", b"b", b"c"]
    assert [type(body) for body in payloads.values()] == [arguments.Body, arguments.Body, bytes]
    assert [len(body) for body in payloads.values()] == [MIB + 1, 100_002, 11]
    (call, *_) = operations.Operations("q").put(({"a": page},), lambda: b"x")
    assert call.command()[-1] == b"\0" + page


def test_the_pages_of_a_crawl_come_back_whole_whatever_their_size(queue: Queue) -> None:
    pages: dict[str, Any] = {
        "bytes": os.urandom(300_000), "text": "é" * 100_000, "json": {"rows": ["x" * 100] * 5000}, "small": 1,
        "empty": b"", "most": b"x" * MIB,
    }  # fmt: skip
    assert queue.put(pages).added == len(pages)
    assert queue.schedule({"later": pages["bytes"]}, after=0).added == 1
    wait_until(lambda: queue.promote_due() or queue.stats().scheduled == 0)
    found = {lease.task: lease.payload for lease in queue.claim(500)}
    assert found == {**pages, "later": pages["bytes"]}


def test_small_payloads_behind_many_others_are_put_too(queue: Queue) -> None:
    pages = {f"t{i:04}": {"rows": "x" * 3000} for i in range(1499)} | {"last": {"rows": "y"}}
    assert queue.put(pages).added == 1500
    assert queue.inspect("last").payload == {"rows": "y"}
    assert queue.inspect("t1498").payload == {"rows": "x" * 3000}


@pytest.mark.parametrize("kind", FACES)
def test_pull_brings_large_tasks_in_several_calls_and_loses_none(kind: Any, url: str, queue: Queue) -> None:
    queue.put({f"task{i}": os.urandom(MIB) for i in range(20)})
    with kind(queue.name, url) as puller:
        pulled: dict[str, bytes] = {}
        while found := puller.pull(300):
            assert len(found) <= 5  # the reply has a bound
            pulled.update((task.task, task.payload) for task in found)
        assert len(pulled) == 20
        assert all(len(payload) == MIB for payload in pulled.values())


async def test_a_worker_drains_large_tasks_whatever_its_concurrency(url: str, queue: Queue) -> None:
    queue.put({f"task{i}": os.urandom(MIB // 4) for i in range(500)})
    sizes: list[int] = []

    async def handle(lease: Lease) -> None:
        sizes.append(len(lease.payload))

    async with AsyncQueue(queue.name, url, timeout=5) as its:
        worker = Worker(its, handle, concurrency=500, burst=True)
        async with asyncio.timeout(60):
            await worker.run()
    assert sizes == [MIB // 4] * 500
    assert queue.stats().counters.get("expired", 0) == 0
