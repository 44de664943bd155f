"""A task that is to be done again: `again_in` of an ack, as transcripts on both faces and in a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest
import redis

from tests.rig.invariants import check_keys
from tests.rig.waiting import wait_until
from timeoutq import Ack, AsyncQueue, InvalidInput, Lease, LeaseLost, Queue, Worker
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending
from timeoutq.words import arguments
from timeoutq.words.retry import Recrawl


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    with fake_queue(timeout=60, retry=[0, 0, 0]) as queue:
        yield queue
        check_keys(fakeredis.FakeRedis(server=queue.clock.server), queue.name)
        queue.purge()
        assert fakeredis.FakeRedis(server=queue.clock.server).keys("*") == []


def claim_one(queue: Any) -> Lease:
    (lease,) = queue.claim(10)
    found: Lease = lease
    return found


# ---- what becomes of the task


def test_it_is_scheduled_and_not_done_and_comes_back_when_its_time_has_come(fake: FakeQueue) -> None:
    fake.put({"page": {"depth": 1}})
    assert fake.ack(claim_one(fake), again_in=60) == "ok"
    info = fake.inspect("page")
    assert info.state == "scheduled"
    assert info.due == pytest.approx(fake.clock.now + 60)
    stats = fake.stats()
    assert (stats.done, stats.scheduled, stats.counters["acked"], stats.counters["again"]) == (0, 1, 1, 1)
    fake.clock.advance(59.999)
    assert fake.claim() == []
    fake.clock.advance(0.001)
    lease = claim_one(fake)
    assert (lease.task, lease.payload, lease.attempt, lease.crashes) == ("page", {"depth": 1}, 1, 0)
    fake.ack(lease)
    assert fake.inspect("page").state == "done"
    assert fake.inspect("page").payload is None


def test_it_may_be_done_again_at_once(face: Any) -> None:
    face.put("page")
    face.ack(claim_one(face), again_in=0)
    wait_until(lambda: face.promote_due() or face.stats().todos)
    assert claim_one(face).task == "page"


@pytest.mark.parametrize("body", [{"interval": 7}, b"\x00\xff", b"", "", 0, [], False], ids=repr)
def test_the_next_visit_has_the_payload_that_it_was_given(face: Any, body: Any) -> None:
    for first in ("with", "without"):
        face.put({first: "old"} if first == "with" else first)
        lease = claim_one(face)
        assert face.ack(lease, again_in=3600, payload=body) == "ok"
        assert (face.inspect(first).payload, type(face.inspect(first).payload)) == (body, type(body))
        face.schedule(first, after=0)
        assert claim_one_of(face, first).payload == body
        face.forget(first)


def claim_one_of(queue: Any, task: str) -> Lease:
    leases: list[Lease] = []

    def claimed() -> bool:
        queue.promote_due()
        leases.extend(queue.claim())
        return bool(leases)

    wait_until(claimed)
    assert leases[0].task == task
    return leases[0]


def test_its_record_is_clean_then(fake: FakeQueue) -> None:
    fake.put("page")
    fake.fail(claim_one(fake), "HTTP 500")
    fake.promote_due()
    claim_one(fake)
    fake.clock.advance(60)
    fake.requeue_expired()
    lease = claim_one(fake)
    assert (lease.attempt, lease.crashes) == (2, 1)
    fake.ack(lease, again_in=10)
    info = fake.inspect("page")
    assert (info.failures, info.crashes, info.error) == (0, 0, None)
    fake.clock.advance(10)
    lease = claim_one(fake)
    assert (lease.attempt, lease.crashes) == (1, 0)
    fake.fail(lease, "HTTP 500")
    assert fake.inspect("page").failures == 1


def test_what_was_found_is_put_in_the_same_step(face: Any) -> None:
    face.put("page")
    face.ack(claim_one(face), put={"found": 5, "page": 1}, again_in=3600, payload={"seen": 1})
    assert face.inspect("found").state == "todos"
    assert (face.inspect("page").state, face.inspect("page").payload) == ("scheduled", {"seen": 1})


def test_more_than_a_call_holds_may_be_found_and_the_page_is_done_again_all_the_same(face: Any) -> None:
    face.put("page")
    face.ack(claim_one(face), put=(f"found {i}" for i in range(1203)), again_in=3600, payload=1)
    stats = face.stats()
    assert (stats.todos, stats.scheduled, stats.counters["again"]) == (1203, 1, 1)
    assert face.inspect("page").payload == 1


def test_many_may_be_done_again_at_once(face: Any) -> None:
    face.put(f"page {i}" for i in range(1100))
    leases = [lease for _ in range(3) for lease in face.claim(500)]
    strange = Lease("page of somebody else", "them#1", 0)
    outcome = face.ack([*leases, strange], again_in=3600)
    assert (outcome.ok, outcome[-1]) == (1100, "lost")
    stats = face.stats()
    assert (stats.done, stats.scheduled, stats.in_progress) == (0, 1100, 0)
    assert (stats.counters["acked"], stats.counters["again"]) == (1100, 1100)


def test_the_same_visit_again_and_again_is_counted_each_time(fake: FakeQueue) -> None:
    fake.put("page")
    for number in range(1, 6):
        lease = claim_one(fake)
        assert lease.payload == (None if number == 1 else number - 1)
        fake.ack(lease, again_in=10, payload=number)
        counters = fake.stats().counters
        assert (counters["acked"], counters["again"], counters["claimed"]) == (number, number, number)
        fake.clock.advance(10)
    assert fake.stats().known == 1


# ---- calls that are sent again, and leases that are lost


CALLS: dict[str, Callable[[Any, Lease], Any]] = {
    "alone": lambda ops, lease: ops.ack([lease], 60_000)[0],
    "with a payload": lambda ops, lease: ops.ack_put(lease, arguments.tasks(()), 60_000, b"1"),
    "with what was found": lambda ops, lease: ops.ack_put(lease, arguments.tasks(("found",)), 60_000, b"1"),
}


@pytest.mark.parametrize("way", CALLS)
def test_an_ack_that_is_sent_again_changes_nothing(fake: FakeQueue, way: str) -> None:
    raw: Any = fakeredis.FakeRedis(server=fake.clock.server)
    fake.put("page")
    lease = claim_one(fake)
    call = CALLS[way](fake.operations, lease)
    fake.run(sending.answer(fake.talk, call))
    before = fake.inspect("page"), fake.stats().counters
    fake.clock.advance(0.5)
    assert raw.execute_command(*call.command(500)).startswith(b"R")
    assert (fake.inspect("page"), fake.stats().counters) == before
    # the task is somebody else's by now, who asks for nothing else
    fake.schedule("page", after=0)
    fake.promote_due()
    theirs = next(found for found in fake.claim(10) if found.task == "page")
    raw.execute_command(*call.command(700))
    info = fake.inspect("page")
    assert (info.state, info.holder) == ("in_progress", theirs.holder)
    assert fake.stats().counters["again"] == 1


def test_asked_again_by_its_caller_it_is_already_so(face: Any) -> None:
    face.put("page")
    lease = claim_one(face)
    assert face.ack(lease, again_in=3600, payload=1) == "ok"
    due = face.inspect("page").due
    assert face.ack(lease, again_in=7200, payload=2) == "already"
    assert (face.inspect("page").due, face.inspect("page").payload) == (due, 1)


def test_a_lease_that_is_lost_schedules_nothing(face: Any) -> None:
    face.put({"page": "old"})
    lease = claim_one(face)
    face.forget("page")
    face.put({"page": "new"})
    theirs = claim_one(face)
    with pytest.raises(LeaseLost, match="page"):
        face.ack(lease, again_in=3600, payload="mine")
    assert list(face.ack([lease], again_in=3600)) == ["lost"]
    info = face.inspect("page")
    assert (info.state, info.payload) == ("in_progress", "new")
    face.ack(theirs)


# ---- what is refused


BAD: list[tuple[Callable[[Any, Lease], object], str]] = [
    (lambda q, lease: q.ack(lease, payload=1), "payload= needs again_in="),
    (lambda q, lease: q.ack([lease], payload=1), "payload= needs again_in="),
    (lambda q, lease: q.ack([lease], again_in=5, payload=1), "work with one lease only"),
    (lambda q, lease: q.ack([lease], put=["x"], again_in=5), "work with one lease only"),
    (lambda q, lease: q.ack(lease, again_in=-1), "again_in"),
    (lambda q, lease: q.ack(lease, again_in=float("nan")), "again_in"),
    (lambda q, lease: q.ack(lease, again_in=float("inf")), "again_in"),
    (lambda q, lease: q.ack(lease, again_in=1e300), "again_in"),
    (lambda q, lease: q.ack(lease, again_in="1h"), "again_in"),
    (lambda q, lease: q.ack(lease, again_in=True), "again_in"),
    (lambda q, lease: q.ack(lease, again_in=5, payload=object()), "neither bytes nor JSON"),
    (lambda q, lease: q.ack(lease, again_in=5, payload=float("nan")), "neither bytes nor JSON"),
    (lambda q, lease: q.ack(lease, again_in=5, payload=b"x" * (1 << 20) + b"x"), "the limit is 1,048,576"),
]


@pytest.mark.parametrize(("bad", "said"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_refused_and_the_lease_is_still_held(
    face: Any, bad: Callable[[Any, Lease], object], said: str
) -> None:
    face.put({"page": "old"})
    lease = claim_one(face)
    with pytest.raises(InvalidInput, match=said):
        bad(face, lease)
    info = face.inspect("page")
    assert (info.state, info.payload, face.stats().counters.get("acked", 0)) == ("in_progress", "old", 0)
    assert face.ack(lease) == "ok"


# ---- in a worker


async def test_a_handler_visits_a_page_again_and_again_as_recrawl_says(url: str, queue: Queue) -> None:
    policy = Recrawl(first=0.02, shortest=0.01, longest=0.03)
    seen: list[tuple[Any, int, int]] = []
    enough = asyncio.Event()

    async def visit(lease: Lease) -> Ack:
        seen.append((lease.payload, lease.attempt, lease.crashes))
        if len(seen) == 5:
            enough.set()
            return Ack()
        last = lease.payload["interval"] if lease.payload else None
        interval = policy.interval(last, changed=len(seen) % 2 == 0)
        return Ack(put=["found"] if len(seen) == 2 else (), again_in=interval, payload={"interval": interval})

    async def only_pages(lease: Lease) -> Ack | None:
        return await visit(lease) if lease.task == "page" else None

    queue.put("page")
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        worker = Worker(mine, only_pages, burst=True)
        running = asyncio.ensure_future(worker.run())
        await enough.wait()
        tally = await running
    expected: list[float] = []
    for number in range(1, 5):
        expected.append(policy.interval(expected[-1] if expected else None, changed=number % 2 == 0))
    assert seen == [(None, 1, 0), *(({"interval": interval}, 1, 0) for interval in expected)]
    assert tally.acked == 6
    stats = queue.stats()
    assert (stats.done, stats.counters["acked"], stats.counters["again"]) == (2, 6, 4)
    assert stats.counters.get("failed", 0) == stats.counters.get("expired", 0) == 0


async def test_a_plain_handler_may_ask_for_it_too_with_more_than_a_call_holds(url: str, queue: Queue) -> None:
    def visit(lease: Lease) -> Ack | None:
        if lease.task != "page" or lease.payload:
            return None
        return Ack(put=[f"found {i}" for i in range(700)], again_in=0.01, payload={"seen": True})

    queue.put("page")
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        tally = await Worker(mine, visit, burst=True).run()
    assert tally.acked == 702
    stats = queue.stats()
    assert (stats.done, stats.counters["again"]) == (701, 1)


@pytest.mark.parametrize(
    "answer", [Ack(payload=1), Ack(again_in=-1), Ack(again_in=5, payload=object())], ids=["alone", "past", "no JSON"]
)
async def test_an_answer_that_cannot_be_is_a_failure_of_the_handler(url: str, queue: Queue, answer: Ack) -> None:
    async def visit(lease: Lease) -> Ack:
        return answer

    queue.put("page")
    async with AsyncQueue(queue.name, url, timeout=5, retry=[]) as mine, asyncio.timeout(60):
        await Worker(mine, visit, burst=True).run()
    info = queue.inspect("page")
    assert info.state == "failed"
    assert "InvalidInput" in (info.error or "")


def test_nothing_of_a_task_that_is_done_again_is_left_when_it_is_done(face: Any, raw: redis.Redis) -> None:
    face.put({"page": 1})
    face.ack(claim_one(face), again_in=0, payload=2)
    face.ack(claim_one_of(face, "page"))
    key = f"timeoutq:{{{face.name}}}"
    client: Any = raw
    assert [name for name in ("payload", "attempts", "crashes", "errors") if client.exists(f"{key}:{name}")] == []
    assert face.inspect("page").state == "done"
