"""Small C libraries preloaded into a server, to bend its clock or to cut its power; compiled when asked for."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def compiled(name: str) -> Path:
    """Compile `name`.c of this folder and give the library; the test is skipped where there is no gcc."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip(f"no gcc to compile {name}.c: apt-get install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="timeoutq-shim-")
    _kept.append(folder)  # it is removed when this process ends
    library = Path(folder.name) / f"{name}.so"
    subprocess.run(
        [gcc, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, FOLDER / f"{name}.c", "-ldl"], check=True
    )
    return library


class Clock:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "clock"
        self.path.write_bytes(bytes(16))
        with self.path.open("r+b") as file:
            self._told = mmap.mmap(file.fileno(), 16)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(compiled("clock")), "TIMEOUTQ_CLOCK": str(self.path)}

    def _tell(self, mode: int, micros: int) -> None:
        # the value goes first: a mode that finds the old value of the other one would jump for a moment
        struct.pack_into("<q", self._told, 8, micros)
        struct.pack_into("<q", self._told, 0, mode)

    def step(self, seconds: float) -> None:
        """Step the clock by so many seconds from the real time, and let it run on."""
        self._tell(0, round(seconds * 1_000_000))

    def freeze(self, at: float | None = None) -> None:
        """Stop the clock, at a time (Unix seconds) or where it is."""
        self._tell(1, round((time.time() if at is None else at) * 1_000_000))

    def set_ms(self, ms: int) -> None:
        struct.pack_into("<q", self._told, 8, ms * 1000)

    def close(self) -> None:
        self._told.close()
