"""Calls that expire: one that has not begun by its time never begins, by the clock of the server."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from timeoutq import InvalidInput, Queue
from timeoutq.functions import App, CallExpired
from timeoutq.functions.envelope import Secrets
from timeoutq.functions.testing import AppTest
from timeoutq.testing import START
from timeoutq.verbs.sending import ServerClock

app = App("mail", secret="a secret of 21 bytes.")
began: list[Any] = []


@app.task(retry=[100], keep_result=60)
async def send(to: str) -> str:
    began.append(to)
    if to == "nobody":
        raise ValueError("no such address")
    return to


@app.task(expires=60)
def warm(number: int = 0) -> int:
    began.append(number)
    return number


@app.task(cron="0 * * * *", grace=300, expires=3600)
def report() -> None:
    began.append("report")


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


@pytest.fixture
def t() -> Iterator[AppTest]:
    began.clear()
    with app.test() as found:
        yield found


def test_a_call_that_has_not_begun_in_time_never_begins(t: AppTest) -> None:
    queue = t.queue()
    late = send.options(expires=timedelta(seconds=30)).delay("late"), send.options(expires=at(60)).delay("by a date")
    in_time = send.options(expires=at(61)).delay("in time"), send.options(expires=9, after=100).delay("later")
    t.advance(61)
    tally = t.run().tally
    assert began == ["in time", "later"]
    assert (tally.acked, tally.failed, tally.expired) == (2, 0, 2)
    assert [one.wait() for one in in_time] == began
    for one, words in zip(
        late, ("22:13:50.000+00:00, and a worker came to it 31.000 s later", "22:14:20"), strict=True
    ):
        with pytest.raises(
            CallExpired, match=f"has expired: it was to begin by 2023-11-14 {words}".replace("+", r"\+")
        ):
            one.wait()
        assert queue.why(one.id).code == "call_expired"
        assert one.info().failures == 0
    assert {entry.task for entry in queue.each("failed") if (entry.error or "").startswith("expired: ")} == {
        one.id for one in late
    }
    stats = queue.stats()
    assert {name: stats.counters.get(name, 0) for name in ("calls_expired", "failed", "gave_up", "acked")} == {
        "calls_expired": 2, "failed": 0, "gave_up": 0, "acked": 2,
    }  # fmt: skip
    assert queue.errors() == []
    assert [(kind.text, kind.count) for kind in queue.failures.list()] == [("expired", 2)]


def test_a_retry_of_all_leaves_expired_calls_unless_asked_and_then_they_run_however_late(t: AppTest) -> None:
    queue, call = t.queue(), warm.delay(1)
    broken = send.delay("nobody")
    t.advance(61)
    t.run()
    assert queue.retry_failed(all=True) == 1  # the broken one
    t.run()
    with pytest.raises(InvalidInput, match="expired=True goes with all=True"):
        queue.retry_failed(call.id, expired=True)
    began.clear()
    assert queue.retry_failed(all=True, cancelled=True) == 1
    broken.cancel()
    assert queue.retry_failed(all=True, expired=True) == 1
    t.run()
    assert (began, call.wait()) == ([1], 1)
    assert queue.retry_failed(all=True, expired=True, cancelled=True) == 1


def test_a_retry_after_the_time_does_not_begin_and_a_run_that_has_begun_goes_on(t: AppTest) -> None:
    own = App("own")

    @own.task(expires=60, retry=[50, 50])
    def slow() -> int:
        began.append(clock.now)
        clock.advance(20)
        if len(began) < 3:
            raise ValueError("not yet")
        return 5

    with own.test() as other:
        clock, call = other.clock, slow.delay()
        other.run()
        assert len(began) == 1
        with pytest.raises(CallExpired, match=r"came to it 10\.000 s later"):
            call.wait()
        assert other.queue().stats().counters["failed"] == 1
        began[:] = [0, 0]
        call = slow.options(expires=10).delay()
        other.run()
        assert call.wait() == 5


@pytest.mark.parametrize(("expires", "until"), [(None, 65), (timedelta(seconds=10), 15), (at(100), 100)])
def test_what_follows_expires_from_the_end_of_the_call_before(t: AppTest, expires: Any, until: float) -> None:
    warm.call(1).then(warm.options(expires=expires)).delay()
    (lease,) = t.queue().claim(1)
    payload, id = msgspec.json.encode(lease.payload), lease.task.encode()
    followed = app.follow(app.open(payload, "mail", id, Secrets()), "mail", id, b"7", now=START + 5)
    assert followed is not None
    assert app.open(followed.payload, "mail", followed.id).expires == START + until


def test_the_grace_of_a_schedule_holds_for_the_run_and_so_does_expires(t: AppTest) -> None:
    queue = t.queue()
    t.run()  # declares the schedules

    def tick(name: str, late: float) -> list[Any]:
        began.clear()
        found = queue.schedules.get(name)
        assert found is not None and found.next is not None
        t.advance(found.next - t.clock.now + 0.001)
        assert queue.schedules.tick() == 1
        t.advance(late - 0.001)
        t.run()
        return began

    assert tick("report", 301) == []
    assert (queue.inspect("report").error or "").startswith("expired: ")
    assert tick("report", 300) == ["report"]
    for name, how in (("a", {"expires": 30}), ("b", {"grace": 30}), ("c", {"expires": 90, "grace": 30})):
        app.schedules.set(name, send.call(name), every=900, **how)  # type: ignore[arg-type]  # the options of each differ
        assert tick(name, 31) == []
        assert tick(name, 30) == [name]
        app.schedules.cancel(name)
    app.schedules.set("d", warm.call(4), every=900)
    assert tick("d", 61) == []
    assert tick("d", 60) == [4]
    with pytest.raises(InvalidInput, match="expires= is seconds or a timedelta here, which count from each tick"):
        app.schedules.set("e", send.options(expires=at(100)).call("x"), every=900)


def test_a_tick_that_has_expired_runs_when_somebody_retries_it(t: AppTest) -> None:
    queue = t.queue()
    app.schedules.set("d", warm.call(4), every=900, overlap=True)
    found = queue.schedules.get("d")
    assert found is not None and found.next is not None
    t.advance(found.next - t.clock.now + 61)
    assert queue.schedules.tick() == 1
    app.schedules.cancel("d")
    t.run()
    assert began == []
    (expired,) = [entry.task for entry in queue.each("failed")]
    t.advance(3600)
    queue.retry_failed(expired)
    t.run()
    assert (began, queue.stats().counters["calls_expired"]) == ([4], 1)


def test_of_2_000_calls_none_begins_late_and_each_other_is_counted() -> None:
    own, chance = App("own"), random.Random(7)
    moments: list[tuple[float, float]] = []

    @own.task
    async def note(until: float) -> None:
        moments.append((other.clock.now, until))

    with own.test() as other:
        for _ in range(20):
            spans = [chance.uniform(1, 600) for _ in range(100)]
            own.put(note.options(expires=span).call(other.clock.now + span) for span in spans)
            other.advance(chance.uniform(1, 400))
            if chance.random() < 0.5:
                other.run()
        other.run()
        stats = other.queue().stats()
    assert all(moment <= until + 0.001 for moment, until in moments)
    assert stats.counters["acked"] == len(moments)
    assert stats.counters["calls_expired"] == 2_000 - len(moments) == stats.failed
    assert 400 < len(moments) < 1_600


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "expires= is more than 0 seconds: leave it out"),
        (-1, "expires= is more than 0 seconds: leave it out"),
        (True, "expires must be a finite number of seconds"),
        (math.nan, "expires must be a finite number of seconds"),
        (1e12, "past the year 9999"),
        (datetime(2030, 1, 1), r"has no time zone: use datetime.now\(UTC\) or .astimezone\(\)"),  # noqa: DTZ001  # what is refused
        (at(-1), "is not after 2023-11-14 22:13:20.*, when the call is ready: choose a later time, or seconds"),
    ],
)  # fmt: skip
def test_an_expiry_that_cannot_be_is_refused_at_the_call(t: AppTest, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        send.options(expires=value).delay("x")
    with pytest.raises(InvalidInput):
        App("x").task(expires=value)(print_nothing)


def print_nothing() -> None: ...


def test_a_time_before_the_call_is_ready_and_one_of_a_callback_are_refused(t: AppTest) -> None:
    with pytest.raises(InvalidInput, match="is not after"):
        send.options(after=100, expires=at(99)).delay("x")
    with pytest.raises(InvalidInput, match="leave out expires="):
        app.batch([send.call("x")], then=warm.options(expires=5).call())
    with pytest.raises(InvalidInput):
        warm.call(1).then(warm.options(expires=datetime(1969, 12, 31, tzinfo=UTC)))
    app.batch([send.options(expires=5).call("x")], then=warm.call(3))  # its own time is for other calls
    t.advance(100)
    t.run()
    assert began == [3]
    assert t.queue().stats().counters["calls_expired"] == 1


def test_only_a_worker_says_that_a_call_has_expired(queue: Queue) -> None:
    queue.put("a")
    (lease,) = queue.claim(1)
    queue.fail(lease, "expired: the certificate", give_up=True)
    assert queue.inspect("a").error == "failed: expired: the certificate"
    assert (queue.stats().counters["gave_up"], "calls_expired" in queue.stats().counters) == (1, False)
    assert queue.retry_failed(all=True) == 1


def test_a_reply_that_was_read_late_does_not_put_the_latest_time_back(monkeypatch: pytest.MonkeyPatch) -> None:
    here, clock = [100.0], ServerClock()
    monkeypatch.setattr("timeoutq.verbs.sending.time.monotonic", lambda: here[0])
    assert clock.latest_ms == 0
    clock.seen(1_000_000, 100.0)
    here[0] = 130.0  # the loop was blocked: the server has replied 20 s ago
    clock.seen(1_010_000, 109.9)
    assert clock.now_ms == 1_010_000
    assert 1_030_000 <= clock.latest_ms < 1_030_200
    clock.seen(1_100_000, 129.9)  # it was put forward
    assert clock.latest_ms == 1_100_000


def test_a_call_that_expires_tells_of_it_as_one_that_fails() -> None:
    told, shop = list[Any](), App("shop")

    @shop.task
    def tell(id: str, error: str) -> None:
        told.append((id, error[:28]))

    @shop.task(expires=1, on_failed=tell)
    def sell() -> None:
        told.append("sold")

    with shop.test() as t:
        sell.options(id="late").delay()
        t.advance(2)
        t.run()
        assert told == [("late", "expired: it was to begin by ")]
        assert t.queue().stats().counters["calls_expired"] == 1


def test_the_time_of_a_call_that_was_due_before_it_was_put_counts_from_the_put() -> None:
    own, ran = App("late"), list[int]()

    @own.task
    def send() -> None:
        ran.append(1)

    with own.test() as test:
        send.options(at=test.clock.now - 60, expires=10).delay()
        test.run()
    assert ran == [1]
