"""What handlers give as results of their runs, from the handler to who waits for it, on real servers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.rig.handlers import history
from tests.rig.processes import Processes, run
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from tests.worker.test_ends_of_leases import until
from timeoutq import Ack, AsyncQueue, GiveUp, InvalidInput, Lease, Queue, Retry, RetryPolicy, State, Task, Worker
from timeoutq.server.calls import BYTES, Kept
from timeoutq.testing import fake_queue
from timeoutq.testing import run as run_fake
from timeoutq.words.model import Ended
from timeoutq.worker.handlers import Verdict

__all__ = ["run"]

HALF = BYTES // 2 + 1
LARGE = b"x" * Kept.MOST


@asynccontextmanager
async def working(queue: Queue, handler: Any, url: str = "", **settings: Any) -> AsyncIterator[Worker]:
    """Give a worker that runs, and ends with the block."""
    async with AsyncQueue(queue.name, url or queue.given[0], timeout=5) as mine:
        worker = Worker(mine, handler, signals=False, **settings)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await asyncio.wait_for(running, 60)


async def wait_for(queue: Queue, *tasks: str) -> dict[str, Ended]:
    """Wait in a thread, as a program does that has put the tasks."""
    return await asyncio.to_thread(queue.results.wait, *tasks, timeout=30)


async def ended(queue: Queue, handler: Any, *tasks: str, **settings: Any) -> dict[str, Ended]:
    """Put tasks, have a worker do them, and give what a wait tells."""
    async with working(queue, handler, **settings):
        queue.put(tasks)
        return await wait_for(queue, *tasks)


def giving(result: Any) -> Any:
    async def handler(lease: Lease) -> Any:
        return result

    return handler


def key(queue: Queue, what: str) -> str:
    return f"timeoutq:{{{queue.name}}}:{what}"


# ---- from the handler to who waits


async def in_loop(lease: Lease) -> Ack:
    return Ack(result=b"of " + lease.task.encode())


async def raises(lease: Lease) -> None:
    raise Ack(result=b"of " + lease.task.encode())


def in_thread(lease: Lease) -> Ack:
    return Ack(result=b"of " + lease.task.encode())


@pytest.mark.parametrize("handler", [in_loop, raises, in_thread], ids=lambda one: one.__name__)
async def test_who_waits_sees_what_the_handler_gives_as_its_result(queue: Queue, handler: Any) -> None:
    tasks = [f"t{i}" for i in range(30)]
    expected = {task: Ended(task, State.DONE, b"of " + task.encode()) for task in tasks}
    assert await ended(queue, handler, *tasks) == expected
    assert queue.results.look(tasks) == expected


async def test_a_result_is_kept_for_an_hour_or_as_long_as_the_handler_says(queue: Queue, raw: redis.Redis) -> None:
    times = {"usual": Ack(result=b"1"), "short": Ack(result=b"1", keep_result=5)}

    async def handler(lease: Lease) -> Ack:
        return times[lease.task]

    await ended(queue, handler, *times)
    assert 3_590_000 < raw.pttl(key(queue, "result:usual")) <= 3_600_000
    assert 0 < raw.pttl(key(queue, "result:short")) <= 5000


async def test_a_task_whose_id_is_not_kept_leaves_its_result_alone(queue: Queue, raw: redis.Redis) -> None:
    assert await ended(queue, giving(Ack(result=b"1", keep_id=False)), "t") == {"t": Ended("t", None, b"1")}
    assert raw.smembers(key(queue, "done")) == set()
    assert queue.put("t")[0] == "added"


@pytest.mark.parametrize("put", [(), "found"])
async def test_a_task_whose_id_is_kept_for_a_time_blocks_it_until_then(
    queue: Queue, raw: redis.Redis, put: Any
) -> None:
    queue.configure(keep_done=0)
    await ended(queue, giving(Ack(put, keep_id=timedelta(hours=1))), "t")
    assert raw.smembers(key(queue, "done")) >= {"t"}
    left = float(raw.zscore(key(queue, "done_until"), "t") or 0) / 1000 - queue.stats().now
    assert 3500 < left <= 3600
    assert queue.put("t")[0] == "done"


async def test_results_of_many_tasks_go_in_few_calls(queue: Queue, raw: redis.Redis) -> None:
    queue.put([f"t{i}" for i in range(400)])
    begun, gate = 0, asyncio.Event()

    async def handler(lease: Lease) -> Ack:
        nonlocal begun
        begun += 1
        await gate.wait()
        return Ack(result=lease.task.encode(), keep_id=lease.task.endswith("0"))

    async with working(queue, handler, concurrency=400) as worker:
        await until(lambda: begun == 400)
        raw.config_resetstat()
        gate.set()
        await until(lambda: not worker.held)
    commands: Any = raw.info("commandstats")
    assert commands["cmdstat_fcall"]["calls"] < 40
    assert queue.stats().done == 40
    assert sorted(one.result or b"" for one in queue.results.look([f"t{i}" for i in range(400)]).values()) == sorted(
        b"t%d" % i for i in range(400)
    )


async def test_no_call_carries_more_than_its_bytes(queue: Queue) -> None:
    tasks = [f"t{i}" for i in range(9)]
    found = await ended(queue, giving(Ack(result=LARGE)), *tasks)
    assert {len(one.result or b"") for one in found.values()} == {Kept.MOST}


# ---- together with what else an ack may do


@pytest.mark.parametrize(
    "put",
    [["found"], {"found": b"x" * (BYTES - 100)}, {f"found-{i}": b"x" * HALF for i in range(3)}],
    ids=["few", "as much as fits", "much"],
)
async def test_a_result_goes_with_what_the_handler_found(queue: Queue, put: Any) -> None:
    async def handler(lease: Lease) -> Ack | None:
        return Ack(put=put, result=LARGE, keep_id=False) if lease.task == "page" else None

    async with working(queue, handler):
        queue.put("page")
        assert await wait_for(queue, "page") == {"page": Ended("page", None, LARGE)}
        assert await wait_for(queue, *put) == {task: Ended(task, State.DONE) for task in put}


async def test_a_task_whose_id_is_not_kept_may_put_itself(queue: Queue) -> None:
    async def handler(lease: Lease) -> Ack:
        run = lease.payload or 1
        return Ack(put={lease.task: 2} if run == 1 else (), result=b"%d" % run, keep_id=False)

    queue.put("t")
    async with working(queue, handler):
        await until(lambda: queue.stats().counters.get("acked") == 2)
    assert queue.results.look("t") == {"t": Ended("t", None, b"2")}


REFUSED: dict[str, dict[str, Any]] = {
    "result must be bytes, not 'x': give json.dumps(value).encode()": {"result": "x"},
    "result must be bytes, not 8: give json.dumps(value).encode()": {"result": 8},
    "result must be bytes, not bytearray(b'x'): give bytes(value)": {"result": bytearray(b"x")},
    "result must not be empty: leave result= out if there is nothing to keep": {"result": b""},
    "a result of 262,145 bytes cannot be kept, only 1 to 262,144: store it elsewhere": {"result": LARGE + b"x"},
    "keep_result= needs result=: without a result there is nothing to keep": {"keep_result": 5},
    "keep_result must be more than 0 seconds: leave result= out": {"result": b"1", "keep_result": 0},
    "keep_result must be a finite number of seconds, 0 or more, not -1": {"result": b"1", "keep_result": -1},
    "keep_result=1e+300 is past the year 9999": {"result": b"1", "keep_result": 1e300},
    "keep_id must be True or False, not 'no'": {"keep_id": "no"},
    "result= and again_in= exclude each other: a task that runs again has not ended": {"again_in": 1, "result": b"1"},
    "keep_id=False and again_in= exclude each other": {"again_in": 1, "keep_id": False},
}


async def test_what_cannot_be_kept_is_a_failure_that_names_the_field_and_the_cure(queue: Queue) -> None:
    gives = {f"t{i}": given for i, given in enumerate(REFUSED.items())}

    async def handler(lease: Lease) -> Ack:
        return Ack(**gives[lease.task][1])

    found = await ended(queue, handler, *gives, retry=[])
    for task, (text, _) in gives.items():
        assert (found[task].state, found[task].result) == (State.FAILED, None)
        assert (found[task].error or "").startswith(f"InvalidInput: {text}")


# ---- failures


class Judging:
    """A handler that fails, and judges its failures."""

    def __init__(self, verdict: Any, error: BaseException | None = None) -> None:
        self.verdict = verdict
        self.error = ValueError("no") if error is None else error
        self.asked: list[tuple[int, str]] = []
        self.made = 0

    async def __call__(self, lease: Lease) -> Ack:
        raise self.error

    def judge(self, lease: Lease, error: BaseException) -> Any:
        self.asked.append((lease.attempt, repr(error)))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    def make(self) -> Kept:
        self.made += 1
        return Kept(b"why", 60_000)


def verdict(**given: Any) -> Verdict:
    """Make a verdict of what may be wrong."""
    return Verdict(**given)


@pytest.mark.parametrize("is_made", [False, True], ids=["given", "made"])
async def test_a_handler_says_when_its_task_is_tried_again_and_what_is_kept_when_it_is_given_up(
    queue: Queue, is_made: bool
) -> None:
    handler = Judging(None)
    handler.verdict = Verdict(RetryPolicy.of([0, 0]), handler.make if is_made else Kept(b"why", 60_000))
    assert await ended(queue, handler, "t", retry=[3600]) == {"t": Ended("t", State.FAILED, b"why")}
    assert handler.asked == [(attempt, "ValueError('no')") for attempt in (1, 2, 3)]
    assert handler.made == is_made, "the result is made once, when the task is given up"
    assert queue.inspect("t").error == "ValueError: no"


async def test_without_a_verdict_the_worker_decides(queue: Queue) -> None:
    for task, verdict in {"none": None, "empty": Verdict()}.items():
        handler = Judging(verdict)
        assert await ended(queue, handler, task, retry=[0]) == {task: Ended(task, State.FAILED, error="ValueError: no")}
        assert len(handler.asked) == 2


async def test_a_retry_or_give_up_of_the_handler_goes_before_the_policy_of_its_verdict(queue: Queue) -> None:
    handler = Judging(Verdict(RetryPolicy.of([0] * 9), Kept(b"why", 60_000)), GiveUp("enough"))
    assert await ended(queue, handler, "t") == {"t": Ended("t", State.FAILED, b"why")}
    handler = Judging(Verdict(RetryPolicy.of([0] * 9)), Retry(after=3600))
    async with working(queue, handler):
        queue.put("u")
        await until(lambda: queue.inspect("u").state is State.SCHEDULED)


async def test_a_handler_judges_what_the_worker_finds_too(queue: Queue) -> None:
    class Hangs(Judging):
        async def __call__(self, lease: Lease) -> Ack:
            await asyncio.sleep(60)
            return Ack()

    handler = Hangs(Verdict(RetryPolicy.of([]), Kept(b"too long", 60_000)))
    assert await ended(queue, handler, "t", max_runtime=0.3) == {"t": Ended("t", State.FAILED, b"too long")}
    ((_, error),) = handler.asked
    assert "max_runtime" in error


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (OSError("no disk"), "OSError: no disk"),
        ("fail", "judge() returned 'fail'; expected None or a Verdict"),
        (verdict(result=lambda: 1 // 0), "ZeroDivisionError"),
        (verdict(result=b"why"), "the result of a Verdict is b'why'; expected a Kept"),
        (verdict(policy=[1]), "the retry policy failed"),
    ],
    ids=["raises", "no verdict", "its result raises", "its result is none", "its policy is none"],
)
async def test_a_verdict_that_cannot_be_used_is_logged_and_the_task_fails_all_the_same(
    queue: Queue, verdict: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Judging(verdict, GiveUp("no"))
    with caplog.at_level(logging.ERROR):
        assert await ended(queue, handler, "t") == {"t": Ended("t", State.FAILED, error="GiveUp: no")}
    assert said in caplog.text
    assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1


async def test_a_judge_that_the_worker_could_not_call_is_refused_at_once(queue: Queue) -> None:
    class Waits(Judging):
        async def judge(self, lease: Lease, error: BaseException) -> None: ...

    class Takes(Judging):
        def judge(self, lease: Lease) -> None: ...  # type: ignore[override]  # that is what is tested

    mine = AsyncQueue(queue.name, queue.given[0])
    with pytest.raises(InvalidInput, match="judge of the handler Waits is an async def: the worker calls it, so make"):
        Worker(mine, Waits(None))
    with pytest.raises(InvalidInput, match=r"judge of the handler Takes cannot be called with \(lease, error\)"):
        Worker(mine, Takes(None))


# ---- faults


async def test_a_full_server_takes_acks_and_failures_though_their_results_do_not_fit(
    queue: Queue, raw: redis.Redis
) -> None:
    gate = asyncio.Event()

    class Handler(Judging):
        async def __call__(self, lease: Lease) -> Ack:
            await gate.wait()
            if lease.task == "fails":
                raise ValueError
            return Ack(result=LARGE)

    queue.put("fails", [f"t{i}" for i in range(10)])
    async with working(queue, Handler(Verdict(RetryPolicy.of([]), Kept(b"why", 60_000)))) as worker:
        await until(lambda: len(worker.running) == 11)
        raw.config_set("maxmemory", "1")
        try:
            gate.set()
            found = await wait_for(queue, "fails", *(f"t{i}" for i in range(10)))
        finally:
            raw.config_set("maxmemory", "0")
    assert {one.result for one in found.values()} == {b""}
    assert (queue.stats().done, queue.stats().failed, queue.stats().counters["results_lost"]) == (10, 1, 11)


async def test_acks_whose_replies_are_lost_are_sent_again_and_write_each_result_once(url: str, queue: Queue) -> None:
    gate = asyncio.Event()

    async def handler(lease: Lease) -> Ack:
        await gate.wait()
        return Ack(result=lease.task.encode(), keep_id=False)

    tasks = [f"t{i}" for i in range(50)]
    queue.put(tasks)
    with Proxy(url) as proxy:
        async with working(queue, handler, proxy.url, concurrency=50) as worker:
            await until(lambda: len(worker.running) == 50)
            proxy.arm(Fault.RESET_AFTER, b"results", times=1)
            gate.set()
            found = await wait_for(queue, *tasks)
            await until(lambda: not worker.held)
    assert found == {task: Ended(task, None, task.encode()) for task in tasks}
    assert (worker.tally.acked, worker.tally.lost) == (50, 0)
    assert queue.stats().counters["acked"] == 50


async def test_a_worker_that_is_stopped_sends_the_results_of_handlers_that_have_ended(queue: Queue) -> None:
    begun = asyncio.Event()
    gate = asyncio.Event()

    async def handler(lease: Lease) -> Ack:
        begun.set()
        await gate.wait()
        return Ack(result=b"last")

    queue.put("t")
    async with working(queue, handler) as worker:
        await asyncio.wait_for(begun.wait(), 20)
        worker.stop()
        gate.set()
    assert queue.results.look("t") == {"t": Ended("t", State.DONE, b"last")}


@pytest.mark.breaking
def test_workers_that_are_killed_leave_one_result_of_the_last_run_of_each_task(queue: Queue, run: Processes) -> None:
    tasks = [f"t{i}" for i in range(300)]
    queue.put(tasks)
    workers = [run.worker(queue.name, "work_and_tell", "--timeout", "1", "--concurrency", "8") for _ in range(3)]
    kills, rng = 0, random.Random(3)
    for done in (20, 80, 140, 200):
        wait_until(lambda done=done: len(queue.results.look(tasks)) >= done, 60)  # type: ignore[misc]  # a bound default
        if queue.drained():
            break
        victim = workers.pop(rng.randrange(len(workers)))
        victim.kill()
        victim.wait()
        kills += 1
        workers.append(run.worker(queue.name, "work_and_tell", "--timeout", "1", "--concurrency", "8"))
    found = queue.results.wait(tasks, timeout=60)
    wait_until(queue.drained, 60)
    assert kills >= 3
    assert {one.state for one in found.values()} == {State.DONE}
    last: dict[str, int] = {}
    for _, task, fence, *_ in history(run.history):
        last[task] = max(fence, last.get(task, 0))
    assert {task: one.result for task, one in found.items()} == {
        task: f"{task} {last[task]}".encode() for task in tasks
    }
    assert queue.stats().done == 300, "the tasks that were found leave no id"
    assert {f"found-{task}" for task in tasks} <= set(last)


# ---- elsewhere


def test_a_fake_queue_has_the_results_of_a_run() -> None:
    class Handler(Judging):
        async def __call__(self, lease: Lease) -> Ack:
            if lease.task == "bad":
                raise ValueError
            return Ack(result=b"8", keep_id=False)

    with fake_queue() as fake:
        fake.put("good", "bad")
        run_fake(Handler(Verdict(RetryPolicy.of([60]), Kept(b"why", 60_000))), fake)
        assert fake.results.look("good", "bad") == {
            "good": Ended("good", None, b"8"),
            "bad": Ended("bad", State.FAILED, b"why"),
        }


async def test_the_tasks_of_an_ack_run_once_more_if_they_say_so_and_so_does_its_own_task(queue: Queue) -> None:
    seen: list[tuple[str, Any]] = []

    async def handler(lease: Lease) -> Ack | None:
        seen.append((lease.task, lease.payload))
        if lease.payload == "first":
            again = [Task(task, "newest", rerun=True) for task in ("done", lease.task)]
            return Ack(put=[*again, Task("kept", "newest")], result=b"of the first run")
        return Ack(result=b"of the last run") if lease.task == "a" else None

    queue.put("done", "kept")
    queue.ack(queue.claim(2))
    async with working(queue, handler):
        queue.put({"a": "first"})
        assert (await wait_for(queue, "a"))["a"].result == b"of the last run"
        await until(lambda: queue.drained())
    assert seen[0] == ("a", "first")
    assert sorted(seen[1:]) == [("a", "newest"), ("done", "newest")]
