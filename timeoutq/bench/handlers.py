"""The handlers of the workers that the benchmark starts: they do nothing, note when they began, or take their time.

Imported by `python -m timeoutq worker`. A worker that the benchmark started ends when the benchmark does, however that
ends: it watches its standard input, which only the benchmark holds open.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time

from timeoutq.model import Ack, Lease, raw

NOTES = "TIMEOUTQ_BENCH_NOTES"
"""The environment variable that names the file where handlers note what they began, and when."""
WORK = "TIMEOUTQ_BENCH_WORK"
"""And the one with the longest work of a task, seconds."""


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
_work = float(os.environ.get(WORK, "0"))


RESULT = b'{"value":' + b"1" * 90 + b"}"


async def nothing(lease: Lease) -> None:
    """Do nothing."""


async def give_result(lease: Lease) -> Ack:
    """Give a result, and have the queue keep no id."""
    return Ack(result=RESULT, keep_id=False)


def __getattr__(name: str) -> object:
    """Give `calls`, which runs the calls of `timeoutq.bench.called`: only this handler needs the packages for it."""
    if name != "calls":
        raise AttributeError(name)
    from timeoutq.bench.called import app
    from timeoutq.functions import Calls

    return Calls(app("bench"))


def nothing_in_thread(lease: Lease) -> None:
    """Do nothing, in a thread."""


async def note(lease: Lease) -> None:
    """Write down when it began."""
    _write(lease)


async def hold(lease: Lease) -> None:
    """Hold the task until the process dies."""
    await asyncio.sleep(86_400)


async def work(lease: Lease) -> None:
    """Take a random time."""
    _write(lease)
    await asyncio.sleep(random.uniform(0, _work))  # noqa: S311  # a length of work, not a secret


def _write(lease: Lease) -> None:
    now = time.monotonic_ns()
    os.write(_notes, b"%d %s\n" % (now, raw(lease.task)))
