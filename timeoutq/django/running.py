"""Runs a task in the worker: signals, its context, and the database connections of its thread."""

from __future__ import annotations

from asyncio import CancelledError
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import msgspec
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from django.tasks import TaskContext, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from timeoutq.django import results
from timeoutq.django.results import Call, Failure, Success
from timeoutq.functions import App, Context, Limit, Opened
from timeoutq.functions.envelope import Secrets
from timeoutq.words import telling

if TYPE_CHECKING:
    from timeoutq.functions.testing import AppTest


class DjangoApp(App):
    """The app of a backend: one function, which runs each task by its path."""

    def __init__(self, backend: Any, queues: list[str], *, limit: int | None = None, **options: Any) -> None:
        super().__init__("django", queues=queues, **options)
        self.backend = backend

        def run(ctx: Context[None], call: Call) -> Any:
            attempt = Attempt(self, ctx, call)
            return attempt.arun() if iscoroutinefunction(attempt.task.func) else attempt.run()

        bound = None if limit is None else Limit(limit)
        self.run = self.task(name="django", queue=queues[0], limit=bound)(run)

    def test(self, *, start: float | None = None) -> AppTest:
        """Put the app in a test, as `App.test`; the clock starts now, for `run_after` is a time of the real clock."""
        return super().test(start=timezone.now().timestamp() if start is None else start)

    def open(self, payload: object, queue: str, id: bytes, secrets: Secrets | None = None) -> Opened:
        """Read a call. Raises `UnknownFunction`, too, if there is no such task here: another worker may have it."""
        opened = super().open(payload, queue, id, secrets)
        given: list[Any] = [*opened.args, *opened.kwargs.values()]
        for call in given:
            results.task_of(call.task)
        return opened

    def failure(self, error: BaseException) -> bytes:
        """Give what is kept of why a call has failed."""
        told = msgspec.json.decode(super().failure(error), type=Failure)
        return msgspec.json.encode(msgspec.structs.replace(told, path=results.path_of(error)))


class Attempt:
    """One run of a task."""

    def __init__(self, app: DjangoApp, ctx: Context[None], call: Call) -> None:
        self.app, self.ctx, self.call = app, ctx, call
        _, lease = telling.running.get() or (None, None)
        before, worker = (0, results.UNKNOWN) if lease is None else (lease.attempt - 1 + lease.crashes, lease.holder)
        self.workers = [results.UNKNOWN] * before + [worker]
        self.result = results.new_result(app.backend.alias, ctx.task, call)
        self.task = self.result.task
        self.args = [TaskContext(task_result=self.result)] * self.task.takes_context + self.result.args

    def run(self) -> Success:
        """Run a task that is a plain `def`, in its thread."""
        close_old_connections()
        try:
            self._begin()
            return self._succeed(self.task.func(*self.args, **self.result.kwargs))
        except BaseException as error:  # whatever a task raises is the end of its attempt
            self._fail(error)
            raise
        finally:
            close_old_connections()

    async def arun(self) -> Success:
        """Run a task that is an `async def`. What it does with the database happens in a thread of its own."""
        async with ThreadSensitiveContext():
            try:
                await sync_to_async(self._begin)()
                value = await self.task.func(*self.args, **self.result.kwargs)
                found: Success = await sync_to_async(self._succeed)(value)
                return found
            except BaseException as error:  # the same
                await sync_to_async(self._fail)(error)
                raise
            finally:
                await sync_to_async(connections.close_all)()  # the thread ends here

    def _begin(self) -> None:
        began = timezone.now()
        results.change(self.result, status=TaskResultStatus.RUNNING, worker_ids=self.workers)
        results.change(self.result, started_at=began, last_attempted_at=began)
        self.ctx.progress(0)  # tells the queue when it began
        self._tell(task_started)

    def _succeed(self, value: Any) -> Success:
        found = normalize_json(value)
        self._end(TaskResultStatus.SUCCESSFUL, _return_value=found)
        return Success(self.call, found)

    def _fail(self, error: BaseException) -> None:
        policy = self.app.run.settings.retry
        is_cut = isinstance(error, CancelledError)  # by the end of the worker, for example: it may run again
        is_last = not is_cut and (policy is None or policy.decide(self.ctx.attempt, error) is None)
        if is_last:
            told = results.error_of(results.path_of(error), "".join(format_exception(error)))
            self._end(TaskResultStatus.FAILED, errors=[told])

    def _end(self, status: Any, **fields: Any) -> None:
        results.change(self.result, status=status, finished_at=timezone.now(), **fields)
        self._tell(task_finished)

    def _tell(self, signal: Any) -> None:
        # a receiver that raises is told in Django's log: the task is not to run again for it
        if self.ctx.notes is None or not self.ctx.notes.stopped:  # else its attempt has failed already
            signal.send_robust(type(self.app.backend), task_result=self.result)
