"""Rooms: what stands behind an attribute of a queue, such as `queue.hosts`. No room imports another.

The modules, in reading order: each imports only from those above it.

    room       The pattern of a room: what stands behind an attribute of the faces, such as `queue.hosts`.
    hosts      The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room.
    results    How tasks have ended, what their runs have given, and waiting for it. `queue.results` is the face of this
               room.
    schedules  Schedules: tasks that are put again and again, at times that a line of cron or a number of seconds says.
    batches    Batches: tasks whose ends are counted together, and one more task that becomes ready when all of them
               have ended.
    events     The event log of a queue: which tasks each call has moved, and to where. `queue.events` is the face of
               this room.
    failures   Failed tasks grouped by kind: what has failed how often, and to retry or forget all tasks of one kind.
"""
