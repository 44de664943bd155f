"""Calls that run in processes of their own, as many at once as there are cores: for levels that only compute."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def processes(initializer: Callable[[], object] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Give the pool; what has not begun when the block is left never does. Callables and answers must be picklable."""
    # not forked: a test run has threads
    pool = ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn"), initializer)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
