"""Who may come in over HTTP: decisions about one request, and `Access`, which asks them.

`app.py` asks `Access` about every request. A request must name a host that is ours (a page of a rebound DNS name names
another), must not come from a page of another site, must not have a token in its URL, and must bring a token. Three
kinds of requests need none: those for a public path; those whose sender the login of a host application knows; and,
while the server has no tokens, those of callers to whom the gateway was opened without one.
"""

from __future__ import annotations

import inspect
import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, unquote

from timeoutq.gateway.callers import ANYBODY, NOBODY, Caller
from timeoutq.gateway.problems import Problem, problem_of
from timeoutq.gateway.settings import Message, Scope, Send, Settings
from timeoutq.gateway.tokens import FRESH, SHAPE, Tokens
from timeoutq.words.errors import InvalidInput, TimeoutqError

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
_OURS = frozenset(name for name, _ in HEADERS)

COOKIE_TLS = "__Host-timeoutq"
"""The cookie over https. Browsers take this name only from the host itself, over TLS and for all paths."""
COOKIE = "timeoutq"
"""The cookie over http, where browsers refuse the other name: for a laptop, or for a network that is trusted."""
GONE = "the token is unknown, revoked or has run out: timeoutq token list shows which are good"

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PARAMETERS = frozenset({"token", "access_token", "auth", "authorization", "api_key", "apikey", "key", "secret"})
_FORWARDED = frozenset({b"forwarded", b"via", b"cdn-loop", b"x-scheme", b"x-url-scheme", b"x-real-port"})
_FORWARDED_BEGIN = (
    b"x-forwarded", b"x-original-", b"x-envoy-", b"x-amzn-", b"x-amz-cf-", b"x-azure-", b"x-arr-", b"x-appengine-",
    b"cf-", b"fly-", b"fastly-", b"forwarded-",
)  # fmt: skip
_FORWARDED_END = (b"-ip", b"-clientip")
_LOOKED_AT = frozenset({
    b"transfer-encoding", b"content-length",
    b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"authorization", b"cookie", b"accept",
})  # fmt: skip
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?\Z")


class Head:
    """The head of a request, as decisions see it."""

    __slots__ = (
        "authorizations", "cookie", "cookies", "forwarded", "hosts", "html", "method", "navigates", "origins", "path",
        "query", "site", "tls", "twice",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        """Read the scope of ASGI."""
        found: dict[bytes, list[str]] = {}
        # HTTP/1.0 is what nginx speaks to the servers behind it unless told otherwise; a proxy may also leave no sign
        self.forwarded = scope.get("http_version") == "1.0"
        for name, value in scope["headers"]:
            if name in _LOOKED_AT:
                found.setdefault(name, []).append(value.decode("latin-1").strip())
            elif name in _FORWARDED or name.startswith(_FORWARDED_BEGIN) or name.endswith(_FORWARDED_END):
                self.forwarded = True

        def each(name: bytes) -> list[str]:
            return found.get(name, [])

        self.method: str = scope["method"]
        self.path = route_path(scope)
        self.query: bytes = scope.get("query_string", b"")
        self.tls = scope.get("scheme") == "https"
        self.hosts = [value.lower() for value in each(b"host")]
        self.origins = [value.lower() for value in each(b"origin")]
        # no script of a page can forge it; '' if the client is no browser, or an old one
        self.site = "".join(each(b"sec-fetch-site")[:1]).lower()
        # whether a person goes to this page
        self.navigates = each(b"sec-fetch-mode") == ["navigate"] and each(b"sec-fetch-dest") == ["document"]
        self.authorizations = each(b"authorization")
        self.cookies = each(b"cookie")
        self.cookie = cookie_of("; ".join(self.cookies), self.tls) if self.cookies else ""  # the token in our cookie
        # whether the length of the body is told in two ways: a proxy before us may believe the other one
        self.twice = b"transfer-encoding" in found and b"content-length" in found
        self.html = any("text/html" in value for value in each(b"accept"))


def route_path(scope: Scope) -> str:
    """Give the path of a request without the prefix of a host application or a proxy."""
    path, root = cast("str", scope["path"]), cast("str", scope.get("root_path") or "").rstrip("/")
    return path[len(root) :] or "/" if root and f"{path}/".startswith(root + "/") else path


def cookie_of(header: str, tls: bool) -> str:
    """Give the token in our cookie; '' if there is none, or if there are two, one of which may be planted."""
    wanted = (COOKIE_TLS if tls else COOKIE) + "="
    found = [pair.strip()[len(wanted) :] for pair in header.split(";") if pair.strip().startswith(wanted)]
    return found[0] if len(found) == 1 else ""


# ---- decisions: each raises the problem with a request


def check_length(head: Head) -> None:
    """Refuse a request that tells the length of its body in two ways."""
    if head.twice:
        detail = "a body is chunked or has a Content-Length, not both"
        raise Problem(400, "bad-http", detail, headers={"connection": "close"})


def check_host(head: Head, names: Sequence[str]) -> None:
    """Refuse a request for a host that is not ours: a page whose DNS name was rebound to us sends its own name.

    `names` are those of `--host-name`, each also with `:port` if only this port is meant. An address in numbers cannot
    be rebound, and is ours.
    """
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
    if found is None:
        return False
    host = found[1]
    return host in LOOPBACK_NAMES or host in names or told in names or _address(host) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def check_url(head: Head) -> None:
    """Refuse a token in a URL: URLs stand in logs, histories and referrers. The problem does not repeat the token."""
    plain = head.query.decode("latin-1")
    if not plain and "tq_" not in head.path:
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
    """Refuse a request that a page of another site sends, whatever it brings with it.

    Only a person who follows a link to us is let in from there.
    """
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


def bearer(head: Head) -> str:
    """Give the token of the header Authorization, '' if there is none; raises a problem if it cannot be read."""
    if not head.authorizations:
        return ""
    scheme, _, secret = head.authorizations[0].partition(" ")
    if len(head.authorizations) > 1 or scheme.lower() != "bearer" or not secret.strip():
        raise unauthorized("the header Authorization cannot be read: write 'Authorization: Bearer TOKEN', once")
    return secret.strip()


def unauthorized(detail: str = GONE) -> Problem:
    """Give the problem for a request whose token is missing or no good."""
    return Problem(401, "unauthorized", detail)


def may_be_anybody(head: Head, settings: Settings) -> bool:
    """Say whether a caller may do without a token, on a server that has none.

    Only if the gateway was opened to such callers; and not through a proxy, for whose callers a bind to the loopback
    says nothing; and not by an address that others can reach.
    """
    if not settings.anonymous or head.forwarded or len(head.hosts) != 1:
        return False
    found = _HOST.match(head.hosts[0])
    return found is not None and (found[1] in LOOPBACK_NAMES or found[1] in settings.hosts)


def next_page(wanted: str, home: str) -> str:
    """Give where a browser goes after a login: a path of ours, or `home` if `wanted` might be anything else."""
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted and " " not in wanted
    plain = plain and not SHAPE.search(unquote(wanted))
    return wanted if plain and wanted.startswith(home) and not wanted.startswith("//") else home


# ---- where the gateway may listen


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


# ---- at the door


class Access:
    """Lets in who may come in; all others get a problem. Everything that leaves has the headers for browsers."""

    def __init__(self, settings: Settings, tokens: Tokens, public: Callable[[str], bool], *, has_login: bool) -> None:
        """Prepare; `public` says whether a path needs no token; with `has_login`, browsers are sent to /login."""
        self._settings = settings
        self.tokens = tokens
        self._public = public
        self._has_login = has_login
        self._names = tuple(name.lower() for name in settings.hosts)
        self.anybody = self._bounded(replace(ANYBODY, allow=settings.anonymous))  # the caller without a token

    async def enter(self, scope: Scope, send: Send) -> Answer | None:
        """Give the answer to a request, with its caller; None if the caller may not come in, and was told so."""
        head = Head(scope)
        answer = Answer(self, head, scope, send)
        try:
            answer.caller, answer.secret = await self._caller(head, scope)
        except (Problem, TimeoutqError) as error:
            await self.refuse(problem_of(error), head, scope, answer.send)
            return None
        return answer

    async def _caller(self, head: Head, scope: Scope) -> tuple[Caller, str]:
        """Give the caller, and the token; raises a problem if the caller may not come in."""
        check_length(head)
        check_host(head, self._names)
        check_url(head)
        check_origin(head, self._names)
        settings = self._settings
        if self._public(head.path):
            return NOBODY, ""
        if settings.login is not None:
            found = settings.login(scope)
            caller = await found if inspect.isawaitable(found) else found
            if caller is None:
                raise unauthorized("the application knows nobody who sends this request")
            if head.cookies:
                check_proof(head, self._names)
            return self._bounded(caller), ""
        secret = bearer(head)
        if not secret and head.cookie:
            check_proof(head, self._names)
            secret = head.cookie
        if not secret:
            if may_be_anybody(head, settings) and not await self.tokens.are_there():
                return self.anybody, ""
            raise unauthorized(
                "this needs a token: 'Authorization: Bearer TOKEN' (timeoutq token new NAME --queues '*' "
                "--allow look,put,work makes one)"
            )
        token = await self.tokens.look_up(secret)
        if token is None:
            raise unauthorized()
        return self._bounded(Caller(token.name, token.allow, token.queues)), secret

    def _bounded(self, caller: Caller) -> Caller:
        return replace(caller, read_only=True) if self._settings.read_only else caller

    async def refuse(self, problem: Problem, head: Head, scope: Scope, send: Send) -> None:
        """Send a problem; a browser that needs a token is sent to the login."""
        wants_page = head.html and head.method == "GET" and not head.path.startswith("/v1")
        if self._has_login and problem.status == 401 and wants_page:
            where = f"{scope.get('root_path', '')}/login?next={quote(scope['path'], safe='/')}"
            await send_all(send, 303, b"text/plain", b"", {"location": where})
        else:
            await send_problem(send, problem, bare=head.method == "HEAD")


class Answer:
    """The answer to one request: when it takes longer than a token may be trusted, the token is looked up again.

    A token may be revoked while its holder waits for tasks or watches a page. Then the holder gets no more, and a claim
    whose answer is refused is undone.
    """

    __slots__ = ("_access", "_checked", "_head", "_scope", "_send", "caller", "secret", "was_refused")

    def __init__(self, access: Access, head: Head, scope: Scope, send: Send) -> None:
        self._access = access
        self._head = head
        self._scope = scope
        self._send = send
        self._checked = time.monotonic()
        self.caller, self.secret = NOBODY, ""
        self.was_refused = False
        """Whether the caller did not get the answer, or not to its end, because the token does not count any more."""

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the token does not count any more."""
        if self.was_refused:
            return
        if (now := time.monotonic()) - self._checked > FRESH:
            self._checked = now
            self.was_refused = not await self.still_counts()
        if not self.was_refused:
            await self._send_with_headers(message)
        elif message["type"] == "http.response.start":
            await self._access.refuse(unauthorized(), self._head, self._scope, self._send_with_headers)
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_with_headers(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            given = cast("Iterable[tuple[bytes, bytes]]", message.get("headers", ()))
            kept = [pair for pair in given if pair[0] not in _OURS]
            if all(name != b"cache-control" for name, _ in kept):
                kept.append((b"cache-control", b"no-store"))
            message["headers"] = [*kept, *HEADERS]
        await self._send(message)

    async def still_counts(self) -> bool:
        """Say whether the caller may still come in; this costs Redis one reading in `FRESH` seconds at most."""
        tokens = self._access.tokens
        try:
            if self.secret:
                return await tokens.look_up(self.secret) is not None
            return self.caller is not self._access.anybody or not await tokens.are_there()
        except TimeoutqError:
            return True  # Redis does not answer: nothing new can be told


async def send_all(
    send: Send, status: int, kind: bytes, body: bytes, more: Mapping[str, str] | None = None, *, bare: bool = False
) -> None:
    """Send an answer; `bare`: without its body."""
    headers: list[Any] = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    for name, value in (more or {}).items():
        headers.append((name.encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if bare else body})


async def send_problem(send: Send, problem: Problem, *, bare: bool = False) -> None:
    """Send a problem."""
    await send_all(send, problem.status, b"application/problem+json", problem.body(), problem.headers, bare=bare)
