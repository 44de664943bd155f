"""Hostile text goes through every door and comes back as it was; to terminals and logs goes only text."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyte
import pytest
import redis
from rich.console import Console

from tests.rig.command import Say, say, server
from tests.rig.corpus import CORPUS, REFUSED, Text, as_bytes, as_id, stray
from tests.rig.invariants import check
from tests.rig.terminal import on_a_terminal
from timeoutq import Queue
from timeoutq.cli.logs import JsonFormatter, SafeFormatter
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch.draw import render
from timeoutq.watch.snapshot import Snapshot, snapshot
from timeoutq.words.model import Entry, Failure, WorkerInfo
from timeoutq.words.text import safe

__all__ = ["say", "server"]

IDS = [as_id(task) for task in CORPUS.values()]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What a terminal may be sent besides text, by tables and the dashboard drawn once."""


def told(error: str) -> str:
    """Give an error as it is kept: what UTF-8 cannot write is spelt out."""
    return error.encode("utf-8", "backslashreplace").decode()


# ---- the API


def test_every_text_is_an_id_a_payload_and_an_error_and_comes_back_as_it_was(face: Any, url: str) -> None:
    bodies: dict[Text, Any] = {task: as_id(task) if isinstance(task, str) else task for task in CORPUS.values()}
    expected = {as_id(task): body for task, body in bodies.items()}
    assert face.put(bodies).added == len(CORPUS)
    assert set(face.put(list(CORPUS.values()))) == {"todos"}
    with redis.Redis.from_url(url) as raw:
        assert raw.smembers(f"timeoutq:{{{face.name}}}:todos") == {as_bytes(task) for task in CORPUS.values()}

    leases = face.claim(500)
    assert {lease.task: lease.payload for lease in leases} == expected
    assert face.extend(leases).ok == len(IDS)
    assert {entry.task for entry in face.list("in_progress", n=1000).entries} == set(IDS)
    for lease in leases:
        face.fail(lease, lease.task, give_up=True)
    for task in IDS:
        info = face.inspect(task)
        assert (info.state, info.task, info.error, info.payload) == ("failed", task, told(task), expected[task])
    assert {entry.task: entry.error for entry in face.list("failed", n=1000).entries} == {t: told(t) for t in IDS}
    newest = [(failure.task, failure.error) for failure in face.errors(50)]
    assert newest == [(lease.task, told(lease.task)) for lease in leases[:-51:-1]]

    assert face.retry_failed(list(CORPUS.values())) == len(IDS)
    leases = face.claim(500)
    assert {lease.task: lease.payload for lease in leases} == expected
    assert face.release(leases, delay=3600).ok == len(IDS)
    assert {entry.task for entry in face.list("scheduled", n=1000).entries} == set(IDS)
    assert set(face.schedule(list(CORPUS.values()), after=0)) == {"scheduled"}
    assert face.promote_due() == len(IDS)
    first, *others = face.claim(500)
    assert face.ack(first, put=[f"{first.task[:300]}+"]) == "ok"
    assert face.ack(others).ok == len(others)
    assert {entry.task for entry in face.list("done", n=1000).entries} == set(IDS)
    assert dict(face.forget(list(CORPUS.values())).items()) == dict.fromkeys(IDS, "done")
    assert all(face.inspect(task).state is None for task in CORPUS.values())
    assert [taken.task for taken in face.pull(500)] == [f"{first.task[:300]}+"]


# ---- the command


@pytest.fixture
def kept(url: str, name: str) -> Iterator[Queue]:
    """A queue on a server of this file's; after the test its invariants must hold."""
    with Queue(name, url, timeout=60) as opened:
        yield opened
        check(url, name)
        opened.purge()


def test_the_command_says_in_one_line_what_it_was_told_in_many(kept: Queue, say: Say) -> None:
    name = kept.name
    done = say("put", name, "--", *IDS)
    assert (done.code, done.lines) == (0, [[safe(task), "added"] for task in IDS])
    done = say("list", name, "todos", "-n", "1000")
    assert sorted(row[0] for row in done.lines) == sorted(map(safe, IDS))
    done = say("claim", name, "-n", "500", "--json")
    claimed, leases = done.out.encode(), done.documents
    assert {lease["task"] for lease in leases} == set(IDS)
    assert claimed.isascii()
    done = say("list", name, "in_progress", "-n", "1000")
    assert sorted(row[0] for row in done.lines) == sorted(map(safe, IDS))
    token = leases[0]["token"]
    done = say("extend", name, "--token", token, "--timeout", "2m", "--", *IDS)
    assert (done.code, done.lines) == (0, [[safe(task), "ok"] for task in IDS])
    done = say("fail", name, "--give-up", "--error", "a\x1b[2J\nb\u202e", stdin=claimed)
    assert (done.code, {row[1] for row in done.lines}) == (0, {"ok"})
    done = say("list", name, "failed", "-n", "1000")
    assert {(row[0], row[3]) for row in done.lines} == {(safe(task), r"a\x1b[2J\x0ab\u202e") for task in IDS}
    done = say("retry", name, "--", *IDS)
    assert (done.code, done.lines) == (0, [[safe(task), "retried"] for task in IDS])
    assert say("claim", name, "-n", "500").code == 0
    done = say("ack", name, "--token", "some one#1", "--", *IDS)
    assert (done.code, {row[1] for row in done.lines}) == (4, {"lost"})
    assert done.err.count("\n") == 4
    assert say("status", name).code == say("doctor", name).code == say("status", name, "--json").code == 0
    done = say("forget", name, "--yes", "--", *IDS)
    assert (done.code, done.lines) == (0, [[safe(task), "in_progress"] for task in IDS])


class Titled(pyte.Screen):
    """A screen that remembers what only a hostile program would do to it."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines)
        self.done: list[str] = []

    def set_title(self, param: str) -> None:
        self.done.append(f"title {param!r}")

    def set_icon_name(self, param: str) -> None:
        self.done.append(f"icon {param!r}")

    def bell(self, *_: Any) -> None:
        self.done.append("bell")

    def reset_mode(self, *modes: Any, **words: Any) -> None:
        super().reset_mode(*modes, **words)
        self.done.append(f"mode off {modes}")

    def write_process_input(self, data: str) -> None:
        self.done.append(f"answered {data!r}")

    def erase_in_display(self, how: int = 0, *_: Any, **words: Any) -> None:
        super().erase_in_display(how)
        self.done.append(f"erased {how}")


def screen_of(shown: str, width: int, height: int) -> Titled:
    screen = Titled(width, height)
    screen.done.clear()  # what it does to itself to begin with
    pyte.Stream(screen).feed(shown)
    return screen


def test_a_terminal_is_sent_text_and_colours_only(kept: Queue, server: EmbeddedServer) -> None:
    kept.put(list(CORPUS.values()))
    for lease in kept.claim(60):
        kept.fail(lease, lease.task, give_up=True)
    for words in (["list", kept.name, "todos", "-n", "1000"], ["list", kept.name, "failed", "-n", "1000"],
                  ["status", kept.name]):  # fmt: skip
        code, told = on_a_terminal(server.url, *words)
        assert code == 0, told
        shown = told.decode("utf-8")
        assert stray(COLOURS.sub("", shown), "\r\n") == []
        assert screen_of(shown, 120, 40).done == []


# ---- the dashboard


def with_text(seen: Snapshot, text: str) -> Snapshot:
    now = seen.stats.now
    return replace(
        seen,
        queue=text,
        url=f"redis://{text}",
        workers=[WorkerInfo(text, text, 1, 1, 1, 1, 1, now, now)],
        leases=[Entry(text, now, text)],
        due=[Entry(text, now)],
        errors=[Failure(text, now, text)],
        trouble=text,
    )


def drawn(seen: Snapshot, width: int, *, terminal: bool) -> str:
    console = Console(
        width=width, file=io.StringIO(), force_terminal=terminal, color_system="truecolor" if terminal else None,
        highlight=False,
    )  # fmt: skip
    with console.capture() as caught:
        console.print(render(seen, width, 40))
    return caught.get()


UNCERTAIN = {CORPUS["an emoji with a skin"], CORPUS["a flag"]}
"""Two characters that some terminals draw as one and others side by side: nobody can know how wide they are."""


def test_no_text_breaks_the_dashboard(kept: Queue) -> None:
    empty = snapshot(kept)
    for number, text in enumerate([*IDS, *map(as_id, REFUSED.values())]):
        seen, width = with_text(empty, text[:2000]), (80, 132)[number % 2]
        assert stray(drawn(seen, width, terminal=False)) == [], text
        shown = drawn(seen, width, terminal=True)
        assert stray(COLOURS.sub("", shown)) == [], text
        screen = screen_of(shown.replace("\n", "\r\n"), width, 44)
        lines = [line.rstrip() for line in screen.display if line.strip()]
        assert screen.done == [], text
        if text not in UNCERTAIN:
            assert (lines[0][0], lines[-1][0]) == ("╭", "╰"), text
            assert all(line[0] == line[-1] == "│" for line in lines[1:-1]), text


# ---- the logs


def test_one_event_is_one_line_of_a_log() -> None:
    plain = SafeFormatter("%(asctime)s %(levelname)-7s %(message)s")
    for text in [*IDS, *map(as_id, REFUSED.values())]:
        try:
            raise ValueError(text) from KeyError(text)
        except ValueError as error:
            how: Any = {"exc_info": (type(error), error, error.__traceback__), "task": text}
            record = logging.makeLogRecord({"name": "t", "msg": "task %s failed", "args": (text,), **how})
        line = plain.format(record)
        assert stray(line, "") == [], line
        assert "ValueError" in line and "KeyError" in line
        line = JsonFormatter().format(record)
        assert line.isascii() and "\n" not in line
        assert stray("".join(map(str, json.loads(line).values())), "\n") == [], line


def test_the_corpus_holds_what_it_says_and_its_judge_sees_it() -> None:
    assert len(CORPUS) >= 60
    assert len({as_bytes(text) for text in CORPUS.values()}) == len(CORPUS)
    assert max(len(as_bytes(text)) for text in CORPUS.values()) == 1024
    seen = [name for name, text in CORPUS.items() if stray(as_id(text), "")]
    assert len(seen) >= 45
    for bad in ("\x00", "\x1b[m", "\x7f", "\x9b", "\u202e", "\u200b", "\udcff", "\u2028", "\ue000", "\uffff"):
        assert stray(f"a{bad}b") != []
    assert stray("a\nb\tc") == ["'\\t' at 3"]
    assert screen_of("\x1b]2;x\x07\x1b[2J\x07", 80, 24).done == ["title 'x'", "erased 2", "bell"]
