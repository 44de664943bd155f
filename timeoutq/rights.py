"""The commands that timeoutq sends and that its scripts run, and how a user's right to them is tried without harm.

`flows.py` tries those of the scripts before the first call that writes, `doctor.py` all of them; a test holds the
tables against the text of the package, so that none is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

HARMLESS: Mapping[str, Sequence[str | int]] = {
    "BLPOP": ("KEY", "0.001"),
    "DBSIZE": (),
    "DEL": ("KEY",),
    "EVALSHA": ("0" * 40, 1, "KEY"),
    "EXISTS": ("KEY",),
    "GET": ("KEY",),
    "HDEL": ("KEY", "x"),
    "HEXISTS": ("KEY", "x"),
    "HGET": ("KEY", "x"),
    "HGETALL": ("KEY",),
    "HLEN": ("KEY",),
    "HMGET": ("KEY", "x"),
    "HSCAN": ("KEY", 0),
    "HRANDFIELD": ("KEY", 1),
    "INFO": ("server",),
    "LINDEX": ("KEY", 0),
    "LLEN": ("KEY",),
    "LRANGE": ("KEY", 0, 0),
    "LTRIM": ("KEY", 0, 0),
    "PEXPIRE": ("KEY", 1000),
    "PTTL": ("KEY",),
    "SCAN": (0, "MATCH", "KEY"),
    "SCARD": ("KEY",),
    "SCRIPT": ("LOAD", "return 1"),
    "SISMEMBER": ("KEY", "x"),
    "SMISMEMBER": ("KEY", "x"),
    "SMOVE": ("KEY", "KEY", "x"),
    "SRANDMEMBER": ("KEY",),
    "SREM": ("KEY", "x"),
    "SSCAN": ("KEY", 0),
    "TIME": (),
    "TYPE": ("KEY",),
    "UNLINK": ("KEY",),
    "WAIT": (0, 1),
    "XADD": ("KEY", "NOMKSTREAM", "*", "x", "x"),
    "XLEN": ("KEY",),
    "XREAD": ("COUNT", 1, "STREAMS", "KEY", "0"),
    "XREVRANGE": ("KEY", "+", "-", "COUNT", 1),
    "ZADD": ("KEY", "XX", 1, "x"),
    "ZCARD": ("KEY",),
    "ZCOUNT": ("KEY", 0, 0),
    "ZLEXCOUNT": ("KEY", "-", "+"),
    "ZMSCORE": ("KEY", "x"),
    "ZPOPMIN": ("KEY",),
    "ZRANGE": ("KEY", 0, 0),
    "ZRANGEBYLEX": ("KEY", "-", "+"),
    "ZRANGEBYSCORE": ("KEY", 0, 0),
    "ZRANK": ("KEY", "x"),
    "ZREM": ("KEY", "x"),
    "ZREMRANGEBYSCORE": ("KEY", 0, 0),
    "ZSCAN": ("KEY", 0),
    "ZREVRANGE": ("KEY", 0, 0),
    "ZSCORE": ("KEY", "x"),
}
"""Each command that timeoutq sends or its scripts run, in a form that changes nothing where there is no KEY."""

MAKING: Mapping[str, Sequence[str | int]] = {
    "HINCRBY": ("KEY", "x", 1),
    "HSET": ("KEY", "x", "x"),
    "HSETNX": ("KEY", "x", "x"),
    "LPUSH": ("KEY", "x"),
    "PSETEX": ("KEY", 1000, "x"),
    "RPUSH": ("KEY", "x"),
    "SADD": ("KEY", "x"),
}
"""Those that have no such form: what they make is removed in the same breath."""

OWN = frozenset(
    {"BLPOP", "DBSIZE", "EVALSHA", "LRANGE", "SCAN", "SCRIPT", "TYPE", "WAIT", "XREAD", "XREVRANGE", "ZREVRANGE"}
)
"""Those that the client sends itself and no script runs."""

READING = frozenset({"probe", "stats", "inspect", "why", "drained", "describe", "hosts", "states"})
"""Scripts that only read: a user who may only read can call them."""


@cache
def of_scripts() -> frozenset[str]:
    """Find the commands of all scripts in their text."""
    found: set[str] = set()
    folder = files("timeoutq") / "lua"
    for place in (folder, folder / "parts"):
        for file in place.iterdir():
            if file.name.endswith(".lua"):
                text = re.sub("--.*", "", file.read_text("utf-8"))
                found |= set(re.findall(r"\b(?:redis\.p?call|call|try)\(\s*'([A-Z]+)'", text))
                found |= set(re.findall(r"\{'([A-Z]+SCAN)'", text))
    return frozenset(found)


def every() -> list[str]:
    """Give all commands that a user needs, in order."""
    return sorted(of_scripts() | {*HARMLESS, *MAKING})


def trials() -> tuple[list[str | int], list[str | int]]:
    """Give the words with which the script `probe` tries: those that change nothing, and those that make a key."""
    return _trial(HARMLESS), _trial(MAKING)


def _trial(table: Mapping[str, Sequence[str | int]]) -> list[str | int]:
    words: list[str | int] = []
    tried = [name for name in table if name not in OWN]
    for name in tried:
        words += (1 + len(table[name]), name, *table[name])
    return [len(tried), *words]


def cure(user: str, commands: Iterable[str], keys: str = "timeoutq:*") -> str:
    """Give the command that an operator pastes to allow them; a user's rights are added to those it has."""
    return f"ACL SETUSER {user or 'USER'} ~{keys} {' '.join(f'+{name.lower()}' for name in commands)}"
