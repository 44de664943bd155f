"""Power cuts under load: what was synced is kept, what doctor announces is the most that is lost, nothing is half done.

kill -9 leaves the page cache to the next start and so says nothing about syncing; the servers here run on a disk
(`rig/power.py`) of which a cut leaves what was synced. The long form: `python -m tests.rig.power --cuts 20`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.rig.invariants import check
from tests.rig.power import Disk, Machine, NotWired, Plant, Verdict
from tests.rig.servers import binary_of, valkey
from timeoutq import Queue

Start = Callable[..., Machine]


@pytest.fixture(params=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> str:
    return binary_of(request.param)


@pytest.fixture
def start(binary: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as ends:

        def started(fsync: str, **settings: Any) -> Machine:
            machine = Machine(tmp_path, binary, fsync, **settings)
            ends.callback(machine.server.kill)
            machine.start()
            return machine

        yield started


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Callable[..., Plant]]:
    with ExitStack() as ends:

        def built(*words: Any, **settings: Any) -> Plant:
            made = Plant(tmp_path, *words, **settings)
            ends.callback(made.close)
            return made

        yield built


def put_a_hundred(machine: Machine) -> None:
    """Put them one by one, so that each was acknowledged for itself."""
    with Queue("q", machine.server.url) as queue:
        for i in range(100):
            queue.put(f"t{i}")


def known(machine: Machine) -> int:
    """Ask how many tasks are known; the invariants hold whatever is gone."""
    check(machine.server.url, "q")
    with Queue("q", machine.server.url) as queue:
        return queue.stats().known


# ---- the promise


def test_with_always_nothing_accepted_is_lost(binary: str, plant: Callable[..., Plant]) -> None:
    built = plant(binary, "always", seed=random.randrange(2**32), pace=0.002)
    total = Verdict("always")
    for rewrite in (False, True):
        verdict = built.cut(after=0.4, rewrite=rewrite)
        assert (verdict.lost, verdict.unexpected, verdict.undone, verdict.half, verdict.holes) == (0, 0, 0, 0, 0), (
            f"seed {built.seed}: {verdict}"
        )
        assert verdict.acknowledged > 50
        total.add(verdict)
    total.ok = built.drain()
    assert total.ok == total.acknowledged + total.recovered, f"seed {built.seed}: {total}"
    assert total.duplicated + built.doubles == 0


def test_with_everysec_no_more_is_lost_than_doctor_says(binary: str, plant: Callable[..., Plant]) -> None:
    built = plant(binary, "everysec", seed=random.randrange(2**32), pace=0.004)
    verdict = built.cut(after=1.2)
    assert verdict.announced == 2.0
    assert verdict.is_kept, f"seed {built.seed}: {verdict}"
    verdict.ok = built.drain()
    assert verdict.ok >= verdict.acknowledged - verdict.lost + verdict.recovered


# ---- the disk is one that forgets


def test_a_power_cut_takes_what_was_not_synced(start: Start) -> None:
    machine = start("no")
    put_a_hundred(machine)
    assert machine.cut().bytes > 100
    machine.start()
    assert known(machine) == 0


def test_with_always_each_put_that_returned_was_synced(start: Start) -> None:
    machine = start("always")
    put_a_hundred(machine)
    machine.cut()
    machine.start()
    assert known(machine) == 100


def test_wherever_the_file_is_torn_no_call_is_half_there(start: Start) -> None:
    machine = start("no")
    for number in range(4):
        with Queue("q", machine.server.url, timeout=30) as queue:
            batches = [[f"{number}-{at}-{i}" for i in range(20)] for at in range(30)]
            for batch in batches:
                queue.put({task: {"of": task} for task in batch})
                (lease,) = queue.claim()
                queue.ack(lease, put=[f"{lease.task}/found{i}" for i in range(5)])
        machine.cut(random.Random(number))
        machine.start()
        check(machine.server.url, "q")
        with Queue("q", machine.server.url) as queue:
            there = {entry.task for state in ("todos", "in_progress", "done") for entry in queue.each(state)}
            done = {entry.task for entry in queue.each("done")}
        for batch in batches:
            assert len(there & set(batch)) in (0, len(batch))
        for task in there:
            assert ({f"{task}/found{i}" for i in range(5)} <= there) == (task in done)


def tear_a_call(machine: Machine) -> None:
    """Leave in the file the first part of a put that did not return: a power cut in its midst does."""
    with Queue("q", machine.server.url) as queue:
        queue.put("first")
        queue.put({"torn": {"with": "a payload"}})
    machine.server.kill()
    (file,) = (machine.disk.data / "appendonlydir").glob("*.incr.aof")
    text = file.read_bytes()
    os.truncate(file, text.rindex(b"a payload"))
    machine.start()
    assert machine.is_torn


def test_a_torn_call_is_gone_for_good_once_the_file_was_written_anew(start: Start) -> None:
    machine = start("always")
    tear_a_call(machine)
    machine.rewrite()
    put_a_hundred(machine)
    machine.server.kill()
    machine.start()
    assert known(machine) == 101


def test_names_that_were_not_synced_go_back(tmp_path: Path) -> None:
    """As a program would that forgets to sync the folder after it renamed a file."""
    program = """
import os
def write(path, text, sync):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, text)
    if sync:
        os.fsync(file)
    os.write(file, b" and more")
    os.close(file)
write("one", b"old", True)
write("loose", b"never synced", False)
folder = os.open(".", os.O_RDONLY)
os.fsync(folder)
write("two", b"new", True)
os.rename("two", "one")
os.unlink("loose")
"""
    disk = Disk(tmp_path)
    run = subprocess.Popen([sys.executable, "-c", program], cwd=disk.data, env={**os.environ, **disk.environment})
    assert run.wait() == 0
    torn = disk.power_off(run.pid)
    assert {path.name: path.read_bytes() for path in disk.data.iterdir()} == {"one": b"old", "loose": b""}
    assert torn.names == 3


# ---- the rig notices


def test_a_server_that_does_not_run_on_the_disk_is_noticed(start: Start) -> None:
    machine = start("always", wired=False)
    with pytest.raises(NotWired, match="ran without the shim"):
        machine.cut()


def test_a_disk_that_lies_about_syncing_is_noticed(plant: Callable[..., Plant]) -> None:
    built = plant(valkey(), "always", lies=True)
    verdict = built.cut(after=0.2)
    assert verdict.lost > 0
    assert not verdict.is_kept


def test_a_verdict_is_on_what_was_promised() -> None:
    assert Verdict("everysec", lost=5, oldest=1.4, announced=2.0).is_kept
    assert not Verdict("everysec", lost=5, oldest=2.6, announced=2.0).is_kept
    assert Verdict("everysec", lost=5, oldest=2.6, announced=2.0, stalled=0.7).is_kept
    assert not Verdict("always", lost=1, oldest=0.001).is_kept
    assert not Verdict("always", undone=1, oldest=0.001).is_kept
    assert not Verdict("everysec", half=1, announced=2.0).is_kept
    assert not Verdict("everysec", unexpected=1, announced=2.0).is_kept
    assert not Verdict("everysec", holes=1, announced=2.0).is_kept
