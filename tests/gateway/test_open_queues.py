"""The queues that a gateway has open: unknown ones take no place, a caller has half, idle ones make room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import redis

from timeoutq import Queue
from timeoutq.gateway import make_app, queues
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Queues]:
    """The queues of an application that has four open at most."""
    made = Queues(Settings(url=url, most_queues=4))
    yield made
    await made.close()


async def get(opened: Queues, who: str, *names: str) -> list[str]:
    """Use queues as a request does that ends at once; say of each whether its client was open, opened or refused."""
    found: list[str] = []
    for name in names:
        there = name in opened._open
        opened.pin(name)
        try:
            await opened.pinned(name, who, known=False)
            found.append("open" if there else "opened")
        except Problem as problem:
            found.append(problem.name)
        finally:
            opened.unpin(name)
    return found


async def test_a_queue_that_is_unknown_is_closed_at_once(opened: Queues, raw: redis.Redis) -> None:
    before: Any = raw.info("clients")
    for number in range(10):
        with pytest.raises(Problem, match="there is no queue"):
            await opened.known(f"x{number}", "greedy")
    after: Any = raw.info("clients")
    assert after["connected_clients"] <= before["connected_clients"] + 1
    assert await get(opened, "greedy", "a", "b") == ["opened", "opened"]


async def test_an_unknown_queue_that_others_use_stays_open(opened: Queues) -> None:
    opened.pin("new")  # a put that is under way
    queue = await opened.pinned("new", "one", known=False)
    opened.pin("new")
    with pytest.raises(Problem, match="there is no queue"):
        await opened.pinned("new", "two", known=True)
    opened.unpin("new")
    assert (await queue.put("a")).counts() == {"added": 1}
    opened.unpin("new")


async def test_a_client_that_is_closed_leaves_nothing_behind(opened: Queues) -> None:
    await opened.get("a", "one")
    await opened.forget("a")
    assert [kept for kept in vars(opened).values() if isinstance(kept, dict) and "a" in kept] == []


async def test_room_is_made_from_the_queue_that_was_idle_for_longest(opened: Queues) -> None:
    assert await get(opened, "one", "a", "b", "a") == ["opened", "opened", "open"]
    assert await get(opened, "two", "c", "d") == ["opened", "opened"]
    assert await get(opened, "three", "e") == ["opened"]
    assert await get(opened, "one", "a", "b") == ["open", "opened"]


async def test_a_caller_with_its_share_makes_room_from_its_own_queues(opened: Queues) -> None:
    assert await get(opened, "other", "o") == ["opened"]
    assert await get(opened, "greedy", "a", "b", "c", "d") == ["opened"] * 4
    assert await get(opened, "other", "o", "p") == ["open", "opened"]


async def test_queues_in_use_are_not_closed_and_their_caller_is_refused(
    opened: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.pin("a")
    await opened.pinned("a", "greedy", known=False)
    await opened.get("b", "greedy")  # by somebody who does not say when the use ends
    assert await get(opened, "greedy", "c") == ["too-many"]
    assert await get(opened, "other", "d", "e") == ["opened", "opened"]
    opened.busy = lambda name: name == "d"
    opened.pin("e")
    assert await get(opened, "third", "f") == ["unavailable"]
    opened.unpin("a")
    assert await get(opened, "third", "f") == ["opened"]
    monkeypatch.setattr(queues, "IDLE", 0.0)
    await opened.get("b", "greedy")
    assert await get(opened, "third", "g") == ["opened"]
    assert await get(opened, "greedy", "d", "e") == ["open", "open"]


async def test_a_caller_that_asks_for_very_many_queues_shuts_the_gateway_for_nobody(url: str) -> None:
    made = make_app(
        Settings(url=url, most_queues=4, login=lambda scope: Caller(dict(scope["headers"])[b"x-user"].decode()))
    )
    base = "http://localhost:8080"
    with Queue("there", url) as queue:
        queue.put("a")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url=base) as client:
            greedy, other = {"X-User": "greedy"}, {"X-User": "other"}
            for number in range(10):
                for path in (f"/v1/x{number}/stats", f"/q/x{number}"):
                    assert (await client.get(path, headers=greedy)).status_code == 404
            claims = [await client.post(f"/v1/x{number}/claim", json={}, headers=greedy) for number in range(3)]
            assert [found.status_code for found in claims] == [200, 200, 429]
            assert claims[2].headers["retry-after"]
            put = await client.post("/v1/crawl/put", json={"tasks": ["a"]}, headers=other)
            assert put.status_code == 200
            assert (await client.get("/v1/there/stats", headers=other)).status_code == 200
    await made.close()


async def test_a_client_that_nobody_has_used_for_a_while_is_closed_with_its_connections(
    opened: Queues, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "IDLE", 0.2)
    monkeypatch.setattr(queues, "SWEEP", 0.05)

    def connected() -> int:
        told: Any = raw.info("clients")
        return int(told["connected_clients"])

    before = connected()
    opened.pin("used")
    queue = await opened.pinned("used", "one", known=False)
    opened.pin("idle")
    idle = await opened.pinned("idle", "one", known=False)
    await asyncio.gather(queue.put("a"), *(idle.put(f"a{number}") for number in range(8)))
    assert connected() > before + 1
    opened.unpin("idle")
    async with asyncio.timeout(60):
        while connected() > before + 1:
            await asyncio.sleep(0.01)
    assert list(opened._open) == ["used"]
    assert await get(opened, "one", "idle") == ["opened"]
