"""Where the queue of a crawl is: on which server or cluster, and in how many shards; and how it is opened.

`command.py` makes a place, `course.py` opens it, and the queue is purged at the end unless it is kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from demo.processes import LEASE, DemoError
from demo.settings import DEADLINE
from timeoutq.client.shards import AnyQueue, open_queue
from timeoutq.server.embedded_cluster import EmbeddedCluster

LONG_LEASE = 8.0
"""Seconds: on a cluster, a lease must outlive the time in which a replica takes over, for a worker that cannot extend
the lease meanwhile goes on with its page."""


@dataclass(frozen=True)
class Place:
    """Where a crawl's queue is, and what becomes of it."""

    address: str
    """The URL of the server or cluster."""
    name: str | None = None
    """None: a new name."""
    keep: bool = False
    """Whether the queue stays after the crawl."""
    shards: int | None = None
    """How many shards a new queue gets; None: as many as the queue has that is there, or none."""
    cluster: EmbeddedCluster | None = None
    """The private cluster at the address, if it is one."""

    @property
    def durable(self) -> int | None:
        """How many replicas must confirm: one if each primary of the private cluster has one."""
        cluster = self.cluster
        return 1 if cluster is not None and cluster.replicas >= cluster.primaries else None

    @property
    def lease(self) -> float:
        """The length of a lease, seconds."""
        return LEASE if self.cluster is None else LONG_LEASE

    @contextmanager
    def open(self) -> Generator[AnyQueue]:
        """Open the queue, and purge it at the end unless it is kept.

        Raises `DemoError` when there is such a queue already and it is not to be kept: it is not ours to purge.
        """
        name = self.name or f"demo-{secrets.token_hex(4)}"
        settings: dict[str, Any] = {"timeout": self.lease}
        if self.cluster is not None:
            settings["deadline"] = DEADLINE
        with open_queue(name, self.address, shards=self.shards, **settings) as queue:
            if not self.keep and queue.exists():
                raise DemoError(
                    f"there is a queue {queue.name} already, and the demo would purge it: give --keep, or another name"
                )
            try:
                if self.durable:
                    queue.configure(durable=self.durable)
                yield queue
            finally:
                if not self.keep:
                    queue.purge()
