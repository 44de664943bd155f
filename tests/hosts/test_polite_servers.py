"""Politeness where servers and processes die, are full, share a cluster, and while others work as it begins."""

from __future__ import annotations

import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from tests.rig.handlers import history
from tests.rig.invariants import check
from tests.rig.processes import processes
from tests.rig.waiting import wait_until
from timeoutq import HostInfo, Politeness, Queue
from timeoutq.server.embedded import EmbeddedServer

A, B, D = (f"http://{letter}.example/" for letter in "abd")
REDIS = shutil.which("redis-server")
BINARIES = [
    pytest.param(None, id="valkey"),
    pytest.param(REDIS, id="redis", marks=pytest.mark.skipif(REDIS is None, reason="no redis-server: apt-get install")),
]


def urls(host: str, n: int) -> list[str]:
    return [f"{host}{i}" for i in range(n)]


# ---- servers that die


@pytest.mark.parametrize("binary", BINARIES)
def test_a_server_that_was_killed_knows_all_about_its_hosts(binary: str | None, tmp_path: Path) -> None:
    config = {"appendfsync": "always"}
    with EmbeddedServer(tmp_path, binary=binary, config=config) as server:
        with Queue("q", server.url, timeout=600, politeness=Politeness(3600, 2)) as queue:
            queue.put(urls(A, 5), urls(B, 5), urls(D, 3))
            queue.put("x", "y", "z", group="of its own")
            leases = {lease.task: lease for lease in queue.claim(20)}
            queue.ack(next(lease for task, lease in leases.items() if task.startswith(A)))
            queue.fail(next(lease for task, lease in leases.items() if task.startswith(B)), "no", retry_in=1000)
            queue.hosts.block(B, for_=10_000, reason="Retry-After")
            queue.hosts.set("of its own", delay=5, per_host=7, budget=9)
            queue.hosts.ban(D, "they asked")
            before, stats = by_name(queue), queue.stats()
            server.kill()
            server.start()
            assert by_name(queue) == before
            assert before["a.example"].turn is not None
            assert before["b.example"].blocked_by == "Retry-After"
            assert before["of its own"].budget == 9
            assert before["d.example"].banned == "they asked"
            assert (queue.stats().waiting, queue.stats().todos) == (stats.waiting, stats.todos)
            check(server.url, "q")
            held = [lease for lease in leases.values() if queue.inspect(lease.task).state == "in_progress"]
            assert queue.ack(held).ok == len(held)
            assert all(len(host.in_flight) <= 7 for host in by_name(queue).values())
            check(server.url, "q")


def by_name(queue: Queue) -> dict[str, HostInfo]:
    return {host.host: host for host in queue.hosts.list().hosts}


# ---- workers that die


@pytest.mark.breaking
def test_the_host_of_a_worker_that_was_killed_is_visited_again_after_its_lease_and_the_delay(
    tmp_path: Path,
) -> None:
    delay, words = 0.3, ("--timeout", "0.5", "--concurrency", "4")
    with (
        EmbeddedServer() as server,
        Queue("q", server.url, timeout=0.5, politeness=Politeness(delay)) as queue,
        processes(server.url, tmp_path) as started,
    ):
        queue.put(urls(A, 3))
        slow = started.worker("q", "work", *words, WORK="600")
        wait_until(lambda: history(started.history), 30)
        started.worker("q", "work", *words)
        wait_until(lambda: len(queue.workers()) == 2, 30)
        ((_, task, *_),) = history(started.history)
        os.kill(slow.pid, signal.SIGKILL)
        slow.wait()
        with redis.Redis.from_url(server.url) as raw:
            deadline = raw.zscore("timeoutq:{q}:leases", task)
        assert isinstance(deadline, float)
        assert queue.wait_drained(30)
        visits = [(fence, at) for event, at, fence, *_ in history(started.history) if event == "start"]
        # a fence tells the time of the server's clock at the claim, in microseconds
        late = [visits[1][0] / 1000 - deadline - delay * 1000]
        assert late[0] >= -1, f"the host was visited {-late[0]:.0f} ms early"
        print(f"a host was visited again {late[0]:.0f} ms after the lease of a killed worker and the delay")  # noqa: T201  # shown by -rP
        assert late[0] < 10_000
        fences = [fence for fence, _ in visits]
        assert all(later - earlier >= delay * 1e6 for earlier, later in pairwise(fences[1:]))
        assert sorted({task for _, task in visits}) == urls(A, 3)
        check(server.url, "q")
