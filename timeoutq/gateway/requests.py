"""One request, as an endpoint sees it, and the way back to its client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, quote

from msgspec import Struct, convert
from msgspec.structs import asdict
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.access import Access, Head, unauthorized
from timeoutq.gateway.callers import NOBODY
from timeoutq.gateway.fairness import Memory, Places
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import FRESH, Tokens

CSP = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"content-security-policy", CSP),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # not no-referrer: with it, browsers send "Origin: null" with our own forms
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer, whatever the endpoint is."""
SLOWEST = 65_536  # the fewest bytes a second at which a large body may come


class ClientGone(Exception):
    """The client has hung up: nobody reads an answer."""


class State:
    """The things that all requests of one application share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.queues = Queues(settings)
        self.tokens = Tokens(settings.url)
        self.access = Access(settings, self.tokens)
        self.has_login = False  # whether browsers that need a token are sent to /login
        self.places = Places(settings.most_at_once, settings.most_in_line)
        self.heavy_places = Places(settings.most_heavy, settings.most_in_line)  # of requests with large bodies
        self.memory = Memory(settings.most_bytes)
        self.table: Any = ()  # all routes of the application
        self.polls: Any = None  # its `Polls`
        self.watcher: Any = None  # its `Watcher`
        self.page: Any = None  # its `Hub`, if it has the page


class Request:
    """A request, and its answer."""

    queue: AnyAsyncQueue  # the client of the queue, for an endpoint that is about one

    def __init__(self, state: State, scope: Scope, receive: Receive, send: Send) -> None:
        self.state, self.scope, self.receive, self._send = state, scope, receive, send
        self.head = Head(scope)
        self.caller, self.secret = NOBODY, ""
        self.name = ""  # the name in the path: of the queue; empty where the route has none
        self.undo: Callable[[], Awaitable[None]] | None = None
        """Undoes the call of the endpoint, if the client does not get its answer."""
        self.was_refused = False
        """Whether the caller did not get the answer, or not to its end, because the token does not count any more."""
        self._checked = time.monotonic()  # when the token was last looked up
        self._held: list[Places] = []  # where a place is taken by this request
        self._bytes = 0
        self._body: bytes | None = None
        self._cycle: Any = getattr(receive, "__self__", None)
        """uvicorn's own object, which notes that the client has hung up."""
        self._watch: asyncio.Task[None] | None = None

    # ---- the question

    @property
    def kind(self) -> str:
        """The media type of the body, without its parameters."""
        return self.head.first(b"content-type").partition(";")[0].strip().lower()

    def parameters(self, wanted: type[Struct]) -> dict[str, Any]:
        """Read the arguments behind the `?` of the URL; raises a problem if they do not fit."""
        try:
            words = self.head.query.decode("ascii")
            pairs = parse_qsl(words, keep_blank_values=True, errors="strict", max_num_fields=20)
        except ValueError as error:
            raise Problem(422, "bad-body", f"the query of the URL cannot be read: {error}") from None
        return asdict(convert(dict(pairs), wanted, strict=False))

    async def body(self, most: int | None = None) -> bytes:
        """Read the body; raises a problem if it has more than `most` bytes, or comes too slowly."""
        if self._body is None:
            limit, parts, size, more = most or self.state.settings.body_limit, list[bytes](), 0, True
            declared = self.head.first(b"content-length")
            told = int(declared or 0) if len(declared) <= 18 else limit + 1
            until = time.monotonic() + self.state.settings.body_seconds
            while more and max(size, told) <= limit:
                if parts:
                    self.count_bytes(size)
                # a slow line may need longer for a large body; a byte now and then does not help
                data, more = await self._next(until + size / SLOWEST - time.monotonic())
                parts.append(data)
                size += len(data)
            if max(size, told) > limit:
                detail = f"the body has more than {limit:,} bytes: send it in parts, or as NDJSON"
                raise Problem(413, "too-large", detail)
            self._body = b"".join(parts)
        return self._body

    async def parts(self) -> AsyncIterator[bytes]:
        """Read a body of any length, part by part."""
        more = True
        while more:
            data, more = await self._next(self.state.settings.body_seconds)
            yield data

    async def _next(self, seconds: float) -> tuple[bytes, bool]:
        """Give the next part of the body, and whether more follows."""
        try:
            async with asyncio.timeout(seconds):
                message = await self.receive()
        except TimeoutError:
            seconds = self.state.settings.body_seconds
            raise Problem(408, "too-slow", f"the body, or its next part, did not come within {seconds:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return cast("bytes", message.get("body", b"")), bool(message.get("more_body"))

    # ---- the answer

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the token was revoked while its holder waited, or watched a page."""
        if self.was_refused:
            return
        if (now := time.monotonic()) - self._checked > FRESH:
            self._checked = now
            self.was_refused = not await self.still_counts()
        if not self.was_refused:
            await self._send_with_headers(message)
        elif message["type"] == "http.response.start":
            await self.refusal(unauthorized())(self.scope, self.receive, self._send_with_headers)
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_with_headers(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            given = cast("Sequence[tuple[bytes, bytes]]", message.get("headers", ()))
            cached = [] if any(name == b"cache-control" for name, _ in given) else [(b"cache-control", b"no-store")]
            message["headers"] = [*given, *cached, *HEADERS]
        await self._send(message)

    async def still_counts(self) -> bool:
        return await self.state.access.still_counts(self.caller, self.secret)

    def refusal(self, problem: Problem) -> Response:
        """Give the answer that tells of a problem; a browser that needs a token is sent to the login."""
        head = self.head
        wants_page = head.html and head.method == "GET" and not head.path.startswith("/v1")
        if self.state.has_login and problem.status == 401 and wants_page:
            home = self.scope.get("root_path", "")
            return RedirectResponse(f"{home}/login?next={quote(self.scope['path'], safe='/')}", 303)
        return Response(problem.body(), problem.status, problem.headers, "application/problem+json")

    def page_of(self, problem: Problem) -> Response | None:
        """Give the page that tells of a problem, if there are pages, and one is wanted."""
        return None

    # ---- the client

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

    # ---- what it takes from others

    async def take(self, places: Places) -> None:
        """Wait for a place, and keep it until the request has ended."""
        await places.take(self.caller.name)
        self._held.append(places)

    def step_aside(self) -> None:
        """Give all places back: from now on the request only waits."""
        while self._held:
            self._held.pop().give(self.caller.name)

    def count_bytes(self, size: int) -> None:
        """Tell how many bytes of the body are in memory now; raises a problem if there are too many of this caller."""
        if size != self._bytes:
            self.state.memory.change(self.caller.name, size - self._bytes)
            self._bytes = size

    def close(self) -> None:
        """Watch no more, and give the places and the memory back."""
        self.step_aside()
        self.count_bytes(0)
        if self._watch is not None:
            self._watch.cancel()
