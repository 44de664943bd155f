"""A real cluster under load: replicas take over, primaries are killed and slots move, one fault at a time.

The long form is `python -m tests.rig.cluster`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rig.processes import ROOT, report
from tests.rig.servers import redis_server
from tests.rig.waiting import wait_until

PATIENCE = 100.0
"""How long a trial may take on a slow machine, seconds."""


def words(folder: Path, *more: str) -> list[str]:
    return ["tests.rig.cluster", "--once", "--json", "--folder", str(folder), *more]


def trial(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    return report(*words(folder, *more), timeout=PATIENCE)


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
    code, found = trial(tmp_path, "--server", server, "--durable", "1", "--lag", "0.3")
    assert found["broken"] == {}, (found["seed"], found["violations"])
    assert code == 0
    assert found["totals"]["ok"] == found["totals"]["acknowledged"] + found["totals"]["recovered"]
    kinds = {"manual", "kill", "move by keys"} | ({"move whole"} if server == "valkey" else set())
    done = {kind: row for kind, row in found["faults"].items() if row["events"]}
    assert done.keys() == kinds
    assert all(row["accepted"] > 20 for row in done.values())


def test_a_queue_that_is_not_durable_loses_what_a_replica_had_not_heard(tmp_path: Path) -> None:
    code, found = trial(tmp_path, "--faults", "kill", "--lag", "0.5", "--expect-losses")
    assert found["broken"] == {}, (found["seed"], found["violations"])
    assert code == 0
    assert found["kinds"]["lost"] > 0


def test_what_breaks_a_promise_is_found_and_the_evidence_is_kept(tmp_path: Path) -> None:
    code, found = trial(tmp_path, "--faults", "manual", "--queues", "2", "--bug", "old-fence")
    assert code == 1
    assert found["broken"]["fence"] > 0
    assert "was given to" in (Path(found["folder"]) / "violations").read_text()
    assert len(list(tmp_path.glob("*/history"))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_trial_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", *words(tmp_path, "--queues", "1")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: process.poll() is not None or len(list(tmp_path.glob("*/history"))) == 1, PATIENCE)
            started = descendants(process.pid)
            assert len(started) > 6, process.poll()
            process.send_signal(number)
            wait_until(lambda: not any(map(runs, started)), 30)
            assert process.wait(10) == (130 if number != signal.SIGKILL else -number)
        finally:
            process.kill()  # its servers and its workers end when it does
