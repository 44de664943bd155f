"""Batches on their way from one queue to another: what is open goes on there, and a callback is put once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faces.test_transfer import command, other
from tests.rig.command import Say, say
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Politeness, Queue, Task, carrying, sending, transfer
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
    assert say("import", other.name, stdin=b"".join(found[:-4])).code == 1
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
    assert rest == ['{"task": "a", "state": "todos", "payload": 1}', '{"timeoutq": 2, "end": true}']
    assert "batches" not in header


def test_batches_are_not_brought_in_while_workers_run_unless_the_queue_is_paused(
    say: Say, queue: Queue, other: Queue
) -> None:
    three(queue)
    exported = say("export", queue.name).raw
    with other.keeper():
        wait_until(lambda: len(other.workers()) == 1)
        done = say("import", other.name, stdin=exported)
        assert (done.code, other.exists()) == (2, False)
        assert done.err.endswith("may count as not done; stop the workers and import then\n"), "nothing to pause yet"
        other.configure(max_crashes=5)
        done = say("import", other.name, stdin=exported)
        assert (done.code, other.stats().known) == (2, 0)
        assert "the file has batches that are not over (1), and workers run on queue" in done.err
        cure = f"or: timeoutq pause {other.name}, and after the import timeoutq resume {other.name}\n"
        assert done.err.endswith(cure)
        assert say("import", other.name, "--tasks-only", stdin=exported).code == 0
        # the cure, as it is told
        assert say("pause", other.name).code == 0
        assert say("import", other.name, stdin=exported).code == 0
        assert say("resume", other.name).code == 0
        assert other.batches.look("b")["b"].state == "sealed"
        # an export without open batches comes in beside workers
        other.ack(other.claim(9))
        assert say("import", other.name, stdin=say("export", other.name).raw).code == 0


def test_the_callback_of_a_batch_that_is_over_does_not_come_again(say: Say, queue: Queue, other: Queue) -> None:
    other.configure(keep_done=0)
    queue.batches.put("b", "a", "c")
    queue.batches.seal("b", Task("after", {"n": 1}), on="done")
    exported = say("export", queue.name).raw
    assert say("import", other.name, stdin=exported).code == 0
    other.ack(other.claim(9))
    assert (other.batches.look("b")["b"].state, other.promote_due()) == ("ended", 1)
    other.ack(other.claim(9))
    # the tasks, which have left no ids, come again; their batch is over, and the callback would wait for ever
    assert say("import", other.name, "--json", stdin=exported).documents[0]["restored"] == 3
    assert other.states("a", "c", "after") == ["todos", "todos", "unknown"]
    other.ack(other.claim(9))
    assert other.drained()
    assert (other.batches.look("b")["b"].state, other.stats().known) == ("ended", 0)


@pytest.mark.parametrize("how", ["--tasks-only", "--state"])
def test_tasks_without_the_limits_of_their_groups_are_told_of_until_they_are_there(
    how: str, say: Say, queue: Queue, other: Queue
) -> None:
    queue.configure(politeness=Politeness(0, 10_000))
    queue.hosts.set("t:acme", delay=0, per_host=1)
    queue.put([Task(f"visit:{n}", group="t:acme") for n in range(3)], Task("free", group="free"))
    whole = say("export", queue.name).raw
    part = whole if how == "--tasks-only" else say("export", queue.name, "--state", "todos", "--state", "waiting").raw
    words = ["import", other.name, "--json", *(["--tasks-only"] if how == "--tasks-only" else [])]
    done = say(*words, stdin=part)
    groups = ["t:acme"] if how == "--tasks-only" else ["t:acme", "free"]  # it has only the names of the groups
    assert (done.code, done.documents[0]["without_rules"], other.stats().todos) == (0, len(groups), 4)
    assert "until a caller or a worker declares them, these calls run without a limit. Before workers run" in done.err
    assert f"timeoutq configure {other.name} --delay 0 --per-host 10000" in done.err
    # the cure, as it is told
    assert say("configure", other.name, "--delay", "0", "--per-host", "10000").code == 0
    done = say(*words, stdin=part)
    assert (done.documents[0]["without_rules"], "timeoutq configure" in done.err) == (len(groups), False)
    assert say("import", other.name, stdin=whole).code == 0
    assert (other.stats().todos, other.hosts.inspect("t:acme").waiting) == (2, 2)
    done = say("import", other.name, "--json", "--tasks-only", stdin=whole)
    assert (done.err, "without_rules" in done.documents[0]) == ("", False)


def test_a_file_that_is_cut_is_brought_in_and_named(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    lines = say("export", queue.name).raw.splitlines(keepends=True)
    done = say("import", other.name, "--json", stdin=b"".join(lines[:-2]))
    assert (done.code, done.documents[0]["cut"], done.documents[0]["restored"]) == (1, 1, 4)
    assert "the file is cut: the last line of its export is missing" in done.err
    done = say("import", other.name, "--skip-lines", "5", "--json", stdin=b"".join(lines))
    assert (done.code, done.err, "cut" in done.documents[0]) == (0, "", False)
    assert other.batches.look("b")["b"].state == "sealed"
    # also one of two files behind each other; and an end that is skipped is there
    assert say("import", other.name, stdin=b"".join([*lines[:-1], *lines])).code == 1
    assert say("import", other.name, "--skip-lines", f"{len(lines)}", stdin=b"".join(lines)).code == 0
    # an older file promises no end
    assert say("import", other.name, stdin=lines[0].replace(b', "ends": true', b"") + lines[1]).code == 0


def test_broken_lines_that_may_be_of_batches_are_told_of(say: Say, queue: Queue, other: Queue) -> None:
    three(queue)
    lines = say("export", queue.name).raw.splitlines(keepends=True)
    done = say("import", other.name, "--lenient", stdin=b"".join([*lines[:-2], b"{\n", lines[-1]]))
    assert done.code == 0
    assert (
        "a line that is left out may be a task of a batch, what the batch is sealed with, or its callback" in done.err
    )


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
