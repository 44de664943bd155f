"""The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room.

`client/` gives `Hosts` to `Queue` and `AsyncHosts` to `AsyncQueue`. When a host has its turn is decided by the scripts
(`lua/parts/polite.lua`). The files of this room:

    operations   the calls: one script each
    flows        what takes several exchanges
    face         what users call
"""

from timeoutq.hosts.face import AsyncHosts, Hosts

__all__ = ["AsyncHosts", "Hosts"]
