"""The command on a queue over several shards: each command that names a queue reads its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.command import Say, say
from tests.rig.command import server as server
from timeoutq import Politeness, Queue, Task
from timeoutq.client.shards import ShardedQueue

__all__ = ["say"]

PAGES = [f"https://h{i}.example/" for i in range(30)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A queue over four shards."""
    with ShardedQueue(name, url, shards=4) as opened:
        opened.put("seed")
        opened.forget("seed")
        yield opened
        opened.purge()


def test_put_makes_a_sharded_queue_when_told_so_and_finds_its_shards_later(say: Say, url: str, name: str) -> None:
    assert say("put", name, "a", "--shards", 4).lines == [["a", "added"]]
    assert say("put", name, "a", "b").lines == [["a", "todos"], ["b", "added"]]
    assert say("put", name, "c", "--shards", 4).code == 0
    refused = say("put", name, "c", "--shards", 5)
    assert (refused.code, "has 4 shards by host, not 5" in refused.err) == (2, True)
    assert "is sharded" in say("put", name, "c", "--shards", 1).err
    assert say("configure", name).facts["shards"] == "4 host v1"
    with ShardedQueue(name, url) as queue:
        assert queue.states("a", "b", "c").counts() == {"todos": 3}
        queue.purge()


def test_a_plain_queue_is_not_divided(say: Say, url: str, name: str) -> None:
    with Queue(name, url) as plain:
        plain.put("a")
        refused = say("put", name, "b", "--shards", 4)
        assert (refused.code, "is not sharded" in refused.err) == (2, True)
        assert "shards" not in say("configure", name).facts
        plain.purge()


def test_what_looks_shows_the_whole_queue(say: Say, queue: ShardedQueue) -> None:
    queue.put(PAGES, Task("grouped", group="g.example"))
    queue.ack(queue.claim(4))
    status = say("status", queue.name).facts
    assert (status["todos"], status["done"]) == ("27", "4")
    document = say("status", queue.name, "--json").documents[0]
    assert document["stats"]["todos"] == sum(shard["todos"] for shard in document["stats"]["shards"]) == 27
    assert say("dashboard", queue.name).facts["todos"] == "27"
    assert len(say("list", queue.name, "todos", "--all").lines) == 27
    first = say("list", queue.name, "todos", "-n", 20)
    assert "more with --cursor" in first.err or "shown" in first.err
    assert dict(line[:2] for line in say("states", queue.name, "grouped", "gone").lines) == {
        "grouped": queue.states("grouped")["grouped"], "gone": "unknown",
    }  # fmt: skip
    assert say("inspect", queue.name, "grouped").code in (0, 1)
    assert say("why", queue.name, PAGES[0]).code == 0
    assert say("drained", queue.name).texts == ["no"]
    (line,) = [line for line in say("queues").lines if line[0] == queue.name]
    assert line[1:] == ["31", "27", "0", "0", "0", "4", "0", "0", "4 shards"]
    assert say("pause", queue.name).code == 0
    assert [line[-1] for line in say("queues").lines if line[0] == queue.name] == ["4 shards, paused"]
    assert say("resume", queue.name).code == 0
    assert say("doctor", queue.name, "--max-failed", 0, "--repair").code == 0
    assert say("forget", queue.name, PAGES[0], "grouped", "--yes").code == 0
    assert say("list", "never", "todos").code == 1


def test_an_export_comes_whole_and_goes_into_any_number_of_shards(
    say: Say, queue: ShardedQueue, tmp_path: Path, name: str, url: str
) -> None:
    queue.configure(politeness=Politeness(0, 1))
    queue.put(PAGES, {"https://p.example/": [1]}, Task("grouped", group="g.example"))
    queue.ack(queue.claim(5))
    queue.hosts.set("h1.example", budget=3)
    file = tmp_path / "export.jsonl"
    file.write_bytes(say("export", queue.name).raw)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert sorted(line["task"] for line in lines if "task" in line) == sorted([*PAGES, "https://p.example/", "grouped"])
    for shards in (7, 1):
        other = f"{name}-{shards}"
        assert say("import", other, file, "--shards", shards).facts["restored"] == "32"
        again = say("import", other, file).facts
        assert (again["restored"], again["known"]) == ("0", "32")
        assert say("states", other, PAGES[0], "grouped", "--count").facts.get("unknown") is None
        assert ("budget" in say("export", other).out) is True
        assert say("diff", f"{queue.name}:done", f"{other}:done", "--count").texts == ["0"]
        assert say("diff", f"{other}:done", f"{queue.name}:failed", "--count").texts == ["5"]
        assert say("intersect", f"{other}:done", f"{queue.name}:done", "--count").texts == ["5"]
        assert say("requeue", other, "--from", "done").texts == ["5 put back"]
        assert say("purge", other, "--yes").code == 0


def test_a_worker_finds_the_shards_and_drains_all_of_them(say: Say, queue: ShardedQueue) -> None:
    queue.put(PAGES)
    assert say("worker", queue.name, "tests.rig.handlers:work", "--no-supervise", "--burst").code == 0
    assert queue.stats().done == len(PAGES)
    refused = say("worker", queue.name, "tests.rig.handlers:work", "--no-supervise", "--shards", 5)
    assert (refused.code, "has 4 shards by host, not 5" in refused.err) == (2, True)
