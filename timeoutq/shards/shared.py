"""What both faces of a sharded queue hold: the settings of a client, and the talks with the shards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from timeoutq import arguments
from timeoutq.client.face import Face
from timeoutq.errors import LeaseLost
from timeoutq.model import Lease, Outcome, Politeness, TaskId
from timeoutq.retry import Retries
from timeoutq.sending import Flow
from timeoutq.shards import ends, flows, root
from timeoutq.shards.root import Shards
from timeoutq.shards.route import By
from timeoutq.shards.working import ShardedDivision


class ShardedFace(Face):
    """What `ShardedQueue` and `AsyncShardedQueue` have in common."""

    beats_apart = True

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        shards: int | None = None,
        by: By | None = None,
        client: Any = None,
        timeout: float = 30.0,
        max_runtime: float | None = None,
        retry: Retries = None,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | None = None,
        durable: int | None = None,
        deadline: float = 5.0,
        allow_eviction: bool = False,
    ) -> None:
        """Describe a queue over several shards; the first operation connects, the first put or setting makes it.

        `shards` is how many there are, 2 to 1000: a new queue gets 12 if you do not say; a queue that is there keeps
        its number for ever, and another number is refused. `by` is what tasks are routed by: `"host"` (their group,
        else the host of their URL, else their id), so that a host is wholly in one shard; or `"id"`, for a queue that
        is never polite. All else is as for `Queue`.

        Raises `InvalidInput` for an argument that cannot be used.
        """
        wanted, by = None if shards is None else root.count(shards), None if by is None else root.by(by)
        super().__init__(
            name,
            url,
            client=client,
            timeout=timeout,
            max_runtime=max_runtime,
            retry=retry,
            keep_done=keep_done,
            max_crashes=max_crashes,
            politeness=politeness,
            durable=durable,
            deadline=deadline,
            allow_eviction=allow_eviction,
        )
        self.shards = Shards(self.talk, wanted, by, self.token)
        # what is said of the whole queue, such as the signs of life of a keeper, goes to the root
        self.talk = self.shards.root
        self.operations = self.talk.operations
        self.division = ShardedDivision(self.shards)

    def settings(self) -> dict[str, Any]:
        """Give the arguments that make another client of this queue, but for its name, and the queue's settings."""
        return {**super().settings(), "shards": self.shards.wanted, "by": self.shards.by}

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        """Give the flow that extends leases by the usual timeout; a keeper and a heartbeat carry it out."""
        return ends.extension(self.shards, leases)

    def loss(self, lease: Lease) -> Flow[LeaseLost]:
        """Give the flow that finds out who has the task of a lost lease, and gives the error that says so."""
        return ends.lost(self.shards, lease)

    def retrial(self, tasks: Sequence[TaskId]) -> Flow[Outcome]:
        """Give the flow that makes failed tasks ready again, and answers for each of them."""
        return flows.retrial(self.shards, arguments.ids((tasks,)))

    def _opening(self) -> Flow[None]:
        return flows.opening(self.shards, self._settings, self.allow_eviction)

    def _is_open(self) -> bool:
        return self.shards.made  # until then, each flow looks whether somebody has made the queue

    def _moved(self, slot: int) -> None:
        for talk in (self.shards.root, *self.shards.talks):
            if talk.at == slot:
                talk.clock.forget()
