"""The pattern of a room: what stands behind an attribute of the faces, such as `queue.hosts`.

The two faces of a room, a `Room` for code that blocks and an `AsyncRoom` for asyncio, are made of its flows
(`verbs/faces.py`). The methods of a room are verbs, and the same verbs wherever they fit: `list` gives a page, `each`
goes through all, `inspect` tells all about one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from timeoutq.verbs.sending import Flow, Talk

F = TypeVar("F")  # the flows of a room
T = TypeVar("T")


class RoomFlows:
    """The flows of a room of a plain queue; a sharded queue overrides those that speak with the talk."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    @property
    def talk(self) -> Talk:
        """The one talk of a plain queue, and that with the root of a sharded one."""
        return self._talk

    def _talks(self) -> Sequence[Talk]:
        return [self.talk]

    def _all(self, flows: Sequence[Flow[T]]) -> Flow[Sequence[T]]:
        # carries out a flow of each shard
        (flow,) = flows
        return [(yield from flow)]

    def _each(self, flow: Callable[[Talk], Flow[T]]) -> Flow[Sequence[T]]:
        return self._all([flow(talk) for talk in self._talks()])


class Room(Generic[F]):
    """A room of a `Queue`."""

    def __init__(self, queue: Any, flows: F) -> None:
        """Prepare; `queue.run` carries out a flow: here it blocks, in an `AsyncRoom` it is awaited."""
        self._queue, self.flows, self.run = queue, flows, queue.run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue!r}>"


class AsyncRoom(Room[F]):
    """A room of an `AsyncQueue`."""
