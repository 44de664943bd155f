"""What a sitemap names (the protocol of sitemaps.org), read piece by piece: XML, an index, a text, a robots.txt. Pure.

`sitemaps.py` feeds bytes and gets entries. The parser is expat, which Python brings and which keeps nothing of what it
has read. Nothing here grows with the length of a sitemap, whoever wrote it: no entity may be declared, because with
entities a kilobyte of XML becomes gigabytes, and depth, names and lengths have limits.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol
from xml.parsers import expat

from timeoutq.arguments import shown
from timeoutq.errors import BadSitemap

DEEPEST = 50
"""How deep elements may be nested; those of the protocol are 3 deep, and extensions a few more."""

MOST_NAMES = 1000
"""How many different names elements and attributes may have: the parser remembers each."""

LONGEST_NAME = 1000
"""How long such a name may be, characters."""

LONGEST_PIECE = 1024 * 1024
"""How long a tag, a comment or a line may be, bytes: it is held until its end is read."""

MOST_ADDRESSES = 1000
"""How many addresses an entry may have; by the protocol it has one."""

LONGEST_TEXT = 8192
"""What is kept of the text of an element, characters."""

HEAD = 512
"""How many of the first bytes decide whether a sitemap is XML or text."""

_ROOTS = {"urlset": "url", "sitemapindex": "sitemap"}
_BLANKS = b" \t\r\n"
_LINE_END = re.compile(rb"\r\n?|\n")
_PLACED = {*_ROOTS, *_ROOTS.values(), "loc"}
"""Elements that have one place each; at the top of a sitemap, an extension has others."""
_HTML = re.compile(rb"(?>(?:<!--.*?-->|<\?.*?\?>|\s)*)<!doctype\s+html\b", re.IGNORECASE | re.DOTALL)
_WRONG_ROOTS = {"html": "it is a page of HTML, not a sitemap", "rss": "it is a feed", "feed": "it is a feed"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A page or another sitemap that a sitemap names."""

    url: str
    """As it is written; empty where the sitemap names none."""
    line: int
    is_sitemap: bool = False
    data: Mapping[str, str | float] = field(default_factory=lambda: MappingProxyType({}))
    """What the sitemap says of the page: `lastmod` and `changefreq` as they are written, `priority` as a number."""
    may_be_relative: bool = field(default=False, compare=False)
    """Whether the URL is joined to that of the sitemap."""


class Reader:
    """Reads one sitemap, which comes in pieces."""

    def __init__(self, is_robots: bool = False) -> None:
        """Expect a sitemap, or a robots.txt, which names sitemaps."""
        self._is_robots = is_robots
        self._head = b""
        self._form: _Form | None = None

    def feed(self, data: bytes) -> Iterator[Entry]:
        """Give the entries that end in the next bytes; raises `BadSitemap` after the entries before the mistake."""
        if self._form is None:
            self._head += data
            if len(self._head) < HEAD:
                return
            self._form, data = self._form_of_head(), self._head
        yield from self._form.feed(data)

    def end(self) -> Iterator[Entry]:
        """Give the entries that are left; raises `BadSitemap` for what ends too early."""
        if self._form is None:
            self._form = self._form_of_head()
            yield from self._form.feed(self._head)
        yield from self._form.end()

    def _form_of_head(self) -> _Form:
        """Decide by the first bytes whether this is XML or text. Raises `BadSitemap` for neither."""
        head = self._head
        if not head.strip(_BLANKS):
            if len(head) < HEAD:
                raise BadSitemap("it is empty")
            raise BadSitemap(f"it begins with {HEAD} blanks")
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"<\0", b"\0<")):
            return _Xml()
        bare = head.removeprefix(codecs.BOM_UTF8).lstrip(_BLANKS)
        if _HTML.match(bare):
            raise BadSitemap("it is a page of HTML, not a sitemap")
        if bare.startswith(b"<"):
            skipped = head[: len(head) - len(bare)]
            self._head = bare  # some sitemaps have an empty line before the declaration, which XML forbids
            return _Xml(len(_LINE_END.findall(skipped)))
        if b"\0" in head:
            raise BadSitemap("it is neither XML nor text in UTF-8")
        return _Text(self._is_robots)


class _Form(Protocol):
    def feed(self, data: bytes) -> Iterator[Entry]: ...
    def end(self) -> Iterator[Entry]: ...


class _Xml:
    """A sitemap or an index in XML."""

    def __init__(self, skipped: int = 0) -> None:
        # without namespaces: expat would write the whole URI of a prefix in front of each name that has the prefix,
        # so that a megabyte of XML needs gigabytes, within a single tag
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._stop
        parser.CharacterDataHandler = self._characters
        parser.EntityDeclHandler = self._entity
        self._skipped = skipped
        self._names: set[str] = set()
        self._found: list[Entry] = []
        self._depth = self._fed = self._line = 0
        self._path: list[str] = []
        """The names of the elements that are open, without prefixes."""
        self._prefix = ""
        """That of the root element."""
        self._entry = ""
        """The name of the elements that are entries."""
        self._fields: dict[str, str] | None = None
        """What the entry says that is being read, without its addresses."""
        self._addresses: list[tuple[bool, int, str]] = []
        """Of each `<loc>` of the entry, whether it has the prefix of the root, its line, and its text."""
        self._loc = (False, 0)
        self._field = ""
        self._text: list[str] = []
        self._length = 0

    def feed(self, data: bytes) -> Iterator[Entry]:
        return self._parsed(data, False)

    def end(self) -> Iterator[Entry]:
        return self._parsed(b"", True)

    def _parsed(self, data: bytes, last: bool) -> Iterator[Entry]:
        trouble: BadSitemap | None = None
        self._fed += len(data)
        try:
            self._parser.Parse(data, last)
            if self._fed - self._parser.CurrentByteIndex > LONGEST_PIECE + len(data):
                trouble = BadSitemap(f"line {self._here()} has a tag or a comment of more than {LONGEST_PIECE:,} bytes")
        except BadSitemap as error:
            trouble = error
        except expat.ExpatError as error:
            said = expat.ErrorString(error.code)
            trouble = BadSitemap(f"line {error.lineno + self._skipped} is not XML as it must be: {said}")
        except (LookupError, ValueError) as error:  # what Python says of the encoding
            trouble = BadSitemap(f"its encoding cannot be read: {error}")
        found, self._found = self._found, []
        yield from found
        if trouble is not None:
            raise trouble

    def _here(self) -> int:
        return self._parser.CurrentLineNumber + self._skipped

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._remember(name, attributes)
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadSitemap(f"line {self._here()}: elements nested more than {DEEPEST} deep")
        prefix, _, local = name.rpartition(":")
        if self._depth == 1:
            self._prefix = prefix
            if local not in _ROOTS:
                what = _WRONG_ROOTS.get(local.lower(), "it is no sitemap")
                raise BadSitemap(f"{what}: its root element is <{local:.40}>, not <urlset> or <sitemapindex>")
            self._entry = _ROOTS[local]
        elif self._depth == 2 and local == self._entry:
            self._fields, self._addresses, self._line = {}, [], self._here()
        elif self._depth == 3 and self._fields is not None and (local == "loc" or local not in _PLACED):
            if local not in self._fields:
                self._field, self._text, self._length = local, [], 0
                self._loc = (prefix == self._prefix, self._here())
        elif self._depth <= 3 and prefix == self._prefix and local in _PLACED:
            raise BadSitemap(f"line {self._here()} has <{local}> inside <{self._path[-1]:.40}>")
        self._path.append(local)

    def _remember(self, name: str, attributes: Iterable[str]) -> None:
        """Count the names that the parser remembers."""
        for one in (name, *attributes):
            if len(one) > LONGEST_NAME:
                raise BadSitemap(
                    f"line {self._here()}: an element or an attribute has a name of {len(one):,} characters: {one:.20}…"
                )
            self._names.add(one)
        if len(self._names) > MOST_NAMES:
            raise BadSitemap(
                f"line {self._here()}: more than {MOST_NAMES:,} different names of elements and attributes"
            )

    def _characters(self, text: str) -> None:
        if self._field:
            self._length += len(text)
            if self._length <= LONGEST_TEXT:
                self._text.append(text)

    def _stop(self, name: str) -> None:
        self._depth -= 1
        self._path.pop()
        if self._fields is None:
            return
        if self._depth == 2 and self._field:
            if self._length > LONGEST_TEXT:
                raise BadSitemap(
                    f"line {self._here()}: <{self._field:.40}> holds more than {LONGEST_TEXT:,} characters"
                )
            self._keep("".join(self._text).strip(), self._fields)
            self._field = ""
        elif self._depth == 1:
            data, is_sitemap = _data(self._fields), self._entry == "sitemap"
            own = [one for one in self._addresses if one[0]]
            for _, line, url in own or self._addresses[:1] or [(True, self._line, "")]:
                relative = is_sitemap or url.startswith("/")
                self._found.append(Entry(url, line, is_sitemap, data, may_be_relative=bool(url) and relative))
            self._fields = None

    def _keep(self, text: str, fields: dict[str, str]) -> None:
        """Keep a field of an entry."""
        if self._field != "loc":
            fields[self._field] = text
            return
        if len(self._addresses) == MOST_ADDRESSES:
            raise BadSitemap(f"line {self._here()}: an entry has more than {MOST_ADDRESSES:,} times <loc>")
        is_own, line = self._loc
        self._addresses.append((is_own, line, text))

    def _entity(self, name: str, *_: object) -> None:
        raise BadSitemap(f"line {self._here()} declares the entity {name:.40}, as XML bombs do; a sitemap needs none")


def _data(fields: Mapping[str, str]) -> Mapping[str, str | float]:
    """Give what an entry says of its page, without what cannot be right."""
    found: dict[str, str | float] = {
        name: fields[name] for name in ("lastmod", "changefreq") if 0 < len(fields.get(name, "")) <= 64
    }
    try:
        priority = float(fields.get("priority", "nan"))
    except ValueError:
        return found
    if 0 <= priority <= 1:
        found["priority"] = priority
    return found


class _Text:
    """A list of URLs, one per line; or a robots.txt, whose lines `Sitemap: URL` name sitemaps."""

    def __init__(self, is_robots: bool) -> None:
        self._is_robots = is_robots
        self._rest = b""
        self._line = self._found = 0

    def feed(self, data: bytes) -> Iterator[Entry]:
        lines = (self._rest + data).splitlines(keepends=True)
        # a CR at the end may be the first half of a CRLF
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            yield from self._read(line)
        if len(self._rest) > LONGEST_PIECE:
            raise BadSitemap(f"line {self._line + 1} has more than {LONGEST_PIECE:,} bytes")

    def end(self) -> Iterator[Entry]:
        return self._read(self._rest)

    def _read(self, line: bytes) -> Iterator[Entry]:
        self._line += 1
        bare = (line.removeprefix(codecs.BOM_UTF8) if self._line == 1 else line).strip(_BLANKS)
        if not bare or bare.startswith(b"#"):
            return
        text = bare.decode("utf-8", "surrogateescape")
        if self._is_robots:
            name, _, value = text.partition(":")
            if name.strip().lower() == "sitemap":
                url = value.partition("#")[0].strip()
                yield Entry(url, self._line, True, may_be_relative=bool(url))
            return
        if not self._found and not text.lower().startswith(("http:", "https:")):
            raise BadSitemap(f"it is neither XML nor a list of URLs: its first line is {shown(text, 60)}")
        self._found += 1
        yield Entry(text, self._line)
