"""SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one per worker."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

HEEDED = (signal.SIGTERM, signal.SIGINT)


class Stop(Protocol):
    """Stops one worker."""

    def __call__(self, *, now: bool = False) -> None: ...


_stops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Stop]] = WeakKeyDictionary()
_before: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Callable[[], None]]] = WeakKeyDictionary()


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


def _take_over(loop: asyncio.AbstractEventLoop, stops: dict[object, Stop]) -> list[Callable[[], None]]:
    def stop_all(now: bool) -> None:
        for stop in list(stops.values()):
            stop(now=now)

    taken: list[Callable[[], None]] = []
    with suppress(NotImplementedError):  # an event loop that has no signals
        for number in HEEDED:
            put_back = _putting_back(loop, number)
            loop.add_signal_handler(number, stop_all, number == signal.SIGINT)
            taken.append(put_back)
    return taken


def _putting_back(loop: asyncio.AbstractEventLoop, number: signal.Signals) -> Callable[[], None]:
    # asyncio has no way to ask; a loop that keeps its handlers elsewhere (uvloop) just loses its former handler
    handlers: Any = getattr(loop, "_signal_handlers", None) or {}
    of_loop: Any = handlers.get(number)
    before = signal.getsignal(number)

    def put_back() -> None:
        loop.remove_signal_handler(number)
        if of_loop is not None:
            loop.add_signal_handler(number, of_loop._callback, *of_loop._args)
        elif before is not None:
            signal.signal(number, before)

    return put_back
