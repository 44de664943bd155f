"""What a call of a Django task holds, and the `TaskResult` that is made of it."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.conf import settings
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils.module_loading import import_string

from timeoutq.functions.errors import UnknownFunction
from timeoutq.functions.outcomes import CallFailure
from timeoutq.words.arguments import error_words, shown
from timeoutq.words.model import CANCELLED, Ended, State, TaskInfo

UNKNOWN = "unknown"
"""Stands for a worker that has tried a call, and was lost."""
LOST = "its worker was lost while it ran"
"""Stands for the error of an attempt of which nothing else is known."""


class Call(msgspec.Struct, omit_defaults=True):
    """The argument of the one function that all calls of a backend have."""

    task: str  # the dotted path of the task
    args: list[Any]
    kwargs: dict[str, Any]
    at: float  # when it was enqueued, Unix seconds
    priority: int = 0
    run_after: float | None = None


class Success(msgspec.Struct):
    """What the queue keeps of a call that has returned."""

    call: Call
    value: Any


class Failure(CallFailure, frozen=True):
    """What the queue keeps of a call that has failed for good."""

    path: str = ""  # of the exception's class


def moment(seconds: float) -> datetime:
    """Give a time as `django.utils.timezone.now` does."""
    found = datetime.fromtimestamp(seconds, UTC)
    return found if settings.USE_TZ else found.astimezone().replace(tzinfo=None)


def task_of(path: str) -> Any:
    """Import a task. Raises `UnknownFunction`, also if importing its module raises something."""
    try:
        found = import_string(path)
        why = f"it is no task but {type(found).__name__}: decorate it with @task"
    except (Exception, SystemExit) as error:  # the module may raise anything
        found, why = None, error_words(error)
    if isinstance(found, Task):
        return found
    raise UnknownFunction(
        f"the task {shown(path)} cannot be had here: {why}. Is this program older than the caller's, or was the task "
        "moved?", function=path,
    )  # fmt: skip


def new_result(alias: str, id: str, call: Call, task: Any = None) -> Any:
    """Give the `TaskResult` of a call that is ready. Raises `UnknownFunction`, and `TypeError` for what is no JSON."""
    if task is None:
        after = None if call.run_after is None else moment(call.run_after)
        using = {"priority": call.priority, "queue_name": id.partition(":")[0], "run_after": after, "backend": alias}
        task = task_of(call.task).using(**using)
    return TaskResult(
        task=task, id=id, status=TaskResultStatus.READY, enqueued_at=moment(call.at),
        started_at=None, finished_at=None, last_attempted_at=None, args=call.args, kwargs=call.kwargs, backend=alias,
        errors=[], worker_ids=[],
    )  # fmt: skip


def change(result: Any, **fields: Any) -> Any:
    """Change a `TaskResult`, which is frozen, as Django's own backends do; give it back."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
    return result


def read_result(alias: str, info: TaskInfo, ended: Ended | None) -> Any:
    """Give the `TaskResult` of what a queue knows of a call; None if it is no call. Raises `UnknownFunction`."""
    try:
        return _read(alias, info, ended)
    except (KeyError, TypeError, msgspec.MsgspecError):  # another program has put it, or ended it
        return None


def _read(alias: str, info: TaskInfo, ended: Ended | None) -> Any:
    if ended is not None and ended.result and ended.state is not State.FAILED:
        kept = msgspec.json.decode(ended.result, type=Success)
        result = _tried(new_result(alias, info.task, kept.call), info)
        return change(result, status=TaskResultStatus.SUCCESSFUL, _return_value=kept.value)
    if info.payload is None or info.state is None:
        return None
    result = _tried(new_result(alias, info.task, msgspec.convert(info.payload["k"]["call"], Call)), info)
    if info.error:  # more is known of the last one
        failure = msgspec.json.decode((ended and ended.result) or b"{}", type=Failure)
        last = error_of(failure.path or _guessed(info.error), failure.traceback or info.traceback or info.error)
        known = result.errors[-1].traceback.rstrip() if result.errors else None
        is_there = known is not None and (known == LOST or info.error.startswith(known))
        change(result, errors=[*result.errors[: -1 if is_there else None], last])
    if info.state is State.FAILED:
        over = result.finished_at or _moment(info.error_at)
        change(result, status=TaskResultStatus.FAILED, finished_at=over)
    elif info.state is State.IN_PROGRESS:
        began = None if info.progress is None else moment(info.progress.at)
        workers = [*result.worker_ids, info.holder or UNKNOWN]
        change(result, status=TaskResultStatus.RUNNING, worker_ids=workers, last_attempted_at=began)
        change(result, started_at=result.started_at or began)
    return result


def _tried(result: Any, info: TaskInfo) -> Any:
    """Say what is known of the attempts that have ended."""
    record = info.record
    if record is None:
        return change(result, worker_ids=[UNKNOWN] * (info.failures + info.crashes))
    # the clocks of two machines may differ
    times = [max(moment(one), result.enqueued_at) for one in record.starts] or [None]
    failed = [one.error or LOST for one in record.attempts if one.how in ("failed", "crashed")]
    change(result, started_at=times[0], last_attempted_at=times[-1], finished_at=_moment(record.ended))
    change(result, errors=[error_of(_guessed(error), error) for error in failed])
    return change(result, worker_ids=[one.worker or UNKNOWN for one in record.attempts])


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)


def path_of(error: BaseException) -> str:
    """Give the dotted path of the class of an exception."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _guessed(error: str | None) -> str:
    """Give the path of the class of an error of which the text alone is known."""
    name = (error or "").partition(":")[0]
    if name.startswith(CANCELLED):
        return "timeoutq.functions.CallCancelled"
    return f"builtins.{name}" if isinstance(getattr(builtins, name, None), type) else "timeoutq.functions.CallFailed"


def error_of(path: str, traceback: str | None) -> Any:
    """Give the `TaskError` of an attempt."""
    return TaskError(exception_class_path=path, traceback=f"{(traceback or '').rstrip()}\n")  # as Python ends it
