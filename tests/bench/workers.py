"""Worker processes: how much they drain, how soon they pick up, how late they are, and how much they cost idle."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import handlers
from tests.bench.ground import Figure, Ground, Measure, Readings, measure
from timeoutq.cli.bench import PATIENCE, Crew, Sight, ids, percentile, waits, watch
from timeoutq.client import Queue
from timeoutq.words.model import Lease

Handler = Callable[[Lease], object]

# ---- how much they drain


def look(ground: Ground, queue: Queue) -> Sight:
    """Read the counters, at a moment of the server's clock."""
    pipe = ground.bare.pipeline(transaction=False)
    pipe.execute_command("TIME")
    pipe.execute_command("HGET", queue.operations.key("stats"), "acked")
    pipe.execute_command("INFO", "cpu")
    (seconds, micros), acked, cpu = pipe.execute()
    used = float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
    return Sight(int(seconds) + int(micros) / 1e6, int(acked or 0), used)


def _drain(
    name: str,
    about: str,
    handler: Handler,
    limit: str,
    target: str,
    *,
    processes: int = 1,
    share: int = 1,
    unless: tuple[str, float] | None = None,
) -> Measure:
    @measure(
        name,
        Figure(name, about, "tasks/s", limit, target, unless),
        Figure(f"{name}-server", f"the server's CPU during {name}", "% of a core"),
    )
    def take(ground: Ground) -> Readings:
        count = ground.sizes.backlog // share
        with ground.queue() as queue:
            ground.fill(queue.operations.key("todos"), count)
            with ground.worker(queue, handler, "-p", f"{processes}") as crew:
                crew.until(lambda: look(ground, queue).acked > 0, "ack anything")
                tasks, cpu = rate_of_acks(ground, queue, count)
                return {name: tasks, f"{name}-server": cpu}

    return take


def rate_of_acks(ground: Ground, queue: Queue, tasks: int) -> tuple[float, float | None]:
    """Watch workers for a window, or until nearly all tasks are acked; give acks a second and the server's CPU in %."""
    first, last = watch(partial(look, ground, queue), tasks, ground.sizes.window)
    span = max(1e-3, last.at - first.at)
    # the CPU of a moment this short is not told
    cpu = None if first.acked == 0 else 100 * (last.cpu - first.cpu) / span
    return (last.acked - first.acked) / span, cpu


WORKER = _drain("worker", "a worker with a no-op async def", handlers.nothing, "bare-100", "≥ 0.7×")
WORKER_2 = _drain(
    "worker-2",
    "two worker processes with a no-op async def",
    handlers.nothing,
    "worker",
    "≥ 1.4×",
    processes=2,
    unless=("worker-2-server", 90.0),
)
WORKER_DEF = _drain(
    "worker-def", "a worker with a no-op def, in threads", handlers.nothing_in_thread, "bare-100", "≥ 0.2×", share=3
)


# ---- how soon they pick up


def _ticks(count: int, gap: float, blocks: int, do: Sequence[Callable[[int], object]]) -> None:
    """Do the first thing `blocks` times, then the second, and so on until each was done `count` times, `gap` apart."""
    at = time.perf_counter()
    for start in range(0, count, blocks):
        for one in do:
            for number in range(start, min(start + blocks, count)):
                at += gap
                time.sleep(max(0.0, at - time.perf_counter()))
                one(number)


def _pickup(name: str, words: str, times: float, size: Callable[[Ground], tuple[int, float, int]]) -> Measure:
    call = f"from the call of put to the handler of an idle worker, {words}"

    @measure(
        name,
        Figure(f"{name}-ping", f"a PING from the process that puts, {words}", "ms"),
        Figure(f"{name}-p50", f"{call}: p50", "ms", f"{name}-ping", f"≤ {times:g}×"),
        Figure(f"{name}-p99", f"{call}: p99", "ms", f"{name}-ping", "≤ 3"),
    )
    def take(ground: Ground) -> Readings:
        count, gap, blocks = size(ground)
        trips, tasks = list[float](), ids(count)

        def ping(_: int) -> None:
            began = time.perf_counter()
            ground.bare.execute_command("PING")
            trips.append((time.perf_counter() - began) * 1000)

        def drive(put: Callable[[str], object]) -> None:
            # as idle as it is between two of them
            time.sleep(min(0.5, 10 * gap))
            # PINGs and puts take turns, with the same gap before each, so that both meet the machine in the same mood
            _ticks(count, gap, blocks, (ping, lambda number: put(tasks[number])))

        waited = waits(ground, drive)
        return {
            f"{name}-ping": percentile(trips, 0.5),
            f"{name}-p50": percentile(waited, 0.5),
            f"{name}-p99": percentile(waited, 0.99),
        }

    return take


PICKUP = _pickup("pickup", "10 ms apart", 3, lambda ground: (ground.sizes.paced, ground.sizes.paced_gap, 50))
# a put every `cold_gap`, and a PING in the middle between two of them
COLD = _pickup("cold", "1 s apart", 6, lambda ground: (ground.sizes.cold, ground.sizes.cold_gap / 2, 1))


# ---- how late they are


@measure(
    "late",
    Figure("late-p50", "lateness of 1,000 scheduled tasks over 5 s: p50", "ms", None, "≤ 2"),
    Figure("late-p99", "lateness of 1,000 scheduled tasks over 5 s: p99", "ms", None, "≤ 10"),
)
def late(ground: Ground) -> Readings:
    sizes = ground.sizes
    with ground.queue() as queue, ground.worker(queue, handlers.note) as crew:
        offset_ms = ground.clock_offset_ms()
        first_ms = time.monotonic() * 1000 + offset_ms + 500 + sizes.scheduled
        due_ms = {
            task: int(first_ms + number * sizes.scheduled_over * 1000 / sizes.scheduled)
            for number, task in enumerate(ids(sizes.scheduled))
        }
        for task, at_ms in due_ms.items():
            queue.schedule(task, at=at_ms / 1000)
        notes = crew.until(lambda: crew.noted(len(due_ms)), "pick up what is due", PATIENCE + sizes.scheduled_over)
        offset_ms = (offset_ms + ground.clock_offset_ms()) / 2
    late = [notes[task][0] / 1e6 + offset_ms - at_ms for task, at_ms in due_ms.items()]
    return {"late-p50": percentile(late, 0.5), "late-p99": percentile(late, 0.99)}


@measure(
    "burst",
    Figure("burst-rate", "1,000,000 tasks due within one second: promoted", "tasks/s", None, "≥ 100,000"),
    Figure("burst-claim-p99", "claims while 1,000,000 tasks are promoted: p99", "ms", None, "≤ 25"),
    once=True,
    heavy=True,
)
def burst(ground: Ground) -> Readings:
    count = ground.sizes.burst
    with ground.queue() as queue, ground.command("cleaner", queue.name) as crew:
        key = queue.operations.key
        offset_ms = ground.clock_offset_ms()
        # due within one second, which begins when all of them are in
        first_ms = time.monotonic() * 1000 + offset_ms + 500 + count / 100
        queue.schedule("first", at=first_ms / 1000)
        ground.fill(key("scheduled"), count, kind="ZADD", at=first_ms, step=1000 / count)
        filled_ms = time.monotonic() * 1000 + offset_ms
        if filled_ms > first_ms:
            return {"burst-rate": None, "burst-claim-p99": None}  # too slow a server to make the burst
        time.sleep((first_ms - filled_ms) / 1000)
        spent: list[float] = []

        def left() -> bool:
            for _ in range(20):
                began = time.perf_counter()
                leases = queue.claim(1)
                spent.append((time.perf_counter() - began) * 1000)
                if leases:
                    queue.ack(leases)
                time.sleep(0.001)
            return int(ground.bare.execute_command("ZCARD", key("scheduled"))) == 0

        crew.until(left, "promote all tasks", 300)
        took = (time.monotonic() * 1000 + offset_ms - first_ms) / 1000
    return {"burst-rate": count / took, "burst-claim-p99": percentile(spent, 0.99)}


# ---- how soon the tasks of a killed worker are back


@measure("killed", Figure("killed", "back after kill -9, lease 1 s: the last task", "s", None, "≤ 1.25"))
def killed(ground: Ground) -> Readings:
    count, back = ground.sizes.killed, list[float]()
    for _ in range(ground.sizes.kills):
        alone = ("--no-supervise", "--timeout", "1s", "-c", f"{count}")
        with ground.queue(timeout=1) as queue, ground.worker(queue, handlers.hold, *alone) as victim:
            queue.put(ids(count))
            victim.until(lambda: queue.stats().in_progress == count, "claim the tasks")
            with ground.worker(queue, handlers.note, "--timeout", "1s") as heir:
                # at any moment between two extensions of the leases
                time.sleep(random.uniform(0.3, 0.7))
                at = time.monotonic_ns()
                victim.process.kill()
                notes = heir.until(lambda: heir.noted(count), "take over the tasks")
        back.append(max((began[0] - at) / 1e9 for began in notes.values()))
    return {"killed": max(back)}


# ---- what they cost idle


_CLIENTS = "auth blpop client eval fcall fcall_ro hello info ping script select xread xrevrange"
_ASKED = frozenset(_CLIENTS.split())
"""The commands that a worker's clients send themselves; all else that is counted is called by scripts."""


def _commands(ground: Ground) -> int:
    stats: dict[str, Any] = ground.info("commandstats")
    return sum(
        int(found["calls"]) for name, found in stats.items()
        if name.removeprefix("cmdstat_").partition("|")[0] in _ASKED
    )  # fmt: skip


def _pids(crew: Crew) -> list[int]:
    """Give the id of a process and, where the system tells them, those of its children."""
    pid = crew.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, children.read_text().split() if children.exists() else ())]


def _cpu_seconds(pids: Sequence[int]) -> float | None:
    spent, known = 0, False
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(FileNotFoundError):
                    spent += int((thread / "schedstat").read_text().split()[0])
                    known = True
    return spent / 1e9 if known else None


@measure(
    "idle",
    Figure("idle-commands", "commands of an idle worker", "a second", None, "≤ 1"),
    Figure("idle-cpu", "CPU of an idle worker, its supervisor with it", "%", None, "≤ 0.2"),
)
def idle(ground: Ground) -> Readings:
    with ground.queue() as queue, ground.worker(queue, handlers.nothing) as crew:
        queue.put("first")
        crew.until(lambda: look(ground, queue).acked == 1, "work")
        time.sleep(min(1.0, ground.sizes.idle))
        pids = _pids(crew)
        commands, cpu, began = _commands(ground), _cpu_seconds(pids), time.monotonic()
        time.sleep(ground.sizes.idle)
        span = time.monotonic() - began
        cpu_after, commands_after = _cpu_seconds(pids), _commands(ground)
    # of the two questions for the counts, the first is counted by the second
    sent = commands_after - commands - 1
    busy = None if cpu is None or cpu_after is None else 100 * (cpu_after - cpu) / span
    return {"idle-commands": sent / span, "idle-cpu": busy}
