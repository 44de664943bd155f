"""One request, as an endpoint sees it: who asks, about which queue, which words; and whether the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.access import Answer
from timeoutq.gateway.bodies import unfit
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.fairness import Memory, Places
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Message, Receive, Scope, Settings

SLOWEST = 65_536
"""The fewest bytes a second at which a large body may come."""


class ClientGone(Exception):
    """The client has hung up: nobody reads an answer."""


@dataclass(slots=True)
class State:
    """The things that all requests of one application share."""

    settings: Settings
    queues: Queues
    places: Places
    heavy_places: Places
    """The places of requests with large bodies, which take many times their bytes of memory while they are read."""
    memory: Memory

    @classmethod
    def of(cls, settings: Settings) -> State:
        """Make the state that an application begins with."""
        places, heavy = (Places(most, settings.most_in_line) for most in (settings.most_at_once, settings.most_heavy))
        return cls(settings, Queues(settings), places, heavy, Memory(settings.most_bytes))


def bounded_in_time(receive: Receive, seconds: float) -> Receive:
    """Give a `receive` that raises a problem when the body is not there within `seconds`."""
    until: float | None = None
    over = False

    async def hear() -> Message:
        nonlocal until, over
        if over:
            return await receive()
        until = until or asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise Problem(408, "too-slow", f"the body did not come within {seconds:g} s") from None
        over = message["type"] != "http.request" or not message.get("more_body")
        return message

    return hear


class Request:
    """A request for one route of the API."""

    __slots__ = (
        "_bytes", "_cycle", "_headers", "_is_heavy", "_receive", "_watch", "answer", "caller",
        "has_place", "name", "scope", "state", "undo",
    )  # fmt: skip

    def __init__(self, state: State, scope: Scope, receive: Receive, caller: Caller, name: str, answer: Answer) -> None:
        self.state = state
        self.scope = scope
        self.caller = caller
        self.name = name
        """The name of the queue; empty where the route has none."""
        self.answer = answer
        self.undo: Callable[[], Awaitable[None]] | None = None
        """Undoes the call of the endpoint, if the client does not get its answer."""
        self.has_place = False
        """Whether one of the places for requests is taken by this one."""
        self._bytes = 0
        self._is_heavy = False
        self._receive = receive
        self._cycle: Any = getattr(receive, "__self__", None)
        """uvicorn's own object, which notes whether the body is here, and that the client has hung up."""
        self._watch: asyncio.Task[None] | None = None
        self._headers: dict[bytes, bytes] | None = None

    async def queue(self) -> AnyAsyncQueue:
        """Give the client of the queue, whether anything was put there or not."""
        return await self.state.queues.get(self.name, self.caller.name)

    async def known(self) -> AnyAsyncQueue:
        """Give the client of the queue; raises the problem that it is unknown."""
        return await self.state.queues.known(self.name, self.caller.name)

    # ---- the question

    def header(self, name: bytes) -> bytes:
        """Give the value of a header, the first one if there are several; empty if there is none."""
        if self._headers is None:
            self._headers = dict(reversed(self.scope["headers"]))
        return self._headers.get(name, b"")

    def parameters(self, wanted: type[Struct]) -> dict[str, Any]:
        """Read the arguments behind the `?` of the URL; raises a problem if they do not fit."""
        try:
            words = self.scope.get("query_string", b"").decode("ascii")
            pairs = parse_qsl(words, keep_blank_values=True, errors="strict", max_num_fields=20)
        except ValueError as error:
            raise Problem(422, "bad-body", f"the query of the URL cannot be read: {error}") from None
        try:
            return asdict(convert(dict(pairs), wanted, strict=False))
        except ValidationError as error:
            raise Problem(422, "bad-body", unfit(wanted, error)) from None

    # ---- the body

    async def body(self) -> bytes:
        """Read the body; raises a problem if it is too large or comes too slowly. A large one waits for its place."""
        settings, loop = self.state.settings, asyncio.get_running_loop()
        declared = self.header(b"content-length")
        self._fits(int(declared or 0) if len(declared) <= 18 else settings.body_limit + 1)
        until = loop.time() + settings.body_seconds
        parts, size, more = list[bytes](), 0, True
        while more:
            if parts:
                self.count_bytes(size)
            # a slow line may need longer for a large body; a byte now and then does not help
            left = until + size / SLOWEST - loop.time()
            data, more = await self._next(left)
            parts.append(data)
            size += len(data)
            self._fits(size)
        if size > settings.heavy:
            self.count_bytes(size)
            await self.state.heavy_places.take(self.caller.name)
            self._is_heavy = True
        return b"".join(parts)

    async def parts(self) -> AsyncIterator[bytes]:
        """Read a body of any length, part by part."""
        more = True
        while more:
            data, more = await self._next(self.state.settings.body_seconds)
            yield data

    def count_bytes(self, size: int) -> None:
        """Tell how many bytes of the body are in memory now; raises a problem if there are too many of this caller."""
        if size != self._bytes:
            self.state.memory.change(self.caller.name, size - self._bytes)
            self._bytes = size

    def _fits(self, size: int) -> None:
        limit = self.state.settings.body_limit
        if size > limit:
            raise Problem(413, "too-large", f"the body has more than {limit:,} bytes: send it in parts, or as NDJSON")

    async def _next(self, seconds: float) -> tuple[bytes, bool]:
        """Give the next part of the body, and whether more follows."""
        try:
            if getattr(self._cycle, "more_body", None) is False:  # all of it is here, so nobody waits for it
                message = await self._receive()
            else:
                async with asyncio.timeout(seconds):
                    message = await self._receive()
        except TimeoutError:
            seconds = self.state.settings.body_seconds
            raise Problem(408, "too-slow", f"the body, or its next part, did not come within {seconds:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return cast("bytes", message.get("body", b"")), bool(message.get("more_body"))

    # ---- the client

    @property
    def tells_when_gone(self) -> bool:
        """Whether `is_gone` is right without `watch`."""
        return isinstance(getattr(self._cycle, "disconnected", None), bool)

    def watch(self, tell: Callable[[], Any]) -> None:
        """Call `tell` if the client hangs up. The body must have been read."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._until_gone())
            self._watch.add_done_callback(lambda task: None if task.cancelled() else tell())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, as far as this is known or watched."""
        if self._watch is not None and self._watch.done() and not self._watch.cancelled():
            return True
        if getattr(self._cycle, "disconnected", None) is True:
            return True
        # a turn of the loop before uvicorn notes it, asyncio drops what is written
        is_closing = getattr(getattr(self._cycle, "transport", None), "is_closing", None)
        return is_closing is not None and bool(is_closing())

    def step_aside(self) -> None:
        """Give the place back: from now on the request only waits."""
        if self.has_place:
            self.has_place = False
            self.state.places.give(self.caller.name)

    def close(self) -> None:
        """Watch no more, and give the place and the memory back."""
        self.step_aside()
        self.count_bytes(0)
        if self._is_heavy:
            self._is_heavy = False
            self.state.heavy_places.give(self.caller.name)
        if self._watch is not None:
            self._watch.cancel()
