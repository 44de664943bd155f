"""Words: values, errors, settings and texts that every other folder uses. No I/O.

The modules, in reading order: each imports only from those above it.

    errors      One class for each thing that a caller would do differently.
    exit_codes  The exit codes of the command by name, and what each code means for `timeoutq worker`.
    model       What users of the API get and give: plain frozen values. `replies.py` makes them from replies of the
                server.
    counts      What is told of a whole queue at one moment: counts, settings, and how long handlers ran. Plain frozen
                values.
    standing    The standing of a host: what decides when the host is visited next, as one table in the order of
                precedence.
    hostname    The name of the host of a URL, as a polite queue has it: lower case, IDNA. `arguments.host` checks what
                callers pass.
    arguments   What callers pass, checked and turned into bytes and whole milliseconds, before anything is sent.
    text        The one gate through which text of a task (its id, an error, the name of a worker) reaches a terminal or
                a log.
    telling     Writes the package's log lines, so that none can end a worker; of lines that name tasks, ten at most.
    retry       When a failed task is tried again, a page visited again, and a server asked again. No I/O, no sleeping.
    tracebacks  The traceback of a handler's exception as text: bounded, without local variables, whatever the exception
                does.
    durations   How long handlers ran: histograms, with fixed buckets so that all workers' histograms can be added. No
                I/O.
"""
