"""The pattern of a room: what stands behind an attribute of the faces, such as `queue.hosts`.

A room is a folder with its operations and its flows. Its two faces, a `Room` for code that blocks and an `AsyncRoom`
for asyncio, are made of the flows (`verbs/faces.py`). `Queue` and `AsyncQueue` have one property for each room. The
methods of a room are verbs, and the same verbs wherever they fit: `list` gives a page, `each` goes through all,
`inspect` tells all about one.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from timeoutq.verbs.sending import Flow

T = TypeVar("T")
F = TypeVar("F")
"""The flows of a room."""


class Runs(Protocol):
    """What a room needs of a queue for code that blocks."""

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow."""
        ...


class AsyncRuns(Protocol):
    """What a room needs of a queue for asyncio."""

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow."""
        ...


class Room(Generic[F]):
    """A room of a `Queue`."""

    def __init__(self, queue: Runs | AsyncRuns, flows: F) -> None:
        self._queue, self.flows, self.run = queue, flows, queue.run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue!r}>"


class AsyncRoom(Room[F]):
    """A room of an `AsyncQueue`."""
