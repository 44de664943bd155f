"""`timeoutq doctor` on a queue over several shards: the record, each node once, and each shard by its number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.rig.command import Say, say
from tests.rig.command import server as server
from tests.rig.nodes import QUICK, Cluster
from tests.rig.servers import valkey
from timeoutq import AccessDenied, Queue
from timeoutq.client.shards import ShardedQueue
from timeoutq.server.rights import every
from timeoutq.watch import divided
from timeoutq.watch.doctor import Finding

__all__ = ["say"]

PAGES = [f"https://h{i}.example/" for i in range(30)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A queue over four shards, with some tasks in each."""
    with ShardedQueue(name, url, shards=4, deadline=1.0) as opened:
        opened.put(PAGES)
        yield opened


@pytest.fixture
def client(raw: redis.Redis) -> Any:
    """A foreign hand."""
    return raw


def of(queue: ShardedQueue, check: str) -> Finding:
    (found,) = [finding for finding in divided.examine(queue) if finding.check == check]
    return found


def verdicts(queue: ShardedQueue) -> set[str]:
    known = ("durability", "claims")  # that of the embedded server; and that no worker is alive
    return {finding.verdict for finding in divided.examine(queue) if finding.check not in known}


def key(queue: ShardedQueue, shard: int, name: str) -> str:
    return queue.shards.talks[shard].operations.key(name)


def test_a_sound_queue_is_examined_once_and_not_once_for_each_shard(queue: ShardedQueue) -> None:
    queue.claim(2)
    findings = divided.examine(queue)
    assert set(Counter(finding.check for finding in findings).values()) == {1}
    assert verdicts(queue) == {"green"}
    assert of(queue, "record").found == "4 shards by host, route v1; all 4 agree with it"
    assert of(queue, "schema").found == "right in all 4 shards"
    ready = queue.stats().todos
    assert of(queue, "claims").found == f"{ready} tasks are ready, and no worker is alive"


def test_what_is_wrong_in_some_shards_names_these(queue: ShardedQueue, client: Any) -> None:
    for shard in (1, 3):
        client.sadd(key(queue, shard, "done"), client.srandmember(key(queue, shard, "todos")))
    client.set(key(queue, 2, "history"), "a string")
    found = of(queue, "tasks")
    assert (found.verdict, found.found) == ("yellow", "shards 1, 3: 1 task in two states at once")
    found = of(queue, "keys")
    assert found.found.startswith("shard 2: history is a string")
    assert f"redis-cli RENAME '{key(queue, 2, 'history')}' elsewhere" in found.cure


def test_settings_that_differ_between_shards_are_told_with_the_command_that_sets_them_again(
    say: Say, queue: ShardedQueue, client: Any
) -> None:
    queue.configure(keep_done=10)
    client.hset(key(queue, 2, "meta"), "keep_done", "forever")
    found = of(queue, "record")
    assert (found.verdict, found.found) == (
        "yellow", "the shards do not agree: keep_done is n10 in shards 0, 1, 3; forever in shard 2",
    )  # fmt: skip
    assert f"timeoutq configure {queue.name} --keep-done" in found.cure
    assert say("configure", queue.name, "--keep-done", "10").code == 0
    assert verdicts(queue) == {"green"}


def test_tasks_of_other_shards_are_found(queue: ShardedQueue, client: Any, url: str) -> None:
    client.hset(f"timeoutq:{{{queue.name}}}:meta", "shards", "4 id v1")
    with ShardedQueue(queue.name, url) as other:
        found = of(other, "record")
    assert found.verdict == "red"
    assert re.match(r"\d+ of 30 tasks that were looked at, in shards 0, 1, 2, 3, belong to other shards", found.found)


def test_the_command_shows_it_all_also_as_json(say: Say, queue: ShardedQueue, client: Any) -> None:
    assert {line[0]: line[2] for line in say("doctor", queue.name).lines}["record"].startswith("4 shards by host")
    assert say("doctor", queue.name, "--max-failed", 0).code == 0
    client.sadd(key(queue, 1, "done"), client.srandmember(key(queue, 1, "todos")))
    found = {document["check"]: document for document in say("doctor", queue.name, "--json").documents}
    assert found["tasks"]["found"] == "shard 1: 1 task in two states at once"
    assert found["tasks"]["cure"] == f"timeoutq doctor {queue.name} --repair"
    mended = say("doctor", queue.name, "--repair")
    assert "mended: 1 task in two states at once" in mended.out
    assert "tasks" not in {line[0] for line in mended.lines}


def test_a_user_is_proposed_the_keys_of_all_shards_and_can_work_with_them(queue: ShardedQueue, url: str) -> None:
    def user(*rules: str) -> str:
        with redis.Redis.from_url(url) as raw:
            raw.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
        return re.sub("//[^@/]*@", "//app:secret@", url)

    words = [f"+{name.lower()}" for name in every()]
    with ShardedQueue(queue.name, user(f"~timeoutq:{{{queue.name}}}:*", *words)) as limited:
        found = of(limited, "acl")
    assert found.verdict == "red"
    rules = found.cure.removeprefix("ACL SETUSER app ")
    assert rules == f"~timeoutq:{{{queue.name}[:}}]*"
    with ShardedQueue(queue.name, user(rules, *words)) as limited:
        assert of(limited, "acl").verdict == "green"
        assert limited.ack(limited.claim(5)).ok > 0
    with Queue(f"{queue.name}2", user(rules, *words)) as other, pytest.raises(AccessDenied):
        other.put("a")


# ---- on a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries without replicas: when one is gone, its slots are."""
    whole = {"cluster-require-full-coverage": False}
    with Cluster(3, 0, node_timeout_ms=QUICK, binary=valkey(), config=whole) as found:
        yield found
