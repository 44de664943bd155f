"""Draws the views of the live dashboard other than the overview: lists, a task, the help, and the line at the bottom.

`live.py` draws with it. As in `draw.py`, whatever came from a task passes `safe()` and becomes plain `Text`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import cast

from rich.console import Console, RenderableType
from rich.text import Text

from timeoutq.watch.directory import Listed
from timeoutq.watch.draw import COLOURS, DIM, TURNS, Cell, Column, Section, framed, heading, one_line, task_table
from timeoutq.watch.screen import HELP, HOSTS, KEYS, OVERVIEW, QUEUES, TASK, TASKS, Row, Screen
from timeoutq.words.counts import Stats
from timeoutq.words.model import Entry, HostInfo
from timeoutq.words.standing import standing
from timeoutq.words.text import compact, number, safe

HINTS = {
    OVERVIEW: "t tasks  h hosts  / filter  c queues  P pause  ? keys  q quit",
    TASKS: "←→ state  ↑↓ select  enter why  / filter  n next  R F L C act  esc back",
    TASK: "↑↓ scroll  R retry  F forget  L release  C cancel  B block host  esc back",
    HOSTS: "↑↓ select  B block  U unblock  n next  esc back",
    QUEUES: "↑↓ select  enter open  esc back",
    HELP: "↑↓ scroll  esc back",
}
"""The most important keys of each view."""

_CONSOLE = Console(file=io.StringIO(), width=1000)  # only for breaking lines


def bottom(screen: Screen, width: int) -> Text:
    """Draw the line at the bottom: a question, what is typed, what the last act has given, or the keys."""
    if screen.question is not None:
        answers = "  y/n"
        if screen.question.lengths:
            answers = "  m 10 minutes  h an hour  d a day  or 5m"
            if screen.question.typed:
                answers = f"  {safe(screen.question.typed)}▏  enter blocks"
        words = safe(screen.question.words, max(10, width - len(answers) - 2))
        return one_line((f" {words}{answers} ", "bold black on yellow"))
    if screen.typing is not None:
        return one_line((f" filter: {safe(screen.typing, max(10, width - 30))}", "bold"), ("▏  enter sets it", DIM))
    words, colour = screen.said
    if words:
        return one_line((f" {safe(words, width - 2)}", colour or "bold"))
    return one_line((f" {safe(HINTS[screen.view], width - 2)}", DIM))


def pane(screen: Screen, now: float, stats: Stats | None, width: int, height: int) -> RenderableType:
    """Draw the view of a screen, in `height` lines. `now` is the time of the server, Unix seconds; pure."""
    inner = max(20, width - 4)
    room = max(3, height - 2)
    title = heading(screen.queue, inner - 30, paused=screen.paused)
    if screen.view in (TASK, HELP):
        lines = _lines(screen, inner)
        screen.height = room
        shown = lines[screen.top : screen.top + room]
    else:
        screen.height = room - 2
        title.append_text(_of_list(screen, stats, inner - title.cell_len - 4))
        shown = _list(screen, now, inner, room)
    shown = [*shown, *[one_line()] * (room - len(shown))]
    return framed(shown, title, width)


def _of_list(screen: Screen, stats: Stats | None, room: int) -> Text:
    if screen.view != TASKS:
        return Text(f"  {screen.view}")
    count = "" if stats is None else f"{number(getattr(stats, screen.state.value))} "
    found = Text.assemble("  ", (f"{count}{screen.state.value}", COLOURS[screen.state.value]))
    if screen.filter:
        found.append(f"  with {safe(screen.filter, max(6, room - found.cell_len - 30))}")
        found.append(f": {number(len(screen.rows.rows))} of {number(screen.rows.looked)} looked at", DIM)
    if screen.rows.cursor is not None:
        found.append("  n: more", DIM)
    return found


def _lines(screen: Screen, width: int) -> list[Text]:
    if screen.view == HELP:
        return [one_line((f"{keys:12}", "bold"), (safe(words, width - 12), "")) for keys, words in KEYS]
    if not screen.lines:
        return [one_line(("looks at the task …", DIM))]
    found: list[Text] = []
    for words, colour in screen.lines:
        # what is long goes on in the next lines: an id, an error or a payload is shown whole
        text = Text(words, style=colour)
        found += text.wrap(_CONSOLE, width) if words else [one_line()]
    return found


def _list(screen: Screen, now: float, width: int, room: int) -> list[Text]:
    rows = screen.rows.rows
    if not rows:
        return [one_line(), one_line((_nothing(screen), DIM))]
    shown = rows[screen.top : screen.top + room - 2]
    table = _table(screen, shown, now, width)
    last = screen.top + len(shown)
    where = f"{screen.top + 1}–{last} of {len(rows)} on this page" if len(rows) > len(shown) else ""
    return [*table.draw(width, room), *([one_line((where, DIM))] if where else [])]


def _nothing(screen: Screen) -> str:
    if screen.view == TASKS and screen.filter:
        return f"none of {number(screen.rows.looked)} tasks that were looked at has this text" + (
            "; n looks further" if screen.rows.cursor is not None else ""
        )
    return "nothing here"


def _table(screen: Screen, rows: Sequence[Row], now: float, width: int) -> Section:
    if screen.view == TASKS:
        return task_table(screen.state, [cast(Entry, row.entry) for row in rows], now, width, screen.selected)
    of_host = screen.view == HOSTS
    heads = HOST_COLUMNS if of_host else QUEUE_COLUMNS
    cells = [_host(cast(HostInfo, row.entry), now) if of_host else _queue(cast(Listed, row.entry)) for row in rows]
    styles = ["reverse" if row.key == screen.selected else "" for row in rows]
    return Section(heads, [(style, (row.key, *some)) for style, row, some in zip(styles, rows, cells, strict=True)])


HOST_COLUMNS = (Column("host"), Column("waiting", 8, True), Column("in flight", 9, True), Column("turn", 10, True))
QUEUE_COLUMNS = (
    Column("queue"), Column("ready", 8, True), Column("waiting", 8, True), Column("in progress", 11, True),
    Column("failed", 8, True),
)  # fmt: skip


def _host(host: HostInfo, now: float) -> Sequence[Cell]:
    return compact(host.waiting), compact(host.busy), TURNS[standing(host, now, TURNS)](host, now)


def _queue(found: Listed) -> Sequence[Cell]:
    stats = found.stats
    if stats is None:
        return "—", "—", "—", (found.trouble, "red")
    return compact(stats.todos), compact(stats.waiting), compact(stats.in_progress), compact(stats.failed)
