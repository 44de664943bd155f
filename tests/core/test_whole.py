"""A verb that is refused half-way, by its rights or by a key of a foreign type, loses nothing that was accepted."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from tests.rig.invariants import check
from timeoutq import AccessDenied, Queue, State

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


def test_a_task_that_is_not_kept_may_put_itself_again(url: str, name: str) -> None:
    with Queue(name, url, keep_done=0) as queue:
        queue.put({"a": 1})
        (lease,) = queue.claim()
        assert queue.ack(lease, put={"a": 2, "b": None}) == "ok"
        assert queue.inspect("a").state is State.TODOS
        assert queue.inspect("a").payload == 2
        check(url, name)
        queue.purge()
