"""`Task` stands wherever an id may: with a payload and a group of its own, beside plain ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from timeoutq import InvalidInput, Politeness, Queue, Task
from timeoutq.testing import fake_queue

A = "http://a.example/"


def payloads(queue: Any) -> dict[str, Any]:
    return {lease.task: lease.payload for lease in queue.claim(500)}


def test_tasks_and_plain_ids_are_put_in_one_call(face: Any) -> None:
    answers = face.put(
        "plain", Task("one", payload={"page": 1}), [Task("two", 2), b"bytes", Task(b"three")], {"four": 4}
    )
    assert dict(answers.items()) == dict.fromkeys(("plain", "one", "two", "bytes", "three", "four"), "added")
    assert answers.tasks == [b"plain", b"one", b"two", b"bytes", b"three", b"four"]
    expected = {"plain": None, "one": {"page": 1}, "two": 2, "bytes": None, "three": None, "four": 4}
    assert payloads(face) == expected


def test_a_task_whose_payload_and_group_cannot_be_used_is_found_by_its_id(face: Any) -> None:
    face.put("a", "b")
    odd = Task("a", payload=object(), group="")
    assert face.states(odd, [odd, "b"], "c")["a"] == "todos"
    assert face.states(iter((odd, "b", b"c"))).tasks == [b"a", b"b", b"c"]
    assert face.forget(odd, (Task("b", object()),))["b"] == "todos"
    assert face.states("a", "b")["b"] == "unknown"
    with pytest.raises(InvalidInput, match="a task id is str or bytes"):
        face.states([3])


def test_each_task_counts_for_its_own_group(face: Any) -> None:
    face.configure(politeness=Politeness(3600, per_host=100))
    tasks = [
        "plain",
        f"{A}1",
        Task(f"{A}2", group="printer"),
        Task("other", {"n": 1}, "http://Scanner/x"),
        Task("no group"),
    ]
    assert face.put(tasks, group="all").added == 5
    hosts = {id: face.inspect(id).host for id in ("plain", f"{A}1", f"{A}2", "other", "no group")}
    assert hosts == {"plain": "all", f"{A}1": "all", f"{A}2": "printer", "other": "scanner", "no group": "all"}
    assert {host.host for host in face.hosts.each()} == {"all", "printer", "scanner"}
    assert face.put(Task(f"{A}3"), Task(f"{A}4", group="printer"), "words").added == 3
    assert [face.inspect(id).host for id in (f"{A}3", f"{A}4", "words")] == ["a.example", "printer", None]
    lease = next(lease for lease in face.claim(500) if lease.task == "plain")
    face.ack(lease, put=[Task("found", group="printer"), f"{A}5"])
    assert [face.inspect(id).host for id in ("found", f"{A}5")] == ["printer", "a.example"]


REFUSED: list[tuple[Callable[[Queue], object], str]] = [
    (lambda q: q.put("fine", Task(5)), "a task id is str or bytes, not int: 5"),  # type: ignore[arg-type]  # that is the point
    (lambda q: q.put("fine", Task(Task("a"))), "a task id is str or bytes, not Task"),  # type: ignore[arg-type]  # that is the point
    (lambda q: q.put("fine", Task("a", payload=object())), "the payload of task 'a' is neither bytes nor JSON"),
    (lambda q: q.put("fine", Task("a", group="")), "the group of task 'a': a host is a name like"),
    (lambda q: q.put("fine", [Task("a", group=5)]), "the group of task 'a': a host is a name"),  # type: ignore[arg-type]  # that is the point
]


@pytest.mark.parametrize(("act", "message"), REFUSED)
def test_a_task_that_cannot_be_used_is_refused_and_nothing_is_put(act: Callable[[Queue], object], message: str) -> None:
    with fake_queue() as queue:
        with pytest.raises(InvalidInput) as caught:
            act(queue)
        assert message in str(caught.value)
        assert queue.stats().known == 0
