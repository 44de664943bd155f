"""The command on a terminal of its own, and all that the terminal is sent."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

from tests.rig import canary
from tests.rig.processes import ROOT


def on_a_terminal(url: str, *words: str, typed: str = "", columns: int = 120) -> tuple[int, bytes]:
    """Run the command on a pseudo-terminal; give its code and all that it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", *words],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=ROOT,
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color",
             "COLUMNS": f"{columns}"},
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, typed.encode())
    shown = b""
    with suppress(OSError):  # Linux ends a terminal that nobody holds with EIO
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    canary.look(shown, "a terminal")
    return process.wait(timeout=60), shown
