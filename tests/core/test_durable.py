"""Durable queues: which calls wait for replicas, and what becomes of a call that replicas do not confirm.

The servers here are fakes, which confirm as many replicas as their clock says. Real replicas: `test_replicas.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

import timeoutq
from tests.rig.inside import pump_of
from tests.worker.working import at_work, until
from timeoutq import Answer, InvalidInput, NotReplicated, State, Worker
from timeoutq.server import scripts
from timeoutq.server.link import Link
from timeoutq.testing import Clock, FakeQueue, fake_async_queue, fake_queue
from timeoutq.verbs import confirming
from timeoutq.watch.transfer import restore
from timeoutq.words.model import Outcome, Record

QUICK = 0.3
"""The deadline of a call that is not going to be confirmed, seconds."""


@pytest.fixture
def clock() -> Clock:
    return Clock(replicas=1)


@pytest.fixture
def queue(clock: Clock) -> Iterator[FakeQueue]:
    with fake_queue(clock=clock, durable=1) as opened:
        opened.put("first")  # the server knows the scripts now, and the client the setting
        yield opened


@cache
def names() -> dict[Any, str]:
    ends = ("", "_if_room")
    return {scripts.function(verb + end).encode(): verb for verb in (*scripts.verbs(), "about") for end in ends}


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What goes to the server, a list for each flush: names of scripts, `WAIT 1`, and other commands."""
    sent: list[list[str]] = []
    plain = Link.send

    def send(link: Link, commands: Any) -> list[Any]:
        words = [names()[one[1]] if one[0] in (b"FCALL", b"FCALL_RO") else str(one[0]) for one in commands]
        sent.append([f"WAIT {one[1]}" if word == "WAIT" else word for word, one in zip(words, commands, strict=True)])
        return plain(link, commands)

    monkeypatch.setattr(Link, "send", send)
    return sent


def once(flushes: list[list[str]]) -> list[list[str]]:
    """Leave out that the server had to be given a script."""
    loaded = [at for at, flush in enumerate(flushes) if flush[0] == "FUNCTION"]
    return [flush for at, flush in enumerate(flushes) if at not in loaded and at + 1 not in loaded]


def unconfirmed(queue: FakeQueue, act: Callable[[], object]) -> str:
    """Make a call that no replica confirms; give what its caller is told."""
    before = queue.clock.replicas, queue.talk.deadline
    queue.clock.replicas, queue.talk.deadline = 0, QUICK
    try:
        with pytest.raises(NotReplicated) as caught:
            act()
    finally:
        queue.clock.replicas, queue.talk.deadline = before
    return str(caught.value)


# ---- which calls wait


def test_what_callers_are_told_waits_for_replicas_and_what_cleaners_do_does_not(
    queue: FakeQueue, flushes: list[list[str]]
) -> None:
    (first,) = queue.claim()
    queue.extend(first)
    queue.ack(first, put="found")
    queue.schedule("later", after=60)
    (lease,) = queue.claim()
    queue.release([lease])
    (lease,) = queue.claim()
    queue.fail(lease, "no", give_up=True)
    queue.retry_failed("found")
    queue.forget("later")
    restore(queue, [Record(b"old", State.TODOS)])
    assert once(flushes) == [
        [name, "WAIT 1"]
        for name in (
            "claim", "extend", "ack", "schedule", "claim", "release", "claim", "fail", "retry_failed", "forget",
            "restore",
        )
    ]  # fmt: skip
    flushes.clear()
    queue.requeue_expired()
    queue.promote_due()
    queue.prune()
    queue.pause()
    queue.stats()
    queue.drained()
    assert all("WAIT 1" not in flush for flush in flushes)


def test_a_queue_that_is_not_durable_sends_and_keeps_what_it_did(clock: Clock, flushes: list[list[str]]) -> None:
    with fake_queue(clock=clock) as queue:
        queue.put("a")
        flushes.clear()
        for _ in range(3):
            (lease,) = queue.claim()
            queue.ack(lease)
            queue.put("a", again=True)
        assert all(len(flush) == 1 for flush in flushes)
        assert not {"uses", "durable", "mark"} & queue.stats().settings.keys()
        queue.configure(durable=1)
        queue.forget("nothing")
        assert {"uses", "durable", "mark"} <= queue.stats().settings.keys()
        assert queue.stats().durable == 1
        queue.configure(durable=0)
        assert not {"uses", "durable", "mark"} & queue.stats().settings.keys()


# ---- how clients learn


def test_a_client_learns_the_setting_with_a_call_that_it_makes_anyway(clock: Clock, flushes: list[list[str]]) -> None:
    with fake_queue(clock=clock) as one, fake_queue(clock=clock) as other:
        one.put("a")
        other.configure(durable=1)
        flushes.clear()
        one.talk.durable.until = time.monotonic()  # five seconds later
        one.put("b")
        one.put("c")
        # the put that learned it had no replica wait for it, and went again
        assert flushes == [["put", "HMGET"], ["put", "WAIT 1"], ["put", "WAIT 1"]]
        assert 0 < one.talk.durable.until - time.monotonic() <= confirming.FRESH
        other.configure(durable=0)
        one.talk.durable.until = time.monotonic()
        flushes.clear()
        one.put("d")
        one.put("e")
        assert flushes == [["put", "HMGET", "WAIT 1"], ["put"]]


def test_more_replicas_than_there_are_cannot_be_asked_for(clock: Clock) -> None:
    with fake_queue(clock=clock, deadline=QUICK) as queue:
        queue.put("a")
        settings = queue.stats().settings
        with pytest.raises(NotReplicated, match=r"cannot be durable=2"):
            queue.configure(durable=2, max_crashes=3)
        assert queue.stats().settings == settings


# ---- calls that are not confirmed


def test_a_claim_that_is_not_confirmed_gives_its_tasks_back(queue: FakeQueue) -> None:
    said = unconfirmed(queue, queue.claim)
    assert "only 0 of 1 replica confirmed it" in said
    assert "given back" in said
    stats = queue.stats()
    assert (stats.todos, stats.in_progress) == (1, 0)
    assert (stats.counters["claimed"], stats.counters["released"]) == (1, 1)
    (lease,) = queue.claim()
    assert (lease.attempt, lease.crashes) == (1, 0)


def test_an_end_that_is_not_confirmed_is_done_and_confirmed_by_the_same_call(queue: FakeQueue) -> None:
    queue.put("second", "third")
    first, second, third = queue.claim(3)
    ends: list[Callable[[], object]] = [
        lambda: queue.ack(first), lambda: queue.fail(second, "no", give_up=True), lambda: queue.release(third),
    ]  # fmt: skip
    for end in ends:
        said = unconfirmed(queue, end)
        assert "a failover now may undo it: the same call again does nothing twice" in said
        assert end() is Answer.ALREADY
    stats = queue.stats()
    assert (stats.done, stats.failed, stats.todos) == (1, 1, 1)


def test_the_queue_knows_an_end_for_a_minute_after_the_last_time_it_was_sent(queue: FakeQueue) -> None:
    queue.put("second", "third")
    first, second, third = queue.claim(3)
    queue.forget(third.task)
    for _ in range(3):
        unconfirmed(queue, lambda: queue.ack(first))
        unconfirmed(queue, lambda: queue.ack([second, third]))
        queue.clock.advance(50)
    assert queue.ack(first) is Answer.ALREADY
    assert list(queue.ack([second, third])) == [Answer.ALREADY, Answer.LOST]


def test_tasks_that_are_not_confirmed_are_in_the_queue(queue: FakeQueue) -> None:
    for act in (lambda: queue.put("a"), lambda: queue.schedule("b", after=1)):
        assert "put them again, and they are not added twice" in unconfirmed(queue, act)
    assert (queue.stats().todos, queue.stats().scheduled) == (2, 1)


def test_pull_is_refused_because_nothing_tells_of_tasks_that_a_failover_brings_back(queue: FakeQueue) -> None:
    with pytest.raises(InvalidInput, match=r"pull takes tasks without a lease.*configure the queue with durable=0"):
        queue.pull()
    assert queue.stats().todos == 1


@pytest.mark.parametrize(
    ("verb", "first", "last", "told"),
    [
        ("put", b"At", b"tt", b"At"),
        ("ack", b"OOL", b"RLL", b"OLL"),
        ("release", b"fO", b"RR", b"fO"),
    ],
)
def test_the_second_answer_counts_unless_it_repeats_the_first(
    queue: FakeQueue, verb: str, first: bytes, last: bytes, told: bytes
) -> None:
    call: Any = queue.operations.call(verb, [], bytes)
    found = confirming.merged(call, Outcome([b"a", b"b", b"c"], first), Outcome([b"a", b"b", b"c"], last))
    assert found.codes == told


# ---- workers


async def test_a_worker_waits_for_replicas_says_so_once_and_goes_on(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_queue(clock=clock, durable=1) as seen:
        seen.put([f"t{i}" for i in range(20)])
        ran: list[str] = []
        entered = asyncio.Event()
        free = asyncio.Event()

        async def handler(lease: timeoutq.Lease) -> None:
            ran.append(lease.task)
            entered.set()
            await free.wait()

        worker = Worker(fake_async_queue(clock=clock, deadline=QUICK), handler, concurrency=5, signals=False)
        with caplog.at_level(logging.INFO, "timeoutq.worker"):
            running = asyncio.create_task(worker.run())
            await entered.wait()
            clock.replicas = 0
            free.set()  # their acks are not confirmed
            await until(lambda: any(one.trouble for one in seen.workers()))
            await until(lambda: seen.stats().in_progress == 0)  # neither what was acked nor what was claimed since
            (info,) = seen.workers()
            assert "only 0 of 1 replica confirmed it" in info.trouble
            began = len(ran)
            told = [line for line in caplog.messages if "waits for replicas" in line]
            assert len(told) == 1
            await asyncio.sleep(0.5)
            assert len(ran) == began  # nothing that was claimed meanwhile was run
            assert [line for line in caplog.messages if "waits for" in line] == told
            clock.replicas = 1
            await until(lambda: seen.stats().done == 20)
            worker.stop()
            tally = await running
    assert sorted(ran) == sorted({f"t{i}" for i in range(20)})
    assert (tally.acked, tally.lost) == (20, 0)
    assert any("the replicas confirm again" in line for line in caplog.messages)
    assert seen.stats().counters.get("expired", 0) == 0


async def test_a_worker_whose_replicas_confirm_again_has_no_trouble_and_claims_as_before() -> None:
    clock = Clock(replicas=1)
    with fake_queue(clock=clock, durable=1) as seen:
        seen.put("first")
        entered, free = asyncio.Event(), asyncio.Event()

        async def handler(lease: Any) -> None:
            entered.set()
            await free.wait()

        worker = Worker(fake_async_queue(clock=clock, deadline=QUICK), handler, concurrency=5, signals=False)
        async with at_work(worker):
            await entered.wait()
            clock.replicas = 0
            free.set()
            (work,) = pump_of(worker).works
            await until(lambda: work.unconfirmed)
            clock.replicas = 1
            await until(lambda: seen.stats().done == 1 and not work.shards[0].failures)
            assert "trouble" not in work._about()
            free.clear()
            seen.put([f"t{n}" for n in range(20)])
            await until(lambda: len(worker.running) == 5)
            free.set()


def test_a_schedule_that_asks_for_replicas_waits_for_them_on_any_queue(clock: Clock, flushes: list[list[str]]) -> None:
    with fake_queue(clock=clock) as plain:
        plain.put("a", durable=1)
        flushes.clear()
        plain.put("b", durable=1)
        plain.schedule("c", after=60, durable=1)
        assert once(flushes) == [["put", "WAIT 1"], ["schedule", "WAIT 1"]]


def test_a_keeper_keeps_the_leases_whose_ends_were_not_sent(queue: FakeQueue) -> None:
    class Long(Exception):
        def __str__(self) -> str:
            return "x" * 4000

    queue.put(f"t{i}" for i in range(1500))
    leases = [lease for _ in range(3) for lease in queue.claim(500)]
    with queue.keeper() as keeper:
        keeper.add(*leases)
        unconfirmed(queue, lambda: queue.fail(leases, Long(), give_up=True))
        left = queue.stats().in_progress
        assert left > 0, "the calls behind the first flush were not sent"
        assert len(keeper.held) >= left
