"""Runs a worker in several processes, replaces those that die, and reports at once which tasks they were running."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from timeoutq.client import AsyncDriver, Driver, twin
from timeoutq.verbs import flows, sending
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.words import exit_codes, telling, tracebacks
from timeoutq.words.arguments import error_words
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Answer, Lease
from timeoutq.worker.health import Crew, Verdict, judge_all, worked_at
from timeoutq.worker.processes.ledger import Left, SharedLedger
from timeoutq.worker.processes.process import Orders, run_worker
from timeoutq.worker.processes.responder import Responder
from timeoutq.worker.processes.roster import Order, Roster, Told
from timeoutq.worker.worker import Worker

assert sys.platform != "win32"

log = logging.getLogger(__name__)

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
ASK_AGAIN = 10.0
"""If the server did not answer, dead processes that held nothing are not reported to it for this many seconds."""
UNHEARD = "its handler had ended, but its worker process ended before the queue heard of it"


@dataclass(frozen=True, slots=True)
class Job:
    """The work of each process."""

    make: Callable[[SharedLedger], Worker]
    """Makes a worker without signal handlers of its own; called in each process after the fork."""
    open: Callable[[], Sequence[AsyncDriver]]  # opens the queues of the worker; nothing connects yet
    processes: int
    slots: int  # how many leases a worker may hold at most
    drain_deadline: float = 25.0
    health: tuple[str, int] | None = None
    """Where the supervisor answers health checks for all processes; see `responder.py`."""


def supervise(job: Job) -> tuple[int, str]:
    """Run workers until they have drained their queue or are stopped; give the exit code and the message to print.

    Call this in the main thread of a process without other threads, before anything connects, and end the process
    afterwards: SIGTERM and SIGINT stay ignored, so that a late signal does not change the exit code.
    """
    with _Signals() as signals:
        return _Supervisor(job, signals).run()


class _Signals:
    """The signals that a supervisor waits for: bytes in a pipe, so that no signal is lost between two waits."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        for number in HEARD:
            signal.signal(number, _noted)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self.close()

    def wait(self, seconds: float, responder: Responder | None = None) -> list[int]:
        """Wait for signals, at most `seconds`, or for requests; give the numbers of signals in the order they came."""
        heard = [self._reading] if responder is None else [self._reading, responder.fileno()]
        select.select(heard, [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            return list(os.read(self._reading, 4096))
        return []

    def leave_to_child(self) -> None:
        """Drop the parent's handlers in a child, which sets its own; call this while signals are blocked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.close()

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the number is in the pipe."""


def _read_nothing() -> None:
    """Make stdin empty: the system would stop a background process that reads from its terminal."""
    if sys.__stdin__ is not None:  # if it is None, descriptor 0 was closed at our start, and may be another file now
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)


@dataclass(slots=True)
class _Child:
    pid: int
    ledger: SharedLedger
    lifeline: int  # the writing end of a pipe: orders go through the pipe, and the child drains when the pipe closes

    def tell(self, order: Order) -> None:
        with suppress(OSError):  # the child has ended already
            os.write(self.lifeline, bytes([order]))

    def end(self) -> None:
        os.close(self.lifeline)
        self.ledger.close()


class _Supervisor:
    """The parent: starts, watches, replaces and stops the children, and reports the dead."""

    def __init__(self, job: Job, signals: _Signals) -> None:
        self._job = job
        self._signals = signals
        self._queues = job.open()
        self._name = ", ".join(queue.name for queue in self._queues)
        self._children: dict[int, _Child] = {}
        self._roster = Roster(job.processes, job.drain_deadline, time.monotonic())
        self._last_trace = b""
        self._away_until = dict.fromkeys(self._queues, 0.0)
        # no thread: a process that forks must not have any
        self._responder = None if job.health is None else Responder(job.health, self._health)
        self._worked, self._died = time.monotonic(), 0.0

    def run(self) -> tuple[int, str]:
        roster = self._roster
        try:
            while not roster.is_over:
                self._start_due()
                rest = roster.next_look(time.monotonic()) - time.monotonic()
                for number in self._signals.wait(rest, self._responder):
                    self._hear(number)
                if self._responder is not None:
                    self._responder.turn(0)
                self._reap()
                self._kill_overdue()
        finally:
            for pid in self._children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._responder is not None:
                self._responder.close()
        return roster.code, roster.words

    def _health(self) -> Verdict:
        now, signs = time.monotonic(), {pid: child.ledger.sheet.read() for pid, child in self._children.items()}
        self._worked = max([self._worked, *map(worked_at, signs.values())])
        lease = min(queue.timeout for queue in self._queues)
        crew = Crew(self._job.processes, lease, self._worked, self._died, stopping=self._roster.is_stopping)
        return judge_all(crew, signs, now)

    def _tell(
        self, level: int, pid: int, message: str, *words: object, traceback: str | None = None, **more: object
    ) -> None:
        fields = {"queue": self._name, "child": pid, **more}
        telling.say(log, level, message, *words, fields=fields, traceback=traceback)

    # ---- starting

    def _start_due(self) -> None:
        now = time.monotonic()
        while self._roster.is_due(now):
            try:
                pid = self._start()
            except OSError as error:
                what, fields = "queue %s: cannot start a worker process: %s", {"queue": self._name, "error": str(error)}
                telling.say(log, logging.ERROR, what, self._name, error, fields=fields)
                self._roster.could_not_start(now)
                return
            self._roster.started(pid, time.monotonic())

    def _start(self) -> int:
        with contextlib.ExitStack() as undo:
            ledger = self._new_ledger()
            undo.callback(ledger.close)
            reading, writing = os.pipe()
            undo.callback(os.close, writing)
            undo.callback(os.close, reading)
            sys.stdout.flush()
            sys.stderr.flush()
            # signals are blocked until the child has its own handlers: the parent's handlers would write into our pipe
            before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
            try:
                pid = os.fork()
                if pid == 0:
                    try:
                        self._be_child(ledger, reading, writing, before)
                    finally:
                        os._exit(exit_codes.DIED)  # whatever happens, the child never runs the parent's code
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            undo.pop_all()
        os.close(reading)
        self._children[pid] = _Child(pid, ledger, writing)
        self._tell(logging.INFO, pid, "worker process %d started", pid)
        return pid

    def _new_ledger(self) -> SharedLedger:
        try:
            return SharedLedger(self._job.slots, *(queue.division.key_of for queue in self._queues))
        except (OSError, OverflowError, MemoryError) as error:
            if self._children:  # the memory was enough for other processes: a later attempt may succeed
                raise OSError(f"no memory: {error}") from error
            raise InvalidInput(
                f"there is no memory to keep account of {self._job.slots:,} leases in each process ({error}): choose a "
                "lower concurrency or prefetch"
            ) from error

    def _be_child(self, ledger: SharedLedger, reading: int, writing: int, mask: set[int | signal.Signals]) -> NoReturn:
        code = exit_codes.DIED
        try:
            self._signals.leave_to_child()
            os.close(writing)
            for child in self._children.values():
                child.end()
            if self._responder is not None:
                self._responder.close()
            os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the parent alone
            _read_nothing()
            orders = Orders(reading)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = run_worker(lambda: self._signed(ledger), orders, ledger.tell)
        except BaseException as error:
            if isinstance(error, TimeoutqError) and (flows.is_final(error) or isinstance(error, ImportError)):
                code = exit_codes.of(error)
                ledger.tell(Told.HOPELESS, str(error))
            elif ledger.told()[0] is Told.NOTHING:
                ledger.confess(error)
            else:  # the child had reported the end of its work before
                said, pid, what = error_words(error), os.getpid(), "worker process %d had ended its work, and ends: %s"
                trace = tracebacks.read_traceback(tracebacks.trace(error), said)
                self._tell(logging.ERROR, pid, what, pid, said, error=said, traceback=trace)
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _signed(self, ledger: SharedLedger) -> Worker:
        worker = self._job.make(ledger)
        worker.sheet = None if self._job.health is None else ledger.sheet
        ledger.sign(worker.queue.worker)
        return worker

    # ---- stopping

    def _hear(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        order = self._roster.heard(number, time.monotonic())
        if order is not None:
            self._order(order)

    def _order(self, order: Order) -> None:
        for child in self._children.values():
            child.tell(order)

    def _kill_overdue(self) -> None:
        told = {pid for pid, child in self._children.items() if child.ledger.has_told}
        for pid in self._roster.overdue(time.monotonic(), told):
            self._tell(logging.ERROR, pid, "worker process %d does not end: it is killed", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # ---- ends

    def _reap(self) -> None:
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not found:
                continue
            if os.WIFSTOPPED(status):
                self._tell(
                    logging.WARNING, pid, "worker process %d was stopped by %s: it does nothing, and its leases run "
                    "out; kill -CONT %d lets it go on, kill -KILL %d ends it, and a new process takes its place", pid,
                    signal.Signals(os.WSTOPSIG(status)).name, pid, pid,
                )  # fmt: skip
            elif os.WIFCONTINUED(status):
                self._tell(logging.INFO, pid, "worker process %d runs again", pid)
            else:
                child = self._children.pop(pid)
                try:
                    self._ended(child, os.waitstatus_to_exitcode(status))
                finally:
                    child.end()

    def _ended(self, child: _Child, code: int) -> None:
        told, words = child.ledger.told()
        ending = self._roster.ending(child.pid, told, code, time.monotonic())
        # no worker: the process ended before it had one
        more: dict[str, Any] = {"code": code, "worker": child.ledger.worker or None}
        died = ""
        self._worked = max(self._worked, worked_at(child.ledger.sheet.read()))
        if ending.died:
            self._died = time.monotonic()
            died = f"{ending.words}: {words}" if words else ending.words
            trace, what = self._new_trace(child.ledger.trace, words), "worker process %d died: %s"
            self._tell(logging.ERROR, child.pid, what, child.pid, died, error=died, traceback=trace, **more)
        elif told is Told.HOPELESS:
            what = "worker process %d ended: it cannot " + ("go on" if child.ledger.worker else "begin")
            self._tell(logging.INFO, child.pid, what, child.pid, error=words, **more)
        else:
            how = told.name.lower().replace("_", " ")
            self._tell(logging.INFO, child.pid, "worker process %d ended: %s", child.pid, how, **more)
        order = self._roster.ended(ending, words, time.monotonic())
        if order is not None:
            self._order(order)
        # the ledger holds no lease that was given back; a child that we killed could not give any back
        self._report(child, died, blame=ending.blames)

    def _new_trace(self, trace: bytes, error: str) -> str | None:
        """Give a traceback to log, or None if the last one was the same: many processes may die of one error."""
        key, self._last_trace = self._last_trace, tracebacks.digest(trace)
        return tracebacks.read_traceback(trace, error) if trace and key != self._last_trace else None

    def _report(self, child: _Child, died: str, *, blame: bool) -> None:
        """End the leases of a process, and remove its worker from the list if it `died`.

        `blame` counts a crash for each task that was running. A task whose end the queue has not heard counts as
        crashed in any case.
        """
        # first the queues whose servers have answered: another one may take some seconds not to answer
        for number, of in sorted(enumerate(self._queues), key=lambda one: self._away_until[one[1]]):
            self._report_on(of, child, child.ledger.read(number), died, blame=blame)

    def _report_on(self, of: AsyncDriver, child: _Child, left: Left, died: str, *, blame: bool) -> None:
        started, ended, held = left
        worker = child.ledger.worker if died else ""
        if not any(left) and (not worker or time.monotonic() < self._away_until[of]):
            return
        fields: dict[str, Any] = {"queue": of.name, "child": child.pid, "worker": child.ledger.worker or None}
        how = f"when it died: {died}" if blame else "when it had to be killed" if died else "when it ended"
        what = f"was running in process {child.pid} {how}"
        told: list[telling.Told] = [
            (lease.task, what, {"crashes": lease.crashes + blame, "error": died}) for lease in started
        ]
        telling.name_tasks(log, of.name, told, fields)
        queue = twin(of)
        try:
            back = held if blame else started + held
            for talk, part in queue.division.parted(back):
                queue.run(sending.answers(talk, talk.operations.release(part), UNCONFIRMED))
            if blame and started:
                self._crash(queue, started, f"its worker process died while it ran: {died}", fields)
            if ended:
                self._crash(queue, ended, UNHEARD, fields, has_run=True)
            if worker:
                queue.run(sending.answer(queue.talk, queue.operations.beat(worker, None)))
            if any(left):
                telling.say(
                    log, logging.WARNING, "queue %s: %s running in process %d,%s %d more %s held",
                    queue.name, "1 task was" if len(started) == 1 else f"{len(started)} tasks were", child.pid,
                    f" {len(ended)} had run," if ended else "", len(held), "was" if len(held) == 1 else "were",
                    fields=fields,
                )  # fmt: skip
        except TimeoutqError as error:
            self._away_until[of] = time.monotonic() + ASK_AGAIN
            telling.say(
                log, logging.WARNING, "queue %s: the leases of process %d cannot be given back, so they run out: %s",
                queue.name, child.pid, error, fields={**fields, "error": str(error)},
            )  # fmt: skip
        finally:
            queue.close()

    def _crash(
        self, queue: Driver, leases: list[Lease], reason: str, fields: dict[str, Any], *, has_run: bool = False
    ) -> None:
        told: list[telling.Told] = []
        for talk, part in queue.division.parted(leases):
            outcome = queue.run(sending.answers(talk, talk.operations.crash(part, reason)))
            for lease, answer in zip(part, outcome, strict=True):
                what = "is given up" if answer is Answer.FAILED else "runs again"
                if answer is Answer.FAILED or (has_run and answer is Answer.OK):
                    told.append((lease.task, f"{what}: {reason}", {"crashes": lease.crashes + 1, "error": reason}))
        telling.name_tasks(log, queue.name, told, fields)
