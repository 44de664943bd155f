"""Compact done at the command: how it is set and shown, what is refused with which cure, and what works as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.rig.command import Say, say, server
from timeoutq import Queue

__all__ = ["say", "server"]


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


def test_status_shows_the_count_and_the_word(say: Say, compact: Queue) -> None:
    facts = say("status", compact.name).facts
    assert (facts["done"], facts["known"], facts["keep-done"]) == ("2", "2", "compact")
    (document,) = say("status", compact.name, "--json").documents
    assert (document["stats"]["done"], document["stats"]["settings"]["keep_done"]) == (2, "compact")
    assert say("queues").lines[0][6] == "2"


def test_what_lists_done_tasks_is_refused_with_the_reason_and_the_cure(say: Say, compact: Queue) -> None:
    for words in ("list NAME done", "diff NAME:done -", "requeue NAME --from done", "export NAME"):
        refused = say(*words.replace("NAME", compact.name).split(), stdin=b"a\n")
        assert (refused.code, refused.out) == (2, ""), words
        assert f"queue '{compact.name}' has keep_done=\"compact\": it keeps fingerprints" in refused.err
        assert f"`timeoutq diff FILE {compact.name}:done`; put them with again=True to run them again" in refused.err
        assert ("--without-done" in refused.err) == words.startswith("export")


def test_membership_in_the_done_tasks_works_in_diff_and_intersect(say: Say, compact: Queue, tmp_path: Path) -> None:
    compact.put("ready")
    ids = tmp_path / "ids"
    ids.write_text("a\nready\nx\nb\n")
    assert say("diff", str(ids), f"{compact.name}:done").texts == ["ready", "x"]
    assert say("intersect", str(ids), f"{compact.name}:done").texts == ["a", "b"]
    assert say("diff", "-", f"{compact.name}:done", "--count", stdin=b"a\n").texts == ["0"]
    assert say("diff", f"{compact.name}:todos", f"{compact.name}:done").texts == ["ready"]


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


def test_doctor_says_that_done_tasks_are_compact(say: Say, compact: Queue, raw: redis.Redis) -> None:
    def told() -> list[str]:
        return next(line for line in say("doctor", compact.name).lines if line[0] == "compact")

    assert told()[1:3] == ["green", "done tasks are kept as fingerprints; set-max-intset-entries is 512"]
    raw.config_set("set-max-intset-entries", 100)
    try:
        assert told()[1] == "yellow"
        assert "set-max-intset-entries is 100, so done tasks take" in told()[2]
        assert "CONFIG SET set-max-intset-entries 512, and the same in its configuration" in told()[3]
    finally:
        raw.config_set("set-max-intset-entries", 512)
