"""A task that is to be done again: `again_in` of an ack, as transcripts on both faces and in a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fakeredis
import pytest

from tests.rig.invariants import check_keys
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease
from timeoutq.testing import FakeQueue, fake_queue


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


# ---- what is refused


BAD: list[tuple[Callable[[Any, Lease], object], str]] = [
    (lambda q, lease: q.ack(lease, payload=1), "payload= needs again_in="),
    (lambda q, lease: q.ack([lease], again_in=5, payload=1), "work with one lease only"),
    (lambda q, lease: q.ack([lease], put=["x"], again_in=5), "work with one lease only"),
    (lambda q, lease: q.ack(lease, again_in=-1), "again_in"),
    (lambda q, lease: q.ack(lease, again_in=5, payload=object()), "neither bytes nor JSON"),
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
