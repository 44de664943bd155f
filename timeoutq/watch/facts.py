"""Gathers what doctor knows of a server and of a queue. Where a server refuses to tell, the facts stay empty."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from timeoutq.client.shards import AnyQueue
from timeoutq.rooms.batches import health as batches_health
from timeoutq.rooms.schedules.flows import health
from timeoutq.server import scripts
from timeoutq.server.rights import HARMLESS, MAKING
from timeoutq.verbs import flows
from timeoutq.verbs.replies import called, flat, releases_of
from timeoutq.verbs.sending import Flow, Send, Talk, answer, ask
from timeoutq.verbs.why import LATELY, idlers, published
from timeoutq.words.counts import Stats
from timeoutq.words.errors import AccessDenied, TimeoutqError
from timeoutq.words.model import WorkerInfo, raw, text

SETTINGS = (
    "appendfsync", "bind", "protected-mode", "save", "set-max-intset-entries", "stop-writes-on-bgsave-error",
)  # fmt: skip
"""The settings that CONFIG GET is asked for; never all of them, for the password is among them."""

WALK = 10
"""How many calls of 500 ids doctor makes to look for tasks that are wrong; the cleaners look through all tasks."""

CALLS = 500  # how many tasks of each state that waits doctor looks at, to see whose functions no worker has

SOON = 30.0
"""Seconds: a scheduled call that is due by then counts as one that waits. A worker that cannot run a call gives it back
for less; for a call that is due tomorrow, a worker may yet come."""

ALL = "timeoutq:*"  # the pattern of the keys of all queues

KINDS = {"SCARD": "set", "ZCARD": "zset", "HLEN": "hash", "LLEN": "list", "XLEN": "stream"}
"""The type of the keys whose size a command tells."""


NOTHING = Stats(0.0, 0, 0, 0, 0, 0, paused=False, counters={})  # of a queue that could not be asked


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen. What the server does not tell is empty or None."""

    url: str
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    config: Mapping[str, str] = field(default_factory=dict[str, str])
    clock_ms: float | None = None  # how far the server's clock is ahead of ours, ms
    trip_ms: float = 0.0
    library: scripts.About | None = None  # which library the server has; None also if it has none
    user: str = ""
    refused: Sequence[str] = ()  # commands that this user may not run
    keys: str = "allowed"
    """Whether this user may use the queue's keys: `allowed`, `refused`, or `untried` when no command could be tried."""
    name: str = "QUEUE"  # the name of the queue, for cures; a placeholder when none was named
    pattern: str = ALL  # the keys of the queue; or of all queues, when none was named
    stem: str = "timeoutq:{QUEUE}:"  # the beginning of the names of the queue's keys
    error: TimeoutqError | None = None  # why the queue could not be asked
    stats: Stats = NOTHING
    schedules: tuple[float | None, tuple[str, str, str]] | None = None  # None for a queue without schedules
    batches: tuple[str, str, str] | None = None  # the verdict on its batches; None for a queue without batches
    idle: Sequence[WorkerInfo] = ()  # workers that are alive and claim nothing
    functions: tuple[bool, Mapping[str, str]] = (False, {})
    """Whether workers have told of functions; and the functions that no worker which is alive has told of, each with a
    call that waits."""
    foreign: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of the queue that have a foreign type, and this type."""
    crooked: Mapping[str, int] = field(default_factory=dict[str, int])
    """What a short walk through the queue found wrong, by the words of `repairs.py`."""
    looked: int = 0  # of a shard: how many tasks were looked at, to see whether they belong to it
    astray: Sequence[bytes] = ()  # those that belong to another shard
    grouped: bool = False  # whether one of them was put with a group


def gather(queue: AnyQueue, named: bool = True) -> Facts:
    """Ask the server; where it refuses to tell, the facts stay empty, and the checks say what they could not see."""
    facts = queue.run(of_queue(queue.talk, queue.run(of_server(queue.talk))))
    return facts if named else replace(facts, pattern=ALL, name="QUEUE")


def of_server(talk: Talk) -> Flow[Facts]:
    """Gather the facts about the server, or about the node of a cluster, that has this queue."""
    (info,) = yield from _told(talk, [("INFO",)])
    began = time.time()
    (moment,) = yield from _told(talk, [("TIME",)])
    ended = time.time()
    about, user, *given = yield from _told(
        talk, [talk.operations.about().command(), ("ACL", "WHOAMI"), *(("CONFIG", "GET", name) for name in SETTINGS)]
    )
    words = [list(map(as_text, flat(pair))) for pair in given]
    refused, keys = yield from _refused(talk)
    stem = talk.operations.key("")
    return Facts(
        talk.server.url, info or {}, {pair[0]: pair[1] for pair in words if pair}, ahead(moment, began, ended),
        (ended - began) * 1000, None if about is None else scripts.about(about),
        talk.server.user if user is None else as_text(user), refused, keys, talk.operations.name, f"{stem}*", stem,
    )  # fmt: skip


def of_queue(talk: Talk, server: Facts) -> Flow[Facts]:
    """Add the facts about the queue to those about its server."""
    found: dict[str, Any] = {}
    try:
        stats = yield from answer(talk, talk.operations.stats())
        if stats.has_schedules:
            found["schedules"] = yield from health(talk)
        if "batches" in stats.settings.get("uses", "").split():
            found["batches"] = yield from batches_health(talk)
        found["idle"] = yield from idlers(talk, stats.now)
        found |= {"functions": (yield from _functions(talk, stats.now)), "stats": stats}
    except TimeoutqError as refused:
        found = {"error": refused}
    return replace(server, foreign=(yield from _foreign(talk)), crooked=(yield from _crooked(talk)), **found)


def ahead(moment: Any, began: float, ended: float) -> float | None:
    """Give how far a server's clock is ahead of ours, ms, by its answer to TIME; None if there is none."""
    return None if moment is None else (int(moment[0]) + int(moment[1]) / 1e6 - (began + ended) / 2) * 1000


def as_text(reply: Any) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def _sent(talk: Talk, commands: Sequence[tuple[Any, ...]]) -> Flow[list[Any]]:
    # an error against one command stands in the place of its reply
    reply = yield Send(commands, talk.at)
    if isinstance(reply, BaseException):
        raise talk.server.explain(reply)
    return cast("list[Any]", reply)


def _told(talk: Talk, commands: Sequence[tuple[Any, ...]]) -> Flow[list[Any]]:
    # None for each reply that the server refuses
    found = yield from _sent(talk, commands)
    return [None if isinstance(reply, BaseException) else reply for reply in found]


def _refused(talk: Talk) -> Flow[tuple[list[str], str]]:
    # a user who is not allowed much may not ask ACL DRYRUN either: so each command is tried, on a key that nobody has
    key = f"{talk.operations.key('doctor')}:{secrets.token_hex(8)}"
    tries = {
        name: (name, *(key if word == "KEY" else word for word in words))
        for name, words in {**HARMLESS, **MAKING}.items()
    }
    replies = dict(zip(HARMLESS, (yield from _sent(talk, [tries[name] for name in HARMLESS])), strict=True))

    def denied(what: str) -> list[str]:
        errors = {name: reply for name, reply in replies.items() if isinstance(reply, BaseException)}
        errors = {name: error for name, error in errors.items() if isinstance(talk.server.explain(error), AccessDenied)}
        # a server that names the keys has allowed the command
        of = {name: "keys" if re.search(r"\bkeys?\b", str(error)) else "command" for name, error in errors.items()}
        return sorted(name for name in of if of[name] == what)

    if "UNLINK" not in denied("command"):  # else what they make would stay
        making = [command for name in MAKING for command in (tries[name], ("UNLINK", key))]
        replies |= zip(MAKING, (yield from _sent(talk, making))[::2], strict=True)
    refused, keyless = denied("command"), denied("keys")
    is_keyed = any(key in tries[name] for name in replies.keys() - {*refused, *keyless})
    return refused, "refused" if keyless else "allowed" if is_keyed else "untried"


def _foreign(talk: Talk) -> Flow[dict[str, str]]:
    wanted = {name: KINDS[size] for size, names in scripts.SIZES.items() for name in names.split()} | {"meta": "hash"}
    replies = yield from _told(talk, [("TYPE", talk.operations.key(name)) for name in wanted])
    found = {name: as_text(reply) for name, reply in zip(wanted, replies, strict=True) if reply is not None}
    return {name: kind for name, kind in found.items() if kind not in (wanted[name], "none")}


def _crooked(talk: Talk) -> Flow[dict[str, int]]:
    try:
        found, _ = yield from flows.repair(talk, mend=False, calls=WALK)
    except TimeoutqError:  # another check reports this error
        return {}
    return dict(found)


def _functions(talk: Talk, now: float) -> Flow[tuple[bool, dict[str, str]]]:
    """Look at some calls that wait; say whether workers have told of functions, and of each function that no worker
    which is alive has told of, the id of a call."""
    key = talk.operations.key
    sets = [("SSCAN", key(state), 0, "COUNT", CALLS) for state in ("todos", "waiting")]
    times = ("ZRANGE", key("scheduled"), 0, CALLS - 1)
    try:
        *found, due, tells = yield from ask(talk, [*sets, times, ("EXISTS", key("functions"))])
    except AccessDenied:  # another check reports this error
        return False, {}
    waiting: dict[str, str] = {}
    for ids in (*(some[:CALLS] for _, some in found), due):
        # payloads may be large: what one reply cannot hold is left out, and doctor stays quick
        _, records = (yield from answer(talk, talk.operations.describe(ids))) if ids else (0, ())
        for one in records:
            name, _ = called(one.payload)
            if name is not None and (one.due is None or one.due < now + SOON):
                waiting.setdefault(name, text(one.task))
    if not waiting:
        return bool(tells), {}
    names = [name.encode("utf-8", "replace") for name in waiting]  # a payload written by hand may hold no text
    ids = map(raw, waiting.values())
    told, releases = yield from ask(talk, [("HMGET", key("functions"), *names), ("HMGET", key("releases"), *ids)])
    tells |= any(releases_of(one)[2] is not None for one in releases)  # a worker without functions tells none
    alive = [any(age <= LATELY for age, _, _ in published(one, now)) for one in told]
    return bool(tells), {name: id for (name, id), is_run in zip(waiting.items(), alive, strict=True) if not is_run}
