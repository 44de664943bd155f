"""One request of a browser: who asks, about which queue, with which ids; and the answer as a page."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response

import timeoutq
from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.access import COOKIE, COOKIE_TLS, next_page
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.hub import Hub
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.requests import Request
from timeoutq.gateway.tokens import SCOPES
from timeoutq.words.errors import InvalidInput
from timeoutq.words.text import safe

Form = ImmutableMultiDict[str, str]

MOST_BODY, MOST_FIELDS = 4 * 1024 * 1024, 2000  # bytes and fields of a form: a list has 50 tasks
SAID = "timeoutq-said"
"""The cookie with the message of the last act. The next page removes it, so that a reload does not show it twice."""
LONGEST_MESSAGE = 300
BACK = re.compile(r"(?:(?:tasks|task|kind|failures|hosts|workers|log|put)(?:\?[\x21-\x7e]{0,4000})?)?")
"""The pages of a queue to which an act may lead back: nothing that leads elsewhere."""
TABS = (
    ("look", "Queue", "q", "", "the queue"),
    ("look", "Tasks", "t", "/tasks?state=todos", "tasks by state"),
    ("look", "Failures", "f", "/failures", "failures by kind"),
    ("look", "Hosts", "h", "/hosts", "hosts"),
    ("look", "Workers", "w", "/workers", "workers"),
    ("look", "Log", "l", "/log", "log of events"),
    ("put", "Put", "n", "/put", "put new tasks"),
)
"""The views of a queue: the right that the caller must have, name, key, path and words."""


class Visit(Request):
    """A request for a page."""

    @property
    def hub(self) -> Hub:
        """The looks that all visits share."""
        hub: Hub = self.state.page
        return hub

    @cached_property
    def at(self) -> paint.At:
        """Where the page stands, and for whom."""
        rights = frozenset(needs for needs in SCOPES if self.caller.may(needs, self.name or None))
        # where the application is mounted, and the path that a proxy has put before it
        root, prefix = str(self.scope.get("root_path") or "").rstrip("/"), self.state.settings.prefix.rstrip("/")
        return paint.At(root if prefix and root.endswith(prefix) else root + prefix, self.name, rights)

    async def there(self) -> AnyAsyncQueue:
        """Give the queue as it is now, for a look long after the request; raises the problem of one that is gone."""
        return await self.state.queues.known(self.name, self.caller.name, or_workers=True)

    @cached_property
    def query(self) -> QueryParams:
        return QueryParams(self.head.query)

    def task(self) -> str:
        """Give the id that the query names. Raises `InvalidInput`."""
        found = spelling.read(self.query.multi_items())
        if len(found) != 1:
            raise InvalidInput("name one task: ?id=ID, or ?b64=BYTES in base64")
        return found[0]

    async def form(self, most: int = MOST_BODY) -> Form:
        """Read the form that was sent. Raises a `Problem` if it is none, or too large."""
        if self.kind != "application/x-www-form-urlencoded":
            raise Problem(415, "wrong-media", "this takes a form: application/x-www-form-urlencoded")
        body = await self.body(most)
        try:
            return Form(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
        except ValueError as error:
            raise Problem(422, "bad-body", f"the form cannot be read: {error}") from None

    def page(self, template: str, status: int = 200, **given: Any) -> Response:
        """Answer with a page, which shows the message of the last act once."""
        at, cookies = self.at, cookie_parser(self.head.cookies)
        said = _said(cookies)
        usual: dict[str, Any] = {
            "base": at.base, "queue": at.queue, "rights": at.rights, "at": at, "assets": paint.asset_version(),
            "version": timeoutq.__version__, "live": "", "parts": {}, "tab": "", "said": said,
            "can_leave": COOKIE_TLS in cookies or COOKIE in cookies, "read_only": self.state.settings.read_only,
            "tabs": [words for needs, *words in TABS if needs in at.rights],
        }  # fmt: skip
        html = paint.TEMPLATES.get_template(template).render({**usual, **given})
        answer = HTMLResponse(html.encode("utf-8", "replace"), status)
        if said is not None:
            answer.delete_cookie(SAID, path=f"{self.at.base}/", httponly=True, samesite="strict")
        return answer

    def back(self, to: str, message: str, kind: str = "good") -> Response:
        """Answer an act: go back to a page of the queue, which shows the message. All who watch it see it afresh."""
        self.hub.changed(self.name)
        below = f"/{to}" if to and BACK.fullmatch(to) else ""
        return self.go(f"{self.at.base}/q/{self.name}{below}", message, kind)

    def go(self, where: str, message: str, kind: str = "good") -> Response:
        answer = RedirectResponse(where, 303)
        said = json.dumps({"kind": kind, "text": safe(message, LONGEST_MESSAGE)}).encode()
        answer.set_cookie(
            SAID, base64.urlsafe_b64encode(said).decode(), max_age=60, path=f"{self.at.base}/", httponly=True,
            samesite="strict", secure=self.head.tls,
        )  # fmt: skip
        return answer

    def page_of(self, problem: Problem) -> Response | None:
        """Give the page that tells of a problem, if one is wanted."""
        if not self.head.html:
            return None
        # whoever may put and not look is led from the overview to the list of forms for new tasks
        if self.head.path == "/" and problem.status == 403 and self.caller.may("put"):
            return RedirectResponse(f"{self.at.base}/put", 303)
        self.at = paint.At(self.at.base)  # no tabs of a queue, which may not be there
        answer = self.page("problem.html", problem.status, title=problem.title, detail=problem.detail)
        answer.headers.update(problem.headers)
        return answer


def _said(cookies: Mapping[str, str]) -> Mapping[str, str] | None:
    try:
        found = json.loads(base64.urlsafe_b64decode(cookies[SAID]))
        kind = "bad" if found["kind"] == "bad" else "good"
        return {"kind": kind, "text": safe(str(found["text"]), LONGEST_MESSAGE)}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


async def login(visit: Visit) -> Response:
    return visit.page("login.html", wanted=next_page(visit.query.get("next", ""), f"{visit.at.base}/"), error="")


async def enter(visit: Visit) -> Response:
    """Take a token, and put it into a cookie."""
    form = await visit.form(4096)
    wanted, secret = next_page(form.get("next", ""), f"{visit.at.base}/"), form.get("token", "").strip()
    if await visit.state.tokens.look_up(secret) is None:
        error = "This token is unknown, revoked or has run out."
        return visit.page("login.html", 403, wanted=wanted, error=error)
    answer, tls = RedirectResponse(wanted, 303), visit.head.tls
    answer.set_cookie(
        COOKIE_TLS if tls else COOKIE, secret, max_age=30 * 86400, path="/", secure=tls, httponly=True,
        samesite="strict",
    )  # fmt: skip
    return answer


async def leave(visit: Visit) -> Response:
    answer = RedirectResponse(f"{visit.at.base}/login", 303)
    for name, tls in ((COOKIE_TLS, True), (COOKIE, False)):
        answer.delete_cookie(name, path="/", secure=tls, httponly=True, samesite="strict")
    return answer
