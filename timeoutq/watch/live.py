"""The live dashboard: looks at a queue again and again, draws what it sees on the terminal, and reads keys.

`screen.py` decides what a key does, `hands.py` carries it out, `panes.py` and `draw.py` draw.

`timeoutq dashboard` runs it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import cast

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from timeoutq.client.shards import AnyQueue
from timeoutq.verbs.flows import is_final
from timeoutq.watch.draw import one_line, render
from timeoutq.watch.hands import Hands
from timeoutq.watch.keyboard import Keyboard
from timeoutq.watch.panes import bottom, pane
from timeoutq.watch.screen import OVERVIEW, Screen
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.text import safe


class _Looks:
    """Looks at the queue again and again in a thread of its own, so that a server that is away freezes nothing.

    The next look begins `interval` seconds after the last one ended: there is never more than one on its way.
    """

    def __init__(self, queue: AnyQueue, interval: float, rows: int) -> None:
        self.seen: Snapshot | None = None
        self.trouble: Exception | None = None
        self.number = 0
        """Grows with every look that ended."""
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
