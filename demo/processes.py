"""The processes of a crawl: started, killed on purpose, and ended by pid, also when Ctrl-C comes at a bad moment.

`course.py` calls this, for a crawl of one site and of many hosts.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import httpx

from demo.settings import Settings
from timeoutq import State
from timeoutq.client.shards import AnyQueue

HERE = Path(__file__).resolve().parent.parent
LEASE = 2.0
"""Seconds: the pages of a killed worker wait for this long."""

RETRY_AT_ONCE = "0.2,0.5,1,2,4"
"""After how many seconds a page of the demo's own site is tried again."""


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Interrupts:
    """Makes SIGINT and SIGTERM a KeyboardInterrupt, but never within a step that must be done whole."""

    def __init__(self) -> None:
        self._whole = 0
        self._late = False

    def install(self) -> None:
        """Take both signals from now on; only the main thread may."""
        signal.signal(signal.SIGINT, self._came)
        signal.signal(signal.SIGTERM, self._came)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._whole:
            self._late = True
        else:
            raise KeyboardInterrupt

    def wait(self, say: Callable[[], object]) -> None:
        """`say` that one of the two signals is waited for, wait for it, and go on."""
        with suppress(KeyboardInterrupt):
            say()
            while True:
                signal.pause()

    @contextmanager
    def whole(self) -> Generator[None]:
        """Do what is within without an interrupt; one that came meanwhile is raised at the end."""
        self._whole += 1
        try:
            yield
        finally:
            self._whole -= 1
        if self._late and not self._whole:
            self._late = False
            raise KeyboardInterrupt


@dataclass
class Processes:
    """The processes of one crawl, and what happened to them."""

    queue: AnyQueue
    url: str
    workers: int
    logs: Path
    settings: Settings = field(default_factory=Settings)
    retry: str = RETRY_AT_ONCE
    lease: float = LEASE
    """The length of a lease, seconds."""
    concurrency: int = 8
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, "subprocess.Popen[bytes]"])
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list["subprocess.Popen[bytes]"])
    files: dict[int, Path] = field(default_factory=dict[int, Path])
    """The log file of each process, by process id."""
    leash: tuple[int, int] | None = None
    """A pipe: the processes end when its writing end is closed, however this process ends."""
    killed: int = 0
    interrupts: Interrupts = field(default_factory=Interrupts)

    def spawn(self, *command: str, name: str) -> subprocess.Popen[bytes]:
        """Start `python -m command` as a plain process; what it says goes to a file of its own.

        The caller keeps what it gives before an interrupt can come: within `interrupts.whole()`.
        """
        environment = {
            **os.environ, **self.settings.environment(),
            "TIMEOUTQ_URL": self.url, "PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        file = self.logs / f"{name}.log"
        if self.leash is None:
            self.leash = os.pipe()
        with file.open("ab") as log:
            # a session of its own: Ctrl-C is for this process, which then ends the others in order
            process = subprocess.Popen(  # noqa: S603  # our own commands
                [sys.executable, "-m", "demo.attended", *command],
                cwd=HERE, env=environment, stdin=self.leash[0], stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.files[process.pid] = file
        return process

    def start_helper(self, *command: str, name: str) -> subprocess.Popen[bytes]:
        """Start a process that is not to end before the crawl."""
        with self.interrupts.whole():
            process = self.spawn(*command, name=name)
            self.helpers.append(process)
            return process

    def start_worker(self) -> None:
        """Start one more worker process."""
        number = len(self.running) + self.killed
        with self.interrupts.whole():
            process = self.spawn(
                "timeoutq", "worker", self.queue.name, "demo.crawl:fetch", "--lifespan", "demo.crawl:crawler",
                "--no-supervise", "--timeout", f"{self.lease}s", "--concurrency", str(self.concurrency),
                "--retry", self.retry, *self._shards(), name=f"worker-{number}",
            )  # fmt: skip
            self.running[process.pid] = process

    def _shards(self) -> list[str]:
        # a worker that starts while a replica takes over cannot ask how many there are
        many = self.settings.shards
        return ["--shards", str(many)] if many > 1 else []

    def start_cleaner(self) -> None:
        """Start one more cleaner process."""
        name = f"cleaner-{len(self.helpers)}"
        self.start_helper("timeoutq", "cleaner", self.queue.name, name=name)

    def kill_one(self) -> bool:
        """Kill a worker with SIGKILL while it holds leases, and start another; False when none holds any just now."""
        held: dict[int, int] = {}
        for entry in self.queue.list(State.IN_PROGRESS, n=500).entries:
            pid = int((entry.holder or "::").split(":")[1] or 0)
            held[pid] = held.get(pid, 0) + 1
        victims = [pid for pid in held if pid in self.running]
        if not victims:
            return False
        self.kill(random.choice(victims))  # noqa: S311  # any of them
        return True

    def kill_any(self) -> bool:
        """Kill a worker with SIGKILL, whatever it is doing, and start another.

        Whoever kills again and again must not choose by what is held: when one task is left, that would be a task that
        kills each worker that touches it, and the queue gives such a task up.
        """
        self.kill(random.choice(list(self.running)))  # noqa: S311  # any of them
        return True

    def kill(self, pid: int) -> None:
        """Kill a worker with SIGKILL, and start another."""
        with self.interrupts.whole():
            process = self.running.pop(pid)
            process.kill()
            process.wait()
        self.killed += 1
        self.start_worker()

    def check(self) -> None:
        """Raise `DemoError`, with the end of its log, if a process has ended by itself."""
        for process in [*self.running.values(), *self.helpers]:
            if process.poll() is not None:
                log = self.files[process.pid]
                said = log.read_text("utf-8", "replace").strip()[-1000:]
                raise DemoError(f"the process {log.stem} ended with {process.returncode}: {said}")

    def stop(self) -> None:
        """End all processes: asked first, killed after five seconds."""
        with self.interrupts.whole():
            everyone = [*self.running.values(), *self.helpers]
            for process in everyone:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            until = time.monotonic() + 5
            for process in everyone:
                try:
                    process.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            self.running.clear()
            self.helpers.clear()
            for end in self.leash or ():
                os.close(end)
            self.leash = None


def wait_for_site(url: str, process: subprocess.Popen[bytes], log: Path | None = None) -> None:
    """Wait until the site answers."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if process.poll() is not None:
            said = f": {log.read_text('utf-8', 'replace').strip()[-400:]}" if log is not None else ""
            raise DemoError(f"the site ended with {process.returncode}{said}")
        with suppress(httpx.TransportError):
            httpx.get(url, timeout=5.0, trust_env=False)
            return
        time.sleep(0.02)
    raise DemoError(f"the site does not answer at {url}")


def free_port(host: str = "127.0.0.1") -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
