"""What a sharded queue lists by time comes in the order of the times, whichever shard it is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from timeoutq import InvalidInput


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


def test_a_cursor_of_another_walk_is_refused(queue: Any) -> None:
    queue.schedule("a", after=1000)
    for cursor in ("1.0", "0.0.0.0.0.0", "0.0.0.0.-1", "0.0.0.0.y"):
        with pytest.raises(InvalidInput, match="cursor"):
            queue.list("scheduled", cursor)
