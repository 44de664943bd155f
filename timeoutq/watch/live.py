"""The live dashboard: looks at a queue again and again, draws what it sees on the terminal, and reads keys."""

from __future__ import annotations

import codecs
import math
import os
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
from queue import SimpleQueue
from typing import Any

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from timeoutq.client.shards import AnyQueue
from timeoutq.verbs.flows import is_final
from timeoutq.watch.draw import bottom, one_line, pane, render
from timeoutq.watch.hands import carry_out
from timeoutq.watch.screen import OVERVIEW, Rows, Screen, Wish
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
            return ["esc", "esc", "q"]  # also while something is typed
        found, self._begun = keys_of(self._begun + self._decoder.decode(typed))
        return found


LOOK = Wish("look")  # what the loop that draws wants again and again: a snapshot


@contextmanager
def _errands(queue: AnyQueue, rows: int) -> Generator[tuple[SimpleQueue[Wish | None], SimpleQueue[Any]]]:
    """Carry out wishes one after another in a thread, so that a server that is away freezes nothing.

    Gives the queue for wishes, and the queue of answers: each is a wish with what came of it, which may be an error.
    """
    wishes, answers = SimpleQueue[Wish | None](), SimpleQueue[Any]()

    def run() -> None:
        for wish in iter(wishes.get, None):
            try:
                answers.put((wish, snapshot(queue, rows) if wish is LOOK else carry_out(queue, wish)))
            except Exception as error:  # a dashboard goes on whatever the server or a foreign key does
                answers.put((wish, error))

    thread = threading.Thread(target=run, name="dashboard", daemon=True)
    thread.start()
    try:
        yield wishes, answers
    finally:
        wishes.put(None)
        thread.join(0.5)  # one that waits for a dead server ends with the process


@contextmanager
def _leaving_in_order() -> Generator[None]:
    """Let SIGTERM and SIGHUP end the block in order, so that the terminal is put back. Ctrl-C goes on to the caller."""
    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda _number, _frame: sys.exit()) for number in numbers}
    try:
        with suppress(SystemExit):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    queue: AnyQueue,
    interval: float = 1.0,
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
    how: Any = {"screen": True, "auto_refresh": False, "redirect_stderr": False, "redirect_stdout": False}
    with _leaving_in_order(), Keyboard() as keys, Live(console=Console(highlight=False), **how) as live:
        wanted = _watch(queue, interval, live, keys, unknown, Screen(queue.name, read_only))
        while wanted is not None and another is not None:
            with another(wanted) as other:
                wanted = _watch(other, interval, live, keys, None, Screen(other.name, read_only))


def _watch(
    queue: AnyQueue, interval: float, live: Live, keys: Keyboard, unknown: Callable[[], str] | None, screen: Screen
) -> str | None:
    """Show one queue; give the name of the queue that is wanted next, or None at the end.

    The next look begins `interval` seconds after the last one ended.
    """
    words = None if unknown is None else cache(unknown)
    seen: Snapshot | None = None
    trouble: Exception | None = None
    drawn: object = None
    memory, due, seen_at = Memory(), 0.0, 0.0
    with _errands(queue, max(20, live.console.height)) as (wishes, answers):
        while True:
            if time.monotonic() >= due:
                due = math.inf
                wishes.put(LOOK)
            if seen is not None and trouble is not None:
                seen = replace(seen, trouble=str(trouble), stale=time.monotonic() - seen_at)
            state = (live.console.size, seen and int(seen.stale))
            if state != drawn:
                drawn = state
                live.update(_view(screen, seen, trouble, live.console.size, words), refresh=True)
            typed = keys.wait(0.1)
            while not answers.empty():
                drawn, (wish, found) = None, answers.get()
                if wish is not LOOK:
                    _take(screen, wish, found)
                elif isinstance(found, Snapshot):
                    seen, trouble, seen_at = memory.add(found), None, time.monotonic()
                    screen.paused = seen.stats.paused
                elif not isinstance(found, TimeoutqError) or (seen is None and is_final(found)):
                    raise found
                else:
                    trouble = found
                if wish is LOOK:
                    due = time.monotonic() + max(0.1, interval)
                # what is on the screen is read again after each look, and after each act
                if (wish is LOOK or isinstance(found, str)) and screen.wish is not None:
                    wishes.put(screen.wish)
            for key in typed:
                drawn, pressed = None, screen.press(key)
                if pressed is not None and pressed.what in ("leave", "queue"):
                    return pressed.target or None
                if pressed is not None:
                    wishes.put(pressed)


def _take(screen: Screen, wish: Wish, found: Any) -> None:
    if isinstance(found, Rows):
        screen.show(found)
    elif isinstance(found, TimeoutqError):
        screen.say(f"{wish.what}: {found}", failed=True)
    elif isinstance(found, Exception):
        screen.say(f"{wish.what}: {type(found).__name__}: {found}", failed=True)
    elif isinstance(found, str):
        screen.acted(wish, found)
    else:
        screen.explain(wish.target, *found)


def _view(
    screen: Screen, seen: Snapshot | None, trouble: Exception | None, size: ConsoleDimensions,
    unknown: Callable[[], str] | None,
) -> RenderableType:  # fmt: skip
    width, height = size.width, size.height - 1
    if screen.view != OVERVIEW:
        now, stats = (time.time(), None) if seen is None else (seen.stats.now + seen.stale, seen.stats)
        return Group(pane(screen, now, stats, width, height), bottom(screen, width))
    if seen is None:
        said = f"waits for the server: {trouble}" if trouble else "looks at the queue …"
        return one_line((safe(f" timeoutq {screen.queue} {said}", width), "bold red"))
    if unknown is not None and not (seen.exists or seen.trouble):
        return Text(safe(f" timeoutq: {unknown()}; waits for the first task"), "bold yellow")
    return Group(render(seen, width, height), bottom(screen, width))
