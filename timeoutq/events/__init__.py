"""The event log of a queue: which tasks each call has moved, and to where. `queue.events` is the face of this room.

`client/` gives `Events` to `Queue` and `AsyncEvents` to `AsyncQueue`. The scripts write the log
(`lua/parts/events.lua`) into a stream, which any client of Redis can read, also with consumer groups. The files of
this room:

    setting  what callers say of the log when they configure a queue
    entry    one entry of the log, and the cursors with which readers go on
    fold     from the entries of a log to the tasks in each state
    flows    reads the log
    face     what users call
"""

from timeoutq.events.entry import Event, EventPage
from timeoutq.events.face import AsyncEvents, Events
from timeoutq.events.flows import EventFlows
from timeoutq.events.fold import Fold, fold

__all__ = ["AsyncEvents", "Event", "EventFlows", "EventPage", "Events", "Fold", "fold"]
