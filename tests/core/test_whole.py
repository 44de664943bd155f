"""A verb that is refused half-way, by its rights or by a key of a foreign type, loses nothing that was accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from tests.rig.invariants import check
from timeoutq import AccessDenied, LeaseLost, Politeness, Queue, State
from timeoutq.watch.doctor import repair
from timeoutq.words.errors import ServerError

COMMANDS = ["DEL", "EXISTS", "HDEL", "HINCRBY", "SADD", "SMISMEMBER", "SMOVE", "ZADD", "ZMSCORE", "ZREM"]


def as_user(url: str, name: str) -> str:
    """Give the URL for another user of the same server."""
    return re.sub("//[^@/]*@", f"//{name}:secret@", url)


@pytest.fixture
def guest(url: str, raw: redis.Redis) -> Any:
    """Make users who may run all but some commands, and remove them after the test."""
    client: Any = raw

    def make(*without: str) -> str:
        words = [f"-{name.lower()}" for name in without]
        client.execute_command("ACL", "SETUSER", "guest", "reset", "on", ">secret", "~*", "&*", "+@all", *words)
        return as_user(url, "guest")

    yield make
    client.acl_deluser("guest")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_ack_that_is_refused_half_way_has_put_what_it_found(guest: Any, url: str, name: str, command: str) -> None:
    with Queue(name, url) as queue, Queue(name, guest()) as worker:
        queue.put("parent")
        (lease,) = worker.claim()
        guest(command)
        with pytest.raises(AccessDenied):
            worker.ack(lease, put={"child": None, "other": {"depth": 1}})
        if queue.inspect("parent").state is State.DONE:
            assert queue.inspect("child").state is State.TODOS
            assert queue.inspect("other").payload == {"depth": 1}
        else:
            assert queue.inspect("parent").state is State.IN_PROGRESS
        queue.purge()


@pytest.mark.parametrize(
    "key", ["failed", "scheduled", "leases", "stats", "calls", "payload", "done_at", "runtime", "alarm"]
)
def test_an_ack_that_meets_a_key_of_a_foreign_type_loses_neither_its_task_nor_its_links(
    url: str, name: str, raw: redis.Redis, key: str
) -> None:
    client: Any = raw
    with Queue(name, url) as queue:
        queue.put("parent")
        (lease,) = queue.claim()
        with of_a_foreign_type(client, queue.operations.key(key)), suppress(ServerError):
            queue.ack(lease, put={"child": {"depth": 1}})
        repair(queue)
        with suppress(LeaseLost):
            queue.ack(lease, put={"child": {"depth": 1}})
        assert queue.inspect("parent").state is State.DONE
        assert queue.inspect("child").payload == {"depth": 1}
        assert repair(queue).found == "nothing to mend"
        queue.purge()


@pytest.mark.parametrize("key", ["hosts", "slots", "resting", "places", "waiting", "policies"])
def test_an_ack_on_a_polite_queue_that_meets_a_key_of_a_foreign_type_loses_nothing(
    url: str, name: str, raw: redis.Redis, key: str
) -> None:
    client: Any = raw
    with Queue(name, url, politeness=Politeness(60, 1)) as queue:
        queue.put("https://a.example/1")
        (lease,) = queue.claim()
        with of_a_foreign_type(client, queue.operations.key(key)), suppress(ServerError):
            queue.ack(lease, put=["https://b.example/1"])
        repair(queue)
        with suppress(LeaseLost):
            queue.ack(lease, put=["https://b.example/1"])
        assert queue.inspect("https://a.example/1").state is State.DONE
        assert queue.inspect("https://b.example/1").state in (State.TODOS, State.WAITING)
        assert repair(queue).found == "nothing to mend"
        queue.purge()


@contextmanager
def of_a_foreign_type(client: Any, key: str) -> Iterator[None]:
    """Have a string in the place of a key, and put the key back at the end."""
    client.rename(key, "aside") if client.exists(key) else None
    client.set(key, "a string")
    try:
        yield
    finally:
        client.delete(key)
        client.rename("aside", key) if client.exists("aside") else None


def test_a_task_that_is_not_kept_may_put_itself_again(url: str, name: str) -> None:
    with Queue(name, url, keep_done=0) as queue:
        queue.put({"a": 1})
        (lease,) = queue.claim()
        assert queue.ack(lease, put={"a": 2, "b": None}) == "ok"
        assert queue.inspect("a").state is State.TODOS
        assert queue.inspect("a").payload == 2
        check(url, name)
        queue.purge()
