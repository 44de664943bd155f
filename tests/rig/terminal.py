"""The command on a terminal of its own, and all that the terminal is sent."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pyte

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


LIVE = """
import sys
from timeoutq import Queue
from timeoutq.watch.live import run
code = 0
with Queue(sys.argv[1], deadline=0.5) as queue:
    try:
        run(queue, float(sys.argv[2]) if len(sys.argv) > 2 else 0.1)
    except KeyboardInterrupt:
        code = 130
print("left in order")
sys.exit(code)
"""


class Terminal:
    program: Sequence[str] = ("-c", LIVE)

    def __init__(self, name: str, url: str, *arguments: str, width: int = 80, height: int = 24) -> None:
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, child = pty.openpty()
        self._resize(width, height)
        self.process = subprocess.Popen(
            [sys.executable, *self.program, name, *arguments],
            stdin=child, stdout=child, stderr=child, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT),
                 "COLUMNS": "", "LINES": "", "TIMEOUTQ_URL": url},
        )  # fmt: skip
        self._before = termios.tcgetattr(child)
        self._child = child
        os.set_blocking(self._fd, False)

    def _resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        self.screen.resize(height, width)
        self._resize(width, height)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    @property
    def text(self) -> str:
        try:
            while piece := os.read(self._fd, 65_536):
                self.raw += piece
                self._stream.feed(piece)
        except (BlockingIOError, OSError):
            pass
        return "\n".join(self.screen.display)

    def until(self, done: Callable[[str], object], seconds: float = 15.0) -> str:
        end = time.monotonic() + seconds
        while not done(self.text):
            assert time.monotonic() < end, f"it did not come about:\n{self.text}\n{self.raw[-2000:]!r}"
            time.sleep(0.02)
        return self.text

    def is_restored(self) -> bool:
        self.until(lambda _: self.process.poll() is not None)
        assert self.text is not None
        return termios.tcgetattr(self._child) == self._before and self.raw.rstrip().count(b"\x1b[?1049l") == 1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        canary.look(self.raw, "a terminal")
        os.close(self._fd)
        os.close(self._child)
