"""The live dashboard: looks at a queue again and again, draws what it sees on the terminal, and reads keys.

`screen.py` decides what a key does, `hands.py` carries it out, `draw.py` draws.
"""

from __future__ import annotations

import codecs
import os
import queue as queues
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from timeoutq.client.shards import AnyQueue
from timeoutq.verbs.flows import is_final
from timeoutq.watch.draw import bottom, one_line, pane, render
from timeoutq.watch.hands import carry_out
from timeoutq.watch.screen import OVERVIEW, Screen, Wish
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.text import safe

KEYS = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": "right", "\x1bOC": "right",
    "\x1b[D": "left", "\x1bOD": "left", "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home",
    "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end", "\x1b": "esc",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "q", "\t": "tab",
}  # fmt: skip
"""What terminals send for keys that have no printable character."""

_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|.", re.DOTALL)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")


def keys_of(typed: str) -> tuple[list[str], str]:
    """Name the keys in what a terminal sent; also give the end that may be the beginning of one more key."""
    begun = _BEGUN.search(typed)
    whole = typed[: begun.start()] if begun else typed
    pressed: list[str] = _KEY.findall(whole)
    found = [KEYS.get(key, key) for key in pressed]
    return [key for key in found if key.isprintable()], typed[len(whole) :]


class Keyboard:
    """Reads single keys from a terminal, without echo, and puts it back as it was."""

    def __enter__(self) -> Keyboard:
        self._old: list[Any] | None = None
        self._begun, self._decoder = "", codecs.getincrementaldecoder("utf-8")("ignore")
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

    def wait(self, seconds: float) -> list[str]:
        """Give the keys that were typed within that time."""
        if self._old is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        if not ready:
            # the rest of a sequence comes at once: an escape that stands alone is the key
            found, self._begun = ["esc"] if self._begun else [], ""
            return found
        typed = os.read(sys.stdin.fileno(), 1024)
        if not typed:  # ready, and yet nothing to read: the terminal is gone
            return ["q"]
        found, self._begun = keys_of(self._begun + self._decoder.decode(typed))
        return found


class _Looks:
    """Looks at the queue again and again, and carries out wishes, in a thread: a server that is away freezes nothing.

    The next look begins `interval` seconds after the last one ended; after each, the list or task on the screen is read
    again.
    """

    def __init__(self, queue: AnyQueue, screen: Screen, lock: threading.Lock, interval: float, rows: int) -> None:
        self.seen: Snapshot | None = None
        self.trouble: Exception | None = None
        self.number = 0  # grows with every look, and with every wish that was carried out
        self._queue, self._screen, self._lock, self._interval, self._rows = queue, screen, lock, interval, rows
        self._seen_at = time.monotonic()
        self._memory = Memory()
        self._wishes: queues.SimpleQueue[Wish | None] = queues.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def __enter__(self) -> _Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wishes.put(None)
        self._thread.join(0.5)  # one that waits for a dead server ends with the process

    def do(self, wish: Wish) -> None:
        """Carry out a wish, after those that came before."""
        self._wishes.put(wish)

    def _run(self) -> None:
        due = 0.0
        while True:
            try:
                wish = self._wishes.get(timeout=max(0.0, due - time.monotonic()))
                if wish is None:
                    return
            except queues.Empty:
                self._look()
                due, wish = time.monotonic() + self._interval, self._screen.wish
            if wish is not None:
                try:
                    carry_out(self._queue, self._screen, self._lock, wish)
                except Exception as error:  # a dashboard goes on whatever the server or a foreign key does
                    said = str(error) if isinstance(error, TimeoutqError) else f"{type(error).__name__}: {error}"
                    with self._lock:
                        self._screen.say(f"{wish.what}: {said}", failed=True)
            self.number += 1

    def _look(self) -> None:
        try:
            self.seen, self.trouble = self._memory.add(snapshot(self._queue, self._rows)), None
            self._seen_at = time.monotonic()
        except Exception as error:  # shown, or raised by the loop that draws
            self.trouble = error

    def current(self) -> Snapshot | None:
        """Give the last snapshot, with the trouble that came since; None before the first.

        Raises what no waiting mends.
        """
        seen, trouble = self.seen, self.trouble
        if trouble is not None and (not isinstance(trouble, TimeoutqError) or (seen is None and is_final(trouble))):
            raise trouble
        if seen is None or trouble is None:
            return seen
        return replace(seen, trouble=str(trouble), stale=time.monotonic() - self._seen_at)


class _Ended(BaseException):
    """SIGTERM or SIGHUP has come. No handler of errors takes this for one."""


@contextmanager
def _leaving_in_order() -> Generator[None]:
    """Let SIGTERM and SIGHUP end the block in order, so that the terminal is put back. Ctrl-C goes on to the caller."""

    def leave(*_: object) -> None:
        raise _Ended

    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        with suppress(_Ended):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    queue: AnyQueue,
    interval: float = 1.0,
    console: Console | None = None,
    unknown: Callable[[], str] | None = None,
    *,
    read_only: bool = False,
    another: Callable[[str], AnyQueue] | None = None,
) -> None:
    """Show the queue live until q; a server that is away is shown as such and waited for. For the main thread.

    `unknown` gives the words about a queue that nothing was put to and nobody works on; it is called at most once.
    `another` opens the queue of a name, for the key that changes the queue. With `read_only`, no key changes anything.
    Raises what no waiting mends, such as a wrong password, when it comes before the first look; and
    `KeyboardInterrupt` at Ctrl-C, after the terminal is put back.
    """
    console = console or Console(highlight=False)
    with (
        _leaving_in_order(),
        Keyboard() as keys,
        Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False, redirect_stdout=False) as live,
    ):
        wanted = _watch(queue, interval, live, keys, unknown, Screen(queue.name, read_only))
        while wanted is not None and another is not None:
            with another(wanted) as other:
                wanted = _watch(other, interval, live, keys, None, Screen(other.name, read_only))


def _watch(
    queue: AnyQueue, interval: float, live: Live, keys: Keyboard, unknown: Callable[[], str] | None, screen: Screen
) -> str | None:
    """Show one queue; give the name of the queue that is wanted next, or None at the end."""
    words = None if unknown is None else cache(unknown)
    lock, drawn = threading.Lock(), tuple[object, ...]()
    with _Looks(queue, screen, lock, max(0.1, interval), max(20, live.console.height)) as looks:
        while True:
            size = live.console.size
            seen = looks.current()
            with lock:
                if seen is not None:
                    screen.paused = seen.stats.paused
                state = (looks.number, size, int(seen.stale) if seen else None, *screen.look)
                if state != drawn:
                    drawn = state
                    live.update(_view(queue.name, seen, looks.trouble, size, words, screen), refresh=True)
            for key in keys.wait(0.1):
                with lock:
                    wish = screen.press(key)
                if wish is not None and wish.what == "leave":
                    return None
                if wish is not None and wish.what == "queue":
                    return wish.target
                if wish is not None:
                    looks.do(wish)


def _view(
    name: str, seen: Snapshot | None, trouble: Exception | None, size: ConsoleDimensions,
    unknown: Callable[[], str] | None, screen: Screen,
) -> RenderableType:  # fmt: skip
    if screen.view != OVERVIEW:
        now, stats = (time.time(), None) if seen is None else (seen.stats.now + seen.stale, seen.stats)
        return Group(pane(screen, now, stats, size.width, size.height - 1), bottom(screen, size.width))
    if seen is None:
        said = f"waits for the server: {trouble}" if trouble else "looks at the queue …"
        return one_line((safe(f" timeoutq {name} {said}", size.width), "bold red"))
    if unknown is not None and not (seen.exists or seen.trouble):
        return Text(safe(f" timeoutq: {unknown()}; waits for the first task"), "bold yellow")
    return Group(render(seen, size.width, size.height - 1), bottom(screen, size.width))
