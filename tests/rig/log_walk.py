"""Random calls on a queue with an event log: after each call, the fold of the log has to be the sets on the server.

python -m tests.rig.log_walk --steps 20000 [--kind polite] [--server redis] [--seed 7]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.rig.library import Side
from tests.rig.library_calls import SETTINGS, WEIGHTS, Args, World
from tests.rig.servers import redis_server, valkey
from timeoutq.rooms.events import Fold, event_of
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.model import State, text

KINDS = ("plain", "polite", "sharded")
PART = 400
"""The steps on one queue: what happens for the first time in a queue happens often so."""
SHARDS = 3
LONG = [f"long{n}".ljust(1024, "x") for n in range(500)]
"""A call with these moves half a MiB of ids, which several entries tell."""


class Differs(AssertionError):
    """The log does not say what the sets say."""


@dataclass(slots=True)
class Verdict:
    steps: int = 0
    entries: int = 0
    moves: int = 0
    did: Counter[str] = field(default_factory=Counter[str])
    ways: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: Verdict) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Logged(World):
    """A client of a queue that logs everything, and keeps the ids of its done tasks."""

    known = SETTINGS | {"keep_done": ["forever", "no", "t60000", "n5"], "events": ["64000000 all", "10000000 all"]}
    weights = WEIGHTS | {"purge": 0}
    long = LONG

    def put(self) -> Args:
        return [self.call_id(), 0, len(self.long), *self.long] if self.happens(0.01) else super().put()

    def forget(self) -> Args:
        return [self.call_id(), 0, *self.long] if self.happens(0.05) else super().forget()


class Walk:
    """A walk on one queue, or on the shards of one; `step` makes one call, and compares."""

    def __init__(self, url: str, name: str, kind: str, seed: int) -> None:
        self.chance, self.side, self.is_sharded = random.Random(seed), Side(url), kind == "sharded"
        names = [f"{name}:{shard}" for shard in range(SHARDS)] if self.is_sharded else [name]
        self.worlds = [Logged(self.chance, self.side.client, one) for one in names]
        self.places, self.fold, self.verdict = dict.fromkeys(names, "-"), Fold(), Verdict()
        politeness = self.chance.choice(["0 1", "1000 1", "500 2"]) if kind == "polite" else "off"
        for shard, world in enumerate(self.worlds):
            # each task has one shard
            world.ids, world.long = [f"{id}#{shard}" for id in world.ids], [f"{id[:-1]}{shard}" for id in LONG]
            world.callback = f"callback#{shard}"
            self.call(world, "configure", [world.call_id(), 0, "events", "64000000 all", "politeness", politeness])

    def step(self) -> None:
        world = self.chance.choice(self.worlds)
        world.passes()
        verb, args = world.step()
        self.call(world, verb, args)
        self.verdict.did[verb] += 1
        self.verdict.steps += 1

    def call(self, world: World, verb: str, args: Args) -> None:
        self.side.set_clock(world.now, 0)
        self.side.call(world.queue, verb, args)
        self.compare(verb)

    def compare(self, what: str) -> None:
        """Fold what is new in the log, and compare with the sets. Raises `Differs`."""
        for shard, name in enumerate(self.places):
            after = self.places[name]
            # the plain command: an own client of Redis reads the log as well
            words = "XRANGE", f"timeoutq:{{{name}}}:events", after if after == "-" else f"({after}", "+"
            for id, told in self.side.client.execute_command(*words):
                fields = [word for pair in told.items() for word in pair] if isinstance(told, dict) else told
                event = event_of(id, fields, shard if self.is_sharded else None)
                self._look(event.moves, what, len(b"".join(fields)))
                self.fold.add(event)
                self.places[name] = id.decode()
                self.verdict.entries += 1
        if not self.fold.is_whole:
            raise Differs(f"after {what}: the log does not tell of all")
        kept, folded = self._kept(), self.fold.states
        if kept != folded:
            lines = [f"{state}: only in the set {kept[state] - folded[state]!r}, only in the log "
                     f"{folded[state] - kept[state]!r}" for state in State if kept[state] != folded[state]]  # fmt: skip
            raise Differs(f"after {what}: " + "; ".join(lines))

    def _look(self, moves: Mapping[str, Sequence[str]], what: str, size: int) -> None:
        # each task was where the entry says that it was
        for way, tasks in moves.items():
            was = State(left) if (left := way.partition(">")[0]) != "-" else None
            if wrong := [task for task in tasks if self.fold.where(task) is not was]:
                raise Differs(f"after {what}: {way} names {wrong!r}, which were elsewhere")
            self.verdict.ways[way] += len(tasks)
            self.verdict.moves += len(tasks)
            if not tasks or len(set(tasks)) != len(tasks):
                raise Differs(f"after {what}: {way} names {tasks}")
        if size > 70_000:
            raise Differs(f"after {what}: an entry has {size:,} bytes")

    def _kept(self) -> dict[State, set[str]]:
        found: dict[State, set[str]] = {state: set() for state in State}
        for name in self.places:
            pipe, key = self.side.client.pipeline(transaction=True), f"timeoutq:{{{name}}}:"
            for state in State:
                _ = pipe.zrange(key + state, 0, -1) if state is State.SCHEDULED else pipe.smembers(key + state)
            for state, tasks in zip(State, pipe.execute(), strict=True):
                found[state] |= set(map(text, tasks))
        return found


def walk(url: str, kind: str, steps: int, seed: int) -> Verdict:
    """Walk so many steps, on several queues one after another. Raises `Differs`, with the seed of the queue."""
    total = Verdict()
    for part, first in enumerate(range(0, steps, PART)):
        own = seed * 1_000_003 + part
        one = Walk(url, f"log.{kind}.{part}", kind, own)
        try:
            for _ in range(min(PART, steps - first)):
                one.step()
        except AssertionError as error:
            raise Differs(f"{kind}, seed {own}, step {one.verdict.steps}: {error}") from error
        finally:
            one.side.client.flushall()
            one.side.client.close()
        total.add(one.verdict)
    return total


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="on each kind of queue and each server")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--server", choices=("valkey", "redis"))
    parser.add_argument("--seed", type=int, default=1)
    given: Any = parser.parse_args(words)
    programs, good = {"valkey": valkey, "redis": redis_server}, True
    for server in [given.server] if given.server else programs:
        with EmbeddedServer(binary=programs[server]()) as running:
            for kind in [given.kind] if given.kind else KINDS:
                began = time.monotonic()
                try:
                    found = walk(running.url, kind, given.steps, given.seed)
                except Differs as differs:
                    good = False
                    print(f"{server}, {kind}: DIFFERS: {differs}", flush=True)
                    continue
                print(
                    f"{server}, {kind}: {found.steps:,} steps, {found.entries:,} entries, {found.moves:,} moves of "
                    f"{len(found.ways)} kinds, 0 differences, {time.monotonic() - began:.0f} s\n"
                    f"  {json.dumps(found.ways)}\n  {json.dumps(found.did)}",
                    flush=True,
                )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
