"""Reads that need no script: pages of states and walks through them, workers, the history, errors. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from timeoutq.server.calls import BATCH, Command
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.replies import holder, last_error, releases_of, when, whole
from timeoutq.verbs.sending import Flow, Nodes, Talk, answer, ask, insist
from timeoutq.words import arguments
from timeoutq.words.counts import HAPPENED, Period, Sample, periods_of
from timeoutq.words.errors import InvalidInput, ServerError
from timeoutq.words.model import Entry, Failure, Page, State, WorkerInfo, text
from timeoutq.words.tracebacks import read_traceback

if TYPE_CHECKING:
    from timeoutq.server.cluster import Node, Where

START: str | None = "0"  # the cursor with which a walk begins; None ends it

ORDERED = {State.SCHEDULED: "scheduled", State.IN_PROGRESS: "leases"}  # the keys of the states whose tasks have a time


def exists(talk: Talk) -> Flow[bool]:
    """Say whether anything was put to the queue or set for it, even if somebody has deleted its settings by hand."""
    key = talk.operations.key
    schema, states = yield from ask(
        talk, [("HEXISTS", key("meta"), "schema"), ("EXISTS", key("seen"), *(key(state.value) for state in State))]
    )
    return bool(schema) or int(states) > 0


# ---- states


def unlisted(name: str) -> InvalidInput:
    """Give the error that says that the done tasks of this queue cannot be listed, and what can be asked instead."""
    return InvalidInput(
        f'queue {name!r} has keep_done="compact": it keeps fingerprints of its done tasks, not their ids, and cannot '
        f"list them. Ask for ids that you have: states(), `timeoutq states {name} ID`, "
        f"`timeoutq diff FILE {name}:done`; put them with again=True to run them again"
    )


def keeps_ids(talk: Talk) -> Flow[bool]:
    """Say whether the ids of done tasks are kept."""
    (uses,) = yield from ask(talk, [("HGET", talk.operations.key("meta"), "uses")])
    return not _compact(uses)


def _compact(uses: bytes | None) -> bool:
    return b"compact" in (uses or b"").split()


def page(talk: Talk, state: State | str, cursor: str | None, n: int) -> Flow[Page]:
    """Read a page of about `n` entries of a state, from where the last page ended."""
    return _page(talk, arguments.state(state), arguments.cursor(cursor), arguments.count(n, high=1000))


def _page(talk: Talk, state: State, start: str, n: int) -> Flow[Page]:
    if state not in ORDERED:
        return Page(state, *(yield from _untimed(talk, state, start, n)))
    key, first = talk.operations.key(ORDERED[state]), int(start)
    (reply,) = yield from ask(talk, [("ZRANGE", key, first, first + n - 1, "WITHSCORES")])
    found = yield from _timed(talk, state, pairs_of(reply))
    return Page(state, found, str(first + n) if len(found) == n else None)


def entries(talk: Talk, state: State, cursor: str) -> Flow[tuple[list[Entry], str | None]]:
    """Read some entries of a state in no order; an entry that stays in the state is never missed."""
    if state not in ORDERED:
        return (yield from _untimed(talk, state, cursor, BATCH))
    (reply,) = yield from ask(talk, [("ZSCAN", talk.operations.key(ORDERED[state]), cursor, "COUNT", BATCH)])
    following, found = reply
    return (yield from _timed(talk, state, pairs_of(found))), next_cursor(following)


def _kept(talk: Talk, ids: Sequence[Any], *hashes: str) -> Flow[list[list[Any]]]:
    # what each of these hashes keeps of the tasks, in their order
    if not ids:
        return [[] for _ in hashes]
    return (yield from ask(talk, [("HMGET", talk.operations.key(name), *ids) for name in hashes]))


def _timed(talk: Talk, state: State, pairs: Sequence[tuple[Any, Any]]) -> Flow[list[Entry]]:
    # of a sorted set, which has a time for each task
    rows = yield from _kept(talk, [id for id, _ in pairs], "owners", "releases", "priorities")
    return [
        _entry(id, count, level, at=when(at), holder=holder(token) if state is State.IN_PROGRESS else None)
        for (id, at), token, count, level in zip(pairs, *rows, strict=True)
    ]


def _untimed(talk: Talk, state: State, cursor: str, n: int) -> Flow[tuple[list[Entry], str | None]]:
    # of a set, in no order
    key, commands = talk.operations.key, list[Command]()
    if state is State.DONE:
        commands.append(("HGET", key("meta"), "uses"))
    *uses, reply = yield from ask(talk, [*commands, ("SSCAN", key(state.value), cursor, "COUNT", n)])
    if uses and _compact(uses[0]):
        raise unlisted(talk.operations.name)
    following, ids = reply
    if state is State.FAILED and ids:
        found = yield from failed(talk, ids)
    else:
        (levels,) = yield from _kept(talk, ids, "priorities")
        found = [_entry(id, None, level) for id, level in zip(ids, levels, strict=True)]
    return found, next_cursor(following)


def failed(talk: Talk, ids: Sequence[bytes]) -> Flow[list[Entry]]:
    """Read the last errors of failed tasks, one or more, with their tracebacks."""
    lines, counts, digests, levels = yield from _kept(talk, ids, "errors", "releases", "traces", "priorities")
    # many tasks have failed in the same place: their common traceback is fetched once
    wanted = list({digest for digest in digests if digest})
    texts: dict[Any, bytes | None] = {}
    if wanted:
        (found,) = yield from ask(talk, [("HMGET", talk.operations.key("trace_texts"), *wanted)])
        texts = dict(zip(wanted, found, strict=True))
    return [
        _entry(id, count, level, error=line, trace=texts.get(digest))
        for id, line, count, digest, level in zip(ids, lines, counts, digests, levels, strict=True)
    ]


def _entry(
    id: bytes, count: bytes | None, level: bytes | None, *, at: float | None = None, holder: str | None = None,
    error: bytes | None = None, trace: bytes | None = None,
) -> Entry:  # fmt: skip
    error_at, message = last_error(error)
    return Entry(
        text(id), error_at if at is None else at, holder, message, releases_of(count)[0],
        traceback=read_traceback(trace, message), priority=whole(level),
    )  # fmt: skip


def rows(talk: Talk, state: State, named: bool, cursor: str) -> Flow[tuple[list[dict[str, Any]], str | None]]:
    """Read some tasks of a state as an export tells of them, in no order."""
    ops = talk.operations
    if state is State.DONE and not (yield from keeps_ids(talk)):
        if named:
            raise unlisted(ops.name)
        return [], None
    verb, name = ("ZSCAN", "scheduled") if state is State.SCHEDULED else ("SSCAN", state.value)
    (reply,) = yield from ask(talk, [(verb, ops.key(name), cursor, "COUNT", BATCH)])
    following, found = reply
    ids = [id for id, _ in pairs_of(found)] if state is State.SCHEDULED else list(found)
    told, at = list[dict[str, Any]](), 0
    while at < len(ids):
        looked, records = yield from answer(talk, ops.describe(ids[at : at + BATCH]), UNCONFIRMED)
        at += looked
        for record in records:
            if record.state is state:
                told.append({**asdict(record), "task": text(record.task), "state": state.value})
    return told, next_cursor(following)


def pairs_of(found: Any) -> list[tuple[Any, Any]]:
    """Give members with their scores: RESP3 gives pairs, RESP2 a flat list."""
    if found and isinstance(found[0], list | tuple):
        return [(member, score) for member, score in found]
    return list(zip(found[::2], found[1::2], strict=True))


def next_cursor(cursor: Any) -> str | None:
    """Give the cursor with which a scan goes on; None at the end of the scan."""
    after = cursor.decode() if isinstance(cursor, bytes) else str(cursor)
    return None if after == "0" else after


# ---- what the queue says of itself


def workers(talk: Talk) -> Flow[list[WorkerInfo]]:
    """Read which workers there are: the 500 whose signs of life are the newest."""
    key = talk.operations.key
    reply, now = yield from ask(talk, [("ZREVRANGE", key("workers"), 0, 499, "WITHSCORES"), ("TIME",)])
    pairs = pairs_of(reply)
    if not pairs:
        return []
    (about,) = yield from ask(talk, [("HMGET", key("worker_info"), *(name for name, _ in pairs))])
    moment = float(now[0]) + float(now[1]) / 1e6
    return [_worker(name, info, beat, moment) for (name, beat), info in zip(pairs, about, strict=True)]


def _worker(name: bytes, about: bytes | None, beat: bytes | float, now: float) -> WorkerInfo:
    # what a worker does not say is zero or empty
    told: dict[str, Any] = json.loads(about or b"{}")
    heard, lasts, tends = when(beat) or 0.0, told.get("holds_for", 0), told.get("tends")
    trouble = told.get("trouble", "")
    return WorkerInfo(
        text(name), host=told.get("host", ""), pid=told.get("pid", 0), concurrency=told.get("concurrency", 0),
        held=0 if 0 < lasts < now - heard else told.get("held", 0), acked=told.get("acked", 0),
        failed=told.get("failed", 0), started=float(told.get("started", 0)), beat=heard, trouble=trouble,
        claims=bool(told.get("claims", not trouble)), tends=None if tends is None else tuple(tends),
    )  # fmt: skip


def history(talk: Talk) -> Flow[list[Sample]]:
    """Read the counters of the last twenty minutes, the oldest first."""
    (lines,) = yield from ask(talk, [("LRANGE", talk.operations.key("history"), 0, 119)])
    rows = (map(int, line.split()) for line in reversed(lines))
    return [Sample(at / 1000, *counts) for at, *counts in rows]


LENGTHS = {"minute": ("minutes", 60, 1440), "hour": ("hours", 3600, 2160)}
"""Of each kind of period: the key, how many seconds it lasts, and how many of them are kept."""


NOTED = (*HAPPENED, "todos", "scheduled", "in_progress", "done", "failed", "waiting")
"""What a line of `minutes` or `hours` counts, in its order, behind the time."""


def by_word(by: str) -> str:
    """Check which periods a history is of."""
    if by not in tuple(LENGTHS):  # which may be anything
        raise InvalidInput(f'by= is "minute" or "hour", not {arguments.shown(by)}')
    return by


def periods(talk: Talk, by: str) -> Flow[list[Period]]:
    """Read the minutes of the last day, or the hours of the last 90 days, the oldest first, with what is now."""
    name, length, most = LENGTHS[by]
    # the lines come first: so no line is newer than the counters that are added to them
    lines, moment = yield from ask(talk, [("LRANGE", talk.operations.key(name), 0, most - 1), ("TIME",)])
    rows = (map(int, line.split()) for line in lines)
    noted = [Period(at / 1000, **dict(zip(NOTED, counts, strict=True))) for at, *counts in rows]
    latest, now = None, float(moment[0])
    try:
        stats = yield from answer(talk, talk.operations.stats())
    except ServerError:  # a state is of a foreign type: what was noted can still be told
        pass
    else:
        if lines or stats.exists:
            latest, now = stats.noted, stats.now
    # a script that adds a line to a full list removes the oldest one
    return periods_of(noted, latest, now, length, most, whole=len(lines) < most)


def errors(talk: Talk, n: int) -> Flow[list[Failure]]:
    """Read the last errors, the newest first."""
    (lines,) = yield from ask(talk, [("LRANGE", talk.operations.key("error_log"), 0, n - 1)])
    found: list[Failure] = []
    for line in lines:  # length of the id, id, time, message
        length, _, rest = line.partition(b" ")
        size = whole(length)
        at, message = last_error(rest[size:])
        found.append(Failure(text(rest[:size]), at or 0.0, message or ""))
    return found


def nodes(talk: Talk) -> Flow[dict[Node, bool]]:
    """Give the nodes of the cluster that it counts as alive, and for each whether it is a primary; none without one."""
    # the first node of the URL may be silent: the next question goes to another one
    return dict((yield from insist(talk, Nodes())))


def primaries(talk: Talk) -> Flow[list[Where]]:
    """Give the nodes that have keys; without a cluster, the one place where all keys are."""
    found = yield from nodes(talk)
    return [node for node, primary in found.items() if primary] or [None]


def server(talk: Talk) -> Flow[dict[str, Any]]:
    """Read what the command INFO says about the server."""
    (info,) = yield from ask(talk, [("INFO",)])
    return dict(info) if isinstance(info, dict) else {"raw": info}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # a reply
