"""Politeness where servers and processes die, are full, share a cluster, and while others work as it begins."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig.handlers import history
from tests.rig.invariants import check
from tests.rig.processes import processes
from tests.rig.waiting import wait_until
from timeoutq import HostInfo, Lease, Politeness, Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import sending

A, B, C, D = (f"http://{letter}.example/" for letter in "abcd")
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


# ---- full servers


@contextmanager
def full(url: str) -> Iterator[None]:
    with redis.Redis.from_url(url) as raw:
        raw.config_set("maxmemory", 1)
        try:
            yield
        finally:
            raw.config_set("maxmemory", 0)


def crash(queue: Queue, lease: Lease) -> None:
    queue.run(sending.answers(queue.talk, queue.operations.crash([lease], "its process died")))


def requeue(queue: Queue, lease: Lease) -> None:
    queue.extend([lease], 0.01)
    wait_until(queue.requeue_expired)


def take_turns(queue: Queue, lease: Lease) -> None:
    queue.ack(lease)
    queue.hosts.set(A, delay=0)
    queue.promote_due()
    assert queue.hosts.inspect(A).in_flight


def become_due(queue: Queue, lease: Lease) -> None:
    queue.fail(lease, "no", retry_in=0)
    wait_until(queue.promote_due)


# what still works, and the state in which the task is then; '' for none, None for any
STILL: dict[str, tuple[Callable[[Queue, Lease], object], str | None]] = {
    "ack": (lambda queue, lease: queue.ack(lease), "done"),
    "ack for a time": (lambda queue, lease: queue.ack(lease, again_in=1000), "scheduled"),
    "fail": (lambda queue, lease: queue.fail(lease, "no", retry_in=1000), "scheduled"),
    "fail for good": (lambda queue, lease: queue.fail(lease, "no", give_up=True), "failed"),
    "release": (lambda queue, lease: queue.release(lease), None),
    "release for a time": (lambda queue, lease: queue.release(lease, 1000), "scheduled"),
    "release and block": (lambda queue, lease: queue.release(lease, block_host=1000), "waiting"),
    "crash report": (crash, None),
    "requeue_expired": (requeue, None),
    "promote_due of hosts": (take_turns, "done"),
    "promote_due of tasks": (become_due, None),
    "forget": (lambda queue, lease: queue.forget(lease.task), ""),
    "retry_failed": (lambda queue, lease: (queue.fail(lease, "no", give_up=True), queue.retry_failed(all=True)), None),
    "pull": (lambda queue, lease: (queue.ack(lease), queue.hosts.set(A, delay=0), queue.pull()), "done"),
    "block": (lambda queue, lease: (queue.release(lease), queue.hosts.block(A, for_=1000)), "waiting"),
    "ban": (lambda queue, lease: (queue.release(lease), queue.hosts.ban(A)), "failed"),
    "budget": (lambda queue, lease: (queue.release(lease), queue.hosts.set(A, budget=0)), "waiting"),
    "new rules": (lambda queue, lease: queue.configure(politeness=Politeness(5, 2)), "in_progress"),
    "off": (lambda queue, lease: queue.configure(politeness="off"), "in_progress"),
}


@pytest.mark.breaking
@pytest.mark.parametrize("what", STILL)
def test_a_full_server_goes_on_to_be_polite(url: str, name: str, what: str) -> None:
    act, state = STILL[what]
    with Queue(name, url, timeout=60, politeness=Politeness(3600)) as queue:
        queue.put(urls(A, 4))
        (lease,) = queue.claim(5)
        with full(url):
            act(queue, lease)
            check(url, name)
            found = queue.inspect(lease.task).state
            assert state is None or (found or "") == state
        queue.purge()


def test_a_full_server_runs_empty_and_takes_tasks_again(url: str, name: str) -> None:
    with Queue(name, url, timeout=60, politeness=Politeness(0.001, 2)) as queue:
        queue.put(urls(A, 20), urls(B, 20))
        with full(url):

            def drained() -> bool:
                queue.ack(queue.claim(10))
                return queue.drained()

            wait_until(drained, 30)
            check(url, name)
        assert queue.stats().done == 40
        assert queue.put(C).added == 1
        queue.purge()


# ---- one slot of a cluster


def everything(queue: Queue) -> None:
    """Have all that a polite queue keeps be there, and call all that there is to call."""
    queue.put(urls(A, 5), urls(B, 5), urls(C, 5), "free")
    queue.put("x", "y", "{x}", group="{group}")
    queue.schedule(f"{A}later", after=0)
    queue.promote_due()
    queue.hosts.set(A, delay=1, per_host=3, budget=20)
    queue.hosts.ban(C)
    queue.ack(queue.claim(1), again_in=5)
    queue.fail(queue.claim(1), "no", retry_in=5)
    leases = queue.claim(1)
    queue.release(leases, block_host=50)
    crash(queue, queue.claim(1)[0])
    queue.pull(1)
    queue.forget(f"{B}1", "y")
    queue.claim(2)
    queue.requeue_expired()
    queue.retry_failed(all=True)
    queue.prune()
    queue.hosts.list()
    queue.why(f"{A}0")
    queue.drained()
    queue.configure(politeness=Politeness(2, 2))


def test_every_key_of_a_polite_queue_has_its_hash_tag(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url, politeness=Politeness(0.001)) as queue:
        everything(queue)
        keys = set(map(str, raw.keys("*")))
        assert {key for key in keys if not key.startswith(f"timeoutq:{{{name}}}:")} == set()
        assert {key.rpartition("}:")[2] for key in keys} >= {
            "waiting",
            "hosts",
            "slots",
            "policies",
            "groups",
        }
        check(url, name)
        queue.configure(politeness="off")
        kept = {key.rpartition("}:")[2] for key in map(str, raw.keys("*"))}
        assert not kept & {"waiting", "hosts", "slots", "places", "policies"}
        queue.purge()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_a_polite_queue_lives_in_one_slot_of_a_cluster() -> None:
    # its bus would be 10,000 above its own port, where there may be no port
    config: dict[str, str | int | bool] = {"cluster-enabled": True, "cluster-port": free_port()}
    with EmbeddedServer(config=config) as server:
        with redis.Redis.from_url(server.url) as client:
            raw: Any = client
            raw.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_until(lambda: raw.execute_command("CLUSTER INFO")["cluster_state"] == "ok", 20)
        with Queue("q", server.url, timeout=60, politeness=Politeness(0.001)) as queue:
            everything(queue)
            check(server.url, "q")
            queue.configure(politeness="off")
            queue.purge()


# ---- while others work


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_claimed_while_politeness_begins_has_its_place(url: str, name: str, seed: int) -> None:
    with Queue(name, url, timeout=60) as queue:
        queue.put(f"http://{i % 50}.example/{i}" for i in range(2000))
        queue.run(sending.answer(queue.talk, queue.operations.configure({"politeness": b"0 2"})))
        cursor, held = b"p0", list[Lease]()
        while cursor != b"end":
            held += queue.claim(20)
            queue.release(held[:: seed + 1])
            held = [lease for n, lease in enumerate(held) if n % (seed + 1)]
            cursor = queue.run(sending.answer(queue.talk, queue.operations.convert()))
        check(url, name)
        placed = {task for host in queue.hosts.list().hosts for task in host.in_flight}
        assert {lease.task for lease in held} <= placed
        assert queue.stats().known == 2000
        # with these done, no host has more than it may
        queue.ack(held)
        assert max(len(host.in_flight) for host in queue.hosts.list().hosts) <= 2
        check(url, name)
        queue.purge()


def test_two_clients_may_begin_politeness_at_once(url: str, name: str) -> None:
    with Queue(name, url, timeout=60) as one, Queue(name, url, timeout=60) as two:
        one.put(f"http://{i % 50}.example/{i}" for i in range(1500))
        assert one.run(sending.answer(one.talk, one.operations.configure({"politeness": b"0 2"}))) == 2
        cursor = one.run(sending.answer(one.talk, one.operations.convert()))
        two.configure(politeness=Politeness(0, 2))
        while cursor != b"end":
            cursor = one.run(sending.answer(one.talk, one.operations.convert()))
        check(url, name)
        assert (one.stats().todos, one.stats().waiting) == (100, 1400)
        one.purge()
