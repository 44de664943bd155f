"""An export carries politeness, the rules and counts of hosts, and priorities; an import adds them to what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from tests.faces.test_transfer import contents, ends
from tests.rig.command import Say, say
from tests.rig.invariants import check
from timeoutq import HostInfo, InvalidInput, Politeness, Queue, State, Task
from timeoutq.rooms.hosts import operations
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.watch import transfer
from timeoutq.words import arguments
from timeoutq.words.model import HostRecord

__all__ = ["say"]

HOUR = Politeness(3600, 2)


@pytest.fixture
def other(url: str, name: str) -> Iterator[Queue]:
    """A second queue; its invariants hold in the end too."""
    with Queue(f"{name}-other", url, timeout=5) as opened:
        yield opened
        check(url, opened.name)
        opened.purge()


def visited(queue: Queue) -> None:
    """Make a polite queue with hosts of every kind, and tasks of several priorities."""
    queue.configure(politeness=HOUR)
    queue.put([Task(f"http://a.example/{n}", priority=n - 3) for n in range(6)], "http://plain.example/")
    queue.put("x", "y", "z", group=b"shop\xff".decode("utf-8", "surrogateescape"))
    leases = queue.claim(2)
    queue.ack(leases[0])
    queue.fail(leases[1], "HTTP 500", give_up=True)
    queue.hosts.set("a.example", delay=7200, budget=50)
    queue.hosts.set("wide.example", per_host=5, delay=0)
    queue.hosts.block("b.example", until=4_000_000_000, reason="asked to")
    queue.hosts.ban("trap.example", "spider trap")
    queue.put("http://trap.example/1", "http://b.example/1")


def rules(queue: Queue) -> dict[str, HostInfo]:
    """All that an export tells of hosts, and nothing of their tasks: of equal tasks, which is next is drawn by lot."""
    return {
        info.host: replace(info, waiting=0, in_flight=(), turn=None, busy=0, next_task=None)
        for info in queue.hosts.each()
    }  # fmt: skip


def test_an_import_makes_a_new_queue_polite_and_brings_in_its_hosts(say: Say, queue: Queue, other: Queue) -> None:
    visited(queue)
    exported = say("export", queue.name)
    assert (exported.code, exported.err, exported.raw.isascii()) == (0, "", True)
    first, *lines, last = exported.documents
    assert last == {"timeoutq": 2, "end": True}
    assert first["politeness"] == {"delay": 3600, "per_host": 2}
    hosts = [line for line in lines if "task" not in line]
    assert lines[: len(hosts)] == hosts, "before the tasks"
    done = say("import", other.name, "--json", stdin=exported.raw)
    tasks = len(lines) - len(hosts)
    assert (done.code, done.err) == (0, "")
    assert done.documents == [
        {"lines": len(lines) + 2, "restored": tasks, "known": 0, "broken": 0, "hosts": len(hosts), "hosts_known": 0}
    ]
    assert other.stats().politeness == HOUR
    assert rules(other) == rules(queue)
    known = rules(other)["trap.example"], rules(other)["b.example"], rules(other)["a.example"]
    assert (known[0].banned, known[1].blocked_by, known[1].blocked_until) == ("spider trap", "asked to", 4_000_000_000)
    assert (known[2].delay, known[2].per_host, known[2].budget) == (7200, 2, 50)
    assert (
        sum(one.visits for one in known) + rules(other)["shop\udcff"].visits + rules(other)["plain.example"].visits == 2
    )
    for task, record in contents(queue).items():
        theirs = contents(other)[task]
        assert (theirs.priority, theirs.group, theirs.error) == (record.priority, record.group, record.error)


def test_an_import_that_is_run_again_changes_nothing(say: Say, queue: Queue, other: Queue) -> None:
    visited(queue)
    exported = say("export", queue.name).raw
    assert say("import", other.name, stdin=exported).code == 0
    before, tasks = rules(other), contents(other)
    done = say("import", other.name, "--json", stdin=exported)
    assert (done.code, done.err) == (0, "")
    found = done.documents[0]
    assert (found["restored"], found["hosts"], found["known"]) == (0, 0, len(tasks))
    assert (rules(other), contents(other)) == (before, tasks)
    assert say("export", other.name).raw.count(b'"host"') == exported.count(b'"host"')


def test_tasks_of_one_host_are_visited_in_the_order_of_their_priorities_after_an_import(
    say: Say, queue: Queue, other: Queue
) -> None:
    queue.configure(politeness=Politeness(0))
    queue.put([Task(f"http://a.example/{n}", priority=n * 7 % 10 - 5) for n in range(10)])
    assert say("import", other.name, stdin=say("export", queue.name).raw).code == 0
    order: list[int] = []
    while leases := other.claim(1):
        order.append(other.inspect(leases[0].task).priority)
        other.ack(leases)
    assert order == list(range(4, -6, -1))


def test_what_the_queue_has_already_stays(say: Say, queue: Queue, other: Queue) -> None:
    visited(queue)
    other.configure(politeness=Politeness(5))
    other.hosts.set("a.example", delay=9)
    other.hosts.unblock("trap.example")
    other.configure(politeness=Politeness(0))
    for n in range(2):
        other.put(f"http://plain.example/own{n}")
        other.ack(other.claim(1))
    other.configure(politeness=Politeness(5))
    done = say("import", other.name, "--json", stdin=say("export", queue.name).raw)
    assert done.code == 0
    assert done.err == (
        f"timeoutq: queue {other.name} keeps its own politeness, delay 5s, per host 1; "
        "the file has delay 1h, per host 2\n"
    )
    found = rules(other)
    assert other.stats().politeness == Politeness(5)
    assert (found["a.example"].delay, found["a.example"].budget) == (9, None)
    assert found["plain.example"].visits == 2
    more = b'{"timeoutq": 2}\n{"host": "plain.example", "visits": 9}\n'
    assert say("import", other.name, "--json", stdin=more).documents[0]["hosts_known"] == 1
    assert other.hosts.inspect("plain.example").visits == 2
    assert found["trap.example"].banned == "spider trap", "a host without rules takes those of the file"


def test_a_queue_with_tasks_that_is_not_polite_is_not_made_polite(say: Say, queue: Queue, other: Queue) -> None:
    visited(queue)
    other.put("http://own.example/")
    exported = say("export", queue.name).raw
    done = say("import", other.name, stdin=exported)
    assert (done.code, other.stats().known, other.stats().politeness) == (2, 1, None)
    assert f"queue '{other.name}' has tasks and is not polite" in done.err
    assert f"timeoutq configure {other.name} --delay 3600s --per-host 2" in done.err
    assert "--tasks-only" in done.err
    done = say("import", other.name, "--tasks-only", "--json", stdin=exported)
    assert (done.code, done.documents[0]["hosts"], other.stats().politeness) == (0, 0, None)
    assert other.inspect("http://a.example/5").priority == 2, "kept for politeness that begins later"
    other.configure(politeness=Politeness(5))
    assert say("import", other.name, stdin=exported).code == 0
    assert other.hosts.inspect("trap.example").banned == "spider trap"


def test_hosts_in_the_file_of_a_queue_that_was_not_polite_are_refused(say: Say, queue: Queue) -> None:
    lines = b'{"timeoutq": 2}\n{"host": "a.example", "budget": 5}\n{"task": "a"}\n'
    done = say("import", queue.name, stdin=lines)
    assert (done.code, queue.stats().known) == (2, 0)
    assert f"the file has rules of hosts, and queue '{queue.name}' is not polite" in done.err


def test_a_file_of_the_first_format_still_reads(say: Say, queue: Queue) -> None:
    queue.configure(politeness=Politeness(5))
    lines = (
        b'{"timeoutq": 1, "queue": "old", "at": 1.5}\n{"task": "http://a.example/", "state": "waiting", "group": "b"}\n'
    )
    done = say("import", queue.name, stdin=lines)
    assert (done.code, queue.inspect("http://a.example/").host) == (0, "b")
    assert queue.stats().politeness == Politeness(5)


def test_a_ban_of_the_file_counts_for_the_tasks_behind_it_and_for_those_that_are_ready(say: Say, queue: Queue) -> None:
    queue.configure(politeness=Politeness(0, 3))
    queue.put([f"http://a.example/{n}" for n in range(10)])
    lines = b'{"timeoutq": 2}\n{"task": "http://a.example/new"}\n{"host": "a.example", "banned": "asked"}\n'
    assert say("import", queue.name, stdin=lines).code == 0
    while queue.stats().waiting or queue.stats().todos:
        queue.promote_due()
    assert queue.stats().failed == 11


def test_one_state_alone_is_exported_without_politeness_and_hosts(say: Say, queue: Queue) -> None:
    visited(queue)
    first, *lines, _ = say("export", queue.name, "--state", "failed").documents
    assert "politeness" not in first
    assert {line["state"] for line in lines} == {"failed"}


def test_a_queue_that_has_only_hosts_is_an_export_too(say: Say, queue: Queue, other: Queue) -> None:
    queue.configure(politeness=Politeness(5))
    assert say("export", queue.name).code == 1
    queue.hosts.ban("a.example", "no")
    exported = say("export", queue.name)
    assert (exported.code, exported.err) == (0, "")
    assert say("import", other.name, stdin=exported.raw).code == 0
    assert other.hosts.inspect("a.example").banned == "no"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"timeoutq": 2, "politeness": {"delay": -1}}', "line 1 is broken: delay must be a finite number"),
        (b'{"timeoutq": 2, "politeness": {"per_host": 0}}', "line 1 is broken: per_host must be a whole number"),
        (b'{"timeoutq": 2, "politeness": "usual"}', 'line 1 is broken: "politeness" is an object'),
        (b'{"timeoutq": 2}\n{"host": "a", "budget": -1}', "line 2 is broken: budget must be a whole number"),
        (b'{"timeoutq": 2}\n{"task": "a", "priority": 9999}', "line 2 is broken: priority must be a whole number"),
    ],
)
def test_a_broken_line_about_hosts_or_priorities_is_named(say: Say, queue: Queue, line: bytes, said: str) -> None:
    done = say("import", queue.name, stdin=line + b'\n{"task": "b"}\n')
    assert (done.code, said in done.err, queue.stats().known) == (1, True, 0)


def test_blocks_and_pauses_that_are_over_stay_behind() -> None:
    with fake_queue(politeness=Politeness(10)) as queue:
        queue.put("http://a.example/1")
        queue.ack(queue.claim(1))
        queue.hosts.block("b.example", for_=5)
        now = queue.clock.now
        assert {host.host: host for hosts in transfer.hosts(queue) for host in hosts} == {
            b"a.example": HostRecord(b"a.example", visits=1, next_allowed=now + 10),
            b"b.example": HostRecord(b"b.example", blocked_until=now + 5, blocked_by=queue.worker),
        }
        queue.clock.advance(11)
        assert [host for hosts in transfer.hosts(queue) for host in hosts] == [HostRecord(b"a.example", visits=1)]


def test_a_pause_goes_on_and_is_no_longer_than_the_delay_of_the_queue() -> None:
    with fake_queue(politeness=Politeness(10)) as queue:
        later = queue.clock.now + 1_000_000
        hosts = [
            HostRecord(b"a.example", next_allowed=queue.clock.now + 4),
            HostRecord(b"b.example", next_allowed=later),
        ]
        assert transfer.restore_hosts(queue, hosts) == 2
        queue.put("http://a.example/1", "http://b.example/1")
        assert queue.claim(2) == []
        queue.clock.advance(4)
        queue.promote_due()
        assert [lease.task for lease in queue.claim(2)] == ["http://a.example/1"]
        queue.clock.advance(6)
        queue.promote_due()
        assert [lease.task for lease in queue.claim(2)] == ["http://b.example/1"]


def test_a_task_that_is_to_run_once_more_comes_as_what_it_is_in_its_next_run() -> None:
    with fake_queue(politeness=Politeness(0)) as queue:
        queue.put(Task("http://a.example/", "far", priority=-5))
        queue.claim(1)
        queue.put(Task("http://a.example/", "near", priority=-1, improve=True))
        (record,) = [record for records in transfer.export(queue) for record in records]
        assert (record.state, record.payload, record.priority) == (State.IN_PROGRESS, "near", -1)


def test_a_call_for_hosts_that_is_sent_again_changes_nothing(queue: Queue, raw: redis.Redis) -> None:
    queue.configure(politeness=Politeness(5))
    call = operations.restore_hosts(queue.operations, [HostRecord(b"a.example", banned="no")], queue.token)
    assert queue.run(sending.answer(queue.talk, call)) == 1
    queue.hosts.unblock("a.example")
    again: Any = raw.execute_command
    assert again(*call.command(5)) == 1
    assert queue.hosts.inspect("a.example").banned is None


def test_hosts_need_a_polite_queue() -> None:
    with fake_queue() as queue:
        assert list(transfer.hosts(queue)) == []
        with pytest.raises(InvalidInput, match="is not polite"):
            transfer.restore_hosts(queue, [HostRecord(b"a.example", visits=1)])


def test_a_line_of_a_host_is_read_as_it_was_written() -> None:
    for record in (
        HostRecord(b"a.example", visits=3),
        HostRecord(b"\xff", 0.5, 10_000, 0, 2**53, 7, 4e9, 4e9, "by \x1b[2J me"),
        HostRecord("é".encode(), banned=""),
    ):
        line = transfer.write_host(record)
        assert line.isascii()
        assert transfer.read(line.encode()) == replace(record, host=arguments.host(record.host))
    assert json.loads(transfer.write_host(HostRecord(b"a.example"))) == {"host": "a.example"}


@pytest.mark.breaking
def test_a_hundred_thousand_hosts_take_no_more_memory_than_ten_thousand(tmp_path: Any) -> None:
    with EmbeddedServer() as server:
        used: dict[int, list[int]] = {}
        for size in (10_000, 100_000):
            file = tmp_path / f"{size}.jsonl"
            with Queue(f"q{size}", server.url, politeness=Politeness(1)) as queue:
                for start in range(0, size, 500):
                    some = range(start, start + 500)
                    hosts = [HostRecord(b"h%d.example" % n, budget=n % 9, visits=n % 3, failures=1) for n in some]
                    transfer.restore_hosts(queue, hosts)
                    queue.put([Task(f"http://h{n}.example/", priority=n % 5) for n in some])
                with file.open("wb") as out:
                    used[size] = [ends(server.url, "export", queue.name, stdout=out)]
                used[size].append(ends(server.url, "import", f"{queue.name}-other", str(file)))
                with Queue(f"{queue.name}-other", server.url) as other:
                    assert (other.stats().hosts, other.stats().known) == (queue.stats().hosts, size)
                    assert other.hosts.inspect("h8.example") == queue.hosts.inspect("h8.example")
        more = [large - small for small, large in zip(used[10_000], used[100_000], strict=True)]
        assert max(more) < 6 * 1024, used
