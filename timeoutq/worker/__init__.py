"""Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in threads.

`timeoutq worker` and user code start a `Worker`. The way of a task:

    claim   `Pump` has each `QueueWork.begin` build a claim and start an exchange with a shard (`Exchanges.make`); its
            leases come to `QueueWork._receive`, which gives them to `Leases.took` and to the crew (`Crew.take`)
    run     `TaskCrew._consume`, or `ThreadCrew._serve`, calls the handler, and tells `Leases.done` or
            `Leases.finished` how it ended
    end     the end waits in `Ends` for the next exchange, which sends it with the next claim; when the queue has
            answered, `Leases.settled` lets go of the lease

The modules, in reading order: each imports only from those above it.

    handlers    Handlers: their kinds, their parameters, and the meaning of their results. No Redis here.
    found       Turns the `put=` of an `Ack` into a list of ids and payloads.
    lifespan    The lifespan of a worker: opened before its first claim, closed after its last handler.
    signals     SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one per
                worker.
    forks       Copies of a worker: a handler may fork its process, and the copy must not go on as a second worker.
    worker_log  The log lines of a worker: each carries its queue, its worker, and the task that it is about.
    runs        One run of a handler, its longest time, and the meaning of its failure: when it is repeated, and the log
                line.
    cleaner     Takes back expired leases, makes due tasks ready, puts due ticks, and sleeps until the next of these is
                due.
    health      Whether a worker process is healthy: the worker writes its signs into memory, and others judge them.
    decisions   Decides, without I/O, how many tasks a worker claims, how its queues share it, who runs alone, and when
                it ends.
    ends        The ends of leases on their way to one shard of a queue: acks, failures and releases gather here and
                become calls.
    leases      The leases of a worker on one queue: `took` brings them in, and every end of a lease goes through
                `Leases`.
    crews       Crews run handlers: what all crews share, and the crew of asyncio tasks, the consumers, for `async def`
                handlers.
    threads     Runs `def` handlers: a crew of threads, started as they are needed, which live as long as the worker.
    loopwatch   Warns when a handler blocks the event loop: for how long, which task, which line of code, and the cure.
    interrupts  Ends handlers that lost their lease or have no time left.
    served      One queue of a worker, as a handler sees it that `Serves`.
    exchanges   Exchanges with one shard of a queue: each sends ends of leases and claims new ones. A plain queue is one
                shard.
    queue_work  The work of a worker on one of its queues: how many tasks it claims, and when its exchanges begin.
    pump        The pump of a worker: it goes round the queues, has each claim and send, runs suspects alone, drains,
                and closes.
    worker      The face of a worker: its settings, `run`, `stop`, and its counts.
    processes   The processes of a worker: a supervisor starts them, replaces those that die, and reports the tasks that
                they ran.
"""
