"""Each route of the gateway, as the application itself tells them, against each wrong way to ask.

A new route is in the matrix by being in the application. What is asked here is refused before anything is done: at the
end of each test, all keys are as they were.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig import canary
from tests.rig.served import Reply, Served, served
from timeoutq import Queue
from timeoutq.gateway.page import make_app
from timeoutq.gateway.requests import HEADERS
from timeoutq.gateway.routes import Route
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import KEY, SCOPES, STALE, TokenBook
from timeoutq.server.embedded import EmbeddedServer

APP: Any = make_app(Settings(url="redis://127.0.0.1:1"))
ROUTES: list[Route] = list(APP.state.table)
OPEN = [route for route in ROUTES if route.needs is None]
SHUT = [route for route in ROUTES if route.needs is not None]
OF_QUEUES = [route for route in SHUT if "{queue" in route.path]
WRITES = [route for route in SHUT if route.needs != "look"]
ACTED = "crab"
"""The queue of the tests whose requests are carried out: they may be cleaned up after a while."""
LETTERS = "tq_" + "A" * 43


def shown(route: Route) -> str:
    """The name of a case."""
    return f"{route.method} {route.path}"


@dataclass
class Place:
    """A gateway whose queue has a task in every state, and tokens of all kinds."""

    gateway: Served
    raw: redis.Redis
    secrets: dict[str, str]
    queue: str = "crawl"
    plug: socket.socket | None = None

    def ask(self, route: Route, headers: dict[str, str] | None = None, query: str = "", method: str = "") -> Reply:
        """Ask for a route as its caller would; the body is JSON of nothing."""
        path = re.sub(r"{[^}]*}", "x", re.sub(r"{queue[^}]*}", self.queue, route.path))
        body = None if route.method == "GET" else b"" if route.page else b"{}"
        if body is not None:
            kind = "application/x-www-form-urlencoded" if route.page else "application/json"
            headers = {"Content-Type": kind, **(headers or {})}
        if self.plug is None:
            self.plug = self.gateway.open()
        reply = self.gateway.ask(method or route.method, path + query, headers, body, self.plug)
        if reply.headers.get("connection") == "close" or "event-stream" in reply.headers.get("content-type", ""):
            self.close()
        return reply

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.plug is not None:
            self.plug.close()
            self.plug = None

    def bearer(self, name: str) -> dict[str, str]:
        """The header with a token."""
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def everything(self) -> dict[bytes, Any]:
        """All keys, but for the tokens, and for the queue on which something is done."""
        other = f"{{{ACTED}}}".encode()
        keys = [key for key in self.raw.scan_iter(count=1000) if key != KEY.encode() and other not in key]
        with self.raw.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key)
            return dict(zip(keys, pipe.execute(), strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One gateway for all routes."""
    folder = tmp_path_factory.mktemp("matrix")
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        with Queue("crawl", started.url, timeout=3600) as queue, TokenBook(started.url) as book:
            queue.put([f"https://a.example/{i}" for i in range(6)])
            done, failed, *_ = queue.claim(3)
            queue.ack(done)
            queue.fail(failed, "HTTP 404", give_up=True)
            queue.schedule("later", after=3600)
            with Queue(ACTED, started.url) as other:
                other.put("a")
            secrets = {"expired": book.new("expired", queues=["*"], allow=SCOPES, expires=1)[0]}
            for scope in SCOPES:
                secrets[scope] = book.new(scope, queues=["cra*"], allow=[scope])[0]
                others = [one for one in SCOPES if one != scope]
                secrets[f"all but {scope}"] = book.new(f"not-{scope}", queues=["*"], allow=others)[0]
            secrets["all"] = book.new("all", queues=["*"], allow=SCOPES)[0]
            secrets["foreign"] = book.new("foreign", queues=["crawler", "raw*", "c"], allow=SCOPES)[0]
            secrets["revoked"] = book.new("revoked", queues=["*"], allow=SCOPES)[0]
            with redis.Redis.from_url(started.url) as raw, served(started.url, folder) as gateway:
                time.sleep(1.0)  # until the one token has run out
                found = Place(gateway, raw, secrets)
                yield found
                found.close()


@pytest.fixture(autouse=True)
def _nothing_is_done(request: pytest.FixtureRequest) -> Iterator[None]:
    if "place" not in request.fixturenames:
        yield
        return
    place: Place = request.getfixturevalue("place")
    before = place.everything()
    yield
    assert place.everything() == before, "what was refused has changed something"
    place.gateway.is_well()


@pytest.fixture
def acting(place: Place) -> Iterator[None]:
    """For a test whose requests are carried out."""
    place.queue = ACTED
    yield
    place.queue = "crawl"


def test_no_route_can_escape_the_matrix() -> None:
    table = {(route.method, route.path) for route in ROUTES}
    assert len(table) == len(ROUTES), "two routes answer the same"
    assert sum(map(len, APP.entries.values())) == len(ROUTES)
    assert {route.needs for route in ROUTES} <= {None, *SCOPES}
    assert {shown(route) for route in OPEN} <= KNOWN_AS_OPEN, "a new route that needs no token: is that meant?"
    assert len(SHUT) >= 28


KNOWN_AS_OPEN = {
    "GET /healthz", "GET /readyz", "GET /login", "POST /login", "POST /logout", "GET /static/{name}",
}  # fmt: skip


# ---- who may come in


WRONG = [
    "Bearer ", f"Bearer {LETTERS}", "Basic YTpi", LETTERS, "bearer\ttq_x", "Bearer " + "x" * 8000, "Bearer \xff\xfe",
    "Bearer null", f"Bearer {LETTERS} {LETTERS}", f"Bearer {LETTERS},{LETTERS}",
]  # fmt: skip


def test_a_route_without_a_good_token_is_refused(place: Place) -> None:
    for route in SHUT:
        reply = place.ask(route)
        refused(reply, 401, "unauthorized")
        assert reply.headers["www-authenticate"].startswith("Bearer")
        refused(place.ask(route, place.bearer("expired")), 401, "unauthorized")
        for words in WRONG if route in (SHUT[0], SHUT[-1]) else WRONG[1:2]:
            refused(place.ask(route, {"Authorization": words}), 401, "unauthorized")


def test_a_revoked_token_is_refused_by_each_route_within_five_seconds(place: Place) -> None:
    assert place.ask(SHUT[-1], place.bearer("revoked")).status not in (401, 403)
    place.raw.hdel(KEY, "revoked")
    at = time.monotonic()
    while place.ask(SHUT[-1], place.bearer("revoked")).status != 401:
        assert time.monotonic() - at < STALE
    for route in SHUT:
        refused(place.ask(route, place.bearer("revoked")), 401, "unauthorized")


def test_a_route_with_a_token_for_other_queues_or_rights_is_refused(place: Place) -> None:
    for route in SHUT:
        refused(place.ask(route, place.bearer(f"all but {route.needs}")), 403, "forbidden")
        if route in OF_QUEUES:
            refused(place.ask(route, place.bearer("foreign")), 403, "forbidden")


@pytest.mark.usefixtures("acting")
def test_a_route_with_the_token_that_it_needs_is_answered(place: Place) -> None:
    for route in [route for route in SHUT if route.path != "/v1/{queue}/purge"]:
        reply = place.ask(route, place.bearer(str(route.needs)))
        assert reply.status in (200, 204, 303, 404, 422), reply
        assert has_headers(reply)


def test_an_open_route_is_answered_without_a_token_and_with_a_wrong_one(place: Place) -> None:
    for route in OPEN:
        for headers in ({}, {"Authorization": f"Bearer {LETTERS}"}):
            reply = place.ask(route, headers)
            # a login without a token is the form again
            good = (403,) if route.path == "/login" and route.method == "POST" else (200, 303, 404, 422, 503)
            assert reply.status in good, reply
            assert has_headers(reply)


# ---- from where


def test_a_route_asked_for_a_foreign_host_is_refused(place: Place) -> None:
    for route in ROUTES:
        hosts = [f"rebound.example:{place.gateway.port}"]
        if route is ROUTES[0]:
            hosts += ["localhost.rebound.example", "", "localhost@evil.example", "localhost,evil.example", "[::1"]
        for host in hosts:
            refused(place.ask(route, {**place.bearer("all"), "Host": host}), 421, "foreign-host")


def test_a_route_asked_by_a_page_of_another_site_is_refused(place: Place) -> None:
    for route in ROUTES:
        port = place.gateway.port
        origins = ["https://evil.example"]
        if route is ROUTES[0]:
            origins += [
                "null", f"http://localhost:{port + 1}", f"http://127.0.0.1:{port}", f"http://localhost:{port}.evil.example",
                f"http://localhost:{port}@evil.example", "http://[", "", "*",
            ]  # fmt: skip
        for origin in origins:
            refused(place.ask(route, {**place.bearer("all"), "Origin": origin}), 403, "foreign-origin")
        for site in ("cross-site", "same-site") if route is ROUTES[0] else ("cross-site",):
            wrong = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
            refused(place.ask(route, {**place.bearer("all"), **wrong}), 403, "foreign-origin")


def test_a_route_with_a_cookie_that_another_site_makes_the_browser_send_is_refused(place: Place) -> None:
    for route in SHUT:
        cookie = {"Cookie": f"a=b; timeoutq={place.secrets['all']}"}
        refused(place.ask(route, {**cookie, "Origin": "https://evil.example"}), 403, "foreign-origin")
        if route in (SHUT[0], SHUT[-1]):
            refused(place.ask(route, {**cookie, "Origin": "null"}), 403, "foreign-origin")
            refused(place.ask(route, {**cookie, "Sec-Fetch-Site": "cross-site"}), 403, "foreign-origin")
            two = {"Cookie": f"timeoutq={place.secrets['all']}; timeoutq={LETTERS}"}
            assert place.ask(route, two).status in (401, 303)
            assert place.ask(route, {"Cookie": f"__Host-timeoutq={place.secrets['all']}"}).status in (401, 303)
        if route.method == "GET":
            continue
        refused(place.ask(route, cookie), 403, "foreign-origin")  # a write without any proof
        refused(place.ask(route, {**cookie, "Sec-Fetch-Site": "none"}), 403, "foreign-origin")


@pytest.mark.usefixtures("acting")
def test_a_route_with_a_cookie_and_a_page_of_ours_is_answered(place: Place) -> None:
    for route in [route for route in SHUT if route.path != "/v1/{queue}/purge"]:
        cookie = {"Cookie": f"timeoutq={place.secrets[str(route.needs)]}"}
        for proof in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": f"http://{place.gateway.host}"}):
            reply = place.ask(route, {**cookie, **proof})
            assert reply.status in (200, 204, 303, 404, 422), reply


def test_a_route_with_a_token_in_the_url_is_refused_without_repeating_it(place: Place) -> None:
    for route in ROUTES:
        secret = place.secrets["all"]
        queries = [f"?token={secret}"]
        if route is ROUTES[0]:
            queries += [
                f"?id={secret}", f"?%74oken={secret}", f"?x=1&TOKEN={secret}", f"?id=a%26token={secret}",
                f"?tq%5F{secret[3:]}", "?token=", f"/{secret}", f"/tq%5F{secret[3:]}",
            ]  # fmt: skip
        for query in queries:
            reply = place.ask(route, place.bearer("all"), query)
            refused(reply, 400, "token-in-url")
            assert secret[3:].encode() not in reply.body
            assert secret[3:] not in str(reply.headers)


# ---- what else


def test_a_route_asked_with_another_method_does_nothing(place: Place) -> None:
    for route in ROUTES:
        here = {one.method for one in ROUTES if one.path == route.path}
        others = {"GET", "POST", "DELETE", "HEAD"}
        if route in (ROUTES[0], ROUTES[-1]):
            others |= {"PUT", "PATCH", "OPTIONS", "TRACE", "PURGE"}
        for method in sorted(others - here):
            if method == "HEAD" and "GET" in here:
                continue
            reply = place.ask(route, place.bearer("all"), method=method)
            assert reply.status == 405, (method, reply.status, reply.body[:200])


SPELLED = [
    "//v1/crawl/stats", "/v1//crawl/stats", "/v1/crawl//stats", "/v1/crawl/stats/", "/V1/crawl/stats",
    "/v1/x/../crawl/stats", "/v1/crawl%2Fstats", "/v1/crawl/%2e%2e/crawl/stats", "/v1/crawl;x/stats",
    "/healthz/../v1/crawl/stats", "/healthz/v1/crawl/stats", "/static/../v1/crawl/stats",
    "http://localhost/v1/crawl/stats", "/v1/{queue}/stats", "/v1/{}/stats", "/%76%31/crawl/stats",
]  # fmt: skip


def test_no_spelling_of_a_path_gets_past_the_token(place: Place) -> None:
    for path in SPELLED:
        for headers in ({}, place.bearer("foreign")):
            reply = place.gateway.ask("GET", path, headers)
            assert reply.status in (400, 401, 403, 404), (path, reply.status, reply.body[:200])
            assert b"todos" not in reply.body


def test_what_tells_of_all_queues_names_none_that_the_token_is_not_for(place: Place) -> None:
    told = 0
    for route in SHUT:
        if "{queue" not in route.path and route.method == "GET":
            reply = place.ask(route, place.bearer("foreign"))
            assert reply.status in (200, 404), reply
            assert b"crab" not in reply.body, reply
            told += b"crab" in place.ask(route, place.bearer("look")).body
    assert told >= 2, "no route tells of queues any more?"


def test_a_gateway_that_is_read_only_refuses_every_write_whatever_the_token(place: Place, tmp_path: Path) -> None:
    with served(url_of(place), tmp_path, "--read-only") as gateway:
        other = Place(gateway, place.raw, place.secrets)
        for route in SHUT:
            reply = other.ask(route, place.bearer("all"))
            if route in WRITES:
                refused(reply, 403, "forbidden")
                assert b"read-only" in reply.body
            else:
                assert reply.status in (200, 303, 404, 422), (shown(route), reply.status)
        other.close()


def url_of(place: Place) -> str:
    """Where the server of the place is."""
    settings = place.raw.connection_pool.connection_kwargs
    return f"redis://:{canary.PASSWORD}@{settings['host']}:{settings['port']}/0"


def refused(reply: Reply, status: int, name: str) -> None:
    """Check a problem, and what browsers are told with it."""
    bare = not reply.body  # a HEAD
    if status == 401 and reply.status == 303:
        assert reply.headers["location"].startswith("/login")  # a browser is sent to the form
        return
    assert (reply.status, "" if bare else reply.problem) == (status, "" if bare else name), reply
    assert has_headers(reply)
    assert reply.headers["cache-control"] == "no-store"


def has_headers(reply: Reply) -> bool:
    """Whether the answer tells browsers all that it must."""
    return all(reply.headers.get(name.decode()) == value.decode() for name, value in HEADERS)
