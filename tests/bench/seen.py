"""The cost of the memory of done tasks: in bytes and in the server's time, as fingerprints and as a plain set."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.bench.ground import Figure, Ground, Readings, cpu_ms, measure
from timeoutq.cli.bench import ID, ids
from timeoutq.client import Queue
from timeoutq.server import scripts
from timeoutq.server.calls import BATCH, Argument, Command
from timeoutq.server.embedded import EmbeddedServer

FLUSH = 40
"""How many scripts are sent before the replies are read."""
CHECKS = 400
"""How many scripts ask which ids are done."""
TRIES = 300
"""How many scripts are timed one by one; the longest one counts."""
LOOKED = 1000
"""How many sets of fingerprints the server is asked about: how does it keep them?"""
PLAIN_BYTES = 150
"""A task takes fewer bytes than this in a plain set, also while the set grows."""

_DOOR = """
verb('door', {flags = {'allow-oom'}}, function()
  local ids = {unpack(args, 4)}
  if args[3] == 'add' then done.keep(ids, {}, {}) else done.among(ids) end
  return done.count()
end)
"""


class _Scene:
    def __init__(self, ground: Ground, queue: Queue) -> None:
        self.ground = ground
        self.queue = queue
        ground.bare.execute_command("FUNCTION", "LOAD", "REPLACE", scripts.library("timeoutq_bench", _DOOR))
        self._head: Command = ("FCALL", "timeoutq_bench_door", 1, queue.operations.key("meta"), "", 0)

    def send(self, act: str, batches: Iterator[list[str]], total: int) -> float:
        """Send batches of ids, to add them or to ask for them; give the µs of server CPU for each id."""
        sent, spent = 0, cpu_ms(self.ground.info("cpu"))
        pipe = self.ground.bare.pipeline(transaction=False)
        for number, some in enumerate(batches, 1):
            pipe.execute_command(*self._head, act, *some)
            sent += len(some)
            if number % FLUSH == 0 or sent == total:
                pipe.execute()
        return (cpu_ms(self.ground.info("cpu")) - spent) * 1000 / max(1, sent)

    def time_one(self, command: Command) -> float:
        """Send one script; give how long it took, ms of server CPU."""
        pipe = self.ground.bare.pipeline(transaction=False)
        pipe.execute_command("INFO", "cpu")
        pipe.execute_command(*command)
        pipe.execute_command("INFO", "cpu")
        before, _, after = pipe.execute()
        return cpu_ms(after) - cpu_ms(before)

    def add_one(self, some: list[Argument]) -> float:
        """Add these ids in one script; give how long it took, ms of server CPU."""
        return self.time_one((*self._head, "add", *some))

    def rows(self) -> float:
        """Give the percentage of the sets of fingerprints that are plain rows of numbers."""
        key, bare = self.queue.operations.key, self.ground.bare
        kinds: list[Any] = [
            bare.execute_command("OBJECT", "ENCODING", key(f"seen:{number}")) for number in range(LOOKED)
        ]
        found = [kind for kind in kinds if kind is not None]
        return 100 * found.count(b"intset") / max(1, len(found))


def _memory(ground: Ground) -> tuple[int, int]:
    used = ground.used_memory()
    time.sleep(0.2)  # what is resident is counted ten times a second
    return used, int(ground.info("memory")["used_memory_rss"])


def _take(ground: Ground, kind: str) -> dict[str, float | None]:
    count = ground.sizes.seen
    end = "" if kind == "compact" else "-plain"
    with ground.queue(keep_done="compact" if kind == "compact" else "forever") as queue:
        queue.stats()
        scene = _Scene(ground, queue)
        used, resident = _memory(ground)
        batches = (ids(min(BATCH, count - at), at) for at in range(0, count, BATCH))
        found: dict[str, float | None] = {f"seen-add{end}": scene.send("add", batches, count)}
        used_after, resident_after = _memory(ground)
        found[f"seen-bytes{end}"] = (used_after - used) / count
        found[f"seen-resident{end}"] = (resident_after - resident) / count
        dice = random.Random(1)
        # one half of these are done
        asked = ([ID % dice.randrange(2 * count) for _ in range(BATCH)] for _ in range(CHECKS))
        found[f"seen-check{end}"] = scene.send("check", asked, CHECKS * BATCH)
        if kind == "compact":
            found["seen-rows"] = scene.rows()
            more = (ids(BATCH, 2 * count + at * BATCH) for at in range(TRIES))
            found["seen-longest"] = max(scene.add_one([*some]) for some in more)
            purge = queue.operations.purge()
            found["seen-purge"] = max(scene.time_one(purge.command()) for _ in range(TRIES))
    return found


@contextmanager
def _fresh(ground: Ground) -> Iterator[Ground]:
    if not ground.embedded:
        yield ground
        return
    with EmbeddedServer() as server, Ground(server.url, ground.sizes) as other:
        yield other


_FIGURES = (
    ("bytes", "memory of a done task", "bytes", "≤ 10"),
    ("resident", "resident memory of a done task, from 10 million tasks on", "bytes", "≤ 13"),
    ("add", "server CPU to make a task done, 500 in a script", "µs", None),
    ("check", "server CPU to find out whether a task is done, 500 in a script", "µs", None),
)


@measure(
    "seen",
    *(Figure(f"seen-{name}-plain", f"{about}, as an id in a plain set", unit) for name, about, unit, _ in _FIGURES),
    *(
        Figure(f"seen-{name}", f'{about}, with keep_done="compact"', unit, f"seen-{name}-plain", target)
        for name, about, unit, target in _FIGURES
    ),
    Figure("seen-rows", "sets of fingerprints that are kept as plain rows", "%", None, "≥ 100"),
    Figure("seen-longest", "the longest script that makes 500 tasks done", "ms", None, "≤ 50"),
    Figure("seen-purge", "the longest script of a purge", "ms", None, "≤ 50"),
    once=True,
    heavy=True,
    asked=True,
)
def seen(ground: Ground) -> Readings:
    with _fresh(ground) as other:
        found = _take(other, "compact")
    if ground.room() > ground.sizes.seen * PLAIN_BYTES + 500_000_000:
        with _fresh(ground) as other:
            found |= _take(other, "plain")
    return found
