"""The backend that a project names in `TASKS`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from typing import Any

from django.core import checks
from django.db import connections, transaction
from django.tasks import task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone

from timeoutq.django.results import Call, change, new_result, read_result
from timeoutq.django.running import DjangoApp
from timeoutq.functions import BadArguments, CallTooLarge, ids
from timeoutq.functions.client import Steps
from timeoutq.words.arguments import task_id
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import State

OPTIONS = ("url", "prefix", "on_commit", "keep_result", "retry", "max_runtime", "timeout", "limit", "secret")
_OF_APP = ("url", "keep_result", "max_runtime", "limit", "secret")

_apps: dict[tuple[str, str], DjangoApp] = {}
"""Django makes a backend for each thread; all of one name and one setting share an app, and its connections."""


class Backend(BaseTaskBackend):
    """Puts tasks into queues of timeoutq; `manage.py timeoutq_worker` runs them."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.supports_priority = bool(self.options.get("limit"))
        self._key = alias, repr(params)

    @cached_property
    def app(self) -> DjangoApp:
        """The app of timeoutq behind this backend: its queues, `test()`, `worker()`. Raises `InvalidTaskBackend`."""
        if self._key not in _apps:
            _apps.setdefault(self._key, self._make())
        return _apps[self._key]

    def _make(self) -> DjangoApp:
        where = f"TASKS[{self.alias!r}]"
        if strange := [name for name in self.options if name not in OPTIONS]:
            raise InvalidTaskBackend(f"{where} has no option {strange[0]!r} in OPTIONS; it has {', '.join(OPTIONS)}")
        if not self.queues:
            raise InvalidTaskBackend(f"{where}: name QUEUES, or leave it out: a worker must know its queues")
        given = {name: self.options[name] for name in _OF_APP if name in self.options}
        try:
            queues = [self.queue_of(name) for name in sorted(self.queues)]
            return DjangoApp(self, queues, retry=self.options.get("retry", ()), **given)
        except InvalidInput as error:
            raise InvalidTaskBackend(f"{where}: {error}") from error

    def queue_of(self, name: str) -> str:
        """Give the name that a queue of this backend has in timeoutq."""
        return f"{self.options.get('prefix', '')}{name}"

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """Check the settings; asks no server."""
        try:
            _ = self.app
            if isinstance(on_commit := self.options.get("on_commit"), str) and on_commit not in connections:
                raise InvalidTaskBackend(f"TASKS[{self.alias!r}]: on_commit={on_commit!r} is no alias in DATABASES")
        except InvalidTaskBackend as error:
            yield checks.Error(str(error), id="timeoutq.E001")

    def validate_task(self, task: Any) -> None:
        """Refuse a task that this backend cannot run."""
        if task.priority and not self.supports_priority:
            raise InvalidTask(
                f"Backend does not support setting priority of tasks. Queue {task.queue_name!r} runs tasks in no "
                f"order: to have priorities, say how many run at once, with OPTIONS['limit'] of TASKS[{self.alias!r}]"
            )
        super().validate_task(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put a call; with the option `on_commit`, when the transaction commits. Raises `BadArguments`."""
        self.validate_task(task)
        after = None if task.run_after is None else task.run_after.timestamp()
        call = Call(task.module_path, list(args), dict(kwargs), timezone.now().timestamp(), task.priority, after)
        id = ids.random_id(f"{task.queue_name}:{task.name}")
        travel = f"the arguments of {task.module_path} travel as JSON"
        try:
            result = new_result(self.alias, id, call, task)
        except TypeError as error:
            cure = "pass obj.pk, moment.isoformat(), str(decimal), and make the object anew in the task"
            raise BadArguments(f"{error}: {travel}: {cure}", function=task.module_path) from error
        call.args, call.kwargs = result.args, result.kwargs
        queue, priority = self.queue_of(task.queue_name), task.priority if self.supports_priority else None
        try:
            put = self.app.run.options(id=id, queue=queue, at=after, priority=priority).call(call)
        except BadArguments as error:
            why = "some would arrive as others: keys that are no text, or NaN, or infinity"
            given = f"{call.args!a:.200} {call.kwargs!a:.200}"
            raise BadArguments(f"{travel}, and {why}: {given}", function=task.module_path) from error

        def send() -> None:
            try:
                put.delay()
            except CallTooLarge as error:
                error.add_note(f"It is a call of the task {task.module_path}.")
                raise
            change(result, enqueued_at=enqueued)
            task_enqueued.send_robust(type(self), task_result=result)

        enqueued = result.enqueued_at
        if on_commit := self.options.get("on_commit"):
            change(result, enqueued_at=None)
            transaction.on_commit(send, using=on_commit if isinstance(on_commit, str) else None)
        else:
            send()
        return result

    def get_result(self, result_id: str) -> Any:
        """Tell all that is known of a call. Raises `TaskResultDoesNotExist`."""
        name = str(result_id).partition(":")[0]
        found = None if name not in self.queues else self.app.sender.do(self._looking(name, str(result_id)))
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def _looking(self, name: str, id: str) -> Steps[Any]:
        queue, key = self.queue_of(name), task_id(id)
        ends = yield queue, lambda opened: opened.results.look(key)
        info = yield queue, methodcaller("inspect", key)
        if id not in ends and info.state in (None, State.DONE, State.FAILED):  # it has ended meanwhile
            ends = yield queue, lambda opened: opened.results.look(key)
        return read_result(self.alias, info, ends.get(id))


def backend_of(alias: str) -> Backend:
    """Give the backend of this name in TASKS. Raises `InvalidTaskBackend` if it is none of timeoutq."""
    found = task_backends[alias]
    if not isinstance(found, Backend):
        raise InvalidTaskBackend(f"TASKS[{alias!r}] is {type(found).__name__}: name timeoutq.django.Backend as BACKEND")
    return found
