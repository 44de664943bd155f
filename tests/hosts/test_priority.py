"""Priorities on polite queues, as transcripts: which task of a host is next, what a put raises, what runs once more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import fakeredis
import pytest

from tests.rig.invariants import check_keys
from timeoutq import InvalidInput, Lease, Politeness, State, Task
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending

A = "http://a.example/"
POLITE = Politeness(0)


def page(n: int) -> str:
    return f"{A}{n}"


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    """A polite queue in memory: one visit at a time, and no delay."""
    with fake_queue(timeout=5, politeness=POLITE, max_crashes=3) as queue:
        yield queue
        check_keys(fakeredis.FakeRedis(server=queue.clock.server), queue.name)
        queue.purge()
        assert fakeredis.FakeRedis(server=queue.clock.server).keys("*") == []


@pytest.fixture
def polite(queue: Any) -> Any:
    """A polite queue on a server: one visit at a time, and no delay."""
    queue.configure(politeness=POLITE)
    return queue


def visits(queue: Any) -> list[str]:
    """Claim and ack until nothing is left; give the tasks in the order of their visits."""
    order: list[str] = []
    while leases := queue.claim(10):
        (lease,) = leases
        order.append(lease.task)
        queue.ack(lease)
    return order


def busy(queue: Any) -> Lease:
    """Keep the host busy, so that its other tasks wait."""
    queue.put(page(99_999))
    (lease,) = queue.claim(1)
    assert lease.task == page(99_999)
    found: Lease = lease
    return found


# ---- which is next


def test_the_highest_priority_is_next_then_the_longest_wait(polite: Any) -> None:
    first = busy(polite)
    for n, priority in ((1, 0), (2, -5), (3, 5), (4, 5), (5, 1000), (6, -1000), (7, None)):
        polite.put(page(n), priority=priority)
    polite.ack(first)
    assert visits(polite) == [page(n) for n in (5, 3, 4, 1, 7, 2, 6)]


@pytest.mark.parametrize("end", ["fail", "release", "release later", "lost", "schedule", "block", "again"])
def test_a_priority_stays_with_its_task_wherever_the_task_goes(fake: FakeQueue, end: str) -> None:
    if end == "schedule":
        fake.schedule(page(1), after=1, priority=5)
    else:
        fake.put(page(1), priority=5)
    lease = next(iter(fake.claim(1)), None)
    if lease is None:
        assert end == "schedule"
    elif end == "fail":
        fake.fail(lease, "no", retry_in=1)
    elif end == "release":
        fake.release(lease)
    elif end == "release later":
        fake.release(lease, delay=1)
    elif end == "block":
        fake.release(lease, block_host=1)
    elif end == "again":
        fake.ack(lease, again_in=1)
    elif end == "lost":
        fake.clock.advance(6)
        fake.requeue_expired()
    fake.put(page(2), priority=3)
    fake.put(page(3), priority=9)
    if end == "block":
        fake.clock.advance(1.1)
    held = fake.claim(1)[0]
    fake.clock.advance(1.1)
    fake.promote_due()
    fake.ack(held)
    left = visits(fake)
    assert left == [page(n) for n in (3, 1, 2) if page(n) != held.task]
    assert fake.inspect(page(1)).priority == 5


def test_ready_tasks_that_are_taken_back_wait_in_their_order(fake: FakeQueue) -> None:
    fake.put([Task(page(n), priority=n) for n in range(6)])
    fake.hosts.block(A, for_=1)  # takes back the one that had its turn
    fake.clock.advance(1.1)
    assert visits(fake) == [page(n) for n in (5, 4, 3, 2, 1, 0)]
    fake.hosts.set(A, per_host=4)
    fake.put([Task(page(10 + n), priority=n) for n in range(6)])
    fake.hosts.set(A, per_host=1)  # takes back three of four
    assert visits(fake)[1:] == [page(10 + n) for n in (4, 3, 2, 1, 0)]


# ---- raised


def test_a_put_with_a_higher_priority_raises_a_task_that_is_not_claimed(polite: Any) -> None:
    first = busy(polite)
    polite.put(Task(page(1), {"depth": 3}, priority=-3))
    polite.put(Task(page(2), {"depth": 2}, priority=-2))
    polite.schedule(Task(page(3), {"depth": 5}, priority=-5), after=3600)
    assert list(polite.put({page(1): {"depth": 1}}, priority=-1)) == ["raised"]
    assert list(polite.put({page(3): {"depth": 4}}, priority=-4)) == ["raised"]
    found = polite.inspect(page(3))
    assert (found.state, found.priority, found.payload) == (State.SCHEDULED, -4, {"depth": 4})
    polite.ack(first)
    (lease,) = polite.claim(1)
    assert (lease.task, lease.payload) == (page(1), {"depth": 1})


def test_what_is_not_higher_raises_nothing(fake: FakeQueue) -> None:
    busy(fake)
    fake.put(Task(page(1), "old", priority=-2))
    answers = [
        fake.put(Task(page(1), "new"))[0],
        fake.put(Task(page(1), "new", priority=-2))[0],
        fake.put(Task(page(1), "new", priority=-3))[0],
    ]
    assert answers == ["waiting"] * 3
    found = fake.inspect(page(1))
    assert (found.priority, found.payload) == (-2, "old")


def test_of_an_id_that_is_named_twice_the_highest_priority_counts(fake: FakeQueue) -> None:
    busy(fake)
    answers = fake.put(Task(page(1), "far", priority=-9), Task(page(1), "near", priority=-1), Task(page(1), "x"))
    assert sorted(answers) == ["added", "waiting", "waiting"]
    found = fake.inspect(page(1))
    assert (found.priority, found.payload) == (-1, "near")
    fake.put(Task(page(2), "near", priority=-1), Task(page(2), "far", priority=-9))
    assert (fake.inspect(page(2)).priority, fake.inspect(page(2)).payload) == (-1, "near")
    assert "raised" in list(fake.put(Task(page(1), "a", priority=1), Task(page(1), "b", priority=2)))
    assert (fake.inspect(page(1)).priority, fake.inspect(page(1)).payload) == (2, "b")


# ---- improve: done tasks come back, and one in progress runs once more


def test_improve_puts_a_done_task_back_if_it_was_done_at_a_lower_priority(polite: Any) -> None:
    polite.put(page(1), priority=-3)
    assert visits(polite) == [page(1)]
    assert list(polite.put(page(1), priority=-1)) == ["done"]
    assert list(polite.put(page(1), priority=-3, improve=True)) == ["done"]
    assert list(polite.put(page(1), priority=-4, improve=True)) == ["done"]
    assert list(polite.put(Task(page(1), {"depth": 2}, priority=-2), improve=True)) == ["added"]
    (lease,) = polite.claim(1)
    assert (lease.payload, lease.attempt, polite.inspect(page(1)).priority) == ({"depth": 2}, 1, -2)


def test_the_first_priority_of_a_queue_may_be_that_of_a_task_in_progress(fake: FakeQueue) -> None:
    fake.put(page(1))
    (lease,) = fake.claim(1)
    assert list(fake.put(page(1), priority=5, improve=True)) == ["raised"]
    fake.ack(lease)
    assert fake.inspect(page(1)).priority == 5


@pytest.mark.parametrize("end", ["ack", "ack again", "retry", "give up"])
def test_a_task_in_progress_that_is_improved_runs_once_more_after_its_run(polite: Any, end: str) -> None:
    polite.put(Task(page(1), "old", priority=-3))
    (lease,) = polite.claim(1)
    assert list(polite.put(Task(page(1), "new", priority=-1))) == ["in_progress"]
    assert not polite.inspect(page(1)).again
    assert list(polite.put(Task(page(1), "newer", priority=-2), improve=True)) == ["raised"]
    assert list(polite.put(Task(page(1), "new", priority=-1), improve=True)) == ["raised"]
    assert list(polite.put(Task(page(1), "late", priority=-2), improve=True)) == ["in_progress"]
    found = polite.inspect(page(1))
    assert (found.again, found.payload, found.priority) == (True, "old", -3)
    if end == "ack":
        polite.ack(lease)
    elif end == "ack again":
        polite.ack(lease, again_in=3600)
    elif end == "retry":
        polite.fail(lease, "no", retry_in=3600)
    else:
        polite.fail(lease, "no", give_up=True)
    (second,) = polite.claim(1)
    assert (second.task, second.payload, second.attempt) == (page(1), "new", 1)
    found = polite.inspect(page(1))
    assert (found.again, found.priority, found.error) == (False, -1, None)
    polite.ack(second)
    assert polite.claim(1) == [] and polite.drained()
    assert polite.stats().counters["reruns"] == 1


@pytest.mark.parametrize("end", ["release", "expire", "crash"])
def test_a_run_that_did_not_end_goes_on_with_what_was_put(fake: FakeQueue, end: str) -> None:
    fake.put(Task(page(1), "old", priority=-3))
    (lease,) = fake.claim(1)
    fake.put(Task(page(1), "new", priority=-1), improve=True)
    if end == "release":
        fake.release(lease)
    elif end == "expire":
        fake.clock.advance(6)
        fake.requeue_expired()
    else:
        fake.run(sending.answers(fake.talk, fake.operations.crash([lease], "it died")))
    (second,) = fake.claim(1)
    found = fake.inspect(page(1))
    assert (second.payload, found.priority, found.again) == ("new", -1, False)
    fake.ack(second)
    assert fake.claim(1) == []


def test_a_batch_of_acks_puts_back_only_the_improved_ones(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(0, per_host=10))
    fake.put([Task(page(n), priority=-3) for n in range(4)])
    leases = fake.claim(4)
    fake.put(page(2), priority=-1, improve=True)
    assert fake.ack(leases).ok == 4
    assert [lease.task for lease in fake.claim(4)] == [page(2)]
    assert fake.stats().counters["acked"] == 4


# ---- nothing is left behind


@pytest.mark.parametrize("gone", ["not kept", "pruned", "forgotten", "pulled", "improved and forgotten"])
def test_a_task_that_is_gone_leaves_no_priority_behind(fake: FakeQueue, gone: str) -> None:
    raw = fakeredis.FakeRedis(server=fake.clock.server)
    if gone in ("not kept", "pulled"):
        fake.configure(keep_done=0)
    elif gone == "pruned":
        fake.configure(keep_done=timedelta(seconds=1))
    fake.put(page(1), priority=4)
    if gone == "pulled":
        fake.pull(1)
    elif gone != "forgotten":
        (lease,) = fake.claim(1)
        if gone.startswith("improved"):
            fake.put(page(1), priority=5, improve=True)
        else:
            fake.ack(lease)
    if gone == "pruned":
        fake.clock.advance(2)
        fake.prune()
    elif gone.endswith("forgotten"):
        fake.forget(page(1))
    assert raw.keys("*priorities") == raw.keys("*rerun") == []
    fake.put(page(1))
    assert fake.inspect(page(1)).priority == 0


# ---- refused, and nothing is written


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"priority": 1.5}, "must be a whole number from -1,000 to 1,000, not 1.5"),
        ({"priority": True}, "must be a whole number"),
        ({"priority": 1001}, "must be a whole number"),
        ({"priority": "5"}, "must be a whole number"),
        ({"improve": True}, r"improve=True compares priorities: add priority="),
        ({"improve": 2, "priority": 1}, "improve must be True or False"),
    ],
)
def test_a_priority_that_is_none_is_refused(fake: FakeQueue, words: dict[str, Any], said: str) -> None:
    for call in (fake.put, lambda task, **more: fake.schedule(task, after=1, **more)):
        with pytest.raises(InvalidInput, match=said):
            call(page(1), **words)
    with pytest.raises(InvalidInput, match=said):
        fake.put(Task(page(1), **words))
    assert fake.inspect(page(1)).state is None


def test_a_task_without_a_host_has_no_turn_and_so_no_priority(fake: FakeQueue) -> None:
    with pytest.raises(
        InvalidInput, match=r"task sku-42 belongs to no host, .* put it with group=, or without a priority"
    ):
        fake.put(page(1), "sku-42", priority=3)
    assert fake.states(page(1), "sku-42").counts() == {"unknown": 2}
    fake.put("sku-42", priority=3, group="shop")
    assert fake.inspect("sku-42").host == "shop"


def test_a_queue_that_is_not_polite_has_no_order(queue: Any) -> None:
    with pytest.raises(InvalidInput, match=r"this queue is not polite, .* make it polite .* or use one queue for each"):
        queue.put("a", page(1), priority=3)
    assert queue.states("a", page(1)).counts() == {"unknown": 2}


# ---- groups
