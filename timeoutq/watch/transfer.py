"""Tasks by the million, in bounded memory: reads states, compares two sets of ids, and writes whole queues as lines.

The ids that it has met are in a temporary file, which is gone when the process ends. In the file, a digest of 16 bytes
stands for an id: no disk can hold so many ids that two would share a digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice, product
from typing import Any, TypeVar, cast

from timeoutq.client import Queue
from timeoutq.client.shards import AnyQueue, ShardedQueue, methods, rooms, talks_of
from timeoutq.client.shards.gathering import places_of
from timeoutq.rooms import batches as of_batches
from timeoutq.rooms import hosts as of_hosts
from timeoutq.rooms.batches import Joined, Sealed
from timeoutq.rooms.schedules import definition as of_schedules
from timeoutq.rooms.schedules import flows as schedule_flows
from timeoutq.rooms.schedules.definition import Stored
from timeoutq.server.calls import BATCH
from timeoutq.verbs import reads, replies, sending
from timeoutq.verbs.sending import Flow, Talk
from timeoutq.words import arguments
from timeoutq.words.arguments import How
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import BATCH_DUE, Answer, HostRecord, Outcome, Payload, Politeness, Record, State, raw, text

T = TypeVar("T")

PAGE = 1000  # about how many ids a page of a state brings, and how many ids one question to the server names
SCHEDULES = 20  # about how many schedules a page brings, each with up to 350 KiB
VERSION = 2  # of the format in which a queue is written as lines; this is the first that tells of hosts
ORDERED = frozenset({State.SCHEDULED})  # states whose key is a sorted set; the others are sets


# ---- the ids that we have met


class Met:
    """A set of ids in a temporary file."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def new(self, ids: Iterable[bytes]) -> list[bytes]:
        """Give the ids that the set did not know yet, in their order, and add them."""
        insert = self._db.execute
        return [id for id in ids if insert("INSERT OR IGNORE INTO met VALUES (?)", (_digest(id),)).rowcount]

    def load(self, batches: Iterable[Sequence[bytes]]) -> None:
        """Add very many ids, for `known`: they are sorted on disk, which is quicker than one by one."""
        for ids in batches:
            self._db.executemany("INSERT INTO bulk VALUES (?)", ((_digest(id),) for id in ids))
        self._db.execute("CREATE INDEX sorted ON bulk (digest)")

    def known(self, ids: Sequence[bytes]) -> list[bool]:
        """Say for each id whether `load` has added it."""
        ask = self._db.execute
        return [ask("SELECT 1 FROM bulk WHERE digest = ?", (_digest(id),)).fetchone() is not None for id in ids]


def _digest(id: bytes) -> bytes:
    return hashlib.blake2b(id, digest_size=16).digest()


@contextmanager
def meeting() -> Iterator[Met]:
    """Give an empty set of ids, which is dropped when the block ends. Raises `InvalidInput` if a disk is full."""
    try:
        with closing(sqlite3.connect("", isolation_level=None)) as db:  # "": a temporary file without a name
            for line in (
                "PRAGMA journal_mode=OFF", "PRAGMA synchronous=OFF", "PRAGMA cache_size=-2048",  # KiB
                "CREATE TABLE met (digest BLOB PRIMARY KEY) WITHOUT ROWID", "CREATE TABLE bulk (digest BLOB)", "BEGIN",
            ):  # fmt: skip
                db.execute(line)
            yield Met(db)
    except sqlite3.Error as error:
        raise InvalidInput(
            f"the temporary file of ids cannot be used: {error}; free some space, or name a folder that has some "
            "in SQLITE_TMPDIR"
        ) from error


def _each_once(
    queue: AnyQueue, page: Callable[[Talk, str], Flow[tuple[str | None, list[T]]]], name: Callable[[T], bytes]
) -> Iterator[tuple[Talk, list[T]]]:
    """Walk through the pages of all shards; give each thing once, with its shard."""
    with meeting() as met:
        for talk in talks_of(queue):
            cursor: str | None = reads.START
            while cursor is not None:
                cursor, found = queue.run(page(talk, cursor))
                new = set(met.new(map(name, found)))
                yield talk, [one for one in found if name(one) in new]


# ---- states and sides


def scan(
    queue: AnyQueue, state: State, match: bytes | None = None, talks: Sequence[Talk] = ()
) -> Iterator[list[bytes]]:
    """Read all ids of a state, page by page, of all shards or of those whose talks are given.

    An id that moves meanwhile may be missed, or come twice. Raises `InvalidInput` for the done tasks of a queue that
    keeps no ids of them.
    """
    for talk in talks or talks_of(queue):
        if state is State.DONE and not queue.run(reads.keeps_ids(talk)):
            raise reads.unlisted(queue.name)
        cursor = reads.START
        while cursor is not None:
            cursor, ids = queue.run(_page(talk, state, cursor, match))
            yield ids


def put_again(queue: AnyQueue, talk: Talk, ids: Sequence[bytes]) -> int:
    """Put tasks back that are done or failed, in the shard in which they are; give their number."""
    calls = talk.operations.put((ids,), talk.nonce, How(again=True))
    return queue.run(sending.answers(talk, calls)).added


def _page(talk: Talk, state: State, cursor: str, match: bytes | None) -> Flow[tuple[str | None, list[bytes]]]:
    verb = "ZSCAN" if state in ORDERED else "SSCAN"
    matching = () if match is None else ("MATCH", match)
    (reply,) = yield from sending.ask(talk, [(verb, talk.operations.key(state), cursor, *matching, "COUNT", PAGE)])
    following, found = reply
    if state in ORDERED:
        found = [id for id, _ in reads.pairs_of(found)]
    return reads.next_cursor(following), list(found)


def within(queue: AnyQueue, state: State, ids: Sequence[bytes]) -> list[bool]:
    """Say for each id whether the state holds it."""
    if not ids:
        return []
    talks = talks_of(queue)
    if state is State.DONE and not queue.run(reads.keeps_ids(talks[0])):
        return [answer is Answer.DONE for answer in queue.states(ids)]
    places = {0: list(range(len(ids)))}
    if isinstance(queue, ShardedQueue):
        everywhere = queue.run(queue.shards.may_be_elsewhere())
        places = (
            dict.fromkeys(range(len(talks)), places[0]) if everywhere else places_of(map(queue.shards.of_task, ids))
        )
    there = [False] * len(ids)
    for shard, chosen in places.items():
        for at, found in zip(chosen, queue.run(_within(talks[shard], state, [ids[at] for at in chosen])), strict=True):
            there[at] |= found
    return there


def _within(talk: Talk, state: State, ids: Sequence[bytes]) -> Flow[list[bool]]:
    verb = "ZMSCORE" if state in ORDERED else "SMISMEMBER"
    (reply,) = yield from sending.ask(talk, [(verb, talk.operations.key(state), *ids)])
    return [found is not None for found in reply] if state in ORDERED else [bool(found) for found in reply]


def size(queue: AnyQueue, state: State) -> int:
    """Count the tasks in a state."""
    if state is State.DONE:  # it may be kept as fingerprints
        return queue.stats().done
    return _total(queue, "ZCARD" if state in ORDERED else "SCARD", state)


def _total(queue: AnyQueue, verb: str, key: str) -> int:
    asked = [queue.run(sending.ask(talk, [(verb, talk.operations.key(key))])) for talk in talks_of(queue)]
    return sum(int(count) for (count,) in asked)


def compare(
    first: Iterable[Sequence[bytes]], second: Callable[[Sequence[bytes]], Sequence[bool]], *, both: bool
) -> Iterator[list[bytes]]:
    """Give the ids of the first side that are also in the second (`both`), or are not, each once, batch by batch."""
    with meeting() as met:
        for ids in first:
            yield met.new(id for id, there in zip(ids, second(ids), strict=True) if there is both)


def once(batches: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Give each id of the batches once."""
    return compare(batches, lambda ids: [True] * len(ids), both=True)


def parts(items: Iterable[T], length: int = PAGE) -> Iterator[list[T]]:
    """Cut a stream into lists of `length` items; the last list may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, length)):
        yield part


# ---- tasks as lines


def describe(queue: AnyQueue, ids: Sequence[bytes], talk: Talk) -> Iterator[list[Record]]:
    """Give the records of these tasks of a shard, in lists of bounded size; tasks in no state are left out."""
    start = 0
    while start < len(ids):
        looked, records = queue.run(sending.answer(talk, talk.operations.describe(ids[start : start + BATCH])))
        start += looked
        yield records


def exported(queue: AnyQueue, states: Sequence[State] = (), *, without_done: bool = False) -> tuple[State, ...]:
    """Say which states an export holds: these, or all; done tasks can be left out.

    Raises `InvalidInput` if done tasks are among them and the queue keeps no ids of them.
    """
    wanted = tuple(state for state in states or State if not (without_done and state is State.DONE))
    if not wanted:
        raise InvalidInput("done tasks without done tasks are none: name another state, or leave out --without-done")
    if State.DONE in wanted and not queue.run(reads.keeps_ids(talks_of(queue)[0])):
        raise InvalidInput(f"{reads.unlisted(queue.name)}. An export of everything else: --without-done")
    return wanted


def export(queue: AnyQueue, states: Sequence[State] = ()) -> Iterator[list[Record]]:
    """Give all tasks of a queue, or of some states, each once; `exported` says which states can be had.

    Done tasks come last. Callbacks of batches that are not over are left out. If a sharded queue has a task twice, with
    two groups, the one that is not done counts.
    A second look finds tasks that changed their state during the first; it is left out if nothing has moved.
    """
    wanted = tuple(states) or tuple(State)
    before = queue.stats().counters
    # an id with two groups may be in two shards: the task that is not done must be the one that is told of
    ordered = sorted(wanted, key=lambda state: ENDED.index(state) if state in ENDED else -1)
    with meeting() as met:
        for second in (False, True):
            if second and queue.stats().counters == before:
                break
            for state, talk in product(ordered, talks_of(queue)):
                for page in scan(queue, state, talks=[talk]):
                    for records in describe(queue, page, talk):
                        there = [one for one in records if one.state in wanted and one.due != BATCH_DUE]
                        new = set(met.new(record.task for record in there))
                        if new:
                            yield [record for record in there if record.task in new]


ENDED = (State.FAILED, State.DONE)


def restore(queue: AnyQueue, records: Sequence[Record]) -> Outcome:
    """Bring up to 500 tasks in as they were, in one step; tasks that the queue knows already are left alone."""
    if isinstance(queue, ShardedQueue):
        return queue.run(methods.restore(queue.shards, records))
    return queue.run(sending.answer(queue.talk, queue.operations.restore(records, queue.token)))


# ---- hosts and settings


def hosts(queue: AnyQueue) -> Iterator[list[HostRecord]]:
    """Give the hosts of a polite queue that have rules of their own or were visited, each once; else none."""
    return (found for _, found in _each_once(queue, _hosts, lambda host: host.host) if found)


def _hosts(talk: Talk, cursor: str) -> Flow[tuple[str | None, list[HostRecord]]]:
    (reply,) = yield from sending.ask(talk, [("ZSCAN", talk.operations.key("hosts"), cursor, "COUNT", BATCH)])
    following, found = reply
    names, told = [name for name, _ in reads.pairs_of(found)], list[HostRecord]()
    for part in parts(names, BATCH):
        told += (yield from sending.answer(talk, of_hosts.describe_hosts(talk.operations, part))) or []
    return reads.next_cursor(following), [host for host in told if host != HostRecord(host.host)]


def restore_hosts(queue: AnyQueue, records: Sequence[HostRecord]) -> int:
    """Give up to 500 hosts the rules and counts that the queue lacks, in one step; say how many took something over.

    Raises `InvalidInput` if the queue is not polite.
    """
    if isinstance(queue, ShardedQueue):
        taken = queue.run(methods.restore_hosts(queue.shards, records))
    else:
        call = of_hosts.restore_hosts(queue.operations, records, queue.token)
        taken = queue.run(sending.answer(queue.talk, call))
    if taken is None:
        raise InvalidInput(
            f"the file has rules of hosts, and queue {queue.name!r} is not polite: make it polite first "
            f"(timeoutq configure {queue.name} --delay 1s), or import only the tasks (--tasks-only)"
        )
    return taken


def adopt(queue: AnyQueue, politeness: Politeness) -> Politeness | None:
    """Give an empty queue the politeness of an export; a queue that is polite keeps its own, which is the answer.

    Raises `InvalidInput` if the queue is not polite and has tasks: somebody has to say whether its hosts may wait.
    """
    stats = queue.stats()
    if stats.politeness is not None:
        return stats.politeness
    if stats.known:
        raise InvalidInput(
            f"the file is of a polite queue, and queue {queue.name!r} has tasks and is not polite: make it polite "
            f"first (timeoutq configure {queue.name} --delay {politeness.delay:.15g}s --per-host {politeness.per_host})"
            ", or import only the tasks (--tasks-only)"
        )
    queue.configure(politeness=politeness)
    return None


# ---- schedules and batches


def schedules(queue: AnyQueue) -> Iterator[list[Stored]]:
    """Give all schedules of a queue that can be read, each once."""
    return (found for _, found in _each_once(queue, _schedules, lambda one: one.name))


def _schedules(talk: Talk, cursor: str) -> Flow[tuple[str | None, list[Stored]]]:
    rows = yield from sending.answer(talk, of_schedules.call_rows(talk.operations, "page", cursor, SCHEDULES))
    return reads.next_cursor(rows.cursor), list(rows.found)


def restore_schedules(queue: AnyQueue, found: Iterable[Stored]) -> int:
    """Bring schedules in as they were; a schedule that is there stays as it is. Say how many are new."""
    if isinstance(queue, ShardedQueue):
        return sum(queue.run(rooms.restore_schedule(queue.shards, one)) for one in found)
    return sum(queue.run(schedule_flows.restore(queue.talk, one)) for one in found)


def batches(queue: AnyQueue) -> Iterator[list[Joined | Sealed]]:
    """Give the batches of a queue that are over, each once: its tasks, in their order, then what it was sealed with."""
    for talk, found in _each_once(queue, _seals, lambda one: one.batch.encode()):
        for one in found:
            first, count = 1, 1
            while first <= count:
                call = of_batches.call_members(talk.operations, one.batch, first, first + BATCH - 1)
                count, members = queue.run(sending.answer(talk, call))
                yield [Joined(one.batch, raw(member.task), member.end) for member in members]
                first += BATCH
            yield [one]


def _seals(talk: Talk, cursor: str) -> Flow[tuple[str | None, list[Sealed]]]:
    return (yield from sending.answer(talk, of_batches.seals(talk.operations, cursor, BATCH)))


def open_batches(queue: AnyQueue) -> list[str]:
    """Name batches of a queue that are not over, ten thousand at most."""
    known = [one for talk in talks_of(queue) for one in queue.run(of_batches.some(talk))]
    return sorted({one.name for one in known if not one.is_over})


def restore_batches(queue: Queue, items: Sequence[Joined | Sealed]) -> tuple[int, list[str]]:
    """Bring up to 500 lines of batches in, in their order, after the tasks of these batches.

    What is there stays, so this may be repeated. Give how many tasks have joined, and the batches that the queue does
    not take, because it has sealed others of the same names.
    """
    new, refused, joined = 0, list[str](), list[Joined]()
    for item, following in zip(items, [*items[1:], None], strict=True):
        if isinstance(item, Joined):
            joined.append(item)
            if following is not None and following.batch == item.batch:
                continue
        seal = item if isinstance(item, Sealed) else None
        call = of_batches.restore_batch(queue.operations, queue.token, item.batch, joined, seal)
        count = queue.run(sending.answer(queue.talk, call))
        new += max(0, count)
        joined = []
        if count < 0 and seal is not None:
            refused.append(seal.batch)
    return new, refused


# ---- lines


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line of an export tells, or the last one."""

    politeness: Politeness | None = None
    rules: int = 0  # how many hosts and groups have rules that the export leaves out
    ends: bool = False  # whether the export has a last line, which says that the export is whole
    is_last: bool = False  # whether this is that last line


Item = Record | HostRecord | Header | Stored | Joined | Sealed
"""What a line of an export tells."""


def header(queue: AnyQueue, *, whole: bool = True) -> str:
    """Give the first line of an export; of a whole queue, it tells the politeness."""
    stats = queue.stats()
    line: dict[str, Any] = {"timeoutq": VERSION, "queue": queue.name, "at": stats.now, "ends": True}
    if whole and stats.politeness is not None:
        line["politeness"] = {"delay": stats.politeness.delay, "per_host": stats.politeness.per_host}
    if not whole and (rules := _total(queue, "HLEN", "policies")):
        line["rules"] = rules
    return json.dumps(line)


def footer(left_out: Sequence[str] = ()) -> str:
    """Give the last line of an export, with the names of batches that are left out because they are not over.

    A timeoutq that does not know this line reads the header of an export of nothing.
    """
    named = {"batches_left_out": list(left_out)} if left_out else {}
    return json.dumps({"timeoutq": VERSION, "end": True, **named})


def _moment(value: Any, name: str) -> float:
    arguments.delay_ms(value, name)
    return float(value)


def _words(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f'"{name}" is a text, not {value!r:.60}')
    return value


_count = partial(arguments.count, low=0, high=replies.LARGEST)
Readers = Mapping[str, Callable[[Any, str], Any]]
TASK: Readers = {
    "state": lambda value, _: arguments.state(value), "due": _moment, "acked": _moment, "until": _moment,
    "failures": _count, "crashes": _count, "error": _words, "error_at": _moment,
    "group": lambda value, _: text(arguments.host(value)), "priority": arguments.priority,
}  # fmt: skip
HOST: Readers = {
    "delay": _moment, "per_host": partial(arguments.count, high=10_000), "budget": _count, "visits": _count,
    "failures": _count, "next_allowed": _moment, "blocked_until": _moment, "banned": _words, "blocked_by": _words,
}  # fmt: skip
"""The fields of a line besides its id and payload, in their order, and how each is read."""


def write_host(record: HostRecord) -> str:
    """Give the line of a host: JSON in ASCII, without what the host has not."""
    return json.dumps({**arguments.id_field("host", record.host), **_told(record, HOST)})


def write(record: Record) -> str:
    """Give the line of a task: JSON in ASCII; bytes that are not text go into fields of their own, in base64."""
    line, payload = {**arguments.id_field("task", record.task), **_told(record, TASK)}, record.payload
    if payload is None:
        return json.dumps(line)
    if not isinstance(payload, bytes):
        try:
            return json.dumps({**line, "payload": payload}, allow_nan=False)
        except ValueError:  # another program wrote NaN, which is not JSON: keep the payload as bytes
            payload = json.dumps(payload).encode()
    return json.dumps({**line, "payload_b64": base64.b64encode(payload).decode()})


def _told(record: Record | HostRecord, names: Readers) -> dict[str, Any]:
    """Give the fields that a record has; a count of 0 and an empty text are left out."""
    values = {name: getattr(record, name) for name in names}
    usual = {field.name: field.default for field in fields(record)}
    return {name: value for name, value in values.items() if value is not None and value != usual[name]}


def read(line: bytes) -> Item:
    """Read a line. Raises `InvalidInput`, which says what is wrong with it."""
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from error
    except RecursionError:
        raise InvalidInput("JSON that is nested too deeply") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"not an object, as a line of an export is: {found!r:.60}")
    fields = cast("dict[str, Any]", found)
    for field, read_kind in KINDS.items():
        if field in fields:
            return read_kind(fields)
    raise InvalidInput(
        'an object without "task" or "task_b64", "host" or "host_b64", "schedule" or "schedule_b64", "batch"'
    )


def _header(line: Mapping[str, Any]) -> Header:
    version, rules = line["timeoutq"], line.get("politeness")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise InvalidInput(
            f"the file has format {version!r:.40}, this timeoutq reads formats 1 to {VERSION}: install a later one"
        )
    politeness, usual = None, Politeness()
    if isinstance(rules, dict):
        of = cast("dict[str, Any]", rules).get
        politeness = Politeness(of("delay", usual.delay), of("per_host", usual.per_host))
        arguments.politeness(politeness)
    elif rules is not None:
        raise InvalidInput(f'"politeness" is an object with "delay" and "per_host", not {rules!r:.60}')
    left_out = arguments.count(line.get("rules", 0), "rules", 0)
    return Header(politeness, left_out, line.get("ends") is True, line.get("end") is not None)


def _task(line: Mapping[str, Any]) -> Record:
    task, payload = arguments.task_id(_text_or_bytes(line, "task")), _text_or_bytes(line, "payload")
    known: dict[str, Any] = {"state": State.TODOS, **_read(line, TASK)}
    if known["state"] is State.SCHEDULED and "due" not in known:
        raise InvalidInput('a scheduled task without the time "due"')
    arguments.pack(payload, text(task))
    return Record(task, payload=payload, **known)


def _host(line: Mapping[str, Any]) -> HostRecord:
    return HostRecord(arguments.host(_text_or_bytes(line, "host")), **_read(line, HOST))


KINDS: Mapping[str, Callable[[dict[str, Any]], Item]] = {
    "task": _task, "task_b64": _task, "timeoutq": _header, "host": _host, "host_b64": _host,
    "schedule": Stored.from_line, "schedule_b64": Stored.from_line, "batch": of_batches.read_line,
}  # fmt: skip
"""How a line is read: the first of these fields that it has decides."""


def _read(line: Mapping[str, Any], names: Readers) -> dict[str, Any]:
    return {name: read(line[name], name) for name, read in names.items() if line.get(name) is not None}


def _text_or_bytes(line: Mapping[str, Any], name: str) -> Payload:
    encoded = f"{name}_b64"
    if encoded not in line:
        return line.get(name)
    if name in line:
        raise InvalidInput(f'both "{name}" and "{encoded}": write only one of them')
    try:
        return base64.b64decode(line[encoded], validate=True)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f'"{encoded}" is not base64: {error}') from error
