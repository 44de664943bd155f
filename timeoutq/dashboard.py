"""What the queue looks like: `snapshot(queue) -> Snapshot`, `render(snapshot)` (pure), and the live loop.

`timeoutq status` and `timeoutq dashboard` call it, and the demo. It reads counts and short pages only, so that a queue
of a million tasks costs what an empty one does; whatever came from a task passes `safe()` and becomes plain `Text`.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from timeoutq.client import Queue
from timeoutq.errors import TimeoutqError
from timeoutq.model import Entry, Failure, Sample, State, Stats, WorkerInfo
from timeoutq.text import age, number, safe

COLOURS = {
    "todos": "cyan",
    "scheduled": "magenta",
    "in_progress": "yellow",
    "done": "green",
    "failed": "red",
}
RATES = (("put", "cyan"), ("acked", "green"), ("failed", "red"), ("expired", "yellow"))
BARS = "▁▂▃▄▅▆▇█"
STALE = 15.0
"""Seconds without a beat after which a worker is shown as stale."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is shown, read within a few milliseconds."""

    queue: str
    url: str
    stats: Stats
    workers: Sequence[WorkerInfo] = ()
    leases: Sequence[Entry] = ()
    due: Sequence[Entry] = ()
    errors: Sequence[Failure] = ()
    history: Sequence[Sample] = field(default_factory=list[Sample])
    """Oldest first; the last one is now."""
    trouble: str = ""
    """Why this is not fresh: the server cannot be reached."""
    stale: float = 0.0
    """For how many seconds."""

    @property
    def waiting(self) -> float | None:
        """An upper bound of how long any ready task has waited, seconds; None when nothing waits or it is not known."""
        return None if self.stats.todos_since is None else max(0.0, self.stats.now - self.stats.todos_since)


def snapshot(queue: Queue, rows: int = 10) -> Snapshot:
    """Look at the queue: counts, and pages of at most `rows` entries. Raises `Unavailable`."""
    stats = queue.stats()
    return Snapshot(
        queue=queue.name,
        url=queue.url,
        stats=stats,
        workers=sorted(queue.workers(), key=lambda worker: (-worker.beat // 60, worker.host, worker.pid))[: rows * 4],
        leases=queue.list(State.IN_PROGRESS, n=rows).entries,
        due=queue.list(State.SCHEDULED, n=rows).entries,
        errors=queue.errors(rows),
        history=[*queue.history(), stats.sample],
    )


def rates(history: Sequence[Sample], over: float = 10.0) -> dict[str, float]:
    """Give events a second over the last `over` seconds or so, by counter."""
    if len(history) < 2:
        return {name: 0.0 for name, _ in RATES}
    last = history[-1]
    first = next((sample for sample in reversed(history[:-1]) if last.at - sample.at >= over), history[0])
    span = max(0.001, last.at - first.at)
    return {name: max(0.0, (getattr(last, name) - getattr(first, name)) / span) for name, _ in RATES}


def series(history: Sequence[Sample], name: str, points: int) -> list[float]:
    """Give the rates between the last samples, oldest first."""
    pairs = list(pairwise(history))[-points:]
    return [max(0.0, (getattr(b, name) - getattr(a, name)) / max(0.001, b.at - a.at)) for a, b in pairs]


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, the highest one full; nothing happening is a flat line."""
    top = max(values, default=0.0)
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[min(len(BARS) - 1, int(value / top * (len(BARS) - 1) + 0.5))] for value in values)


# ---- drawing


class _Bar:
    """The states as one bar: every state that is not empty gets at least one cell."""

    def __init__(self, parts: Sequence[tuple[int, str]]) -> None:
        self.parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for cells, colour in split_cells(self.parts, options.max_width):
            yield Segment("█" * cells, Style.parse(colour))
        yield Segment.line()


def split_cells(parts: Sequence[tuple[int, str]], width: int) -> Iterator[tuple[int, str]]:
    """Divide `width` cells among counts, at least one for each that is not zero."""
    total = sum(count for count, _ in parts)
    if not total:
        yield width, "bright_black"
        return
    shares = [(max(1, round(count / total * width)) if count else 0) for count, _ in parts]
    largest = shares.index(max(shares))
    shares[largest] += width - sum(shares)
    for share, (_, colour) in zip(shares, parts, strict=True):
        if share > 0:
            yield share, colour


def render(seen: Snapshot, width: int = 80, height: int = 24) -> RenderableType:
    """Draw a snapshot for a screen of that size."""
    stats = seen.stats
    counts = [(state.value, int(getattr(stats, state.value))) for state in _ORDER]
    parts: list[RenderableType] = []
    if seen.trouble:
        parts.append(Text(safe(f" {seen.trouble} — seen {age(seen.stale)} ago ", width - 4), style="bold white on red"))
    parts += [
        _Bar([(count, COLOURS[name]) for name, count in counts]),
        _equation(counts, stats.known),
        _pace(seen, width),
    ]
    left = max(3, height - 9 - len(parts) - bool(seen.trouble))
    parts += _tables(seen, width, left)
    title = Text.assemble(
        ("timeoutq ", "bold"), (safe(seen.queue), "bold cyan"), " at ", safe(seen.url, max(20, width - 40)),
        (" PAUSED ", "bold white on red") if stats.paused else "",
    )  # fmt: skip
    return Panel(Group(*parts), title=title, title_align="left", border_style="bright_black", width=width)


_ORDER = (State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED)


def _equation(counts: Sequence[tuple[str, int]], known: int) -> Text:
    line = Text()
    for i, (name, count) in enumerate(counts):
        line.append(" + " if i else "")
        line.append(f"{number(count)} ", style=f"bold {COLOURS[name]}")
        line.append(name, style=COLOURS[name])
    line.append(" = ")
    line.append(f"{number(known)} known", style="bold")
    return line


def _pace(seen: Snapshot, width: int) -> RenderableType:
    now = rates(seen.history)
    table = Table.grid(padding=(0, 2))
    points = 12 if width < 100 else 40
    names = {"put": "put", "acked": "ack", "failed": "fail", "expired": "expired"}
    cells: list[RenderableType] = []
    for name, colour in RATES:
        line = Text(f"{names[name]} {number(now[name])}/s ", style=colour, no_wrap=True)
        cells.append(line)
    lines = [Text(sparkline(series(seen.history, name, points)), style=colour, no_wrap=True) for name, colour in RATES]
    waited = "—" if seen.waiting is None else f"≤ {age(seen.waiting)}"
    table.add_row(*cells, Text("oldest waiting ", style="bright_black", no_wrap=True))
    table.add_row(*lines, Text(waited, no_wrap=True))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        right = column in ("pid", "slots", "held", "acked", "left", "in", "ago")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=True, style="", header_style="bright_black"
        )
    return table


def _tables(seen: Snapshot, width: int, rows: int) -> list[RenderableType]:
    stats, now = seen.stats, seen.stats.now
    text_width = (width - 8) // 2 - 18
    most = max(1, (rows - 4) // 2)
    workers = _table(f"workers {stats.workers}", "host", "pid", "slots", "held", "acked", "beat")
    for worker in seen.workers[:most]:
        quiet = now - worker.beat
        style = "bright_black" if quiet > STALE else ""
        cells = (safe(worker.host, 16), str(worker.pid), str(worker.concurrency), str(worker.held))
        workers.add_row(*(Text(c) for c in cells), Text(number(worker.acked)), Text(f"{age(quiet)} ago"), style=style)
    if not seen.workers:
        workers.add_row(Text("none alive", style="red" if stats.todos else "bright_black"))
    leases = _table("leases nearest their end", "task", "left")
    for entry in seen.leases[:most]:
        left = (entry.at or now) - now
        leases.add_row(Text(safe(entry.task, text_width)), Text(age(left), style="red" if left < 0 else "yellow"))
    due = _table("next due", "task", "in")
    for entry in seen.due[:most]:
        due.add_row(Text(safe(entry.task, text_width)), Text(age((entry.at or now) - now), style="magenta"))
    errors = _table("last errors", "task", "error", "ago")
    half = max(10, text_width // 2)
    for failure in seen.errors[:most]:
        errors.add_row(
            Text(safe(failure.task, half)), Text(safe(failure.error, half + 4), style="red"),
            Text(age(now - failure.at)),
        )  # fmt: skip
    grid = Table.grid(expand=True, padding=(0, 2))
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(workers, leases)
    grid.add_row(due if seen.due else Text(""), errors if seen.errors else Text(""))
    return [grid]


# ---- for other eyes


def to_json(seen: Snapshot) -> dict[str, Any]:
    """Give the snapshot as JSON can hold it, with the rates and the sum worked out."""
    found = asdict(seen)
    found["stats"] = {**asdict(seen.stats), "known": seen.stats.known, "drained": seen.stats.drained}
    found["rates"] = rates(seen.history)
    found["waiting"] = seen.waiting
    return found


def show(seen: Snapshot, console: Console | None = None) -> None:
    """Print a snapshot once."""
    console = console or Console(highlight=False)
    console.print(render(seen, console.width, max(24, console.height)))


def svg(seen: Snapshot, width: int = 100, height: int = 26) -> str:
    """Give a picture of the dashboard."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123  # a device, not a file
        console = Console(record=True, width=width, file=nowhere, highlight=False, force_terminal=True)
        console.print(render(seen, width, height))
        return console.export_svg(title=f"timeoutq dashboard {seen.queue}")


class _Keys:
    """Reads single keys from a terminal, without echo, and puts it back as it was."""

    def __enter__(self) -> _Keys:
        self._old: Any = None
        if sys.stdin.isatty():
            import termios
            import tty

            self._old = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._old)

    def wait(self, seconds: float) -> str:
        """Give the key pressed within that time, or nothing."""
        if self._old is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode("latin-1") if ready else ""


def run(queue: Queue, interval: float = 1.0) -> None:
    """Show the queue live until q or Ctrl-C; a server that is away is shown as such and waited for."""
    console = Console(highlight=False)
    seen: Snapshot | None = None
    seen_at = time.monotonic()
    fine: list[Sample] = []
    with (
        contextlib.suppress(KeyboardInterrupt),
        _Keys() as keys,
        Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live,
    ):
        while True:
            try:
                seen = snapshot(queue)
                seen_at = time.monotonic()
                # our own looks are closer together than the samples of the queue
                fine = [*fine[-600:], seen.stats.sample]
                older = [sample for sample in seen.history if sample.at < fine[0].at]
                seen = replace(seen, history=[*older, *fine[:: max(1, len(fine) // 60)], fine[-1]])
                shown: RenderableType = render(seen, console.width, console.height)
            except TimeoutqError as error:
                stale = time.monotonic() - seen_at
                if seen is None:
                    shown = Text(safe(str(error)), style="bold red")
                else:
                    shown = render(replace(seen, trouble=str(error), stale=stale), console.width, console.height)
            live.update(shown, refresh=True)
            if keys.wait(max(0.1, interval)) in ("q", "Q", "\x1b"):
                break
