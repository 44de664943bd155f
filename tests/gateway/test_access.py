"""Who may come in: decisions from values; the login of browsers; the bind of `timeoutq web`; the host's own login."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from starlette.types import Scope

from tests.rig import canary
from tests.rig.command import Say, say
from tests.rig.served import served
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue
from timeoutq.gateway import access
from timeoutq.gateway.access import Head, check_origin, check_proof, cookie_of, is_loopback, next_page
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.page import make_app
from timeoutq.gateway.problems import Problem
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import FRESH, KEY, SCOPES, STALE, TokenBook
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import InvalidInput

__all__ = ["say"]

NAMES = ("queue.example", "queue.example:8443")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One server is enough: the tests of tokens run on both."""
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


def asked(
    host: str = "localhost:8080", method: str = "POST", origin: str | None = None, *, site: str = "",
    navigates: bool = False, tls: bool = False,
) -> Head:  # fmt: skip
    """A request as decisions see it."""
    headers = [(b"host", host.encode()), *([] if origin is None else [(b"origin", origin.encode())])]
    if navigates:
        headers += [(b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document")]
    headers += [(b"sec-fetch-site", site.encode())] if site else []
    return Head({"method": method, "path": "/v1/crawl/put", "headers": headers, "scheme": "https" if tls else "http"})


def passes(check: Callable[[Head, Sequence[str]], None], head: Head) -> bool:
    """Whether a decision lets a request pass."""
    try:
        check(head, NAMES)
    except Problem:
        return False
    return True


# ---- decisions


def test_a_caller_may_what_its_token_allows_in_the_queues_of_its_token() -> None:
    caller = Caller("ci", ("put",), ("crawl*", "feed"))
    assert [name for name in ("crawl.2", "feed", "feeds", "xcrawl") if caller.may("put", name)] == ["crawl.2", "feed"]
    assert not caller.may("look", "crawl")
    with pytest.raises(Problem, match="ci may not put on queue other"):
        caller.require("put", "other")
    with pytest.raises(Problem, match="read-only"):
        Caller("ci", SCOPES, read_only=True).require("work", "crawl")


def test_which_hosts_are_ours() -> None:
    ours = [
        "localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080", "queue.example", "10.1.2.3:8080",
    ]  # fmt: skip
    foreign = [
        "other.example", "localhost.example", "queue.example.evil", "::1", "", "127.1", "0x7f000001", "localhost:x",
        "a@localhost", "localhost/", "[::1]x", "[localhost]",
    ]  # fmt: skip
    assert [host for host in (*ours, *foreign) if passes(access.check_host, asked(host))] == ours


def test_what_pages_of_other_sites_may_send() -> None:
    ours = [
        asked(), asked(origin="http://localhost:8080"), asked("localhost:80", origin="http://localhost"),
        asked("queue.example", origin="https://queue.example", tls=True),
        asked("127.0.0.1:8080", origin="https://queue.example"),  # a proxy that names another host to us
        asked("127.0.0.1:8080", origin="https://queue.example:8443"),
        asked("127.0.0.1:8080", origin="null", site="same-origin"), asked(site="none"),
        asked(method="GET", site="cross-site", navigates=True),  # somebody follows a link
    ]  # fmt: skip
    foreign = [
        asked("queue.example", origin="http://queue.example", tls=True),  # the page came without TLS
        asked("127.0.0.1:8080", origin="https://queue.example:9000"), asked(origin="null"),
        asked(origin="http://localhost:3000"), asked(origin="http://localhost:8080", site="cross-site"),
        asked(site="same-site"), asked(site="nonsense"), asked(method="GET", site="cross-site"),
        asked(method="POST", site="cross-site", navigates=True),  # a form of another site
        asked(method="GET", site="cross-site", navigates=True, origin="http://localhost:8080"),
    ]  # fmt: skip
    assert [request for request in (*ours, *foreign) if passes(check_origin, request)] == ours


def test_a_write_with_a_cookie_needs_the_word_of_the_browser() -> None:
    good = [
        asked(method="GET"), asked(site="same-origin", origin="null"), asked(origin="http://localhost:8080"),
    ]  # fmt: skip
    assert [one for one in (*good, asked(), asked(site="none")) if passes(check_proof, one)] == good


def test_a_cookie_counts_once_and_over_tls_only_by_the_name_that_nobody_can_plant() -> None:
    for header, tls, found in (
        ("a=b; timeoutq=x; c=d", False, "x"), ("timeoutq=x", True, ""), ("__Host-timeoutq=x; timeoutq=y", True, "x"),
        ("__Host-timeoutq=x", False, ""), ("timeoutq=x; timeoutq=y", False, ""), ("xtimeoutq=x; timeoutq", False, ""),
    ):  # fmt: skip
        assert cookie_of(header, tls) == found, header


def test_a_login_leads_to_no_other_site() -> None:
    for wanted in ("", "//evil.example", "https://evil.example", "/\\evil", "/a b", "/\x00", "/ä", "\t/", "q"):
        assert next_page(wanted, "/") == "/"
    assert next_page("/q/crawl?x=1", "/") == "/q/crawl?x=1"
    assert next_page("/queues/q/crawl", "/queues/") == "/queues/q/crawl"
    assert next_page("/elsewhere", "/queues/") == "/queues/"


def test_where_others_can_come_in_there_must_be_tokens() -> None:
    ours, others = ["localhost", "127.9.9.9", "::1", "[::1]"], ["0.0.0.0", "::", "10.0.0.1", "queue.example", ""]
    assert [host for host in (*ours, *others) if is_loopback(host)] == ours
    access.check_bind("127.0.0.1", has_tokens=False)
    access.check_bind("0.0.0.0", has_tokens=True)
    with pytest.raises(InvalidInput, match="--first-token"):
        access.check_bind("0.0.0.0", has_tokens=False)


# ---- the command


def test_the_command_listens_to_others_only_with_tokens_and_prints_the_first_one_once(
    say: Say, url: str, tmp_path: Path
) -> None:
    refused = say("web", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 2
    assert "timeoutq token new" in refused.err
    with served(url, tmp_path, "--first-token", "admin") as gateway:
        (secret,) = re.findall(r"tq_[A-Za-z0-9_-]{43}", gateway.log)
        assert gateway.call("put", {"tasks": ["a"]}).status == 401
        assert gateway.call("put", {"tasks": ["a"]}, secret).status == 200
    with TokenBook(url) as book:
        assert book.first("admin") is None


@pytest.mark.parametrize("words", [("--host-name", "queue.example"), ("--prefix", "/queues")])
def test_behind_a_proxy_every_caller_needs_a_token_whatever_the_proxy_passes_on(
    words: tuple[str, str], url: str, tmp_path: Path
) -> None:
    beginning = words[1] if words[0] == "--prefix" else ""
    with served(url, tmp_path, *words) as gateway:
        assert "--first-token" in gateway.log
        for host in (gateway.host, *([] if beginning else ["queue.example"])):
            reply = gateway.ask("POST", f"{beginning}/v1/crawl/put", {"Host": host}, b'{"tasks": ["a"]}')
            assert (reply.status, reply.problem) == (401, "unauthorized")
    with served(url, tmp_path, *words, "--first-token", "admin") as gateway:
        (secret,) = re.findall(r"tq_[A-Za-z0-9_-]{43}", gateway.log)
        allowed = {"Authorization": f"Bearer {secret}"}
        assert gateway.ask("POST", f"{beginning}/v1/crawl/put", allowed, b'{"tasks": ["a"]}').status == 200


def test_a_proxy_that_tells_of_itself_only_by_http_1_0_lets_nobody_in_without_a_token(url: str, tmp_path: Path) -> None:
    with served(url, tmp_path) as gateway:
        assert "need no token as long as the server has none" in gateway.log
        assert gateway.call("put", {"tasks": ["a"]}).status == 200
        # what nginx sends unless told otherwise: HTTP/1.0, the address of the gateway as Host, and no header of its own
        head = f"GET /v1/crawl/stats HTTP/1.0\r\nHost: 127.0.0.1:{gateway.port}\r\nConnection: close\r\n\r\n"
        with gateway.open() as plug:
            assert gateway.exchange(plug, head.encode()).status == 401


# ---- the application, without a socket


def client(app: Any, base: str = "http://localhost:8080", **more: Any) -> httpx.AsyncClient:
    """A client that asks an application."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, **more), base_url=base)


@pytest.fixture
async def token(url: str) -> str:
    """A token for everything."""
    with TokenBook(url) as book:
        return book.new("admin", queues=["*"], allow=SCOPES)[0]


@pytest.fixture
async def app(url: str) -> AsyncIterator[Any]:
    """An application with a login."""
    made = make_app(Settings(url=url, anonymous=SCOPES, hosts=("queue.example",)))
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("base", "cookie", "secure"),
    [("http://localhost:8080", "timeoutq", False), ("https://queue.example", "__Host-timeoutq", True)],
)
async def test_a_browser_logs_in_writes_and_logs_out(
    app: Any, token: str, base: str, cookie: str, secure: bool
) -> None:
    ours = {"Origin": base}
    async with client(app, base) as browser:
        sent = await browser.get("/q/crawl", headers={"Accept": "text/html"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=/q/crawl")
        form = await browser.get(sent.headers["location"])
        assert 'value="/q/crawl"' in form.text
        wrong = await browser.post("/login", data={"token": "tq_wrong", "next": "/q/crawl"}, headers=ours)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        assert "tq_wrong" not in wrong.text
        there = await browser.post("/login", data={"token": f" {token} ", "next": "/q/crawl"}, headers=ours)
        assert (there.status_code, there.headers["location"]) == (303, "/q/crawl")
        words = there.headers["set-cookie"]
        assert words.startswith(f"{cookie}={token};")
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(words.split("; "))
        assert ("Secure" in words.split("; ")) == secure
        assert "Domain" not in words
        assert (await browser.post("/v1/crawl/put", json={"tasks": ["a"]}, headers=ours)).status_code == 200
        assert (await browser.post("/v1/crawl/put", json={"tasks": ["a"]})).status_code == 403
        assert (await browser.get("/v1/crawl/stats")).status_code == 200
        gone = await browser.post("/logout", headers=ours)
        assert (gone.status_code, gone.headers["location"]) == (303, "/login")
        assert (await browser.get("/v1/crawl/stats")).status_code == 401


async def test_a_login_from_another_site_or_of_another_kind_sets_no_cookie(app: Any, token: str) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with client(app) as browser:
        answers = [
            await browser.post("/login", data={"token": token}, headers={"Origin": "https://evil.example"}),
            await browser.post("/login", json={"token": token}),
            await browser.post("/login", content=b"token=" + b"x" * 5000, headers=form),
            await browser.post("/login", content=b"token=%ff", headers=form),
            await browser.post("/login", content=b"&" * 4000, headers=form),
            await browser.get(f"/login?token={token}"),
        ]
        assert [answer.status_code for answer in answers] == [403, 415, 413, 403, 422, 400]
        assert not any("set-cookie" in answer.headers for answer in answers)


async def test_callers_without_a_token_are_let_in_only_from_this_machine_and_while_there_are_no_tokens(
    app: Any, url: str, raw: redis.Redis
) -> None:
    async with client(app) as caller:
        assert (await caller.post("/v1/crawl/put", json={"tasks": ["a"]})).status_code == 200
        for headers in (
            {"X-Forwarded-For": "1.2.3.4"}, {"Forwarded": "for=1.2.3.4"}, {"Via": "1.1 x"}, {"Host": "10.0.0.7:8080"},
            {"X-Forwarded-Proto": "https", "Host": "queue.example"}, {"True-Client-IP": "1.2.3.4"}, {"CF-Ray": "1"},
        ):  # fmt: skip
            assert (await caller.get("/v1/crawl/stats", headers=headers)).status_code == 401, headers
        with TokenBook(url) as book:
            book.new("ci", queues=["*"], allow=["look"])
        app.state.tokens._read_at = float("-inf")  # as if some seconds had gone by
        assert (await caller.get("/v1/crawl/stats")).status_code == 401
        raw.delete(KEY)
        app.state.tokens._read_at = float("-inf")
        assert (await caller.get("/v1/crawl/stats")).status_code == 401


async def test_the_event_log_names_the_token_of_who_puts_and_manages(app: Any, token: str, url: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    with Queue("crawl", url) as queue:
        queue.configure(events="1MB", politeness=Politeness(0, 1))
        async with client(app) as http:
            for verb, body in (
                ("put", {"tasks": ["https://a.example/1", "https://a.example/2"]}),
                ("block", {"host": "a.example", "seconds": 60}),
                ("unblock", {"host": "a.example"}),
                ("forget", {"tasks": ["https://a.example/1", "https://a.example/2"]}),
            ):
                assert (await http.post(f"/v1/crawl/{verb}", json=body, headers=headers)).status_code == 200
        queue.put("b")
        by = [(event.verb, (event.by or "").partition("/")[0]) for event in queue.events.list().events if event.moves]
        assert by[:-1] == [("put", "admin"), ("block", "admin"), ("unblock", "admin"), ("forget", "admin")]
        assert by[-1][1].startswith(queue.worker)
        queue.purge()


async def test_a_host_application_brings_its_own_login(url: str) -> None:
    async def login(scope: Scope) -> Caller | None:
        users = {b"bea": Caller("bea", ("look", "put"), ("crawl",)), b"otto": Caller("otto", ("look",))}
        return users.get(dict(scope["headers"]).get(b"x-user", b""))

    made = make_app(Settings(url=url, login=login))
    async with client(made, root_path="/admin/queues") as browser:
        path = "/admin/queues/v1/crawl/put"
        assert (await browser.post(path, json={"tasks": ["a"]})).status_code == 401
        assert (await browser.post(path, json={"tasks": ["a"]}, headers={"X-User": "otto"})).status_code == 403
        assert (await browser.post(path, json={"tasks": ["a"]}, headers={"X-User": "bea"})).status_code == 200
        session = {"X-User": "bea", "Cookie": "session=1"}
        assert (await browser.post(path, json={"tasks": ["a"]}, headers=session)).status_code == 403
        session["Sec-Fetch-Site"] = "same-origin"
        assert (await browser.post(path, json={"tasks": ["a"]}, headers=session)).status_code == 200
        assert (await browser.get("/admin/queues/login", headers={"X-User": "bea"})).status_code == 404
    await made.close()


async def test_a_caller_whose_name_begins_with_that_of_another_keeps_its_leases(url: str) -> None:
    made = make_app(Settings(url=url, login=lambda scope: Caller(dict(scope["headers"])[b"x-user"].decode(), WORKS)))
    async with client(made) as browser:
        longer, shorter = {"X-User": "team/bea"}, {"X-User": "team"}
        await browser.post("/v1/crawl/put", json={"tasks": ["a"]}, headers=longer)
        leases = (await browser.post("/v1/crawl/claim", json={}, headers=longer)).json()
        assert (await browser.post("/v1/crawl/ack", json=leases, headers=shorter)).status_code == 403
        assert (await browser.post("/v1/crawl/ack", json=leases, headers=longer)).json()["answers"] == ["ok"]
    await made.close()


WORKS = ("look", "put", "work")


async def test_a_token_that_is_revoked_while_its_holder_waits_or_watches_brings_no_more(
    url: str, tmp_path: Path
) -> None:
    with TokenBook(url) as book, Queue("crawl", url) as queue, served(url, tmp_path) as gateway:
        secret, _ = book.new("ci", queues=["*"], allow=SCOPES)
        assert gateway.call("put", {"tasks": ["first"]}, secret).status == 200
        assert gateway.call("claim", {}, secret).status == 200
        bearer = f"Host: {gateway.host}\r\nAuthorization: Bearer {secret}\r\n"
        with gateway.open() as waits, gateway.open() as watches:
            waits.sendall(
                f"POST /v1/crawl/claim HTTP/1.1\r\n{bearer}Content-Length: 11\r\n\r\n".encode() + b'{"wait":30}'
            )
            watches.sendall(f"GET /q/crawl/live?view=queue HTTP/1.1\r\n{bearer}\r\n".encode())
            assert watches.recv(65536).startswith(b"HTTP/1.1 200")
            book.revoke("ci")
            await asyncio.sleep(FRESH + 0.1)
            queue.put("second")
            refused = gateway.read(waits)
            assert (refused.status, refused.problem) == (401, "unauthorized")
            stats = queue.stats()
            assert (stats.counters["claimed"], stats.todos) == (1, 1)
            watches.settimeout(STALE)
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                part = watches.recv(65536)
                assert part, data[-300:]
                data += part
        gateway.is_well()


async def test_what_a_claim_took_goes_back_if_its_token_was_revoked_meanwhile(
    url: str, raw: redis.Redis, tmp_path: Path
) -> None:
    with TokenBook(url) as book, Queue("crawl", url) as queue, served(url, tmp_path) as gateway:
        secret, _ = book.new("ci", queues=["*"], allow=SCOPES)
        queue.put("a")
        assert gateway.call("stats", {}, secret).status == 405
        body = b'{"timeout": 3600, "token": "w1"}'
        head = f"POST /v1/crawl/claim HTTP/1.1\r\nHost: {gateway.host}\r\nAuthorization: Bearer {secret}\r\n"
        with gateway.open() as plug:
            book.revoke("ci")
            server: Any = raw
            server.execute_command("CLIENT", "PAUSE", int(1000 * FRESH) + 500, "WRITE")
            plug.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert gateway.read(plug).status == 401
        stats = wait_until(lambda: found if (found := queue.stats()).todos else None, 1)
        assert stats is not None
        assert stats.counters["claimed"] == 1


async def test_without_redis_a_token_is_a_503_and_nobody_is_let_in() -> None:
    made = make_app(Settings(url="redis://127.0.0.1:1", anonymous=SCOPES))
    async with client(made) as caller:
        for headers in ({}, {"Authorization": "Bearer tq_x"}):
            reply = await caller.get("/v1/crawl/stats", headers=headers)
            assert (reply.status_code, reply.json()["type"]) == (503, "/problems/unavailable")
            assert reply.headers["retry-after"]
        assert (await caller.get("/healthz")).status_code == 200
    await made.close()
