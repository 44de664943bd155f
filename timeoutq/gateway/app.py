"""The ASGI application of the gateway: finds the route, reads the body, calls the endpoint, and answers errors.

Requests for the API take a short way of our own, because a claim of one task should cost little more than its exchange
with Redis; pages go through Starlette's router.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as PageRequest
from starlette.responses import Response
from starlette.routing import Route as PageRoute

from timeoutq.client.face import acts_for
from timeoutq.gateway import looks, openapi
from timeoutq.gateway.access import ANSWER, CALLER, Access, route_path, send_all, send_problem
from timeoutq.gateway.bodies import arguments_of, unfit
from timeoutq.gateway.callers import NOBODY, Caller, Needs
from timeoutq.gateway.polls import Polls
from timeoutq.gateway.probes import Probes, metrics, readyz
from timeoutq.gateway.problems import Problem, encode, problem_of, report
from timeoutq.gateway.requests import ClientGone, Request, State, bounded_in_time
from timeoutq.gateway.routes import API, Endpoint, Route
from timeoutq.gateway.settings import ASGI, Receive, Scope, Send, Settings
from timeoutq.gateway.tending import Tending
from timeoutq.gateway.tokens import Tokens
from timeoutq.server.troubles import is_sharded
from timeoutq.words.errors import TimeoutqError

Tell = Callable[[PageRequest, Problem], Response]
"""Writes the answer to a request that fails."""

JSON = b"application/json"
LINES = (b"application/x-ndjson", b"application/jsonl", b"application/ndjson")
READ = (b"", JSON, b"application/x-www-form-urlencoded")
"""The types of bodies that are read as JSON: the last one is what curl says of `-d`."""


class Entry:
    """A route with the decoder of its arguments."""

    __slots__ = ("decode", "route", "wanted")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.wanted = arguments_of(route.endpoint)
        self.decode = msgspec.json.Decoder(self.wanted).decode


class Gateway(Starlette):
    """The application; `shared` has what its requests share, `state` the same and more for pages."""

    def __init__(self, settings: Settings, routes: Sequence[Route], tell: Tell) -> None:
        self.at_stop: list[Callable[[], None]] = []
        """Called when the gateway is about to end."""
        self.at_close: list[Callable[[], Awaitable[None]]] = []
        """Called when the gateway ends."""
        self._tell = tell
        self.shared = State.of(settings)
        self.polls = Polls(self.shared.queues, settings)
        self._tending = Tending(self.shared.queues, settings.cleaned_for, self.polls.is_busy)
        self.shared.queues.busy = lambda name: self.polls.is_busy(name) or self._tending.tends(name)
        self.table = tuple(routes)
        """All routes: the tests of access go through them."""
        pages = [PageRoute(one.path, self._guarded(one), methods=[one.method]) for one in routes if one.by_starlette]
        super().__init__(routes=pages, lifespan=self._living, exception_handlers={HTTPException: self._as_problem})
        self.state.settings, self.state.queues = settings, self.shared.queues
        self.state.tokens, self.state.probes = Tokens(settings.url), Probes(settings)
        self.entries: dict[str, dict[str, Entry]] = {}
        """The routes of the API, by path and method."""
        for route in routes:
            if not route.by_starlette:
                self.entries.setdefault(route.path, {})[route.method] = Entry(route)
        open_paths = {route.path for route in routes if route.needs is None}
        below = tuple(path.partition("{")[0] for path in open_paths if "{" in path)  # such as /static/
        self.entry: ASGI = Access(
            self._answer, settings, self.state.tokens, lambda path: path in open_paths or path.startswith(below),
            has_login="/login" in open_paths,
        )  # fmt: skip
        """The application that each request goes through first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        prefix, root = self.shared.settings.prefix, scope.get("root_path") or ""
        if prefix and f"{scope['path']}/".startswith(f"{root}{prefix}/"):
            scope["root_path"] = root + prefix
        await self.entry(scope, receive, send)

    @asynccontextmanager
    async def _living(self, app: Any) -> AsyncIterator[None]:
        self.state.probes.begin()
        try:
            yield
        finally:
            await self.close()

    def stop(self) -> None:
        """Answer those that wait: the gateway is about to end."""
        self.polls.stop()
        for stop in self.at_stop:
            stop()

    async def close(self) -> None:
        """Answer those that wait, and close all connections. A host application that mounts the gateway calls this."""
        for close in (*self.at_close, self.polls.close, self._tending.close, self.shared.queues.close):
            await close()
        await self.state.tokens.close()
        await self.state.probes.close()

    # ---- a request

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        try:
            entries, name = self._find(path)
            if entries is None:
                await super().__call__(scope, bounded_in_time(receive, self.shared.settings.body_seconds), send)
                return
            method = scope["method"]
            entry = entries.get("GET" if method == "HEAD" else method)
            if entry is None:
                allowed = ", ".join(sorted(entries))
                raise Problem(405, "wrong-method", f"{path} takes {allowed}", headers={"allow": allowed})
            request = Request(self.shared, scope, receive, scope.get(CALLER, NOBODY), name, scope[ANSWER])
            await self._carry_out(entry, request, send)
        except ClientGone:
            return
        except Exception as error:
            await send_problem(send, told(error))

    def _find(self, path: str) -> tuple[dict[str, Entry] | None, str]:
        if not path.startswith("/v1/"):
            return self.entries.get(path), ""
        name, slash, verb = path[4:].partition("/")
        found = self.entries.get(f"/v1/{{queue}}/{verb}" if slash else path)
        if found is not None:
            return found, name if slash else ""
        if slash:
            raise Problem(404, "unknown-verb", f"there is no {verb!r:.80} of a queue: see /v1/openapi.json")
        raise Problem(404, "not-found", "there is nothing at this path: see /v1/openapi.json")

    async def _carry_out(self, entry: Entry, request: Request, send: Send) -> None:
        route, name = entry.route, request.name
        if route.needs is None:
            await send_all(send, 200, JSON, encode(await route.endpoint(request)))
            return
        if name:
            self.shared.queues.check(name)
        request.caller.require(route.needs, name or None)
        with self.shared.queues.use(name):
            try:
                call, words = await self._read(entry, request)
                await self.shared.places.take(request.caller.name)
                request.has_place = True
                if route.needs == "work":
                    self._tending.worked(name, request.caller.name)
                with _acting(request.caller, route.needs):
                    answer = await self._called(call, request, words)
                if request.is_gone and request.undo is not None:
                    await request.undo()
                    return
            finally:
                request.close()
            await send_all(send, 200, JSON, encode(answer))
            if request.answer.was_refused and request.undo is not None:
                await request.undo()

    async def _read(self, entry: Entry, request: Request) -> tuple[Endpoint, dict[str, Any]]:
        """Read the body, or the parameters of the URL; give the endpoint, and its arguments."""
        route, wanted = entry.route, entry.wanted
        if route.method == "GET":
            return route.endpoint, request.parameters(wanted)
        kind = request.header(b"content-type").partition(b";")[0].strip().lower()
        if request.header(b"content-encoding").strip().lower() not in (b"", b"identity"):
            raise Problem(415, "wrong-media", "a body that is packed is not read: send it as it is")
        if route.lines is not None and kind in LINES:
            return route.lines, request.parameters(arguments_of(route.lines))
        if kind not in READ:
            raise Problem(415, "wrong-media", f"{kind.decode('latin-1')!r:.80} is not read: send application/json")
        if request.scope.get("query_string"):
            detail = "parameters behind the ? go with a body of NDJSON only: write them into the body of JSON"
            raise Problem(422, "bad-body", detail)
        data = await request.body()
        try:
            return route.endpoint, msgspec.structs.asdict(entry.decode(data or b"{}"))
        except msgspec.ValidationError as error:
            raise Problem(422, "bad-body", unfit(wanted, error)) from None
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
        await self.shared.queues.forget(request.name)
        return await endpoint(request, **words)

    def _guarded(self, route: Route) -> Callable[[PageRequest], Awaitable[Response]]:
        async def page(request: PageRequest) -> Response:
            name, caller = request.path_params.get("queue", ""), request.scope.get(CALLER, NOBODY)
            try:
                with self.shared.queues.use(name):
                    if route.needs is not None:
                        caller.require(route.needs, name or None)
                    with _acting(caller, None if request.method == "GET" else route.needs):
                        found: Response = await route.endpoint(request)
                        return found
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody reads
            except Exception as error:
                # here, because Starlette would answer, and then raise the error again
                return self._tell(request, told(error))

        return page

    async def _as_problem(self, request: PageRequest, error: Exception) -> Response:
        """Answer a request that Starlette's router refuses: for an unknown path, or another method."""
        if isinstance(error, HTTPException) and error.status_code == 405:
            return self._tell(request, Problem(405, "wrong-method", "this path does not take this method"))
        return self._tell(request, Problem(404, "not-found", "there is nothing at this path"))


def told(error: Exception) -> Problem:
    """Give the problem that tells of an error; an error that nobody expects is logged."""
    problem = problem_of(error)
    if problem.status == 500:
        report("the gateway failed at a request", error)
    return problem


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


def problem_response(request: PageRequest, problem: Problem) -> Response:
    """Give a problem as a response of Starlette."""
    return Response(problem.body(), problem.status, problem.headers, "application/problem+json")


async def healthz(request: Request) -> dict[str, Any]:
    """Say that the gateway runs; it asks nobody."""
    return {"ok": True}


async def described(request: Request) -> dict[str, Any]:
    """Give the OpenAPI description of the API."""
    app: Gateway = request.scope["app"]
    return openapi.describe(app.table, app.shared.settings.prefix)


FIXED: Sequence[Route] = (
    Route("GET", "/healthz", None, healthz),
    Route("GET", "/readyz", None, readyz, by_starlette=True),
    Route("GET", "/metrics", "look", metrics, by_starlette=True),
    Route("GET", "/v1/openapi.json", "look", described),
    Route("GET", "/v1/queues", "look", looks.queues),
)


def make_app(settings: Settings | None = None, more: Sequence[Route] = (), tell: Tell = problem_response) -> Gateway:
    """Make the application: the API, without the page.

    `more` has further routes, such as those of the page; `tell` writes a problem for whoever asked for a page.
    """
    return Gateway(settings or Settings(), [*FIXED, *API, *more], tell)
