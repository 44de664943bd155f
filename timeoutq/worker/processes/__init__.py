"""The processes of a worker: a supervisor starts them, replaces those that die, and reports the tasks that they ran.

The modules, in reading order: each imports only from those above it.

    roster      Decides which worker processes are started, told to stop, replaced and killed, and how their supervisor
                ends.
    ledger      The leases of a worker process, its running handlers, and its end: memory that outlives the process.
    responder   A small HTTP responder for health checks: GET /healthz and /readyz. `timeoutq worker --health-port` has
                one.
    process     Runs one worker in this process: starts its event loop, passes orders on to it, and tells why the worker
                ended.
    reloading   Tells when the files of a program have changed, and its processes are to be replaced: `worker --reload`.
    supervisor  Runs a worker in several processes, replaces those that die, and reports at once which tasks they were
                running.
"""
