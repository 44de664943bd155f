"""One request of a browser: who asks, about which queue, with which ids; and the answer as a page.

`views.py` and `acts.py` ask it. The message that an act leaves for the next page travels in a cookie that this page
removes again, so that a reload does not show it twice and no link can make the page say something.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.access import CALLER, COOKIE, COOKIE_TLS
from timeoutq.gateway.app import problem_response
from timeoutq.gateway.callers import EVERYTHING, NOBODY, Caller
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.hub import Hub, Shared
from timeoutq.gateway.page.listing import Listing
from timeoutq.gateway.page.walks import Walks
from timeoutq.gateway.problems import Problem, problem_of
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.text import safe

MOST_BODY = 4 * 1024 * 1024
"""Bytes of a form."""
MOST_FIELDS = 2000
"""Fields of a form: a list has 50 tasks."""
SAID = "timeoutq-said"
"""The cookie with the message of the last act."""
LONGEST_MESSAGE = 300
BACK = re.compile(r"(?:(?:tasks|task|kind|failures|hosts|workers|log|put)(?:\?[\x21-\x7e]{0,4000})?)?")
"""Where an act may lead back to, below the queue: nothing that leads elsewhere."""


class Shown:
    """What all visits of one application share."""

    def __init__(self, queues: Queues) -> None:
        paint.warm()
        self.hub = Hub(queues)
        self.walks = Walks()
        self.listing = Listing(queues)
        self.server: Shared[Mapping[str, Any]] = Shared(self._info, 10.0)
        """What INFO says of the server: the same for all queues, and it changes slowly."""
        self._queues = queues

    async def _info(self) -> Mapping[str, Any]:
        return await (await self._queues.directory()).server()

    async def close(self) -> None:
        """End all looks and walks."""
        for one in (self.hub, self.walks, self.listing, self.server):
            await one.close()


class Visit:
    """A request for a page."""

    def __init__(self, request: Request) -> None:
        self.request = request
        state = request.app.state
        self.settings: Settings = state.settings
        self.queues: Queues = state.queues
        self.shared: Shown = state.page
        self.hub, self.walks = self.shared.hub, self.shared.walks
        self.caller: Caller = request.scope.get(CALLER, NOBODY)
        self.name: str = request.path_params.get("queue", "")
        self.at = paint.At(base_of(request.scope, self.settings), self.name, self._rights())

    def _rights(self) -> frozenset[str]:
        return frozenset(needs for needs in EVERYTHING if self.caller.may(needs, self.name or None))

    async def queue(self) -> AnyAsyncQueue:
        """Give the queue that the path names, also if only workers wait there. Raises the problem of an unknown one."""
        return await self.queues.known(self.name, self.caller.name, or_workers=True)

    def query(self, name: str, usual: str = "") -> str:
        """Give a field of the query."""
        return self.request.query_params.get(name, usual)

    def task(self) -> str:
        """Give the id that the query names. Raises `InvalidInput`."""
        found = spelling.read(self.request.query_params.multi_items())
        if len(found) != 1:
            raise InvalidInput("name one task: ?id=ID, or ?b64=BYTES in base64")
        return found[0]

    async def form(self) -> Form:
        """Read the form that was sent. Raises a `Problem` if it is none, or too large."""
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Problem(415, "wrong-media", "this takes what a form of the page sends")
        body, memory = bytearray(), self.request.app.shared.memory
        try:
            async for part in self.request.stream():
                memory.change(self.caller.name, len(part))
                body += part
                if len(body) > MOST_BODY:
                    detail = f"a form has {MOST_BODY:,} bytes at most: use the command or the API"
                    raise Problem(413, "too-large", detail)
        finally:
            memory.change(self.caller.name, -len(body))
        try:
            pairs = parse_qsl(bytes(body).decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError as error:
            raise Problem(422, "bad-body", f"the form cannot be read: {error}") from None
        return Form(pairs)

    # ---- answers

    def page(self, template: str, status: int = 200, **given: Any) -> Response:
        """Answer with a page, which shows the message of the last act once."""
        said = self._said()
        usual = {"said": said, "can_leave": can_leave(self.request), "read_only": self.settings.read_only}
        html = paint.whole(template, self.at, **{**usual, **given})
        # lone surrogates never get here: `safe` has written them as \xNN
        answer = HTMLResponse(html.encode("utf-8", "replace"), status)
        if said is not None:
            answer.delete_cookie(SAID, path=self._cookie_path, httponly=True, samesite="strict")
        return answer

    def back(self, to: str, message: str, kind: str = "good") -> Response:
        """Answer an act: go back to a page of the queue, which shows the message. All who watch it see it anew."""
        self.hub.changed(self.name)
        below = to if BACK.fullmatch(to) else ""
        where = f"{self.at.base}/q/{self.name}" + (f"/{below}" if below else "")
        return self.go(where, message, kind)

    def go(self, where: str, message: str, kind: str = "good") -> Response:
        """Lead to a page, which shows the message."""
        answer = RedirectResponse(where, 303)
        said = json.dumps({"kind": kind, "text": safe(message, LONGEST_MESSAGE)}).encode()
        value = base64.urlsafe_b64encode(said).decode()
        answer.set_cookie(
            SAID, value, max_age=60, path=self._cookie_path, httponly=True, samesite="strict",
            secure=self.request.url.scheme == "https",
        )  # fmt: skip
        return answer

    @property
    def _cookie_path(self) -> str:
        return f"{self.at.base}/" if self.at.base else "/"

    def _said(self) -> Mapping[str, str] | None:
        value = self.request.cookies.get(SAID)
        if not value:
            return None
        try:
            found = json.loads(base64.urlsafe_b64decode(value))
            kind = "bad" if found["kind"] == "bad" else "good"
            return {"kind": kind, "text": safe(str(found["text"]), LONGEST_MESSAGE)}
        except (ValueError, TypeError, KeyError):
            return None

    def problem(self, error: BaseException) -> Response:
        """Answer with a page that says what went wrong."""
        return problem_page(problem_of(error), self.request)


class Form:
    """The fields of a form."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self._first = dict(reversed(pairs))

    def get(self, name: str, usual: str = "") -> str:
        """Give the first field of this name."""
        return self._first.get(name, usual)

    @property
    def tasks(self) -> list[str]:
        """The ids in the form. Raises `InvalidInput`."""
        return list(dict.fromkeys(spelling.read(self.pairs)))

    @property
    def is_sure(self) -> bool:
        """Whether whoever sends the form was asked already."""
        return self.get("sure") == "1"


Endpoint = Callable[[Visit], Awaitable[Response]]


def answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint of Starlette: what goes wrong is told on a page."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> Response:
        visit = Visit(request)
        try:
            return await endpoint(visit)
        except (Problem, TimeoutqError) as error:
            return visit.problem(error)

    return answer


def problem_page(found: Problem, request: Request) -> Response:
    """Write a page that says what went wrong; no tabs of a queue, which may not be there."""
    at = paint.At(base_of(request.scope, request.app.state.settings))
    html = paint.whole("problem.html", at, title=found.title, detail=found.detail, can_leave=can_leave(request))
    return HTMLResponse(html.encode("utf-8", "replace"), found.status, headers=found.headers)


def tell(request: Request, found: Problem) -> Response:
    """Answer a request that fails before it gets to a view: as a page, to whoever wants one.

    Whoever may put and not look is led from the overview to the list of forms for new tasks.
    """
    if "text/html" not in request.headers.get("accept", ""):
        return problem_response(found)
    base = base_of(request.scope, request.app.state.settings)
    caller: Caller = request.scope.get(CALLER, NOBODY)
    if request.url.path.removeprefix(base) == "/" and found.status == 403 and caller.may("put"):
        return RedirectResponse(f"{base}/put", 303)
    return problem_page(found, request)


def can_leave(request: Request) -> bool:
    """Say whether the browser has logged in, so that it can log out."""
    return any(name in request.cookies for name in (COOKIE_TLS, COOKIE))


def base_of(scope: Any, settings: Settings) -> str:
    """Give what stands before all paths: where the application is mounted, and what a proxy has put before it."""
    root = str(scope.get("root_path") or "").rstrip("/")
    prefix = settings.prefix.rstrip("/")
    return root if prefix and root.endswith(prefix) else root + prefix
