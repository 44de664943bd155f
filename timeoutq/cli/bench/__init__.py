"""`timeoutq bench`: how many tasks a second a server gives here, and how soon an idle worker picks up a task.

The modules, in reading order: each imports only from those above it.

    handlers  The handlers of the workers that a measurement starts: they do nothing, note when they began, or run
              calls.
    ground    The ground of a measurement: the server, and the queues and processes that the measurement makes.
    measures  The five measurements: put, claim + ack, a worker, the pick-up by an idle worker, calls of functions.
"""
