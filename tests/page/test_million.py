"""The page in front of many tasks: the small form of `python -m tests.rig.million`."""

from __future__ import annotations

from tests.rig import million


def test_a_page_costs_the_server_little_however_many_tasks_and_viewers_there_are() -> None:
    found = million.run(60_000, 4_000, seconds=6.0)
    assert found.tasks == 60_000
    assert found.failed == 4_000
    # how quick a first view is, is for the long form: here other tests run beside it
    assert [line for line in found.wrong() if "first view" not in line] == []
    assert found.one > 0
