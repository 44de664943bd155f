"""Places for requests: one caller never has all of them, and nobody in line is passed over."""

from __future__ import annotations

import asyncio

import pytest

from timeoutq.gateway.fairness import Places
from timeoutq.gateway.problems import Problem


def test_a_caller_has_at_most_half_of_the_places() -> None:
    places = Places(8, 100)
    assert [places.try_take("greedy") for _ in range(5)] == [True] * 4 + [False]
    assert places.try_take("other")


async def in_line(places: Places, callers: str) -> list[str]:
    """Let callers wait for a place; give the order in which they get it when places come free one by one."""
    order: list[str] = []

    async def wait(caller: str) -> None:
        await places.take(caller)
        order.append(caller)
        await asyncio.sleep(0)
        places.give(caller)

    tasks = [asyncio.create_task(wait(caller)) for caller in callers]
    await asyncio.sleep(0)
    assert order == []
    places.give("x")
    await asyncio.gather(*tasks)
    return order


def test_callers_in_line_take_turns() -> None:
    places = Places(2, 100)
    assert places.try_take("x")
    assert places.try_take("y")
    order = asyncio.run(in_line(places, "aaaab"))
    assert order.index("b") <= 1
    assert sorted(order) == ["a", "a", "a", "a", "b"]


def test_a_line_that_is_too_long_is_refused() -> None:
    async def body() -> None:
        places = Places(2, 3)
        assert places.try_take("a")
        waiting = [asyncio.create_task(places.take("a")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as told:
            await places.take("a")
        assert (told.value.status, told.value.name) == (429, "too-many")
        assert told.value.headers["retry-after"] == "1"
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        places.give("a")
        assert [places.try_take("a"), places.try_take("b")] == [True, True]

    asyncio.run(body())


def test_who_goes_away_in_line_keeps_no_place() -> None:
    async def body() -> None:
        places = Places(2, 10)
        assert places.try_take("a")
        first, second = (asyncio.create_task(places.take("a")) for _ in range(2))
        await asyncio.sleep(0)
        places.give("a")  # the first has the place, and goes away before it hears of it
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.wait_for(second, 5)
        places.give("a")
        assert places.try_take("a")

    asyncio.run(body())
