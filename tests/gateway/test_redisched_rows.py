"""What redisched does over HTTP, one test for each of its rows, under its words and ours."""

from __future__ import annotations

from tests.gateway.web import Client, client, server, web
from tests.rig.waiting import wait_until

__all__ = ["client", "server", "web"]


def test_put_a_job_with_a_delay(client: Client) -> None:
    """redisched: put (with a delay) → put, schedule."""
    assert client.put({"task": "now", "payload": {"to": "a@example.com"}}) == ["added"]
    assert client.post("schedule", {"tasks": ["later"], "after": 0.2})["answers"] == ["added"]
    assert client.claim()[0]["payload"] == {"to": "a@example.com"}
    assert client.claim(wait=5)[0]["task"] == "later"


def test_reserve_a_job_for_a_time(client: Client) -> None:
    """redisched: reserve (with a time to run) → claim (with a timeout)."""
    client.put("a")
    assert client.claim(timeout=0.3)[0]["task"] == "a"
    assert client.claim() == []
    assert client.claim(wait=5)[0]["task"] == "a"  # it was not finished in time


def test_pull_a_job_without_reserving_it(client: Client) -> None:
    """redisched: pull → pull."""
    client.put("a")
    assert client.post("pull", {})["tasks"] == [{"task": "a", "payload": None}]
    assert client.claim() == []


def test_release_a_job(client: Client) -> None:
    """redisched: release (with a delay) → release."""
    client.put("a")
    assert client.post("release", {"leases": client.claim(), "delay": 0.2})["answers"] == ["ok"]
    assert client.look("task", id="a")["state"] == "scheduled"
    assert client.claim(wait=5)[0]["task"] == "a"


def test_delete_a_job(client: Client) -> None:
    """redisched: delete → ack for a job that is reserved, forget for any job."""
    client.put("a", "b")
    (lease,) = client.claim()
    assert client.post("ack", {"leases": [lease]})["answers"] == ["ok"]
    other = "b" if lease["task"] == "a" else "a"
    assert client.post("forget", {"tasks": [other]})["answers"] == ["todos"]
    assert client.look("task", id=other)["state"] is None


def test_requeue_a_job(client: Client) -> None:
    """redisched: requeue → requeue, for what is done and what has failed."""
    client.put("a", "b")
    first, second = client.claim(2)
    client.post("ack", {"leases": [first]})
    client.post("fail", {"leases": [second], "error": "broken", "give_up": True})
    assert client.post("requeue", {"tasks": ["a", "b"]})["answers"] == ["added", "added"]
    wait_until(lambda: client.look("stats")["todos"] == 2)
    assert client.look("task", id=second["task"])["error"] is None
