"""The grammar of the headers of verbs: reads the comment at the top of a verb as the values of `protocol.json`. Pure.

A header says what the verb does, and what travels: ARGS, SECTIONS, ONCE (why a call must not be sent again) and Reply.

    ARGS     = place, argument, { three blanks or a new line, place, argument }
    place    = number                                 one argument
             | number ".."                            what follows to the end; only the last place
    argument = parts [":" remark]
    parts    = part { ("," | ";") part }
    part     = name [type]                            a blank or a comma before the type; without a type: any bytes
             | name "?" [type]                        of a reply: it may be nil
             | part "*"                               any number of times, to the end
             | part "*" name                          as often as the argument of this name says
             | "(" parts ")"                          these, one after the other
             | "runs of (" parts ")"                  leases: a token, how many ids follow, the ids; `count` ids in all
             | "{" parts "}"                          of a reply: a list
             | "[" parts "]"                          of a reply: all of these, or none
             | "sections"                             options; SECTIONS says which
    SECTIONS = name "=" kind, what it is, {...}       kinds: 0, 1, ms, n, pairs, numbers; see lua/sections.lua
    Reply    = "nil" | part | "letters" | "letter"    each form that a reply may have is a line of its own
               [", one per " what] [":" letters what they mean {";" letters what they mean}]
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

Part = dict[str, Any]
"""A part of a call or of a reply, by the key that it has: `name` (a value, with its `type`), `many`, `runs`, `list`,
`maybe`, or `sections`."""

TYPES: dict[str, str] = {
    "word": "any bytes",
    "id": "the id of a task: 1 to 1,024 bytes",
    "token": "a word that this claim alone has; it begins with the name of its holder, which ends at the first `#`, if "
    "there is one",
    "nonce": "a word that this call alone has, and has again when it is sent again",
    "nonce or ''": "such a word, or nothing where the call may be carried out twice",
    "number": "a whole number, 0 or more",
    "number or -1": "a whole number, -1 or more",
    "ms": "a whole number of milliseconds; a moment is counted from 1970 on, by the server's clock",
    "ms or -1": "milliseconds, or -1",
    "ms or inf": "milliseconds, or inf for no time at all",
    "ms or +inf": "milliseconds, or +inf for no time at all",
    "ms or +ms": "a moment in milliseconds, or + and milliseconds from now on",
    "0 or 1": "0 for no, 1 for yes",
    "decimal": "a number from 0 on, such as 1.5",
    "decimal or -": "such a number, or - for none",
    "JSON": "JSON in UTF-8",
    "JSON or ''": "JSON in UTF-8, or nothing",
    "any": "in a reply: a value or a list",
    "letters": "one word, with a letter for each id",
    "letter": "one letter",
}
"""The types of values. A type may also be the words that a value may be, such as `due|names|page`, or a digest."""

_TYPE = re.compile(
    "|".join(re.escape(name) for name in sorted(TYPES, key=len, reverse=True)) + r"|digest [a-z]|[^\s|]+(?:\|[^\s|]+)+"
)
_IMPLIED = {
    "id": "id", "token": "token", "count": "number", "length": "number", "letters": "letters", "letter": "letter",
    "size": "number",
}  # fmt: skip
_LINE = re.compile(r"(ARGS|SECTIONS|ONCE|Reply) +(.*)", re.DOTALL)
_SECTION = re.compile(r"(?<![\w=])([a-z_]+)=(0|1|ms|numbers|n|pairs)(?!\w)")


def parse(name: str, text: str) -> dict[str, Any]:
    """Read the header at the top of a verb's file."""
    first, *lines = lines_of(text)
    said: dict[str, list[str]] = {"ARGS": [], "SECTIONS": [], "ONCE": [], "Reply": []}
    purpose, notes = [first.removeprefix(f"{name}: ")], list[str]()
    for line in lines:
        found = _LINE.match(line)
        if found:
            said[found[1]].append(found[2])
        else:
            (notes if any(said.values()) else purpose).append(line)
    return {
        "purpose": _joined(" ".join(purpose)),
        "arguments": [*_arguments(said["ARGS"][0])],
        "sections": dict(_sections(_joined(" ".join(said["SECTIONS"])))),
        "replies": [_reply(_joined(form)) for form in said["Reply"]],
        "once": _joined(" ".join(said["ONCE"])),
        "notes": "\n".join(notes),
    }


def values(parts: Sequence[Part]) -> Iterator[Part]:
    """Give all values among these parts, also those within others, in their order."""
    for part in parts:
        if "name" in part:
            yield part
        for kind in ("many", "runs", "list", "maybe"):
            yield from values(part.get(kind, ()))


def lines_of(text: str) -> list[str]:
    """Give the lines of the comment at the top, each with the indented ones behind it."""
    lines: list[str] = []
    for line in text.split("\n"):
        if not line.startswith("--"):
            break
        if lines and line.startswith("--  "):
            lines[-1] += "\n" + line[2:].strip()
        else:
            lines.append(line[2:].strip())
    return lines or [""]


def _joined(text: str) -> str:
    return " ".join(text.split())


def _arguments(text: str) -> Iterator[Part]:
    starts: list[re.Match[str]] = []
    for match in re.finditer(r"(?:^|\n|   +)(\d+)(\.\.)? ", text):
        if int(match[1]) == len(starts) + 1:  # another number belongs to a remark
            starts.append(match)
    for start, end in zip(starts, [*(match.start() for match in starts[1:]), len(text)], strict=False):
        form, _, remark = _joined(text[start.end() : end]).partition(": ")
        parts = _parts_of(form)
        if remark and len(parts) == 1:
            next(values(parts))["about"] = remark
        yield from parts


def _sections(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    matches = list(_SECTION.finditer(text))
    for match, end in zip(matches, [*(one.start() for one in matches[1:]), len(text)], strict=False):
        about, each = text[match.end() : end].strip(), list[str]()
        if about.startswith("("):
            inside, _, about = about[1:].partition(")")
            each = [word.strip() for word in inside.split(",", 1)]
            about = about.removeprefix(" *").removeprefix(":").strip()
        elif match[2] == "n" and (word := re.match(r"(ids|positions in [a-z_]+|positions)\b", about)):
            each = [word[1]]
        yield match[1], {"kind": match[2], "each": each, "about": about}


def _reply(text: str) -> dict[str, Any]:
    form, _, about = text.partition(": ")
    if form == "nil":
        return {"form": None, "letters": {}, "per": "", "about": about}
    form, _, per = form.partition(", one per ")
    (part,), letters = _parts_of(form), dict[str, str]()
    if any(value["type"] in ("letters", "letter") for value in values([part])):
        said, _, about = about.partition(". ")  # behind a full stop stands a remark
        for several, meaning in re.findall(r"((?:[A-Za-z] )+)(.+?)(?:; |$)", said):
            letters |= dict.fromkeys(several.split(), meaning)
    return {"form": part, "letters": letters, "per": per, "about": about}


# ---- parts, token by token


def _parts_of(text: str) -> list[Part]:
    tokens = deque(re.findall(r"[(){}\[\],;*?]|[^\s(){}\[\],;*?]+", text))
    parts = _parts(tokens, "")
    assert parts and not tokens, text
    return parts


def _parts(tokens: deque[str], end: str) -> list[Part]:
    parts: list[Part] = []
    while tokens and tokens[0] != end:
        if _took(tokens, ",") or _took(tokens, ";"):
            continue
        part = _part(tokens)
        name, before = part.get("name", ""), parts[-1] if parts else {}
        if _TYPE.fullmatch(name) and before.get("type") == "word":  # a type behind a comma
            before["type"] = name
        else:
            parts.append(part)
    if end:
        assert _took(tokens, end), f"a {end} is missing"
    return parts


def _part(tokens: deque[str]) -> Part:
    if _took(tokens, "("):
        several = _parts(tokens, ")")
        _took(tokens, "*")
        return {"many": several, "times": _words(tokens) or None}
    part: Part
    if _took(tokens, "{"):
        part = {"list": _parts(tokens, "}")}
        if _took(tokens, "?"):
            part["nil"] = True
    elif _took(tokens, "["):
        part = {"maybe": _parts(tokens, "]")}
    else:
        words = _words(tokens)
        if words == "runs of" and _took(tokens, "("):
            return {"runs": _parts(tokens, ")")}
        if words == "sections":
            return {"sections": True}
        nil = _took(tokens, "?")
        part = _value(f"{words} {_words(tokens)}".strip() if nil else words)
        if nil:
            part["nil"] = True
    return {"many": [part], "times": _words(tokens) or None} if _took(tokens, "*") else part


def _value(words: str) -> Part:
    several = words.split()
    for cut in range(1, len(several)):
        kind = " ".join(several[cut:])
        if _TYPE.fullmatch(kind) and kind not in ("id", "token", "word"):  # these are mostly the end of a name
            return {"name": " ".join(several[:cut]), "type": kind}
    return {"name": words, "type": _IMPLIED.get(words, "word")}


def _words(tokens: deque[str]) -> str:
    words: list[str] = []
    while tokens and tokens[0] not in "(){}[],;*?":
        words.append(tokens.popleft())
    return " ".join(words)


def _took(tokens: deque[str], token: str) -> bool:
    if not tokens or tokens[0] != token:
        return False
    tokens.popleft()
    return True
