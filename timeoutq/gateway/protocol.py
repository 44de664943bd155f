"""The protocol between any client and the library, in one source, for clients in every language.

`timeoutq protocol` writes it as JSON, which clients in other languages read when they run, and as Markdown, for people.
All of it comes from the headers of the verbs and the constants of the package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from timeoutq.gateway.grammar import TYPES, lines_of, parse
from timeoutq.server import calls, scripts
from timeoutq.verbs import confirming, sending
from timeoutq.verbs.replies import STATES
from timeoutq.words import arguments, hostname

VERSION = 2  # the version of the document's form. A client refuses a document whose version it does not know.

KINDS = {"SCARD": "SET", "ZCARD": "ZSET", "HLEN": "HASH", "LLEN": "LIST", "XLEN": "STREAM"}

DIGEST = (
    "the letter `a`, then the first 24 hex digits of SHA-256 of the words of the leases, from `count` on, with NULs "
    "between them: the same leases ended in the same way are the same call"
)
"""The meaning of the type `digest a`, whatever the letter is."""

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
def headers() -> Mapping[str, dict[str, Any]]:
    """Read the headers of all verbs: see `grammar.parse`."""
    return {verb: parse(verb, scripts.source(f"verbs/{verb}")) for verb in scripts.verbs()}


def document() -> dict[str, Any]:
    """Give the whole protocol as plain values, for JSON."""
    key_types = {name: KINDS[command] for command, names in scripts.SIZES.items() for name in names.split()}
    return {
        "protocol": VERSION,
        "schema": schema(),
        "keys": {
            "template": "timeoutq:{QUEUE}:KEY",
            "lock": "timeoutq:{QUEUE}:lock:ID",
            "types": key_types
            | {"meta": "HASH", "lock": "STRING with a TTL, for each lease: the prefix of their names"},
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


def _rules() -> list[str]:
    return [" ".join(rule.split()) for rule in RULES.strip().split("\n\n")]


def schema() -> str:
    """Give the schema that the library accepts: the field `schema` of the key `meta`."""
    found = re.search(r"schema ~= '(\w+)'", scripts.source("open"))
    assert found is not None, "open.lua compares the schema"
    return found[1]


# ---- for people


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
    types = {**TYPES, "digest a": DIGEST}
    lines = [
        *PREFACE.format(schema=schema(), library=scripts.NAME).splitlines(),
        "", "## Rules", "", *(f"- {rule}" for rule in _rules()),
        "", "## Limits", "", *(f"- `{name}`: {value:,}" for name, value in LIMITS.items()),
        "", "## Types", "", "A word without a type is any bytes.",
        "", *(f"- `{name}`: {about}" for name, about in types.items()),
        "", f"States have letters: {states}.", "", "## Verbs",
    ]  # fmt: skip
    for name in headers():
        lines += ["", f"### {name}", "", "```text", *lines_of(scripts.source(f"verbs/{name}")), "```"]
    return "\n".join(lines) + "\n"
