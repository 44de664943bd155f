"""What people do with rq-dashboard, rqmonitor and redisched's page, one test for each row: all of it by our page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.rig.pages import Reader, Served, settings
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue, State
from timeoutq.worker.worker import Worker


@pytest.fixture
def reader(url: str) -> Iterator[Reader]:
    with Served(settings(url)) as served, Reader(served.base) as one:
        yield one


def fail(queue: Queue, task: str, error: str) -> None:
    queue.put({task: {"of": task}})
    (lease,) = queue.claim()
    try:
        raise ValueError(error)
    except ValueError as raised:
        queue.fail(lease, raised, give_up=True)


def test_rq_dashboard_queues(queue: Queue, reader: Reader) -> None:
    queue.put("a", "b")
    page = reader.go("/")
    assert (queue.name, f"/q/{queue.name}") in page.links
    assert ("2", f"/q/{queue.name}/tasks?state=todos") in page.links


async def test_rq_dashboard_workers(url: str, queue: Queue, reader: Reader) -> None:
    async with AsyncQueue(queue.name, url) as jobs:
        worker = Worker(jobs, lambda lease: None, concurrency=7, signals=False)
        running = asyncio.create_task(worker.run())
        told = await asyncio.to_thread(
            wait_until, lambda: "1 alive" in (seen := reader.go(f"/q/{queue.name}/workers").text) and seen
        )
        assert jobs.worker in str(told)
        assert re.search(r"\b7 0 0 0\b", str(told)), told
        worker.stop()
        await running


def test_rq_dashboard_jobs_by_state(queue: Queue, reader: Reader) -> None:
    fail(queue, "bad", "no")
    queue.put("good")
    queue.ack(queue.claim())
    queue.put("running")
    queue.claim()
    queue.put("ready")
    queue.schedule("later", after=600)
    for state, task in (
        ("todos", "ready"), ("scheduled", "later"), ("in_progress", "running"), ("done", "good"), ("failed", "bad"),
    ):  # fmt: skip
        page = reader.go(f"/q/{queue.name}/tasks?state={state}")
        assert [said for said, where in page.links if "/task?" in where] == [task], state


def test_rq_dashboard_job_detail(queue: Queue, reader: Reader) -> None:
    fail(queue, "bad", "no price")
    page = reader.follow(reader.go(f"/q/{queue.name}/tasks?state=failed"), "bad")
    for words in ("failed", "ValueError: no price", "Traceback", "raise ValueError(error)", '"of": "bad"'):
        assert words in page.text


def test_rq_dashboard_requeue(queue: Queue, reader: Reader) -> None:
    fail(queue, "bad", "no")
    reader.press(reader.go(f"/q/{queue.name}/task?id=bad"), "Retry")
    assert queue.inspect("bad").state is State.TODOS


def test_rq_dashboard_requeue_all(queue: Queue, reader: Reader) -> None:
    for task in ("a", "b", "c"):
        fail(queue, task, "no")
    page = reader.go(f"/q/{queue.name}/tasks?state=failed")
    reader.press(reader.press(page, "Retry all failed…"), "Retry all")
    wait_until(lambda: queue.stats().todos == 3)


def test_rq_dashboard_cancel(queue: Queue, reader: Reader) -> None:
    queue.put("a")
    reader.press(reader.press(reader.go(f"/q/{queue.name}/task?id=a"), "Cancel"), "Cancel")
    assert queue.inspect("a").state is State.FAILED


def test_rq_dashboard_empty(queue: Queue, reader: Reader) -> None:
    queue.put(*(f"t{i}" for i in range(450)))
    page = reader.go(f"/q/{queue.name}/tasks?state=todos")
    reader.press(reader.press(page, "Empty todos…"), "Empty")
    wait_until(lambda: queue.stats().todos == 0)


def test_rqmonitor_delete(queue: Queue, reader: Reader) -> None:
    queue.put("a", "b")
    page = reader.go(f"/q/{queue.name}/tasks?state=todos")
    page = reader.press(page, "Forget", ("id", "a"), ("id", "b"))
    assert reader.press(page, "Forget").said == "2 tasks forgotten"
    assert queue.stats().known == 0


def test_rqmonitor_memory(queue: Queue, reader: Reader) -> None:
    queue.put("a")
    assert "Memory of the server in use" in reader.go(f"/q/{queue.name}").text


def test_rqmonitor_suspend_and_resume_workers(queue: Queue, reader: Reader) -> None:
    queue.put("a")
    reader.press(reader.press(reader.go(f"/q/{queue.name}"), "Pause"), "Pause")
    assert queue.claim() == []
    reader.press(reader.go(f"/q/{queue.name}"), "Resume")
    assert len(queue.claim()) == 1


def test_redisched_page_send(queue: Queue, reader: Reader) -> None:
    queue.put("first")
    reader.press(reader.go(f"/q/{queue.name}/put"), "Put", ids="hello", payload='"body"', when="after", after="60")
    info = queue.inspect("hello")
    assert (info.state, info.payload) == (State.SCHEDULED, "body")


def test_redisched_page_watch(queue: Queue, reader: Reader) -> None:
    queue.put("hello")
    assert "todos" in reader.go(f"/q/{queue.name}/task?id=hello").text
    (lease,) = queue.claim(timeout=30)
    page = reader.go(f"/q/{queue.name}/task?id=hello")
    assert lease.holder in page.text
    assert "in_progress" in page.text
    assert "lease ends in" in page.text


def test_redisched_page_cancel(queue: Queue, reader: Reader) -> None:
    queue.schedule("hello", after=60)
    reader.press(reader.press(reader.go(f"/q/{queue.name}/task?id=hello"), "Cancel"), "Cancel")
    assert queue.inspect("hello").state is State.FAILED
