"""What `GET /v1/{queue}/…` tells: one function for each look. None of them changes anything.

`routes.py` names them. A queue that is not there is a problem here, since its name may be mistyped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, Literal, cast

from timeoutq.gateway.problems import Problem, spelled
from timeoutq.gateway.requests import Request
from timeoutq.verbs.why import advised
from timeoutq.watch import directory

LISTED = 100
"""The most queues that one answer lists."""


PERIODS: Mapping[str, Literal["minute", "hour"]] = {"minute": "minute", "hour": "hour"}


def plain(value: Any) -> Any:
    """Give a value as JSON has it: dataclasses as objects, ids that are no UTF-8 text as `{"b64": …}`."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return spelled(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return {"b64": bytes(value)}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _field(one.name, getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in cast("Iterable[Any]", value)]
    return str(value)


def _field(name: str, value: Any) -> Any:
    # a payload is JSON already, or bytes; it may be nested as deeply as JSON can be, so nobody walks through it
    return value if name == "payload" and not isinstance(value, bytes) else plain(value)


async def stats(request: Request) -> dict[str, Any]:
    """Count all states, and read counters and settings."""
    request.only()
    found = await (await request.known()).stats()
    return {**plain(found), "known": found.known, "drained": found.drained}


async def tasks(request: Request) -> dict[str, Any]:
    """Read a page of a state: `?state=failed&n=100&cursor=…`; the answer has the cursor of the next page, or null."""
    asked = request.only("state", "n", "cursor")
    queue = await request.known()
    if "state" not in asked:
        raise Problem(422, "bad-body", "say which state: ?state=todos, or another one")
    page = await queue.list(asked["state"], asked.get("cursor"), request.number("n", 100))
    return {"state": page.state.value, "tasks": plain(page.entries), "cursor": page.cursor}


async def task(request: Request) -> dict[str, Any]:
    """Tell all that is known of one task."""
    request.only("id", "b64")
    id = request.id()
    queue = await request.known()
    return dict(plain(await queue.inspect(id)))


ADVICE = {
    "done": 'POST put with "again": true makes it ready again',
    "failed": "POST retry makes it ready again",
    "banned": "after POST unblock, POST retry makes it ready again; before that, it fails again at once",
    "budget": "`timeoutq host {queue} {host} --budget N` gives the host more visits",
    "no_replica": "start replicas, or `timeoutq configure {queue} --durable N` asks for fewer",
}
"""Advice for a program that speaks HTTP, where the API has a verb for it."""


async def why(request: Request) -> dict[str, Any]:
    """Say why a task is not being worked on now, or who works on it."""
    request.only("id", "b64")
    id = request.id()
    queue = await request.known()
    found = await queue.why(id)
    return dict(plain(replace(found, message=advised(found, ADVICE, request.name))))


async def hosts(request: Request) -> dict[str, Any]:
    """Read a page of the hosts of a polite queue; with `?host=`, tell all about one host."""
    asked = request.only("n", "cursor", "host")
    queue = await request.known()
    if "host" in asked:
        return {"hosts": [plain(await queue.hosts.inspect(asked["host"]))], "cursor": None}
    page = await queue.hosts.list(asked.get("cursor"), request.number("n", 100))
    return {"hosts": plain(page.hosts), "cursor": page.cursor}


async def workers(request: Request) -> dict[str, Any]:
    """Tell which workers there are. Workers over HTTP give no signs of life, and are not among them."""
    request.only()
    return {"workers": plain(await (await request.known()).workers())}


async def errors(request: Request) -> dict[str, Any]:
    """Give the last errors, the newest first."""
    request.only("n")
    queue = await request.known()
    return {"errors": plain(await queue.errors(request.number("n", 10)))}


async def queues(request: Request) -> dict[str, Any]:
    """List the queues that this caller may look at, with their counts: 100 at most, and the name to go on `after`."""
    asked = request.only("after")
    queue = await request.state.queues.directory()
    found = sorted([name async for name in directory.every_name(queue)])
    served = [
        name
        for name in found
        if name > asked.get("after", "") and request.state.queues.serves(name) and request.caller.may("look", name)
    ]
    told = [one async for one in directory.look_at(queue, served[:LISTED])]
    return {
        "queues": [{"queue": one.name, **_counts(one)} for one in told],
        "after": served[LISTED - 1] if len(served) > LISTED else None,
    }


def _counts(one: directory.Listed) -> dict[str, Any]:
    stats = one.stats
    if stats is None:
        return {"trouble": one.trouble}
    names = ("todos", "waiting", "scheduled", "in_progress", "done", "failed", "paused", "workers")
    return {name: getattr(stats, name) for name in names}


async def history(request: Request) -> dict[str, Any]:
    """Give the counters of the last twenty minutes; `?by=minute`, `?by=hour`: rows for a day, or for 90 days."""
    by = request.only("by").get("by")
    queue = await request.known()
    if by is None:
        return {"history": plain(await queue.history())}
    if by not in PERIODS:
        raise Problem(422, "bad-body", f"by={by!r:.80} is neither minute nor hour")
    return {"history": plain(await queue.history(by=PERIODS[by]))}


async def failures(request: Request) -> dict[str, Any]:
    """Tell about the kinds of failures with most tasks, `?n=` of them; `?kind=`: read a page of the tasks of one."""
    asked = request.only("kind", "cursor", "n")
    queue = await request.known()
    if "kind" not in asked:
        return {"kinds": plain(await queue.failures.list(request.number("n", 100)))}
    page = await queue.failures.tasks(asked["kind"], asked.get("cursor"), request.number("n", 100))
    return {"kind": asked["kind"], "tasks": plain(page.entries), "cursor": page.cursor}


async def events(request: Request) -> dict[str, Any]:
    """Read the event log behind `?after=` (a cursor or Unix seconds; else the last entries); `?id=`: of one task."""
    asked = request.only("after", "n", "id", "b64")
    task = request.id() if "id" in asked or "b64" in asked else None
    said = asked.get("after")
    is_time = said is not None and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", said)
    after = float(said) if said is not None and is_time else said
    queue = await request.known()
    page = await queue.events.list(after, request.number("n", 100), task)
    return {"events": plain(page.events), "cursor": page.cursor}
