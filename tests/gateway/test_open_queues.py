"""The queues that a gateway has open: unknown ones take no place, a caller has half, idle ones make room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import redis

from timeoutq import Queue
from timeoutq.gateway import queues
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.page import make_app
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Queues]:
    """The queues of an application that has four open at most."""
    made = Queues(Settings(url=url, most_queues=4))
    yield made
    await made.close()


def connected(raw: redis.Redis) -> int:
    told: Any = raw.info("clients")
    return int(told["connected_clients"])


async def get(opened: Queues, who: str, *names: str) -> list[str]:
    """Use queues as a request does that ends at once; say of each whether its client was open, opened or refused."""
    found: list[str] = []
    for name in names:
        there = name in opened._open
        try:
            with opened.use(name):
                await opened.get(name, who)
            found.append("open" if there else "opened")
        except Problem as problem:
            found.append(problem.name)
    return found


async def test_a_queue_that_is_unknown_is_closed_at_once(opened: Queues, raw: redis.Redis) -> None:
    before = connected(raw)
    for number in range(10):
        with pytest.raises(Problem, match="there is no queue"):
            await opened.known(f"x{number}", "greedy")
    assert connected(raw) <= before + 1
    assert await get(opened, "greedy", "a", "b") == ["opened", "opened"]


async def test_room_is_made_from_the_queue_that_was_idle_for_longest(opened: Queues) -> None:
    assert await get(opened, "one", "a", "b", "a") == ["opened", "opened", "open"]
    assert await get(opened, "two", "c", "d") == ["opened", "opened"]
    assert await get(opened, "three", "e") == ["opened"]
    assert await get(opened, "one", "a", "b") == ["open", "opened"]


async def test_queues_in_use_are_not_closed_and_their_caller_is_refused(opened: Queues) -> None:
    with opened.use("a"), opened.use("e"), opened.use("d"), opened.use("c"):
        await opened.get("a", "greedy")
        assert await get(opened, "greedy", "b", "c") == ["opened", "opened"]
        assert await get(opened, "greedy", "f") == ["too-many"]
        assert await get(opened, "other", "d", "e") == ["opened", "opened"]
        assert await get(opened, "third", "f") == ["unavailable"]
    assert await get(opened, "third", "f") == ["opened"]


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


async def test_a_purge_breaks_off_no_call_of_another_request(url: str) -> None:
    made = make_app(Settings(url=url, login=lambda _: Caller("one")))
    opened = made.state.queues
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made), base_url="http://localhost") as client:
        assert (await client.post("/v1/crawl/put", json={"tasks": ["a"]})).status_code == 200
        with opened.use("crawl"):  # the other request
            queue = await opened.get("crawl", "one")
            assert (await client.post("/v1/crawl/purge", json={})).status_code == 200
            assert await opened.get("crawl", "one") is queue
            assert (await client.get("/v1/crawl/stats")).status_code == 404
        assert (await client.get("/v1/crawl/stats")).status_code == 404
        assert list(opened._open) == []
    await made.close()


async def test_a_client_that_nobody_has_used_for_a_while_is_closed_with_its_connections(
    opened: Queues, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "IDLE", 0.2)
    monkeypatch.setattr(queues, "SWEEP", 0.05)
    before = connected(raw)
    with opened.use("used"):
        queue = await opened.get("used", "one")
        with opened.use("idle"):
            idle = await opened.get("idle", "one")
            await asyncio.gather(queue.put("a"), *(idle.put(f"a{number}") for number in range(8)))
            assert connected(raw) > before + 1
        async with asyncio.timeout(60):
            while connected(raw) > before + 1:
                await asyncio.sleep(0.01)
        assert list(opened._open) == ["used"]
        assert await get(opened, "one", "idle") == ["opened"]
