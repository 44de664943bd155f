"""The event log: what its entries say, how it is read and followed, its levels, its length, and its enemies."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import (
    InvalidInput,
    Politeness,
    Queue,
    open_queue,
)
from timeoutq.rooms.events import START, Event, before, fold
from timeoutq.words.model import State


def logged(queue: Any, after: Any = 0, **how: Any) -> list[Event]:
    return list(queue.events.list(after, 1000, **how).events)


def moves(queue: Any, **how: Any) -> list[tuple[str, dict[str, list[str]]]]:
    return [(event.verb, {way: list(tasks) for way, tasks in event.moves.items()}) for event in logged(queue, **how)]


def test_a_queue_has_no_log_until_it_is_configured(queue: Any, raw: redis.Redis, name: str) -> None:
    queue.put("a")
    assert list(queue.events.list().events) == []
    assert not raw.exists(f"timeoutq:{{{name}}}:events")
    queue.configure(events="64MB")
    queue.put("b")
    assert moves(queue) == [("configure", {}), ("put", {"->todos": ["b"]})]
    assert queue.stats().settings["events"] == "64000000 all"
    assert not fold(logged(queue)).is_whole, "task a was there before the log"


def test_each_call_that_moves_tasks_is_an_entry_that_says_who_called(queue: Any) -> None:
    queue.configure(events="64MB")
    queue.put("a", "b", "c")
    leases = {lease.task: lease for lease in queue.claim(3)}
    queue.ack(leases["a"], put=["d", "a"])
    queue.fail(leases["b"], "no", give_up=True)
    queue.release(leases["c"], 60)
    queue.forget("a", "x")
    queue.retry_failed("b")
    queue.cancel("c", by="me")
    queue.pull(5)
    assert moves(queue)[1:2] + moves(queue)[3:] == [
        ("put", {"->todos": ["a", "b", "c"]}),
        ("ack", {"->todos": ["d"], "in_progress>done": ["a"]}),
        ("fail", {"in_progress>failed": ["b"]}),
        ("release", {"in_progress>scheduled": ["c"]}),
        ("forget", {"done>-": ["a"]}),
        ("retry_failed", {"failed>todos": ["b"]}),
        ("cancel", {"scheduled>failed": ["c"]}),
        ("pull", {"todos>done": moves(queue)[-1][1]["todos>done"]}),
    ]
    by = {event.verb: event.by for event in logged(queue)}
    assert by["claim"] == by["ack"] == by["fail"] == by["release"] == leases["a"].token
    assert by["cancel"] == "me"
    for verb in ("put", "forget", "retry_failed", "pull"):
        assert (by[verb] or "").startswith(queue.worker + "#"), verb
    assert [event.of("a") for event in logged(queue, task="a")] == [
        [("-", "todos")], [("todos", "in_progress")], [("in_progress", "done")], [("done", "-")],
    ]  # fmt: skip


def test_a_polite_queue_logs_what_waits_and_whose_turn_it_is(queue: Any) -> None:
    queue.configure(events="64MB", politeness=Politeness(0, 1))
    queue.put("http://a.example/1", "http://a.example/2")
    (lease,) = queue.claim(5)
    queue.ack(lease)
    ways = [way for _, one in moves(queue)[1:] for way in one]
    assert sorted(ways) == sorted(["->todos", "->waiting", "todos>in_progress", "waiting>todos", "in_progress>done"])
    queue.configure(politeness="off")


def test_ids_with_any_byte_come_back_as_they_were(queue: Any, raw: redis.Redis, name: str) -> None:
    ids = [
        "line\nfeed",
        "back\\slash",
        "\\n",
        "\n",
        "\\\\n\n",
        " ",
        "a>b",
        b"\xff\x00".decode(errors="surrogateescape"),
    ]
    queue.configure(events="64MB")
    queue.put(ids)
    queue.ack(queue.claim(20))
    assert list(logged(queue)[1].moves["->todos"]) == ids
    assert fold(logged(queue)).states[State.DONE] == set(ids)
    assert queue.events.list(0, task="\\n").events[-1].verb == "ack"
    queue.put("a line\nfeed alone")
    assert list(logged(queue)[-1].moves["->todos"]) == ["a line\nfeed alone"]


def test_a_call_with_many_bytes_of_ids_has_several_entries(queue: Any, raw: redis.Redis, name: str) -> None:
    ids = [f"{n}".ljust(1024, "x") for n in range(500)]
    queue.configure(events="64MB")
    queue.put(ids)
    found = logged(queue)[1:]
    assert len(found) == 8
    assert [task for event in found for task in event.moves["->todos"]] == ids
    assert all(sum(map(len, event.moves["->todos"])) < 70_000 for event in found)
    assert {event.verb for event in found} == {"put"}


def test_pages_go_on_where_the_last_one_ended(queue: Any) -> None:
    queue.configure(events="64MB")
    for n in range(7):
        queue.put(f"t{n}")
    first = queue.events.list(0, 3)
    second = queue.events.list(first.cursor, 3)
    third = queue.events.list(second.cursor, 3)
    assert [len(page.events) for page in (first, second, third)] == [3, 3, 2]
    assert [event.id for page in (first, second, third) for event in page.events] == [e.id for e in logged(queue)]
    assert queue.events.list(third.cursor, 3).events == []
    assert queue.events.list(third.cursor, 3).cursor == third.cursor
    last = queue.events.list(n=2)
    assert [list(event.moves.values()) for event in last.events] == [[["t5"]], [["t6"]]]
    assert last.cursor == third.cursor
    assert queue.events.list(last.events[0].cursor).events == [last.events[1]]
    assert [event.of("t2") for event in queue.events.list(n=5, task="t2").events] == [[("-", "todos")]]


@pytest.mark.parametrize("after", ["", "x", "1", "1-", "1-2-3", "1-2.3-4", "-", "+", "²-1", "1-18446744073709551616"])
def test_what_is_no_place_in_the_log_is_refused(queue: Any, after: str) -> None:
    with pytest.raises(InvalidInput, match="is neither a cursor"):
        queue.events.list(after)
    with pytest.raises(InvalidInput, match="is neither a cursor"):
        list(queue.events.follow(after))


@pytest.mark.parametrize(
    ("given", "match"),
    [({"events": "64XB"}, "events is how many bytes"), ({"events": 5}, "100KB to"), ({"events": True}, "100KB to"),
     ({"events": "99KB"}, "100KB to"), ({"level": "some"}, 'level must be "all"'), ({"level": 1}, "level must be")],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused(queue: Any, given: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        queue.configure(**given)


def test_the_level_ends_logs_only_what_ends(queue: Any) -> None:
    queue.configure(events="64MB", level="ends")
    queue.put("a", "b", "c", "d")
    leases = {lease.task: lease for lease in queue.claim(3)}
    left = ({"a", "b", "c", "d"} - set(leases)).pop()
    one, two, three = leases
    queue.ack(leases[one])
    queue.fail(leases[two], "no", give_up=True)
    queue.release(leases[three], 60)
    queue.cancel(left)
    queue.forget(one)
    assert moves(queue)[1:] == [
        ("ack", {"in_progress>done": [one]}), ("fail", {"in_progress>failed": [two]}),
        ("cancel", {"todos>failed": [left]}),
    ]  # fmt: skip
    assert not fold(logged(queue)).is_whole


def test_the_log_is_followed(face: Any, url: str, name: str) -> None:
    face.configure(events="64MB")
    face.put("before")
    with Queue(name, url) as other:
        later = threading.Timer(0.1, lambda: (other.put("x"), other.ack(other.claim(2))))
        later.start()
        found = list(face.events.follow(timeout=1))
        later.join()
    assert [event.verb for event in found] == ["put", "claim", "ack"]
    assert [event.verb for event in face.events.follow(found[0].cursor, timeout=0)] == ["claim", "ack"]
    assert [event.verb for event in face.events.follow(0, task="x", timeout=0)] == ["put", "claim", "ack"]


def test_prune_trims_the_log_to_its_bytes(queue: Queue, raw: redis.Redis, name: str) -> None:
    key = f"timeoutq:{{{name}}}:events"
    queue.configure(events="1GB")
    for n in range(300):
        queue.put([f"https://example.com/{n}/{i}".ljust(100, "x") for i in range(50)])
    whole = raw.memory_usage(key) or 0
    assert whole > 1_200_000
    queue.prune()
    assert raw.xlen(key) == 301
    queue.configure(events="500KB")
    queue.prune()
    assert 400_000 < (raw.memory_usage(key, samples=0) or 0) < 700_000
    events = queue.events.list(0, 1000).events
    assert events[-1].of("https://example.com/299/49".ljust(100, "x"))
    assert not fold(events).is_whole
    length = raw.xlen(key)
    queue.prune()
    assert raw.xlen(key) == length
    queue.configure(events="300KB")
    queue.prune()
    assert (raw.memory_usage(key, samples=0) or 0) < 400_000


def test_a_shard_has_a_log_and_a_cursor_is_one_place_in_each(url: str, name: str, raw: redis.Redis) -> None:
    with open_queue(name, url, shards=3) as queue:
        queue.configure(events="64MB")
        assert queue.stats().settings["events"] == "21333333 all"
        queue.put([f"t{n}" for n in range(50)])
        queue.ack(queue.claim(30))
        whole = queue.events.list(0, 1000)
        assert {event.shard for event in whole.events} == {0, 1, 2}
        assert fold(whole.events).is_whole
        assert len(fold(whole.events).states[State.DONE]) == 30
        cursor, parts = None, list[Event]()
        while (page := queue.events.list(cursor or 0, 2)).events:
            parts += page.events
            cursor = page.cursor
        assert parts == list(whole.events)
        for event in whole.events:
            behind_it = queue.events.list(event.cursor, 1000).events
            assert list(behind_it) == list(whole.events)[whole.events.index(event) + 1 :]
        last = queue.events.list(n=4)
        assert [event.id for event in last.events] == [event.id for event in whole.events][-4:]
        assert len(queue.events.list(last.events[0].cursor).events) == 3
        with pytest.raises(InvalidInput, match="is neither a cursor"):
            queue.events.list("1-1")
        queue.purge()
    assert list(raw.scan_iter(f"timeoutq:{{{name}*")) == []


def test_the_place_before_a_place() -> None:
    assert before("5-3") == "5-2"
    assert before("5-0") == "4-18446744073709551615"
    assert before(START) == START


def test_what_cleaners_do_is_logged(queue: Any) -> None:
    queue.configure(events="64MB", keep_done=0)
    queue.put("a")
    queue.claim(1, timeout=0.01)
    wait_until(lambda: queue.requeue_expired() == 1)
    queue.schedule("b", after=0)
    wait_until(lambda: queue.promote_due() == 1)
    queue.configure(keep_done="forever")
    queue.ack(queue.claim(2))
    queue.configure(keep_done=0)
    assert queue.prune() == 2
    assert [verb for verb, _ in moves(queue)] == [
        "configure", "put", "claim", "requeue_expired", "schedule", "promote_due", "claim", "ack", "prune",
    ]  # fmt: skip
    assert set(moves(queue)[-1][1]) == {"done>-"}
