"""What follows a call in another queue, while the server is full, silent, or refuses: the function runs once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.rig.calling import failure
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, InvalidInput, Queue, Worker
from timeoutq.functions import App, Calls
from timeoutq.functions.client import Sender

WAITS = "what goes before its ack is not there yet"


@pytest.fixture
def names(url: str, name: str) -> Iterator[list[str]]:
    """Two queues: the second call of a chain goes to the second one."""
    both = [f"{name}-a", f"{name}-b"]
    yield both
    for one in both:
        with Queue(one, url) as queue:
            queue.purge()


@pytest.fixture
def room(raw: redis.Redis) -> Iterator[Callable[[], object]]:
    """Give the server memory again; it has some after the test in any case."""

    def give() -> object:
        return raw.config_set("maxmemory", "0")

    yield give
    give()


class Shop:
    """An app with a chain over both queues, which counts its runs."""

    def __init__(self, names: list[str], url: str, **settings: Any) -> None:
        self.app = app = App(names[0], queues=names, url=url, **settings)
        self.runs: list[str] = []
        self.at_end: Callable[[], object] = str
        """What the first function does before it returns."""

        @app.task(queue=names[0], name="charge")
        def charge(n: int) -> int:
            self.runs.append(f"charge {n}")
            self.at_end()
            return n + 1

        @app.task(queue=names[1], name="bill")
        async def bill(n: int) -> str:
            self.runs.append(f"bill {n}")
            return f"{n} USD"

    def begin(self, n: int = 1) -> Any:
        functions: Any = self.app.functions
        return functions["charge"].call(n).then(functions["bill"]).delay()


@pytest.fixture
def shop(names: list[str], url: str) -> Iterator[Shop]:
    made = Shop(names, url)
    yield made
    made.app.close()


def counters(url: str, name: str) -> dict[str, int]:
    with Queue(name, url) as queue:
        return dict(queue.stats().counters)


async def serve(*queues: AsyncQueue, app: App, **settings: Any) -> Any:
    """Have a worker serve some of the queues of an app, until they are drained."""
    async with asyncio.timeout(30):
        try:
            return await Worker(list(queues), Calls(app), burst=True, signals=False, **settings).run()
        finally:
            for queue in queues:
                await queue.close()
            await app.aclose()


async def told(caplog: pytest.LogCaptureFixture, words: str = WAITS) -> None:
    await asyncio.to_thread(wait_until, lambda: words in caplog.text, 20)


# ---- the server is full, or does not answer


@pytest.mark.parametrize("serves", ["both queues", "the first queue"])
async def test_a_function_runs_once_though_the_server_is_full_when_it_returns(
    shop: Shop, names: list[str], url: str, raw: redis.Redis, room: Any, caplog: pytest.LogCaptureFixture, serves: str
) -> None:
    shop.at_end = lambda: raw.config_set("maxmemory", "1")
    chain = shop.begin()
    queues = [AsyncQueue(one, url) for one in names[: 2 if serves == "both queues" else 1]]
    working = asyncio.create_task(serve(*queues, app=shop.app))
    await told(caplog)
    room()
    tally = await working
    assert (tally.failed, tally.acked) == (0, len(queues))
    if len(queues) == 1:
        await serve(AsyncQueue(names[1], url), app=shop.app)
    assert (chain.wait(10), shop.runs) == ("2 USD", ["charge 1", "bill 2"])
    assert caplog.text.count(WAITS) == 1


TROUBLES: dict[str, Callable[[redis.Redis], object]] = {
    "full": lambda raw: raw.config_set("maxmemory", "1"),
    "silent": lambda raw: raw.client_pause(1500),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_function_that_has_returned_has_not_failed_when_its_max_runtime_is_over(
    shop: Shop, names: list[str], url: str, raw: redis.Redis, room: Any, trouble: str
) -> None:
    first = iter([True])  # while the function runs for the first time
    shop.at_end = lambda: next(first, False) and TROUBLES[trouble](raw)
    chain = shop.begin()
    queues = [AsyncQueue(one, url) for one in names]
    working = asyncio.create_task(serve(*queues, app=shop.app, max_runtime=0.5))
    await asyncio.to_thread(wait_until, lambda: counters(url, names[0]).get("expired") == 1, 20)
    room()
    tally = await working
    assert (tally.failed, chain.wait(10), shop.runs.count("charge 1")) == (0, "2 USD", 2)
    # a server that was silent may put the call that follows twice: it runs twice if the first has ended by then
    assert shop.runs.count("bill 2") in ((1,) if trouble == "full" else (1, 2))


async def test_what_follows_runs_once_though_the_server_put_it_and_the_reply_was_lost(
    names: list[str], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(url) as proxy:
        shop, other = Shop(names, proxy.url), Shop(names, url)
        shop.app.sender = Sender(proxy.url, deadline=0.3)
        chain = other.begin()
        shop.at_end = lambda: proxy.arm(Fault.SWALLOW, b"bill", times=None)
        working = asyncio.create_task(serve(AsyncQueue(names[0], proxy.url), app=shop.app))
        await told(caplog)
        await asyncio.to_thread(wait_until, lambda: counters(url, names[1]).get("put") == 1, 20)
        await serve(AsyncQueue(names[1], url), app=other.app)
        assert other.runs == ["bill 2"]
        proxy.disarm()
        await working
        assert (shop.runs, chain.wait(10)) == (["charge 1"], "2 USD")
        assert counters(url, names[1])["put"] == 1
        other.app.close()


async def test_a_lease_that_is_lost_meanwhile_is_counted_as_expired_not_as_failed(
    names: list[str], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(url) as proxy, Queue(names[0], url) as queue:
        shop = Shop(names, url)
        chain = shop.begin()
        shop.at_end = lambda: proxy.arm(Fault.HALF_OPEN, b"", times=None)
        queues = [AsyncQueue(one, proxy.url, deadline=0.3, timeout=0.6) for one in names]
        working = asyncio.create_task(serve(*queues, app=shop.app))
        await told(caplog)
        await asyncio.to_thread(wait_until, lambda: queue.requeue_expired() == 1)
        assert queue.inspect(queue.list("todos").entries[0].task).crashes == 1
        shop.at_end = str
        proxy.arm(Fault.HALF_OPEN, b"bill", times=None)
        await told(caplog, "the lease extension of a task came too late")
        proxy.disarm()
        tally = await working
        assert (tally.failed, tally.lost) == (0, 1)
        assert (chain.wait(10), shop.runs) == ("2 USD", ["charge 1", "charge 1", "bill 2"])
        found = counters(url, names[0])
        assert (found["expired"], found.get("failed", 0), counters(url, names[1])["put"]) == (1, 0, 1)
        shop.app.close()


# ---- the queue of what follows


@pytest.mark.parametrize(
    ("unique", "serves"), [(timedelta(hours=1), "both queues"), ("active", "one queue after the other")]
)
async def test_how_long_what_follows_keeps_a_second_one_out_is_said_where_it_follows(
    shop: Shop, names: list[str], url: str, unique: Any, serves: str
) -> None:
    functions: Any = shop.app.functions
    once = functions["bill"].options(unique=unique)
    with pytest.raises(InvalidInput, match=r"bill\(\): unique= is about an id: give the function a key="):
        once.call(1)
    call = functions["charge"].options(id="c1").call(1).then(once)
    for _ in range(2):  # the second time is as if the worker had died between the put of what follows and its own ack
        call.delay()
        for some in [names] if serves == "both queues" else [names[:1], names[1:]]:
            await serve(*(AsyncQueue(one, url) for one in some), app=shop.app)
    again = ["bill 2"] if unique == "active" else []
    assert shop.runs == ["charge 1", "bill 2", "charge 1", *again]


@pytest.mark.parametrize(("how", "serves"), [("schema", "both queues"), ("rights", "the first queue")])
async def test_a_call_whose_follower_can_never_be_put_fails_once_with_the_reason(
    shop: Shop, names: list[str], url: str, raw: redis.Redis, how: str, serves: str
) -> None:
    at, words = url, "schema 9"
    if how == "rights":
        user = "ann"
        raw.acl_setuser(
            user, enabled=True, passwords=["+secret"], categories=["+@all"], keys=[f"timeoutq:{{{names[0]}}}:*"]
        )
        at, words = url.replace("redis://:", f"redis://{user}:", 1), "refuses access"
        at = f"redis://{user}:secret@{at.rpartition('@')[2]}"
        shop.app.sender = Sender(at)
    chain = Shop(names, url).begin()
    if how == "schema":
        raw.hset(f"timeoutq:{{{names[1]}}}:meta", "schema", "9")
    queues = [AsyncQueue(one, at) for one in names[: 2 if serves == "both queues" else 1]]
    worker = Worker(queues, Calls(shop.app), signals=False)
    working = asyncio.create_task(worker.run())
    error = await asyncio.to_thread(failure, chain)
    worker.stop()
    await working
    for queue in queues:
        await queue.close()
    await shop.app.aclose()
    assert shop.runs == ["charge 1"]
    assert f"cannot be put into queue {names[1]!r}" in error.message
    assert words in error.message
    raw.delete(f"timeoutq:{{{names[1]}}}:meta")
    raw.acl_deluser("ann")


# ---- a chain that is put again under the same key


class Pages:
    """An app with a chain that is put again and again under one key; the last call goes to the second queue."""

    def __init__(self, first: str, second: str, url: str) -> None:
        self.app = app = App(first, queues=list(dict.fromkeys((first, second))), url=url)
        self.runs: list[int] = []
        self.broken = False
        self.go_on = asyncio.Event()
        self.go_on.set()

        @app.task(queue=first, key="page:{name}")
        async def index(name: str, version: int) -> int:
            return version

        @app.task(queue=first)
        async def check(version: int) -> int:
            return version

        @app.task(queue=second, keep_result=60, retry=[])
        async def publish(version: int) -> int:
            self.runs.append(version)
            await self.go_on.wait()
            if self.broken:
                raise OSError("the disk is full")
            return version

        self._functions = index, check, publish

    async def put(self, version: int) -> Any:
        index, check, publish = self._functions
        return await index.call("home", version).then(check).then(publish).adelay()


@pytest.mark.parametrize(("keep_done", "serves"), [(None, "one queue"), ("compact", "both queues")])
async def test_what_follows_a_call_that_is_put_again_runs_though_it_failed_the_last_time(
    names: list[str], url: str, serves: str, keep_done: Any
) -> None:
    queues = names[:1] if serves == "one queue" else names
    if keep_done:
        for name in queues:
            async with AsyncQueue(name, url) as queue:
                await queue.configure(keep_done=keep_done)
    pages = Pages(queues[0], queues[-1], url)
    for version in (1, 2):
        pages.broken = version == 1
        chain = await pages.put(version)
        await serve(*(AsyncQueue(name, url) for name in queues), app=pages.app)
    assert (await chain, pages.runs) == (2, [1, 2])
    await pages.app.aclose()
