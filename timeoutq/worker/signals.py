"""SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one per worker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

HEEDED = (signal.SIGTERM, signal.SIGINT)


class Stop(Protocol):
    """Stops one worker."""

    def __call__(self, *, now: bool = False) -> None: ...


_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Stop]] = WeakKeyDictionary()
_before: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], object]]] = WeakKeyDictionary()


@contextmanager
def heeded(stop: Stop) -> Iterator[None]:
    """Let SIGTERM call `stop()`, and SIGINT `stop(now=True)`; does nothing outside the main thread, which gets them."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = _stops.setdefault(loop, {})
    if not stops:
        _before[loop] = _take_over(loop, stops)
    me = object()
    stops[me] = stop
    try:
        yield
    finally:
        del stops[me]
        if not stops:
            for put_back in _before.pop(loop):
                put_back()


def _take_over(loop: asyncio.AbstractEventLoop, stops: dict[object, Stop]) -> list[Callable[[], object]]:
    def stop_all(now: bool) -> None:
        for stop in list(stops.values()):
            stop(now=now)

    def heard(number: int, frame: object) -> None:
        loop.call_soon_threadsafe(stop_all, number == signal.SIGINT)

    taken: list[Callable[[], object]] = []
    for number in HEEDED:
        before = signal.signal(number, heard)
        # what was not set by Python cannot be put back
        taken.append(partial(signal.signal, number, signal.SIG_DFL if before is None else before))
    return taken
