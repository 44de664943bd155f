"""Where tests look inside a worker that runs."""

from __future__ import annotations

from collections.abc import Callable

from timeoutq import Worker
from timeoutq.worker.pump import Pump


def pump_of(worker: Worker) -> Pump:
    assert worker._pump is not None
    return worker._pump


def seen(worker: Worker, look: Callable[[Pump], object]) -> Callable[[], bool]:
    """Give a question to wait for: whether the worker has a pump, and `look` finds in it what it looks for."""
    return lambda: worker._pump is not None and bool(look(worker._pump))
