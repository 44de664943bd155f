"""Handlers that fork their worker's process, or kill it just after they have ended; the environment says how."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.rig.handlers import append, note
from timeoutq import Ack, Lease


def _forked(lease: Lease) -> int | None:
    note("start", lease)
    return os.fork() if lease.task == "fork" else None


def _end_copy() -> None:
    match os.environ["HOW"]:
        case "exit":
            raise SystemExit
        case "exit 7":
            raise SystemExit(7)
        case "exit words":
            raise SystemExit("no disk")
        case "error":
            raise RuntimeError("the copy broke")
        case _:  # it returns
            pass


def _note_end(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    append(f"copy-ended-{os.waitstatus_to_exitcode(status)}")


def fork(lease: Lease) -> None:
    """Fork, wait for the copy, and note its exit code."""
    pid = _forked(lease)
    if pid == 0:
        _end_copy()
    elif pid is not None:
        _note_end(pid)


async def fork_in_loop(lease: Lease) -> None:
    """The same in the event loop; other handlers are under way when the copy is made."""
    await asyncio.sleep(0.01)
    pid = _forked(lease)
    if pid == 0:
        if os.environ["HOW"] == "await":
            await asyncio.sleep(0)
        _end_copy()
    elif pid is not None:
        await asyncio.to_thread(_note_end, pid)


def _live_on() -> None:
    if os.environ["HOW"] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    append(f"copy-{os.getpid()}")
    time.sleep(60)


def fork_and_leave(lease: Lease) -> None:
    """Leave a copy that lives on, and notes its pid."""
    note("start", lease)
    if lease.task == "fork":
        multiprocessing.get_context("fork").Process(target=_live_on).start()


def multiprocess(lease: Lease) -> None:
    """Start a process as a library would, end it by SIGTERM, and note how it ended."""
    note("start", lease)
    if lease.task == "fork":
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(5)
        append(f"copy-ended-{process.exitcode}")
        process.kill()
        process.join()


async def multiprocess_in_loop(lease: Lease) -> None:
    multiprocess(lease)


class _Killing(Exception):
    def __str__(self) -> str:
        os._exit(9)


class _Held:
    def __del__(self) -> None:
        os._exit(9)


def _result() -> Any:
    match os.environ["HOW"]:
        case "put":
            return Ack(put=(os._exit(9) for _ in [1]))
        case "error":
            raise _Killing
        case _:
            return _Held()


def die_after(lease: Lease) -> Any:
    """Give a result, or raise an error, that kills the process when somebody looks at it, or lets go of it."""
    note("start", lease)
    return _result()


async def die_after_in_loop(lease: Lease) -> Any:
    note("start", lease)
    return _result()


async def leave_a_thread(lease: Lease) -> None:
    """Leave a thread behind for which the event loop waits when it closes."""
    note("start", lease)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)


@asynccontextmanager
async def lifespan_that_stays() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(3600)
