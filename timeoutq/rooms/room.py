"""The pattern of a room: what stands behind an attribute of the faces, such as `queue.hosts`.

The two faces of a room, a `Room` for code that blocks and an `AsyncRoom` for asyncio, are made of its flows
(`verbs/faces.py`). The methods of a room are verbs, and the same verbs wherever they fit: `list` gives a page, `each`
goes through all, `inspect` tells all about one.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

F = TypeVar("F")  # the flows of a room


class Room(Generic[F]):
    """A room of a `Queue`."""

    def __init__(self, queue: Any, flows: F) -> None:
        """Prepare; `queue.run` carries out a flow: here it blocks, in an `AsyncRoom` it is awaited."""
        self._queue, self.flows, self.run = queue, flows, queue.run

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._queue!r}>"


class AsyncRoom(Room[F]):
    """A room of an `AsyncQueue`."""
