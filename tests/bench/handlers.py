"""The handlers of the workers that the benchmark starts, those of `timeoutq bench` with them, and an app with calls."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

from timeoutq.cli import bench
from timeoutq.cli.bench import note as note
from timeoutq.cli.bench import nothing as nothing
from timeoutq.words.model import Lease

if TYPE_CHECKING:
    from timeoutq.functions import App

WORK = "TIMEOUTQ_BENCH_WORK"
"""The environment variable with the longest work of a task, seconds."""

_work = float(os.environ.get(WORK, "0"))


def app(name: str, url: str | None = None) -> App:
    """Give the app whose calls go to this queue; it has the function of `timeoutq bench`, too."""
    made = bench.app(name, url)

    @made.task
    async def began(number: int) -> int:
        return time.monotonic_ns()

    return made


def __getattr__(name: str) -> object:
    """Give `calls`, which runs the calls of the app: only this handler needs the packages for it."""
    if name != "calls":
        raise AttributeError(name)
    from timeoutq.functions import Calls

    return Calls(app("bench"))


def nothing_in_thread(lease: Lease) -> None:
    """Do nothing, in a thread."""


async def hold(lease: Lease) -> None:
    await asyncio.sleep(86_400)


async def work(lease: Lease) -> None:
    await note(lease)
    await asyncio.sleep(random.uniform(0, _work))
