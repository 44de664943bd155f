"""The operations on results: which script, which arguments, how to read the reply."""

from __future__ import annotations

from collections.abc import Sequence

from timeoutq.server.calls import Call
from timeoutq.verbs import replies
from timeoutq.verbs.operations import Operations
from timeoutq.words.model import Ended


def look(operations: Operations, ids: Sequence[bytes], client: str = "") -> Call[list[Ended | None]]:
    """Build the call that tells how up to 500 tasks have ended, and notes for the others that this client waits."""
    return operations.call("await", [client, *ids], lambda reply: replies.ended(ids, reply))


def answers(operations: Operations, client: str) -> str:
    """Give the key of the list into which the scripts push the tasks that have ended, for this client."""
    return operations.key(f"answers:{client}")
