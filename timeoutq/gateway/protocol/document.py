"""Writes the protocol: as JSON, which clients in other languages read at run time, and as Markdown, for people.

`timeoutq protocol` calls it. All that it says comes from the verbs' headers and the constants of the package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from timeoutq.gateway.protocol.grammar import (
    DIGEST,
    TYPES,
    Header,
    Listed,
    Many,
    Maybe,
    Options,
    Part,
    Reply,
    Runs,
    Section,
    Value,
    each_value,
    parse,
)
from timeoutq.server import calls, scripts
from timeoutq.verbs import confirming, sending
from timeoutq.verbs.replies import STATES
from timeoutq.words import arguments, hostname

VERSION = 2
"""The version of the document's form. A client refuses a document whose version it does not know."""

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
"""What a client keeps to."""

RULES = """
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


@cache
def headers() -> Mapping[str, Header]:
    """Parse the headers of all verbs; raises `BadHeader`."""
    return {verb: parse(verb, scripts.source(f"verbs/{verb}")) for verb in scripts.verbs()}


def document() -> dict[str, Any]:
    """Give the whole protocol as plain values, for JSON."""
    return {
        "protocol": VERSION,
        "schema": schema(),
        "keys": {
            "template": "timeoutq:{QUEUE}:KEY",
            "lock": "timeoutq:{QUEUE}:lock:ID",
            "types": _key_types(),
        },
        "states": {letter.decode(): str(state) for letter, state in STATES.items()},
        "types": TYPES | {"digest a": DIGEST},
        "limits": dict(LIMITS),
        "rules": _rules(),
        "library": {
            "name": scripts.NAME,
            "revision": scripts.REVISION,
            "about": scripts.function("about"),
            "text": scripts.library(),
        },
        "verbs": {name: _verb(header) for name, header in headers().items()},
    }


def _rules() -> list[str]:
    return [" ".join(rule.split()) for rule in RULES.strip().split("\n\n")]


def schema() -> str:
    """Give the schema that the library accepts: the field `schema` of the key `meta`."""
    found = re.search(r"schema ~= '(\w+)'", scripts.source("open"))
    assert found is not None, "open.lua compares the schema"
    return found[1]


def _key_types() -> dict[str, str]:
    return {name: KINDS[command] for command, names in scripts.SIZES.items() for name in names.split()} | {
        "meta": "HASH", "lock": "STRING with a TTL, one for each lease: the prefix of their names",
    }  # fmt: skip


def _verb(header: Header) -> dict[str, Any]:
    text = scripts.source(f"verbs/{header.name}")
    return {
        "purpose": header.purpose,
        "function": scripts.function(header.name),
        "if_room": "if_room = true" in text,
        "arguments": [_part(part) for part in header.arguments],
        "sections": {section.name: _section(section) for section in header.sections},
        "replies": [_reply(reply) for reply in header.replies],
        "replayable": header.replayable,
        "once": header.once,
        "confirmed": header.name in confirming.CONFIRMED,
        "reads_only": header.name in scripts.READING,
        "notes": header.notes,
    }


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Value():
            found: dict[str, Any] = {"name": part.name, "type": part.type}
            return found | ({"nil": True} if part.nil else {}) | ({"about": part.about} if part.about else {})
        case Many():
            return {"many": [_part(one) for one in part.of], "times": part.times or None}
        case Runs():
            return {"runs": [_part(one) for one in part.of]}
        case Listed():
            return {"list": [_part(one) for one in part.of]} | ({"nil": True} if part.nil else {})
        case Maybe():
            return {"maybe": [_part(one) for one in part.of]}
        case Options():
            return {"sections": True}


def _section(section: Section) -> dict[str, Any]:
    return {"kind": section.kind, "each": list(section.each), "about": section.about}


def _reply(reply: Reply) -> dict[str, Any]:
    form = None if reply.part is None else _part(reply.part)
    return {"form": form, "letters": dict(reply.letters), "per": reply.per, "about": reply.about}


# ---- for people


PREFACE = """\
# The protocol

Each verb is a function of the library `{library}`, which a server loads once. A client in any language sends these
calls, and has the same promises as Python's: FCALL {library}_VERB 2 META LOCK ARGUMENTS. `timeoutq protocol -o
protocol.json` writes the same as JSON, with the text of the library. `timeoutq protocol --markdown` wrote this page.

The keys of the queue `crawl` are `timeoutq:{{crawl}}:NAME`: META is `timeoutq:{{crawl}}:meta`, and LOCK is
`timeoutq:{{crawl}}:lock:`. The field `schema` of META says {schema}.
"""


def markdown() -> str:
    """Give the protocol for people: without the text of the library."""
    lines = [
        *PREFACE.format(schema=schema(), library=scripts.NAME).splitlines(),
        "",
        "## Rules",
        "",
        *(f"- {rule}" for rule in _rules()),
        "",
        "## Limits",
        "",
        *(f"- `{name}`: {value:,}" for name, value in LIMITS.items()),
        "",
        "## Types",
        "",
        "A word without a type is any bytes.",
        "",
        *(f"- `{name}`: {about}" for name, about in TYPES.items()),
        f"- `digest a`: {DIGEST}",
        "",
        "States have letters: " + ", ".join(f"`{letter.decode()}` {state}" for letter, state in STATES.items()) + ".",
        "",
        "## Verbs",
    ]
    for header in headers().values():
        lines += ["", *_told(header)]
    return "\n".join(lines) + "\n"


def _told(header: Header) -> list[str]:
    lines = [f"### {header.name}", "", _sentence(header.purpose)]
    lines += ["", "Arguments: " + ", ".join(shown(part) for part in header.arguments) + ".", ""]
    lines += [f"- {value.name}: {value.about}" for value in each_value(header.arguments) if value.about]
    for section in header.sections:
        each = f" ({', '.join(section.each)})" if section.each else ""
        about = f": {section.about}" if section.about else ""
        lines.append(f"- section `{section.name}={section.kind}`{each}{about}")
    for reply in header.replies:
        per = f", one per {reply.per}" if reply.per else ""
        about = f": {reply.about}" if reply.about else ""
        lines.append(f"- reply {'nil' if reply.part is None else shown(reply.part)}{per}{about}")
        lines += [f"  - `{letters}` {meaning}" for letters, meaning in _by_meaning(reply.letters)]
    if header.once:
        lines.append(f"- not to be sent again: {header.once}")
    return lines


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + ("" if words.endswith((".", "?")) else ".")


def _by_meaning(letters: Mapping[str, str]) -> list[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for letter, meaning in letters.items():
        found.setdefault(meaning, []).append(letter)
    return [(" ".join(those), meaning) for meaning, those in found.items()]


def shown(part: Part) -> str:
    """Give a part as the headers write it."""
    match part:
        case Value():
            name = f"{part.name}{'?' if part.nil else ''}"
            return name if part.type in ("word", part.name) else f"{name} `{part.type}`"
        case Many():
            of = _several(part.of) if len(part.of) == 1 else f"({_several(part.of)})"
            return f"{of} *{' ' if part.times else ''}{part.times}"
        case Runs():
            return f"runs of ({_several(part.of)})"
        case Listed():
            return f"{{{_several(part.of)}}}{'?' if part.nil else ''}"
        case Maybe():
            return f"[{_several(part.of)}]"
        case Options():
            return "sections"


def _several(parts: Sequence[Part]) -> str:
    return ", ".join(shown(part) for part in parts)
