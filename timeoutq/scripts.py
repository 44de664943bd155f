"""From a file of `lua/` to the text that a server runs.

The text of a script is the prelude that binds its KEYS line to names, the parts that its PARTS line names, and its own
file. A part may name further parts that it needs (PARTS), and rooms that take its place on a queue that uses them
(ROOMS): one text serves every queue, and `uses` in the queue's settings says at run time which rooms it has. Arguments
1 and 2 of every script are the call's id and its age in ms, 0 when it is sent for the first time.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
    return assemble(name, (files("timeoutq") / "lua" / f"{name}.lua").read_text("utf-8"))


def assemble(name: str, body: str) -> Script:
    """Assemble a script of its own text, which begins with the lines KEYS and PARTS."""
    keys = tuple(_header(body, "KEYS").split())
    names = _with_theirs(_header(body, "PARTS").split())
    checked = _header(body, "SOUND")
    if "events" in names:
        names = ["open", "events", *(name for name in names if name not in ("open", "events"))]
    # a script without the line SOUND moves no task, and so needs no log
    parts = [_NO_LOG if part == "events" and not checked else _part(part) for part in names]
    prelude = f"local {', '.join(keys)} = {', '.join(f'KEYS[{i}]' for i in range(1, len(keys) + 1))}\n"
    if checked:
        parts[1:1] = [_sound(checked, keys, {ROOMS[part] for part in names if part in ROOMS})]
    if "ready" in names:
        # a function finds a local name of the function around it at once, but one beside it only behind all names that
        # stand beside it later: with many functions, this saves some 1.5 µs per call. On a queue with an event log,
        # `tell` writes what the verb has moved
        first = 3 if checked else 2
        parts[first:first] = ["local function carry_out()\n"]
        told = f"{_verb(name, body)}, {_by(body)}, carry_out()"
        body += f"\nend\nif not tell then return carry_out() end\nreturn tell({told})\n"
    whole = prelude + _needed(parts, body) + body
    return Script(name, keys, whole, hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest())


_NO_LOG = "local quiet, moved, tell = redis.call, nil, nil\n"


@cache
def _part(name: str) -> str:
    return (files("timeoutq") / "lua" / "parts" / f"{name}.lua").read_text("utf-8")


def _with_theirs(names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        found.update(dict.fromkeys(_around(name)))
    return list(found)


@cache
def _around(name: str) -> tuple[str, ...]:
    # a part behind the parts that its own PARTS line names, and before the rooms that its ROOMS line names
    text = _part(name)
    needs, rooms = _header(text, "PARTS").split(), _header(text, "ROOMS").split()
    return (*_with_theirs(needs), name, *_with_theirs(rooms))


_FUNCTION = re.compile(
    # the comment above; the function, at the left or in a block at the left; its end, below where it begins
    r"((?:^ {0,2}--[^\n]*\n)*"
    r"^((?:  )?)(local )?function (\w+)\((?:[^\n]*\bend\n|[^\n]*\n(?:(?!\2end\n)[^\n]*\n)*\2end\n))",
    re.MULTILINE,
)


@cache
def _pieces(part: str) -> tuple[tuple[str, str, int], ...]:
    # text and name of each function, with the comment above it, and how often its name stands in a script that does not
    # call it, besides in the function itself: one that is not local is declared. What stands between has no name
    between, *others = _FUNCTION.split(part)
    found = [(between, "", -1)]
    for function, _, local, name, behind in zip(*[iter(others)] * 5, strict=True):
        found += [(function, name, 0 if local else 1), (behind, "", -1)]
    return tuple(found)


@cache
def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", re.sub(r"(^|\s)--.*", "", text)))


def _needed(parts: Sequence[str], body: str) -> str:
    # a server makes all functions of a script anew with each call, which costs some 0.1 µs each: those of the parts
    # that nothing calls are left out
    pieces = [piece for part in parts for piece in _pieces(part)]
    words = Counter[str]()
    for text in (*parts, body):
        words.update(_words(text))
    # a room has a function of the same name as the part whose place it takes
    made = Counter(name for _, name, _ in pieces)
    while idle := {name for _, name, alone in pieces if name and words[name] == made[name] + alone}:
        for text, name, _ in pieces:
            if name in idle:
                words.subtract(_words(text))
        pieces = [piece for piece in pieces if piece[1] not in idle]
    return "".join(_late([(text, name) for text, name, _ in pieces], body))


_RARE = re.compile(r"\brarely\('(\w+)'\)")


@cache
def _calls(text: str) -> tuple[frozenset[str], frozenset[str]]:
    # the functions that this text asks for by `rarely`, and all other words of it
    return frozenset(_RARE.findall(text)), frozenset(_words(_RARE.sub("", text)))


def _late(pieces: Sequence[tuple[str, str]], body: str) -> list[str]:
    # functions that few calls need are asked for by `rarely`: they, and what only they call, stand in one function that
    # makes them all, once one is needed
    users = [(user, *_calls(text)) for text, user in (*pieces, (body, ""))]
    asked = {name for _, names, _ in users for name in names}
    if not asked:
        return [text for text, _ in pieces]
    known = {name for text, name in pieces if name and f"\nlocal function {name}(" in f"\n{text}"}
    callers: dict[str, set[str]] = {name: set() for name in known}
    for user, _, words in users:
        for name in (known & words) - {user}:
            callers[name].add(user)
    moved, more = set[str](), asked & known
    while more:
        moved |= more
        more = {name for name in known - moved if callers[name] and callers[name] <= moved}
    makes = "".join(text for text, name in pieces if name in moved)
    gives = ", ".join(f"{name} = {name}" for name in sorted(asked))
    last = max(at for at, (_, name) in enumerate(pieces) if name in moved)
    found = ["" if name in moved else text for text, name in pieces]
    found[last] = f"function make_late()\n{makes}return {{{gives}}}\nend\n"
    return found


SIZES = {
    "SCARD": "todos in_progress done failed waiting",
    "ZCARD": "scheduled leases done_at calls workers hosts places trace_at leftovers ticks done_until kind_of",
    "HLEN": "owners payload attempts crashes errors runtime stats worker_info "
    "traces trace_uses trace_texts releases durations0 durations1 durations slots resting policies groups "
    "host_failures priorities rerun seen awaited schedules ticked functions batches batch_of cancels progress kinds",
    "LLEN": "bell error_log history minutes hours",
    "XLEN": "alarm events",
}
"""Which command tells the size of each key, in constant time, and is refused where the key is of a foreign type."""

ROOMS = {
    "polite": "politeness", "priority": "priority", "rerun": "rerun", "results": "results", "batch": "batches",
    "cancel": "cancel", "lasting": "until", "progress": "progress",
}  # fmt: skip
"""The parts that serve a queue in place of others, and for each the capability whose name in `uses` says so. The part
`compact` is one more, which sees to its keys itself: `done_sound`."""

ALSO_WRITTEN = {
    "politeness": "waiting hosts slots alarm todos failed; places resting policies groups host_failures; "
    "errors error_log traces trace_uses trace_texts trace_at kinds kind_of",
    "priority": "priorities",
    "rerun": "rerun todos in_progress done; payload attempts crashes errors releases",
    "results": "awaited",
    "until": "done_until",
    "progress": "progress",
    "cancel": "cancels failed; errors traces trace_uses trace_texts trace_at kinds kind_of",
    "batches": "batches batch_of scheduled failed alarm; "
    "errors error_log traces trace_uses trace_texts trace_at kinds kind_of",
}
"""The keys that a script with a room may write besides, on a queue that uses the room's capability."""


def _sound(checked: str, keys: Sequence[str], capabilities: Collection[str]) -> str:
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
    if capabilities:
        rooms = [
            line
            for name in sorted(capabilities)
            for line in (f"if has('{name}') then", *asked(ALSO_WRITTEN[name]), "end")
        ]
        lines += ["if uses then", *rooms, "end"]
    return "\n".join(("local function sound()", *lines, "return recorded, others", "end", ""))


def _bound(name: str, keys: Sequence[str]) -> str:
    return name if name in keys else f"key('{name}')"


@cache
def _sizes() -> Mapping[str, str]:
    return {name: command for command, names in SIZES.items() for name in names.split()}


def _verb(name: str, body: str) -> str:
    # what was called, as the event log says it: the header's line VERB, if a script does several things, has it in Lua
    return _header(body, "VERB") or f"'{name}'"


def _by(body: str) -> str:
    # who makes the call: the header's line BY names the argument that says so. A call has an id that begins with the
    # name of its client, if the line is missing
    return f"ARGV[{_header(body, 'BY').partition(' ')[0] or 1}]"


def _header(body: str, word: str) -> str:
    found = re.search(rf"^-- {word} +(.*)$", body, re.MULTILINE)
    return found.group(1) if found else ""
