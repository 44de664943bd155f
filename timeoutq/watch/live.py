"""The live dashboard: looks at a queue again and again, draws what it sees on the terminal, and reads keys.

`timeoutq dashboard` runs it.
"""

from __future__ import annotations

import os
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

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live
from rich.text import Text

from timeoutq.errors import TimeoutqError
from timeoutq.flows import is_final
from timeoutq.shards import AnyQueue
from timeoutq.text import safe
from timeoutq.watch.draw import one_line, render
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot


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
        return typed or (b"q" if ready else b"")  # ready, and yet nothing to read: the terminal is gone


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
    queue: AnyQueue,
    interval: float = 1.0,
    console: Console | None = None,
    unknown: Callable[[], str] | None = None,
) -> None:
    """Show the queue live until q or Ctrl-C; a server that is away is shown as such and waited for.

    `unknown` gives the words about a queue that nothing was put to and nobody works on; it is called at most once.
    Raises what no waiting mends, such as a wrong password, when it comes before the first look.
    """
    words = None if unknown is None else cache(unknown)
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
                live.update(_view(queue.name, seen, looks.trouble, size, words), refresh=True)
            pressed = keys.wait(0.1)
            if any(key in pressed for key in b"qQ\x04"):
                break


def _view(
    name: str, seen: Snapshot | None, trouble: Exception | None, size: ConsoleDimensions,
    unknown: Callable[[], str] | None,
) -> RenderableType:  # fmt: skip
    if seen is None:
        said = f"waits for the server: {trouble}" if trouble else "looks at the queue …"
        return one_line((safe(f" timeoutq {name} {said}", size.width), "bold red"))
    if unknown is not None and not (seen.exists or seen.trouble):
        return Text(safe(f" timeoutq: {unknown()}; waits for the first task"), "bold yellow")
    return render(seen, size.width, size.height)
