"""The views of the page: each is a whole page at first; while it is shown, `live` tells what changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote, urlencode

from starlette.responses import FileResponse, Response, StreamingResponse

from timeoutq.gateway import looks
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.hub import Parts
from timeoutq.gateway.page.visits import Visit
from timeoutq.gateway.problems import Problem
from timeoutq.rooms.events import Event
from timeoutq.rooms.failures import FailureKind
from timeoutq.verbs.why import advised
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Entry, Page, State
from timeoutq.words.text import age

ROWS = 50  # tasks and hosts on one page
PAGES = 20  # how many pages without a task are passed over in one request
LOGGED, ROWS_OF_LOG = 500, 100  # how many of the last entries of the event log are read, and how many are shown
UNKNOWN = "no state holds it: it was never put, or it was forgotten or pruned later"
ADVICE = {
    **looks.ADVICE,
    "done": "Run again makes it ready again",
    "failed": "Retry makes it ready again",
    "banned": "after Unblock for its host, Retry makes it ready again; before that, it fails again at once",
}
"""Advice for whoever reads the page: by the buttons of the page, where it has them."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


# ---- the parts of each view


async def _overview(visit: Visit) -> Parts:
    found, left = await visit.hub.listing(visit.caller, "look")
    return {"queues": paint.part("queues", visit.at, found, left, visit.hub.names.walk.is_looking)}


async def _queue(visit: Visit) -> Parts:
    at, queue = visit.at, await visit.there()
    seen, minutes, kinds, info = await asyncio.gather(
        visit.hub.snapshot(visit.name),
        visit.hub.look(visit.name, "history", lambda: queue.history(by="minute"), 20.0).get(),
        _kinds(visit),
        visit.hub.look("", "server", visit.state.queues.directory.server, 10.0).get(),  # it is the same for all queues
    )
    parts = {
        "head": paint.part("head", at, seen),
        "counts": paint.counts(at, seen),
        "rates": paint.pace(at, seen),
        "workers": paint.part("workers", at, seen, paint.FEW),
        "leases": paint.part("entries", at, "Leases nearest their end", seen, seen.leases, "holder"),
        "due": paint.part("entries", at, "Next due", seen, seen.due, "at"),
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


async def _tasks(visit: Visit) -> Parts:
    return {"counts": paint.counts(visit.at, await visit.hub.snapshot(visit.name)), "walks": _walks(visit)}


async def _task(visit: Visit) -> Parts:
    task, queue = visit.task(), await visit.there()
    info, logged = await asyncio.gather(queue.inspect(task), _events(visit))
    # `why` would search a large queue for ids that are much alike: too much for a page that anybody may ask for
    known = info.state is not None or info.has_result
    why = advised(await queue.why(task), ADVICE, queue=visit.name) if known else UNKNOWN
    moved, history = [one for one in logged if one.of(task)][::-1], ""
    if moved:
        head = f"History, from the last {LOGGED} entries of the log"
        history = paint.events(visit.at, moved[:ROWS], head, with_ids=False)
    elif logged:
        history = paint.part("no_history", visit.at, LOGGED)
    return {"task": paint.task(visit.at, info, why), "events": history}


async def _failures(visit: Visit) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    return {
        "walks": _walks(visit),
        "kinds": paint.part("kinds", visit.at, await _kinds(visit), seen.stats, paint.MOST_KINDS),
        "recent": paint.part("errors", visit.at, seen),
    }


async def _hosts(visit: Visit) -> Parts:
    seen = await visit.hub.snapshot(visit.name)
    if not seen.stats.politeness:
        return {"hosts": '<p class="empty">This queue is not polite: it knows no hosts.</p>'}
    page = await (await visit.there()).hosts.list(visit.query.get("cursor") or None, ROWS)
    return {"hosts": paint.part("hosts", visit.at, seen, page.hosts, page.cursor)}


async def _workers(visit: Visit) -> Parts:
    return {"workers": paint.part("workers", visit.at, await visit.hub.snapshot(visit.name), 100)}


async def _log(visit: Visit) -> Parts:
    found = await _events(visit)
    if not found:
        return {"events": paint.part("no_log", visit.at)}
    return {"events": paint.events(visit.at, found[::-1][:ROWS_OF_LOG], "Log", with_ids=True)}


PARTS: Mapping[str, Callable[[Visit], Awaitable[Parts]]] = {
    "overview": _overview, "queue": _queue, "tasks": _tasks, "task": _task, "failures": _failures, "hosts": _hosts,
    "workers": _workers, "log": _log,
}  # fmt: skip
"""Each view that can be watched, and the function that gives its parts."""
FIELDS: Mapping[str, Sequence[str]] = {"task": ("id", "b64"), "hosts": ("cursor",)}
"""The fields of the query that the parts of a view depend on."""


def _walks(visit: Visit) -> str:
    found = visit.hub.walks.of(visit.name)
    return paint.part("walks", visit.at, found) if found else ""


async def _events(visit: Visit) -> Sequence[Event]:
    """Read the last entries of the event log; nothing if the queue has none."""
    queue = await visit.there()
    return (await visit.hub.look(visit.name, "events", lambda: queue.events.list(n=LOGGED), 2.0).get()).events


async def _kinds(visit: Visit) -> Sequence[FailureKind]:
    """Read the kinds of failures with most tasks: one more than are shown, if there are more."""
    queue = await visit.there()
    return await visit.hub.look(visit.name, "kinds", lambda: queue.failures.list(paint.MOST_KINDS + 1)).get()


def _fields(visit: Visit, name: str) -> dict[str, str]:
    return {field: visit.query[field] for field in FIELDS.get(name, ()) if visit.query.get(field)}


# ---- pages


async def _shown(visit: Visit, template: str, name: str, **given: Any) -> Response:
    parts = {"trouble": "", **await PARTS[name](visit)}
    path = f"{visit.at.base}/q/{visit.name}/live" if visit.name else f"{visit.at.base}/live"
    live = f"{path}?{urlencode({'view': name, **_fields(visit, name)}, quote_via=quote)}"
    return visit.page(template, live=live, parts=parts, **given)


CARDS: Mapping[str, Mapping[str, str]] = {
    "overview": {"queues": "Queues"},
    "queue": {},
    "failures": {"walks": "Under way", "kinds": "Failures by kind", "recent": "Last errors"},
    "hosts": {"hosts": "Hosts"},
    "workers": {"workers": "Workers"},
    "log": {"events": "Log"},
}
"""The views that are cards below each other, and their cards; the view of a queue has a template of its own."""


async def cards(visit: Visit) -> Response:
    """Show cards below each other: the overview, a queue, or the view that the path names."""
    if not visit.name:
        return await _shown(visit, "plain.html", "overview", heading="Queues", cards=CARDS["overview"])
    name = visit.head.path.removeprefix(f"/q/{visit.name}").removeprefix("/") or "queue"
    tab, template = name.capitalize(), "queue.html" if name == "queue" else "plain.html"
    return await _shown(visit, template, name, tab=tab, heading=f"{tab} of {visit.name}", cards=CARDS[name])


async def puts(visit: Visit) -> Response:
    """List the forms for new tasks, to a caller who may put and not look."""
    found, left = await visit.hub.listing(visit.caller, "put")
    named = {name for name in visit.caller.queues if not set(name) & set("*?[")}  # perhaps not made yet
    names = sorted({one.name for one in found if one.name.strip(".")} | named)
    return visit.page("puts.html", names=names, left=left)


COLUMNS: Mapping[State, Sequence[str]] = {
    State.SCHEDULED: ("due", "priority"),
    State.IN_PROGRESS: ("holder", "when"),
    State.FAILED: ("error", "when"),
    State.WAITING: ("priority",),
}


async def tasks(visit: Visit) -> Response:
    """List the tasks of a state, a page at a time; no payload is read."""
    cursor = visit.query.get("cursor") or None
    state = arguments.state(visit.query.get("state", "todos"))
    page, refused = Page(state, [], cursor), ""
    try:
        for _ in range(PAGES):  # a list that empties has pages without any task
            page = await visit.queue.list(state, page.cursor, ROWS)
            if page.entries or page.cursor is None:
                break
    except InvalidInput as error:
        if cursor is not None:
            raise
        page, refused = Page(state, [], None), str(error)  # a queue that keeps no ids of its done tasks
    return await _list(visit, page, "Tasks", f"Tasks in {state}", f"tasks?state={state}", refused)


async def kind(visit: Visit) -> Response:
    wanted = visit.query.get("kind", "")
    page = await visit.queue.failures.tasks(wanted, visit.query.get("cursor") or None, ROWS)
    return await _list(visit, page, "Failures", "Failed tasks of one kind", f"kind?kind={quote(wanted, safe='')}")


async def _list(visit: Visit, page: Page, tab: str, heading: str, here: str, refused: str = "") -> Response:
    now, state = (await visit.hub.snapshot(visit.name)).stats.now, page.state
    acts = paint.OF_STATES[state] if "manage" in visit.at.rights else ()

    def row(one: Entry) -> dict[str, str]:
        when = "—" if one.at is None else age(now - one.at if state is State.FAILED else one.at - now)
        return {
            "task": one.task, "priority": str(one.priority or ""), "holder": one.holder or "", "error": one.error or "",
            "when": f"{when} ago" if state is State.FAILED else f"in {when}", "due": spelling.moment(one.at),
        }  # fmt: skip

    return await _shown(
        visit, "tasks.html", "tasks", tab=tab, heading=heading, here=here, refused=refused, state=state.value,
        rows=[*map(row, page.entries)], columns=COLUMNS.get(state, ()), names=acts, following=page.cursor,
        cursor=visit.query.get("cursor", ""), can_empty=tab == "Tasks" and acts and state is not State.IN_PROGRESS,
    )  # fmt: skip


async def task(visit: Visit) -> Response:
    return await _shown(visit, "task.html", "task", tab="Tasks")


# ---- fragments, and files


async def live(visit: Visit) -> Response:
    """Send the parts of a view that change, while somebody watches it (server-sent events)."""
    name = visit.query.get("view", "")
    known = PARTS.get(name)
    if known is None or (name == "overview") == bool(visit.name):
        raise Problem(404, "not-found", "there is no such view")
    if name == "task":
        visit.task()
    # whoever watches the same page with the same rights shares its looks
    globs = () if visit.name else tuple(visit.caller.queues)
    page = name, tuple(_fields(visit, name).items()), visit.at.rights, visit.at.base, globs
    who = f"{visit.caller.name} {(visit.scope.get('client') or ('',))[0]}"

    async def stream() -> AsyncIterator[bytes]:
        watched = visit.hub.watch(visit.name, page, lambda: known(visit), who)
        try:
            async with aclosing(watched) as news:
                async for parts in news:
                    yield (b"event: parts\ndata: " + json.dumps(parts).encode() if parts else b": still here") + b"\n\n"
            yield b"event: over\ndata: ask again\n\n"
        except Problem as crowded:
            yield f"event: crowded\ndata: {crowded.detail}\n\n".encode()

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def static(visit: Visit) -> Response:
    """Give the style or the script; browsers keep them until the package changes."""
    path = next((one for one in paint.STATIC.iterdir() if one.name == visit.name and one.suffix in KINDS), None)
    if path is None:
        raise Problem(404, "not-found", "there is no such file")
    is_versioned = visit.head.query == paint.asset_version().encode()
    keep = "public, max-age=31536000, immutable" if is_versioned else "no-cache"
    return FileResponse(path, media_type=KINDS[path.suffix], headers={"cache-control": keep})
