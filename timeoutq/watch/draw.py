"""A snapshot and the views of the live dashboard as rich draws them, for a screen of any size.

Whatever came from a task passes `safe()` and becomes plain `Text`.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from timeoutq.watch.directory import Listed
from timeoutq.watch.metrics import COUNTERS, rates, series
from timeoutq.watch.records import turn
from timeoutq.watch.screen import HELP, HOSTS, KEYS, OVERVIEW, QUEUES, TASK, TASKS, Row, Screen
from timeoutq.watch.snapshot import Snapshot, is_gone
from timeoutq.words.counts import Stats
from timeoutq.words.model import Entry, HostInfo, State
from timeoutq.words.text import age, compact, number, rate, safe, span

COLOURS = {
    "todos": "cyan", "waiting": "blue", "scheduled": "magenta", "in_progress": "yellow", "done": "green",
    "failed": "red",
}  # fmt: skip
RATES = {"put": ("put", "cyan"), "acked": ("ack", "green"), "failed": ("fail", "red"), "expired": ("expired", "yellow")}
"""The word and the colour of each counter."""
ORDER = (State.WAITING, State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED)

BARS = "▁▂▃▄▅▆▇█"
WIDE = 140  # from this many columns on, the tables stand in two columns
NAMED = 76  # with less room the table of hosts has fewer columns, so that names can be told from each other
ROOMY = 84  # with less room the table of workers shows which shards they tend, and not how many slots they have
UNEVEN = 100  # shards differ much if the deepest has so many more ready tasks than twice as many as the shallowest
MOST_LINES = 3  # of the trouble of a worker
DIM = "bright_black"


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, the highest one full; what is not zero is never drawn as nothing."""
    top = max(values, default=0.0)
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[0] if value <= 0 else BARS[max(1, round(value / top * (len(BARS) - 1)))] for value in values)


def split_cells(counts: Sequence[int], width: int) -> list[int]:
    """Divide `width` cells among counts in proportion, at least one for each that is not zero."""
    total = sum(counts)
    if total <= 0:
        return [0] * len(counts)
    shares = [max(1, round(count / total * width)) if count else 0 for count in counts]
    while (over := sum(shares) - width) and (over < 0 or max(shares) > 1):
        shares[shares.index(max(shares))] += -1 if over > 0 else 1
    return shares


def render(seen: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Draw a snapshot for a screen of that size; pure."""
    inner = max(20, width - 4)
    lines = [_alarm(f" {seen.trouble}", f" — as it was {age(seen.stale)} ago ", inner)] if seen.trouble else []
    shown = [state for state in ORDER if state is not State.WAITING or seen.stats.politeness or seen.stats.waiting]
    counts = {state.value: int(getattr(seen.stats, state.value)) for state in shown}
    cells = split_cells(list(counts.values()), inner)
    bar = [("█" * share, COLOURS[name]) for share, name in zip(cells, counts, strict=True)]
    lines.append(one_line(*bar) if any(cells) else one_line(("░" * inner, DIM)))
    lines += _equation(counts, seen.stats, inner)
    lines += _shards(seen, inner)
    lines += _pace(seen, inner)
    lines += _durations(seen)
    lines += _tables(seen, inner, height - 2 - len(lines))
    title = heading(seen.queue, inner - 20, paused=seen.stats.paused)
    room = inner - title.cell_len - 6
    if room >= 12:
        title.append(f" at {safe(seen.url, room)}")
    return framed(lines, title, width, "red" if seen.trouble else DIM)


def heading(queue: str, width: int, *, paused: bool) -> Text:
    """Draw the title of a view."""
    name = (safe(queue, max(8, width)), "bold cyan")
    return Text.assemble(("timeoutq ", "bold"), name, (" PAUSED", "bold white on red") if paused else "")


def framed(lines: Sequence[Text], title: Text, width: int, border: str = DIM) -> Panel:
    """Draw a frame around lines."""
    return Panel(Group(*lines), title=title, title_align="left", border_style=border, width=width)


def _alarm(begin: str, end: str, width: int) -> Text:
    return one_line((safe(begin, width - cell_len(end)), ""), (end, ""), style="bold white on red")


def one_line(*parts: tuple[str, str], style: str = "") -> Text:
    """Join pieces, each a text and its style, into one line that is cropped where the screen ends."""
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="crop", end="\n")


def _equation(counts: dict[str, int], stats: Stats, width: int) -> list[Text]:
    words = [
        one_line((f"{number(count)} ", f"bold {COLOURS[name]}"), (name, COLOURS[name]),
                 (" (compact)" if stats.compact and name == State.DONE else "", DIM))
        for name, count in counts.items()
    ]  # fmt: skip
    words = [words[0], *(one_line(("+ ", "")).append_text(word) for word in words[1:])]
    lines = [one_line()]
    for piece in (*words, one_line(("= ", ""), (f"{number(stats.known)} known", "bold"))):
        if lines[-1].cell_len and lines[-1].cell_len + 1 + piece.cell_len > width:
            lines.append(one_line())
        lines[-1].append(" " if lines[-1].cell_len else "").append_text(piece)
    return lines


def _shards(seen: Snapshot, width: int) -> list[Text]:
    """Say how deep the shards are if they differ much, which shards nobody tends, and what does not answer."""
    if not seen.stats.shards:
        return []
    line = one_line((f"{len(seen.stats.shards)} shards", DIM))
    depths = seen.depths
    deep, shallow = max(depths, key=lambda one: depths[one]), min(depths, key=lambda one: depths[one])
    if depths[deep] > 2 * depths[shallow] + UNEVEN:
        line.append(f"  ready: {number(depths[deep])} in shard {deep}", COLOURS["todos"])
        line.append(f", {number(depths[shallow])} in shard {shallow}", COLOURS["todos"])
    if seen.untended:
        line.append(f"  nobody tends {ranges(seen.untended)}", "yellow")
    silent = [f" {what}: no answer, and not counted here: {why}" for what, why in seen.silent.items()]
    return [line, *(_alarm(words, "", width) for words in silent)]


def ranges(numbers: Sequence[int]) -> str:
    """Write numbers as people do: 0-3,7."""
    known = set(numbers)
    firsts = sorted(one for one in known if one - 1 not in known)
    lasts = sorted(one for one in known if one + 1 not in known)
    words = zip(firsts, lasts, strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in words)


def _pace(seen: Snapshot, width: int) -> list[Text]:
    now = rates(seen.history)
    last = 16
    each = max(9, (width - last) // len(RATES))
    upper, lower = one_line(), one_line()
    for counter in COUNTERS:
        word, colour = RATES[counter]
        upper.append(set_cell_size(f"{word} {rate(now.get(counter))}/s", each), colour)
        lower.append(set_cell_size(sparkline(series(seen.history, counter, min(each - 2, 60))), each), colour)
    # the queue does not keep when each task became ready: only since when there have been any
    upper.append("ready tasks for", DIM)
    lower.append(age(seen.waiting))
    return [upper, lower]


def _durations(seen: Snapshot) -> list[Text]:
    found = seen.stats.durations
    if found is None:
        return []
    line = one_line(("handlers ran ", DIM))
    for name, seconds in (("p50", found.p50), ("p95", found.p95), ("max", found.max)):
        line.append(f"{name} ", DIM).append(f"{span(seconds)}  ")
    return [line.append(f"of {compact(found.count)} runs", DIM)]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one without a width shares the cells that the others leave, by `share`."""

    head: str
    width: int = 0
    right: bool = False
    share: int = 1


Cell = str | tuple[str, str]  # a text, or a text and its style; any text at all, it is made safe when it is drawn
Line = tuple[str, Sequence[Cell]]
"""The style of a row, and a cell for each column, or one cell that is as wide as all columns."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table."""

    columns: Sequence[Column]
    rows: Sequence[Line]

    def draw(self, width: int, most: int) -> Iterator[Text]:
        """Give the line with the heads and at most `most` rows."""
        free = width - self._span([column.width for column in self.columns])
        shares = sum(column.share for column in self.columns if not column.width)
        sizes = [column.width or max(4, free * column.share // shares) for column in self.columns]
        sizes[next(i for i, column in enumerate(self.columns) if not column.width)] += max(0, width - self._span(sizes))
        yield self._row([column.head for column in self.columns], sizes, "", heads=True)
        for style, cells in self.rows[:most]:
            yield self._row(cells, sizes, style)

    def _span(self, sizes: Sequence[int]) -> int:
        return sum(sizes) + 2 * (len(sizes) - 1)

    def _row(self, cells: Sequence[Cell], sizes: Sequence[int], style: str, *, heads: bool = False) -> Text:
        line = one_line(style=style)
        if isinstance(whole := cells[0], str) and len(cells) < len(sizes):
            return line.append(safe(whole, self._span(sizes)))
        for i, (cell, size, column) in enumerate(zip(cells, sizes, self.columns, strict=True)):
            text, colour = cell if isinstance(cell, tuple) else (cell, "")
            text = safe(text, size)
            pad = " " * (size - cell_len(text))
            look = ("bold" if i == 0 else DIM) if heads else "" if style else colour
            line.append("  " if i else "").append(pad if column.right else "").append(text, look)
            line.append("" if column.right else pad)
        return line


def task_table(
    state: State | None, entries: Sequence[Entry], now: float, width: int, selected: str = "", head: str = "task"
) -> Section:
    """Give the table of the tasks in a state: leases have a holder, due tasks a time, failed tasks an error."""
    ends: dict[State | None, tuple[list[Column], Callable[[Entry], Sequence[Cell]]]] = {
        State.IN_PROGRESS: (
            [Column(head, share=2), Column("holder", 18 if width < 90 else 28), Column("left", 8, True)],
            lambda entry: ((holder(entry.holder), DIM), left(entry.at, now)),
        ),
        State.FAILED: (
            [Column(head, share=3), Column("error", share=2), Column("ago", 8, True)],
            lambda entry: ((entry.error or "", "red"), _ago(entry.at, now)),
        ),
        State.SCHEDULED: (
            [Column(head), Column("in", 8, True)],
            lambda entry: ((age(max(0.0, (entry.at or now) - now)), "magenta"),),
        ),
    }  # fmt: skip
    columns, cells = ends.get(state, ([Column(head)], lambda entry: ()))
    rows = [("reverse" if entry.task == selected else "", (entry.task, *cells(entry))) for entry in entries]
    return Section(columns, rows)


def _ago(at: float | None, now: float) -> str:
    return age(None if at is None else max(0.0, now - at))


def _sections(seen: Snapshot, width: int) -> list[Section]:
    now = seen.stats.now
    leases = task_table(State.IN_PROGRESS, seen.leases, now, width, head="leases nearest their end")
    due = task_table(State.SCHEDULED, seen.due, now, width, head="next due")
    errors = Section(
        (Column("last errors", share=2), Column("error", share=3), Column("ago", 8, True)),
        [("", (failure.task, (failure.error, "red"), _ago(failure.at, now))) for failure in seen.errors],
    )
    hosts = [_host_section(seen, width)] if seen.stats.politeness else []
    return [_worker_section(seen, width), *hosts, leases, errors, due]


def _worker_section(seen: Snapshot, width: int) -> Section:
    stats, now = seen.stats, seen.stats.now
    gone = f" ({number(len(seen.gone))} gone)" if seen.gone else ""
    left_out = {"tends"} if not stats.shards else {"slots"} if width < ROOMY else set[str]()
    columns = [
        Column(f"workers {number(len(seen.living))}{gone}"), Column("pid", 8, True), Column("tends", 12),
        Column("slots", 6, True), Column("held", 6, True), Column("acked", 7, True), Column("failed", 6, True),
        Column("last beat", 9, True),
    ]  # fmt: skip
    rows: list[Line] = []
    for worker in seen.workers:
        is_dead = is_gone(worker, now)
        style = DIM if is_dead else "red" if worker.trouble else ""
        cells: list[Cell] = [
            ("† " if is_dead else "") + (worker.host or worker.worker), str(worker.pid),
            "" if worker.tends is None else ranges(worker.tends), compact(worker.concurrency),
            (compact(worker.held), COLOURS["in_progress"]), (compact(worker.acked), COLOURS["done"]),
            (compact(worker.failed), COLOURS["failed"] if worker.failed else ""), _ago(worker.beat, now),
        ]  # fmt: skip
        pairs = zip(columns, cells, strict=True)
        rows.append((style, [cell for column, cell in pairs if column.head not in left_out]))
        # the cause stands at the beginning of what troubles a worker, and the cure at the end
        rows += [(style, (f"  {line}",)) for line in textwrap.wrap(worker.trouble, width - 2)[:MOST_LINES]]
    shown = [column for column in columns if column.head not in left_out]
    nobody = [("red" if stats.todos else DIM, ("none at work", *[""] * (len(shown) - 1)))]
    return Section(shown, rows or nobody)


def _host_section(seen: Snapshot, width: int) -> Section:
    left_out = {"in flight", "errors"} if width < NAMED else set[str]()
    left_out |= set[str]() if seen.host_rates else {"/s"}  # one look alone knows none
    columns = [
        Column(f"hosts {number(seen.stats.hosts)}"), Column("waiting", 7, True), Column("in flight", 9, True),
        Column("turn", 9, True), Column("visits", 6, True), Column("/s", 5, True), Column("errors", 6, True),
    ]  # fmt: skip
    rows: list[Line] = []
    # those with most to do first, and yet a row stays where it is while its count changes a little
    for host in sorted(seen.hosts, key=lambda host: (-host.waiting.bit_length(), host.host)):
        cells: list[Cell] = [
            host.host, (compact(host.waiting), COLOURS["waiting"]), (compact(host.busy), COLOURS["in_progress"]),
            turn(host, seen.stats.now), compact(host.visits), rate(seen.host_rates.get(host.host)),
            (compact(host.failures), COLOURS["failed"] if host.failures else ""),
        ]  # fmt: skip
        pairs = zip(columns, cells, strict=True)
        rows.append(("", [cell for column, cell in pairs if column.head not in left_out]))
    return Section([column for column in columns if column.head not in left_out], rows)


def holder(token: str | None) -> str:
    """Give host:pid of a worker's name; what is named otherwise is shown as it is."""
    if not token:
        return "—"
    return token.rpartition(":")[0] if token.count(":") == 2 else token


def left(at: float | None, now: float) -> tuple[str, str]:
    """Give how long a lease still runs, and the colour of this."""
    if at is None:
        return "—", DIM
    return age(at - now), "red" if at < now else COLOURS["in_progress"]


def share_rows(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` lines among tables by the rows that each wants: a head and a gap for each, fair shares of the rest.

    Tables that want nothing get nothing (0); from the last on, those for which there is no room get nothing either.
    """
    shown = [i for i, rows in enumerate(wanted) if rows > 0]
    while shown and len(shown) * 3 > room:
        shown.pop()
    given = [0] * len(wanted)
    left = room - 2 * len(shown)
    while left > 0 and any(given[i] < wanted[i] for i in shown):
        for i in shown:
            if left > 0 and given[i] < wanted[i]:
                given[i] += 1
                left -= 1
    return given


def _tables(seen: Snapshot, width: int, room: int) -> list[Text]:
    if width + 4 < WIDE:
        return _stack(_sections(seen, width), width, room)
    half = (width - 4) // 2
    workers, *hosts, leases, errors, due = _sections(seen, half)
    both = _stack([workers, *hosts, due], half, room), _stack([leases, errors], half, room)
    rows: list[Text] = []
    for left, right in zip_longest(*both):
        line = left or one_line()
        rows.append(line.append(" " * (half - line.cell_len + 4)).append_text(right or one_line()))
    return rows


def _stack(sections: Sequence[Section], width: int, room: int) -> list[Text]:
    lines: list[Text] = []
    for section, rows in zip(sections, share_rows([len(one.rows) for one in sections], room), strict=True):
        if rows:
            lines += [one_line(), *section.draw(width, rows)]
    return lines


def show(seen: Snapshot, console: Console | None = None) -> None:
    """Print a snapshot once."""
    console = console or Console(highlight=False)
    console.print(render(seen, console.width, max(24, console.height)))


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
    question, typed = screen.question, screen.typing
    if question is not None:
        answers = "  y/n" if typed is None else f" {safe(typed, 20)}▏  such as 10m or 2h; enter blocks"
        words = safe(question.words, max(10, width - len(answers) - 2))
        return one_line((f" {words}{answers} ", "bold black on yellow"))
    if typed is not None:
        return one_line((f" filter: {safe(typed, max(10, width - 30))}", "bold"), ("▏  enter sets it", DIM))
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
        words = "nothing here"
        if screen.view == TASKS and screen.filter:
            words = f"none of {number(screen.rows.looked)} tasks that were looked at has this text"
            words += "; n looks further" if screen.rows.cursor is not None else ""
        return [one_line(), one_line((words, DIM))]
    shown = rows[screen.top : screen.top + room - 2]
    last = screen.top + len(shown)
    where = f"{screen.top + 1}–{last} of {len(rows)} on this page" if len(rows) > len(shown) else ""
    lines = _table(screen, shown, now, width).draw(width, room)
    return [*lines, *([one_line((where, DIM))] if where else [])]


def _table(screen: Screen, rows: Sequence[Row], now: float, width: int) -> Section:
    if screen.view == TASKS:
        return task_table(screen.state, [cast(Entry, row.entry) for row in rows], now, width, screen.selected)
    of_host = screen.view == HOSTS
    cells = [_host(cast(HostInfo, row.entry), now) if of_host else _queue(cast(Listed, row.entry)) for row in rows]
    styles = ["reverse" if row.key == screen.selected else "" for row in rows]
    lines = [(style, (row.key, *some)) for style, row, some in zip(styles, rows, cells, strict=True)]
    return Section(HOST_COLUMNS if of_host else QUEUE_COLUMNS, lines)


HOST_COLUMNS = (Column("host"), Column("waiting", 8, True), Column("in flight", 9, True), Column("turn", 10, True))
QUEUE_COLUMNS = (
    Column("queue"), Column("ready", 8, True), Column("waiting", 8, True), Column("in progress", 11, True),
    Column("failed", 8, True),
)  # fmt: skip


def _host(host: HostInfo, now: float) -> Sequence[Cell]:
    return compact(host.waiting), compact(host.busy), turn(host, now)


def _queue(found: Listed) -> Sequence[Cell]:
    stats = found.stats
    if stats is None:
        return "—", "—", "—", (found.trouble, "red")
    return compact(stats.todos), compact(stats.waiting), compact(stats.in_progress), compact(stats.failed)
