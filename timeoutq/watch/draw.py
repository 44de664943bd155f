"""A snapshot and the views of the live dashboard as rich draws them, for a screen of any size.

Whatever came from a task passes `safe()` and becomes plain `Text`.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from timeoutq.watch.directory import Listed
from timeoutq.watch.records import turn
from timeoutq.watch.screen import HELP, HOSTS, KEYS, OVERVIEW, QUEUES, TASK, TASKS, Screen, name_of
from timeoutq.watch.snapshot import COUNTERS, Snapshot, rates, series
from timeoutq.words.counts import Stats
from timeoutq.words.model import Entry, Failure, HostInfo, State, WorkerInfo
from timeoutq.words.text import age, compact, number, rate, safe, span

T = TypeVar("T")

COLOURS = {
    State.WAITING: "blue", State.TODOS: "cyan", State.SCHEDULED: "magenta", State.IN_PROGRESS: "yellow",
    State.DONE: "green", State.FAILED: "red",
}  # fmt: skip
"""The states in the order in which they are shown."""
RATES = dict(zip(COUNTERS, (("put", "cyan"), ("ack", "green"), ("fail", "red"), ("expired", "yellow")), strict=True))
"""The word and the colour of each counter."""

BARS = "▁▂▃▄▅▆▇█"
WIDE = 140  # from this many columns on, the tables stand in two columns
NAMED = 76  # with less room the table of hosts has fewer columns, so that names can be told from each other
ROOMY = 84  # with less room the table of workers shows which shards they tend, and not how many slots they have
UNEVEN = 100  # shards differ much if the deepest has so many more ready tasks than twice as many as the shallowest
MOST_LINES = 3  # of the trouble of a worker
DIM = "bright_black"


def render(seen: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Draw a snapshot for a screen of that size; pure."""
    stats, inner = seen.stats, max(20, width - 4)
    lines = [_alarm(f" {seen.trouble}", f" — as it was {age(seen.stale)} ago ", inner)] if seen.trouble else []
    has_waiting = stats.politeness or stats.waiting
    counts = {state: int(getattr(stats, state)) for state in COLOURS if state is not State.WAITING or has_waiting}
    cells = split_cells(list(counts.values()), inner)
    bar = [("█" * share, COLOURS[state]) for share, state in zip(cells, counts, strict=True)]
    lines.append(one_line(*bar) if any(cells) else one_line(("░" * inner, DIM)))
    lines += [*_equation(counts, stats, inner), *_shards(seen, inner), *_pace(seen, inner), *_durations(stats)]
    lines += _tables(seen, inner, height - 2 - len(lines))
    title = heading(seen.queue, inner - 20, paused=stats.paused)
    room = inner - title.cell_len - 6
    if room >= 12:
        title.append(f" at {safe(seen.url, room)}")
    return framed(lines, title, width, "red" if seen.trouble else DIM)


def heading(queue: str, width: int, *, paused: bool) -> Text:
    name = (safe(queue, max(8, width)), "bold cyan")
    return Text.assemble(("timeoutq ", "bold"), name, (" PAUSED", "bold white on red") if paused else "")


def framed(lines: Sequence[Text], title: Text, width: int, border: str = DIM) -> Panel:
    return Panel(Group(*lines), title=title, title_align="left", border_style=border, width=width)


def one_line(*parts: tuple[str, str], style: str = "") -> Text:
    """Join pieces, each a text and its style, into one line that is cropped where the screen ends."""
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="crop", end="\n")


def _alarm(begin: str, end: str, width: int) -> Text:
    return one_line((safe(begin, width - cell_len(end)), ""), (end, ""), style="bold white on red")


def split_cells(counts: Sequence[int], width: int) -> list[int]:
    """Divide `width` cells among counts in proportion, at least one for each that is not zero."""
    total = sum(counts)
    if total <= 0:
        return [0] * len(counts)
    shares = [max(1, round(count / total * width)) if count else 0 for count in counts]
    while (over := sum(shares) - width) and (over < 0 or max(shares) > 1):
        shares[shares.index(max(shares))] += -1 if over > 0 else 1
    return shares


def _equation(counts: dict[State, int], stats: Stats, width: int) -> list[Text]:
    words: list[Text] = []
    for state, count in counts.items():
        plus, colour = "+ " if words else "", COLOURS[state]
        kept = " (compact)" if stats.compact and state is State.DONE else ""
        words.append(one_line((plus, ""), (f"{number(count)} ", f"bold {colour}"), (state, colour), (kept, DIM)))
    lines = [one_line()]
    acked = stats.counters.get("acked", 0)
    ever = f", {number(acked)} acked in all" if acked > stats.done else ""  # calls of functions leave `done` at once
    for piece in (*words, one_line(("= ", ""), (f"{number(stats.known)} known", "bold"), (ever, DIM))):
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
    deep, shallow = max(depths, key=depths.__getitem__), min(depths, key=depths.__getitem__)
    if depths[deep] > 2 * depths[shallow] + UNEVEN:
        deepest = f"  ready: {number(depths[deep])} in shard {deep}"
        line.append(f"{deepest}, {number(depths[shallow])} in shard {shallow}", COLOURS[State.TODOS])
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
    now, each = rates(seen.history), max(9, (width - 16) // len(RATES))
    upper, lower = one_line(), one_line()
    for counter, (word, colour) in RATES.items():
        upper.append(set_cell_size(f"{word} {rate(now.get(counter))}/s", each), colour)
        lower.append(set_cell_size(sparkline(series(seen.history, counter, min(each - 2, 60))), each), colour)
    # the queue does not keep when each task became ready: only since when there have been any
    return [upper.append("ready tasks for", DIM), lower.append(age(seen.waiting))]


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, the highest one full; what is not zero is never drawn as nothing."""
    top = max(values, default=0.0)
    heights = [max(1, round(value / top * (len(BARS) - 1))) if value > 0 else 0 for value in values]
    return "".join(BARS[height] for height in heights)


def _durations(stats: Stats) -> list[Text]:
    found = stats.durations
    if found is None:
        return []
    line = one_line(("handlers ran ", DIM))
    for name, seconds in (("p50", found.p50), ("p95", found.p95), ("max", found.max)):
        line.append(f"{name} ", DIM).append(f"{span(seconds)}  ")
    return [line.append(f"of {compact(found.count)} runs", DIM)]


# ---- tables

Cell = str | tuple[str, str]  # a text, or a text and its style; any text at all, it is made safe when it is drawn


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table; those without a width share the cells that the others leave, by `share`."""

    head: str
    cell: Callable[[T], Cell]  # what the column says of a row
    width: int = 0
    share: int = 1
    left: bool = False  # whether a column with a width begins at its left end


@dataclass(frozen=True, slots=True)
class Table:
    """A table; each line is a style, and a cell for each column or one text that is as wide as all of them."""

    columns: Sequence[Column[Any]]
    lines: Sequence[tuple[str, Sequence[Cell] | str]]

    def draw(self, width: int, most: int) -> list[Text]:
        """Give the line with the heads and at most `most` lines."""
        free = width - 2 * (len(self.columns) - 1) - sum(column.width for column in self.columns)
        shares = sum(column.share for column in self.columns if not column.width)
        sizes = [column.width or max(4, free * column.share // shares) for column in self.columns]
        sizes[0] += max(0, width - 2 * (len(sizes) - 1) - sum(sizes))
        heads: list[Cell] = [(column.head, DIM if at else "bold") for at, column in enumerate(self.columns)]
        drawn: list[Text] = []
        for style, cells in [("", heads), *self.lines[:most]]:
            line = one_line(style=style)
            if isinstance(cells, str):
                line.append(safe(cells, width))
                cells = ()
            for at, (cell, size) in enumerate(zip(cells, sizes, strict=False)):
                words, colour = cell if isinstance(cell, tuple) else (cell, "")
                words, column = safe(words, size), self.columns[at]
                pad = " " * (size - cell_len(words))
                before, after = (pad, "") if column.width and not column.left else ("", pad)
                line.append(("  " if at else "") + before).append(words, "" if style else colour).append(after)
            drawn.append(line)
        return drawn


def table(columns: Sequence[Column[T]], rows: Iterable[T], style: Callable[[T], str] = lambda row: "") -> Table:
    """Make the table in which each column says of each row what it has to say."""
    return Table(columns, [(style(row), [column.cell(row) for column in columns]) for row in rows])


def _of_tasks(state: State | None, now: float, width: int, head: str = "task") -> Sequence[Column[Entry]]:
    """Give the columns of the tasks in a state: leases have a holder, due tasks a time, failed tasks an error."""
    if state is State.FAILED:
        return (
            Column(head, lambda entry: entry.task, share=3),
            Column("error", lambda entry: (entry.error or "", "red"), share=2),
            Column("ago", lambda entry: _ago(entry.at, now), 8),
        )
    task: Column[Entry] = Column(head, lambda entry: entry.task)
    if state is State.IN_PROGRESS:
        wide = 18 if width < 90 else 28
        held: Column[Entry] = Column("holder", lambda entry: (holder(entry.holder), DIM), wide, left=True)
        return task, held, Column("left", lambda entry: _left(entry.at, now), 8)
    if state is State.SCHEDULED:
        return task, Column("in", lambda entry: (age(max(0.0, (entry.at or now) - now)), "magenta"), 8)
    return (task,)


def holder(token: str | None) -> str:
    """Give host:pid of a worker's name; what is named otherwise is shown as it is."""
    if not token:
        return "—"
    return token.rpartition(":")[0] if token.count(":") == 2 else token


def _left(at: float | None, now: float) -> Cell:
    if at is None:
        return "—", DIM
    return age(at - now), "red" if at < now else COLOURS[State.IN_PROGRESS]


def _ago(at: float | None, now: float) -> str:
    return age(None if at is None else max(0.0, now - at))


def _of_workers(seen: Snapshot, width: int) -> Table:
    stats, now = seen.stats, seen.stats.now
    gone = f" ({number(len(seen.gone))} gone)" if seen.gone else ""
    left_out = "tends" if not stats.shards else "slots" if width < ROOMY else ""
    columns: list[Column[WorkerInfo]] = [
        Column(
            f"workers {number(len(seen.living))}{gone}",
            lambda one: ("† " if one.is_gone(now) else "") + (one.host or one.worker),
        ),
        Column("pid", lambda one: str(one.pid), 8),
        Column("tends", lambda one: "" if one.tends is None else ranges(one.tends), 12, left=True),
        Column("slots", lambda one: compact(one.concurrency), 6),
        Column("held", lambda one: (compact(one.held), COLOURS[State.IN_PROGRESS]), 6),
        Column("acked", lambda one: (compact(one.acked), COLOURS[State.DONE]), 7),
        Column("failed", lambda one: (compact(one.failed), COLOURS[State.FAILED] if one.failed else ""), 6),
        Column("last beat", lambda one: _ago(one.beat, now), 9),
    ]
    columns = [column for column in columns if column.head != left_out]
    lines: list[tuple[str, Sequence[Cell] | str]] = []
    for worker in seen.workers:
        style = DIM if worker.is_gone(now) else "red" if worker.trouble else ""
        lines.append((style, [column.cell(worker) for column in columns]))
        # the cause stands at the beginning of what troubles a worker, and the cure at the end
        lines += [(style, f"  {line}") for line in textwrap.wrap(worker.trouble, width - 2)[:MOST_LINES]]
    return Table(columns, lines or [("red" if stats.todos else DIM, "none at work")])


def _of_hosts(seen: Snapshot, width: int) -> Table:
    now, known = seen.stats.now, seen.host_rates
    # one look alone knows no rates
    left_out = {*(("in flight", "errors") if width < NAMED else ()), *(() if known else ("/s",))}
    columns: list[Column[HostInfo]] = [
        Column(f"hosts {number(seen.stats.hosts)}", lambda host: host.host),
        Column("waiting", lambda host: (compact(host.waiting), COLOURS[State.WAITING]), 7),
        Column("in flight", lambda host: (compact(host.busy), COLOURS[State.IN_PROGRESS]), 9),
        Column("turn", lambda host: turn(host, now), 9),
        Column("visits", lambda host: compact(host.visits), 6),
        Column("/s", lambda host: rate(known.get(host.host)), 5),
        Column("errors", lambda host: (compact(host.failures), COLOURS[State.FAILED] if host.failures else ""), 6),
    ]
    # those with most to do first, and yet a row stays where it is while its count changes a little
    hosts = sorted(seen.hosts, key=lambda host: (-host.waiting.bit_length(), host.host))
    return table([column for column in columns if column.head not in left_out], hosts)


def share_rows(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` lines among tables by the rows that each wants: a head and a gap for each, then fair shares."""
    # from the last on, those for which there is no room get nothing
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
    is_wide, now = width + 4 >= WIDE, seen.stats.now
    half = (width - 4) // 2 if is_wide else width
    errors: list[Column[Failure]] = [
        Column("last errors", lambda failure: failure.task, share=2),
        Column("error", lambda failure: (failure.error, "red"), share=3),
        Column("ago", lambda failure: _ago(failure.at, now), 8),
    ]
    left = [_of_workers(seen, half), *([_of_hosts(seen, half)] if seen.stats.politeness else [])]
    right = [
        table(_of_tasks(State.IN_PROGRESS, now, half, "leases nearest their end"), seen.leases),
        table(errors, seen.errors),
    ]
    due = table(_of_tasks(State.SCHEDULED, now, half, "next due"), seen.due)
    if not is_wide:
        return _stack([*left, *right, due], width, room)
    rows: list[Text] = []
    for one, other in zip_longest(_stack([*left, due], half, room), _stack(right, half, room)):
        line = one or one_line()
        rows.append(line.append(" " * (half - line.cell_len + 4)).append_text(other or one_line()))
    return rows


def _stack(tables: Sequence[Table], width: int, room: int) -> list[Text]:
    lines: list[Text] = []
    for one, rows in zip(tables, share_rows([len(one.lines) for one in tables], room), strict=True):
        if rows:
            lines += [one_line(), *one.draw(width, rows)]
    return lines


def show(seen: Snapshot) -> None:
    console = Console(highlight=False)
    console.print(render(seen, console.width, max(24, console.height)))


# ---- the views of the live dashboard

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
    typed = screen.typing
    if screen.question is not None:
        answers = "  y/n" if typed is None else f" {safe(typed, 20)}▏  such as 10m or 2h; enter blocks"
        words = safe(screen.question[0], max(10, width - len(answers) - 2))
        return one_line((f" {words}{answers} ", "bold black on yellow"))
    if typed is not None:
        return one_line((f" filter: {safe(typed, max(10, width - 30))}", "bold"), ("▏  enter sets it", DIM))
    words, colour = screen.said
    if words:
        return one_line((f" {safe(words, width - 2)}", colour or "bold"))
    return one_line((f" {safe(HINTS[screen.view], width - 2)}", DIM))


def pane(screen: Screen, now: float, stats: Stats | None, width: int, height: int) -> RenderableType:
    """Draw the view of a screen, in `height` lines. `now` is the time of the server, Unix seconds; pure."""
    inner, room = max(20, width - 4), max(3, height - 2)
    title = heading(screen.queue, inner - 30, paused=screen.paused)
    if screen.view in (TASK, HELP):
        screen.height = room
        shown = _text(screen, inner)[screen.top : screen.top + room]
    else:
        screen.height = room - 2
        title.append_text(_of_list(screen, stats, inner - title.cell_len - 4))
        shown = _list(screen, now, inner, room)
    return framed([*shown, *[one_line()] * (room - len(shown))], title, width)


def _of_list(screen: Screen, stats: Stats | None, room: int) -> Text:
    if screen.view != TASKS:
        return Text(f"  {screen.view}")
    count = "" if stats is None else f"{number(getattr(stats, screen.state))} "
    found = Text.assemble("  ", (f"{count}{screen.state}", COLOURS[screen.state]))
    if screen.filter:
        found.append(f"  with {safe(screen.filter, max(6, room - found.cell_len - 30))}")
        found.append(f": {number(len(screen.found.rows))} of {number(screen.found.looked)} looked at", DIM)
    if screen.found.cursor is not None:
        found.append("  n: more", DIM)
    return found


def _text(screen: Screen, width: int) -> list[Text]:
    if screen.view == HELP:
        return [one_line((f"{keys:12}", "bold"), (safe(words, width - 12), "")) for keys, words in KEYS]
    if not screen.lines:
        return [one_line(("looks at the task …", DIM))]
    found: list[Text] = []
    for words, colour in screen.lines:
        # what is long goes on in the next lines: an id, an error or a payload is shown whole
        found += Text(words, style=colour).wrap(_CONSOLE, width) if words else [one_line()]
    return found


def _list(screen: Screen, now: float, width: int, room: int) -> list[Text]:
    rows, looked = screen.found.rows, screen.found.looked
    if not rows:
        words = "nothing here"
        if screen.view == TASKS and screen.filter:
            words = f"none of {number(looked)} tasks that were looked at has this text"
            words += "; n looks further" if screen.found.cursor is not None else ""
        return [one_line(), one_line((words, DIM))]
    shown = rows[screen.top : screen.top + room - 2]
    columns: Sequence[Column[Any]] = _of_tasks(screen.state, now, width)
    if screen.view == HOSTS:
        columns = (*HOST_COLUMNS, Column("turn", lambda host: turn(host, now), 10))
    elif screen.view == QUEUES:
        columns = QUEUE_COLUMNS
    lines = table(columns, shown, lambda row: "reverse" if name_of(row) == screen.selected else "").draw(width, room)
    if len(rows) > len(shown):
        last = screen.top + len(shown)
        lines.append(one_line((f"{screen.top + 1}–{last} of {len(rows)} on this page", DIM)))
    return lines


HOST_COLUMNS: tuple[Column[HostInfo], ...] = (
    Column("host", lambda host: host.host), Column("waiting", lambda host: compact(host.waiting), 8),
    Column("in flight", lambda host: compact(host.busy), 9),
)  # fmt: skip
QUEUE_COLUMNS: tuple[Column[Listed], ...] = (
    Column("queue", lambda one: one.name), Column("ready", lambda one: _count(one, State.TODOS), 8),
    Column("waiting", lambda one: _count(one, State.WAITING), 8),
    Column("in progress", lambda one: _count(one, State.IN_PROGRESS), 11),
    Column("failed", lambda one: _count(one, State.FAILED) if one.stats else (one.trouble, "red"), 8),
)  # fmt: skip


def _count(found: Listed, state: State) -> str:
    return "—" if found.stats is None else compact(getattr(found.stats, state))
