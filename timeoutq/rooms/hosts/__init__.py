"""The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room.

`client/` gives `Hosts` to `Queue` and `AsyncHosts` to `AsyncQueue`. The scripts decide when a host has its turn
(`lua/parts/polite.lua`).

The modules, in reading order: each imports only from those above it.

    operations  The operations on hosts: which script, which arguments, how to read the reply.
    flows       `queue.hosts`: what it does, and its two faces, `Hosts` and `AsyncHosts`. No I/O.
"""

from timeoutq.rooms.hosts.flows import AsyncHosts, Hosts

__all__ = ["AsyncHosts", "Hosts"]
