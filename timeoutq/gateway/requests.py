"""One request, as an endpoint sees it: who asks, about which queue, with what; and whether the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.problems import Problem, from_base64
from timeoutq.gateway.settings import Message, Receive, Scope
from timeoutq.gateway.state import State
from timeoutq.words.model import TaskId

SLOWEST = 65_536
"""The fewest bytes a second at which a large body may come."""


class ClientGone(Exception):
    """The client has hung up: nobody reads an answer."""


class Entrance(Protocol):
    """How the caller came in: see `access.py`."""

    was_refused: bool

    async def still_counts(self) -> bool:
        """Say whether the caller may still come in."""
        ...


def bounded_in_time(receive: Receive, seconds: float) -> Receive:
    """Give a `receive` that raises a problem when the body is not there within `seconds`.

    For endpoints that read the body themselves.
    """
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
        "_bytes", "_entrance", "_headers", "_is_heavy", "_parameters", "_receive", "_watch", "caller", "has_place",
        "name", "scope", "state", "undo",
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        scope: Scope,
        receive: Receive,
        caller: Caller,
        name: str,
        entrance: Entrance | None = None,
    ) -> None:
        self.state = state
        self.scope = scope
        self.caller = caller
        self.name = name
        """The name of the queue; empty where the route has none."""
        self.undo: Callable[[], Awaitable[None]] | None = None
        """Takes back what the endpoint did, if the client does not get its answer."""
        self._entrance = entrance
        self.has_place = False
        """Whether one of the places for requests is taken by this one."""
        self._bytes = 0
        self._is_heavy = False
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._headers: dict[bytes, bytes] | None = None
        self._parameters: dict[str, str] | None = None if scope.get("query_string") else {}

    async def queue(self) -> AnyAsyncQueue:
        """Give the client of the queue, whether anything was put there or not. The request has pinned it."""
        return await self.state.queues.pinned(self.name, self.caller.name, known=False)

    async def known(self) -> AnyAsyncQueue:
        """Give the client of the queue; raises the problem that it is unknown. The request has pinned it."""
        return await self.state.queues.pinned(self.name, self.caller.name, known=True)

    # ---- who asks

    async def still_counts(self) -> bool:
        """Say whether the caller may still come in: its token may have been revoked, or have run out."""
        return self._entrance is None or await self._entrance.still_counts()

    @property
    def was_refused(self) -> bool:
        """Whether the answer was not sent, because the caller may not come in any more."""
        return self._entrance is not None and self._entrance.was_refused

    # ---- what was asked

    def header(self, name: bytes) -> bytes:
        """Give the value of a header, the first one if there are several; empty if there is none."""
        if self._headers is None:
            self._headers = dict(reversed(self.scope["headers"]))
        return self._headers.get(name, b"")

    @property
    def parameters(self) -> dict[str, str]:
        """What stands behind the `?` of the URL."""
        if self._parameters is None:
            try:
                words = self.scope.get("query_string", b"").decode("ascii")
                pairs = parse_qsl(words, keep_blank_values=True, errors="strict", max_num_fields=20)
            except (UnicodeDecodeError, ValueError) as error:
                raise Problem(422, "bad-body", f"the query of the URL cannot be read: {error}") from None
            self._parameters = dict(pairs)
        return self._parameters

    def only(self, *known: str) -> dict[str, str]:
        """Give the parameters; raises a problem that names one that the route does not know."""
        found = self.parameters
        for name in found:
            if name not in known:
                raise Problem(422, "bad-body", f"unknown parameter {name!r:.80}: known: {', '.join(known) or 'none'}")
        return found

    def number(self, name: str, usual: int) -> int:
        """Give a parameter that is a whole number."""
        word = self.parameters.get(name)
        if word is None:
            return usual
        if not word.isascii() or not word.isdecimal() or len(word) > 9:
            raise Problem(422, "bad-body", f"{name}={word!r:.80} is not a whole number")
        return int(word)

    def id(self) -> TaskId:
        """Give the id that `?id=` or `?b64=` names."""
        found = self.parameters
        if ("id" in found) == ("b64" in found):
            raise Problem(422, "bad-body", "name one task: ?id=ID, or ?b64=BYTES in base64")
        if "id" in found:
            return found["id"]
        try:
            return from_base64(found["b64"])
        except ValueError as error:
            raise Problem(422, "bad-body", f"?b64= is not base64: {error}") from None

    # ---- the body

    async def body(self) -> bytes:
        """Read the body; raises a problem if it is too large or comes too slowly. A large one waits for its place."""
        data = await self._body()
        if len(data) > self.state.settings.heavy:
            self.count_bytes(len(data))
            await self.state.heavy_places.take(self.caller.name)
            self._is_heavy = True
        return data

    async def _body(self) -> bytes:
        seconds = self.state.settings.body_seconds
        declared = self.header(b"content-length")
        if len(declared) > 18 or int(declared or 0) > self.state.settings.body_limit:
            self._fits(b"", self.state.settings.body_limit + 1)
        message = await self._next(seconds)
        data = cast("bytes", message.get("body", b""))
        if not message.get("more_body"):
            return self._fits(data, len(data))
        until = asyncio.get_running_loop().time() + seconds
        parts, size = [data], len(data)
        while message.get("more_body"):
            self._fits(b"", size)
            self.count_bytes(size)
            # a slow line may need longer for a large body; a byte now and then does not help
            left = until + size / SLOWEST - asyncio.get_running_loop().time()
            message = await self._next(left)
            parts.append(cast("bytes", message.get("body", b"")))
            size += len(parts[-1])
        return self._fits(b"".join(parts), size)

    def count_bytes(self, size: int) -> None:
        """Tell how many bytes of the body are in memory now; raises a problem if there are too many of this caller."""
        if size != self._bytes:
            self.state.memory.change(self.caller.name, size - self._bytes)
            self._bytes = size

    async def parts(self) -> AsyncIterator[bytes]:
        """Read a body of any length, part by part."""
        more = True
        while more:
            message = await self._next(self.state.settings.body_seconds)
            more = bool(message.get("more_body"))
            yield cast("bytes", message.get("body", b""))

    def _fits(self, data: bytes, size: int) -> bytes:
        limit = self.state.settings.body_limit
        if size > limit:
            raise Problem(413, "too-large", f"the body has more than {limit:,} bytes: send it in parts, or as NDJSON")
        return data

    async def _next(self, seconds: float) -> Message:
        try:
            if self._has_come:
                message = await self._receive()
            else:
                async with asyncio.timeout(seconds):
                    message = await self._receive()
        except TimeoutError:
            detail = f"the body, or its next part, did not come within {self.state.settings.body_seconds:g} s"
            raise Problem(408, "too-slow", detail, headers={"connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    @property
    def _has_come(self) -> bool:
        """Whether all of the body is here, so that nobody waits for it: uvicorn notes it in its own object."""
        return getattr(getattr(self._receive, "__self__", None), "more_body", None) is False

    # ---- the client

    @property
    def tells_when_gone(self) -> bool:
        """Whether `is_gone` is right without `watch`: uvicorn notes in its own object that a client has hung up."""
        return type(getattr(getattr(self._receive, "__self__", None), "disconnected", None)) is bool

    def watch(self, tell: Callable[[], Any]) -> None:
        """Call `tell` if the client hangs up. The body must have been read."""
        if self._watch is not None:
            return
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
        cycle = getattr(self._receive, "__self__", None)
        if getattr(cycle, "disconnected", None) is True:
            return True
        # a turn of the loop before uvicorn notes it, asyncio drops what is written
        is_closing = getattr(getattr(cycle, "transport", None), "is_closing", None)
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
