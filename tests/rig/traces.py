"""Has a run of the tests leave nothing outside of itself. `tests/conftest.py` calls this."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

_folders: list[Path] = []


def hear_ctrl_c() -> None:
    """Let SIGINT and SIGHUP be what they are in a terminal, for this process and those that it starts."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_compiled() -> None:
    """Let the hundreds of processes that run this tree compile it once, also where Python is told not to."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def begin() -> None:
    """Keep what is made from now on in one folder; pytest's own stays where it is, to be looked at."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # a short name: the path of a unix socket has no room for a long one
    folder = Path(tempfile.mkdtemp(prefix="timeoutq-run-"))
    _folders.append(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def end() -> None:
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
