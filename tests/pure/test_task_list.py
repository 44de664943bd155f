"""A list of tasks that were checked."""

from __future__ import annotations

import pytest

from timeoutq import InvalidInput, Task
from timeoutq.words.arguments import TaskList

BAD: dict[str, Task] = {
    "the id": Task("b" * 2_000, {"n": 1}, "h", priority=5, unique=5, rerun=True, improve=True),
    "the payload": Task("b", object(), "h", priority=5, unique=5, rerun=True, improve=True),
    "the group": Task("b", {"n": 1}, "", priority=5, unique=5, rerun=True, improve=True),
    "the priority": Task("b", {"n": 1}, "h", priority=5_000, unique=5, rerun=True, improve=True),
    "no priority": Task("b", {"n": 1}, "h", unique=5, rerun=True, improve=True),
    "unique": Task("b", {"n": 1}, "h", priority=5, unique=-1, rerun=True, improve=True),
    "a flag": Task("b", {"n": 1}, "h", priority=5, unique=5, rerun=True, improve=2),  # type: ignore[arg-type]  # a caller may
}


@pytest.mark.parametrize("what", BAD)
def test_a_task_that_is_refused_leaves_nothing_of_itself_in_a_list(what: str) -> None:
    tasks = TaskList()
    tasks.add("a")
    with pytest.raises(InvalidInput):
        tasks.add(BAD[what])
    assert (tasks, tasks._packed) == (TaskList([b"a"]), 0)
