"""The views of the page: one function for each, and the stream of fragments of a view that somebody watches.

A view is first written as a whole page; while a browser shows the page, its script asks `live` for the same view, and
gets the parts of it that have changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import FileResponse, Response, StreamingResponse

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.hub import Crowded, Parts
from timeoutq.gateway.page.visits import Visit
from timeoutq.gateway.problems import Problem
from timeoutq.rooms.events import Event, EventPage
from timeoutq.rooms.failures import FailureKind
from timeoutq.verbs.why import advised
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Entry, Page, State
from timeoutq.words.text import age

ROWS = 50
"""Tasks and hosts on one page."""
PAGES = 20
"""How many pages without a task are passed over in one request."""
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
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


# ---- the parts of each view


async def _overview(visit: Visit, fields: Mapping[str, str]) -> Parts:
    found, left = await visit.shared.listing.get(visit.caller, "look")
    return {"queues": paint.part("queues", visit.at, found, left, visit.shared.listing.names.looking)}


async def _queue(visit: Visit, fields: Mapping[str, str]) -> Parts:
    at, queue = visit.at, await visit.queue()
    seen, minutes, kinds, info = await asyncio.gather(
        visit.hub.snapshot(visit.name),
        visit.hub.shared(visit.name, "history", lambda: queue.history(by="minute"), 20.0),
        _kinds(visit),
        visit.shared.server.get(),
    )
    parts = {
        "head": paint.part("head", at, seen),
        "counts": paint.counts(at, seen),
        "rates": paint.pace(at, seen),
        "workers": paint.part("workers", at, seen, paint.FEW),
        "leases": paint.part("leases", at, seen),
        "due": paint.part("due", at, seen),
        "recent": paint.part("errors", at, seen),
        "memory": paint.part("memory", at, info),
    }
    if sum(one.acked is not None for one in minutes) >= 2:  # else there is nothing to draw yet
        parts["charts"] = paint.pictures(at, minutes, seen.stats)
    if seen.stats.failed:
        parts["kinds"] = paint.part("kinds", at, kinds, seen.stats, paint.FEW)
    if seen.stats.politeness:
        parts["hosts"] = paint.part("hosts", at, seen, seen.hosts[: paint.FEW])
    return parts


async def _tasks(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    return {"counts": paint.counts(visit.at, seen), "walks": _walks(visit)}


async def _task(visit: Visit, fields: Mapping[str, str]) -> Parts:
    (task,) = spelling.read(fields.items())
    queue = await visit.queue()
    info, seen, logged = await asyncio.gather(queue.inspect(task), visit.hub.snapshot(visit.name), _events(visit))
    # `why` would search a large queue for ids that are much alike: too much for a page that anybody may ask for
    known = info.state is not None or info.has_result
    why = advised(await queue.why(task), ADVICE, queue=visit.name) if known else UNKNOWN
    moved, history = [one for one in logged if one.of(task)][::-1], ""
    if moved:
        head = f"History, from the last {LOGGED} entries of the log"
        history = paint.events(visit.at, moved[:ROWS], head, with_ids=False)
    elif logged:
        history = paint.part("no_history", visit.at, LOGGED)
    return {"task": paint.task(visit.at, info, why, seen.stats.now), "events": history}


async def _failures(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    return {
        "walks": _walks(visit),
        "kinds": paint.part("kinds", visit.at, await _kinds(visit), seen.stats, paint.MOST_KINDS),
        "recent": paint.part("errors", visit.at, seen),
    }


async def _hosts(visit: Visit, fields: Mapping[str, str]) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    if not seen.stats.politeness:
        return {"hosts": '<p class="empty">This queue is not polite: it knows no hosts.</p>'}
    page = await (await visit.queue()).hosts.list(fields.get("cursor"), ROWS)
    return {"hosts": paint.part("hosts", visit.at, seen, page.hosts, page.cursor)}


async def _workers(visit: Visit, fields: Mapping[str, str]) -> Parts:
    return {"workers": paint.part("workers", visit.at, await visit.hub.snapshot(visit.name), 100)}


async def _log(visit: Visit, fields: Mapping[str, str]) -> Parts:
    found = await _events(visit)
    if not found:
        return {"events": paint.part("no_log", visit.at)}
    return {"events": paint.events(visit.at, found[::-1][:ROWS_OF_LOG], "Log", with_ids=True)}


PARTS: Mapping[str, Callable[[Visit, Mapping[str, str]], Awaitable[Parts]]] = {
    "overview": _overview, "queue": _queue, "tasks": _tasks, "task": _task, "failures": _failures, "hosts": _hosts,
    "workers": _workers, "log": _log,
}  # fmt: skip
"""Each view that can be watched, and the function that gives its parts."""


def _walks(visit: Visit) -> str:
    found = visit.walks.of(visit.name)
    return paint.part("walks", visit.at, found) if found else ""


async def _events(visit: Visit) -> Sequence[Event]:
    """Read the last entries of the event log; nothing if the queue has none."""
    queue = await visit.queue()
    found: EventPage = await visit.hub.shared(visit.name, "events", lambda: queue.events.list(n=LOGGED), 2.0)
    return found.events


async def _kinds(visit: Visit) -> Sequence[FailureKind]:
    """Read the kinds of failures with most tasks: one more than are shown, if there are more."""
    queue = await visit.queue()
    most = paint.MOST_KINDS + 1
    found: Sequence[FailureKind] = await visit.hub.shared(visit.name, "kinds", lambda: queue.failures.list(most))
    return found


# ---- pages


async def _shown(visit: Visit, template: str, name: str, fields: Mapping[str, str], **given: Any) -> Response:
    parts = await PARTS[name](visit, fields)
    path = f"{visit.at.base}/q/{visit.name}/live" if visit.name else f"{visit.at.base}/live"
    live = f"{path}?{urlencode({'view': name, **fields}, quote_via=quote)}"
    return visit.page(template, live=live, parts={"trouble": "", **parts}, **given)


async def overview(visit: Visit) -> Response:
    """Show the queues that the caller may look at: the first by name."""
    return await _shown(visit, "plain.html", "overview", {}, heading="Queues", cards={"queues": "Queues"})


async def puts(visit: Visit) -> Response:
    """List the forms for new tasks, to a caller who may put and not look."""
    found, left = await visit.shared.listing.get(visit.caller, "put")
    named = {name for name in visit.caller.queues if not set(name) & set("*?[")}  # perhaps not made yet
    names = sorted({one.name for one in found if one.name.strip(".")} | named)
    return visit.page("puts.html", names=names, left=left)


async def queue(visit: Visit) -> Response:
    """Show a queue: its states, rates, workers, errors, hosts and memory."""
    return await _shown(visit, "queue.html", "queue", {}, tab="Queue")


COLUMNS: Mapping[State, Sequence[str]] = {
    State.SCHEDULED: ("due", "priority"),
    State.IN_PROGRESS: ("holder", "when"),
    State.FAILED: ("error", "when"),
    State.WAITING: ("priority",),
}


async def tasks(visit: Visit) -> Response:
    """List the tasks of a state, a page at a time; no payload is read."""
    queue, state, cursor = await visit.queue(), visit.query("state", "todos"), visit.query("cursor") or None
    if state not in list(State):
        raise InvalidInput(f"{state!r:.40} is not a state: one of {', '.join(State)}")
    page, refused = Page(State(state), [], None), ""
    try:
        page = await _page_of(queue, State(state), cursor)
    except InvalidInput as error:
        if cursor is not None:
            raise
        refused = str(error)  # a queue that keeps no ids of its done tasks
    return await _list(visit, page, "Tasks", f"Tasks in {state}", f"tasks?state={state}", refused)


async def _page_of(queue: AnyAsyncQueue, state: State, cursor: str | None) -> Page:
    """Read a page that has tasks, if one of the next `PAGES` has: a list that empties has pages without any."""
    page = await queue.list(state, cursor, ROWS)
    for _ in range(PAGES):
        if page.entries or page.cursor is None:
            break
        page = await queue.list(state, page.cursor, ROWS)
    return page


async def kind(visit: Visit) -> Response:
    """List the failed tasks of one kind, a page at a time."""
    queue, wanted = await visit.queue(), visit.query("kind")
    page = await queue.failures.tasks(wanted, visit.query("cursor") or None, ROWS)
    return await _list(visit, page, "Failures", "Failed tasks of one kind", f"kind?kind={quote(wanted, safe='')}")


async def _list(visit: Visit, page: Page, tab: str, heading: str, here: str, refused: str = "") -> Response:
    now, state = (await visit.hub.snapshot(visit.name)).stats.now, page.state
    acts = paint.OF_STATES[state] if "manage" in visit.at.rights else ()
    return await _shown(
        visit, "tasks.html", "tasks", {}, tab=tab, heading=heading, here=here, refused=refused, state=state.value,
        rows=[_row(state, one, now) for one in page.entries], columns=COLUMNS.get(state, ()), names=acts,
        following=page.cursor, cursor=visit.query("cursor"),
        can_empty=tab == "Tasks" and acts and state is not State.IN_PROGRESS,
    )  # fmt: skip


def _row(state: State, one: Entry, now: float) -> dict[str, str]:
    when = "—" if one.at is None else age(now - one.at if state is State.FAILED else one.at - now)
    return {
        "task": one.task, "priority": str(one.priority or ""), "holder": one.holder or "", "error": one.error or "",
        "when": f"{when} ago" if state is State.FAILED else f"in {when}",
        "due": spelling.moment(one.at),
    }  # fmt: skip


async def task(visit: Visit) -> Response:
    """Show all that is known of a task, whatever its id is."""
    return await _shown(visit, "task.html", "task", dict([spelling.pair(visit.task())]), tab="Tasks")


CARDS = {
    "failures": {"walks": "Under way", "kinds": "Failures by kind", "recent": "Last errors"},
    "hosts": {"hosts": "Hosts"},
    "workers": {"workers": "Workers"},
    "log": {"events": "Log"},
}
"""The views of a queue that are cards below each other."""


def cards(name: str) -> Callable[[Visit], Awaitable[Response]]:
    """Make a page of cards below each other."""

    async def shown(visit: Visit) -> Response:
        await visit.queue()
        tab, cursor = name.capitalize(), visit.query("cursor")
        fields, heading = {"cursor": cursor} if cursor else {}, f"{tab} of {visit.name}"
        return await _shown(visit, "plain.html", name, fields, tab=tab, heading=heading, cards=CARDS[name])

    return shown


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
    # whoever watches the same page with the same rights shares its looks
    globs = () if visit.name else tuple(visit.caller.queues)
    page = name, tuple(fields.items()), visit.at.rights, visit.at.base, globs
    address = visit.request.client.host if visit.request.client else ""

    async def stream() -> AsyncIterator[bytes]:
        try:
            watched = visit.hub.watch(visit.name, page, lambda: known(visit, fields), f"{visit.caller.name} {address}")
            async with aclosing(watched) as news:
                async for parts in news:
                    told = b"event: parts\ndata: " + json.dumps(parts).encode() if parts else b": still here"
                    yield told + b"\n\n"
            yield b"event: over\ndata: ask again\n\n"
        except Crowded as error:
            yield f"event: crowded\ndata: {error}\n\n".encode()

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


# ---- files


async def static(visit: Visit) -> Response:
    """Give the style or the script; browsers keep them until the package changes."""
    path = paint.STATIC / visit.request.path_params["name"]
    if path.parent != paint.STATIC or path.suffix not in KINDS or not path.is_file():
        raise Problem(404, "not-found", "there is no such file")
    keep = "public, max-age=31536000, immutable" if visit.request.url.query == paint.asset_version() else "no-cache"
    return FileResponse(path, media_type=KINDS[path.suffix], headers={"cache-control": keep})
