"""Whose task is it? The host of an id, as a queue has it and as a caller names it; groups; rubbish in either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeoutq import InvalidInput, Politeness, State, Task
from timeoutq.server import scripts
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.watch import transfer
from timeoutq.words import arguments, hostname
from timeoutq.words.model import Record

# what an id is, and its host; None: it has no limits
HOSTS: list[tuple[str, str | None]] = [
    ("http://a.example/", "a.example"),
    ("http://A.Example/Path", "a.example"),
    ("HTTP://a.example/", "a.example"),
    ("http://a.example:80/", "a.example"),
    ("http://a.example:443/", "a.example:443"),
    ("http://a.example:8080/", "a.example:8080"),
    ("http://a.example:/", "a.example"),
    ("ftp://a.example:/", "a.example"),
    ("svn+ssh://a.example/", "a.example"),
    ("http://user@a.example/", "a.example"),
    ("http://user:secret@a.example:8080/", "a.example:8080"),
    ("http://:80@a.example/", "a.example"),
    ("http://a.example?q=http://b.example/", "a.example"),
    ("http://a.example\\@b.example/", "a.example"),
    ("http://a.example./", "a.example"),
    ("http://a.example.:8080/", "a.example:8080"),
    ("http://127.0.0.1:5000/", "127.0.0.1:5000"),
    ("http://[::1]/", "[::1]"),
    ("http://[2001:DB8::1]:8080/", "[2001:db8::1]:8080"),
    ("http://münchen.example/", "xn--mnchen-3ya.example"),
    ("http://MÜNCHEN.example:8080/", "xn--mnchen-3ya.example:8080"),
    ("http://xn--mnchen-3ya.example/", "xn--mnchen-3ya.example"),
    ("http://Łódź.example/", "xn--d-uga0v4h.example"),
    ("http://ΠΑΡΆΔΕΙΓΜΑ.example/", "xn--hxajbheg2az3al.example"),
    ("http://ΟΔΟΣ.example/", "xn--pxavbq.example"),
    ("http://ПРИМЕР.испытание/", "xn--e1afmkfd.xn--80akhbyknj4f"),
    ("http://例え。テスト。/", "xn--r8jz45g.xn--zckzah"),
    ("http://例子.测试:8080/", "xn--fsqu00a.xn--0zwm56d:8080"),
    ("http://a b.example/", "a b.example"),
    ("  http://a.example/", "a.example"),
    ("\x00\x1f https://A.example", "a.example"),
    ("http://a.example:80\r\n", "a.example"),
    ("ht\ntp://a.exa\tmple/", "a.example"),
    (" a.example/", None),
    ("\x7fhttp://a.example/", None),
    (f"http://{'A' * 251}.b:80/", f"{'a' * 251}.b:80"),
    (f"http://{'é' * 48}/", "xn--" + ("é" * 48).encode("punycode").decode()),
    (f"http://{'é' * 49}.A/", f"{'é' * 49}.a"),
    (f"http://{'漢字.' * 8}漢字/", "漢字." * 8 + "漢字"),
    (f"http://{'漢' * 32}.A/", "xn--" + ("漢" * 32).encode("punycode").decode() + ".a"),
    (f"http://{'漢' * 33}.A/", "漢" * 33 + ".a"),
    (f"http://{'a' * 63}É.MÜNCHEN:80/", f"{'a' * 63}É.xn--mnchen-3ya"),
    (f"http://{'é.' * 8}A/", "xn--9ca." * 8 + "a"),
    (f"http://{'é.' * 9}A/", "é." * 9 + "a"),
    (f"http://{'é' * 128}.:80/", f"{'é' * 128}.:80"),
    ("http:///path", None),
    ("http://", None),
    ("http://./", None),
    ("http://user@/", None),
    ("a.example", None),
    ("see http://a.example/", None),
    ("a_b://a.example/", None),
]


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    with fake_queue(politeness=Politeness()) as queue:
        yield queue


def test_a_queue_and_a_caller_find_the_same_host_in_an_id(fake: FakeQueue) -> None:
    for task, host in HOSTS:
        fake.put(task)
        assert fake.inspect(task).host == host, task
        if host is not None:
            assert arguments.host(task) == arguments.host(host) == host.encode()


# where capitals have small letters, with those of domains in use
SUPPORTED = {*range(0x80), *range(0xC0, 0x17F), *range(0x386, 0x3CF), *range(0x400, 0x530)} - {0x130}
LATIN_TO_CYRILLIC = st.characters(min_codepoint=0x61, max_codepoint=0x52F, categories=["Ll", "Lu", "Lo"])
CJK = st.characters(min_codepoint=0x3041, max_codepoint=0xD7A3, categories=["Lo"])
LABEL = st.text(st.one_of(st.sampled_from("abcxyz0189-ABC"), LATIN_TO_CYRILLIC, CJK), min_size=1, max_size=20).filter(
    lambda label: all(not letter.isupper() or ord(letter) in SUPPORTED for letter in label)
)
FOR_ANY = fake_queue("any", politeness=Politeness())


@given(st.lists(LABEL, min_size=1, max_size=3), st.sampled_from(["", ":80", ":8080", ":", "."]))
@settings(max_examples=150, deadline=None)
def test_a_host_in_any_script_is_the_small_letters_in_punycode(labels: list[str], end: str) -> None:
    def plain(label: str) -> str:
        small = "".join(letter.lower() for letter in label)
        return small if small.isascii() else "xn--" + small.encode("punycode").decode()

    foreign = sum(byte > 127 for byte in "".join(labels).encode())
    small = "".join(chr(ord(letter) + 32 * ("A" <= letter <= "Z")) for letter in ".".join(labels))
    wanted = (".".join(map(plain, labels)) if foreign <= hostname.MAX_FOREIGN else small) + (
        end if end == ":8080" else ""
    )
    with_scheme = f"http://{'.'.join(labels)}{end}/x"
    assert arguments.host(with_scheme) == wanted.encode()
    FOR_ANY.put(with_scheme)
    assert FOR_ANY.inspect(with_scheme).host == wanted


FIRST = "local hosts = {}\n"
"""What stands before the room that finds hosts."""


def hosts_in_lua() -> Callable[[str], str | bool]:
    """Make what the library finds hosts with, without a server."""
    room = scripts.source("hostname")
    runtime: Any = import_module("lupa.lua51").LuaRuntime(encoding="latin-1")
    found: Callable[[str], str | bool] = runtime.execute(f"{FIRST}{room}\nreturn hosts.name_of")
    return found


PIECES = st.sampled_from(
    ["http://", "x+y://", "a", "B", ".", ":", "80", "443", "@", "/é", "?É", " ", "\t", "\0", "x" * 90]
)


@given(st.lists(PIECES, max_size=14).map("".join), st.sampled_from(["http://", "https://", "HTTP://"]))
@settings(max_examples=500, deadline=None)
def test_the_server_finds_every_ascii_host_as_a_caller_does(rest: str, scheme: str) -> None:
    task = (scheme + rest).encode("utf-8", "surrogateescape")
    found = hosts_in_lua()(task.decode("latin-1"))
    if isinstance(found, bool):
        with pytest.raises(InvalidInput):
            arguments.host(task)
    elif len(found) <= arguments.MAX_ID:
        assert arguments.host(task).decode("latin-1") == found


BOOKS, NAME = "https://BÜCHER.example/{}", "xn--bcher-kva.example"
"""A URL whose host is not plain ASCII, and its host."""


def put_in_parts(queue: FakeQueue) -> None:
    queue.put("a page of many links")
    (lease,) = queue.claim()
    queue.ack(lease, put=[f"an odd id {n}" for n in range(600)] + [BOOKS.format(1)])


def put_by_a_callback(queue: FakeQueue) -> None:
    queue.batches.put("b", "a")
    queue.batches.seal("b", BOOKS.format(1))
    queue.ack(queue.claim())
    queue.promote_due()


def import_a_file(queue: FakeQueue) -> None:
    records = [Record(BOOKS.format(1).encode(), State.TODOS)]
    transfer.restore(queue, records)


ROADS: dict[str, Callable[[FakeQueue], object]] = {
    "put": lambda queue: queue.put("a", BOOKS.format(1)),
    "put with a payload": lambda queue: queue.put({BOOKS.format(1): {"depth": 1}}),
    "put as bytes": lambda queue: queue.put(BOOKS.format(1).encode()),
    "put where no function names a group": lambda queue: queue.put(BOOKS.format(1), group=lambda _: None),
    "put beside a group": lambda queue: queue.put(Task("a", group="g"), BOOKS.format(1)),
    "put once more": lambda queue: [queue.put(BOOKS.format(1)), queue.put(BOOKS.format(1), rerun=True)],
    "schedule": lambda queue: [queue.schedule(BOOKS.format(1), after=0), queue.promote_due()],
    "the links of an ack": lambda queue: [queue.put("a"), queue.ack(queue.claim()[0], put=[BOOKS.format(1)])],
    "more links than one ack takes": put_in_parts,
    "the callback of a batch": put_by_a_callback,
    "import": import_a_file,
}


@pytest.mark.parametrize("later", [False, True], ids=["polite", "polite later"])
@pytest.mark.parametrize("road", ROADS)
def test_a_host_that_is_not_ascii_is_named_by_the_client_on_every_road(road: str, *, later: bool) -> None:
    with fake_queue(politeness=None if later else Politeness(60)) as queue:
        ROADS[road](queue)
        queue.configure(politeness=Politeness(60))
        assert queue.inspect(BOOKS.format(1)).host == NAME
        host = queue.hosts.inspect("bücher.example")
        assert (host.host, host.waiting + len(host.in_flight)) == (NAME, 1)
        for _ in range(3):
            queue.clock.advance(60)
            queue.ack(queue.claim(500))
        raw: Any = fakeredis.FakeRedis(server=queue.clock.server)
        assert raw.hgetall(queue.operations.key("groups")) == {}, "the host goes with the task"


@pytest.mark.parametrize("host", ["", b"", 5, None, "x" * 1025, "http://", "http:///x", ".", "http://user@", "\ud800x"])
def test_what_names_no_host_is_refused(fake: FakeQueue, host: Any) -> None:
    with pytest.raises(InvalidInput):
        fake.hosts.inspect(host)
