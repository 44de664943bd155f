"""SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one per worker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

_stops: list[tuple[asyncio.AbstractEventLoop, Callable[..., None]]] = []
"""What stops the workers that heed signals, and their event loop: the main thread runs one at a time."""
_before: dict[signal.Signals, Any] = {}  # the signal handlers of before


@contextmanager
def heeded(stop: Callable[..., None]) -> Iterator[None]:
    """Let SIGTERM call `stop()`, and SIGINT `stop(now=True)`; does nothing outside the main thread, which gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        for number in (signal.SIGTERM, signal.SIGINT):
            # a handler that was not set by Python cannot be put back
            _before[number] = signal.signal(number, _heard) or signal.SIG_DFL
    mine = asyncio.get_running_loop(), stop
    _stops.append(mine)
    try:
        yield
    finally:
        _stops.remove(mine)
        if not _stops:
            for number, handler in _before.items():
                signal.signal(number, handler)


def _heard(number: int, frame: object) -> None:
    for loop, stop in _stops:
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(partial(stop, now=number == signal.SIGINT))
