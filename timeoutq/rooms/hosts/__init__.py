"""The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room.

`client/` gives `Hosts` to `Queue` and `AsyncHosts` to `AsyncQueue`. The scripts decide when a host has its turn
(`lua/parts/polite.lua`).

The modules, in reading order: each imports only from those above it.

    operations  The operations on hosts: which script, which arguments, how to read the reply.
    flows       What `queue.hosts` does: `HostFlows` checks what the caller passed, and gives the flow that does the
                work. No I/O.
    face        `queue.hosts`, the face of this room, in two classes: both have the same names, signatures and
                docstrings.
"""

from timeoutq.rooms.hosts.face import AsyncHosts, Hosts

__all__ = ["AsyncHosts", "Hosts"]
