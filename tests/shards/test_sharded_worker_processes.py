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
import redis

from tests.rig.handlers import history, page
from tests.rig.invariants import check
from tests.rig.nodes import QUICK, Cluster, frozen
from tests.rig.processes import Processes, processes, run
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import Queue, open_queue
from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.names import tags
from timeoutq.server.cluster import slot_of
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch import directory

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


def test_a_process_that_dies_is_told_of_in_the_shard_of_its_task(queue: ShardedQueue, run: Processes) -> None:
    others = [f"t{i}" for i in range(29)]
    queue.put("poison", others)
    worker = run.start(
        "worker", queue.name, "tests.rig.handlers:work_or_die", "--processes", "2", "--timeout", "20", "--burst"
    )
    assert worker.wait(90) == 0, run.log(worker)
    stats = queue.stats()
    assert (stats.done, stats.failed) == (29, 1)
    assert queue.inspect("poison").crashes == 5
    assert stats.counters.get("expired", 0) == 0, "nobody waited until a lease ran out"


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


def test_a_cleaner_takes_back_what_ran_out_in_all_shards(queue: ShardedQueue, run: Processes) -> None:
    queue.put(page(i) for i in range(50))
    cleaner = run.start("cleaner", queue.name)
    wait_until(lambda: "cleaner" in run.log(cleaner) or cleaner.poll() is None)
    while queue.claim(50, timeout=0.5):
        pass
    assert queue.stats().in_progress > 0
    wait_until(lambda: queue.stats().todos == 50, 30)
    cleaner.send_signal(signal.SIGTERM)
    assert cleaner.wait(30) == 0


@pytest.mark.breaking
@pytest.mark.parametrize("words", [("worker",), ("worker", "--no-supervise"), ("cleaner",)])
def test_what_starts_while_the_server_is_away_finds_the_shards_when_it_answers(
    name: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with (
        EmbeddedServer(binary=valkey()) as server,
        ShardedQueue(name, server.url, shards=SHARDS) as queue,
        processes(server.url, tmp_path) as run,
    ):
        queue.schedule((page(i) for i in range(20)), after=1)
        with frozen(server):
            command, *rest = words
            started = run.worker(name, "work", *rest) if command == "worker" else run.start(command, name)
            wait_until(lambda: "no answer" in run.log(started), 60)
        if command == "worker":
            wait_until(lambda: queue.stats().done == 20, 60)
        else:
            wait_until(lambda: queue.stats().todos == 20, 60)
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0, run.log(started)


def test_a_worker_that_is_told_the_shards_of_a_new_queue_makes_its_record(url: str, name: str, run: Processes) -> None:
    worker = run.worker(name, "work", "--shards", str(SHARDS))
    with Queue("any", url) as looks:
        wait_until(lambda: name in [one.name for one in directory.look(looks, [name])], 30)
        (listed,) = directory.look(looks, [name])
        assert listed.stats is not None
        assert listed.stats.shards is not None
        assert len(listed.stats.shards) == SHARDS
    with open_queue(name, url) as queue:
        assert queue.put("x", "y", "z").added == 3
        wait_until(lambda: queue.stats().done == 3, 30)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, run.log(worker)
        queue.purge()


@pytest.mark.breaking
@pytest.mark.parametrize("words", [("worker",), ("worker", "--no-supervise"), ("cleaner",)])
def test_what_waits_for_a_queue_that_is_then_made_with_shards_begins_anew(
    name: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with EmbeddedServer(binary=valkey()) as server, processes(server.url, tmp_path) as run:
        command, *rest = words
        handler = ["tests.rig.handlers:work"] if command == "worker" else []
        started = run.start(command, name, *handler, *rest)
        with redis.Redis.from_url(server.url) as client:
            wait_until(lambda: client.info("clients")["blocked_clients"], 30)
        with ShardedQueue(name, server.url, shards=SHARDS) as queue:
            queue.schedule((page(i) for i in range(20)), after=0.1)
            wait_until(lambda: (queue.stats().done if handler else queue.stats().todos) == 20, 30)
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 0, run.log(started)


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
