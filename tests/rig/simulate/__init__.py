"""Whole workers, their supervisor, producers and a killer in one process, with virtual time: one seed is one run.

    python -m tests.rig.simulate --seeds 300

The code of timeoutq is the real one: workers, crews, heartbeats, cleaners, clients with all their retries, redis-py,
and the library of Lua functions (on fakeredis). What is simulated stands below it, a file for each part:

    clock       the time, and the event loop: when nothing can happen, time goes on to the next timer
    machine     threads of which one goes on at a time, in an order that the seed decides
    network     connections that delay, cut, lose replies, and deliver requests after their caller has given up
    server      the server behind the connections: it carries out the calls, one after the other
    plan        what a seed means: tasks and their handlers, worker processes, and faults
    handlers    handlers of every shape, and what they do
    apps        functions of an app, which do the same
    processes   worker processes and their supervisor
    world       puts all of it together and runs a plan
    judge       the rules that hold at each moment and at the end
    witness     the rules of each call: leases, fences, delays, visits to hosts
    shrink      a smaller plan that still fails
    defects     defects of earlier versions and others, to be put in
"""
