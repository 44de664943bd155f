"""SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one per worker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

_heeding: dict[asyncio.AbstractEventLoop, tuple[list[Callable[..., None]], ExitStack]] = {}
"""For each event loop, what stops its workers, and what puts the signal handlers of before back."""


@contextmanager
def heeded(stop: Callable[..., None]) -> Iterator[None]:
    """Let SIGTERM call `stop()`, and SIGINT `stop(now=True)`; does nothing outside the main thread, which gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    if loop not in _heeding:
        _heeding[loop] = _take_over(loop)
    stops, before = _heeding[loop]
    stops.append(stop)
    try:
        yield
    finally:
        stops.remove(stop)
        if not stops:
            del _heeding[loop]
            before.close()


def _take_over(loop: asyncio.AbstractEventLoop) -> tuple[list[Callable[..., None]], ExitStack]:
    stops, before = list[Callable[..., None]](), ExitStack()

    def stop_all(now: bool) -> None:
        for stop in list(stops):
            stop(now=now)

    def heard(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(stop_all, number == signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGINT):
        old = signal.signal(number, heard)
        # a handler that was not set by Python cannot be put back
        before.callback(partial(signal.signal, number, signal.SIG_DFL if old is None else old))
    return stops, before
