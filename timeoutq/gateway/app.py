"""The ASGI application: finds the route, reads the body, calls the endpoint, and answers errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from timeoutq.client.face import acts_for
from timeoutq.gateway.bodies import Done, arguments_of
from timeoutq.gateway.metrics import Watcher
from timeoutq.gateway.polls import Polls
from timeoutq.gateway.problems import Problem, encode, problem_of, report
from timeoutq.gateway.requests import ClientGone, Request, State
from timeoutq.gateway.routes import API, Endpoint, Route
from timeoutq.gateway.settings import Settings
from timeoutq.server.troubles import is_sharded
from timeoutq.words.errors import TimeoutqError

LINES = ("application/x-ndjson", "application/jsonl", "application/ndjson")
READ = ("", "application/json", "application/x-www-form-urlencoded")
"""The types of bodies that are read as JSON: the last one is what curl says of `-d`."""


class Gateway:
    """The application; `state` has what its requests share."""

    def __init__(self, settings: Settings, routes: Sequence[Route], kind: type[Request] = Request) -> None:
        """Prepare; `kind` is what the endpoints get."""
        self._kind = kind
        self.entries: dict[tuple[str, bool], dict[str, Route]] = {}
        """The routes by method, by path: without the name in it, and whether there is one."""
        for route in routes:
            path = re.sub(r"\{\w+\}", "", route.path)
            self.entries.setdefault((path, path != route.path), {})[route.method] = route
        state = self.state = State(settings)
        state.table, state.has_login = tuple(routes), ("/login", False) in self.entries
        state.polls, state.watcher = Polls(state.queues, settings), Watcher(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self.state.watcher.begin()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            prefix, root = self.state.settings.prefix, scope.get("root_path") or ""
            if prefix and f"{scope['path']}/".startswith(f"{root}{prefix}/"):
                scope["root_path"] = root + prefix
            await self._answer(self._kind(self.state, scope, receive, send))

    def stop(self) -> None:
        """Answer those that wait: the gateway is about to end."""
        for waits in (self.state.page, self.state.polls):
            if waits is not None:
                waits.stop()

    async def close(self) -> None:
        """Answer those that wait, and close all connections. A host application that mounts the gateway calls this."""
        state = self.state
        for part in (state.page, state.polls, state.queues, state.tokens, state.watcher):
            if part is not None:
                await part.close()

    async def _answer(self, request: Request) -> None:
        is_in, page = False, None
        try:
            found = self._find(request)
            is_public = any(route.needs is None for route in found.values())
            entered = await self.state.access.let_in(request.head, request.scope, is_public=is_public)
            (request.caller, request.secret), is_in = entered, True
            await self._carry_out(self._route(found, request), request)
        except ClientGone:
            return
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                report("the gateway failed at a request", error)
            if is_in and not request.head.path.startswith("/v1/"):
                page = request.page_of(problem)
            await (page or request.refusal(problem))(request.scope, request.receive, request.send)

    def _find(self, request: Request) -> dict[str, Route]:
        """Find the routes of the path, by their method, and note the name in it."""
        found, parts = self.entries.get((request.head.path, False)), request.head.path.split("/", 3)
        if found is None and len(parts) > 2 and parts[2]:
            request.name, parts[2] = parts[2], ""
            found = self.entries.get(("/".join(parts), True))
        return found or {}

    def _route(self, found: dict[str, Route], request: Request) -> Route:
        head = request.head
        if not found and head.path.startswith("/v1/") and head.path.count("/") > 2:
            verb = head.path.split("/", 3)[3]
            raise Problem(404, "unknown-verb", f"there is no {verb!r:.80} of a queue: see /v1/openapi.json")
        if not found:
            raise Problem(404, "not-found", "there is nothing at this path: see /v1/openapi.json")
        route = found.get("GET" if head.method == "HEAD" else head.method)
        if route is None:
            allowed = ", ".join(sorted(found))
            raise Problem(405, "wrong-method", f"{head.path} takes {allowed}", headers={"allow": allowed})
        return route

    async def _carry_out(self, route: Route, request: Request) -> None:
        name, caller = request.name, request.caller
        if route.needs is not None:
            if name:
                self.state.queues.check(name)
            caller.require(route.needs, name or None)
        # calls are made in the name of the caller; but leases have their own tokens, which say whose they are
        acts = caller.name.encode("utf-8", "replace") if route.needs in ("put", "manage") else b""
        with self.state.queues.use(name):
            before = acts_for.set(acts)
            try:
                endpoint, words = await self._read(route, request)
                if route.needs is not None:
                    await request.take(self.state.places)
                if route.needs == "work":
                    self.state.polls.worked(name, caller.name)
                found = await self._called(route, endpoint, request, words)
            finally:
                acts_for.reset(before)
                request.close()
            if not isinstance(found, Response):
                found = Response(encode(Done() if found is None else found), media_type="application/json")
            await found(request.scope, request.receive, request.send)
            if request.was_refused and request.undo is not None:
                await request.undo()

    async def _read(self, route: Route, request: Request) -> tuple[Endpoint, dict[str, Any]]:
        """Read the body, or the parameters of the URL; give the endpoint, and its arguments."""
        if route.page or route.needs is None:
            return route.endpoint, {}
        if route.method == "GET":
            return route.endpoint, request.parameters(arguments_of(route.endpoint))
        if request.head.first(b"content-encoding").lower() not in ("", "identity"):
            raise Problem(415, "wrong-media", "a body that is packed is not read: send it as it is")
        if route.lines is not None and request.kind in LINES:
            return route.lines, request.parameters(arguments_of(route.lines))
        if request.kind not in READ:
            raise Problem(415, "wrong-media", f"{request.kind!r:.80} is not read: send application/json")
        if request.head.query:
            detail = "parameters behind the ? go with a body of NDJSON only: write them into the body of JSON"
            raise Problem(422, "bad-body", detail)
        data = await request.body()
        if len(data) > self.state.settings.heavy:
            request.count_bytes(len(data))
            await request.take(self.state.heavy_places)
        try:
            return route.endpoint, asdict(msgspec.json.decode(data or b"{}", type=arguments_of(route.endpoint)))
        except msgspec.ValidationError:
            raise
        except RecursionError:
            raise Problem(400, "bad-json", "the body is nested too deeply") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem(400, "bad-json", f"the body is not JSON in UTF-8: {error}") from None

    async def _called(self, route: Route, endpoint: Endpoint, request: Request, words: dict[str, Any]) -> Any:
        queues, name, who = self.state.queues, request.name, request.caller.name

        async def call() -> Any:
            if name and route.needs in ("put", "work"):
                request.queue = await queues.get(name, who)
            elif name and route.needs is not None:
                request.queue = await queues.known(name, who, or_workers=route.page)
            return await endpoint(request, **words)

        try:
            return await call()
        except TimeoutqError as error:
            if not is_sharded(error):
                raise
        # the queue was opened before it got its shards
        await queues.forget(name)
        return await call()


def make_app(settings: Settings | None = None, more: Sequence[Route] = ()) -> Gateway:
    """Make the application: the API, without the page. `more` has further routes."""
    return Gateway(settings or Settings(), [*API, *more])
