"""Carries out what a person wants at the live dashboard: reads lists and tasks, retries, forgets, blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.verbs.sending import answer, ask
from timeoutq.verbs.why import advised
from timeoutq.watch import directory, records
from timeoutq.watch.screen import HOSTS, QUEUES, Rows, Wish
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer, Entry, Lease, raw, text
from timeoutq.words.text import age, safe

PAGE = 200  # the most rows of a page
SEARCHED = 20_000  # the most tasks that are looked at for a page of those that match a filter
LONGEST = 1.0  # seconds that the search for a page takes at most

Told = tuple[Sequence[tuple[str, str]], str]  # all about a task: lines, each with its colour; and the host of the task

CANCELLED = {
    Answer.CANCELLED: "cancelled {}: it is in failed now",
    Answer.CANCELLING: "cancel {}: its worker is told to stop its handler",
    Answer.DONE: "{} is done already",
    Answer.FAILED: "{} is in failed already",
}


def carry_out(queue: AnyQueue, wish: Wish) -> Rows | Told | str:
    """Read what is wanted, or do what a verb says and give words that say so. Raises what any call raises."""
    target, name = wish.target, safe(wish.target, 60)
    match wish.what:
        case "fetch":
            return rows_of(queue, wish)
        case "explain":
            return told_of(queue, target)
        case "retry":
            return f"retried {name}" if queue.retry_failed(target) else f"{name} is not in failed any more"
        case "forget":
            unknown = queue.forget(target)[target] is Answer.UNKNOWN
            return f"{'the queue did not know' if unknown else 'forgot'} {name}"
        case "cancel":
            said = CANCELLED.get(queue.cancel(target)[target], "{} is in no state: there is nothing to cancel")
            return said.format(name)
        case "release":
            return _release(queue, target, name)
        case "block":
            queue.hosts.block(target, for_=wish.seconds)
            return f"blocked {name} for {age(wish.seconds)}"
        case "unblock":
            queue.hosts.unblock(target)
            return f"unblocked {name}"
        case "pause":
            queue.pause()
            return "paused: no task is handed out until P resumes the queue"
        case _:
            queue.resume()
            return "resumed"


def rows_of(queue: AnyQueue, wish: Wish) -> Rows:
    """Read a page of hosts, of queues or of tasks; of tasks that match a filter, as many as are found soon."""
    if wish.target == HOSTS:
        if not queue.stats().politeness:
            raise InvalidInput(f"queue {queue.name} has no hosts: it is not polite")
        met = queue.hosts.list(wish.cursor, PAGE)
        return Rows(wish, met.hosts, met.cursor)
    if wish.target == QUEUES:
        names = sorted(name for page in directory.names(queue) for name in page)
        return Rows(wish, list(directory.look(queue, names)))
    cursor, found, looked, until = wish.cursor, list[Entry](), 0, time.monotonic() + LONGEST
    wanted = wish.filter.lower()
    while True:
        page = queue.list(wish.state, cursor, 500 if wanted else PAGE)
        cursor, looked = page.cursor, looked + len(page.entries)
        for entry in page.entries:
            if any(wanted in (part or "").lower() for part in (entry.task, entry.error, entry.holder)):
                found.append(entry)
        if not wanted or cursor is None or len(found) >= PAGE or looked >= SEARCHED or time.monotonic() > until:
            return Rows(wish, found, cursor, looked)


def told_of(queue: AnyQueue, task: str) -> Told:
    reason = queue.why(task)
    info, message = reason.info, safe(advised(reason, records.KEYED, queue.name))
    lines = [(safe(task), "bold"), ("", ""), (f"{info.state or 'unknown'}: {message}", "yellow"), ("", "")]
    for name, value in records.of_task(info):
        if value is not None:
            lines.append((f"{name:14}{safe(value, 1000)}", "red" if name == "last error" else ""))
    if info.traceback:
        lines += [("", ""), ("traceback", "bold"), *((safe(line), "") for line in info.traceback.splitlines())]
    return lines, info.host or ""


def _release(queue: AnyQueue, task: str, name: str) -> str:
    # the lease ends as if its owner had given it back; the owner is told so at its next exchange
    for talk in talks_of(queue):
        (owner,) = queue.run(ask(talk, [("HGET", talk.operations.key("owners"), raw(task))]))
        if owner is not None:
            outcome = queue.run(answer(talk, talk.operations.release([Lease(task, text(owner), 0.0)])[0]))
            if outcome[0] is Answer.OK:
                return f"took {name} from {safe(text(owner).partition('#')[0], 40)}; it is ready again"
    return f"{name} has no lease any more"
