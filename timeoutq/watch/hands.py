"""Carries out what a person wants at the live dashboard: reads lists and tasks, retries, forgets, blocks.

`live.py` has one for each queue. One thread does it, one wish after the other, so that a server that is away does not
freeze the screen.
"""

from __future__ import annotations

import json
import queue as queues
import threading
import time
from collections.abc import Sequence
from datetime import datetime

from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.verbs.why import advised
from timeoutq.watch import directory
from timeoutq.watch.screen import HOSTS, QUEUES, Row, Rows, Screen, Wish
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Answer, Lease, Payload, Progress, raw, text
from timeoutq.words.text import age, safe

PAGE = 200  # the most rows of a page
SEARCHED = 20_000  # the most tasks that are looked at for a page of those that match a filter
LONGEST = 1.0  # seconds that the search for a page takes at most


class Hands:
    """Carries out wishes in a thread of its own."""

    def __init__(self, queue: AnyQueue, screen: Screen, lock: threading.Lock) -> None:
        self.number = 0  # grows with every answer
        self._queue, self._screen, self._lock = queue, screen, lock
        self._wishes: queues.SimpleQueue[Wish | None] = queues.SimpleQueue()
        self._reading: Wish | None = None
        self._thread = threading.Thread(target=self._run, name="dashboard hands", daemon=True)

    def __enter__(self) -> Hands:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wishes.put(None)
        self._thread.join(0.5)  # one that waits for a dead server ends with the process

    def do(self, wish: Wish) -> None:
        """Carry out a wish; one that only reads is left out while the same one waits."""
        if wish.what in ("fetch", "explain"):
            if wish == self._reading:
                return
            self._reading = wish
        self._wishes.put(wish)

    def _run(self) -> None:
        while (wish := self._wishes.get()) is not None:
            try:
                self._carry_out(wish)
            except Exception as error:  # a dashboard goes on whatever the server or a foreign key does
                said = str(error) if isinstance(error, TimeoutqError) else f"{type(error).__name__}: {error}"
                with self._lock:
                    self._screen.say(f"{wish.what}: {said}", failed=True)
            finally:
                if self._reading == wish:
                    self._reading = None
                self.number += 1

    def _carry_out(self, wish: Wish) -> None:
        if wish.what == "fetch":
            found = rows_of(self._queue, wish)
            with self._lock:
                self._screen.show(found)
        elif wish.what == "explain":
            lines, host = told_of(self._queue, wish.target)
            with self._lock:
                self._screen.explain(wish.target, lines, host)
        else:
            words = _done(self._queue, wish)
            again = self._screen.wish
            if again is not None:
                self._carry_out(again)
            with self._lock:
                self._screen.say(words)


def rows_of(queue: AnyQueue, wish: Wish) -> Rows:
    """Read a page of hosts, of queues or of tasks; of tasks that match a filter, as many as are found soon."""
    if wish.target == HOSTS:
        if not queue.stats().politeness:
            raise InvalidInput(f"queue {queue.name} has no hosts: it is not polite")
        met = queue.hosts.list(wish.cursor, PAGE)
        return Rows(HOSTS, rows=[Row(host.host, host) for host in met], cursor=met.cursor, begun=wish.cursor)
    if wish.target == QUEUES:
        listed = [one for found in directory.names(queue) for one in directory.look(queue, found)]
        listed.sort(key=lambda one: one.name)
        return Rows(QUEUES, rows=[Row(one.name, one) for one in listed])
    cursor, found, looked, until = wish.cursor, list[Row](), 0, time.monotonic() + LONGEST
    wanted = wish.filter.lower()
    while True:
        page = queue.list(wish.state, cursor, 500 if wanted else PAGE)
        cursor, looked = page.cursor, looked + len(page.entries)
        for entry in page.entries:
            if not wanted or any(wanted in (part or "").lower() for part in (entry.task, entry.error, entry.holder)):
                found.append(Row(entry.task, entry))
        if not wanted or cursor is None or len(found) >= PAGE or looked >= SEARCHED or time.monotonic() > until:
            return Rows(wish.target, wish.state, wish.filter, found, cursor, looked, wish.cursor)


ADVICE = {
    "done": "`timeoutq put {queue} {task} --again` makes it ready again",
    "failed": "R makes it ready again",
    "banned": "U unblocks its host, and then R makes the task ready again; before that, it fails again at once",
    "budget": "`timeoutq host {queue} {host} --budget N` gives the host more visits",
    "no_replica": "start replicas, or `timeoutq configure {queue} --durable N` asks for fewer",
}
"""Advice for whoever reads the dashboard: by its keys, where it has them."""


def told_of(queue: AnyQueue, task: str) -> tuple[list[tuple[str, str]], str]:
    """Tell all about a task: lines, each with its colour; and the host of the task."""
    reason = queue.why(task)
    info, message = reason.info, safe(advised(reason, ADVICE, queue.name))
    state = "unknown" if info.state is None else info.state.value
    lines = [
        (safe(task), "bold"),
        ("", ""),
        (f"{state}: {message}", "yellow"),
        ("", ""),
    ]
    facts: Sequence[tuple[str, object]] = (
        ("due", _moment(info.due)), ("lease left", None if info.lease_left is None else age(info.lease_left)),
        ("holder", info.holder), ("attempt", info.failures + 1 if info.state is not None else None),
        ("failures", info.failures or None), ("crashes", info.crashes or None), ("releases", info.releases or None),
        ("host", info.host), ("priority", info.priority or None), ("progress", _progress(info.progress)),
        ("cancelled by", info.cancelled_by), ("error", info.error), ("error at", _moment(info.error_at)),
        ("payload", _payload(info.payload)),
    )  # fmt: skip
    lines += [
        (f"{name:13}{safe(value)}", "red" if name == "error" else "") for name, value in facts if value is not None
    ]
    if info.traceback:
        lines += [("", ""), ("traceback", "bold")]
        lines += [(safe(line), "") for line in info.traceback.splitlines()]
    return lines, info.host or ""


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


def _progress(found: Progress | None) -> str | None:
    if found is None:
        return None
    return f"{found.done:g}{'' if found.total is None else f' of {found.total:g}'} {found.text}"


def _payload(payload: Payload) -> str | None:
    if payload is None:
        return None
    return safe(payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False), 1000)


def _release(queue: AnyQueue, task: str, name: str) -> str:
    for talk in talks_of(queue):
        if token := queue.run(_taken(talk, task)):
            return f"took {name} from {safe(token.partition('#')[0], 40)}; it is ready again"
    return f"{name} has no lease any more"


def _taken(talk: Talk, task: str) -> Flow[str | None]:
    # the lease ends as if its owner had given it back; the owner is told so at its next exchange
    (owner,) = yield from ask(talk, [("HGET", talk.operations.key("owners"), raw(task))])
    if owner is None:
        return None
    token = text(owner)
    outcome = yield from answer(talk, talk.operations.release([Lease(task, token, 0.0)])[0])
    return token if outcome[0] is Answer.OK else None


CANCELLED = {
    Answer.CANCELLED: "cancelled {}: it is in failed now",
    Answer.CANCELLING: "cancel {}: its worker is told to stop its handler",
    Answer.DONE: "{} is done already",
    Answer.FAILED: "{} is in failed already",
}


def _done(queue: AnyQueue, wish: Wish) -> str:
    """Do what a verb says; give the words that say so."""
    target, name = wish.target, safe(wish.target, 60)
    match wish.what:
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
