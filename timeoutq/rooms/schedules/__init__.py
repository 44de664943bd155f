"""Schedules: tasks that are put again and again, at times that a line of cron or a number of seconds says.

A schedule lives in Redis. Every worker and every cleaner puts the ticks that are due, and there is no leader: one
script compares the tick that is due, puts its task, and stores the next tick (`lua/verbs/tick.lua`).

The modules, in reading order: each imports only from those above it.

    timing      When a schedule ticks, and which of its ticks are due. No clock, and no I/O but for the data of time
                zones.
    definition  A schedule as it is asked for, stored in Redis and shown to users; the calls that read and write it. No
                I/O.
    ticking     Puts the ticks that are due. Every cleaner does so; the scripts see to it that each tick is put once. No
                I/O.
    flows       `queue.schedules`: what it does, and its two faces, `Schedules` and `AsyncSchedules`. No I/O.
"""

from timeoutq.rooms.schedules.definition import Schedule, ScheduleInfo, SchedulePage
from timeoutq.rooms.schedules.flows import AsyncSchedules, Schedules
from timeoutq.rooms.schedules.ticking import tick_due

__all__ = ["AsyncSchedules", "Schedule", "ScheduleInfo", "SchedulePage", "Schedules", "tick_due"]
