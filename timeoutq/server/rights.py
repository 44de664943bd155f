"""The commands that timeoutq sends and that its scripts run, and how to try, without harm, whether a user may run them.

A test compares the tables with the text of the package, so that no command is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from timeoutq.server import scripts


def _table(text: str) -> dict[str, tuple[str, ...]]:
    commands = [words.split() for words in text.split(";")]
    return {name: tuple(words) for name, *words in commands}


HARMLESS = _table("""
BLPOP KEY 0.001; DBSIZE; DEL KEY; EXISTS KEY; FCALL no_function 1 KEY; FCALL_RO no_function 1 KEY;
FUNCTION LOAD nothing; GET KEY; HDEL KEY x; HEXISTS KEY x; HGET KEY x; HGETALL KEY; HLEN KEY; HMGET KEY x;
HSCAN KEY 0; INFO server; LINDEX KEY 0; LLEN KEY; LPOP KEY; LRANGE KEY 0 0; LTRIM KEY 0 0; MGET KEY;
PEXPIRE KEY 1000; PTTL KEY; SCAN 0 MATCH KEY; SCARD KEY; SISMEMBER KEY x; SMISMEMBER KEY x; SMOVE KEY KEY x;
SRANDMEMBER KEY; SREM KEY x; SSCAN KEY 0; TIME; TYPE KEY; UNLINK KEY; WAIT 0 1; XADD KEY NOMKSTREAM * x x; XLEN KEY;
XRANGE KEY - + COUNT 1; XREAD COUNT 1 STREAMS KEY 0; XREVRANGE KEY + - COUNT 1; XTRIM KEY MAXLEN 1; ZADD KEY XX 1 x;
ZCARD KEY; ZCOUNT KEY 0 0; ZLEXCOUNT KEY - +; ZMSCORE KEY x; ZPOPMIN KEY; ZRANGE KEY 0 0; ZRANGEBYLEX KEY - +;
ZRANGEBYSCORE KEY 0 0; ZRANK KEY x; ZREM KEY x; ZSCAN KEY 0; ZREVRANGE KEY 0 0; ZREVRANGEBYSCORE KEY 0 0;
ZSCORE KEY x
""")
"""The commands that can be tried with arguments that change nothing as long as KEY does not exist."""

MAKING = _table("""
HINCRBY KEY x 1; HSET KEY x x; HSETNX KEY x x; LPUSH KEY x; PSETEX KEY 1000 x; RPUSH KEY x; SADD KEY x
""")
"""All other commands: each of them makes its key, and the script `probe` deletes the key right after the trial."""

OWN = frozenset(
    _table("""
BLPOP; DBSIZE; FCALL; FCALL_RO; FUNCTION; LPOP; LRANGE; SCAN; TYPE; WAIT; XREAD; XREVRANGE; ZREVRANGE; ZREVRANGEBYSCORE
""")
)
"""The commands that only the client sends; no script needs them."""

OPTIONAL = frozenset({"MSETEX"})
"""Commands that the scripts use where the server has them and the user may run them, and can do without."""


@cache
def of_scripts() -> frozenset[str]:
    """Find the commands of the library in its text, but for those that it can do without."""
    text = re.sub("--.*", "", scripts.library())
    found = set(re.findall(r"\b(?:call|quiet|try)\(\s*'([A-Z]+)'", text)) | set(re.findall(r"\{'([A-Z]+SCAN)'", text))
    return frozenset(found - OPTIONAL)


def every() -> list[str]:
    """Give all commands that a user needs, sorted by name."""
    return sorted(of_scripts() | {*HARMLESS, *MAKING})


def trials() -> tuple[list[str | int], list[str | int]]:
    """Give the commands that the verb `probe` tries: those that change nothing, and those that make a key.

    Among the first, each key of the queue is asked for its size, which is refused if the key is of a foreign type.
    """
    sizes = [(command, f"KEY:{name}") for command, names in scripts.SIZES.items() for name in names.split()]
    return _trial([*_tried(HARMLESS), *sizes]), _trial(_tried(MAKING))


def _tried(table: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    return [(name, *words) for name, words in table.items() if name not in OWN]


def _trial(commands: Sequence[tuple[str, ...]]) -> list[str | int]:
    words: list[str | int] = [len(commands)]
    for command in commands:
        words += [len(command), *command]
    return words


def cure(user: str, commands: Iterable[str], keys: str = "") -> str:
    """Give the command that an operator pastes to allow these commands, too, and the keys that a user lacks."""
    allowed = ["function|load" if name == "FUNCTION" else name.lower() for name in commands]
    words = [f"~{keys}"] * bool(keys) + [f"+{name}" for name in allowed]
    return f"ACL SETUSER {user or 'USER'} {' '.join(words)}"
