"""Results of runs, and waiting for tasks to end, through both faces on real servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease, Politeness, Queue, State
from timeoutq.rooms import results as waiting
from timeoutq.server.calls import Kept
from timeoutq.verbs import sending
from timeoutq.words.model import Ended

HOUR = 3_600_000


def ack(face: Any, *leases: Lease, results: Mapping[int, Kept] | None = None, bare: Collection[int] = ()) -> list[Any]:
    """Ack leases with results, as the worker of a room does."""
    return list(face.run(sending.answers(face.talk, face.operations.ack(leases, results=results, bare=bare))))


def fail(face: Any, lease: Lease, retry_ms: int, result: Kept) -> None:
    calls = face.operations.fail([lease], [retry_ms], [b"no"], results={0: result})
    face.run(sending.answers(face.talk, calls))


def kept(body: str, ms: int = HOUR) -> Kept:
    return Kept(body.encode(), ms)


def leases_of(face: Any, *tasks: str) -> list[Lease]:
    face.put(tasks)
    found = {lease.task: lease for lease in face.claim(len(tasks))}
    return [found[task] for task in tasks]


def later(face: Any, *tasks: str) -> Callable[[], dict[str, Ended]]:
    """Begin to wait in a thread; give the function that tells what the wait gave."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(face.results.wait(*tasks, timeout=30)))
    thread.start()

    def outcome() -> dict[str, Ended]:
        thread.join(30)
        assert box, "the wait has not ended"
        return box[0]  # type: ignore[no-any-return]  # what wait() gave

    return outcome


def awaited(raw: redis.Redis, name: str) -> Any:
    return raw.hgetall(f"timeoutq:{{{name}}}:awaited")


def test_a_result_is_written_with_the_ack_and_kept_for_its_time(face: Any, raw: redis.Redis, name: str) -> None:
    first, second = leases_of(face, "a", "b")
    assert ack(face, first, second, results={0: kept("8", 5000)}) == ["ok", "ok"]
    assert face.results.look("a", "b") == {"a": Ended("a", State.DONE, b"8"), "b": Ended("b", State.DONE)}
    assert 0 < raw.pttl(f"timeoutq:{{{name}}}:result:a") <= 5000
    assert face.inspect("a").has_result
    assert not face.inspect("b").has_result


def test_a_run_without_a_result_removes_the_one_of_the_run_before(face: Any) -> None:
    (lease,) = leases_of(face, "a")
    ack(face, lease, results={0: kept("old")})
    face.put("a", again=True)
    assert face.results.look("a") == {}, "a task that is ready has not ended, whatever is left of its last run"
    face.ack(face.claim())
    assert face.results.look("a") == {"a": Ended("a", State.DONE)}


def test_a_lost_lease_writes_no_result(face: Any) -> None:
    (lease,) = leases_of(face, "a")
    face.forget("a")
    assert ack(face, lease, results={0: kept("x")}) == ["lost"]
    assert face.results.look("a")["a"].is_gone


def test_a_task_acked_bare_leaves_no_id_in_done(face: Any, raw: redis.Redis, name: str) -> None:
    first, second = leases_of(face, "a", "b")
    assert ack(face, first, second, results={0: kept("1")}, bare=[0]) == ["ok", "ok"]
    assert raw.smembers(f"timeoutq:{{{name}}}:done") == {"b"}
    assert face.results.look("a") == {"a": Ended("a", None, b"1")}
    assert face.put("a")[0] == "added", "a result blocks nothing"
    assert face.stats().counters["acked"] == 2


def test_tasks_that_are_acked_bare_together_leave_no_ids_and_each_counts_once(
    face: Any, raw: redis.Redis, name: str
) -> None:
    leases = leases_of(face, *"abcde")
    raw.srem(f"timeoutq:{{{name}}}:in_progress", "c")  # somebody has taken it out by hand
    answers = ack(face, *leases, leases[0], bare=range(6))
    assert answers == ["ok", "ok", "lost", "ok", "ok", "lost"]
    raw.sadd(f"timeoutq:{{{name}}}:in_progress", "c")
    assert ack(face, leases[2], bare=[0]) == ["ok"]
    stats = face.stats()
    assert (stats.in_progress, stats.done, stats.counters["acked"]) == (0, 0, 5)


def test_of_tasks_that_are_acked_bare_together_done_keeps_those_that_have_a_time(
    face: Any, raw: redis.Redis, name: str
) -> None:
    acks = face.operations.ack(leases_of(face, "a", "b", "c"), bare=range(3), until={1: HOUR})
    assert list(face.run(sending.answers(face.talk, acks))) == ["ok", "ok", "ok"]
    assert raw.smembers(f"timeoutq:{{{name}}}:done") == {"b"}
    assert face.stats().in_progress == 0


def test_a_failure_is_kept_when_the_task_gives_up_not_before(face: Any) -> None:
    (lease,) = leases_of(face, "a")
    fail(face, lease, 0, kept("first"))
    assert face.results.look("a") == {}
    assert not face.inspect("a").has_result
    face.promote_due()
    fail(face, face.claim()[0], -1, kept("second"))
    assert face.results.look("a") == {"a": Ended("a", State.FAILED, b"second")}


def test_results_of_many_bytes_come_in_parts(face: Any) -> None:
    ids = [f"t{number}" for number in range(24)]
    ack(face, *leases_of(face, *ids), results={number: kept("x" * Kept.MOST) for number in range(24)})
    part = face.run(sending.answer(face.talk, waiting.call_look(face.operations, [id.encode() for id in ids])))
    assert [ended.task for ended in part] == ids[:16]  # 4 MiB
    assert list(face.results.look(ids)) == ids


def test_results_that_are_too_large_or_empty_are_refused() -> None:
    for body in (b"", b"x" * (256 * 1024 + 1)):
        with pytest.raises(InvalidInput, match="cannot be kept"):
            Kept(body, 1)


@pytest.mark.parametrize("end", ["fail", "forget", "purge", "pull", "crash", "release", "ban"])
def test_every_end_of_a_task_ends_the_wait(face: Any, raw: redis.Redis, name: str, end: str) -> None:
    task = "http://a.example/x"
    if end == "ban":
        face.configure(politeness=Politeness(delay=100))
        face.put("http://a.example/first")
    face.put(task)
    lease = None if end in ("pull", "ban") else face.claim()[0]
    outcome = later(face, task)
    wait_until(lambda: task in awaited(raw, name), 10)
    asked, ops = time.monotonic(), face.operations
    if end == "fail":
        face.fail(lease, "no", give_up=True)
    elif end == "forget":
        face.forget(task)
    elif end == "purge":
        face.purge()
    elif end == "pull":
        face.pull()
    elif end == "ban":
        face.hosts.ban("a.example")
    elif end == "crash":
        face.configure(max_crashes=1)
        face.run(sending.answers(face.talk, ops.crash([lease], "died")))
    else:
        face.run(sending.answers(face.talk, ops.release([lease], most=1)))
    states = {"forget": None, "purge": None, "pull": State.DONE}
    assert outcome()[task].state == states.get(end, State.FAILED)
    # a purge leaves no key: an answer that a client has not taken at once is gone, and the client looks again
    assert end == "purge" or time.monotonic() - asked < 10, "it was told, and did not only look again"


def test_all_of_sixty_clients_that_wait_for_one_task_are_told_at_once(url: str, queue: Queue, raw: redis.Redis) -> None:
    (lease,) = leases_of(queue, "a")
    clients = [Queue(queue.name, url) for _ in range(60)]
    ended: list[float] = []

    def wait(client: Queue) -> bytes | None:
        found = client.results.wait("a", timeout=10)["a"].result
        ended.append(time.monotonic())
        return found

    with ThreadPoolExecutor(60) as pool:
        waits = [pool.submit(wait, client) for client in clients]
        wait_until(lambda: sum("b" in one["flags"] for one in raw.client_list()) == 60)
        began = time.monotonic()
        ack(queue, lease, results={0: kept("8")})
        assert [one.result() for one in waits] == [b"8"] * 60
    assert max(ended) - began < waiting.LOOK_AGAIN / 3, "nobody was left to ask again by himself"
    for client in clients:
        client.close()


def test_one_call_that_ends_what_very_many_wait_for_tells_no_more_than_ten_thousand(
    queue: Queue, raw: redis.Redis
) -> None:
    leases = leases_of(queue, *(f"t{i:02}" for i in range(30)))
    queue.run(queue.flows.results.look_at([b"t00"], "c"))
    names = " ".join(f"client-{i:09}" for i in range(500))
    raw.hset(f"timeoutq:{{{queue.name}}}:awaited", mapping={lease.task: names for lease in leases})
    queue.ack(leases)
    told = [raw.llen(f"timeoutq:{{{queue.name}}}:answers:client-{i:09}") for i in range(500)]
    assert told == [20] * 500
    assert awaited(raw, queue.name) == {}


def test_a_full_server_still_takes_acks_and_says_that_a_result_did_not_fit(queue: Queue, raw: redis.Redis) -> None:
    first, second, third = leases_of(queue, "a", "b", "c")
    outcome = later(queue, "a")
    wait_until(lambda: bool(awaited(raw, queue.name)), 10)
    raw.config_set("maxmemory", "1")
    try:
        assert ack(queue, first, second, results={0: kept("x" * 50_000), 1: kept("y")}) == ["ok", "ok"]
        fail(queue, third, -1, kept("z"))
        assert outcome() == {"a": Ended("a", State.DONE, b"")}
        assert queue.results.wait("b", "c", timeout=1)["c"] == Ended("c", State.FAILED, b"", "no")
    finally:
        raw.config_set("maxmemory", "0")
    assert queue.stats().counters["results_lost"] == 3
