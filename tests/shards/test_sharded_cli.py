"""The command on a queue over several shards: each command that names a queue reads its record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command import Say, say
from tests.rig.command import server as server
from timeoutq import InvalidInput, Politeness, Queue, Task, Unavailable
from timeoutq.client.shards import ShardedQueue, opening
from timeoutq.watch import transfer
from timeoutq.words.model import HostRecord, State

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


def test_configure_makes_a_sharded_queue_with_its_settings(say: Say, url: str, name: str) -> None:
    assert say("configure", name, "--shards", 3, "--delay", "2s").code == 0
    assert say("configure", name).facts | {"shards": "3 host v1", "delay": "2s"} == say("configure", name).facts
    assert say("configure", name, "--max-crashes", 7).code == 0
    with ShardedQueue(name, url) as queue:
        assert queue.stats().politeness == Politeness(2, 1)
        assert {shard.settings["max_crashes"] for shard in queue.stats().shards} == {"7"}
        queue.purge()
    assert say("configure", name, "--shards", 3).code == 0
    assert say("configure", name, "--json").documents[0]["shards"] == "3 host v1"
    assert say("purge", name, "--yes").code == 0


def test_a_plain_queue_is_not_divided(say: Say, url: str, name: str) -> None:
    with Queue(name, url) as plain:
        plain.put("a")
        refused = say("put", name, "b", "--shards", 4)
        assert (refused.code, "is not sharded" in refused.err) == (2, True)
        assert "shards" not in say("configure", name).facts
        plain.purge()


def test_leases_are_claimed_and_ended_by_token_or_by_pipe(say: Say, queue: ShardedQueue) -> None:
    queue.put(PAGES)
    lines = say("claim", queue.name, "-n", 30).lines
    assert sorted(line[0] for line in lines) == sorted(PAGES)
    task, token = lines[0][:2]
    assert say("extend", queue.name, task, "--token", token).lines == [[task, "ok"]]
    assert say("ack", queue.name, task, "--token", token, "--put", "https://new.example/").lines == [[task, "ok"]]
    lost = say("ack", queue.name, task, "--token", "w:1:2#3@0")
    assert (lost.code, "lost" in lost.out) == (4, True)
    task, token = lines[1][:2]
    assert say("release", queue.name, task, "--token", token).lines == [[task, "ok"]]
    task, token = lines[2][:2]
    assert say("fail", queue.name, task, "--token", token, "--give-up").lines == [[task, "ok"]]
    assert say("retry", queue.name, task).lines == [[task, "retried"]]
    piped = say("claim", queue.name, "-n", 3, "--json").raw
    assert [line[1] for line in say("ack", queue.name, stdin=piped).lines] == ["ok"] * len(piped.splitlines())
    refused = say("ack", queue.name, "x", "--token", "w:1:2#3")
    assert (refused.code, "tokens end with @ and a shard" in refused.err) == (2, True)
    assert say("pull", queue.name).code == 1


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


def test_hosts_are_shown_and_ruled_in_their_shards(say: Say, queue: ShardedQueue) -> None:
    queue.configure(politeness=Politeness(100, 1))
    queue.put(PAGES)
    assert sorted(line[0] for line in say("hosts", queue.name).lines) == sorted(f"h{i}.example" for i in range(30))
    assert say("block", queue.name, "h1.example", "--for", "5m").code == 0
    assert say("unblock", queue.name, "h1.example").code == 0
    assert say("host", queue.name, "h2.example", "--budget", 1).code == 0
    assert say("ban", queue.name, "h3.example", "--yes").code == 0
    assert queue.hosts.inspect("h3.example").banned


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


def test_a_sharded_queue_that_is_not_polite_refuses_rules_of_hosts(queue: ShardedQueue) -> None:
    queue.put(PAGES)
    rules = [HostRecord(f"h{i}.example".encode(), visits=1) for i in range(8)]
    with pytest.raises(InvalidInput, match="is not polite"):
        transfer.restore_hosts(queue, rules)
    queue.configure(politeness=Politeness(0, 1))
    assert transfer.restore_hosts(queue, rules) == 8


def test_what_was_done_with_a_group_is_put_back_into_its_own_shard(say: Say, queue: ShardedQueue) -> None:
    queue.put([Task(f"t{i}", group=f"g{i}") for i in range(20)])
    while leases := queue.claim(20):
        queue.ack(leases)
    assert say("requeue", queue.name, "--from", "done", "--yes").texts == ["20 put back"]
    stats = queue.stats()
    assert (stats.todos, stats.known) == (20, 20)


def test_tasks_with_groups_are_compared_with_the_shards_in_which_they_are(
    say: Say, queue: ShardedQueue, tmp_path: Path
) -> None:
    queue.put([Task(f"t{i}", group=f"g{i}.example") for i in range(20)])
    queue.ack(queue.claim(20))
    done = queue.stats().done
    file = tmp_path / "ids"
    file.write_text("".join(f"t{i}\n" for i in range(25)))
    assert say("intersect", file, f"{queue.name}:done", "--count").texts == [str(done)]
    assert len(say("diff", file, f"{queue.name}:done").texts) == 25 - done
    assert say("diff", f"{queue.name}:done", file, "--count").texts == ["0"]


def test_a_server_that_is_slow_to_say_what_a_queue_is_makes_no_plain_queue_of_it(
    say: Say, queue: ShardedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put("a")
    look: Any = opening._is_sharded  # pyright: ignore[reportPrivateUsage]  # a server that answers only from then on
    asked = 0

    def slow(client: Any) -> Any:
        nonlocal asked
        asked += 1
        return look(client) if asked > 1 else silent()

    def silent() -> Any:
        yield from ()
        raise Unavailable("no answer")

    monkeypatch.setattr(opening, "_is_sharded", slow)
    for words in (["states", queue.name, "x"], ["put", queue.name, "b"], ["claim", queue.name], ["status", queue.name]):
        asked = 0
        done = say(*words)
        assert (done.code, done.err) == (3, "timeoutq: no answer\n")
    asked = 0
    done = say("doctor", queue.name)
    assert (done.code, asked) == (0, 2)
    assert "4 shards by host" in done.out
    assert queue.stats().known == 1


def test_a_worker_finds_the_shards_and_drains_all_of_them(say: Say, queue: ShardedQueue) -> None:
    queue.put(PAGES)
    assert say("worker", queue.name, "tests.rig.handlers:work", "--no-supervise", "--burst").code == 0
    assert queue.stats().done == len(PAGES)
    refused = say("worker", queue.name, "tests.rig.handlers:work", "--no-supervise", "--shards", 5)
    assert (refused.code, "has 4 shards by host, not 5" in refused.err) == (2, True)


def test_an_export_holds_the_ready_one_of_two_tasks_with_the_same_id(queue: ShardedQueue) -> None:
    done, ready = (
        next(f"{c}{i}.example" for i in range(99) if queue.shards.of_host(f"{c}{i}.example") is talk)
        for c, talk in zip("ab", queue.shards.talks, strict=False)
    )
    for group in (done, ready):
        queue.put(Task("twice", group=group))
        if group == done:
            queue.ack(queue.claim())
    (record,) = [record for page in transfer.export(queue) for record in page]
    assert (record.task, record.state) == (b"twice", State.TODOS)
