#!/usr/bin/env bash
# cronsim 2.8, tzdata 2026.6.
#
# Where a clock repeats an hour, a line with a fixed time ticks once, as Debian's cron has it. One would guess that
# counting back (reverse=True) finds this tick for the rest of the hour, and that counting back from anywhere gives the
# ticks that counting on gives. But cronsim compares what the clock shows: at 2:05 for the second time, the tick of 2:15,
# fifty minutes ago, is passed over for that of the day before. On Lord Howe Island, whose clock goes back by half an
# hour, a line whose hour begins with a star loses the tick of 2:10, which comes once; counting back finds it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check cronsim==2.8 tzdata==2026.6
PYTHONTZPATH="" "$work/venv/bin/python" - <<'PY'
from datetime import UTC, datetime
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

seen = []
for line, zone, begin, end in [
    ("15 2 * * *", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T01:05"),
    ("10 */2 * * *", "Australia/Lord_Howe", "2026-04-04T13:00", "2026-04-04T15:46"),
]:
    begin, end = (datetime.fromisoformat(f"{at}Z").astimezone(ZoneInfo(zone)) for at in (begin, end))
    on = list(takewhile(lambda tick: tick.astimezone(UTC) <= end, CronSim(line, begin)))[-1].isoformat()
    back = next(CronSim(line, end, reverse=True)).isoformat()
    print(f"{line} in {zone}: the last tick before {end.isoformat()} is {on} counting on, {back} counting back")
    seen.append((on, back))
assert seen == [
    ("2026-10-25T02:15:00+02:00", "2026-10-24T02:15:00+02:00"),
    ("2026-04-05T00:10:00+11:00", "2026-04-05T02:10:00+10:30"),
]
PY
# seen:
#   15 2 * * * in Europe/Berlin: the last tick before 2026-10-25T02:05:00+01:00 is 2026-10-25T02:15:00+02:00 counting on, 2026-10-24T02:15:00+02:00 counting back
#   10 */2 * * * in Australia/Lord_Howe: the last tick before 2026-04-05T02:16:00+10:30 is 2026-04-05T00:10:00+11:00 counting on, 2026-04-05T02:10:00+10:30 counting back
