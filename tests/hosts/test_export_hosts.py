"""An export carries politeness, the rules and counts of hosts, and priorities; an import adds them to what is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from tests.faces.test_transfer import contents
from tests.rig.command import Say, say
from tests.rig.invariants import check
from timeoutq import HostInfo, Politeness, Queue, Task
from timeoutq.rooms import hosts as of_hosts
from timeoutq.verbs import sending
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


def test_a_call_for_hosts_that_is_sent_again_changes_nothing(queue: Queue, raw: redis.Redis) -> None:
    queue.configure(politeness=Politeness(5))
    call = of_hosts.restore_hosts(queue.operations, [HostRecord(b"a.example", banned="no")], queue.token)
    assert queue.run(sending.answer(queue.talk, call)) == 1
    queue.hosts.unblock("a.example")
    again: Any = raw.execute_command
    assert again(*call.command(5)) == 1
    assert queue.hosts.inspect("a.example").banned is None


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
