"""Copies of a worker: a handler may fork its process, and the copy must not go on as a second worker.

A copy has the sockets, the ledger and the leases of its parent. So it runs the rest of its handler, and ends then.
`multiprocessing` forks in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from timeoutq.server import sockets
from timeoutq.words import telling

log = logging.getLogger(__name__)

generation: int = 0
"""How many forks of running workers lie between the first process and this one: a worker is a copy when this number is
another than at its start."""

importing: str = ""
"""The module that this process imports, if it is a pool process, to find a function there: no worker starts then."""

_loops: dict[object, tuple[int, asyncio.AbstractEventLoop]] = {}
"""The threads and event loops of the workers that run in this process."""
_watching: bool = False
_HELD = (signal.SIGTERM, signal.SIGINT)
_before = threading.local()


@contextmanager
def watched(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Mark each copy of this process as a copy of a worker, as long as the worker runs in this loop and thread."""
    global _watching  # a hook of the process is registered once and stays
    if sys.platform != "win32" and not _watching:
        _watching = True
        os.register_at_fork(before=hold_signals, after_in_parent=let_signals_come, after_in_child=_be_copy)
    me = object()
    _loops[me] = (threading.get_ident(), loop)
    try:
        yield
    finally:
        _loops.pop(me, None)


def hold_signals() -> None:
    """Keep signals until a copy has handlers of its own: those that come earlier are lost, or arrive in the parent."""
    if sys.platform != "win32":
        _before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def let_signals_come() -> None:
    """Let those signals come that were held."""
    mask = _before.__dict__.pop("mask", None)
    if sys.platform != "win32" and mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def lead_nowhere(numbers: Iterable[int]) -> None:
    """Have these descriptors lead nowhere: reading finds the end at once, and what is written is gone."""
    empty = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(empty, number)
    os.close(empty)


def _be_copy() -> None:
    global generation  # one number for the whole process
    if _loops:
        generation += 1
        # a signal to the copy must not arrive in the parent, which listens at the other end of the same socket
        signal.set_wakeup_fd(-1)
        lead_nowhere(
            sockets.of_loops()
        )  # when the parent is killed, the server is to see that nobody has them any more
        for number in _HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        for thread, loop in _loops.values():
            if thread == threading.get_ident():
                # the copy has the selector of its parent, too: whatever waits in the loop is the parent's
                ready = getattr(loop, "_ready", None)  # other loops run what is ready before they call _leave_loop
                if ready is not None:
                    ready.clear()
                loop.call_soon(_leave_loop)
        _loops.clear()
    let_signals_come()


def _leave_loop() -> None:
    _say("a copy of a worker's process awaits something: only the worker itself has an event loop. The copy ends")
    os._exit(1)


def leave(task: str, problem: BaseException | None) -> NoReturn:
    """End a copy whose handler has ended: with the code of a SystemExit, else 0, or 1 after an error."""
    code = 0
    if isinstance(problem, SystemExit):
        code = problem.code & 0xFF if isinstance(problem.code, int) else int(problem.code is not None)
    elif problem is not None:
        code = 1
        _say(f"a copy of a worker's process, forked by the handler of {task!a}, ends: {type(problem).__name__}")
    os._exit(code)


def _say(words: str) -> None:
    telling.say(log, logging.WARNING, "%s", words)
