"""The grammar of the headers of verbs: what a header says, parsed into frozen values. Pure.

The header of a verb is the comment at its top. It says what the verb does, and what travels: ARGS, SECTIONS,
ONCE (why a call must not be sent again) and Reply, so that a client in any language can be made from it. `document.py`
writes it as JSON, `judge.py` reads calls and replies by it.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["0", "1", "ms", "n", "pairs", "numbers"]
KINDS: Mapping[str, Kind] = {"0": "0", "1": "1", "ms": "ms", "n": "n", "pairs": "pairs", "numbers": "numbers"}

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
"""What the types of values mean. A type may also be the words that a value may be, such as `due|names|page`."""
DIGEST = (
    "the letter `a`, then the first 24 hex digits of SHA-256 of the words of the leases, from `count` on, with NULs "
    "between them: the same leases ended in the same way are the same call"
)
"""What the type `digest a` means, whatever the letter is."""

_KNOWN = re.compile(
    "|".join(re.escape(name) for name in sorted(TYPES, key=len, reverse=True)) + r"|digest [a-z]|[^\s|]+(?:\|[^\s|]+)+"
)
_IMPLIED = {
    "id": "id", "token": "token", "count": "number", "length": "number", "letters": "letters", "letter": "letter",
    "size": "number",
}  # fmt: skip


class BadHeader(Exception):
    """The header of a script is not what the grammar says: the message names the script, the line and the cure."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value: an argument, or a part of a reply."""

    name: str
    type: str = "word"
    nil: bool = False
    """Whether a reply may have nil here."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Many:
    """Parts that stand again and again: as often as the value `times` says, or, if it is empty, to the end."""

    of: tuple[Part, ...]
    times: str = ""


@dataclass(frozen=True, slots=True)
class Runs:
    """Leases: runs of a token, how many ids follow, and the ids, until all runs together have `count` ids."""

    of: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list within a reply."""

    of: tuple[Part, ...]
    nil: bool = False


@dataclass(frozen=True, slots=True)
class Maybe:
    """Parts of a reply that stand there all, or not at all."""

    of: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """The place of the sections."""


Part = Value | Many | Runs | Listed | Maybe | Options


@dataclass(frozen=True, slots=True)
class Section:
    """An option of a call: its name, how many words follow, and the words."""

    name: str
    kind: Kind
    each: tuple[str, ...] = ()
    """What its words are, one after the other: of pairs, the first is mostly a position, from 1 on."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One form that a reply may have."""

    part: Part | None
    """None is nil."""
    letters: Mapping[str, str] = field(default_factory=dict[str, str])
    """What each letter means, where the reply has letters."""
    per: str = ""
    """What has a letter each: id, lease, schedule."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a verb says."""

    name: str
    purpose: str
    arguments: tuple[Part, ...]
    sections: tuple[Section, ...]
    replies: tuple[Reply, ...]
    once: str = ""
    """Why a call must not be sent again when its reply is lost; empty: it may be, with its age."""
    notes: str = ""

    @property
    def replayable(self) -> bool:
        """Whether a call may be sent again when its reply is lost."""
        return not self.once


def parse(name: str, text: str) -> Header:
    """Parse the header at the top of a verb's file; raises `BadHeader`."""
    try:
        return _parse(name, text)
    except BadHeader as error:
        raise BadHeader(f"the header of {name}.lua: {error}") from None


def _parse(name: str, text: str) -> Header:
    blocks = _blocks(text)
    word, purpose = blocks[0]
    if word or not purpose.startswith(f"{name}: "):
        raise BadHeader(f"the first line must be `-- {name}: ` and what the verb does")
    found: dict[str, list[str]] = {}
    notes: list[str] = []
    for word, rest in blocks[1:]:
        if not word and not found:
            purpose += " " + _line(rest)
        elif not word:
            notes.append(rest)
        else:
            found.setdefault(word, []).append(rest)
    if missing := {"ARGS", "Reply"} - found.keys():
        raise BadHeader(f"there is no line {' and no line '.join(sorted(missing))}")
    arguments = _arguments(found["ARGS"][0])
    sections = tuple(_sections(found.get("SECTIONS", [""])[0]))
    if bool(sections) != any(isinstance(part, Options) for part in arguments):
        raise BadHeader("ARGS ends with `sections` where there is a line SECTIONS, and only there")
    return Header(
        name,
        _line(purpose.partition(": ")[2]),
        arguments,
        sections,
        tuple(_reply(form) for form in found["Reply"]),
        _line(found.get("ONCE", [""])[0]),
        "\n".join(notes),
    )


_WORD = re.compile(r"(ARGS|SECTIONS|ONCE|Reply) +(.*)", re.DOTALL)


def _blocks(text: str) -> list[tuple[str, str]]:
    # the first word of each line that is not indented, and the line with the indented ones behind it
    blocks: list[str] = []
    for line in text.split("\n"):
        if not line.startswith("--"):
            break
        if blocks and line.startswith("--  "):
            blocks[-1] += "\n" + line[2:].strip()
        else:
            blocks.append(line[2:].strip())
    if not blocks:
        raise BadHeader("the file does not begin with a comment")
    found: list[tuple[str, str]] = []
    for block in blocks:
        match = _WORD.match(block)
        found.append((match[1], match[2]) if match else ("", block))
    return found


def _line(text: str) -> str:
    return " ".join(text.split())


# ---- ARGS


def _arguments(text: str) -> tuple[Part, ...]:
    parts: list[Part] = []
    rest = False
    for place, (dots, words) in enumerate(_places(text), 1):
        if rest:
            raise BadHeader(f"place {place} of ARGS stands behind one that goes to the end")
        rest = bool(dots)
        found = _with_remark(words)
        if not rest and (len(found) != 1 or not isinstance(found[0], Value | Options)):
            raise BadHeader(
                f"place {place} of ARGS must be `name` or `name, type`, then `: ` and a remark, not {words!r}; the "
                "types stand in TYPES of protocol/grammar.py"
            )
        parts += found
    names = [part.name for part in each_value(parts)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadHeader(f"ARGS has two arguments of the name {', '.join(sorted(twice))}: give each a name of its own")
    for part in _each(parts):
        if isinstance(part, Many) and part.times and part.times not in names:
            raise BadHeader(f"ARGS has no argument {part.times!r}, which says how often something stands")
    if len(parts) < 2 or [part.name for part in parts[1:2] if isinstance(part, Value)] != ["age of the call"]:
        raise BadHeader("ARGS begins with `1 call id   2 age of the call, ms`")
    return tuple(parts)


def _places(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    start = None
    for match in re.finditer(r"(?:^|\n|   +)(\d+)(\.\.)? ", text):
        # a number that is not the next place belongs to a remark
        if int(match[1]) == len(found) + 1:
            if start is not None:
                found[-1] = (found[-1][0], _line(text[start : match.start()]))
            found.append((match[2] or "", ""))
            start = match.end()
    if start is None:
        raise BadHeader("ARGS begins with `1 call id   2 age of the call, ms`")
    found[-1] = (found[-1][0], _line(text[start:]))
    return found


def _with_remark(words: str) -> tuple[Part, ...]:
    form, _, remark = words.partition(": ")
    parts = _Reader(form).whole()
    first = parts[0]
    if len(parts) == 1 and isinstance(first, Value):
        return (Value(first.name, first.type, first.nil, remark),)
    if remark and isinstance(first, Many) and len(parts) == 1 and isinstance(first.of[0], Value):
        of = first.of[0]
        return (Many((Value(of.name, of.type, of.nil, remark), *first.of[1:]), first.times),)
    return parts


class _Reader:
    """Reads parts, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = re.findall(r"[(){}\[\],;*?]|[^\s(){}\[\],;*?]+", text)
        self._at = 0

    def whole(self) -> tuple[Part, ...]:
        parts = self._parts("")
        if self._at < len(self._tokens) or not parts:
            raise BadHeader(f"cannot be read beyond {' '.join(self._tokens[: self._at])!r}: {self._text!r}")
        return parts

    def _parts(self, end: str) -> tuple[Part, ...]:
        parts: list[Part] = []
        while self._at < len(self._tokens) and self._tokens[self._at] != end:
            if self._take(",") or self._take(";"):
                continue
            part = self._part()
            before = parts[-1] if parts else None
            if isinstance(part, Value) and isinstance(before, Value) and before.type == "word" and _is_type(part.name):
                part = Value(before.name, part.name, before.nil)
                parts.pop()
            parts.append(part)
        if end and not self._take(end):
            raise BadHeader(f"a {end} is missing: {self._text!r}")
        return tuple(parts)

    def _part(self) -> Part:
        part: Part
        if self._take("("):
            return self._times(*self._parts(")"))
        if self._take("{"):
            of = self._parts("}")
            part = Listed(of, self._take("?"))
        elif self._take("["):
            part = Maybe(self._parts("]"))
        else:
            words = self._words()
            if words == "runs of" and self._take("("):
                return Runs(self._parts(")"))
            if words == "sections":
                return Options()
            nil = self._take("?")
            if nil:
                words = f"{words} {self._words()}"
            part = _value(words.strip(), nil)
        return self._times(part)

    def _times(self, *parts: Part) -> Part:
        if self._take("*"):
            return Many(parts, self._words())
        if len(parts) == 1:
            return parts[0]
        raise BadHeader(f"behind the bracket of {self._text!r} there is no *")

    def _words(self) -> str:
        start = self._at
        while self._at < len(self._tokens) and self._tokens[self._at] not in "(){}[],;*?":
            self._at += 1
        return " ".join(self._tokens[start : self._at])

    def _take(self, token: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at] == token
        self._at += found
        return found


def _is_type(words: str) -> bool:
    return _KNOWN.fullmatch(words) is not None


def _value(words: str, nil: bool) -> Value:
    if not words:
        raise BadHeader("a name is missing")
    if words in _IMPLIED:
        return Value(words, _IMPLIED[words], nil)
    several = words.split()
    for cut in range(1, len(several)):
        kind = " ".join(several[cut:])
        if _is_type(kind) and kind not in ("id", "token", "word"):  # these are mostly the end of a name
            return Value(" ".join(several[:cut]), kind, nil)
    return Value(words, "word", nil)


# ---- SECTIONS


_SECTION = re.compile(r"(?<![\w=])([a-z_]+)=(\d|ms|numbers|n|pairs)(?!\w)")


def _sections(text: str) -> list[Section]:
    found: list[Section] = []
    text = _line(text)
    matches = list(_SECTION.finditer(text))
    if text and (not matches or matches[0].start() != 0):
        raise BadHeader("SECTIONS begins with the name of a section, `=` and its kind")
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        if match[2] not in KINDS:
            raise BadHeader(f"{match[0]}: a section is one of the kinds {', '.join(KINDS)}")
        about = text[match.end() : following.start() if following else len(text)].strip()
        each: tuple[str, ...] = ()
        if about.startswith("("):
            inside, _, about = about[1:].partition(")")
            each = tuple(word.strip() for word in inside.split(",", 1))
            about = about.removeprefix(" *").removeprefix(":").strip()
        elif match[2] == "n" and (word := re.match(r"(ids|positions in [a-z_]+|positions)\b", about)):
            each = (word[1],)
        found.append(Section(match[1], KINDS[match[2]], each, about))
    if len({section.name for section in found}) < len(found):
        raise BadHeader("SECTIONS names a section twice")
    return found


# ---- Reply


def _reply(text: str) -> Reply:
    form, _, about = _line(text).partition(": ")
    if form == "nil":
        return Reply(None, about=about)
    per = re.search(r", one per (\w+)$", form)
    form = form[: per.start()] if per else form
    parts = _Reader(form).whole()
    if len(parts) != 1:
        raise BadHeader(
            f"a reply must be one value, one list in braces, or nil, then `: ` and a remark, not {form!r}; a reply "
            "with several forms has a line Reply for each"
        )
    part = parts[0]
    names = [value.name for value in each_value([part])]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadHeader(f"a reply has two values of the name {', '.join(sorted(twice))}: give each a name of its own")
    letters: dict[str, str] = {}
    if any(value.type in ("letters", "letter") for value in each_value([part])):
        letters, about = _letters(about)
    return Reply(part, letters, per[1] if per else "", about)


def _letters(text: str) -> tuple[dict[str, str], str]:
    # what stands behind a full stop is a remark
    said, _, about = text.partition(". ")
    letters: dict[str, str] = {}
    for clause in said.split("; "):
        match = re.match(r"((?:[A-Za-z] )+)(.+)", clause)
        if match is None:
            if not letters and not said:
                break
            raise BadHeader(f"letters and what they mean are missing before {clause!r}")
        for letter in match[1].split():
            if letter in letters:
                raise BadHeader(f"letter {letter} stands twice in a reply")
            letters[letter] = match[2]
    return letters, about


# ---- looking into what was parsed


def _each(parts: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        found.append(part)
        if not isinstance(part, Value | Options):
            found += _each(part.of)
    return found


def each_value(parts: Sequence[Part]) -> list[Value]:
    """Give all values of these parts, also those within others, in their order."""
    return [part for part in _each(parts) if isinstance(part, Value)]
