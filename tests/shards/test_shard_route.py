"""Route v1 and the names of shards, as they are for ever: queues that were made with them live on."""

from __future__ import annotations

from collections import Counter

import pytest

from timeoutq.client.shards.names import tags
from timeoutq.client.shards.route import key_of, route
from timeoutq.server.cluster import SLOTS, slot_of

VECTORS: list[tuple[bytes, bytes, int, int, int]] = [
    # a task, what it is routed by, and its shard of 12, of 48 and of 1000
    (b'a', b'a', 7, 7, 759),
    (b'1', b'1', 11, 11, 707),
    (b'task-000001', b'task-000001', 2, 26, 858),
    (b'sitemap', b'sitemap', 9, 9, 641),
    (b'not a url', b'not a url', 0, 0, 272),
    (b'urn:isbn:0451450523', b'urn:isbn:0451450523', 6, 42, 434),
    (b'mailto:x@a.example', b'mailto:x@a.example', 3, 3, 227),
    (b'/relative/path', b'/relative/path', 8, 44, 684),
    (b'//a.example/no-scheme', b'//a.example/no-scheme', 2, 14, 590),
    (b'http:/one-slash.example/', b'http:/one-slash.example/', 6, 42, 914),
    (b'http://', b'http://', 10, 46, 950),
    (b'http:///nohost', b'http:///nohost', 8, 32, 912),
    (b'https://?', b'https://?', 7, 43, 123),
    (b'http://a.example', b'a.example', 8, 8, 264),
    (b'http://a.example/', b'a.example', 8, 8, 264),
    (b'https://a.example/x?y=1#z', b'a.example', 8, 8, 264),
    (b'HTTP://A.Example/', b'a.example', 8, 8, 264),
    (b'http://a.example./', b'a.example', 8, 8, 264),
    (b'http://a.example..:8080/', b'a.example:8080', 10, 10, 66),
    (b'http://a.example:80/', b'a.example', 8, 8, 264),
    (b'https://a.example:443/', b'a.example', 8, 8, 264),
    (b'http://a.example:443/', b'a.example:443', 4, 28, 556),
    (b'https://a.example:80/', b'a.example:80', 8, 8, 480),
    (b'http://a.example:8080/x', b'a.example:8080', 10, 10, 66),
    (b'http://a.example:/', b'a.example', 8, 8, 264),
    (b'http://user:pw@a.example/', b'a.example', 8, 8, 264),
    (b'http://u@v@a.example/', b'a.example', 8, 8, 264),
    (b'http://a.example\\@b.example/', b'a.example', 8, 8, 264),
    (b'ftp://a.example/f', b'a.example', 8, 8, 264),
    (b'ftp://a.example:21/', b'a.example:21', 10, 34, 810),
    (b'git+ssh://git@a.example:22/r', b'a.example:22', 11, 23, 607),
    (b'http://[::1]/', b'[::1]', 5, 5, 437),
    (b'http://[::1]:8080/', b'[::1]:8080', 7, 7, 263),
    (b'http://[2001:DB8::A]/x', b'[2001:db8::a]', 9, 33, 769),
    (b'http://[fe80::1%25eth0]/', b'[fe80::1%25eth0]', 0, 36, 580),
    (b'http://127.0.0.1/', b'127.0.0.1', 7, 43, 355),
    (b'http://127.0.0.1:5000/', b'127.0.0.1:5000', 1, 1, 345),
    (b'http://0x7f.1/', b'0x7f.1', 10, 22, 430),
    (b'http://b\xc3\xbccher.example/', b'xn--bcher-kva.example', 11, 35, 523),
    (b'http://B\xc3\x9cCHER.example/', b'xn--bcher-kva.example', 11, 35, 523),
    (b'http://xn--bcher-kva.example/', b'xn--bcher-kva.example', 11, 35, 523),
    (b'https://\xd0\xbf\xd1\x80\xd0\xb8\xd0\xbc\xd0\xb5\xd1\x80.\xd1\x80\xd1\x84/\xd0\xbf\xd1\x83\xd1\x82\xd1\x8c', b'xn--e1afmkfd.xn--p1ai', 0, 12, 860),  # noqa: E501  # a vector stands on one line
    (b'http://\xe4\xbe\x8b\xe3\x81\x88\xe3\x80\x82jp/', b'xn--r8jz45g.jp', 7, 31, 159),
    (b'http://\xc3\x9f.example/', b'xn--zca.example', 9, 21, 989),
    (b'http://\xcf\x83\xcf\x82.example/', b'xn--3xab.example', 6, 30, 94),
    (b'http://\xc4\xb0stanbul.example/', b'xn--stanbul-ifb.example', 2, 38, 870),
    (b'http://\xf0\x9f\x98\x80.example/', b'xn--e28h.example', 8, 32, 968),
    (b'http://\xff\xfe.example/', b'\xff\xfe.example', 6, 18, 226),
    (b'http://a\x80b.example/', b'a\x80b.example', 7, 43, 755),
    (b'\xff\xfe not utf-8', b'\xff\xfe not utf-8', 3, 3, 931),
    (b'http://a_b.example/', b'a_b.example', 7, 43, 411),
    (b'http://a b.example/', b'a b.example', 1, 1, 137),
    (b'  http://a.example/ ', b'a.example', 8, 8, 264),
    (b'\thttp://a.ex\tample/\n', b'a.example', 8, 8, 264),
    (b'http://a\x00b.example/', b'a\x00b.example', 5, 41, 985),
    (b'http://a%2eexample/', b'a%2eexample', 0, 0, 576),
    (b'http://EXAMPLE.com.:8080/', b'example.com:8080', 1, 13, 557),
    (b'http://' + b'a.' * 140 + b'example/', b'a.' * 140 + b'example', 6, 42, 90),
    (b'http://' + b'a' * 70 + b'.\xc3\xbc.example/', b'a' * 70 + b'.xn--tda.example', 1, 1, 441),
    (b'http://' + b'\xc3\xbc' * 64 + b'.example/', b'\xc3\xbc' * 64 + b'.example', 10, 46, 398),
    (b'http://\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc.example/', b'xn--tdaaaaaaaaaa.example', 0, 12, 964),  # noqa: E501  # a vector stands on one line
    (b'http://\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.example/', b'\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.\xc3\xbc.example', 3, 27, 739),  # noqa: E501  # a vector stands on one line
    (b'http://www.google.com/', b'www.google.com', 4, 40, 624),
    (b'https://en.wikipedia.org/wiki/Redis', b'en.wikipedia.org', 7, 43, 51),
    (b'https://news.ycombinator.com/item?id=1', b'news.ycombinator.com', 9, 45, 149),
    (b'x' * 1024, b'x' * 1024, 1, 13, 21),
    (b'http://a.example/' + b'y' * 1000, b'a.example', 8, 8, 264),
    (b'1http://a.example/', b'1http://a.example/', 9, 33, 977),
    (b'javascript://a.example/%0aalert(1)', b'a.example', 8, 8, 264),
    (b'data:text/html,x', b'data:text/html,x', 9, 9, 457),
]  # fmt: skip


def test_a_task_is_in_the_shard_in_which_it_has_always_been() -> None:
    for task, key, *wanted in VECTORS:
        assert key_of(task) == key
        assert [route(key, shards) for shards in (12, 48, 1000)] == wanted, task


def test_a_group_goes_before_the_host_and_by_id_only_the_id_counts() -> None:
    assert key_of(b"http://a.example/", b"example") == b"example"
    assert key_of(b"http://a.example/", b"") == b""
    assert key_of(b"http://a.example/", b"example", "id") == b"http://a.example/"


@pytest.mark.breaking
def test_each_shard_lies_in_its_part_of_all_slots() -> None:
    for shards in (2, 7, 12, 48, 101, 1000):
        found = tags("crawl", shards)
        for shard, tag in enumerate(found):
            part = range(SLOTS * shard // shards, SLOTS * (shard + 1) // shards)
            begun, _, number = tag.rpartition(":")
            places = [slot_of(f"{begun}:{i}") in part for i in range(int(number) + 1)]
            assert places == [False] * int(number) + [True], (
                "the smallest number that does is the last part of the name"
            )
        assert Counter(slot_of(tag) * 3 // SLOTS for tag in found)[0] in (shards // 3, shards // 3 + 1)
