"""Ids that block for a time: of done tasks as long as their ack has said, of failed ones as long as the put says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease, Politeness, Queue, Task
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending

KEEP: dict[str, Any] = {
    "forever": {},
    "no": {"keep_done": 0},
    "many": {"keep_done": 1},
    "5 s": {"keep_done": timedelta(seconds=5)},
}


def ack(face: Any, *leases: Lease, **how: Any) -> list[Any]:
    return list(face.run(sending.answers(face.talk, face.operations.ack(leases, **how))))


def leases_of(face: Any, *tasks: str) -> list[Lease]:
    face.put(tasks)
    found = {lease.task: lease for lease in face.claim(len(tasks))}
    return [found[task] for task in tasks]


def _is_added(put: Callable[[str], str], task: str) -> bool:
    return put(task) == "added"


def uses(raw: redis.Redis, name: str) -> Any:
    return raw.hget(f"timeoutq:{{{name}}}:meta", "uses")


@pytest.mark.parametrize("keep", KEEP)
def test_a_done_task_blocks_its_id_exactly_until_its_time_whenever_prune_comes(keep: str) -> None:
    with fake_queue(timeout=60, **KEEP[keep]) as queue:
        first, second, bare = leases_of(queue, "a", "b", "c")
        assert ack(queue, first, second, bare, until={0: 10_000}, bare=[2]) == ["ok"] * 3
        assert ack(queue, first, second, bare, until={0: 10_000}, bare=[2]) == ["already"] * 3
        kept = "done" if keep != "no" else "unknown"
        assert list(queue.states("a", "b", "c")) == ["done", kept, "unknown"]
        queue.prune()
        queue.clock.advance(9.999)
        queue.prune()
        assert list(queue.put("a")) == ["done"]
        queue.clock.advance(0.001)
        assert list(queue.put("a", "a")) == ["added", "todos"]
        (lease,) = queue.claim()
        ack(queue, lease)
        assert list(queue.states("a")) == [kept], "its new ack did not say how long"


def test_keep_done_that_changes_later_does_not_count_for_an_id_that_blocks_for_a_time() -> None:
    with fake_queue(timeout=60) as queue:
        first, second = leases_of(queue, "a", "b")
        ack(queue, first, second, until={0: 100_000})
        queue.configure(keep_done=timedelta(seconds=5))
        queue.prune()
        queue.clock.advance(6)
        assert queue.prune() == 1
        assert list(queue.states("a", "b")) == ["done", "unknown"]


@pytest.mark.parametrize("keep", [timedelta(hours=20), 2])
def test_a_put_in_the_night_adds_what_keep_done_no_longer_keeps_though_no_worker_has_run_since(keep: Any) -> None:
    with fake_queue(timeout=60, keep_done=keep) as queue:
        ack(queue, *leases_of(queue, "a", "b"), until={1: 100 * 3_600_000})
        queue.clock.advance(20 * 3600 - 0.001)
        assert list(queue.put("a", "b", "c", "d")) == ["done", "done", "added", "added"]
        ack(queue, *leases_of(queue, "c", "d"))
        queue.clock.advance(0.001)
        assert list(queue.put("a", "b", "a", "c")) == ["added", "done", "todos", "done"]
        assert (queue.prune(), list(queue.states("a", "b"))) == (0, ["todos", "done"])


@pytest.mark.parametrize("rules", [None, Politeness(0, 1)], ids=["plain", "polite"])
def test_an_id_that_blocks_no_longer_is_added_by_every_way_in(face: Any, rules: Politeness | None) -> None:
    face.configure(politeness=rules or "off")
    ways: dict[str, Any] = {
        "http://a.example/put": lambda task: face.put({task: 1})[0],
        "http://a.example/schedule": lambda task: face.schedule(task, after=9)[0],
        "http://a.example/with a group": lambda task: face.put(task, group="g")[0],
    }
    for task, put in ways.items():
        ack(face, *leases_of(face, task), until={0: 1})
        wait_until(partial(_is_added, put, task), 10)
        assert face.inspect(task).state in ("todos", "scheduled", "waiting")
        face.forget(task)
    done = "http://b.example/found"
    ack(face, *leases_of(face, done), until={0: 1})
    (lease,) = leases_of(face, "finder")
    ended = face.stats().now
    wait_until(lambda: face.stats().now > ended + 0.001, 10)
    face.ack(lease, put=done)
    assert face.inspect(done).state == "todos"


def test_a_failed_task_blocks_its_id_for_as_long_as_the_put_says(face: Any) -> None:
    (lease,) = leases_of(face, "a")
    face.fail(lease, "no", give_up=True)
    assert list(face.put("a")) == ["failed"]
    assert list(face.put(Task("a", unique=100), Task("b", unique=100))) == ["failed", "added"]
    assert list(face.put(Task("a", unique=timedelta(0)))) == ["added"]
    found = next(lease for lease in face.claim(2) if lease.task == "a")
    assert found.attempt == 1, "with a clean record"


@pytest.fixture
def prints(url: str, name: str) -> Iterator[Queue]:
    """A queue that keeps fingerprints of done tasks."""
    with Queue(name, url, keep_done="compact") as queue:
        yield queue
        queue.purge()


def test_an_ack_of_a_queue_with_fingerprints_keeps_its_id_for_ever_and_harms_no_other(
    prints: Queue, raw: redis.Redis
) -> None:
    kept, bare, other = leases_of(prints, "kept", "bare", "other")
    leases = kept, bare, other, replace(kept, task="lost")
    acked = prints.run(sending.answers(prints.talk, prints.operations.ack(leases, until={0: 1, 3: 1}, bare=[1])))
    assert (list(acked), acked.ok, acked.counts()) == (["ok"] * 3 + ["lost"], 3, {"ok": 3, "lost": 1})
    assert acked.codes == b"kOOL", "the worker is told"
    assert ack(prints, *leases, until={0: 1}, bare=[1]) == ["already"] * 3 + ["lost"]
    assert list(prints.states("kept", "bare", "other")) == ["done", "unknown", "done"]
    assert uses(raw, prints.name) == "compact"
    assert not raw.exists(prints.operations.key("done_until"))


def test_a_queue_with_fingerprints_refuses_to_let_an_id_block_for_a_time(prints: Queue) -> None:
    (lease,) = leases_of(prints, "a")
    task = Task("b", unique=timedelta(hours=1))
    puts: list[Callable[[], object]] = [
        lambda: prints.put(task, "c"),
        lambda: prints.schedule(task, "c", after=1),
        lambda: prints.ack(lease, put=[task, "c"]),
    ]
    for put in puts:
        with pytest.raises(InvalidInput, match=r'keep_done="compact".*: use unique="active" or "forever"'):
            put()
    assert list(prints.states("a", "b", "c")) == ["in_progress", "unknown", "unknown"], "nothing was written"
