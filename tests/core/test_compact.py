"""Queues that keep fingerprints of their done tasks (keep_done="compact"): what each verb says, keeps and refuses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from tests.rig import fingerprints
from tests.rig.faces import Blocking
from tests.rig.invariants import check, check_keys
from tests.rig.planted import planted
from tests.rig.proxy import Fault, Proxy
from timeoutq import InvalidInput, LeaseLost, Politeness, Queue, ServerFull, State, Task
from timeoutq.rooms.hosts import operations as hosts
from timeoutq.server import scripts
from timeoutq.server.calls import Call
from timeoutq.testing import fake_async_queue, fake_queue
from timeoutq.verbs import reads, sending
from timeoutq.words.errors import ServerError
from timeoutq.words.model import HostRecord, Record

A = "http://a.example/"


@pytest.fixture
def compact(face: Any) -> Any:
    """A queue with compact done, through either face."""
    face.configure(keep_done="compact")
    return face


@pytest.fixture
def polite(compact: Any) -> Any:
    """The same, and it visits one page of a host at a time, without a pause."""
    compact.configure(politeness=Politeness(0))
    return compact


def finish(queue: Any, *tasks: str) -> None:
    """Put tasks, and ack all that is ready."""
    queue.put(tasks)
    while leases := queue.claim(500):
        queue.ack(leases)


def seen(raw: redis.Redis, queue: Any) -> dict[str, str]:
    """What the queue knows of its sets."""
    return dict(raw.hgetall(queue.talk.operations.key("seen")))  # type: ignore[arg-type]  # redis-py types both faces


def call(queue: Any, made: Call[Any]) -> Any:
    """Send a call for which the faces have no method."""
    return queue.run(sending.answer(queue.talk, made))


def sha(name: str) -> bytes:
    """The function by which a verb is called."""
    return scripts.function(name).encode()


# ---- what it keeps


def test_a_task_that_is_done_is_known_and_neither_it_nor_any_other_id_is_kept(compact: Any, raw: redis.Redis) -> None:
    finish(compact, "a", "b")
    assert list(compact.put("a", "new", "b")) == ["done", "added", "done"]
    assert compact.states("a", "b", "new", "x").counts() == {"done": 2, "todos": 1, "unknown": 1}
    assert compact.inspect("a").state is State.DONE
    assert compact.why("a").code == "done"
    stats = compact.stats()
    assert (stats.done, stats.known, stats.compact) == (2, 3, True)
    assert (stats.settings["keep_done"], stats.settings["uses"]) == ("compact", "compact")
    key = compact.talk.operations.key
    assert raw.exists(key("done"), key("done_at")) == 0
    assert {len(str(member)) for member in raw.smembers(key("seen:0"))} == {19}
    assert raw.object("encoding", key("seen:0")) == "intset"


def test_the_salt_is_another_one_in_each_queue_and_stays(compact: Any, url: str, name: str, raw: redis.Redis) -> None:
    finish(compact, "a")
    before = seen(raw, compact)
    with Queue(name, url, keep_done="compact") as again, Queue(f"{name}-b", url, keep_done="compact") as other:
        assert again.stats().done == 1
        finish(other, "a")
        assert seen(raw, again) == before
        assert seen(raw, other)["salt"] != before["salt"]
        assert raw.smembers(other.operations.key("seen:0")) != raw.smembers(again.operations.key("seen:0"))
        other.purge()


def test_ids_may_be_any_bytes_and_long(compact: Any) -> None:
    tasks = ["é", b"\xff\xfe\x00", "x" * 1024, "1234567890123456789", "0", "-1"]
    compact.put(tasks)
    compact.ack(compact.claim(9))
    assert compact.states(tasks).counts() == {"done": 6}
    assert compact.states("e", b"\xff\xfe", "x" * 1023, "1").counts() == {"unknown": 4}


def test_thousands_are_kept_in_sets_that_divide(compact: Any, raw: redis.Redis) -> None:
    tasks = [f"t{i}" for i in range(3000)]
    finish(compact, *tasks)
    assert compact.states(tasks).counts() == {"done": 3000}
    assert compact.states([f"u{i}" for i in range(3000)]).counts() == {"unknown": 3000}
    row = seen(raw, compact)
    count = 2 ** int(row["level"]) + int(row["split"])
    assert (row["count"], count) == ("3000", 16)  # 3000 / 192, rounded up
    sizes = [raw.scard(compact.talk.operations.key(f"seen:{number}")) for number in range(count)]
    assert sum(sizes) == 3000
    assert max(sizes) <= 512


# ---- each way to be done


def test_an_ack_of_many_leases_counts_each_task_once(compact: Any) -> None:
    compact.put("a", "b", "c")
    leases = compact.claim(3)
    assert list(compact.ack([leases[0], leases[0], *leases[1:]])) == ["ok", "lost", "ok", "ok"]
    assert list(compact.ack([leases[0], leases[0], *leases[1:]])) == ["already", "lost", "already", "already"]
    assert list(compact.ack(leases)) == ["lost", "lost", "lost"]
    assert compact.stats().done == 3


def test_an_ack_with_a_lease_that_is_lost_leaves_no_fingerprint(compact: Any, raw: redis.Redis) -> None:
    compact.put("a", "b")
    first, second = compact.claim(2)
    compact.release(first)
    with pytest.raises(LeaseLost):
        compact.ack(first)
    assert list(compact.ack([first, second])) == ["lost", "ok"]
    assert compact.states(first.task, second.task).counts() == {"todos": 1, "done": 1}
    (again,) = compact.claim()
    assert again.task == first.task
    assert list(compact.ack([first])) == ["lost"], "somebody else has the task now"
    assert compact.states(first.task, second.task).counts() == {"in_progress": 1, "done": 1}
    assert seen(raw, compact)["count"] == "1"


def test_a_task_that_a_foreign_hand_has_made_ready_though_it_is_done_counts_once(
    compact: Any, raw: redis.Redis
) -> None:
    finish(compact, "old", "older")
    compact.put("new")
    raw.sadd(compact.talk.operations.key("todos"), "old")
    leases = compact.claim(5)
    assert sorted(lease.task for lease in leases) == ["new", "old"]
    assert compact.ack(leases).counts() == {"ok": 2}
    assert seen(raw, compact)["count"] == "3"
    assert compact.states("old", "older", "new").counts() == {"done": 3}


def test_an_ack_puts_what_it_found_but_not_what_is_done(compact: Any) -> None:
    finish(compact, "old")
    compact.put("page")
    (lease,) = compact.claim()
    assert compact.ack(lease, put=["old", "page", "new", Task("with", payload=1)]) == "ok"
    assert compact.states("old", "page", "new", "with").counts() == {"done": 2, "todos": 2}


def test_an_ack_for_a_time_is_not_done_and_leaves_no_fingerprint(compact: Any) -> None:
    compact.put("page")
    (lease,) = compact.claim()
    assert compact.ack(lease, again_in=60, payload={"n": 2}) == "ok"
    assert (compact.inspect("page").state, compact.stats().done) == (State.SCHEDULED, 0)
    assert compact.inspect("page").payload == {"n": 2}


def test_pulled_tasks_are_done(compact: Any) -> None:
    assert compact.pull(5) == []
    compact.put("a", {"b": 1})
    assert {task.task for task in compact.pull(5)} == {"a", "b"}
    assert compact.states("a", "b").counts() == {"done": 2}
    assert compact.inspect("b").payload is None


def test_tasks_of_an_export_come_in_as_done(compact: Any) -> None:
    finish(compact, "known")
    compact.put("ready")
    records = [Record(task, State.DONE, acked=1.7e9) for task in (b"known", b"ready", b"new", b"new", b"x")]
    answers = call(compact, compact.talk.operations.restore(records, lambda: b"once"))
    assert list(answers) == ["done", "todos", "added", "done", "added"]
    assert compact.states("known", "ready", "new", "x").counts() == {"done": 3, "todos": 1}
    assert compact.stats().done == 3


def test_a_replica_of_a_call_whose_reply_was_lost_does_not_count_twice(url: str, name: str) -> None:
    with Proxy(url) as proxy, Queue(name, proxy.url, keep_done="compact") as queue:
        finish(queue, "known")
        queue.forget("known")  # the server knows the scripts by now
        queue.put("a", "b", "c")
        leases = queue.claim(3)
        for lost in (leases[:2], leases[2:]):
            proxy.arm(Fault.RESET_AFTER, sha("ack"))
            assert {str(answer) for answer in queue.ack(lost)} == {"already"}
            assert proxy.lost == 1
        assert queue.stats().done == 3
        proxy.arm(Fault.RESET_AFTER, sha("put"))
        assert list(queue.put("a", again=True)) == ["todos"]
        assert (queue.stats().done, queue.stats().todos) == (2, 1)
        proxy.arm(Fault.RESET_AFTER, sha("forget"))
        assert list(queue.forget("b")) == ["unknown"]
        assert queue.stats().done == 1
        check(url, name)
        queue.purge()


# ---- each way to be done no more


def test_put_again_takes_the_fingerprint_out_and_done_again_counts_once(compact: Any) -> None:
    finish(compact, "a", "b")
    assert list(compact.put({"a": 1}, "a", "new", again=True)) == ["added", "todos", "added"]
    assert (compact.stats().done, compact.stats().todos) == (1, 2)
    assert {lease.task: lease.payload for lease in compact.claim(5)} == {"a": 1, "new": None}
    assert compact.forget("new") == compact.forget("new") or compact.states("new").counts() == {"unknown": 1}
    (info,) = [compact.inspect("a")]
    assert info.state is State.IN_PROGRESS
    assert compact.put("a", again=True).counts() == {"in_progress": 1}
    assert compact.stats().done == 1


def test_schedule_again_takes_the_fingerprint_out(compact: Any) -> None:
    finish(compact, "a", "b")
    assert list(compact.schedule("a", "c", after=60)) == ["done", "added"]
    assert list(compact.schedule("a", "c", after=60, again=True)) == ["added", "scheduled"]
    assert (compact.stats().done, compact.stats().scheduled) == (1, 2)


def test_forget_takes_the_fingerprint_out(compact: Any) -> None:
    finish(compact, "a", "b")
    compact.put("c")
    assert list(compact.forget("a", "a", "c", "x")) == ["done", "done", "todos", "unknown"]
    assert (compact.stats().done, compact.stats().known) == (1, 1)
    assert list(compact.put("a")) == ["added"]


def test_retry_failed_says_that_a_task_is_done(compact: Any) -> None:
    finish(compact, "a")
    compact.put("b")
    compact.fail(compact.claim(1), "no", give_up=True)
    calls = compact.talk.operations.retry_failed(("a", "b", "x"))
    assert list(call(compact, calls[0])) == ["done", "ok", "unknown"]


def test_the_other_ends_of_a_lease_do_as_ever(compact: Any) -> None:
    compact.put("a", "b", "c")
    first, second, third = compact.claim(3)
    compact.release(first)
    compact.fail(second, "no", retry_in=60)
    compact.extend(third, timeout=0.01)
    assert call(compact, compact.talk.operations.crash([third], "died")[0]).counts() in ({"ok": 1}, {"lost": 1})
    compact.requeue_expired()
    assert compact.states("a", "b", "c").counts() == {"todos": 2, "scheduled": 1}
    assert not compact.drained()
    assert compact.prune() == 0
    finish(compact)
    assert not compact.drained()
    compact.forget(second.task)
    assert compact.drained()


def test_describe_tells_that_a_task_is_done_and_not_since_when(compact: Any) -> None:
    finish(compact, "a")
    assert call(compact, compact.talk.operations.describe([b"a", b"x"])) == (2, [Record(b"a", State.DONE)])


# ---- on polite queues


def test_a_polite_queue_forgets_the_priority_and_the_group_of_a_done_task(polite: Any, raw: redis.Redis) -> None:
    polite.put(f"{A}1", f"{A}2", priority=5)
    polite.put("x", group="a.example", priority=3)
    polite.put(f"{A}3")
    finish(polite)
    while polite.promote_due():
        finish(polite)
    assert polite.stats().done == 4
    key = polite.talk.operations.key
    assert raw.exists(key("priorities"), key("groups"), key("payload")) == 0
    assert list(polite.put(f"{A}1", again=True)) == ["added"]
    assert polite.inspect(f"{A}1").priority == 0


def test_a_done_task_comes_into_a_polite_queue_without_its_priority(polite: Any, raw: redis.Redis) -> None:
    records = [Record(f"{A}1".encode(), State.DONE, priority=5), Record(f"{A}2".encode(), State.TODOS, priority=4)]
    assert call(polite, polite.talk.operations.restore(records, lambda: b"n")).added == 2
    assert raw.hgetall(polite.talk.operations.key("priorities")) == {f"{A}2": "4"}


def test_raising_works_and_improving_is_refused_by_name(polite: Any) -> None:
    polite.put(f"{A}busy")
    (lease,) = polite.claim()
    polite.put(f"{A}1", priority=1)
    assert list(polite.put(f"{A}1", priority=2)) == ["raised"]
    before = polite.stats()
    found = Task(f"{A}1", priority=9, improve=True)
    all_refused: list[Callable[[], object]] = [
        lambda: polite.put(f"{A}1", priority=9, improve=True),
        lambda: polite.put(found),
        lambda: polite.schedule(f"{A}new", after=1, priority=9, improve=True),
        lambda: polite.ack(lease, put=[found]),
    ]
    for refused in all_refused:
        with pytest.raises(
            InvalidInput, match=r'keep_done="compact", which keeps no priorities of done tasks: put wit'
        ):
            refused()
    after = polite.stats()
    assert (after.counters, after.known) == (before.counters, before.known)
    assert polite.ack(lease, put=[Task(f"{A}1", priority=9)]) == "ok"
    assert polite.inspect(f"{A}1").priority == 9


def test_politeness_begins_and_ends_on_a_queue_with_compact_done(compact: Any) -> None:
    finish(compact, f"{A}1")
    compact.configure(politeness=Politeness(60))
    compact.put(f"{A}1", f"{A}2", f"{A}3")
    assert compact.stats().settings["uses"] == "compact politeness"
    # a visit has ended before politeness began, so the host rests first
    assert (compact.stats().done, compact.stats().waiting) == (1, 2)
    compact.configure(politeness="off")
    assert (compact.stats().settings["uses"], compact.stats().todos, compact.stats().done) == ("compact", 2, 1)


def test_hosts_of_an_export_come_in(polite: Any) -> None:
    found = call(polite, hosts.restore_hosts(polite.talk.operations, [HostRecord(b"a.example", 5.0)], lambda: b"n"))
    assert found == 1


# ---- what is refused


def test_done_tasks_cannot_be_listed_and_all_others_can(compact: Any) -> None:
    finish(compact, "a")
    compact.put("b")
    for refused in (
        lambda: compact.list("done"),
        lambda: list(compact.each(State.DONE)),
        lambda: compact.run(reads.page(compact.talk, "done", None, 5)),
    ):
        with pytest.raises(InvalidInput, match=r"cannot list them\. Ask for ids that you have: states\(\)"):
            refused()
    assert [entry.task for entry in compact.list("todos").entries] == ["b"]
    assert [entry.task for entry in compact.each("failed")] == []


IN_STATES: dict[str, Callable[[Any], object]] = {
    "todos": lambda queue: queue.put("a"),
    "in_progress": lambda queue: (queue.put("a"), queue.claim()),
    "done": lambda queue: finish(queue, "a"),
    "failed": lambda queue: (queue.put("a"), queue.fail(queue.claim(1), "no", give_up=True)),
    "scheduled": lambda queue: queue.schedule("a", after=60),
    "waiting": lambda queue: (
        queue.configure(politeness=Politeness(60)),
        queue.put(f"{A}1", f"{A}2"),
        queue.forget(f"{A}1"),
    ),
}


@pytest.mark.parametrize("state", IN_STATES)
def test_it_begins_only_while_the_queue_has_no_task_in_any_state(face: Any, raw: redis.Redis, state: str) -> None:
    IN_STATES[state](face)
    assert getattr(face.stats(), state) == 1
    before = {key: raw.dump(key) for key in map(str, raw.keys())}
    with pytest.raises(
        InvalidInput, match=r"no tasks, and this queue has 1, done ones counted: set it on a new queue, "
    ):
        face.configure(keep_done="compact", max_crashes=3)
    assert {key: raw.dump(key) for key in map(str, raw.keys())} == before


def test_a_client_that_is_opened_with_it_is_refused_too(url: str, name: str) -> None:
    with Queue(name, url) as queue, Queue(name, url, keep_done="compact") as other:
        queue.put("a")
        with pytest.raises(InvalidInput, match="timeoutq export OLD"):
            other.put("b")
        queue.forget("a")
        assert other.put("b").added == 1
        assert queue.stats().compact
        queue.purge()


@pytest.mark.parametrize("other", ["forever", 0, 1000])
def test_it_stays_as_long_as_something_is_done(compact: Any, raw: redis.Redis, other: Any) -> None:
    finish(compact, "a")
    before = seen(raw, compact)
    with pytest.raises(InvalidInput, match="keeps 1 done tasks as fingerprints, which no other keep_done can read"):
        compact.configure(max_crashes=9, keep_done=other)
    assert "max_crashes" not in compact.stats().settings
    compact.configure(keep_done="compact", max_crashes=4)
    assert seen(raw, compact) == before
    compact.put("b")
    compact.forget("a")
    compact.configure(keep_done=other)
    assert not compact.stats().compact
    assert seen(raw, compact) == {}
    finish(compact)
    assert compact.states("b").counts() == ({"unknown": 1} if other == 0 else {"done": 1})


def test_after_a_purge_it_is_a_queue_like_any_other(compact: Any, raw: redis.Redis) -> None:
    finish(compact, "a")
    compact.purge()
    assert raw.keys(compact.talk.operations.key("*")) == []
    finish(compact, "a")
    assert (compact.stats().compact, compact.stats().done) == (False, 1)


@pytest.mark.parametrize(
    ("value", "said"),
    [(b"compact", "comes with a salt"), (b"compact ", None), (b"compact a b", None), (b"compact \xff", None)],
)
def test_a_wire_without_a_good_salt_does_not_make_a_queue_compact(
    url: str, name: str, value: bytes, said: str | None
) -> None:
    with Queue(name, url) as queue:
        wanted = queue.operations.configure({"keep_done": value})
        if said:
            with pytest.raises(InvalidInput, match=said):
                call(queue, wanted)
        else:
            call(queue, wanted)
        finish(queue, "a")
        assert not queue.stats().compact
        queue.purge()


def test_a_setting_that_is_written_only_once_leaves_a_compact_queue_as_it_is(compact: Any) -> None:
    finish(compact, "a")
    call(compact, compact.talk.operations.configure({"keep_done?": b"forever"}))
    assert compact.stats().settings["keep_done"] == "compact"


@pytest.mark.parametrize("bad", ["Compact", "compact ", b"compact", ["compact"], "no"])
def test_words_that_are_not_the_word_are_refused_before_anything_is_sent(bad: Any) -> None:
    with pytest.raises(InvalidInput, match='must be "forever", "compact", 0, a number of tasks, or a timedelta'):
        Queue("q", "redis://localhost:1", keep_done=bad)


# ---- servers that are full, and keys of foreign types


def test_a_full_server_takes_acks_and_refuses_puts(compact: Any, raw: redis.Redis) -> None:
    compact.put([f"t{i}" for i in range(600)])
    leases = [*compact.claim(500), *compact.claim(500)]
    raw.config_set("maxmemory", 1)
    try:
        assert compact.ack(leases[:599]).ok == 599
        with pytest.raises(ServerFull):
            compact.put("new")
        with pytest.raises(ServerFull):
            call(compact, compact.talk.operations.restore([Record(b"r", State.DONE)], lambda: b"n"))
        with pytest.raises(ServerFull):
            compact.put("t0", again=True)
        assert compact.forget(leases[0].task).counts() == {"done": 1}
    finally:
        raw.config_set("maxmemory", 0)
    assert (compact.stats().done, compact.stats().in_progress) == (598, 1)


def picture(raw: redis.Redis) -> dict[str, Any]:
    """What all keys of the server hold, but for those that change whatever a call does."""
    client: Any = raw
    # DUMP tells of the order, too, in which a server has put members
    holds: dict[str, Callable[[str], Any]] = defaultdict(lambda: client.dump)
    holds["set"] = client.smembers
    holds["hash"] = client.hgetall
    holds["zset"] = lambda key: client.zrange(key, 0, -1, withscores=True)
    kept = [key for key in map(str, client.keys()) if not key.endswith((":meta", "aside"))]
    return {key: holds[client.type(key)](key) for key in kept}


@pytest.mark.breaking
@pytest.mark.parametrize("number", range(3))
def test_an_ack_that_meets_a_set_of_a_foreign_type_changes_nothing(
    url: str, name: str, raw: redis.Redis, number: int
) -> None:
    client: Any = raw
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, *(f"t{i}" for i in range(500)))  # three sets, and soon a fourth
        queue.put([f"u{i}" for i in range(200)])
        leases = queue.claim(500)
        key = queue.operations.key(f"seen:{number}")
        client.rename(key, "aside")
        client.set(key, "a string")
        before = picture(raw)
        prints = fingerprints.Sets(client.hget(queue.operations.key("seen"), "salt").encode())
        prints.level, prints.split = 1, 1
        there = [lease for lease in leases if prints.number(_print(prints, lease.task)) == number]
        other = next(lease for lease in leases if lease not in there)  # has its fingerprint by then
        with pytest.raises(ServerError, match="is of a foreign type"):
            queue.ack([other, *there])
        assert picture(raw) == before
        client.delete(key)
        client.rename("aside", key)
        assert queue.ack(leases).ok == 200
        check(url, name)
        queue.purge()


@pytest.mark.parametrize("number", [3, 4, 5])
def test_an_ack_that_meets_a_foreign_key_where_a_set_divides_loses_nothing(
    url: str, name: str, raw: redis.Redis, number: int
) -> None:
    client: Any = raw
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, *(f"t{i}" for i in range(500)))  # three sets, and soon six
        queue.put([f"u{i}" for i in range(500)])
        leases = queue.claim(500)
        key = queue.operations.key(f"seen:{number}")
        client.set(key, "a string")
        with pytest.raises(ServerError, match="is of a foreign type"):
            queue.ack(leases)
        client.delete(key)
        assert queue.ack(leases).ok == 500
        assert queue.states([f"{letter}{i}" for letter in "tu" for i in range(500)]).counts() == {"done": 1000}
        with redis.Redis.from_url(url) as plain:
            check_keys(plain, name, counters=False)  # the count is a guess from now on
        queue.purge()


def _print(prints: fingerprints.Sets, task: str) -> int:
    return fingerprints.fingerprint(prints.salt, task.encode())


VERBS = ["put", "put again", "ack", "pull", "forget", "restore", "inspect", "states"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("which", ["seen", "seen:0"])
def test_a_verb_that_meets_a_foreign_key_changes_nothing(
    url: str, name: str, raw: redis.Redis, verb: str, which: str
) -> None:
    client: Any = raw
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, "a")
        queue.put("b", "c")
        (lease,) = queue.claim()
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: queue.put("a", "new"),
            "put again": lambda: queue.put("a", again=True),
            "ack": lambda: queue.ack(lease),
            "pull": lambda: queue.pull(1),
            "forget": lambda: queue.forget("a"),
            "restore": lambda: call(queue, queue.operations.restore([Record(b"r", State.DONE)], queue.token)),
            "inspect": lambda: queue.inspect("a"),
            "states": lambda: queue.states("a", "b"),
        }
        key = queue.operations.key(which)
        client.rename(key, "aside")
        client.set(key, "a string")
        before = picture(raw)
        with pytest.raises(ServerError, match="is of a foreign type"):
            verbs[verb]()
        assert picture(raw) == before
        client.delete(key)
        client.rename("aside", key)
        verbs[verb]()
        check(url, name)
        queue.purge()


# ---- purges


@pytest.fixture
def many_sets(url: str) -> Iterator[None]:
    """Let sets divide as soon as they have more than one fingerprint each, so that there are many."""

    with planted(url, "local full, divisions = 192, 4 ", "local full, divisions = 1, 500 "):
        yield


def test_a_purge_removes_the_sets_500_at_a_time_and_what_is_left_is_whole(
    many_sets: None, url: str, name: str, raw: redis.Redis
) -> None:
    tasks = [f"t{i}" for i in range(1300)]
    with Queue(name, url, keep_done="compact") as queue, redis.Redis.from_url(url) as client:
        finish(queue, *tasks)
        prefix, lengths = queue.operations.key(""), list[int]()

        def there() -> fingerprints.Sets:
            found = fingerprints.read(client, prefix)
            assert found is not None
            return found

        assert 2 ** there().level + there().split == 1300
        while not call(queue, queue.operations.purge()):
            left = there()
            lengths.append(2**left.level + left.split)
            # what is left is found where it is
            assert set(left.sets) <= set(range(lengths[-1]))
            left.count = sum(map(len, left.sets.values()))
            assert fingerprints.wrong(left) == []
            assert queue.states(tasks).counts()["done"] == left.count
        assert lengths == [800, 300]
        assert raw.keys(f"{prefix}*") == []


def test_a_purge_that_was_broken_off_can_be_called_again_and_the_queue_goes_on_meanwhile(
    many_sets: None, url: str, name: str, raw: redis.Redis
) -> None:
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, *(f"t{i}" for i in range(1300)))
        assert call(queue, queue.operations.purge()) == 0
        finish(queue, *(f"u{i}" for i in range(50)))
        assert queue.states([f"u{i}" for i in range(50)]).counts() == {"done": 50}
        queue.purge()
        assert raw.keys(queue.operations.key("*")) == []


@pytest.mark.parametrize("field", [None, "level", "split"])
def test_a_purge_finds_the_sets_by_their_names_if_nothing_else_tells_of_them(
    many_sets: None, url: str, name: str, raw: redis.Redis, field: str | None
) -> None:
    client: Any = raw
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, *(f"t{i}" for i in range(700)))
        key = queue.operations.key("seen")
        client.hset(key, field, "x") if field else client.delete(key)
        queue.purge()
        assert raw.keys(queue.operations.key("*")) == []


def test_a_late_part_of_a_purge_leaves_the_sets_of_a_new_queue(url: str, name: str, raw: redis.Redis) -> None:
    client: Any = raw
    with Queue(name, url, keep_done="compact") as queue:
        finish(queue, "a")
        client.sadd(queue.operations.key("seen:7"), 5)
        call(queue, queue.operations.purge([b"seen:0", b"seen:7", b"seen:x"]))
        assert raw.exists(queue.operations.key("seen:0"), queue.operations.key("seen:7")) == 1
        assert queue.stats().done == 1
        queue.purge()


# ---- in memory


@pytest.mark.parametrize("made", [fake_queue, lambda **words: Blocking_of(fake_async_queue(**words))])
def test_it_works_on_fakeredis(made: Callable[..., Any]) -> None:
    queue = made(keep_done="compact")
    finish(queue, *(f"t{i}" for i in range(700)))
    assert queue.stats().done == 700
    assert queue.states([f"t{i}" for i in range(700)], "x").counts() == {"done": 700, "unknown": 1}
    assert list(queue.put("t3", again=True)) == ["added"]
    assert queue.stats().done == 699
    queue.close()


def Blocking_of(queue: Any) -> Any:  # noqa: N802  # it stands for a class
    """Give a queue that was made for asyncio behind blocking calls."""
    blocking = Blocking("unused", "redis://localhost:1")
    blocking.queue = queue
    blocking.close = lambda: blocking.__exit__()  # type: ignore[attr-defined]  # as the other face has it
    return blocking


# ---- queues that do not use it


def keys_of(raw: redis.Redis, name: str) -> Sequence[str]:
    """The keys of a queue."""
    return sorted(key.removeprefix(f"timeoutq:{{{name}}}:") for key in map(str, raw.keys()))


def test_a_queue_that_does_not_use_it_has_nothing_of_it(queue: Queue, raw: redis.Redis, name: str) -> None:
    finish(queue, "a")
    queue.configure(max_crashes=4)
    assert set(keys_of(raw, name)) == {"done", "meta", "stats", "bell", "calls"}
    assert raw.smembers(queue.operations.key("done")) == {"a"}
    assert "uses" not in queue.stats().settings
