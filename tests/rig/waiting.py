"""Waiting for something to become true, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
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


def is_over(queue: Queue) -> bool:
    """Say whether all tasks of a queue have ended, as far as its server answers."""
    try:
        return queue.drained()
    except Unavailable:
        return False
