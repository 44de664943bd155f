"""What callers pass, checked and turned into bytes and whole milliseconds, before anything is sent."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import named
from timeoutq.words.model import MAX_TIME_MS, Deep, Lease, Payload, Politeness, State, Task, TaskId, Tasks, text

MAX_ID, MAX_PAYLOAD = 1024, 1024 * 1024
GROUP = 10  # how many members of an exception group its text names
DEEPEST = 3  # how deep groups within groups are followed
MEMBER = 200  # the most bytes of a member's text, and of a group's own message
MAX_ERROR = 4096
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000
MIN_TIMEOUT_MS = 10

LARGE = 4096
"""A payload of text or bytes that is longer becomes the bytes of the wire only when it is sent."""
PACKED = 4 * 1024 * 1024
"""Up to this many bytes of one call's payloads are packed at once; further payloads are packed when they are sent."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def shown(value: object, most: int = 80) -> str:
    """Give the repr of anything that a caller has passed, cut to `most` characters. Never raises."""
    try:
        return f"{value!r:.{most}}"
    except Exception:  # the repr of a foreign object may do anything, and that of a huge number is refused
        kind = type(value)
        return f"<a huge {kind.__name__}>" if kind is int else f"<{kind.__name__} without a repr>"


def flag(value: object, name: str) -> int:
    """Give 1 for True and 0 for False, and refuse what is neither."""
    if isinstance(value, int) and value in (0, 1):
        return int(value)
    raise InvalidInput(f"{name} must be True or False, not {shown(value)}")


def queue_name(name: object) -> str:
    """Check the name of a queue: it becomes the hash tag of its keys, so it must be plain."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInput(f"{shown(name)} is not a queue name: use 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


def state(value: object) -> State:
    """Check the name of a state."""
    if isinstance(value, str) and value in list(State):
        return State(value)
    raise InvalidInput(f"{shown(value)} is not a state: one of {', '.join(State)}")


def cursor(value: object) -> str:
    """Check the cursor that a page ended with; None is the cursor of the first page."""
    if value is None:
        return "0"
    if not (isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value)):
        raise InvalidInput(f"{shown(value)} is not a cursor that a page ended with")
    return value


def task_id(task: object) -> bytes:
    """Give the bytes of an id: 1 byte to 1 KiB; `str` is UTF-8, with surrogate escapes for bytes that are not."""
    if isinstance(task, str):
        try:
            data = task.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidInput(f"task id {shown(task)} holds a lone surrogate, which UTF-8 cannot write") from error
    elif isinstance(task, bytes):
        data = task
    else:
        raise InvalidInput(f"a task id is str or bytes, not {type(task).__name__}: {shown(task)}")
    if not data:
        raise InvalidInput("a task id must not be empty")
    if len(data) > MAX_ID:
        raise InvalidInput(
            f"task id {data[:40]!r}… has {len(data):,} bytes; the limit is {MAX_ID:,}: keep the id short, and put the "
            "rest into the payload"
        )
    return data


def id_field(name: str, value: bytes) -> dict[str, str]:
    """Give an id as a field of JSON; one that is not text goes into a field of its own, in base64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}


def id_in(fields: Mapping[str, Any], name: str) -> bytes:
    """Read what `id_field` has written."""
    encoded = fields.get(f"{name}_b64")
    try:
        return task_id(fields.get(name) if encoded is None else base64.b64decode(encoded, validate=True))
    except (binascii.Error, TypeError) as error:
        raise InvalidInput(f'"{name}_b64" is not base64: {error}') from error


_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Packed(bytes):
    """A payload that `pack` has packed before, for a task that is put later."""


def pack(payload: Payload, task: object = "") -> bytes | None:
    """Give the bytes of a payload: JSON as it is, `bytes` behind a NUL, at most 1 MiB; None is no payload."""
    if payload is None or isinstance(payload, Packed):
        return payload
    if isinstance(payload, bytes):
        data = payload
    else:
        try:
            data = _JSON.encode(payload).encode()
        except Exception as error:  # a mapping of somebody's own may raise anything
            said = error_words(error).partition(": ")[2][:200]
            raise InvalidInput(f"the payload of task {shown(task)} is neither bytes nor JSON: {said}") from error
    if len(data) > MAX_PAYLOAD:
        raise InvalidInput(
            f"the payload of task {shown(task)} has {len(data):,} bytes; the limit is {MAX_PAYLOAD:,}: "
            "store it elsewhere and put its address here"
        )
    return b"\0" + data if isinstance(payload, bytes) else data


class Body:
    """A payload that was checked, and is packed only when it is sent: until then nothing is copied."""

    __slots__ = ("_payload", "_size", "_task")

    def __init__(self, payload: Payload, task: TaskId, size: int) -> None:
        """Keep a payload, and its length on the wire, bytes."""
        self._payload, self._task, self._size = payload, task, size

    def __len__(self) -> int:
        return self._size

    def pack(self) -> bytes:
        """Give the bytes; raises `InvalidInput` if somebody has changed the payload into one that cannot be packed."""
        return pack(self._payload, self._task) or b""


def unpack(data: bytes | None) -> Payload:
    """Read a payload back; what another program wrote and is not JSON comes as the bytes it is."""
    if data is None:
        return None
    if data[:1] == b"\0":
        return data[1:]
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        return Deep(data) if isinstance(error, RecursionError) else data


def _plain_ids(tasks: list[object]) -> list[bytes] | None:
    """Give the bytes of ids that are valid strings, and None when one of them has to be looked at."""
    try:
        found = list(map(str.encode, cast("list[str]", tasks)))
    except (TypeError, UnicodeEncodeError):
        return None
    return found if all(found) and max(map(len, found), default=0) <= MAX_ID else None


@dataclass(slots=True)
class TaskList:
    """Tasks that were checked: their ids and, by the position of a task, what goes with its id."""

    ids: list[bytes] = field(default_factory=list[bytes])
    payloads: dict[int, bytes | Body] = field(default_factory=dict[int, bytes | Body])
    groups: dict[int, bytes] = field(default_factory=dict[int, bytes])
    priorities: dict[int, int] = field(default_factory=dict[int, int])
    improved: dict[int, bool] = field(default_factory=dict[int, bool])
    """The tasks that `improve` counts for."""
    reruns: dict[int, bool] = field(default_factory=dict[int, bool])
    uniques: dict[int, int] = field(default_factory=dict[int, int])
    """For how many ms after its last error a failed task blocks its id; one that is not here does so for ever."""
    _packed: int = field(default=0, compare=False)

    def add(self, task: object) -> None:
        """Add an id or a `Task`; one that raises `InvalidInput` leaves nothing of itself behind."""
        if not isinstance(task, Task):
            self.ids.append(task_id(task))
            return
        id, data = task_id(task.task), pack(task.payload, task.task)
        group = None if task.group is None else _group(task.task, task.group)
        rank = None if task.priority is None else priority(task.priority, f"the priority of task {shown(task.task)}")
        unique_ms = None if task.unique is None else delay_ms(task.unique, "unique")
        rerun, improve = flag(task.rerun, "rerun"), flag(task.improve, "improve")
        if improve and rank is None:
            raise InvalidInput(f"task {shown(task.task)}: {NO_PRIORITY}")
        at = len(self.ids)
        self._append(id, task.task, task.payload, data)
        if group is not None:
            self.groups[at] = group
        if rank is not None:
            self.priorities[at] = rank
        if unique_ms is not None:
            self.uniques[at] = unique_ms
        if rerun:
            self.reruns[at] = True
        if improve:
            self.improved[at] = True

    def add_all(self, tasks: Iterable[object]) -> None:
        """Add ids and `Task`s."""
        items = list(tasks)
        plain = _plain_ids(items)
        if plain is not None:
            self.ids += plain
            return
        for item in items:
            self.add(item)

    def add_mapping(self, payloads: Mapping[TaskId, Payload]) -> None:
        """Add ids with their payloads."""
        for task, payload in payloads.items():
            self._append(task_id(task), task, payload, pack(payload, task))

    def part(self, start: int, stop: int) -> TaskList:
        """Give the tasks from one position to another."""
        return self._with(self.ids[start:stop], range(start, min(stop, len(self.ids))))

    def pick(self, places: Sequence[int]) -> TaskList:
        """Give the tasks at these positions, in this order."""
        return self._with([self.ids[at] for at in places], places)

    def _with(self, ids: list[bytes], places: Sequence[int]) -> TaskList:
        found = TaskList(ids)
        for name in _CARRIED:
            if carried := getattr(self, name):
                setattr(found, name, {new: carried[at] for new, at in enumerate(places) if at in carried})
        return found

    def join(self, more: TaskList) -> None:
        """Add the tasks of another list behind those of this one."""
        start = len(self.ids)
        self.ids += more.ids
        for name in _CARRIED:
            getattr(self, name).update((start + at, what) for at, what in getattr(more, name).items())

    def group_by(self, group: Callable[[str], object]) -> None:
        """Give each task that has no group of its own the one that a function says for its id, unless that is None."""
        for at, id in enumerate(self.ids):
            if at not in self.groups:
                name = text(id)
                found = group(name)
                if found is not None:
                    self.groups[at] = _group(name, found)

    def _append(self, id: bytes, task: TaskId, payload: Payload, data: bytes | None) -> None:
        at = len(self.ids)
        self.ids.append(id)
        if data is None:
            return
        if self._packed + len(data) > PACKED or (len(data) > LARGE and type(payload) in (str, bytes)):
            self.payloads[at] = Body(payload, task, len(data))
        else:
            self._packed += len(data)
            self.payloads[at] = data


_CARRIED = ("payloads", "groups", "priorities", "improved", "reruns", "uniques")
"""What goes with the ids of a `TaskList`."""


def _group(task: object, group: object) -> bytes:
    try:
        return host(group)
    except InvalidInput as error:
        raise InvalidInput(f"the group of task {shown(task)}: {error}") from error


@dataclass(frozen=True, slots=True)
class How:
    """How tasks are put: the options that `put` and `schedule` have for all of their tasks, not checked yet."""

    again: object = False
    group: object = None
    priority: object = None
    improve: object = False
    batch: str | None = None  # its name is checked
    rerun: object = False
    call_id: bytes | None = None  # the id of the put of one task: a put that was made before under this id adds nothing


AS_IT_IS = How()  # tasks are put as they are, without any option
NO_PRIORITY = "improve=True compares priorities: add priority=, in a crawl for example minus the depth of the page"
PRIORITY = 1000  # the highest priority; the lowest is as far below 0


def priority(value: object, name: str = "priority") -> int:
    """Check a priority: a whole number from -1000 to 1000."""
    return count(value, name, -PRIORITY, PRIORITY)


def tasks(given: tuple[Tasks, ...]) -> TaskList:
    """Check ids, `Task`s, mappings of ids to payloads, and iterables of ids and `Task`s, and make one list of them."""
    if len(given) == 1 and isinstance(given[0], TaskList):
        return given[0]
    found = TaskList()
    for item in given:
        if isinstance(item, str | bytes | Task):
            found.add(item)
        elif isinstance(item, Mapping):
            found.add_mapping(cast("Mapping[TaskId, Payload]", item))
        elif isinstance(item, Iterable) and not isinstance(item, bytearray | memoryview):
            found.add_all(item)
        else:
            found.add(item)  # which says what is wrong with it
    return found


def ids(given: tuple[Tasks, ...]) -> list[bytes]:
    """Check ids as `tasks` does; of a `Task` only the id counts."""

    def bare(item: Any) -> Any:
        return item.task if isinstance(item, Task) else item

    def each_bare(item: Any) -> Any:
        many = isinstance(item, Iterable) and not isinstance(item, str | bytes | bytearray | memoryview | Mapping)
        return map(bare, cast("Iterable[Any]", item)) if many else bare(item)

    return tasks(tuple(map(each_bare, given))).ids


def leases(given: Lease | Iterable[Lease]) -> list[Lease]:
    """Give one lease or many as a list."""
    if isinstance(given, Lease):
        return [given]
    found: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    for lease in found:
        if not isinstance(lease, Lease):
            raise InvalidInput(f"this takes leases that claim() gave, not {type(lease).__name__}: {shown(lease)}")
    return cast("list[Lease]", found)


def count(value: object, name: str = "n", low: int = 1, high: int = 1_000_000_000) -> int:
    """Check a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(f"{name} must be a whole number from {low:,} to {high:,}, not {shown(value)}")
    return int(value)


def seconds(value: object, name: str) -> float:
    """Check a length of time: a finite number of seconds, or a timedelta, not below zero."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"{name} must be a finite number of seconds, 0 or more, not {shown(value)}")
    return float(min(value, 1 << 64))  # beyond any range that has milliseconds


def delay_ms(value: object, name: str) -> int:
    """Give a delay in ms, rounded up: a task is never early."""
    found = math.ceil(seconds(value, name) * 1000)
    if found > MAX_TIME_MS:
        raise InvalidInput(f"{name}={shown(value)} is past the year 9999")
    return found


def timeout_ms(value: object, name: str = "timeout") -> int:
    """Give the length of a lease in ms: 10 ms to 7 days."""
    found = round(seconds(value, name) * 1000)
    if not MIN_TIMEOUT_MS <= found <= MAX_TIMEOUT_MS:
        raise InvalidInput(
            f"{name}={shown(value)} is out of range: 0.01 s to 7 days; for longer work extend the lease while you live"
        )
    return found


def deadline(value: object) -> float:
    """Check the deadline of a call: 0.05 s to 1 hour."""
    found = seconds(value, "deadline")
    if not 0.05 <= found <= 3600:
        raise InvalidInput(f"deadline={shown(value)} is out of range: 0.05 s to 1 hour")
    return found


def again(again_in: object, payload: Payload, task: object) -> tuple[int, bytes | None]:
    """Give the delay until a task is done again in ms, -1 for never, and the bytes of the payload that it has then."""
    if again_in is None:
        if payload is not None:
            raise InvalidInput("payload= needs again_in=: a done task has no payload")
        return -1, None
    return delay_ms(again_in, "again_in"), pack(payload, task)


def due(at: object, after: object) -> bytes:
    """Give the wire form of a due time: ms since 1970, or `+` ms from now by the server's clock."""
    if (at is None) == (after is None):
        raise InvalidInput("say when: either at= (Unix seconds or an aware datetime) or after= (seconds from now)")
    if after is not None:
        return b"+%d" % delay_ms(after, "after")
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidInput(f"at={shown(at)} has no time zone: use datetime.now(timezone.utc) or .astimezone()")
        try:
            at = at.timestamp()
        except (OverflowError, ValueError):
            raise InvalidInput(f"at={shown(at)} is not between the years 1970 and 9999") from None
    return b"%d" % delay_ms(at, "at")


MOST_KEPT = 10**15
"""More done tasks than any server holds; a count of them is below."""


MOST_REPLICAS = 100
"""The most replicas that must confirm a call."""


def keep_done(value: object) -> bytes:
    """Give the wire form of keep_done: "forever", "compact" with a new salt, 0 (not at all), a count or a timedelta."""
    if value == "forever":
        return b"forever"
    if value == "compact":
        return b"compact " + secrets.token_hex(16).encode()
    if isinstance(value, timedelta):
        return b"t%d" % delay_ms(value, "keep_done")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_KEPT:
        return b"n%d" % value if value else b"no"
    raise InvalidInput(
        f'keep_done must be "forever", "compact", 0, a number of tasks, or a timedelta, not {shown(value)}'
    )


def politeness(value: object) -> bytes:
    """Give the wire form of a `Politeness`: the delay in ms and how many visits at once; or `off`."""
    if value == "off":
        return b"off"
    if not isinstance(value, Politeness):
        raise InvalidInput(f'politeness must be a Politeness(delay=, per_host=) or "off", not {shown(value)}')
    return b"%d %d" % (delay_ms(value.delay, "delay"), count(value.per_host, "per_host", high=10_000))


def replicas(durable: object) -> int:
    """Give how many replicas must confirm; 0 is none."""
    return count(durable, "durable", low=0, high=MOST_REPLICAS)


_SETTINGS: Mapping[str, Callable[[object], bytes]] = {
    "keep_done": keep_done,
    "max_crashes": lambda value: b"%d" % count(value, "max_crashes"),
    "durable": lambda value: b"%d" % replicas(value),
    "politeness": politeness,
}


def settings(given: Mapping[str, object]) -> dict[str, bytes]:
    """Give the wire form of settings of a queue; those that are None are left out."""
    return {name: wire(given[name]) for name, wire in _SETTINGS.items() if given.get(name) is not None}


def host(value: object) -> bytes:
    """Give the name of a host as a polite queue has it: lower case, IDNA; of a URL, its host; or of a group."""
    if not isinstance(value, str | bytes) or not value:
        raise InvalidInput(f"a host is a name like example.com or example.com:8080, not {shown(value)}")
    found = named(task_id(value))
    if not found:
        raise InvalidInput(f"{shown(value)} names no host: use a name like example.com or example.com:8080")
    return found


def reason(value: object) -> bytes:
    """Give a reason as one line, at most 200 bytes."""
    return " ".join(_text_of(value).decode("utf-8", "replace").split()).encode()[:200]


def error_text(error: Any) -> bytes:
    """Give the text of an error, at most 4 KiB: `ValueError: bad page` for an exception, a string as it is.

    For an exception group it is `ExceptionGroup: pages (ValueError: bad page; KeyError: 'title')`. It never raises.
    """
    if not isinstance(error, BaseException):
        return _text_of(error) or b"unknown error"
    name = class_name(error).encode("utf-8", "backslashreplace")
    message = _members(cast("Any", error)) if isinstance(error, BaseExceptionGroup) else _text_of(error)
    return (name + b": " + message if message else name)[:MAX_ERROR]


def error_words(error: Any) -> str:
    """Give the text of an error as `error_text` does, as a `str`."""
    return error_text(error).decode("utf-8", "replace")


def is_group(error: object) -> bool:
    """Say whether this is an exception group."""
    return isinstance(error, BaseExceptionGroup)


def _members(group: BaseExceptionGroup[BaseException], depth: int = 1) -> bytes:
    """Give the message of an exception group and its first members, each cut short."""
    message, inside = _text_of(group.message), group.exceptions
    told: list[bytes] = []
    for one in inside[:GROUP] if depth <= DEEPEST else ():
        if is_group(one):
            name = class_name(one).encode("utf-8", "backslashreplace")
            told.append(name + b": " + _members(cast("Any", one), depth + 1))
        else:
            told.append(error_text(one))
    told = [one if len(one) <= MEMBER else one[:MEMBER] + "…".encode() for one in told]
    more = len(inside) - len(told)
    if more:
        told.append(b"and %d more" % more if told else b"%d in it" % more)
    return message[:MEMBER] + b" (" + b"; ".join(told) + b")"


def class_name(value: object) -> str:
    """Give the name of the value's class."""
    return type(value).__name__


def _text_of(value: object) -> bytes:
    try:
        return str(value)[:MAX_ERROR].encode("utf-8", "backslashreplace")[:MAX_ERROR]
    except BaseException as problem:  # a __str__ may raise anything, and an error without text is an error all the same
        return f"its text cannot be had: __str__ raised {class_name(problem)}".encode("utf-8", "backslashreplace")
