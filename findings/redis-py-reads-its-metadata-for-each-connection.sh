#!/usr/bin/env bash
# redis-py 8.1.0.
#
# To make a connection object, before anything is sent, redis-py asks importlib.metadata for its own version, which opens
# the METADATA file of the installed package and parses it as a mail: some milliseconds, each time. One would guess that
# the version of a package is looked up once. A pool that opens 1,000 connections reads the file 1,000 times; with
# driver_info=None, or one DriverInfo that all connections share, none of them reads it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check redis==8.1.0
"$work/venv/bin/python" - <<'PY'
import sys

import redis
from redis.driver_info import DriverInfo

opened = 0


def hear(event, arguments):
    global opened
    opened += event == "open" and str(arguments[0]).endswith("METADATA")


sys.addaudithook(hear)


def reads(**settings):
    before = opened
    for _ in range(20):
        redis.Connection(**settings)
    return opened - before


seen = [reads(), reads(driver_info=None), reads(driver_info=DriverInfo())]
print("METADATA was opened", seen[0], "times for 20 connections;", seen[1], "with driver_info=None;", seen[2], "with one for all")
assert seen == [20, 0, 0]
PY
# seen: METADATA was opened 20 times for 20 connections; 0 with driver_info=None; 0 with one for all
