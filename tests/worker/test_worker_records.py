"""What a worker leaves of a handler that fails or releases: tracebacks, lines of its log, and an end of the loop."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from timeoutq import Ack, AsyncQueue, GiveUp, InvalidInput, Lease, Politeness, Queue, Release, Worker
from timeoutq.cli import logs
from timeoutq.cli.app import app
from timeoutq.server.calls import BYTES
from timeoutq.testing import fake_queue
from timeoutq.verbs.sending import answer
from timeoutq.words import tracebacks
from timeoutq.words.text import safe, span
from timeoutq.worker import refusals as refusals_module
from timeoutq.worker.refusals import Refusals

HOSTILE = "\n2026-01-01 00:00:00 ERROR forged\r\x1b[2J\u202e"


async def work(url: str, queue: Queue, handler: Any, **settings: Any) -> Worker:
    """Run a worker until the queue is drained."""
    settings.setdefault("retry", [])
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        worker = Worker(mine, handler, burst=True, **settings)
        await worker.run()
    return worker


# ---- tracebacks


async def fail(lease: Lease) -> NoReturn:
    raise KeyError("title")


def fail_in_thread(lease: Lease) -> NoReturn:
    raise KeyError("title")


@pytest.mark.parametrize("handler", [fail, fail_in_thread])
async def test_a_failed_task_shows_where_its_handler_raised(
    url: str, queue: Queue, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put("a", "b")
    with caplog.at_level(logging.INFO, "timeoutq"):
        await work(url, queue, handler)
    trace = queue.inspect("a").traceback
    assert trace is not None
    first, place, *_, last = trace.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "test_worker_records.py" in place, "the way from the worker to the handler is left out"
    assert last == "KeyError: 'title'"
    (line, _) = [record for record in caplog.records if "given up" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.exc_text is not None
    assert line.exc_text.endswith("    KeyError: 'title'")


async def test_a_failure_that_is_tried_again_is_no_warning(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def fetch(lease: Lease) -> None:
        if lease.attempt == 1:
            raise ValueError("once")

    queue.put("a")
    with caplog.at_level(logging.INFO, "timeoutq"):
        await work(url, queue, fetch, retry=[0])
    (line,) = [record for record in caplog.records if "failed on attempt" in record.getMessage()]
    assert (line.levelno, line.exc_text) == (logging.INFO, None)


async def test_a_task_that_is_given_up_on_purpose_is_a_warning_without_a_traceback(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def fetch(lease: Lease) -> None:
        raise GiveUp("not wanted")

    queue.put("a")
    with caplog.at_level(logging.INFO, "timeoutq"):
        await work(url, queue, fetch)
    (line,) = [record for record in caplog.records if "given up" in record.getMessage()]
    assert (line.levelno, line.exc_text) == (logging.WARNING, None)
    assert queue.inspect("a").traceback is None


class Odd(Exception):
    """An exception that harms whoever looks at it."""

    def __init__(self, harm: BaseException) -> None:
        self.harm = harm

    def __str__(self) -> str:
        raise self.harm


def harmful() -> list[BaseException]:
    """Give exceptions of which each has its own way to harm."""
    looped, other = ValueError("a"), ValueError("b")
    looped.__cause__, other.__cause__ = other, looped
    long = ValueError("the last")
    here: BaseException = long
    for number in range(5_000):
        here.__context__ = here = ValueError(f"one before, {number}")
    noted = ValueError("noted")
    vars(noted)["__notes__"] = [HOSTILE, 5, *["more"] * 1000]
    unnoted = ValueError("unnoted")
    vars(unnoted)["__notes__"] = 5
    nested: BaseException = ValueError("inside")
    for _ in range(50):
        nested = ExceptionGroup("a group", [nested, ValueError(HOSTILE)])  # type: ignore[type-var]  # a group in a group
    causes = type("Causes", (Exception,), {"__cause__": property(lambda _self: 1 / 0)})()
    named = type("Named\n" + HOSTILE[1:-1], (Exception,), {"__module__": 5})("x")
    return [
        Odd(ValueError("in __str__")), Odd(KeyboardInterrupt()), Odd(RecursionError()), looped, long, noted, unnoted,
        nested, causes, named, ValueError(HOSTILE + "\ud800"), KeyError(b"\xff\0"),
        ValueError("x" * 1_000_000),
        SyntaxError("bad", ("file.py", 1, 2, "x" * 10_000)), ExceptionGroup("many", [ValueError("one")] * 10_000),
    ]  # fmt: skip


def caught(error: BaseException, depth: int = 1) -> BaseException:
    """Give the exception as it is when it has been raised so deep."""
    try:
        if depth > 1:
            raise_deep(error, depth)
        raise error
    except BaseException as found:
        return found


def raise_deep(error: BaseException, depth: int) -> None:
    if depth == 1:
        raise error
    raise_deep(error, depth - 1)


@pytest.mark.parametrize("number", range(len(harmful())))
def test_whatever_an_exception_does_its_traceback_is_bounded_text(number: int) -> None:
    error = caught(harmful()[number])
    trace = tracebacks.trace(error)
    assert len(trace) <= tracebacks.MOST
    trace.decode()
    for formatter in (logs.SafeFormatter("%(message)s"), logs.JsonFormatter()):
        record = logging.LogRecord("x", 30, "x", 1, "said", (), (type(error), error, error.__traceback__))
        line = formatter.format(record)
        assert "\n" not in line
        assert line.isprintable()


def test_of_a_deep_stack_the_last_frames_are_kept() -> None:
    trace = tracebacks.trace(caught(ValueError("deep"), 500)).decode()
    assert "frames before these are left out)" in trace
    assert trace.count("in raise_deep") == tracebacks.FRAMES


def test_what_led_to_an_exception_is_told_before_it() -> None:
    def convert() -> None:
        try:
            int("x")
        except ValueError as error:
            raise LookupError("no number") from error

    with pytest.raises(LookupError) as found:
        convert()
    text = tracebacks.read_traceback(tracebacks.trace(found.value), "LookupError: no number")
    assert text is not None
    before, after = text.split(tracebacks.CAUSE)
    assert before.startswith("Traceback (most recent call last):\n")
    assert before.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")
    assert after.endswith("LookupError: no number")


def test_the_beginning_of_what_is_too_long_is_cut_off() -> None:
    chain = [ValueError("y" * 900) for _ in range(5)]
    for one, before in pairwise(chain):
        one.__cause__ = caught(before, 200)
    trace = tracebacks.trace(caught(chain[0], 200))
    assert len(trace) <= tracebacks.MOST
    assert trace.startswith(b"(")
    assert b"bytes before this are left out)\n" in trace
    assert trace.endswith(b"raise error\n")


# ---- lines of the log


def said(value: str) -> str:
    """Give text as a field of JSON has it: its lines are safe."""
    return "\n".join(map(safe, value.split("\n")))


async def test_a_line_of_json_says_which_task_failed_and_where_in_fields(url: str, queue: Queue) -> None:
    lines, logger = io.StringIO(), logging.getLogger("timeoutq")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(logs.JsonFormatter())
    logger.addHandler(handler)
    task = "https://a.example/" + HOSTILE[:-1]

    async def fetch(lease: Lease) -> None:
        raise ValueError(HOSTILE)

    try:
        queue.put(task)
        worker = await work(url, queue, fetch)
    finally:
        logger.removeHandler(handler)
    found: list[dict[str, Any]] = [json.loads(line) for line in lines.getvalue().splitlines()]
    (line,) = [line for line in found if "given up" in line["message"]]
    assert (line["queue"], line["task"], line["attempt"]) == (queue.name, "https://a.example/" + said(HOSTILE[:-1]), 1)
    assert line["worker"] == worker.queue.worker
    assert line["error"].startswith("ValueError: \n2026")
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].endswith(line["error"])
    assert all(part.isprintable() for part in line["traceback"].split("\n"))


async def test_hostile_text_of_an_error_forges_no_line_of_the_log(url: str, queue: Queue) -> None:
    lines, logger = io.StringIO(), logging.getLogger("timeoutq")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(logs.SafeFormatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)

    async def fetch(lease: Lease) -> None:
        raise ValueError(HOSTILE)

    try:
        queue.put("a")
        await work(url, queue, fetch)
    finally:
        logger.removeHandler(handler)
    (line,) = [line for line in lines.getvalue().splitlines() if "given up" in line]
    assert line.startswith("WARNING queue ")
    assert "|     Traceback (most recent call last): |" in line
    assert line.isprintable()


# ---- releases


@pytest.mark.parametrize("way", ["returned", "raised", "delayed"])
async def test_a_handler_that_always_releases_comes_to_an_end(
    url: str, queue: Queue, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def fetch(lease: Lease) -> Release:
        nonlocal runs
        runs += 1
        if way == "raised":
            raise Release()
        return Release(delay=0.01 if way == "delayed" else 0)

    queue.put("a")
    worker = await work(url, queue, fetch, max_releases=4)
    info = queue.inspect("a")
    assert runs == 4
    assert (info.state, info.releases, info.failures) == ("failed", 4, 0)
    assert info.error is not None
    assert info.error.startswith("released 4 times by its handler")
    assert (worker.tally.released, worker.tally.failed) == (3, 1)
    (line,) = [record for record in caplog.records if "released 4 times by its handler" in record.getMessage()]
    assert line.levelno == logging.WARNING


async def test_a_release_that_blocks_its_host_or_comes_from_the_worker_is_not_counted(url: str, queue: Queue) -> None:
    first = True

    async def fetch(lease: Lease) -> Release | Ack:
        nonlocal first
        if first:
            first = False
            return Release(block_host=0.01)
        return Ack(again_in=0)

    page = "http://a.example/"
    queue.configure(politeness=Politeness(delay=0))
    queue.put(page)
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        worker = Worker(mine, fetch, max_releases=1, max_tasks=2, signals=False)
        await worker.run()
        assert queue.inspect(page).releases == 0

        begun = asyncio.Event()

        async def hang(lease: Lease) -> None:
            begun.set()
            await asyncio.sleep(60)

        worker = Worker(mine, hang, max_releases=1, signals=False)
        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop(now=True)
        await running
    info = queue.inspect(page)
    assert (info.state, info.releases) == ("todos", 0)


async def test_a_host_that_is_blocked_again_and_again_is_warned_of(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def busy(lease: Lease) -> Release:
        return Release(block_host=0.001)

    queue.configure(politeness=Politeness(delay=0))
    queue.put("https://busy.example/")
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        with caplog.at_level(logging.INFO, "timeoutq.worker"):
            await Worker(mine, busy, max_tasks=102, signals=False).run()
        lines = [record for record in caplog.records if "to block host 'busy.example'" in record.getMessage()]
        assert [(vars(line)["times"], line.levelno) for line in lines] == [
            (10, logging.WARNING),
            (100, logging.WARNING),
        ]
        assert "handlers have put tasks back 10 times in a row to block host" in lines[0].getMessage()
    told = CliRunner().invoke(app, ["inspect", queue.name, "https://busy.example/"], env={"TIMEOUTQ_URL": url}).output
    assert "releases\t102, 102 of them blocked a host\n" in told
    queue.hosts.block("busy.example", for_=60)
    told = CliRunner().invoke(app, ["why", queue.name, "https://busy.example/"], env={"TIMEOUTQ_URL": url}).output
    assert "; this task was put back 102 times to block its host" in told
    assert "releases\t102, 102 of them blocked a host\n" in told


@pytest.mark.parametrize("found", [[], {f"link-{i}": b"x" * (BYTES // 2 + 1) for i in range(2)}], ids=["", "long ack"])
async def test_a_host_that_is_visited_in_between_is_not_warned_of(
    url: str, queue: Queue, found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def sometimes(lease: Lease) -> Release | Ack:
        nonlocal runs
        if lease.task != "https://a.example/":
            return Ack()
        runs += 1
        return Ack(again_in=0, put=found) if runs % 9 == 0 else Release(block_host=0.001)

    queue.configure(politeness=Politeness(delay=0))
    queue.put("https://a.example/")
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        await Worker(mine, sometimes, max_tasks=40, signals=False).run()
    assert "in a row" not in caplog.text


def test_the_hosts_that_are_counted_are_bounded() -> None:
    refusals = Refusals()
    for _ in range(9):
        assert refusals.add("https://first.example/") is None
    for i in range(refusals_module.MOST):
        assert refusals.add(f"https://h{i}.example/") is None
    assert len(refusals.rows) == refusals_module.MOST
    assert refusals.add("https://first.example/") is None, "it was forgotten, and begins anew"
    assert refusals.add("https://") is None, "a URL without a host stands for itself"


@pytest.mark.parametrize("polite", [False, True], ids=["plain", "polite"])
async def test_a_release_that_can_block_no_host_is_counted_like_any_other(url: str, queue: Queue, polite: bool) -> None:
    runs: list[float] = []

    async def fetch(lease: Lease) -> Release:
        runs.append(time.monotonic())
        return Release(block_host=60)

    if polite:
        queue.configure(politeness=Politeness(delay=0))
    queue.put("a task without a host")
    worker = await work(url, queue, fetch, max_releases=4)
    info = queue.inspect("a task without a host")
    assert (info.state, info.releases, len(runs)) == ("failed", 4, 4)
    assert info.error is not None
    assert info.error.startswith("released 4 times by its handler")
    assert runs[3] - runs[1] > 0.14, "the second release waits 50 ms, the third 100 ms"
    assert (worker.tally.released, worker.tally.failed) == (3, 1)


def test_of_many_releases_that_block_only_those_without_a_host_are_counted() -> None:
    with fake_queue(timeout=60, politeness=Politeness(0, 2)) as queue:
        queue.put("http://a.example/", "free")
        leases = queue.claim(2)
        (call,) = queue.operations.release(leases, block_ms=60_000, most=1)
        outcome = queue.run(answer(queue.talk, call))
        assert {lease.task: outcome[lease.task] for lease in leases} == {"http://a.example/": "ok", "free": "failed"}
        assert queue.hosts.inspect("a.example").blocked_until == queue.clock.now + 60
        assert queue.inspect("http://a.example/").releases == 0


@pytest.mark.parametrize("unbounded", [0, None])
async def test_without_a_limit_releases_are_counted_all_the_same(url: str, queue: Queue, unbounded: int | None) -> None:
    async def fetch(lease: Lease) -> Release | None:
        return Release() if queue.inspect(lease.task).releases < 3 else Release(block_host=0.01)

    page = "http://a.example/"
    queue.configure(politeness=Politeness(delay=0))
    queue.put(page)
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        await Worker(mine, fetch, max_releases=unbounded, max_tasks=4, signals=False).run()
    assert queue.inspect(page).releases == 3


@pytest.mark.parametrize("most", [-1, 1.5, "many", True])
def test_a_limit_of_releases_is_a_whole_number(queue: Queue, url: str, most: Any) -> None:
    with pytest.raises(InvalidInput, match="max_releases"):
        Worker(AsyncQueue(queue.name, url), fail, max_releases=most if most is not True else "yes")  # type: ignore[arg-type]  # that is the point


# ---- what people see


async def test_inspect_why_list_and_status_show_what_is_kept(url: str, queue: Queue) -> None:
    async def fetch(lease: Lease) -> Release | None:
        if lease.task == "again":
            return Release()
        raise ValueError(HOSTILE)

    queue.put("again", "broken")
    await work(url, queue, fetch, max_releases=2)
    runner = CliRunner()

    def said_by(*words: str) -> str:
        done = runner.invoke(app, [words[0], queue.name, *words[1:]], env={"TIMEOUTQ_URL": url})
        assert done.exit_code == 0, done.output
        assert all(line.isprintable() for line in done.output.replace("\t", " ").split("\n"))
        return done.output

    whole = said_by("inspect", "broken")
    assert "traceback\tTraceback (most recent call last):\n" in whole
    assert "traceback\t    raise ValueError(HOSTILE)\n" in whole
    assert "releases\t2\n" in said_by("inspect", "again")
    assert "traceback\t    raise ValueError(HOSTILE)\n" in said_by("why", "broken")
    assert "releases\t2\n" in said_by("why", "again")
    assert "Traceback" not in said_by("list", "failed")
    assert "\n    Traceback (most recent call last):\n" in said_by("list", "failed", "--traceback")
    entries = {entry["task"]: entry for entry in map(json.loads, said_by("list", "failed", "--json").splitlines())}
    assert entries["again"]["releases"] == 2
    assert entries["broken"]["traceback"].startswith("Traceback (most recent call last):\n")
    assert "\nhandlers ran\t3\t0.000" in said_by("status")
    assert json.loads(said_by("status", "--json"))["stats"]["durations"]["count"] == 3


async def test_why_says_that_a_task_waits_since_its_handler_released_it(url: str, queue: Queue) -> None:
    async def fetch(lease: Lease) -> Release:
        return Release(delay=60)

    queue.put("a")
    async with AsyncQueue(queue.name, url, timeout=5) as mine, asyncio.timeout(60):
        await Worker(mine, fetch, max_tasks=1, signals=False).run()
    assert "its handler has released it once" in queue.why("a").message


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.00012, "0.12 ms"),
        (0.0099, "9.90 ms"),
        (0.085, "85 ms"),
        (0.9994, "999 ms"),
        (1.0, "1.0 s"),
        (9e4, "25 h"),
    ],
)
def test_a_span_is_shown_in_the_unit_in_which_it_is_read(seconds: float, shown: str) -> None:
    assert span(seconds) == shown
