"""The lifespan of a worker: opened before its first claim, closed after its last handler."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self, cast

from timeoutq.words import telling
from timeoutq.words.arguments import class_name, error_words
from timeoutq.words.errors import InvalidInput, TimeoutqError, WorkerBroken
from timeoutq.worker.handlers import Lifespan, discard, load, name_of, without_arguments

log = logging.getLogger(__name__)

NOT_ENTERED = "the lifespan raised this when it was entered: no task is being worked on in this process"
"""The note on an error with which a lifespan kept a worker from beginning."""


def told(error: BaseException) -> str:
    """Give the text of an error that ended a worker; says so if the lifespan raised the error when it was entered."""
    said = error_words(error)
    return f"{said} ({NOT_ENTERED})" if NOT_ENTERED in getattr(error, "__notes__", ()) else said


def checked(lifespan: Lifespan[Any] | str | None) -> Lifespan[Any] | None:
    """Give the lifespan, imported if it is a path; raises `InvalidInput` for what gives no async context manager."""
    found: Any = load(lifespan, "lifespan") if isinstance(lifespan, str) else lifespan
    if isinstance(found, AbstractAsyncContextManager):
        raise InvalidInput(
            "lifespan= takes the function that gives an async context manager, such as one that @asynccontextmanager "
            "decorates, not what it gave: write it without ()"
        )
    if inspect.isasyncgenfunction(found) or (found is not None and not callable(found)):
        name = name_of(found) if callable(found) else type(found).__name__
        raise InvalidInput(f"lifespan {name} gives no async context manager: decorate it with @asynccontextmanager")
    if found is not None:
        without_arguments(found)
    return cast("Lifespan[Any] | None", found)


class Span:
    """An async context manager around a worker's life; without a lifespan it does nothing."""

    def __init__(self, lifespan: Lifespan[Any] | None, on_lost: Callable[[BaseException], object]) -> None:
        """Prepare; `on_lost` is called with the reason if the lifespan ends though nobody has left it."""
        self._lifespan = lifespan
        self._on_lost = on_lost
        self._task: asyncio.Task[None] | None = None
        self.entered = False  # whether there is a state now; False also when entering was given up
        self.state: Any = None
        self.context = copy_context()  # the context variables as they are after entering
        self._given_up = False

    async def __aenter__(self) -> Self:
        """Enter. Raises what the lifespan raises, and `InvalidInput` for one that gives no async context manager."""
        if self._lifespan is None:
            self.entered, self.context = True, copy_context()
            return self
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        # in a task of its own: task groups and cancel scopes want to be entered and left in one task, and cancel it
        self._task = asyncio.create_task(self._hold(self._lifespan), name="lifespan")
        self._task.add_done_callback(lambda _: self._ready.set())
        await self._wait(self._ready.wait())
        if self._task.done() and not self._given_up:
            error = None if self._task.cancelled() else self._task.exception()
            if error is not None and not isinstance(error, TimeoutqError):
                with contextlib.suppress(Exception):  # it may be of a foreign class
                    error.add_note(NOT_ENTERED)
            self._task.result()
        self._task.add_done_callback(self._look)
        return self

    async def _wait(self, what: Awaitable[object]) -> None:
        assert self._task is not None
        try:
            await what
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise

    def _look(self, task: asyncio.Task[None]) -> None:
        if self.entered and not self._over.is_set():
            self.entered = False
            error = None if task.cancelled() else task.exception()
            said = "it was cancelled" if error is None else error_words(error)
            lost = WorkerBroken(f"the lifespan ended though the worker had not: {said}; does it run tasks of its own?")
            lost.__cause__ = error
            self._on_lost(lost)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave. Raises what the lifespan raises; if an error ends the worker already, only logs it."""
        if self._task is None:
            return
        self._over.set()
        await self._wait(asyncio.wait({self._task}))
        if self._given_up and self._task.cancelled():
            return
        if error is None:
            self._task.result()
        elif not self._task.cancelled() and self._task.exception() is not None:
            telling.say(log, logging.ERROR, "leaving the lifespan failed", exc_info=self._task.exception())

    def give_up(self) -> None:
        """Cancel entering, or leaving, whichever is under way."""
        if self._task is not None and (not self.entered or self._over.is_set()):
            self._given_up = True
            self._task.cancel()

    async def _hold(self, lifespan: Lifespan[Any]) -> None:
        manager: Any = lifespan()
        if not isinstance(cast("object", manager), AbstractAsyncContextManager):
            discard(manager)
            raise InvalidInput(
                f"lifespan {name_of(lifespan)} gave no async context manager but {class_name(manager)}: "
                "is @asynccontextmanager missing?"
            )
        try:
            async with manager as state:
                self.state, self.context, self.entered = state, copy_context(), True
                self._ready.set()
                await self._over.wait()
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # a task that raises SystemExit ends the event loop, in which the worker still has work to do; and no other
            # error of this kind may pass for the end of the process that somebody asked for
            if isinstance(error, KeyboardInterrupt) and not self.entered:
                raise  # Ctrl-C
            name = class_name(error)
            when = "it was left" if self._over.is_set() else "the worker still ran"
            when = when if self.entered else "it was entered"
            raise WorkerBroken(
                f"the lifespan raised {name} when {when}{error_words(error).removeprefix(name)}"
            ) from error
