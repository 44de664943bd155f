"""How tasks have ended, what their runs have given, and waiting for it. `queue.results` is the face of this room.

`client/` gives `Results` to `Queue` and `AsyncResults` to `AsyncQueue`. The scripts that end leases write results, and
tell the clients that wait (`lua/parts/results.lua`).

The modules, in reading order: each imports only from those above it.

    operations  The operations on results: which script, which arguments, how to read the reply.
    flows       What `queue.results` does: looks how tasks have ended, and hears which ones have just ended. No I/O.
    waiting     Any number of waits for tasks to end, with one blocked connection: for threads, and for an event loop.
"""

from timeoutq.rooms.results.flows import ResultFlows
from timeoutq.rooms.results.waiting import AsyncResults, Results

__all__ = ["AsyncResults", "ResultFlows", "Results"]
