"""What the dashboard and `timeoutq status` show of a queue over several shards, also while a node is silent."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from tests.rig.command import Say, say
from tests.rig.command import server as server
from tests.rig.nodes import Cluster, frozen
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import AsyncShardedQueue, Politeness, ShardedQueue, ShardsUnavailable
from timeoutq.client.shards.route import tags
from timeoutq.server.cluster import slot_of
from timeoutq.watch.draw import render
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot, snapshot_async
from timeoutq.words.counts import Stats

__all__ = ["say"]

PAGES = [f"https://h{i}.example/" for i in range(40)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A queue over four shards."""
    with ShardedQueue(name, url, shards=4) as opened:
        opened.put(PAGES)
        yield opened


def drawn(seen: Snapshot, width: int = 100, height: int = 30) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, highlight=False)
    with console.capture() as caught:
        console.print(render(seen, width, height))
    return caught.get()


def test_all_shards_are_one_picture(queue: ShardedQueue) -> None:
    queue.configure(politeness=Politeness(0.5, 5))
    leases = queue.claim(30)
    for after in (50, 20, 70):
        queue.schedule(f"https://h{after}.example/later", after=after)
    queue.fail(leases[0], "broken", give_up=True)
    seen = snapshot(queue)
    assert (seen.stats.known, len(seen.leases), seen.stats.failed) == (43, 20, 1)
    ends = [entry.at for entry in seen.leases]
    assert ends == sorted(ends, key=lambda at: at or 0)
    assert [entry.task for entry in seen.due] == [f"https://h{after}.example/later" for after in (20, 50, 70)]
    assert [failure.error for failure in seen.errors] == ["broken"]
    assert {host.host for host in seen.hosts} <= {f"h{i}.example" for i in range(80)}
    assert len(seen.hosts) == 20
    assert seen.silent == {}

    async def look() -> Snapshot:
        async with AsyncShardedQueue(queue.name, queue.given[0]) as other:
            return await snapshot_async(other)

    assert asyncio.run(look()).stats.known == 43


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries whose silence is not taken for death while a test runs."""
    with Cluster(3, 0, node_timeout_ms=60_000, binary=valkey()) as found:
        yield found


@pytest.mark.breaking
def test_a_silent_node_is_named_and_the_picture_shows_the_other_shards(say: Say, cluster: Cluster, name: str) -> None:
    with ShardedQueue(name, cluster.url, shards=6) as queue:
        queue.put(PAGES)
        root = cluster.primary_of(slot_of(name))
        gone = next(node for node in cluster.nodes if node is not root)
        theirs = [shard for shard, tag in enumerate(tags(name, 6)) if cluster.primary_of(slot_of(tag)) is gone]
        memory = Memory()
        whole = memory.add(snapshot(queue))
        with frozen(gone):
            began = time.monotonic()
            seen = memory.add(snapshot(queue))
            took = time.monotonic() - began
            with pytest.raises(ShardsUnavailable) as raised:
                queue.stats()
            lines = say("status", name, "--url", cluster.url).lines
            document = json.loads(say("status", name, "--url", cluster.url, "--json").out)
        assert took < queue.talk.deadline
        left = sum(shard.known for number, shard in enumerate(whole.stats.shards) if number not in theirs)
        assert 0 < left < 40
        assert (seen.stats.known, seen.stats.todos) == (left, left)
        (what,) = seen.silent
        assert what == f"shards {theirs[0]}, {theirs[1]}"
        assert f" {what}: no answer, and not counted here: " in drawn(seen)
        assert set(seen.depths) == set(range(6)) - set(theirs)
        assert len(seen.history) == 1, "sums of other shards make no rates"
        assert isinstance(partly := raised.value.outcome, Stats)
        assert (partly.known, len(partly.shards), sorted(raised.value.shards)) == (left, 6, theirs)
        assert [line[1] for line in lines if line[0] == "silent"] == [what]
        assert [int(line[1]) for line in lines if line[0] == "shard"] == sorted(set(range(6)) - set(theirs))
        assert document["silent"].keys() == {what}
        wait_until(lambda: snapshot(queue).silent == {})
        assert snapshot(queue).stats.known == 40
        queue.purge()


def test_of_hosts_without_a_turn_those_with_most_to_do_are_shown_first(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=4) as queue:
        queue.configure(politeness=Politeness(delay=0, per_host=1))
        for host, pages in (("few", 2), ("most", 4), ("some", 3)):
            queue.put(f"https://{host}.example/{number}" for number in range(pages))
        assert len(queue.claim(3)) == 3
        assert [(host.host, host.waiting, host.turn) for host in snapshot(queue).hosts] == [
            ("most.example", 3, None), ("some.example", 2, None), ("few.example", 1, None),
        ]  # fmt: skip
        queue.purge()
