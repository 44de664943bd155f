"""`queue.results`, the face of this room, in two classes: both have the same names, signatures and docstrings.

`Queue.results` gives `Results`, and `AsyncQueue.results` gives `AsyncResults`.
"""

from __future__ import annotations

import math

from timeoutq import arguments
from timeoutq.model import Ended, Tasks, text
from timeoutq.results.flows import ResultFlows
from timeoutq.results.waiting import AsyncWaits, Waits
from timeoutq.rooms import AsyncRoom, AsyncRuns, Room, Runs


def _seconds(timeout: float | None) -> float:
    return math.inf if timeout is None else arguments.seconds(timeout, "timeout")


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
        ids = arguments.ids(tasks)
        found = self._queue.run(self._flows.look(ids))
        return {ended.task: ended for ended in found if ended is not None}

    def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        seconds = _seconds(timeout)
        return _by_name(self._waits.wait(arguments.ids(tasks), seconds))


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
        ids = arguments.ids(tasks)
        found = await self._queue.run(self._flows.look(ids))
        return {ended.task: ended for ended in found if ended is not None}

    async def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        seconds = _seconds(timeout)
        return _by_name(await self._waits.wait(arguments.ids(tasks), seconds))


def _by_name(found: dict[bytes, Ended]) -> dict[str, Ended]:
    return {text(id): ended for id, ended in found.items()}
