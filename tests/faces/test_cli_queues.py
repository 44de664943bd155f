"""Which queues are there: `timeoutq queues`, names that nothing was put to, and what a shell completes."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import typer

from tests.rig.command import Say, say, server
from timeoutq import Queue, cli
from timeoutq.cli import command
from timeoutq.cli.lines import Sink
from timeoutq.verbs import sending
from timeoutq.watch import directory

__all__ = ["say", "server"]


@pytest.fixture
def web(url: str) -> Iterator[Queue]:
    """A queue that is there, with a task in most states."""
    with Queue("web", url, timeout=60) as opened:
        opened.put([f"t{i}" for i in range(6)])
        done, failed, *_ = opened.claim(3)
        opened.ack(done)
        opened.fail(failed, "HTTP 404", give_up=True)
        opened.schedule("later", after=3600)
        yield opened


# ---- timeoutq queues


def test_the_queues_of_a_server_are_listed_with_what_is_in_them(say: Say, url: str, web: Queue) -> None:
    with Queue("crawl.2", url) as other:
        other.put("a")
        other.pause()
    done = say("queues")
    assert (done.code, done.err) == (0, "")
    assert done.lines == [
        ["crawl.2", "1", "1", "0", "0", "0", "0", "0", "0", "paused"],
        ["web", "7", "3", "0", "1", "1", "1", "1", "0", "-"],
    ]
    found = {document["queue"]: document for document in say("queues", "--json").documents}
    assert (found["web"]["known"], found["web"]["in_progress"]) == (7, 1)


def test_many_queues_are_printed_in_blocks_while_others_are_still_to_be_counted(
    say: Say, url: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{number:04}" for number in range(1200)]
    with raw.pipeline(transaction=False) as many:
        for name in names:
            many.hset(f"timeoutq:{{{name}}}:meta", "schema", "3")
            many.sadd(f"timeoutq:{{{name}}}:todos", "a")
        many.execute()
    blocks: list[tuple[int, int]] = []
    counted, look, echo = 0, directory.look, typer.echo

    def counting(queue: Queue, found: list[str]) -> Iterator[directory.Listed]:
        nonlocal counted
        for one in look(queue, found):
            counted += 1
            yield one

    def printing(text: str, **how: Any) -> None:
        blocks.append((counted, text.count("\n") + 1))
        echo(text, **how)

    monkeypatch.setattr(directory, "look", counting)
    monkeypatch.setattr(typer, "echo", printing)
    reads = raw.info("stats")["total_reads_processed"]
    done = say("queues")
    assert raw.info("stats")["total_reads_processed"] - reads < 60, "one question is about many queues"
    assert blocks == [(500, 500), (1000, 500), (1200, 200)], "how many were counted, and how many lines were printed"
    assert [line[0] for line in done.lines] == names
    blocks.clear()
    Sink(True).rows(("task",), ((name,) for name in names))
    assert [lines for _, lines in blocks] == [500, 500, 200]


def test_a_server_without_queues_says_so(say: Say) -> None:
    done = say("queues")
    assert (done.code, done.out) == (1, "")
    assert "there is no queue at redis://" in done.err


def test_a_worker_that_waits_for_the_first_task_is_listed_and_a_cleaner_is_not(say: Say, url: str) -> None:
    with Queue("new", url) as new, Queue("swept", url) as swept:
        new.run(sending.answer(new.talk, new.operations.beat("w1", {"pid": 1})))
        for queue in (new, swept):
            queue.run(sending.answer(queue.talk, queue.operations.plan(1000)))
    assert [[line[0], line[1], line[8]] for line in say("queues").lines] == [["new", "0", "1"]]


def test_a_server_that_refuses_every_queue_ends_the_command_with_3(
    say: Say, url: str, web: Queue, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = raw
    client.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", "~timeoutq:{other}:*", "+@all")
    try:
        monkeypatch.setenv("TIMEOUTQ_URL", re.sub("//[^@/]*@", "//few:secret@", url))
        done = say("queues")
        assert (done.code, "web" in done.out, "none of the queues at" in done.err) == (3, True, True)
        with Queue("other", url) as other:
            other.put("a")
        done = say("queues")
        assert (done.code, done.err) == (0, "")
        assert [line[:2] for line in done.lines] == [["other", "1"], ["web", "-"]]
        assert "refuses access" in done.lines[1][-1]
    finally:
        client.acl_deluser("few")


# ---- a name that nothing was put to

ACTS = {
    "status": (1, ""), "dashboard": (1, ""), "list WBE todos": (1, ""), "inspect WBE a": (1, ""),
    "states WBE a": (1, ""), "why WBE a": (1, ""), "drained WBE": (1, ""), "drained WBE --wait 5m": (1, ""),
    "doctor WBE": (1, ""), "claim WBE": (1, ""), "claim WBE --wait 10ms": (1, ""), "pull WBE": (1, ""),
    "retry WBE --all": (1, ""), "retry WBE a": (1, ""), "forget WBE a --yes": (1, ""), "pause WBE": (1, ""),
    "resume WBE": (1, ""), "configure WBE": (1, ""), "purge WBE --yes": (1, ""), "hosts WBE": (1, ""),
    "host WBE a.example": (1, ""), "block WBE a.example --for 5m": (1, ""), "unblock WBE a.example": (1, ""),
    "ban WBE a.example --yes": (1, ""), "requeue WBE --from done --yes": (1, ""), "export WBE": (1, ""),
    "cancel WBE a": (1, ""), "log WBE": (1, ""), "failures WBE": (1, ""), "failures WBE --retry a": (1, ""),
    "report WBE --json": (1, ""), "result WBE a": (1, ""), "calls WBE": (1, ""), "functions WBE": (1, ""),
    "diff WBE:done web:done": (1, ""), "diff web:done WBE:done": (1, ""), "intersect WBE:done web:done": (1, ""),
    # a lease on a queue that was purged is lost before all else
    "ack WBE a --token w#1": (4, "a\tlost\n"), "extend WBE a --token w#1": (4, "a\tlost\n"),
    "release WBE a --token w#1": (4, "a\tlost\n"), "fail WBE a --token w#1 --give-up": (4, "a\tlost\n"),
}  # fmt: skip
"""Commands that read or act on a queue which must be there: their exit code and what they print."""

CREATES = {
    "put WBE a", "schedule WBE a --after 1h", "import WBE", "configure WBE --keep-done 7d",
    "worker WBE tests.rig.handlers:work --burst --no-supervise --log-level error",
}  # fmt: skip
"""Commands that make a queue on purpose, or wait at one; `cleaner` waits too, without an end."""

OTHERS = {"cleaner", "bench", "check", "help", "server", "queues", "call", "web", "push", "protocol", "library"}
"""Commands that wait at queues, have nothing to do with one, or take an app, which says what its queues are called."""


def test_each_command_is_in_one_of_the_tables() -> None:
    known = {command.name or getattr(command.callback, "__name__", "") for command in cli.app.registered_commands}
    named = {words.split()[0] for words in (*ACTS, *CREATES)} | OTHERS
    assert named == known, "name the command in ACTS, CREATES or OTHERS of this file"


def test_a_mistyped_queue_is_unknown_and_nothing_is_made_of_it(say: Say, web: Queue, raw: redis.Redis) -> None:
    for given, (code, out) in ACTS.items():
        words = given if "WBE" in given else f"{given} WBE"
        before = raw.dbsize()
        done = say(*words.replace("WBE", "wbe").split())
        assert (done.code, done.out if words[:6] != "doctor" else "") == (code, out), words
        shown = done.err + done.out
        assert "queue wbe is unknown: nothing was put to it at redis://" in shown, words
        assert "did you mean web?" in shown, words
        assert raw.dbsize() == before, words


def test_a_name_of_one_or_two_letters_is_like_no_other() -> None:
    assert directory.alike("wbe", ["web", "mail"]) == ["web"]
    assert directory.alike("ka", ["a", "kb", "k"]) == []


def test_what_makes_a_queue_says_nothing_of_an_unknown_one(say: Say, web: Queue, url: str) -> None:
    for words in sorted(CREATES):
        done = say(*words.replace("WBE", "wbe").split(), stdin=b'{"timeoutq": 1}\n{"task": "a"}\n')
        assert done.code == 0, done.err
        assert "unknown" not in done.err
        with Queue("wbe", url) as made:
            assert made.exists() is (words[:6] != "worker"), words
            made.purge()


def test_a_queue_exists_from_the_first_put_or_setting_until_it_is_purged(face: Any, raw: redis.Redis) -> None:
    assert not face.exists()
    assert face.drained()
    face.claim()
    assert not face.exists()
    face.put("a")
    face.forget("a")
    assert face.exists()
    face.purge()
    assert not face.exists()
    face.configure(keep_done=0)
    assert face.exists()
    face.put("b")
    raw.delete(face.operations.key("meta"))
    assert face.exists()
    assert face.stats().exists


# ---- what a shell completes


Press = Callable[..., tuple[list[str], str]]


@pytest.fixture
def press(say: Say, monkeypatch: pytest.MonkeyPatch) -> Press:
    """Press Tab behind a line; give what is offered, and what is said besides."""

    def call(line: str, **environment: str) -> tuple[list[str], str]:
        with monkeypatch.context() as patch:
            patch.setattr(command, "PATIENCE", 30)  # a machine may have much to do
            patch.delattr(sys.modules["__main__"], "__package__", raising=False)  # it would name the program
            done = say(
                _TIMEOUTQ_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1),
                **environment,
            )  # fmt: skip
        return done.out.split(), done.err

    return call


def test_names_of_queues_are_completed_and_a_side_of_a_comparison_queue_first(press: Press, web: Queue) -> None:
    assert press("timeoutq status w") == (["web"], "")
    assert press("timeoutq diff w") == (["web:"], "")


def test_completion_is_silent_and_soon_where_no_server_answers(press: Press) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for address in ("redis://127.0.0.1:1/0", f"redis://127.0.0.1:{mute.getsockname()[1]}/0", "http://x"):
            began = time.monotonic()
            context = typer.Context(typer.main.get_command(cli.app), resilient_parsing=True)
            context.params["url"] = address
            assert command.queue_names(context, "w") == []
            assert time.monotonic() - began < 2 * command.PATIENCE + 1
    assert press("timeoutq status w", TIMEOUTQ_URL="redis://x?bogus=1") == ([], "")
