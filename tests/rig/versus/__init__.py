"""Two trees of timeoutq compared by what a task costs: `python -m tests.rig.versus OLD NEW`.

A machine's clock swings, and other work takes turns; the processor time of a task swings less. So each row is processor
time: of the server (all of its process) and of the client (all of its process), in microseconds per task. Rounds of the
two trees are interleaved, in an order that alternates, on one build of the server. OLD stands twice in each round, and
the two series of OLD against each other (A/A) show how far medians of this machine stray from 1.
"""
