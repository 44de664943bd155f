"""`timeoutq bench` and `python -m tests.bench`: they read all figures on a real server, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.bench import ground, report
from tests.bench.ground import Figure, Sizes
from tests.bench.latency import DelayingProxy
from tests.rig import canary
from tests.rig.invariants import check_keys
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.cli.bench import Ground
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import InvalidInput, TimeoutqError

pytestmark = pytest.mark.timeout(600)  # a round of everything takes a minute on a quiet machine
ROOT = Path(__file__).resolve().parent.parent.parent
TINY = Sizes(
    trips=20, bulk=2000, drained=300, backlog=3000, window=0.05, paced=10, cold=2,
    cold_gap=0.02, scheduled=10, scheduled_over=0.1, burst=2000, kills=1, killed=3, idle=0.1, leases=(10, 20, 30),
    rounds_of_requeue=3, weighed=1000, grown=(100, 200, 300), cycles=2, starts=1, handlers=10, delay=0.02, work=0.02,
    worked=50, polite=(5, 20), hosts=(3, 10, 20), fair=(50, 3, 4),
    pauses=(700, 30, 300, 200), seen=2000,
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


def keys(server: EmbeddedServer) -> set[str]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return set(client.scan_iter("*", count=1000))


@pytest.fixture
def address(server: EmbeddedServer) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", prefix="url-") as file:
        file.write(server.url)
        file.flush()
        yield file.name


@contextmanager
def foreign(server: EmbeddedServer) -> Iterator[None]:
    """Somebody else's queue, in the middle of its work; afterwards it is as it was, and alone."""
    with Queue("foreign", server.url, timeout=600) as queue, redis.Redis.from_url(server.url) as client:
        queue.put({"a": 1}, "b", "c", "d")
        queue.schedule("e", after=600)
        lease, *_ = queue.claim(2)
        queue.ack(lease)
        there = {key: client.dump(key) for key in keys(server)}
        yield
        assert {key: client.dump(key) for key in keys(server)} == there
        check_keys(client, "foreign")
        queue.purge()
        assert keys(server) == set()


@pytest.fixture(scope="module")
def found(server: EmbeddedServer) -> report.Report:
    """A round of everything, the heavy and the far with it, on a server with somebody else's queue."""
    with foreign(server):
        names = [one.name for one in report.MEASURES]
        return report.measure(server.url, names, rounds=1, sizes=TINY)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


# ---- what a user reads


def test_timeoutq_bench_tells_tasks_a_second_and_how_soon_a_worker_picks_up(
    server: EmbeddedServer, address: str
) -> None:
    with foreign(server):
        done = run("timeoutq", "bench", "--url-file", address, "--for", "1s")
        assert (done.returncode, done.stderr) == (0, "")
        names, values, units, _ = zip(*(line.split("\t") for line in done.stdout.splitlines()), strict=True)
        assert names == ("put-1", "put-1000", "claim-1", "claim-100", "worker", "pickup-p50", "pickup-p99", "calls")
        assert set(units) == {"tasks/s", "ms", "calls/s"}
        assert all(float(value.replace(",", "")) > 0 for value in values)


def test_its_json_says_where_the_figures_come_from(server: EmbeddedServer, address: str) -> None:
    done = run("timeoutq", "bench", "--url-file", address, "--only", "pickup,put", "--for", "100ms", "--json")
    told = json.loads(done.stdout)
    assert [figure["figure"] for figure in told["figures"]] == ["put-1", "put-1000", "pickup-p50", "pickup-p99"]
    assert all(isinstance(figure["value"], float) for figure in told["figures"])
    assert (told["seconds"], told["server"].split()[0]) == (0.1, "valkey")
    assert canary.PASSWORD not in told["url"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "put,speed"], "no measurement has the name 'speed'; there are: put, claim, worker, pickup, calls"),
        (["--for", "0"], "--for 0: a figure needs some time, such as 500ms"),
    ],
)
def test_wrong_words_end_it_with_two_and_what_is_right(words: list[str], said: str) -> None:
    done = run("timeoutq", "bench", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"timeoutq: {said}\n")


def test_a_worker_that_cannot_work_is_quoted(server: EmbeddedServer) -> None:
    with pytest.raises(TimeoutqError, match=r"`timeoutq worker` of the benchmark ended with status 2; it said: .*nix"):
        with Ground(server.url) as place, place.queue() as queue, place.worker(queue, "nix:nix"):
            pass
    assert keys(server) == set()


# ---- what it reads


def test_every_figure_is_read(found: report.Report) -> None:
    told = json.loads(json.dumps(report.to_json(found), allow_nan=False))
    assert [figure["name"] for figure in told["figures"]] == [
        figure.name for one in report.MEASURES for figure in one.figures
    ]
    for figure in told["figures"]:
        # the CPU of a moment this short is not told, and there is no second server where one was given
        if not figure["name"].endswith(("-server", "-redis")):
            assert figure["value"] is not None, figure
    assert canary.PASSWORD not in told["url"]


def test_nothing_is_lost_or_done_twice_behind_delays(found: report.Report) -> None:
    rows = {row["name"]: row["value"] for row in found.rows}
    assert rows["latency-lost"] == 0
    # a lease that ran out on a busy machine is no fault of the queue: it is counted, and so explains each repetition
    assert (rows["latency-duplicates"] or 0) <= (rows["latency-expired"] or 0)


def test_what_the_table_says_has_a_line_for_each_figure(
    found: report.Report, capsys: pytest.CaptureFixture[str]
) -> None:
    report.show(found)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [row["name"] for row in found.rows]
    assert {len(line) for line in lines} == {len(report.COLUMNS)}
    assert {line[-1] for line in lines} <= {"met", "missed", "-"}


# ---- what it makes of it


def row(target: str, value: float | None, limit: float | None, **excuse: float) -> report.Row:
    figures = [
        Figure("limit", "", ""),
        Figure("it", "", "", "limit", target, ("busy", 90.0) if excuse else None),
        Figure("busy", "", ""),
    ]
    taken = {"limit": [limit], "it": [value], "busy": [excuse.get("busy")]}
    return report.rows([ground.Measure("m", figures, lambda _: {})], taken)[1]


@pytest.mark.parametrize(
    ("target", "value", "limit", "met"),
    [
        ("≥ 0.7×", 70.0, 100.0, True),
        ("≥ 0.7×", 69.0, 100.0, False),
        ("≤ 1.3×", 1.3, 1.0, True),
        ("≤ 1.3×", 1.4, 1.0, False),
        ("≤ 1.3×", 1.4, None, None),
        ("≤ 3", 3.0, None, True),
        ("≤ 3", 3.1, None, False),
        ("≥ 3", None, None, None),
        ("≤ +0.1", 0.55, 0.5, True),
        ("≤ +0.1", 0.65, 0.5, False),
    ],
)
def test_a_target_is_met_or_missed(target: str, value: float | None, limit: float | None, met: bool | None) -> None:
    assert row(target, value, limit)["met"] is met


def test_a_target_is_excused_by_the_figure_that_it_names() -> None:
    assert row("≥ 1.4×", 1.0, 1.0, busy=95.0)["met"] is True
    assert row("≥ 1.4×", 1.0, 1.0, busy=85.0)["met"] is False


def test_a_choice_brings_the_limits_that_it_is_set_beside() -> None:
    assert [one.name for one in report.choose(["worker-2"])] == ["bare-100", "worker", "worker-2"]
    assert [one.name for one in report.choose(["claim-100-async, ping"])] == [
        "ping", "bare-100-apart", "bare-100", "claim-100"
    ]  # fmt: skip
    assert [one.name for one in report.choose([], far=True)] == ["latency"]
    usual = {one.name for one in report.choose([])}
    assert {"growth", "burst", "ping"} <= usual
    assert "latency" not in usual
    assert usual - {one.name for one in report.choose([], quick=True)} == {"growth", "burst", "hosts-claim"}


# ---- how it ends


def test_a_name_that_there_is_not_ends_with_two_and_tells_those_that_there_are() -> None:
    done = run("tests.bench", "--only", "worker", "--only", "speed")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no figure has the name 'speed'" in done.stderr
    assert all(figure.name in done.stderr for one in report.MEASURES for figure in one.figures)
    with pytest.raises(InvalidInput, match="leave out --only"):
        report.choose(["ping"], far=True)


def test_on_a_server_of_its_own_it_prints_lines_or_json_and_judges_when_asked() -> None:
    done = run("tests.bench", "--only", "help", "--quick", "--rounds", "1", "--json", "--check")
    told = json.loads(done.stdout)
    assert done.returncode == (1 if told["missed"] else 0)
    assert [figure["name"] for figure in told["figures"]] == ["import-redis", "import", "help"]
    assert (told["url"], told["rounds"], done.stderr) == ("embedded", 1, "")


def test_calls_are_measured_beside_the_peers_that_are_installed() -> None:
    few = ("--calls", "50", "--rounds", "1", "--processes", "1", "--keep", "no", "--json")
    done = run("tests.bench.peers", "--peers", "timeoutq", "blitzq", *few)
    assert (done.returncode, done.stderr) == (0, "not installed, and left out: blitzq\n")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["queue"], row["function"], row["ratio"]) for row in rows] == [
        ("timeoutq", "async", 1), ("timeoutq", "def", 1)
    ]  # fmt: skip
    assert all(row["rate"] > 0 for row in rows)


def bench_keys(server: EmbeddedServer, name: str) -> list[str]:
    return [key for key in keys(server) if re.fullmatch(rf"timeoutq:\{{bench-[0-9a-f]+\}}:{name}", key)]


def pids_in(workers: Any) -> list[int]:
    return [int(worker.split(b":")[1]) for worker in workers]


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cleans_up(server: EmbeddedServer, address: str, number: signal.Signals) -> None:
    with foreign(server):
        process = subprocess.Popen(
            [sys.executable, "-m", "timeoutq", "bench", "--url-file", address, "--only", "pickup", "--for", "1m"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            # its worker is at work
            (key,) = wait_until(lambda: bench_keys(server, "worker_info"), 30)
            with redis.Redis.from_url(server.url) as client:
                workers = pids_in(client.hkeys(key))
            process.send_signal(number)
            said, complained = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, said, complained) == (130, b"", b"")
        assert workers
        assert not any(map(alive, workers))


# ---- the proxy


def test_the_proxy_delays_each_round_trip_by_what_it_says(server: EmbeddedServer) -> None:
    with DelayingProxy(server.url, 0.03) as proxy, redis.Redis.from_url(proxy.url) as client:
        client.ping()  # connects
        for _ in range(10):
            said = len(proxy.delays)
            began = time.monotonic()
            assert client.ping()
            took = time.monotonic() - began
            (delay,) = proxy.delays[said:]
            assert delay <= took  # how much longer it took is the machine's affair
        assert all(0 <= delay <= 0.03 for delay in proxy.delays)
        assert max(proxy.delays) > 0.005
