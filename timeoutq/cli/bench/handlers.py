"""The handlers of the workers that a measurement starts: they do nothing, note when they began, or run calls.

Imported by `python -m timeoutq worker`. A worker that a measurement started ends when the measurement does, however
that ends: the worker watches its standard input, which only the measurement holds open.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from timeoutq.words.model import Lease, raw

if TYPE_CHECKING:
    from timeoutq.functions import App

NOTES = "TIMEOUTQ_BENCH_NOTES"
"""The environment variable that names the file where handlers note what they began, and when."""


def _watch_parent() -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
    while os.read(0, 1):
        pass
    os._exit(1)


_notes = -1
if NOTES in os.environ:
    _notes = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    threading.Thread(target=_watch_parent, name="parent", daemon=True).start()


async def nothing(lease: Lease) -> None:
    """Do nothing."""


async def note(lease: Lease) -> None:
    """Write down when the handler began."""
    os.write(_notes, b"%d %s\n" % (time.monotonic_ns(), raw(lease.task)))


def app(name: str, url: str | None = None) -> App:
    """Give an app whose calls go to this queue. Needs the extra `functions`, as only calls do."""
    from timeoutq.functions import App

    made = App(name, url=url)

    @made.task
    async def nothing(number: int, word: str) -> None:
        """Do nothing."""

    return made


def __getattr__(name: str) -> object:
    """Give the handler `calls`, which runs the calls of `app`."""
    if name != "calls":
        raise AttributeError(name)
    from timeoutq.functions import Calls

    return Calls(app("bench"))
