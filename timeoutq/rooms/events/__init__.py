"""The event log of a queue: which tasks each call has moved, and to where. `queue.events` is the face of this room.

`client/` gives `Events` to `Queue` and `AsyncEvents` to `AsyncQueue`. The scripts write the log
(`lua/parts/events.lua`) into a stream, which any client of Redis can read, also with consumer groups.

The modules, in reading order: each imports only from those above it.

    setting  What callers say of the event log when they configure a queue, checked, and as the scripts take it. Pure.
    entry    One entry of the event log as users see it, and the cursors with which readers go on. Pure; `flows.py`
             reads.
    fold     From the entries of an event log to the tasks in each state. Pure. Users call it; `tests/rig/log_walk.py`
             judges it.
    flows    `queue.events`, which reads pages of the event log and follows it, and its two faces. No I/O.
"""

from timeoutq.rooms.events.entry import Event, EventPage
from timeoutq.rooms.events.flows import AsyncEvents, EventFlows, Events
from timeoutq.rooms.events.fold import Fold, fold

__all__ = ["AsyncEvents", "Event", "EventFlows", "EventPage", "Events", "Fold", "fold"]
