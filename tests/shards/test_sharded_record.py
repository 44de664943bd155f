"""A sharded queue as a whole: pages, settings, drained; its record in Redis, who may open it, and its purge."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.rig.sharded import SHARDS, keys_of, one_of_each
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue, SchemaMismatch
from timeoutq.client.shards import ShardedQueue, open_async_queue, open_queue, quiet
from timeoutq.client.shards import flows as sharded_flows
from timeoutq.server.link import Link
from timeoutq.verbs import flows
from timeoutq.verbs.sending import answer, answers
from timeoutq.watch.transfer import restore
from timeoutq.words.errors import ServerError
from timeoutq.words.model import Answer, Record, State

# ---- the queue as a whole


def test_pages_and_walks_go_from_shard_to_shard(queue: Any) -> None:
    tasks = [f"t{i}" for i in range(300)]
    queue.put(tasks)
    assert sorted(entry.task for entry in queue.each("todos")) == sorted(tasks)
    met, cursor = list[str](), None
    while True:
        page = queue.list("todos", cursor, 40)
        met += [entry.task for entry in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(set(met)) == sorted(tasks)
    for bad in ("7", "99.0", "x", "0.y"):
        with pytest.raises(InvalidInput, match="cursor"):
            queue.list("todos", bad)


def test_a_page_over_several_shards_is_no_longer_than_was_asked(queue: Any) -> None:
    queue.schedule([f"t{i}" for i in range(40)], after=600)
    met, cursor = list[str](), None
    while True:
        page = queue.list("scheduled", cursor, 7)
        assert len(page.entries) == (5 if page.cursor is None else 7)
        met += [entry.task for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(met) == sorted(f"t{i}" for i in range(40))


def test_pause_configure_and_the_cleaner_reach_all_shards(queue: Any) -> None:
    queue.put(one_of_each())
    queue.pause()
    assert queue.claim(10) == []
    assert queue.stats().paused
    queue.configure(keep_done=0, max_crashes=1)
    queue.resume()
    leases = queue.claim(10, timeout=0.01)
    assert len(leases) == SHARDS
    wait_until(lambda: queue.stats().now > max(lease.deadline for lease in leases))
    assert queue.requeue_expired() == SHARDS
    assert queue.stats().failed == SHARDS
    assert {shard.settings["keep_done"] for shard in queue.stats().shards} == {"no"}
    assert queue.prune() == 0
    queue.schedule(one_of_each("s{}"), after=0)
    assert queue.promote_due() == SHARDS
    assert queue.history() == []
    assert "redis_version" in queue.server()


def test_a_queue_is_paused_when_all_of_its_shards_are(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=SHARDS) as queue:
        queue.pause()
        assert queue.stats().paused
        queue.run(flows.configure(queue.shards.talks[3], {"paused": b"0"}))
        assert not queue.stats().paused
        queue.purge()


def test_no_shard_begins_to_keep_fingerprints_while_another_has_tasks(queue: Any, url: str) -> None:
    queue.put("a")
    with pytest.raises(InvalidInput, match="only while a queue has no tasks"):
        queue.configure(keep_done="compact")
    with ShardedQueue(queue.name, url, keep_done="compact") as other, pytest.raises(InvalidInput, match="no tasks"):
        other.put("b")
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {None}
    with pytest.raises(InvalidInput, match="only while a queue has no tasks"):
        # written only where there is no such setting yet
        queue.run(sharded_flows.configure(queue.shards, {"keep_done?": b"compact"}))
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {None}
    queue.forget("a")
    queue.configure(keep_done="compact")
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {"compact"}
    queue.put("a")
    queue.ack(queue.claim())
    with pytest.raises(InvalidInput, match="keeps 1 done tasks as fingerprints"):
        queue.configure(keep_done=10)
    assert {shard.settings.get("keep_done") for shard in queue.stats().shards} == {"compact"}


def test_who_says_that_a_queue_is_not_durable_says_so_to_a_shard_that_does_not_tell(
    url: str, name: str, raw: Any
) -> None:
    with ShardedQueue(name, url, shards=SHARDS) as queue:
        queue.put(one_of_each())
        meta = queue.shards.talks[2].operations.key("meta")
        raw.rename(meta, "aside")
        raw.set(meta, "a string")
        with ShardedQueue(name, url, durable=0) as late, pytest.raises(ServerError, match="shard 2 of queue"):
            late.exists()
        raw.rename("aside", meta)
        with ShardedQueue(name, url, durable=0) as late:
            assert late.exists()
        queue.purge()


def test_drained_counts_all_shards(queue: Any) -> None:
    assert queue.drained()
    for task in one_of_each():
        queue.put(task)
        assert not queue.drained()
        (lease,) = queue.claim()
        assert not queue.wait_drained(0)
        queue.ack(lease)
        assert queue.wait_drained(1)
    queue.schedule("later", after=1000)
    assert not queue.drained()
    assert queue.drained(before=time.time() + 10)
    queue.forget("later")


def test_a_task_that_moves_behind_the_observer_is_seen_by_the_second_look(url: str, name: str) -> None:
    first, *_, last = one_of_each()
    with ShardedQueue(name, url, shards=SHARDS) as queue, ShardedQueue(name, url) as worker:
        queue.put(last)
        (lease,) = worker.claim()
        assert not queue.drained()
        link: Any = queue._link()  # pyright: ignore[reportPrivateUsage]  # to do something between two looks
        flow = quiet.drained(queue.shards, None)
        step: Any = next(flow)
        looks = 0
        with pytest.raises(StopIteration) as end:
            while True:
                lists = [part.commands for part in step.parts]
                replies = link.send_all(lists[:-1])
                looks += 1
                if looks == 1:  # the shard of `first` was quiet when it was looked at, and so will be the last one
                    worker.ack(lease, put=first)
                step = flow.send([*replies, *link.send_all(lists[-1:])])
        assert end.value.value is False
        assert looks == 2
        queue.purge()


def test_a_look_of_several_calls_counts_from_its_first_call_to_its_last(
    queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [(True, b"7", [b"put", b"1"]), (True, b"8", [b"put", b"2"]), (True, b"0", [b"put", b"3"])]

    def answer(*_: object) -> Any:
        yield from ()
        return replies.pop(0)

    monkeypatch.setattr(quiet, "answer", answer)
    flow: Any = quiet._look(queue.shards.talks[0], None)
    with pytest.raises(StopIteration) as end:
        next(flow)
    assert end.value.value == quiet.Look(True, [b"put", b"1"], [b"put", b"3"])


# ---- what it is in Redis, and who may open it


def test_stats_tell_of_a_record_only_where_there_is_one(queue: Any) -> None:
    assert queue.stats().settings == {}
    queue.put("a")
    settings = queue.stats().settings
    assert (settings["schema"], settings["shards"]) == ("s1", f"{SHARDS} host v1")


def test_the_record_says_how_many_shards_there_are(queue: Any, raw: Any) -> None:
    assert not queue.exists()
    assert queue.claim() == []
    assert not raw.exists(f"timeoutq:{{{queue.name}}}:meta"), "a claim makes no queue"
    queue.put("a")
    assert queue.exists()
    assert raw.hgetall(f"timeoutq:{{{queue.name}}}:meta") == {"schema": "s1", "shards": f"{SHARDS} host v1"}
    queue.put("a", group="g")
    assert raw.hget(f"timeoutq:{{{queue.name}}}:meta", "groups") == "1"


def test_a_plain_client_is_refused_by_name(queue: Any, url: str) -> None:
    with Queue(queue.name, url) as early:
        assert early.claim() == []
        queue.put("a")
        # also one that was there before the queue was
        for call in (lambda: early.put("b"), early.claim, early.stats):
            with pytest.raises(InvalidInput, match="is sharded: open it with timeoutq"):
                call()
    with Queue(queue.name, url) as plain, pytest.raises(InvalidInput, match=f"{queue.name}: the queue is sharded"):
        plain.list("todos")


def test_another_number_of_shards_is_refused_by_name(queue: Any, url: str) -> None:
    queue.put("a")
    others: list[dict[str, Any]] = [{"shards": 7}, {"by": "id"}]
    for other in others:
        with ShardedQueue(queue.name, url, **other) as wrong:
            for _ in range(2):
                with pytest.raises(InvalidInput, match=f"has {SHARDS} shards by host, not"):
                    wrong.put("b")
    with ShardedQueue(queue.name, url) as right:
        assert right.states("a").counts() == {"todos": 1}
        assert len(right.stats().shards) == SHARDS


def test_a_sharded_face_is_refused_on_a_plain_queue(url: str, name: str, raw: Any) -> None:
    with Queue(name, url) as plain, ShardedQueue(name, url) as sharded:
        plain.put("a")
        for call in (lambda: sharded.put("b"), sharded.claim, sharded.stats):
            with pytest.raises(InvalidInput, match="is not sharded: open it with Queue"):
                call()
        raw.delete(f"timeoutq:{{{name}}}:meta")
        with pytest.raises(InvalidInput, match="has tasks already and is not sharded"):
            sharded.put("b")
        plain.purge()


def test_a_later_route_or_layout_is_refused(url: str, name: str, raw: Any) -> None:
    later: Any = ({"schema": "s2", "shards": "4 host v1"}, {"schema": "s1", "shards": "4 host v2"})
    for fields in later:
        raw.hset(f"timeoutq:{{{name}}}:meta", mapping=fields)
        with ShardedQueue(name, url) as queue, pytest.raises(SchemaMismatch, match="upgrade"):
            queue.put("a")
    for words in ("many", "0 host v1", "1 host v1", "9999 host v1"):
        raw.hset(f"timeoutq:{{{name}}}:meta", mapping={"schema": "s1", "shards": words})
        with ShardedQueue(name, url) as queue, pytest.raises(InvalidInput, match="foreign hand"):
            queue.put("a")
    raw.delete(f"timeoutq:{{{name}}}:meta")


def test_of_two_that_make_a_queue_at_once_the_second_is_refused(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=3) as one, ShardedQueue(name, url, shards=4) as other:
        assert one.claim() == other.claim() == []  # neither has made it
        one.put("a")
        with pytest.raises(InvalidInput, match="has 3 shards"):
            other.put("b")
        one.purge()


def test_the_record_of_who_wrote_it_first_stays_though_another_was_about_to_write_it(
    url: str, name: str, raw: Any
) -> None:
    with ShardedQueue(name, url, shards=3) as one, ShardedQueue(name, url, shards=4) as other:
        assert one.claim() == other.claim() == []
        send: Any = Link.send

        def late(self: Any, commands: Any) -> Any:
            if commands[0][0] == "HSETNX" and Link.send is late:
                Link.send = send  # type: ignore[method-assign]  # as it was
                one.put("a")
            return send(self, commands)

        Link.send = late  # type: ignore[method-assign]  # to be slower than the other client
        try:
            with pytest.raises(InvalidInput, match="has 3 shards"):
                other.put("b")
        finally:
            Link.send = send  # type: ignore[method-assign]  # as it was
        assert raw.hget(f"timeoutq:{{{name}}}:meta", "shards") == "3 host v1"
        assert one.stats().known == 1
        one.purge()


def test_a_queue_has_twelve_shards_unless_somebody_says_otherwise(url: str, name: str, raw: Any) -> None:
    with ShardedQueue(name, url) as queue:
        queue.put("a")
        assert raw.hget(f"timeoutq:{{{name}}}:meta", "shards") == "12 host v1"
        queue.purge()
    for bad in (0, -1, 1001, "12", 2.5, True):
        with pytest.raises(InvalidInput, match="shards must be a whole number"):
            ShardedQueue(name, url, shards=bad)  # type: ignore[arg-type]  # what it refuses
    with pytest.raises(InvalidInput, match="one shard is a plain queue"):
        ShardedQueue(name, url, shards=1)
    with pytest.raises(InvalidInput, match='by must be "host" or "id"'):
        ShardedQueue(name, url, by="group")  # type: ignore[arg-type]  # what it refuses


def test_a_queue_of_one_shard_is_a_plain_queue_byte_for_byte(url: str, name: str, raw: Any) -> None:
    def kept(queue: Any) -> dict[str, object]:
        with queue:
            queue.put("a", "b")
            queue.put("c", group="g")
            found = {key: raw.type(key) for key in keys_of(raw, name)}
            meta = raw.hgetall(f"timeoutq:{{{name}}}:meta")
            queue.purge()
            return {**found, **meta}

    one = open_queue(name, url, shards=1)
    assert type(one) is Queue
    assert kept(one) == kept(Queue(name, url))


async def opened_async(name: str, url: str, **settings: Any) -> str:
    queue = await open_async_queue(name, url, **settings)
    await queue.close()
    return type(queue).__name__


def test_one_call_opens_a_queue_as_what_it_is(queue: Any, url: str, name: str) -> None:
    assert type(open_queue(name, url)) is Queue
    assert type(open_queue(name, url, shards=3)) is ShardedQueue
    queue.put("a")
    with open_queue(name, url, timeout=7) as found:
        assert type(found) is ShardedQueue
        assert found.timeout == 7
        assert found.states("a").counts() == {"todos": 1}
    with open_queue(name, url, shards=1) as plain, pytest.raises(InvalidInput, match="is sharded"):
        plain.put("b")
    assert asyncio.run(opened_async(name, url)) == "AsyncShardedQueue"
    assert asyncio.run(opened_async("other", url)) == "AsyncQueue"
    assert asyncio.run(opened_async("other", url, shards=2)) == "AsyncShardedQueue"


def test_a_purge_removes_the_record_last_and_may_be_repeated(queue: Any, raw: Any, url: str) -> None:
    queue.put(one_of_each())
    queue.claim(2)
    queue.purge()
    queue.purge()
    assert keys_of(raw, queue.name) == set()
    assert not queue.exists()
    queue.put("a")
    assert queue.exists()


def test_a_purge_makes_the_record_again_if_somebody_puts_meanwhile(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=SHARDS) as queue, ShardedQueue(name, url) as late:
        queue.put("a", group="g.example")
        late.states("a")
        unmake = queue.shards.unmake

        def meanwhile() -> Any:
            talk = late.shards.talks[3]
            late.run(answers(talk, talk.operations.put(("late",), talk.nonce)))
            yield from unmake()

        queue.shards.unmake = meanwhile  # type: ignore[method-assign]  # the last step of a purge
        queue.purge()
        queue.shards.unmake = unmake  # type: ignore[method-assign]  # as it was
        with ShardedQueue(name, url) as other:
            assert other.exists()
            assert (other.stats().todos, other.shards.record.grouped) == (1, True)
            other.purge()
            assert not other.exists()


def test_a_client_that_puts_into_a_purged_queue_makes_it_again(url: str, name: str, raw: Any) -> None:
    with ShardedQueue(name, url, shards=3) as one, ShardedQueue(name, url) as other:
        one.put("a")
        assert other.states("a").counts() == {"todos": 1}
        other.put("a")
        one.purge()
        assert list(other.put("b")) == [Answer.ADDED], "the record was seen a moment ago"
        assert raw.hget(f"timeoutq:{{{name}}}:meta", "shards") == "3 host v1"
        other.purge()


def test_an_import_into_a_queue_that_was_purged_meanwhile_makes_it_again(url: str, name: str, raw: Any) -> None:
    with ShardedQueue(name, url, shards=3) as one, ShardedQueue(name, url) as other:
        one.put("a")
        other.put("a")
        one.purge()
        assert list(restore(other, [Record(b"b", State.TODOS)])) == [Answer.ADDED]
        assert raw.hget(f"timeoutq:{{{name}}}:meta", "shards") == "3 host v1"
        other.purge()


def test_an_import_of_tasks_with_groups_is_noted_in_the_record(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=3) as queue:
        assert list(restore(queue, [Record(b"a", State.TODOS)])) == [Answer.ADDED]
        assert not queue.shards.record.grouped
        assert list(restore(queue, [Record(b"b", State.TODOS, group="g.example")])) == [Answer.ADDED]
        with ShardedQueue(name, url) as other:
            assert other.exists()
            assert other.shards.record.grouped
        queue.purge()


# ---- a queue that somebody has made anew


@pytest.mark.parametrize(("before", "now"), [({"shards": 4}, {"shards": 7}), ({"by": "host"}, {"by": "id"})])
def test_what_a_client_puts_into_the_shards_of_a_queue_that_was_made_anew_is_taken_back(
    url: str, name: str, before: Any, now: Any
) -> None:
    ids = [f"https://h{i % 9}.example/{i}" for i in range(40)]
    options: Any = {"shards": 4}
    with ShardedQueue(name, url, **{**options, **before}) as old:
        old.put("warm")
        (lease,) = old.claim()
        with ShardedQueue(name, url) as other:
            other.purge()
        with ShardedQueue(name, url, **{**options, **now}) as new:
            new.put("https://h0.example/0")
            for _ in range(3):  # the first one learns it from the record after the put, the others before
                with pytest.raises(InvalidInput, match=f"queue {name} has"):
                    old.put(ids)
            with pytest.raises(InvalidInput, match=f"queue {name} has"):
                old.ack(lease, put=ids)
            at_home = [task for task in ids if new.states(task)[0] == "todos"]
            assert new.stats().known == len(at_home) < 20, "what is left is where others look for it"
            new.purge()


def _stats_of(queue: ShardedQueue) -> list[Any]:
    return [queue.run(answer(talk, talk.operations.stats())) for talk in queue.shards.talks]


def test_a_setting_that_some_shards_refuse_at_the_last_moment_is_taken_back_in_the_others(
    queue: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = sharded_flows._check_keep_done

    def checked(*args: Any, **options: Any) -> Any:
        found = yield from check(*args, **options)
        other.put("a")
        return found

    queue.configure(keep_done=5)
    with ShardedQueue(queue.name, url) as other:
        monkeypatch.setattr(sharded_flows, "_check_keep_done", checked)
        with pytest.raises(InvalidInput, match="can be set only while a queue has no tasks"):
            queue.configure(keep_done="compact")
        monkeypatch.undo()
        assert {stats.settings["keep_done"] for stats in _stats_of(other)} == {"n5"}
        other.forget("a")
        queue.configure(keep_done="compact")
        assert {stats.settings["keep_done"] for stats in _stats_of(other)} == {"compact"}
