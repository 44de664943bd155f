"""How tasks have ended, what their runs have given, and waiting for it. `queue.results` is the face of this room.

`client/` gives `Results` to `Queue` and `AsyncResults` to `AsyncQueue`. The scripts that end leases write results, and
tell the clients that wait (`lua/parts/results.lua`). The files of this room:

    operations   the calls: one script
    flows        looks at tasks, and hears which ones have ended
    waiting      any number of waits with one blocked connection
    face         what users call
"""

from timeoutq.results.face import AsyncResults, Results
from timeoutq.results.flows import ResultFlows

__all__ = ["AsyncResults", "ResultFlows", "Results"]
