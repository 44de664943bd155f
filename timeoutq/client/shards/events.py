"""The event logs of a sharded queue: one in each shard, which are read together. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from timeoutq.client.shards import gathering
from timeoutq.client.shards.root import Shards
from timeoutq.client.shards.together import together
from timeoutq.rooms.events.flows import EventFlows
from timeoutq.verbs.sending import Flow, Sleep, Talk

T = TypeVar("T")

ROUND = 0.2
"""Seconds after which a reader that follows the logs looks at all again: no command waits for keys of many slots."""


class ShardedEventFlows(EventFlows):
    """The flows about the event logs of a sharded queue."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.root)
        self._shards = shards

    def wait(self, known: Sequence[str], seconds: float) -> Flow[None]:
        yield Sleep(min(ROUND, seconds))

    def _talks(self) -> Sequence[tuple[int | None, Talk]]:
        return list(enumerate(self._shards.talks))

    def _all(self, flows: Sequence[Flow[T]]) -> Flow[list[T]]:
        results = yield from together(flows)
        return gathering.whole(self._shards, dict(enumerate(results)))
