"""Lines of JSON: what happened to which task of which queue can be asked without reading prose."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from timeoutq import Lease, Worker
from timeoutq.cli.logs import JsonFormatter, SafeFormatter
from timeoutq.testing import FakeAsyncQueue, fake_async_queue
from timeoutq.testing import lease as make_lease


@contextmanager
def as_json(name: str = "timeoutq") -> Iterator[list[dict[str, Any]]]:
    """Keep the lines of a logger as `--log-json` writes them."""
    written, found = io.StringIO(), list[dict[str, Any]]()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        found += map(json.loads, written.getvalue().splitlines())


def written(**fields: object) -> dict[str, Any]:
    with as_json() as lines:
        logging.getLogger("timeoutq.test").warning("told %s", "so", extra=fields)
    (line,) = lines
    return line


class Odd:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_no_field_steers_a_terminal_or_breaks_the_line() -> None:
    line = written(
        task="\x1b[2J\x07a\udcff\u202e",
        error="one\ntwo\r",
        odd=Odd(),
        much=float("inf"),
        level="mine",
        attempt=2,
        none=None,
    )
    assert (line["message"], line["attempt"], line["logger"]) == ("told so", 2, "timeoutq.test")
    assert not line.keys() & {"none", "args", "levelno", "lineno", "processName", "taskName"}
    assert line["task"] == r"\x1b[2J\x07a\xff\u202e"
    assert line["error"] == "one\ntwo\\x0d"
    assert "without text" in line["odd"]
    assert line["much"] == "inf"
    assert line["level"] == "WARNING"


def test_a_log_call_whose_arguments_do_not_fit_is_a_line_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message, args, shown = "%d pages", ("x\x1b",), r"('x\x1b',)"
    error = "TypeError: %d format: a real number is required, not str"
    monkeypatch.setattr(logging.getLogger("timeoutq"), "propagate", False)  # pytest itself formats what gets further
    plain = io.StringIO()
    handler = logging.StreamHandler(plain)
    handler.setFormatter(SafeFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("timeoutq.test")
    logger.addHandler(handler)
    try:
        with as_json() as lines:
            logger.warning(message, *args, extra={"task": "a"})
    finally:
        logger.removeHandler(handler)
    (line,) = lines
    assert (line["message"], line["format_error"], line["level"], line["task"]) == (message, error, "WARNING", "a")
    assert line["args"].startswith(shown)
    assert len(line["args"]) <= 1000
    assert plain.getvalue().startswith(f"WARNING {message} (its arguments {shown}")
    assert plain.getvalue().endswith(f" do not fit: {error})\n")
    assert capsys.readouterr().err == ""


async def fail(lease: Lease) -> None:
    raise KeyError("title")


async def test_a_failed_task_is_told_with_its_fields() -> None:
    queue: FakeAsyncQueue = fake_async_queue("pages")
    await queue.put("https://a.example/")
    with as_json() as lines:
        await Worker(queue, fail, retry=[], burst=True, signals=False).run()
    (line,) = [line for line in lines if "failed on attempt" in line["message"]]
    assert [line[name] for name in ("queue", "task", "attempt", "worker", "error")] == [
        "pages", "https://a.example/", 1, queue.worker, "KeyError: 'title'",
    ]  # fmt: skip
    await queue.close()


def say_so(lease: Lease) -> None:
    logging.getLogger("mine").info("in %s", lease.task)


async def in_loop(lease: Lease) -> None:
    await asyncio.sleep(0.01)  # the handlers of other tasks begin meanwhile
    say_so(lease)
    await asyncio.to_thread(say_so, lease)
    await asyncio.create_task(of_its_own(lease))


async def of_its_own(lease: Lease) -> None:
    say_so(lease)


def in_thread(lease: Lease) -> None:
    for _ in range(3):
        say_so(lease)


@pytest.mark.parametrize(("handler", "times"), [(in_loop, 3), (in_thread, 3)])
async def test_what_a_handler_logs_names_its_task(handler: Any, times: int) -> None:
    queue: FakeAsyncQueue = fake_async_queue("pages")
    await queue.put([f"t{i}" for i in range(10)])

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        say_so(make_lease("no task"))
        yield

    with as_json("mine") as lines:
        await Worker(queue, handler, concurrency=3, burst=True, signals=False, lifespan=lifespan).run()
        say_so(make_lease("no task"))
    of_tasks = [line for line in lines if line["message"] != "in no task"]
    assert Counter(line["task"] for line in of_tasks) == {f"t{i}": times for i in range(10)}
    for line in of_tasks:
        assert line["message"] == f"in {line['task']}"
        assert (line["queue"], line["worker"], line["attempt"]) == ("pages", queue.worker, 1)
    others = [line for line in lines if line not in of_tasks]
    assert len(others) == 2
    assert not any("task" in line or "queue" in line for line in others)
    await queue.close()
