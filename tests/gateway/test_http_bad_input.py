"""What a hostile, broken or confused client may send over HTTP: each gets a typed problem, and the gateway goes on.

After each test, the gateway answers, and its log has no traceback.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import pytest

from tests.rig import canary
from tests.rig.served import IMPATIENT, Reply, Served, served
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.gateway.bodies import arguments_of
from timeoutq.gateway.routes import API
from timeoutq.server.embedded import EmbeddedServer

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One server is enough for what a gateway says."""
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


@pytest.fixture(scope="module")
def shared(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway that needs no token, and has little patience."""
    with served(server.url, tmp_path_factory.mktemp("web"), code=IMPATIENT) as found:
        yield found


@pytest.fixture
def gateway(shared: Served) -> Iterator[Served]:
    """The gateway: after the test it is as well as before."""
    yield shared
    shared.is_well()


@pytest.fixture
def crawl(server: EmbeddedServer) -> Iterator[Queue]:
    """A queue with a task in todos."""
    with Queue("crawl", server.url, timeout=5) as opened:
        opened.purge()
        opened.put("a")
        yield opened


def post(gateway: Served, body: bytes, path: str = "/v1/crawl/put", **headers: str) -> Reply:
    """Send a body as JSON."""
    named = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return gateway.ask("POST", path, named, body)


# ---- bodies


NOT_JSON = [
    b"{", b'{"tasks":["a"', b'{"tasks":["a"]}}', b'{"tasks":["\xff"]}', b"NaN", b'{"tasks":["\xed\xa0\x80"]}',
    b'{"tasks":["a",]}', b'{"tasks":["\x00"]}', b"a=b", b'{"tasks":["a"]} x', b'\xef\xbb\xbf{"tasks":["a"]}',
    b'{"tasks":["\\ud800"]}', b"\x1f\x8b\x08\x00", b'{"tasks":["a"],"priority":01}',
    b'{"tasks":[{"task":"b","payload":' + b"[" * 1_000_000 + b"1" + b"]" * 1_000_000 + b"}]}",
    b'{"tasks":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
]  # fmt: skip
NOT_A_BODY = [
    "[]", "null", '"a"', "{}", '{"task":"a"}', '{"tasks":"a"}', '{"tasks":[7]}', '{"tasks":["a"],"extra":1}',
    '{"tasks":["a"],"again":"yes"}', '{"tasks":["a"],"priority":1.5}', '{"tasks":["a"],"priority":1e999}',
    '{"tasks":["a"],"durable":-1}', '{"tasks":["a"],"priority":1001}', '{"tasks":[{"task":"a","b64":"YQ=="}]}',
    '{"tasks":[{"b64":"%%%"}]}', '{"tasks":[{}]}', '{"tasks":[""]}', '{"tasks":[{"task":"a","unique":-1}]}',
    '{"tasks":[{"task":"a","payload":{"b64":"%"}}]}', json.dumps({"tasks": ["x" * 1025]}),
    json.dumps({"tasks": [{"task": "a", "payload": "x" * (MIB + 1)}]}),
]  # fmt: skip


def test_what_is_no_body_of_the_verb_is_refused_and_puts_nothing(gateway: Served, crawl: Queue) -> None:
    for body in (*NOT_JSON, *map(str.encode, NOT_A_BODY)):
        reply = post(gateway, body)
        refused = {(400, "bad-json"), (422, "bad-body"), (422, "invalid-input")}
        assert (reply.status, reply.problem) in refused, (body[:80], reply.body[:200])
    for kind in ("text/plain", "multipart/form-data; boundary=x", "x" * 3000):
        assert post(gateway, b'{"tasks":["b"]}', Content_Type=kind).problem == "wrong-media", kind
    assert post(gateway, b'{"tasks":["b"]}', Content_Encoding="gzip").problem == "wrong-media"
    assert crawl.stats().known == 1


def test_each_verb_survives_numbers_and_types_that_make_no_sense(gateway: Served, crawl: Queue) -> None:
    # an absent field is filled so that the odd one is looked at
    rest = {"tasks": '["zz"]', "lease": '{"task":"zz","token":"anybody/zz@1"}', "error": '"x"', "host": '"h"'}
    rest |= {"done": "1", "wait": "0", "all": "false"}
    for route in API:
        fields = arguments_of(route.endpoint).__struct_fields__
        for field in fields if route.method == "POST" else ():
            for number in ("-1", "1e308", "NaN", "9" * 400, '"1"', "true", "null"):
                words = {name: rest[name] for name in fields if name in rest} | {field: number}
                body = "{" + ",".join(f'"{name}":{word}' for name, word in words.items()) + "}"
                reply = post(gateway, body.encode(), route.path.replace("{queue}", "crawl"))
                assert reply.status in (200, 400, 404, 409, 422), (route.path, field, number, reply.body[:300])
                assert reply.status == 200 or reply.problem


def test_an_unknown_field_is_told_with_its_place(gateway: Served, crawl: Queue) -> None:
    reply = gateway.call("put", {"tasks": ["a", {"task": "b", "prio": 1}]})
    assert (reply.status, reply.problem) == (422, "bad-body")
    assert "unknown field `prio` - at `$.tasks[1]`: /v1/openapi.json says" in json.loads(reply.body)["detail"]


def test_a_body_that_is_too_large_is_refused_however_its_length_is_told(gateway: Served, crawl: Queue) -> None:
    large = b'{"tasks":["' + b"x" * (8 * MIB) + b'"]}'
    assert (reply := post(gateway, large)).problem == "too-large", reply
    assert reply.status == 413
    with gateway.open() as plug:
        plug.sendall(f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\n".encode())
        plug.sendall(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            for at in range(0, len(large), 65536):
                part = large[at : at + 65536]
                plug.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        assert gateway.read(plug).problem == "too-large"
    # a length that cannot be, and no body behind it: refused before anything comes
    for length in (str(9 * MIB), "9" * 18):
        with gateway.open() as plug:
            head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {length}\r\n\r\n"
            assert gateway.exchange(plug, head.encode()).problem == "too-large"
    assert crawl.stats().known == 1


def test_a_client_that_goes_on_sending_after_the_answer_is_cut_off(gateway: Served) -> None:
    with gateway.open() as plug:
        plug.sendall(
            f"POST /v1/crawl/nix HTTP/1.1\r\nHost: {gateway.host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        assert gateway.read(plug).problem == "unknown-verb"
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 10:
                plug.sendall(b"8\r\nxxxxxxxx\r\n")
                time.sleep(0.02)


def test_a_body_that_comes_slowly_or_never_is_given_up(gateway: Served, crawl: Queue) -> None:
    json_type, form = "application/json", "application/x-www-form-urlencoded\r\nSec-Fetch-Site: same-origin"
    for path, kind, sent in (
        ("/v1/crawl/put", json_type, b""), ("/v1/crawl/put", json_type, b'{"tasks":["b"]}'),
        ("/q/crawl/pause", form, b"a="), ("/login", form, b"a="),
    ):  # fmt: skip
        head = f"POST {path} HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Type: {kind}\r\n"
        with gateway.open() as plug:
            reply = gateway.exchange(plug, f"{head}Content-Length: {len(sent) + 1}\r\n\r\n".encode() + sent)
            assert (reply.status, reply.problem) == (408, "too-slow")
        with gateway.open() as plug:  # or it hangs up
            plug.sendall(f"{head}Content-Length: {len(sent) + 1}\r\n\r\n".encode() + sent)
    with gateway.open() as plug:  # a byte now and then does not help
        plug.sendall(f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: 100000\r\n\r\n".encode())
        plug.setblocking(False)
        until, answer = time.monotonic() + 5, b""
        while time.monotonic() < until and not answer:
            with suppress(BlockingIOError, ConnectionError):
                plug.send(b" ")
            with suppress(BlockingIOError):
                answer = plug.recv(65536)
            time.sleep(0.05)
        assert b"too-slow" in answer
    assert crawl.stats().known == 1
    assert not crawl.stats().paused


def test_a_head_that_drips_or_is_endless_is_given_up(gateway: Served) -> None:
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
        with gateway.open() as plug:
            plug.sendall(sent)
            assert plug.recv(1) == b""
    with gateway.open() as plug:
        with suppress(ConnectionError):
            plug.sendall(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 100_000)
        with suppress(ConnectionError):
            assert gateway.read(plug).status == 400
    with gateway.open() as plug:  # and after an answer, on the same connection
        assert gateway.exchange(plug, f"GET /healthz HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode()).status == 200
        plug.sendall(b"GET /heal")
        assert plug.recv(1) == b""


def test_what_is_no_http_is_refused(gateway: Served, crawl: Queue) -> None:
    head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nTransfer-Encoding: chunked\r\n".encode()
    for data in (
        b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
        head + b"Content-Length: 3\r\n\r\n0\r\n\r\n", head + b"\r\nzz\r\nabc\r\n", head + b"\r\n5\r\nabc\r\n0\r\n\r\n",
    ):  # fmt: skip
        with gateway.open() as plug, suppress(ConnectionError):
            plug.sendall(data)
            answer = plug.recv(65536)  # nothing: the connection is closed
            assert answer == b"" or answer[9:12] in (b"400", b"408"), (data[:60], answer)
    # what follows a body of two lengths is no request: a proxy may have read it as part of the body
    follows = f"GET /healthz HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode()
    with gateway.open() as plug:
        reply = gateway.exchange(plug, head + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + follows)
        assert (reply.status, plug.recv(1)) == (400, b"")
    assert crawl.stats().known == 1


# ---- NDJSON


def test_a_bad_line_is_named_and_the_lines_before_it_are_in(gateway: Served, crawl: Queue) -> None:
    bads = [b"{", b"7", b"\xff", b'{"task":"x","extra":1}', b"[" * 100_000, b'""', b'"' + b"x" * 2000 + b'"']
    for bad in bads:
        crawl.purge()
        body = b'"a"\n{"task":"b"}\n\n' + bad + b'\n"d"\n'
        reply = post(gateway, body, Content_Type="application/x-ndjson")
        assert (reply.status, reply.problem) in ((400, "bad-json"), (422, "bad-body"), (422, "invalid-input"))
        assert json.loads(reply.body)["lines"] == crawl.stats().known
        assert crawl.states(["d"]).counts() == {"unknown": 1}
    told = json.loads(post(gateway, b'{"task": "b"}\n{"url": "c"}\n', Content_Type="application/x-ndjson").body)
    assert "line 2 cannot be read: Object contains unknown field `url`" in told["detail"]


def test_a_line_without_an_end_is_refused_and_quickly(gateway: Served, crawl: Queue) -> None:
    began = time.monotonic()
    with gateway.open() as plug:
        head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Type: application/x-ndjson\r\n"
        plug.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"400\r\n" + b"x" * 1024 + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(9 * 1024):
                plug.sendall(piece)
        assert gateway.read(plug).problem == "too-large"
    assert time.monotonic() - began < 10
    assert crawl.stats().known == 1


# ---- names and parameters


def test_an_unknown_queue_or_verb_is_a_problem_that_steers_no_terminal(gateway: Served) -> None:
    for path in (
        "/v1/no-such/stats", "/v1/%00/stats", "/v1/" + "x" * 65 + "/stats", "/v1/%ff%fe/stats", "/v1//stats",
        "/v1/../stats", "/v1/%7Bcrawl%7D/stats", "/v1/crawl/" + "x" * 30_000, "/v1/crawl/%e2%80%ae",
        "/v1/crawl/claim%0d%0aX:%20y", "/v1/crawl/__init__", "/v1", "/v1/",
    ):  # fmt: skip
        reply = gateway.ask("GET", path)
        assert (reply.status, bool(reply.problem)) in ((404, True), (405, True)), reply
        assert len(reply.body) < 1000
        assert all(letter >= 32 for letter in reply.body)


def test_parameters_that_make_no_sense_are_refused(gateway: Served, crawl: Queue) -> None:
    for query in (
        "x=1", "n=-1", "n=" + "9" * 5000, "state=nix", "state=todos&cursor=x", "state=todos&n=0", "&" * 5000,
        "state=%ff", "n=٣&state=todos", "state=todos&cursor=-1",
    ):  # fmt: skip
        reply = gateway.ask("GET", "/v1/crawl/tasks?" + query.encode().decode("latin-1"))
        assert reply.status in (400, 422), reply
        assert reply.problem


# ---- clients together


def test_one_client_that_holds_many_bodies_starves_no_other(
    server: EmbeddedServer, gateway: Served, crawl: Queue
) -> None:
    # 24 MiB are the memory for bodies here, and one caller has half of them
    plugs: list[socket.socket] = []
    large = b'{"tasks":["' + b"x" * (MIB + MIB // 2)
    head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {len(large) + 10}\r\n\r\n".encode()

    def send(_: int) -> int:
        plug = gateway.open()
        plugs.append(plug)
        with suppress(ConnectionError):
            plug.sendall(head + large)
        plug.settimeout(1.5)
        with suppress(TimeoutError):
            return gateway.read(plug).status
        return 0  # it is being waited for

    with ThreadPoolExecutor(40) as threads:
        asked = [threads.submit(send, number) for number in range(40)]
        began = time.monotonic()
        assert gateway.ask("GET", "/healthz").status == 200
        assert time.monotonic() - began < 5
        wait(asked)
    for plug in plugs:
        plug.close()
    found = [one.result() for one in asked]
    assert set(found) == {0, 429}
    assert found.count(0) * len(large) <= 14 * MIB
    # and all of the memory has come back
    fits = b'{"tasks":[{"task":"b","payload":"' + b"x" * (MIB - 100) + b'"}]}'
    assert wait_until(lambda: post(gateway, fits).status == 200)
    assert [post(gateway, fits).status for _ in range(20)] == [200] * 20


LINE = b'{"task":"b","payload":[' + b",".join([b"{}"] * 60_000) + b"]}"
"""A task whose payload takes many times its bytes as values."""


def test_large_bodies_of_one_client_do_not_fill_the_memory(gateway: Served, crawl: Queue) -> None:
    before = gateway.memory
    body = b'{"tasks":[' + b",".join([LINE] * 4) + b"]}"
    with ThreadPoolExecutor(12) as threads:
        found = [*threads.map(lambda _: post(gateway, body).status, range(12))]
    assert set(found) <= {200, 429}
    assert 200 in found
    assert gateway.memory - before < 120 * MIB


def test_a_client_that_does_not_read_its_answer_is_cut_off(gateway: Served, crawl: Queue) -> None:
    crawl.put({f"large {number}": "x" * (MIB - 100) for number in range(8)})
    body = b'{"n":8}'
    with socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.connect(("127.0.0.1", gateway.port))
        head = f"POST /v1/crawl/claim HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {len(body)}\r\n\r\n"
        plug.sendall(head.encode() + body)
        wait_until(lambda: gateway.connections == 1)
        wait_until(lambda: gateway.connections == 0)
