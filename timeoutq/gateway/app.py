"""The ASGI application of the gateway: finds the route, reads the body, calls the endpoint, and answers errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from timeoutq.client.face import acts_for
from timeoutq.gateway import looks, openapi
from timeoutq.gateway.access import Access, Answer, route_path, send_all, send_problem
from timeoutq.gateway.bodies import arguments_of
from timeoutq.gateway.callers import Caller, Needs
from timeoutq.gateway.polls import Polls
from timeoutq.gateway.probes import Probes, metrics, readyz
from timeoutq.gateway.problems import Problem, encode, problem_of, report
from timeoutq.gateway.requests import ClientGone, Request, State
from timeoutq.gateway.routes import API, Endpoint, Route
from timeoutq.gateway.settings import Receive, Scope, Send, Settings
from timeoutq.gateway.tending import Tending
from timeoutq.server.troubles import is_sharded
from timeoutq.words.errors import TimeoutqError

Tell = Callable[[Request, Problem], Response | None]
"""Writes the answer to a request that fails; None: a problem is sent."""

JSON = b"application/json"
LINES = (b"application/x-ndjson", b"application/jsonl", b"application/ndjson")
READ = (b"", JSON, b"application/x-www-form-urlencoded")
"""The types of bodies that are read as JSON: the last one is what curl says of `-d`."""


class Entry(NamedTuple):
    """A route with the type and the decoder of its arguments."""

    route: Route
    wanted: type[msgspec.Struct]
    decode: Callable[[bytes], msgspec.Struct]


class Gateway:
    """The application; `state` has what its requests share."""

    def __init__(self, settings: Settings, routes: Sequence[Route], tell: Tell) -> None:
        self.at_stop: list[Callable[[], None]] = []  # called when the gateway is about to end
        self.at_close: list[Callable[[], Awaitable[None]]] = []  # called when the gateway ends
        self._tell = tell
        state = self.state = State(settings)
        self.polls = state.polls = Polls(state.queues, settings)
        self._probes = state.probes = Probes(settings)
        self._tending = Tending(state.queues, settings.cleaned_for, self.polls.is_busy)
        state.queues.busy = lambda name: self.polls.is_busy(name) or self._tending.tends(name)
        self.table = tuple(routes)  # all routes: the tests of access go through them
        self.entries: dict[tuple[str, bool], dict[str, Entry]] = {}
        """The routes by method, by path: without the name in it, and whether there is one."""
        for route in routes:
            path = re.sub(r"\{\w+\}", "", route.path)
            wanted = arguments_of(route.endpoint)
            entry = Entry(route, wanted, msgspec.json.Decoder(wanted).decode)
            self.entries.setdefault((path, path != route.path), {})[route.method] = entry
        open_paths = {route.path for route in routes if route.needs is None}
        below = tuple(path.partition("{")[0] for path in open_paths if "{" in path)  # such as /static/
        self._access = Access(
            settings, state.tokens, lambda path: path in open_paths or path.startswith(below),
            has_login="/login" in open_paths,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            prefix, root = self.state.settings.prefix, scope.get("root_path") or ""
            if prefix and f"{scope['path']}/".startswith(f"{root}{prefix}/"):
                scope["root_path"] = root + prefix
            answer = await self._access.enter(scope, send)
            if answer is not None:
                await self._answer(scope, receive, answer)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._probes.begin()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    def stop(self) -> None:
        """Answer those that wait: the gateway is about to end."""
        for stop in (*self.at_stop, self.polls.stop):
            stop()

    async def close(self) -> None:
        """Answer those that wait, and close all connections. A host application that mounts the gateway calls this."""
        ends = self.polls.close, self._tending.close, self.state.queues.close, self.state.tokens.close
        for close in (*self.at_close, *ends, self._probes.close):
            await close()

    # ---- a request

    async def _answer(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        path = route_path(scope)
        entries, name = self._find(path)
        request = Request(self, self.state, scope, receive, answer, name)
        try:
            await self._carry_out(self._entry(entries, path, scope["method"]), request)
        except ClientGone:
            return
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                report("the gateway failed at a request", error)
            page = None if path.startswith("/v1/") else self._tell(request, problem)
            if page is None:
                await send_problem(answer.send, problem)
            else:
                await page(scope, receive, answer.send)

    def _find(self, path: str) -> tuple[dict[str, Entry] | None, str]:
        """Give the routes of a path by their method, and the name in it."""
        found = self.entries.get((path, False))
        parts = path.split("/", 3)
        if found is not None or len(parts) < 3:
            return found, ""
        name, parts[2] = parts[2], ""
        return self.entries.get(("/".join(parts), True)) if name else None, name

    def _entry(self, entries: dict[str, Entry] | None, path: str, method: str) -> Entry:
        if entries is None:
            if path.startswith("/v1/") and path.count("/") > 2:
                verb = path.split("/", 3)[3]
                raise Problem(404, "unknown-verb", f"there is no {verb!r:.80} of a queue: see /v1/openapi.json")
            raise Problem(404, "not-found", "there is nothing at this path: see /v1/openapi.json")
        entry = entries.get("GET" if method == "HEAD" else method)
        if entry is None:
            allowed = ", ".join(sorted(entries))
            raise Problem(405, "wrong-method", f"{path} takes {allowed}", headers={"allow": allowed})
        return entry

    async def _carry_out(self, entry: Entry, request: Request) -> None:
        route, name, send = entry.route, request.name, request.answer.send
        if route.needs is not None:
            if name:
                self.state.queues.check(name)
            request.caller.require(route.needs, name or None)
        with self.state.queues.use(name):
            try:
                call, words = await self._read(entry, request)
                if route.needs is not None:
                    await self.state.places.take(request.caller.name)
                    request.has_place = True
                if route.needs == "work":
                    self._tending.worked(name, request.caller.name)
                with _acting(request.caller, route.needs):
                    found = await self._called(call, request, words)
                if request.is_gone and request.undo is not None:
                    await request.undo()
                    return
            finally:
                request.close()
            if isinstance(found, Response):
                await found(request.scope, request.receive, send)
            else:
                await send_all(send, 200, JSON, encode(found))
            if request.answer.was_refused and request.undo is not None:
                await request.undo()

    async def _read(self, entry: Entry, request: Request) -> tuple[Endpoint, dict[str, Any]]:
        """Read the body, or the parameters of the URL; give the endpoint, and its arguments."""
        route, wanted = entry.route, entry.wanted
        if route.page or route.needs is None:
            return route.endpoint, {}
        if route.method == "GET":
            return route.endpoint, request.parameters(wanted)
        if request.header(b"content-encoding").strip().lower() not in (b"", b"identity"):
            raise Problem(415, "wrong-media", "a body that is packed is not read: send it as it is")
        if route.lines is not None and request.kind in LINES:
            return route.lines, request.parameters(arguments_of(route.lines))
        if request.kind not in READ:
            raise Problem(
                415, "wrong-media", f"{request.kind.decode('latin-1')!r:.80} is not read: send application/json"
            )
        if request.scope.get("query_string"):
            detail = "parameters behind the ? go with a body of NDJSON only: write them into the body of JSON"
            raise Problem(422, "bad-body", detail)
        data = await request.body()
        await request.weigh(len(data))
        try:
            return route.endpoint, msgspec.structs.asdict(entry.decode(data or b"{}"))
        except msgspec.ValidationError:
            raise
        except RecursionError:
            raise Problem(400, "bad-json", "the body is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem(400, "bad-json", f"the body is not JSON in UTF-8: {error}") from None

    async def _called(self, endpoint: Endpoint, request: Request, words: dict[str, Any]) -> Any:
        try:
            return await endpoint(request, **words)
        except TimeoutqError as error:
            if not is_sharded(error):
                raise
        # the queue was opened before it got its shards
        await self.state.queues.forget(request.name)
        return await endpoint(request, **words)


@contextmanager
def _acting(caller: Caller, needs: Needs | None) -> Iterator[None]:
    """Make calls in the name of the caller; leases have their own tokens, which say whose they are."""
    if needs not in ("put", "manage"):
        yield
        return
    before = acts_for.set(caller.name.encode("utf-8", "replace"))
    try:
        yield
    finally:
        acts_for.reset(before)


async def healthz(request: Request) -> dict[str, Any]:
    """Say that the gateway runs; it asks nobody."""
    return {"ok": True}


async def described(request: Request) -> dict[str, Any]:
    """Give the OpenAPI description of the API."""
    return openapi.describe(request.app.table, request.state.settings.prefix)


FIXED: Sequence[Route] = (
    Route("GET", "/healthz", None, healthz),
    Route("GET", "/readyz", None, readyz, page=True),
    Route("GET", "/metrics", "look", metrics, page=True),
    Route("GET", "/v1/openapi.json", "look", described),
    Route("GET", "/v1/queues", "look", looks.queues),
)


def make_app(
    settings: Settings | None = None, more: Sequence[Route] = (), tell: Tell = lambda request, problem: None
) -> Gateway:
    """Make the application: the API, without the page.

    `more` has further routes, such as those of the page; `tell` writes a problem for whoever asked for a page.
    """
    return Gateway(settings or Settings(), [*FIXED, *API, *more], tell)
