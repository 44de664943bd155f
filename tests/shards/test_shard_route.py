"""Route v1 and the names of shards, as they are for ever: queues that were made with them live on."""

from __future__ import annotations

from collections import Counter

import pytest

from timeoutq.client.shards.route import key_of, route, tags
from timeoutq.server.cluster import SLOTS, slot_of

VECTORS: list[tuple[bytes, bytes, int, int, int]] = [
    # a task, what it is routed by, and its shard of 12, of 48 and of 1000
    (b'a', b'a', 7, 7, 759),
    (b'task-000001', b'task-000001', 2, 26, 858),
    (b'not a url', b'not a url', 0, 0, 272),
    (b'//a.example/no-scheme', b'//a.example/no-scheme', 2, 14, 590),
    (b'http:///nohost', b'http:///nohost', 8, 32, 912),
    (b'https://a.example/x?y=1#z', b'a.example', 8, 8, 264),
    (b'HTTP://A.Example/', b'a.example', 8, 8, 264),
    (b'http://a.example./', b'a.example', 8, 8, 264),
    (b'http://a.example:80/', b'a.example', 8, 8, 264),
    (b'https://a.example:443/', b'a.example', 8, 8, 264),
    (b'http://a.example:443/', b'a.example:443', 4, 28, 556),
    (b'http://a.example:8080/x', b'a.example:8080', 10, 10, 66),
    (b'http://user:pw@a.example/', b'a.example', 8, 8, 264),
    (b'http://a.example\\@b.example/', b'a.example', 8, 8, 264),
    (b'http://[2001:DB8::A]/x', b'[2001:db8::a]', 9, 33, 769),
    (b'http://127.0.0.1:5000/', b'127.0.0.1:5000', 1, 1, 345),
    (b'http://B\xc3\x9cCHER.example/', b'xn--bcher-kva.example', 11, 35, 523),
    (b'http://xn--bcher-kva.example/', b'xn--bcher-kva.example', 11, 35, 523),
    (b'https://\xd0\xbf\xd1\x80\xd0\xb8\xd0\xbc\xd0\xb5\xd1\x80.\xd1\x80\xd1\x84/\xd0\xbf\xd1\x83\xd1\x82\xd1\x8c', b'xn--e1afmkfd.xn--p1ai', 0, 12, 860),  # noqa: E501  # a vector stands on one line
    (b'http://\xff\xfe.example/', b'\xff\xfe.example', 6, 18, 226),
    (b'\xff\xfe not utf-8', b'\xff\xfe not utf-8', 3, 3, 931),
    (b'  http://a.example/ ', b'a.example', 8, 8, 264),
    (b'\thttp://a.ex\tample/\n', b'a.example', 8, 8, 264),
    (b'http://' + b'a.' * 140 + b'example/', b'a.' * 140 + b'example', 6, 42, 90),
    (b'http://' + b'\xc3\xbc' * 64 + b'.example/', b'\xc3\xbc' * 64 + b'.example', 10, 46, 398),
    (b'x' * 1024, b'x' * 1024, 1, 13, 21),
    (b'javascript://a.example/%0aalert(1)', b'a.example', 8, 8, 264),
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
