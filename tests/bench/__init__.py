"""The benchmark for those who work on timeoutq: each figure with the raw limit of the same server in the same run.

`python -m tests.bench` runs it. `timeoutq bench` is for users: it takes five of these measurements on their server.

    handlers  The handlers of the workers that the benchmark starts, those of `timeoutq bench` with them, and an app
              with calls.
    ground    Figures and measurements, and the ground that they are taken on: a server, and a bare client of it.
    limits    The raw limits of the server: how fast a bare client is in the same run, without timeoutq.
    clients   How fast a program puts, claims and acks through `Queue` and `AsyncQueue`, and how much memory tasks take.
    workers   Worker processes: how much they drain, how soon they pick up, how late they are, and how much they cost
              idle.
    calls     The cost of calls of functions: to run them, to put them, and to wait for their results.
    hosts     The cost of politeness, and whether it is fair: many hosts, and one huge host among them.
    latency   A worker far away from its server: many handlers at once behind a proxy on loopback that delays every
              round trip.
    pauses    Measures the longest script of each verb on a queue of a million tasks. During a script, all other clients
              wait.
    seen      The cost of the memory of done tasks: in bytes and in the server's time, as fingerprints and as a plain
              set.
    gateway   The cost of the gateway: work over HTTP, bare requests and work by a `Queue`, and a thousand clients that
              wait.
    peers     The command `python -m tests.bench.peers`: calls in timeoutq beside calls in other queues.
    report    A whole run of the benchmark: rounds that take every limit and every figure, medians, spread, and the
              table.
"""
