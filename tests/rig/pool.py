"""Functions that run in pool processes, for workers of tests: calls that hang, loop in C, die, print, log and raise."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from tenacity import RetryCallState, wait_fixed

from timeoutq import Ack, GiveUp, Retry
from timeoutq.functions import App, CallNext, Context

app = App(os.environ.get("SHOP_QUEUE", "pool"), keep_result=60, retry=[])
log = logging.getLogger("pool")


class Odd(Exception):
    """An error that cannot be made without its two arguments."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code, why)

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


@app.task(executor="process")
def who() -> tuple[int, int]:
    """Give the process of the call, and the worker that has started it."""
    return os.getpid(), os.getppid()


@app.task(executor="process")
def leaves_a_program() -> int:
    """Give the pid of a program that goes on when the function has returned."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid


def _sleeps(begun: Any) -> None:
    begun.set()
    time.sleep(60)


@app.task(executor="process")
def ends_a_copy(when: Literal["it sleeps", "it begins"]) -> int | None:
    """Give the exit code of a copy of this process that is asked to end."""
    if when == "it begins":
        pid = os.fork()
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    copy = fork.Process(target=_sleeps, args=(begun,))
    copy.start()
    begun.wait(20)
    copy.terminate()
    copy.join(20)
    return copy.exitcode


@app.task(executor="process", max_runtime=0.5)
def stuck(how: Literal["sleeps", "loops", "computes", "starts another"], begun: str) -> None:
    Path(begun).write_text(str(os.getpid()))
    if how == "sleeps":
        time.sleep(3600)
    elif how == "loops":
        sum(range(10**12))  # which lets no other thread of Python run
    elif how == "computes":
        ctypes.CDLL(None).pause()
    else:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        Path(begun).write_text(str(child.pid))
        child.wait()


@app.task(executor="process")
def dies(code: int, begun: str = "") -> None:
    if begun:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        Path(begun).write_text(str(child.pid))
    os.kill(os.getpid(), code)


@app.task(executor="process")
def forks(child: Literal["returns", "lives on"]) -> str:
    """Fork a copy: one that also returns, or one that lives on when this process is killed."""
    copy = os.fork()
    if copy == 0:
        if child == "returns":
            return "the copy"
        time.sleep(5)
        os._exit(0)
    if child == "lives on":
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(copy, 0)
    return "the function"


@app.task(executor="process")
def echo(number: int) -> int:
    return number


@app.task(executor="process")
def speaks(ctx: Context[None], word: str) -> list[Any]:
    print("printed", word)
    log.warning("logged %s", word)
    try:
        raise Odd(1, why=word)
    except Odd:
        log.exception("caught %s", word)
    ctx.progress(1, 2, word)
    return [
        ctx.function, ctx.task, ctx.attempt, ctx.fence > 0, ctx.tick, ctx.state, ctx.cancelled, dict(ctx.headers),
    ]  # fmt: skip


@app.task(executor="process", max_runtime=5)
def reads() -> str:
    return sys.stdin.read()


@app.task(executor="process")
def day() -> timedelta:
    return timedelta(days=1)


@app.middleware
def doubles_days(ctx: Context[None], call_next: CallNext) -> Any:
    return call_next() * 2 if ctx.function == "day" else call_next()


@app.task(executor="process")
def far(ctx: Context[None], total: float) -> None:
    ctx.progress(1, total)


kept: list[Context[None]] = []  # contexts of calls that have ended


@app.task(executor="process")
def keeps(ctx: Context[None]) -> None:
    ctx.progress(1)
    kept.append(ctx)


@app.task(executor="process")
def waits(ctx: Context[None], begun: str) -> None:
    ctx.progress(3, 10, "page 3")
    Path(begun).write_text(str(os.getpid()))
    time.sleep(3600)


@app.task(executor="process")
def fails(how: str) -> Any:
    if how == "odd":
        raise Odd(7, why="seven")
    if how == "exit":
        raise SystemExit(3)
    if how == "odd reason":
        raise GiveUp(os.fsdecode(b"no \xff"))
    if how == "give up":
        raise GiveUp("no use")
    if how == "returned retry":
        return Retry(after=0.01, reason="later")
    if how == "acks":
        return Ack(keep_id=False)
    if how == "group":
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    return object()


class Many(ExceptionGroup[Exception]):
    """A group of a class of the program."""


def raises_several(kind: str) -> None:
    deep: Any = OSError("no file")
    for depth in range(6):
        deep = ExceptionGroup(f"depth {depth}", [deep, TypeError(depth)])
    inside: dict[str, list[Any]] = {
        "one": [TypeError("one"), ExceptionGroup("more", [Odd(7, why="seven")])],
        "others": [TypeError("one"), KeyError("two")],
        "deep": [deep],
        "exits": [SystemExit(3), Odd(7, why="seven")],
    }
    if kind == "one":
        raise Many("both", inside[kind])
    raise BaseExceptionGroup("both", inside[kind])


several = app.task(no_retry=(Odd, OSError), retry=[0, 0], executor="process", name="several")(raises_several)
several_in_thread = app.task(no_retry=(Odd, OSError), retry=[0, 0], name="several_in_thread")(raises_several)


def is_key_error(state: RetryCallState) -> bool:
    return state.outcome is not None and isinstance(state.outcome.exception(), KeyError)


@app.task(executor="process", retry=(wait_fixed(0.01), is_key_error))
def picky(ctx: Context[None]) -> None:
    raise KeyError(1) if ctx.attempt == 2 else ValueError(1)


@app.task(max_runtime=0.5)
def hangs_in_its_thread(seconds: float) -> None:
    time.sleep(seconds)


@app.task
def slow(begun: str, until: str) -> int:
    Path(begun).write_text(str(os.getpid()))
    while not Path(until).exists():
        time.sleep(0.01)
    return os.getpid()


@app.task
def leaves_a_copy() -> int:
    """Fork a copy of the worker that lives on; give its pid."""
    copy = os.fork()
    if copy == 0:
        time.sleep(60)
        os._exit(0)
    return copy


@app.task
def process() -> int:
    return os.getpid()
