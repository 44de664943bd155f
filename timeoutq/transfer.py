"""Tasks by the million, in bounded memory: reads states, compares two sets of ids, and writes whole queues as lines.

The commands diff, intersect, requeue, export and import call this module. It reads states in pages (SSCAN, ZSCAN), asks
the server about ids in batches, and keeps the ids that it has met in a temporary file, which is gone when the process
ends. In the file, a digest of 16 bytes stands for an id: no disk can hold so many ids that two would share a digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar, cast

from timeoutq import arguments, reads, sending
from timeoutq.calls import BATCH
from timeoutq.client import Queue
from timeoutq.errors import InvalidInput
from timeoutq.model import Outcome, Payload, Record, State, text
from timeoutq.sending import Flow, Talk

T = TypeVar("T")

PAGE = 1000
"""About how many ids a page of a state brings, and how many ids one question to the server names."""

VERSION = 1
"""The version of the format in which tasks are written as lines."""

ORDERED = frozenset({State.SCHEDULED})
"""States whose key is a sorted set; the others are sets."""

_CACHE_KIB = 2 * 1024


# ---- the ids that we have met


class Met:
    """A set of ids in a temporary file."""

    def __init__(self) -> None:
        with _on_disk():
            self._db = sqlite3.connect("", isolation_level=None)  # "": a temporary file without a name
            for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
                self._db.execute(f"PRAGMA {setting}")
            self._db.execute("CREATE TABLE met (digest BLOB PRIMARY KEY) WITHOUT ROWID")
            self._db.execute("CREATE TABLE bulk (digest BLOB)")
            self._db.execute("BEGIN")

    def new(self, ids: Iterable[bytes]) -> list[bytes]:
        """Give the ids that the set did not know yet, in their order, and add them."""
        with _on_disk():
            insert = self._db.execute
            return [id for id in ids if insert("INSERT OR IGNORE INTO met VALUES (?)", (_digest(id),)).rowcount]

    def load(self, batches: Iterable[Sequence[bytes]]) -> None:
        """Add very many ids, for `known`: they are sorted on disk, which is quicker than one by one."""
        for ids in batches:
            with _on_disk():
                self._db.executemany("INSERT INTO bulk VALUES (?)", ((_digest(id),) for id in ids))
        with _on_disk():
            self._db.execute("CREATE INDEX sorted ON bulk (digest)")

    def known(self, ids: Sequence[bytes]) -> list[bool]:
        """Say for each id whether `load` has added it."""
        with _on_disk():
            ask = self._db.execute
            return [ask("SELECT 1 FROM bulk WHERE digest = ?", (_digest(id),)).fetchone() is not None for id in ids]

    def close(self) -> None:
        """Drop the file."""
        self._db.close()


def _digest(id: bytes) -> bytes:
    return hashlib.blake2b(id, digest_size=16).digest()


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InvalidInput(
            f"the temporary file of ids cannot be used: {error}; free some space, or name a folder that has some "
            "in SQLITE_TMPDIR"
        ) from error


# ---- states and sides


def scan(queue: Queue, state: State, match: bytes | None = None) -> Iterator[list[bytes]]:
    """Read all ids of a state, page by page; an id that moves meanwhile may be missed, or come twice."""
    cursor = reads.START
    while cursor is not None:
        cursor, ids = queue.run(_page(queue.talk, state, cursor, match))
        yield ids


def _page(talk: Talk, state: State, cursor: str, match: bytes | None) -> Flow[tuple[str | None, list[bytes]]]:
    verb = "ZSCAN" if state in ORDERED else "SSCAN"
    matching = () if match is None else ("MATCH", match)
    (reply,) = yield from sending.ask(talk, [(verb, talk.operations.key(state), cursor, *matching, "COUNT", PAGE)])
    following, found = reply
    if state in ORDERED:
        found = [id for id, _ in reads.pairs_of(found)]
    return reads.next_cursor(following), list(found)


def within(queue: Queue, state: State, ids: Sequence[bytes]) -> list[bool]:
    """Say for each id whether the state holds it."""
    if not ids:
        return []
    verb = "ZMSCORE" if state in ORDERED else "SMISMEMBER"
    (reply,) = queue.run(sending.ask(queue.talk, [(verb, queue.operations.key(state), *ids)]))
    return [found is not None for found in reply] if state in ORDERED else [bool(found) for found in reply]


def size(queue: Queue, state: State) -> int:
    """Count the tasks in a state."""
    verb = "ZCARD" if state in ORDERED else "SCARD"
    (reply,) = queue.run(sending.ask(queue.talk, [(verb, queue.operations.key(state))]))
    return int(reply)


def compare(
    first: Iterable[Sequence[bytes]], second: Callable[[Sequence[bytes]], Sequence[bool]], *, both: bool
) -> Iterator[list[bytes]]:
    """Give the ids of the first side that are also in the second (`both`), or are not, each once, batch by batch."""
    met = Met()
    try:
        for ids in first:
            found = [id for id, there in zip(ids, second(ids), strict=True) if there is both]
            yield met.new(found)
    finally:
        met.close()


def once(batches: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Give each id of the batches once."""
    return compare(batches, lambda ids: [True] * len(ids), both=True)


def parts(items: Iterable[T], length: int = PAGE) -> Iterator[list[T]]:
    """Cut a stream into lists of `length` items; the last list may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, length)):
        yield part


# ---- tasks as lines


def describe(queue: Queue, ids: Sequence[bytes]) -> Iterator[list[Record]]:
    """Give the records of these tasks, in lists of bounded size; tasks that no state holds are left out."""
    start = 0
    while start < len(ids):
        looked, records = queue.run(sending.answer(queue.talk, queue.operations.describe(ids[start : start + BATCH])))
        start += looked
        yield records


def export(
    queue: Queue, states: Sequence[State] = (), looked: Callable[[int], None] | None = None
) -> Iterator[list[Record]]:
    """Give all tasks of a queue, or of some states, each once.

    A second look finds tasks that changed their state during the first; it is left out if nothing has moved.
    """
    wanted = tuple(states) or tuple(State)
    met = Met()
    try:
        before, seen = queue.stats().counters, 0
        for second in (False, True):
            if second and queue.stats().counters == before:
                break
            for state in wanted:
                for page in scan(queue, state):
                    seen += 0 if second else len(page)
                    if looked is not None:
                        looked(seen)
                    for records in describe(queue, page):
                        there = [record for record in records if record.state in wanted]
                        new = set(met.new(record.task for record in there))
                        if new:
                            yield [record for record in there if record.task in new]
    finally:
        met.close()


def restore(queue: Queue, records: Sequence[Record]) -> Outcome:
    """Bring up to 500 tasks in as they were, in one step; tasks that the queue knows already are left alone."""
    return queue.run(sending.answer(queue.talk, queue.operations.restore(records, queue.token)))


def header(queue: Queue) -> str:
    """Give the first line of an export."""
    return json.dumps({"timeoutq": VERSION, "queue": queue.name, "at": queue.stats().now})


def is_header(line: bytes) -> bool:
    """Say whether a line is the first line of an export; raises `InvalidInput` if its format is a later one."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict) or "timeoutq" not in found or "task" in found:
        return False
    version = cast("Any", found)["timeoutq"]
    if version != VERSION:
        raise InvalidInput(
            f"the file has format {version!r:.40}, this timeoutq reads format {VERSION}: install a later one"
        )
    return True


def write(record: Record) -> str:
    """Give the line of a task: JSON in ASCII; bytes that are not text go into fields of their own, in base64."""
    line: dict[str, Any] = {}
    try:
        line["task"] = record.task.decode("utf-8")
    except UnicodeDecodeError:
        line["task_b64"] = base64.b64encode(record.task).decode()
    line["state"] = record.state.value
    for name in ("due", "acked", "failures", "crashes", "error", "error_at", "group"):
        value = getattr(record, name)
        if value is not None and (value or name not in ("failures", "crashes")):
            line[name] = value
    payload = record.payload
    if payload is not None:
        if not isinstance(payload, bytes):
            try:
                return json.dumps({**line, "payload": payload}, allow_nan=False)
            except ValueError:  # another program wrote NaN, which is not JSON: keep the payload as bytes
                payload = json.dumps(payload).encode()
        line["payload_b64"] = base64.b64encode(payload).decode()
    return json.dumps(line)


def read(line: bytes) -> Record:
    """Read the line of a task; raises `InvalidInput`, whose message says what is wrong with the line."""
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from error
    except RecursionError:
        raise InvalidInput("JSON that is nested too deeply") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"not an object, as a line of an export is: {found!r:.60}")
    fields = cast("dict[str, Any]", found)
    if "task" not in fields and "task_b64" not in fields:
        raise InvalidInput('an object without "task" or "task_b64"')
    task = arguments.task_id(_text_or_bytes(fields, "task"))
    try:
        state = State(fields.get("state", State.TODOS))
    except ValueError:
        raise InvalidInput(f"{fields['state']!r:.60} is not a state: one of {', '.join(State)}") from None
    if state is State.SCHEDULED and fields.get("due") is None:
        raise InvalidInput('a scheduled task without the time "due"')
    failure = fields.get("error")
    if failure is not None and not isinstance(failure, str):
        raise InvalidInput(f'"error" is a text, not {failure!r:.60}')
    payload = _text_or_bytes(fields, "payload")
    arguments.pack(payload, text(task))
    return Record(
        task,
        state,
        _moment(fields, "due"),
        _moment(fields, "acked"),
        arguments.count(fields.get("failures", 0), "failures", 0),
        arguments.count(fields.get("crashes", 0), "crashes", 0),
        failure,
        _moment(fields, "error_at"),
        payload,
        None if fields.get("group") is None else text(arguments.host(fields["group"])),
    )


def _moment(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    arguments.delay_ms(value, name)
    return float(value)


def _text_or_bytes(fields: Mapping[str, Any], name: str) -> Payload:
    encoded = f"{name}_b64"
    if encoded not in fields:
        return fields.get(name)
    if name in fields:
        raise InvalidInput(f'both "{name}" and "{encoded}": write only one of them')
    try:
        return base64.b64decode(fields[encoded], validate=True)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f'"{encoded}" is not base64: {error}') from error
