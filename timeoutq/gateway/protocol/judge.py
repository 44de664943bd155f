"""Says whether a call, or a reply, is what the grammar of its verb allows. Pure.

The tests hold each call of Python's own table against it, and each call of the clients in other languages: so neither
can drift from the headers of the scripts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, cast

from timeoutq.gateway.protocol.grammar import Header, Listed, Many, Maybe, Options, Part, Reply, Runs, Section, Value
from timeoutq.server.calls import BATCH
from timeoutq.words.arguments import MAX_ID


class BadCall(Exception):
    """A call is not what the header of its script says: the message names the argument."""


class BadReply(Exception):
    """A reply is not what the header of its script says: the message names the part of the reply."""


_FORMS = {
    "number": rb"\d{1,16}", "number or -1": rb"\d{1,16}|-1", "ms": rb"\d{1,16}", "ms or -1": rb"\d{1,16}|-1",
    "ms or inf": rb"\d{1,16}|inf", "ms or +inf": rb"\d{1,16}|\+inf", "ms or +ms": rb"\+?\d{1,16}", "0 or 1": rb"[01]",
    "decimal": rb"[0-9.e+-]+", "decimal or -": rb"[0-9.e+-]+|-", "letters": rb"[A-Za-z]*", "letter": rb"[A-Za-z]",
    "nonce": rb".+", "token": rb"[^\0]+", "id": rb".{1,%d}" % MAX_ID,
}  # fmt: skip


def fits(word: bytes, kind: str) -> bool:
    """Say whether a word is of a type of the grammar; a digest is judged by `check_call`."""
    if kind.startswith("JSON"):
        if not word:
            return kind != "JSON"
        try:
            json.loads(word)
        except ValueError:
            return False
        return True
    if kind in _FORMS:
        return re.fullmatch(_FORMS[kind], word, re.DOTALL) is not None
    if "|" in kind:
        return word.decode("utf-8", "replace") in kind.split("|")
    return True


class _Words:
    """The arguments of a call, read from left to right."""

    def __init__(self, header: Header, words: Sequence[bytes]) -> None:
        self.header = header
        self.words = words
        self.at = 0
        self.counts: dict[str, int] = {}
        self.leases = (0, 0)  # from where to where the leases stand, with their count

    def fail(self, said: str) -> BadCall:
        return BadCall(f"{self.header.name}: {said}, at argument {self.at + 1} of {len(self.words)}")

    def take(self, name: str) -> bytes:
        if self.at >= len(self.words):
            raise self.fail(f"{name} is missing")
        self.at += 1
        return self.words[self.at - 1]

    def value(self, value: Value) -> bytes:
        word = self.take(value.name)
        if not fits(word, value.type):
            self.at -= 1
            raise self.fail(f"{value.name} must be {value.type}, not {word[:60]!r}")
        if value.type == "number":
            self.counts[value.name] = int(word)
        return word

    def parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Value():
                    word = self.value(part)
                    if part.type == "letters" and len(word) != self.counts["count"]:
                        raise self.fail(f"{part.name} has {len(word)} letters for {self.counts['count']} ids")
                case Many():
                    self.many(part)
                case Runs():
                    self.runs(part)
                case Options():
                    self.sections()
                case Listed() | Maybe():
                    raise self.fail("a call has no lists")

    def many(self, many: Many) -> None:
        count = self.counts[many.times] if many.times else None
        found = 0
        while self.at < len(self.words) if count is None else found < count:
            self.parts(many.of)
            found += 1
        ids = [part.name for part in many.of if isinstance(part, Value) and part.type == "id"]
        if ids and found > BATCH:
            raise self.fail(f"{found} ids are more than {BATCH}")

    def runs(self, runs: Runs) -> None:
        start, count, found = self.at - 1, self.counts["count"], 0
        while found < count:
            self.parts(runs.of)
            if not self.counts["length"]:
                raise self.fail("a run of no ids")
            found += self.counts["length"]
        if found > count:
            raise self.fail(f"the runs have {found} ids, and the count says {count}")
        if count > BATCH:
            raise self.fail(f"{count} leases are more than {BATCH}")
        self.leases = (start, self.at)

    def sections(self) -> None:
        known = {section.name: section for section in self.header.sections}
        found: dict[str, list[bytes]] = {}
        while self.at < len(self.words):
            name = self.take("a section").decode("utf-8", "replace")
            if name not in known or name in found:
                raise self.fail(f"section {name!r} is {'given twice' if name in found else 'unknown'}")
            count = self.value(Value(f"the length of section {name}", "number"))
            found[name] = [self.take(f"a word of section {name}") for _ in range(int(count))]
        for name, words in found.items():
            self.section(known[name], words, found)

    def section(self, section: Section, words: Sequence[bytes], given: dict[str, list[bytes]]) -> None:
        kind, count = section.kind, len(words)
        exact = {"0": 0, "1": 1, "ms": 1}.get(kind, count)
        if count != exact or (kind in ("pairs", "numbers") and count % 2):
            raise self.fail(f"section {section.name}={kind} has {count} words")
        numbers = [*words[:1]] if kind == "ms" else [*words[1::2]] if kind == "numbers" else []
        if bad := [word for word in numbers if not re.fullmatch(rb"\d{1,15}", word)]:
            raise self.fail(f"section {section.name} has {bad[0]!r} for a whole number")
        first = section.each[0] if section.each else ""
        if first.startswith("position"):
            words = words if kind == "n" else words[::2]
            of = first.partition(" in ")[2]
            most = len(given.get(of, ())) if of else self.counts["count"]
            for word in words:
                if not re.fullmatch(rb"\d{1,4}", word) or not 1 <= int(word) <= most:
                    raise self.fail(f"section {section.name} has position {word!r}, of {most}")


def check_call(header: Header, words: Sequence[bytes]) -> None:
    """Check the arguments of a call, the call id first; raises `BadCall`."""
    read = _Words(header, words)
    read.parts(header.arguments)
    if read.at < len(words):
        raise read.fail(f"{words[read.at][:60]!r} is one word too many")
    first = header.arguments[0]
    kind = first.type if isinstance(first, Value) else ""
    if kind.startswith("digest "):
        start, end = read.leases
        wanted = kind[-1].encode() + hashlib.sha256(b"\0".join(words[start:end])).hexdigest()[:24].encode()
        if words[0] != wanted:
            raise BadCall(f"{header.name}: the call id {words[0]!r} is not the digest of its leases, {wanted!r}")


def check_reply(header: Header, reply: Any) -> Reply:
    """Give the form that a reply has; raises `BadReply` if it has none of the header's."""
    said: list[str] = []
    for form in header.replies:
        try:
            _check(form, form.part, reply)
        except BadReply as error:
            said.append(str(error))
        else:
            return form
    raise BadReply(f"{header.name} replied {reply!r:.300}: {'; or '.join(said)}")


def _check(form: Reply, part: Part | None, found: Any) -> None:
    if part is None:
        if found is not None:
            raise BadReply("it is not nil")
    elif isinstance(part, Listed):
        if found is None and part.nil:
            return
        if not isinstance(found, list):
            raise BadReply(f"{found!r:.60} is no list")
        rest = _some(form, part.of, cast("Any", found))
        if rest:
            raise BadReply(f"{rest[0]!r:.60} is one too many")
    elif isinstance(part, Value):
        _value(form, part, found)
    else:
        raise BadReply("a reply is a value or a list")


def _some(form: Reply, parts: Sequence[Part], found: list[Any]) -> list[Any]:
    for place, part in enumerate(parts):
        if isinstance(part, Maybe):
            found = _some(form, part.of, found) if found else found
        elif isinstance(part, Many):
            # what stands behind it in the header stands at the end of the reply
            behind = sum(isinstance(one, Value | Listed) for one in parts[place + 1 :])
            while len(found) > behind:
                found = _some(form, part.of, found)
        else:
            if not found:
                raise BadReply(f"{getattr(part, 'name', 'a list')} is missing")
            _check(form, part, found[0])
            found = found[1:]
    return found


def _value(form: Reply, value: Value, found: Any) -> None:
    if value.type == "any" or (found is None and value.nil):
        return
    word = b"%d" % found if isinstance(found, int) else found
    if not isinstance(word, bytes) or not fits(word, value.type):
        raise BadReply(f"{value.name} must be {value.type}, not {found!r:.60}")
    if value.type in ("letters", "letter") and (unknown := set(word.decode()) - form.letters.keys()):
        raise BadReply(f"{value.name} has the letters {', '.join(sorted(unknown))}, which mean nothing")
