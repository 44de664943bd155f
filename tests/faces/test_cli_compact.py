"""Compact done at the command: how it is set and shown, what is refused with which cure, and what works as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from tests.rig.command import Say, say
from timeoutq import Politeness, Queue

__all__ = ["say"]


@pytest.fixture
def compact(queue: Queue) -> Queue:
    """A queue with compact done, two tasks of which are done."""
    queue.configure(keep_done="compact")
    queue.put("a", "b")
    queue.ack(queue.claim(2))
    return queue


def test_configure_sets_it_and_shows_it(say: Say, queue: Queue) -> None:
    assert say("configure", queue.name, "--keep-done", "compact").code == 0
    assert say("configure", queue.name).facts["keep-done"] == "compact"
    assert say("configure", queue.name, "--json").documents[0]["keep_done"] == "compact"
    assert say("configure", queue.name, "--keep-done", "7d").code == 0
    assert say("configure", queue.name).facts["keep-done"] == "7d"


def test_configure_refuses_it_on_a_queue_with_tasks_and_says_what_to_do(say: Say, queue: Queue) -> None:
    queue.put("a", "b")
    refused = say("configure", queue.name, "--keep-done", "compact")
    assert refused.code == 2
    assert "this queue has 2, done ones counted: set it on a new queue" in refused.err
    assert "timeoutq export OLD | timeoutq import NEW" in refused.err
    assert not queue.stats().compact


def test_configure_refuses_to_end_it_while_something_is_done(say: Say, compact: Queue) -> None:
    refused = say("configure", compact.name, "--keep-done", "forever")
    assert (refused.code, "until the queue is purged" in refused.err) == (2, True)
    wrong = say("configure", compact.name, "--keep-done", "compactly")
    assert (wrong.code, "none of: forever, compact, 0" in wrong.err) == (2, True)


def test_status_shows_the_count_and_the_word(say: Say, compact: Queue) -> None:
    facts = say("status", compact.name).facts
    assert (facts["done"], facts["known"], facts["keep-done"]) == ("2", "2", "compact")
    (document,) = say("status", compact.name, "--json").documents
    assert (document["stats"]["done"], document["stats"]["settings"]["keep_done"]) == (2, "compact")
    assert say("queues").lines[0][6] == "2"


def test_done_tasks_are_asked_for_by_their_ids(say: Say, compact: Queue) -> None:
    assert say("states", compact.name, "a", "x").lines == [["a", "done"], ["x", "unknown"]]
    assert say("inspect", compact.name, "a").facts["state"] == "done"
    assert "it is done" in say("why", compact.name, "b").out
    assert say("put", compact.name, "a").lines == [["a", "done"]]
    assert say("put", compact.name, "a", "--again").lines == [["a", "added"]]
    assert say("forget", compact.name, "b", "--yes").code == 0
    assert compact.stats().done == 0


@pytest.mark.parametrize(
    "words",
    [
        ("list", "NAME", "done"), ("list", "NAME", "done", "--all"), ("diff", "NAME:done", "FILE"),
        ("intersect", "NAME:done", "FILE"), ("requeue", "NAME", "--from", "done"), ("export", "NAME"),
        ("requeue", "NAME", "--from", "done", "--dry-run"), ("export", "NAME", "--state", "done"),
    ],
)  # fmt: skip
def test_what_lists_done_tasks_is_refused_with_the_reason_and_the_cure(
    say: Say, compact: Queue, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "ids").write_text("a\nx\n")
    typed = [word.replace("NAME", compact.name).replace("FILE", str(tmp_path / "ids")) for word in words]
    refused = say(*typed)
    assert (refused.code, refused.out) == (2, "")
    assert f"queue '{compact.name}' has keep_done=\"compact\": it keeps fingerprints" in refused.err
    assert f"`timeoutq diff FILE {compact.name}:done`; put them with again=True to run them again" in refused.err
    assert ("--without-done" in refused.err) == (words[0] == "export")


def test_membership_in_the_done_tasks_works_in_diff_and_intersect(say: Say, compact: Queue, tmp_path: Path) -> None:
    compact.put("ready")
    ids = tmp_path / "ids"
    ids.write_text("a\nready\nx\nb\n")
    assert say("diff", str(ids), f"{compact.name}:done").texts == ["ready", "x"]
    assert say("intersect", str(ids), f"{compact.name}:done").texts == ["a", "b"]
    assert say("diff", "-", f"{compact.name}:done", "--count", stdin=b"a\n").texts == ["0"]
    assert say("diff", f"{compact.name}:todos", f"{compact.name}:done").texts == ["ready"]


def test_an_export_without_done_tasks_has_all_the_rest(say: Say, compact: Queue, url: str) -> None:
    compact.configure(politeness=Politeness(5))
    compact.put("ready", "http://a.example/1", "http://a.example/2", again=True)
    compact.schedule("later", after=60)
    lines = [json.loads(line) for line in say("export", compact.name, "--without-done").texts]
    assert lines[0]["politeness"] == {"delay": 5.0, "per_host": 1}
    assert {line["task"] for line in lines if "task" in line} == {
        "ready", "later", "http://a.example/1", "http://a.example/2",
    }  # fmt: skip
    with Queue(f"{compact.name}-plain", url) as plain:
        plain.put("x")
        plain.ack(plain.claim())
        plain.put("y")
        assert len(say("export", plain.name).texts) == 4
        assert len(say("export", plain.name, "--without-done").texts) == 3
        refused = say("export", plain.name, "--state", "done", "--without-done")
        assert (refused.code, "name another state" in refused.err) == (2, True)
        plain.purge()


def test_the_way_that_the_error_names_brings_a_queue_over(say: Say, queue: Queue, url: str) -> None:
    queue.put([f"t{i}" for i in range(700)])
    queue.ack([*queue.claim(500), *queue.claim(100)])
    lines = say("export", queue.name).out
    with Queue(f"{queue.name}-new", url, keep_done="compact") as new:
        new.stats()
        assert say("import", new.name, stdin=lines.encode()).facts["restored"] == "700"
        assert (new.stats().done, new.stats().todos, new.stats().compact) == (600, 100, True)
        assert say("import", new.name, stdin=lines.encode()).facts["known"] == "700"
        assert new.stats().done == 600
        new.purge()


def test_improve_is_refused(say: Say, compact: Queue) -> None:
    compact.configure(politeness=Politeness(0))
    refused = say("put", compact.name, "http://a.example/", "--priority", "1", "--improve")
    assert (refused.code, "which keeps no priorities of done tasks" in refused.err) == (2, True)


def test_purge_counts_the_done_tasks_and_removes_all(say: Say, compact: Queue, raw: redis.Redis) -> None:
    assert say("purge", compact.name, "--yes", "--json").documents == [{"removed": 2}]
    assert raw.keys(f"timeoutq:{{{compact.name}}}:*") == []


def test_doctor_says_that_done_tasks_are_compact(say: Say, compact: Queue, raw: redis.Redis) -> None:
    def told() -> list[str]:
        return next(line for line in say("doctor", compact.name).lines if line[0] == "compact")

    assert told()[1:3] == ["green", "done tasks are kept as fingerprints; set-max-intset-entries is 512"]
    raw.config_set("set-max-intset-entries", 100)
    try:
        assert told()[1] == "yellow"
        assert "set-max-intset-entries is 100, so done tasks take" in told()[2]
        assert "CONFIG SET set-max-intset-entries 512, and the same in its configuration" in told()[3]
        compact.put([f"t{i}" for i in range(150)])
        compact.ack(compact.claim(200))
    finally:
        raw.config_set("set-max-intset-entries", 512)
    assert told()[1:3] == ["yellow", "1 of 1 sets of done tasks that were looked at take too much memory"]
