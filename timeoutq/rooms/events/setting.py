"""What callers say of the event log when they configure a queue, checked, and as the scripts take it. Pure."""

from __future__ import annotations

import re

from timeoutq.words.arguments import count, is_word, shown
from timeoutq.words.errors import InvalidInput

LEAST, MOST = 100_000, 10**12
"""How many bytes an event log may keep."""
LEVELS = ("all", "ends", "off")

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size(events: object) -> int:
    """Give how many bytes the log keeps: of a number of bytes, or of a text such as "64MB" or "1GiB"."""
    word = events.strip().upper() if isinstance(events, str) else ""
    found = re.fullmatch(r"([0-9]{1,12}) ?([KMG]I?B|)", word, re.ASCII)
    try:
        return count(int(found[1]) * _UNITS[found[2]] if found else events, "events", LEAST, MOST)
    except InvalidInput:
        raise InvalidInput(
            f'events is how many bytes the event log keeps, 100KB to 1000GB, such as "64MB", not {shown(events)}; '
            'level="off" ends the log'
        ) from None


def log_setting(events: object, level: object) -> bytes | None:
    """Give the setting, `SIZE LEVEL` with `-` for what stays as it is; None if both do."""
    if events is None and level is None:
        return None
    word = next((word for word in LEVELS if is_word(level, word)), "-")
    if word == "-" and level is not None:
        raise InvalidInput(f'level must be "all", "ends" or "off", not {shown(level)}')
    return b"%s %s" % (b"-" if events is None else b"%d" % size(events), word.encode())


def divided(setting: bytes, shards: int) -> bytes:
    """Give the setting of one shard of so many: all logs together keep what the setting of the queue says."""
    most, _, level = setting.partition(b" ")
    return setting if most == b"-" else b"%d %s" % (max(1, int(most) // shards), level)
