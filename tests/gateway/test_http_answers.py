"""What clients over HTTP are answered where the answer is easily mistaken: transcripts on one gateway."""

from __future__ import annotations

import base64

import pytest

from tests.gateway.web import Client, client, refused, server, web
from tests.rig.waiting import wait_until
from timeoutq.gateway.fairness import Memory
from timeoutq.gateway.problems import Problem

__all__ = ["client", "server", "web"]


def test_a_client_that_only_pulls_gets_tasks_when_they_are_due(client: Client) -> None:
    client.post("schedule", {"tasks": ["later"], "after": 0.2})
    wait_until(lambda: client.post("pull", {"n": 1})["tasks"] == [{"task": "later", "payload": None}], 10)


def test_requeue_adds_no_task_that_the_queue_does_not_know(client: Client) -> None:
    client.put("a", "b")
    client.post("ack", {"leases": client.claim(1)})
    found = client.post("requeue", {"tasks": ["a", "mistyped", "b"]})
    assert found == {"answers": ["added", "unknown", "todos"], "counts": {"added": 1, "unknown": 1, "todos": 1}}
    assert client.post("states", {"tasks": ["mistyped"]})["answers"] == ["unknown"]


def test_schedule_takes_times_with_a_zone(client: Client) -> None:
    assert client.post("schedule", {"tasks": ["a"], "at": "2027-01-31T12:00+01:00"})["answers"] == ["added"]
    (task,) = client.look("tasks", state="scheduled")["tasks"]
    assert 1801393200.0 in task.values()
    assert (
        "zone" in refused(client.ask("schedule", {"tasks": ["b"], "at": "2027-01-31T12:00"}), 422, "bad-body")["detail"]
    )
    assert "time" in refused(client.ask("schedule", {"tasks": ["b"], "at": "soon"}), 422, "bad-body")["detail"]


def test_an_id_in_base64_may_come_without_padding(client: Client) -> None:
    word = base64.b64encode(b"\xff").decode()
    client.put({"b64": word})
    for said in (word, word.rstrip("=")):
        assert client.look("task", b64=said)["state"] == "todos"
    assert (
        "known: none" in refused(client.http.get(f"{client.home}/stats", params={"x": "1"}), 422, "bad-body")["detail"]
    )


def test_the_description_says_what_lines_are_answered(client: Client) -> None:
    assert client.lines(b'"a"\n').json() == {"lines": 1, "counts": {"added": 1}}
    described = client.http.get(f"{client.web.base}/v1/openapi.json").json()
    answers = described["paths"]["/v1/{queue}/put"]["post"]["responses"]
    kinds = answers["200"]["content"]["application/json"]["schema"]["oneOf"]
    assert [one["$ref"].rpartition("/")[2] for one in kinds] == ["Answers", "Lines"]
    assert {"408", "421"} <= answers.keys()


def test_a_full_gateway_does_not_blame_the_caller() -> None:
    memory = Memory(100)
    memory.change("a", 50)
    memory.change("b", 50)
    with pytest.raises(Problem, match="of a are being read") as own:
        memory.change("a", 1)
    with pytest.raises(Problem, match="100 bytes are in memory") as others:
        memory.change("c", 1)
    assert (own.value.status, others.value.status) == (429, 503)
