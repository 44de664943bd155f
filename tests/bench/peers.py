"""Calls of a function that does nothing, in timeoutq and in other queues: `python -m tests.bench.peers`.

Run it with the Python of an environment that has the peers. All use the same server, in turns. All calls are put, then
the command of the queue starts its worker processes. No call ends before each process has its first. What counts is the
time between a tenth of the calls and the last; the function itself counts them, in memory that the processes share. The
server's time is the CPU time of its main thread: statistics of commands count twice what scripts and transactions run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import redis
from rich.console import Console
from rich.table import Table

from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words import exit_codes

ROOT = Path(__file__).resolve().parent.parent.parent
MODULE = "tests.bench.peers"
GIVEN = "TIMEOUTQ_BENCH_PEERS"
"""The environment variable that tells a worker process what it runs: `Given`, as JSON."""
PATIENCE = 60.0
"""How long workers may take to begin, and to end one more call, seconds."""
SLOTS = 512
"""Counts: a process has that of its pid. Behind them, processes mark that they have begun; the last is the start."""
Calls = Sequence[tuple[int, str]]
Function = Callable[[int, str], Any]
Made = tuple[Any, Callable[[Calls], None]]
"""The app of a queue, and what puts calls into the queue."""


class Given(NamedTuple):
    """What a worker process runs; `counts` is the file with the counts."""

    peer: str
    shape: str
    keep: bool
    url: str
    counts: str = ""


# ---- in the worker processes: the function


def shared(path: str) -> memoryview:
    with Path(path).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")


def take_slot() -> None:
    global slot
    slot = os.getpid() % SLOTS


def nothing(number: int, word: str) -> None:
    if not counts[-1]:
        counts[SLOTS + slot] = 1
        while not counts[-1]:
            time.sleep(0.001)
    counts[slot] += 1  # no thread gets its turn within this line


async def nothing_async(number: int, word: str) -> None:
    nothing(number, word)


# ---- the queues: each makes its app, and what puts calls; and the command of its workers, as for many small calls


class Peer(NamedTuple):
    """A queue; the package without which it is left out, the words behind `python`, the part of the calls it gets."""

    make: Callable[[Given, Function], Made]
    needs: str
    command: str
    share: float = 1.0
    shapes: Sequence[str] = ("async", "def")


def parts(calls: Calls, size: int = 1_000) -> Iterator[Calls]:
    return (calls[first : first + size] for first in range(0, len(calls), size))


def _timeoutq(given: Given, function: Function) -> Made:
    app: Any = import_module("timeoutq.functions").App("peers", url=given.url, keep_result=3600 if given.keep else 0)
    task = app.task(name="nothing")(function)

    def put(calls: Calls) -> None:
        with closing(app.sender):
            for part in parts(calls):
                app.put(task.call(*call) for call in part)

    return app, put


def _rq(given: Given, function: Function) -> Made:
    queue = import_module("rq").Queue("peers", connection=redis.Redis.from_url(given.url))
    keep = {"result_ttl": 500 if given.keep else 0}

    def put(calls: Calls) -> None:
        for part in parts(calls):
            queue.enqueue_many([queue.prepare_data(f"{MODULE}.nothing", args=call, **keep) for call in part])

    return queue, put


def _blitzq(given: Given, function: Function) -> Made:
    # its other mode is not compared: a call is lost with the process that has taken it
    queue = import_module("blitzq").Queue("peers", redis_url=given.url, store_results=given.keep)
    task = queue.task(name="nothing")(function)

    async def put(calls: Calls) -> None:
        async with queue:
            for part in parts(calls):
                await task.enqueue_many(part)

    return queue, lambda calls: asyncio.run(put(calls))


def _ardiq(given: Given, function: Function) -> Made:
    ttl = {} if given.keep else {"result_ttl_ms": 0}
    app = import_module("ardiq").Ardiq(redis_url=given.url, queue_name="peers", concurrency=500, **ttl)
    task = app.task(name="nothing")(function)

    async def put(calls: Calls) -> None:
        for part in parts(calls):
            await app.enqueue_many([task.prepare(*call) for call in part])

    return app, lambda calls: asyncio.run(put(calls))


def _taskiq(given: Given, function: Function) -> Made:
    package = import_module("taskiq_redis")
    # a list does not acknowledge: a call is lost with the process that has taken it
    kind = package.ListQueueBroker if given.peer == "taskiq-list" else package.RedisStreamBroker
    broker = kind(given.url, queue_name="peers")
    if given.keep:
        broker = broker.with_result_backend(package.RedisAsyncResultBackend(given.url, result_ex_time=3600))
    task = broker.task(task_name="nothing")(function)

    async def put(calls: Calls) -> None:
        await broker.startup()
        for part in parts(calls, 20):  # it has no way to put many at once
            await asyncio.gather(*(task.kiq(*call) for call in part))
        await broker.shutdown()

    return broker, lambda calls: asyncio.run(put(calls))


APP = f"{MODULE}:app"
_TASKIQ = f"-m taskiq worker {APP} --log-level WARNING --workers"
# it imports the module before it forks, as its page on performance says
_RQ = f"-c 'import {MODULE}, rq.cli; rq.cli.main()' worker-pool peers --quiet --num-workers"
PEERS = {
    "timeoutq": Peer(_timeoutq, "timeoutq", f"-m timeoutq worker --app {APP} --processes"),
    "blitzq": Peer(_blitzq, "blitzq", f"-m blitzq worker {APP} --concurrency 500 --batch-size 500 --workers"),
    "ardiq": Peer(_ardiq, "ardiq", f"-m ardiq run {APP} --quiet --workers"),
    "taskiq": Peer(_taskiq, "taskiq_redis", _TASKIQ, 0.1),
    "taskiq-list": Peer(_taskiq, "taskiq_redis", _TASKIQ, 0.1),
    "rq": Peer(_rq, "rq", _RQ, 0.01, ("def",)),
    "rq-simple": Peer(_rq, "rq", _RQ.replace("peers --", "peers --worker-class rq.SimpleWorker --"), 0.03, ("def",)),
}


def make(given: Given) -> Made:
    return PEERS[given.peer].make(given, nothing if given.shape == "def" else nothing_async)


if GIVEN in os.environ:  # a worker process
    _given = Given(*json.loads(os.environ[GIVEN]))
    counts, slot = shared(_given.counts), os.getpid() % SLOTS
    os.register_at_fork(after_in_child=take_slot)
    app, _ = make(_given)


# ---- a turn: all calls are put, run and counted


class Reading(NamedTuple):
    """Calls a second, and the CPU time of a call: of the server's main thread, and of the worker processes."""

    rate: float
    server_us: float
    client_us: float


def stat(pid: int | str) -> list[str]:
    """Give the words of /proc/PID/stat from the state on; none of a process that has ended."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return [] if words[0] == "Z" else words
    return []


def members(session: int) -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if stat(path.name)[3:4] == [str(session)]]


@contextmanager
def workers(given: Given, processes: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start worker processes in a session of their own; in the end, kill all that are in it."""
    env = {**os.environ, GIVEN: json.dumps(given), "PYTHONPATH": str(ROOT), "RQ_REDIS_URL": given.url}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *shlex.split(PEERS[given.peer].command), str(processes)],
            cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        while left := members(process.pid):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
        process.wait()


def turn(given: Given, calls: int, processes: int) -> Reading:
    """Put the calls, and run them."""
    with redis.Redis.from_url(given.url) as bare, tempfile.TemporaryDirectory(prefix="timeoutq-peers-") as folder:
        log, given = Path(folder, "log"), given._replace(counts=f"{folder}/counts")
        Path(given.counts).write_bytes(bytes(8 * (2 * SLOTS + 1)))
        seen = shared(given.counts)
        bare.flushall()
        make(given)[1]([(number, "seven") for number in range(calls)])

        with workers(given, processes, log) as process:

            def until(part: slice, least: int) -> int:
                last, deadline = -1, 0.0
                while (now := sum(seen[part])) < least:
                    if now > last:
                        last, deadline = now, time.monotonic() + PATIENCE
                    if process.poll() is not None or time.monotonic() > deadline:
                        said = log.read_text("utf-8", "replace")[-3000:]
                        raise SystemExit(f"{given}: {now} of {least}; its workers have said:\n{said}")
                    time.sleep(0.002)
                return now

            def moment(least: int) -> tuple[float, int, float, float]:
                done = until(slice(0, SLOTS), least)
                at, cpu = time.monotonic(), dict[str, Any](bare.info("cpu"))
                ticks = sum(int(word) for pid in pids for word in stat(pid)[11:15])  # with its children that have ended
                used = cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"]
                return at, done, used, ticks / os.sysconf("SC_CLK_TCK")

            until(slice(SLOTS, 2 * SLOTS), processes)
            pids = members(process.pid)
            start = moment(0)
            seen[-1] = 1
            before, after = moment(calls // 10), moment(calls)
    if before[1] == after[1]:  # they were so few that the first look came after the last
        before = start
    seconds, done, server, client = (new - old for old, new in zip(before, after, strict=True))
    return Reading(done / seconds, server / done * 1e6, client / done * 1e6)


# ---- the rounds, and the table

Row = dict[str, Any]


def measure(names: Sequence[str], settings: Sequence[tuple[bool, int]], calls: int, rounds: int) -> list[Row]:
    """Run the rounds, in each of which every queue has its turn in each setting; give the medians."""
    found = defaultdict[tuple[bool, int, str, str], list[Reading]](list)
    line = [(shape, name) for shape in ("async", "def") for name in names if shape in PEERS[name].shapes]
    with EmbeddedServer() as server:
        for number in range(rounds):
            at = number % len(line)
            for (keep, count), (shape, name) in product(settings, line[at:] + line[:at]):
                if sys.stderr.isatty():
                    sys.stderr.write(f"round {number + 1} of {rounds}: {name}, {shape}, {count} processes, {keep=}\n")
                ran = max(20, int(calls * PEERS[name].share))
                found[keep, count, shape, name].append(turn(Given(name, shape, keep, server.url), ran, count))
    rows: list[Row] = []
    for key in ((*setting, *one) for setting in settings for one in line):
        ours, readings = found.get((*key[:3], "timeoutq"), []), found[key]
        ratios = [our.rate / reading.rate for our, reading in zip(ours, readings, strict=bool(ours))]
        row: Row = dict(zip(("kept", "processes", "function", "queue"), key, strict=True))
        row |= {name: median(each) for name, each in zip(Reading._fields, zip(*readings, strict=True), strict=True)}
        rows.append(row | {"ratio": median(ratios) if ratios else None, "rounds": [one._asdict() for one in readings]})
    return rows


def show(rows: Sequence[Row]) -> None:
    table = Table("results", "processes", "function", "queue", "calls/s", "timeoutq is", "server µs", "client µs")
    for _, group in groupby(rows, key=lambda row: (row["kept"], row["processes"], row["function"])):
        table.add_section()
        lines = [*group]
        best = max((row["rate"] for row in lines if row["queue"] != "timeoutq"), default=0)
        for row in lines:
            ratio = f"{row['ratio']:.2f} ×" if row["ratio"] else "-"
            table.add_row(
                "kept" if row["kept"] else "-", str(row["processes"]), row["function"], row["queue"],
                f"{row['rate']:,.0f}", f"{ratio} (best peer)" if row["rate"] == best else ratio,
                f"{row['server_us']:.1f}", f"{row['client_us']:.1f}",
            )  # fmt: skip
    Console(width=120).print(table)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Measure how many calls of a function that does nothing timeoutq and other queues run a second, "
        "and the CPU time of a call. Run it with the Python of an environment that has the others.",
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=[*PEERS], metavar="NAME", help=", ".join(PEERS))
    parser.add_argument(
        "--calls", type=int, default=20_000, help="20,000; slow peers get less; few flatter prefetching"
    )
    parser.add_argument("--rounds", type=int, default=5, help="5 by default; the medians are shown")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2], metavar="N", help="1 2 by default")
    parser.add_argument("--keep", nargs="+", choices=("no", "yes"), default=["no", "yes"], help="results; no yes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(words)
    if min(given.calls, given.rounds, *given.processes) < 1:
        parser.error("nothing to measure")
    there = [name for name in given.peers if find_spec(PEERS[name].needs)]
    if away := [name for name in given.peers if name not in there]:
        sys.stderr.write(f"not installed, and left out: {', '.join(away)}\n")
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have started it with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    about = {
        "calls": given.calls, "load": os.getloadavg(), "python": platform.python_version(), "left_out": away,
        "versions": {PEERS[name].needs: version(PEERS[name].needs) for name in there},
    }  # fmt: skip
    try:
        settings = [*product([word == "yes" for word in given.keep], given.processes)]
        rows = measure(there, settings, given.calls, given.rounds)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    if given.json:
        sys.stdout.write(f"{json.dumps({**about, 'rows': rows})}\n")
    else:
        show(rows)
    return exit_codes.DONE


if __name__ == "__main__":
    sys.exit(main())
