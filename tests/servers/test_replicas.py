"""Durable queues on a real primary and its replica: what was told survives a failover to a replica that lags.

The rules for each call are in `core/test_durable.py`; long runs are in `breaking/alone/test_failovers.py`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any

import pytest

from tests.rig.faces import Blocking
from tests.rig.invariants import check
from tests.rig.replication import Pair, raw
from tests.rig.waiting import wait_until
from timeoutq import Lease, NotReplicated, Politeness, Queue, State, Unavailable
from timeoutq.server import scripts
from timeoutq.verbs import sending
from timeoutq.watch import doctor
from timeoutq.watch.transfer import restore
from timeoutq.words.model import Record

NAME = "durable"
LAG = 0.3
"""How far the replica lags behind when it is promoted, seconds."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as started:
        yield started


@pytest.fixture
def key() -> str:
    return f"timeoutq:{{{NAME}}}:"


# ---- a failover under load


class Crawl:
    """Threads that put, claim and ack; each believes what it is told, and asks until it is told something."""

    def __init__(self, url: str) -> None:
        self.accepted: list[str] = []
        self.given: Counter[str] = Counter()
        """How often each task was given out."""
        self.acked: list[str] = []
        self._url = url
        self._leases = SimpleQueue[list[Lease] | None]()
        self._enough, self._over = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(3)
        self._running = [self._pool.submit(self._with_queue, act) for act in (self._put, self._claim, self._ack)]

    def end(self) -> None:
        """Put no more, and end when no task is ready; what was leased to nobody stays."""
        self._enough.set()
        self._running[0].result(60)
        with Queue(NAME, self._url) as queue:
            wait_until(lambda: queue.stats().todos == 0, 60)
        self._over.set()
        for one in self._running:
            one.result(60)
        self._pool.shutdown()

    def _with_queue(self, act: Callable[[Queue], None]) -> None:
        with Queue(NAME, self._url, deadline=1.0) as queue:
            act(queue)

    def _put(self, queue: Queue) -> None:
        number = 0
        while not self._enough.wait(0.002):
            number += 1
            tasks = [f"{number}-{i}" for i in range(5)]
            self._told(lambda tasks=tasks: queue.put(tasks))  # type: ignore[misc]  # a bound default
            self.accepted += tasks

    def _claim(self, queue: Queue) -> None:
        while not self._over.wait(0.004):
            with suppress(Unavailable):
                leases = queue.claim(10)
                self.given.update(lease.task for lease in leases)
                self._leases.put(leases)
        self._leases.put(None)

    def _ack(self, queue: Queue) -> None:
        while (leases := self._leases.get()) is not None:
            self._over.wait(0.02)  # some are always left to be acked
            answers = self._told(lambda leases=leases: queue.ack(leases))  # type: ignore[misc]  # a bound default
            self.acked += [lease.task for lease, said in zip(leases, answers, strict=True) if said != "lost"]

    def _told(self, act: Callable[[], Any]) -> Any:
        until = time.monotonic() + 60
        while True:
            try:
                return act()
            except Unavailable:
                assert time.monotonic() < until


@pytest.mark.parametrize("durable", [0, 1])
def test_what_was_told_survives_a_failover_to_a_replica_that_lags_if_the_queue_is_durable(
    pair: Pair, key: str, durable: int
) -> None:
    with Queue(NAME, pair.url) as queue:
        queue.configure(durable=durable)
        queue.put(ready := [f"ready-{i}" for i in range(2000)])
        pair.synced()
        crawl = Crawl(pair.url)
        wait_until(lambda: len(crawl.given) > 50)
        pair.link.freeze()
        threading.Event().wait(LAG)
        pair.fail_over()
        pair.rejoin()
        given = len(crawl.given)
        wait_until(lambda: len(crawl.given) > given + 50, 30)
        crawl.end()
        with raw(pair.primary) as client:
            done = {one.decode() for one in client.smembers(key + "done")}
            known = done | {one.decode() for state in ("todos", "in_progress") for one in client.smembers(key + state)}
        check(pair.primary.url, NAME)
    counters = queue.stats().counters
    assert counters.get("expired", 0) == counters.get("crashed", 0) == 0
    undone = {
        "put": {*ready, *crawl.accepted} - known,
        "claimed": {task for task, times in crawl.given.items() if times > 1},
        "acked": {*crawl.acked} - done,
    }
    if durable:
        assert undone == {"put": set(), "claimed": set(), "acked": set()}
    else:  # the failover was one that undoes things
        assert all(undone.values())


# ---- one call at a time


def test_a_lease_that_is_given_out_is_known_to_the_new_primary(pair: Pair) -> None:
    with Queue(NAME, pair.url, durable=1, deadline=2.0) as queue:
        queue.put("a", "b")
        (lease,) = queue.claim()
        pair.link.freeze()
        with pytest.raises(NotReplicated, match="given back"):
            queue.claim()
        pair.fail_over()
        pair.rejoin()
        (other,) = queue.claim(2)
        assert {lease.task, other.task} == {"a", "b"}
        assert other.fence > lease.fence
        queue.ack([lease, other])
        assert queue.stats().done == 2


def test_a_worker_whose_lease_was_taken_back_unconfirmed_has_it_again_after_the_failover(pair: Pair) -> None:
    """Nobody was given the task meanwhile: so no two leases on the task were ever valid at once."""
    with Queue(NAME, pair.url, durable=1, deadline=2.0) as queue, Queue(NAME, pair.url, deadline=2.0) as other:
        queue.put("a")
        (lease,) = queue.claim(timeout=0.3)
        other.stats()
        pair.link.freeze()
        assert wait_until(other.requeue_expired) == 1
        with pytest.raises(NotReplicated):
            other.claim()
        pair.fail_over()
        pair.rejoin()
        assert other.claim() == []
        assert queue.ack(lease) == "ok"
        assert queue.stats().counters.get("expired", 0) == 0


CALLS: dict[str, Callable[[Any, Lease], object]] = {
    "put": lambda queue, _: queue.put("new"),
    "schedule": lambda queue, _: queue.schedule("later", after=60),
    "restore": lambda queue, _: restore(queue, [Record(b"old", State.DONE)]),
    "claim": lambda queue, _: queue.claim(),
    "extend": lambda queue, held: queue.extend(held),
    "ack": lambda queue, held: queue.ack(held),
    "ack of many": lambda queue, held: queue.ack([held]),
    "fail": lambda queue, held: queue.fail(held, "no"),
    "release": lambda queue, held: queue.release(held, delay=60),
    "retry_failed": lambda queue, _: queue.retry_failed("failed"),
    "forget": lambda queue, _: queue.forget("unwanted"),
    "host": lambda queue, _: queue.hosts.unblock("a.example"),
    "configure": lambda queue, _: queue.configure(politeness=Politeness(2, 1)),
}


@pytest.mark.parametrize("face", [Queue, Blocking])
def test_a_call_sent_again_on_another_connection_waits_for_what_it_did_the_first_time(
    pair: Pair, face: Callable[..., Any], key: str
) -> None:
    # WAIT waits for what its own connection has written; the first connection is gone with its reply
    calls = {name: act for name, act in CALLS.items() if face is Queue or name != "restore"}
    with (
        Queue(NAME, pair.url, durable=1, politeness=Politeness(0, 9)) as queue, raw(pair.primary) as client,
        ThreadPoolExecutor(len(calls)) as pool, ExitStack() as opened,
    ):  # fmt: skip
        client.function_load(scripts.library(), replace=True)
        leases = dict(zip(calls, [*queue_of(queue, len(calls))], strict=True))
        queue.put("failed", "unwanted")
        queue.fail([one for one in queue.claim(2) if one.task == "failed"], "no", give_up=True)
        queue.put("ready")
        clients = {name: opened.enter_context(face(NAME, pair.url, deadline=3.0)) for name in calls}
        for one in clients.values():
            one.put("ready")  # it is open, has a connection, and has tried its rights
        pair.synced()
        for frozen in (True, False):
            if frozen:
                pair.link.freeze()
            pair.front.hold_replies()
            ran = client.info("commandstats")["cmdstat_fcall"]["calls"]
            told = {name: pool.submit(act, clients[name], leases[name]) for name, act in calls.items()}
            wait_until(
                lambda ran=ran: client.info("commandstats")["cmdstat_fcall"]["calls"] >= ran + len(calls)  # type: ignore[misc]  # a bound default
            )
            pair.front.cut()
            pair.front.thaw()
            unconfirmed = {name for name, answer in told.items() if isinstance(answer.exception(20), NotReplicated)}
            assert unconfirmed == (calls.keys() if frozen else set())
            pair.link.thaw()
        counters = queue.stats().counters
        assert (counters["acked"], counters["failed"], counters["forgotten"], counters["retried"]) == (2, 2, 1, 1)


def queue_of(queue: Queue, n: int) -> list[Lease]:
    """Give `n` leases."""
    queue.put([f"held-{i}" for i in range(n)])
    return queue.claim(n)


# ---- what people see


def test_why_and_doctor_say_that_replicas_are_missing(pair: Pair) -> None:
    with Queue(NAME, pair.url, durable=1, deadline=2.0) as queue:
        queue.put("a")
        beat = queue.operations.beat("w:1:1", {"host": "w"})
        queue.run(sending.answer(queue.talk, beat))
        assert queue.why("a").code == "queued"
        found = next(one for one in doctor.examine(queue) if one.check == "replicas")
        assert (found.verdict, found.cure) == ("green", "")
        assert "1 replica" in found.found
        assert "durable=1" in found.found
        pair.replica.kill()
        wait_until(lambda: queue.why("a").code == "no_replica")
        assert "1 replica must confirm it (durable), and the server has heard 0" in queue.why("a").message
        found = next(one for one in doctor.examine(queue) if one.check == "replicas")
        assert found.verdict == "red"
        assert f"timeoutq configure {NAME} --durable 0" in found.cure
        with pytest.raises(NotReplicated, match="the server has 0 replicas: connect more, or ask for fewer"):
            queue.put("b")
        with pytest.raises(NotReplicated, match=r"cannot be durable=2.*the server has 0 replicas"):
            queue.configure(durable=2)
