"""The hub of the page: one look for all who watch, and what is shown of a look that fails. Few tests need a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from timeoutq import AsyncQueue, Queue
from timeoutq.gateway.names import Shared, rest_after
from timeoutq.gateway.page.hub import Hub
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings
from timeoutq.words.errors import Unavailable


@pytest.fixture
def hub() -> Hub:
    return Hub(Queues(Settings(url="redis://127.0.0.1:1")), rest=0.01)


async def test_a_page_that_many_watch_is_drawn_once(hub: Hub) -> None:
    drawn: list[int] = []

    async def draw() -> dict[str, str]:
        drawn.append(1)
        return {"number": str(len(drawn))}

    found = await asyncio.gather(*(hub.drawn("crawl", "page", draw) for _ in range(50)))
    assert found == [{"trouble": "", "number": "1"}] * 50
    await asyncio.sleep(0.02)
    assert (await hub.drawn("crawl", "page", draw))["number"] == "2"


async def test_trouble_is_told_and_the_looks_go_on(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    troubles = iter([Unavailable("the server <is> away"), ValueError("secret")])

    async def draw() -> dict[str, str]:
        if (trouble := next(troubles, None)) is not None:
            raise trouble
        return {"part": "back"}

    told: list[Any] = []
    for _ in range(3):
        told.append(await hub.drawn("crawl", "page", draw))
        await asyncio.sleep(0.02)
    assert "the server &lt;is&gt; away" in told[0]["trouble"]
    assert "see the log of the gateway" in told[1]["trouble"]
    assert told[2] == {"trouble": "", "part": "back"}
    assert "a page cannot be drawn: ValueError" in caplog.text


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
