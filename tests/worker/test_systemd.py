"""The unit file of the help page, played: what systemd does to processes of a service, done to those of a worker."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rig.handlers import history
from tests.rig.processes import Processes, run
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.cli.about import pages
from timeoutq.words import exit_codes
from timeoutq.worker.processes import roster

__all__ = ["run"]

WORKERS = pages()["workers"]


@pytest.fixture(scope="module")
def unit() -> ConfigParser:
    found = re.search(r"```ini\n(.*?)```", pages()["systemd"], re.DOTALL)
    assert found
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read_string(found[1])
    return parser


class Service:
    """What systemd keeps of a service of Type=exec: its main process, and all processes of its control group."""

    def __init__(self, run: Processes, unit: ConfigParser, queue: Queue, handler: str = "work") -> None:
        self._run = run
        self._rules = unit["Service"]
        words = shlex.split(self._rules["ExecStart"])
        assert words[0].endswith("/timeoutq")
        self.words = ["worker", queue.name, f"tests.rig.handlers:{handler}", *words[4:], "-c", "2"]
        self.main: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        self.main = self._run.start(*self.words, **environment)
        return self.main

    def group(self) -> list[int]:
        """The control group: nothing leaves it, whatever process group or parent it has."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"HISTORY={self._run.history}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def stop(self) -> int:
        """Do as `systemctl stop`: SIGTERM as KillMode says, SIGKILL to what is left after TimeoutStopSec."""
        assert self.main is not None
        assert self._rules["KillMode"] == "control-group"
        self._signal(self.group(), signal.SIGTERM)
        try:
            return self.main.wait(float(self._rules["TimeoutStopSec"]))
        finally:
            left = self.group()
            self._signal(left, signal.SIGKILL)
            assert not left, "processes were left at the end of the main process"

    def died(self) -> None:
        """Do what follows an unexpected end of the main process: the rest is asked to end, as at a stop."""
        self._signal(self.group(), signal.SIGTERM)
        wait_until(lambda: not self.group(), timeout=float(self._rules["TimeoutStopSec"]))

    def is_started_again(self, code: int) -> bool:
        """Say whether Restart= and RestartPreventExitStatus= start it again after this end."""
        assert self._rules["Restart"] == "on-failure"
        if str(code) in self._rules["RestartPreventExitStatus"].split():
            return False
        clean = (0, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE)  # systemd.service(5)
        return code not in clean

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def test_stopping_the_service_finishes_what_runs(url: str, queue: Queue, run: Processes, unit: ConfigParser) -> None:
    queue.put([f"t{i}" for i in range(8)])
    service = Service(run, unit, queue)
    service.start(WORK="1")
    wait_until(lambda: len(history(run.history)) == 8, timeout=30)
    assert len(service.group()) == 5
    code = service.stop()
    assert code == exit_codes.DONE
    assert not service.is_started_again(code)
    stats = queue.stats()
    assert (stats.done, stats.counters.get("released", 0)) == (8, 0)


def test_a_killed_main_process_leaves_no_task_behind_and_is_started_again(
    queue: Queue, run: Processes, unit: ConfigParser
) -> None:
    queue.put([f"t{i}" for i in range(8)])
    service = Service(run, unit, queue)
    main = service.start(WORK="1")
    wait_until(lambda: len(history(run.history)) == 8, timeout=30)
    main.kill()
    code = main.wait()
    service.died()
    assert service.is_started_again(code)
    assert service.is_started_again(exit_codes.DIED)
    stats = queue.stats()
    assert (stats.done, stats.in_progress, stats.counters.get("released", 0)) == (8, 0, 0)
    queue.put("more")
    service.start(WORK="0.01")
    wait_until(lambda: queue.stats().done == 9, timeout=30)
    assert service.stop() == exit_codes.DONE


def test_the_page_has_the_table_of_exit_codes_and_the_numbers_of_signals() -> None:
    for code, what in exit_codes.WORKER.items():
        assert f"| {code} | {what} |" in WORKERS
    text = " ".join(WORKERS.split())
    assert f"A process has {roster.PATIENCE:g} s to end after its drain deadline" in text
    assert "If it still lives then, it is killed, and its tasks are given back." in text
    assert f"While processes die within {roster.YOUNG:g} s of their start" in text
    assert f"grows from 0.1 s to {roster.LONGEST_PAUSE:g} s" in text
