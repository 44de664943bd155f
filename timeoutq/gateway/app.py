"""The ASGI application of the gateway: finds the route, reads the body, calls the endpoint, and tells what went wrong.

`timeoutq web` serves it, a host application may mount it. Requests for the API take a short way of our own, because a
claim of one task should cost little more than its exchange with Redis; pages go through Starlette's router.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as PageRequest
from starlette.responses import Response
from starlette.routing import Route as PageRoute

from timeoutq.client.face import acts_for
from timeoutq.gateway import bodies, looks, openapi
from timeoutq.gateway.access import CALLER, ENTRANCE, Access, Public, route_path
from timeoutq.gateway.callers import NOBODY, Caller, Needs
from timeoutq.gateway.login import Draw, Login, plain_form
from timeoutq.gateway.probes import Probes, metrics, readyz
from timeoutq.gateway.problems import Problem, encode, problem_of
from timeoutq.gateway.requests import ClientGone, Request, bounded_in_time
from timeoutq.gateway.routes import API, Parameter, Route
from timeoutq.gateway.settings import ASGI, Receive, Scope, Send, Settings
from timeoutq.gateway.state import State
from timeoutq.gateway.tokens import Tokens
from timeoutq.server.troubles import is_sharded
from timeoutq.words import telling
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.tracebacks import read_traceback, trace

log = logging.getLogger(__name__)

Tell = Callable[[PageRequest, Problem], Response]
"""Writes the answer to a request that fails."""

JSON = b"application/json"
PROBLEM = b"application/problem+json"
LINES = (b"application/x-ndjson", b"application/jsonl", b"application/ndjson")
READ = (b"", JSON, b"application/x-www-form-urlencoded")
"""The types of bodies that are read as JSON: the last one is what curl says of `-d`."""


class Entry:
    """A route with its decoder."""

    __slots__ = ("decode", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.decode = None if route.body is None else msgspec.json.Decoder(route.body).decode


class Gateway(Starlette):
    """The application.

    `shared` has what the endpoints of the API share; `state` has the settings, the queues, the tokens and the probes,
    for pages.
    """

    def __init__(self, settings: Settings, routes: Sequence[Route], tokens: Tokens, tell: Tell | None = None) -> None:
        self.at_stop: list[Callable[[], None]] = []
        """What other rooms want to be called when the gateway is about to end."""
        self.at_close: list[Callable[[], Awaitable[None]]] = []
        """What other rooms want to be called when the gateway ends."""
        self._tell = tell or _as_json
        self._tokens = tokens
        self.shared = State.of(settings)
        self.table = tuple(routes)
        """All routes: the tests of access go through them."""
        pages = [PageRoute(one.path, self._guarded(one), methods=[one.method]) for one in routes if one.by_starlette]
        super().__init__(routes=pages, lifespan=self._living, exception_handlers={HTTPException: self._as_problem})
        self.state.probes = self._probes = Probes(settings)
        self.state.queues, self.state.settings, self.state.tokens = self.shared.queues, settings, tokens
        self._verbs: dict[str, dict[str, Entry]] = {}
        self._fixed: dict[str, dict[str, Entry]] = {}
        for route in routes:
            if route.by_starlette:
                continue
            home = self._verbs if route.path.startswith("/v1/{queue}/") else self._fixed
            key = route.path.removeprefix("/v1/{queue}/") if home is self._verbs else route.path
            home.setdefault(key, {})[route.method] = Entry(route)
        self.entry: ASGI = Access(
            self._answer, settings, tokens, Public(routes), has_login=any(one.path == "/login" for one in routes)
        )
        """What each request goes through first."""
        self._described = b""

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

    @property
    def description(self) -> bytes:
        """The OpenAPI description, as JSON."""
        if not self._described:
            self._described = encode(openapi.describe(self.table, self.shared.settings.prefix))
        return self._described

    @asynccontextmanager
    async def _living(self, app: Any) -> AsyncIterator[None]:
        self._probes.begin()
        try:
            yield
        finally:
            await self.close()

    def stop(self) -> None:
        """Answer those that wait: the gateway is about to end."""
        self.shared.polls.stop()
        for stop in self.at_stop:
            stop()

    async def close(self) -> None:
        """Answer those that wait, and close all connections. A host application that mounts the gateway calls this."""
        for close in self.at_close:
            await close()
        await self.shared.polls.close()
        await self.shared.tending.close()
        await self.shared.queues.close()
        await self._tokens.close()
        await self._probes.close()

    # ---- a request

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        entry: Entry | None = None
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
            caller: Caller = scope.get(CALLER, NOBODY)
            await self._carry_out(entry, Request(self.shared, scope, receive, caller, name, scope.get(ENTRANCE)), send)
        except ClientGone:
            return
        except Exception as error:
            await send_problem(send, self._told(error))

    def _find(self, path: str) -> tuple[dict[str, Entry] | None, str]:
        if path.startswith("/v1/"):
            name, slash, verb = path[4:].partition("/")
            if slash:
                found = self._verbs.get(verb)
                if found is None:
                    raise Problem(404, "unknown-verb", f"there is no {verb!r:.80} of a queue: see /v1/openapi.json")
                return found, name
            found = self._fixed.get(path)
            if found is None:
                raise Problem(404, "not-found", "there is nothing at this path: see /v1/openapi.json")
            return found, ""
        return self._fixed.get(path), ""

    async def _carry_out(self, entry: Entry, request: Request, send: Send) -> None:
        route, name = entry.route, request.name
        if route.needs is None:
            await send_body(send, await route.endpoint(request))
            return
        if name:
            self.shared.queues.check(name)
        request.caller.require(route.needs, name or None)
        self.shared.queues.pin(name)
        try:
            await self._carry_out_pinned(entry, request, send)
        finally:
            self.shared.queues.unpin(name)

    async def _carry_out_pinned(self, entry: Entry, request: Request, send: Send) -> None:
        try:
            call = await self._read(entry, request)
            places, who = self.shared.places, request.caller.name
            if not places.try_take(who):
                await places.take(who)
            request.has_place = True
            if entry.route.needs == "work":
                self.shared.tending.worked(request.name, who)
            with _acting(request.caller, entry.route.needs):
                answer = await self._called(*call)
            if request.is_gone and request.undo is not None:
                await request.undo()
                return
        finally:
            request.close()
        await send_body(send, answer)
        if request.was_refused and request.undo is not None:
            await request.undo()

    async def _read(self, entry: Entry, request: Request) -> tuple[Callable[..., Awaitable[Any]], tuple[Any, ...]]:
        """Read the body; give what is to be called, and with what."""
        route = entry.route
        if entry.decode is None:
            return route.endpoint, (request,)
        kind = request.header(b"content-type").partition(b";")[0].strip().lower()
        if request.header(b"content-encoding").strip().lower() not in (b"", b"identity"):
            raise Problem(415, "wrong-media", "a body that is packed is not read: send it as it is")
        if route.lines is not None and kind in LINES:
            return route.lines, (request,)
        if kind in READ:
            if request.parameters:
                detail = "parameters behind the ? go with a body of NDJSON only: write them into the body of JSON"
                raise Problem(422, "bad-body", detail)
            return route.endpoint, (request, read_body(entry, await request.body()))
        raise Problem(415, "wrong-media", f"{kind.decode('latin-1')!r:.80} is not read: send application/json")

    async def _called(self, endpoint: Any, words: tuple[Any, ...]) -> Any:
        try:
            return await endpoint(*words)
        except TimeoutqError as error:
            if not is_sharded(error):
                raise
        # the queue was opened before it got its shards
        await self.shared.queues.forget(words[0].name)
        return await endpoint(*words)

    def _guarded(self, route: Route) -> Callable[[PageRequest], Awaitable[Response]]:
        async def page(request: PageRequest) -> Response:
            name = request.path_params.get("queue", "")
            self.shared.queues.pin(name)
            try:
                if route.needs is not None:
                    caller: Caller = request.scope.get(CALLER, NOBODY)
                    caller.require(route.needs, name or None)
                with _acting(request.scope.get(CALLER, NOBODY), None if request.method == "GET" else route.needs):
                    found: Response = await route.endpoint(request)
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody reads
            except Exception as error:
                # here, because Starlette would answer, and then raise the error again
                return self._tell(request, self._told(error))
            finally:
                self.shared.queues.unpin(name)
            return found

        return page

    async def _as_problem(self, request: PageRequest, error: Exception) -> Response:
        """Answer what Starlette's router refuses: an unknown path, or a method that a path does not take."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 405:
            return self._tell(request, Problem(405, "wrong-method", "this path does not take this method"))
        return self._tell(request, Problem(404, "not-found", "there is nothing at this path"))

    def _told(self, error: Exception) -> Problem:
        if isinstance(error, msgspec.ValidationError):
            return Problem(422, "bad-body", str(error))
        problem = problem_of(error)
        if problem.status == 500:
            said = type(error).__name__
            telling.say(
                log, logging.ERROR, "the gateway failed at a request: %s", said,
                fields={"error": said}, traceback=read_traceback(trace(error), said),
            )  # fmt: skip
        return problem


def _acting(caller: Caller, needs: Needs | None) -> AbstractContextManager[None]:
    """Make calls in the name of the caller; leases have their own tokens, which say whose they are."""
    return _in_the_name_of(caller) if needs in ("put", "manage") else _IN_NO_NAME


_IN_NO_NAME = nullcontext()


@contextmanager
def _in_the_name_of(caller: Caller) -> Iterator[None]:
    before = acts_for.set(caller.name.encode("utf-8", "replace"))
    try:
        yield
    finally:
        acts_for.reset(before)


def read_body(entry: Entry, data: bytes) -> Any:
    """Decode a body; raises the problem that says what is wrong with it."""
    assert entry.decode is not None, "the caller has asked"
    try:
        return entry.decode(data or b"{}")
    except msgspec.ValidationError as error:
        raise Problem(422, "bad-body", bodies.unfit(entry.route.body, error)) from None
    except RecursionError:
        raise Problem(400, "bad-json", "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, "bad-json", f"the body is not JSON in UTF-8: {error}") from None


def _as_json(request: PageRequest, problem: Problem) -> Response:
    return problem_response(problem)


def problem_response(problem: Problem) -> Response:
    """Give a problem as a response of Starlette."""
    return Response(problem.body(), problem.status, problem.headers, PROBLEM.decode())


async def send_body(send: Send, answer: Any) -> None:
    """Send what an endpoint has given: bytes are JSON already."""
    body = answer if type(answer) is bytes else encode(answer)
    await send_all(send, 200, JSON, body)


async def send_problem(send: Send, problem: Problem) -> None:
    """Send a problem."""
    await send_all(send, problem.status, PROBLEM, problem.body(), problem.headers)


async def send_all(send: Send, status: int, kind: bytes, body: bytes, more: Mapping[str, str] | None = None) -> None:
    """Send an answer."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
    if more:
        headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def healthz(request: Request) -> bytes:
    """Say that the gateway runs; it asks nobody."""
    return b'{"ok":true}'


async def described(request: Request) -> bytes:
    """Give the OpenAPI description of the API."""
    found: bytes = request.scope["app"].description
    return found


FIXED: Sequence[Route] = (
    Route("GET", "/healthz", None, healthz),
    Route("GET", "/readyz", None, readyz, by_starlette=True),
    Route("GET", "/metrics", "look", metrics, by_starlette=True),
    Route("GET", "/v1/openapi.json", "look", described),
    Route(
        "GET", "/v1/queues", "look", looks.queues, parameters=(Parameter("after", "The last name of the page before"),)
    ),
)


def login_routes(login: Login) -> Sequence[Route]:
    """Give the routes of a login."""
    return (
        Route("GET", "/login", None, login.show, by_starlette=True),
        Route("POST", "/login", None, login.enter, by_starlette=True),
        Route("POST", "/logout", None, login.leave, by_starlette=True),
    )


def make_app(
    settings: Settings | None = None,
    more: Sequence[Sequence[Route]] = (),
    draw: Draw = plain_form,
    tell: Tell | None = None,
) -> Gateway:
    """Make the application.

    `more` has the routes of other rooms, such as those of the page; `draw` draws the login, and `tell` writes a problem
    for whoever asked for a page.
    """
    settings = settings or Settings()
    tokens = Tokens(settings.url)
    routes = [*FIXED, *API, *(route for some in more for route in some)]
    if settings.page and settings.login is None:
        routes += login_routes(Login(settings, tokens, draw))
    return Gateway(settings, routes, tokens, tell)
