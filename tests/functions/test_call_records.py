"""Records of calls, as transcripts: when a call was put, its attempts, its end; and the calls that ended last."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.functions.running import at_work, twice_failing, work
from tests.rig.processes import Processes
from tests.rig.waiting import wait_until
from timeoutq import Lease, Queue, State
from timeoutq.functions import App
from timeoutq.server.calls import Kept
from timeoutq.verbs import sending
from timeoutq.words.model import CallRecord

DEADLY = """
import os, pathlib
from timeoutq.functions import App
app = App(os.environ["DEADLY"])

@app.task(keep_result=60)
async def deadly(mark: str) -> int:
    if not pathlib.Path(mark).exists():
        pathlib.Path(mark).touch()
        os.kill(os.getpid(), 9)
    return 1
"""


def names(raw: Any, queue: Any) -> set[str]:
    """Give the names of the keys of records."""
    stem = queue.operations.key("")
    return {key.removeprefix(stem) for key in raw.keys(f"{stem}record:*") + raw.keys(f"{stem}ended")}


def record_of(call: Any) -> CallRecord:
    found = call.info().record
    assert found is not None
    return found  # type: ignore[no-any-return]  # of any call


def test_a_call_that_failed_twice_and_then_returned_shows_three_attempts_of_two_workers(
    app: App, queue: Queue, raw: Any
) -> None:
    before = time.time()
    call = twice_failing(app)
    found = record_of(call)
    assert [(one.how, one.error) for one in found.attempts] == [
        ("failed", "ValueError: boom 1"), ("failed", "ValueError: boom 2"), ("done", None),
    ]  # fmt: skip
    first, second, third = (one.worker for one in found.attempts)
    assert first != second == third
    times = [found.put, *(at for one in found.attempts for at in (one.start, one.end)), found.ended]
    assert times == sorted(times)  # type: ignore[type-var]  # all are known
    assert before - 1 < (found.put or 0) <= (found.ended or 0) < time.time() + 1
    assert found.starts == [one.start for one in found.attempts]
    assert (found.function, found.how, found.task) == ("flaky", "done", call.id)
    assert queue.results.ended() == [found]
    left = [raw.pttl(queue.operations.key(f"{kind}:{call.id}")) for kind in ("result", "record")]
    assert 45_000 < min(left) <= max(left) <= 50_000, "the record is kept as long as the result"


def test_a_call_that_failed_for_good_and_one_that_was_cancelled_are_listed_too(app: App, queue: Queue) -> None:
    @app.task(retry=[], keep_result=60)
    async def bad(number: int) -> int:
        if number:
            raise ValueError("never")
        return 0

    with at_work(app):
        bad.delay(0).wait(10)
        failed = bad.delay(1)
        with pytest.raises(Exception, match="never"):
            failed.wait(10)
        later = bad.options(retry=[100]).delay(4)
        wait_until(lambda: later.info().failures)
    waiting, running = bad.delay(2), bad.delay(3)
    waiting.cancel("Ada")
    (lease,) = queue.claim(1)
    running.cancel("Bob")
    queue.release(lease)
    cancelled = queue.results.ended(2)
    assert [(one.task, one.how, one.error) for one in cancelled] == [
        (running.id, "cancelled", "cancelled by Bob"), (waiting.id, "cancelled", "cancelled by Ada"),
    ]  # fmt: skip
    assert [one.worker for one in cancelled[0].attempts] == [lease.holder]
    assert [(one.function, one.put is None) for one in cancelled] == [("bad", False)] * 2
    assert cancelled[1].attempts == [], "it has never run"
    ends = [(one.how, len(one.attempts)) for one in queue.results.ended()]
    assert ends == [("cancelled", 1), ("cancelled", 0), ("failed", 1), ("done", 1)]
    assert [one.error for one in record_of(failed).attempts] == [record_of(failed).error] == ["ValueError: never"]
    later.cancel("Cyd")
    assert (record_of(later).error, [one.how for one in record_of(later).attempts]) == ("cancelled by Cyd", ["failed"])


@pytest.mark.parametrize("ran", [False, True], ids=["before its first attempt", "before its second attempt"])
def test_a_call_that_has_expired_is_listed_with_the_attempts_that_began(ran: bool) -> None:
    own = App("own")

    @own.task(retry=[100], keep_result=60, expires=50)
    async def late() -> None:
        raise ValueError("boom")

    with own.test() as t:
        call, queue, put = late.delay(), t.queue(), t.clock.now
        t.clock.advance(0 if ran else 60)
        t.run()
        (found,) = queue.results.ended()
        assert found == call.info().record
        assert (found.task, found.function, found.put, found.how) == (call.id, "late", put, "expired")
        assert found.ended == put + (100 if ran else 60)
        assert (found.error or "").startswith("expired: it was to begin by ")
        assert [(one.how, one.error) for one in found.attempts] == [("failed", "ValueError: boom")] * ran


def test_a_def_that_waited_for_a_thread_began_when_it_got_one(url: str, queue: Queue) -> None:
    own, begun, go_on = App(queue.name, url=url, threads=1), threading.Event(), threading.Event()

    @own.task(keep_result=60)
    def slow() -> bool:
        begun.set()
        return go_on.wait(30)

    @own.task(keep_result=60)
    async def other() -> None: ...  # with it, the worker claims more calls than it has threads

    calls = own.put([slow.call(), slow.call()])
    with at_work(own):
        wait_until(lambda: all(one.info().state == "in_progress" for one in calls))
        assert begun.wait(30)  # a call is in progress as soon as it is claimed, before its function begins
        claimed = time.time() + 0.01  # the times of a record are rounded to milliseconds
        wait_until(lambda: time.time() > claimed + 0.5)
        go_on.set()
        assert [one.wait(30) for one in calls] == [True, True]
    first, second = sorted(record_of(one).starts[0] or 0 for one in calls)
    assert (first < claimed, second > claimed + 0.3) == (True, True)
    own.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["the first call of a queue", "a later call"])
def test_an_attempt_that_was_killed_has_no_start(
    app: App, queue: Queue, run: Processes, tmp_path: Path, is_first: bool
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)

    @app.task(keep_result=60)
    async def deadly(mark: str) -> int: ...  # type: ignore[empty-body]  # the worker runs another

    run.start("worker", "--app", "deadly:app", "-p", "2", DEADLY=queue.name, PYTHONPATH=str(tmp_path))
    if not is_first:
        (tmp_path / "there").touch()
        deadly.delay(str(tmp_path / "there")).wait(30)
    call = deadly.delay(str(tmp_path / "mark"))
    assert call.wait(30) == 1
    lost, last = record_of(call).attempts
    assert (lost.how, lost.start, last.how) == ("crashed", None, "done")
    if is_first:  # nobody knew yet that records are kept here
        assert (lost.worker, lost.end) == (None, None)
    else:
        assert lost.worker is not None
        assert lost.worker != last.worker
        assert lost.end is not None
        assert lost.end <= (last.start or 0)
        assert lost.error is not None
        assert "killed by SIGKILL" in lost.error


@pytest.mark.parametrize("how", ["stopped", "raises"])
def test_a_call_that_was_cancelled_while_it_ran_says_when_it_began(app: App, queue: Queue, how: str) -> None:
    begun = threading.Event()

    @app.task(keep_result=60, retry=[60])
    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how == "raises":
                raise ValueError("no") from None
            raise

    with at_work(app):
        call = waits.delay()
        assert begun.wait(20)
        call.cancel("Ann")
        wait_until(lambda: call.info().state == State.FAILED)
    found = record_of(call)
    (attempt,) = found.attempts
    assert (attempt.how, attempt.error) == ("cancelled", "cancelled by Ann")
    assert queue.results.ended() == [found], "also the first call of the queue that has a record"
    assert attempt.start is not None
    assert attempt.end is not None
    assert (found.put or 0) <= attempt.start <= attempt.end
    assert found.function == "waits"


def test_a_call_that_fails_before_its_worker_hears_of_the_cancel_says_when_it_began(app: App, queue: Queue) -> None:
    @app.task(keep_result=60)
    async def one() -> None: ...

    call = one.delay()
    (lease,) = queue.claim(1)
    call.cancel("Ann")
    queue.run(
        sending.answers(queue.talk, queue.operations.fail([lease], [60_000], [b"no"], records={0: b"1 0 5000 - one"}))
    )
    assert [(one.how, one.start) for one in record_of(call).attempts] == [("cancelled", 5.0)]


def test_a_call_that_crashes_too_often_ends_and_one_more_crash_is_told_of(app: App, queue: Queue) -> None:
    @app.task(keep_result=60)
    async def one() -> int:
        return 1

    queue.configure(max_crashes=2)
    one.delay()
    work(app)
    call = one.delay()
    for crashes in (1, 2):
        (lease,) = queue.claim(1)
        queue.run(sending.answers(queue.talk, queue.operations.crash([lease], "killed")))
        assert [one.how for one in record_of(call).attempts] == ["crashed"] * crashes
        told = record_of(call)
        assert (told.function, told.put is not None) == ("one", True), "its payload says both"
    ended, before = queue.results.ended()
    assert (ended.task, ended.how, ended.error) == (call.id, "failed", "killed")
    assert (ended.function, ended.put, before.function) == ("one", told.put, "one")


def test_a_call_that_is_to_run_once_more_has_not_ended_with_its_last_crash(app: App, queue: Queue) -> None:
    @app.task(keep_result=60)
    async def one() -> int:
        return 1

    queue.configure(max_crashes=1)
    one.delay()
    work(app)  # now the queue knows that records are kept here
    before = queue.results.ended()
    call = one.options(id="call").delay()
    (lease,) = queue.claim(1)
    one.options(id="call", rerun=True).delay()
    queue.run(sending.answers(queue.talk, queue.operations.crash([lease], "killed")))
    found = record_of(call)
    assert ([one.how for one in found.attempts], found.how, found.ended) == (["crashed"], None, None)
    assert queue.results.ended() == before
    assert call.info().state == "todos"
    work(app)
    assert record_of(call).how == "done"


def test_a_key_that_is_called_again_begins_a_record_and_long_ones_keep_their_first_attempt(
    app: App, queue: Queue
) -> None:
    fails: list[int] = []

    @app.task(retry=[0] * 30, keep_result=60, key="only")
    async def again() -> int:
        if len(fails) < 25:
            fails.append(1)
            raise ValueError(f"number {len(fails)}")
        return 1

    first = again.delay()
    work(app)
    errors = [one.error for one in record_of(first).attempts]
    assert len(errors) == 20
    assert [errors[0], errors[1], errors[-2:]] == ["ValueError: number 1", "ValueError: number 8", [
        "ValueError: number 25", None,
    ]]  # fmt: skip
    second = again.delay()
    assert queue.results.ended() == [record_of(second)], "until it ends, the record is that of the run before"
    work(app)
    assert [one.how for one in record_of(second).attempts] == ["done"]
    assert queue.results.ended() == [record_of(second)]


def test_what_keeps_no_result_leaves_no_record_and_a_forget_and_a_purge_leave_none(
    app: App, queue: Queue, raw: Any
) -> None:
    fails: list[int] = []

    @app.task(keep_result=0, retry=[0])
    async def unkept(number: int) -> int:
        if number and not fails:
            fails.append(1)
            raise ValueError
        return 1

    @app.task(retry=[0])
    async def gives_none() -> None:
        if len(fails) < 2:
            fails.append(1)
            raise ValueError

    @app.task(keep_result=60)
    async def kept() -> int:
        return 1

    unkept.delay(0).cancel("Ada")
    call = unkept.delay(1)
    assert b'"c":' not in raw.hget(queue.operations.key("payload"), call.id).encode()
    work(app)
    assert names(raw, queue) == set()
    assert "records" not in (raw.hget(queue.operations.key("meta"), "uses") or "")
    calls = [kept.delay(), kept.delay()]
    work(app)
    other = gives_none.delay()
    assert b'"c":' in raw.hget(queue.operations.key("payload"), other.id).encode()
    work(app, max_tasks=1)
    assert names(raw, queue) == {"ended", *(f"record:{one.id}" for one in (*calls, other))}
    work(app)
    assert names(raw, queue) == {"ended", *(f"record:{one.id}" for one in calls)}, "it is done, without a result"
    queue.put(calls[0].id)  # its id is in no state, and its result is there
    queue.forget(calls[0].id)
    assert names(raw, queue) == {"ended", f"record:{calls[1].id}"}
    assert [one.task for one in queue.results.ended()] == [calls[1].id]
    queue.purge()
    assert raw.keys(queue.operations.key("*")) == []


def test_an_ack_without_records_costs_no_command_more(queue: Queue, raw: Any) -> None:
    def commands(records: dict[int, bytes]) -> dict[str, int]:
        queue.put(["a", "b"])
        leases, before = queue.claim(2), raw.info("commandstats")
        results = {at: Kept(b"1", 60_000) for at in range(2)}
        queue.run(
            sending.answers(queue.talk, queue.operations.ack(leases, results=results, records=records, bare=[0, 1]))
        )
        after = raw.info("commandstats")
        counts = {name: one["calls"] - before.get(name, {"calls": 0})["calls"] for name, one in after.items()}
        counts.pop("cmdstat_zrangebyscore", None)  # one call of sixteen clears away old ones
        return {name.removeprefix("cmdstat_"): count for name, count in counts.items() if count and "info" not in name}

    commands({})
    bare, recorded = commands({}), commands({0: b"1 0 5 - f", 1: b"1 0 5 - f"})
    assert not bare.keys() & {"lpush", "ltrim", "get", "msetex"}
    more = {name: count - bare.get(name, 0) for name, count in recorded.items() if count != bare.get(name, 0)}
    # the list, `records` in the settings for the first time, and the records: with the results, or one by one
    assert more == {"lpush": 1, "hset": 1, **({"msetex": 1} if "msetex" in more else {"psetex": 2})}


def test_of_attempts_that_fail_in_one_call_to_the_server_those_without_a_record_get_none(
    queue: Queue, raw: Any
) -> None:
    queue.put(["a", "b"])
    first, second = leases = queue.claim(2)
    queue.run(
        sending.answers(queue.talk, queue.operations.fail(leases, [5, 5], [b"no"] * 2, records={1: b"1 0 5 - f"}))
    )
    assert names(raw, queue) == {f"record:{second.task}"}
    assert queue.inspect(first.task).record is None


def test_an_attempt_that_fails_when_its_call_is_cancelled_is_told_once(queue: Queue) -> None:
    def fail(lease: Lease, retry_ms: int) -> None:
        failing = queue.operations.fail([lease], [retry_ms], [b"no"], records={0: b"1 0 5 9 f"})
        queue.run(sending.answers(queue.talk, failing))

    queue.put("a", "b")
    first, second = queue.claim(2)
    fail(first, -1)  # from now on the queue keeps records
    queue.cancel(second.task, by="Ann")
    fail(second, 5)
    record = queue.inspect(second.task).record
    assert record is not None
    assert (record.how, record.error) == ("cancelled", "cancelled by Ann")
    assert [(one.how, one.worker) for one in record.attempts] == [("cancelled", second.holder)]


def test_a_second_attempt_that_fails_when_its_call_is_cancelled_is_told_once(queue: Queue) -> None:
    def fail(lease: Lease, retry_ms: int) -> None:
        said = f"{lease.attempt} 0 5 9 f".encode()
        failing = queue.operations.fail([lease], [retry_ms], [b"no"], records={0: said})
        queue.run(sending.answers(queue.talk, failing))

    queue.put("a")
    fail(queue.claim()[0], 0)
    (second,) = queue.claim(wait=5)
    queue.cancel("a", by="Ann")
    fail(second, 0)
    record = queue.inspect("a").record
    assert record is not None
    assert [(one.how, one.error) for one in record.attempts] == [("failed", "no"), ("cancelled", "cancelled by Ann")]


def test_a_full_server_keeps_no_record_of_an_attempt_that_fails(queue: Queue, raw: Any) -> None:
    queue.put("a", "b")
    errors, results = [b"no", b"expired: it was to begin at noon"], {1: Kept(b"no", 60_000)}
    records = dict.fromkeys(range(2), b"1 0 5 9 f")
    (call,) = queue.operations.fail(queue.claim(2), [5, -1], errors, results=results, records=records)
    assert call.when_full is not None
    queue.run(sending.answers(queue.talk, [call.when_full]))
    assert names(raw, queue) == set()


def test_a_full_server_goes_on_with_the_record_of_a_call_that_has_one(queue: Queue) -> None:
    queue.put("done", "failed")
    for attempt, retries, is_full in ((1, [0, 0], False), (2, [0, 0], True), (3, [-1], True)):
        leases = {lease.task: lease for lease in queue.claim(2, wait=5)}
        assert set(leases) == {"done", "failed"}
        said = f"{attempt} 0 5 9 f".encode()
        failing = [leases[task] for task in ("failed", "done")[: len(retries)]]
        calls = queue.operations.fail(
            failing, retries, [b"no"] * len(failing), results={0: Kept(b"no", 60_000)}, records={0: said, 1: said}
        )
        if attempt == 3:
            calls += queue.operations.ack([leases["done"]], results={0: Kept(b"1", 60_000)}, records={0: said})
        queue.run(sending.answers(queue.talk, [call.when_full or call if is_full else call for call in calls]))
    ways = {one.task: (one.how, [attempt.how for attempt in one.attempts]) for one in queue.results.ended(10)}
    assert ways == {"done": ("done", ["failed", "failed", "done"]), "failed": ("failed", ["failed"] * 3)}
    assert {task: queue.inspect(task).state for task in ways} == {"done": State.DONE, "failed": State.FAILED}


def test_the_list_of_ended_calls_is_short_and_a_full_server_keeps_no_record(queue: Queue, raw: Any) -> None:
    for part in range(6):
        ids = [f"{part}-{at}" for at in range(250)]
        queue.put(ids)
        leases = queue.claim(250)
        results = {at: Kept(b"1", 60_000) for at in range(250)}
        records = {at: f"1 0 {part} - f".encode() for at in range(250)}
        queue.run(sending.answers(queue.talk, queue.operations.ack(leases, results=results, records=records)))
    assert raw.llen(queue.operations.key("ended")) <= 1000
    newest = {one.task for one in queue.results.ended(500)}
    assert len(newest) == 500
    assert {task.partition("-")[0] for task in newest} == {"4", "5"}
    queue.put("full")
    (call,) = queue.operations.ack(queue.claim(1), results={0: Kept(b"1", 60_000)}, records={0: b"1 0 5 - f"})
    assert call.when_full is not None
    queue.run(sending.answers(queue.talk, [call.when_full]))
    assert (raw.get(queue.operations.key("result:full")), raw.get(queue.operations.key("record:full"))) == ("", None)


def test_in_memory_the_clock_of_the_test_counts(app: App) -> None:
    @app.task(keep_result=60)
    async def one() -> int:
        return 1

    with app.test(start=1_000_000.0) as t:
        call = one.options(after=30).delay()
        t.run()
        found = record_of(call)
        assert (found.put, found.starts, found.ended) == (1_000_000.0, [1_000_030.0], 1_000_030.0)


def test_the_calls_of_a_batch_and_its_callback_say_when_they_were_put(app: App) -> None:
    @app.task(keep_result=60)
    async def one() -> int:
        return 1

    with app.test(start=1_000_000.0) as t:
        batch = app.batch([one.call(), one.call()], then=one.call())
        t.advance(5)
        t.run()
        assert [record_of(call).put for call in (*batch.calls, batch.then)] == [1_000_000.0] * 3


def test_what_follows_says_when_it_was_put_if_its_result_is_kept_for_this_call_alone(app: App) -> None:
    @app.task
    async def first() -> int:
        return 1

    @app.task(keep_result=0)
    async def last(number: int) -> int:
        return number

    with app.test(start=1_000_000.0) as t:
        kept = first.call().then(last.options(keep_result=60)).delay()
        t.run()
        assert (kept.wait(), record_of(kept).put) == (1, 1_000_000.0)


def test_what_a_hand_has_written_into_a_record_is_read_as_far_as_it_can_be(queue: Queue, raw: Any) -> None:
    raw.lpush(queue.operations.key("ended"), "a", "b", "c")
    raw.set(queue.operations.key("record:a"), "nonsense\n1 0 x y f a 5000 w no error\n1 2 3")
    raw.set(queue.operations.key("record:b"), "\n")
    (found,) = queue.results.ended()
    assert (found.task, found.put, found.starts, found.ended) == ("a", None, [], 5.0)


def test_a_call_that_waits_for_its_next_attempt_shows_those_before(app: App, queue: Queue) -> None:
    @app.task(retry=[3600])
    async def bad() -> int:
        raise ValueError("not yet")

    call = bad.delay()
    with at_work(app):
        wait_until(lambda: call.info().failures == 1)
    found = record_of(call)
    assert [(one.how, one.error) for one in found.attempts] == [("failed", "ValueError: not yet")]
    assert (found.how, found.ended) == (None, None)
