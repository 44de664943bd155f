"""The bodies of requests and answers, as types: they are checked, and the OpenAPI description is made of them.

No I/O. `verbs.py` and `looks.py` use the types; a field that a body does not know is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import inspect

from timeoutq.words import arguments
from timeoutq.words.model import Lease, Task, TaskId, text

NONE = msgspec.Raw(b"null")
"""No payload. Payloads stay JSON in bytes until each is packed: as values they take many times the memory. (A factory
gives it: OpenAPI cannot write such a default.)"""


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a client sends: an unknown field is refused, since it may be a mistyped one."""


class Bytes(Strict, kw_only=True):
    """Bytes that are no UTF-8 text, as base64."""

    b64: bytes


Id = str | Bytes
"""The id of a task."""


class NewTask(Strict, kw_only=True):
    """A task of a put: its id as `task`, or bytes as `b64`."""

    task: Id | None = None
    b64: bytes | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NONE)
    group: str | None = None
    priority: int | None = None
    improve: bool = False
    unique: float | None = None
    rerun: bool = False


class Put(Strict, kw_only=True):
    """Tasks for `put`: ids, or objects with payloads."""

    tasks: list[str | NewTask]
    again: bool = False
    group: str | None = None
    priority: int | None = None
    improve: bool = False
    rerun: bool = False
    durable: int = 0


class Schedule(Strict, kw_only=True):
    """Tasks for `schedule`, `at` a time (Unix seconds, or ISO 8601 with a zone) or `after` a number of seconds."""

    tasks: list[str | NewTask]
    at: float | str | None = None
    after: float | None = None
    again: bool = False
    group: str | None = None
    priority: int | None = None
    improve: bool = False
    durable: int = 0


class Claim(Strict, kw_only=True):
    """How many tasks a worker wants, for how long, and how long it waits for the first one.

    Leases that were taken for a client that has hung up go back at once, unless the client has sent the claim again.
    """

    n: int = 1
    timeout: float | None = None
    """Seconds until the leases run out; 30 if omitted."""
    max_runtime: float | None = None
    wait: float = 0.0
    token: str | None = None
    """The name of this very claim: no other claim has it. A claim that is sent again has it again, here or at another
    gateway, and gets the leases that it took before."""
    age: float = 0.0
    """Seconds since this claim was first sent, if its answer did not come."""
    payloads: Literal["json", "text"] = "json"
    """`text`: a payload is a string with its JSON, for a client that rounds large numbers or reads no deep nesting."""


MOST_COUNTED = 1_000_000
"""The largest count of attempts or crashes that a lease tells."""


class LeaseIn(Strict, kw_only=True):
    """A lease, as `claim` has given it; only `task` and `token` are needed.

    Where the number of the attempt decides and the lease has none, the queue's own count does.
    """

    task: Id
    token: str
    deadline: float | None = None
    attempt: Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNTED)] | None = None
    crashes: Annotated[int, msgspec.Meta(ge=0, le=MOST_COUNTED)] = 0
    fence: str | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NONE)


class Leased(Strict, kw_only=True):
    """One `lease`, or many `leases`."""

    lease: LeaseIn | None = None
    leases: list[LeaseIn] | None = None


class Extend(Leased, kw_only=True):
    """Leases that go on for `timeout` seconds from now."""

    timeout: float | None = None


class Ack(Leased, kw_only=True):
    """Leases that are done. One lease may put the tasks that it found, or be done `again_in` so many seconds."""

    put: list[str | NewTask] | None = None
    again_in: float | None = None
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NONE)


class Fail(Leased, kw_only=True):
    """Leases whose tasks have failed. Without `retry_in` and `give_up`, the number of the attempt decides."""

    error: str
    retry_in: float | None = None
    give_up: bool = False


class Release(Leased, kw_only=True):
    """Leases that are given back."""

    delay: float = 0.0
    block_host: float = 0.0


class Note(Strict, kw_only=True):
    """How far the work on a lease is."""

    lease: LeaseIn
    done: float
    total: float | None = None
    text: str = ""


class Pull(Strict, kw_only=True):
    """How many tasks are taken without a lease."""

    n: int = 1


class Ids(Strict, kw_only=True):
    """Ids of tasks."""

    tasks: list[Id]


class Cancel(Ids, kw_only=True):
    """Tasks that are cancelled; `by` tells on whose behalf, and stands behind the name of the caller."""

    by: str | None = None


class Retry(Strict, kw_only=True):
    """Failed tasks that get another attempt: these, all, or those of a kind of failure."""

    tasks: list[Id] | None = None
    all: bool = False
    kind: str | None = None
    """The id of a kind, or its text: see `GET failures`."""
    at_most: int = 10_000
    """How many tasks of a kind one call retries."""
    before: float | None = None
    """What the last call has answered, to go on with the tasks of a kind that had failed by then."""


class Nothing(Strict, kw_only=True):
    """No argument."""


class Block(Strict, kw_only=True):
    """A host that is left alone until a time, or for a number of seconds."""

    host: str
    until: float | None = None
    seconds: float | None = None
    reason: str | None = None


class Unblock(Strict, kw_only=True):
    """A host that is visited again."""

    host: str


class Ban(Strict, kw_only=True):
    """A host that is never visited again."""

    host: str
    reason: str = "banned"


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
    """What a claim has brought."""

    leases: list[LeaseOut]


class Answers(msgspec.Struct):
    """One answer for each id, in the order of the request; and how often each answer was given."""

    answers: list[str]
    counts: dict[str, int]


class Lines(msgspec.Struct):
    """What a put of NDJSON has put: how many lines, and how often each answer was given."""

    lines: int
    counts: dict[str, int]


class Count(msgspec.Struct):
    """How many tasks were moved; of a kind of failure, also how many are left, and what the next call is to give."""

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


# ---- what does not fit

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*?)`(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<field>\w+)|\[[^\]]*\]")


def unfit(body: Any, error: msgspec.ValidationError) -> str:
    """Say why a body of this type cannot be used; of a field that is unknown, also which ones are known there."""
    found = _UNKNOWN.fullmatch(str(error))
    if found is None:
        return str(error)
    path = found["path"] or ""
    known = _fields(body, path)
    where = f" at {path.lstrip('.')}" if path else ""
    return f"unknown field {found['field']!r:.80}{where}: known: {', '.join(known) or 'none'}"


def _fields(body: Any, path: str) -> list[str]:
    kinds = _each([inspect.type_info(body)])
    for step in _STEP.finditer(path):
        if step["field"]:
            kinds = [
                one.type for kind in kinds for one in getattr(kind, "fields", ()) if one.encode_name == step["field"]
            ]
        else:
            kinds = [getattr(kind, "item_type", kind) for kind in kinds]
        kinds = _each(kinds)
    objects = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    return [one.encode_name for kind in objects for one in kind.fields]


def _each(kinds: Sequence[inspect.Type]) -> list[inspect.Type]:
    return [one for kind in kinds for one in (kind.types if isinstance(kind, inspect.UnionType) else (kind,))]


# ---- from bodies to what the queue takes


def id_of(task: Id) -> TaskId:
    """Give an id as the queue takes it."""
    return task if isinstance(task, str) else task.b64


def payload_of(given: msgspec.Raw, task: TaskId = "") -> bytes | None:
    """Give a payload packed, as the queue takes it: `{"b64": …}` stands for bytes."""
    if given is NONE:
        return None
    payload: Any = msgspec.json.decode(given)
    fields = cast("dict[str, Any]", payload) if type(payload) is dict else {}
    if len(fields) == 1 and type(fields.get("b64")) is str:
        try:
            payload = msgspec.convert(fields["b64"], bytes)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"a payload {{'b64': …}} is base64: {error}") from None
    packed = arguments.pack(payload, task)
    return None if packed is None else arguments.Packed(packed)


def task_of(given: str | NewTask) -> str | Task:
    """Give a task as `put` takes it."""
    if isinstance(given, str):
        return given
    if (given.task is None) == (given.b64 is None):
        raise msgspec.ValidationError('a task is {"task": ID, …}, or {"b64": BYTES, …}')
    name: TaskId = id_of(given.task) if given.task is not None else given.b64 or b""
    return Task(
        name, payload_of(given.payload, name), given.group, priority=given.priority, improve=given.improve,
        unique=given.unique, rerun=given.rerun,
    )  # fmt: skip


def tasks_of(given: Sequence[str | NewTask]) -> list[str | Task]:
    """Give tasks as `put` takes them."""
    return [one if type(one) is str else task_of(one) for one in given]


def lease_of(given: LeaseIn) -> Lease:
    """Give a lease as the queue takes it. Its deadline counts only for the words of an error."""
    id = id_of(given.task)
    deadline = float("inf") if given.deadline is None else given.deadline
    return Lease(id if isinstance(id, str) else text(id), given.token, deadline, given.attempt or 1, given.crashes)
