"""Priorities on polite queues, as transcripts: which task of a host is next, what a put raises, what runs once more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import fakeredis
import pytest

from tests.rig.invariants import check_keys
from timeoutq import Ack, AsyncQueue, InvalidInput, Lease, Politeness, Queue, State, Task, Worker
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
def polite(face: Any) -> Any:
    """A polite queue on a server, by either face: one visit at a time, and no delay."""
    face.configure(politeness=POLITE)
    return face


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


@pytest.mark.breaking
@pytest.mark.timeout(600)  # twenty thousand calls, one after the other
def test_ten_thousand_tasks_of_one_host_come_in_the_order_of_their_priorities(url: str) -> None:
    Queue("order", url).purge()
    with Queue("order", url, politeness=POLITE) as queue:
        first = busy(queue)
        levels = {page(n): random.Random(n).randint(-1000, 1000) for n in range(10_000)}
        queue.put([Task(task, priority=level) for task, level in levels.items()])
        queue.ack(first)
        order = visits(queue)
        assert len(order) == 10_000 and page(99_999) not in order
        assert [levels[task] for task in order] == sorted(levels.values(), reverse=True)
        queue.purge()


def test_the_commands_of_claims_and_acks_do_not_grow_with_the_tasks_that_have_priorities(url: str, raw: Any) -> None:
    def commands(name: str, *, ranked: bool) -> tuple[int, int]:
        """Drain a queue of 40 hosts; tell how many rounds that took, and how many commands."""
        Queue(name, url).purge()
        with Queue(name, url, politeness=POLITE) as queue:
            tasks = [f"http://h{n % 40}.example/{n}" for n in range(400)]
            queue.put([Task(task, priority=n % 7) for n, task in enumerate(tasks)] if ranked else tasks)
            before, rounds = sum(stat["calls"] for stat in raw.info("commandstats").values()), 0
            while leases := queue.claim(40):
                queue.ack(leases)
                rounds += 1
            after = sum(stat["calls"] for stat in raw.info("commandstats").values())
            queue.purge()
        return rounds, after - before

    (rounds, plain), (rounds_too, ranked) = commands("plain", ranked=False), commands("ranked", ranked=True)
    assert rounds == rounds_too == 10
    assert ranked < plain + 100  # a command for each task would be 400


def test_the_priority_of_a_task_goes_before_that_of_the_call(fake: FakeQueue) -> None:
    busy(fake)
    fake.put(Task(page(1), priority=7), page(2), priority=3)
    assert [fake.inspect(page(n)).priority for n in (1, 2, 99_999)] == [7, 3, 0]


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


def test_a_priority_outlives_a_time_without_politeness(fake: FakeQueue) -> None:
    busy(fake)
    fake.put([Task(page(n), priority=n) for n in range(5)])
    fake.configure(politeness="off")
    fake.configure(politeness=POLITE)
    (held,) = (entry.task for entry in fake.list("in_progress").entries)
    assert held == page(99_999)
    fake.forget(held)
    assert visits(fake) == [page(n) for n in (4, 3, 2, 1, 0)]


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


def test_a_raised_task_that_has_its_turn_already_keeps_it_with_the_new_payload(fake: FakeQueue) -> None:
    fake.put(Task(page(1), "old", priority=1))
    assert fake.inspect(page(1)).state is State.TODOS
    assert list(fake.put(Task(page(1), "new", priority=2))) == ["raised"]
    found = fake.inspect(page(1))
    assert (found.state, found.priority, found.payload) == (State.TODOS, 2, "new")


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


def test_a_raise_without_a_payload_keeps_the_payload(fake: FakeQueue) -> None:
    busy(fake)
    fake.put(Task(page(1), "old", priority=1))
    fake.put(page(1), priority=2)
    assert fake.inspect(page(1)).payload == "old"


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


def test_of_a_known_id_that_is_named_twice_each_place_counts_for_what_it_says(fake: FakeQueue) -> None:
    fake.put(page(1), priority=-5)
    assert visits(fake) == [page(1)]
    assert "added" in list(fake.put(page(1), Task(page(1), priority=-2, improve=True)))
    assert visits(fake) == [page(1)]
    assert "added" in list(fake.put(Task(page(1), priority=1, improve=True), Task(page(1), "b", priority=2)))
    assert (fake.inspect(page(1)).priority, fake.inspect(page(1)).payload) == (2, "b")
    assert visits(fake) == [page(1)]
    busy(fake)
    fake.put(page(2), priority=-5)
    assert "raised" in list(fake.put(page(2), Task(page(2), priority=-2)))
    assert fake.inspect(page(2)).priority == -2
    fake.put(page(3), Task(page(3), priority=-2))
    assert fake.inspect(page(3)).priority == 0


def test_schedule_raises_a_waiting_task_that_is_named_twice_and_leaves_it_where_it_is(fake: FakeQueue) -> None:
    busy(fake)
    fake.put(page(1))
    assert "raised" in list(fake.schedule(Task(page(1), priority=2), Task(page(1), priority=1), after=50))
    assert fake.list("scheduled").entries == []
    assert [entry.task for entry in fake.list("waiting").entries] == [page(1)]


def test_schedule_raises_and_moves_the_time(fake: FakeQueue) -> None:
    fake.schedule(page(1), after=100, priority=1)
    assert list(fake.schedule(page(1), after=50, priority=2)) == ["raised"]
    found = fake.inspect(page(1))
    assert found.priority == 2 and found.due == pytest.approx(fake.stats().now + 50, abs=0.01)


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


def test_a_task_done_without_a_priority_was_done_at_0(fake: FakeQueue) -> None:
    fake.put(page(1))
    visits(fake)
    assert list(fake.put(page(1), priority=0, improve=True)) == ["done"]
    assert list(fake.put(page(1), priority=1, improve=True)) == ["added"]


def test_the_first_priority_of_a_queue_may_be_that_of_a_task_in_progress(fake: FakeQueue) -> None:
    fake.put(page(1))
    (lease,) = fake.claim(1)
    assert list(fake.put(page(1), priority=5, improve=True)) == ["raised"]
    fake.ack(lease)
    assert fake.inspect(page(1)).priority == 5


@pytest.mark.parametrize(("before", "how"), [(-5, "improve"), (5, "again")])
def test_a_done_task_that_comes_back_with_priority_0_has_this_priority(polite: Any, before: int, how: str) -> None:
    polite.put(page(1), priority=before)
    assert visits(polite) == [page(1)]
    assert list(polite.put(page(1), priority=0, **{how: True})) == ["added"]
    assert polite.inspect(page(1)).priority == 0


def test_improve_leaves_failed_tasks_alone_and_says_so(fake: FakeQueue) -> None:
    fake.put(page(1), priority=1)
    fake.fail(fake.claim(1)[0], "no", give_up=True)
    assert list(fake.put(page(1), priority=9, improve=True)) == ["failed"]


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


def test_a_run_after_which_its_task_runs_once_more_is_a_visit_of_the_budget(polite: Any) -> None:
    polite.hosts.set(A, budget=1)
    polite.put(page(1), priority=-3)
    (lease,) = polite.claim(1)
    polite.put(page(1), priority=-1, improve=True)
    polite.ack(lease)
    host = polite.hosts.inspect(A)
    assert (host.visits, host.waiting, host.used_up) == (1, 1, True)
    assert polite.claim(1) == []
    polite.hosts.set(A, budget=2)
    assert visits(polite) == [page(1)]
    assert polite.hosts.inspect(A).visits == 2


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


def test_an_ack_of_an_improved_task_that_is_sent_again_is_known(fake: FakeQueue) -> None:
    fake.put(page(1), priority=-3)
    (lease,) = fake.claim(1)
    fake.put(page(1), priority=-1, improve=True)
    assert str(fake.ack(lease)) == "ok"
    assert str(fake.ack(lease)) == "already"
    assert len(fake.claim(1)) == 1


def test_without_improve_a_task_of_the_call_may_be_improved_by_itself(fake: FakeQueue) -> None:
    fake.put([Task(page(n), priority=-3) for n in (1, 2)])
    visits(fake)
    put = [Task(page(1), priority=-1, improve=True), Task(page(2), priority=-1)]
    assert list(fake.put(put)) == ["added", "done"]


def test_an_ack_puts_tasks_with_priorities_and_improves(fake: FakeQueue) -> None:
    fake.put(Task(page(1), priority=-3))
    fake.put(Task(page(2), priority=-5))
    visits(fake)
    fake.put(page(3), priority=0)
    (lease,) = fake.claim(1)
    fake.ack(lease, put=[Task(page(4), priority=-9), Task(page(2), "x", priority=-1, improve=True), page(1)])
    assert [fake.inspect(page(n)).priority for n in (4, 2, 1)] == [-9, -1, -3]
    assert visits(fake) == [page(2), page(4)]


@pytest.mark.parametrize("keep", ["forever", 0])
def test_a_handler_may_improve_its_own_task(fake: FakeQueue, keep: Any) -> None:
    fake.configure(keep_done=keep)
    fake.put(Task(page(1), "old", priority=-3))
    (lease,) = fake.claim(1)
    fake.ack(lease, put=[Task(page(1), "new", priority=-1, improve=True)])
    (second,) = fake.claim(1)
    assert (second.payload, fake.inspect(page(1)).priority) == ("new", -1)
    fake.ack(second)


# ---- nothing is left behind


@pytest.mark.parametrize("keep", [0, 1, None])
def test_what_an_improved_page_that_links_to_itself_has_found_is_put(fake: FakeQueue, keep: Any) -> None:
    fake.configure(keep_done=keep)
    fake.put(page(1), priority=-5)
    (lease,) = fake.claim(1)
    fake.put(page(1), priority=-1, improve=True)
    fake.ack(lease, put=[page(1), page(2), Task(page(3), priority=-4)])
    assert set(visits(fake)) == {page(1), page(2), page(3)}
    assert fake.stats().counters["acked"] == 4


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


def test_a_queue_that_is_not_polite_has_no_order(face: Any) -> None:
    with pytest.raises(InvalidInput, match=r"this queue is not polite, .* make it polite .* or use one queue for each"):
        face.put("a", page(1), priority=3)
    assert face.states("a", page(1)).counts() == {"unknown": 2}


async def test_a_handler_that_puts_a_priority_where_none_can_be_fails_and_its_task_is_not_lost(url: str) -> None:
    async def handler(lease: Lease) -> Ack:
        return Ack(put=[Task(page(2), priority=1)])

    async with AsyncQueue("plain-priority", url, retry=[0, 0]) as queue:
        await queue.purge()
        await queue.put(page(1), page(3))
        await Worker(queue, handler, burst=True, signals=False).run()
        found = await queue.inspect(page(1))
        assert found.state is State.FAILED
        assert found.error is not None and "this queue is not polite" in found.error
        assert (await queue.inspect(page(2))).state is None
        await queue.purge()


# ---- groups


def test_a_function_may_give_the_group_of_each_id(fake: FakeQueue) -> None:
    def shop(task: str) -> str | None:
        return "shop" if "shop" in task else None

    fake.put("http://a.shop/1", "http://b.shop/1", page(1), Task("http://c.shop/", group="own"), group=shop)
    hosts = [fake.inspect(task).host for task in ("http://a.shop/1", "http://b.shop/1", page(1), "http://c.shop/")]
    assert hosts == ["shop", "shop", "a.example", "own"]
    with pytest.raises(InvalidInput, match="the group of task 'x'"):
        fake.put("x", group=lambda task: 5)  # type: ignore[arg-type]  # what is tested


def test_every_task_found_may_have_a_group_of_its_own(fake: FakeQueue) -> None:
    fake.put(page(1))
    fake.ack(fake.claim(1)[0], put=[Task("x", group="g"), Task("y", group="h", priority=2)])
    assert [fake.inspect(task).host for task in ("x", "y")] == ["g", "h"]
