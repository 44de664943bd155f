"""The ground of a measurement: the server, and the queues and processes that the measurement makes.

Each queue and each process is noted before it is made, and goes when its measurement has ended, also by an error or by
Ctrl-C. Nothing else on the server is touched.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from timeoutq.cli.bench import handlers
from timeoutq.client import Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease

T = TypeVar("T")

PATIENCE = 60.0  # how long a worker may take for what usually takes a moment, seconds

# runs `timeoutq …` as a user does; only, the import makes the process end when the measurement ends
_START = f"import {handlers.__name__}; from timeoutq.cli import main; main()"

ID = "https://example.com/articles/2026/of-the-benchmark/%012d.html"  # the format of the ids: 68 bytes


def ids(count: int, first: int = 0) -> list[str]:
    """Give `count` ids, numbered from `first` on."""
    return [ID % number for number in range(first, first + count)]


class Ground:
    """The place of a run; `with Ground(url) as ground`."""

    def __init__(self, url: str | None) -> None:
        """Prepare: the server is the one at `url`, or for None an embedded one."""
        self.embedded = url is None
        self.url = url or ""
        self._made: list[str] = []
        self._crews: list[Crew] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-bench-")))
            if self.embedded:
                self.url = stack.enter_context(EmbeddedServer()).url
            # if something is wrong with the server, a `Queue` says so best
            with Queue("bench", self.url, deadline=2) as first:
                info = first.server()
            kind = "valkey" if "valkey_version" in info else "redis"
            self.server = f"{kind} {info.get(f'{kind}_version', '?')}"
            # SIGTERM ends a run as Ctrl-C does: cleaned up
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a second Ctrl-C must not stop the removal that the first one has started
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            for crew in list(self._crews):
                crew.end()
            for name in [] if self.embedded else list(self._made):
                self._remove(name)
        finally:
            self._stack.close()
            signal.signal(signal.SIGINT, before)

    # ---- queues

    @contextmanager
    def queue(self, *, timeout: float = 30.0, **settings: Any) -> Iterator[Queue]:
        """Make a queue under a new name, with settings of `Queue`; the queue is removed when the block ends."""
        name = f"bench-{secrets.token_hex(6)}"
        self._made.append(name)
        # a busy machine may need long for a large put
        with Queue(name, self.url, timeout=timeout, deadline=PATIENCE, **settings) as opened:
            yield opened
        # only without an error: after one, `__exit__` first ends the processes that work on the queue
        self._remove(name)

    def _remove(self, name: str) -> None:
        with Queue(name, self.url, deadline=30) as opened:
            for _ in range(3):
                opened.purge()
                if not opened.exists() and not opened.workers():
                    self._made.remove(name)
                    return
                time.sleep(0.1)  # a process that has just ended may have written something more
        raise TimeoutqError(f"queue {name} of the benchmark could not be removed: `timeoutq purge {name}` does it")

    # ---- processes

    @contextmanager
    def worker(
        self,
        queue: Queue,
        handler: Callable[[Lease], object] | str,
        *words: str,
        others: Sequence[str] = (),
        **how: Any,
    ) -> Iterator[Crew]:
        """Run `timeoutq worker` on a queue, and wait until all its processes have given a sign of life.

        `others` are the names of queues that the worker has besides, behind the first; the rest is for `command`.
        """
        before = queue.stats().workers
        count = int(words[words.index("-p") + 1]) if "-p" in words else 1
        path = handler if isinstance(handler, str) else f"{handler.__module__}:{handler.__name__}"
        with self.command("worker", queue.name, *others, path, "--log-level", "warning", *words, **how) as crew:
            crew.until(lambda: queue.stats().workers >= before + count, "start")
            yield crew

    @contextmanager
    def command(self, *words: str, url: str | None = None, environment: dict[str, str] | None = None) -> Iterator[Crew]:
        """Run `timeoutq words…` until the block ends."""
        crew = Crew(self._folder / secrets.token_hex(6), words, url or self.url, environment or {})
        self._crews.append(crew)
        crew.start()
        yield crew
        crew.end()
        self._crews.remove(crew)


class Crew:
    """A process that a measurement starts, with the processes that this process starts itself."""

    process: subprocess.Popen[bytes]

    def __init__(self, path: Path, words: Sequence[str], url: str, environment: dict[str, str]) -> None:
        self._log = path.with_suffix(".log")
        self._notes = path.with_suffix(".notes")
        self._words = words
        self._environment = {**os.environ, "TIMEOUTQ_URL": url, handlers.NOTES: str(self._notes), **environment}

    def start(self) -> None:
        """Start the process; the address goes into its environment, so that no argument list shows a password."""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  # our own command
                [sys.executable, "-c", _START, *self._words],
                env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def until(self, predicate: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
        """Ask `predicate` until its answer is true; give the answer.

        Raises `TimeoutqError` with the last words of the process if the process ends, or takes more than `seconds`.
        """
        latest = time.monotonic() + seconds
        while True:
            found = predicate()
            if found:
                return found
            code = self.process.poll()
            if code is not None or time.monotonic() > latest:
                how = f"ended with status {code}" if code is not None else f"did not {what} in {seconds:g} s"
                said = self._log.read_text("utf-8", "replace").strip()[-500:]
                raise TimeoutqError(f"`timeoutq {self._words[0]}` of the benchmark {how}; it said: {said or 'nothing'}")
            time.sleep(0.01)

    def notes(self) -> dict[str, list[int]]:
        """Give what the handlers noted: for each task, when each attempt began (ns of the monotonic clock)."""
        found: dict[str, list[int]] = {}
        with suppress(FileNotFoundError):
            for line in self._notes.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    at, _, task = line.rstrip().partition(b" ")
                    found.setdefault(task.decode(), []).append(int(at))
        return found

    def noted(self, count: int) -> dict[str, list[int]] | None:
        """Give what the handlers noted, once there are notes of so many tasks."""
        notes = self.notes()
        return notes if len(notes) >= count else None

    def end(self) -> None:
        """End the process and those that it started; workers first give their leases back."""
        if not hasattr(self, "process"):
            return  # Ctrl-C came first
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                if sys.platform == "win32":
                    self.process.kill()
                else:
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
