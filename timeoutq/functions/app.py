"""`App`: the functions of a program, with all that its workers, schedules and tests need."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from timeoutq.functions.calls import NO_INNER, Program
from timeoutq.functions.context import Middleware
from timeoutq.functions.errors import BadFunction
from timeoutq.functions.running import Calls
from timeoutq.words.arguments import shown
from timeoutq.words.errors import HandlerNotFound, TimeoutqError, WorkerBroken
from timeoutq.worker import handlers, lifespan
from timeoutq.worker.handlers import Hires, Staff, name_of

if TYPE_CHECKING:
    from timeoutq.functions.scheduling import AppSchedules
    from timeoutq.functions.testing import AppTest
    from timeoutq.worker.worker import Worker

Around = TypeVar("Around", bound=Middleware)
Life = TypeVar("Life", bound=Callable[[], Any])

_ASK = "import sys; from timeoutq.functions.app import tell; tell(sys.argv[1])"


class App(Program, Hires):
    """Functions that can be called from elsewhere, under one name."""

    def middleware(self, function: Around, /) -> Around:
        """Run this function around each call: `async def m(ctx, call_next)`; the first that was added is the outermost.

        `await call_next()` runs the function and gives what it returned, or raises what it raised; what the middleware
        returns stands for that. `call_next(ctx)` does the same, and hands on a context that the middleware has made,
        with `dataclasses.replace`. A middleware that is a plain `def` writes `call_next()`: it runs in the thread of
        the function, inside of all that are an `async def`; an app that has one has no functions that are an
        `async def`. Raises `BadFunction`.
        """
        given: Any = function
        if not inspect.isroutine(given):
            raise BadFunction(f"a middleware is a function that takes (ctx, call_next), not {shown(function)}")
        try:
            inspect.signature(given).bind(None, None)
        except TypeError as error:
            raise BadFunction(f"a middleware takes (ctx, call_next): {name_of(given)}: {error}") from error
        is_async = inspect.iscoroutinefunction(given)
        coroutine = next((name for name, one in self.functions.items() if one.definition.is_async), None)
        if not is_async and coroutine is not None:
            raise BadFunction(f"{name_of(given)} is a def, and {coroutine}() an async def: {NO_INNER}")
        (self.middlewares if is_async else self.inner).append(function)
        return function

    def lifespan(self, function: Life) -> Life:
        """Make this the lifespan: each worker process enters it before its first call, and leaves it after the last.

        What the lifespan yields is `ctx.state`. A lifespan is an async generator function that takes no parameters and
        yields once, or what `@asynccontextmanager` makes of one. Raises `BadFunction`.
        """
        if self.life is not None:
            raise BadFunction(f"{self!r} has a lifespan already: enter both context managers in one")
        made: Any = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
        self.life = lifespan.checked(made)
        return function

    def worker(self, url: str | None = None, *, timeout: float = 30.0, **options: Any) -> Worker:
        """Give a worker that runs the calls of all queues of this app; `await worker.run()` starts it.

        `url` is the server, or else that of the app, `timeout` the length of a lease in seconds; `options` are those of
        `Worker`. To work on a queue that lies in shards, open it, and pass it and `Calls(app)` to `Worker`.
        """
        from timeoutq.worker.worker import Worker  # a program that only defines functions needs no worker

        return Worker(self.at_work(url, timeout=timeout), **options)

    def at_work(self, url: str | None = None, *, timeout: float = 30.0) -> Staff:
        """Give the queues of the app, and the handler for them: what `Worker(app, …)` asks for."""
        from timeoutq.client import AsyncQueue  # likewise no client

        where = self.url if url is None else url
        opened = [AsyncQueue(name, where, timeout=timeout) for name in self.queues.names]
        weights = self.queues.weights
        return Staff(opened if weights is None else dict(zip(opened, weights, strict=True)), Calls(self))

    @property
    def schedules(self) -> AppSchedules:
        """The schedules of calls in the queues of this app."""
        from timeoutq.functions.scheduling import AppSchedules  # likewise

        return AppSchedules(self)

    def test(self, *, start: float | None = None) -> AppTest:
        """Put the app on queues in memory, for a test: `with app.test() as t`, then `t.run()` and `t.advance(3600)`.

        The clock starts at `start`, Unix seconds, or in November 2023, and the test advances it. An app is in one test
        at a time. Raises `MissingExtra` without fakeredis.
        """
        from timeoutq.functions.testing import AppTest  # programs need no fakeredis

        return AppTest(self, start)


# ---- for `timeoutq worker --app module:app`


def load_app(path: str) -> App:
    """Import `module:app`; raises `HandlerNotFound`, whose message says what is missing."""
    found = handlers.imported(path, "app")
    if not isinstance(found, App):
        raise HandlerNotFound(f"app {path!r} is no App of timeoutq.functions but {type(found).__name__}")
    return found


def ask_queues(path: str) -> tuple[list[str], list[int], str | None]:
    """Give the names of the queues of `module:app`, their weights, if they have no order, and the app's own URL.

    A new process imports the app, because threads that its module starts would not survive the forks of the command.
    Raises `HandlerNotFound`, and `WorkerBroken` if something has killed that process.
    """
    handlers.parts_of(path, "app")
    command = [sys.executable, "-c", _ASK, path]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603  # whoever names the app runs it
    said = done.stdout.decode("utf-8", "replace").splitlines()  # the module may print lines of its own before
    if done.returncode < 0:  # it ran out of memory, or somebody ended it: the next try may well succeed
        raise WorkerBroken(f"the process that imported the app {path!r} was killed by signal {-done.returncode}")
    if done.returncode != 0 or not said:
        raise HandlerNotFound(f"app {path!r}: importing it ended the process, with exit code {done.returncode}")
    found = json.loads(said[-1])
    if "error" in found:
        raise HandlerNotFound(found["error"])
    return found["names"], found["weights"], found["url"]


def tell(path: str) -> None:
    """Print the queues of an app for `ask_queues`."""
    found: dict[str, object]
    try:
        app = load_app(path)
        found = {"names": app.queues.names, "weights": app.queues.weights or [], "url": app.url}
    except TimeoutqError as error:
        found = {"error": str(error)}
    print("\n" + json.dumps(found), flush=True)  # noqa: T201  # the process that asks reads this
