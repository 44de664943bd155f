"""The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room.

`client/` gives `Hosts` to `Queue` and `AsyncHosts` to `AsyncQueue`. The scripts decide when a host has its turn
(`lua/parts/polite.lua`). The files of this room:

    operations   the calls: one script each
    flows        one for each method: checks the arguments, sends the calls
    face         what users call
"""

from timeoutq.hosts.face import AsyncHosts, Hosts

__all__ = ["AsyncHosts", "Hosts"]
