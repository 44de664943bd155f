"""One request of a browser: who asks, about which queue, with which ids; and the answer as a page.

The message that an act leaves for the next page travels in a cookie that this page removes again, so that a reload does
not show it twice and no link can make the page say something.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway import requests as gateway
from timeoutq.gateway.access import COOKIE, COOKIE_TLS, next_page, route_path
from timeoutq.gateway.callers import EVERYTHING
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.hub import Hub
from timeoutq.gateway.problems import Problem
from timeoutq.words.errors import InvalidInput
from timeoutq.words.text import safe

MOST_BODY, MOST_FIELDS = 4 * 1024 * 1024, 2000
"""Bytes and fields of a form: a list has 50 tasks."""
SAID = "timeoutq-said"  # the cookie with the message of the last act
LONGEST_MESSAGE = 300
BACK = re.compile(r"(?:(?:tasks|task|kind|failures|hosts|workers|log|put)(?:\?[\x21-\x7e]{0,4000})?)?")
"""The pages of a queue to which an act may lead back: nothing that leads elsewhere."""


class Visit:
    """A request for a page."""

    def __init__(self, asked: gateway.Request) -> None:
        self.asked = asked
        self.request = Request(asked.scope)  # the same, for its query and cookies
        self.settings, self.queues = asked.state.settings, asked.state.queues
        self.hub: Hub = asked.state.page
        self.caller, self.name = asked.caller, asked.name
        rights = frozenset(needs for needs in EVERYTHING if self.caller.may(needs, self.name or None))
        # where the application is mounted, and the path that a proxy has put before it
        root, prefix = str(asked.scope.get("root_path") or "").rstrip("/"), self.settings.prefix.rstrip("/")
        base = root if prefix and root.endswith(prefix) else root + prefix
        self.at = paint.At(base, self.name, rights)

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

    async def form(self, most: int = MOST_BODY) -> Form:
        """Read the form that was sent. Raises a `Problem` if it is none, or too large."""
        if self.asked.kind != b"application/x-www-form-urlencoded":
            raise Problem(415, "wrong-media", "this takes a form: application/x-www-form-urlencoded")
        body = await self.asked.body(most)
        try:
            return Form(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError as error:
            raise Problem(422, "bad-body", f"the form cannot be read: {error}") from None

    # ---- answers

    def page(self, template: str, status: int = 200, **given: Any) -> Response:
        """Answer with a page, which shows the message of the last act once."""
        said = self._said()
        can_leave = any(name in self.request.cookies for name in (COOKIE_TLS, COOKIE))
        usual = {"said": said, "can_leave": can_leave, "read_only": self.settings.read_only}
        html = paint.whole(template, self.at, **{**usual, **given})
        answer = HTMLResponse(html.encode("utf-8", "replace"), status)
        if said is not None:
            answer.delete_cookie(SAID, path=self._cookie_path, httponly=True, samesite="strict")
        return answer

    def back(self, to: str, message: str, kind: str = "good") -> Response:
        """Answer an act: go back to a page of the queue, which shows the message. All who watch it see it afresh."""
        self.hub.changed(self.name)
        below = to if BACK.fullmatch(to) else ""
        where = f"{self.at.base}/q/{self.name}" + (f"/{below}" if below else "")
        return self.go(where, message, kind)

    def go(self, where: str, message: str, kind: str = "good") -> Response:
        """Lead to a page, which shows the message."""
        answer = RedirectResponse(where, 303)
        said = json.dumps({"kind": kind, "text": safe(message, LONGEST_MESSAGE)}).encode()
        answer.set_cookie(
            SAID, base64.urlsafe_b64encode(said).decode(), max_age=60, path=self._cookie_path, httponly=True,
            samesite="strict", secure=self.request.url.scheme == "https",
        )  # fmt: skip
        return answer

    @property
    def _cookie_path(self) -> str:
        return f"{self.at.base}/" if self.at.base else "/"

    def _said(self) -> Mapping[str, str] | None:
        try:
            found = json.loads(base64.urlsafe_b64decode(self.request.cookies[SAID]))
            kind = "bad" if found["kind"] == "bad" else "good"
            return {"kind": kind, "text": safe(str(found["text"]), LONGEST_MESSAGE)}
        except (ValueError, TypeError, KeyError):
            return None


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


def visiting(endpoint: Callable[[Visit], Awaitable[Response]]) -> Callable[[gateway.Request], Awaitable[Response]]:
    """Make an endpoint of the gateway."""

    async def answer(request: gateway.Request) -> Response:
        return await endpoint(Visit(request))

    return answer


def tell(asked: gateway.Request, found: Problem) -> Response | None:
    """Answer a request that fails with a page, if one is wanted.

    Whoever may put and not look is led from the overview to the list of forms for new tasks.
    """
    if b"text/html" not in asked.header(b"accept"):
        return None
    visit = Visit(asked)
    if route_path(asked.scope) == "/" and found.status == 403 and visit.caller.may("put"):
        return RedirectResponse(f"{visit.at.base}/put", 303)
    visit.at = paint.At(visit.at.base)  # no tabs of a queue, which may not be there
    answer = visit.page("problem.html", found.status, title=found.title, detail=found.detail)
    answer.headers.update(found.headers)
    return answer


# ---- the login of browsers
#
# The cookie is the token itself, because a gateway keeps nothing: no script can read it, no other site can send it
# (SameSite=Strict), and over https no other host and no path can plant one (the prefix `__Host-`). Browsers take that
# name only over TLS; so over plain http, on a laptop, the cookie has another name and is not `Secure`. Cookies are not
# bound to a port: over http, other servers on this very host name see the cookie.


async def login(visit: Visit) -> Response:
    """Show the form for a token."""
    return visit.page("login.html", wanted=next_page(visit.query("next"), f"{visit.at.base}/"), error="")


async def enter(visit: Visit) -> Response:
    """Take a token, and put it into a cookie."""
    form = await visit.form(4096)
    wanted, secret = next_page(form.get("next"), f"{visit.at.base}/"), form.get("token").strip()
    if await visit.asked.state.tokens.look_up(secret) is None:
        error = "This token is unknown, revoked or has run out."
        return visit.page("login.html", 403, wanted=wanted, error=error)
    answer = RedirectResponse(wanted, 303)
    tls = visit.request.url.scheme == "https"
    answer.set_cookie(
        COOKIE_TLS if tls else COOKIE, secret, max_age=30 * 86400, path="/", secure=tls, httponly=True,
        samesite="strict",
    )  # fmt: skip
    return answer


async def leave(visit: Visit) -> Response:
    """Remove the cookie."""
    answer = RedirectResponse(f"{visit.at.base}/login", 303)
    for name, tls in ((COOKIE_TLS, True), (COOKIE, False)):
        answer.delete_cookie(name, path="/", secure=tls, httponly=True, samesite="strict")
    return answer
