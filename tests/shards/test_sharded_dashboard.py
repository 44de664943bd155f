"""What the dashboard and `timeoutq status` show of a queue over several shards, also while a node is silent."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from tests.rig.command import Say, say
from tests.rig.command import server as server
from tests.rig.nodes import Cluster, frozen
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import AsyncShardedQueue, Politeness, ShardedQueue, ShardsUnavailable, Task, Worker
from timeoutq.client.shards import looking
from timeoutq.client.shards.names import tags
from timeoutq.server.cluster import slot_of
from timeoutq.watch.draw import ranges, render
from timeoutq.watch.snapshot import SILENT, Memory, Snapshot, snapshot, snapshot_async
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.model import WorkerInfo

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


def test_numbers_of_shards_are_short() -> None:
    assert ranges([3, 0, 1, 2, 7]) == "0-3,7"
    assert ranges([]) == ""


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


def test_a_picture_shows_the_newest_errors_of_all_shards(queue: ShardedQueue) -> None:
    for lease, words in zip(queue.claim(3), ("first", "second", "third"), strict=True):
        queue.fail(lease, words, give_up=True)
        (at, *_) = (failure.at for failure in queue.errors(1))
        wait_until(lambda at=at: queue.stats().now > at)  # type: ignore[misc]  # a default
    assert [failure.error for failure in snapshot(queue, rows=2).errors] == ["third", "second"]


def test_the_history_begins_when_every_shard_has_a_sample() -> None:
    def samples(put: dict[float, int]) -> list[Sample]:
        return [Sample(at, so_far, 0, 0, 0, 0) for at, so_far in put.items()]

    found = looking._history([samples({100.0: 1, 110.0: 2, 120.0: 3}), [], samples({115.0: 10, 125.0: 20})])
    assert [(sample.at, sample.put) for sample in found] == [(115.0, 12), (125.0, 23)]


def test_a_tall_terminal_is_filled(queue: ShardedQueue) -> None:
    assert snapshot(queue, rows=120).stats.known == 40


def test_shards_that_differ_much_are_told(queue: ShardedQueue) -> None:
    assert "4 shards" in drawn(snapshot(queue))
    assert "ready:" not in drawn(snapshot(queue))
    queue.put(Task(f"t{i}", group="g.example") for i in range(300))
    seen = snapshot(queue)
    deep = next(shard for shard, talk in enumerate(queue.shards.talks) if queue.shards.of_host("g.example") is talk)
    shallow = min(seen.depths, key=lambda shard: seen.depths[shard])
    assert f"ready: {seen.depths[deep]} in shard {deep}, {seen.depths[shallow]} in shard {shallow}" in drawn(seen)


def test_each_worker_shows_which_shards_it_tends(say: Say, queue: ShardedQueue) -> None:
    async def watched() -> tuple[Snapshot, list[list[str]]]:
        async with AsyncShardedQueue(queue.name, queue.given[0]) as other:
            worker = Worker(other, lambda lease: None, concurrency=3)
            working = asyncio.create_task(worker.run())
            try:
                while True:
                    seen = await snapshot_async(other)
                    if any(one.tends for one in seen.workers):
                        return seen, (await asyncio.to_thread(say, "status", queue.name)).lines
                    await asyncio.sleep(0.05)
            finally:
                worker.stop()
                await working

    seen, lines = asyncio.run(watched())
    assert [worker.tends for worker in seen.workers] == [(0, 1, 2, 3)]
    shown = drawn(seen)
    assert "tends" in shown
    assert " 0-3 " in shown
    assert "nobody tends" not in shown
    (tends,) = [line for line in lines if line[0] == "tends"]
    assert tends == ["tends", seen.workers[0].worker, "0", "1", "2", "3"]
    assert [line[1] for line in lines if line[0] == "shard"] == ["0", "1", "2", "3"]


def test_a_shard_that_only_a_worker_tends_that_is_gone_is_tended_by_nobody(queue: ShardedQueue) -> None:
    seen = snapshot(queue)
    now = seen.stats.now
    living = WorkerInfo("w1:1:r", "w1", 1, 1, 0, 0, 0, now, now, tends=(0, 1))
    gone = WorkerInfo("w2:2:r", "w2", 2, 1, 0, 0, 0, now, now - SILENT - 1, tends=(1, 2, 3))
    seen = replace(seen, workers=[living, gone])
    assert seen.untended == [2, 3]
    assert "nobody tends 2-3" in drawn(seen)


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
