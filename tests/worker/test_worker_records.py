"""What a worker leaves of a handler that fails or releases: tracebacks, lines of its log, and an end of the loop."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from timeoutq import Ack, AsyncQueue, Lease, Politeness, Queue, Release, Worker
from timeoutq.cli import app, logs
from timeoutq.words.text import safe

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


async def test_a_host_that_is_blocked_now_and_then_is_not_warned_of(
    url: str, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def busy(lease: Lease) -> Release | Ack:
        runs.append(lease.task)
        if len(runs) % 7:
            return Release(block_host=0.001)
        return Ack(put=[f"https://busy.example/{len(runs)}"] if len(runs) < 21 else [])

    runs: list[str] = []
    queue.configure(politeness=Politeness(delay=0))
    queue.put("https://busy.example/")
    worker = await work(url, queue, busy)
    assert (worker.tally.released, worker.tally.acked) == (18, 3)
    assert "to block host" not in caplog.text


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
