"""Claims that wait, claims that are sent again, and clients that go away; and who cleans a queue of such clients."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.gateway.web import Client, client, server, web
from tests.rig.gateways import WebProcess
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue
from timeoutq.gateway import polls
from timeoutq.gateway.polls import Wish

__all__ = ["client", "server", "web"]


class Waiting:
    """A client that waits in a thread of its own."""

    def __init__(self, client: Client, **body: Any) -> None:
        self._client = client
        self.answer: httpx.Response | None = None
        self.took = 0.0
        self._body = {"wait": 20, **body}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        self.answer = httpx.post(f"{self._client.home}/claim", json=self._body, timeout=40)
        self.took = time.monotonic() - began

    def tasks(self, timeout: float = 30) -> list[str]:
        """Give the tasks that it got."""
        self._thread.join(timeout)
        assert self.answer is not None, "it still waits"
        assert self.answer.status_code == 200, self.answer.text
        return [lease["task"] for lease in self.answer.json()["leases"]]


def blocked(client: Client) -> int:
    """How many connections to Redis are blocked."""
    with redis.Redis.from_url(client.web.redis) as raw:
        info: Any = raw.info("clients")
        return int(info["blocked_clients"])


@pytest.fixture(autouse=True)
def nobody_listens(client: Client) -> Iterator[None]:
    """After a test, have the listener of its queue go: the next test would take it for its own (`until_waiting`)."""
    yield
    client.queue.put("the end")
    wait_until(lambda: blocked(client) == 0, 15)


def until_waiting(client: Client) -> None:
    """Wait until somebody is blocked: on a bell, or held up."""
    wait_until(lambda: blocked(client) >= 1, 30)


@contextmanager
def held_up(client: Client) -> Iterator[None]:
    """Let Redis hold all writes up until the end of the block."""
    with redis.Redis.from_url(client.web.redis) as raw:
        raw.execute_command("CLIENT", "PAUSE", 4000, "WRITE")
        try:
            yield
        finally:
            raw.execute_command("CLIENT", "UNPAUSE")


def plug(client: Client, **body: Any) -> socket.socket:
    """Send a claim, and leave the answer unread."""
    data = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", client.web.port))
    head = f"POST /v1/{client.queue.name}/claim HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    made.sendall(head.encode() + data)
    return made


def test_a_claim_waits_for_the_first_task(client: Client) -> None:
    client.queue.put("first")
    client.queue.ack(client.queue.claim(1))
    waiting = Waiting(client)
    until_waiting(client)
    client.queue.put("late")
    assert waiting.tasks() == ["late"]
    assert waiting.took < 15


def test_a_wait_that_is_over_has_an_empty_answer(client: Client) -> None:
    began = time.monotonic()
    assert client.claim(wait=0.3) == []
    assert 0.25 < time.monotonic() - began < 10


def test_those_who_wait_are_served_in_turn_through_one_connection(client: Client) -> None:
    first = Waiting(client)
    until_waiting(client)
    others = [Waiting(client) for _ in range(5)]
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert blocked(client) <= 1
        time.sleep(0.02)
    client.queue.put("1")
    assert first.tasks() == ["1"]
    client.queue.put(*map(str, range(2, 7)))
    assert sorted(task for one in others for task in one.tasks()) == ["2", "3", "4", "5", "6"]


def test_a_claim_sent_again_gives_the_same_leases(client: Client) -> None:
    client.put("a", "b", "c")
    first = client.claim(2, token="w7-1", timeout=60)
    assert {lease["token"] for lease in first} == {"anybody/w7-1"}
    again = client.claim(2, token="w7-1", timeout=60, age=0.5)
    assert {lease["task"] for lease in again} == {lease["task"] for lease in first}
    assert again[0]["deadline"] > first[0]["deadline"], "they run anew from now on"
    assert client.queue.stats().in_progress == 2
    # one that was never carried out is carried out
    assert len(client.claim(2, token="w7-2", age=3)) == 1
    assert client.claim(2, token="w7-3", age=3) == []


def test_a_claim_sent_again_while_it_waits_takes_the_place_of_the_first(client: Client) -> None:
    first = Waiting(client, token="w1")
    until_waiting(client)
    second = Waiting(client, token="w1", age=1)
    assert first.tasks() == []
    assert first.took < 12
    client.queue.put("a", "b")
    assert second.tasks() == ["a"] or second.tasks() == ["b"]
    assert client.queue.stats().in_progress == 1


def test_a_claim_sent_again_keeps_the_leases_of_one_whose_client_is_gone(client: Client) -> None:
    """The first connection breaks when its leases have just been taken: the second must not lose them."""
    client.put("a")
    with held_up(client):
        first = plug(client, token="w1")
        until_waiting(client)
        second = Waiting(client, token="w1", age=1, wait=0)
        time.sleep(0.3)
        first.close()
        time.sleep(0.2)
    assert second.tasks() == ["a"]
    assert second.answer is not None
    time.sleep(0.3)
    assert client.post("ack", {"leases": second.answer.json()["leases"]})["answers"] == ["ok"]


def test_a_claim_is_sent_again_to_another_gateway_after_the_first_one_saw_its_client_gone(
    client: Client, tmp_path: Path
) -> None:
    client.put("a")
    with WebProcess(client.web.redis, tmp_path) as other:
        with held_up(client):
            first = plug(client, token="w1", timeout=60)
            until_waiting(client)
            first.close()
            time.sleep(0.2)
        wait_until(lambda: client.queue.stats().counters.get("claimed") == 1)
        wait_until(lambda: client.queue.stats().todos == 1, 1)  # the first gateway has seen that its client is gone
        body = {"token": "w1", "timeout": 60, "age": 1}
        again = httpx.post(f"{other.base}/v1/{client.queue.name}/claim", json=body).json()["leases"]
        assert [lease["task"] for lease in again] == ["a"]
        assert client.post("ack", {"leases": again})["answers"] == ["ok"]


async def test_leases_that_a_client_has_from_another_gateway_do_not_go_back_when_the_first_one_sees_it_gone(
    url: str,
) -> None:
    async with AsyncQueue("crawl", url) as queue:
        await queue.put("a", "b")
        wish = Wish("anybody/w1", 2, 30_000, 0)
        first = await queue.run(polls.take(queue, wish))
        again = await queue.run(polls.take(queue, replace(wish, age_ms=1000)))
        assert {lease.task for lease in again} == {"a", "b"}
        await queue.run(polls.give_back(queue, first))
        assert (await queue.stats()).in_progress == 2
        await queue.run(polls.give_back(queue, again))
        assert (await queue.stats()).in_progress == 0


def test_the_leases_of_a_client_that_is_gone_are_back_at_once(client: Client) -> None:
    client.put("a")
    with held_up(client):
        gone = plug(client, timeout=60, token="w1")
        until_waiting(client)
        gone.close()
        time.sleep(0.2)
    wait_until(lambda: client.queue.stats().counters.get("claimed") == 1)
    wait_until(lambda: client.queue.stats().todos == 1, 1)
    assert client.claim()[0]["attempt"] == 1


def test_nothing_is_leased_to_a_client_that_has_gone_while_it_waited(client: Client) -> None:
    client.queue.put("first")
    client.queue.ack(client.queue.claim(1))
    gone = plug(client, wait=30, timeout=60)
    until_waiting(client)
    gone.close()
    time.sleep(0.2)
    client.queue.put("a")
    time.sleep(0.3)
    assert client.queue.stats().counters.get("claimed") == 1
    assert client.claim()[0]["task"] == "a"


def test_leases_that_ran_out_are_taken_back_though_there_are_only_clients_over_http(client: Client) -> None:
    client.put("a")
    (lease,) = client.claim(timeout=0.3)
    (again,) = client.claim(wait=10)
    assert (again["task"], again["crashes"]) == ("a", 1)
    assert client.post("ack", {"leases": [lease]})["answers"] == ["lost"]
    client.claim(timeout=0.2)
    client.post("release", {"leases": [again], "delay": 0.2})
    wait_until(lambda: client.queue.stats().todos == 1)  # nobody asks for it meanwhile


def test_a_client_that_sends_something_behind_its_claim_and_hangs_up_is_seen_to_be_gone(client: Client) -> None:
    client.put("first")
    client.post("ack", {"leases": client.claim()})
    with plug(client, wait=30, timeout=60) as gone:
        until_waiting(client)
        gone.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(0.2)  # the gateway reads it before the end of the connection
    time.sleep(0.2)
    client.put("late")
    assert Waiting(client).tasks() == ["late"]
