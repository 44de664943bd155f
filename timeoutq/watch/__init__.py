"""What people see of a queue: counts and rates at one moment, what is wrong, and the live dashboard.

Only `draw.py` and `live.py` know rich.

The modules, in reading order: each imports only from those above it.

    directory  Which queues a server has, found by their keys; and which queue a mistyped name may have meant.
    snapshot   All that is shown of a queue at one moment: `snapshot(queue)` gives a `Snapshot`; and rates, of what it
               counts.
    charts     Pictures of a queue as SVG: states over time, rates, durations, and bars for errors and hosts. Pure:
               values to text.
    report     A report of a queue: pictures of a crawl in one file of HTML, which needs no network and runs no script.
    facts      Gathers what doctor knows of a server and of a queue. Where a server refuses to tell, the facts stay
               empty.
    doctor     Examines a server and a queue: `facts.py` gathers facts once, then a pure function for each check judges
               them.
    nodes      Examines the nodes of a cluster: facts gathered once, then one pure function per check. Part of `timeoutq
               doctor`.
    divided    Examines a queue over several shards: its record, each node, each shard. Part of `timeoutq doctor`.
    records    What is told of a task and of a host: one record of each, in rows of a name and a value, and its advice.
               Pure.
    screen     What the live dashboard shows and what its keys do: decisions, without any I/O.
    draw       A snapshot and the views of the live dashboard as rich draws them, for a screen of any size.
    hands      Carries out what a person wants at the live dashboard: reads lists and tasks, retries, forgets, blocks.
    live       The live dashboard: looks at a queue again and again, draws what it sees on the terminal, and reads keys.
    transfer   Tasks by the million, in bounded memory: reads states, compares two sets of ids, and writes whole queues
               as lines.
"""
