"""Whose task is it? The host of an id, as the scripts have it and as a caller names it; groups; and rubbish in either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timeoutq import InvalidInput, Politeness, Queue, arguments
from timeoutq.testing import FakeQueue, fake_queue

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
    ("http://a%2eb.example/", "a%2eb.example"),
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


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeQueue]:
    with fake_queue(politeness=Politeness()) as queue:
        yield queue


@pytest.mark.parametrize(("task", "host"), [pytest.param(*pair, id=repr(pair[0])) for pair in HOSTS])
def test_the_scripts_and_a_caller_find_the_same_host_in_an_id(fake: FakeQueue, task: str, host: str | None) -> None:
    assert fake.inspect(task).host == host
    if host is not None:
        assert arguments.host(task) == arguments.host(host) == host.encode()


def test_both_servers_find_the_hosts_that_fakeredis_finds(url: str, name: str) -> None:
    with Queue(name, url, politeness=Politeness()) as queue:
        assert {task: queue.inspect(task).host for task, _ in HOSTS} == dict(HOSTS)
        queue.purge()


LATIN_TO_CYRILLIC = st.characters(min_codepoint=0x61, max_codepoint=0x52F, categories=("Ll", "Lu", "Lo"))
CJK = st.characters(min_codepoint=0x3041, max_codepoint=0xD7A3, categories=("Lo",))
LABEL = st.text(st.one_of(st.sampled_from("abcxyz0189-ABC"), LATIN_TO_CYRILLIC, CJK), min_size=1, max_size=20).filter(
    # these are for scripts that have no registered capitals, or whose capitals nobody uses
    lambda label: all(not letter.isupper() or ord(letter) in SUPPORTED for letter in label)
)
SUPPORTED = {*range(0x80), *range(0xC0, 0x17F), *range(0x386, 0x3CF), *range(0x400, 0x530)} - {0x130}


@given(st.lists(LABEL, min_size=1, max_size=3), st.sampled_from(["", ":80", ":8080", ":", "."]))
@settings(max_examples=150, deadline=None)
def test_a_host_in_any_script_is_the_small_letters_in_punycode(labels: list[str], end: str) -> None:
    def plain(label: str) -> str:
        small = "".join(letter.lower() for letter in label)
        return small if small.isascii() else "xn--" + small.encode("punycode").decode()

    wanted = ".".join(map(plain, labels)) + (end if end == ":8080" else "")
    with_scheme = f"http://{'.'.join(labels)}{end}/x"
    assert arguments.host(with_scheme) == wanted.encode()
    assert FOR_ANY.inspect(with_scheme).host == wanted


FOR_ANY = fake_queue("any", politeness=Politeness())


@given(st.text(max_size=60), st.sampled_from(["http://", "https://", "x://", "HTTP://"]))
@settings(max_examples=150, deadline=None)
def test_a_host_is_found_again_by_the_name_that_the_queue_gives_it(rest: str, scheme: str) -> None:
    try:
        arguments.task_id(rest)
    except InvalidInput:
        return
    host = FOR_ANY.inspect(scheme + rest).host
    if host is not None:
        assert FOR_ANY.host(host).host == host


RUBBISH = [b"http://\xff\xfe/", b"http://a\x00b/", b"x://\xc3/", b"http://\xf0\x9f/", b"http://\x80\x80.example:80/"]


@pytest.mark.parametrize("task", RUBBISH, ids=repr)
def test_a_host_that_is_no_text_has_its_turns_like_any_other(face: Any, task: bytes) -> None:
    face.configure(politeness=Politeness(60))
    face.put(task, task + b"2")
    assert len(face.claim(5)) == 1
    (host,) = face.hosts().hosts
    assert host.waiting == 1
    assert face.host(host.host) == host


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
    fake.purge()
    fake.configure(politeness=Politeness(60))
    fake.put("a", "b", "http://a.example/", group=group)
    (lease,) = fake.claim(5)
    assert fake.stats().waiting == 2
    (host,) = fake.hosts().hosts
    assert (host.host, host.in_flight) == (fake.host(group).host, [lease.task])
    assert fake.inspect("http://a.example/").host == host.host
    fake.block_host(group, for_=100)
    assert fake.host(group).blocked_until is not None
    fake.ban_host(host.host, "no more")
    assert fake.stats().failed == 2
    fake.ack(lease)


def test_places_are_told_apart_whatever_the_ids_look_like(fake: FakeQueue) -> None:
    fake.purge()
    fake.configure(politeness=Politeness(0, per_host=50))
    ids = ["5:abc", "3:abc3:def", "abc", "1:", ":", "10:", "a\n5:b", "\x00", "0:0:", "9" * 300, "x" * 1024, "é:é"]
    fake.put(ids, group="g")
    assert set(fake.host("g").in_flight) == set(ids)
    leases = {lease.task: lease for lease in fake.claim(50)}
    for left in range(len(ids), 0, -1):
        assert len(fake.host("g").in_flight) == left
        fake.ack(leases[ids[left - 1]])
    assert fake.host("g").in_flight == []


@pytest.mark.parametrize("host", ["", b"", 5, None, "x" * 1025, "http://", "http:///x", ".", "http://user@", "\ud800x"])
def test_what_names_no_host_is_refused(fake: FakeQueue, host: Any) -> None:
    with pytest.raises(InvalidInput):
        fake.host(host)


def test_two_hosts_are_two_and_two_ports_are_two(fake: FakeQueue) -> None:
    fake.purge()
    fake.configure(politeness=Politeness(60))
    fake.put("http://a/1", "http://a:8080/1", "https://a/2", "http://a:80/3", "http://b/1", "no host", "another")
    assert {host.host: host.waiting for host in fake.hosts().hosts} == {"a": 2, "a:8080": 0, "b": 0}
    assert len(fake.claim(10)) == 5
