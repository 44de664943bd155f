#!/usr/bin/env bash
# RQ 3.0.0, croniter 7.0.0, redis-py 8.1.0.
#
# `rq cron` is to put a job every five minutes, on a machine whose time zone is Central Europe's. In the night in which
# the clock goes back from 3:00 to 2:00, one would guess that it goes on every five minutes, as Debian's cron does, and
# as croniter, which RQ asks, says when it is asked with a time zone. But RQ asks it with the time that the clock shows,
# takes each time of the repeated hour as the first of the two, and passes over those that are in the past: after the
# first 2:55 the next job is put at 3:00, 65 minutes later. Lines for each minute and each hour pause as well. In UTC
# nothing pauses.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check rq==3.0.0 croniter==7.0.0 redis==8.1.0 tzdata==2026.6
cat >"$work/try.py" <<'PY'
import os
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from croniter import croniter
from rq.cron import CronJob

BEGIN, END = datetime(2026, 10, 24, 22, 30, tzinfo=UTC), datetime(2026, 10, 25, 4, tzinfo=UTC)


def by_croniter(line):
    ticks = croniter(line, BEGIN.astimezone(ZoneInfo("Europe/Berlin")))
    while (tick := ticks.get_next(datetime).astimezone(UTC)) < END:
        yield tick


def by_rq(line, zone):
    os.environ["TZ"] = zone
    time.tzset()
    job = CronJob("mail", func=time.time, cron=line)
    job.set_enqueue_time(BEGIN)
    while (tick := job.next_enqueue_time) < END:
        yield tick
        job.set_enqueue_time(tick)  # as the scheduler does when it has put the job


def gap(ticks):
    before, after = max(pairwise(ticks), key=lambda pair: pair[1] - pair[0])
    return (after - before) // timedelta(minutes=1), f"{before:%H:%M} to {after:%H:%M} UTC"


seen = []
for line in ["*/5 * * * *", "* * * * *", "0 * * * *"]:
    croniters = gap(by_croniter(line))[0]
    local, where = gap(by_rq(line, "CET-1CEST,M3.5.0,M10.5.0/3"))
    utc = gap(by_rq(line, "UTC"))[0]
    print(f"{line}: longest pause in minutes: croniter {croniters}; RQ {local} ({where}); RQ where the zone is UTC {utc}")
    seen.append((line, croniters, local, utc))
assert seen == [("*/5 * * * *", 5, 65, 5), ("* * * * *", 1, 61, 1), ("0 * * * *", 60, 120, 60)]
PY
PYTHONTZPATH="" "$work/venv/bin/python" "$work/try.py"
# seen:
#   */5 * * * *: longest pause in minutes: croniter 5; RQ 65 (00:55 to 02:00 UTC); RQ where the zone is UTC 5
#   * * * * *: longest pause in minutes: croniter 1; RQ 61 (00:59 to 02:00 UTC); RQ where the zone is UTC 1
#   0 * * * *: longest pause in minutes: croniter 60; RQ 120 (00:00 to 02:00 UTC); RQ where the zone is UTC 60
