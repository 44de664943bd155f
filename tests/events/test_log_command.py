"""`timeoutq log` and `timeoutq configure --events`: what they print, what they refuse, and how following ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.rig.command import Say
from tests.rig.command import say as say
from tests.rig.waiting import wait_until
from timeoutq import Queue


@pytest.fixture
def crawl(url: str) -> Iterator[Queue]:
    with Queue("crawl", url) as queue:
        queue.configure(events="64MB")
        queue.put("a", "b")
        (lease,) = queue.claim(1)
        queue.ack(lease)
        yield queue
        queue.purge()


def test_a_line_is_a_move(say: Say, crawl: Queue) -> None:
    done = say("log", "crawl")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert done.code == 0
    assert [line[1] for line in lines] == ["configure", "put", "put", "claim", "ack"]
    assert lines[0][3] == "level all"
    assert [line[3:] for line in lines[1:3]] == [["->todos", "a"], ["->todos", "b"]]
    assert datetime.fromisoformat(lines[1][0]).tzinfo is not None
    assert lines[1][2].startswith(crawl.worker)


def test_a_task_and_a_number_and_a_time_choose(say: Say, crawl: Queue) -> None:
    task = crawl.list("done").entries[0].task
    lines = say("log", "crawl", "--task", task).out.splitlines()
    assert [line.split("\t")[3] for line in lines] == ["->todos", "todos>in_progress", "in_progress>done"]
    assert len(say("log", "crawl", "-n", "1").out.splitlines()) == 1
    assert say("log", "crawl", "-n", "0").out == ""
    assert len(say("log", "crawl", "--since", "0").out.splitlines()) == 5
    assert len(say("log", "crawl", "--since", "10m", "-n", "2").out.splitlines()) == 3
    assert say("log", "crawl", "--since", "2100-01-01T00:00Z").out == ""
    for since in ("noon", "xx", "10 moons"):
        refused = say("log", "crawl", "--since", since)
        assert (refused.code, "10m" in refused.err) == (2, True), since


def test_hostile_text_steers_no_terminal(say: Say, crawl: Queue) -> None:
    crawl.put("\x1b[2J\x07\u202e\t")
    crawl.cancel("\x1b[2J\x07\u202e\t", by="\x1b]0;x\x07")
    out = say("log", "crawl").out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out.splitlines()) == 7


def test_configure_begins_changes_shows_and_ends_the_log(say: Say, url: str) -> None:
    assert say("configure", "fresh", "--events", "64MB").code == 0
    assert "events\t64000000 all" in say("configure", "fresh").out
    assert say("configure", "fresh", "--level", "ends").code == 0
    assert json.loads(say("configure", "fresh", "--json").out)["events"] == "64000000 ends"
    assert say("configure", "fresh", "--events", "much").code == 2
    assert say("configure", "fresh", "--level", "some").code == 2
    assert say("configure", "fresh", "--level", "off").code == 0
    assert "events" not in say("configure", "fresh").out
    assert [line.split("\t")[3] for line in say("log", "fresh").out.splitlines()] == [
        "level all", "level ends", "level off",
    ]  # fmt: skip


def test_following_shows_what_comes_and_ends_with_ctrl_c(crawl: Queue, url: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", "log", "crawl", "-f", "-n", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TIMEOUTQ_URL": url},
    )  # fmt: skip
    try:
        assert program.stdout is not None
        assert "\tack\t" in program.stdout.readline()
        crawl.put("new")
        assert program.stdout.readline().rstrip().endswith("->todos\tnew")
        program.send_signal(signal.SIGINT)
        wait_until(lambda: program.poll() is not None)
        assert program.returncode == 130
    finally:
        program.kill()
        program.communicate()
