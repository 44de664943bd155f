"""Carries batches that are over from one queue to another: for an export, and back in, in bounded memory.

The commands export and import call this module, after all tasks: `transfer.py` carries these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from timeoutq.client import Queue
from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.rooms.batches import flows, operations
from timeoutq.rooms.batches.operations import Joined, Sealed
from timeoutq.server.calls import BATCH
from timeoutq.verbs import reads, sending
from timeoutq.verbs.sending import Talk
from timeoutq.watch.transfer import Met
from timeoutq.words.model import raw


def batches(queue: AnyQueue) -> Iterator[list[Joined | Sealed]]:
    """Give the batches of a queue that are over, each once: its tasks, in their order, then what it was sealed with."""
    met = Met()
    try:
        for talk in talks_of(queue):
            following: str | None = reads.START
            while following is not None:
                call = operations.seals(talk.operations, following, BATCH)
                cursor, found = queue.run(sending.answer(talk, call))
                following = None if cursor == reads.START else cursor
                new = set(met.new(one.batch.encode() for one in found))
                for one in found:
                    if one.batch.encode() in new:
                        yield from _members(queue, talk, one.batch)
                        yield [one]
    finally:
        met.close()


def _members(queue: AnyQueue, talk: Talk, name: str) -> Iterator[list[Joined | Sealed]]:
    first, count = 1, 1
    while first <= count:
        call = operations.members(talk.operations, name, first, first + BATCH - 1)
        count, found = queue.run(sending.answer(talk, call))
        yield [Joined(name, raw(member.task), member.end) for member in found]
        first += BATCH


def restore_batches(queue: Queue, items: Sequence[Joined | Sealed]) -> tuple[int, list[str]]:
    """Bring up to 500 lines of batches in, in their order, after the tasks of these batches.

    What is there stays, so this may be repeated. Give how many tasks have joined, and the batches that the queue does
    not take, because it has sealed others of the same names.
    """
    new, refused, joined = 0, list[str](), list[Joined]()
    for item, following in zip(items, [*items[1:], None], strict=True):
        if isinstance(item, Joined):
            joined.append(item)
            if isinstance(following, Joined | Sealed) and following.batch == item.batch:
                continue
        seal = item if isinstance(item, Sealed) else None
        call = operations.restore_batch(queue.operations, queue.token, item.batch, joined, seal)
        count = queue.run(sending.answer(queue.talk, call))
        new += max(0, count)
        joined = []
        if count < 0 and seal is not None:
            refused.append(seal.batch)
    return new, refused


def open_batches(queue: AnyQueue) -> list[str]:
    """Name batches of a queue that are not over, ten thousand at most."""
    return sorted({one.name for talk in talks_of(queue) for one in queue.run(flows.some(talk)) if not one.is_over})
