"""One request, as an endpoint sees it: who asks, about which queue, which words; and whether the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast
from urllib.parse import parse_qsl

from msgspec import Struct, convert
from msgspec.structs import asdict

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.access import Answer
from timeoutq.gateway.fairness import Memory, Places
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Receive, Scope, Settings
from timeoutq.gateway.tokens import Tokens

SLOWEST = 65_536  # the fewest bytes a second at which a large body may come


class ClientGone(Exception):
    """The client has hung up: nobody reads an answer."""


class State:
    """The things that all requests of one application share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.queues = Queues(settings)
        self.tokens = Tokens(settings.url)
        self.places = Places(settings.most_at_once, settings.most_in_line)
        self.heavy_places = Places(settings.most_heavy, settings.most_in_line)  # of requests with large bodies
        self.memory = Memory(settings.most_bytes)
        self.polls: Any = None  # the `Polls` of the application
        self.probes: Any = None  # its `Probes`
        self.page: Any = None  # the looks of the page, if the application has one


class Request:
    """A request for one route."""

    __slots__ = (
        "_body", "_bytes", "_cycle", "_headers", "_is_heavy", "_watch", "answer", "app", "caller", "has_place", "name",
        "receive", "scope", "state", "undo",
    )  # fmt: skip

    def __init__(self, app: Any, state: State, scope: Scope, receive: Receive, answer: Answer, name: str) -> None:
        self.app, self.state, self.scope, self.receive = app, state, scope, receive
        self.answer = answer
        self.caller = answer.caller
        self.name = name  # the name in the path: of the queue; empty where the route has none
        self.undo: Callable[[], Awaitable[None]] | None = None
        """Undoes the call of the endpoint, if the client does not get its answer."""
        self.has_place = False  # whether one of the places for requests is taken by this one
        self._bytes = 0
        self._is_heavy = False
        self._body: bytes | None = None
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

    @property
    def kind(self) -> bytes:
        """The media type of the body, without its parameters."""
        return self.header(b"content-type").partition(b";")[0].strip().lower()

    def parameters(self, wanted: type[Struct]) -> dict[str, Any]:
        """Read the arguments behind the `?` of the URL; raises a problem if they do not fit."""
        try:
            words = self.scope.get("query_string", b"").decode("ascii")
            pairs = parse_qsl(words, keep_blank_values=True, errors="strict", max_num_fields=20)
        except ValueError as error:
            raise Problem(422, "bad-body", f"the query of the URL cannot be read: {error}") from None
        return asdict(convert(dict(pairs), wanted, strict=False))

    # ---- the body

    async def body(self, most: int | None = None) -> bytes:
        """Read the body; raises a problem if it has more than `most` bytes, or comes too slowly."""
        if self._body is None:
            limit, parts, size, more = most or self.state.settings.body_limit, list[bytes](), 0, True
            declared = self.header(b"content-length")
            _fits(int(declared or 0) if len(declared) <= 18 else limit + 1, limit)
            loop = asyncio.get_running_loop()
            until = loop.time() + self.state.settings.body_seconds
            while more:
                if parts:
                    self.count_bytes(size)
                # a slow line may need longer for a large body; a byte now and then does not help
                data, more = await self._next(until + size / SLOWEST - loop.time())
                parts.append(data)
                size += len(data)
                _fits(size, limit)
            self._body = b"".join(parts)
        return self._body

    async def parts(self) -> AsyncIterator[bytes]:
        """Read a body of any length, part by part."""
        more = True
        while more:
            data, more = await self._next(self.state.settings.body_seconds)
            yield data

    async def weigh(self, size: int) -> None:
        """Wait for a place to read a body of JSON of so many bytes, if this is a large one."""
        if size > self.state.settings.heavy:
            self.count_bytes(size)
            await self.state.heavy_places.take(self.caller.name)
            self._is_heavy = True

    def count_bytes(self, size: int) -> None:
        """Tell how many bytes of the body are in memory now; raises a problem if there are too many of this caller."""
        if size != self._bytes:
            self.state.memory.change(self.caller.name, size - self._bytes)
            self._bytes = size

    async def _next(self, seconds: float) -> tuple[bytes, bool]:
        """Give the next part of the body, and whether more follows."""
        try:
            if getattr(self._cycle, "more_body", None) is False:  # all of it is here, so nobody waits for it
                message = await self.receive()
            else:
                async with asyncio.timeout(seconds):
                    message = await self.receive()
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
        while (await self.receive())["type"] != "http.disconnect":
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


def _fits(size: int, limit: int) -> None:
    if size > limit:
        raise Problem(413, "too-large", f"the body has more than {limit:,} bytes: send it in parts, or as NDJSON")
