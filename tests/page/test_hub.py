"""The hub of the page: one look for all who watch, none for nobody, and bounds on everything. No server is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import aclosing
from typing import Any

import pytest

from timeoutq import AsyncQueue, Queue
from timeoutq.gateway.names import Shared, rest_after
from timeoutq.gateway.page import hub as hubs
from timeoutq.gateway.page.hub import Hub, Parts
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings
from timeoutq.words.errors import Unavailable


class Looks:
    """Counts looks; each look finds its number."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> dict[str, str]:
        self.count += 1
        return {"same": "x", "number": str(self.count)}


@pytest.fixture
def hub() -> Hub:
    return Hub(Queues(Settings(url="redis://127.0.0.1:1")), rest=0.01)


def watch(
    hub: Hub, look: Callable[[], Awaitable[Parts]], page: Hashable = "page", caller: str = "a"
) -> aclosing[AsyncGenerator[Parts | None]]:
    return aclosing(hub.watch("crawl", page, look, caller))


async def test_a_page_that_many_watch_is_seen_once(hub: Hub) -> None:
    look = Looks()

    async def see(caller: str) -> list[str]:
        found: list[str] = []
        async with watch(hub, look, caller=caller) as news:
            async for parts in news:
                found.append((parts or {}).get("number", ""))
                if len(found) == 5:
                    return found
        return found

    seen = await asyncio.gather(*(see(f"caller {n}") for n in range(50)))
    assert all(len(found) == 5 for found in seen)
    assert look.count <= 10


async def test_there_is_no_look_when_nobody_watches(hub: Hub) -> None:
    look = Looks()
    async with watch(hub, look) as news:
        await anext(news)
        assert hub.watched == 1
    assert hub.watched == 0
    count = look.count
    await asyncio.sleep(0.1)
    assert look.count == count


async def test_only_what_has_changed_is_sent_and_a_slow_reader_gets_the_newest(hub: Hub) -> None:
    look = Looks()
    async with watch(hub, look) as slow, watch(hub, look, caller="b") as quick:
        assert (await anext(slow) or {}).keys() == {"trouble", "same", "number"}
        for _ in range(5):
            await anext(quick)
        late = await anext(slow) or {}
        assert late.keys() == {"number"}
        assert int(late["number"]) > 2


async def test_trouble_is_told_and_the_looks_go_on(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    troubles = iter([Unavailable("the server <is> away"), ValueError("secret")])

    async def look() -> dict[str, str]:
        if (trouble := next(troubles, None)) is not None:
            raise trouble
        return {"part": "back"}

    async with watch(hub, look) as news:
        assert "the server &lt;is&gt; away" in (await anext(news) or {})["trouble"]
        assert "see the log of the gateway" in (await anext(news) or {})["trouble"]
        assert await anext(news) == {"trouble": "", "part": "back"}
    assert "a page cannot be drawn: ValueError" in caplog.text


async def test_callers_and_pages_are_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MOST_PAGES", 3)
    monkeypatch.setattr(hubs, "MOST_FOR_ONE", 2)
    look = Looks()
    async with watch(hub, look, 1) as one, watch(hub, look, 2) as two:
        await anext(one)
        await anext(two)
        with pytest.raises(Problem, match="2 by you"):
            await anext(hub.watch("crawl", 3, look, "a"))
        async with watch(hub, look, 2) as again, watch(hub, look, 3, "b") as three:
            await anext(again)
            await anext(three)
            with pytest.raises(Problem, match="3 different pages"):
                await anext(hub.watch("crawl", 4, look, "c"))
    assert hub.watched == 0


async def test_whoever_acts_sees_no_look_from_before_the_act() -> None:
    gate, found = asyncio.Event(), iter(["old", "new"])

    async def look() -> str:
        value = next(found)
        if value == "old":
            await gate.wait()
        return value

    shared: Shared[str] = Shared(look, 60.0)
    before = asyncio.create_task(shared.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    shared.forget()
    assert await shared.get() == "new"
    gate.set()
    assert await before == "old"
    assert await shared.get() == "new"


async def test_what_was_seen_before_a_trouble_is_not_given_after_it() -> None:
    found = iter(["before", None, "after"])

    async def look() -> str:
        value = next(found)
        if value is None:
            await asyncio.sleep(0.05)  # after which the rest is long
            raise Unavailable("the server is away")
        return value

    shared: Shared[str] = Shared(look, 0.01)
    assert await shared.get() == "before"
    await asyncio.sleep(0.02)
    with pytest.raises(Unavailable):
        await shared.get()
    assert await shared.get() == "after"


async def test_a_look_at_a_queue_remembers_the_looks_before_it(url: str, queue: Queue) -> None:
    opens: Any = Queues(Settings(url=url))
    hub = Hub(opens, rest=0.01)
    async with AsyncQueue(queue.name, url) as opened:
        await opened.put("x")
    first = await hub.snapshot(queue.name)
    while (second := await hub.snapshot(queue.name)) is first:  # a look that took long is shown for longer
        await asyncio.sleep(0.01)
    assert second.history[-2:] == [first.stats.sample, second.stats.sample]
    await hub.close()
    await opens.close()


def test_a_look_that_took_long_rests_longer() -> None:
    assert [rest_after(took) for took in (0.001, 0.5, 100.0)] == [1.0, 2.0, 60.0]


async def test_streams_end_with_the_gateway(hub: Hub) -> None:
    async with watch(hub, Looks()) as news:
        await anext(news)
        hub.stop()
        assert [parts async for parts in news] == []
    await hub.close()
