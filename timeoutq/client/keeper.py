"""`queue.keeper()`: keeps leases alive for programs that claim by hand, as the heartbeat of a worker does for a worker.

Leases go in with `add` and out with `remove`. A keeper extends all leases that it holds, each third of the timeout, and
shows the program among the workers of the queue. Both kinds do this in the thread of a `Heartbeat`, with a client of
its own; `AsyncKeeper` calls `on_lost` in the event loop of its queue.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from timeoutq.client.heartbeat import Beat, Heartbeat, about
from timeoutq.server.calls import BATCH
from timeoutq.verbs.confirming import ENDS
from timeoutq.verbs.sending import Flow
from timeoutq.words import arguments, telling
from timeoutq.words.errors import InvalidInput, LeaseLost, NotReplicated
from timeoutq.words.model import Answer, Lease

T = TypeVar("T")

log = logging.getLogger(__name__)

OnLost = Callable[[Lease, Answer], object]
"""Called with a lease that is kept alive no longer, and why: `LOST`, `MAX_RUNTIME`, or `CANCELLED` for a task that
somebody has cancelled, whose lease runs until its deadline."""


class Held:
    """The leases that a keeper holds, the thread that extends them, and what it tells the queue about the program.

    A `Keeper` may be used from any thread, an `AsyncKeeper` only in the event loop of its queue.
    """

    _let_through: tuple[type[BaseException], ...] = ()
    """Errors of `on_lost` that the keeper does not catch."""

    def __init__(self, queue: Any, on_lost: OnLost | None, concurrency: int, ending: Mapping[object, set[int]]) -> None:
        """Prepare; the thread starts with the first lease, or when `with` is entered.

        `ending` has the keys of the leases that each call of the queue is about to end.
        """
        if on_lost is not None and not callable(on_lost):
            raise InvalidInput(f"on_lost must be a function of (lease, answer), not {arguments.shown(on_lost)}")
        if inspect.iscoroutinefunction(on_lost) or inspect.iscoroutinefunction(type(on_lost).__call__):
            raise InvalidInput(
                f"on_lost must be a plain function, because nobody awaits it, not {arguments.shown(on_lost)}: "
                f"for work that awaits, start an asyncio task in it"
            )
        self.concurrency = arguments.count(concurrency, "concurrency", high=100_000)
        """How many tasks the program works on at once, as `workers` shows it."""
        self.acked = 0
        """How many tasks the program has acked, for `workers` to show. The program counts them, the keeper does not."""
        self.failed = 0
        """The same for tasks that the program has failed."""
        self.queue = queue
        self._on_lost, self._ending = on_lost, ending
        self._held: dict[int, Lease] = {}
        self._started = time.time()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._heart: Heartbeat | None = None
        self._ending_heart: Heartbeat | None = None  # one that ends by itself, and is saying farewell
        self._beat: Beat | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.queue!r} with {len(self.held)} leases>"

    @property
    def held(self) -> list[Lease]:
        """The leases that are kept alive."""
        self._come()
        return list(self._held.values())

    @property
    def peers(self) -> int:
        """How many workers of this queue are alive, this program among them, as the keeper has last heard."""
        self._come()
        return 1 if self._beat is None else self._beat.peers

    def add(self, *leases: Lease) -> None:
        """Keep leases alive from now on. Raises `InvalidInput` for what is no lease, and after `close`."""
        beat, taken = self._beating(), arguments.leases(leases)
        self._held.update((lease.key, lease) for lease in taken)
        soon = self.queue.talk.clock.now_ms / 1000 + self.queue.timeout / 2
        if any(lease.deadline < soon for lease in taken):
            beat.hurry()

    def remove(self, *leases: Lease) -> None:
        """Let go of leases: they have ended, or the program takes care of them. Unknown leases are left out."""
        self._come()
        for lease in arguments.leases(leases):
            self._held.pop(lease.key, None)

    def _come(self) -> None:
        """Begin again in a forked process: threads, locks and leases are those of the process that has forked it."""
        if self._pid != os.getpid():
            self.queue.talk.nonce()  # the client takes a name of its own
            self._held, self._lock, self._heart, self._ending_heart, self._beat = {}, threading.Lock(), None, None, None
            self._pid = os.getpid()

    def _beating(self) -> Beat:
        """Give the beat, whose thread runs."""
        self._come()
        with self._lock:
            if self._closed:
                raise InvalidInput("this keeper is closed: make another with queue.keeper()")
            if self._beat is None or self._heart is None or not self._heart.lives:
                client = self.queue.another(self.queue.asynchronous)
                if not client.server_at.is_plain:
                    client.server_at.client(asynchronous=True)  # refuses connections that asyncio cannot use
                self._beat = Beat(client, self._held, self._lost, self._about)
                self._heart = Heartbeat([self._beat])
                self._heart.start()
            return self._beat

    def _stop(self) -> None:
        self._come()
        with self._lock:
            heart, self._heart, self._closed = self._heart or self._ending_heart, None, True
        if heart is not None:
            heart.stop()

    def _about(self) -> dict[str, object]:
        return about(
            self.queue, concurrency=self.concurrency, held=len(self._held), acked=self.acked, failed=self.failed,
            started=self._started,
        )  # fmt: skip

    def _lost(self, refused: list[tuple[Lease, Answer]]) -> None:
        for lease, answer in refused:
            if any(lease.key in keys for keys in list(self._ending.values())):
                continue  # a call that ends the lease is under way, and tells the program what becomes of it
            if self._held.pop(lease.key, None) is None or self._on_lost is None:
                continue
            try:
                self._on_lost(lease, answer)
            except self._let_through:
                raise
            except BaseException as error:  # also `sys.exit()`: the other leases are kept alive
                telling.say(
                    log, logging.ERROR, "queue %s: on_lost of a keeper has raised an error for task %a: %s",
                    self.queue.name, lease.task, arguments.error_words(error),
                    fields={"queue": self.queue.name, "task": lease.task},
                )  # fmt: skip


class Keeper(Held):
    """Keeps leases alive in a thread, until `close`, or until the queue is closed. Use it with `with`."""

    def close(self) -> None:
        """Stop, and say farewell to the queue. Leases that are still held are not given back: release them, or ack."""
        self._stop()

    def __enter__(self) -> Self:
        self._beating()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncKeeper(Held):
    """Keeps leases alive in a thread, until `close`, or until the queue is closed. Use it with `async with`.

    It calls `on_lost` in the event loop. When the event loop ends, the keeper lets go of all leases.
    """

    _let_through = (KeyboardInterrupt, SystemExit)  # they end the event loop, as in any asyncio task
    _loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Stop, and say farewell to the queue. Leases that are still held are not given back: release them, or ack."""
        await asyncio.to_thread(self._stop)

    async def __aenter__(self) -> Self:
        self._beating()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _beating(self) -> Beat:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidInput(
                "no event loop runs here, in which the keeper of an AsyncQueue could call on_lost: call add() in a "
                "coroutine, or use the keeper of a Queue"
            ) from None
        return super()._beating()

    def _about(self) -> dict[str, object]:
        with self._lock:
            if self._loop is not None and self._loop.is_closed() and self._heart is not None:
                self._held.clear()  # nobody works on them any more
                self._heart.end()
                self._ending_heart, self._heart = self._heart, None
        return super()._about()

    def _lost(self, refused: list[tuple[Lease, Answer]]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(super()._lost, refused)


K = TypeVar("K", bound=Held)


class Keepers:
    """The keepers of a queue object. They live as long as somebody uses them."""

    def __init__(self) -> None:
        self._known = weakref.WeakValueDictionary[int, Any]()
        self.ending: dict[object, set[int]] = {}
        """The keys of the leases that each call under way is about to end: these leases are not lost meanwhile."""

    def add(self, keeper: K) -> K:
        """Take a keeper in, and give it back."""
        self._known[id(keeper)] = keeper
        return keeper

    def all(self) -> list[Any]:
        """Give the keepers; safe while another thread adds one."""
        found = (known() for known in self._known.valuerefs())
        return [keeper for keeper in found if keeper is not None]

    def ended(self, leases: Sequence[Lease], flow: Flow[T]) -> Flow[T]:
        """Give the flow of a call that ends leases; the keepers let go of them once the call is answered."""
        return self._ended(leases, flow) if self._known else flow

    def _ended(self, leases: Sequence[Lease], flow: Flow[T]) -> Flow[T]:
        call, answered = object(), False
        self.ending[call] = {lease.key for lease in leases}
        try:
            found = yield from flow
            answered = True
            return found
        except LeaseLost:  # this is an answer, too
            answered = True
            raise
        except NotReplicated as error:  # and so is this, if there was one call, and not a put before it
            answered = error.verb in ENDS and len(leases) <= BATCH
            raise
        finally:
            for keeper in self.all() if answered else ():
                keeper.remove(*leases)
            del self.ending[call]
