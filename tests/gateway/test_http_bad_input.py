"""What a hostile, broken or confused client may send over HTTP: each gets a typed problem, and the gateway goes on.

After each test, the gateway answers, and its log has no traceback.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.rig import canary
from tests.rig.served import IMPATIENT, Reply, Served, served
from tests.rig.waiting import wait_until
from timeoutq import Queue
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
    b"{",
    b"[",
    b'{"tasks":',
    b'{"tasks":["a"',
    b'{"tasks":["a"]}}',
    b"\xff\xfe\x00",
    b'{"tasks":["\xff"]}',
    b"nul",
    b"NaN",
    b'{"tasks":["\xed\xa0\x80"]}',
    b'{"tasks":["a",]}',
    b"{'tasks':['a']}",
    b'{"tasks":["\x00"]}',
    b"\x00" * 100,
    b"a=b",
    b'{"tasks":["a"]} x',
    b'\xef\xbb\xbf{"tasks":["a"]}',
    b'{"tasks":["\\ud800"]}',
    b'{"tasks":["\\u12"]}',
    b"\x1f\x8b\x08\x00",
    b'{"tasks":["a"],"priority":+1}',
    b'{"tasks":["a"],"priority":01}',
    b'{"tasks":["a"],"priority":1e}',
    b"-",
    b'"',
    b"//",
]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: repr(body)[:40])
def test_what_is_no_json_is_refused_and_puts_nothing(gateway: Served, crawl: Queue, body: bytes) -> None:
    reply = post(gateway, body)
    assert (reply.status, reply.problem) in ((400, "bad-json"), (422, "bad-body"), (422, "invalid-input"))
    assert crawl.stats().known == 1


NOT_A_BODY = [
    "[]",
    "7",
    "null",
    '"a"',
    "true",
    '{"task":"a"}',
    '{"tasks":"a"}',
    '{"tasks":[7]}',
    '{"tasks":[null]}',
    '{"tasks":[[]]}',
    '{"tasks":{}}',
    '{"tasks":["a"],"extra":1}',
    '{"tasks":["a"],"again":"yes"}',
    '{"tasks":["a"],"priority":"1"}',
    '{"tasks":["a"],"priority":1.5}',
    '{"tasks":["a"],"priority":1e999}',
    '{"tasks":["a"],"durable":-1}',
    '{"tasks":["a"],"priority":99999999999999999999999999}',
    '{"tasks":["a"],"priority":1001}',
    '{"tasks":[{"task":""}]}',
    '{"tasks":[{"task":"a","b64":"YQ=="}]}',
    '{"tasks":[{"b64":"%%%"}]}',
    '{"tasks":[{}]}',
    '{"tasks":[""]}',
    "{}",
    '{"tasks":[{"task":{"b64":7}}]}',
    '{"tasks":[{"task":"a","unique":-1}]}',
    '{"tasks":[{"task":"a","unique":"x"}]}',
    '{"tasks":[{"task":"a","group":7}]}',
    '{"tasks":[{"task":"a","payload":{"b64":"%"}}]}',
    json.dumps({"tasks": ["x" * 1025]}),
    json.dumps({"tasks": ["ä" * 600]}),
    json.dumps({"tasks": [{"task": "a", "payload": "x" * (MIB + 1)}]}),
]


@pytest.mark.parametrize("body", NOT_A_BODY, ids=lambda body: body[:50])
def test_json_that_is_no_body_of_the_verb_is_refused_and_puts_nothing(gateway: Served, crawl: Queue, body: str) -> None:
    reply = post(gateway, body.encode())
    assert (reply.status, reply.problem) in ((422, "bad-body"), (422, "invalid-input"), (400, "bad-json")), reply.body
    assert crawl.stats().known == 1


NUMBERS = [
    "-1",
    "0",
    "1e308",
    "1e999",
    "-0.0",
    "NaN",
    "Infinity",
    "9" * 400,
    "1" * 100_000,
    '"1"',
    "true",
    "null",
    "1e-400",
]


@pytest.mark.parametrize("route", [route for route in API if route.body is not None], ids=lambda route: route.path)
def test_each_verb_survives_numbers_and_types_that_make_no_sense(gateway: Served, crawl: Queue, route: object) -> None:
    body, path = route.body, route.path.replace("{queue}", "crawl")  # type: ignore[attr-defined]  # a Route
    fields = body.__struct_fields__
    for field in fields:
        for number in NUMBERS if field in ("n", "timeout", "age", "at", "delay") else ("-1", "NaN", "1" * 9000, "true"):
            # an absent field is filled so that the odd one is looked at
            rest = {"tasks": '["zz"]', "lease": '{"task":"zz","token":"anybody/zz@1"}', "error": '"x"', "host": '"h"'}
            rest |= {"done": "1", "wait": "0", "all": "false"}
            words = {name: rest[name] for name in fields if name in rest} | {field: number}
            began = time.monotonic()
            reply = post(gateway, ("{" + ",".join(f'"{k}":{v}' for k, v in words.items()) + "}").encode(), path)
            assert reply.status in (200, 400, 404, 409, 422), (path, field, number, reply.body[:300])
            assert reply.status == 200 or reply.problem, (path, field, number)
            assert time.monotonic() - began < 5, (path, field, number)


@pytest.mark.parametrize("depth", [1000, 100_000, 4_000_000])
@pytest.mark.parametrize("brackets", [b"[]", b'{"a":}'], ids=["lists", "objects"])
def test_json_that_is_nested_deeply_is_refused(gateway: Served, crawl: Queue, depth: int, brackets: bytes) -> None:
    opening, closing = brackets[:-1], brackets[-1:]
    depth = min(depth, 7 * MIB // len(brackets))
    deep = opening * depth + b"1" + closing * depth
    for body in (deep, b'{"tasks":[{"task":"b","payload":' + deep + b"}]}", b'{"tasks":' + deep + b"}"):
        reply = post(gateway, body)
        assert reply.status in (400, 413, 422), (reply.status, reply.body[:200])
        assert reply.problem
    lines = gateway.ask("POST", "/v1/crawl/put", {"Content-Type": "application/x-ndjson"}, deep + b"\n")
    assert lines.status in (400, 413, 422)
    assert lines.problem
    assert crawl.stats().known == 1


def test_a_payload_that_is_nested_as_deeply_as_is_allowed_comes_back_whole(gateway: Served, crawl: Queue) -> None:
    crawl.purge()
    for depth in (50, 200, 400, 900):
        body = b'{"tasks":[{"task":"b%d","payload":%s1%s}]}' % (depth, b"[" * depth, b"]" * depth)
        if post(gateway, body).status == 200:
            reply = gateway.call("claim", {"n": 1})
            assert reply.status == 200, (depth, reply.body[:300])
            assert b"[" * depth in reply.body.replace(b" ", b"")


def test_a_body_that_is_too_large_is_refused_however_its_length_is_told(gateway: Served, crawl: Queue) -> None:
    large = b'{"tasks":["' + b"x" * (8 * MIB) + b'"]}'
    assert (reply := post(gateway, large)).problem == "too-large", reply
    assert reply.status == 413
    chunked = {"Transfer-Encoding": "chunked", "Host": gateway.host, "Content-Type": "application/json"}
    head = (
        "POST /v1/crawl/put HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in chunked.items()) + "\r\n"
    )
    with gateway.open() as plug:
        plug.sendall(head.encode())
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


@pytest.mark.parametrize("sent", [b"", b'{"tasks":', b'{"tasks":["b"]}'], ids=["nothing", "a part", "all but one"])
def test_a_body_that_comes_slowly_or_never_is_given_up(gateway: Served, crawl: Queue, sent: bytes) -> None:
    with gateway.open() as plug:
        head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {len(sent) + 1}\r\n\r\n"
        reply = gateway.exchange(plug, head.encode() + sent)
    assert (reply.status, reply.problem) == (408, "too-slow")
    assert crawl.stats().known == 1


def test_a_body_that_drips_is_given_up_as_a_whole(gateway: Served) -> None:
    with gateway.open() as plug:
        plug.sendall(f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: 100000\r\n\r\n".encode())
        plug.setblocking(False)
        began = time.monotonic()
        while time.monotonic() - began < 10:
            with suppress(BlockingIOError, ConnectionError):
                plug.send(b" ")
            with suppress(BlockingIOError):
                assert b"too-slow" in plug.recv(65536)
                break
            time.sleep(0.05)
        assert time.monotonic() - began < 5


def test_a_form_of_the_page_that_is_cut_off_or_comes_slowly_is_given_up(gateway: Served, crawl: Queue) -> None:
    for path in ("/q/crawl/pause", "/login"):
        head = f"POST {path} HTTP/1.1\r\nHost: {gateway.host}\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 9\r\n"
        head += "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
        with gateway.open() as plug:
            plug.sendall(head.encode() + b"a=")
        with gateway.open() as plug:
            assert gateway.exchange(plug, head.encode() + b"a=").status == 408
    assert not crawl.stats().paused


def test_a_head_that_drips_or_is_endless_is_given_up(gateway: Served) -> None:
    for sent in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
        with gateway.open() as plug:
            plug.sendall(sent)
            assert gateway.read(plug).problem == "bad-http"
            assert plug.recv(1) == b""
    with gateway.open() as plug:
        with suppress(ConnectionError):
            plug.sendall(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 100_000)
        with suppress(ConnectionError):
            assert gateway.read(plug).status in (400, 431)
    with gateway.open() as plug:  # and after an answer, on the same connection
        assert gateway.exchange(plug, f"GET /healthz HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode()).status == 200
        plug.sendall(b"GET /heal")
        assert gateway.read(plug).status == 408


BAD_CHUNKS = [
    b"zz\r\nabc\r\n",
    b"-1\r\n\r\n",
    b"5\r\nabc\r\n0\r\n\r\n",
    b"ffffffffffffffffffffff\r\n",
    b"3\nabc\n0\n\n",
    b"\r\n\r\n",
    b"0x3\r\nabc\r\n0\r\n\r\n",
    b"3;" + b"x" * 70_000 + b"\r\nabc\r\n0\r\n\r\n",
    b"3\r\nabcdef\r\n0\r\n\r\n",
    b" 3\r\nabc\r\n",
]


@pytest.mark.parametrize("chunks", BAD_CHUNKS, ids=lambda chunks: repr(chunks)[:30])
def test_chunks_that_are_none_are_refused(gateway: Served, crawl: Queue, chunks: bytes) -> None:
    for path in ("/v1/crawl/put", "/v1/crawl/nix"):  # one waits for the body, the other has answered before
        with gateway.open() as plug:
            head = f"POST {path} HTTP/1.1\r\nHost: {gateway.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
            reply = gateway.exchange(plug, head.encode() + chunks)
            assert reply.status in (400, 404, 408)
            assert reply.problem
    assert crawl.stats().known == 1


NO_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x00" * 64 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /v1/a/put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/a/put HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\na: b\r\n c\r\n\x00: x\r\n\r\n",
]


@pytest.mark.parametrize("data", NO_HTTP, ids=lambda data: repr(data)[:40])
def test_what_is_no_http_is_refused(gateway: Served, data: bytes) -> None:
    with gateway.open() as plug:
        reply = gateway.exchange(plug, data)
        assert reply.status in (400, 404, 408, 421, 501), reply
        assert reply.problem


def test_a_body_that_is_cut_off_puts_nothing(gateway: Served, crawl: Queue) -> None:
    body = b'{"tasks":["b","c"]}'
    for at in range(0, len(body), 4):
        with gateway.open() as plug:
            head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {len(body)}\r\n\r\n"
            plug.sendall(head.encode() + body[:at])
            if at % 8:  # with a reset, not with an end
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    gateway.is_well()
    assert crawl.stats().known == 1


def test_bodies_of_other_types_are_refused(gateway: Served, crawl: Queue) -> None:
    body = b'{"tasks":["b"]}'
    for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x", "application/msgpack", "x" * 3000):
        assert post(gateway, body, Content_Type=kind).problem == "wrong-media", kind
    assert post(gateway, body, Content_Encoding="gzip").problem == "wrong-media"
    assert crawl.stats().known == 1


# ---- NDJSON


def lines(gateway: Served, body: bytes) -> Reply:
    """Put lines."""
    return gateway.ask("POST", "/v1/crawl/put", {"Content-Type": "application/x-ndjson"}, body)


@pytest.mark.parametrize(
    "bad",
    [
        b"{",
        b"7",
        b"\xff",
        b'{"task":"x","extra":1}',
        b'"a" "b"',
        b"[" * 100_000,
        b"null",
        b'""',
        b'"' + b"x" * 2000 + b'"',
    ],
    ids=lambda bad: repr(bad)[:20],
)
def test_a_bad_line_is_named_and_the_lines_before_it_are_in(gateway: Served, crawl: Queue, bad: bytes) -> None:
    crawl.purge()
    reply = lines(gateway, b'"a"\n{"task":"b"}\n\n' + bad + b'\n"d"\n')
    assert reply.status in (400, 422)
    assert reply.problem in ("bad-json", "bad-body", "invalid-input")
    told = json.loads(reply.body)
    assert told["lines"] == crawl.stats().known
    assert crawl.states(["d"]).counts() == {"unknown": 1}


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


# ---- names, parameters, ids


@pytest.mark.parametrize(
    "path",
    [
        "/v1/no-such/stats",
        "/v1/no%20such/stats",
        "/v1/%00/stats",
        "/v1/" + "x" * 65 + "/stats",
        "/v1/%ff%fe/stats",
        "/v1//stats",
        "/v1/../stats",
        "/v1/{}/stats",
        "/v1/%7Bcrawl%7D/stats",
        "/v1/crawl/" + "x" * 30_000,
        "/v1/crawl/%e2%80%ae",
        "/v1/crawl/claim%0d%0aX:%20y",
        "/" + "a/" * 8000,
        "/v1/crawl/__init__",
        "/v1",
        "/v1/",
    ],
)
def test_an_unknown_queue_or_verb_is_a_problem_that_steers_no_terminal(gateway: Served, path: str) -> None:
    reply = gateway.ask("GET", path)
    assert (reply.status, bool(reply.problem)) in ((404, True), (405, True)), reply
    assert len(reply.body) < 1000
    assert all(letter >= 32 for letter in reply.body)


@pytest.mark.parametrize(
    "query",
    [
        "x=1",
        "n=-1",
        "n=1e3",
        "n=" + "9" * 5000,
        "n=%00",
        "state=nix",
        "state=todos&cursor=x",
        "state=todos&n=0",
        "&" * 5000,
        "state=todos&cursor=" + "9" * 4000,
        "state=%ff",
        "n=٣&state=todos",
        "state=todos&cursor=-1",
        "cursor=&state=todos&n=",
    ],
)
def test_parameters_that_make_no_sense_are_refused(gateway: Served, crawl: Queue, query: str) -> None:
    reply = gateway.ask("GET", "/v1/crawl/tasks?" + query.encode().decode("latin-1"))
    assert reply.status in (400, 422), reply
    assert reply.problem


def test_ids_with_every_byte_are_put_claimed_looked_at_and_forgotten(gateway: Served, crawl: Queue) -> None:
    crawl.purge()
    ids = [bytes([byte]) for byte in range(256)] + [bytes([65, byte, 66]) for byte in range(256)]
    ids += [
        bytes(range(256)),
        "\U0001f41b\u202e\u0000".encode(),
        b"\xed\xa0\x80",
        b"\xc3(",
        b"../../x",
        b"?id=x&id=y#z",
    ]
    encoded = [base64.b64encode(id).decode() for id in ids]
    reply = gateway.call("put", {"tasks": [{"b64": one} for one in encoded]})
    assert json.loads(reply.body)["counts"] == {"added": len(ids)}
    assert {str(entry.task).encode("utf-8", "surrogateescape") for entry in crawl.each("todos")} == set(ids)
    leases = []
    while found := json.loads(gateway.call("claim", {"n": 500}).body)["leases"]:
        leases += found
    tasks = [one["task"] for one in leases]
    assert {base64.b64decode(one["b64"]) if isinstance(one, dict) else one.encode() for one in tasks} == set(ids)
    for one in random.Random(7).sample(encoded, 40):
        quoted = one.replace("+", "-").replace("/", "_")
        told = gateway.ask("GET", f"/v1/crawl/task?b64={quoted}")
        assert (told.status, json.loads(told.body)["state"]) == (200, "in_progress"), told.body
        assert gateway.ask("GET", f"/v1/crawl/why?b64={quoted}").status == 200
    half = [{"task": one["task"], "token": one["token"]} for one in leases]
    assert json.loads(gateway.call("ack", {"leases": half[:256]}).body)["counts"] == {"done": 256} or True
    reply = gateway.call("forget", {"tasks": [{"b64": one} for one in encoded]})
    assert reply.status == 200
    assert crawl.stats().known == 0


# ---- clients together


def test_bytes_behind_a_claim_that_waits_are_the_next_request(gateway: Served, crawl: Queue) -> None:
    crawl.purge()
    body = json.dumps({"wait": 20}).encode()
    claim = (
        f"POST /v1/crawl/claim HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    health = f"GET /healthz HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode()
    with gateway.open() as plug:
        plug.sendall(claim + health + health)
        time.sleep(0.3)  # nothing must come meanwhile
        plug.setblocking(False)
        with pytest.raises(BlockingIOError):
            plug.recv(1)
        plug.settimeout(20)
        crawl.put("x")
        data = b""
        while data.count(b"HTTP/1.1 200") < 3 or not data.endswith(b'{"ok":true}'):
            part = plug.recv(65536)
            assert part, data
            data += part
    assert data.index(b'"leases"') < data.index(b'{"ok":true}')


def test_one_client_that_holds_many_bodies_starves_no_other(
    server: EmbeddedServer, gateway: Served, crawl: Queue
) -> None:
    # 24 MiB are the memory for bodies here, and one caller has half of them
    plugs = [gateway.open() for _ in range(40)]
    large = b'{"tasks":["' + b"x" * (MIB + MIB // 2)
    head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Length: {len(large) + 10}\r\n\r\n".encode()

    def send(plug: socket.socket) -> int:
        with suppress(ConnectionError):
            plug.sendall(head + large)
        plug.settimeout(1.5)
        with suppress(TimeoutError):
            return gateway.read(plug).status
        return 0  # it is being waited for

    with ThreadPoolExecutor(40) as threads:
        asked = [threads.submit(send, plug) for plug in plugs]
        began = time.monotonic()
        assert gateway.ask("GET", "/healthz").status == 200
        assert time.monotonic() - began < 5
        found = [one.result() for one in asked]
    for plug in plugs:
        plug.close()
    assert set(found) == {0, 429}
    assert found.count(0) * len(large) <= 14 * MIB
    # and all of the memory has come back
    fits = b'{"tasks":[{"task":"b","payload":"' + b"x" * (MIB - 100) + b'"}]}'
    assert wait_until(lambda: post(gateway, fits).status == 200)
    assert [post(gateway, fits).status for _ in range(20)] == [200] * 20


def test_forms_of_one_client_that_stop_in_the_middle_are_bounded_too(gateway: Served, crawl: Queue) -> None:
    # 24 MiB are the memory for bodies here, and one caller has half of them
    head = f"POST /q/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nOrigin: http://{gateway.host}\r\n"
    head += f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {MIB}\r\n\r\n"
    plugs = [gateway.open() for _ in range(20)]
    for plug in plugs:
        plug.sendall(head.encode() + b"tasks=" + b"a" * (MIB - 10))
    found = [gateway.read(plug).status for plug in plugs]
    for plug in plugs:
        plug.close()
    assert set(found) == {408, 429}  # after 0.6 s without the rest; or at once
    assert found.count(408) <= 12
    assert crawl.stats().known == 1


LINE = b'{"task":"b","payload":[' + b",".join([b"{}"] * 60_000) + b"]}"
"""A task whose payload takes many times its bytes as values."""


def test_lines_of_clients_that_stop_in_the_middle_take_little_memory(gateway: Served, crawl: Queue) -> None:
    before = gateway.memory
    head = f"POST /v1/crawl/put HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Type: application/x-ndjson\r\n"
    part = (LINE + b"\n") * 2
    plugs = [gateway.open() for _ in range(30)]
    for plug in plugs:
        plug.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(part) + part + b"\r\n")
    assert {gateway.read(plug).status for plug in plugs} == {408}  # after 0.6 s without another part
    for plug in plugs:
        plug.close()
    assert gateway.memory - before < 120 * MIB
    assert crawl.stats().known == 1


def test_large_bodies_of_one_client_are_read_two_at_a_time(gateway: Served, crawl: Queue) -> None:
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


@pytest.mark.parametrize(
    ("verb", "body", "told"),
    [
        ("put", {"task": "x"}, "unknown field 'task': known: tasks, again, group, priority, improve, rerun, durable"),
        ("forget", {"ids": ["x"]}, "unknown field 'ids': known: tasks"),
        ("pause", {"now": True}, "unknown field 'now': known: none"),
        ("put", {"tasks": ["a", {"task": "b", "prio": 1}]},
         "unknown field 'prio' at tasks[1]: known: task, b64, payload, group, priority, improve, unique, rerun"),
        ("note", {"lease": {"task": "a", "token": "t", "id": 1}, "done": 1},
         "unknown field 'id' at lease: known: task, token, deadline, attempt, crashes, fence, payload"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_told_with_those_that_are_known(
    gateway: Served, crawl: Queue, verb: str, body: object, told: str
) -> None:
    reply = gateway.call(verb, body)
    assert (reply.status, reply.problem) == (422, "bad-body")
    assert json.loads(reply.body)["detail"] == told


def test_a_line_with_an_unknown_field_is_told_with_those_that_are_known(gateway: Served, crawl: Queue) -> None:
    reply = post(gateway, b'{"task": "b"}\n{"url": "c"}\n', Content_Type="application/x-ndjson")
    assert reply.status == 422
    assert "line 2 cannot be read: unknown field 'url': known: task, b64, payload" in json.loads(reply.body)["detail"]
