"""What a sharded queue lists by time comes in the order of the times, whichever shard it is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from timeoutq import InvalidInput, Politeness
from timeoutq.watch.snapshot import snapshot


def walked(page_from: Callable[[str | None], tuple[list[Any], str | None]]) -> list[Any]:
    found, cursor = page_from(None)
    while cursor is not None:
        more, cursor = page_from(cursor)
        found += more
    return found


@pytest.mark.parametrize("n", [1, 7, 200])
def test_scheduled_tasks_of_all_shards_are_listed_by_due_time(queue: Any, n: int) -> None:
    wanted = [f"https://h{number * 7 % 40}.example/{number}" for number in range(40)]
    for number, task in enumerate(wanted):
        queue.schedule(task, after=1000 + number)

    def page_from(cursor: str | None) -> tuple[list[str], str | None]:
        page = queue.list("scheduled", cursor, n)
        assert len(page.entries) == n or page.cursor is None
        return [entry.task for entry in page.entries], page.cursor

    assert walked(page_from) == wanted


def test_the_only_host_that_waits_comes_before_many_idle_ones_of_other_shards(queue: Any, url: str, name: str) -> None:
    queue.configure(politeness=Politeness(delay=0.0))
    queue.put(*(f"https://idle{number}.example/" for number in range(60)))
    for lease in queue.claim(60):
        queue.ack(lease)
    queue.put(*(f"https://blocked.example/{number}" for number in range(67)))
    queue.hosts.block("blocked.example", for_=3600)
    queue.put("https://later.example/1")
    queue.hosts.block("later.example", for_=7200)

    assert [host.host for host in queue.hosts.list(n=2).hosts] == ["blocked.example", "later.example"]
    every = walked(lambda cursor: ((page := queue.hosts.list(cursor, 9)).hosts, page.cursor))
    assert len(every) == len({host.host for host in every}) == 62


def test_a_cursor_of_another_walk_is_refused(queue: Any) -> None:
    queue.schedule("a", after=1000)
    for cursor in ("1.0", "0.0.0.0.0.0", "0.0.0.0.-1", "0.0.0.0.y"):
        with pytest.raises(InvalidInput, match="cursor"):
            queue.list("scheduled", cursor)


def test_a_picture_shows_a_busy_host_before_idle_ones_that_have_no_turn_either(url: str, name: str) -> None:
    from timeoutq import ShardedQueue

    with ShardedQueue(name, url, shards=5, politeness=Politeness(delay=0.0, per_host=1)) as queue:
        queue.put(*(f"https://idle{number}.example/" for number in range(30)))
        for lease in queue.claim(30):
            queue.ack(lease)
        queue.put(*(f"https://busy.example/{number}" for number in range(67)))
        seen = snapshot(queue, rows=20).hosts
        queue.purge()
    assert seen[0].host == "busy.example"
