"""Batches on their way from one queue to another: those that are over are there, and all others are named."""

from __future__ import annotations

import pytest

from tests.faces.test_transfer import other
from tests.rig.command import Say, say, server
from timeoutq import InvalidInput, Politeness, Queue, Task
from timeoutq.rooms import batches as of_batches
from timeoutq.rooms.batches import Joined, Sealed
from timeoutq.watch import transfer

__all__ = ["other", "say", "server"]


def three(queue: Queue) -> None:
    """A sealed batch of three tasks: one is done, one has failed, one is open."""
    queue.batches.put("b", "well")
    queue.batches.put("b", "bad", {"open": 1})
    queue.batches.seal("b", Task("after", {"n": 1}), keep=77)
    for lease in queue.claim(3):
        if lease.task == "well":
            queue.ack(lease)
        elif lease.task == "bad":
            queue.fail(lease, "no", give_up=True)
        else:
            queue.release(lease)


def ends_of(queue: Queue, name: str = "b") -> list[tuple[str, int, str]]:
    return [(member.task, member.place, member.end) for member in queue.batches.members(name)]


@pytest.mark.parametrize("words", [(), ("--state", "todos", "--state", "scheduled")])
def test_a_batch_that_is_not_over_is_left_out_and_named(
    words: tuple[str, ...], say: Say, queue: Queue, other: Queue
) -> None:
    three(queue)
    queue.batches.put("more", "open")
    told = say("export", queue.name, *words)
    assert told.code == 0
    assert f"leaves out batches of queue {queue.name} that are not over (2), and their callbacks: b, more: " in told.err
    assert told.documents[-1] == {"timeoutq": 2, "end": True, "batches_left_out": ["b", "more"]}
    done = say("import", other.name, "--json", stdin=told.raw)
    assert (done.code, done.err, done.documents[0]["restored"]) == (0, "", 1 if words else 3)
    assert other.batches.look("b", "more") == {}
    assert other.states("after") == ["unknown"]
    # the cure, as it is told: the callback comes with the seal
    other.batches.put("b", "open")
    other.batches.seal("b", Task("after", {"n": 1}))
    (lease,) = other.claim(9)
    assert (lease.task, lease.payload) == ("open", 1)
    other.ack(lease)
    assert (other.promote_due(), [lease.task for lease in other.claim(9)]) == (1, ["after"])


def test_a_batch_that_is_over_is_there_after_an_import(say: Say, queue: Queue, other: Queue) -> None:
    queue.batches.put("b", b"\xff", "bad", *(f"t{n}" for n in range(600)))
    queue.batches.seal("b", Task(b"\xfe"), keep=77)
    for leases in (queue.claim(500), queue.claim(500)):
        queue.fail([lease for lease in leases if lease.task == "bad"], "no", give_up=True)
        queue.ack([lease for lease in leases if lease.task != "bad"])
    told = say("export", queue.name)
    assert (told.err, told.documents[-1]) == ("", {"timeoutq": 2, "end": True})
    for members in (602, 0):
        done = say("import", other.name, "--json", stdin=told.raw)
        assert (done.code, done.err) == (0, "")
        assert (done.documents[0]["batches"], done.documents[0]["members"]) == (1, members)
        assert other.batches.look("b")["b"].state == "ended"
        assert ends_of(other) == ends_of(queue)
    # its callback is a task like others, and comes once
    other.promote_due()
    assert [lease.task for lease in other.claim(9)] == ["\udcfe"]


def test_another_batch_of_the_same_name_stays_and_is_named(say: Say, queue: Queue, other: Queue) -> None:
    queue.batches.put("b", "a")
    queue.batches.seal("b")
    queue.ack(queue.claim())
    other.batches.put("b", "mine")
    other.batches.seal("b", on="done")
    done = say("import", other.name, stdin=say("export", queue.name).raw)
    assert done.code == 0
    assert "because the queue lies in shards, or has other batches of these names: b" in done.err
    assert ends_of(other) == [("mine", 1, "open")]


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
    done = say("import", other.name, "--json", stdin=b"".join(lines[:-1]))
    assert (done.code, done.documents[0]["cut"], done.documents[0]["restored"]) == (1, 1, 3)
    assert "the file is cut: the last line of its export is missing" in done.err
    done = say("import", other.name, "--skip-lines", "2", "--json", stdin=b"".join(lines))
    assert (done.code, done.err, "cut" in done.documents[0]) == (0, "", False)
    # also one of two files behind each other; and an end that is skipped is there
    assert say("import", other.name, stdin=b"".join([*lines[:-1], *lines])).code == 1
    assert say("import", other.name, "--skip-lines", f"{len(lines)}", stdin=b"".join(lines)).code == 0
    assert say("import", other.name, stdin=b"").code == 1, "the export before the pipe has failed"
    # an older file promises no end
    assert say("import", other.name, stdin=lines[0].replace(b', "ends": true', b"") + lines[1]).code == 0


def test_a_line_is_read_as_it_was_written_and_one_that_says_something_else_is_refused() -> None:
    for one in (Joined("b", b"\xff", "lost"), Sealed("b", "done", 1500, "abc", b"\xff")):
        assert transfer.read(of_batches.write_line(one).encode()) == one
    for line in (b'{"batch": "a b"}', b'{"batch": "b"}', b'{"batch": "b", "member": "a", "end": []}',
                 b'{"batch": "b", "on": "done", "keep": -1, "digest": "a"}'):  # fmt: skip
        with pytest.raises(InvalidInput):
            transfer.read(line)
