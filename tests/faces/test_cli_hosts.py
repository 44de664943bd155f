"""The commands about a polite queue and its hosts, as transcripts: what they print, what they answer, how they end."""

from __future__ import annotations

import re
import time

import pytest

from tests.rig.command import Say, say, server
from timeoutq import Politeness, Queue

__all__ = ["say", "server"]

A, B = "http://a.example/", "http://b.example:8080/"
COLUMNS = ["host", "waiting", "in_flight", "turn", "delay", "per_host", "budget", "visits", "failures",
           "blocked_until", "banned"]  # fmt: skip


@pytest.fixture
def polite(queue: Queue) -> Queue:
    """A queue whose hosts rest for an hour from the end of a visit to the next."""
    queue.configure(politeness=Politeness(3600))
    return queue


def pages(host: str, n: int) -> list[str]:
    return [f"{host}{i}" for i in range(n)]


# ---- looking at hosts


def test_hosts_are_rows_of_tabs_on_a_pipe_and_documents_with_json(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 3), *pages(B, 1))
    done = say("hosts", polite.name)
    assert (done.code, done.err) == (0, "")
    assert sorted(done.lines) == [
        ["a.example", "2", "1", "-", "1h", "1", "-", "0", "0", "-", "-"],
        ["b.example:8080", "0", "1", "-", "1h", "1", "-", "0", "0", "-", "-"],
    ]
    assert all(len(line) == len(COLUMNS) for line in done.lines)
    found = {document["host"]: document for document in say("hosts", polite.name, "--json").documents}
    assert found.keys() == {"a.example", "b.example:8080"}
    assert found["a.example"]["waiting"] == 2
    assert len(found["a.example"]["in_flight"]) == 1
    assert found["a.example"]["delay"] == 3600


def test_hosts_come_in_pages(say: Say, polite: Queue) -> None:
    say("put", polite.name, *(f"http://h{i}.example/" for i in range(5)))
    first = say("hosts", polite.name, "-n", "2")
    assert len(first.lines) == 2
    assert first.err == "timeoutq: more with --cursor 2, or --all\n"
    second = say("hosts", polite.name, "-n", "2", "--cursor", "2")
    third = say("hosts", polite.name, "-n", "2", "--cursor", "4")
    assert third.err == ""
    names = [line[0] for page in (first, second, third) for line in page.lines]
    assert sorted(names) == [f"h{i}.example" for i in range(5)]
    every = say("hosts", polite.name, "-n", "2", "--all")
    assert ([line[0] for line in every.lines], every.err) == (names, "")
    assert [one["host"] for one in say("hosts", polite.name, "-n", "2", "--all", "--json").documents] == names
    assert say("hosts", polite.name, "--cursor", "9").out == ""


def test_a_host_is_told_in_facts_that_have_something_to_say(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 3))
    facts = say("host", polite.name, "a.example").facts
    assert facts.keys() == {"host", "waiting", "in flight", "next", "delay", "per host", "visits", "failures"}
    assert (facts["waiting"], facts["next"]) == ("2", f"{A}1")
    assert facts["in flight"].startswith(A)
    (lease,) = polite.claim(10)
    polite.ack(lease)
    facts = say("host", polite.name, f"{A}whatever?page=1").facts  # a URL of it will do
    assert (facts["host"], facts["visits"]) == ("a.example", "1")
    assert facts["turn"] == facts["next allowed"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", facts["turn"])
    (document,) = say("host", polite.name, "A.EXAMPLE", "--json").documents
    assert (document["host"], document["visits"], document["blocked_by"]) == ("a.example", 1, "")


# ---- rules of a host


def test_a_host_is_given_rules_of_its_own_and_the_usual_ones_again(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 5))
    facts = say("host", polite.name, "a.example", "--delay", "2.5s", "--per-host", "3", "--budget", "7").facts
    assert (facts["delay"], facts["per host"], facts["budget"]) == ("2.5s", "3", "7")
    assert facts["waiting"] == "2"  # the two new places are taken at once
    facts = say("host", polite.name, "a.example", "--budget", "none").facts
    assert "budget" not in facts
    assert facts["per host"] == "3"  # what is not named stays
    assert say("host", polite.name, "a.example", "--delay", "usual").facts["delay"] == "1h"
    say("host", polite.name, "a.example", "--delay", "250ms")
    facts = say("host", polite.name, "a.example", "--usual").facts
    assert (facts["delay"], facts["per host"]) == ("1h", "1")


def test_a_delay_is_shown_as_it_was_given_however_long(say: Say, polite: Queue) -> None:
    for given, shown in {"30d": "30d", "1ms": "1ms", "0": "0ms", "90m": "90m"}.items():
        assert say("host", polite.name, "a.example", "--delay", given).facts["delay"] == shown


BAD_RULES = {
    "--per-host x": "neither a whole number nor usual",
    "--per-host 0": "from 1 to 10,000",
    "--budget -1": "neither a whole number nor none",
    "--budget usual": "neither a whole number nor none",
    "--delay soon": "is not a length of time",
    "--usual --delay 3s": "give --usual, or",
}


def test_a_rule_that_is_none_is_refused_with_what_would_be_one(say: Say, polite: Queue) -> None:
    before = polite.hosts.set("a.example", delay=2, per_host=3, budget=7)
    for words, said in BAD_RULES.items():
        done = say("host", polite.name, "a.example", *words.split())
        assert (done.code, done.out, said in done.err) == (2, "", True), (words, done.err)
    assert polite.hosts.inspect("a.example") == before


# ---- block, unblock, ban


def test_a_block_keeps_everybody_from_a_host_until_it_ends_or_is_ended(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 2))
    now = polite.stats().now
    facts = say("block", polite.name, "a.example", "--for", "5m", "--reason", "Retry-After: 300").facts
    assert facts["blocked by"] == "Retry-After: 300"
    assert facts["turn"] == facts["blocked until"]
    until = polite.hosts.inspect("a.example").blocked_until
    assert until is not None
    assert now + 300 <= until <= polite.stats().now + 300
    assert say("claim", polite.name).code == 1
    assert say("hosts", polite.name).lines[0][COLUMNS.index("blocked_until")] == facts["blocked until"]
    facts = say("block", polite.name, "a.example", "--until", "2099-01-01T00:00:00Z").facts
    assert facts["blocked until"] == "2099-01-01T00:00:00.000+00:00"
    assert re.search(r":\d+:", facts["blocked by"])  # nobody gave a reason, so it is who did it
    done = say("unblock", polite.name, "a.example")
    assert (done.code, done.facts.keys() & {"blocked until", "blocked by"}) == (0, set())
    assert say("claim", polite.name).code == 0


def test_a_block_of_no_length_is_refused(say: Say, polite: Queue) -> None:
    for words in ("", "--for 5m --until 2099-01-01", "--for soon", "--for -5m", "--until nan"):
        done = say("block", polite.name, "a.example", *words.split())
        assert (done.code, done.out) == (2, ""), words
        assert "for_=" not in done.err  # words of the command, not of the API
    assert polite.hosts.inspect("a.example").blocked_until is None


def test_a_ban_asks_first_and_moves_what_is_ready_to_failed(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 4), B)
    done = say("ban", polite.name, A)
    assert (done.code, done.out) == (2, "")
    assert "Ban host a.example of queue" in done.err
    assert "3 waiting, 1 ready or in progress" in done.err
    assert "--yes" in done.err
    assert polite.hosts.inspect(A).banned is None
    done = say("ban", polite.name, A, "--yes", "--reason", "they asked")
    assert (done.code, done.facts["banned"], done.facts["waiting"]) == (0, "they asked", "0")
    assert polite.stats().failed == 4
    assert {line[3] for line in say("list", polite.name, "failed").lines} == {
        "gave up: host a.example is banned: they asked"
    }
    say("put", polite.name, f"{A}new")
    assert say("put", polite.name, f"{A}new").lines == [[f"{A}new", "failed"]]
    assert next(line for line in say("hosts", polite.name).lines if line[0] == "a.example")[-1] == "they asked"
    assert "banned" not in say("unblock", polite.name, A).facts
    assert say("put", polite.name, f"{A}newer").lines == [[f"{A}newer", "added"]]
    assert say("ban", polite.name, A, "-y", "--json").documents[0]["banned"] == "banned by hand"


# ---- why


def test_why_is_one_sentence_and_one_code(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 3))
    (lease,) = polite.claim(10)
    facts = say("why", polite.name, lease.task).facts
    assert (facts["state"], facts["reason"], facts["host"]) == ("in_progress", "running", "a.example")
    waiting = next(task for task in pages(A, 3) if task != lease.task)
    facts = say("why", polite.name, waiting).facts
    assert (facts["state"], facts["reason"]) == ("waiting", "host_busy")
    assert "1 others" not in facts["why"]
    assert lease.task in facts["why"]
    polite.fail(lease, "HTTP 500", retry_in=60)
    facts = say("why", polite.name, lease.task).facts
    assert (facts["reason"], facts["failures"], facts["last error"]) == ("due", "1", "HTTP 500")
    assert say("why", polite.name, waiting).facts["reason"] == "delay"
    say("block", polite.name, A, "--for", "2h", "--reason", "asleep")
    (document,) = say("why", polite.name, waiting, "--json").documents
    assert (document["code"], document["near"]) == ("blocked", None)
    assert "blocked (asleep) until" in document["message"]
    assert (document["info"]["state"], document["host"]["blocked_by"]) == ("waiting", "asleep")
    say("unblock", polite.name, A)
    say("host", polite.name, A, "--budget", "1")
    facts = say("why", polite.name, waiting).facts
    assert facts["reason"] == "budget"
    assert "--budget" in facts["why"]


# ---- a queue becomes polite, and is no more


PLAIN = [("hosts",), ("host", "a.example", "--delay", "1s"), ("unblock", "a.example")]


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_a_plain_queue_knows_no_hosts_and_says_how_it_would(say: Say, queue: Queue, words: tuple[str, ...]) -> None:
    queue.put(A)
    done = say(words[0], queue.name, *words[1:])
    assert (done.code, done.out) == (2, "")
    cure = re.search(r"run 'timeoutq (configure \S+ --delay 1s)'", done.err)
    assert cure
    assert say(*cure[1].split()).code == 0
    assert say(words[0], queue.name, *words[1:]).code == 0


def test_a_queue_is_made_polite_and_plain_again(say: Say, queue: Queue) -> None:
    say("put", queue.name, *pages(A, 3))
    done = say("configure", queue.name, "--delay", "2m")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert queue.stats().politeness == Politeness(120, 1)
    assert queue.stats().waiting == 2
    say("configure", queue.name, "--per-host", "2")
    assert queue.stats().politeness == Politeness(120, 2)  # the delay stays
    say("configure", queue.name, "--delay", "0")
    assert queue.stats().politeness == Politeness(0, 2)
    assert say("configure", queue.name, "--impolite").code == 0
    assert (queue.stats().politeness, queue.stats().waiting, queue.stats().todos) == (None, 0, 3)
    say("configure", queue.name, "--per-host", "4")
    assert queue.stats().politeness == Politeness(1, 4)  # the usual second


def test_politeness_that_is_none_is_refused_and_nothing_changes(say: Say, polite: Queue) -> None:
    for words in ("--impolite --delay 1s", "--per-host 0", "--delay x", "--per-host 10001", "--delay 99999999d"):
        done = say("configure", polite.name, *words.split())
        assert (done.code, done.out, bool(done.err)) == (2, "", True), words
    assert polite.stats().politeness == Politeness(3600)


def test_drained_waits_for_hosts_and_not_for_what_waits_for_no_time(say: Say, polite: Queue) -> None:
    say("put", polite.name, *pages(A, 3))
    assert say("drained", polite.name, "--wait", "10ms").out == "no\n"
    (lease,) = polite.claim(5)
    polite.ack(lease)
    done = say("drained", polite.name, "--wait", "0s", "--json")
    assert (done.code, done.documents) == (1, [{"drained": False}])  # two wait for its next turn
    say("host", polite.name, A, "--budget", "1")
    done = say("drained", polite.name, "--wait", "5s")
    assert (done.code, done.out) == (0, "yes\n")
    assert polite.stats().waiting == 2
    began = time.monotonic()
    assert say("drained", polite.name, "--wait", "10m").out == "yes\n"
    assert time.monotonic() - began < 60  # not to the end of its time
    assert say("drained", polite.name, "--wait", "long").code == 2


# ---- tasks and leases


def test_a_group_is_the_host_of_what_is_put_or_scheduled_with_it(say: Say, polite: Queue) -> None:
    assert say("put", polite.name, "--group", "Printer", *pages(A, 2), "plain words").code == 0
    assert say("schedule", polite.name, "--group", "Printer", "--after", "1h", "later").code == 0
    assert [line[0] for line in say("hosts", polite.name).lines] == ["printer"]
    assert say("host", polite.name, "printer").facts["waiting"] == "2"
    assert say("inspect", polite.name, "later").facts["host"] == "printer"
    done = say("put", polite.name, "--group", "printer", "--jsonl", stdin=b'{"task": "x", "payload": 1}\n')
    assert (done.code, polite.hosts.inspect("printer").waiting) == (0, 3)
    done = say("put", polite.name, "y", "--group", "")
    assert (done.code, done.out) == (2, "")


def test_a_release_may_block_its_host(say: Say, polite: Queue) -> None:
    say("put", polite.name, A)
    claimed = say("claim", polite.name, "--json").out
    assert say("release", polite.name, "--block-host", "2h", stdin=claimed.encode()).code == 0
    assert polite.inspect(A).state == "waiting"
    assert say("why", polite.name, A).facts["reason"] == "blocked"
    assert say("claim", polite.name).code == 1
    assert say("release", polite.name, "a", "--token", "t#1", "--block-host", "soon").code == 2
    done = say("release", polite.name, A, "--token", "t#1", "--block-host", "1d")
    assert done.code == 4
    until = polite.hosts.inspect(A).blocked_until
    assert until is not None
    assert until < polite.stats().now + 7201  # a lost lease blocks nobody
