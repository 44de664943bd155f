"""The history of a queue: minutes for a day, hours for 90 days; gaps, clock steps, shards, memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from timeoutq import InvalidInput, Period, Queue
from timeoutq.cli.about import pages
from timeoutq.testing import FakeQueue, fake_queue, fake_sharded_queue
from timeoutq.verbs import sending
from timeoutq.watch import report
from timeoutq.words.counts import HAPPENED, periods_of


def plan(queue: Any) -> None:
    """Do what a cleaner does before it sleeps."""
    queue.run(sending.answer(queue.talk, queue.operations.plan(10_000)))


def minutes_pass(queue: FakeQueue, count: int) -> None:
    for _ in range(count):
        queue.clock.advance(60)
        plan(queue)


def test_each_minute_says_how_many_tasks_each_state_had_and_what_happened_in_it() -> None:
    with fake_queue() as queue:
        queue.put("a", "b", "c")
        plan(queue)
        began = queue.clock.now // 60 * 60
        leases = queue.claim(2)
        queue.ack(leases[0])
        queue.fail(leases[1], "E", give_up=True)
        minutes_pass(queue, 1)
        queue.schedule("d", after=600)
        queue.clock.advance(11)
        plan(queue)
        first, second = queue.history(by="minute")
        assert first == Period(
            began, todos=3, waiting=0, scheduled=0, in_progress=0, done=0, failed=0, put=3, claimed=2, acked=1,
            errors=1, expired=0,
        )  # fmt: skip
        assert (second.at, second.todos, second.done, second.failed, second.scheduled) == (began + 60, 1, 1, 1, 0)
        assert (second.put, second.claimed) == (1, 0)


def totals(periods: Sequence[Period]) -> dict[str, int]:
    return {name: sum(getattr(one, name) or 0 for one in periods) for name in HAPPENED}


@pytest.mark.parametrize("later", [0, *(pytest.param(n, marks=pytest.mark.breaking) for n in (11, 61, 3 * 3600))])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_counts_of_a_short_crawl_add_up_to_the_counters(shards: int, later: int) -> None:
    made: Any = fake_sharded_queue(shards=shards) if shards > 1 else fake_queue()
    with made as queue:
        queue.put([f"t{n}" for n in range(100)])
        for talk in queue.shards.talks if shards > 1 else [queue.talk]:  # the first look of a worker, and no other one
            queue.run(sending.answer(talk, talk.operations.plan(10_000)))
        for lease in queue.claim(100):
            if lease.task.endswith("7"):
                queue.fail(lease, "E", give_up=True)
            else:
                queue.ack(lease)
        queue.clock.advance(later)
        of = queue.stats().counters
        sums = {"put": of["put"], "claimed": of["claimed"], "acked": of["acked"], "errors": of["failed"], "expired": 0}
        assert sums == {"put": 100, "claimed": 100, "acked": 90, "errors": 10, "expired": 0}
        for by in ("minute", "hour"):
            assert totals(queue.history(by=by)) == sums
        found = report.gather(queue)
        assert totals(found.minutes) == totals(found.hours) == sums
        shown = report.page(found)
        assert "failed: 10 at last, 10 at most" in shown and "done: 90 at last" in shown
        assert "nothing was noted yet" not in shown.partition("How long handlers ran")[0]


def test_minutes_that_nobody_noted_are_gaps() -> None:
    with fake_queue() as queue:
        queue.put("a")
        minutes_pass(queue, 2)
        queue.clock.advance(180)
        minutes_pass(queue, 1)
        found = queue.history(by="minute")
        assert [one.todos for one in found] == [1, 1, None, None, None, 1]
        assert [one.put for one in found] == [1, 0, None, None, None, 0]
        assert [b.at - a.at for a, b in pairwise(found)] == [60.0] * 5
        # nobody is there any more: the gap grows, and ends now. What happens in it counts before it
        queue.put("b", "c")
        queue.clock.advance(600)
        found = queue.history(by="minute")
        assert [one.todos for one in found][-11:] == [1, *[None] * 9, 3]
        assert [one.put for one in found][-11:] == [2, *[None] * 9, 0]


def test_a_day_of_minutes_and_90_days_of_hours_are_kept_and_no_more() -> None:
    with fake_queue() as queue:
        queue.put("a")
        begun = queue.clock.now
        key = queue.operations.key
        for name, length, most in (("minutes", 60, 1440), ("hours", 3600, 2160)):
            lines = [f"{round((begun - at * length) * 1000)} {' '.join(['1'] * 11)}" for at in range(1, most + 20)]
            for at in range(0, len(lines), 500):
                queue.run(sending.ask(queue.talk, [("RPUSH", key(name), *lines[at : at + 500])]))
        plan(queue)
        minutes_pass(queue, 61)
        both = {"minutes": queue.history(by="minute"), "hours": queue.history(by="hour")}
        for name, most in (("minutes", 1440), ("hours", 2160)):
            found = both[name]
            assert len(found) == queue.run(sending.ask(queue.talk, [("LLEN", key(name))]))[0] == most
            assert {one.todos for one in found} == {1}
            assert sum(one.acked or 0 for one in found) == 0, (
                "what happened before the oldest line is not known any more"
            )


@pytest.mark.parametrize("by", ["day", "", 5, b"minute", True])
def test_what_names_no_period_is_refused(queue: Any, by: Any) -> None:
    with pytest.raises(InvalidInput, match='by= is "minute" or "hour"'):
        queue.history(by=by)


def test_periods_end_where_the_next_begins_and_counters_that_began_anew_count_as_nothing() -> None:
    none = Period(0.0, *[0] * 11)
    lines = [
        replace(none, at=185.0, put=2, acked=1), replace(none, at=121.0, put=9),
        replace(none, at=65.0, put=4, todos=7), replace(none, at=4.0, put=1),
    ]  # fmt: skip
    latest = replace(none, at=190.0, put=5, todos=8)
    found = periods_of(lines, latest, 190.0, 60, 10, whole=False)
    assert [one.put for one in found] == [3, 5, 0, 3]
    assert [one.todos for one in found] == [0, 7, 0, 0]
    assert [one.put for one in periods_of(lines, latest, 190.0, 60, 10, whole=True)] == [4, 5, 0, 3]
    assert [one.put for one in periods_of(lines, None, 190.0, 60, 10, whole=True)] == [4, 5, 0, None]
    assert periods_of([], None, 100.0, 60, 10, whole=True) == []
    assert [one.at for one in periods_of(lines, None, 190.0, 60, 2, whole=True)] == [120.0, 180.0]
    # a queue that nobody has tended
    (alone,) = periods_of([], latest, 190.0, 60, 10, whole=True)
    assert (alone.at, alone.todos, alone.put) == (180.0, 8, 5)


# ---- for a notebook


def test_an_export_gives_every_task_as_a_dict(face: Any) -> None:
    face.put({"a": {"depth": 1}}, "b")
    face.schedule("later", after=60)
    (lease,) = face.claim(1)
    face.fail(lease, "E", give_up=True)
    found = {row["task"]: row for row in face.export()}
    assert {task: row["state"] for task, row in found.items()} == {
        **dict.fromkeys(("a", "b"), "todos"), "later": "scheduled", lease.task: "failed",
    }  # fmt: skip
    assert found[lease.task]["error"] == "E"
    assert found["a"]["payload"] == {"depth": 1}
    assert [row["task"] for row in face.export("scheduled")] == ["later"]


NOTEBOOKS = re.findall(r"```py\n(.*?)```", pages()["history"], re.DOTALL)


@pytest.mark.parametrize("code", NOTEBOOKS)
def test_the_notebooks_of_the_page_run(code: str, url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    monkeypatch.setenv("TIMEOUTQ_URL", url)
    with Queue(name, url) as queue:
        queue.put({"a": 1, "b": 2})
        plan(queue)
        found: dict[str, Any] = {}
        exec(code.replace("crawl", name), found)
        tables = [value for value in found.values() if isinstance(value, pandas.DataFrame)]
        assert sorted(len(table) for table in tables) == [1, 2]
        assert [isinstance(table.index, pandas.DatetimeIndex) for table in tables] == [True, False]
        assert abs(tables[0].index[0].timestamp() - queue.stats().now) < 120
        queue.purge()
