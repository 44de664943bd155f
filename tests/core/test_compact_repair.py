"""A queue with fingerprints of done tasks goes on when a hand writes over what it knows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.rig.invariants import a_minute_later, check_keys
from timeoutq import Queue
from timeoutq.verbs import flows, sending
from timeoutq.words.model import Record, State

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


@pytest.mark.parametrize("field", ["level", "split"])
@pytest.mark.parametrize("value", [None, "x", "4000000000"])
def test_the_number_of_sets_is_found_by_their_names_if_nothing_else_tells_it(
    queue: Queue, client: Any, field: str, value: str | None
) -> None:
    key = queue.operations.key("seen")
    client.hdel(key, field) if value is None else client.hset(key, field, value)
    assert known(queue) == 2000
    restored(queue, [f"more{i}" for i in range(500)])
    assert (known(queue), queue.stats().done) == (2000, 2500)


def test_a_task_that_a_hand_makes_ready_although_it_is_done_is_ready(queue: Queue, client: Any) -> None:
    client.sadd(queue.operations.key("todos"), TASKS[5])
    assert counted(queue) == {"twice": 1}
    assert mended(queue) == {"twice": 1}
    assert queue.states(TASKS[5]).counts() == {"todos": 1}
    assert queue.stats().done == 1999
