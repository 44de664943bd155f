"""Opens the queue of a crawl, and purges it at the end unless it is kept.

`command.py` makes a place, `course.py` opens it.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from demo.processes import LEASE, DemoError
from timeoutq import Queue


@dataclass(frozen=True)
class Place:
    """Where a crawl's queue is, and what becomes of it."""

    address: str
    """The URL of the server."""
    name: str | None = None
    """None: a new name."""
    keep: bool = False
    """Whether the queue stays after the crawl."""

    @contextmanager
    def open(self) -> Generator[Queue]:
        """Open the queue, and purge it at the end unless it is kept.

        Raises `DemoError` when there is such a queue already and it is not to be kept: it is not ours to purge.
        """
        with Queue(self.name or f"demo-{secrets.token_hex(4)}", self.address, timeout=LEASE) as queue:
            if not self.keep and queue.exists():
                raise DemoError(
                    f"there is a queue {queue.name} already, and the demo would purge it: give --keep, or another name"
                )
            try:
                yield queue
            finally:
                if not self.keep:
                    queue.purge()
