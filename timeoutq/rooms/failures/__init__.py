"""Failed tasks grouped by kind: what has failed how often, and to retry or forget all tasks of one kind.

`queue.failures` is the face of this room. `client/` gives `Failures` to `Queue` and `AsyncFailures` to `AsyncQueue`.
The scripts group each task when it is given up (`lua/parts/kinds.lua`).

The modules, in reading order: each imports only from those above it.

    operations  The operation on kinds of failures: which script, which arguments, how to read the reply; and what users
                learn.
    flows       `queue.failures`: what it does, and its two faces, `Failures` and `AsyncFailures`. No I/O.
"""

from timeoutq.rooms.failures.flows import AsyncFailures, Failures
from timeoutq.rooms.failures.operations import FailureKind, Moved

__all__ = ["AsyncFailures", "FailureKind", "Failures", "Moved"]
