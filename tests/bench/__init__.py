"""The benchmark for those who work on timeoutq: each figure beside the raw limit of the same server in the same run.

`python -m tests.bench` runs it. `timeoutq bench` is for users: it takes five of these measurements on their server.

    terms     What the benchmark speaks of: figures, their targets, and how much of everything is done in a round.
    called    The app of the benchmark: the functions whose calls it puts and runs.
    handlers  The handlers of the workers that the benchmark starts.
    ground    The ground of a measurement, with a bare client, and ways to fill a queue and to ask the server.
    limits    The raw limits of the server: how fast a bare client is in the same run, without timeoutq.
    clients   How fast a program puts, claims and acks through `Queue` and `AsyncQueue`, and how much memory tasks take.
    workers   What worker processes do: how much they drain, how soon they pick up, how late they are, and what they
              cost idle.
    calls     What calls of functions cost: to run them, to put them, and to wait for their results.
    hosts     What politeness costs, and whether politeness is fair: many hosts, and one huge host beside them.
    latency   A worker far away from its server: many handlers at once behind a proxy on loopback that delays every
              round trip.
    pauses    Measures the longest script of each verb on a queue of a million tasks. During a script, all other clients
              wait.
    seen      What the memory of done tasks costs: in bytes and in the server's time, as fingerprints and as a plain
              set.
    gateway   What the gateway costs: work over HTTP beside bare requests and a `Queue`, and a thousand clients that
              wait.
    report    A whole run of the benchmark: rounds that take every limit and every figure, medians, spread, and the
              table.
"""
