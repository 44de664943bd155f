"""Handlers: their kinds, their parameters, and the meaning of their results. No Redis here."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter
from operator import attrgetter, is_
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from timeoutq.server.calls import Kept
from timeoutq.words.arguments import class_name, error_words, is_group
from timeoutq.words.errors import HandlerNotFound, InvalidInput, WrongResult
from timeoutq.words.model import Ack, Lease, Release, Task
from timeoutq.words.retry import GiveUp, Retry, RetryPolicy, members
from timeoutq.words.telling import running

S = TypeVar("S")

Result = Ack | Release | Retry | GiveUp | None
"""What a handler returns or raises: after None and `Ack` the task is done, `Release` gives the task back, `Retry` and
`GiveUp` are failed attempts.

An exception group is a failed attempt: if there is a `GiveUp` anywhere in the group, the task is given up; if not, the
`Retry` with the longest pause decides. A group of nothing but `Release` gives the task back, after the longest delay.
An `Ack` in a group does not count, because the other tasks of the `TaskGroup` were cancelled."""

Returned = Result | Awaitable[Result]  # what calling a handler returns: a result, or an awaitable that gives a result

Handler = Callable[[Lease], Returned] | Callable[[Lease, Any], Returned]
"""Takes a lease, or a lease and the state that `lifespan=` yielded. It is an `async def`, or a `def`, which runs in a
thread."""

Lifespan = Callable[[], AbstractAsyncContextManager[S]]
"""Called once in each process; gives a context manager, which is entered before the first claim and left after the last
handler."""

RESULTS = (Ack, Release, Retry, GiveUp)
EXPECTED = "expected None, Ack, Release, Retry or GiveUp"

LEAVES_NO_ID = Ack(keep_id=False)
"""The end of a task that leaves nothing: to return this very value is as quick as to return None."""

_DEEPEST = 10  # an awaitable may give another awaitable; a longer chain of awaitables than this counts as endless

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a failed attempt by a handler that `Serves`."""

    policy: RetryPolicy | None = None  # decides when the task is tried again; None: that of the worker
    result: Callable[[], Kept] | None = None  # makes the result that the queue keeps if the task is given up
    then: Callable[[str], Task] | None = None  # makes the task that is put into this queue before it is given up


@dataclass(kw_only=True)
class Unrun(Release):
    """A handler that `Serves` returns this for a task that only another worker can run, or that nobody can run now.

    Such a release counts against no limit. Once `within` seconds have passed since the first such release after the
    last failed attempt, the task is not released any more: the attempt fails with `error`.
    """

    within: float
    error: BaseException

    __hash__ = Release.__hash__


class AckOfValue(NamedTuple):
    """A handler that `Serves` returns this for a result that is kept, and nothing else: such an end is quick."""

    kept: Kept
    keep_ms: int | None  # for how long done keeps the id; 0: not at all, None: as the queue says


USUAL = (type(None), AckOfValue)  # the classes of ends that need no look at what goes with them


@dataclass(frozen=True, slots=True)
class Expired:
    """A handler that `Serves` returns this for a task that it does not begin any more: the task goes to failed."""

    words: str  # begin with "expired: "
    then: Task | None = None  # what is put first


@dataclass(frozen=True, slots=True)
class AckAfter:
    """A handler that `Serves` returns this when something must be with a server before the ack.

    No trouble of the server is a failed attempt: the worker calls `first` again until it returns, and the handler keeps
    its place meanwhile. An error that is no trouble of a server ends the attempt.
    """

    first: Callable[[], Awaitable[object]]
    ack: Ack


class Hopeless(Exception):  # no name with Error: it only carries one
    """Carries the error of a result that cannot be used: no repeat mends it, so the task is given up at once."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        # the frames are those of this package, and say nothing of the handler
        self.error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None


@dataclass(frozen=True, slots=True)
class Staff:
    """The queues of a worker, which it closes when it ends, and a handler for them."""

    queues: Any
    handler: Serves


class Hires(ABC):
    """An app, which stands for queues and a handler, and may be passed to a worker alone."""

    @abstractmethod
    def at_work(self) -> Staff:
        """Give the queues and the handler."""


class OfApp:
    """A function of an app, which takes the arguments of its calls: a worker runs the app."""


class Serves(ABC):
    """A handler that is an object, and that the worker asks, once for each queue, what runs the tasks of the queue."""

    lifespan: Lifespan[Any] | None = None  # of its workers, if they are given no other

    def most(self, concurrency: int) -> int:
        """Give how many tasks a worker of this concurrency is to run at once."""
        return concurrency

    @abstractmethod
    def serve(self, place: Any) -> Callable[[Lease], Awaitable[Result | AckAfter | AckOfValue | Expired]]:
        """Give what runs the tasks of this queue, a `Place`; the payloads of leases are the bytes as they stand."""

    def judge(self, lease: Lease, error: BaseException) -> Verdict | None:
        """Judge a failed attempt, in the event loop; None leaves it to the worker."""
        return None

    async def __call__(self, lease: Lease) -> Result:
        """Refuse: only a worker knows of which queue a lease is."""
        raise InvalidInput(f"{name_of(self)} runs in a worker: pass it to Worker(…), which calls what serve(…) gives")


@dataclass(frozen=True, slots=True)
class Shape:
    """How a handler is called."""

    name: str
    is_async: bool
    """Whether a call of the handler only makes a coroutine. If not, the call may block, so it is made in a thread."""
    takes_state: bool


def parts_of(path: str, kind: str = "handler") -> tuple[str, str]:
    """Split `module:function` into its two names, and import nothing; raises `HandlerNotFound` for other words."""
    module, _, name = path.partition(":")
    what = "no app" if kind == "app" else f"not a {kind}"
    if not module or not name:
        form = "module:app, like shop.tasks:app" if kind == "app" else "module:function, like demo.crawl:fetch"
        raise HandlerNotFound(f"{path!r} is {what}: write {form}")
    if module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise HandlerNotFound(f"{path!r} is {what}: a module has no .py, write {dotted}:{name}")
    return module, name


def load(path: str, kind: str = "handler") -> Any:
    """Import `module:function`; raises `HandlerNotFound`, whose message says what is missing."""
    found = imported(path, kind)
    if isinstance(found, Hires):
        raise HandlerNotFound(f"{path!r} is an App, which brings its functions: leave the {kind} out, use --app {path}")
    if not callable(found):
        raise HandlerNotFound(f"{kind} {path!r} is not callable but {type(found).__name__}")
    return found


def imported(path: str, kind: str) -> Any:
    """Import `module:name`, whatever it is; raises `HandlerNotFound`."""
    module, name = parts_of(path, kind)
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:
        where = [line] if (line := _line_of(error, module)) else []
        if isinstance(error, ModuleNotFoundError):
            where.append(f"searched from {sys.path[0] or Path.cwd()}")
        text = error_words(error) + (f" ({'; '.join(where)})" if where else "")
        raise HandlerNotFound(f"{kind} {path!r}: importing {module} raised {text}") from error
    try:
        return attrgetter(name)(found)
    except AttributeError:
        raise HandlerNotFound(f"{kind} {path!r}: module {module} has no {name}") from None


def _line_of(error: BaseException, module: str) -> str:
    """Give the last line of the program at which the import of a module failed; empty if it came to none."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        return ""  # its words tell of the line
    libraries, here, found = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<"), Path.cwd(), ""
    for frame, line in list(traceback.walk_tb(error.__traceback__))[1:]:
        file, package = frame.f_code.co_filename, str(frame.f_globals.get("__name__")).partition(".")[0]
        if not file.startswith(libraries) or package == module.partition(".")[0]:  # a program may be installed, too
            path = Path(file)
            found = f"{path.relative_to(here) if path.is_relative_to(here) else path}, line {line}"
    return found


# ---- before the handler runs


def name_of(handler: object) -> str:
    """Give the handler's name for messages: the name of the function, or of the callable object's class."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    name = getattr(handler, "__qualname__", None)
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else class_name(handler)


def shape_of(handler: object, *, has_state: bool = False) -> Shape:
    """Say how a handler is called; raises `InvalidInput` for what takes no lease, or more than lease and state."""
    if not callable(handler):
        raise InvalidInput(f"handler must be callable, not {class_name(handler)}")
    if isinstance(handler, OfApp):
        raise InvalidInput(
            f"{name_of(handler)}() is a function of an App, and takes no lease: let the worker run the App, with "
            "Worker(app), or with `timeoutq worker --app module:app`"
        )
    name, inner = name_of(handler), _inner(handler)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidInput(
            f"the handler {name} is a generator function: calling it runs nothing; return Ack(put=[…]) where it yields"
        )
    return Shape(name, inspect.iscoroutinefunction(inner), _takes_state(handler, name, has_state))


def _inner(handler: Callable[..., Any]) -> Any:
    """Give the function that a call runs first: the function behind all partials, or the object's `__call__`."""
    found: Any = handler
    while isinstance(found, functools.partial):
        found = found.func
    if inspect.isroutine(found) or inspect.isclass(found):
        return found
    if inspect.iscoroutinefunction(found):
        return found  # an object that is marked as a coroutine function
    return getattr(cast("Any", type(found)), "__call__", found)  # noqa: B004  # we need the method itself


def _takes_state(handler: Callable[..., Any], name: str, has_state: bool) -> bool:
    signature = _signature(handler)
    if signature is None:
        return False  # a builtin: Python does not know its parameters
    parameters = list(signature.parameters.values())
    takes_one, takes_two = _takes(signature, 1), _takes(signature, 2)
    if not (takes_one or takes_two):
        takes = ", ".join(map(str, parameters))
        raise InvalidInput(f"the handler {name} takes ({takes}); handlers are called with (lease) or (lease, state)")
    if not (takes_one or has_state):
        raise InvalidInput(
            f"the handler {name} takes ({parameters[0].name}, {parameters[1].name}), but there is no state to give: "
            "pass lifespan= to the worker (of the command: --lifespan module:function), or take (lease) alone"
        )
    if not (has_state and takes_two):
        return False
    second = [one for one in parameters if one.kind in _POSITIONAL][1:2]
    return not takes_one or not second or second[0].name == "state"


def without_arguments(lifespan: Callable[..., Any]) -> None:
    """Raise `InvalidInput` for a lifespan that cannot be called without arguments."""
    signature = _signature(lifespan)
    if signature is not None and not _takes(signature, 0):
        takes = ", ".join(map(str, signature.parameters.values()))
        raise InvalidInput(
            f"the lifespan {name_of(lifespan)} takes ({takes}); a lifespan is called without arguments: give each "
            "parameter a default, or read the settings inside"
        )


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def _signature(handler: Callable[..., Any]) -> inspect.Signature | None:
    """Give the signature of a call. A wrapper with `*args` takes the parameters of the function that it wraps."""
    found: Any = handler
    while True:
        try:
            signature = inspect.signature(found, follow_wrapped=False)
        except (TypeError, ValueError):
            return None
        wrapped = getattr(found, "__wrapped__", None)
        if wrapped is None or all(one.kind is not Parameter.VAR_POSITIONAL for one in signature.parameters.values()):
            return signature
        if inspect.ismethod(found) and not inspect.ismethod(wrapped):
            wrapped = functools.partial(wrapped, found.__self__)
        found = wrapped


# ---- the results of the handler


async def resolve(given: Any) -> Any:
    """Await the result of a handler, again and again, until it is no awaitable. Raises what the handler raises."""
    for _ in range(_DEEPEST):
        if not inspect.isawaitable(given):
            return given
        given = await given
    discard(given)
    raise WrongResult(f"the handler returned an awaitable that gives an awaitable, {_DEEPEST} deep; {EXPECTED}")


def discard(given: Any) -> None:
    """Close a coroutine that nobody is going to await."""
    if inspect.iscoroutine(given):
        with suppress(BaseException):  # it is the user's code that runs here
            given.close()


def released(raised: BaseException) -> BaseException:
    """Give the exception of a handler; for a group of nothing but `Release`, one `Release` with the longest delays."""
    if not is_group(raised):
        return raised
    inside = members(cast("BaseExceptionGroup[BaseException]", raised))
    releases = [one for one in inside if isinstance(one, Release)]
    if not releases or len(releases) < len(inside):
        return raised
    return Release(max(one.delay for one in releases), max(one.block_host for one in releases))


def wrong_result(name: str, given: Any) -> WrongResult:
    """Write the error for a result that means nothing to the worker."""
    hint = ""
    if inspect.isgenerator(given) or inspect.isasyncgen(given):
        what = "a generator" if inspect.isgenerator(given) else "an async generator"
        what, hint = f"{what}, so nothing of it has run", "; links go into Ack(put=[…])"
    elif isinstance(given, type):
        own = given.__name__
        what, hint = f"the class {own}", f"; write {own}(…)" if given in RESULTS else ""
    elif isinstance(given, BaseException):
        what, hint = f"the exception {class_name(given)}", "; raise it instead"
    else:
        kind = class_name(given)
        what = f"{'an' if kind[:1] in 'aeiouAEIO' else 'a'} {kind}"
        if isinstance(given, list | tuple | set | frozenset | dict | str):
            hint = "; links go into Ack(put=[…])"
    return WrongResult(f"the handler {name} returned {what}; {EXPECTED}{hint}")


# ---- the surroundings of the handler


class Surroundings:
    """The context variables with which each handler begins, and whether a handler has changed them."""

    def __init__(self, context: Context) -> None:
        self._context = context.copy()
        self._context.run(running.set, None)
        self._values = list(self._context.values())
        self.bare = len(self._values) == 1
        """Whether `running` is the only variable. If so, `len(copy_context()) > 1` shows that a handler has set one."""

    def fresh(self) -> Context:
        """Give a context that no handler has touched."""
        return self._context.copy()

    def changed(self) -> bool:
        """Say whether a handler has changed the caller's context; compares by identity, so no foreign code runs."""
        running.set(None)
        now = copy_context()
        return len(now) != len(self._values) or not all(map(is_, now.values(), self._values))
