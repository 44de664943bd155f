"""From a file of `lua/` to the text that a server runs.

The text of a script is the prelude that binds its KEYS line to names, the parts that its PARTS line names, and its own
file. Arguments 1 and 2 of every script are the call's id and its age in ms, 0 when it is sent for the first time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server runs it."""

    name: str
    keys: tuple[str, ...]
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Read and assemble one of the files in `lua/`."""
    folder = files("timeoutq") / "lua"
    body = (folder / f"{name}.lua").read_text("utf-8")
    keys = tuple(_header(body, "KEYS").split())
    parts = [(folder / "parts" / f"{part}.lua").read_text("utf-8") for part in _header(body, "PARTS").split()]
    prelude = f"local {', '.join(keys)} = {', '.join(f'KEYS[{i}]' for i in range(1, len(keys) + 1))}\n"
    if checked := _header(body, "SOUND"):
        parts[1:1] = [_sound(checked, keys, polite="polite" in _header(body, "PARTS").split())]
    whole = prelude + "".join(parts) + body
    return Script(name, keys, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


SIZES = {
    "SCARD": "todos in_progress done failed waiting",
    "ZCARD": "scheduled leases done_at calls workers hosts places trace_at leftovers",
    "HLEN": "owners payload attempts crashes errors runtime stats worker_info "
    "traces trace_uses trace_texts releases durations0 durations1 slots resting policies groups host_failures",
    "LLEN": "bell error_log history",
    "XLEN": "alarm",
}
"""Which command tells the size of each key, in constant time, and is refused where the key is of a foreign type."""

POLITE = (
    "waiting hosts slots alarm todos failed; places resting policies groups host_failures; "
    "errors error_log traces trace_uses trace_texts trace_at"
)
"""The keys that a script may write on a polite queue, besides."""


def _sound(checked: str, keys: Sequence[str], *, polite: bool) -> str:
    # A script does not roll back, so it must notice a key of a foreign type before its first write: it asks each key
    # that it may write, and has not read by then, for its size. Behind a semicolon stand keys that are often not there:
    # one EXISTS for all of them is cheaper; the function says whether any key of the first such group is there, and any
    # of the groups behind it.
    def asked(names: str, first: str = "", rest: str = "") -> list[str]:
        often, *groups = (group.split() for group in names.split(";"))
        lines = [f"redis.call('{_sizes()[name]}', {_bound(name, keys)})" for name in often]
        for group in groups:
            flag = first if group is groups[0] else rest
            lines.append(f"if redis.call('EXISTS', {', '.join(_bound(name, keys) for name in group)}) > 0 then")
            lines += [f"redis.call('{_sizes()[name]}', {_bound(name, keys)})" for name in group]
            lines.append(f"{flag} = true end" if flag else "end")
        return lines

    lines = ["local recorded, others = false, false"]
    lines += asked(checked, "recorded", "others")
    if polite:
        lines += ["if politeness then", *asked(POLITE), "end"]
    return "\n".join(("local function sound()", *lines, "return recorded, others", "end", ""))


def _bound(name: str, keys: Sequence[str]) -> str:
    return name if name in keys else f"prefix .. '{name}'"


@cache
def _sizes() -> Mapping[str, str]:
    return {name: command for command, names in SIZES.items() for name in names.split()}


def _header(body: str, word: str) -> str:
    found = re.search(rf"^-- {word} +(.*)$", body, re.MULTILINE)
    return found.group(1) if found else ""
