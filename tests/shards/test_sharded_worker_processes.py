"""Real worker processes on a queue over several shards: they are killed, asked to end, and lose a primary."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.handlers import history, page
from tests.rig.invariants import check
from tests.rig.nodes import QUICK, Cluster
from tests.rig.processes import Processes, processes, run
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.route import tags
from timeoutq.server.cluster import slot_of

__all__ = ["run"]

SHARDS = 5


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A queue over five shards; after the test each shard is sound."""
    with ShardedQueue(name, url, shards=SHARDS) as opened:
        yield opened
        for tag in tags(name, SHARDS):
            check(url, tag)
        opened.purge()


class Crew:
    """Worker processes, one of which is killed now and then."""

    def __init__(self, queue: ShardedQueue, run: Processes, pages: int, many: int) -> None:
        self.queue, self.run, self.pages = queue, run, pages
        self.rng = random.Random(1)
        self.kills = 0
        self.workers = [self.start() for _ in range(many)]

    def start(self) -> subprocess.Popen[bytes]:
        words = ("--timeout", "1", "--concurrency", "8", "--shards", str(len(self.queue.shards.talks)))
        return self.run.worker(self.queue.name, "find_pages", *words, WORK="0.05", PAGES=str(self.pages))

    def kill_one(self) -> None:
        """Kill a worker with -9, and start another in its place."""
        victim = self.workers.pop(self.rng.randrange(len(self.workers)))
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
        self.kills += 1
        self.workers.append(self.start())

    def assert_all_done(self) -> None:
        """Each page was found and done, and each start beyond the first of a page has a cause that was counted."""
        stats = self.queue.stats()
        assert (stats.done, stats.failed, stats.known) == (self.pages, 0, self.pages)
        assert self.queue.states([page(i) for i in range(self.pages)]).counts() == {"done": self.pages}
        starts = Counter(task for event, task, *_ in history(self.run.history) if event == "start")
        again = sum(starts.values()) - self.pages
        assert 0 <= again <= stats.counters.get("expired", 0) + stats.counters.get("released", 0)


def test_a_crawl_over_all_shards_survives_kills_of_its_workers(queue: ShardedQueue, run: Processes) -> None:
    queue.put(page(0))
    crew = Crew(queue, run, pages=1000, many=4)
    until, strike_at = time.monotonic() + 120, 0.0
    while not queue.drained():
        assert time.monotonic() < until, queue.stats()
        if time.monotonic() >= strike_at and queue.stats().done > 10 * (crew.kills + 1) and crew.kills < 10:
            crew.kill_one()
            strike_at = time.monotonic() + 0.7
        time.sleep(0.1)
    assert crew.kills >= 3
    assert queue.stats().counters.get("expired", 0) > 0, "leases were held when their workers died"
    crew.assert_all_done()


def test_sigterm_gives_the_tasks_of_all_shards_back(queue: ShardedQueue, run: Processes) -> None:
    queue.put(page(i) for i in range(100))
    words = ("--concurrency", "4", "--prefetch", "40", "--timeout", "60")
    worker = run.worker(queue.name, "work", *words, WORK="1.0")
    wait_until(lambda: queue.stats().in_progress > 20, 30)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0, run.log(worker)
    stats = queue.stats()
    assert stats.in_progress == 0
    assert stats.done == sum(event == "end" for event, *_ in history(run.history))
    assert stats.todos + stats.done == 100


@pytest.mark.breaking
def test_workers_and_a_primary_die_and_every_page_is_done(name: str, tmp_path: Path) -> None:
    with (
        Cluster(3, 3, node_timeout_ms=QUICK, binary=valkey()) as cluster,
        ShardedQueue(name, cluster.url, shards=6, deadline=20.0) as queue,
        processes(cluster.url, tmp_path) as run,
    ):
        queue.configure(durable=1)
        queue.put(page(0))
        crew = Crew(queue, run, pages=600, many=3)
        wait_until(lambda: queue.stats().done > 30, 60)
        crew.kill_one()
        wait_until(lambda: queue.stats().done > 80, 60)
        root = cluster.primary_of(slot_of(name))
        gone = next(node for node in cluster.primary_nodes() if node is not root)
        (replica, *_) = cluster.replicas_of(gone)
        gone.kill()
        cluster.succeeded(replica)
        crew.kill_one()
        # a queue that asks for a replica is served on when the dead primary is back as one
        cluster.revive(gone)
        wait_until(queue.drained, 120)
        crew.assert_all_done()
