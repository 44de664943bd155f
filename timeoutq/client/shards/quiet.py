"""Whether a sharded queue is drained: an exact answer, though the shards are asked one after another. No I/O.

A shard that is looked at later may send a task to a shard that was quiet before, so each shard is looked at twice. If
all shards are quiet both times, and their counters are the same, there is a moment between the first looks and the
second looks at which all shards were quiet. A task on its way is not missed: the tasks that a handler found are put
before the ack of its own task, whose shard is busy until then. `python -m tests.rig.drained` tries this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timeoutq.client.shards.gathering import each
from timeoutq.client.shards.root import Shards
from timeoutq.verbs.sending import Flow, Talk, answer

LOOKS = 10
"""How often all shards are looked at while they are quiet but their counters change; cleaners change counters, too."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at one shard; `quiet` is the answer that `drained` gives for a plain queue."""

    quiet: bool
    began: object = None
    """All counters, at the beginning of the look."""
    ended: object = None
    """All counters, at its end. A look takes several calls if tasks wait for hosts whose budget is used up."""


def are_quiet(looks: Sequence[Look]) -> bool:
    """Say whether all shards were quiet, each when it was looked at."""
    return all(look.quiet for look in looks)


def agree(before: Sequence[Look], after: Sequence[Look]) -> bool:
    """Say whether two looks at each shard show that all of them were quiet at one moment."""
    same = all(first.began == second.ended for first, second in zip(before, after, strict=True))
    return same and are_quiet(before) and are_quiet(after)


def _look(talk: Talk, before_ms: int | None) -> Flow[Look]:
    cursor, began = b"0", None
    while True:
        quiet, cursor, counters = yield from answer(talk, talk.operations.drained(before_ms, cursor, counted=True))
        began = counters if began is None else began
        if not quiet or cursor == b"0":
            return Look(quiet, began, counters)


def drained(shards: Shards, before_ms: int | None) -> Flow[bool]:
    """Say whether the queue is drained; tasks that are scheduled count if they are due before `before_ms`."""
    last: list[Look] | None = None
    for _ in range(LOOKS):
        looks = yield from each(shards, lambda talk: _look(talk, before_ms))
        if not are_quiet(looks):
            return False
        if last is not None and agree(last, looks):
            return True
        last = looks
    return False
