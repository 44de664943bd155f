"""The protocol between any client and the library, made of the headers of the verbs and the package's constants.

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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from timeoutq.server import calls, scripts
from timeoutq.server.troubles import SCHEMA
from timeoutq.verbs import confirming, sending
from timeoutq.verbs.replies import STATES
from timeoutq.words import arguments, hostname

VERSION = 2  # the version of the document's form. A client refuses a document whose version it does not know.

KINDS = {"SCARD": "SET", "ZCARD": "ZSET", "HLEN": "HASH", "LLEN": "LIST", "XLEN": "STREAM"}

LIMITS: Mapping[str, int] = {
    "ids_in_a_call": calls.BATCH,
    "payload_bytes_in_a_call": calls.BYTES,
    "payload_bytes_in_a_flush": calls.FLUSH,
    "id_bytes": arguments.MAX_ID,
    "payload_bytes": arguments.MAX_PAYLOAD,
    "error_bytes": arguments.MAX_ERROR,
    "host_bytes": hostname.MAX_HOST,
    "result_bytes": calls.Kept.MOST,
    "priority_most": arguments.PRIORITY,
    "timeout_ms_least": arguments.MIN_TIMEOUT_MS,
    "timeout_ms_most": arguments.MAX_TIMEOUT_MS,
    "result_kept_ms": calls.KEPT_MS,
    "sent_again_within_ms": int(sending.RESEND * 1000),
    "bell_wait_ms": int(sending.BELL_WAIT * 1000),
}
"""The limits that a client keeps to."""

_RULES = """
A payload is JSON in UTF-8, or a NUL and any bytes.

A call whose reply was lost is sent again with the same words but for its age: how many ms ago it was first sent, at
least 1. It is not sent again later than `sent_again_within_ms`, nor if `replayable` is false.

The id of a call begins with the name of its client and `#`, where the call has an id at all: an event log names who
calls by it. A token begins with the name of its holder, too.

A claim says in `not after` until when its client waits, by the server's clock (TIME), so that no late claim leases
tasks to a client that has gone.

Sections stand behind all other arguments, in any order: name, how many words follow, words.

FCALL with the function of the verb and two keys, `meta` and `lock:`, which is never there: so a node of a cluster from
which the slot of the queue moves refuses a call before it begins. FCALL_RO where the verb only reads. Where the server
says `Function not found`, FUNCTION LOAD with the text of the library, then FCALL again. If the server says that the
library already exists, its revision counts, which FCALL_RO `about` replies: an older one is replaced, a newer never.

A polite queue finds the host of a URL whose host is plain ASCII. Of any other URL, the client sends the host with the
id, in the section `groups` (or `group`): lower case, each label that is not ASCII in Punycode behind `xn--`, with the
port unless it is the usual one. Without it, the bytes of the host count as they are, but for A to Z: a host of its own.

A server whose memory is full takes every ack, failure and release. If these carry links or results, call the function
whose name ends with `_if_room`: it is refused with OOM, and then the call goes without links, with the section `full`
behind its results.

An idle client waits with BLPOP on the key `bell` after a claim that found nothing, at most `bell_wait_ms`, and no
longer than until the `next event` of the claim's reply; then it claims again.

A client that runs for long runs requeue_expired, promote_due and plan in turn, and looks again when plan says.
"""
RULES = [" ".join(rule.split()) for rule in _RULES.strip().split("\n\n")]

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
    "digest a": "the letter `a`, then the first 24 hex digits of SHA-256 of the words of the leases, from `count` on, "
    "with NULs between them: the same leases ended in the same way are the same call",
}
"""The types of values. A type may also be the words that a value may be, such as `due|names|page`."""

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
    _, *found = _SECTION.split(text)
    for name, kind, said in zip(found[::3], found[1::3], found[2::3], strict=True):
        about, each = said.strip(), list[str]()
        if about.startswith("("):
            inside, _, about = about[1:].partition(")")
            each = [word.strip() for word in inside.split(",", 1)]
            about = about.removeprefix(" *").removeprefix(":").strip()
        elif kind == "n" and (word := re.match(r"(ids|positions in [a-z_]+|positions)\b", about)):
            each = [word[1]]
        yield name, {"kind": kind, "each": each, "about": about}


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
    # `id`, `token` and `word` are mostly the end of a name
    found = re.fullmatch(rf"(.+?) (?!(?:id|token|word)\Z)({_TYPE.pattern})", words)
    return {"name": found[1], "type": found[2]} if found else {"name": words, "type": _IMPLIED.get(words, "word")}


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


@cache
def headers() -> Mapping[str, dict[str, Any]]:
    """Read the headers of all verbs: see `parse`."""
    return {verb: parse(verb, scripts.source(f"verbs/{verb}")) for verb in scripts.verbs()}


def document() -> dict[str, Any]:
    """Give the whole protocol as plain values, for JSON."""
    key_types = {name: KINDS[command] for command, names in scripts.SIZES.items() for name in names.split()}
    return {
        "protocol": VERSION,
        "schema": str(SCHEMA),
        "keys": {
            "template": "timeoutq:{QUEUE}:KEY",
            "lock": "timeoutq:{QUEUE}:lock:ID",
            "types": key_types
            | {"meta": "HASH", "lock": "STRING with a TTL, for each lease: the prefix of their names"},
        },
        "states": {letter.decode(): str(state) for letter, state in STATES.items()},
        "types": TYPES,
        "limits": dict(LIMITS),
        "rules": RULES,
        "library": {
            "name": scripts.NAME,
            "revision": scripts.REVISION,
            "about": scripts.function("about"),
            "text": scripts.library(),
        },
        "verbs": {
            name: header
            | {
                "function": scripts.function(name),
                "if_room": "if_room = true" in scripts.source(f"verbs/{name}"),
                "replayable": not header["once"],
                "confirmed": name in confirming.CONFIRMED,
                "reads_only": name in scripts.READING,
            }
            for name, header in headers().items()
        },
    }


PREFACE = """\
# The protocol

Each verb is a function of the library `{library}`, which a server loads once. A client in any language sends these
calls, and has the same promises as Python's: FCALL {library}_VERB 2 META LOCK ARGUMENTS. `timeoutq protocol -o
protocol.json` writes the same as JSON, with the text of the library. `timeoutq protocol --markdown` wrote this page.

Of each verb it shows the header. An argument has a name and a type; `*` means any number of times, or as often as the
argument behind it says; `?` means that it may be nil; braces stand for a list, brackets for all of these or none.

The keys of the queue `crawl` are `timeoutq:{{crawl}}:NAME`: META is `timeoutq:{{crawl}}:meta`, and LOCK is
`timeoutq:{{crawl}}:lock:`. The field `schema` of META says {schema}.
"""


def markdown() -> str:
    """Give the protocol for people: without the text of the library."""
    states = ", ".join(f"`{letter.decode()}` {state}" for letter, state in STATES.items())
    lines = [
        *PREFACE.format(schema=SCHEMA, library=scripts.NAME).splitlines(),
        "", "## Rules", "", *(f"- {rule}" for rule in RULES),
        "", "## Limits", "", *(f"- `{name}`: {value:,}" for name, value in LIMITS.items()),
        "", "## Types", "", "A word without a type is any bytes.",
        "", *(f"- `{name}`: {about}" for name, about in TYPES.items()),
        "", f"States have letters: {states}.", "", "## Verbs",
    ]  # fmt: skip
    for name in headers():
        lines += ["", f"### {name}", "", "```text", *lines_of(scripts.source(f"verbs/{name}")), "```"]
    return "\n".join(lines) + "\n"
