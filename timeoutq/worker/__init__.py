"""Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in threads.

`timeoutq worker` and user code start a `Worker`. The files of this room, each with what it is for:

    pace         from rates and times, how many tasks to claim and to hold
    suspects     tasks that may kill this process run alone
    stopping     the orders to drain, or to stop at once
    voice        what the worker says in the log
    runs         a handler at work, and the time that it has at most
    failures     what a failed attempt means: when the task is tried again
    ends         acks, failures and releases become calls
    long_acks    acks too long for one exchange, one at a time
    followers    what must be there before an ack: calls that follow in other queues
    losses       why leases were lost
    desk         what this worker holds: every end of a lease goes through it
    crews        who runs `async def` handlers: asyncio tasks
    threads      who runs `def` handlers: threads
    interrupts   ends handlers and leases that do not end by themselves
    places       one queue, as a handler sees it that is an object
    sources      a part of the queue as the pump sees it
    exchanges    ends go to the queue, claimed tasks come
    beside       what runs beside the pump
    sharing      how several queues share the handlers of a worker
    lanes        one queue of a worker: its claims and exchanges
    pump         goes round the lanes, and drains
    tending      of a queue with several parts: which of them this worker tends
    beats        the heartbeats of several queues, in one thread
    closing      the end of a worker
    worker       settings, run(), stop(), peers
"""

from timeoutq.worker.desk import Ledger, Tally
from timeoutq.worker.worker import Worker, load_handler

__all__ = ["Ledger", "Tally", "Worker", "load_handler"]
