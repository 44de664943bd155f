"""Schedules: tasks that are put again and again, at times that a line of cron or a number of seconds says.

    queue.schedules.set("digest", Task("digest", payload={"to": 42}), cron="0 7 * * *", tz="Asia/Tokyo")
    queue.schedules.pause("digest")

A schedule lives in Redis. Every worker and every cleaner puts the ticks that are due, and there is no leader: one
script compares the tick that is due, puts its task, and stores the next tick (`lua/tick.lua`). The files of this room:

    cron, timing, ticks   when a schedule ticks, and which ticks are due: no I/O; these need the extra `functions`
    definition            a schedule as it is stored, and as users see it
    operations            the calls: one script each
    ticking               puts the ticks that are due: cleaners do so
    flows                 one for each method: checks the arguments, sends the calls
    face                  what users call
"""

from timeoutq.schedules.definition import ScheduleInfo, SchedulePage
from timeoutq.schedules.face import AsyncSchedules, Schedules
from timeoutq.schedules.flows import Schedule, tick_due

__all__ = ["AsyncSchedules", "Schedule", "ScheduleInfo", "SchedulePage", "Schedules", "tick_due"]
