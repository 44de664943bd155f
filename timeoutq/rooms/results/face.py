"""`queue.results`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.results` gives `Results`, and `AsyncQueue.results` gives `AsyncResults`.
"""

from __future__ import annotations

from timeoutq.rooms.results.flows import ResultFlows
from timeoutq.rooms.results.waiting import AsyncWaits, Waits
from timeoutq.rooms.room import AsyncRoom, AsyncRuns, Room, Runs
from timeoutq.words.model import Ended, Tasks


class Results(Room[ResultFlows]):
    """How tasks have ended, and what their runs have given."""

    def __init__(self, queue: Runs, flows: ResultFlows, waits: Waits) -> None:
        super().__init__(queue, flows)
        self._waits = waits

    def look(self, *tasks: Tasks) -> dict[str, Ended]:
        """Tell how these tasks have ended, any number of them; those that have not ended are left out.

        A task has ended when it is done or failed, or when no state holds it. The result of the last run is kept for a
        time, also after the task itself is forgotten by `keep_done`.
        """
        return self._queue.run(self._flows.ended(tasks))

    def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        return self._waits.wait(tasks, timeout)


class AsyncResults(AsyncRoom[ResultFlows]):
    """How tasks have ended, and what their runs have given, for asyncio."""

    def __init__(self, queue: AsyncRuns, flows: ResultFlows, waits: AsyncWaits) -> None:
        super().__init__(queue, flows)
        self._waits = waits

    async def look(self, *tasks: Tasks) -> dict[str, Ended]:
        """Tell how these tasks have ended, any number of them; those that have not ended are left out.

        A task has ended when it is done or failed, or when no state holds it. The result of the last run is kept for a
        time, also after the task itself is forgotten by `keep_done`.
        """
        return await self._queue.run(self._flows.ended(tasks))

    async def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        return await self._waits.wait(tasks, timeout)
