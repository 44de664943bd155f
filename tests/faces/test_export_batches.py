"""Batches on their way from one queue to another: what is open goes on there, and a callback is put once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faces.test_transfer import command, other
from tests.rig.command import Say, say
from timeoutq import InvalidInput, Queue, Task, carrying, sending, transfer
from timeoutq.batches import lines, operations
from timeoutq.batches.operations import Joined, Sealed

__all__ = ["command", "other", "say"]


def three(queue: Queue, on: Any = "ended") -> None:
    """A sealed batch of three tasks: one is done, one has failed, one is open."""
    queue.batches.put("b", "well")
    queue.batches.put("b", "bad", {"open": 1})
    queue.batches.seal("b", Task("after", {"n": 1}), on=on, keep=77)
    for lease in queue.claim(3):
        if lease.task == "well":
            queue.ack(lease)
        elif lease.task == "bad":
            queue.fail(lease, "no", give_up=True)
        else:
            queue.release(lease)


def carried(say: Say, queue: Queue, into: Queue) -> dict[str, int]:
    """Export a queue and import it into another; give what import has counted."""
    told = say("export", queue.name)
    assert (told.code, told.err) == (0, "")
    done = say("import", into.name, "--json", stdin=told.raw)
    assert (done.code, done.err) == (0, "")
    return dict(done.documents[0])


def ends_of(queue: Queue, name: str = "b") -> list[tuple[str, int, str]]:
    return [(member.task, member.place, member.end) for member in queue.batches.members(name)]


def test_a_batch_goes_on_in_another_queue_and_its_callback_is_put_once(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    for members in (3, 0):
        counts = carried(say, queue, other)
        assert (counts["batches"], counts["members"]) == (1, members)
        assert ends_of(other) == ends_of(queue) == [("well", 1, "done"), ("bad", 2, "lost"), ("open", 3, "open")]
        info = other.batches.look("b")["b"]
        assert (info.state, info.outstanding, info.failed, info.callback) == ("sealed", 1, 1, "after")
        assert other.promote_due() == 0
    # whoever has sealed the batch may say so again
    assert other.batches.seal("b", Task("after", {"n": 1}), keep=77).state == "sealed"
    (lease,) = other.claim(9)
    assert (lease.task, lease.payload) == ("open", 1)
    other.ack(lease)
    assert other.promote_due() == 1
    (after,) = other.claim(9)
    assert (after.task, after.payload) == ("after", {"n": 1})
    other.ack(after)
    carried(say, queue, other)
    other.promote_due()
    assert other.claim(9) == []
    assert other.batches.look("b")["b"].state == "ended"


def test_a_task_that_ends_before_its_batch_comes_has_ended(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    found = say("export", queue.name).raw.splitlines(keepends=True)
    tasks = [line for line in found if b'"batch"' not in line]
    assert len(found) - len(tasks) == 4
    assert say("import", other.name, stdin=b"".join(tasks)).code == 0
    other.ack(other.claim(9))
    assert say("import", other.name, stdin=b"".join(found)).code == 0
    assert other.batches.look("b")["b"].state == "ended"
    assert (other.promote_due(), [lease.task for lease in other.claim(9)]) == (1, ["after"])


def test_a_batch_that_is_half_imported_is_not_over_when_its_tasks_are(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    found = say("export", queue.name).raw.splitlines(keepends=True)
    assert say("import", other.name, stdin=b"".join(found[:-3])).code == 0
    other.ack(other.claim(9))
    assert (other.batches.look("b")["b"].state, other.promote_due()) == ("open", 0)
    assert say("import", other.name, stdin=b"".join(found)).code == 0
    assert (other.batches.look("b")["b"].state, other.promote_due()) == ("ended", 1)


def test_a_batch_whose_tasks_must_be_done_fails_its_callback_there(say: Say, queue: Queue, other: Queue) -> None:
    three(queue, on="done")
    carried(say, queue, other)
    other.ack(other.claim(9))
    assert other.batches.look("b")["b"].state == "broken"
    assert other.states("after").counts() == {"failed": 1}


def test_a_task_that_does_not_travel_has_ended_as_it_has_ended(say: Say, queue: Queue, other: Queue) -> None:
    three(queue, on="done")
    queue.retry_failed("bad")
    assert say("import", other.name, stdin=say("export", queue.name, "--without-done").raw).code == 0
    assert ends_of(other) == ends_of(queue) == [("well", 1, "done"), ("bad", 2, "lost"), ("open", 3, "open")]


def test_an_import_into_the_same_queue_changes_nothing(say: Say, queue: Queue) -> None:
    three(queue)
    before, members = queue.batches.look("b"), ends_of(queue)
    assert carried(say, queue, queue)["members"] == 0
    assert (queue.batches.look("b"), ends_of(queue)) == (before, members)
    queue.ack(queue.claim(9))
    carried(say, queue, queue)
    assert (queue.promote_due(), [lease.task for lease in queue.claim(9)]) == (1, ["after"])


def test_an_open_batch_takes_tasks_after_the_import_and_one_that_is_over_stays_over(
    say: Say, queue: Queue, other: Queue
) -> None:
    queue.batches.put("over", b"\xff")
    queue.batches.seal("over", Task(b"\xfe"))
    queue.ack(queue.claim())
    queue.promote_due()
    queue.batches.put("open", [f"t{i}" for i in range(1_100)])
    carried(say, queue, other)
    assert other.batches.look("over")["over"].state == "ended"
    assert ends_of(other, "over") == ends_of(queue, "over")
    assert ends_of(other, "open") == ends_of(queue, "open")
    assert other.batches.look("open")["open"].state == "open"
    other.batches.put("open", "more")
    assert other.batches.look("open")["open"].tasks == 1_101


def test_another_batch_of_the_same_name_stays_and_is_named(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    other.batches.put("b", "mine")
    other.batches.seal("b")
    done = say("import", other.name, stdin=say("export", queue.name).raw)
    assert done.code == 0
    assert "has sealed others of these names: b; forget the callbacks" in done.err
    assert done.err.endswith("for ever: after\n")
    assert ends_of(other) == [("mine", 1, "open")]


def test_tasks_alone_can_be_imported_and_what_waits_for_ever_is_named(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    done = say("import", other.name, "--tasks-only", stdin=say("export", queue.name).raw)
    assert "--tasks-only" in done.err
    assert done.err.endswith("for ever: after\n")
    assert other.batches.look("b") == {}


def test_a_queue_without_batches_is_exported_as_ever(say: Say, queue: Queue) -> None:
    queue.put({"a": 1})
    header, *rest = say("export", queue.name).out.splitlines()
    assert header.startswith(f'{{"timeoutq": 2, "queue": "{queue.name}", "at": ')
    assert rest == ['{"task": "a", "state": "todos", "payload": 1}']


def test_a_call_that_is_sent_again_joins_nothing_twice(queue: Queue) -> None:
    queue.put("a")
    seal = Sealed("b", "ended", 1000, "d", b"")
    call = operations.restore_batch(queue.operations, queue.token, "b", [Joined("b", b"a", "open")], seal)
    assert [queue.run(sending.answer(queue.talk, call)) for _ in range(2)] == [1, 0]
    assert ends_of(queue) == [("a", 1, "open")]
    assert carrying.restore_batches(queue, [seal]) == (0, [])


def test_a_task_that_has_ended_for_a_fifth_batch_joins_it(queue: Queue) -> None:
    for n in range(4):
        queue.batches.put(f"b{n}", "a")
    assert carrying.restore_batches(queue, [Joined("b4", b"a", "done")]) == (1, [])
    with pytest.raises(InvalidInput, match="four batches"):
        carrying.restore_batches(queue, [Joined("b5", b"a", "open")])


@pytest.mark.parametrize(
    "one",
    [
        Joined("b", b"\xff", "lost"),
        Joined("b", b"a", "open"),
        Sealed("b", "done", 1500, "abc", b"\xff"),
        Sealed("b", None, 0, "-", b""),
    ],
)
def test_a_line_is_read_as_it_was_written(one: Joined | Sealed) -> None:
    assert transfer.read(lines.write(one).encode()) == one


@pytest.mark.parametrize(
    "line",
    [
        b'{"batch": "a b"}',
        b'{"batch": "b", "member": ""}',
        b'{"batch": "b", "member": "a", "end": []}',
        b'{"batch": "b", "member_b64": "?"}',
        b'{"batch": "b", "on": "x"}',
        b'{"batch": "b", "on": "done", "keep": 1, "digest": "a b"}',
        b'{"batch": "b", "on": "done", "keep": -1, "digest": "a"}',
        b'{"batch": "b", "on": "done", "keep": 1, "digest": "a", "callback": 1.5}',
    ],
)
def test_a_line_that_says_something_else_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidInput):
        transfer.read(line)
