"""`Task` stands wherever an id may: with a payload and a group of its own, beside plain ids."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from timeoutq import Ack, AsyncQueue, InvalidInput, Lease, Politeness, Queue, Task, Worker
from timeoutq.server.calls import batches
from timeoutq.testing import fake_queue
from timeoutq.words import arguments

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


def test_tasks_are_scheduled(face: Any) -> None:
    assert face.schedule("plain", Task("one", b"\0body"), (Task(f"t{n}", n) for n in range(3)), after=0).added == 5
    face.promote_due()
    assert payloads(face) == {"plain": None, "one": b"\0body", "t0": 0, "t1": 1, "t2": 2}


def test_a_task_whose_payload_and_group_cannot_be_used_is_found_by_its_id(face: Any) -> None:
    face.put("a", "b")
    odd = Task("a", payload=object(), group="")
    assert face.states(odd, [odd, "b"], "c")["a"] == "todos"
    assert face.states(iter((odd, "b", b"c"))).tasks == [b"a", b"b", b"c"]
    assert face.forget(odd, (Task("b", object()),))["b"] == "todos"
    assert face.states("a", "b")["b"] == "unknown"
    with pytest.raises(InvalidInput, match="a task id is str or bytes"):
        face.states([3])


def test_the_answer_for_a_task_is_found_by_the_task(face: Any) -> None:
    answers = face.put("a", Task("b", 1), Task(b"\xff"))
    face.claim()
    assert [answers[task] for task in ("a", Task("b", 2), Task("b"), Task(b"\xff"))] == ["added"] * 4
    assert face.states("a", "c")[Task("c", object())] == "unknown"
    with pytest.raises(KeyError, match=r"^'c'$"):
        answers[Task("c")]
    with pytest.raises(KeyError, match="0"):
        answers[Task(0)]  # type: ignore[arg-type]  # an id that no call takes is not the place of an answer


def test_an_ack_puts_tasks(face: Any) -> None:
    face.put("a")
    (lease,) = face.claim()
    face.ack(lease, put=[Task("b", 1), "c", Task(f"{A}d", {"depth": 2}, group="g")])
    assert payloads(face) == {"b": 1, "c": None, f"{A}d": {"depth": 2}}
    face.put("e")
    (lease,) = face.claim()
    face.ack(lease, put=Task("alone", 5))
    assert payloads(face) == {"alone": 5}


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


def test_the_groups_of_tasks_are_kept_until_the_queue_becomes_polite(face: Any) -> None:
    face.put(Task("now", 1, group="printer"), f"{A}own")
    face.schedule(Task("later", group="printer"), Task("last", group="scanner"), after=3600, group="all")
    face.configure(politeness=Politeness(3600))
    hosts = [face.inspect(id).host for id in ("now", f"{A}own", "later", "last")]
    assert hosts == ["printer", "a.example", "printer", "scanner"]


def test_an_id_that_is_named_twice_has_what_it_was_first_named_with(face: Any) -> None:
    face.configure(politeness=Politeness(0, per_host=100))
    answers = face.put(Task("a", 1, "g"), {"a": 2}, Task("a", 3, "h"), "b", Task("b", 4, "g"))
    assert [answers[i] for i in (0, 3)] == ["added", "added"]
    assert answers.added == 2
    assert [(face.inspect(id).payload, face.inspect(id).host) for id in "ab"] == [(1, "g"), (None, None)]
    face.put(Task("a", 5, "h"))  # nor does a later call change what is in the queue
    assert (face.inspect("a").payload, face.inspect("a").host) == (1, "g")


def test_a_done_task_that_is_put_again_has_its_new_payload_and_group(face: Any) -> None:
    face.put(Task("a", 1, "one"), Task("b", 1, "one"))
    for lease in face.claim(2):
        if lease.task == "a":
            face.ack(lease)
        else:
            face.fail(lease, "no", give_up=True)
    assert face.put(Task("a", 2, "two"), Task("b", 2, "two"), Task("c", 2, "two"), again=True).added == 3
    face.configure(politeness=Politeness(3600))
    assert [(face.inspect(id).payload, face.inspect(id).host) for id in "abc"] == [(2, "two")] * 3


def test_where_nothing_is_put_only_the_id_of_a_task_counts(face: Any) -> None:
    tasks = [Task("a", 1, "g"), "b", Task(b"c")]
    face.put("a", "b", "c")
    assert dict(face.states(*tasks).items()) == dict.fromkeys("abc", "todos")
    for lease in face.claim(3):
        face.fail(lease, "no", give_up=True)
    assert face.retry_failed(tasks) == 3
    assert face.inspect(Task("a", 1)).task == "a"
    assert face.why(Task("a", 1)).info.task == "a"
    assert dict(face.forget(*tasks).items()) == dict.fromkeys("abc", "todos")


def test_the_tasks_that_pull_took_can_be_put_again(face: Any) -> None:
    face.put(Task("a", {"page": 1}), b"\xff")
    taken = face.pull(5)
    assert {task.task: task.payload for task in taken} == {"a": {"page": 1}, "\udcff": None}
    assert face.put(taken, again=True).added == 2
    assert payloads(face) == {"a": {"page": 1}, "\udcff": None}


def test_more_tasks_than_one_call_takes_keep_what_is_theirs(face: Any) -> None:
    tasks = [Task(f"t{n}", n or None, f"g{n % 7}") if n % 3 else f"t{n}" for n in range(1200)]
    face.put("first")
    (lease,) = face.claim()
    face.ack(lease, put=tasks)
    assert face.stats().todos == 1200
    face.configure(politeness=Politeness(3600))
    for n in (0, 1, 498, 499, 500, 700, 998, 999, 1000, 1198, 1199):
        info = face.inspect(f"t{n}")
        assert (info.payload, info.host) == ((n, f"g{n % 7}") if n % 3 else (None, None)), n


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_finds_tasks(url: str, queue: Queue, threads: bool) -> None:
    seen: dict[str, Any] = {}

    def in_thread(lease: Lease) -> Ack:
        seen[lease.task] = lease.payload
        lazily: Iterator[str | Task] = iter([Task("c", 3, "g"), "d"])
        found: dict[str, Any] = {"first": [Task("a", 1, "g"), "b"], "second": lazily, "third": Task("e", b"5")}
        return Ack(put=found.get(lease.task, ()))

    async def in_loop(lease: Lease) -> Ack:
        return in_thread(lease)

    queue.put("first", "second", "third")
    async with AsyncQueue(queue.name, url, timeout=5) as mine:
        await Worker(mine, in_thread if threads else in_loop, burst=True, signals=False).run()
    assert seen == {"first": None, "second": None, "third": None, "a": 1, "b": None, "c": 3, "d": None, "e": b"5"}


REFUSED: list[tuple[Callable[[Queue], object], str]] = [
    (lambda q: q.put("fine", Task("")), "a task id must not be empty"),
    (lambda q: q.put("fine", Task(5)), "a task id is str or bytes, not int: 5"),  # type: ignore[arg-type]  # that is the point
    (lambda q: q.put("fine", Task(Task("a"))), "a task id is str or bytes, not Task"),  # type: ignore[arg-type]  # that is the point
    (lambda q: q.put({Task("a"): 1}), "a task id is str or bytes, not Task"),
    (lambda q: q.put("fine", [Task("x" * 1025)]), "the limit is 1,024"),
    (lambda q: q.put("fine", Task("a", payload=object())), "the payload of task 'a' is neither bytes nor JSON"),
    (lambda q: q.put("fine", Task("a", group="")), "the group of task 'a': a host is a name like"),
    (lambda q: q.put("fine", [Task("a", group=5)]), "the group of task 'a': a host is a name"),  # type: ignore[arg-type]  # that is the point
    (lambda q: q.schedule("fine", Task("a", group="."), after=1), "the group of task 'a': '.' names no host"),
    (lambda q: q.forget("fine", Task("")), "a task id must not be empty"),
]


@pytest.mark.parametrize(("act", "message"), REFUSED)
def test_a_task_that_cannot_be_used_is_refused_and_nothing_is_put(act: Callable[[Queue], object], message: str) -> None:
    with fake_queue() as queue:
        with pytest.raises(InvalidInput) as caught:
            act(queue)
        assert message in str(caught.value)
        assert queue.stats().known == 0


def test_each_call_of_a_long_put_improves_the_tasks_that_it_carries() -> None:
    found = arguments.tasks(([Task(f"{A}{n}", priority=1, improve=n % 2 == 0) for n in range(2_000)],))
    parts = [part for part, _ in batches(found)]
    assert [part.improved for part in parts] == [list(range(0, 500, 2))] * 4


def test_each_call_of_a_long_put_has_the_reruns_of_the_tasks_that_it_carries() -> None:
    found = arguments.tasks(([Task(f"{A}{n}", rerun=n % 3 == 0) for n in range(1_500)],))
    parts = [part for part, _ in batches(found)]
    assert [part.ids[at] for part in parts for at in part.reruns] == [found.ids[at] for at in range(0, 1_500, 3)]
    found.join(arguments.tasks((Task("x"), Task("y", rerun=True))))
    assert [found.ids[at] for at in found.reruns[-2:]] == [f"{A}1497".encode(), b"y"]


def test_a_task_is_a_plain_value() -> None:
    task = Task("a", {"page": 1}, group="g")
    assert (task.task, task.payload, task.group) == ("a", {"page": 1}, "g")
    assert Task(b"\xffa") == Task("\udcffa")
    assert (task == Task("a", None, "g"), task == Task("a", {"page": 1})) == (True, False)
    assert len({task, Task("a", 2, "g"), Task("b")}) == 2
    options = "priority=None, improve=False, unique=None, rerun=False"
    assert repr(task) == f"Task(task='a', payload={{'page': 1}}, group='g', {options})"
    assert replace(task, group=None) == Task("a")
    again = pickle.loads(pickle.dumps(task))
    assert (again, again.payload) == (task, task.payload)
    with pytest.raises(FrozenInstanceError):
        task.group = "h"  # type: ignore[misc]  # it is frozen
    with pytest.raises((AttributeError, TypeError)):
        task.more = 1  # type: ignore[attr-defined]  # it has slots
