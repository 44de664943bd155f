"""`/metrics` and `/readyz` of a gateway: who sees what, and what is said while the server is away or read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis

from tests.rig.served import served
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.gateway import make_app
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.settings import Settings
from timeoutq.server.embedded import EmbeddedServer


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(settings)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        yield client
    await app.close()


def allowed(name: str, allow: tuple[str, ...], queues: str = "*") -> Settings:
    return Settings(login=lambda _: Caller(name, allow, (queues,)))


async def test_metrics_are_for_those_who_may_look_and_tell_of_their_queues_alone(url: str) -> None:
    with Queue("crawl", url) as crawl, Queue("mail", url) as mail:
        crawl.put("a")
        mail.put("b")
    for allow, queues, status, seen in (
        (("look",), "*", 200, {"crawl", "mail"}),
        (("look",), "crawl*", 200, {"crawl"}),
        (("put", "work", "manage"), "*", 403, set()),
    ):
        async with gateway(replace(allowed("prometheus", allow, queues), url=url)) as client:
            found = await client.get("/metrics")
        assert found.status_code == status
        assert {name for name in ("crawl", "mail") if f'queue="{name}"' in found.text} == seen
        if status == 200:
            assert found.headers["content-type"].startswith("text/plain")
            assert "timeoutq_up 1.0" in found.text


async def test_a_gateway_is_ready_when_its_server_is_a_primary_that_takes_writes() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as raw:
        async with gateway(Settings(url=server.url)) as client:
            assert (await client.get("/readyz")).status_code == 200
            raw.replicaof("127.0.0.1", "1")
            await asyncio.sleep(1.1)  # an answer serves for a second
            found = await client.get("/readyz")
            assert (found.status_code, found.json()["ok"]) == (503, False)
            assert "replica" in found.json()["why"]
            assert found.headers["retry-after"]
            assert (await client.get("/healthz")).status_code == 200
            raw.replicaof("NO", "ONE")
            await asyncio.sleep(1.1)
            assert (await client.get("/readyz")).status_code == 200
        raw.replicaof("127.0.0.1", "1")
        async with gateway(Settings(url=server.url, read_only=True)) as client:
            assert (await client.get("/readyz")).status_code == 200
        assert raw.dbsize() == 0


async def test_queues_of_another_version_alone_make_a_gateway_unready(url: str, raw: redis.Redis) -> None:
    raw.hset("timeoutq:{later}:meta", "schema", "99")
    async with gateway(Settings(url=url)) as client:
        found = await client.get("/readyz")
    assert found.status_code == 503
    assert found.json()["why"] == "the queues are of another version of timeoutq"
    with Queue("mine", url) as queue:
        queue.put("a")
    async with gateway(Settings(url=url)) as client:
        assert (await client.get("/readyz")).status_code == 200


async def test_while_the_server_is_away_readiness_says_so_without_its_address() -> None:
    async with gateway(Settings("redis://127.0.0.1:1/0", login=lambda _: Caller("a"))) as client:
        found = await client.get("/readyz")
    assert (found.status_code, found.json()["why"]) == (503, "the server has not answered in time")


def test_a_gateway_warns_while_its_server_is_away_and_says_when_it_answers(tmp_path: Path) -> None:
    with EmbeddedServer() as server:
        server.kill()
        with served(server.url, tmp_path) as found:
            wait_until(lambda: "WARNING" in found.log, 15)
            (line,) = [line for line in found.log.splitlines() if "WARNING" in line]
            assert "the gateway waits for the server: no answer from redis://" in line
            assert "is the server up?" in line
            server.start()
            wait_until(lambda: "the server answers the gateway again" in found.log, 15)
            with redis.Redis.from_url(server.url) as raw:  # more tries than one fail
                raw.execute_command("ACL", "SETUSER", "default", "-time")
                wait_until(lambda: int(raw.info("errorstats").get("errorstat_NOPERM", {}).get("count", 0)) >= 3, 30)
                raw.execute_command("ACL", "SETUSER", "default", "+time")
            wait_until(lambda: found.log.count("the server answers the gateway again") == 2, 15)
            assert found.log.count("WARNING") == 2
            found.is_well()


async def test_a_gateway_is_not_ready_while_its_server_may_throw_tasks_away() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as raw:
        raw.config_set("maxmemory-policy", "allkeys-lru")
        async with gateway(Settings(url=server.url)) as client:
            found = await client.get("/readyz")
    assert (found.status_code, "throw tasks away" in found.json()["why"]) == (503, True)


async def test_a_scrape_counts_the_queues_that_it_leaves_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeoutq.gateway.metrics.MOST", 1)
    for name in ("aa", "zz1", "zz2"):
        with Queue(name, url) as queue:
            queue.put("a")
    async with gateway(replace(allowed("late", ("look",), "zz*"), url=url)) as client:
        found = (await client.get("/metrics")).text
    assert "timeoutq_queues_left_out 2.0" in found
    assert "queue=" not in found
