"""Who may ask what over HTTP: decisions, which take values and give values, and the one ASGI middleware that asks them.

`app.py` puts `Access` around the whole application, so that no route can be reached past it. A request must name a host
that is ours (a page of a rebound DNS name names another), must not come from a page of another site, must not have a
token in its URL, and must bring a token. Three kinds of requests need none: those for a public path; those whose sender
the login of a host application knows; and, while the server has no tokens, those of callers to whom the gateway was
opened without one. Then the endpoint asks `scope["timeoutq.caller"]` whether the token is enough.
"""

from __future__ import annotations

import inspect
import ipaddress
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

from timeoutq.gateway.callers import ANYBODY, NOBODY, Caller
from timeoutq.gateway.problems import Problem, problem_of
from timeoutq.gateway.settings import ASGI, Message, Receive, Scope, Send, Settings
from timeoutq.gateway.tokens import FRESH, SHAPE, Token, Tokens
from timeoutq.words.errors import InvalidInput, TimeoutqError

CALLER = "timeoutq.caller"
"""The key in the ASGI scope under which endpoints find their `Caller`."""

ENTRANCE = "timeoutq.entrance"
"""The key in the ASGI scope under which endpoints that wait find whether their caller still counts."""

HEADERS: Sequence[tuple[bytes, bytes]] = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # not no-referrer: with it, browsers send "Origin: null" with our own forms
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""What every answer says to browsers, whatever the endpoint is."""
_OURS = frozenset(name for name, _ in HEADERS)
NO_STORE = (b"cache-control", b"no-store")

COOKIE_TLS = "__Host-timeoutq"
"""The cookie over https. Browsers take this name only from the host itself, over TLS and for all paths."""
COOKIE = "timeoutq"
"""The cookie over http, where browsers refuse the other name: for a laptop, or for a network that is trusted."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PARAMETERS = frozenset({"token", "access_token", "auth", "authorization", "api_key", "apikey", "key", "secret"})
_FORWARDED = frozenset({b"forwarded", b"via", b"cdn-loop", b"x-scheme", b"x-url-scheme", b"x-real-port"})
_FORWARDED_BEGIN = (
    b"x-forwarded", b"x-original-", b"x-envoy-", b"x-amzn-", b"x-amz-cf-", b"x-azure-", b"x-arr-", b"x-appengine-",
    b"cf-", b"fly-", b"fastly-", b"forwarded-",
)  # fmt: skip
_FORWARDED_END = (b"-ip", b"-clientip")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::([0-9]{1,5}))?\Z")


@dataclass(slots=True)
class Request:
    """What decisions look at in a request."""

    method: str
    path: str
    """Without the prefix under which the gateway is mounted."""
    query: bytes = b""
    tls: bool = False
    hosts: tuple[str, ...] = ()
    """Each header Host, in small letters."""
    origins: tuple[str, ...] = ()
    site: str = ""
    """`Sec-Fetch-Site`, which no script of a page can forge; '' if the client is no browser, or an old one."""
    navigates: bool = False
    """Whether a person goes to this page, as `Sec-Fetch-Mode` and `Sec-Fetch-Dest` tell."""
    authorizations: tuple[str, ...] = ()
    cookie: str = ""
    """The token in our cookie."""
    cookies: bool = False
    """Whether there are cookies at all."""
    forwarded: bool = False
    """Whether a proxy has passed the request on, as headers tell, or HTTP/1.0, which nginx speaks to what is behind it
    unless told otherwise. A proxy may also leave no sign at all."""
    twice: bool = False
    """Whether the length of the body is told in two ways: a proxy before us may believe the other one."""
    html: bool = False
    """Whether the client would rather have a page than JSON."""


def read(scope: Scope) -> Request:
    """Read what decisions look at from the scope of ASGI."""
    found: dict[bytes, bytes] = {}
    again: list[tuple[bytes, bytes]] = []
    forwarded = scope.get("http_version") == "1.0"
    for name, value in scope["headers"]:
        if name in _LOOKED_AT:
            if name in found:
                again.append((name, value))
            else:
                found[name] = value
        elif name in _FORWARDED or name.startswith(_FORWARDED_BEGIN) or name.endswith(_FORWARDED_END):
            forwarded = True

    def each(name: bytes) -> tuple[str, ...]:
        if name not in found:
            return ()
        values = [found[name], *(value for other, value in again if other == name)] if again else [found[name]]
        return tuple([value.decode("latin-1") for value in values])

    tls = scope.get("scheme") == "https"
    cookies = each(b"cookie")
    return Request(
        method=scope["method"],
        path=route_path(scope),
        query=scope.get("query_string", b""),
        tls=tls,
        hosts=tuple([value.strip().lower() for value in each(b"host")]),
        origins=tuple([value.strip().lower() for value in each(b"origin")]) if b"origin" in found else (),
        site=found[b"sec-fetch-site"].decode("latin-1").strip().lower() if b"sec-fetch-site" in found else "",
        navigates=found.get(b"sec-fetch-mode") == b"navigate" and found.get(b"sec-fetch-dest") == b"document",
        authorizations=each(b"authorization"),
        cookie=cookie_of("; ".join(cookies), tls) if cookies else "",
        cookies=bool(cookies),
        forwarded=forwarded,
        twice=b"transfer-encoding" in found and b"content-length" in found,
        html=b"text/html" in found.get(b"accept", b""),
    )


_LOOKED_AT = frozenset({
    b"transfer-encoding", b"content-length",
    b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"authorization", b"cookie", b"accept",
})  # fmt: skip


def route_path(scope: Scope) -> str:
    """Give the path of a request without what a host application or a proxy has put before it."""
    path, root = cast("str", scope["path"]), cast("str", scope.get("root_path") or "").rstrip("/")
    return path[len(root) :] or "/" if root and f"{path}/".startswith(root + "/") else path


def cookie_of(header: str, tls: bool) -> str:
    """Give the token in our cookie; '' if there is none, or if there are two, one of which may be planted."""
    wanted = (COOKIE_TLS if tls else COOKIE) + "="
    found = [pair.strip()[len(wanted) :] for pair in header.split(";") if pair.strip().startswith(wanted)]
    return found[0] if len(found) == 1 else ""


# ---- decisions: each gives the problem with a request, or None


def host_trouble(request: Request, names: Sequence[str]) -> Problem | None:
    """Refuse a request for a host that is not ours: a page whose DNS name was rebound to us sends its own name.

    `names` are those of `--host-name`, each also with `:port` if only this port is meant. An address in numbers cannot
    be rebound, and is ours.
    """
    if len(request.hosts) != 1:
        return Problem(400, "bad-host", "a request must name one host (header Host)")
    if _is_ours(request.hosts[0], tuple(names)):
        return None
    return Problem(
        421, "foreign-host",
        "this gateway does not serve the host that the request names: start it with --host-name for each name that it "
        "has, besides localhost (an application that mounts it names them in Settings(hosts=...))",
    )  # fmt: skip


def length_trouble(request: Request) -> Problem | None:
    """Refuse a request that tells the length of its body in two ways."""
    if not request.twice:
        return None
    return Problem(
        400, "bad-http", "a body is chunked or has a Content-Length, not both", headers={"connection": "close"}
    )


@lru_cache(256)
def _is_ours(told: str, names: tuple[str, ...]) -> bool:
    found = _HOST.match(told)
    if found is None:
        return False
    host = found[1]
    return host in LOOPBACK_NAMES or host in names or told in names or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def url_trouble(request: Request) -> Problem | None:
    """Refuse a token in a URL: URLs stand in logs, histories and referrers. The problem does not repeat the token."""
    query = request.query
    if not query and "tq_" not in request.path:
        return None
    plain = query.decode("latin-1")
    said = unquote(unquote(plain))
    # the id of a task may be a URL with parameters of its own: only those of this URL count
    names = {unquote(part.partition("=")[0]).lower() for part in plain.split("&")} if query else set[str]()
    if names & _PARAMETERS or SHAPE.search(said) or SHAPE.search(unquote(request.path)):
        return Problem(
            400, "token-in-url",
            "a token must not stand in a URL, because URLs are logged and kept: send it as 'Authorization: Bearer …', "
            "and revoke it if it was a real one",
        )  # fmt: skip
    return None


def is_own(origin: str, request: Request, names: Sequence[str]) -> bool:
    """Say whether an Origin is that of our own pages: our host and port, or a name of `--host-name`."""
    try:
        parts = urlsplit(origin)
        where = parts.netloc
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or (request.tls and parts.scheme != "https"):
        return False
    return bool(where) and (where == _bare(request.hosts[0], parts.scheme) or where in names)


def _bare(host: str, scheme: str) -> str:
    return host.removesuffix(":443" if scheme == "https" else ":80")


def origin_trouble(request: Request, names: Sequence[str]) -> Problem | None:
    """Refuse what a page of another site sends, whatever it brings with it.

    Only a person who follows a link to us is let in from there.
    """
    if request.site == "same-origin":
        return None
    if request.site in ("", "none"):
        if all(is_own(origin, request, names) for origin in request.origins) and len(request.origins) < 2:
            return None
    elif request.method in SAFE_METHODS and request.navigates and not request.origins:
        return None
    return Problem(403, "foreign-origin", "a page of another site must not send requests to this gateway")


def proof_trouble(request: Request, names: Sequence[str]) -> Problem | None:
    """Refuse a write with a cookie unless the browser says that a page of ours has sent it."""
    if request.method in SAFE_METHODS or request.site == "same-origin":
        return None
    if len(request.origins) == 1 and is_own(request.origins[0], request, names):
        return None
    return Problem(
        403, "foreign-origin",
        "a write with a cookie must come from a page of this gateway (Sec-Fetch-Site: same-origin, or an equal "
        "Origin); programs send 'Authorization: Bearer …'",
    )  # fmt: skip


class Named(Protocol):
    """What is looked at in a route of the table."""

    @property
    def path(self) -> str:
        """The path, with `{name}` where something stands."""
        ...

    @property
    def needs(self) -> str | None:
        """What a caller must be allowed to do; None: anybody may."""
        ...


Credential = tuple[Literal["bearer", "cookie", "none"], str]


def credential(request: Request) -> Credential:
    """Give what a request brings: the kind and the token. Raises a problem for a header that cannot be read."""
    if request.authorizations:
        scheme, _, secret = request.authorizations[0].strip().partition(" ")
        if len(request.authorizations) > 1 or scheme.lower() != "bearer" or not secret.strip():
            raise unauthorized("the header Authorization cannot be read: write 'Authorization: Bearer TOKEN', once")
        return "bearer", secret.strip()
    return ("cookie", request.cookie) if request.cookie else ("none", "")


def unauthorized(detail: str) -> Problem:
    """Give the problem for a request whose token is missing or no good."""
    return Problem(401, "unauthorized", detail, headers={"www-authenticate": 'Bearer realm="timeoutq"'})


def may_be_anybody(request: Request, settings: Settings) -> bool:
    """Say whether a caller may do without a token, on a server that has none.

    Only if the gateway was opened to such callers; and not through a proxy, for whose callers a bind to the loopback
    says nothing; and not by an address that others can reach.
    """
    if not settings.anonymous or request.forwarded or len(request.hosts) != 1:
        return False
    return _is_near(request.hosts[0], settings.hosts)


@lru_cache(256)
def _is_near(told: str, names: tuple[str, ...]) -> bool:
    found = _HOST.match(told)
    return found is not None and (found[1] in LOOPBACK_NAMES or found[1] in names)


def caller_of(token: Token, settings: Settings) -> Caller:
    """Give what the holder of a token is for the endpoints."""
    return _bounded(Caller(token.name, token.allow, token.queues), settings)


def _bounded(caller: Caller, settings: Settings) -> Caller:
    return replace(caller, read_only=True) if settings.read_only else caller


def next_page(wanted: str, home: str) -> str:
    """Give where a browser goes after a login: a path of ours, or `home` if `wanted` might be anything else."""
    plain = wanted.isascii() and wanted.isprintable() and "\\" not in wanted and " " not in wanted
    plain = plain and not SHAPE.search(unquote(wanted))
    return wanted if plain and wanted.startswith(home) and not wanted.startswith("//") else home


# ---- where the gateway may listen


def is_loopback(host: str) -> bool:
    """Say whether only programs of this machine reach a socket that is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, has_tokens: bool) -> None:
    """Refuse to listen where others can come in, while nobody needs a token; raises `InvalidInput` with the cure."""
    if not is_loopback(host) and not has_tokens:
        raise InvalidInput(
            f"--host {host} lets other machines in, and there are no tokens: make one first (timeoutq token new NAME "
            "--queues '*' --allow look,put,work,manage), or start with --first-token NAME, which prints one, or listen "
            "on 127.0.0.1"
        )


# ---- the middleware


class Public:
    """Says whether a path needs no token. All other paths need one, also paths where nothing is."""

    def __init__(self, routes: Sequence[Named]) -> None:
        self._plain = {route.path for route in routes if route.needs is None and "{" not in route.path}
        self._plain -= {route.path for route in routes if route.needs is not None}
        below = [route.path.partition("{")[0] for route in routes if route.needs is None and "{" in route.path]
        shut = [route.path.partition("{")[0] for route in routes if route.needs is not None]
        self._below = tuple(beginning for beginning in below if beginning.count("/") > 1 and beginning not in shut)
        """Beginnings of paths, such as `/static/`."""

    def __call__(self, path: str) -> bool:
        """Say whether the path is public."""
        return path in self._plain or (bool(self._below) and path.startswith(self._below))


class Access:
    """Lets in who may come in; all others get a problem. Everything that leaves has the headers for browsers."""

    def __init__(
        self,
        app: ASGI,
        settings: Settings,
        tokens: Tokens,
        public: Callable[[str], bool] = lambda path: False,
        *,
        has_login: bool = True,
    ) -> None:
        """Stand before `app`.

        `public` says whether a path, without the prefix, needs no token; with `has_login`, browsers are sent to /login.
        """
        self._app = app
        self._settings = settings
        self._tokens = tokens
        self._public = public
        self._has_login = has_login
        self._names = tuple(name.lower() for name in settings.hosts)
        self._anybody = Entered(_bounded(replace(ANYBODY, allow=settings.anonymous), settings), is_anybody=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        request = read(scope)
        try:
            entered = await self._enter(request, scope)
        except (Problem, TimeoutqError) as error:
            await _refuse(problem_of(error), request, scope, send, has_login=self._has_login)
            return
        scope[CALLER] = entered.caller
        watched = scope[ENTRANCE] = _CheckedAnswer(
            entered, self._tokens, request, scope, send, has_login=self._has_login
        )
        await self._app(scope, receive, watched.send)

    async def _enter(self, request: Request, scope: Scope) -> Entered:
        trouble = (
            length_trouble(request)
            or host_trouble(request, self._names)
            or url_trouble(request)
            or origin_trouble(request, self._names)
        )
        if trouble is not None:
            raise trouble
        settings = self._settings
        if self._public(request.path):
            return Entered(NOBODY)
        if settings.login is not None:
            found = settings.login(scope)
            caller = await found if inspect.isawaitable(found) else found
            if caller is None:
                # there is no login of ours to go to
                raise Problem(401, "unauthorized", "the application knows nobody who sends this request")
            if request.cookies and (trouble := proof_trouble(request, self._names)) is not None:
                raise trouble
            return Entered(_bounded(caller, settings))
        kind, secret = credential(request)
        if kind == "none":
            if may_be_anybody(request, settings) and not await self._tokens.are_there():
                return self._anybody
            raise unauthorized(
                "this needs a token: 'Authorization: Bearer TOKEN' (timeoutq token new NAME --queues '*' "
                "--allow look,put,work makes one)"
            )
        if kind == "cookie" and (trouble := proof_trouble(request, self._names)) is not None:
            raise trouble
        token = await self._tokens.look_up(secret)
        if token is None:
            raise unauthorized(GONE)
        return Entered(caller_of(token, settings), secret)


GONE = "the token is unknown, revoked or has run out: timeoutq token list shows which are good"


@dataclass(frozen=True, slots=True)
class Entered:
    """How somebody came in."""

    caller: Caller
    secret: str = field(default="", repr=False)
    is_anybody: bool = False
    """Whether this is a caller without a token."""


class _CheckedAnswer:
    """The answer to one request: when it takes longer than a token may be trusted, the token is looked up again.

    A token may be revoked while its holder waits for tasks or watches a page. Then the holder gets no more, and what
    was done for a request whose answer is refused is undone.
    """

    __slots__ = ("_checked", "_entered", "_has_login", "_request", "_scope", "_send", "_tokens", "was_refused")

    def __init__(
        self, entered: Entered, tokens: Tokens, request: Request, scope: Scope, send: Send, *, has_login: bool
    ) -> None:
        self._has_login = has_login
        self._entered = entered
        self._tokens = tokens
        self._request = request
        self._scope = scope
        self._send = send
        self._checked = time.monotonic()
        self.was_refused = False
        """Whether an answer was not sent, or not to its end."""

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless the token does not count any more."""
        if self.was_refused:
            return
        now = time.monotonic()
        if now - self._checked > FRESH:
            self._checked = now
            if not await self.still_counts():
                self.was_refused = True
                if message["type"] == "http.response.start":
                    refusal = unauthorized(GONE)
                    await _refuse(refusal, self._request, self._scope, self._send, has_login=self._has_login)
                else:
                    await self._send({"type": "http.response.body", "body": b"", "more_body": False})
                return
        if message["type"] == "http.response.start":
            message["headers"] = _with_headers(message.get("headers", ()))
        await self._send(message)

    async def still_counts(self) -> bool:
        """Say whether the caller may still come in; this costs Redis one reading in `FRESH` seconds at most."""
        try:
            if self._entered.secret:
                return await self._tokens.look_up(self._entered.secret) is not None
            return not (self._entered.is_anybody and await self._tokens.are_there())
        except TimeoutqError:
            return True  # Redis does not answer: nothing new can be told


def _with_headers(given: Any) -> list[tuple[bytes, bytes]]:
    kept: list[tuple[bytes, bytes]] = []
    stored = False
    for pair in given:
        name = pair[0]
        if name not in _OURS:
            kept.append(pair)
            stored = stored or name == b"cache-control"
    if not stored:
        kept.append(NO_STORE)
    kept += HEADERS
    return kept


async def _refuse(problem: Problem, request: Request, scope: Scope, send: Send, *, has_login: bool) -> None:
    headers = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    if (
        has_login
        and "www-authenticate" in problem.headers
        and request.html
        and request.method == "GET"
        and not request.path.startswith("/v1")
    ):
        home = cast("str", scope.get("root_path", ""))
        wanted = quote(scope["path"], safe="/")
        where = f"{home}/login?next={wanted}".encode()
        told = _with_headers([(b"location", where)])
        await send({"type": "http.response.start", "status": 303, "headers": told})
        await send({"type": "http.response.body", "body": b""})
        return
    body = problem.body()
    headers += [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": problem.status, "headers": _with_headers(headers)})
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
