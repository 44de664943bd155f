"""What a foreign hand does to the fingerprints of a queue is told and put right, as far as anybody can know it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from tests.rig.invariants import a_minute_later, check_keys
from timeoutq import Queue, flows, sending
from timeoutq.model import Record, State

TASKS = [f"t{i}" for i in range(2000)]


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    """A plain client that gives bytes."""
    with redis.Redis.from_url(url) as made:
        yield made


@pytest.fixture
def queue(url: str, name: str, client: Any) -> Iterator[Queue]:
    """A queue with compact done and two thousand done tasks, in eleven sets."""
    with Queue(name, url, keep_done="compact") as opened:
        restored(opened, TASKS)
        opened.put("held")
        opened.claim()
        opened.put("ready")
        yield opened
        a_minute_later(client, name)
        while mended(opened):
            a_minute_later(client, name)
        check_keys(client, name, counters=False)
        opened.purge()
        assert client.keys(opened.operations.key("*")) == []


def restored(queue: Queue, tasks: list[str]) -> None:
    """Bring tasks in as done."""
    for at in range(0, len(tasks), 500):
        records = [Record(task.encode(), State.DONE) for task in tasks[at : at + 500]]
        queue.run(sending.answer(queue.talk, queue.operations.restore(records, queue.token)))


def mended(queue: Queue) -> Counter[str]:
    """Walk through the whole queue and mend it; give what was wrong."""
    return queue.run(flows.repair(queue.talk))[0]


def counted(queue: Queue) -> Counter[str]:
    """Count what is wrong."""
    return queue.run(flows.repair(queue.talk, mend=False))[0]


def known(queue: Queue) -> int:
    """Count the tasks that are still known as done."""
    return queue.states(TASKS).counts().get("done", 0)


def test_nothing_is_wrong_with_a_queue_that_nobody_has_touched(queue: Queue) -> None:
    assert counted(queue) == {}
    assert known(queue) == queue.stats().done == 2000


def test_the_count_follows_when_a_set_is_deleted_and_only_its_tasks_are_forgotten(queue: Queue, client: Any) -> None:
    gone = client.scard(queue.operations.key("seen:3"))
    client.delete(queue.operations.key("seen:3"))
    assert (queue.stats().done, known(queue)) == (2000, 2000 - gone)
    assert counted(queue) == mended(queue) == {"odd seen count": 1}
    assert queue.stats().done == 2000 - gone
    restored(queue, TASKS)
    assert known(queue) == queue.stats().done == 2000


@pytest.mark.parametrize("value", ["", "x", "-7", "1e99", "nan", "5", "99999999"])
def test_a_count_that_is_wrong_is_counted_anew(queue: Queue, client: Any, value: str) -> None:
    client.hset(queue.operations.key("seen"), "count", value)
    assert queue.stats().done == (int(value) if value.isdecimal() else 0)
    assert mended(queue) == {"odd seen count": 1}
    assert queue.stats().done == 2000


@pytest.mark.parametrize("field", ["level", "split"])
@pytest.mark.parametrize("value", [None, "", "x", "-1", "99", "4000000000", "1e300"])
def test_the_number_of_sets_is_found_by_their_names_if_nothing_else_tells_it(
    queue: Queue, client: Any, field: str, value: str | None
) -> None:
    key = queue.operations.key("seen")
    before = client.hmget(key, "level", "split")
    client.hdel(key, field) if value is None else client.hset(key, field, value)
    assert known(queue) == 2000, "what is done stays known meanwhile"
    assert counted(queue) == {"odd seen level": 1}
    restored(queue, ["more"])
    assert mended(queue) == {"odd seen level": 1}
    assert client.hmget(key, "level", "split") == before
    assert (known(queue), queue.stats().done) == (2000, 2001)


@pytest.mark.parametrize("fewer", [{"level": 3, "split": 1}, {"level": 1, "split": 1}, {"level": 3, "split": 2}])
def test_numbers_that_tell_of_fewer_sets_than_there_are_are_odd(
    queue: Queue, client: Any, fewer: dict[str, int]
) -> None:
    key = queue.operations.key("seen")
    before = client.hmget(key, "level", "split")
    assert before == [b"3", b"3"]
    client.hset(key, mapping=fewer)
    assert "odd seen level" in counted(queue)
    assert mended(queue) == {"odd seen level": 1}
    assert client.hmget(key, "level", "split") == before
    assert known(queue) == queue.stats().done == 2000


def test_sets_are_found_behind_one_that_is_gone(queue: Queue, client: Any) -> None:
    key = queue.operations.key("seen")
    client.hset(key, mapping={"level": 2, "split": 1})
    client.delete(queue.operations.key("seen:5"))  # the first one that these numbers do not tell of
    assert "odd seen level" in mended(queue)
    assert client.hmget(key, "level", "split") == [b"3", b"3"]
    restored(queue, TASKS)
    assert known(queue) == queue.stats().done == 2000


def test_as_many_sets_as_a_level_has_are_the_next_level(client: Any, url: str, name: str) -> None:
    with Queue(name, url, keep_done="compact") as queue:
        restored(queue, TASKS[:1500])
        key = queue.operations.key("seen")
        assert client.hmget(key, "level", "split") == [b"3", b"0"]
        client.hdel(key, "level")
        assert mended(queue) == {"odd seen level": 1}
        assert client.hmget(key, "level", "split") == [b"3", b"0"]
        assert mended(queue) == {}
        assert (known(queue), queue.stats().done) == (1500, 1500)
        queue.purge()


def test_a_salt_that_is_gone_is_told_and_what_was_done_before_is_forgotten(queue: Queue, client: Any) -> None:
    client.hdel(queue.operations.key("seen"), "salt")
    assert known(queue) == 0
    assert mended(queue) == {"odd seen salt": 1}
    assert len(client.hget(queue.operations.key("seen"), "salt")) == 40
    restored(queue, TASKS)
    assert known(queue) == 2000
    assert mended(queue) == {}


def test_a_queue_that_has_lost_all_it_knew_of_its_sets_goes_on(queue: Queue, client: Any) -> None:
    client.delete(queue.operations.key("seen"))
    restored(queue, TASKS)
    assert known(queue) == 2000
    assert set(mended(queue)) == {"odd seen salt", "odd seen level", "odd seen count"}
    assert mended(queue) == {}


def test_a_set_that_is_no_set_is_removed(queue: Queue, client: Any) -> None:
    queue.put(f"ready{i}" for i in range(40))  # of which some belong to this set
    gone = client.scard(queue.operations.key("seen:0"))
    client.set(queue.operations.key("seen:0"), "a string")
    assert mended(queue) == {"odd seen:0": 1, "odd seen count": 1}
    assert known(queue) == queue.stats().done == 2000 - gone


@pytest.mark.parametrize("uses", [None, "", "politeness", "x y"])
def test_a_queue_that_does_not_say_any_more_that_it_is_compact_is_found_out_by_its_sets(
    queue: Queue, client: Any, uses: str | None
) -> None:
    meta = queue.operations.key("meta")
    client.hdel(meta, "uses") if uses is None else client.hset(meta, "uses", uses)
    queue.put("lost-from-sight", "ready", TASKS[0])
    queue.ack(queue.claim(5))
    assert client.smembers(queue.operations.key("done")) >= {b"lost-from-sight", TASKS[0].encode()}
    assert mended(queue)["odd meta uses"] == 1
    assert queue.stats().compact
    assert set(mended(queue)) >= {"unpacked"}
    assert client.exists(queue.operations.key("done")) == 0
    assert known(queue) == 2000
    assert queue.states("lost-from-sight").counts() == {"done": 1}
    assert mended(queue) == {}


def test_ids_that_a_hand_adds_to_the_plain_set_become_fingerprints(queue: Queue, client: Any) -> None:
    client.sadd(queue.operations.key("done"), "by-hand", TASKS[7], "ready", "held", *(f"h{i}" for i in range(900)))
    assert queue.states("by-hand", "ready").counts() == {"unknown": 1, "todos": 1}
    assert mended(queue)["unpacked"] == 904
    assert client.exists(queue.operations.key("done")) == 0
    assert queue.states("by-hand", *(f"h{i}" for i in range(900)), TASKS[7]).counts() == {"done": 902}
    assert queue.stats().done == 2901
    # what is ready or held stays so
    assert (queue.stats().todos, queue.stats().in_progress) == (1, 1)


@pytest.mark.parametrize("value", ["forever", "n5", "t1", "no", "x", ""])
def test_a_keep_done_that_a_hand_writes_does_not_end_it(queue: Queue, client: Any, value: str) -> None:
    client.hset(queue.operations.key("meta"), "keep_done", value)
    queue.put("new")
    queue.ack(queue.claim(5))
    assert queue.prune() == 0
    assert queue.states("new").counts() == {"done": 1}
    assert client.hget(queue.operations.key("meta"), "keep_done") == b"compact"
    assert known(queue) == 2000


def test_a_task_that_a_hand_makes_ready_although_it_is_done_is_ready(queue: Queue, client: Any) -> None:
    client.sadd(queue.operations.key("todos"), TASKS[5])
    assert counted(queue) == {"twice": 1}
    assert mended(queue) == {"twice": 1}
    assert queue.states(TASKS[5]).counts() == {"todos": 1}
    assert queue.stats().done == 1999


def test_short_walks_of_cleaners_count_only_if_nothing_happened_meanwhile(queue: Queue, client: Any) -> None:
    ops, key = queue.operations, queue.operations.key("seen")

    def part(cursor: bytes) -> Any:
        return queue.run(sending.answer(queue.talk, ops.repair(3, cursor)))

    def walk(between: Any) -> Counter[str]:
        cursor, found = b"46 0", Counter[str]()
        while cursor.startswith(b"46 "):
            got = part(cursor)
            found.update(got.found)
            cursor = got.cursor
            between()
        return found

    stages = [cursor for cursor in cursors(queue) if len(cursor.split()) == 5]
    assert {cursor.split()[0] for cursor in stages} == {b"46"}, "the sets are the 46th stage of the walk"
    client.hset(key, "count", 5)
    names = count()
    assert walk(lambda: restored(queue, [f"x{next(names)}"])) == {}
    assert walk(lambda: None) == {"odd seen count": 1}
    assert queue.stats().done == 2000 + next(names) > 2001


def cursors(queue: Queue) -> list[bytes]:
    """Walk in short parts; give where each began."""
    cursor, found = b"1 0", list[bytes]()
    while cursor:
        found.append(cursor)
        cursor = queue.run(sending.answer(queue.talk, queue.operations.repair(3, cursor, mend=False))).cursor
    return found


@pytest.mark.parametrize("at", ["x", "1 2", "5 x y z", "99999 1 2 3", "-1 0 0 0", "3 1 1 1"])
def test_a_place_in_the_walk_that_a_hand_writes_leads_nowhere_bad(queue: Queue, client: Any, at: str) -> None:
    client.hset(queue.operations.key("meta"), "walk", f"46 {at}")
    for _ in range(5):
        queue.prune()
    assert known(queue) == queue.stats().done == 2000
