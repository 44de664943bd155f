"""What `queue.results` does: looks how tasks have ended, and hears which ones have just ended. No I/O.

The scripts push the id of each task that ends into a list of each client that waits for the task. So a client needs one
connection that is blocked on its list, however many tasks it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from timeoutq.rooms.results import operations
from timeoutq.server.calls import BATCH
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.sending import Bell, Flow, Talk, answer
from timeoutq.words import arguments
from timeoutq.words.model import Ended, Tasks


def look(talk: Talk, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
    """Tell how tasks have ended, None for each that has not; with `client`, note that it waits for those."""
    found: list[Ended | None] = []
    while len(found) < len(ids):
        call = operations.look(talk.operations, ids[len(found) : len(found) + BATCH], client)
        found += yield from answer(talk, call, UNCONFIRMED)
    return found


def hear(talk: Talk, client: str, seconds: float) -> Flow[list[bytes]]:
    """Wait until tasks end that this client waits for, at most `seconds`; give their ids, none if none has ended."""
    key = operations.answers(talk.operations, client)
    heard: Any = yield Bell(key, seconds, talk.at, [("LPOP", key, BATCH)])
    if isinstance(heard, BaseException):
        raise talk.server.explain(heard)
    first, more = cast("tuple[Any, Any]", heard)
    for reply in (first, more):
        if isinstance(reply, BaseException):
            raise talk.server.explain(reply)
    return ([first[1]] if first else []) + (more or [])


def _ended(looking: Flow[list[Ended | None]]) -> Flow[dict[str, Ended]]:
    return {ended.task: ended for ended in (yield from looking) if ended is not None}


class ResultFlows:
    """The flows about the results of a plain queue; those of a sharded queue ask the shards of the tasks."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    def ended(self, *tasks: Tasks) -> Flow[dict[str, Ended]]:
        """Tell how these tasks have ended, any number of them; those that have not ended are left out.

        A task has ended when it is done or failed, or when no state holds it. The result of the last run is kept for a
        time, also after the task itself is forgotten by `keep_done`.
        """
        return _ended(self.look(arguments.ids(tasks)))

    def look(self, ids: Sequence[bytes], client: str = "") -> Flow[list[Ended | None]]:
        """Tell how tasks have ended, None for each that has not; with `client`, note that it waits for those."""
        return look(self.talk, ids, client)

    def hear(self, ids: Sequence[bytes], client: str, seconds: float) -> Flow[list[bytes]]:
        """Wait until tasks end that this client waits for (at least these), at most `seconds`; give their ids."""
        return hear(self.talk, client, seconds)
