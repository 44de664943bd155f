"""Makes the methods of both faces from functions that give flows: each verb has one signature and one docstring.

`put = blocking(QueueFlows.put)` in a class makes a method that carries out the flow which `put` of the object's `flows`
gives; `awaiting` does the same for asyncio.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import update_wrapper
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from timeoutq.verbs.sending import Flow

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])


class Walk(Generic[T]):
    """A walk through many things: `more` reads the next part of them, until the walk `is_over`."""

    def __init__(self, read: Callable[[str], Flow[tuple[Sequence[T], str | None]]]) -> None:
        """Prepare; `read` gives a part from a cursor on, and the cursor of the rest."""
        self._read = read
        self._cursor: str | None = "0"

    @property
    def is_over(self) -> bool:
        """Whether there is no further part."""
        return self._cursor is None

    def more(self) -> Flow[Sequence[T]]:
        """Read the next part."""
        found, self._cursor = yield from self._read(self._cursor or "0")
        return found


def blocking(method: Callable[Concatenate[Any, P], Flow[T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a method for code that blocks."""

    def made(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", face.run(getattr(face.flows, method.__name__)(*args, **kwargs)))

    return like(made, method)


def awaiting(method: Callable[Concatenate[Any, P], Flow[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Make a method for asyncio."""

    async def made(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", await face.run(getattr(face.flows, method.__name__)(*args, **kwargs)))

    return like(made, method)


def iterating(method: Callable[Concatenate[Any, P], Walk[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Make a method that goes through all things of a walk, for code that blocks."""

    def made(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        walk = getattr(face.flows, method.__name__)(*args, **kwargs)
        while True:
            yield from face.run(walk.more())
            if walk.is_over:
                return

    return like(made, method, r"Iterator[\1]")


def aiterating(method: Callable[Concatenate[Any, P], Walk[T]]) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Make a method that goes through all things of a walk, for asyncio."""

    async def made(face: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        walk = getattr(face.flows, method.__name__)(*args, **kwargs)
        while True:
            for one in await face.run(walk.more()):
                yield one
            if walk.is_over:
                return

    return like(made, method, r"AsyncIterator[\1]")


def like(made: M, method: Callable[..., object], gives: str = r"\1") -> M:
    """Give a made method the name, the arguments and the docstring of a function."""
    update_wrapper(made, method)
    given = re.sub(r"\w+(?:\[(.*)\])?", gives, method.__annotations__["return"], count=1)
    told: Any = made
    del told.__wrapped__
    told.__annotations__ = {**method.__annotations__, "return": given}
    told.__signature__ = signature(method).replace(return_annotation=given)
    return made
