"""The commands about a polite queue and its hosts, as transcripts: what they print, what they answer, how they end."""

from __future__ import annotations

import re

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
    assert (found["a.example"]["waiting"], found["a.example"]["delay"]) == (2, 3600)


def test_hosts_come_in_pages(say: Say, polite: Queue) -> None:
    say("put", polite.name, *(f"http://h{i}.example/" for i in range(5)))
    first = say("hosts", polite.name, "-n", "2")
    assert len(first.lines) == 2
    assert first.err == "timeoutq: more with --cursor 2, or --all\n"
    rest = say("hosts", polite.name, "-n", "4", "--cursor", "2")
    assert rest.err == ""
    every = say("hosts", polite.name, "-n", "2", "--all")
    assert (every.lines, every.err) == (first.lines + rest.lines, "")
    assert sorted(line[0] for line in every.lines) == [f"h{i}.example" for i in range(5)]


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
    facts = say("host", polite.name, "a.example", "--usual").facts
    assert (facts["delay"], facts["per host"]) == ("1h", "1")


BAD_RULES = {
    "--per-host x": "neither a whole number nor usual",
    "--per-host 0": "from 1 to 10,000",
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
    assert facts["why it is blocked"] == "Retry-After: 300"
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
    for words in ("", "--for 5m --until 2099-01-01", "--for -5m"):
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
    say("unblock", polite.name, A)
    say("host", polite.name, A, "--budget", "1")
    assert "--budget" in say("why", polite.name, waiting).facts["why"]


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
    assert say("configure", queue.name, "--impolite").code == 0
    assert (queue.stats().politeness, queue.stats().waiting, queue.stats().todos) == (None, 0, 3)


# ---- tasks and leases


def test_a_group_is_the_host_of_what_is_put_or_scheduled_with_it(say: Say, polite: Queue) -> None:
    assert say("put", polite.name, "--group", "Printer", *pages(A, 2), "plain words").code == 0
    assert say("schedule", polite.name, "--group", "Printer", "--after", "1h", "later").code == 0
    assert [line[0] for line in say("hosts", polite.name).lines] == ["printer"]
    assert say("host", polite.name, "printer").facts["waiting"] == "2"
    assert say("inspect", polite.name, "later").facts["host"] == "printer"
    done = say("put", polite.name, "--group", "printer", "--jsonl", stdin=b'{"task": "x", "payload": 1}\n')
    assert (done.code, polite.hosts.inspect("printer").waiting) == (0, 3)


def test_a_release_may_block_its_host(say: Say, polite: Queue) -> None:
    say("put", polite.name, A)
    claimed = say("claim", polite.name, "--json").out
    assert say("release", polite.name, "--block-host", "2h", stdin=claimed.encode()).code == 0
    assert polite.inspect(A).state == "waiting"
    assert say("why", polite.name, A).facts["reason"] == "blocked"
    assert say("claim", polite.name).code == 1
    done = say("release", polite.name, A, "--token", "t#1", "--block-host", "1d")
    assert done.code == 4
    until = polite.hosts.inspect(A).blocked_until
    assert until is not None
    assert until < polite.stats().now + 7201  # a lost lease blocks nobody
