"""Who may come in over HTTP: decisions about the head of a request, and `Access`, which asks them."""

from __future__ import annotations

import inspect
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import cast
from urllib.parse import unquote

from starlette.types import Scope

from timeoutq.gateway.callers import NOBODY, Caller
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import PREFIX, SHAPE, Tokens
from timeoutq.words.errors import InvalidInput, TimeoutqError

# The cookie is the token itself, because a gateway keeps nothing: no script can read it, no other site can send it
# (SameSite=Strict), and over https no other host and no path can plant one (the prefix `__Host-`). Browsers take that
# name only over TLS; so over plain http, on a laptop, the cookie has another name and is not `Secure`. Cookies are not
# bound to a port: over http, other servers on this very host name see the cookie.
COOKIE_TLS, COOKIE = "__Host-timeoutq", "timeoutq"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PARAMETERS = frozenset({"token", "access_token", "auth", "authorization", "api_key", "apikey", "key", "secret"})
_OF_A_PROXY = re.compile(
    rb"(via|cdn-loop|x-scheme|x-url-scheme|x-real-port|.*-(client)?ip)\Z|forwarded(-|\Z)"
    rb"|x-(forwarded|original-|envoy-|amzn-|amz-cf-|azure-|arr-|appengine-)|(cf|fly|fastly)-"
)
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?\Z")


class Head:
    """The head of a request, as decisions see it."""

    def __init__(self, scope: Scope) -> None:
        self._headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self._headers.setdefault(name, []).append(value)
        # HTTP/1.0 is what nginx speaks to the servers behind it unless told otherwise; a proxy may also leave no sign
        self.is_forwarded = scope.get("http_version") == "1.0" or any(map(_OF_A_PROXY.match, self._headers))
        path, root = cast("str", scope["path"]), cast("str", scope.get("root_path") or "").rstrip("/")
        # without the prefix of a host application or a proxy
        self.path = path[len(root) :] or "/" if root and f"{path}/".startswith(root + "/") else path
        self.method: str = scope["method"]
        self.query: bytes = scope.get("query_string", b"")
        self.tls = scope.get("scheme") == "https"
        self.hosts = [value.lower() for value in self.each(b"host")]
        self.origins = [value.lower() for value in self.each(b"origin")]
        self.site = self.first(b"sec-fetch-site").lower()
        """No script of a page can forge it; '' if the client is no browser, or an old one."""
        # whether a person goes to this page
        self.navigates = self.each(b"sec-fetch-mode") == ["navigate"] and self.each(b"sec-fetch-dest") == ["document"]
        self.cookies = "; ".join(self.each(b"cookie"))
        # whether the length of the body is told in two ways: a proxy before us may believe the other one
        self.has_two_lengths = b"transfer-encoding" in self._headers and b"content-length" in self._headers
        self.html = any("text/html" in value for value in self.each(b"accept"))

    def each(self, name: bytes) -> list[str]:
        return [value.decode("latin-1").strip() for value in self._headers.get(name, ())]

    def first(self, name: bytes) -> str:
        """Give the first value of a header; '' if there is none."""
        return next(iter(self.each(name)), "")


def cookie_of(header: str, tls: bool) -> str:
    """Give the token in our cookie; '' if there is none, or if there are two, one of which may be planted."""
    wanted = (COOKIE_TLS if tls else COOKIE) + "="
    found = [pair.strip()[len(wanted) :] for pair in header.split(";") if pair.strip().startswith(wanted)]
    return found[0] if len(found) == 1 else ""


# ---- decisions: each raises the problem with a request


def check_host(head: Head, names: Sequence[str]) -> None:
    """Refuse a request for a host that is not ours: a page whose DNS name was rebound to us sends its own name."""
    if len(head.hosts) != 1:
        raise Problem(400, "bad-host", "a request must name one host (header Host)")
    if not _is_ours(head.hosts[0], tuple(names)):
        raise Problem(
            421, "foreign-host",
            "this gateway does not serve the host that the request names: start it with --host-name for each name that "
            "it has, besides localhost (an application that mounts it names them in Settings(hosts=...))",
        )  # fmt: skip


@lru_cache(256)
def _is_ours(told: str, names: tuple[str, ...]) -> bool:
    found = _HOST.match(told)
    # a name may be meant with its port only; an address in numbers cannot be rebound
    return found is not None and (
        found[1] in LOOPBACK_NAMES or found[1] in names or told in names or _address(found[1]) is not None
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def check_url(head: Head) -> None:
    """Refuse a token in a URL: URLs stand in logs, histories and referrers. The problem does not repeat the token."""
    plain = head.query.decode("latin-1")
    if not plain and PREFIX not in head.path:
        return
    # the id of a task may be a URL with parameters of its own: only those of this URL count
    names = {unquote(part.partition("=")[0]).lower() for part in plain.split("&")}
    if names & _PARAMETERS or SHAPE.search(unquote(unquote(plain))) or SHAPE.search(unquote(head.path)):
        raise Problem(
            400, "token-in-url",
            "a token must not stand in a URL, because URLs are logged and kept: send it as 'Authorization: Bearer …', "
            "and revoke it if it was a real one",
        )  # fmt: skip


def is_own(origin: str, head: Head, names: Sequence[str]) -> bool:
    """Say whether an Origin is that of our own pages: our host and port, or a name of `--host-name`."""
    scheme, _, where = origin.partition("://")
    if scheme not in ("http", "https") or (head.tls and scheme != "https"):
        return False
    here = head.hosts[0].removesuffix(":443" if scheme == "https" else ":80")
    return bool(where) and (where == here or where in names)


def check_origin(head: Head, names: Sequence[str]) -> None:
    """Refuse a request that a page of another site sends, unless a person follows a link from there to us."""
    if head.site == "same-origin":
        return
    if head.site in ("", "none"):
        if all(is_own(origin, head, names) for origin in head.origins) and len(head.origins) < 2:
            return
    elif head.method in SAFE_METHODS and head.navigates and not head.origins:
        return
    raise Problem(403, "foreign-origin", "a page of another site must not send requests to this gateway")


def check_proof(head: Head, names: Sequence[str]) -> None:
    """Refuse a write with a cookie unless the browser says that a page of ours has sent it."""
    is_ours = len(head.origins) == 1 and is_own(head.origins[0], head, names)
    if head.method not in SAFE_METHODS and head.site != "same-origin" and not is_ours:
        raise Problem(
            403, "foreign-origin",
            "a write with a cookie must come from a page of this gateway (Sec-Fetch-Site: same-origin, or an equal "
            "Origin); programs send 'Authorization: Bearer …'",
        )  # fmt: skip


def secret_of(head: Head, names: Sequence[str]) -> str:
    """Give the token of the header Authorization, or else of our cookie; '' if there is none."""
    found = head.each(b"authorization")
    if found:
        scheme, _, secret = found[0].partition(" ")
        if len(found) > 1 or scheme.lower() != "bearer" or not secret.strip():
            raise unauthorized("the header Authorization cannot be read: write 'Authorization: Bearer TOKEN', once")
        return secret.strip()
    cookie = cookie_of(head.cookies, head.tls)
    if cookie:
        check_proof(head, names)
    return cookie


def unauthorized(detail: str = "") -> Problem:
    """Give the problem for a request whose token is missing or no good."""
    gone = "the token is unknown, revoked or has run out: timeoutq token list shows which are good"
    return Problem(401, "unauthorized", detail or gone)


def next_page(wanted: str, home: str) -> str:
    """Give where a browser goes after a login: a path of ours, or `home` if `wanted` might be anything else."""
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted and " " not in wanted
    plain = plain and not SHAPE.search(unquote(wanted))
    return wanted if plain and wanted.startswith(home) and not wanted.startswith("//") else home


def is_loopback(host: str) -> bool:
    """Say whether only programs of this machine reach a socket that is bound to `host`."""
    found = _address(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def check_bind(host: str, has_tokens: bool) -> None:
    """Refuse to listen where others can come in, while nobody needs a token; raises `InvalidInput` with the cure."""
    if not is_loopback(host) and not has_tokens:
        raise InvalidInput(
            f"--host {host} lets other machines in, and there are no tokens: make one first (timeoutq token new NAME "
            "--queues '*' --allow look,put,work,manage), or start with --first-token NAME, which prints one, or listen "
            "on 127.0.0.1"
        )


class Access:
    """Lets in who may come in."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._settings, self._tokens = settings, tokens
        self._names = tuple(name.lower() for name in settings.hosts)
        self._anybody = Caller("anybody", settings.anonymous, read_only=settings.read_only)  # who has no token

    async def let_in(self, head: Head, scope: Scope, *, is_public: bool) -> tuple[Caller, str]:
        """Give the caller, and the token, without which nothing is for callers that is not public; raises a problem."""
        if head.has_two_lengths:
            detail = "a body is chunked or has a Content-Length, not both"
            raise Problem(400, "bad-http", detail, headers={"connection": "close"})
        check_host(head, self._names)
        check_url(head)
        check_origin(head, self._names)
        settings = self._settings
        if is_public:
            return NOBODY, ""
        if settings.login is not None:
            known = settings.login(scope)
            caller = await known if inspect.isawaitable(known) else known
            if caller is None:
                raise unauthorized("the application knows nobody who sends this request")
            if head.cookies:
                check_proof(head, self._names)
            return replace(caller, read_only=caller.read_only or settings.read_only), ""
        secret = secret_of(head, self._names)
        if not secret:
            found = _HOST.match(head.hosts[0])
            is_here = found is not None and (found[1] in LOOPBACK_NAMES or found[1] in settings.hosts)
            # through a proxy, a bind to the loopback says nothing of callers
            if settings.anonymous and is_here and not head.is_forwarded and not await self._tokens.are_there():
                return self._anybody, ""
            raise unauthorized(
                "this needs a token: 'Authorization: Bearer TOKEN' (timeoutq token new NAME --queues '*' "
                "--allow look,put,work makes one)"
            )
        token = await self._tokens.look_up(secret)
        if token is None:
            raise unauthorized()
        return Caller(token.name, token.allow, token.queues, settings.read_only), secret

    async def still_counts(self, caller: Caller, secret: str) -> bool:
        """Say whether a caller may still come in; this costs Redis one reading in `FRESH` seconds at most."""
        try:
            if secret:
                return await self._tokens.look_up(secret) is not None
            return caller is not self._anybody or not await self._tokens.are_there()
        except TimeoutqError:
            return True  # Redis does not answer: nothing new can be told
