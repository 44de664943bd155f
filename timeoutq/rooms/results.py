"""How tasks have ended, what their runs have given, and waiting for it. `queue.results` is the face of this room."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

from timeoutq.rooms.room import AsyncRoom, Room, RoomFlows
from timeoutq.server.calls import BATCH, Call
from timeoutq.verbs import replies
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import awaiting, blocking
from timeoutq.verbs.flows import is_final
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import BELL_WAIT, Bell, Flow, Talk, a_moment, answer, ask, once
from timeoutq.words import arguments
from timeoutq.words.errors import ServerFull, TimeoutqError
from timeoutq.words.model import CallRecord, Ended, Tasks, raw, text


def call_look(operations: Operations, ids: Sequence[bytes], client: str = "") -> Call[list[Ended | None]]:
    """Build the call that tells how up to 500 tasks have ended, and notes for the others that this client waits."""
    return operations.call("await", [client, *ids], lambda reply: replies.ended(ids, reply))


def answers_key(operations: Operations, client: str) -> str:
    """Give the key of the list into which the scripts push the tasks that have ended, for this client."""
    return operations.key(f"answers:{client}")


class ResultFlows(RoomFlows):
    """The flows about the results of a plain queue; those of a sharded queue ask the shards of the tasks."""

    def look(self, *tasks: Tasks) -> Flow[dict[str, Ended]]:
        """Tell how these tasks have ended, any number of them; those that have not ended are left out.

        A task has ended when it is done or failed, or when no state holds it. The result of the last run is kept for a
        time, also after the task itself is forgotten by `keep_done`.
        """
        found = yield from self.look_at(arguments.ids(tasks))
        return {ended.task: ended for ended in found if ended is not None}

    def look_at(self, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
        """Tell how tasks have ended, None for each that has not; with `client`, note that it waits for those."""
        talk, found = self.talk, list[Ended | None]()
        while len(found) < len(ids):
            call = call_look(talk.operations, ids[len(found) : len(found) + BATCH], client)
            found += yield from answer(talk, call, UNCONFIRMED)
        return found

    def ended(self, n: int = 100) -> Flow[list[CallRecord]]:
        """Tell about the calls that ended last, the newest first: `n` of the last 500 whose results were kept.

        A call is left out once its result is kept no longer, and while another run of it is tried again.
        """
        most = arguments.count(n, high=ENDED)
        parts = yield from self._each(partial(_ended, most))
        return sorted(chain.from_iterable(parts), key=lambda one: one.ended or 0.0, reverse=True)[:most]

    def hear(self, ids: Sequence[bytes], client: str, seconds: float) -> Flow[list[bytes]]:
        """Wait until tasks end that this client waits for (at least these), at most `seconds`; give their ids."""
        talk, key = self.talk, answers_key(self.talk.operations, client)
        first, more = yield from once(talk, Bell(key, seconds, talk.at, [("LPOP", key, BATCH)]))
        for reply in (first, more):
            if isinstance(reply, BaseException):
                raise talk.server.explain(reply)
        return ([first[1]] if first else []) + (more or [])


ENDED, AT_ONCE = 500, 50  # of so many calls that have ended is told, and so many records are read at once


def _ended(most: int, talk: Talk) -> Flow[list[CallRecord]]:
    key, found = talk.operations.key, list[CallRecord]()
    (listed,) = yield from ask(talk, [("LRANGE", key("ended"), 0, ENDED - 1)])
    ids = list(dict.fromkeys(cast("list[bytes]", listed)))
    for at in range(0, len(ids), AT_ONCE):
        part = ids[at : at + AT_ONCE]
        names = [key("record:").encode() + id for id in part]
        (kept,) = yield from ask(talk, [("MGET", *names)])
        records = [one for one in map(replies.record, part, kept) if one is not None and one.ended is not None]
        if lacking := [place for place, one in enumerate(records) if one.function is None]:
            (bodies,) = yield from ask(talk, [("HMGET", key("payload"), *(raw(records[at].task) for at in lacking))])
            for place, body in zip(lacking, bodies, strict=True):
                function, put = replies.called(arguments.unpack(body))
                records[place] = replace(records[place], function=function, put=put)
        found += records
        if len(found) >= most:
            break
    return found


LOOK_AGAIN = 15.0  # seconds after which all tasks that are waited for are looked at again, whatever was heard


def _seconds(timeout: float | None) -> float:
    return math.inf if timeout is None else arguments.seconds(timeout, "timeout")


@dataclass(eq=False, slots=True)
class Wait:
    """One wait: the tasks that it still waits for, and how the others have ended."""

    open: set[bytes]
    wake: Callable[[], object]  # called when the wait is over, or has to listen
    found: dict[bytes, Ended] = field(default_factory=dict[bytes, Ended])
    error: Exception | None = None

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
    """The waits of one client, by the tasks that they wait for; `lock` is held by whoever changes them.

    The scripts push the id of each task that ends into a list of each client that waits for it, so all waits need one
    blocked connection. After an error, and after a time without one, all tasks are looked at again: an answer may have
    been lost.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self.client = secrets.token_hex(8)
        self.lock = lock
        self.listener: Wait | None = None  # of a client that blocks, the wait that listens for all
        self.fresh: list[tuple[Sequence[bytes], Wait]] = []  # of one for asyncio, waits that nobody has looked for yet
        self.waits: dict[bytes, list[Wait]] = {}
        self._look_at = time.monotonic() + LOOK_AGAIN

    def add(self, wait: Wait) -> None:
        for id in wait.open:
            self.waits.setdefault(id, []).append(wait)

    def remove(self, wait: Wait) -> None:
        """Let go of a wait; if it was to listen, another one has to."""
        for id in wait.open:
            waits = self.waits[id]
            waits.remove(wait)
            if not waits:
                del self.waits[id]
        if self.listener is wait:
            self.listener = None
            self.choose()

    def choose(self) -> None:
        """Let one of the waits listen, if none does."""
        if self.listener is None:
            self.listener = next((waits[0] for waits in self.waits.values() if not waits[0].is_over), None)
            if self.listener is not None:
                self.listener.wake()

    def look(self, flows: ResultFlows, ids: Sequence[bytes]) -> Flow[None]:
        """Look at tasks, and give what was found to those that wait for it."""
        if not ids:
            return
        found = yield from flows.look_at(ids, self.client)
        with self.lock:
            for id, ended in zip(ids, found, strict=True):
                if ended is None:
                    continue
                for wait in self.waits.pop(id, ()):
                    wait.open.discard(id)
                    wait.found[id] = ended
                    if not wait.open:
                        wait.wake()

    def listen(self, flows: ResultFlows, left: float) -> Flow[None]:
        """Look at all tasks again if it is time to; else hear of some that end, for `left` seconds at most."""
        with self.lock:
            now, ids, due = time.monotonic(), list(self.waits), False
            if now >= self._look_at:
                self._look_at, due = now + LOOK_AGAIN, bool(ids)
            patience = max(0.001, min(left, BELL_WAIT, self._look_at - now))
        if not due:
            heard = yield from flows.hear(ids, self.client, patience)
            with self.lock:
                ids = [id for id in dict.fromkeys(heard) if id in self.waits]
        yield from self.look(flows, ids)

    def failed(self, error: TimeoutqError, waits: Sequence[Wait] | None = None) -> None:
        """End waits (these, or all) with an error that waiting cannot mend; after any other, look again soon."""
        with self.lock:
            self._look_at = 0.0  # answers may have been lost
            if is_final(error) or isinstance(error, ServerFull):
                for one in [one for known in self.waits.values() for one in known] if waits is None else waits:
                    one.error = error
                    one.wake()


class Waits:
    """The waits of a `Queue`, which may come from any thread: the thread of one of them listens for all."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._begin()

    def _begin(self) -> None:
        self._pid, self._board = os.getpid(), Board(threading.Lock())

    def wait(self, tasks: tuple[Tasks, ...], timeout: float | None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, at most `timeout` seconds; tell how those that have ended did."""
        ids, seconds = arguments.ids(tasks), _seconds(timeout)
        if os.getpid() != self._pid:
            self._begin()  # threads and locks are those of the process that has forked this one
        until, woken = time.monotonic() + seconds, threading.Event()
        wait, board = Wait(set(ids), woken.set), self._board
        with board.lock:
            board.add(wait)
        try:
            self._do(board.look(self._queue.flows.results, ids), [wait])
            while not wait.is_over and (left := until - time.monotonic()) > 0:
                with board.lock:
                    woken.clear()
                    board.choose()
                    listens = board.listener is wait
                if not listens:
                    if not wait.is_over:
                        woken.wait(min(left, threading.TIMEOUT_MAX))
                elif not self._do(board.listen(self._queue.flows.results, left)):
                    time.sleep(min(left, a_moment().seconds))
        finally:
            with board.lock:
                board.remove(wait)
        return wait.outcome()

    def _do(self, flow: Flow[None], waits: Sequence[Wait] | None = None) -> bool:
        try:
            self._queue.run(flow)
        except TimeoutqError as error:
            self._board.failed(error, waits)
            return False
        return True


class AsyncWaits:
    """The waits of an `AsyncQueue`; in each event loop, one asyncio task listens for all waits."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._boards: dict[asyncio.AbstractEventLoop, tuple[Board, asyncio.Task[None]]] = {}
        self._looks: set[asyncio.Task[None]] = set()

    async def wait(self, tasks: tuple[Tasks, ...], timeout: float | None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, at most `timeout` seconds; tell how those that have ended did."""
        ids, seconds = arguments.ids(tasks), _seconds(timeout)
        woken = asyncio.Event()
        wait, board = Wait(set(ids), woken.set), self._here()
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
            board = board or Board(nullcontext())
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
            await self._queue.run(board.look(self._queue.flows.results, ids))
        except TimeoutqError as error:
            board.failed(error, waits)
        except Exception as error:  # what nobody expects must reach those that wait, too
            for wait in waits:
                wait.error = error
                wait.wake()

    async def _listen(self, board: Board) -> None:
        # it listens a little longer than somebody waits: the next wait often comes at once
        while True:
            somebody = bool(board.waits)
            try:
                await self._queue.run(board.listen(self._queue.flows.results, math.inf))
                if not somebody and not board.waits:
                    return
            except TimeoutqError as error:
                if not board.waits:
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

    look = blocking(ResultFlows.look)
    ended = blocking(ResultFlows.ended)

    def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        found: dict[str, Ended] = self._queue._waits.wait(tasks, timeout)
        return found


class AsyncResults(AsyncRoom[ResultFlows]):
    """How tasks have ended, and what their runs have given, for asyncio."""

    look = awaiting(ResultFlows.look)
    ended = awaiting(ResultFlows.ended)

    async def wait(self, *tasks: Tasks, timeout: float | None = None) -> dict[str, Ended]:
        """Wait until all of these tasks have ended, `timeout` seconds at most; tell how those that have ended did.

        A task that is retried or released has not ended; one that is forgotten, or was never put, has. Any number of
        waits in a process use one blocked connection. While the server is away, the wait goes on.
        """
        found: dict[str, Ended] = await self._queue._waits.wait(tasks, timeout)
        return found
