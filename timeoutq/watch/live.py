"""The live dashboard: looks at a queue again and again, draws what it sees on the terminal, and reads keys.

`screen.py` decides what a key does, `hands.py` carries it out, `draw.py` draws. `timeoutq dashboard` runs it.
"""

from __future__ import annotations

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
from typing import Any, cast

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from timeoutq.client.shards import AnyQueue
from timeoutq.verbs.flows import is_final
from timeoutq.watch.draw import bottom, one_line, pane, render
from timeoutq.watch.hands import Hands
from timeoutq.watch.screen import OVERVIEW, Screen
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.text import safe

SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\x1b[C": "right", b"\x1bOC": "right",
    b"\x1b[D": "left", b"\x1bOD": "left", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home",
    b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
}  # fmt: skip
"""What terminals send for keys that have no character."""

PLAIN = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "q", "\t": "tab"}

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")


def keys_of(typed: bytes) -> tuple[list[str], bytes]:
    """Name the keys in what a terminal sent; also give the end that may be the beginning of one more key.

    What is no key of ours, such as the answer of a terminal to a question, is left out.
    """
    found: list[str] = []
    while typed:
        if typed[0] == 0x1B:
            if sequence := _SEQUENCE.match(typed):
                found += [SEQUENCES[sequence[0]]] if sequence[0] in SEQUENCES else []
                typed = typed[sequence.end() :]
                continue
            if _BEGUN.match(typed):
                return found, typed
            found.append("esc")
            typed = typed[1:]
            continue
        size = 1 if typed[0] < 0xC0 else 2 if typed[0] < 0xE0 else 3 if typed[0] < 0xF0 else 4
        if len(typed) < size and all(0x80 <= byte < 0xC0 for byte in typed[1:]):
            return found, typed
        try:
            character = typed[:size].decode()
        except UnicodeDecodeError:
            character, size = "", 1
        typed = typed[size:]
        if character in PLAIN:
            found.append(PLAIN[character])
        elif character and character.isprintable():
            found.append(character)
    return found, b""


class Keyboard:
    """Reads single keys from a terminal, without echo, and puts it back as it was."""

    def __enter__(self) -> Keyboard:
        self._old: list[Any] | None = None
        self._begun = b""
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
            found, self._begun = ["esc"] if self._begun[:1] == b"\x1b" else [], b""
            return found
        typed = os.read(sys.stdin.fileno(), 1024)
        if not typed:  # ready, and yet nothing to read: the terminal is gone
            return ["q"]
        found, self._begun = keys_of(self._begun + typed)
        return found


class _Looks:
    """Looks at the queue again and again in a thread of its own, so that a server that is away freezes nothing.

    The next look begins `interval` seconds after the last one ended: there is never more than one on its way.
    """

    def __init__(self, queue: AnyQueue, interval: float, rows: int) -> None:
        self.seen: Snapshot | None = None
        self.trouble: Exception | None = None
        self.number = 0  # grows with every look that ended
        self._seen_at = time.monotonic()
        self._memory = Memory()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(queue, interval, rows), name="dashboard", daemon=True)

    def __enter__(self) -> _Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(0.5)  # one that waits for a dead server ends with the process

    def _run(self, queue: AnyQueue, interval: float, rows: int) -> None:
        while not self._end.is_set():
            try:
                self.seen, self.trouble = self._memory.add(snapshot(queue, rows)), None
                self._seen_at = time.monotonic()
            except Exception as error:  # shown, or raised by the loop that draws
                self.trouble = error
            self.number += 1
            self._end.wait(interval)

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

    if threading.current_thread() is not threading.main_thread():
        yield
        return
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
    """Show the queue live until q; a server that is away is shown as such and waited for.

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
    queue: AnyQueue,
    interval: float,
    live: Live,
    keys: Keyboard,
    unknown: Callable[[], str] | None,
    screen: Screen,
) -> str | None:
    """Show one queue; give the name of the queue that is wanted next, or None at the end."""
    words = None if unknown is None else cache(unknown)
    lock, drawn, looked = threading.Lock(), cast(object, None), 0
    rows = max(20, live.console.height)
    with _Looks(queue, max(0.1, interval), rows) as looks, Hands(queue, screen, lock) as hands:
        while True:
            size = live.console.size
            seen = looks.current()
            with lock:
                if seen is not None:
                    screen.paused = seen.stats.paused
                if looks.number != looked and (wish := screen.wish) is not None:
                    hands.do(wish)
                looked = looks.number
                state = (looks.number, hands.number, size, int(seen.stale) if seen else None, _told(screen))
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
                    hands.do(wish)


def _told(screen: Screen) -> object:
    # what changes the picture without an answer of the server
    return (screen.view, screen.state, screen.selected, screen.top, screen.typing, screen.question, screen.said)


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
