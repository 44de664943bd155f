"""A plain client of Redis reads the event log with consumer groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from timeoutq import Queue
from timeoutq.rooms.events import ids_of


@pytest.fixture
def plain(url: str) -> Iterator[Any]:
    """A client of Redis that knows nothing of timeoutq."""
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def log(queue: Queue, name: str) -> str:
    """The key of the event log of a queue with four entries: configure, put, claim, ack."""
    queue.configure(events="64MB")
    queue.put("a", "b", "c")
    queue.ack(queue.claim(2))
    return f"timeoutq:{{{name}}}:events"


def taken(client: Any, log: str, group: str, consumer: str, n: int = 100, **how: Any) -> list[tuple[bytes, Any]]:
    found = client.xreadgroup(group, consumer, {log: ">"}, count=n, **how)
    if isinstance(found, dict):  # RESP3
        return [entry for part in found.get(log.encode(), []) for entry in part]
    return [entry for _, part in found for entry in part]


def test_a_group_created_at_the_beginning_is_given_each_entry_once(plain: Any, log: str) -> None:
    plain.xgroup_create(log, "index", id="0")
    first, second = taken(plain, log, "index", "one", 2), taken(plain, log, "index", "two", 2)
    assert [words[b"verb"] for _, words in first + second] == [b"configure", b"put", b"claim", b"ack"]
    assert taken(plain, log, "index", "one") == []
    assert ids_of(first[1][1][b"->todos"]) == ["a", "b", "c"]


def test_xautoclaim_gives_the_entries_of_a_dead_consumer_to_another(plain: Any, log: str) -> None:
    plain.xgroup_create(log, "index", id="0")
    lost = taken(plain, log, "index", "dead")
    _, claimed, _ = plain.xautoclaim(log, "index", "alive", min_idle_time=0)
    assert claimed == lost
    assert {one["consumer"] for one in plain.xpending_range(log, "index", "-", "+", 9)} == {b"alive"}
    assert {one["times_delivered"] for one in plain.xpending_range(log, "index", "-", "+", 9)} == {2}


def test_each_group_is_given_all_entries(plain: Any, log: str) -> None:
    plain.xgroup_create(log, "index", id="0")
    plain.xgroup_create(log, "audit", id="0")
    assert taken(plain, log, "index", "one") == taken(plain, log, "audit", "one")


def test_a_group_that_is_set_back_is_given_the_entries_again(plain: Any, log: str, queue: Queue) -> None:
    plain.xgroup_create(log, "index", id="$")
    plain.xgroup_setid(log, "index", "0")
    assert len(taken(plain, log, "index", "one")) == 4
    second = queue.events.list(0).events[1]
    assert [event.verb for event in queue.events.list(second.cursor).events] == ["claim", "ack"]
    assert [event.verb for event in queue.events.list(second.at).events][-3:] == ["put", "claim", "ack"]
    queue.put("a", "b", "c", again=True)
    assert queue.stats().todos == 3, "done tasks run again"
