"""The types of requests and answers, by which requests are checked, and of which OpenAPI is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from inspect import Parameter, signature
from typing import Annotated, Any

import msgspec

from timeoutq.gateway.problems import encode, spelled
from timeoutq.words import arguments
from timeoutq.words.model import Deep, Lease, Payload, Task, TaskId, text

NONE = msgspec.Raw(b"null")
"""No payload. Payloads stay JSON in bytes until each is packed: as values they take many times the memory."""
MOST_COUNTED = 1_000_000  # the largest count of attempts or crashes that a lease has
PAYLOAD: Any = msgspec.field(default_factory=lambda: NONE)  # OpenAPI cannot write such a default


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a request: an unknown field is refused, since it may be a mistyped one."""


class Bytes(Strict):
    """Bytes that are no UTF-8 text, as base64."""

    b64: bytes


Id = str | Bytes  # the id of a task


class NewTask(Strict):
    """A task of a put: its id as `task`, or bytes as `b64`."""

    task: Id | None = None
    b64: bytes | None = None
    payload: msgspec.Raw = PAYLOAD
    group: str | None = None
    priority: int | None = None
    improve: bool = False
    unique: float | None = None
    rerun: bool = False


class LeaseIn(Strict):
    """A lease, as `claim` has given it; only `task` and `token` are needed.

    Where the number of the attempt decides and the lease has none, the queue's own count does.
    """

    task: Id
    token: str
    deadline: float | None = None
    attempt: Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNTED)] | None = None
    crashes: Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNTED)] = 0
    fence: str | None = None
    payload: msgspec.Raw = PAYLOAD


# ---- answers


class LeaseOut(msgspec.Struct):
    """A lease: `fence` is a string, because browsers round large numbers; so is `payload` if the claim wants `text`."""

    task: Id | Any
    token: str
    deadline: float
    attempt: int
    crashes: int
    fence: str
    payload: Any = None


class Leases(msgspec.Struct):
    """The leases of a claim."""

    leases: list[LeaseOut]


class Answers(msgspec.Struct):
    """One answer for each id, in the order of the request; and how often each answer was given."""

    answers: list[str]
    counts: dict[str, int]


class Lines(msgspec.Struct):
    """How many lines of a put of NDJSON were put, and how often each answer was given."""

    lines: int
    counts: dict[str, int]


class Count(msgspec.Struct):
    """How many tasks were moved; of a kind of failure, also how many are left, and the `before` of the next call."""

    count: int
    left: int = 0
    before: float | None = None


class Done(msgspec.Struct):
    """The call was carried out."""

    ok: bool = True


class PulledTask(msgspec.Struct):
    """A task that was pulled: it is done already."""

    task: Any
    payload: Any = None


class Pulled(msgspec.Struct):
    """Tasks without a lease."""

    tasks: list[PulledTask]


@cache
def arguments_of(endpoint: Callable[..., Any]) -> type[msgspec.Struct]:
    """Make a type of the arguments that the signature of an endpoint names behind the `*`: of a body, or of a query."""
    fields: list[Any] = []
    for one in signature(endpoint, eval_str=True).parameters.values():
        if one.kind is Parameter.KEYWORD_ONLY:
            default = () if one.default is Parameter.empty else (PAYLOAD if one.default is NONE else one.default,)
            fields.append((one.name, one.annotation, *default))
    doc = {"__doc__": (endpoint.__doc__ or "").partition("\n")[0]}
    return msgspec.defstruct(endpoint.__name__.title(), fields, bases=(Strict,), namespace=doc, kw_only=True)


# ---- from requests to arguments of the queue, and back


def id_of(task: Id) -> TaskId:
    return task if isinstance(task, str) else task.b64


def payload_of(given: msgspec.Raw, task: TaskId = "") -> bytes | None:
    """Give a payload packed, as the queue takes it: `{"b64": …}` stands for bytes."""
    if given is NONE:
        return None
    payload: Any = msgspec.json.decode(given)
    if isinstance(payload, dict) and payload.keys() == {"b64"} and isinstance(payload["b64"], str):
        payload = msgspec.convert(payload["b64"], bytes)
    packed = arguments.pack(payload, task)
    return None if packed is None else arguments.Packed(packed)


def task_of(given: str | NewTask) -> str | Task:
    if isinstance(given, str):
        return given
    if (given.task is None) == (given.b64 is None):
        raise msgspec.ValidationError('a task is {"task": ID, …}, or {"b64": BYTES, …}')
    name: TaskId = id_of(given.task) if given.task is not None else given.b64 or b""
    return Task(
        name, payload_of(given.payload, name), given.group, priority=given.priority, improve=given.improve,
        unique=given.unique, rerun=given.rerun,
    )  # fmt: skip


def lease_of(given: LeaseIn) -> Lease:
    """Give a lease as the queue takes it. Its deadline counts only for the words of an error."""
    id = id_of(given.task)
    deadline = float("inf") if given.deadline is None else given.deadline
    return Lease(id if isinstance(id, str) else text(id), given.token, deadline, given.attempt or 1, given.crashes)


def told(payload: Payload) -> Any:
    """Give a payload as JSON has it: `{"b64": …}` for bytes."""
    return {"b64": bytes(payload)} if isinstance(payload, bytes) else payload


def lease_out(lease: Lease, *, as_text: bool) -> LeaseOut:
    """Give a lease as JSON has it; `as_text`: with a string of JSON for its payload, if it has one."""
    payload = told(lease.payload)
    if as_text and lease.payload is not None:
        payload = encode(payload).decode()
        if isinstance(lease.payload, Deep):  # one that is nested too deeply to be read comes as it was put
            with suppress(UnicodeDecodeError):
                payload = lease.payload.decode()
    id, fence = spelled(lease.task), str(lease.fence)
    return LeaseOut(id, lease.token, lease.deadline, lease.attempt, lease.crashes, fence, payload)
