"""Worker and cleaner processes for the tests: started as a user would, killed and ended by pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from timeoutq.server.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent.parent


class Processes:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.history = folder / "history"
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        return self._start(("-m", "timeoutq", *words), environment)

    def start_code(self, code: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        return self._start(("-c", code, *words), environment)

    def _start(self, words: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        log = (self.folder / f"log-{len(self.all)}").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={
                    **os.environ,
                    "TIMEOUTQ_URL": self.url,
                    "HISTORY": str(self.history),
                    "PYTHONPATH": str(ROOT),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.all.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"log-{self.all.index(process)}").read_text("utf-8", "replace")

    def worker(self, name: str, handler: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        path = f"tests.rig.handlers:{handler}"
        return self.start("worker", name, path, "--no-supervise", *words, **environment)

    def end(self) -> None:
        """End whatever still runs, also the worker processes of a supervisor that was killed."""
        ours = {process.pid for process in self.all}  # each has a session of its own
        others = {int(path.name) for path in Path("/proc").glob("[0-9]*")} if ours else set[int]()
        for pid in ours | others:
            with suppress(ProcessLookupError):
                if os.getsid(pid) in ours:
                    os.kill(pid, signal.SIGKILL)
        for process in self.all:
            process.wait()


def report(*words: str, timeout: float) -> tuple[int, dict[str, Any]]:
    """Run a rig in a process of its own, which may fork; give its exit code, and the JSON that it has said."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr[-5000:]
    return done.returncode, json.loads(done.stdout)


@contextmanager
def processes(url: str, folder: Path) -> Iterator[Processes]:
    started = Processes(url, folder)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    """Where the server is; what other tests have left on it stays."""
    return server.url


@pytest.fixture
def run(url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(url, tmp_path) as started:
        yield started


def run_example(words: Sequence[str], url: str, folder: Path, path: Sequence[str | Path]) -> None:
    """Run Python with these words in a folder, as somebody who tries an example: warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        env={"TIMEOUTQ_URL": url, "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, path))},
        capture_output=True, text=True, timeout=60, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
