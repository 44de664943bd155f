"""The backend of `TASKS`: what is put, what the worker makes of it, and what the result tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.rig.waiting import until, wait_until
from timeoutq import Queue, State
from timeoutq.functions import BadArguments, CallTooLarge, UnknownFunction

pytest.importorskip("django", reason="Django 6.0 needs Python 3.12: `.ci/long django` runs these tests")

from django.core import checks
from django.db import transaction
from django.tasks import TaskResultStatus, default_task_backend, task_backends
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, TaskResultMismatch
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import override_settings
from django.utils import timezone

Backends = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def tasks(project: None) -> Any:
    from tests.rig.market import tasks

    return tasks


@pytest.fixture
def having(project: None, url: str) -> Backends:
    """Give what sets TASKS, with these options; QUEUES are default and mails."""

    def settings(queues: Any = ("default", "mails"), **options: Any) -> AbstractContextManager[Any]:
        params = {"BACKEND": "timeoutq.django.Backend", "QUEUES": queues, "OPTIONS": {"url": url, **options}}
        found: AbstractContextManager[Any] = override_settings(TASKS={"default": params})
        return found

    return settings


@pytest.fixture
def usual(having: Backends) -> Iterator[None]:
    with having():
        yield


def work() -> Any:
    return asyncio.run(default_task_backend.app.worker(burst=True).run())


def work_until(is_so: Callable[[Any], bool], id: str) -> Any:
    """Work until the queue tells something of a call; give what it tells."""
    app = default_task_backend.app
    queue = app.queue("default")

    async def body() -> Any:
        worker = asyncio.create_task(app.worker().run())
        await until(lambda: is_so(queue.inspect(id)))
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        return queue.inspect(id)

    return asyncio.run(body())


@pytest.fixture
def told(project: None) -> Iterator[list[tuple[str, str]]]:
    """The signals that were sent, and the status that each has told, to a receiver that raises."""
    seen: list[tuple[str, str]] = []
    names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}

    def hear(sender: Any, task_result: Any, signal: Any, **more: Any) -> None:
        seen.append((names[signal], str(task_result.status)))
        raise ValueError(f"a receiver that raises, told by {sender}")

    for signal in names:
        signal.connect(hear)
    yield seen
    for signal in names:
        signal.disconnect(hear)


@pytest.mark.parametrize("name", ["add", "aadd"])
def test_a_task_runs_and_its_result_has_all_fields(usual: None, tasks: Any, name: str) -> None:
    task = getattr(tasks, name)
    before = timezone.now()
    result = task.enqueue(1, b=2)
    assert (result.status, result.attempts, result.started_at) == (TaskResultStatus.READY, 0, None)
    assert task.get_result(result.id) == result
    work()
    result.refresh()
    assert (result.status, result.return_value, result.errors) == (TaskResultStatus.SUCCESSFUL, 3, [])
    assert before <= result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.args, result.kwargs, result.attempts, result.task) == ([1], {"b": 2}, 1, task)
    [worker] = result.worker_ids
    assert ":" in worker
    with pytest.raises(TaskResultMismatch):
        tasks.sold_out.get_result(result.id)


async def test_all_of_it_awaited(usual: None, tasks: Any) -> None:
    result = await tasks.add.using(queue_name="mails").aenqueue("a", b="b")
    assert result.id.startswith("mails:add:")
    await default_task_backend.app.worker(burst=True).run()
    await result.arefresh()
    assert result.return_value == "ab"
    assert await tasks.add.aget_result(result.id) == result


@pytest.mark.parametrize(
    ("name", "args", "error", "words"),
    [
        ("sold_out", (), "OutOfStock", "tests.rig.market.tasks.OutOfStock: none left"),
        ("leaves", (), "SystemExit", "SystemExit: at once"),
        ("gives", ("set",), "TypeError", "TypeError: Unsupported type: <class 'set'>"),
        ("add", (1, 2, 3), "TypeError", "TypeError: add() takes from 1 to 2 positional arguments but 3 were given"),
    ],
)
def test_a_failed_task_tells_its_error(
    usual: None, tasks: Any, told: Any, name: str, args: Any, error: str, words: str
) -> None:
    result = getattr(tasks, name).enqueue(*args)
    work()
    assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")]
    result.refresh()
    assert (result.status, result.attempts, result.args) == (TaskResultStatus.FAILED, 1, list(args))
    assert result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    [one] = result.errors
    assert one.exception_class.__name__ == error
    assert one.traceback.startswith("Traceback")
    assert words.rpartition(".")[2] in one.traceback.splitlines()[-1]


def test_retries_are_attempts_and_only_the_last_is_told_as_the_end(having: Backends, tasks: Any, told: Any) -> None:
    with having(retry=[0, 3600]):
        result = tasks.sold_out.enqueue()
        work_until(lambda info: info.failures == 2, result.id)
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.READY, 2)
        assert [one.traceback.endswith("OutOfStock: none left\n") for one in result.errors] == [True, True]
        assert result.errors[1].traceback.startswith("Traceback")
        assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("started", "RUNNING")]
        default_task_backend.app.queue("default").schedule(result.id, at=0)
        work()
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 3, 3)
        assert all(":" in worker for worker in result.worker_ids)
        assert result.enqueued_at <= result.started_at < result.last_attempted_at <= result.finished_at
        assert told[3:] == [("started", "RUNNING"), ("finished", "FAILED")]


def test_while_a_task_runs_again_it_began_when_its_first_attempt_did(having: Backends, tasks: Any) -> None:
    with having(retry=[3600]):
        result = tasks.sold_out.enqueue()
        work_until(lambda info: info.failures == 1, result.id)
        result.refresh()
        began, queue = result.started_at, default_task_backend.app.queue("default")
        assert began is not None
        queue.schedule(result.id, at=0)
        wait_until(queue.claim)
        result.refresh()
        assert (result.status, result.started_at) == (TaskResultStatus.RUNNING, began)


def test_an_attempt_that_was_lost_has_an_error_also_when_the_task_is_done(usual: None, tasks: Any) -> None:
    result = tasks.add.enqueue(1)
    queue = default_task_backend.app.queue("default")
    assert queue.claim(timeout=0.05)
    wait_until(queue.requeue_expired)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 1)
    assert [one.traceback.partition(" (")[0] for one in result.errors] == ["the lease ran out"]
    work()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert [one.traceback for one in result.errors] == ["its worker was lost while it ran\n"]


@pytest.mark.parametrize("name", ["waits", "awaits"])
def test_a_task_that_is_cut_off_fails_and_tells_no_end(having: Backends, tasks: Any, told: Any, name: str) -> None:
    tasks.GO_ON.clear()
    tasks.LEFT.clear()
    with having(max_runtime=0.2):
        result = getattr(tasks, name).enqueue()
        work_until(lambda info: info.state is State.FAILED, result.id)
        result.refresh()
        assert result.errors[0].exception_class is TimeoutError
    if name == "waits":  # its thread runs on
        tasks.GO_ON.set()
        assert tasks.LEFT.wait(10)
    assert told == [("enqueued", "READY"), ("started", "RUNNING")]


def test_the_context_tells_attempt_and_id(usual: None, tasks: Any) -> None:
    result = tasks.who.enqueue(more=1)
    work()
    result.refresh()
    assert result.return_value == [1, result.id, {"more": 1}]


def test_a_task_for_later(usual: None, tasks: Any) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    result = tasks.add.using(run_after=later).enqueue(1)
    assert tasks.add.get_result(result.id) == result
    info = default_task_backend.app.queue("default").inspect(result.id)
    assert (info.state, info.due) == (State.SCHEDULED, pytest.approx(later.timestamp(), abs=0.002))
    with pytest.raises(InvalidTask, match="aware"):
        tasks.add.using(run_after=datetime.now())  # noqa: DTZ005  # what is refused


def test_priorities_need_a_limit(having: Backends, tasks: Any) -> None:
    with having(), pytest.raises(InvalidTask, match=r"priority.*'default'.*OPTIONS\['limit'\]"):
        tasks.add.using(priority=1)
    order: list[int] = []

    def hear(task_result: Any, **more: Any) -> None:
        order.append(task_result.task.priority)

    with having(limit=1):
        for priority in (0, -5, 50, 7, 100):
            result = tasks.add.using(priority=priority).enqueue(1)
            assert tasks.add.get_result(result.id) == result
        task_started.connect(hear)
        work()
        task_started.disconnect(hear)
    assert order == [0, 100, 50, 7, -5]  # the first one was ready at once


def test_on_commit(having: Backends, tasks: Any) -> None:
    with having(on_commit=True):
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            assert result.enqueued_at is None
            with pytest.raises(TaskResultDoesNotExist):
                tasks.add.get_result(result.id)
            with pytest.raises(TypeError):
                tasks.add.enqueue(object())  # at once, and not when it commits
        assert tasks.add.get_result(result.id) == result
        with pytest.raises(KeyError), transaction.atomic():
            lost = tasks.add.enqueue(1)
            raise KeyError
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(lost.id)
        assert tasks.add.enqueue(1).enqueued_at is not None  # outside of a transaction


def test_on_commit_of_another_database(having: Backends, tasks: Any) -> None:
    with having(on_commit="other"):
        with transaction.atomic(), transaction.atomic(using="other"):
            result = tasks.add.enqueue(1)
            with pytest.raises(TaskResultDoesNotExist):
                tasks.add.get_result(result.id)
        assert tasks.add.get_result(result.id) == result
        with pytest.raises(KeyError), transaction.atomic(using="other"):
            lost = tasks.add.enqueue(1)
            raise KeyError
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(lost.id)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), {1}, object(), float("nan")])
def test_arguments_that_are_no_json_are_refused_with_the_cure(usual: None, tasks: Any, value: object) -> None:
    with pytest.raises(BadArguments):
        tasks.add.enqueue({"deep": [value]})
    assert isinstance(BadArguments(""), TypeError)  # as Django's own backends raise
    with pytest.raises(BadArguments, match=r"Unsupported type: .*market\.tasks\.add travel as JSON: pass obj\.pk"):
        tasks.add.enqueue(a=object())
    for odd in ({1: 2}, float("nan")):
        with pytest.raises(BadArguments, match="add travel as JSON, and some would arrive as others: keys"):
            tasks.add.enqueue(odd)
    with pytest.raises(CallTooLarge) as caught:
        tasks.add.enqueue("x" * 300_000)
    assert caught.value.__notes__ == ["It is a call of the task tests.rig.market.tasks.add."]
    assert not default_task_backend.app.queue("default").exists()


@pytest.mark.parametrize("path", ["tests.rig.market.tasks.NOT_A_TASK", "tests.rig.nowhere.task", "odd", "os.path"])
def test_a_path_that_is_no_task_goes_back_to_the_queue(usual: None, tasks: Any, path: str) -> None:
    from timeoutq.django.results import Call

    app = default_task_backend.app
    id = "default:add:of-another-version"
    app.run.options(id=id, queue="default").delay(Call(path, [1], {}, time.time()))
    with pytest.raises(UnknownFunction, match=path):
        default_task_backend.get_result(id)

    info = work_until(lambda info: info.state is State.SCHEDULED, id)
    assert (info.failures, info.crashes) == (0, 0)


def test_an_unknown_result(usual: None, tasks: Any) -> None:
    foreign = {"1": {"k": 1}, "2": b"bytes", "3": {"k": {"call": 1}}, "4": None, "5": {}}
    default_task_backend.app.queue("default").put({f"default:foreign:{n}": payload for n, payload in foreign.items()})
    for id in (f"default:foreign:{n}" for n in foreign):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(id)
    for id in ("123", "default:add:none", "nowhere:add:1", "", "a b:c"):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(id)


def test_a_task_that_ends_while_its_result_is_asked_for_has_a_result(
    usual: None, tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, inspect = tasks.add.enqueue(1), Queue.inspect

    def late(queue: Queue, id: str) -> Any:
        work()
        info = inspect(queue, id)
        assert info.state is None, "a task that is done leaves no id"
        return info

    monkeypatch.setattr(Queue, "inspect", late)
    assert tasks.add.get_result(result.id).return_value == 2


def test_results_that_are_not_kept(having: Backends, tasks: Any) -> None:
    with having(keep_result=0):
        result = tasks.add.enqueue(1)
        work()
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()


@pytest.mark.parametrize(
    ("queues", "options", "words"),
    [
        ((), {}, "name QUEUES, or leave it out"),
        (("two words",), {}, "'two words' is not a queue name"),
        (("default",), {"retrys": []}, "no option 'retrys' in OPTIONS; it has url, prefix"),
        (("default",), {"retry": "often"}, "retry= takes a list of seconds"),
        (("default",), {"url": "ftp://x"}, "the server URL does not parse"),
        (("default",), {"limit": -1}, "concurrency"),
        (("default",), {"on_commit": "nowhere"}, "on_commit='nowhere' is no alias in DATABASES"),
    ],
)
def test_settings_are_checked(having: Backends, queues: Any, options: Any, words: str) -> None:
    with having(queues, **options):
        [found] = [one for one in checks.run_checks() if one.id == "timeoutq.E001"]
        assert found.msg.startswith("TASKS['default']")
        assert words in found.msg
        if "on_commit" not in options:
            with pytest.raises(InvalidTaskBackend):
                _ = task_backends["default"].app


def test_calls_that_are_signed(having: Backends, tasks: Any) -> None:
    with having(secret="one secret of many letters"):
        result = tasks.add.enqueue(1)
    with having(secret="another secret of letters"):
        forged = tasks.add.enqueue(1)
    with having(secret="one secret of many letters"):
        default_task_backend.app.queue("default").forget(forged.id)
        work()
        result.refresh()
        assert result.return_value == 2
