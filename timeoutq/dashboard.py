"""What the queue looks like: `snapshot(queue) -> Snapshot`, `render(snapshot)` (pure), and the live loop.

`timeoutq status` and `timeoutq dashboard` call it, and the demo. It reads counts and short pages only, so that a queue
of a million tasks costs what an empty one does; whatever came from a task passes `safe()` and becomes plain `Text`.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from timeoutq.client import AsyncQueue, Queue
from timeoutq.errors import InvalidInput, TimeoutqError
from timeoutq.flows import is_final
from timeoutq.model import Entry, Failure, HostInfo, Sample, State, Stats, WorkerInfo
from timeoutq.standing import Standing, standing
from timeoutq.text import age, compact, number, rate, safe, span

COLOURS = {
    "todos": "cyan",
    "waiting": "blue",
    "scheduled": "magenta",
    "in_progress": "yellow",
    "done": "green",
    "failed": "red",
}
RATES = (("put", "put", "cyan"), ("acked", "ack", "green"), ("failed", "fail", "red"), ("expired", "expired", "yellow"))
"""Counter, the word for it, colour."""

BARS = "▁▂▃▄▅▆▇█"
SILENT = 30.0
"""Seconds without a sign of life after which a worker counts as gone: three that it owes."""

STEP = 10.0
"""Seconds that one column of a sparkline stands for, as soon as there is that much history."""

WIDE = 140
"""From so many columns on the tables stand in two columns."""

NAMED = 76
"""With less room than this the table of hosts has fewer columns, so that names can be told from each other."""

_DIM = "bright_black"


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
    hosts: Sequence[HostInfo] = ()
    """Of a polite queue, those whose turn is next."""
    host_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    """Visits a second of the hosts that were seen before."""
    history: Sequence[Sample] = field(default_factory=list[Sample])
    """Oldest first; the last one is now."""
    trouble: str = ""
    """Why this is not fresh: the server cannot be reached."""
    stale: float = 0.0
    """For how many seconds."""

    @property
    def exists(self) -> bool:
        """Something was put to the queue, or set for it, or a worker waits there."""
        return self.stats.exists or bool(self.workers)

    @property
    def living(self) -> Sequence[WorkerInfo]:
        """Workers that have given a sign of life lately."""
        return [worker for worker in self.workers if self.stats.now - worker.beat <= SILENT]

    @property
    def gone(self) -> Sequence[WorkerInfo]:
        """Those that have not, and did not say farewell."""
        return [worker for worker in self.workers if self.stats.now - worker.beat > SILENT]

    @property
    def waiting(self) -> float | None:
        """For how long there have been ready tasks without a break, seconds; none of them has waited longer.

        None when there are none. When each of them became ready is not kept.
        """
        return None if self.stats.todos_since is None else max(0.0, self.stats.now - self.stats.todos_since)


def snapshot(queue: Queue, rows: int = 20) -> Snapshot:
    """Look at the queue: counts, and pages of at most `rows` entries. Raises `Unavailable`."""
    stats = queue.stats()
    return _seen(
        queue,
        stats,
        _hosts_of(queue, rows) if stats.politeness else (),
        queue.workers(),
        queue.list(State.IN_PROGRESS, n=rows).entries[:rows],
        queue.list(State.SCHEDULED, n=rows).entries[:rows],
        queue.errors(rows),
        queue.history(),
    )


async def snapshot_async(queue: AsyncQueue, rows: int = 20) -> Snapshot:
    """Look at the queue as `snapshot` does, for asyncio."""
    stats = await queue.stats()
    return _seen(
        queue,
        stats,
        await _hosts_of_async(queue, rows) if stats.politeness else (),
        await queue.workers(),
        (await queue.list(State.IN_PROGRESS, n=rows)).entries[:rows],
        (await queue.list(State.SCHEDULED, n=rows)).entries[:rows],
        await queue.errors(rows),
        await queue.history(),
    )


def _hosts_of(queue: Queue, rows: int) -> Sequence[HostInfo]:
    with suppress(InvalidInput):  # it is polite no more
        return queue.hosts(n=rows).hosts
    return ()


async def _hosts_of_async(queue: AsyncQueue, rows: int) -> Sequence[HostInfo]:
    with suppress(InvalidInput):  # it is polite no more
        return (await queue.hosts(n=rows)).hosts
    return ()


def _seen(
    queue: Queue | AsyncQueue,
    stats: Stats,
    hosts: Sequence[HostInfo],
    workers: Sequence[WorkerInfo],
    leases: Sequence[Entry],
    due: Sequence[Entry],
    errors: Sequence[Failure],
    history: Sequence[Sample],
) -> Snapshot:
    # those who live first, then by name, so that a row stays where it is
    ordered = sorted(workers, key=lambda one: (stats.now - one.beat > SILENT, one.host, one.pid, one.worker))
    samples = [*history, stats.sample]
    return Snapshot(queue.name, queue.url, stats, ordered, leases, due, errors, hosts, history=samples)


# ---- what happened when


def rates(history: Sequence[Sample], over: float = 10.0) -> dict[str, float]:
    """Give events a second over the last `over` seconds or so, by counter; nothing when nothing is known."""
    if len(history) < 2:
        return {}
    last = history[-1]
    first = next((sample for sample in reversed(history[:-1]) if last.at - sample.at >= over), history[0])
    span = last.at - first.at
    if span <= 0:
        return {}
    return {name: max(0.0, (getattr(last, name) - getattr(first, name)) / span) for name, _, _ in RATES}


def series(history: Sequence[Sample], name: str, points: int) -> list[float]:
    """Give the rates of the last `points` steps of `STEP` seconds (shorter ones when the history is), oldest first.

    Samples come when they come; the counter between two of them is taken to grow evenly.
    """
    kept = [sample for sample, after in pairwise(history) if sample.at < after.at] + list(history[-1:])
    if len(kept) < 2 or points < 1 or any(a.at >= b.at for a, b in pairwise(kept)):
        return []
    times = [sample.at for sample in kept]
    counts: list[float] = [getattr(sample, name) for sample in kept]

    def at(moment: float) -> float:
        right = min(max(1, bisect_right(times, moment)), len(times) - 1)
        part = (moment - times[right - 1]) / (times[right] - times[right - 1])
        return counts[right - 1] + part * (counts[right] - counts[right - 1])

    step = min(STEP, max(1.0, (times[-1] - times[0]) / points))
    steps = min(points, int((times[-1] - times[0]) / step + 1e-6))
    found = [at(times[-1] - back * step) for back in range(steps, -1, -1)]
    return [max(0.0, (b - a) / step) for a, b in pairwise(found)]


def sparkline(values: Sequence[float]) -> str:
    """Draw values as blocks, the highest one full; what is not zero is never drawn as nothing."""
    top = max(values, default=0.0)
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[0] if value <= 0 else BARS[max(1, round(value / top * (len(BARS) - 1)))] for value in values)


# ---- drawing


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
    lines: list[Text] = []
    if seen.trouble:
        ago = f" — as it was {age(seen.stale)} ago "
        lines.append(_line((safe(f" {seen.trouble}", inner - cell_len(ago)), ""), (ago, ""), style="bold white on red"))
    shown = [state for state in _ORDER if state is not State.WAITING or seen.stats.politeness or seen.stats.waiting]
    counts = {state.value: int(getattr(seen.stats, state.value)) for state in shown}
    lines.append(_bar(counts, inner))
    lines += _equation(counts, seen.stats.known, inner)
    lines += _pace(seen, inner)
    lines += _durations(seen)
    lines += _tables(seen, inner, height - 2 - len(lines))
    name = safe(seen.queue, max(8, inner - 20))
    paused = (" PAUSED", "bold white on red") if seen.stats.paused else ("", "")
    title = Text.assemble(("timeoutq ", "bold"), (name, "bold cyan"), paused)
    room = inner - title.cell_len - 6
    if room >= 12:
        title.append(f" at {safe(seen.url, room)}")
    return Panel(
        Group(*lines), title=title, title_align="left", border_style="red" if seen.trouble else _DIM, width=width
    )


_ORDER = (State.WAITING, State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED)


def _line(*parts: tuple[str, str], style: str = "") -> Text:
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="crop", end="\n")


def _bar(counts: dict[str, int], width: int) -> Text:
    if not any(counts.values()):
        return _line(("░" * width, _DIM))
    cells = split_cells(list(counts.values()), width)
    return _line(*(("█" * share, COLOURS[name]) for share, name in zip(cells, counts, strict=True)))


def _equation(counts: dict[str, int], known: int, width: int) -> list[Text]:
    words: list[tuple[tuple[str, str], ...]] = []
    for name, count in counts.items():
        sign = (("+ ", ""),) if words else ()
        words.append((*sign, (f"{number(count)} ", f"bold {COLOURS[name]}"), (name, COLOURS[name])))
    words.append((("= ", ""), (f"{number(known)} known", "bold")))
    lines = [_line()]
    for word in words:
        piece = _line(*word)
        if lines[-1].cell_len and lines[-1].cell_len + 1 + piece.cell_len > width:
            lines.append(_line())
        if lines[-1].cell_len:
            lines[-1].append(" ")
        lines[-1].append_text(piece)
    return lines


def _pace(seen: Snapshot, width: int) -> list[Text]:
    now = rates(seen.history)
    last = 16
    each = max(9, (width - last) // len(RATES))
    upper, lower = _line(), _line()
    for counter, word, colour in RATES:
        upper.append(set_cell_size(f"{word} {rate(now.get(counter))}/s", each), colour)
        lower.append(set_cell_size(sparkline(series(seen.history, counter, min(each - 2, 60))), each), colour)
    # when each of them became ready is not kept: only since when there have been any
    upper.append("ready tasks for", _DIM)
    lower.append(age(seen.waiting))
    return [upper, lower]


def _durations(seen: Snapshot) -> list[Text]:
    found = seen.stats.durations
    if found is None:
        return []
    line = _line(("handlers ran ", _DIM))
    for name, seconds in (("p50", found.p50), ("p95", found.p95), ("max", found.max)):
        line.append(f"{name} ", _DIM).append(f"{span(seconds)}  ")
    return [line.append(f"of {compact(found.count)} runs", _DIM)]


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    width: int = 0
    """Cells; a column of 0 shares what the others leave, by `share`."""
    right: bool = False
    share: int = 1


@dataclass(frozen=True, slots=True)
class _Section:
    columns: Sequence[_Column]
    rows: Sequence[tuple[str, Sequence[str | tuple[str, str]]]]
    """(style of the row, a text or (text, style) for each column); any text at all, it is made safe here."""

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

    def _row(
        self, cells: Sequence[str | tuple[str, str]], sizes: Sequence[int], style: str, *, heads: bool = False
    ) -> Text:
        line = _line(style=style)
        for i, (cell, size, column) in enumerate(zip(cells, sizes, self.columns, strict=True)):
            text, colour = cell if isinstance(cell, tuple) else (cell, "")
            text = safe(text, size)
            pad = " " * (size - cell_len(text))
            look = ("bold" if i == 0 else _DIM) if heads else "" if style else colour
            line.append("  " if i else "").append(pad if column.right else "").append(text, look)
            line.append("" if column.right else pad)
        return line


def _sections(seen: Snapshot, width: int) -> list[_Section]:
    stats, now = seen.stats, seen.stats.now
    gone = f" ({number(len(seen.gone))} gone)" if seen.gone else ""
    workers = _Section(
        (
            _Column(f"workers {number(len(seen.living))}{gone}"), _Column("pid", 8, True),
            _Column("slots", 6, True), _Column("held", 6, True), _Column("acked", 7, True),
            _Column("failed", 6, True), _Column("last beat", 9, True),
        ),
        [
            (
                _DIM if now - worker.beat > SILENT else "",
                (
                    ("† " if now - worker.beat > SILENT else "") + (worker.host or worker.worker),
                    str(worker.pid), compact(worker.concurrency),
                    (compact(worker.held), COLOURS["in_progress"]), (compact(worker.acked), COLOURS["done"]),
                    (compact(worker.failed), COLOURS["failed"] if worker.failed else ""),
                    age(max(0.0, now - worker.beat)),
                ),
            )
            for worker in seen.workers
        ]
        or [("red" if stats.todos else _DIM, ("none at work", "", "", "", "", "", ""))],
    )  # fmt: skip
    holder = 18 if width < 90 else 28
    leases = _Section(
        (_Column("leases nearest their end"), _Column("holder", holder), _Column("left", 8, True)),
        [
            ("", (entry.task, (_holder(entry.holder), _DIM), _left(entry.at, now)))
            for entry in seen.leases
        ],
    )  # fmt: skip
    due = _Section(
        (_Column("next due"), _Column("in", 8, True)),
        [("", (entry.task, (age(max(0.0, (entry.at or now) - now)), "magenta"))) for entry in seen.due],
    )
    errors = _Section(
        (_Column("last errors", share=2), _Column("error", share=3), _Column("ago", 8, True)),
        [("", (failure.task, (failure.error, "red"), age(max(0.0, now - failure.at)))) for failure in seen.errors],
    )
    return [workers, *_host_section(seen, width), leases, errors, due]


def _host_section(seen: Snapshot, width: int) -> list[_Section]:
    if not seen.stats.politeness:
        return []
    named = _Column(f"hosts {number(seen.stats.hosts)}")
    columns = {
        "waiting": _Column("waiting", 7, True), "in flight": _Column("in flight", 9, True),
        "turn": _Column("turn", 9, True), "visits": _Column("visits", 6, True), "/s": _Column("/s", 5, True),
        "errors": _Column("errors", 6, True),
    }  # fmt: skip
    if width < NAMED:
        del columns["in flight"], columns["errors"]
    if not seen.host_rates:  # one look alone knows none
        del columns["/s"]
    rows: list[tuple[str, Sequence[str | tuple[str, str]]]] = []
    for host in sorted(seen.hosts, key=_place):
        cells: dict[str, str | tuple[str, str]] = {
            "waiting": (compact(host.waiting), COLOURS["waiting"]),
            "in flight": (compact(host.busy), COLOURS["in_progress"]),
            "turn": TURNS[standing(host, seen.stats.now, TURNS)](host, seen.stats.now),
            "visits": compact(host.visits),
            "/s": rate(seen.host_rates.get(host.host)),
            "errors": (compact(host.failures), COLOURS["failed"] if host.failures else ""),
        }
        rows.append(("", (host.host, *(cells[column] for column in columns))))
    return [_Section((named, *columns.values()), rows)]


def _place(host: HostInfo) -> tuple[int, str]:
    # those with most to do first, and yet a row stays where it is while its count changes a little
    return -host.waiting.bit_length(), host.host


TURNS: Mapping[Standing, Callable[[HostInfo, float], tuple[str, str]]] = {
    Standing.BANNED: lambda host, now: ("banned", "red"),
    Standing.BLOCKED: lambda host, now: (f"⊘ {age((host.blocked_until or now) - now)}", "red"),
    Standing.TURN: lambda host, now: (age(max(0.0, (host.turn or now) - now)), "magenta"),
    Standing.USED_UP: lambda host, now: ("used up", "yellow") if host.waiting else ("—", _DIM),
    Standing.FREE: lambda host, now: ("—", _DIM),
}
"""The text and colour of a cell in the column `turn`."""


def _holder(token: str | None) -> str:
    """Give host:pid of a worker's name; what is named otherwise is shown as it is."""
    if not token:
        return "—"
    return token.rpartition(":")[0] if token.count(":") == 2 else token


def _left(at: float | None, now: float) -> tuple[str, str]:
    if at is None:
        return "—", _DIM
    return age(at - now), "red" if at < now else COLOURS["in_progress"]


def share_rows(wanted: Sequence[int], room: int) -> list[int]:
    """Divide `room` lines among tables that want so many rows each: a head and a gap for each, fair shares of the rest.

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
    left, right = _stack([workers, *hosts, due], half, room), _stack([leases, errors], half, room)
    rows: list[Text] = []
    for i in range(max(len(left), len(right))):
        line = left[i] if i < len(left) else _line()
        line.append(" " * (half - line.cell_len + 4))
        rows.append(line.append_text(right[i]) if i < len(right) else line)
    return rows


def _stack(sections: Sequence[_Section], width: int, room: int) -> list[Text]:
    lines: list[Text] = []
    for section, rows in zip(sections, share_rows([len(one.rows) for one in sections], room), strict=True):
        if rows:
            lines += [_line(), *section.draw(width, rows)]
    return lines


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
    console = Console(
        record=True, width=width, file=io.StringIO(), highlight=False, force_terminal=True, color_system="truecolor"
    )
    console.print(render(seen, width, height))
    return console.export_svg(title=f"timeoutq dashboard {safe(seen.queue)}")


# ---- live


class _Looks:
    """Looks at the queue again and again in a thread of its own, so that a server that is away freezes nothing.

    The next look begins `interval` seconds after the last one ended: there is never more than one on its way.
    """

    def __init__(self, queue: Queue, interval: float, rows: int) -> None:
        self.seen: Snapshot | None = None
        self.trouble: Exception | None = None
        self.number = 0
        """Grows with every look that ended."""
        self._seen_at = time.monotonic()
        self._samples: list[Sample] = []
        self._visits: deque[tuple[float, dict[str, int]]] = deque(maxlen=10)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(queue, interval, rows), name="dashboard", daemon=True)

    def __enter__(self) -> _Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(0.5)  # one that waits for a dead server ends with the process

    def _run(self, queue: Queue, interval: float, rows: int) -> None:
        while not self._end.is_set():
            try:
                self.seen, self.trouble = self._finer(snapshot(queue, rows)), None
                self._seen_at = time.monotonic()
            except Exception as error:  # shown, or raised by the loop that draws
                self.trouble = error
            self.number += 1
            self._end.wait(interval)

    def _finer(self, seen: Snapshot) -> Snapshot:
        # our own looks are closer together than the samples that the queue keeps
        now = seen.stats.sample
        if self._samples and now.at <= self._samples[-1].at:
            self._samples.clear()  # the clock stepped back, or it is another server
        self._samples = [*self._samples[-1200:], now]
        older = [sample for sample in seen.history if sample.at < self._samples[0].at]
        return replace(seen, history=[*older, *self._samples], host_rates=self._paces(seen))

    def _paces(self, seen: Snapshot) -> dict[str, float]:
        # of each host since the oldest look that is kept and has seen it
        found: dict[str, float] = {}
        for host in seen.hosts:
            for at, visits in self._visits:
                if host.host in visits and seen.stats.now > at:
                    found[host.host] = max(0, host.visits - visits[host.host]) / (seen.stats.now - at)
                    break
        self._visits.append((seen.stats.now, {host.host: host.visits for host in seen.hosts}))
        return found

    def current(self) -> Snapshot | None:
        """Give the last snapshot, with the trouble that came since; None before the first. Raises what cannot mend."""
        seen, trouble = self.seen, self.trouble
        if trouble is not None and (not isinstance(trouble, TimeoutqError) or (seen is None and is_final(trouble))):
            raise trouble
        if seen is None or trouble is None:
            return seen
        return replace(seen, trouble=str(trouble), stale=time.monotonic() - self._seen_at)


class _Keys:
    """Reads single keys from a terminal, without echo, and puts it back as it was."""

    def __enter__(self) -> _Keys:
        self._old: list[Any] | None = None
        if sys.platform != "win32" and sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._old = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform != "win32" and self._old is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._old)

    def wait(self, seconds: float) -> bytes:
        """Give what was typed within that time, or nothing."""
        if self._old is None:
            time.sleep(seconds)
            return b""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        typed = os.read(sys.stdin.fileno(), 64) if ready else b""
        return typed or (b"q" if ready else b"")  # the terminal is gone


@contextmanager
def _leaving_in_order() -> Generator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that the terminal is put back."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        with suppress(KeyboardInterrupt):
            yield
        return
    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    queue: Queue,
    interval: float = 1.0,
    console: Console | None = None,
    unknown: Callable[[], str] | None = None,
) -> None:
    """Show the queue live until q or Ctrl-C; a server that is away is shown as such and waited for.

    `unknown` says what is shown of a queue that nothing was put to and nobody works on; it is asked once.
    Raises what no waiting mends, such as a wrong password, when it comes before the first look.
    """
    said_unknown = ""
    console = console or Console(highlight=False)
    drawn: object = None
    with (
        _leaving_in_order(),
        _Keys() as keys,
        _Looks(queue, max(0.1, interval), max(20, console.height)) as looks,
        Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False, redirect_stdout=False) as live,
    ):
        while True:
            size = console.size
            seen = looks.current()
            state = (looks.number, size, int(seen.stale) if seen else None)
            if state != drawn:
                drawn = state
                if seen is not None and unknown is not None and not (seen.exists or seen.trouble):
                    said_unknown = said_unknown or f"{unknown()}; waits for the first task"
                    live.update(Text(safe(f" timeoutq: {said_unknown}"), "bold yellow"), refresh=True)
                elif seen is not None:
                    live.update(render(seen, size.width, size.height), refresh=True)
                else:
                    said = f"waits for the server: {looks.trouble}" if looks.trouble else "looks at the queue …"
                    live.update(_line((safe(f" timeoutq {queue.name} {said}", size.width), "bold red")), refresh=True)
            pressed = keys.wait(0.1)
            if any(key in pressed for key in b"qQ\x04"):
                break
