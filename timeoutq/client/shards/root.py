"""The root of a queue over several shards: the record that says how many shards there are, and how tasks are routed.

The record is the key `timeoutq:{crawl}:meta`, as a plain queue of this name would have it, with a schema of its own, so
that a plain client refuses it. The signs of life of workers are in keys of their own, which begin with
`timeoutq:{crawl}:shards:`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from timeoutq.client.shards.route import MOST, USUAL, By, key_of, route, stem, tags
from timeoutq.server.calls import Command
from timeoutq.server.cluster import slot_of
from timeoutq.verbs.confirming import Durable
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, SchemaMismatch
from timeoutq.words.model import Lease, State

SCHEMA = b"s1"
ROUTE = "v1"
FIELDS = ("schema", "shards", "groups")
FRESH = 1.0
"""Seconds after which a client that puts tasks which are there already looks at the record again."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a queue over shards."""

    shards: int
    by: By
    grouped: bool = False
    """Whether tasks with groups were put: then the shard of an id is not known from the id alone."""

    @property
    def words(self) -> str:
        """The shards and the route, as they are written."""
        return f"{self.shards} {self.by} {ROUTE}"


def count(value: object) -> int:
    """Check a number of shards."""
    found = arguments.count(value, "shards", 1, MOST)
    if found == 1:
        raise InvalidInput("a queue of one shard is a plain queue: use Queue, or open_queue(name, shards=1)")
    return found


def by(value: object) -> By:
    """Check what tasks are routed by."""
    if value not in get_args(By):
        raise InvalidInput(f'by must be "host" or "id", not {arguments.shown(value)}')
    return cast("By", value)


def read(name: str, schema: Any, shards: Any, grouped: Any) -> Record | None:
    """Read the record from its fields; None if there is none. Raises `InvalidInput` if this is a plain queue."""
    if schema is None or (schema == SCHEMA and shards is None):
        return None  # a client may have died before it wrote the number of shards: the next client writes it
    if schema != SCHEMA:
        if schema[:1] == b"s":
            raise SchemaMismatch(f"queue {name} was divided into shards by a later timeoutq: upgrade this one")
        raise InvalidInput(
            f"queue {name} is there already and is not sharded: open it with Queue or AsyncQueue; to divide it, "
            f"export it and import it into another queue with shards, such as {name}-{USUAL}; compare the two "
            "(timeoutq diff), and purge the old one then"
        )
    found = re.fullmatch(r"(\d{1,4}) (host|id) (\w+)", shards.decode("latin-1") if isinstance(shards, bytes) else "")
    if found is None or not 1 < int(found[1]) <= MOST:
        raise InvalidInput(
            f"somebody has changed the field shards of key timeoutq:{{{name}}}:meta by hand: {shards!r:.80}"
        )
    if found[3] != ROUTE:
        raise SchemaMismatch(
            f"queue {name} routes its tasks by {found[3]}, and this timeoutq knows route {ROUTE}: upgrade timeoutq"
        )
    return Record(int(found[1]), cast("By", found[2]), bool(grouped))


class Shards:
    """The shards of a queue, for all of its flows. Until the record was read, the number of shards is a guess."""

    def __init__(self, plain: Talk, wanted: int | None = None, by: By | None = None) -> None:
        """Prepare; `plain` is the talk with a plain queue of this name, `wanted` and `by` are the caller's."""
        self.name = plain.operations.name
        slot, operations = slot_of(self.name), Operations(self.name, f"timeoutq:{{{self.name}}}:shards:")
        # whether the queue is durable is told by each shard; the root has no such setting
        self.root = replace(plain, operations=operations, at=slot, durable=Durable())
        # nothing but the record is read or written by the plain names
        self._plain, self._meta = replace(plain, at=slot), plain.operations.key("meta")
        self.wanted, self.by = wanted, by
        """What the caller has said; once the record was seen, what it says."""
        self.made = False
        """Whether the record was seen."""
        self._seen_at = 0.0
        self.talks: tuple[Talk, ...] = ()
        self._meet(Record(wanted or USUAL, by or "host"))

    def _meet(self, record: Record) -> None:
        self.record = record
        if len(self.talks) != record.shards:
            self.talks = tuple(self._talk(shard, tag) for shard, tag in enumerate(tags(self.name, record.shards)))

    def _talk(self, shard: int, tag: str) -> Talk:
        operations, clock = Operations(self.name, stem(tag)), self.root.clock.another()

        def nonce() -> bytes:  # a token says in which shard its leases are
            return b"%s@%d" % (self.root.nonce(), shard)

        return replace(self.root, operations=operations, durable=Durable(), clock=clock, nonce=nonce, at=slot_of(tag))

    # ---- where

    def of_task(self, task: bytes, group: bytes | None = None) -> int:
        """Give the shard of a task."""
        return route(key_of(task, group, self.record.by), self.record.shards)

    def of_host(self, host: object) -> Talk:
        """Give the talk with the shard of a host, or of a group."""
        return self.talks[route(arguments.host(host), self.record.shards)]

    def of_lease(self, lease: Lease) -> int:
        """Give the shard of a lease."""
        shard = lease.shard
        if shard is None or shard >= len(self.talks):
            raise InvalidInput(
                f"the lease on {lease.task!r} is not of queue {self.name!r}, whose tokens end with @ and a shard"
            )
        return shard

    def talk_of(self, lease: Lease) -> Talk:
        """Give the talk with the shard of a lease."""
        return self.talks[self.of_lease(lease)]

    def elsewhere(self, ids: Sequence[bytes], places: Iterable[int]) -> dict[int, list[int]]:
        """Give for each shard the places of those ids, among these, that are not at home there."""
        homes = {at: self.of_task(ids[at]) for at in places}
        others = {shard: [at for at, home in homes.items() if home != shard] for shard in range(len(self.talks))}
        return {shard: chosen for shard, chosen in others.items() if chosen}

    # ---- the record

    def look(self) -> Flow[Record | None]:
        """Read the record; None if there is none yet. Raises `InvalidInput` if the caller wants another."""
        (fields,) = yield from ask(self._plain, [("HMGET", self._meta, *FIELDS)])
        found = read(self.name, *fields)
        self._take(found)
        return found

    def _take(self, found: Record | None) -> None:
        self.made, self._seen_at = found is not None, time.monotonic()
        if found is None:
            return
        wanted, by = self.wanted or found.shards, self.by or found.by
        if (wanted, by) != (found.shards, found.by):
            # whoever puts again looks at the record before anything is written
            self.made = False
            raise InvalidInput(
                f"queue {self.name} has {found.shards} shards by {found.by}, not {wanted} by {by}, and keeps them: "
                "leave out shards= and by=, or export the queue and import it into another one"
            )
        self.wanted, self.by = found.shards, found.by
        self._meet(found)

    def make(self, *, grouped: bool = False) -> Flow[None]:
        """Make the record, if there is none; with `grouped`, note in it that tasks with groups are put."""
        grouped = grouped and self.record.by == "host"
        if self.made and self.record.grouped >= grouped:
            return
        tasks = [self._plain.operations.key(state.value) for state in State]
        first: list[Command] = [("EXISTS", *tasks), ("HSETNX", self._meta, "schema", SCHEMA)]
        record: Command = ("HMGET", self._meta, *FIELDS)
        there, _, fields = yield from ask(self._plain, [*first, record])
        read(self.name, *fields)  # a plain queue is refused before anything else is written
        if there:
            yield from self.unmake()
            raise InvalidInput(f"queue {self.name} has tasks already and is not sharded: open it with Queue")
        commands: list[Command] = [("HSETNX", self._meta, "shards", self.record.words)]
        if grouped:
            commands.append(("HSET", self._meta, "groups", "1"))
        *_, fields = yield from ask(self._plain, [*commands, record])
        self._take(read(self.name, *fields))

    def confirm(self, *, added: bool) -> Flow[None]:
        """After a put, make the record again if somebody has purged the queue meanwhile."""
        if added or time.monotonic() - self._seen_at > FRESH:
            grouped = self.record.grouped
            if (yield from self.look()) is None or self.record.grouped < grouped:
                yield from self.make(grouped=grouped)

    def may_be_elsewhere(self) -> Flow[bool]:
        """Say whether an id may have been put with a group, and so be in another shard than the id alone says."""
        if self.record.by == "host" and not self.record.grouped:
            yield from self.look()
        return self.record.grouped

    def keep(self, field: str, value: bytes) -> Flow[bytes]:
        """Write a field of the record, which is made if there is none, unless somebody has; give what it is then."""
        yield from self.make()
        (kept,) = yield from ask(self._plain, [("HGET", self._meta, field)])
        if kept is None:
            commands = [("HSETNX", self._meta, field, value), ("HGET", self._meta, field)]
            _, kept = yield from ask(self._plain, commands)
        return bytes(kept)

    def unmake(self) -> Flow[None]:
        """Remove the record."""
        yield from ask(self._plain, [("UNLINK", self._meta)])
        self.made = False
