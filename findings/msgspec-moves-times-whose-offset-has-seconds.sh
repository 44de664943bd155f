#!/usr/bin/env bash
# msgspec 0.22.0, tzdata 2026.6.
#
# Until 1972 clocks in Liberia were 44 minutes and 30 seconds behind UTC, and before 1900 most places had such an offset,
# as zoneinfo knows. RFC 3339 has no seconds in an offset, so one would guess that msgspec writes such a moment with
# another offset and the local time that belongs to it, or refuses it. msgspec rounds the offset to a minute and leaves
# the local time: the JSON holds a moment up to 30 seconds away, without an error. MessagePack, which counts seconds
# since 1970, keeps the moment.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check msgspec==0.22.0 tzdata==2026.6
PYTHONTZPATH="" "$work/venv/bin/python" - <<'PY'
from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec import json, msgpack

seen = {}
for zone, year in [("Africa/Monrovia", 1960), ("Europe/Berlin", 1890), ("Europe/Rome", 1860)]:
    moment = datetime(year, 5, 1, 12, tzinfo=ZoneInfo(zone))
    text = json.encode(moment)
    by_json = (json.decode(text, type=datetime) - moment).total_seconds()
    by_msgpack = (msgpack.decode(msgpack.encode(moment), type=datetime) - moment).total_seconds()
    print(f"{moment.isoformat()} is written as {text.decode()}: off by {by_json:+.0f} s, in MessagePack by {by_msgpack:.0f} s")
    seen[zone] = (by_json, by_msgpack)
assert seen == {"Africa/Monrovia": (-30, 0), "Europe/Berlin": (28, 0), "Europe/Rome": (-4, 0)}
PY
# seen:
#   1960-05-01T12:00:00-00:44:30 is written as "1960-05-01T12:00:00-00:44": off by -30 s, in MessagePack by 0 s
#   1890-05-01T12:00:00+00:53:28 is written as "1890-05-01T12:00:00+00:53": off by +28 s, in MessagePack by 0 s
#   1860-05-01T12:00:00+00:49:56 is written as "1860-05-01T12:00:00+00:50": off by -4 s, in MessagePack by 0 s
