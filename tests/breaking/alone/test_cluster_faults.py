"""A real cluster under load: replicas take over, primaries are killed and slots move, one fault at a time.

The long form is `python -m tests.rig.cluster`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig import levels
from tests.rig.processes import ROOT
from tests.rig.servers import redis_server
from tests.rig.waiting import wait_until

PATIENCE = 100.0
"""How long a trial may take on a slow machine, seconds."""


@contextmanager
def trying(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Try a cluster in a process of its own, which may fork."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rig.cluster", "--once", "--json", "--folder", str(folder), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()  # its servers and its workers end when it does
        process.communicate()


def trial(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    with trying(folder, *words) as process:
        said, noise = process.communicate(timeout=PATIENCE)
    assert said, noise.decode("utf-8", "replace")[-5000:]
    report = json.loads(said)
    rows = report["faults"].values()
    levels.count("clusters", faults=sum(row["events"] for row in rows), tasks=report["totals"]["acknowledged"])
    return process.returncode, report


def descendants(pid: int) -> set[int]:
    """Give the processes that it has started, and those that these have started."""
    try:
        mine = {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()
    return mine.union(*map(descendants, mine))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("server", ["valkey", "redis"])
def test_a_durable_queue_on_a_cluster_loses_nothing_and_does_nothing_twice(tmp_path: Path, server: str) -> None:
    if server == "redis":
        redis_server()
    code, report = trial(tmp_path, "--server", server, "--durable", "1", "--lag", "0.3")
    assert report["broken"] == {}, (report["seed"], report["violations"])
    assert code == 0
    assert report["totals"]["ok"] == report["totals"]["acknowledged"] + report["totals"]["recovered"]
    kinds = {"manual", "kill", "move by keys"} | ({"move whole"} if server == "valkey" else set())
    done = {kind: row for kind, row in report["faults"].items() if row["events"]}
    assert done.keys() == kinds
    assert all(row["accepted"] > 20 for row in done.values())


def test_a_queue_that_is_not_durable_loses_what_a_replica_had_not_heard(tmp_path: Path) -> None:
    code, report = trial(tmp_path, "--faults", "kill", "--lag", "0.5", "--expect-losses")
    assert report["broken"] == {}, (report["seed"], report["violations"])
    assert code == 0
    assert report["kinds"]["lost"] > 0


def test_what_breaks_a_promise_is_found_and_the_evidence_is_kept(tmp_path: Path) -> None:
    code, report = trial(tmp_path, "--faults", "manual", "--queues", "2", "--bug", "old-fence")
    assert code == 1
    assert report["broken"]["fence"] > 0
    assert "was given to" in (Path(report["folder"]) / "violations").read_text()
    assert len(list(tmp_path.glob("*/history"))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_trial_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with trying(tmp_path, "--queues", "1") as process:
        wait_until(lambda: process.poll() is not None or len(list(tmp_path.glob("*/history"))) == 1, PATIENCE)
        started = descendants(process.pid)
        assert len(started) > 6, process.communicate()[1].decode("utf-8", "replace")[-5000:]
        process.send_signal(number)
        wait_until(lambda: not any(map(runs, started)), 30)
        assert process.wait(10) == (130 if number != signal.SIGKILL else -number)
