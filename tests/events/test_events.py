"""The event log: what its entries say, how it is read and followed, its levels, its length, and its enemies."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import (
    Ack,
    AsyncQueue,
    GiveUp,
    InvalidInput,
    Lease,
    Politeness,
    Queue,
    Retry,
    ServerError,
    Task,
    TimeoutqError,
    Worker,
    open_queue,
)
from timeoutq.rooms.events import Event, Fold, fold
from timeoutq.rooms.events.entry import START, before, behind, event_of
from timeoutq.verbs import sending
from timeoutq.words.model import State


def logged(face: Any, after: Any = 0, **how: Any) -> list[Event]:
    return list(face.events.list(after, 1000, **how).events)


def moves(face: Any, **how: Any) -> list[tuple[str, dict[str, list[str]]]]:
    return [(event.verb, {way: list(tasks) for way, tasks in event.moves.items()}) for event in logged(face, **how)]


def test_a_queue_has_no_log_until_it_is_configured(face: Any, raw: redis.Redis, name: str) -> None:
    face.put("a")
    assert list(face.events.list().events) == []
    assert not raw.exists(f"timeoutq:{{{name}}}:events")
    face.configure(events="64MB")
    face.put("b")
    assert moves(face) == [("configure", {}), ("put", {"->todos": ["b"]})]
    assert face.stats().settings["events"] == "64000000 all"
    assert not fold(logged(face)).is_whole, "task a was there before the log"


def test_each_call_that_moves_tasks_is_an_entry_that_says_who_called(face: Any) -> None:
    face.configure(events="64MB")
    face.put("a", "b", "c")
    leases = {lease.task: lease for lease in face.claim(3)}
    face.ack(leases["a"], put=["d", "a"])
    face.fail(leases["b"], "no", give_up=True)
    face.release(leases["c"], 60)
    face.forget("a", "x")
    face.retry_failed("b")
    face.cancel("c", by="me")
    face.pull(5)
    assert moves(face)[1:2] + moves(face)[3:] == [
        ("put", {"->todos": ["a", "b", "c"]}),
        ("ack", {"->todos": ["d"], "in_progress>done": ["a"]}),
        ("fail", {"in_progress>failed": ["b"]}),
        ("release", {"in_progress>scheduled": ["c"]}),
        ("forget", {"done>-": ["a"]}),
        ("retry_failed", {"failed>todos": ["b"]}),
        ("cancel", {"scheduled>failed": ["c"]}),
        ("pull", {"todos>done": moves(face)[-1][1]["todos>done"]}),
    ]
    by = {event.verb: event.by for event in logged(face)}
    assert by["claim"] == by["ack"] == by["fail"] == by["release"] == leases["a"].token
    assert by["cancel"] == "me"
    for verb in ("put", "forget", "retry_failed", "pull"):
        assert (by[verb] or "").startswith(face.worker + "#"), verb
    assert [event.of("a") for event in logged(face, task="a")] == [
        [("-", "todos")], [("todos", "in_progress")], [("in_progress", "done")], [("done", "-")],
    ]  # fmt: skip


def test_calls_that_move_nothing_are_no_entries(face: Any) -> None:
    face.configure(events="64MB")
    face.put("a")
    face.put("a")
    face.claim(1)
    face.claim(1)
    face.ack([Lease("a", "stranger#1", 0.0)])
    face.stats()
    face.inspect("a")
    face.prune()
    assert [verb for verb, _ in moves(face)] == ["configure", "put", "claim"]


def test_what_cleaners_do_is_logged(face: Any) -> None:
    face.configure(events="64MB", keep_done=0)
    face.put("a")
    face.claim(1, timeout=0.01)
    wait_until(lambda: face.requeue_expired() == 1)
    face.schedule("b", after=0)
    wait_until(lambda: face.promote_due() == 1)
    face.configure(keep_done="forever")
    face.ack(face.claim(2))
    face.configure(keep_done=0)
    assert face.prune() == 2
    assert [verb for verb, _ in moves(face)] == [
        "configure", "put", "claim", "requeue_expired", "schedule", "promote_due", "claim", "ack", "prune",
    ]  # fmt: skip
    assert set(moves(face)[-1][1]) == {"done>-"}


def test_what_moves_a_kind_of_failures_or_a_host_says_what_was_done_and_by_whom(face: Any) -> None:
    face.configure(events="64MB", politeness=Politeness(0, 1))
    host = "a.example"
    face.put(*(f"http://{host}/{n}" for n in range(4)))
    for move in (face.failures.retry, face.failures.forget):
        (lease,) = face.claim(5)
        face.fail(lease, "E", give_up=True)
        move("E")
    face.hosts.block(host, for_=60)
    face.hosts.unblock(host)
    face.hosts.ban(host, "no")
    by = {event.verb: event.by for event in logged(face)}
    assert not {"kind", "host"} & by.keys()
    for verb in ("retry_kind", "forget_kind", "block", "unblock", "ban"):
        assert (by[verb] or "").startswith(face.worker + "#"), verb
    face.configure(politeness="off")


def test_a_polite_queue_logs_what_waits_and_whose_turn_it_is(face: Any) -> None:
    face.configure(events="64MB", politeness=Politeness(0, 1))
    face.put("http://a.example/1", "http://a.example/2")
    (lease,) = face.claim(5)
    face.ack(lease)
    ways = [way for _, one in moves(face)[1:] for way in one]
    assert sorted(ways) == sorted(["->todos", "->waiting", "todos>in_progress", "waiting>todos", "in_progress>done"])
    face.configure(politeness="off")


def test_ids_with_any_byte_come_back_as_they_were(face: Any, raw: redis.Redis, name: str) -> None:
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
    face.configure(events="64MB")
    face.put(ids)
    face.ack(face.claim(20))
    assert list(logged(face)[1].moves["->todos"]) == ids
    assert fold(logged(face)).states[State.DONE] == set(ids)
    assert face.events.list(0, task="\\n").events[-1].verb == "ack"


def test_a_claim_of_ids_with_line_feeds_gives_the_ids_themselves(face: Any) -> None:
    face.configure(events="64MB")
    face.put("a\nb")
    (lease,) = face.claim(1)
    assert lease.task == "a\nb"
    assert list(logged(face)[1].moves["->todos"]) == ["a\nb"]
    assert face.ack(lease) == "ok"


def test_a_call_with_many_bytes_of_ids_has_several_entries(face: Any, raw: redis.Redis, name: str) -> None:
    ids = [f"{n}".ljust(1024, "x") for n in range(500)]
    face.configure(events="64MB")
    face.put(ids)
    found = logged(face)[1:]
    assert len(found) == 8
    assert [task for event in found for task in event.moves["->todos"]] == ids
    assert all(sum(map(len, event.moves["->todos"])) < 70_000 for event in found)
    assert {event.verb for event in found} == {"put"}


def test_pages_go_on_where_the_last_one_ended(face: Any) -> None:
    face.configure(events="64MB")
    for n in range(7):
        face.put(f"t{n}")
    first = face.events.list(0, 3)
    second = face.events.list(first.cursor, 3)
    third = face.events.list(second.cursor, 3)
    assert [len(page.events) for page in (first, second, third)] == [3, 3, 2]
    assert [event.id for page in (first, second, third) for event in page.events] == [e.id for e in logged(face)]
    assert face.events.list(third.cursor, 3).events == []
    assert face.events.list(third.cursor, 3).cursor == third.cursor
    last = face.events.list(n=2)
    assert [list(event.moves.values()) for event in last.events] == [[["t5"]], [["t6"]]]
    assert last.cursor == third.cursor
    assert face.events.list(last.events[0].cursor).events == [last.events[1]]
    assert [event.of("t2") for event in face.events.list(n=5, task="t2").events] == [[("-", "todos")]]


def test_a_page_begins_at_a_time(face: Any) -> None:
    face.configure(events="64MB")
    face.put("a")
    before_b = logged(face)[-1].at + 0.001
    wait_until(lambda: face.stats().now > before_b)
    face.put("b")
    assert moves_of(face.events.list(before_b)) == ["b"]
    assert moves_of(face.events.list(datetime.fromtimestamp(before_b, UTC))) == ["b"]
    assert moves_of(face.events.list(time.time() + 3600)) == []


def moves_of(page: Any) -> list[str]:
    return [task for event in page.events for task, _, _ in event.each()]


@pytest.mark.parametrize("after", ["", "x", "1", "1-", "1-2-3", "1-2.3-4", "-", "+", "²-1", "1-18446744073709551616"])
def test_what_is_no_place_in_the_log_is_refused(face: Any, after: str) -> None:
    with pytest.raises(InvalidInput, match="is neither a cursor"):
        face.events.list(after)
    with pytest.raises(InvalidInput, match="is neither a cursor"):
        list(face.events.follow(after))


@pytest.mark.parametrize("how", [{"timeout": -1}, {"timeout": "1"}, {"task": ""}, {"task": 5}, {"after": True}])
def test_what_cannot_be_followed_is_refused(face: Any, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        list(face.events.follow(**{"timeout": 0, **how}))


@pytest.mark.parametrize(
    ("given", "match"),
    [({"events": "64XB"}, "events is how many bytes"), ({"events": 5}, "100KB to"), ({"events": True}, "100KB to"),
     ({"events": "99KB"}, "100KB to"), ({"level": "some"}, 'level must be "all"'), ({"level": 1}, "level must be")],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused(face: Any, given: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        face.configure(**given)


def test_the_size_and_the_level_change_each_for_itself(face: Any) -> None:
    def setting() -> str | None:
        return face.stats().settings.get("events")  # type: ignore[no-any-return]  # a str

    face.configure(level="ends")
    assert setting() == "64000000 ends"
    face.configure(events="1MiB")
    assert setting() == "1048576 ends"
    face.configure(level="all")
    assert setting() == "1048576 all"
    face.configure(level="off")
    assert setting() is None
    face.configure(level="off")
    assert [event.level for event in logged(face)] == ["ends", "all", "off"]
    assert "events" not in (face.stats().settings.get("uses") or "")


def test_the_level_ends_logs_only_what_ends(face: Any) -> None:
    face.configure(events="64MB", level="ends")
    face.put("a", "b", "c", "d")
    leases = {lease.task: lease for lease in face.claim(3)}
    left = ({"a", "b", "c", "d"} - set(leases)).pop()
    one, two, three = leases
    face.ack(leases[one])
    face.fail(leases[two], "no", give_up=True)
    face.release(leases[three], 60)
    face.cancel(left)
    face.forget(one)
    assert moves(face)[1:] == [
        ("ack", {"in_progress>done": [one]}), ("fail", {"in_progress>failed": [two]}),
        ("cancel", {"todos>failed": [left]}),
    ]  # fmt: skip
    assert not fold(logged(face)).is_whole


def test_an_ack_on_a_queue_that_keeps_no_done_tasks_is_an_end(face: Any) -> None:
    face.configure(events="64MB", level="ends", keep_done=0)
    face.put("a", "b")
    face.ack(face.claim(1))
    face.pull(1)
    face.put("c")
    face.forget("c")
    assert [(verb, list(ways)) for verb, ways in moves(face)[1:]] == [("ack", ["in_progress>-"]), ("pull", ["todos>-"])]


def test_a_log_that_was_off_for_a_time_does_not_tell_of_all(face: Any) -> None:
    face.configure(events="64MB")
    face.put("a")
    assert fold(logged(face)).is_whole
    face.configure(level="off")
    face.put("b")
    face.configure(level="all")
    assert not fold(logged(face)).is_whole
    face.forget("a", "b")
    face.configure(level="off")
    face.configure(level="all")
    face.put("c")
    assert fold(logged(face)).is_whole
    assert fold(logged(face)).where("c") is State.TODOS
    assert fold(logged(face)).where("a") is None


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


def test_who_follows_sees_an_entry_within_a_moment(url: str, name: str) -> None:
    with Queue(name, url) as queue, Queue(name, url) as other:
        queue.configure(events="64MB")
        follower = queue.events.follow(0)
        assert next(follower).level == "all"
        took: list[float] = []

        def put(n: int) -> None:
            took.append(-time.monotonic())
            other.put(f"t{n}")

        for n in range(5):
            timer = threading.Timer(0.05, put, [n])
            timer.start()
            assert next(follower).of(f"t{n}") == [("-", "todos")]
            took[-1] += time.monotonic()
            timer.join()
        assert sorted(took)[2] < 0.1
        queue.purge()


def test_following_goes_on_when_the_connection_was_cut(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url) as queue, Queue(name, url) as other:
        queue.configure(events="64MB")
        follower = queue.events.follow(0)
        next(follower)

        def cut() -> None:
            wait_until(lambda: any(one["cmd"] == "xread" for one in raw.client_list()))
            raw.client_kill_filter(skipme=True, _type="normal")
            other.put("a")

        thread = threading.Thread(target=cut)
        thread.start()
        assert next(follower).of("a") == [("-", "todos")]
        thread.join()
        queue.purge()


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


def test_what_the_log_says_of_its_bytes_is_what_the_server_needs(queue: Queue, raw: redis.Redis, name: str) -> None:
    queue.configure(events="1GB")
    for n in range(400):
        queue.put(f"https://example.com/{n}")
        queue.ack(queue.claim(1))
    logged = queue.stats().counters["logged"]
    used = raw.memory_usage(f"timeoutq:{{{name}}}:events", samples=0) or 0
    assert 0.6 < used / logged < 1.3


def test_entries_of_a_foreign_hand_are_events_without_moves(face: Any, raw: redis.Redis, name: str) -> None:
    face.configure(events="64MB")
    raw.xadd(f"timeoutq:{{{name}}}:events", {"hello": "world", "offset": "x", "a>b": "c", "level": "?"})
    face.put("a")
    foreign = logged(face)[1]
    assert (foreign.verb, foreign.by, foreign.offset) == ("", None, None)
    assert fold(logged(face)).where("a") is State.TODOS
    face.configure(events="100KB")
    face.prune()


def test_a_log_of_a_foreign_type_is_named_and_no_task_is_lost(queue: Queue, raw: redis.Redis, url: str) -> None:
    queue.configure(events="64MB")
    queue.put("a")
    key = queue.operations.key("events")
    raw.delete(key)
    raw.set(key, "x")
    for call in (lambda: queue.put("b"), lambda: queue.claim(1)):
        with pytest.raises(ServerError, match="is of a foreign type"):
            call()
    with (
        Queue(queue.name, url) as another,
        pytest.raises(ServerError, match=r"is of a foreign type.*:events"),
    ):
        another.put("c")
    assert queue.states("a", "b", "c").counts() == {"todos": 1, "in_progress": 1, "unknown": 1}
    with pytest.raises(TimeoutqError):
        queue.events.list()
    raw.delete(key)
    queue.put("c")


def test_a_full_server_logs_what_it_allows(queue: Queue, raw: redis.Redis, name: str) -> None:
    queue.configure(events="64MB")
    queue.put("a", "b")
    leases = queue.claim(2)
    raw.config_set("maxmemory", 1)
    try:
        assert queue.ack(leases[0]) == "ok"
        assert queue.release(leases[1]) == "ok"
    finally:
        raw.config_set("maxmemory", 0)
    assert [event.verb for event in logged(queue)[-2:]] == ["ack", "release"]


def test_a_call_that_is_sent_again_is_logged_once(queue: Queue) -> None:
    queue.configure(events="64MB")
    call = queue.operations.put(("a",), queue.talk.nonce)[0]
    queue.run(sending.answer(queue.talk, call))
    queue._link().send([call.command(20)])
    assert [verb for verb, _ in moves(queue)] == ["configure", "put"]


def test_what_repair_mends_is_logged(queue: Queue, raw: redis.Redis) -> None:
    from timeoutq.watch import doctor

    queue.configure(events="64MB")
    queue.put("a", "b")
    raw.sadd(queue.operations.key("failed"), "a")
    doctor.repair(queue)
    found = fold(logged(queue))
    assert found.states[State.TODOS] | found.states[State.FAILED] == {"a", "b"}
    assert len(found.states[State.TODOS]) == queue.stats().todos


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


async def test_the_log_of_workers_at_work_is_the_sets(url: str, queue: Queue) -> None:
    queue.configure(events="64MB")
    queue.put([f"t{n}" for n in range(300)])

    async def handle(lease: Lease) -> Any:
        await asyncio.sleep(0)
        number = int(lease.task[1:])
        if number % 7 == 0:
            raise GiveUp
        if number % 5 == 0 and lease.attempt == 1:
            raise Retry(after=0.01)
        return Ack(put=[f"t{number + 1000}"]) if number < 100 else None

    async with AsyncQueue(queue.name, url) as one, AsyncQueue(queue.name, url) as two:
        async with asyncio.timeout(60):
            await asyncio.gather(*(Worker(each, handle, burst=True, concurrency=20).run() for each in (one, two)))
        found, cursor = Fold(), "0-0"
        while (page := await one.events.list(cursor, 1000)).events:
            found.add(*page.events)
            cursor = page.cursor
    assert found.is_whole
    for state in (State.TODOS, State.SCHEDULED, State.IN_PROGRESS, State.DONE, State.FAILED):
        assert found.states[state] == {entry.task for entry in queue.each(state)}, state
    assert len(found.states[State.DONE]) > 300


def test_an_export_brings_tasks_and_no_log(queue: Queue, url: str, name: str) -> None:
    from timeoutq.watch import transfer

    queue.configure(events="64MB")
    queue.put("a", Task("b", payload=1))
    with Queue(f"{name}.new", url) as new:
        for records in transfer.export(queue):
            transfer.restore(new, records)
        assert new.stats().todos == 2
        assert new.events.list().events == []
        new.purge()


def test_a_place_before_and_one_behind() -> None:
    assert before("5-3") == "5-2"
    assert before("5-0") == "4-18446744073709551615"
    assert before(START) == START
    assert behind("5-3") == "5-4"
    assert behind("4-18446744073709551615") == "5-0"


def test_an_entry_that_cannot_be_read_is_an_event_all_the_same() -> None:
    found = event_of(b"5-3", [b"verb", b"put", b"->todos", b"a\nb\\", b"odd"])
    assert found.at == 0.005
    assert list(found.moves["->todos"]) == ["a", "b\\"]


def test_a_page_of_the_entries_of_a_task_is_bounded_and_its_cursor_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.configure(events="1MB")
    for number in range(9):
        queue.put(f"other {number}")
    queue.put("mine")
    monkeypatch.setattr("timeoutq.rooms.events.flows.CHUNK", 2)
    monkeypatch.setattr("timeoutq.rooms.events.flows.READS", 2)
    first = queue.events.list(after=0, task="mine")
    assert (first.events, first.cursor != "0-0") == ([], True)
    found, cursor, before = list[str](), first.cursor, ""
    while cursor != before:
        page = queue.events.list(cursor, task="mine")
        found += [event.verb for event in page.events]
        before, cursor = cursor, page.cursor
    assert found == ["put"]
