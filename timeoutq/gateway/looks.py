"""The looks of `GET /v1/{queue}/…`: one function each, whose arguments are the parameters of the URL."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Annotated, Any, Literal, cast

import msgspec

from timeoutq.gateway.problems import Problem, from_base64, spelled
from timeoutq.gateway.requests import Request
from timeoutq.verbs.why import advised
from timeoutq.watch import directory, records
from timeoutq.words.model import State, TaskId

N = Annotated[int, msgspec.Meta(description="About how many")]
Cursor = Annotated[str | None, msgspec.Meta(description="The cursor that the last page ended with")]
Name = Annotated[str | None, msgspec.Meta(description="The id of the task")]
InBase64 = Annotated[str | None, msgspec.Meta(description="Or its bytes, as base64")]

LISTED = 100  # the most queues that one answer lists
COUNTS = ("todos", "waiting", "scheduled", "in_progress", "done", "failed", "paused", "workers")


def plain(value: Any, name: str = "") -> Any:
    """Give a value as JSON has it: dataclasses as objects, ids that are no UTF-8 text as `{"b64": …}`."""
    if isinstance(value, bytes):
        return {"b64": bytes(value)}
    # a payload is JSON already; it may be nested as deeply as JSON can be, so nobody walks through it
    if name == "payload" or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return spelled(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name), one.name) for one in fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in cast("Iterable[Any]", value)]
    return str(value)


def named(id: str | None, b64: str | None) -> TaskId:
    """Give the id that `?id=` or `?b64=` names."""
    if (id is None) == (b64 is None):
        raise Problem(422, "bad-body", "name one task: ?id=ID, or ?b64=BYTES in base64")
    try:
        return id if id is not None else from_base64(b64 or "")
    except ValueError as error:
        raise Problem(422, "bad-body", f"?b64= is not base64: {error}") from None


async def stats(request: Request) -> dict[str, Any]:
    """Count all states, and read counters and settings."""
    found = await request.queue.stats()
    return {**plain(found), "known": found.known, "drained": found.drained}


async def tasks(request: Request, *, state: State, n: N = 100, cursor: Cursor = None) -> dict[str, Any]:
    """Read a page of a state: `?state=failed&n=100&cursor=…`; the answer has the cursor of the next page, or null."""
    page = await request.queue.list(state, cursor, n)
    return {"state": page.state.value, "tasks": plain(page.entries), "cursor": page.cursor}


async def task(request: Request, *, id: Name = None, b64: InBase64 = None) -> dict[str, Any]:
    """Tell all that is known of one task."""
    name = named(id, b64)
    return dict(plain(await request.queue.inspect(name)))


ADVICE = {
    **records.ADVICE,
    "done": 'POST put with "again": true makes it ready again',
    "failed": "POST retry makes it ready again",
    "banned": "after POST unblock, POST retry makes it ready again; before that, it fails again at once",
}
"""Advice for a program that speaks HTTP, where the API has a verb for it."""


async def why(request: Request, *, id: Name = None, b64: InBase64 = None) -> dict[str, Any]:
    """Say why a task is not being worked on now, or who works on it."""
    name = named(id, b64)
    found = await request.queue.why(name)
    return dict(plain(replace(found, message=advised(found, ADVICE, request.name))))


async def hosts(request: Request, *, n: N = 100, cursor: Cursor = None, host: str | None = None) -> dict[str, Any]:
    """Read a page of the hosts of a polite queue; with `?host=`, tell all about one host."""
    if host is not None:
        return {"hosts": [plain(await request.queue.hosts.inspect(host))], "cursor": None}
    page = await request.queue.hosts.list(cursor, n)
    return {"hosts": plain(page.hosts), "cursor": page.cursor}


async def workers(request: Request) -> dict[str, Any]:
    """Tell which workers there are. Workers over HTTP give no signs of life, and are not among them."""
    return {"workers": plain(await request.queue.workers())}


async def errors(request: Request, *, n: N = 10) -> dict[str, Any]:
    """Give the last errors, the newest first."""
    return {"errors": plain(await request.queue.errors(n))}


async def queues(request: Request, *, after: str = "") -> dict[str, Any]:
    """List the queues that this caller may look at, with their counts: 100 at most, and the name to go on `after`."""
    client, serves = request.state.queues.directory, request.state.queues.serves
    found = sorted({name async for name in directory.every_name(client)})
    served = [name for name in found if name > after and serves(name) and request.caller.may("look", name)]
    told: list[dict[str, Any]] = []
    for one in await client.run(directory.look_at(client.talk, served[:LISTED])):
        counts = {name: getattr(one.stats, name) for name in COUNTS} if one.stats else {"trouble": one.trouble}
        told.append({"queue": one.name, **counts})
    return {"queues": told, "after": served[LISTED - 1] if len(served) > LISTED else None}


async def history(request: Request, *, by: Literal["minute", "hour", ""] = "") -> dict[str, Any]:
    """Give the counters of the last twenty minutes; `?by=minute`, `?by=hour`: rows for a day, or for 90 days."""
    return {"history": plain(await (request.queue.history(by=by) if by else request.queue.history()))}


async def failures(request: Request, *, kind: str | None = None, cursor: Cursor = None, n: N = 100) -> dict[str, Any]:
    """Tell about the kinds of failures with most tasks, `?n=` of them; `?kind=`: read a page of the tasks of one."""
    if kind is None:
        return {"kinds": plain(await request.queue.failures.list(n))}
    page = await request.queue.failures.tasks(kind, cursor, n)
    return {"kind": kind, "tasks": plain(page.entries), "cursor": page.cursor}


async def calls(request: Request, *, n: N = 100) -> dict[str, Any]:
    """Tell about the calls that ended last, the newest first: of the last 500 those whose results are still kept."""
    return {"calls": plain(await request.queue.results.ended(n))}


async def events(
    request: Request, *, after: str | None = None, n: N = 100, id: Name = None, b64: InBase64 = None
) -> dict[str, Any]:
    """Read the event log behind `?after=` (a cursor or Unix seconds; else the last entries); `?id=`: of one task."""
    task = named(id, b64) if id is not None or b64 is not None else None
    is_time = after is not None and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", after)
    page = await request.queue.events.list(float(after) if after and is_time else after, n, task)
    return {"events": plain(page.events), "cursor": page.cursor}
