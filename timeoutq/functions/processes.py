"""Pool processes, in which a worker calls functions with `executor="process"`: it can end such a call at any moment.

A thread of the worker waits for each call. What crosses is JSON: the payload of the call, its result or its error, log
lines and notes. A pool process ends when its worker does, however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import timedelta
from functools import lru_cache, partial
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from operator import attrgetter
from typing import Any, cast

import msgspec

from timeoutq.functions import outcomes
from timeoutq.functions.calls import IN_PROCESSES
from timeoutq.functions.context import Context, Notes
from timeoutq.functions.envelope import Secrets
from timeoutq.functions.errors import BadFunction, BadResult, NoProcess
from timeoutq.functions.task import Definition, Opened
from timeoutq.server.calls import amount
from timeoutq.words import arguments, telling, tracebacks
from timeoutq.words.errors import WorkerBroken
from timeoutq.words.model import Ack, Release, raw, text
from timeoutq.words.retry import GiveUp, Retry, decision, members
from timeoutq.worker import forks
from timeoutq.worker.handlers import Hopeless, released

assert sys.platform != "win32"

BEGINS_WITHIN = 60.0  # seconds that a process may take to begin: it imports the module of the function
ENDS_WITHIN = 1.0  # seconds that the free processes may take to end by themselves
_STOPS = (signal.SIGINT, signal.SIGTERM)
_CODE = (
    "import sys; sys.path[:] = sys.argv[4:]; from timeoutq.functions.processes import serve; "
    "serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
)
_NOTHING = msgspec.Raw(b"null")
_DECISIONS: dict[str, Any] = {"Retry": Retry, "GiveUp": GiveUp, "Release": Release}


class Job(msgspec.Struct):
    """A call, as its process is told of it."""

    place: tuple[str, str, str]  # the module of the function, its app, and its name
    payload: msgspec.Raw
    task: bytes
    attempt: int
    fence: int
    tick: float | None = None


class Raised(msgspec.Struct):
    """What a function has raised."""

    places: list[tuple[str, str]]  # the module and the name of the class, and of those that it comes of
    words: str  # of an exception group: its message
    inside: list[Raised] = []  # of an exception group: what is in it
    trace: str = ""
    decides: tuple[str, dict[str, float | str | None]] | None = None  # of a Retry, GiveUp or Release: its fields
    hopeless: bool = False


class Said(msgspec.Struct, omit_defaults=True):
    """What a process says: a log line, a note, or the end of the call."""

    log: tuple[str, int, str, str] | None = None  # the logger, the level, the message, the traceback
    note: tuple[float, float | None, str] | None = None
    raised: Raised | None = None
    value: msgspec.Raw = _NOTHING


_lifelines: set[int] = set()  # the descriptors of this process whose end is the end of a pool process
_ENCODER, _JOBS, _SAID = msgspec.json.Encoder(), msgspec.json.Decoder(Job), msgspec.json.Decoder(Said)


# ---- in the worker


# a copy of the worker may live on when the worker has been killed
os.register_at_fork(after_in_child=partial(forks.lead_nowhere, _lifelines))


class _Process:
    """A pool process, the leader of a group of processes."""

    def __init__(self, module: str) -> None:
        self.wire, its = Pipe()
        level = logging.getLogger().getEffectiveLevel()
        command = [sys.executable, "-u", "-c", _CODE, str(its.fileno()), str(level), module, *sys.path]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # until it has handlers of its own
        try:
            self._process = subprocess.Popen(  # noqa: S603  # this Python, and our own code
                command, stdin=subprocess.PIPE, stdout=2, pass_fds=[its.fileno()], process_group=0
            )
        except OSError:
            self.wire.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its.close()
        self._lifeline = cast("Any", self._process.stdin)
        _lifelines.add(self._lifeline.fileno())

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it, and what its function has started; not after `end`."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, within: float = 0.0) -> str:
        """Let it end by itself, or else kill it, and what its functions have left behind; say how it ended."""
        self.wire.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
        self.kill()  # if it has ended: what its functions have left behind lives still
        code = self._process.wait()
        _lifelines.discard(self._lifeline.fileno())
        self._lifeline.close()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class Processes:
    """As many processes as there are calls at once; they live as long as the worker."""

    def __init__(self) -> None:
        self.free: list[_Process] = []
        self.closed = False

    def hold(self, definition: Definition) -> Hold:
        """Prepare the run of a function in a process that is free, if there is one."""
        free = None
        while self.free and free is None:
            free = self.free.pop()
            if not free.lives:
                free.end()
                free = None
        return Hold(self, definition, free)

    def close(self) -> None:
        """End the processes that are free; a process at work is killed when its call is stopped."""
        self.closed = True
        for one in self.free:
            one.wire.close()
        until = time.monotonic() + ENDS_WITHIN
        while self.free:
            self.free.pop().end(max(0.0, until - time.monotonic()))


class Hold:
    """The hold of one attempt on a process."""

    def __init__(self, pool: Processes, definition: Definition, process: _Process | None) -> None:
        self._pool, self._definition, self._process = pool, definition, process
        self._lock = threading.Lock()
        self._works = self._killed = self._left = False
        self._stopped = False  # whether it was killed because nobody waits for the call any more

    @property
    def is_ready(self) -> bool:
        """Whether it has a process."""
        return self._process is not None

    def begin(self) -> None:
        """Start a process, and wait until it is ready; blocks. Raises `NoProcess` if there is none."""
        with self._working():
            (module, _, _), name = self._definition.place, self._definition.name
            try:
                made = _Process(module)
            except OSError as error:
                cure = "raise `ulimit -n` (open files) or `ulimit -u` (processes) of the worker, or lower --threads"
                raise NoProcess(f"no pool process of {name}() can be started: {error}: {cure}", function=name) from None
            with self._lock:
                self._process = made
                if self._killed:
                    made.kill()
            if not made.wire.poll(BEGINS_WITHIN):
                raise NoProcess(
                    f"a pool process of {name}() has not begun after {BEGINS_WITHIN:g} s: either importing {module} "
                    "takes so long, or the machine has too much to do: lower --threads", function=name,
                )  # fmt: skip
            said = _hear(made, None)
        _value(said)

    def run(self, payload: bytes, context: Context[Any], opened: Opened) -> Any:
        """Run a call in the process; give what the function returns, or raise what it raises; blocks."""
        seen = (context.attempt, context.fence, context.tick)
        job = _ENCODER.encode(Job(self._definition.place, msgspec.Raw(payload), raw(context.task), *seen))
        notes = context.notes
        with self._working():
            process = cast("_Process", self._process)
            process.wire.send_bytes(job)
            said = _hear(process, notes)
        value = _value(said)
        if not opened.wants_result:  # the process has not said it
            return None
        return outcomes.decode(bytes(value), self._definition.returns)

    def kill(self) -> None:
        """Kill the process, because nobody waits for the call any more."""
        with self._lock:
            self._killed = self._stopped = True
            if self._works and self._process is not None:
                self._process.kill()

    def leave(self) -> None:
        """Give the process back, when the attempt has ended."""
        with self._lock:
            self._left = True
            self._settle()

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            if self._stopped:
                raise asyncio.CancelledError
            if self._killed:
                raise WorkerBroken(f"the pool process of {self._definition.name}() has ended")
            self._works = True
        try:
            yield
        except (EOFError, OSError, msgspec.MsgspecError) as error:
            with self._lock:
                dead, self._process, self._killed = self._process, None, True
            if dead is not None:
                dead.kill()  # what its function has started lives still
            how = f"cannot be used: {error}" if dead is None else f"has died, with {dead.end()}"
            if self._stopped:  # a middleware hears this
                raise asyncio.CancelledError from None
            broken: Any = WorkerBroken(f"the pool process of {self._definition.name}() {how}")
            broken.told_trace = b""
            raise broken from None
        finally:
            with self._lock:
                self._works = False
                self._settle()

    def _settle(self) -> None:
        if not self._left or self._works or self._process is None:
            return
        if self._killed or self._pool.closed:
            self._process.end()
        else:
            self._pool.free.append(self._process)
        self._process = None


def _hear(process: _Process, notes: Notes | None) -> Said:
    while True:
        said = _SAID.decode(process.wire.recv_bytes())
        if said.log is not None:
            name, level, message, trace = said.log
            telling.say(logging.getLogger(name), level, "%s", message, traceback=trace or None)
        elif said.note is None:
            return said
        elif notes is not None:
            notes.note(*said.note)


def _value(said: Said) -> msgspec.Raw:
    if said.raised is not None:
        raise _rebuilt(said.raised)
    return said.value


def _rebuilt(said: Raised) -> BaseException:
    """Make an exception that has the class and the words of that in the process, and its traceback."""
    if said.decides is not None:
        name, given = said.decides
        made: BaseException = _DECISIONS[name](**given)
    else:
        of: Any = ExceptionGroup if said.inside else Exception
        inside = [list(map(_rebuilt, said.inside))] if said.inside else []
        kind = _class(tuple(said.places), of)
        try:
            made = kind.__new__(kind, said.words, *inside)
        except Exception:  # the class may want anything
            made = _class((("", said.places[0][1]),), of)(said.words, *inside)
    cast("Any", made).told_trace = said.trace.encode()
    return Hopeless(cast("Any", made)) if said.hopeless else made


@lru_cache(maxsize=256)
def _class(places: tuple[tuple[str, str], ...], of: type[Exception]) -> type[Exception]:
    """Give a class under the first of these names: of the first one that the worker has, or `Exception` or a group."""
    base = of
    for where, what in places:
        with suppress(Exception):
            found = attrgetter(what)(sys.modules[where])
            if issubclass(found, of):
                base = found
                break
    module, name = places[0]
    short, words = name.rpartition(".")[2], {"__str__": _first_argument, "__module__": module}
    try:
        return type(short, (base,), words)
    except Exception:  # the class may refuse others
        return type(short, (of,), words)


def _first_argument(error: BaseException) -> str:
    return str(error.args[0])


# ---- in the process


def serve(number: int, level: int, module: str) -> None:
    """Run calls until the worker ends: the whole life of a pool process; `number` is its end of the wire."""
    for one in _STOPS:  # not SIG_IGN, which programs would inherit that functions start
        signal.signal(one, _ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    _end_with_worker()
    wire, lock = Connection(number), threading.Lock()
    os.set_inheritable(number, False)
    os.register_at_fork(
        before=forks.hold_signals, after_in_parent=forks.let_signals_come, after_in_child=partial(_be_copy, number)
    )

    def say(said: Said) -> None:
        data = _ENCODER.encode(said)
        with lock:
            wire.send_bytes(data)

    logging.basicConfig(level=level, handlers=[_Forward(say)], force=True)
    try:
        _import(module)
        said = Said()
    except BaseException as error:  # whatever a module does
        said = Said(raised=_raised(error))
    with suppress(EOFError, OSError):  # the worker has ended
        say(said)
        while True:
            say(_run(_JOBS.decode(wire.recv_bytes()), say))


def _import(module: str) -> None:
    forks.importing = module
    try:
        import_module(module)
    finally:
        forks.importing = ""


def _ignore(number: int, frame: object) -> None:
    """Do nothing on a signal: the worker decides when its pool processes end."""


def _be_copy(wire: int) -> None:
    """Have a copy that a function forks no part in the calls, and end when it is asked to."""
    forks.lead_nowhere([wire])
    for number in _STOPS:
        if signal.getsignal(number) is _ignore:  # else it is the function's own
            signal.signal(number, signal.SIG_DFL)
    forks.let_signals_come()


def _end_with_worker() -> None:
    """Have the system kill this process when its standard input closes, also while it is busy outside of Python.

    So are the other processes of its group: what the function has started.

    Where the system cannot (SIGIO ends no process on macOS), the process ends with its call.
    """
    lifeline = os.dup(0)
    forks.lead_nowhere([0])
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # it has closed already
        os._exit(1)


class _Forward(logging.Handler):
    """Hands log lines to the worker, which logs them as its own."""

    def __init__(self, say: Callable[[Said], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over."""
        try:
            error = record.exc_info[1] if record.exc_info else None
            words = arguments.error_words(error)
            trace = None if error is None else tracebacks.read_traceback(tracebacks.trace(error), words)
            self._say(Said(log=(record.name, record.levelno, _clean(record.getMessage()), _clean(trace or ""))))
        except Exception:
            self.handleError(record)


class _Notes:
    """Stands for `Notes`: the worker sends what the function notes."""

    is_cancelled = False  # who cancels the call kills the process

    def __init__(self, say: Callable[[Said], None]) -> None:
        self._say = say
        self.is_closed = False  # a thread that the function has left behind may still tell something

    def note(self, done: float, total: float | None, text: str) -> None:
        amount(done, "done")
        if total is not None:
            amount(total, "total")
        arguments.reason(text)
        if not self.is_closed:
            self._say(Said(note=(done, total, text)))


def _run(job: Job, say: Callable[[Said], None]) -> Said:
    notes: Any = _Notes(say)
    try:
        module, app, name = job.place
        _import(module)
        function = IN_PROCESSES.get(job.place)
        if function is None:
            raise BadFunction(
                f'{name}() has executor="process", but importing {module}, where it is written, does not make it a '
                f"function of App({app!r}): decorate it there"
            )
        opened = function.home.open(bytes(job.payload), "", job.task, Secrets())
        headers = opened.options.headers or {}
        context = Context(name, text(job.task), job.attempt, job.fence, None, job.tick, None, notes, headers)
        args = opened.args if opened.definition.signature.context is None else (context, *opened.args)
        value = opened.definition.function(*args, **opened.kwargs)
        if isinstance(value, Ack | Release | Retry | GiveUp):
            raise value
        if not opened.wants_result:
            return Said()
        return Said(value=msgspec.Raw(outcomes.encode(value, opened.definition.returns)))
    except BaseException as error:  # whatever a function raises is the end of its call
        return Said(raised=_raised(error))
    finally:
        notes.is_closed = True


def _raised(error: BaseException) -> Raised:
    decides: Any = released(cast("Any", decision(error)))
    if isinstance(decides, Ack):
        error = decides = BadResult("an Ack cannot leave a pool process: return the value, or take a thread")
    found = _described(error)
    found.hopeless = isinstance(error, BadResult)
    found.trace = "" if found.hopeless else tracebacks.trace(error).decode("utf-8", "replace")
    for name, one in _DECISIONS.items():
        if isinstance(decides, one):
            given = {field.name: getattr(decides, field.name) for field in fields(one)}
            found.decides = name, {key: _crossing(value) for key, value in given.items()}
    return found


def _described(error: BaseException, depth: int = 1) -> Raised:
    kind = type(error)
    places = [(str(one.__module__), _clean(one.__qualname__)) for one in kind.__mro__]
    if not arguments.is_group(error):
        return Raised(places, arguments.error_words(error).removeprefix(kind.__name__).removeprefix(": "))
    group: Any = error
    # deeper than any text tells, groups are left out: they may hold each other in many ways
    inside = members(group) if depth > arguments.DEEPEST + 1 else group.exceptions
    return Raised(places, _clean(group.message), [_described(one, depth + 1) for one in inside])


def _crossing(value: Any) -> Any:
    return _clean(value) if isinstance(value, str) else value.total_seconds() if isinstance(value, timedelta) else value


def _clean(words: str) -> str:
    return words.encode("utf-8", "backslashreplace").decode()
