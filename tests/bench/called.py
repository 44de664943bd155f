"""The app of the benchmark: the functions whose calls it puts and runs."""

from __future__ import annotations

import time

from timeoutq.cli.bench import handlers
from timeoutq.functions import App


def app(name: str, url: str | None = None) -> App:
    """Give the app whose calls go to this queue; it has the function of `timeoutq bench`, too."""
    made = handlers.app(name, url)

    @made.task
    async def began(number: int) -> int:
        return time.monotonic_ns()

    return made
