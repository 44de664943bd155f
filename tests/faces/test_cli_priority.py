"""Priorities at the command: put, schedule and ack give them; why, inspect, list, host and status show them."""

from __future__ import annotations

import pytest

from tests.rig.command import Say, say, server
from timeoutq import Politeness, Queue

__all__ = ["say", "server"]

A = "http://a.example/"


@pytest.fixture
def polite(queue: Queue) -> Queue:
    """A queue that visits one page of a host at a time, without a pause."""
    queue.configure(politeness=Politeness(0))
    return queue


def busy(queue: Queue) -> str:
    """Keep the host busy, so that its other tasks wait; give the lease as `ack` takes it."""
    queue.put(f"{A}busy")
    (lease,) = queue.claim()
    return lease.token


def order(queue: Queue) -> list[str]:
    """Claim and ack until nothing is left; give the pages in the order of their visits."""
    found: list[str] = []
    while leases := queue.claim():
        found.append(leases[0].task.removeprefix(A))
        queue.ack(leases)
    return found


def test_put_takes_a_priority_and_says_what_it_raised(say: Say, polite: Queue) -> None:
    token = busy(polite)
    assert say("put", polite.name, f"{A}1", "--priority", "-3").lines == [[f"{A}1", "added"]]
    assert say("put", polite.name, f"{A}2", "--priority", "5").code == 0
    assert say("put", polite.name, f"{A}3").code == 0
    assert say("put", polite.name, f"{A}1", f"{A}2", "--priority", "4").lines == [
        [f"{A}1", "raised"],
        [f"{A}2", "waiting"],
    ]
    assert say("ack", polite.name, f"{A}busy", "--token", token).code == 0
    assert order(polite) == ["2", "1", "3"]
    assert say("put", polite.name, f"{A}1", "--priority", "5", "--improve").lines == [[f"{A}1", "added"]]


def test_ack_puts_what_it_found_with_a_priority_and_a_group(say: Say, polite: Queue) -> None:
    token = busy(polite)
    polite.put(f"{A}1", priority=-1)
    words = ("--put", "2", "--put", "3", "--group", "a.example", "--priority", "1")
    assert say("ack", polite.name, f"{A}busy", "--token", token, *words).code == 0
    assert [polite.inspect(task).priority for task in ("2", "3")] == [1, 1]
    assert order(polite)[-1] == "1"
    done = say("ack", polite.name, f"{A}1", "--token", "x", "--priority", "1")
    assert (done.code, "add --put" in done.err) == (2, True)


def test_a_priority_on_a_queue_that_is_not_polite_is_refused_with_the_cure(say: Say, queue: Queue) -> None:
    done = say("put", queue.name, f"{A}1", "--priority", "1")
    assert (done.code, queue.stats().known) == (2, 0)
    assert "this queue is not polite" in done.err


def test_why_counts_the_tasks_that_go_before_it(say: Say, polite: Queue) -> None:
    busy(polite)
    polite.put(f"{A}low", priority=-2)
    assert polite.why(f"{A}low").before == 0
    assert "wait" not in say("why", polite.name, f"{A}low").facts["why"]
    polite.put(f"{A}high", priority=7)
    facts = say("why", polite.name, f"{A}low").facts
    assert "; 1 other of that host waits as well, and goes before it, whose priority is -2;" in facts["why"]
    assert (facts["priority"], facts["before it"]) == ("-2", "1")
    facts = say("why", polite.name, f"{A}high").facts
    assert "; 1 other of that host waits as well, and this task goes first: its priority is 7;" in facts["why"]
    polite.put([f"{A}{n:04}" for n in range(1200)])  # those of one ms go in the order of their ids
    assert "1,201 others of that host wait as well, and 1 of them goes before it" in polite.why(f"{A}0000").message
    assert say("why", polite.name, f"{A}1199", "--json").documents[0]["before"] == 1200
