"""Verbs: what a program asks of a queue, as calls, their replies, and how calls are sent until each has an answer.

The modules, in reading order: each imports only from those above it.

    replies     From the reply of a script to a value.
    operations  The table of operations: of each verb the arguments, the call, and the value that is made of the reply.
                No I/O.
    confirming  Which calls replicas must confirm, and how many replicas; and what a caller is told when they have not
                confirmed.
    sending     Sends calls until each has an answer or the deadline is over. Decides what may be sent again, when, and
                for how long.
    faces       Makes the methods of both faces from functions that give flows: each verb has one signature and one
                docstring.
    flows       Calls that take more than one exchange with the server: opening, claims that wait, purges. No I/O.
    reads       Reads that need no script: pages of states and walks through them, workers, the history, errors. No I/O.
    division    How a queue is divided, as those see it that carry its work: a worker, a supervisor and `timeoutq
                cleaner`.
    repairs     Words for what a walk through a queue (`lua/verbs/repair.lua`) may find wrong: the cleaner and doctor
                report it.
    why         Says in one sentence why a task is not being worked on now, from what the server tells of the task.
"""
