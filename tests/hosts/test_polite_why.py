"""Why is this task not being worked on? Every answer that there is, each out of a situation of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timeoutq import Lease, Politeness
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending

A = "http://a.example/"


@pytest.fixture
def fake() -> Iterator[FakeQueue]:
    """A polite queue, half a minute from the end of a visit to the next; its clock shows 22:13:20."""
    with fake_queue(timeout=60, politeness=Politeness(30), retry=[]) as queue:
        yield queue


def work(queue: FakeQueue) -> None:
    """Let two workers say that they are alive."""
    for worker in ("web1:1:a", "web1:2:b"):
        beat(queue, worker)


def beat(queue: FakeQueue, worker: str, **about: int) -> None:
    queue.run(sending.answer(queue.talk, queue.operations.beat(worker, {"pid": 1, **about})))


def hold(queue: FakeQueue, task: str) -> Lease:
    """Put a task and claim it."""
    queue.put(task)
    (lease,) = queue.claim(5)
    assert lease.task == task
    return lease


def expect(queue: FakeQueue, task: str, code: str, *parts: str) -> None:
    """Expect a code, and a message with these parts in their order."""
    reason = queue.why(task)
    assert reason.code == code, reason
    at = 0
    for part in parts:
        assert part in reason.message[at:], f"{part!r} is not in {reason.message!r}"
        at = reason.message.index(part, at)


@pytest.mark.parametrize(
    ("put", "asked"),
    [
        (f"{A}page", f"{A}page#part"),
        (f"{A}page", f"{A}page/"),
        (A, "http://a.example"),
        (f"{A}page", "http://a.example:80/page"),
        ("https://a.example/page", f"{A}page"),
        (f"{A}page", "http://A.Example/page"),
        (f"{A}page?a=1&b=2", f"{A}page?b=2&a=1"),
    ],
    ids=lambda task: task.removeprefix("http://"),
)
def test_a_url_that_was_put_in_another_form_is_named(fake: FakeQueue, put: str, asked: str) -> None:
    fake.put(put, f"{A}nothing like it")
    reason = fake.why(asked)
    assert (reason.code, reason.near) == ("unknown", put)
    assert reason.message == f"it was never put, but {put!r} was"


def test_a_task_that_failed_says_when_and_of_what(fake: FakeQueue) -> None:
    fake.fail(hold(fake, A), ValueError("bad page"), give_up=True)
    fake.clock.advance(90)
    expect(fake, A, "failed", "it failed 90.0 s ago: ValueError: bad page", "retry_failed")


def test_a_task_whose_host_was_banned_says_so(fake: FakeQueue) -> None:
    fake.hosts.ban(A, "they asked us to")
    fake.put(A)
    fake.clock.advance(7200)
    expect(fake, A, "banned", "it failed 2.0 h ago", "host a.example is banned: they asked us to", "retry_failed")


def test_a_task_that_somebody_works_on_says_who_and_for_how_long(fake: FakeQueue) -> None:
    lease = hold(fake, A)
    fake.clock.advance(20)
    expect(fake, A, "running", f"worker {lease.holder} works on it", "another 40.0 s")


def test_a_task_of_a_worker_that_gives_no_sign_of_life_says_when_others_get_it(fake: FakeQueue) -> None:
    lease = hold(fake, A)
    beat(fake, lease.holder)
    fake.clock.advance(11)
    assert "sign of life" not in fake.why(A).message
    fake.clock.advance(18)
    expect(fake, A, "running", f"worker {lease.holder} works on it", "; its last sign of life was 29.0 s ago")
    fake.clock.advance(11)
    expect(fake, A, "running", f"worker {lease.holder} has it, but has given no sign of life for 40.0 s", "in 20.0 s")


def test_a_task_whose_lease_ran_out_says_that_no_cleaner_came(fake: FakeQueue) -> None:
    lease = hold(fake, A)
    fake.clock.advance(60 + 300)
    expect(fake, A, "expired", f"worker {lease.holder} ran out 5.0 min ago", "no worker is alive")
    work(fake)
    assert "no worker is alive" not in fake.why(A).message


def test_a_scheduled_task_says_when_it_is_due(fake: FakeQueue) -> None:
    fake.schedule(A, after=3 * 24 * 3600)
    expect(fake, A, "due", "it is due at 2023-11-17 22:13:20 UTC, in 3.0 d")
    fake.pause()
    expect(fake, A, "due", "in 3.0 d; the queue is paused")
    fake.resume()


def test_a_task_that_is_tried_again_says_when_and_why(fake: FakeQueue) -> None:
    failing = fake.operations.fail([hold(fake, A)], [90_000], [b"ValueError: bad page"])
    fake.run(sending.answers(fake.talk, failing))
    expect(fake, A, "due", "in 90.0 s, for attempt 2 after: ValueError: bad page")
    fake.pause()
    expect(fake, A, "due", "for attempt 2 after: ValueError: bad page; the queue is paused")
    fake.resume()


def test_a_ready_task_says_how_many_are_ready_beside_it(fake: FakeQueue) -> None:
    fake.put(f"task {n}" for n in range(1235))
    work(fake)
    expect(fake, "task 7", "queued", "1,234 others", "2 workers take them in any order")


def test_a_ready_task_says_when_all_handlers_are_busy(fake: FakeQueue) -> None:
    fake.put("plain")
    beat(fake, "web1:1:a", concurrency=2, held=1)
    assert fake.why("plain").message == "it is ready, and nothing else is; 1 worker is alive"
    beat(fake, "web1:1:a", concurrency=2, held=2)
    expect(fake, "plain", "queued", "1 worker is alive; all its handlers are busy")


def waiting(queue: FakeQueue, n: int = 3) -> tuple[str, Lease]:
    """Put some tasks of a host, claim the first, and give one of those that wait, and the lease."""
    tasks = [f"{A}{i}" for i in range(n)]
    queue.put(tasks)
    (lease,) = queue.claim(5)
    return next(task for task in tasks if task != lease.task), lease


def test_a_task_whose_host_is_busy_says_by_what(fake: FakeQueue) -> None:
    task, lease = waiting(fake)
    expect(
        fake,
        task,
        "host_busy",
        f"host a.example has 1 of its 1 places taken, by {lease.task!r}",
        "; 1 other",
        "; and no worker is alive",
    )
    assert fake.why(task).host == fake.hosts.inspect(A)


def test_a_task_whose_host_rests_says_when_it_is_visited_next(fake: FakeQueue) -> None:
    task, lease = waiting(fake)
    fake.clock.advance(10)
    fake.ack(lease)
    fake.clock.advance(10)
    expect(
        fake,
        task,
        "delay",
        "host a.example may be visited next at 2023-11-14 22:14:00 UTC, in 20.0 s (30.0 s after the last visit)",
        "; 1 other",
    )


def test_a_task_whose_host_is_blocked_says_by_whom_and_until_when(fake: FakeQueue) -> None:
    task, lease = waiting(fake)
    fake.release(lease, block_host=600)
    expect(fake, task, "blocked", f"by {lease.holder} until 2023-11-14 22:23:20 UTC, for another 10.0 min")
    fake.hosts.block(A, for_=3600, reason="Retry-After")
    fake.clock.advance(60)
    expect(fake, task, "blocked", "(Retry-After) until 2023-11-14 23:13:20 UTC, for another 59.0 min")
    fake.clock.advance(3600)
    work(fake)
    assert fake.why(task).code == "turn"


def test_a_task_whose_host_has_used_its_budget_says_what_it_was(fake: FakeQueue) -> None:
    task, lease = waiting(fake)
    fake.hosts.set(A, budget=1)
    fake.ack(lease)
    fake.clock.advance(3600)
    expect(fake, task, "budget", "1 of 1 visits were made, and 0 are under way", "hosts.set(budget=) gives more")
    fake.hosts.set(A, budget=2)
    assert fake.why(task).code != "budget"


def test_a_ready_task_without_a_worker_says_so(fake: FakeQueue) -> None:
    fake.put("plain")
    expect(fake, "plain", "no_worker", "it is ready, and no worker is alive")
