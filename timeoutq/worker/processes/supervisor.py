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
from typing import Any, NoReturn

from timeoutq.client import AsyncDriver, Driver
from timeoutq.verbs import flows, sending
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.words import exit_codes, telling, tracebacks
from timeoutq.words.arguments import error_words
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Answer, Lease
from timeoutq.worker import forks
from timeoutq.worker.health import Verdict, judge_all
from timeoutq.worker.processes.ledger import Left, SharedLedger
from timeoutq.worker.processes.process import Orders, crash, reporting, run_worker
from timeoutq.worker.processes.reloading import EVERY, Watch
from timeoutq.worker.processes.responder import Responder
from timeoutq.worker.processes.roster import RUNS, Order, Roster, Told
from timeoutq.worker.worker import Worker

assert sys.platform != "win32"

log = logging.getLogger(__name__)

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
COPIES_END_WITHIN = 1.0  # seconds in which what multiprocessing has started may end by itself
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
    watch: Watch | None = None  # the files whose change replaces all processes


def supervise(job: Job) -> tuple[int, str]:
    """Run workers until they have drained their queue or are stopped; give the exit code and the message to print.

    Call this in the main thread of a process without other threads, before anything connects, and end the process
    afterwards: SIGTERM and SIGINT stay ignored, so that a late signal does not change the exit code.
    """
    signals = _Signals()
    try:
        return _Supervisor(job, signals).run()
    finally:
        signals.end()


class _Signals:
    """The signals that a supervisor waits for: bytes in a pipe, so that no signal is lost between two waits."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        for number in HEARD:
            signal.signal(number, lambda number, frame: None)  # the number is in the pipe
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def wait(self, seconds: float, responder: Responder | None = None) -> list[int]:
        """Wait for signals, at most `seconds`, or for requests; give the numbers of signals in the order they came."""
        heard = [self._reading] if responder is None else [self._reading, responder.fileno()]
        select.select(heard, [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            return list(os.read(self._reading, 4096))
        return []

    def leave_to_child(self) -> None:
        """Drop the parent's handlers in a child, which sets its own; call this while signals are blocked."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._close()

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._close()

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._reading)
        os.close(self._writing)


@dataclass(slots=True)
class _Child:
    pid: int
    ledger: SharedLedger
    lifeline: int  # the writing end of a pipe: orders go through the pipe, and the child drains when the pipe closes

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
                while roster.is_due(time.monotonic()) and self._start():
                    pass
                rest = roster.next_look(time.monotonic()) - time.monotonic()
                if self._job.watch is not None and not roster.is_stopping:
                    rest = min(rest, EVERY)
                    if self._job.watch.changed():
                        self._order(Order.DRAIN)  # those that end before they were asked to stop are replaced
                for number in self._signals.wait(rest, self._responder):
                    if number != signal.SIGCHLD:
                        self._order(roster.heard(number, time.monotonic()))
                if self._responder is not None:
                    self._responder.turn(0)
                self._reap()
                self._heed_told()
        finally:
            for pid in self._children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._responder is not None:
                self._responder.close()
        return roster.code, roster.words

    def _health(self) -> Verdict:
        now, signs = time.monotonic(), {pid: child.ledger.sheet.read() for pid, child in self._children.items()}
        self._worked = max([self._worked, *(one.worked for one in signs.values())])
        lease, stopping = min(queue.timeout for queue in self._queues), self._roster.is_stopping
        return judge_all(signs, now, self._job.processes, lease, self._worked, self._died, stopping)

    def _tell(
        self, level: int, pid: int, message: str, *words: object, traceback: str | None = None, **more: object
    ) -> None:
        fields = {"queue": self._name, "child": pid, **more}
        telling.say(log, level, f"worker process %d {message}", pid, *words, fields=fields, traceback=traceback)

    # ---- starting

    def _start(self) -> bool:
        try:
            pid = self._fork()
        except OSError as error:
            what, fields = "queue %s: cannot start a worker process: %s", {"queue": self._name, "error": str(error)}
            telling.say(log, logging.ERROR, what, self._name, error, fields=fields)
            self._roster.could_not_start(time.monotonic())
            return False
        self._tell(logging.INFO, pid, "started")
        self._roster.started(pid, time.monotonic())
        return True

    def _fork(self) -> int:
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
            if sys.__stdin__ is not None:  # else descriptor 0 was closed at our start, and may be another file now
                # the system would stop a background process that reads from its terminal
                forks.lead_nowhere([0])
            orders = Orders(reading)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            sheet = None if self._job.health is None else ledger.sheet
            code = run_worker(lambda: self._signed(ledger), orders, ledger.tell, sheet=sheet)
        except BaseException as error:
            if isinstance(error, TimeoutqError) and (flows.is_final(error) or isinstance(error, ImportError)):
                code = exit_codes.of(error)
                ledger.tell(Told.HOPELESS, str(error))
            elif ledger.told()[0] in RUNS:
                ledger.confess(error)
            else:  # the child had reported the end of its work before
                said, pid = error_words(error), os.getpid()
                trace = tracebacks.read_traceback(tracebacks.trace(error), said)
                self._tell(logging.ERROR, pid, "had ended its work, and ends: %s", said, error=said, traceback=trace)
        finally:
            with suppress(BaseException):
                _end_copies()
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _signed(self, ledger: SharedLedger) -> Worker:
        worker = self._job.make(ledger)
        ledger.sign(worker.queue.worker)
        return worker

    # ---- stopping

    def _order(self, order: Order | None) -> None:
        if order is not None:
            for child in self._children.values():
                with suppress(OSError):  # the child has ended already
                    os.write(child.lifeline, bytes([order]))

    def _heed_told(self) -> None:
        told = {pid: child.ledger.told()[0] for pid, child in self._children.items()}
        for pid, what in told.items():
            if what is Told.LEAVES:
                self._roster.leaves(pid, time.monotonic())
        ends = {pid for pid, what in told.items() if what not in RUNS}
        for pid in self._roster.overdue(time.monotonic(), ends):
            self._tell(logging.ERROR, pid, "does not end: it is killed")
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
                    logging.WARNING, pid, "was stopped by %s: it does nothing, and its leases run out; kill -CONT %d "
                    "lets it go on, kill -KILL %d ends it, and a new process takes its place",
                    signal.Signals(os.WSTOPSIG(status)).name, pid, pid,
                )  # fmt: skip
            elif os.WIFCONTINUED(status):
                self._tell(logging.INFO, pid, "runs again")
            else:
                child = self._children.pop(pid)
                try:
                    self._ended(child, os.waitstatus_to_exitcode(status))
                finally:
                    child.end()

    def _ended(self, child: _Child, code: int) -> None:
        pid, (told, words) = child.pid, child.ledger.told()
        if self._job.watch is not None and code == exit_codes.USAGE:
            told = Told.NOTHING  # its program may be saved at this moment, or be mended soon: another one tries again
        ending = self._roster.ending(pid, told, code, time.monotonic())
        # no worker: the process ended before it had one
        more: dict[str, Any] = {"code": code, "worker": child.ledger.worker or None}
        died = ""
        self._worked = max(self._worked, child.ledger.sheet.read().worked)
        if ending.died:
            self._died = time.monotonic()
            died = f"{ending.words}: {words}" if words else ending.words
            # many processes may die of one error: its traceback is logged once in a row
            trace, before = child.ledger.trace, self._last_trace
            self._last_trace = tracebacks.digest(trace)
            shown = tracebacks.read_traceback(trace, words) if trace and before != self._last_trace else None
            self._tell(logging.ERROR, pid, "died: %s", died, error=died, traceback=shown, **more)
        elif told is Told.HOPELESS:
            what = "ended: it cannot " + ("go on" if child.ledger.worker else "begin")
            self._tell(logging.INFO, pid, what, error=words, **more)
        else:
            self._tell(logging.INFO, pid, "ended: %s", told.name.lower().replace("_", " "), **more)
        self._order(self._roster.ended(ending, words, time.monotonic()))
        # the ledger holds no lease that was given back; a child that we killed could not give any back
        self._report(child, died, blame=ending.blames)

    def _report(self, child: _Child, died: str, *, blame: bool) -> None:
        """End the leases of a process, and remove its worker from the list if it `died`.

        `blame` counts a crash for each task that was running. A task whose end the queue has not heard counts as
        crashed in any case.
        """
        # first the queues whose servers have answered: another one may take some seconds not to answer
        for number, of in sorted(enumerate(self._queues), key=lambda one: self._away_until[one[1]]):
            self._report_on(of, child, child.ledger.read(number), died, blame=blame)

    def _report_on(self, of: AsyncDriver, child: _Child, left: Left, died: str, *, blame: bool) -> None:
        started, ended, held, asked = left
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
        self._away_until[of] = time.monotonic() + ASK_AGAIN
        with reporting(of, child.pid, fields) as queue:
            for talk, part in queue.division.parted(held if blame else started + held):
                queue.run(sending.answers(talk, talk.operations.release(part), UNCONFIRMED))
            if blame:
                self._crash(queue, started, f"its worker process died while it ran: {died}", fields)
            self._crash(queue, ended, UNHEARD, fields, has_run=True)
            if worker:
                queue.run(sending.answer(queue.talk, queue.operations.beat(worker, None)))
            self._away_until[of] = 0.0  # its server has answered
            # last: by now, the server has carried out all that the process had sent
            more, talks = len(held), queue.division.talks
            for shard, token, timeout_ms, max_runtime_ms in asked:
                more += queue.run(flows.give_back_unread(talks[shard], token, timeout_ms, max_runtime_ms))
            if started or ended or more:
                telling.say(
                    log, logging.WARNING, "queue %s: %s running in process %d,%s %d more %s held",
                    queue.name, "1 task was" if len(started) == 1 else f"{len(started)} tasks were", child.pid,
                    f" {len(ended)} had just ended," if ended else "", more, "was" if more == 1 else "were",
                    fields=fields,
                )  # fmt: skip

    def _crash(
        self, queue: Driver, leases: list[Lease], reason: str, fields: dict[str, Any], *, has_run: bool = False
    ) -> None:
        told: list[telling.Told] = []
        for lease, answer in crash(queue, leases, reason):
            what = "is given up" if answer is Answer.FAILED else "runs again"
            if answer is Answer.FAILED or (has_run and answer is Answer.OK):
                told.append((lease.task, f"{what}: {reason}", {"crashes": lease.crashes + 1, "error": reason}))
        telling.name_tasks(log, queue.name, told, fields)


def _end_copies() -> None:
    """End what multiprocessing has started in this process; Python does so at its exit, which a copy does not reach."""
    library = sys.modules.get("multiprocessing")
    copies: Any = [] if library is None else library.active_children()
    until = time.monotonic() + COPIES_END_WITHIN
    for copy in copies:
        copy.terminate()
    for copy in copies:
        copy.join(max(0.0, until - time.monotonic()))
        copy.kill()
