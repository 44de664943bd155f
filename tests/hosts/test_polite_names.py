"""Whose task is it? The host of an id, as a queue has it and as a caller names it; groups; rubbish in either."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import fakeredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rig.invariants import check_keys
from timeoutq import InvalidInput, Politeness, Queue, State, Task
from timeoutq.rooms.batches import operations as of_batches
from timeoutq.rooms.schedules import operations as of_schedules
from timeoutq.rooms.schedules.definition import Definition, Stored
from timeoutq.server import scripts
from timeoutq.server.calls import Call
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending
from timeoutq.verbs.operations import Operations
from timeoutq.watch import transfer
from timeoutq.words import arguments, hostname
from timeoutq.words.model import Record

# what an id is, and its host; None: it has no limits
HOSTS: list[tuple[str, str | None]] = [
    ("http://a.example/", "a.example"),
    ("http://a.example", "a.example"),
    ("http://A.Example/Path", "a.example"),
    ("HTTP://a.example/", "a.example"),
    ("http://a.example:80/", "a.example"),
    ("HTTP://a.example:80/", "a.example"),
    ("https://a.example:443/", "a.example"),
    ("http://a.example:443/", "a.example:443"),
    ("https://a.example:80/", "a.example:80"),
    ("http://a.example:8080/", "a.example:8080"),
    ("http://a.example:/", "a.example"),
    ("https://a.example:", "a.example"),
    ("ftp://a.example:/", "a.example"),
    ("ftp://a.example:21/", "a.example:21"),
    ("svn+ssh://a.example/", "a.example"),
    ("coap.v-2://a.example/", "a.example"),
    ("http://user@a.example/", "a.example"),
    ("http://user:secret@a.example:8080/", "a.example:8080"),
    ("http://odd@user@a.example/", "a.example"),
    ("http://:80@a.example/", "a.example"),
    ("http://a.example?q=http://b.example/", "a.example"),
    ("http://a.example#http://b.example/", "a.example"),
    ("http://a.example\\@b.example/", "a.example"),
    ("http://a.example/@b.example", "a.example"),
    ("http://a.example./", "a.example"),
    ("http://a.example.:80/", "a.example"),
    ("http://a.example.:8080/", "a.example:8080"),
    ("http://a.example.../", "a.example"),
    ("http://127.0.0.1:5000/", "127.0.0.1:5000"),
    ("http://[::1]/", "[::1]"),
    ("http://[::1]:80/", "[::1]"),
    ("http://[2001:DB8::1]:8080/", "[2001:db8::1]:8080"),
    ("http://münchen.example/", "xn--mnchen-3ya.example"),
    ("http://MÜNCHEN.example:8080/", "xn--mnchen-3ya.example:8080"),
    ("http://xn--mnchen-3ya.example/", "xn--mnchen-3ya.example"),
    ("http://XN--Mnchen-3ya.example/", "xn--mnchen-3ya.example"),
    ("http://Łódź.example/", "xn--d-uga0v4h.example"),
    ("http://παράδειγμα.δοκιμή/", "xn--hxajbheg2az3al.xn--jxalpdlp"),
    ("http://ΠΑΡΆΔΕΙΓΜΑ.example/", "xn--hxajbheg2az3al.example"),
    ("http://ΟΔΟΣ.example/", "xn--pxavbq.example"),
    ("http://пример.испытание/", "xn--e1afmkfd.xn--80akhbyknj4f"),
    ("http://ПРИМЕР.испытание/", "xn--e1afmkfd.xn--80akhbyknj4f"),
    ("http://Ґанок.example/", "xn--80auie62b.example"),
    ("http://例え.テスト/", "xn--r8jz45g.xn--zckzah"),
    ("http://例え。テスト。/", "xn--r8jz45g.xn--zckzah"),
    ("http://例子.测试:8080/", "xn--fsqu00a.xn--0zwm56d:8080"),
    ("http://실례.테스트/", "xn--9n2bp8q.xn--9t4b11yi5a"),
    ("http://😀.example/", "xn--e28h.example"),
    ("http://a b.example/", "a b.example"),
    ("  http://a.example/", "a.example"),
    ("\thttp://a.example:80/", "a.example"),
    ("\x00\x1f https://A.example", "a.example"),
    ("http://a.example ", "a.example"),
    ("http://a.example:80\r\n", "a.example"),
    ("ht\ntp://a.exa\tmple/", "a.example"),
    (" a.example/", None),
    ("\x7fhttp://a.example/", None),
    (" ", None),
    ("http://a%2eb.example/", "a%2eb.example"),
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
    ("http://:80/", None),
    ("http://./", None),
    ("http://user@/", None),
    ("http:/a.example/", None),
    ("//a.example/", None),
    ("a.example", None),
    ("mailto:somebody@a.example", None),
    ("1http://a.example/", None),
    ("see http://a.example/", None),
    ("://", None),
    ("a_b://a.example/", None),
]


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    with fake_queue(politeness=Politeness()) as queue:
        yield queue


@pytest.mark.parametrize(("task", "host"), [pytest.param(*pair, id=repr(pair[0])) for pair in HOSTS])
def test_a_queue_and_a_caller_find_the_same_host_in_an_id(fake: FakeQueue, task: str, host: str | None) -> None:
    fake.put(task)
    assert fake.inspect(task).host == host
    if host is not None:
        assert arguments.host(task) == arguments.host(host) == host.encode()


def test_both_servers_find_the_hosts_that_fakeredis_finds(url: str, name: str) -> None:
    with Queue(name, url, politeness=Politeness()) as queue:
        queue.put([task for task, _ in HOSTS])
        assert {task: queue.inspect(task).host for task, _ in HOSTS} == dict(HOSTS)
        queue.purge()


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


@given(st.text(max_size=60), st.sampled_from(["http://", "https://", "x://", "HTTP://"]))
@settings(max_examples=150, deadline=None)
def test_a_host_is_found_again_by_the_name_that_the_queue_gives_it(rest: str, scheme: str) -> None:
    try:
        arguments.task_id(rest)
    except InvalidInput:
        return
    FOR_ANY.put(scheme + rest)
    host = FOR_ANY.inspect(scheme + rest).host
    if host is not None:
        assert FOR_ANY.hosts.inspect(host).host == host


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


LONG: dict[str, Callable[[int], str]] = {
    "characters": lambda n: "http://" + "".join(chr(0x4E00 + 7 * k % 20_000) for k in range(n)) + "/",
    "dots before a port": lambda n: "http://a" + "." * n + "b:81/",
    "dots at the end": lambda n: "http://a" + "." * n + "b./",
    "a user": lambda n: "http://" + "a" * n + "@h/",
    "labels": lambda n: "http://" + "漢字." * n + "/",
    "no URL": lambda n: "a" * n,
}


@pytest.mark.parametrize("what", LONG)
def test_the_host_of_a_long_id_costs_a_pass_over_its_bytes(what: str) -> None:
    host_of = hosts_in_lua()

    def cost(n: int) -> float:
        task = LONG[what](n).encode().decode("latin-1")
        began = time.process_time()
        host_of(task)
        return time.process_time() - began

    # sixteen times the bytes: some sixteen times the work, and not two hundred and fifty-six times
    assert min(cost(16_000) for _ in range(3)) < 80 * max(min(cost(1000) for _ in range(20)), 5e-6)


BOOKS, NAME = "https://BÜCHER.example/{}", "xn--bcher-kva.example"
"""A URL whose host is not plain ASCII, and its host."""
DEFINITION = Definition("{}", BOOKS.encode(), None, None, None)
STORED = Stored(b"s", "running", "set", "n", "d", 1, 0, 0, 0, 0, 0, b"{}")


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


def test_a_group_goes_before_the_host_that_is_not_ascii(fake: FakeQueue) -> None:
    fake.put(BOOKS.format(1), group="g")
    fake.put(Task(BOOKS.format(2), group="h"))
    fake.put(BOOKS.format(3), group=lambda _: "i")
    assert [fake.inspect(BOOKS.format(n)).host for n in (1, 2, 3)] == ["g", "h", "i"]


def test_an_export_tells_no_group_that_nobody_gave(fake: FakeQueue) -> None:
    fake.put(BOOKS.format(1), Task(BOOKS.format(2), group="g"))
    assert {row.get("group") for row in fake.export()} == {None, "g"}


@pytest.mark.parametrize(
    "call",
    [
        of_schedules.tick(Operations("q"), b"n", STORED, DEFINITION, [DEFINITION.task], 0, 0, 0, 0),
        of_batches.seal(Operations("q"), b"n", "b", arguments.tasks((BOOKS,)), "ended", 1000),
    ],
    ids=["tick", "seal"],
)
def test_a_tick_and_a_callback_name_the_host_too(call: Call[Any]) -> None:
    words = list(call.args)
    assert words[words.index("group") :][:3] == ["group", 1, NAME.encode()]


def test_an_ascii_id_takes_no_word_more(fake: FakeQueue) -> None:
    ids = ["http://A.example/", "https://de.wikipedia.org/wiki/Köln", "schön", "a"]
    (call,) = fake.operations.put((ids,), fake.talk.nonce)
    assert call.args == [4, *(id.encode() for id in ids)]


def test_what_another_program_puts_counts_for_the_bytes_of_its_host_and_nothing_is_lost(fake: FakeQueue) -> None:
    # such as FCALL timeoutq5_put without groups
    for number in range(3):
        fake.run(sending.answer(fake.talk, fake.operations.call("put", [1, BOOKS.format(number)], bytes, id=b"n")))
    fake.put(BOOKS.format(3))
    assert fake.inspect(BOOKS.format(0)).host == "bÜcher.example", "a host of its own: only A to Z are made small"
    assert fake.stats().waiting == 2
    done = []
    for _ in range(3):
        fake.clock.advance(1)
        leases = fake.claim(10)
        fake.ack(leases)
        done += [lease.task for lease in leases]
    assert sorted(done) == [BOOKS.format(number) for number in range(4)]
    check_keys(fakeredis.FakeRedis(server=fake.clock.server), fake.name)


RUBBISH = [b"http://\xff\xfe/", b"http://a\x00b/", b"x://\xc3/", b"http://\xf0\x9f/", b"http://\x80\x80.example:80/"]


@pytest.mark.parametrize("task", RUBBISH, ids=repr)
def test_a_host_that_is_no_text_has_its_turns_like_any_other(face: Any, task: bytes) -> None:
    face.configure(politeness=Politeness(60))
    face.put(task, task + b"2")
    assert len(face.claim(5)) == 1
    (host,) = face.hosts.list().hosts
    assert host.waiting == 1
    assert face.hosts.inspect(host.host) == host


GROUPS = [
    "two words",
    "new\nline",
    "nul\x00nul",
    "{braces}",
    "colon:colon",
    ":",
    "5:abc",
    "//",
    "host:x",
    "-",
    "x" * 1024,
    "Küche",
    "*",
    "%s",
]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: repr(group)[:20])
def test_a_group_may_have_any_name(fake: FakeQueue, group: str) -> None:
    fake.configure(politeness=Politeness(60))
    fake.put("a", "b", "http://a.example/", group=group)
    (lease,) = fake.claim(5)
    assert fake.stats().waiting == 2
    (host,) = fake.hosts.list().hosts
    assert (host.host, host.in_flight) == (fake.hosts.inspect(group).host, [lease.task])
    assert fake.inspect("http://a.example/").host == host.host
    fake.hosts.block(group, for_=100)
    assert fake.hosts.inspect(group).blocked_until is not None
    fake.hosts.ban(host.host, "no more")
    assert fake.stats().failed == 2
    fake.ack(lease)


def test_places_are_told_apart_whatever_the_ids_look_like(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(0, per_host=50))
    ids = ["5:abc", "3:abc3:def", "abc", "1:", ":", "10:", "a\n5:b", "\x00", "0:0:", "9" * 300, "x" * 1024, "é:é"]
    fake.put(ids, group="g")
    assert set(fake.hosts.inspect("g").in_flight) == set(ids)
    leases = {lease.task: lease for lease in fake.claim(50)}
    for left in range(len(ids), 0, -1):
        assert len(fake.hosts.inspect("g").in_flight) == left
        fake.ack(leases[ids[left - 1]])
    assert fake.hosts.inspect("g").in_flight == []


@pytest.mark.parametrize("host", ["", b"", 5, None, "x" * 1025, "http://", "http:///x", ".", "http://user@", "\ud800x"])
def test_what_names_no_host_is_refused(fake: FakeQueue, host: Any) -> None:
    with pytest.raises(InvalidInput):
        fake.hosts.inspect(host)


def test_two_hosts_are_two_and_two_ports_are_two(fake: FakeQueue) -> None:
    fake.configure(politeness=Politeness(60))
    fake.put("http://a/1", "http://a:8080/1", "https://a/2", "http://a:80/3", "http://b/1", "no host", "another")
    assert {host.host: host.waiting for host in fake.hosts.list().hosts} == {"a": 2, "a:8080": 0, "b": 0}
    assert len(fake.claim(10)) == 5
