"""The dashboard: what it draws is a function of a snapshot; hostile text steers nothing; it lives through outages."""

from __future__ import annotations

import io
import json
import re
import signal
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.rig import canary
from tests.rig.terminal import Terminal
from timeoutq import Queue
from timeoutq.client import heartbeat
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch.draw import BARS, render, share_rows, split_cells
from timeoutq.watch.snapshot import Memory, Snapshot, rates, series, to_json
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.model import SILENT, Entry, Failure, WorkerInfo

NOW = 1_790_000_000.0


def stats(**given: Any) -> Stats:
    values: dict[str, Any] = {
        "now": NOW, "todos": 1200, "scheduled": 30, "in_progress": 400, "done": 186_000, "failed": 21, "paused": False,
        "counters": {"put": 187_651, "claimed": 186_500, "acked": 186_000, "failed": 121, "expired": 3},
        "todos_since": NOW - 3, "workers": 3,
    }  # fmt: skip
    return Stats(**{**values, **given})


def hand_made(**given: Any) -> Snapshot:
    counted = given.get("stats", stats())
    end = counted.sample
    history = [
        replace(end, at=NOW - 10 * n, put=end.put - 20 * n, acked=end.acked - 125 * n, failed=end.failed - n)
        for n in range(60, 0, -1)
    ]
    values: dict[str, Any] = {
        "queue": "crawl",
        "url": "redis://localhost:6379/0",
        "stats": counted,
        "workers": [
            WorkerInfo(f"web{i}:400{i}:abcd", f"web{i}", 4000 + i, 100, 90 + i, 62_000 + i, i, NOW - 900, NOW - i - 0.5)
            for i in range(3)
        ],
        "leases": [Entry(f"https://example.com/page/{i}", NOW + 4 + i, f"web{i}:400{i}:abcd") for i in range(9)],
        "due": [Entry(f"https://example.com/news/{i}", NOW + 60 * (i + 1)) for i in range(9)],
        "errors": [Failure(f"https://example.com/broken/{i}", NOW - 5, "ValueError: bad page") for i in range(9)],
        "history": [*history, end],
    }
    return Snapshot(**{**values, **given})


def drawn(seen: Snapshot, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False, highlight=False)
    with console.capture() as caught:
        console.print(render(seen, width, height))
    return caught.get().splitlines()


def is_harmless(text: str) -> bool:
    return all(c == "\n" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in text)


# ---- what is drawn


def test_eighty_columns_show_everything() -> None:
    lines = drawn(hand_made())
    text = "\n".join(lines)
    assert len(lines) == 24
    assert all(cell_len(line) == 80 for line in lines)
    assert "timeoutq crawl at redis://localhost:6379/0" in lines[0]
    assert "1,200 todos + 30 scheduled + 400 in_progress + 186,000 done + 21 failed" in lines[2]
    assert "= 187,651 known" in lines[3]
    assert re.search(r"put 2\.0/s +ack 12\.5/s +fail 0\.1/s +expired 0/s +ready tasks for", lines[4])
    assert lines[5].rstrip("│ ").endswith(" 3.0 s")
    assert set("".join(BARS)) & set(lines[5])
    assert re.search(r"workers 3 +pid +slots +held +acked +failed +last beat", text)
    assert re.search(r"web1 +4001 +100 +91 +62k +1 +1\.5 s", text)
    assert re.search(r"https://example.com/page/0 +web0:4000 +4\.0 s", text)
    assert re.search(r"https://exam\S* +ValueError: bad page +5\.0 s", text)
    assert re.search(r"https://example.com/news/0 +60 s", text)


def test_tasks_that_leave_no_id_in_done_are_counted_all_the_same() -> None:
    calls = stats(todos=1, scheduled=0, in_progress=0, done=0, failed=0, counters={"acked": 2900}, workers=0)
    assert "= 1 known, 2,900 acked in all" in drawn(Snapshot("crawl", "redis://x", calls))[3]


def test_an_empty_queue_says_so_calmly() -> None:
    empty = stats(todos=0, scheduled=0, in_progress=0, done=0, failed=0, counters={}, todos_since=None, workers=0)
    lines = drawn(Snapshot("crawl", "redis://x", empty))
    assert "0 todos + 0 scheduled + 0 in_progress + 0 done + 0 failed = 0 known" in lines[2]
    assert "░" * 76 in lines[1]
    assert "put —/s" in lines[3]
    assert re.search(r"│ .* +— +│", lines[4])
    assert "none at work" in "\n".join(lines)


def test_pause_trouble_and_an_overdue_lease_are_seen() -> None:
    late = hand_made(stats=stats(paused=True), leases=[Entry("late", NOW - 2.1, "w:1:r")])
    text = "\n".join(drawn(replace(late, trouble="no answer from redis://x", stale=75)))
    assert "PAUSED" in text
    assert "no answer from redis://x — as it was 75 s ago" in text
    assert re.search(r"late +w:1 +-2\.1 s", text)


def test_dead_workers_are_marked_come_last_and_are_not_counted_among_the_living() -> None:
    dead = WorkerInfo("w9:1:r", "dead", 9, 1, 1, 1, 1, NOW - 900, NOW - 120)
    seen = hand_made(workers=[*hand_made().workers, dead])
    text = "\n".join(drawn(seen, 80, 40))
    assert "† dead" in text
    assert "workers 3 (1 gone)" in text


def test_a_worker_is_gone_after_half_a_minute_and_one_that_cannot_go_on_is_shown_with_the_reason() -> None:
    one = WorkerInfo("w9:1:r", "h9", 9, 1, 1, 1, 1, NOW - 900, NOW - 30.0, "only 0 of 1 replica confirmed it")
    lines = drawn(hand_made(workers=[one]), 160)
    at = next(i for i, line in enumerate(lines) if line.startswith("│ h9 "))
    assert lines[at + 1].startswith("│   only 0 of 1 replica confirmed it ")
    seen = hand_made(workers=[replace(one, beat=NOW - 30.1)], stats=stats(settings={"lease_ms": "3600000"}))
    assert (len(seen.living), len(seen.gone)) == (0, 1)
    assert 3 * heartbeat.BEAT_AT_MOST <= SILENT


def test_after_the_clock_of_the_server_stepped_back_rates_begin_anew() -> None:
    memory = Memory()

    def look(at: float, put: int, older: Sequence[Sample] = ()) -> Snapshot:
        seen = hand_made(stats=stats(now=at, counters={"put": put}), history=[*older, Sample(at, put=put)])
        return memory.add(seen)

    seen = [look(1000.0 + i, 10 * i) for i in range(5)][-1]
    assert rates(seen.history)["put"] == pytest.approx(10)
    seen = look(400.0, 50)  # ten minutes back
    assert [sample.at for sample in seen.history] == [400.0]
    assert rates(seen.history) == {}
    seen = look(401.0, 70, older=[Sample(300.0, put=0), Sample(1004.0, put=40)])
    assert [sample.at for sample in seen.history] == [300.0, 400.0, 401.0]


# ---- hostile text


def hostile(text: str) -> Snapshot:
    return hand_made(
        url=f"redis://{text}",
        workers=[WorkerInfo(text, text, 1, 1, 1, 1, 1, NOW, NOW), WorkerInfo(text, "", 1, 1, 1, 1, 1, NOW, NOW)],
        leases=[Entry(text, NOW, text)],
        due=[Entry(text, NOW)],
        errors=[Failure(text, NOW, text)],
        trouble=text,
    )


@given(st.text(alphabet=st.characters(), max_size=60), st.sampled_from([60, 80, 139, 140, 200]))
def test_no_text_breaks_the_frame(text: str, width: int) -> None:
    lines = drawn(hostile(text), width)
    assert is_harmless("\n".join(lines))
    json.dumps(to_json(hostile(text)), ensure_ascii=True)
    assert len(lines) <= 24
    assert all(line[0] in "╭│╰" and line[-1] in "╮│╯" and cell_len(line) == width for line in lines)


# ---- the pure parts


@given(st.lists(st.integers(0, 10**12), min_size=5, max_size=5), st.integers(5, 300))
def test_split_cells_always_adds_up(counts: list[int], width: int) -> None:
    found = split_cells(counts, width)
    assert sum(found) == (width if any(counts) else 0)
    assert all((share > 0) == (count > 0) for share, count in zip(found, counts, strict=True))


@given(st.lists(st.integers(0, 30), max_size=5), st.integers(-5, 60))
def test_rows_are_shared_within_the_room(wanted: list[int], room: int) -> None:
    given_rows = share_rows(wanted, room)
    used = sum(rows + 2 for rows in given_rows if rows)
    assert used <= max(0, room)
    assert all(rows <= most for rows, most in zip(given_rows, wanted, strict=True))
    if used + 1 <= room and all(given_rows[i] for i in range(len(wanted)) if wanted[i]):
        assert given_rows == wanted


def test_rates_come_from_the_last_ten_seconds() -> None:
    history = [Sample(0, put=0), Sample(100, put=1000), Sample(105, put=1000), Sample(112, put=1120)]
    assert rates(history)["put"] == pytest.approx(10)
    assert rates(history[:1]) == {}
    assert rates([Sample(5), Sample(5)]) == {}
    assert rates([Sample(0, put=9), Sample(10, put=0)])["put"] == 0  # purged in between


def test_a_sparkline_has_even_steps_whenever_the_samples_came() -> None:
    history = [Sample(0, put=0), Sample(30, put=300), Sample(31, put=310), Sample(33, put=330), Sample(40, put=330)]
    assert series(history, "put", 4) == pytest.approx([10, 10, 10, 3])
    assert series(history[:1], "put", 4) == []
    assert series([Sample(0), Sample(5, put=5)], "put", 40) == pytest.approx([1] * 5)


# ---- on a server


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as running:
        yield running


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def open_terminal(name: str, url: str, *arguments: str, **size: int) -> Terminal:
        made.append(Terminal(name, url, *arguments, **size))
        return made[-1]

    yield open_terminal
    for terminal in made:
        terminal.close()


def test_it_runs_in_a_terminal_follows_the_queue_and_its_size_and_q_leaves(
    server: EmbeddedServer, terminals: Callable[..., Terminal]
) -> None:
    with Queue("live", server.url) as queue:
        queue.put([f"\x1b[2J\x1b]0;evil\x07{i}\n\u202e" for i in range(3)])
        queue.claim(2)
        terminal = terminals("live", server.url)
        text = terminal.until(lambda text: "1 todos" in text and r"\x1b[2J\x1b]0;evil" in text)
        assert text.startswith("╭─ timeoutq live")
        assert b"\x1b]0;evil" not in terminal.raw
        queue.put([f"t{i}" for i in range(1000)])
        terminal.until(lambda text: "1,001 todos" in text)
        terminal.resize(160, 30)
        # the first line of a frame comes before the others
        terminal.until(
            lambda text: (
                re.match("╭.*─╮$", text.splitlines()[0]) is not None
                and len(text.splitlines()[0]) == 160
                and re.search(r"workers 0 .* leases nearest", text) is not None
            )
        )
        terminal.type(b"x\x1b[A")  # no key of ours
        queue.put("one more")
        terminal.until(lambda text: "1,002 todos" in text)
        terminal.type(b"q")
        assert terminal.is_restored()
        assert b"left in order" in terminal.raw
        queue.purge()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_signals_leave_the_terminal_as_it_was(
    how: signal.Signals, code: int, server: EmbeddedServer, terminals: Callable[..., Terminal]
) -> None:
    terminal = terminals("leaves", server.url)
    terminal.until(lambda text: "0 known" in text)
    terminal.process.send_signal(how)
    assert terminal.is_restored()
    assert terminal.process.wait(10) == code
    assert b"left in order" in terminal.raw
    assert b"Traceback" not in terminal.raw


def test_a_server_that_is_away_is_a_banner_and_it_goes_on_by_itself(
    terminals: Callable[..., Terminal], tmp_path: Path
) -> None:
    with EmbeddedServer(tmp_path, config={"appendfsync": "always"}) as own:
        with Queue("away", own.url) as queue:
            queue.put("a", "b")
        terminal = terminals("away", own.url)
        terminal.until(lambda text: "2 todos" in text)
        own.kill()
        text = terminal.until(lambda text: re.search(r"no answer .* as it was [1-9]\.\d s ago", text))
        assert "2 todos" in text
        own.start()
        terminal.until(lambda text: "2 todos" in text and "no answer" not in text)
        own.kill()
        terminal.until(lambda text: "no answer" in text)
        terminal.type(b"q")
        assert terminal.is_restored()


def test_before_the_first_look_a_missing_server_is_waited_for_and_a_wrong_password_ends_it(
    terminals: Callable[..., Terminal],
) -> None:
    with EmbeddedServer(config={"requirepass": "right"}) as own:
        wrong = terminals("q", own.url.replace("right", "wrong-canary"))
        wrong.until(lambda _: wrong.process.poll() is not None)
        assert wrong.is_restored()
        assert b"AccessDenied" in wrong.raw
        assert b"canary" not in wrong.raw
        own.kill()
        early = terminals("q", own.url)
        early.until(lambda text: "waits for the server" in text)
        own.start()
        early.until(lambda text: "0 known" in text)
