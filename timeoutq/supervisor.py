"""Runs a worker in several processes, replaces those that die, and says at once what was running in a dead one.

`timeoutq worker` calls `run_workers`. The children are forked before anything connects. What each holds and what it has
started stands in memory that it shares with the parent, so that after a SIGKILL or a segfault the parent can count a
crash against the tasks that were running, and give back the others without blame, without waiting for their leases.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from timeoutq import flows
from timeoutq.client import Queue
from timeoutq.errors import TimeoutqError
from timeoutq.model import Lease
from timeoutq.worker import Worker

log = logging.getLogger(__name__)

FREE, HELD, STARTED = 0, 1, 2
TOKEN_BYTES, TASK_BYTES = 96, 1024
_SLOT = struct.Struct(f"=BxHHxx{TOKEN_BYTES}s{TASK_BYTES}s")


class SharedLedger:
    """What a child holds, readable by its parent after it died. A full ledger only makes the parent know less."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, slots * _SLOT.size)
        self._free = list(range(slots))
        self._of: dict[int, int] = {}

    def hold(self, leases: Iterable[Lease]) -> None:
        """Write down leases that were claimed."""
        for lease in leases:
            if not self._free:
                return
            slot = self._free.pop()
            self._of[lease.fence] = slot
            task = lease.task.encode("utf-8", "surrogateescape")
            token = lease.token.encode()[:TOKEN_BYTES]
            # the state byte goes last: a parent that reads a slot in mid-write finds it free
            _SLOT.pack_into(self._memory, slot * _SLOT.size, FREE, len(token), len(task), token, task)
            self._memory[slot * _SLOT.size] = HELD

    def start(self, lease: Lease) -> None:
        """Write down that its handler runs now."""
        slot = self._of.get(lease.fence)
        if slot is not None:
            self._memory[slot * _SLOT.size] = STARTED

    def finish(self, lease: Lease) -> None:
        """Write down that its handler is done; its ack may still be on the way."""
        slot = self._of.get(lease.fence)
        if slot is not None:
            self._memory[slot * _SLOT.size] = HELD

    def end(self, leases: Iterable[Lease]) -> None:
        """Strike out leases that are ended or lost."""
        for lease in leases:
            slot = self._of.pop(lease.fence, None)
            if slot is not None:
                self._memory[slot * _SLOT.size] = FREE
                self._free.append(slot)

    def read(self) -> tuple[list[Lease], list[Lease]]:
        """Give the leases that were started and those that were only held."""
        started: list[Lease] = []
        held: list[Lease] = []
        for at in range(0, len(self._memory), _SLOT.size):
            if self._memory[at] == FREE:
                continue
            state, token_length, task_length, token, task = _SLOT.unpack_from(self._memory, at)
            lease = Lease(
                task[:task_length].decode("utf-8", "surrogateescape"), token[:token_length].decode(), deadline=0.0
            )
            (started if state == STARTED else held).append(lease)
        return started, held

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


@dataclass(slots=True)
class _Child:
    pid: int
    ledger: SharedLedger
    lifeline: int
    """The parent's end of a pipe: the child drains when it closes, so that no child outlives its parent for long."""
    started: float = field(default_factory=time.monotonic)


def run_workers(make: Callable[[SharedLedger | None], Worker], processes: int = 1, *, supervise: bool = True) -> int:
    """Run `make(ledger)`'s worker in so many processes until they are stopped; give the exit code.

    `make` is called in each child after the fork and must connect nothing before. With one process and
    `supervise=False` the worker runs in this one. SIGTERM and SIGINT go to the children, each of which drains as
    `Worker` describes; a child that dies is replaced, after a pause that grows while they die young.
    """
    if processes == 1 and not supervise:
        return _run_one(make, None, None)
    return _Supervisor(make, processes).run()


def _run_one(make: Callable[[SharedLedger | None], Worker], ledger: SharedLedger | None, lifeline: int | None) -> int:
    async def body() -> None:
        worker = make(ledger)
        if lifeline is not None:
            asyncio.get_running_loop().add_reader(lifeline, _parent_died, worker, lifeline)
        try:
            await worker.run()
        finally:
            await worker.queue.close()

    try:
        uvloop: Any = import_module("uvloop")  # optional: used where it is installed
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        runner.run(body())
    return 0


def _parent_died(worker: Worker, lifeline: int) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    log.warning("worker %s: its supervisor is gone", worker.queue.worker)
    worker.stop()


class _Supervisor:
    """The parent: starts, watches, replaces and stops the children, and reports the dead."""

    def __init__(self, make: Callable[[SharedLedger | None], Worker], processes: int) -> None:
        self._make = make
        self._processes = processes
        self._children: dict[int, _Child] = {}
        self._stopping = 0
        self._early_deaths = 0
        self._failed = 0

    def run(self) -> int:
        signals = (signal.SIGTERM, signal.SIGINT)
        # handlers only note the signal; sigtimedwait takes it, so that none arrives between a check and a wait
        signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGCHLD})
        try:
            for _ in range(self._processes):
                self._spawn()
            while self._children:
                heard = signal.sigtimedwait({*signals, signal.SIGCHLD}, 1.0)
                if heard is not None and heard.si_signo in signals:
                    self._pass_on(signal.Signals(heard.si_signo))
                self._reap_children()
        finally:
            for child in self._children.values():
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*signals, signal.SIGCHLD})
        return 1 if self._failed else 0

    def _spawn(self) -> None:
        sample = 2100  # two full claims beyond the concurrency that a slot is kept for
        ledger = SharedLedger(sample)
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(writing)
                for child in self._children.values():
                    os.close(child.lifeline)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
                os.setpgid(0, 0)  # Ctrl-C in a terminal reaches the parent alone, which passes it on
                code = _run_one(self._make, ledger, reading)
            except TimeoutqError as error:
                print(f"timeoutq: {error}", file=sys.stderr)  # noqa: T201  # the child's last words
                code = 3
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(reading)
        self._children[pid] = _Child(pid, ledger, writing)
        log.info("worker process %d started", pid)

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping += 1
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

    def _reap_children(self) -> None:
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == 0:
                continue
            child = self._children.pop(pid)
            os.close(child.lifeline)
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                self._processes -= 1  # it drained its queue, or was asked to end
                child.ledger.close()
                continue
            why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            log.error("worker process %d died: %s", pid, why)
            self._report(child, why)
            child.ledger.close()
            if self._stopping or code == 3:
                self._failed += code == 3
                continue
            young = time.monotonic() - child.started < 5
            self._early_deaths = self._early_deaths + 1 if young else 0
            time.sleep(min(0.05 * 2 ** min(self._early_deaths, 6), 2.0) if young else 0)
            self._spawn()

    def _report(self, child: _Child, why: str) -> None:
        started, held = child.ledger.read()
        if not started and not held:
            return
        template = self._make(None).queue
        queue = Queue(template.name, template.given[0], client=template.given[1], deadline=template.given[2])
        reason = f"its worker process died while it ran: {why}"
        try:
            if held:
                queue.release(held)
            if started:
                queue.run(flows.answers(queue.talk, queue.operations.crash(started, reason)))
            log.warning(
                "queue %s: %d tasks were running in process %d, %d more were held",
                queue.name, len(started), child.pid, len(held),
            )  # fmt: skip
        except TimeoutqError as error:
            log.warning("queue %s: the leases of process %d must run out: %s", queue.name, child.pid, error)
        finally:
            queue.close()
