"""`ShardedQueue` and `AsyncShardedQueue`: the two faces of a queue over several shards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from timeoutq.client.face import Face
from timeoutq.client.queue import AsyncVerbs, Verbs
from timeoutq.client.shards import root
from timeoutq.client.shards.methods import ShardedFlows
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.route import By
from timeoutq.client.shards.working import ShardedDivision
from timeoutq.words.model import Politeness
from timeoutq.words.retry import Retries


class ShardedFace(Face):
    """What both faces of a sharded queue hold: the settings of a client, and the talks with the shards."""

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
        self.flows = ShardedFlows(self.shards, self._ending)
        self.division = ShardedDivision(self.shards)

    def settings(self) -> dict[str, Any]:
        """Give the arguments that make another client of this queue, but for its name, and the queue's settings."""
        return {**super().settings(), "shards": self.shards.wanted, "by": self.shards.by}

    def _is_open(self) -> bool:
        return self.shards.made  # until then, each flow looks whether somebody has made the queue

    def _moved(self, slot: int) -> None:
        for talk in (self.shards.root, *self.shards.talks):
            if talk.at == slot:
                talk.clock.forget()


class ShardedQueue(ShardedFace, Verbs):
    """A queue over several shards, for code that blocks. Safe to share between threads."""


class AsyncShardedQueue(ShardedFace, AsyncVerbs):
    """A queue over several shards, for asyncio. Each event loop that uses it has connections of its own."""

    blocking = ShardedQueue
