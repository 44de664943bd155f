"""Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in threads.

`timeoutq worker` and user code start a `Worker`.

The modules, in reading order: each imports only from those above it.

    handlers    What a handler is and what its results mean: kinds of handlers, their parameters, their results. No
                Redis here.
    found       Turns the `put=` of an `Ack` into a list of ids and payloads.
    lifespan    What lives as long as a worker, such as connections: opened before its first claim, closed after its
                last handler.
    signals     SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one per
                worker.
    unending    Leaves behind asyncio tasks that were cancelled and do not end, so that the event loop can end without
                them.
    forks       A handler may fork its process; the copy of a worker must not go on as a second worker. This module
                finds the copies.
    machine     What a worker gets from its machine: threads, what threads wait with, and a client that blocks a thread.
    loopwatch   Warns when a handler blocks the event loop.
    cleaner     Takes back expired leases, makes due tasks ready, puts due ticks, and sleeps exactly until the next of
                these is due.
    refusals    How often in a row handlers have released tasks of a host to block the host, and when to warn. No I/O.
    health      Whether a worker process is healthy: a decision from a few moments, without I/O and without a clock.
    pace        Decides how many tasks a worker claims and holds, from the speed of its handlers and of exchanges. No
                I/O.
    suspects    Tasks that may kill this process: each runs alone, so that no other lease can be lost with the process.
                No I/O.
    stopping    Whether a worker is to stop, and how: it goes on, it drains, or it gives everything back at once. No
                I/O.
    voice       What a worker says in the log: each line carries its queue, its worker, and the task that it is about.
    runs        One run of a handler, and the longest time that the run may take. No I/O.
    failures    What a failed attempt means: when the task is tried again, what is kept of the error, and the line in
                the log.
    ends        The ends of leases on their way to the queue: acks, failures and releases gather here and become calls.
    followers   Asks servers for what must be there before an ack: the call that follows in another queue, or a limit.
    losses      Asks why leases were lost, and logs the answers: in asyncio tasks of its own, so that nothing else
                waits.
    desk        The desk of a worker holds its leases: `took` brings a lease to the desk, and every end of a lease goes
                through it.
    crews       Who runs handlers: a crew of asyncio tasks for `async def`, one of threads for `def` (in `threads.py`).
    threads     A crew of threads, which call `def` handlers; they are started as they are needed, and live as long as
                the worker.
    interrupts  Ends what does not end by itself: handlers that lost their lease or have no time left, and leases that
                nobody ends.
    places      One queue of a worker, as a handler sees it that is an object and `Serves`.
    sources     A queue, or a part of one, as the pump sees it: whether it has ready tasks, how many may still come, at
                which pace.
    exchanges   Exchanges with a part of the queue: each sends ends of leases and claims new ones. Ends go until they
                are answered.
    beside      What runs beside the pump of a worker: its cleaner and its watches. Each of these is an asyncio task.
    sharing     How the queues of one worker share its handlers: in strict order, or by weights. No I/O.
    lanes       A lane is one queue of a worker: what the worker claims from the queue, and its exchanges with the
                queue.
    pump        The pump of a worker: it goes round the lanes, has each claim and send what it can, runs suspects alone,
                and drains.
    tending     Which parts of its queue a worker tends, and which part it helps: only for a queue that has several.
    beats       The heartbeats of a worker with several queues: one thread for all of them, with an event loop of its
                own.
    closing     The end of a worker: it stops what runs, sends the last ends, and gives back what it still holds.
    vitals      What a worker shows of its health: it writes its `Signs` again and again, while it lives, if anybody
                wants to know.
    worker      The face of a worker: its settings, `run`, `stop`, and what it says of itself.
    processes   The processes of a worker: a supervisor starts them, replaces those that die, and reports what they were
                running.
"""
