"""What a sharded queue says when something cannot be had: which shards are concerned, what is true, and the cure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command import Say, say
from tests.rig.command import server as server
from timeoutq import (
    AsyncQueue,
    AsyncShardedQueue,
    InvalidInput,
    NotReplicated,
    Politeness,
    Queue,
    ShardedQueue,
    ShardsUnavailable,
    State,
    Unavailable,
    open_async_queue,
)
from timeoutq.client.shards import gathering
from timeoutq.client.shards.names import stem, tags
from timeoutq.server.connection import Server
from timeoutq.server.embedded import EmbeddedServer

__all__ = ["say"]

TASKS = [f"https://h{number}.example/" for number in range(40)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A polite queue over four shards, on a server without replicas."""
    with ShardedQueue(name, url, shards=4, politeness=Politeness(delay=0.0)) as opened:
        yield opened
        opened.purge()


def make_durable(queue: ShardedQueue, raw: Any, shards: int = 4) -> None:
    """Make shards durable, as they are when their replicas went away later."""
    for tag in tags(queue.name, 4)[:shards]:
        meta = f"{stem(tag)}meta"
        raw.hset(meta, mapping={"uses": f"{raw.hget(meta, 'uses') or ''} durable".strip(), "durable": "1"})


def test_a_claim_that_no_replica_confirms_says_so_and_names_no_silent_shard(
    queue: ShardedQueue, raw: Any, url: str
) -> None:
    queue.put(TASKS)
    make_durable(queue, raw)
    with ShardedQueue(queue.name, url, deadline=3) as newcomer, pytest.raises(NotReplicated, match="given back"):
        newcomer.claim(2)
    make_durable(queue, raw, 0)


def test_shards_that_no_replica_confirms_did_answer(queue: ShardedQueue, raw: Any, url: str) -> None:
    queue.put(TASKS)
    make_durable(queue, raw, 2)
    with ShardedQueue(queue.name, url, deadline=3) as newcomer, pytest.raises(ShardsUnavailable) as met:
        newcomer.put(TASKS)
    said = str(met.value)
    assert said.startswith(f"shards 0, 1 of queue {queue.name}: no replica has confirmed it, and 2 others had no such")
    assert "did not answer" not in said
    assert "call again" not in said  # the error of the shard has its own words for that
    assert set(met.value.shards) == {0, 1}


def test_a_silent_shard_is_named_beside_one_without_replicas(queue: ShardedQueue) -> None:
    errors = {0: NotReplicated("few"), 3: Unavailable("silent: is it up?")}
    said = str(gathering.failure(queue.shards, errors, 4))
    assert "did not answer, or their replicas did not, and 2 others did: silent" in said


def test_pull_is_refused_on_a_durable_queue_that_has_no_ready_task(queue: ShardedQueue, raw: Any, say: Say) -> None:
    queue.put("a")
    queue.ack(queue.claim())
    make_durable(queue, raw)
    refused = say("pull", queue.name)
    assert (refused.code, "durable" in refused.err) == (2, True)


def test_a_plain_queue_is_divided_by_a_copy_that_is_compared_before_the_old_one_is_purged(url: str, name: str) -> None:
    with Queue(name, url) as plain:
        plain.put("a")
        with pytest.raises(InvalidInput) as met, ShardedQueue(name, url, shards=4) as wanted:
            wanted.put("b")
        plain.purge()
    said = str(met.value)
    places = [said.index(word) for word in ("export", "import it into another queue", "compare", "purge")]
    assert places == sorted(places)


def test_a_task_of_a_banned_host_comes_back_only_after_an_unban(queue: ShardedQueue, say: Say) -> None:
    queue.put("https://a.example/1")
    queue.hosts.ban("a.example", "spider trap")
    (line,) = [line for line in say("why", queue.name, "https://a.example/1").lines if line[0] == "why"]
    first = f"first `timeoutq unblock {queue.name} a.example`, then `timeoutq retry {queue.name} https://a.example/1`"
    assert first in line[1]
    done = say("retry", queue.name, "https://a.example/1")
    assert (
        "host a.example is banned (spider trap), and its tasks fail again at once: first timeoutq unblock" in done.err
    )
    assert queue.inspect("https://a.example/1").state == "failed"
    say("unblock", queue.name, "a.example")
    assert say("retry", queue.name, "https://a.example/1").err == ""
    assert queue.inspect("https://a.example/1").state != "failed"


def test_a_reason_does_not_stand_where_a_name_belongs(queue: ShardedQueue) -> None:
    queue.put("https://a.example/1", "https://b.example/1")
    queue.hosts.block("a.example", for_=60, reason="asked to")
    queue.hosts.block("b.example", for_=60)
    assert "host a.example is blocked (asked to) until" in queue.why("https://a.example/1").message
    assert "host b.example is blocked by " in queue.why("https://b.example/1").message


async def test_an_asyncio_queue_is_opened_by_await_or_by_async_with(url: str, name: str) -> None:
    async with open_async_queue(name, url, shards=4) as queue:
        assert isinstance(queue, AsyncShardedQueue)
        await queue.put("a")
    again = await open_async_queue(name, url)
    assert isinstance(again, AsyncShardedQueue)
    await again.purge()
    await again.close()
    async with await open_async_queue(name, url) as plain:
        assert isinstance(plain, AsyncQueue)


def test_an_error_does_not_repeat_all_nodes_of_a_cluster() -> None:
    places = [f"10.0.0.{number}:7000" for number in range(1, 7)]
    server = Server(f"redis+cluster://{','.join(places)}", None, 1.0)
    error = ConnectionRefusedError(111, "Connection refused")
    said = str(server.explain(error))
    assert "redis+cluster://10.0.0.1:7000,… (6 nodes)" in said
    assert "10.0.0.2" not in said
    noted = ConnectionRefusedError(111, "Connection refused")
    noted.add_note("10.0.0.4:7000 has slot 7")
    assert "10.0.0.4:7000 has slot 7" in str(server.explain(noted))


def test_a_server_that_is_no_sentinel_is_named_at_once(name: str) -> None:
    with EmbeddedServer() as plain:
        began = time.monotonic()
        with (
            Queue(name, f"redis+sentinel://127.0.0.1:{plain.port}/service/0", deadline=20) as other,
            pytest.raises(InvalidInput, match="no sentinel: name the sentinels, which mostly listen on port 26379"),
        ):
            other.put("a")
    assert time.monotonic() - began < 10


def test_a_comparison_that_is_cut_says_what_it_has_counted(
    queue: ShardedQueue, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeoutq.watch import transfer

    queue.put(TASKS)
    (tmp_path / "ids").write_text("nothing\n")

    def cut(*words: Any, **how: Any) -> Iterator[list[bytes]]:
        for batch in transfer.scan(queue, State.TODOS):
            yield batch[:1]
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(transfer, "compare", lambda batches, there, *, both: cut())
        done = say("diff", f"{queue.name}:waiting", tmp_path / "ids")
    assert done.code == 130
    assert f"are not in {tmp_path / 'ids'}" in done.err
