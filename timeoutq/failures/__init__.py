"""Failed tasks grouped by kind: what has failed how often, and to retry or forget all tasks of one kind.

`queue.failures` is the face of this room. `client/` gives `Failures` to `Queue` and `AsyncFailures` to `AsyncQueue`.
The scripts group each task when it is given up (`lua/parts/kinds.lua`). The files of this room:

    operations   the call, and what users learn of a kind
    flows        one for each method: checks the arguments, sends the calls
    face         what users call
"""

from timeoutq.failures.face import AsyncFailures, Failures
from timeoutq.failures.operations import FailureKind, Moved

__all__ = ["AsyncFailures", "FailureKind", "Failures", "Moved"]
