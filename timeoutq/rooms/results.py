"""How tasks have ended, what their runs have given, and waiting for it. `queue.results` is the face of this room.

The scripts push the id of each task that ends into a list of each client that waits for the task. So any number of
waits need one blocked connection: one wait at a time blocks on the server and wakes the others; when it ends, another
takes over. After an error of the network, and after a time without errors, all tasks are looked at again, because an
answer may have been lost.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, cast

from timeoutq.rooms.room import AsyncRoom, AsyncRuns, Room, Runs
from timeoutq.server.calls import BATCH, Call
from timeoutq.verbs import replies
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import awaiting, blocking
from timeoutq.verbs.flows import is_final
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import BELL_WAIT, Bell, Flow, Talk, a_moment, answer
from timeoutq.words import arguments
from timeoutq.words.errors import ServerFull, TimeoutqError
from timeoutq.words.model import Ended, Tasks, text


def call_look(operations: Operations, ids: Sequence[bytes], client: str = "") -> Call[list[Ended | None]]:
    """Build the call that tells how up to 500 tasks have ended, and notes for the others that this client waits."""
    return operations.call("await", [client, *ids], lambda reply: replies.ended(ids, reply))


def answers_key(operations: Operations, client: str) -> str:
    """Give the key of the list into which the scripts push the tasks that have ended, for this client."""
    return operations.key(f"answers:{client}")


def look(talk: Talk, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
    """Tell how tasks have ended, None for each that has not; with `client`, note that it waits for those."""
    found: list[Ended | None] = []
    while len(found) < len(ids):
        call = call_look(talk.operations, ids[len(found) : len(found) + BATCH], client)
        found += yield from answer(talk, call, UNCONFIRMED)
    return found


def hear(talk: Talk, client: str, seconds: float) -> Flow[list[bytes]]:
    """Wait until tasks end that this client waits for, at most `seconds`; give their ids, none if none has ended."""
    key = answers_key(talk.operations, client)
    heard: Any = yield Bell(key, seconds, talk.at, [("LPOP", key, BATCH)])
    if isinstance(heard, BaseException):
        raise talk.server.explain(heard)
    first, more = cast("tuple[Any, Any]", heard)
    for reply in (first, more):
        if isinstance(reply, BaseException):
            raise talk.server.explain(reply)
    return ([first[1]] if first else []) + (more or [])


def _ended(looking: Flow[list[Ended | None]]) -> Flow[dict[str, Ended]]:
    return {ended.task: ended for ended in (yield from looking) if ended is not None}


class ResultFlows:
    """The flows about the results of a plain queue; those of a sharded queue ask the shards of the tasks."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    def ended(self, *tasks: Tasks) -> Flow[dict[str, Ended]]:
        """Tell how these tasks have ended, any number of them; those that have not ended are left out.

        A task has ended when it is done or failed, or when no state holds it. The result of the last run is kept for a
        time, also after the task itself is forgotten by `keep_done`.
        """
        return _ended(self.look(arguments.ids(tasks)))

    def look(self, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
        """Tell how tasks have ended, None for each that has not; with `client`, note that it waits for those."""
        return look(self.talk, ids, client)

    def hear(self, ids: Sequence[bytes], client: str, seconds: float) -> Flow[list[bytes]]:
        """Wait until tasks end that this client waits for (at least these), at most `seconds`; give their ids."""
        return hear(self.talk, client, seconds)


LOOK_AGAIN = 15.0
"""Seconds after which all tasks that are waited for are looked at again, whatever was heard."""


def _seconds(timeout: float | None) -> float:
    return math.inf if timeout is None else arguments.seconds(timeout, "timeout")


class Wait:
    """One wait: the tasks that it still waits for, and how the others have ended."""

    def __init__(self, ids: Iterable[bytes], wake: Callable[[], object]) -> None:
        self.open = set(ids)
        self.found: dict[bytes, Ended] = {}
        self.error: Exception | None = None
        self.wake = wake
        """Called when the wait is over, or has to listen."""

    def outcome(self) -> dict[str, Ended]:
        """Give how tasks have ended, or raise the error that has ended the wait."""
        if self.error is not None:
            raise self.error
        return {text(id): ended for id, ended in self.found.items()}

    @property
    def is_over(self) -> bool:
        """Whether all of its tasks have ended, or an error that waiting cannot mend."""
        return not self.open or self.error is not None


class Board:
    """The waits of one client, by the tasks that they wait for; the caller sees to it that only one thread is here."""

    def __init__(self) -> None:
        self.client = secrets.token_hex(8)
        self.listener: Wait | None = None
        """The wait that listens for all."""
        self.fresh: list[tuple[Sequence[bytes], Wait]] = []
        """Waits that nobody has looked for yet, and their tasks."""
        self._waits: dict[bytes, list[Wait]] = {}
        self._look_at = time.monotonic() + LOOK_AGAIN

    def add(self, wait: Wait) -> None:
        """Take up a wait."""
        for id in wait.open:
            self._waits.setdefault(id, []).append(wait)

    def remove(self, wait: Wait) -> None:
        """Let go of a wait; if it was to listen, another one has to."""
        for id in wait.open:
            waits = self._waits[id]
            waits.remove(wait)
            if not waits:
                del self._waits[id]
        if self.listener is wait:
            self.listener = None
            self.choose()

    def choose(self) -> None:
        """Let one of the waits listen, if none does."""
        if self.listener is None:
            self.listener = next((waits[0] for waits in self._waits.values() if not waits[0].is_over), None)
            if self.listener is not None:
                self.listener.wake()

    def settle(self, ids: Sequence[bytes], found: Sequence[Ended | None]) -> None:
        """Give what was found to those that wait for it."""
        for id, ended in zip(ids, found, strict=True):
            if ended is None:
                continue
            for wait in self._waits.pop(id, ()):
                wait.open.discard(id)
                wait.found[id] = ended
                if not wait.open:
                    wait.wake()

    def known(self, ids: Iterable[bytes]) -> list[bytes]:
        """Give those of the ids that somebody waits for, each once."""
        return [id for id in dict.fromkeys(ids) if id in self._waits]

    def all(self) -> list[bytes]:
        """Give all ids that somebody waits for."""
        return list(self._waits)

    def look_soon(self) -> None:
        """Answers may have been lost: all tasks are to be looked at again."""
        self._look_at = 0.0

    def due(self) -> list[bytes]:
        """Give the tasks that are to be looked at again now: all, or none."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + LOOK_AGAIN
        return self.all()

    def patience(self, left: float) -> float:
        """Give for how long to listen, seconds, if the wait that listens has so much time left."""
        return max(0.001, min(left, BELL_WAIT, self._look_at - time.monotonic()))

    def failed(self, error: TimeoutqError, waits: Sequence[Wait] | None = None) -> None:
        """End waits (these, or all) with an error that waiting cannot mend; after any other, look again soon."""
        self.look_soon()
        if is_final(error) or isinstance(error, ServerFull):
            for one in [one for known in self._waits.values() for one in known] if waits is None else waits:
                one.error = error
                one.wake()


class Waits:
    """The waits of a `Queue`, which may come from any thread: the thread of one of them listens for all."""

    def __init__(self, queue: Runs, flows: Callable[[], ResultFlows]) -> None:
        self._queue, self._flows = queue, flows
        self._begin()

    def _begin(self) -> None:
        self._pid, self._lock, self._board = os.getpid(), threading.Lock(), Board()

    def wait(self, tasks: tuple[Tasks, ...], timeout: float | None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, at most `timeout` seconds; tell how those that have ended did."""
        ids, seconds = arguments.ids(tasks), _seconds(timeout)
        if os.getpid() != self._pid:
            self._begin()  # threads and locks are those of the process that has forked this one
        until, woken = time.monotonic() + seconds, threading.Event()
        wait, board = Wait(ids, woken.set), self._board
        with self._lock:
            board.add(wait)
        try:
            self._look(ids, wait)
            while not wait.is_over and (left := until - time.monotonic()) > 0:
                with self._lock:
                    woken.clear()
                    board.choose()
                    listens = board.listener is wait
                if listens:
                    self._listen(left)
                elif not wait.is_over:
                    woken.wait(min(left, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                board.remove(wait)
        return wait.outcome()

    def _look(self, ids: Sequence[bytes], wait: Wait | None = None) -> None:
        if not ids:
            return
        try:
            found = self._queue.run(self._flows().look(ids, self._board.client))
        except TimeoutqError as error:
            with self._lock:
                self._board.failed(error, None if wait is None else [wait])
            return
        with self._lock:
            self._board.settle(ids, found)

    def _listen(self, left: float) -> None:
        board = self._board
        with self._lock:
            due, ids, patience = board.due(), board.all(), board.patience(left)
        if due:
            self._look(due)
            return
        try:
            heard = self._queue.run(self._flows().hear(ids, board.client, patience))
        except TimeoutqError as error:
            with self._lock:
                board.failed(error)
            time.sleep(min(left, a_moment().seconds))
            return
        with self._lock:
            heard = board.known(heard)
        self._look(heard)


class AsyncWaits:
    """The waits of an `AsyncQueue`; in each event loop, one asyncio task listens for all waits."""

    def __init__(self, queue: AsyncRuns, flows: Callable[[], ResultFlows]) -> None:
        self._queue, self._flows = queue, flows
        self._boards: dict[asyncio.AbstractEventLoop, tuple[Board, asyncio.Task[None]]] = {}
        self._looks: set[asyncio.Task[None]] = set()

    async def wait(self, tasks: tuple[Tasks, ...], timeout: float | None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, at most `timeout` seconds; tell how those that have ended did."""
        ids, seconds = arguments.ids(tasks), _seconds(timeout)
        woken = asyncio.Event()
        wait, board = Wait(ids, woken.set), self._here()
        board.add(wait)
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                self._look_first(board, ids, wait)
                if not wait.is_over:
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            board.remove(wait)
        return wait.outcome()

    def _here(self) -> Board:
        loop = asyncio.get_running_loop()
        self._boards = {known: one for known, one in self._boards.items() if not known.is_closed()}
        board, task = self._boards.get(loop, (None, None))
        if board is None or task is None or task.done():
            board = board or Board()
            self._boards[loop] = board, asyncio.ensure_future(self._listen(board))
        return board

    def _look_first(self, board: Board, ids: Sequence[bytes], wait: Wait) -> None:
        # waits that begin in one round of the event loop look together: ten thousand need no ten thousand connections
        board.fresh.append((ids, wait))
        if len(board.fresh) == 1:
            task = asyncio.ensure_future(self._look_fresh(board))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)

    async def _look_fresh(self, board: Board) -> None:
        fresh, board.fresh = board.fresh, []
        ids, waits = list(dict.fromkeys(id for some, _ in fresh for id in some)), [wait for _, wait in fresh]
        try:
            await self._look(board, ids, waits)
        except Exception as error:  # what nobody expects must reach those that wait, too
            for wait in waits:
                wait.error = error
                wait.wake()

    async def _look(self, board: Board, ids: Sequence[bytes], waits: Sequence[Wait] | None = None) -> None:
        if not ids:
            return
        try:
            found = await self._queue.run(self._flows().look(ids, board.client))
        except TimeoutqError as error:
            board.failed(error, waits)
        else:
            board.settle(ids, found)

    async def _listen(self, board: Board) -> None:
        # it listens a little longer than somebody waits: the next wait often comes at once
        while True:
            try:
                await self._look(board, board.due())
                ids = board.all()
                heard = await self._queue.run(self._flows().hear(ids, board.client, board.patience(math.inf)))
                await self._look(board, board.known(heard))
                if not ids and not board.all():
                    return
            except TimeoutqError as error:
                if not board.all():
                    return
                board.failed(error)
                await asyncio.sleep(a_moment().seconds)

    async def close(self) -> None:
        """Stop listening in this event loop."""
        await asyncio.gather(*(task for task in self._looks if task.get_loop() is asyncio.get_running_loop()))
        board, task = self._boards.pop(asyncio.get_running_loop(), (None, None))
        if board is None or task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError, TimeoutqError):
            await task


class Results(Room[ResultFlows]):
    """How tasks have ended, and what their runs have given."""

    look = blocking(ResultFlows.ended)

    def __init__(self, queue: Runs, flows: ResultFlows, waits: Waits) -> None:
        super().__init__(queue, flows)
        self._waits = waits

    def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        return self._waits.wait(tasks, timeout)


class AsyncResults(AsyncRoom[ResultFlows]):
    """How tasks have ended, and what their runs have given, for asyncio."""

    look = awaiting(ResultFlows.ended)

    def __init__(self, queue: AsyncRuns, flows: ResultFlows, waits: AsyncWaits) -> None:
        super().__init__(queue, flows)
        self._waits = waits

    async def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        return await self._waits.wait(tasks, timeout)


for _face in (Results, AsyncResults):
    _face.look.__name__ = "look"  # `help()` tells of two names otherwise
