"""What the page shows: one function for each view, and the stream of fragments of a view that somebody watches.

`routes.py` names them. A view is first written as a whole page; while a browser shows the page, its script asks `live`
for the same view, and gets the parts of it that have changed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import FileResponse, Response, StreamingResponse

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.hub import Crowded, Hub, Parts
from timeoutq.gateway.page.visits import Visit
from timeoutq.gateway.problems import Problem
from timeoutq.rooms.events import Event, EventPage
from timeoutq.rooms.failures.operations import FailureKind
from timeoutq.verbs.why import advised
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import HostInfo, Page, State
from timeoutq.words.text import age

ROWS = 50
"""Tasks and hosts on one page."""
PAGES = 20
"""How many pages without a task are passed over in one request."""
LONGEST_STREAM = 300.0
"""Seconds after which a stream ends, and the browser asks again: whoever may not look any more is refused then."""
LOGGED, ROWS_OF_LOG = 500, 100
"""How many of the last entries of the event log are read, and how many are shown."""
UNKNOWN = "no state holds it: it was never put, or it was forgotten or pruned later"
ADVICE = {
    "done": "Run again makes it ready again",
    "failed": "Retry makes it ready again",
    "banned": "after Unblock for its host, Retry makes it ready again; before that, it fails again at once",
    "budget": "`timeoutq host {queue} {host} --budget N` gives the host more visits",
    "no_replica": "start replicas, or `timeoutq configure {queue} --durable N` asks for fewer",
}
"""Advice for whoever reads the page: by the buttons of the page, where it has them."""
QUIET = 15.0
"""Seconds after which a stream without news sends a comment, so that proxies keep the connection."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class View:
    """A view that can be watched: its name, its queue, and what else the query of its page says."""

    name: str
    queue: str
    fields: Fields
    rights: frozenset[str]
    base: str
    globs: str = ""

    @property
    def live(self) -> str:
        """Where the fragments of this view come from."""
        path = f"{self.base}/q/{self.queue}/live" if self.queue else f"{self.base}/live"
        return f"{path}?{urlencode([('view', self.name), *self.fields], quote_via=quote)}"


def view_of(visit: Visit, name: str, **fields: str | None) -> View:
    """Name the view of a visit."""
    given = tuple(sorted((key, value) for key, value in fields.items() if value))
    globs = "" if visit.name else " ".join(visit.caller.queues)
    return View(name, visit.name, given, visit.at.rights, visit.at.base, globs)


# ---- the parts of each view


async def _overview(visit: Visit, fields: Mapping[str, str]) -> Parts:
    listing = visit.shared.listing
    found, left = await listing.get(visit.caller, "look")
    return {"queues": paint.queues(visit.at, found, left, listing.looking)}


async def _queue(visit: Visit, fields: Mapping[str, str]) -> Parts:
    at, queue = visit.at, await visit.queue()
    seen, minutes, kinds, info = await asyncio.gather(
        visit.hub.snapshot(visit.name),
        visit.hub.shared(("history", visit.name), lambda: queue.history(by="minute"), 20.0),
        _kinds(visit),
        visit.shared.server.get(),
    )
    parts = {
        "head": paint.part("head", at, seen),
        "counts": paint.counts(at, seen),
        "rates": paint.pace(at, seen),
        "workers": paint.workers(at, seen, paint.FEW),
        "leases": paint.leases(at, seen),
        "due": paint.due(at, seen),
        "recent": paint.errors(at, seen),
        "memory": paint.memory(at, info),
    }
    if sum(one.acked is not None for one in minutes) >= 2:  # else there is nothing to draw yet
        parts["charts"] = paint.pictures(at, minutes, seen.stats)
    if seen.stats.failed:
        parts["kinds"] = paint.kinds(at, kinds, seen.stats, paint.FEW)
    if seen.stats.politeness:
        parts["hosts"] = paint.hosts(at, seen, seen.hosts, paint.FEW)
    return parts


async def _tasks(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    return {"counts": paint.counts(visit.at, seen), "walks": _walks(visit)}


async def _task(visit: Visit, fields: Mapping[str, str]) -> Parts:
    (task,) = spelling.read(fields.items())
    queue = await visit.queue()
    info, seen = await asyncio.gather(queue.inspect(task), visit.hub.snapshot(visit.name))
    # `why` would search a large queue for ids that are much alike: too much for a page that anybody may ask for
    known = info.state is not None or info.has_result
    why = advised(await queue.why(task), ADVICE, queue=visit.name) if known else UNKNOWN
    return {"task": paint.task(visit.at, info, why, seen.stats.now), "events": await _history(visit, task)}


async def _history(visit: Visit, task: str) -> str:
    """Write what the last entries of the event log tell of a task; nothing if the log has no entries."""
    logged = await _events(visit)
    moved = [one for one in logged if one.of(task)]
    if not moved:
        return paint.part("no_history", visit.at, LOGGED) if logged else ""
    head = f"History, from the last {LOGGED} entries of the log"
    return paint.events(visit.at, moved[::-1][:ROWS], head, with_ids=False)


async def _failures(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    return {
        "walks": _walks(visit),
        "kinds": paint.kinds(visit.at, await _kinds(visit), seen.stats, paint.MOST_KINDS),
        "recent": paint.errors(visit.at, seen),
    }


async def _hosts(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    if not seen.stats.politeness:
        return {"hosts": '<p class="empty">This queue is not polite: it knows no hosts.</p>'}
    queue = await visit.queue()
    found: Sequence[HostInfo] = (await queue.hosts.list(fields.get("cursor"), ROWS)).hosts
    return {"hosts": paint.hosts(visit.at, seen, found, 4 * ROWS)}


async def _workers(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    return {"workers": paint.workers(visit.at, seen)}


async def _log(visit: Visit, fields: Mapping[str, str]) -> Parts:
    found = await _events(visit)
    if not found:
        return {"events": paint.part("no_log", visit.at)}
    return {"events": paint.events(visit.at, found[::-1][:ROWS_OF_LOG], "Log", with_ids=True)}


PARTS: Mapping[str, Callable[[Visit, Mapping[str, str]], Awaitable[Parts]]] = {
    "overview": _overview, "queue": _queue, "tasks": _tasks, "task": _task, "failures": _failures, "hosts": _hosts,
    "workers": _workers, "log": _log,
}  # fmt: skip
"""Each view that can be watched, and what gives its parts."""


def _walks(visit: Visit) -> str:
    found = visit.walks.of(visit.name)
    return paint.part("walks", visit.at, found) if found else ""


async def _events(visit: Visit) -> Sequence[Event]:
    """Read the last entries of the event log; nothing if the queue has none."""
    queue = await visit.queue()
    found: EventPage = await visit.hub.shared(("events", visit.name), lambda: queue.events.list(n=LOGGED), 2.0)
    return found.events


async def _kinds(visit: Visit) -> Sequence[FailureKind]:
    """Read the kinds of failures with most tasks: one more than are shown, if there are more."""
    queue = await visit.queue()
    found: Sequence[FailureKind] = await visit.hub.shared(
        ("kinds", visit.name), lambda: queue.failures.list(paint.MOST_KINDS + 1)
    )
    return found


# ---- pages


async def _shown(visit: Visit, template: str, view: View, **given: Any) -> Response:
    parts = await PARTS[view.name](visit, dict(view.fields))
    return visit.page(template, live=view.live, parts={"trouble": "", **parts}, **given)


async def overview(visit: Visit) -> Response:
    """Show the queues that the caller may look at: the first by name."""
    return await _shown(visit, "overview.html", view_of(visit, "overview"))


async def puts(visit: Visit) -> Response:
    """List the forms for new tasks, to a caller who may put and not look."""
    found, left = await visit.shared.listing.get(visit.caller, "put")
    named = {name for name in visit.caller.queues if not set(name) & set("*?[")}  # perhaps not made yet
    names = sorted({one.name for one in found if one.name.strip(".")} | named)
    return visit.page("puts.html", names=names, left=left)


WIDE = (("charts", "The last day"), ("kinds", "Failures by kind"))
COLUMNS_OF_CARDS = (
    (("workers", "Workers"), ("hosts", "Hosts"), ("leases", "Leases nearest their end")),
    (("recent", "Last errors"), ("due", "Next due"), ("memory", "Memory of the server")),
)


async def queue(visit: Visit) -> Response:
    """Show a queue: its states, rates, workers, errors, hosts and memory."""
    await visit.queue()
    view = view_of(visit, "queue")
    parts = await PARTS["queue"](visit, {})
    return visit.page(
        "queue.html", live=view.live, parts={"trouble": "", **parts}, wide=WIDE, columns=COLUMNS_OF_CARDS, tab="Queue"
    )


COLUMNS: Mapping[State, Sequence[str]] = {
    State.SCHEDULED: ("due", "priority"),
    State.IN_PROGRESS: ("holder", "when"),
    State.FAILED: ("error", "when"),
    State.WAITING: ("priority",),
}


async def tasks(visit: Visit) -> Response:
    """List the tasks of a state, a page at a time; no payload is read."""
    await visit.queue()
    state = visit.query("state", "todos")
    if state not in list(State):
        raise InvalidInput(f"{state!r:.40} is not a state: one of {', '.join(State)}")
    known, cursor = State(state), visit.query("cursor") or None
    rows: list[dict[str, str]] = []
    following, refused = None, ""
    try:
        page = await _page_of(await visit.queue(), known, cursor)
    except InvalidInput as error:
        if cursor is not None:
            raise
        refused = str(error)  # a queue that keeps no ids of its done tasks
    else:
        now = (await visit.hub.snapshot(visit.name)).stats.now
        rows, following = [_row(known, one, now) for one in page.entries], page.cursor
    may = "manage" in visit.at.rights
    view = view_of(visit, "tasks")
    return await _shown(
        visit, "tasks.html", view, tab="Tasks", state=state, rows=rows, following=following, cursor=cursor,
        refused=refused, columns=COLUMNS.get(known, ()), acts=paint.ACTS[state] if may else (),
        can_empty=known is not State.IN_PROGRESS, heading=f"Tasks in {state}", here=f"tasks?state={state}",
    )  # fmt: skip


async def _page_of(queue: AnyAsyncQueue, state: State, cursor: str | None) -> Page:
    """Read a page that has tasks, if one of the next `PAGES` has: a list that empties has pages without any."""
    page = await queue.list(state, cursor, ROWS)
    for _ in range(PAGES):
        if page.entries or page.cursor is None:
            break
        page = await queue.list(state, page.cursor, ROWS)
    return page


def _row(state: State, one: Any, now: float) -> dict[str, str]:
    when = "—" if one.at is None else age(now - one.at if state is State.FAILED else one.at - now)
    return {
        "task": one.task, "priority": str(one.priority or ""), "holder": one.holder or "", "error": one.error or "",
        "when": f"{when} ago" if state is State.FAILED else f"in {when}",
        "due": spelling.moment(one.at),
    }  # fmt: skip


async def task(visit: Visit) -> Response:
    """Show all that is known of a task, whatever its id is."""
    await visit.queue()
    name, value = spelling.pair(visit.task())
    return await _shown(visit, "task.html", view_of(visit, "task", **{name: value}), tab="Tasks")


async def _plain(visit: Visit, name: str, tab: str, cards: Sequence[tuple[str, str]], **given: Any) -> Response:
    await visit.queue()
    fields = given.pop("fields", {})
    return await _shown(visit, "plain.html", view_of(visit, name, **fields), tab=tab, cards=cards,
                        **{"following": None, **given})  # fmt: skip


async def failures(visit: Visit) -> Response:
    """Show the failures of a queue, grouped by the kind of error."""
    cards = (("walks", "Under way"), ("kinds", "Failures by kind"), ("recent", "Last errors"))
    return await _plain(visit, "failures", "Failures", cards)


async def kind(visit: Visit) -> Response:
    """List the failed tasks of one kind, a page at a time."""
    queue, wanted, cursor = await visit.queue(), visit.query("kind"), visit.query("cursor") or None
    page = await queue.failures.tasks(wanted, cursor, ROWS)
    seen = await visit.hub.snapshot(visit.name)
    rows = [_row(State.FAILED, one, seen.stats.now) for one in page.entries]
    may = "manage" in visit.at.rights
    here = f"kind?kind={quote(wanted, safe='')}"
    return await _shown(
        visit, "tasks.html", view_of(visit, "tasks"), tab="Failures", heading="Failed tasks of one kind",
        state="failed", rows=rows, following=page.cursor, cursor=cursor, refused="", columns=COLUMNS[State.FAILED],
        acts=paint.ACTS["failed"] if may else (), can_empty=False, here=here,
    )  # fmt: skip


async def hosts(visit: Visit) -> Response:
    """Show the hosts of a polite queue, a page at a time."""
    opened, cursor, following = await visit.queue(), visit.query("cursor") or None, None
    if (await visit.hub.snapshot(visit.name)).stats.politeness:
        after = (await opened.hosts.list(cursor, ROWS)).cursor
        following = f"{visit.at.base}/q/{visit.name}/hosts?cursor={quote(after, safe='')}" if after else None
    return await _plain(
        visit, "hosts", "Hosts", (("hosts", "Hosts"),), fields={"cursor": cursor}, following=following
    )  # fmt: skip


async def workers(visit: Visit) -> Response:
    """Show the workers of a queue."""
    return await _plain(visit, "workers", "Workers", (("workers", "Workers"),))


async def log(visit: Visit) -> Response:
    """Show the event log of a queue, the newest first."""
    return await _plain(visit, "log", "Log", (("events", "Log"),))


# ---- fragments


async def live(visit: Visit) -> Response:
    """Send the parts of a view that change, while somebody watches it (server-sent events)."""
    name = visit.query("view")
    known = PARTS.get(name)
    if known is None or (name == "overview") == bool(visit.name):
        raise Problem(404, "not-found", "there is no such view")
    if visit.name:
        await visit.queue()
    fields = {key: value for key, value in visit.request.query_params.items() if key in ("id", "b64", "cursor")}
    if name == "task":
        visit.task()
    view = view_of(visit, name, **fields)

    async def look() -> Parts:
        return await known(visit, dict(view.fields))

    stream = _stream(visit.hub, view, look, f"{visit.caller.name} {_address(visit)}")
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _address(visit: Visit) -> str:
    client = visit.request.client
    return client.host if client else ""


async def _stream(hub: Hub, view: View, look: Callable[[], Awaitable[Parts]], caller: str) -> AsyncIterator[bytes]:
    until = time.monotonic() + LONGEST_STREAM
    try:
        with hub.watch(view, look, caller) as viewer:
            while time.monotonic() < until and not hub.is_over:
                parts = await viewer.next(QUIET)
                if parts is None:
                    yield b": still here\n\n"
                elif parts:
                    yield b"event: parts\ndata: " + json.dumps(dict(parts)).encode("ascii") + b"\n\n"
        yield b"event: over\ndata: ask again\n\n"
    except Crowded as error:
        yield f"event: crowded\ndata: {error}\n\n".encode()


# ---- files


async def static(visit: Visit) -> Response:
    """Give the style or the script; browsers keep them until the package changes."""
    path = paint.STATIC / visit.request.path_params["name"]
    if path.parent != paint.STATIC or path.suffix not in KINDS or not path.is_file():
        raise Problem(404, "not-found", "there is no such file")
    keep = "public, max-age=31536000, immutable" if visit.request.url.query == paint.asset_version() else "no-cache"
    return FileResponse(path, media_type=KINDS[path.suffix], headers={"cache-control": keep})
