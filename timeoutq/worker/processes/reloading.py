"""Tells when the files of a program have changed, and its processes are to be replaced: `worker --reload`."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from timeoutq.words import telling
from timeoutq.words.errors import HandlerNotFound
from timeoutq.worker import handlers

log = logging.getLogger(__name__)

EVERY = 0.5  # seconds between two looks
WITHIN = 20.0  # seconds in which the program must be imported; meanwhile, nobody tends the processes
_ASK = "import sys; from timeoutq.worker.processes.reloading import tell; tell(sys.argv[1:])"


class Watch:
    """The files of a program, all but those of installed packages: a new process imports the program and names them."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Import each `module:name`. Raises `HandlerNotFound`."""
        self._paths = list(paths)
        self._times: dict[str, int] = {}
        if error := self._ask():
            raise HandlerNotFound(error)

    def changed(self) -> bool:
        """Say whether a file has changed, and the program can be imported as it is now; if it cannot, log why."""
        changed = [name for name, at in self._times.items() if _time_of(name) != at]
        if not changed:
            return False
        error = self._ask()
        if error:
            what = "the program cannot be imported, so its processes go on as they are: %s"
            telling.say(log, logging.ERROR, what, error, fields={"error": error})
        else:
            telling.say(log, logging.INFO, "%s has changed: new processes take over", changed[0])
        return not error

    def _ask(self) -> str:
        """Have the program imported, and look at its files; give the error, if there is one."""
        # who writes a file while it is read changes its time again; of a file not known before, every time counts
        times, began = {name: _time_of(name) for name in self._times}, time.time_ns() - 10**7
        command = [sys.executable, "-c", _ASK, *self._paths]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=WITHIN)  # noqa: S603  # whoever names it runs it
        except subprocess.TimeoutExpired:
            self._times = times
            return f"importing {', '.join(self._paths)} has not ended within {WITHIN:g} s"
        lines = done.stdout.splitlines()  # modules may print lines of their own before
        error = f"importing {', '.join(self._paths)} ended the process, with exit code {done.returncode}"
        names: list[str] = []
        if done.returncode == 0 and lines:
            error, names = json.loads(lines[-1])
        self._times = {**{name: at if (at := _time_of(name)) < began else 0 for name in names}, **times}
        return error


def _time_of(name: str) -> int:
    try:
        return Path(name).stat().st_mtime_ns
    except OSError:  # it is being written anew, or is gone
        return 0


def tell(paths: Iterable[str]) -> None:
    """Import a program, and print the error and the files for `Watch`."""
    said, names = "", list[str | None]()
    try:
        for path in paths:
            handlers.imported(path, "program")
    except HandlerNotFound as error:
        said, cause = str(error), error.__cause__  # of the module that could not be imported nothing else is known
        frames = traceback.extract_tb(None if cause is None else cause.__traceback__)
        names += [getattr(cause, "filename", None), *(one.filename for one in frames)]
    installed = tuple(f"{sysconfig.get_path(one)}{os.sep}" for one in ("stdlib", "platstdlib", "purelib", "platlib"))
    names += [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    own = [one for one in names if one and one.endswith(".py") and not one.startswith(installed)]
    print("\n" + json.dumps([said, sorted({*own})]), flush=True)  # noqa: T201  # the process that asks reads this
