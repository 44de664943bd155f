"""Handlers that the tests' worker processes run; what they do is told by the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from timeoutq import Ack, Lease


def note(event: str, lease: Lease) -> None:
    """Append a line to the history: O_APPEND keeps lines of many processes whole."""
    append(event, lease.task, lease.fence)


def append(event: str, task: str = "-", fence: int = 0) -> None:
    path = os.environ.get("HISTORY")
    if path:
        line = f"{event} {task} {fence} {os.getpid()} {time.time():.6f}\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)


async def work(lease: Lease) -> None:
    note("start", lease)
    await asyncio.sleep(float(os.environ.get("WORK", "0.005")))
    note("end", lease)


def page(number: int) -> str:
    """Give the URL of a page; pages with near numbers are on other hosts."""
    return f"https://h{number % 37}.example/{number}"


async def find_pages(lease: Lease) -> Ack:
    """Work for a few milliseconds, and find three pages more, until there are as many as the environment says."""
    note("start", lease)
    await asyncio.sleep(float(os.environ.get("WORK", "0.005")))
    number, last = int(lease.task.rpartition("/")[2]), int(os.environ["PAGES"])
    note("end", lease)
    return Ack(put=[page(3 * number + i) for i in (1, 2, 3) if 3 * number + i < last])


def work_in_thread(lease: Lease) -> None:
    note("start", lease)
    time.sleep(float(os.environ.get("WORK", "0.005")))
    note("end", lease)


async def work_or_die(lease: Lease) -> None:
    """Kill the own process when the task is `poison`."""
    note("start", lease)
    if lease.task == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.02)
    note("end", lease)


async def block_the_loop(lease: Lease) -> None:
    """Hold the event loop for longer than a lease: only a heartbeat outside of it keeps the lease alive."""
    note("start", lease)
    time.sleep(float(os.environ.get("WORK", "0.005")))  # noqa: ASYNC251  # that is what is tested
    note("end", lease)


def history(path: Path) -> list[tuple[str, str, int, int, float]]:
    """Read the history: event, task, fence, pid, time."""
    # who reads while others write may see a part of the last line
    lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return [(e, t, int(f), int(p), float(at)) for e, t, f, p, at in (line.split(" ") for line in lines)]


async def leave(lease: Lease) -> None:
    """End the process with an exit code of its own, at the first attempt on `leave`."""
    note("start", lease)
    if lease.task == "leave" and lease.crashes == 0:
        os._exit(int(os.environ.get("CODE", "0")))
    await asyncio.sleep(float(os.environ.get("WORK", "0.005")))
    note("end", lease)


@asynccontextmanager
async def lifespan() -> AsyncIterator[int]:
    """Open something for the process; it yields the number of the process that opened it."""
    append("open")
    yield os.getpid()
    append("close")


def die_in_thread(lease: Lease) -> None:
    """Die as by a segmentation fault, always."""
    note("start", lease)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


class Unspeakable(BaseException):
    """An exception that is none, and whose text cannot be had."""

    def __str__(self) -> str:
        raise GeneratorExit

    __repr__ = __str__


def _raise_by_turns(lease: Lease) -> None:
    number = int(lease.task.rpartition("-")[2])
    kinds = (Unspeakable, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError, None)
    kind = kinds[number % len(kinds)]
    if kind is not None:
        raise kind


async def nasty(lease: Lease) -> None:
    """Raise by turns what ends careless workers; each sixth task is done."""
    _raise_by_turns(lease)


def nasty_in_thread(lease: Lease) -> None:
    _raise_by_turns(lease)


@asynccontextmanager
async def lifespan_that_cannot_close() -> AsyncIterator[None]:
    yield
    raise ConnectionError("the pool cannot close")


def lifespan_like_range() -> None:
    """Raise a TypeError inside: an ordinary error of the user's code."""
    raise TypeError("the database is not up")


async def exit_in_a_task(lease: Lease) -> None:
    """End the event loop from an asyncio task of the handler's own, which it awaits unless the task is `unawaited`."""
    note("start", lease)
    if lease.task == "beside":
        await asyncio.sleep(60)

    async def leave() -> None:
        raise SystemExit(3)

    task = asyncio.create_task(leave())
    if lease.task == "unawaited":
        await asyncio.sleep(60)
    await asyncio.wait_for(task, 10)
