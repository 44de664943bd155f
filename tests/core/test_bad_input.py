"""What cannot be used is refused with a message that names it, and nothing is written or lost."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
import redis

from tests.rig.faces import Blocking
from timeoutq import (
    AccessDenied,
    InvalidInput,
    NotRedis,
    Queue,
    ReadOnly,
    SchemaMismatch,
    ServerFull,
    Unavailable,
    UnsafeServer,
)
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import TimeoutqError

FACES: list[Any] = [Queue, Blocking]


BAD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda q: q.put(""), "a task id must not be empty"),
    (lambda q: q.put("x" * 1025), "has 1,025 bytes; the limit is 1,024"),
    (lambda q: q.put(5), "a task id is str or bytes, not int"),
    (lambda q: q.put("\ud800"), "lone surrogate"),
    (lambda q: q.put({"a": b"x" * ((1 << 20) + 1)}), "has 1,048,577 bytes; the limit is 1,048,576"),
    (lambda q: q.put({"a": object()}), "neither bytes nor JSON"),
    (lambda q: q.schedule("a"), "say when"),
    (lambda q: q.schedule("a", at=1, after=1), "say when"),
    (lambda q: q.schedule("a", after=-1), "after must be a finite number of seconds"),
    (lambda q: q.schedule("a", at=1e15), "past the year 9999"),
    (lambda q: q.schedule("a", at=datetime(2030, 1, 1)), "has no time zone"),  # noqa: DTZ001  # that is the case
    (lambda q: q.claim(0), "n must be a whole number from 1 to 500"),
    (lambda q: q.claim(timeout=0), "timeout=0 is out of range: 0.01 s to 7 days"),
    (lambda q: q.claim(wait=-1), "wait must be a finite number"),
    (lambda q: q.ack("a"), "this takes leases that claim"),
    (lambda q: q.list("nowhere"), "'nowhere' is not a state: one of todos, "),
    (lambda q: q.list("todos", "x"), "is not a cursor"),
    (lambda q: q.configure(keep_done="long"), "keep_done must be"),
    (lambda q: q.configure(max_crashes=0), "max_crashes must be a whole number"),
    (lambda q: q.extend([], timeout=math.nan), "timeout must be a finite number"),
    (lambda q: q.fail([], "x", retry_in=1, give_up=True), "not both"),
    (lambda q: q.retry_failed(), "was given no tasks"),
    (lambda q: q.retry_failed("a", all=True), "not both"),
    (lambda q: q.retry_failed(all="yes"), "all must be True or False"),
    (lambda q: q.errors(51), "n must be a whole number from 1 to 50"),
    (lambda q: q.hosts.inspect(""), "a host is a name like"),
    (lambda q: q.hosts.set("h", per_host=0), "per_host must be a whole number"),
    (lambda q: q.hosts.block("h"), "say for how long"),
]


def test_a_bad_argument_is_named_and_nothing_is_written(face: Any, raw: redis.Redis) -> None:
    for act, message in BAD:
        with pytest.raises(InvalidInput) as caught:
            act(face)
        assert message in str(caught.value)
    assert list(raw.scan_iter("*")) == []


@pytest.mark.parametrize("name", ["", "a b", "a}b", "x" * 65, "é", "a/b", None, 5])
def test_a_bad_queue_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a queue name: use 1 to 64"):
        Queue(name)


@pytest.mark.parametrize(
    "url",
    ["http://x", "redis://host:port", "redis://h/first", "nonsense", "unix://", "redis://[::1", "redis://h:99999"],
)
def test_a_url_that_does_not_parse_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="does not parse"):
        Queue("q", url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:c4n4ry@host/",
        "redis://:c4n4ry/x@host:6379/0",
        "redis://:x/c4n4ry@host:6379/0",
        "redis://user:c4n4ry#x@host/0",
        "redis://user:c4n4ry?x@host/0",
        "redis://:c4n4ry",
        "redis://user:c4n4ry@host:port/0",
        "redis://user:c4n4ry@[::1/0",
        "redis://h:port/?password=c4n4ry",
        "unix://user:c4n4ry@",
    ],
)
def test_the_password_of_a_url_that_does_not_parse_is_not_told(url: str) -> None:
    with pytest.raises(InvalidInput, match="does not parse") as caught:
        Queue("q", url)
    assert "c4n4ry" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h/0?bogus=1", "'bogus' is not an option; of those it takes db, username, password, client_name"),
        ("redis://h/?db=x", "db is the number of a database, not what"),
        ("redis://h/1?db=2", "it names two databases: /1 and db=2"),
        ("redis://h/?db=1&db=2", "db is given twice"),
        ("redis://h/\u00b2", "the path is a database number"),
        ("redis://h:0/0", "a port is 1 to 65535"),
        ("redis://h:65536/0", "a port is 1 to 65535"),
        ("redis://h:x/0", "its host or port cannot be read"),
        ("redis://h/0#part", "a URL here has no part after a #"),
        ("redis://h/0?socket_timeout=5", "'socket_timeout' is for timeoutq to decide (deadline="),
        ("redis://h/0?ssl_ca_certs=/ca.pem", "'ssl_ca_certs' is for TLS: write rediss://"),
        ("unix://tmp/x.sock", "the path of a unix socket begins with a third slash: unix:///tmp/x.sock"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "ssl_cert_reqs is required, optional or none, not what"),
        ("rediss://h/0?ssl_ca_cert=/ca.pem", "'ssl_ca_cert' is not an option; of those it takes db, "),
        ("redis+sentinel://h/s/0?bogus=1", "'bogus' is not an option; of those it takes sentinel_username, "),
        ("redis+sentinel://h/s/\u00b2", "the path is the name of the service"),
        ("redis://h/0?password=", "password is a password, not what"),
        ("redis://u:p@ss/w#rd@h:7411/0", "there is an @ after a / or #; in a password write / as %2F, ? as %3F, # as"),
        ("redis://u:p/w@h/0", "its host or port cannot be read; in a password write / as %2F"),
        ("redis://u:p@s?s@h/0", "there is an @ after the ?; in a password write / as %2F"),
    ],
)
def test_a_bad_option_of_a_url_is_named_with_what_would_be_right(url: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Queue("q", url)
    assert message in str(caught.value)


@pytest.mark.parametrize("url", ["redis://:12?c4n4ry@host/0", "redis://h/0?c4n4ry-x=1", "redis://h/0?x=c4n4ry@h"])
def test_what_may_be_the_rest_of_a_password_is_not_quoted(url: str) -> None:
    with pytest.raises(InvalidInput, match="does not parse") as caught:
        Queue("q", url)
    assert "c4n4ry" not in str(caught.value).partition("does not parse")[2]


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0?passwort=c4n4ry", "redis://h/0?pass=c4n4ry", "redis://h/0?c4n4ry", "redis://h/?db=c4n4ry",
        "redis://h/c4n4ry", "redis://h/0#c4n4ry", "u:c4n4ry@h:6379", "redis:c4n4ry@h/0", "redis//:c4n4ry@h/0", "c4n4ry",
        "redis+sentinel://h/a/c4n4ry", "rediss://h/?ssl_cert_reqs=c4n4ry", "rediss://h/?ssl_ciphers=c4n4ry",
        "redis://c4n4ry@127.0.0.1:1",
    ],
)  # fmt: skip
def test_no_message_shows_what_may_be_a_secret_at_a_wrong_place(url: str) -> None:
    with pytest.raises(TimeoutqError) as caught:
        Queue("q", url, deadline=0.05).put("a")
    assert "c4n4ry" not in str(caught.value)


def test_the_options_of_a_url_are_used(server: EmbeddedServer, name: str) -> None:
    password = server.url.partition("//:")[2].partition("@")[0]
    bare = f"redis://127.0.0.1:{server.port}"
    with Queue(name, f"{bare}?db=3&username=default&password={password}&client_name=me") as queue:
        queue.put("a")
        with redis.Redis.from_url(server.url) as raw:
            assert "me" in {client["name"] for client in raw.client_list()}
            assert {client["db"] for client in raw.client_list() if client["name"] == "me"} == {"3"}
        assert Queue(name, f"redis://:{password}@127.0.0.1:{server.port}/3").stats().todos == 1
        queue.purge()


def test_a_payload_of_a_mebibyte_is_not_too_large(face: Any) -> None:
    payloads = {"bytes": b"x" * (1 << 20), "json": "x" * ((1 << 20) - 2)}
    face.put(payloads)
    assert {lease.task: lease.payload for lease in face.claim(2)} == payloads


HOSTILE = [
    "a\x00b", "line\nbreak", "{brace}", "}{", "\x1b[31mred", "\u202ertl", "tab\t", "[bold]", " ", ":", "lock:x", "ключ",
    "漢字", "a" * 1024, b"\xff\xfe", b"\x00", "\r\n", "%s", "'; --", "<script>", "\u200b",
]  # fmt: skip


def test_hostile_ids_make_the_whole_journey(face: Any) -> None:
    assert face.put(HOSTILE).added == len(HOSTILE)
    leases = face.claim(100)
    expected = {task.decode("utf-8", "surrogateescape") if isinstance(task, bytes) else task for task in HOSTILE}
    assert {lease.task for lease in leases} == expected
    half = len(leases) // 2
    assert face.extend(leases).ok == len(leases)
    assert face.fail(leases[:half], "\x1b]52;c;x\x07\n", retry_in=0).ok == half
    assert face.ack(leases[half:]).ok == len(leases) - half
    assert face.promote_due() == half
    assert face.ack(face.claim(100)).ok == half
    assert {entry.task for entry in face.list("done", n=1000).entries} == expected


# ---- servers that cannot serve


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """Listen on loopback and give each caller the same answer, or none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        stop = threading.Event()
        open_links: list[socket.socket] = []

        def serve() -> None:
            while not stop.is_set():
                try:
                    link, _ = server.accept()
                except TimeoutError:
                    continue
                open_links.append(link)
                if answer is not None:
                    link.recv(1000)
                    link.sendall(answer)
                    link.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            thread.join()
            for link in open_links:
                link.close()


@pytest.mark.parametrize("kind", FACES)
def test_no_server(kind: Any) -> None:
    with kind("q", "redis://127.0.0.1:1/0", deadline=1) as queue:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="is the server up"):
            queue.put("a")
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("kind", FACES)
def test_a_server_that_never_answers_is_given_up_at_the_deadline(kind: Any) -> None:
    with listener(None) as port, kind("q", f"redis://127.0.0.1:{port}/0", deadline=1) as queue:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            queue.put("a")
        assert time.monotonic() - began < 2.5


@pytest.mark.parametrize("kind", FACES)
def test_a_server_that_is_not_redis(kind: Any) -> None:
    said = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    with listener(said) as port, kind("q", f"redis://127.0.0.1:{port}/0", deadline=1) as queue:
        with pytest.raises(NotRedis, match="is not Redis"):
            queue.put("a")


@pytest.mark.parametrize("kind", FACES)
def test_a_wrong_password_is_not_told(kind: Any) -> None:
    with EmbeddedServer(config={"requirepass": "right"}) as server:
        wrong = f"redis://:c4n4ry@127.0.0.1:{server.port}/0"
        with kind("q", wrong, deadline=2) as queue:
            with pytest.raises(AccessDenied, match="check user, password and ACL") as caught:
                queue.put("a")
            everything = f"{caught.value!r} {caught.value} {queue!r} {queue.url} {queue.talk.server!r}"
            assert "c4n4ry" not in everything
        with kind("q", f"redis://127.0.0.1:{server.port}/0", deadline=2) as queue, pytest.raises(AccessDenied):
            queue.put("a")
        with kind("q", server.url) as queue:
            assert queue.put("a").added == 1


@pytest.mark.parametrize("kind", FACES)
def test_a_read_only_replica(kind: Any) -> None:
    with EmbeddedServer() as primary, EmbeddedServer(config={"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        with kind("q", replica.url, deadline=2) as queue, pytest.raises(ReadOnly, match="connect to the primary"):
            queue.put("a")


@pytest.mark.parametrize("kind", FACES)
def test_a_full_server_refuses_puts_and_lets_workers_drain_it(kind: Any) -> None:
    with EmbeddedServer(config={"maxmemory": "6mb"}) as server, kind("q", server.url, timeout=5) as queue:
        put = 0
        with pytest.raises(ServerFull, match="out of memory"):
            while True:
                put += queue.put([f"{put}-{i}" for i in range(500)]).added
        assert queue.stats().known == put
        leases = queue.claim(100)
        assert len(leases) == 100
        assert queue.extend(leases).ok == 100
        assert queue.ack(leases[:60]).ok == 60
        assert queue.fail(leases[60:80], "x", retry_in=5).ok == 20
        assert queue.release(leases[80:90]).ok == 10
        assert queue.release(leases[90:], delay=5).ok == 10
        stats = queue.stats()
        assert (stats.known, stats.done, stats.scheduled, stats.in_progress) == (put, 60, 30, 0)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_an_eviction_policy_that_loses_tasks_is_refused(policy: str) -> None:
    kind = Queue
    with EmbeddedServer(config={"maxmemory-policy": policy}) as server:
        with kind("q", server.url) as queue, pytest.raises(UnsafeServer, match=f"maxmemory-policy is {policy}") as met:
            queue.put("a")
        assert "in Python, pass allow_eviction=True to Queue or AsyncQueue" in str(met.value)
        assert "an App and the commands have no such option" in str(met.value)
        with kind("q", server.url, allow_eviction=True) as queue:
            assert queue.put("a").added == 1


def test_a_queue_from_a_newer_schema_is_left_alone(face: Any, raw: redis.Redis) -> None:
    face.put("a")
    key = f"timeoutq:{{{face.name}}}:meta"
    raw.hset(key, "schema", "4")
    for act in (lambda: face.put("b"), face.claim, face.stats, lambda: face.schedule("c", after=1)):
        with pytest.raises(SchemaMismatch, match="the queue has schema 4, and this timeoutq knows schema 3: upgrade"):
            act()
    raw.hset(key, "schema", "3")
    assert face.stats().known == 1
