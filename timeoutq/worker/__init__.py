"""Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in threads.

`timeoutq worker` and user code start a `Worker`. From here, `Worker`, `Tally` and `load_handler` are imported.
"""

from timeoutq.worker.worker import Ledger, Tally, Worker, load_handler

__all__ = ["Ledger", "Tally", "Worker", "load_handler"]
