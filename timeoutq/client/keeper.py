"""`queue.keeper()`: keeps leases alive for programs that claim by hand, as the heartbeat of a worker does for a worker.

Leases go in with `add` and out with `remove`. A keeper extends all leases that it holds, each third of the timeout, and
shows the program among the workers of the queue. `Keeper` does this in a thread, `AsyncKeeper` in an asyncio task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from timeoutq.client.heartbeat import FAREWELL, AsyncRounds, Client, LastingHeartbeat, Pulse, extend_held
from timeoutq.server.calls import BATCH
from timeoutq.verbs import sending
from timeoutq.verbs.confirming import ENDS
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words import arguments, telling
from timeoutq.words.errors import InvalidInput, LeaseLost, NotReplicated
from timeoutq.words.model import Answer, Lease, Outcome

log = logging.getLogger(__name__)

T = TypeVar("T")

OnLost = Callable[[Lease, Answer], object]
"""Called with a lease that is kept alive no longer, and why: `LOST`, `MAX_RUNTIME`, or `CANCELLED` for a task that
somebody has cancelled, whose lease runs until its deadline."""


class AsyncClient(Protocol):
    """What a keeper needs of a queue for asyncio."""

    name: str
    worker: str
    talk: Talk
    operations: Operations
    beats_apart: bool

    @property
    def timeout(self) -> float:
        """The length of a lease, seconds."""
        ...

    def extension(self, leases: Sequence[Lease]) -> Flow[Outcome]:
        """Give the flow that extends leases."""
        ...

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow."""
        ...


class Held:
    """The leases that a keeper holds, and what the keeper tells the queue about the program.

    A `Keeper` may be used from any thread, an `AsyncKeeper` only in the event loop of its queue.
    """

    _let_through: tuple[type[BaseException], ...] = ()
    """Errors of `on_lost` that the keeper does not catch."""

    def __init__(self, queue: Any, on_lost: OnLost | None, concurrency: int) -> None:
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
        self._on_lost = on_lost
        self._held: dict[int, Lease] = {}
        self._ending: dict[object, set[int]] = {}  # the leases that each call of the queue is about to end
        self._started = time.time()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        self._come()
        return f"<{type(self).__name__} of {self.queue!r} with {len(self._held)} leases>"

    @property
    def held(self) -> list[Lease]:
        """The leases that are kept alive."""
        self._come()
        return list(self._held.values())

    def _come(self) -> None:
        """Begin anew in a forked process: threads, locks and leases are those of the process that has forked it."""
        if self._pid != os.getpid():
            self._held, self._ending = {}, {}
            self.queue.talk.nonce()  # the client takes a name of its own
            self._begin_anew()
            self._pid = os.getpid()

    def _begin_anew(self) -> None:
        """Forget what belongs to the process that has forked this one."""

    def _about(self) -> dict[str, object]:
        host, pid, _ = self.queue.worker.split(":")
        return {
            "host": host,
            "pid": int(pid),
            "concurrency": self.concurrency,
            "held": len(self._held),
            "acked": self.acked,
            "failed": self.failed,
            "started": self._started,
        }

    def _took(self, leases: tuple[Lease, ...]) -> bool:
        """Hold leases; say whether one of them has to be extended at once."""
        taken = arguments.leases(leases)
        self._held.update((lease.key, lease) for lease in taken)
        soon = self.queue.talk.clock.now_ms / 1000 + self.queue.timeout / 2
        return any(lease.deadline < soon for lease in taken)

    def remove(self, *leases: Lease) -> None:
        """Let go of leases: they have ended, or the program takes care of them. Unknown leases are left out."""
        self._come()
        for lease in arguments.leases(leases):
            self._held.pop(lease.key, None)

    def ends(self, call: object, keys: set[int]) -> None:
        """Note the keys of leases that a call of the queue is about to end; none when the call is over."""
        if keys:
            self._ending[call] = keys
        else:
            self._ending.pop(call, None)

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


K = TypeVar("K", bound=Held)


class Keeper(Held):
    """Keeps leases alive in a thread, until `close`, or until the queue is closed. Use it with `with`."""

    def __init__(self, queue: Client, on_lost: OnLost | None = None, concurrency: int = 1) -> None:
        """Prepare; the thread starts with the first lease, or when `with` is entered."""
        super().__init__(queue, on_lost, concurrency)
        self._lock = threading.Lock()
        self._heart: LastingHeartbeat | None = None
        self._closed = False

    def add(self, *leases: Lease) -> None:
        """Keep leases alive from now on. Raises `InvalidInput` for what is no lease, and after `close`."""
        heart = self._beating()
        if self._took(leases):
            heart.pulse.hurry()

    def close(self) -> None:
        """Stop, and say farewell to the queue. Leases that are still held are not given back: release them, or ack."""
        self._come()
        with self._lock:
            heart, self._heart, self._closed = self._heart, None, True
        if heart is not None:
            heart.stop()

    def __enter__(self) -> Self:
        self._beating()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def peers(self) -> int:
        """How many workers of this queue are alive, this program among them, as the keeper has last heard."""
        self._come()
        return 1 if self._heart is None else self._heart.peers

    def _begin_anew(self) -> None:
        self._lock, self._heart = threading.Lock(), None

    def _beating(self) -> LastingHeartbeat:
        self._come()
        with self._lock:
            if self._closed:
                raise InvalidInput("this keeper is closed: make another with queue.keeper()")
            if self._heart is None or not self._heart.lives:
                self._heart = LastingHeartbeat(self.queue, self._held, self._lost, self._about, keeps_open=True)
                self._heart.start()
            return self._heart


class AsyncKeeper(Held):
    """Keeps leases alive in an asyncio task, until `close`, or until the queue is closed. Use it with `async with`.

    A call that blocks the event loop for two thirds of the timeout loses the leases; the keeper of a `Queue` has a
    thread, and does not lose them.
    """

    _let_through = (KeyboardInterrupt, SystemExit)  # they end the event loop, as in any asyncio task

    def __init__(self, queue: AsyncClient, on_lost: OnLost | None = None, concurrency: int = 1) -> None:
        """Prepare; the asyncio task starts with the first lease, or when `async with` is entered."""
        super().__init__(queue, on_lost, concurrency)
        self._pulse = Pulse(queue.name, queue.worker, queue.timeout, self._about)
        self._peers = 1
        self._closed = False
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, *leases: Lease) -> None:
        """Keep leases alive from now on. Raises `InvalidInput` for what is no lease, and after `close`."""
        self._beating()
        if self._took(leases):
            self._pulse.hurry()

    async def close(self) -> None:
        """Stop, and say farewell to the queue. Leases that are still held are not given back: release them, or ack."""
        self._come()
        self._closed, task = True, self._task
        if task is not None and not self._is_here(task):
            self._leave(task)
            return
        self._stop.set()
        if task is not None:
            # a server that is away need not be told, and must not hold up the end: redis-py swallows some cancellations
            patience = 0.1 if self._pulse.down else None
            await asyncio.wait({task}, timeout=patience)
            task.cancel()
            await asyncio.wait({task}, timeout=patience)

    async def __aenter__(self) -> Self:
        self._beating()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def peers(self) -> int:
        """How many workers of this queue are alive, this program among them, as the keeper has last heard."""
        self._come()
        return self._peers

    def _begin_anew(self) -> None:
        self._pulse = Pulse(self.queue.name, self.queue.worker, self.queue.timeout, self._about)
        self._peers, self._stop, self._task = 1, asyncio.Event(), None

    def _beating(self) -> None:
        self._come()
        if self._closed:
            raise InvalidInput("this keeper is closed: make another with queue.keeper()")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidInput(
                "no event loop runs here, and the keeper of an AsyncQueue is an asyncio task: "
                "call add() in a coroutine, or use the keeper of a Queue"
            ) from None
        if self._task is not None and not self._task.done() and not self._is_here(self._task):
            self._leave(self._task)
            self._task = None
        if self._task is None or self._task.done():
            self._begin()

    @staticmethod
    def _is_here(task: asyncio.Task[None]) -> bool:
        return task.get_loop() is asyncio.get_running_loop()

    def _leave(self, task: asyncio.Task[None]) -> None:
        """Let the asyncio task end that another event loop runs."""
        with suppress(RuntimeError):  # that event loop is closed
            task.get_loop().call_soon_threadsafe(self._stop.set)

    def _begin(self) -> None:
        self._stop = asyncio.Event()  # an event belongs to the event loop that has waited for it
        self._task = asyncio.create_task(self._beat_on(self._stop), name=f"keeper-{self.queue.name}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        why = "it was cancelled" if error is None else arguments.error_words(error)
        if not self._closed and task is self._task:
            task.get_loop().call_later(self._pulse.soon(), self._begin_again, task, why)

    def _begin_again(self, task: asyncio.Task[None], why: str, was_alone: bool = False) -> None:
        """Begin again after an end that nobody has asked for, unless the event loop is about to end, too.

        An event loop without tasks may run on by callbacks alone, or may end a moment later: a second look tells.
        """
        if self._closed or task is not self._task:
            return
        others, loop = asyncio.all_tasks(), task.get_loop()
        if all(map(_is_leaving, others)) and (others or not was_alone):
            loop.call_later(self._pulse.soon(), self._begin_again, task, why, not others)
            return
        telling.say(
            log, logging.ERROR, "the asyncio task of a keeper of queue %s has ended, and begins again: %s",
            self.queue.name, why, fields={"queue": self.queue.name},
        )  # fmt: skip
        self._pulse.hurry()
        self._begin()

    async def _beat_on(self, stop: asyncio.Event) -> None:
        """Carry out rounds until the stop, and say farewell if the keeper is closed."""
        pulse = self._pulse
        await AsyncRounds(self.queue, pulse, self._extend, self._beat).run(stop)
        try:
            if self._closed and not (pulse.down or pulse.unheard):
                async with asyncio.timeout(FAREWELL if self.queue.beats_apart else None):
                    await self._beat(None)
        except Exception as error:
            pulse.no_farewell(error)

    async def _beat(self, about: Any) -> None:
        call = self.queue.operations.beat(self.queue.worker, about)
        self._peers = max(1, await self.queue.run(sending.answer(self.queue.talk, call)))

    async def _extend(self) -> bool:
        leases = self.held
        if not leases:
            return False
        self._lost(await self.queue.run(extend_held(self.queue.extension(leases), self._held, leases)))
        return True


def _is_leaving(task: asyncio.Task[Any]) -> bool:
    """Say whether a task is one of those with which `asyncio.run` ends: it was cancelled, or it closes the loop."""
    name = str(getattr(task.get_coro(), "__qualname__", ""))
    return task.cancelling() > 0 or name.endswith((".shutdown_asyncgens", ".shutdown_default_executor"))


class Keepers(Generic[K]):
    """The keepers of a queue object. They live as long as somebody uses them."""

    def __init__(self) -> None:
        self._known = weakref.WeakValueDictionary[int, K]()

    def add(self, keeper: K) -> K:
        """Take a keeper in, and give it back."""
        self._known[id(keeper)] = keeper
        return keeper

    def all(self) -> list[K]:
        """Give the keepers; safe while another thread adds one."""
        found = (known() for known in self._known.valuerefs())
        return [keeper for keeper in found if keeper is not None]

    @contextmanager
    def ending(self, given: Lease | Iterable[Lease]) -> Iterator[Lease | Iterable[Lease]]:
        """Count leases that a call ends as not lost meanwhile, and let go of them once the call is answered.

        Gives the leases for the call: an iterable may be one that can be read only once.
        """
        keepers = self.all()
        if not keepers:
            yield given
            return
        leases = arguments.leases(given)
        call, keys, answered = object(), {lease.key for lease in leases}, False
        for keeper in keepers:
            keeper.ends(call, keys)
        try:
            yield given if isinstance(given, Lease) else leases
            answered = True
        except LeaseLost:  # this is an answer, too
            answered = True
            raise
        except NotReplicated as error:  # and so is this, if there was one call, and not a put before it
            answered = error.verb in ENDS and len(leases) <= BATCH
            raise
        finally:
            for keeper in keepers:
                if answered:
                    keeper.remove(*leases)
                keeper.ends(call, set())
