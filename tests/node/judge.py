"""Says whether a call, or a reply, is what the grammar of its verb allows: Python and other clients are held to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from timeoutq.gateway.protocol import Part, headers
from timeoutq.server.calls import BATCH
from timeoutq.words.arguments import MAX_ID


class BadCall(Exception):
    """A call is not what the header of its verb says."""


class BadReply(Exception):
    """A reply is not what the header of its verb says."""


FORMS = {
    "number": rb"\d{1,16}", "number or -1": rb"\d{1,16}|-1", "ms": rb"\d{1,16}", "ms or -1": rb"\d{1,16}|-1",
    "ms or inf": rb"\d{1,16}|inf", "ms or +inf": rb"\d{1,16}|\+inf", "ms or +ms": rb"\+?\d{1,16}", "0 or 1": rb"[01]",
    "decimal": rb"[0-9.e+-]+", "decimal or -": rb"[0-9.e+-]+|-", "letters": rb"[A-Za-z]*", "letter": rb"[A-Za-z]",
    "nonce": rb".+", "token": rb"[^\0]+", "id": rb".{1,%d}" % MAX_ID,
}  # fmt: skip


def fits(word: bytes, kind: str) -> bool:
    """Say whether a word is of a type of the grammar."""
    if kind.startswith("JSON"):
        try:
            return json.loads(word or b"0") is not word and bool(word or kind != "JSON")
        except ValueError:
            return False
    if kind in FORMS:
        return re.fullmatch(FORMS[kind], word, re.DOTALL) is not None
    return "|" not in kind or word.decode("utf-8", "replace") in kind.split("|")


class _Words:
    """The arguments of a call, read from left to right."""

    def __init__(self, verb: str, words: Sequence[bytes]) -> None:
        self.verb, self.words, self.at = verb, words, 0
        self.counts: dict[str, int] = {}
        self.leases = 0, 0

    def fail(self, said: str) -> BadCall:
        return BadCall(f"{self.verb}: {said}, at argument {self.at + 1} of {len(self.words)}")

    def value(self, name: str, kind: str = "word") -> bytes:
        if self.at >= len(self.words):
            raise self.fail(f"{name} is missing")
        word = self.words[self.at]
        if not fits(word, kind):
            raise self.fail(f"{name} must be {kind}, not {word[:60]!r}")
        if kind == "letters" and len(word) != self.counts["count"]:
            raise self.fail(f"{name} has {len(word)} letters for {self.counts['count']} ids")
        self.at += 1
        if kind == "number":
            self.counts[name] = int(word)
        return word

    def parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if "name" in part:
                self.value(part["name"], part["type"])
            elif "many" in part:
                count, found = self.counts[part["times"]] if part["times"] else None, 0
                while self.at < len(self.words) if count is None else found < count:
                    self.parts(part["many"])
                    found += 1
                if found > BATCH and any(one.get("type") == "id" for one in part["many"]):
                    raise self.fail(f"{found} ids are more than {BATCH}")
            elif "runs" in part:
                start, found = self.at - 1, 0
                while found < self.counts["count"]:
                    self.parts(part["runs"])
                    found += self.counts["length"]
                if found > self.counts["count"] or found > BATCH:
                    raise self.fail(f"the runs have {found} ids, and the count says {self.counts['count']}")
                self.leases = start, self.at
            else:
                self.sections(headers()[self.verb]["sections"])

    def sections(self, known: Part) -> None:
        found: dict[str, list[bytes]] = {}
        while self.at < len(self.words):
            name = self.value("a section").decode()
            if name not in known or name in found:
                raise self.fail(f"section {name!r} is {'given twice' if name in found else 'unknown'}")
            count = int(self.value(f"the length of section {name}", "number"))
            found[name] = [self.value(f"a word of section {name}") for _ in range(count)]
        for name, words in found.items():
            kind, each = known[name]["kind"], known[name]["each"]
            if len(words) != {"0": 0, "1": 1, "ms": 1}.get(kind, len(words)) or (
                kind in ("pairs", "numbers") and len(words) % 2
            ):
                raise self.fail(f"section {name}={kind} has {len(words)} words")
            numbers = words if kind == "ms" else words[1::2] if kind == "numbers" else []
            if bad := [word for word in numbers if not re.fullmatch(rb"\d{1,15}", word)]:
                raise self.fail(f"section {name} has {bad[0]!r} for a whole number")
            if each and each[0].startswith("position"):
                of = each[0].partition(" in ")[2]
                most = len(found.get(of, ())) if of else self.counts["count"]
                for word in words if kind == "n" else words[::2]:
                    if not re.fullmatch(rb"\d{1,4}", word) or not 1 <= int(word) <= most:
                        raise self.fail(f"section {name} has position {word!r}, of {most}")


def check_call(verb: str, words: Sequence[bytes]) -> None:
    """Check the arguments of a call, the call id first; raises `BadCall`."""
    arguments, read = headers()[verb]["arguments"], _Words(verb, words)
    read.parts(arguments)
    if read.at < len(words):
        raise read.fail(f"{words[read.at][:60]!r} is one word too many")
    if arguments[0]["type"].startswith("digest "):
        start, end = read.leases
        digest = hashlib.sha256(b"\0".join(words[start:end])).hexdigest()[:24]
        if words[0].decode() != arguments[0]["type"][-1] + digest:
            raise read.fail(f"the call id {words[0]!r} is not the digest of its leases")


def check_reply(verb: str, reply: Any) -> int:
    """Give the place of the form that a reply has; raises `BadReply` if it has none of the header's."""
    said: list[str] = []
    for place, form in enumerate(headers()[verb]["replies"]):
        try:
            if form["form"] is not None:
                _check(form["letters"], form["form"], reply)
            elif reply is not None:
                raise BadReply("it is not nil")
            return place
        except BadReply as error:
            said.append(str(error))
    raise BadReply(f"{verb} replied {reply!r:.300}: {'; or '.join(said)}")


def _check(letters: Part, part: Part, found: Any) -> None:
    if found is None and part.get("nil"):
        return
    if "list" in part:
        if not isinstance(found, list):
            raise BadReply(f"{found!r:.60} is no list")
        if rest := _some(letters, part["list"], found):
            raise BadReply(f"{rest[0]!r:.60} is one too many")
    elif part["type"] != "any":
        word = b"%d" % found if isinstance(found, int) else found
        if not isinstance(word, bytes) or not fits(word, part["type"]):
            raise BadReply(f"{part['name']} must be {part['type']}, not {found!r:.60}")
        if part["type"] in ("letters", "letter") and (unknown := set(word.decode()) - letters.keys()):
            raise BadReply(f"{part['name']} has the letters {', '.join(sorted(unknown))}, which mean nothing")


def _some(letters: Part, parts: Sequence[Part], found: list[Any]) -> list[Any]:
    for place, part in enumerate(parts):
        if "maybe" in part:
            found = _some(letters, part["maybe"], found) if found else found
        elif "many" in part:
            # what stands behind it in the header stands at the end of the reply
            behind = sum("name" in one or "list" in one for one in parts[place + 1 :])
            while len(found) > behind:
                found = _some(letters, part["many"], found)
        elif not found:
            raise BadReply(f"{part.get('name', 'a list')} is missing")
        else:
            _check(letters, part, found[0])
            found = found[1:]
    return found
