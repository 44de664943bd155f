"""What a queue remembers of a task that fails or is released: its traceback, and how often its handler gave it back."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import GiveUp, Politeness, Retry, State
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.words import tracebacks


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


def test_a_failed_task_keeps_the_traceback_of_its_exception(face: Any) -> None:
    failed(face, "a", raised())
    trace = face.inspect("a").traceback
    first, *_, source, last = trace.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "raise ValueError(message) if local else KeyError" in source
    assert last == "ValueError: bad page"
    assert "test_records.py" in trace
    assert "itself" not in trace


def test_text_has_no_traceback(face: Any) -> None:
    failed(face, "a", "just text")
    failed(face, "b", ValueError("never raised"))
    assert face.inspect("a").traceback is None
    assert face.inspect("b").traceback is None
    assert face.inspect("b").error == "ValueError: never raised"


def test_a_decision_of_the_handler_has_no_traceback_but_that_of_what_led_to_it(face: Any) -> None:
    def decide(why: BaseException, cause: BaseException | None) -> BaseException:
        try:
            raise why from cause
        except BaseException as error:
            return error

    failed(face, "a", decide(GiveUp("not wanted"), None))
    failed(face, "b", decide(Retry(reason="later"), None))
    failed(face, "c", decide(GiveUp("broken"), raised("the cause")))
    assert face.inspect("a").traceback is None
    assert face.inspect("b").traceback is None
    assert "ValueError: the cause" in face.inspect("c").traceback
    assert face.inspect("c").traceback.endswith("GiveUp: broken")


def test_a_task_that_waits_for_its_retry_has_the_traceback_of_its_last_failure(face: Any) -> None:
    failed(face, "a", raised("first"), retry_in=0)
    face.fail(face.claim(wait=2)[0], raised("second", depth=2), retry_in=60)
    assert face.inspect("a").state is State.SCHEDULED
    trace = face.inspect("a").traceback
    assert trace.endswith("ValueError: second")
    assert trace.count("in raised.<locals>.parse") == 2


def test_a_failure_without_a_traceback_ends_that_of_the_failure_before(face: Any) -> None:
    failed(face, "a", raised(), retry_in=0)
    face.fail(face.claim(wait=2)[0], "only text", give_up=True)
    assert face.inspect("a").traceback is None


def test_a_lost_lease_ends_the_traceback_of_the_failure_before(face: Any) -> None:
    failed(face, "a", raised(), retry_in=0)
    face.claim(wait=2, timeout=0.02)
    wait_until(face.requeue_expired)
    assert "the lease ran out" in face.inspect("a").error
    assert face.inspect("a").traceback is None


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


def test_a_text_goes_over_the_wire_once_a_call(face: Any) -> None:
    face.put(f"t{i}" for i in range(100))
    error = raised()
    leases = face.claim(100)
    trace = tracebacks.trace(error)
    (call,) = face.operations.fail(leases, [-1] * 100, [b"no"] * 100, [trace] * 100)
    assert list(call.args).count(trace) == 1
    assert settle(face, call).ok == 100
    assert {entry.traceback for entry in face.list("failed", n=1000).entries} == {trace.decode() + "no"}


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


def test_a_traceback_that_was_met_again_goes_after_those_that_were_not() -> None:
    tasks = ["usual", *(f"t{i}" for i in range(199)), "usual again", *(f"t{i}" for i in range(199, 250))]
    with fake_queue() as fake:
        for task in tasks:
            fake.clock.advance(1)
            fake.put(task)
            trace = b"the usual\n" if task.startswith("usual") else f"a trace of {task}\n".encode()
            settle(fake, fake.operations.fail(fake.claim(1), [-1], [b"no"], [trace])[0])
        assert [fake.inspect(task).traceback for task in ("t50", "t51")] == [None, "a trace of t51\nno"]
        assert fake.inspect("usual").traceback == fake.inspect("usual again").traceback == "the usual\nno"


def test_a_failure_that_is_sent_again_counts_its_traceback_once(face: Any) -> None:
    face.put("a")
    (call,) = face.operations.fail(face.claim(), [-1], [b"no"], [b"a trace\n"])
    assert list(settle(face, call)) == ["ok"]
    assert list(settle(face, call)) == ["already"]
    assert face.inspect("a").traceback == "a trace\nno"
    face.forget("a")
    assert kept(face) == {}


def test_a_lease_that_was_lost_leaves_no_traceback(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim(timeout=0.02)
    wait_until(face.requeue_expired)
    (call,) = face.operations.fail([lease], [-1], [b"no"], [b"a trace\n"])
    assert list(settle(face, call)) == ["lost"]
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


def test_a_handler_that_asks_for_a_longer_pause_has_it(face: Any) -> None:
    face.put("a")
    release(face, face.claim()[0])
    release(face, face.claim()[0], delay_ms=30_000)
    assert 25 < face.inspect("a").due - face.stats().now <= 30


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


def test_a_release_that_is_sent_again_counts_once(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    assert [release(face, lease, most=1), release(face, lease, most=1)] == ["failed", "already"]
    assert face.inspect("a").releases == 1
    face.retry_failed(all=True)
    (lease,) = face.claim()
    assert [release(face, lease), release(face, lease)] == ["ok", "already"]
    assert face.inspect("a").releases == 1


def test_one_of_a_batch_may_be_the_last_of_its_task_and_another_be_lost(face: Any) -> None:
    face.put("spent")
    release(face, face.claim()[0])
    face.put("fresh", "lost")
    leases = face.claim(3)
    face.forget("lost")
    (call,) = face.operations.release(leases, most=2)
    by_task = dict(settle(face, call).items())
    assert by_task == {"spent": "failed", "fresh": "ok", "lost": "lost"}
    again = dict(settle(face, call).items())
    assert again == {"spent": "already", "fresh": "already", "lost": "lost"}
    assert face.inspect("fresh").state is State.TODOS
    assert face.inspect("spent").state is State.FAILED
    face.purge()  # no counter explains a lease that was forgotten


@pytest.mark.parametrize("way", ["done", "retried", "put again", "forgotten", "pulled"])
def test_releases_are_forgotten_with_the_record_of_their_task(face: Any, way: str) -> None:
    face.put("a")
    most = 1 if way in ("retried", "put again") else 100
    release(face, face.claim()[0], most=most)
    if way == "done":
        face.ack(face.claim())
    elif way == "retried":
        face.retry_failed(all=True)
    elif way == "put again":
        face.put("a", again=True)
    elif way == "forgotten":
        face.forget("a")
    else:
        face.pull()
    assert face.inspect("a").releases == 0
    (there,) = face.run(sending.ask(face.talk, [("EXISTS", face.operations.key("releases"))]))
    assert not there


def test_on_a_polite_queue_a_pause_frees_the_host_and_the_last_release_its_place(url: str, name: str) -> None:
    from tests.rig.invariants import check
    from timeoutq import Politeness, Queue

    with Queue(name, url, timeout=5, politeness=Politeness(delay=0.0, per_host=1)) as queue:
        queue.put("https://a.example/1")
        queue.put("https://a.example/2")
        met: list[str] = []
        for _ in range(4):
            (lease,) = queue.claim(wait=2)
            met.append(lease.task)
            release(queue, lease, most=2)
            check(url, name)
        assert sorted(met) == ["https://a.example/1"] * 2 + ["https://a.example/2"] * 2
        assert queue.stats().failed == 2
        assert queue.hosts.inspect("a.example").visits == 0
        queue.purge()
        with redis.Redis.from_url(url) as client:
            assert list(client.scan_iter(f"timeoutq:{{{name}}}:*")) == []
