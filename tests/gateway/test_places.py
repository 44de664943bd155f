"""Places for requests: one caller never has all of them, and nobody in line is passed over."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from timeoutq.gateway import make_app
from timeoutq.gateway.bodies import Done
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.fairness import Memory, Places
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.requests import Request
from timeoutq.gateway.routes import verb
from timeoutq.gateway.settings import Settings


async def taken(places: Places, caller: str) -> bool:
    """Take a place, if there is one at once; whoever has to wait goes away."""
    try:
        await asyncio.wait_for(places.take(caller), 0.05)
    except TimeoutError:
        return False
    return True


async def test_a_caller_has_at_most_half_of_the_places() -> None:
    places = Places(8, 100)
    assert [await taken(places, "greedy") for _ in range(5)] == [True] * 4 + [False]
    assert await taken(places, "other")


async def test_callers_in_line_take_turns() -> None:
    places, order = Places(2, 100), list[str]()
    assert await taken(places, "x") and await taken(places, "y")

    async def wait(caller: str) -> None:
        await places.take(caller)
        order.append(caller)
        await asyncio.sleep(0)
        places.give(caller)

    tasks = [asyncio.create_task(wait(caller)) for caller in "aaaab"]
    await asyncio.sleep(0)
    assert order == []
    places.give("x")
    await asyncio.gather(*tasks)
    assert order.index("b") <= 1
    assert sorted(order) == ["a", "a", "a", "a", "b"]


async def test_a_line_that_is_too_long_is_refused() -> None:
    places = Places(2, 3)
    assert await taken(places, "a")
    waiting = [asyncio.create_task(places.take("a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Problem) as told:
        await places.take("a")
    assert (told.value.status, told.value.name, told.value.headers["retry-after"]) == (429, "too-many", "1")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    places.give("a")
    assert [await taken(places, "a"), await taken(places, "b")] == [True, True]


async def test_who_goes_away_in_line_keeps_no_place() -> None:
    places = Places(2, 10)
    assert await taken(places, "a")
    first, second = (asyncio.create_task(places.take("a")) for _ in range(2))
    await asyncio.sleep(0)
    places.give("a")  # the first has the place, and goes away before it hears of it
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, 5)
    places.give("a")
    assert await taken(places, "a")


async def test_who_goes_away_behind_others_keeps_none_of_their_places() -> None:
    places = Places(4, 10)
    assert [await taken(places, caller) for caller in "aabb"] == [True] * 4
    gone = asyncio.create_task(places.take("c"))  # which waits for those of others
    await asyncio.sleep(0)
    places.give("a")
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert [await taken(places, "c"), await taken(places, "d")] == [True, False]


def test_a_full_gateway_does_not_blame_the_caller() -> None:
    memory = Memory(100)
    memory.change("a", 50)
    memory.change("b", 50)
    with pytest.raises(Problem, match="of a are being read") as own:
        memory.change("a", 1)
    with pytest.raises(Problem, match="100 bytes are in memory") as others:
        memory.change("c", 1)
    assert (own.value.status, others.value.status) == (429, 503)


async def test_large_bodies_of_one_caller_are_read_two_at_a_time(url: str) -> None:
    under_way, together = 0, list[int]()

    async def slow(request: Request, *, text: str) -> Done:
        nonlocal under_way
        if text:
            under_way += 1
            together.append(under_way)
            await asyncio.sleep(0.02)
            under_way -= 1
        return Done()

    app = make_app(Settings(url, login=lambda scope: Caller("ci"), heavy=1000), [verb("put", slow)])
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def post(text: str) -> int:
            return (await client.post("/v1/crawl/slow", json={"text": text})).status_code

        large = [asyncio.create_task(post("x" * 1000)) for _ in range(6)]
        async with asyncio.timeout(5):
            while len(together) < 2:
                await asyncio.sleep(0)
        assert await post("") == 200, "a small one does not wait for them"
        assert len(together) == 2
        assert await asyncio.gather(*large) == [200] * 6
    assert (len(together), max(together)) == (6, 2)
    await app.close()
