"""What a queue remembers of a task that fails or is released: its traceback, and how often its handler gave it back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig.waiting import wait_until
from timeoutq import Politeness, State
from timeoutq.verbs import sending


def raised(message: str = "bad page", *, depth: int = 1) -> ValueError:
    """Give an exception that has been raised, so deep."""

    def parse(left: int) -> None:
        local = ["kept", "to", "itself"]
        if left > 1:
            parse(left - 1)
        raise ValueError(message) if local else KeyError

    try:
        parse(depth)
    except ValueError as error:
        return error
    raise AssertionError


def failed(face: Any, task: str, error: object, **how: Any) -> None:
    """Put a task and fail it."""
    face.put(task)
    (lease,) = face.claim()
    assert lease.task == task
    face.fail(lease, error, **(how or {"give_up": True}))


def release(face: Any, lease: Any, most: int = 100, delay_ms: int = 0) -> str:
    """Release a lease as a worker does whose handler said so; give the answer."""
    call = face.operations.release([lease], delay_ms, most=most)[0]
    return str(face.run(sending.answer(face.talk, call))[0])


def settle(face: Any, call: Any) -> Any:
    return face.run(sending.answer(face.talk, call))


# ---- tracebacks


@pytest.mark.parametrize("way", ["done", "done again", "retried", "put again", "forgotten", "pulled"])
def test_the_traceback_goes_with_the_record_of_its_task(face: Any, way: str) -> None:
    retried = way in ("done", "done again", "pulled")
    failed(face, "a", raised(), **({"retry_in": 0} if retried else {"give_up": True}))
    if way == "done":
        face.ack(face.claim(wait=2))
    elif way == "done again":
        face.ack(face.claim(wait=2), again_in=60)
    elif way == "retried":
        face.retry_failed("a")
    elif way == "put again":
        face.put("a", again=True)
    elif way == "forgotten":
        face.forget("a", "a")
    else:
        wait_until(face.promote_due)
        face.pull()
    assert face.inspect("a").traceback is None
    assert kept(face) == {}


def kept(face: Any) -> dict[str, Any]:
    """Give what is left in the keys of tracebacks, by their names."""
    names = ("traces", "trace_uses", "trace_texts", "trace_at")
    asked: list[Any] = [("EXISTS", face.operations.key(name)) for name in names]
    found = face.run(sending.ask(face.talk, asked))
    return {name: there for name, there in zip(names, found, strict=True) if there}


def test_many_that_fail_in_the_same_place_share_one_text_and_keep_their_own_messages(face: Any) -> None:
    errors = [raised(f"page {i} is bad") for i in range(20)]
    for i, error in enumerate(errors):
        failed(face, f"t{i}", error)
    (texts,) = face.run(sending.ask(face.talk, [("HLEN", face.operations.key("trace_texts"))]))
    assert texts == 1
    assert face.inspect("t7").traceback.endswith("ValueError: page 7 is bad")
    face.forget(*(f"t{i}" for i in range(19)))
    assert face.inspect("t19").traceback.endswith("ValueError: page 19 is bad")
    page = face.list("failed")
    assert [entry.traceback for entry in page.entries] == [face.inspect("t19").traceback]


def test_the_newest_two_hundred_are_kept(face: Any) -> None:
    face.put(f"t{i}" for i in range(230))
    leases = sorted(face.claim(230), key=lambda lease: int(lease.task[1:]))
    for some in (leases[:30], leases[30:130], leases[130:]):
        traces = [f"a trace of {lease.task}\n".encode() for lease in some]
        for call in face.operations.fail(some, [-1] * len(some), [b"no"] * len(some), traces):
            assert settle(face, call).ok == len(some)
    found = {entry.task: entry.traceback for entry in face.list("failed", n=1000).entries}
    without = {task for task, trace in found.items() if trace is None}
    assert len(without) == 30
    assert without <= {lease.task for lease in leases[:130]}
    assert found["t229"] == "a trace of t229\nno"
    # one whose text is gone goes like the others
    assert face.retry_failed(all=True) == 230
    assert kept(face) == {}


# ---- releases


def test_releases_of_a_handler_are_counted_and_shown(face: Any) -> None:
    face.put("a")
    for _ in range(3):
        (lease,) = face.claim(wait=2)
        assert release(face, lease) == "ok"
    assert face.inspect("a").releases == 3
    assert face.inspect("a").failures == 0
    assert [entry.releases for entry in face.list("scheduled").entries] == [3]
    (lease,) = face.claim(wait=2)
    assert [entry.releases for entry in face.list("in_progress").entries] == [3]
    face.release(lease)
    assert face.inspect("a").releases == 3, "what a client gives back by itself does not count"


def test_releases_that_block_the_host_are_counted_apart(face: Any) -> None:
    face.configure(politeness=Politeness(delay=0))
    face.put("a", group="g")
    release(face, face.claim()[0])
    for _ in range(12):
        face.release(face.claim()[0], block_host=60)
        face.hosts.unblock("g")
    found = face.inspect("a")
    assert (found.state, found.releases, found.host_releases) == (State.TODOS, 1, 12)
    assert release(face, face.claim()[0], most=3) == "ok"
    (lease,) = face.claim(wait=2)
    assert [entry.releases for entry in face.list("in_progress").entries] == [2]
    assert [face.release(lease, block_host=60), face.release(lease, block_host=60)] == ["ok", "already"]
    face.hosts.unblock("g")
    found = face.inspect("a")
    assert (found.releases, found.host_releases) == (2, 13)
    assert release(face, face.claim()[0], most=3) == "failed"
    assert face.inspect("a").error.startswith("released 3 times by its handler; ")
    face.retry_failed("a")
    assert face.inspect("a").host_releases == 0


def test_each_release_waits_longer_than_the_one_before(face: Any) -> None:
    face.put("a")
    assert release(face, face.claim()[0]) == "ok"
    assert face.inspect("a").state is State.TODOS
    waits: list[float] = []
    for count in range(1, 16):
        (lease,) = face.claim()
        assert release(face, lease) == "ok"
        info = face.inspect("a")
        assert info.releases == count + 1
        waits.append(info.due - face.stats().now)
        face.schedule("a", after=0)
        wait_until(face.promote_due)
    planned = [min(60, 0.05 * 2**n) for n in range(15)]
    assert planned[-1] == 60
    for wait, plan in zip(waits, planned, strict=True):
        assert plan - 2 < wait <= plan + 0.001
    assert waits[3] > 0


def test_what_is_released_too_often_goes_to_failed_and_says_why(face: Any) -> None:
    face.put("a")
    assert release(face, face.claim()[0], most=3) == "ok"
    assert release(face, face.claim()[0], most=3) == "ok"
    assert release(face, face.claim(wait=2)[0], most=3) == "failed"
    info = face.inspect("a")
    assert (info.state, info.releases, info.failures) == (State.FAILED, 3, 0)
    assert info.error.startswith("released 3 times by its handler; ")
    assert face.stats().counters["gave_up"] == 1
    assert face.stats().counters["released"] == 3
    assert "released 3 times by its handler" in face.why("a").message
    assert [entry.releases for entry in face.list("failed").entries] == [3]
    assert face.errors()[0].error == info.error
