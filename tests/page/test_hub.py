"""The hub of the page: one look for all who watch, none for nobody, and bounds on everything. No server is needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from timeoutq import AsyncQueue, Queue
from timeoutq.gateway.page import hub as hubs
from timeoutq.gateway.page.hub import Crowded, Hub, Shared, rest_after
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
    queues: Any = None
    return Hub(queues, rest=0.01)


async def test_a_page_that_many_watch_is_seen_once(hub: Hub) -> None:
    look = Looks()

    async def watch(name: str) -> list[str]:
        found: list[str] = []
        with hub.watch("page", look, name) as viewer:
            while len(found) < 5:
                found.append((await viewer.next(5) or {}).get("number", ""))
        return found

    seen = await asyncio.gather(*(watch(f"caller {n}") for n in range(50)))
    assert all(len(found) == 5 for found in seen)
    assert look.count <= 8


async def test_there_is_no_look_when_nobody_watches(hub: Hub) -> None:
    look = Looks()
    with hub.watch("page", look) as viewer:
        await viewer.next(5)
        assert hub.watched == 1
    assert hub.watched == 0
    await asyncio.sleep(0.02)
    count = look.count
    await asyncio.sleep(0.1)
    assert look.count == count


async def test_whoever_goes_away_while_waiting_watches_no_more(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MOST_FOR_ONE", 1)

    async def watch(page: int) -> None:
        with hub.watch(page, Looks(), "a") as viewer:
            while True:
                await viewer.next(5)

    for page in range(3):
        task = asyncio.create_task(watch(page))
        await asyncio.sleep(0.02)
        assert (hub.watched, task.done()) == (1, False)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert hub.watched == 0


async def test_only_what_has_changed_is_sent_and_a_slow_reader_gets_the_newest(hub: Hub) -> None:
    with hub.watch("page", Looks()) as viewer:
        assert (await viewer.next(5) or {}).keys() == {"trouble", "same", "number"}
        await asyncio.sleep(0.1)  # it reads nothing meanwhile
        late = await viewer.next(5) or {}
        assert late.keys() == {"number"}
        assert int(late["number"]) > 2


async def test_trouble_is_told_and_the_looks_go_on(hub: Hub) -> None:
    tries = 0

    async def look() -> dict[str, str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unavailable("the server <is> away")
        return {"part": "back"}

    with hub.watch("page", look) as viewer:
        first = await viewer.next(5) or {}
        assert "the server &lt;is&gt; away" in first["trouble"]
        assert await viewer.next(5) == {"trouble": "", "part": "back"}


async def test_callers_and_pages_are_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "MOST_PAGES", 3)
    monkeypatch.setattr(hubs, "MOST_FOR_ONE", 2)
    with hub.watch(1, Looks(), "a"), hub.watch(2, Looks(), "a"):
        with pytest.raises(Crowded), hub.watch(3, Looks(), "a"):
            pass
        with hub.watch(2, Looks(), "a"), hub.watch(3, Looks(), "b"):
            with pytest.raises(Crowded), hub.watch(4, Looks(), "c"):
                pass
    assert hub.watched == 0


async def test_large_pages_are_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> dict[str, str]:
        return {"part": "x" * 2_000}

    monkeypatch.setattr(hubs, "MOST_BYTES", 1_000)
    with hub.watch(1, look) as viewer:
        await viewer.next(5)
        with pytest.raises(Crowded), hub.watch(2, look):
            pass


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
    async with AsyncQueue(queue.name, url) as opened:

        class Opened:
            async def get(self, name: str, who: str = "") -> AsyncQueue:
                return opened

        opens: Any = Opened()
        hub = Hub(opens, rest=0.01)
        await opened.put("x")
        first = await hub.snapshot(queue.name)
        while (second := await hub.snapshot(queue.name)) is first:  # a look that took long is shown for longer
            await asyncio.sleep(0.01)
        assert second.history[-2:] == [first.stats.sample, second.stats.sample]
        await hub.close()


def test_a_look_that_took_long_rests_longer() -> None:
    assert rest_after(0.001) == 1.0
    assert rest_after(0.5) == 2.0
    assert rest_after(100.0) == 60.0


async def test_streams_end_with_the_gateway(hub: Hub) -> None:
    with hub.watch("page", Looks()) as viewer:
        await viewer.next(5)
        hub.stop()
        await asyncio.wait_for(viewer.next(60), 5)
        assert hub.is_over
    await hub.close()
