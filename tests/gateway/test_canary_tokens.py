"""A token that nobody may ever see again: it is sent in every place where a client may put one, good and wrong.

The token holds the canary of the tests, so that what programs print, log and are started with is looked at, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.rig import canary
from tests.rig.command import Say, say
from tests.rig.served import Reply, served
from timeoutq.gateway.page import make_app
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import KEY, SCOPES, SHAPE
from timeoutq.server.embedded import EmbeddedServer

__all__ = ["say"]

SECRET = "tq_" + (canary.PASSWORD + "-" + "Qx7" * 20)[:43]
LOOKS = [route.path for route in make_app(Settings(url="redis://127.0.0.1:1")).state.table if route.method == "GET"]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One server is enough, with the password that stands in URLs of the tests."""
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


def keep(raw: redis.Redis, name: str) -> None:
    """Write the token as `token new` would have."""
    words = {"sha256": hashlib.sha256(SECRET.encode()).hexdigest(), "queues": ["crawl"], "allow": list(SCOPES)}
    raw.hset(KEY, name, json.dumps({**words, "created": 0, "expires": None}))


def places() -> Iterator[tuple[str, str, dict[str, str], bytes | None]]:
    """Each place where a client may put a token: method, target, headers and body."""
    bearer = {"Authorization": f"Bearer {SECRET}"}
    for path in LOOKS:
        yield "GET", path.replace("{queue}", "crawl"), bearer, None
    for body in (b'{"tasks":["a"]}', b"{", b'{"nix":1}', b"\xff"):
        yield "POST", "/v1/crawl/put", bearer, body
        yield "POST", "/v1/crawl/put", {**bearer, "Content-Type": "application/x-ndjson"}, body
    yield "POST", "/v1/crawl/claim", bearer, b'{"n":5}'
    yield "POST", "/v1/crawl/ack", bearer, b'{"lease":{"task":"a","token":"other/1"}}'
    yield "POST", "/v1/other/put", bearer, b'{"tasks":["a"]}'
    yield "GET", "/v1/crawl/nix", bearer, None
    yield "PUT", "/v1/crawl/put", bearer, None
    yield "GET", "/v1/crawl/stats", {**bearer, "Host": "evil.example"}, None
    yield "GET", "/v1/crawl/stats", {**bearer, "Origin": "https://evil.example"}, None
    yield "GET", "/v1/crawl/stats", {"Cookie": f"timeoutq={SECRET}"}, None
    yield "POST", "/v1/crawl/pause", {"Cookie": f"timeoutq={SECRET}"}, b"{}"
    for header in (f"Basic {SECRET}", SECRET, f"Bearer {SECRET}{SECRET}", f"Bearer  {SECRET} x", f"token {SECRET}"):
        yield "GET", "/v1/crawl/stats", {"Authorization": header}, None
    for target in (
        f"/v1/crawl/stats?token={SECRET}", f"/v1/crawl/stats?x={SECRET}", f"/v1/{SECRET}/stats", f"/{SECRET}",
        f"/v1/crawl/{SECRET}", f"/login?token={SECRET}", f"/static/{SECRET}", f"/v1/crawl/task?id=https://a/?{SECRET}",
    ):  # fmt: skip
        yield "GET", target, {}, None
        yield "GET", target, {"Accept": "text/html"}, None
    yield "GET", "/v1/crawl/stats", {"Host": SECRET.lower()}, None
    form = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    yield "POST", "/login", form, f"token={SECRET}x&next=/".encode()
    yield "POST", "/login", form, f"token={SECRET}&next=/{SECRET}".encode()
    yield "POST", "/logout", {"Cookie": f"timeoutq={SECRET}", "Sec-Fetch-Site": "same-origin"}, b""


def test_a_token_is_in_no_answer_no_log_no_key_and_no_command_to_the_server(
    url: str, raw: redis.Redis, tmp_path: Path, say: Say
) -> None:
    assert SHAPE.fullmatch(SECRET)
    keep(raw, "canary")
    raw.config_set("slowlog-log-slower-than", 0)
    raw.config_set("slowlog-max-len", 100_000)
    raw.slowlog_reset()
    answers: list[Reply] = []
    with served(url, tmp_path, "--log-level", "debug") as gateway:
        for method, target, headers, body in places():
            reply = gateway.ask(method, target, headers, body)
            answers.append(reply)
            said = reply.body + repr(reply.headers).encode()
            if (method, target, reply.status) == ("POST", "/login", 303):
                said = said.replace(f"timeoutq={SECRET};".encode(), b"")  # the cookie, which no script can read
            assert SECRET[3:].encode() not in said, (method, target, headers)
            assert SECRET[3:30].lower().encode() not in said.lower(), (method, target, headers)
        raw.hdel(KEY, "canary")
        log = gateway.log
        assert SECRET[3:] not in log
        assert "Traceback" not in log
    assert {reply.status for reply in answers} >= {200, 303, 400, 401, 403, 404, 405, 421}
    told = "\n".join(repr(entry["command"]) for entry in raw.slowlog_get(100_000))
    assert SECRET[3:] not in told
    assert "HGETALL" in told
    keep(raw, "canary")
    with redis.Redis.from_url(url) as plain:
        kept = [plain.dump(key) for key in plain.scan_iter()]
    assert len(kept) > 2
    assert SECRET[3:] not in repr(kept)
    listed = say("token", "list", "--json").out + say("token", "list").out + say("doctor").out
    assert SECRET[3:] not in listed
