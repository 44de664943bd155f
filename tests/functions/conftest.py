"""What many tests of functions use: an app on the queue of the test, and processes that the test starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.rig.processes import Processes, processes
from timeoutq import AsyncQueue, Queue
from timeoutq.functions import App


@pytest.fixture
def app(queue: Queue, url: str) -> Iterator[App]:
    """An app whose calls go to the queue of the test."""
    made = App(queue.name, url=url)
    yield made
    made.close()


@pytest.fixture
def run(url: str, tmp_path: Path) -> Iterator[Processes]:
    """Start processes; they end with the test."""
    with processes(url, tmp_path) as started:
        yield started


@pytest.fixture
async def jobs(queue: Queue, url: str) -> AsyncIterator[AsyncQueue]:
    """The queue of the test, for asyncio."""
    async with AsyncQueue(queue.name, url, timeout=2) as opened:
        yield opened
