"""Schedules: tasks that are put again and again, at times that a line of cron or a number of seconds says.

    queue.schedules.set("digest", Task("digest", payload={"to": 42}), cron="0 7 * * *", tz="Asia/Tokyo")
    queue.schedules.pause("digest")

A schedule lives in Redis. Every worker and every cleaner puts the ticks that are due, and there is no leader: one
script compares the tick that is due, puts its task, and stores the next tick (`lua/verbs/tick.lua`).

The modules, in reading order: each imports only from those above it.

    cron        When a line of cron ticks, by the clock of a time zone: cronsim says so. No I/O but for the data of the
                zone.
    timing      When a schedule ticks: checked, as the text that is stored, and which ticks are due. No I/O, and no
                clock.
    definition  A schedule as it is stored in Redis and as users see it, and the calls that read and write it. No I/O.
    ticking     Puts the ticks that are due. Every cleaner does so; the scripts see to it that each tick is put once. No
                I/O.
    flows       `queue.schedules`: what it does, and its two faces, `Schedules` and `AsyncSchedules`. No I/O.
"""

from timeoutq.rooms.schedules.definition import ScheduleInfo, SchedulePage
from timeoutq.rooms.schedules.flows import AsyncSchedules, Schedule, Schedules
from timeoutq.rooms.schedules.ticking import tick_due

__all__ = ["AsyncSchedules", "Schedule", "ScheduleInfo", "SchedulePage", "Schedules", "tick_due"]
