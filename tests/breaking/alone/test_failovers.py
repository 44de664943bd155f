"""Failovers: a replica that lags behind is promoted, by hand and by real Sentinels, while producers and workers go on.

What a failover may lose is counted (plain puts, acks, claims); what it may not (a durable put, the order of fences, the
time of grace) must hold. `tests/rig/replication.py` has the servers, the wire between them, and the long form.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest

from tests.rig.faces import Blocking
from tests.rig.handlers import history
from tests.rig.invariants import check
from tests.rig.processes import processes
from tests.rig.replication import Pair, SentinelSet, raw, trial
from tests.rig.servers import binary_of, redis_server
from tests.rig.waiting import wait_until
from timeoutq import Answer, LeaseLost, NotReplicated, Queue, Unavailable

NAME = "failover"


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(binary_of(getattr(request, "param", "valkey"))) as started:
        yield started


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[SentinelSet]:
    with SentinelSet(redis_server(), tmp_path) as started:
        yield started


def in_thread(what: Callable[[], object]) -> Future[object]:
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(what())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until_available(what: Callable[[], object], timeout: float = 40.0) -> None:
    until = time.monotonic() + timeout
    while True:
        try:
            what()
        except Unavailable:
            assert time.monotonic() < until
        else:
            return


def holds(pair: Pair, task: str) -> bool:
    with raw(pair.primary) as client:
        return bool(client.sismember(f"timeoutq:{{{NAME}}}:todos", task))


# ---- under load


@pytest.mark.parametrize(("kind", "freeze", "stop"), [("redis", 1.2, False), ("valkey", 0.4, True)])
def test_a_failover_to_a_replica_that_lags_keeps_what_was_promised(
    tmp_path: Path, kind: str, freeze: float, stop: bool
) -> None:
    verdict = trial(tmp_path, freeze=freeze, stop=stop, binary=binary_of(kind))
    assert verdict.good, verdict
    assert verdict.durable_acknowledged > 20
    assert verdict.fences > 100
    if freeze > 1:
        # the failover was one that loses things: what was not durable, and acks that are given out again
        assert verdict.durable_refused > 0
        assert verdict.plain_lost > 0
        assert verdict.redelivered_after_lost_ack > 0


@pytest.mark.parametrize(("kind", "freeze", "stop"), [("valkey", 0.3, False), ("redis", 1.2, True)])
def test_on_a_durable_queue_a_failover_undoes_nothing_of_which_somebody_was_told(
    tmp_path: Path, kind: str, freeze: float, stop: bool
) -> None:
    verdict = trial(tmp_path, freeze=freeze, stop=stop, binary=binary_of(kind), durable=1)
    assert verdict.good, verdict
    assert verdict.undone == 0
    assert verdict.fences > 100


# ---- durable


@pytest.mark.parametrize("pair", ["valkey", "redis"], indirect=True)
def test_a_durable_put_returns_only_when_the_replica_has_it(pair: Pair) -> None:
    with Queue(NAME, pair.url) as queue, Queue(NAME, pair.url, deadline=1.5) as hasty:
        assert list(queue.put("a", durable=1)) == [Answer.ADDED]
        hasty.stats()
        pair.link.freeze()
        refused = [
            in_thread(lambda: hasty.put("b", durable=1)),
            in_thread(lambda: hasty.schedule("c", after=60, durable=1)),
            in_thread(lambda: hasty.put("a", durable=1)),  # it is there, but not by a call that a replica confirmed
        ]
        for answer in refused:
            with pytest.raises(NotReplicated, match="put them again"):
                answer.result(20)
        assert holds(pair, "b")
        pair.link.thaw()
        assert list(queue.put("b", durable=1)) == [Answer.TODOS]
        pair.link.freeze()
        queue.put("plain")
        pair.fail_over()
        assert queue.inspect("a").state == queue.inspect("b").state == "todos"
        assert queue.inspect("plain").state is None
    check(pair.primary.url, NAME)


# ---- leases


def test_after_a_failover_live_workers_extend_before_their_tasks_are_taken_back(pair: Pair) -> None:
    with Queue(NAME, pair.url, timeout=0.6) as queue:
        queue.put("live", "dead", durable=1)
        live, dead = sorted(queue.claim(2), key=lambda lease: lease.task, reverse=True)
        pair.synced()
        pair.fail_over()
        with raw(pair.primary) as client:
            wait_until(lambda: client.time()[0] + client.time()[1] / 1e6 > dead.deadline + 0.1)
        assert queue.requeue_expired() == 0  # both ran out while nobody could extend them
        live = queue.extend(live, 30)
        assert queue.stats().counters["restarts"] == 1
        wait_until(queue.requeue_expired)
        (again,) = queue.claim()
        assert again.task == "dead"
        assert again.fence > max(live.fence, dead.fence)
        with pytest.raises(LeaseLost):
            queue.ack(dead)
        assert queue.ack([live, again]).ok == 2
    check(pair.primary.url, NAME)


def test_a_claim_that_the_failover_forgot_is_lost_and_its_fence_is_not_given_again(pair: Pair) -> None:
    with Queue(NAME, pair.url, timeout=30) as queue:
        queue.put("page", durable=1)
        pair.link.freeze()
        (forgotten,) = queue.claim()
        pair.fail_over()
        (lease,) = queue.claim()
        assert lease.fence > forgotten.fence
        with pytest.raises(LeaseLost, match=r"has claimed it again: timeout= is not the cause.* lost in a failover"):
            queue.ack(forgotten)
        queue.ack(lease)
    check(pair.primary.url, NAME)


# ---- a primary that became a replica


@pytest.mark.parametrize("kind", [Queue, Blocking])
def test_a_client_whose_primary_became_a_replica_finds_the_new_one_at_the_address(
    pair: Pair, kind: Callable[..., Queue]
) -> None:
    with kind(NAME, pair.url) as queue:
        queue.put("before", durable=1)
        # a demotion that leaves connections open, as REPLICAOF by hand does: only READONLY tells
        with raw(pair.primary) as old, raw(pair.replica) as new:
            new.execute_command("REPLICAOF", "NO", "ONE")
            old.execute_command("REPLICAOF", "127.0.0.1", pair.replica.port)
            wait_until(lambda: old.info("replication")["master_link_status"] == "up")
            pair.front.turn(pair.replica.port or 0, cut=False)
            assert list(queue.put("after")) == [Answer.ADDED]
            assert list(queue.put("after", durable=1)) == [Answer.TODOS]
            (lease,) = queue.claim(1)
            assert queue.ack(lease) is Answer.OK
            assert new.scard(f"timeoutq:{{{NAME}}}:todos") == 1


# ---- Sentinel


def test_with_sentinels_all_clients_go_on_when_the_primary_is_killed(sentinels: SentinelSet, tmp_path: Path) -> None:
    with (
        processes(sentinels.url, tmp_path) as run,
        Queue(NAME, sentinels.url, timeout=2, deadline=10) as queue,
        Blocking(NAME, sentinels.url, timeout=2, deadline=10) as other,
    ):
        queue.put([f"t{i}" for i in range(10)], durable=1)
        worker = run.worker(NAME, "work", "--timeout", "2")
        wait_until(lambda: queue.stats().done == 10, 30)
        assert list(other.put("a", durable=1)) == [Answer.ADDED]
        old = sentinels.primary()
        assert old is not None
        old.kill()
        blocking, asynchronous = in_thread(lambda: queue.put("b")), in_thread(lambda: other.put("c"))
        began = time.monotonic()
        sentinels.switched_from(old)
        for answer in (blocking, asynchronous):
            # within its deadline of 10 s a put finds the new primary; where the election took longer, it says so
            error = answer.exception(60)
            assert error is None or (isinstance(error, Unavailable) and time.monotonic() - began > 4), error
        wait_until(lambda: queue.put("b", "c").added == 0, 30)
        assert list(other.put("d")) == [Answer.ADDED]
        wait_until(lambda: other.stats().done == 14, 30)
        assert worker.poll() is None
        ended = [task for event, task, *_ in history(run.history) if event == "end"]
        assert {"b", "c", "d"} <= set(ended)
        worker.terminate()
        assert worker.wait(30) == 0, run.log(worker)
        found = sentinels.primary()
        assert found is not None
    check(found.url, NAME)


def test_a_primary_that_comes_back_after_the_failover_is_not_written_to_for_ever(sentinels: SentinelSet) -> None:
    old = sentinels.primary()
    assert old is not None
    with Queue(NAME, sentinels.url, deadline=2) as busy, Queue(NAME, sentinels.url, deadline=2) as idle:
        busy.put("a", durable=1)
        idle.put("b", durable=1)
        os.kill(old.pid or 0, signal.SIGSTOP)
        new = sentinels.switched_from(old)
        until_available(lambda: busy.put("c"))
        os.kill(old.pid or 0, signal.SIGCONT)
        with raw(old) as client, raw(new) as other:

            def found(task: str) -> bool:
                return bool(other.sismember(f"timeoutq:{{{NAME}}}:todos", task))

            # until the sentinels demote it, the old primary takes itself for the primary, and so does the idle client:
            # what that puts is accepted and will be lost, but it is never told that a replica has it
            answers: list[str] = []
            while not answers or not answers[-1]:
                task = f"durable-{len(answers)}"
                try:
                    idle.put(task, durable=1)
                    answers.append(task)
                except Unavailable:
                    answers.append("")
                assert len(answers) < 100
            wait_until(lambda: client.info("replication")["role"] == "slave", 40)
            assert found(answers[-1])
            until_available(lambda: busy.put("d", durable=1))
            until_available(lambda: idle.put("e", durable=1))
            assert all(found(task) for task in "abcde")
            wait_until(lambda: client.sismember(f"timeoutq:{{{NAME}}}:todos", "e"), 40)  # it has become the replica
    check(new.url, NAME)


def test_an_unknown_service_and_silent_sentinels_are_named_and_no_password_is(sentinels: SentinelSet) -> None:
    def said(url: str, kind: Callable[..., Queue]) -> str:
        with kind(NAME, url, deadline=1.0) as queue, pytest.raises(Unavailable) as caught:
            queue.put("a")
        text = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r} {queue!r}"
        assert "s3cret" not in text
        assert "hush" not in text
        return str(caught.value)

    unknown = f"redis+sentinel://user:s3cret@{sentinels.hosts}/nobody/0"
    kinds: tuple[Callable[..., Queue], ...] = (Queue, cast("Callable[..., Queue]", Blocking))
    for kind in kinds:
        message = said(unknown, kind)
        assert "'nobody'" in message
        assert "check the service name" in message
        assert sentinels.hosts in message
    for sentinel in sentinels.sentinels:
        sentinel.kill()
    for kind in kinds:
        message = said(f"{unknown}?sentinel_password=hush", kind)
        assert "not all answer" in message
        assert sentinels.hosts in message
