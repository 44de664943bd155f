"""A sharded queue groups by the public suffix list that it keeps, whatever list a machine has installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import publicsuffixlist
import pytest
import redis

from tests.rig.command import say
from tests.rig.command import server as server
from timeoutq import AsyncShardedQueue, InvalidInput, Queue, ShardedQueue
from timeoutq.urls import async_domains_of, domain, domains, domains_of

__all__ = ["say"]

URLS = [f"https://a.shop{i}.web.example/" for i in range(8)]
OLD, NEW = "com\nexample\n", "com\nexample\n// a company that rents out hosts\nweb.example\n"

Installed = Callable[[str], None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Install another version of the list, as another machine may have it."""

    def install(suffixes: str) -> None:
        file = tmp_path / "public_suffix_list.dat"
        file.write_text(suffixes)
        monkeypatch.setattr(publicsuffixlist, "PSLFILE", str(file))
        domains.rules.cache_clear()

    yield install
    monkeypatch.undo()
    domains.rules.cache_clear()


def test_machines_with_different_lists_find_the_same_shards(url: str, name: str, installed: Installed) -> None:
    installed(OLD)
    with ShardedQueue(name, url, shards=4) as first:
        assert first.put(URLS, group=domains_of(first)).counts() == {"added": 8}
    installed(NEW)
    assert domain(URLS[0]) == "shop0.web.example"
    with ShardedQueue(name, url) as second:
        assert domains_of(second)(URLS[0]) == "web.example"
        assert second.put(URLS, group=domains_of(second)).counts() == {"todos": 8}
        assert sorted(shard.known for shard in second.stats().shards) == [0, 0, 0, 8]

    async def put() -> None:
        async with AsyncShardedQueue(name, url) as third:
            outcome = await third.put(URLS, group=await async_domains_of(third))
            assert outcome.counts() == {"todos": 8}
            await third.purge()

    asyncio.run(put())
    with redis.Redis.from_url(url) as raw:
        assert list(raw.scan_iter(f"timeoutq:{{{name}*")) == []


def test_the_function_that_goes_by_the_list_of_the_machine_is_refused_with_the_cure(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=4) as queue:
        with pytest.raises(InvalidInput, match=r"write group=domains_of\(queue\)"):
            queue.put(URLS, group=domain)
        with pytest.raises(InvalidInput, match=r"write group=domains_of\(queue\)"):
            queue.schedule(URLS, after=1, group=domain)
        assert not queue.exists()
        assert queue.put(URLS, group=lambda url: "own.example").added == 8
        queue.purge()
    with ShardedQueue(name, url, shards=4, by="id") as queue:
        assert queue.put(URLS, group=domain).added == 8
        queue.purge()
    with Queue(name, url) as queue:
        assert domains_of(queue) is domain
        queue.put(URLS, group=domain)
        queue.purge()
