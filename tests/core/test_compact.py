"""Queues that keep fingerprints of their done tasks (keep_done="compact"): what each verb says, keeps and refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.rig import fingerprints
from tests.rig.planted import planted
from timeoutq import InvalidInput, LeaseLost, Politeness, Queue, ServerFull, State, Task
from timeoutq.server.calls import Call
from timeoutq.verbs import reads, sending
from timeoutq.words.model import Record

A = "http://a.example/"


@pytest.fixture
def compact(face: Any) -> Any:
    """A queue with compact done, through either face."""
    face.configure(keep_done="compact")
    return face


@pytest.fixture
def polite(compact: Any) -> Any:
    """The same, and it visits one page of a host at a time, without a pause."""
    compact.configure(politeness=Politeness(0))
    return compact


def finish(queue: Any, *tasks: str) -> None:
    """Put tasks, and ack all that is ready."""
    queue.put(tasks)
    while leases := queue.claim(500):
        queue.ack(leases)


def seen(raw: redis.Redis, queue: Any) -> dict[str, str]:
    """What the queue knows of its sets."""
    return dict(raw.hgetall(queue.talk.operations.key("seen")))  # type: ignore[arg-type]  # redis-py types both faces


def call(queue: Any, made: Call[Any]) -> Any:
    """Send a call for which the faces have no method."""
    return queue.run(sending.answer(queue.talk, made))


# ---- what it keeps


def test_a_task_that_is_done_is_known_and_neither_it_nor_any_other_id_is_kept(compact: Any, raw: redis.Redis) -> None:
    finish(compact, "a", "b")
    assert list(compact.put("a", "new", "b")) == ["done", "added", "done"]
    assert compact.states("a", "b", "new", "x").counts() == {"done": 2, "todos": 1, "unknown": 1}
    assert compact.inspect("a").state is State.DONE
    assert compact.why("a").code == "done"
    stats = compact.stats()
    assert (stats.done, stats.known, stats.compact) == (2, 3, True)
    assert (stats.settings["keep_done"], stats.settings["uses"]) == ("compact", "compact")
    key = compact.talk.operations.key
    assert raw.exists(key("done"), key("done_at")) == 0
    assert {len(str(member)) for member in raw.smembers(key("seen:0"))} == {19}
    assert raw.object("encoding", key("seen:0")) == "intset"


def test_the_salt_is_another_one_in_each_queue_and_stays(compact: Any, url: str, name: str, raw: redis.Redis) -> None:
    finish(compact, "a")
    before = seen(raw, compact)
    with Queue(name, url, keep_done="compact") as again, Queue(f"{name}-b", url, keep_done="compact") as other:
        assert again.stats().done == 1
        finish(other, "a")
        assert seen(raw, again) == before
        assert seen(raw, other)["salt"] != before["salt"]
        assert raw.smembers(other.operations.key("seen:0")) != raw.smembers(again.operations.key("seen:0"))
        other.purge()


# ---- each way to be done


def test_an_ack_with_a_lease_that_is_lost_leaves_no_fingerprint(compact: Any, raw: redis.Redis) -> None:
    compact.put("a", "b")
    first, second = compact.claim(2)
    compact.release(first)
    with pytest.raises(LeaseLost):
        compact.ack(first)
    assert list(compact.ack([first, second])) == ["lost", "ok"]
    assert compact.states(first.task, second.task).counts() == {"todos": 1, "done": 1}
    (again,) = compact.claim()
    assert again.task == first.task
    assert list(compact.ack([first])) == ["lost"], "somebody else has the task now"
    assert compact.states(first.task, second.task).counts() == {"in_progress": 1, "done": 1}
    assert seen(raw, compact)["count"] == "1"


# ---- each way to be done no more


def test_put_again_takes_the_fingerprint_out_and_done_again_counts_once(compact: Any) -> None:
    finish(compact, "a", "b")
    assert list(compact.put({"a": 1}, "a", "new", again=True)) == ["added", "todos", "added"]
    assert (compact.stats().done, compact.stats().todos) == (1, 2)
    assert {lease.task: lease.payload for lease in compact.claim(5)} == {"a": 1, "new": None}
    assert compact.forget("new") == compact.forget("new") or compact.states("new").counts() == {"unknown": 1}
    (info,) = [compact.inspect("a")]
    assert info.state is State.IN_PROGRESS
    assert compact.put("a", again=True).counts() == {"in_progress": 1}
    assert compact.stats().done == 1


def test_a_done_task_that_somebody_makes_ready_by_hand_counts_once(compact: Any, raw: redis.Redis) -> None:
    finish(compact, "old", "older")
    compact.put("new")
    raw.sadd(compact.talk.operations.key("todos"), "old")
    assert compact.ack(compact.claim(5)).counts() == {"ok": 2}
    assert (compact.stats().done, compact.states("old", "older", "new").counts()) == (3, {"done": 3})


# ---- on polite queues


def test_a_polite_queue_forgets_the_priority_and_the_group_of_a_done_task(polite: Any, raw: redis.Redis) -> None:
    polite.put(f"{A}1", f"{A}2", priority=5)
    polite.put("x", group="a.example", priority=3)
    polite.put(f"{A}3")
    finish(polite)
    while polite.promote_due():
        finish(polite)
    assert polite.stats().done == 4
    key = polite.talk.operations.key
    assert raw.exists(key("priorities"), key("groups"), key("payload")) == 0
    assert list(polite.put(f"{A}1", again=True)) == ["added"]
    assert polite.inspect(f"{A}1").priority == 0


def test_a_done_task_comes_into_a_polite_queue_without_its_priority(polite: Any, raw: redis.Redis) -> None:
    records = [Record(f"{A}1".encode(), State.DONE, priority=5), Record(f"{A}2".encode(), State.TODOS, priority=4)]
    assert call(polite, polite.talk.operations.restore(records, lambda: b"n")).added == 2
    assert raw.hgetall(polite.talk.operations.key("priorities")) == {f"{A}2": "4"}


def test_raising_works_and_improving_is_refused_by_name(polite: Any) -> None:
    polite.put(f"{A}busy")
    (lease,) = polite.claim()
    polite.put(f"{A}1", priority=1)
    assert list(polite.put(f"{A}1", priority=2)) == ["raised"]
    before = polite.stats()
    found = Task(f"{A}1", priority=9, improve=True)
    all_refused: list[Callable[[], object]] = [
        lambda: polite.put(f"{A}1", priority=9, improve=True),
        lambda: polite.put(found),
        lambda: polite.schedule(f"{A}new", after=1, priority=9, improve=True),
        lambda: polite.ack(lease, put=[found]),
    ]
    for refused in all_refused:
        with pytest.raises(
            InvalidInput, match=r'keep_done="compact", which keeps no priorities of done tasks: put wit'
        ):
            refused()
    after = polite.stats()
    assert (after.counters, after.known) == (before.counters, before.known)
    assert polite.ack(lease, put=[Task(f"{A}1", priority=9)]) == "ok"
    assert polite.inspect(f"{A}1").priority == 9


# ---- what is refused


def test_done_tasks_cannot_be_listed_and_all_others_can(compact: Any) -> None:
    finish(compact, "a")
    compact.put("b")
    for refused in (
        lambda: compact.list("done"),
        lambda: list(compact.each(State.DONE)),
        lambda: compact.run(reads.page(compact.talk, "done", None, 5)),
    ):
        with pytest.raises(InvalidInput, match=r"cannot list them\. Ask for ids that you have: states\(\)"):
            refused()
    assert [entry.task for entry in compact.list("todos").entries] == ["b"]
    assert [entry.task for entry in compact.each("failed")] == []


IN_STATES: dict[str, Callable[[Any], object]] = {
    "todos": lambda queue: queue.put("a"),
    "in_progress": lambda queue: (queue.put("a"), queue.claim()),
    "done": lambda queue: finish(queue, "a"),
    "failed": lambda queue: (queue.put("a"), queue.fail(queue.claim(1), "no", give_up=True)),
    "scheduled": lambda queue: queue.schedule("a", after=60),
    "waiting": lambda queue: (
        queue.configure(politeness=Politeness(60)),
        queue.put(f"{A}1", f"{A}2"),
        queue.forget(f"{A}1"),
    ),
}


@pytest.mark.parametrize("state", IN_STATES)
def test_it_begins_only_while_the_queue_has_no_task_in_any_state(face: Any, raw: redis.Redis, state: str) -> None:
    IN_STATES[state](face)
    assert getattr(face.stats(), state) == 1
    before = {key: raw.dump(key) for key in map(str, raw.keys())}
    with pytest.raises(
        InvalidInput, match=r"no tasks, and this queue has 1, done ones counted: set it on a new queue, "
    ):
        face.configure(keep_done="compact", max_crashes=3)
    assert {key: raw.dump(key) for key in map(str, raw.keys())} == before


@pytest.mark.parametrize("other", ["forever", 0, 1000])
def test_it_stays_as_long_as_something_is_done(compact: Any, raw: redis.Redis, other: Any) -> None:
    finish(compact, "a")
    before = seen(raw, compact)
    with pytest.raises(InvalidInput, match="keeps 1 done tasks as fingerprints, which no other keep_done can read"):
        compact.configure(max_crashes=9, keep_done=other)
    assert "max_crashes" not in compact.stats().settings
    compact.configure(keep_done="compact", max_crashes=4)
    assert seen(raw, compact) == before
    compact.put("b")
    compact.forget("a")
    compact.configure(keep_done=other)
    assert not compact.stats().compact
    assert seen(raw, compact) == {}
    finish(compact)
    assert compact.states("b").counts() == ({"unknown": 1} if other == 0 else {"done": 1})


# ---- servers that are full, and keys of foreign types


def test_a_full_server_takes_acks_and_refuses_puts(compact: Any, raw: redis.Redis) -> None:
    compact.put([f"t{i}" for i in range(600)])
    leases = [*compact.claim(500), *compact.claim(500)]
    raw.config_set("maxmemory", 1)
    try:
        assert compact.ack(leases[:599]).ok == 599
        with pytest.raises(ServerFull):
            compact.put("new")
        with pytest.raises(ServerFull):
            call(compact, compact.talk.operations.restore([Record(b"r", State.DONE)], lambda: b"n"))
        with pytest.raises(ServerFull):
            compact.put("t0", again=True)
        assert compact.forget(leases[0].task).counts() == {"done": 1}
    finally:
        raw.config_set("maxmemory", 0)
    assert (compact.stats().done, compact.stats().in_progress) == (598, 1)


# ---- purges


@pytest.fixture
def many_sets(url: str) -> Iterator[None]:
    """Let sets divide as soon as they have more than one fingerprint each, so that there are many."""

    with planted(url, "local full, divisions = 192, 4 ", "local full, divisions = 1, 500 "):
        yield


def test_a_purge_removes_the_sets_500_at_a_time_and_what_is_left_is_whole(
    many_sets: None, url: str, name: str, raw: redis.Redis
) -> None:
    tasks = [f"t{i}" for i in range(1300)]
    with Queue(name, url, keep_done="compact") as queue, redis.Redis.from_url(url) as client:
        finish(queue, *tasks)
        prefix, lengths = queue.operations.key(""), list[int]()

        def there() -> fingerprints.Sets:
            found = fingerprints.read(client, prefix)
            assert found is not None
            return found

        assert 2 ** there().level + there().split == 1300
        while not call(queue, queue.operations.purge()):
            left = there()
            lengths.append(2**left.level + left.split)
            # what is left is found where it is
            assert set(left.sets) <= set(range(lengths[-1]))
            left.count = sum(map(len, left.sets.values()))
            assert fingerprints.wrong(left) == []
            assert queue.states(tasks).counts()["done"] == left.count
        assert lengths == [800, 300]
        assert raw.keys(f"{prefix}*") == []


def test_a_late_part_of_a_purge_leaves_the_sets_of_a_new_queue(url: str, name: str, raw: redis.Redis) -> None:
    client: Any = raw
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, "a")
        client.sadd(queue.operations.key("seen:7"), 5)
        call(queue, queue.operations.purge([b"seen:0", b"seen:7", b"seen:x"]))
        assert raw.exists(queue.operations.key("seen:0"), queue.operations.key("seen:7")) == 1
        assert queue.stats().done == 1
        queue.purge()


# ---- in memory


# ---- queues that do not use it
