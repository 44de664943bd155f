"""What redisched does over HTTP, and people with rq-dashboard and rqmonitor: a test for each row, of its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.gateway.web import Client, client, server, web
from tests.rig.pages import Reader, Served, settings
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, Queue, State, Worker

__all__ = ["client", "server", "web"]


@pytest.fixture
def reader(url: str) -> Iterator[Reader]:
    with Served(settings(url)) as served, Reader(served.base) as one:
        yield one


def fail(queue: Queue, *tasks: str) -> None:
    queue.put({task: {"of": task} for task in tasks})
    for lease in queue.claim(500):
        try:
            raise ValueError("no price")
        except ValueError as error:
            queue.fail(lease, error, give_up=True)


def test_redisched_put(client: Client) -> None:
    assert client.put({"task": "now", "payload": {"to": "ann"}}) == ["added"]
    assert client.post("schedule", {"tasks": ["later"], "after": 0.2})["answers"] == ["added"]
    assert client.claim()[0]["payload"] == {"to": "ann"}
    assert client.claim(wait=20)[0]["task"] == "later"


def test_redisched_reserve(client: Client) -> None:
    client.put("a")
    assert client.claim(timeout=1)[0]["task"] == "a"
    assert client.claim() == []
    assert client.claim(wait=20)[0]["task"] == "a"  # it was not finished in time


def test_redisched_pull(client: Client) -> None:
    client.put("a")
    assert client.post("pull")["tasks"] == [{"task": "a", "payload": None}]
    assert client.claim() == []


def test_redisched_release(client: Client) -> None:
    client.put("a")
    assert client.post("release", {"leases": client.claim(), "delay": 1})["answers"] == ["ok"]
    assert client.look("task", id="a")["state"] == "scheduled"
    assert client.claim(wait=20)[0]["task"] == "a"


def test_redisched_delete(client: Client) -> None:
    client.put("a")
    assert client.post("ack", {"leases": client.claim()})["answers"] == ["ok"]
    client.put("b")
    assert client.post("forget", {"tasks": ["b"]})["answers"] == ["todos"]
    assert client.post("states", {"tasks": ["a", "b"]})["answers"] == ["done", "unknown"]


def test_redisched_requeue(client: Client) -> None:
    client.put("a", "b")
    first, second = client.claim(2)
    client.post("ack", {"leases": [first]})
    client.post("fail", {"leases": [second], "error": "broken", "give_up": True})
    assert client.post("requeue", {"tasks": ["a", "b"]})["answers"] == ["added", "added"]
    assert client.queue.stats().todos == 2


def test_rq_dashboard_queues(queue: Queue, reader: Reader) -> None:
    queue.put("https://a.example/", "https://b.example/")
    page = reader.follow(reader.go("/"), queue.name)
    assert "2 todos" in page.text
    assert "2 known" in page.text
    page = reader.follow(reader.follow(page, "2 todos"), "https://a.example/")
    assert "todos" in page.text
    assert page.response.url.query == b"id=https%3A%2F%2Fa.example%2F"


async def test_rq_dashboard_workers(url: str, queue: Queue, reader: Reader) -> None:
    def tells() -> bool:
        text = reader.go(f"/q/{queue.name}/workers").text
        return "1 alive" in text and f"{worker.queue.worker} 7 0 0 0" in text

    async with AsyncQueue(queue.name, url) as jobs:
        worker = Worker(jobs, lambda lease: None, concurrency=7, signals=False)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(wait_until, tells)
        worker.stop()
        await running


def test_rq_dashboard_jobs_by_state(queue: Queue, reader: Reader) -> None:
    fail(queue, "bad")
    queue.put("good")
    queue.ack(queue.claim())
    queue.put("running")
    queue.claim()
    queue.put("ready")
    queue.schedule("later", after=600)
    names = {"todos": "ready", "scheduled": "later", "in_progress": "running", "done": "good", "failed": "bad"}
    for state, task in names.items():
        page = reader.go(f"/q/{queue.name}/tasks?state={state}")
        assert [said for said, where in page.links if "/task?" in where] == [task], state


def test_rq_dashboard_job_detail(queue: Queue, reader: Reader) -> None:
    fail(queue, "bad")
    page = reader.follow(reader.go(f"/q/{queue.name}/tasks?state=failed"), "bad")
    for words in ("failed", "ValueError: no price", "Traceback", 'raise ValueError("no price")', '"of": "bad"'):
        assert words in page.text


def test_rq_dashboard_requeue(queue: Queue, reader: Reader) -> None:
    fail(queue, "a", "b", "c")
    reader.press(reader.go(f"/q/{queue.name}/task?id=a"), "Retry")
    assert queue.inspect("a").state is State.TODOS
    page = reader.go(f"/q/{queue.name}/tasks?state=failed")
    reader.press(reader.press(page, "Retry all failed…"), "Retry all")
    wait_until(lambda: queue.stats().todos == 3)


def test_rq_dashboard_cancel(queue: Queue, reader: Reader) -> None:
    queue.schedule("a", after=60)
    page = reader.press(reader.go(f"/q/{queue.name}/task?id=a"), "Cancel")
    assert queue.inspect("a").state is State.SCHEDULED, "nobody was sure yet"
    reader.press(page, "Cancel")
    assert queue.inspect("a").state is State.FAILED


def test_rq_dashboard_empty(queue: Queue, reader: Reader) -> None:
    queue.put(f"t{i}" for i in range(450))
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
    page = reader.press(reader.press(reader.go(f"/q/{queue.name}"), "Pause"), "Pause")
    assert queue.stats().paused
    assert "paused" in page.text
    assert queue.claim() == []
    page = reader.press(page, "Resume")
    assert page.said
    assert not reader.go(f"/q/{queue.name}?said=hello&timeoutq-said=hello").said, "once, and no link can make one"
    assert len(queue.claim()) == 1
