"""The login of browsers: a form takes a token, which then stands in a cookie; and the logout, which removes the cookie.

`app.py` adds the three routes of the login to the others. Who draws the form is told to `Login`: the page draws it like
all its views, and without a page a plain form stands in for that.

The cookie is the token itself, because a gateway keeps nothing: no script can read it, no other site can send it
(SameSite=Strict), and over https no other host and no path can plant one (the prefix `__Host-`). Browsers take that
name only over TLS; so over plain http, on a laptop, the cookie has another name and is not `Secure`. Cookies are not
bound to a port: over http, what else is served on this very host name sees the cookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from html import escape
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from timeoutq.gateway.access import COOKIE, COOKIE_TLS, next_page
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import Tokens

FORM_LIMIT = 4096
"""The most bytes of the form."""
_DAYS_30 = 30 * 86400

Draw = Callable[[str, str, str], str]
"""Draws the form: takes the prefix of the gateway's paths, the page to go to, and an error or ''. Gives HTML."""


def plain_form(base: str, wanted: str, error: str) -> str:
    """Draw the form without a page around it."""
    said = f'<p role="alert">{escape(error)}</p>' if error else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in · timeoutq</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"></head><body><main><h1>Log in</h1>'
        f'{said}<form method="post" action="{escape(base)}/login">'
        f'<input type="hidden" name="next" value="{escape(wanted)}"><label for="token">Token</label> '
        '<input id="token" name="token" type="password" required autocomplete="current-password" autofocus> '
        "<button>Log in</button></form></main></body></html>"
    )


class Login:
    """Answers `GET /login`, `POST /login` and `POST /logout`."""

    def __init__(self, settings: Settings, tokens: Tokens, draw: Draw = plain_form) -> None:
        self._settings = settings
        self._tokens = tokens
        self._draw = draw

    async def show(self, request: Request) -> Response:
        """Show the form for a token."""
        return self._form(request, request.query_params.get("next", ""), "", 200)

    async def enter(self, request: Request) -> Response:
        """Take a token, and put it into a cookie."""
        fields = await self._fields(request)
        wanted, secret = fields.get("next", ""), fields.get("token", "").strip()
        if await self._tokens.look_up(secret) is None:
            return self._form(request, wanted, "This token is unknown, revoked or has run out.", 403)
        answer = RedirectResponse(next_page(wanted, self._base(request) + "/"), 303)
        tls = request.scope.get("scheme") == "https"
        answer.set_cookie(
            COOKIE_TLS if tls else COOKIE, secret, max_age=_DAYS_30, path="/", secure=tls, httponly=True,
            samesite="strict",
        )  # fmt: skip
        return answer

    async def leave(self, request: Request) -> Response:
        """Remove the cookie."""
        answer = RedirectResponse(self._base(request) + "/login", 303)
        for name, tls in ((COOKIE_TLS, True), (COOKIE, False)):
            answer.delete_cookie(name, path="/", secure=tls, httponly=True, samesite="strict")
        return answer

    def _base(self, request: Request) -> str:
        return str(request.scope.get("root_path") or "").rstrip("/")

    def _form(self, request: Request, wanted: str, error: str, status: int) -> Response:
        base = self._base(request)
        return HTMLResponse(self._draw(base, next_page(wanted, base + "/"), error), status)

    async def _fields(self, request: Request) -> dict[str, str]:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Problem(415, "wrong-media", "a login is a form: application/x-www-form-urlencoded")
        body = b""
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > FORM_LIMIT:
                        raise Problem(413, "too-large", f"a login has {FORM_LIMIT:,} bytes at most")
        except TimeoutError:
            raise Problem(408, "too-slow", "the form came too slowly", headers={"connection": "close"}) from None
        try:
            found = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=8)
        except (UnicodeDecodeError, ValueError):
            raise Problem(422, "bad-body", "the form cannot be read") from None
        return {name: values[-1] for name, values in found.items()}
