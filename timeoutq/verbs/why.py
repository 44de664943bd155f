"""Says in one sentence why a task is not being worked on now, from what the server tells of the task."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from timeoutq.server.calls import Call
from timeoutq.verbs import sending
from timeoutq.verbs.reads import workers
from timeoutq.verbs.replies import Why, called
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words.errors import AccessDenied
from timeoutq.words.model import BATCH_DUE, CANCELLED, EXPIRED, HostInfo, State, Task, TaskId, TaskInfo, WorkerInfo
from timeoutq.words.standing import Standing, standing
from timeoutq.words.text import CLIENT, counted

ADVICE = {
    "done": "put it again with again=True, or ack with again_in= for a new visit",
    "failed": "retry_failed brings it back",
    "banned": "after hosts.unblock, retry_failed brings it back; before that, it fails again at once",
    "budget": "hosts.set(budget=) gives more",
    "no_replica": "start replicas, or configure(durable=) asks for fewer",
}
"""Advice for a program in Python, at the end of a message; `advised` writes other words in its place."""

MAY_LACK = ("queued", "due", "overdue", "suspect")
"""The reasons behind which may stand that the workers lack the function of a call."""
LATELY = 150.0
"""Seconds after which a worker that has not told again which functions it has is gone."""
LATE = 15.0
"""Seconds after the last sign of life of a worker, which gives one every ten, from which it may be dead."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The one reason, and the facts that show it."""

    code: str
    """One of: unknown, crooked, done, failed, cancelled, call_expired, banned, running, cancelling, expired, due,
    overdue, paused, no_worker, no_claim, no_replica, no_function, queued, suspect; or of its host: blocked, delay,
    host_busy, budget, turn."""
    message: str
    info: TaskInfo
    host: HostInfo | None = None
    near: str | None = None
    """For an unknown task: one that the queue knows, whose URL is the same but for its form; or the call before it."""
    before: int | None = None
    """For a task that waits for its host's turn: how many of the host's tasks go before it."""


def advised(found: Reason, words: Mapping[str, str], queue: str) -> str:
    """Give the message with other words for the same advice, such as the commands of a shell."""
    message = found.message
    for code, advice in ADVICE.items():
        if message.endswith(advice):
            task, host = shlex.quote(found.info.task), shlex.quote(found.info.host or "")
            return message.removesuffix(advice) + words[code].format(queue=queue, task=task, host=host)
    return message


def explain(talk: Talk, task: TaskId | Task) -> Flow[Reason]:
    """Ask for all facts about a task, and give the one reason."""
    return explain_call(talk, talk.operations.why(task))


def explain_call(talk: Talk, call: Call[Why]) -> Flow[Reason]:
    """Give the reason that the answer to this call shows."""
    found = yield from sending.answer(talk, call)
    said = crooked(found)
    if said is not None:
        return _reason(found, "crooked", said)
    if found.info.state is None and found.info.has_result:
        return _reason(found, "done", "it is done, and its id is not kept; its result is; put it again for another run")
    if found.info.state is None:
        for other in forms(found.info.task):
            if (yield from sending.answer(talk, talk.operations.inspect(other))).state is not None:
                return _reason(found, "unknown", f"it was never put, but {other!r} was", other)
        before = found.info.task
        while before := before.rpartition(">")[0]:  # a chain's later calls have the ids of the earlier ones in theirs
            at = (yield from sending.answer(talk, talk.operations.inspect(before))).state
            if at not in (None, State.DONE):
                return _reason(found, "unknown", f"it is put when {before!r} has returned, which is {at}", before)
        first, chained, _ = found.info.task.partition(">")
        more = f"; or it follows {first!r}, which may be in another queue" if first and chained else ""
        return _reason(
            found, "unknown", f"no state holds it: it was never put, or it was forgotten or pruned later{more}"
        )
    code, message = judge(found)
    if code == "queued" and found.workers:
        alive = yield from _alive(talk, found.now)
        idle = [worker for worker in alive if not worker.claims]
        if idle and len(idle) == len(alive):
            return _reason(found, "no_claim", (
                f"it is ready, and no worker that is alive claims: worker {idle[0].worker}: {idle[0].trouble}; start "
                "it again, and look into its log"
            ))  # fmt: skip
        if alive and all(0 < worker.concurrency <= worker.held for worker in alive):
            message += f"; {'all its' if len(alive) == 1 else 'all their'} handlers are busy"
    if code == "running":
        for one in (yield from _known(talk)):
            if one.worker == found.info.holder and one.is_gone(found.now):
                message = (
                    f"worker {one.worker} has it, but has given no sign of life for {_span(found.now - one.beat)}: "
                    f"its lease runs out in {_span(found.info.lease_left or 0.0)}, and then others get the task"
                )
            elif one.worker == found.info.holder:
                message += f"; the worker says: {one.trouble}" if one.trouble else ""
                if (silent := found.now - one.beat) > LATE:
                    message += f"; its last sign of life was {_span(silent)} ago"
    lacking = (yield from _lacking(talk, found)) if code in MAY_LACK else None
    return _reason(found, code, message) if lacking is None else _reason(found, "no_function", lacking)


def idlers(talk: Talk, now: float) -> Flow[list[WorkerInfo]]:
    """Give the workers that are alive and say why they do not claim."""
    return [worker for worker in (yield from _alive(talk, now)) if not worker.claims]


def _alive(talk: Talk, now: float) -> Flow[list[WorkerInfo]]:
    return [worker for worker in (yield from _known(talk)) if not worker.is_gone(now)]


def _known(talk: Talk) -> Flow[Sequence[WorkerInfo]]:
    try:
        return (yield from workers(talk))
    except AccessDenied:  # whoever may only run scripts learns nothing of workers
        return []


def _lacking(talk: Talk, found: Why) -> Flow[str | None]:
    """Say that the workers lack the function of a call, and who has told of it; None if they do not."""
    info, name = found.info, called(found.info.payload)[0]
    if name is None:
        return None
    key = talk.operations.key("functions")
    try:
        tells, told = yield from ask(talk, [("EXISTS", key), ("HGET", key, name.encode("utf-8", "replace"))])
    except AccessDenied:  # whoever may only run scripts gets the plain answer
        return None
    ages = published(told, found.now)
    lately = [f"worker {worker} has version {version}" for age, worker, version in ages if age <= LATELY]
    if info.unrun_since is not None:
        who = " and ".join(lately) or "no worker that is alive has it"
        since, reason = _moment(info.unrun_since), f": {info.error}" if info.error else ""
        return f"workers that cannot run its function {name!r} have given it back since {since}{reason}; {who}"
    if lately or info.state is State.SCHEDULED or not tells:
        return None
    last = f"; the last was worker {ages[0][1]}, {_span(ages[0][0])} ago" if ages else ""
    return f"no worker that is alive has its function {name!r}: start one whose program has it{last}"


def published(told: bytes | None, now: float) -> list[tuple[float, str, str]]:
    """Read what workers have told of a function: seconds since then, the worker, its version; the last one first."""
    lines = [line.split(" ", 3) for line in (told or b"").decode("utf-8", "replace").split("\n")]
    return [(now - int(line[1]) / 1000, line[2], line[0]) for line in lines if len(line) == 4 and line[1].isdecimal()]


def _reason(found: Why, code: str, message: str, near: str | None = None) -> Reason:
    return Reason(code, message, found.info, found.host, near, found.before)


def crooked(found: Why) -> str | None:
    """Say how an edit by hand, or a script that was refused half-way, has left a task; None if all agrees."""
    info, states = found.info, found.states
    if len(states) > 1:
        what = f"it is in {' and '.join(states)} at once"
    elif not states and info.deadline is not None:
        what = "it has a lease, but somebody has removed it from in_progress"
    elif not states and found.trace == "lane":
        what = "it is in the lane of its host, and not in waiting"
    elif states == (State.IN_PROGRESS,) and info.deadline is None:
        what = "it is in progress without a lease"
    elif not found.stranded:
        return None
    elif found.host is None and info.host is None:
        return (
            "it waits for its host's turn, and the queue is not polite: someone deleted its settings by hand; give it "
            "politeness again (timeoutq configure --delay), or let go what waits (timeoutq configure --impolite)"
        )
    else:
        what = "it waits for its host's turn, and the host's lane or its turn is gone, or was put off"
    cure = "the next prune of any worker or cleaner mends that, or `timeoutq doctor --repair` at once"
    return f"{what}: someone edited the keys by hand; {cure}"


def judge(found: Why) -> tuple[str, str]:
    """Give the code and the sentence for a task that some state holds."""
    info, now = found.info, found.now
    if info.state is State.DONE:
        kept = ", and its result is kept" if info.has_result else ""
        return "done", f"it is done{kept}; {ADVICE['done']}"
    if info.state is State.FAILED:
        error, ago = info.error or "", "" if info.error_at is None else f" {_span(max(0.0, now - info.error_at))} ago"
        is_barred = found.host is not None and found.host.banned is not None
        banned, cancelled = is_barred and "is banned" in error, error.startswith(CANCELLED)
        # whatever the task failed for: while its host is banned, a retry fails at once
        advice = ADVICE["banned" if is_barred else "failed"]
        late = "call_expired" if error.startswith(EXPIRED) else "failed"
        code = "banned" if banned else "cancelled" if cancelled else late
        return code, f"it failed{ago}: {error or 'no error was kept'}; {advice}"
    if info.state is State.IN_PROGRESS:
        left = info.lease_left or 0.0
        if info.cancelled_by is not None:
            return "cancelling", (
                f"worker {info.holder} works on it, and {info.cancelled_by} has cancelled it: it goes to failed when "
                "its handler has stopped, or when its lease has run out"
            )
        if left > 0:
            return "running", f"worker {info.holder} works on it; the lease runs for another {_span(left)}"
        return "expired", (
            f"the lease of worker {info.holder} ran out {_span(-left)} ago, and no cleaner has taken the task back yet"
            + ("" if found.workers else ": no worker is alive, and no cleaner seems to be")
        )
    if info.state is State.SCHEDULED:
        return _scheduled(found, info.due or 0.0)
    if found.paused:
        return "paused", f"the queue is paused: nothing is handed out until it is resumed{_workless(found)}"
    if info.state is State.WAITING and found.host is not None:
        hindrance = _hindrance(found, found.host)
        if hindrance is not None:
            code, message = hindrance
            return code, message + (_workless(found) if code in ("host_busy", "delay") else "")
    if not found.workers:
        return "no_worker", "it is ready, and no worker is alive to claim it (clients over HTTP give no sign of life)"
    if 0 <= found.replicas < found.durable:
        return "no_replica", (
            f"it is ready, and no claim counts: {counted(found.durable, 'replica')} must confirm it (durable), and the "
            f"server has heard {found.replicas} in the last 10 s; {ADVICE['no_replica']}"
        )
    if info.crashes >= 2:
        return "suspect", (
            f"{info.crashes} leases on it were lost: the lease ran out, or the worker's process died; so it waits for "
            "a worker that holds nothing else"
        )
    if info.state is State.WAITING:
        if found.host is not None and (found.host.turn is None or found.host.turn > now):
            says = "the rules of its host have changed: the next cleaner gives the host its turn by the new rules"
            return "turn", says
        return "turn", "its host has its turn now: the next cleaner makes the task ready"
    others, workers = found.todos - 1, counted(found.workers, "worker")
    are, take = ("is", "takes") if found.workers == 1 else ("are", "take")
    if not others:
        return "queued", f"it is ready, and nothing else is; {workers} {are} alive"
    many = "is 1 other" if others == 1 else f"are {others:,} others"
    return "queued", f"it is ready, and so {many}; {workers} {take} them in any order"


def _workless(found: Why) -> str:
    return "" if found.workers else "; and no worker is alive"


def _scheduled(found: Why, due: float) -> tuple[str, str]:
    info, now = found.info, found.now
    after = f", for attempt {info.failures + 1} after: {info.error}" if info.failures else ""
    paused = "; the queue is paused" if found.paused else ""
    if info.releases:
        times = "once" if info.releases == 1 else f"{info.releases} times"
        after += f"; its handler has released it {times}, and each release waits longer than the one before"
    if due == BATCH_DUE:
        return "due", "it is the callback of a batch, and becomes ready when all tasks of the batch have ended"
    if due > now:
        return "due", f"it is due at {_moment(due)}, in {_span(due - now)}{after}{paused}"
    cure = "no cleaner has made it ready: is a worker or a cleaner alive?"
    return "overdue", f"it was due {_span(now - due)} ago{after}, and {cure}"


def _hindrance(found: Why, host: HostInfo) -> tuple[str, str] | None:
    """Give the code and the sentence for what keeps a host from its turn; None if nothing does."""
    name, now = host.host, found.now
    match standing(host, now, HINDRANCES):
        case Standing.BANNED:
            return "banned", f"host {name} is banned: {host.banned}; it goes to failed"
        case Standing.BLOCKED:
            ends, who, times = host.blocked_until or 0.0, host.blocked_by, found.info.host_releases
            # who blocked the host, or the reason that was given
            by = f" by {who}" if who and CLIENT.fullmatch(who) else f" ({who})" if who else ""
            back = f"; this task was put back {times:,} times to block its host" if times > 1 else ""
            return "blocked", f"host {name} is blocked{by} until {_moment(ends)}, for another {_span(ends - now)}{back}"
        case Standing.FULL:
            by = f", by {host.in_flight[0]!r}" if host.in_flight else ""
            others = _others(found, host)
            return "host_busy", f"host {name} has {host.busy} of its {host.per_host} places taken{by}{others}"
        case Standing.USED_UP:
            return "budget", (
                f"the budget of host {name} is used up: {host.visits} of {host.budget} visits were made, "
                f"and {host.busy} are under way; {ADVICE['budget']}"
            )
        case Standing.RESTING:
            ends = host.next_allowed or 0.0
            return "delay", (
                f"host {name} may be visited next at {_moment(ends)}, in {_span(ends - now)} "
                f"({_span(host.delay)} after the last visit){_others(found, host)}"
            )
        case _:
            return None


HINDRANCES = {Standing.BANNED, Standing.BLOCKED, Standing.FULL, Standing.USED_UP, Standing.RESTING}


def _others(found: Why, host: HostInfo) -> str:
    others, before, level = host.waiting - 1, found.before, found.info.priority
    if others < 1 or before is None:
        return ""
    many = "1 other of that host waits" if others == 1 else f"{others:,} others of that host wait"
    if before:
        goes = "goes" if others == 1 else "1 of them goes" if before == 1 else f"{before:,} of them go"
        return f"; {many} as well, and {goes} before it{f', whose priority is {level}' if level else ''}"
    return f"; {many} as well, and this task goes first{f': its priority is {level}' if level else ''}"


def forms(task: str) -> Iterator[str]:
    """Give other ways to write the same URL: as it is usually put, then with and without what changes nothing."""
    try:
        parts = urlsplit(task)
        port = parts.port
    except ValueError:
        return
    if not parts.scheme or not parts.hostname:
        return
    host = parts.hostname
    if port is not None and port != {"http": 80, "https": 443}.get(parts.scheme):
        host = f"{host}:{port}"
    query = urlencode(sorted(parse_qsl(parts.query, keep_blank_values=True)))
    plain = SplitResult(parts.scheme.lower(), host, parts.path or "/", query, "")
    seen = {task}
    other = parts.path.rstrip("/") if parts.path.endswith("/") else f"{parts.path}/"
    for candidate in (
        plain,
        plain._replace(query=parts.query),
        plain._replace(path=other),
        plain._replace(path="" if plain.path == "/" else plain.path),
        plain._replace(scheme={"http": "https", "https": "http"}.get(plain.scheme, plain.scheme)),
        parts._replace(fragment=""),
    ):
        made = urlunsplit(candidate)
        if made not in seen:
            seen.add(made)
            yield made


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
