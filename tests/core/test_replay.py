"""Replies that are lost, calls that are sent again, servers that forget scripts, restart or change their clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from tests.rig.faces import Blocking
from tests.rig.invariants import check
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import Answer, AsyncQueue, NotReplicated, Queue, State, Unavailable
from timeoutq.server import scripts
from timeoutq.server.calls import Call
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import flows, sending
from timeoutq.verbs.confirming import Durable
from timeoutq.words.arguments import How


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as made:
        yield made


@pytest.fixture
def through(proxy: Proxy, url: str, name: str) -> Iterator[Any]:
    """A queue behind the proxy."""
    with Queue(name, proxy.url, timeout=5) as queue:
        queue.put("warm")
        queue.forget("warm")
        yield queue
        check(url, name)


def sha(queue: Any, name: str) -> bytes:
    return bytes(queue.operations.call(name, [], bytes).head[1])


BATCHES = {
    "all": "ab",
    "all but a lost one": "aLb",
    "the last release of a task": "f",
    "a last release beside a lost one": "Lf",
    "of each kind": "afLb",
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("verb", ["ack", "fail", "release"])
def test_each_lease_of_a_batch_that_is_sent_again_is_answered_as_it_ended_the_first_time(
    queue: Queue, raw: Any, verb: str, batch: str
) -> None:
    queue.put(list(batch))
    leases = {lease.task: lease for lease in queue.claim(len(batch))}
    if "f" in leases:  # its second release is the last one that it may have
        queue.run(sending.answers(queue.talk, queue.operations.release([leases["f"]], most=9)))
        (leases["f"],) = queue.claim(1)
    if "L" in leases:
        queue.release(leases["L"])
    given = [leases[task] for task in batch]
    ops = queue.operations
    (call,) = {
        "ack": lambda: ops.ack(given),
        "fail": lambda: ops.fail(given, [-1] * len(given), [b"boom"] * len(given), [b""] * len(given)),
        "release": lambda: ops.release(given, most=2),
    }[verb]()
    first = queue.run(sending.answer(queue.talk, call))
    ended = {"f": Answer.FAILED} if verb == "release" else {}
    assert list(first) == [Answer.LOST if task == "L" else ended.get(task, Answer.OK) for task in batch]
    before = queue.stats()
    for _ in range(2):
        again = call.read(binary(raw, call.command(100)))
        assert list(again) == [Answer.LOST if task == "L" else Answer.ALREADY for task in batch]
    assert replace(queue.stats(), now=before.now) == before


def test_a_put_again_whose_reply_was_lost_does_not_bring_a_task_back_twice(
    through: Any, proxy: Proxy, url: str
) -> None:
    through.put("a")
    through.ack(through.claim()[0])
    call: Call[Any] = through.operations.put(("a",), through.token, How(again=True))[0]
    with redis.Redis.from_url(url) as client:
        raw: Any = client
        assert raw.execute_command(*call.command()) == b"A"
        through.ack(through.claim()[0])
        assert raw.execute_command(*call.command(50)) == b"d"
    assert through.inspect("a").state is State.DONE


def test_a_pull_whose_reply_was_lost_is_not_sent_again(through: Any, proxy: Proxy) -> None:
    through.put("a", "b", "c")
    through.pull(1)
    proxy.arm(Fault.RESET_AFTER, sha(through, "pull"))
    with pytest.raises(Unavailable):
        through.pull(1)
    assert proxy.seen == 1
    assert through.stats().counters["pulled"] == 2
    assert through.stats().todos == 1


def test_a_claim_that_arrives_after_its_caller_gave_up_leases_nothing(face: Any, raw: redis.Redis) -> None:
    client: Any = raw
    face.put("a")
    face.stats()
    call = face.operations.claim(b"late#1", 1, 5000)
    client.function_load(scripts.library(), replace=True)
    past = int(time.time() * 1000) - 5000
    with pytest.raises(redis.ResponseError, match="LATE the claim arrived"):
        client.execute_command(*call.command(not_after=past))
    assert face.stats().in_progress == 0


# ---- processes, threads and tasks


async def test_a_claim_that_is_cancelled_gives_back_what_it_took(proxy: Proxy, url: str, name: str) -> None:
    async with AsyncQueue(name, proxy.url) as queue:
        await queue.put("a")
        await queue.claim(wait=0)
        await queue.forget("a")
        await queue.put("b")
        proxy.arm(Fault.SWALLOW, sha(queue, "claim"))
        task = asyncio.create_task(queue.claim())
        async with AsyncQueue(name, url) as other, asyncio.timeout(5):
            while not (await other.stats()).in_progress:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            while (await other.stats()).in_progress:
                await asyncio.sleep(0.01)
            assert (await other.inspect("b")).state is State.TODOS
            assert (await other.stats()).counters["released"] == 1


@pytest.mark.parametrize("later", range(1, 8))
async def test_claims_that_are_cancelled_on_their_way_with_calls_of_others_leave_no_leases(
    url: str, name: str, later: int
) -> None:
    async with AsyncQueue(name, url) as queue, AsyncQueue(name, url) as other:
        await queue.put(f"t{i}" for i in range(20))
        first = asyncio.create_task(queue.inspect("t0"))
        await asyncio.sleep(0)  # a flush is under way
        claims = [asyncio.create_task(queue.claim(1)) for _ in range(10)]
        stays = asyncio.create_task(queue.inspect("t1"))
        for _ in range(later):
            await asyncio.sleep(0)
        for claim in claims:
            claim.cancel()
        found = await asyncio.gather(*claims, return_exceptions=True)
        await asyncio.gather(first, stays)
        held = sum(len(one) for one in found if isinstance(one, list))
        async with asyncio.timeout(5):
            while (await other.stats()).in_progress != held:
                await asyncio.sleep(0.01)


# ---- addresses


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    with EmbeddedServer(unix=True) as server:
        assert server.url.startswith("unix://")
        for kind in (Queue, Blocking):
            with kind("q", server.url) as queue:
                queue.put("a", again=True)
                (lease,) = queue.claim(wait=1)
                assert queue.ack(lease) == "ok"


def test_the_environment_names_the_server(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("TIMEOUTQ_URL", url)
    with Queue(name) as queue:
        assert queue.put("a").added == 1
        with Queue(name, url) as other:
            assert other.inspect("a").state is State.TODOS
    monkeypatch.delenv("TIMEOUTQ_URL")
    with Queue(name) as queue:
        assert queue.url == "redis://127.0.0.1:1/0"
    monkeypatch.delenv("REDIS_URL")
    with Queue(name) as queue:
        assert queue.url == "redis://localhost:6379/0"


# ---- a claim that is sent again while very many leases are out


def crowd(raw: Any, name: str, count: int, at_ms: float) -> None:
    """Lease so many tasks to others, with the deadlines of one claim a ms."""
    key, ids = f"timeoutq:{{{name}}}:", [f"other{n:06d}" for n in range(count)]
    for at in range(0, count, 1000):
        some = ids[at : at + 1000]
        raw.sadd(key + "in_progress", *some)
        raw.hset(key + "owners", mapping=dict.fromkeys(some, "other#1"))
        raw.zadd(key + "leases", {id: int(at_ms + n / 500) for n, id in enumerate(some, at)})


@pytest.mark.parametrize("before", [0, 12_000])
def test_a_claim_that_is_sent_again_finds_its_tasks_among_many_leases_a_part_at_a_time(
    queue: Queue, raw: Any, before: int
) -> None:
    queue.put([f"mine{n}" for n in range(300)], ["fresh"])
    began = time.monotonic()
    call = queue.operations.claim(b"w#1", 200, 60_000)
    first = queue.run(sending.answer(queue.talk, call))
    assert first.rest is None
    deadline = first.leases[0].deadline * 1000
    crowd(raw, queue.name, 25_000, deadline - before / 500)
    age_ms = 200 + int((time.monotonic() - began) * 1000)
    parts = [call.read(binary(raw, call.command(age_ms)))]
    while parts[-1].rest is not None:
        parts.append(call.read(binary(raw, parts[-1].rest.command())))
    assert len(parts) == 3, "ten thousand leases are looked through at a time"
    found = [lease.task for part in parts for lease in part.leases]
    assert sorted(found) == sorted(lease.task for lease in first.leases)
    assert queue.stats().counters["claimed"] == 200
    gone(raw, queue.name)


def test_what_goes_on_to_look_is_not_put_off_by_a_lease_that_has_gone_meanwhile(queue: Queue, raw: Any) -> None:
    queue.put([f"zz{n}" for n in range(50)])
    call = queue.operations.claim(b"w#1", 50, 60_000)
    first = queue.run(sending.answer(queue.talk, call))
    # the last of the first part has the same deadline as its own, which stand right behind
    crowd(raw, queue.name, 25_000, round(first.leases[0].deadline * 1000) - 19)
    part = call.read(binary(raw, call.command(200)))
    assert part.rest is not None
    last = cast("bytes", part.rest.args[-1]).split(b" ", 2)[2]
    raw.zrem(f"timeoutq:{{{queue.name}}}:leases", last, "other000000", "other000001")
    found = queue.run(flows.whole(queue.talk, part))
    assert {lease.task for lease in found.leases} == {lease.task for lease in first.leases}
    assert queue.stats().counters["claimed"] == 50
    gone(raw, queue.name)


def binary(raw: Any, words: Any) -> Any:
    """Run a command, and give its reply in bytes."""
    given: Any = redis.ConnectionPool
    pool = given(**{**raw.connection_pool.connection_kwargs, "decode_responses": False})
    with redis.Redis.from_pool(pool) as client:
        return client.execute_command(*words)


def gone(raw: Any, name: str) -> None:
    """Take the others away again: they were never claimed."""
    key = f"timeoutq:{{{name}}}:"
    others = [id for id in raw.smembers(key + "in_progress") if id.startswith("other")]
    raw.srem(key + "in_progress", *others)
    raw.hdel(key + "owners", *others)
    raw.zrem(key + "leases", *others)


@pytest.mark.parametrize(("silence", "again"), [(40.0, True), (51.0, False)])
def test_a_call_is_never_sent_again_once_the_queue_may_have_forgotten_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, silence: float, again: bool
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("timeoutq.verbs.flows.time.monotonic", lambda: clock[0])
    talk = replace(queue.talk, deadline=3600.0, proved=True)
    flow = sending.settle(talk, talk.operations.put(("a",), talk.nonce))
    assert isinstance(next(flow), sending.Send)
    clock[0] += silence
    if again:
        assert isinstance(flow.send(ConnectionResetError("gone")), sending.Sleep)
        step = flow.send(None)
        assert isinstance(step, sending.Send)
        assert 40_000 in step.commands[0]  # its age, by which the script looks for the first one
    else:
        with pytest.raises(StopIteration) as ended:
            flow.send(ConnectionResetError("gone"))
        assert isinstance(ended.value.value[0], Unavailable)


def test_a_put_that_no_replica_has_confirmed_is_told_as_such_although_the_server_goes_away_then(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("timeoutq.verbs.flows.time.monotonic", lambda: clock[0])
    talk = replace(queue.talk, deadline=1.0, proved=True, durable=Durable(until=math.inf, proved=True))
    flow = sending.settle(talk, talk.operations.put(("a",), talk.nonce), replicas=1)
    assert isinstance(next(flow), sending.Send)
    step = flow.send([b"A", 0])  # the task is there, but on no replica
    with pytest.raises(StopIteration) as ended:
        while True:
            clock[0] += 0.1
            gone = isinstance(step, sending.Send)
            step = flow.send(ConnectionResetError("gone") if gone else None)
    (result,) = ended.value.value
    assert isinstance(result, NotReplicated)
    assert "put them again" in str(result)
    assert "gone" in str(result)


def test_a_put_under_the_id_of_an_earlier_put_adds_nothing(face: Any) -> None:
    """A stopped server may carry out a put long after its client gave up, and the task may have ended meanwhile."""
    once = How(call_id=b"a call#1")
    assert list(face.run(face.flows.put_as(("a",), once))) == ["added"]
    face.ack(face.claim(1))
    face.forget("a")
    face.run(face.flows.put_as(("a",), once))
    assert (face.stats().known, face.stats().counters["put"]) == (0, 1)
    assert list(face.run(face.flows.put_as(("a",), How(call_id=b"a call#2")))) == ["added"]


def test_the_ids_of_calls_are_forgotten_on_an_idle_queue_but_those_of_the_last_minute(
    queue: Queue, raw: redis.Redis
) -> None:
    server: Any = raw
    calls, now = f"timeoutq:{{{queue.name}}}:calls", server.time()[0] * 1000
    queue.put("a")
    server.zadd(calls, {f"old{i}": now - 61_000 - i for i in range(9_000)})
    young = server.zcard(calls) - 9_000
    assert young > 0
    prune = queue.operations.prune()
    assert queue.run(sending.answer(queue.talk, prune)).more, "a cleaner goes on at once"
    while server.zcard(calls) > young:
        before = server.zcard(calls)
        queue.prune()
        assert server.zcard(calls) < before
    queue.prune()
    assert server.zcard(calls) == young


def test_a_clock_that_jumps_forward_takes_no_lease_back_at_once() -> None:
    from timeoutq.testing import fake_queue

    queue = fake_queue(timeout=60)
    queue.put("a")
    (lease,) = queue.claim()
    assert queue.requeue_expired() == 0
    call = queue.operations.requeue_expired()
    expected = round(queue.clock.now * 1000)
    queue.clock.advance(600)
    queue._link().at(None).send([call.command(expected=expected)])
    assert queue.inspect("a").state is State.IN_PROGRESS
    assert queue.stats().counters["clock_jumps"] == 1
    assert queue.ack(lease) == "ok"


def test_after_a_restart_live_workers_may_extend_first(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, config={"appendfsync": "always"}) as server, Queue("q", server.url, timeout=1) as q:
        q.put("a", "b")
        leases = q.claim(2)
        assert q.requeue_expired() == 0
        wait_until(lambda: q.inspect("a").lease_left < 0)  # type: ignore[operator]  # it is leased
        q.requeue_expired()  # the cleaner has seen this server
        leases = q.claim(2)
        server.kill()
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.1, timeout=2)  # down for longer than the lease
        server.start()
        wait_until(lambda: q.stats().known == 2)
        assert q.requeue_expired() == 0
        assert q.extend(leases).ok == 2
        assert q.stats().counters["restarts"] == 1
        assert q.ack(leases).ok == 2


def test_scripts_that_the_server_forgot_are_loaded_again(face: Any, raw: redis.Redis) -> None:
    client: Any = raw
    face.put("a")
    client.script_flush()
    (lease,) = face.claim()
    client.script_flush()
    assert face.ack(lease, put=["b"]) == "ok"
    client.script_flush()
    assert face.stats().known == 2


def test_a_claim_whose_reply_was_lost_gives_the_same_tasks(through: Any, proxy: Proxy) -> None:
    through.put([f"t{i}" for i in range(10)])
    through.release(through.claim(1))
    proxy.arm(Fault.RESET_AFTER, sha(through, "claim"))
    leases = through.claim(4)
    assert proxy.lost == 1
    assert len(leases) == 4
    assert through.stats().in_progress == 4
    assert through.stats().counters["claimed"] == 5
    assert through.ack(leases).ok == 4


@pytest.mark.parametrize("verb", ["ack", "release", "fail"])
def test_an_end_whose_reply_was_lost_is_carried_out_once(through: Any, proxy: Proxy, verb: str) -> None:
    through.put("a", "b")
    one, two = through.claim(2)
    act = {"ack": through.ack, "release": through.release, "fail": lambda lease: through.fail(lease, "x", retry_in=9)}
    act[verb](one)
    proxy.arm(Fault.RESET_AFTER, sha(through, verb))
    assert act[verb](two) == "already"
    assert proxy.lost == 1
    counted = {"ack": "acked", "release": "released", "fail": "failed"}[verb]
    assert through.stats().counters[counted] == 2
