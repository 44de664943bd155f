"""Runs one worker in this process: starts its event loop, passes orders on to it, and tells why the worker ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import Any, cast

from timeoutq.client import AsyncDriver, Driver, twin
from timeoutq.verbs import sending
from timeoutq.words import exit_codes, telling
from timeoutq.words.arguments import class_name, error_words
from timeoutq.words.errors import TimeoutqError, WorkerBroken
from timeoutq.words.model import Answer, Lease
from timeoutq.words.tracebacks import read_traceback, trace
from timeoutq.worker.health import Sheet, judge
from timeoutq.worker.processes.responder import Responder
from timeoutq.worker.processes.roster import PATIENCE, Order, Told
from timeoutq.worker.worker import CURE, Worker
from timeoutq.worker.worker_log import named

log = logging.getLogger(__name__)


def run_worker(
    make: Callable[[], Worker],
    orders: Orders | None = None,
    tell: Callable[[Told], None] | None = None,
    *,
    sheet: Sheet | None = None,
    alone: bool = False,
) -> int:
    """Run the worker that `make` builds until the worker ends, and give the exit code of the process.

    `make` is called before the event loop runs, because modules that it imports may use `asyncio.run` themselves.
    `tell` is called with the reason of the end when all work has ended, before the lifespan is left: from then on, the
    process may be ended at any moment; with `alone` it is, after `PATIENCE` seconds, because it has no supervisor.
    Raises what `Worker.run` raises, and `WorkerBroken` if an asyncio task of a handler has ended the event loop.
    """
    worker = make()
    worker.sheet = sheet
    escaped: BaseException | None = None
    mains: list[asyncio.Task[int]] = []
    limits = ExitStack()

    def ending(end: str) -> None:
        if alone and escaped is None:
            limits.callback(_limit(end).cancel)
        if tell is not None and escaped is None:
            tell(Told[end.upper()])

    async def body() -> int:
        mains.append(cast("asyncio.Task[int]", asyncio.current_task()))
        code = exit_codes.DONE
        worker.ending = ending
        worker.leaving = None if tell is None else partial(tell, Told.LEAVES)
        if orders is not None:
            orders.obey(worker)
        try:
            await worker.run()
        except (Exception, asyncio.CancelledError) as error:
            if not worker.tally.end:
                raise
            code = exit_codes.DIED
            _tell_left_badly(worker, error)
        finally:
            for queue in worker.queues:
                await queue.close()
        if worker.ending is not None:  # an error on its way out kept the worker from calling `ending`
            ending(worker.tally.end)
        if orders is not None:
            orders.let_go()
        return code

    with limits, _runner() as runner:
        try:
            return runner.run(body())
        except asyncio.CancelledError as error:  # not by a caller: only this function has this event loop
            ran = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            raise WorkerBroken(
                f"worker {worker.queue.worker} was cancelled though nobody asked it to stop. {CURE}{ran}"
            ) from None
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            # the worker's own error ends the main task; else another asyncio task raised it, or stopped the loop
            running = worker.running
            if not mains or mains[0].done() or (not running and isinstance(error, KeyboardInterrupt)):
                raise
            escaped = error
            # nobody knows whose task raised it: each that was running counts a crash, as when a process dies
            for queue, leases in worker.give_up_running().items():
                with reporting(queue, os.getpid(), {"queue": queue.name}) as client:
                    crash(client, leases, f"its worker was ended while it ran: {type(error).__name__}")
            raise WorkerBroken(_broken_words(worker, error, running)) from error


def run_alone(make: Callable[[], Worker], health: tuple[str, int] | None = None) -> int:
    """Run a worker for a command that has no supervisor; `health` is where a thread answers health checks."""
    sheet = Sheet()
    answering = Responder(health, lambda: judge(sheet.read(), time.monotonic())) if health else nullcontext()
    with answering:
        return run_worker(make, sheet=sheet if health else None, alone=True)


@contextmanager
def reporting(of: AsyncDriver, pid: int, fields: dict[str, Any]) -> Iterator[Driver]:
    """Give a client that ends the leases of a process in a queue; if the server does not answer, they run out."""
    queue = twin(of)
    try:
        yield queue
    except TimeoutqError as error:
        telling.say(
            log, logging.WARNING, "queue %s: the leases of process %d cannot be given back, so they run out: %s",
            queue.name, pid, error, fields={**fields, "error": str(error)},
        )  # fmt: skip
    finally:
        queue.close()


def crash(queue: Driver, leases: list[Lease], reason: str) -> list[tuple[Lease, Answer]]:
    """Count a crash for the tasks of these leases; give each lease with its answer."""
    found: list[tuple[Lease, Answer]] = []
    for talk, part in queue.division.parted(leases):
        found += zip(part, queue.run(sending.answers(talk, talk.operations.crash(part, reason))), strict=True)
    return found


def _broken_words(worker: Worker, error: BaseException, running: list[Lease]) -> str:
    tasks = f"these tasks were running: {named(running)}" if running else "no task was running"
    if isinstance(error, RuntimeError):
        return f"worker {worker.queue.worker}: its event loop was stopped; does a handler call loop.stop()? {tasks}"
    whose = "an asyncio task that a handler started" if running else "an asyncio task that is not the worker's"
    return f"worker {worker.queue.worker}: {whose} raised {class_name(error)}, which ended the event loop; {tasks}"


def _limit(end: str) -> threading.Timer:
    limit = threading.Timer(PATIENCE, _leave_at_once, (end,))
    limit.daemon = True
    with suppress(RuntimeError):  # the system starts no more threads: then there is no limit
        limit.start()
    return limit


def _leave_at_once(end: str) -> None:
    telling.say(log, logging.ERROR, "process %d does not end by itself (%s): it is ended at once", os.getpid(), end)
    os._exit(exit_codes.DIED if end == "stopped" else exit_codes.DONE)


def _tell_left_badly(worker: Worker, error: BaseException) -> None:
    said = error_words(error)
    telling.say(
        log, logging.ERROR, "worker %s ends (%s), but its lifespan raised when it was left: %s", worker.queue.worker,
        worker.tally.end, said, fields={"queue": worker.queue.name, "worker": worker.queue.worker, "error": said},
        traceback=read_traceback(trace(error), said),
    )  # fmt: skip


def _runner() -> asyncio.Runner:
    try:
        uvloop: Any = import_module("uvloop")  # optional: used where it is installed
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


class Orders:
    """Passes orders on to the worker of a process: those of the supervisor, which come on the lifeline, and signals.

    SIGTERM and SIGINT mean "drain" here, however often they come: only the supervisor, which gets them too, knows
    whether a signal is the second one, and orders "now". The lifeline closes when the supervisor is gone; then the
    worker drains.
    """

    def __init__(self, lifeline: int) -> None:
        """Take the reading end of the lifeline, and hear signals from now on; call this in the main thread."""
        self._asked = False  # whether the worker was asked to stop; before there is one, whether a signal has come
        self._lifeline = lifeline
        self._worker: Worker | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)

    def obey(self, worker: Worker) -> None:
        """Pass all orders on to a worker; call this in the worker's event loop, before the worker runs."""
        loop = asyncio.get_running_loop()
        self._worker = worker
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        loop.add_reader(self._lifeline, self._read)
        if self._asked:  # a signal came before there was an event loop
            self._asked = False
            loop.call_soon(self._drain)

    def let_go(self) -> None:
        """Let a signal end the process at once from now on; a signal then no longer raises an exception."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def _heard(self, number: int, frame: object) -> None:
        self._asked = True

    def _drain(self) -> None:
        if not self._asked and self._worker is not None:
            self._asked = True
            self._worker.stop()

    def _read(self) -> None:
        found = os.read(self._lifeline, 64)
        assert self._worker is not None
        if not found:
            asyncio.get_running_loop().remove_reader(self._lifeline)
            name = self._worker.queue.name
            words = "queue %s: the supervisor of process %d is gone: the process drains"
            telling.say(log, logging.WARNING, words, name, os.getpid(), fields={"queue": name})
        if Order.NOW in found:
            self._asked = True
            self._worker.stop(now=True)
        else:
            self._drain()
