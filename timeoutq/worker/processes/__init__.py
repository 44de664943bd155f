"""The processes of a worker: a supervisor starts them, replaces those that die, and reports what they were running.

The modules, in reading order: each imports only from those above it.

    endings     What the end of a worker process means, and what a signal asks for: decisions, without any I/O.
    roster      Which worker processes are started, told to stop, replaced and killed, and with which code their
                supervisor ends.
    ledger      Which leases a worker process holds, which handlers run, and how it ended: memory that outlives the
                process.
    responder   A small HTTP responder for health checks: GET /healthz and /readyz. `timeoutq worker --health-port` has
                one.
    process     Runs one worker in this process: starts its event loop, passes orders on to it, and tells why the worker
                ended.
    supervisor  Runs a worker in several processes, replaces processes that die, and reports at once which tasks they
                were running.
"""
