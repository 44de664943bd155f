"""Waiting for something to become true, instead of sleeping and hoping; and lengths of time as a command takes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from timeoutq import Queue, Unavailable

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 30.0) -> T:
    """Ask again and again until the answer is true; give it. Raises AssertionError after `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        found = predicate()
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"still {found!r} after {timeout:g} s: {predicate}")
        time.sleep(0.005)


def seconds_of(text: str) -> float:
    """Read a length of time: 30s, 10m, 8h."""
    units = {"s": 1, "m": 60, "h": 3600}
    return float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)


async def until(predicate: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait until something is so, in an event loop. Raises `TimeoutError` after `timeout` seconds."""
    async with asyncio.timeout(timeout):
        while not predicate():
            await asyncio.sleep(0.01)


def is_over(queue: Queue) -> bool:
    """Say whether all tasks of a queue have ended, as far as its server answers."""
    try:
        return queue.drained()
    except Unavailable:
        return False


def is_gone(pid: int) -> bool:
    """Say whether a process has ended; its parent may not have asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
