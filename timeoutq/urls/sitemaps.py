"""The pages that a sitemap names (the protocol of sitemaps.org), on the web or in a file, in bounded memory.

Nothing grows with the length of a sitemap, whoever wrote it: expat keeps nothing of what it has read, no entity may be
declared, because with entities a kilobyte of XML becomes gigabytes, and depth, names and lengths have limits. A
download has one limit of time, which a server cannot stretch by sending a byte now and then.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EDQUOT, ENOSPC
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn
from xml.parsers import expat

from timeoutq.urls import bodies
from timeoutq.urls.normal import as_written, normalise
from timeoutq.words.arguments import shown
from timeoutq.words.errors import BadSitemap, InvalidInput, MissingExtra

if TYPE_CHECKING:
    import ssl

    import httpx

    Transport = Callable[[], httpx.AsyncBaseTransport]
    """Makes what carries the requests of one download, such as a transport that connects to public addresses only."""

MIB = 1024 * 1024
REDIRECTS = 5  # how many redirects may lead to a sitemap
PAUSE = 20.0  # how long a server may say nothing, seconds
DEEPEST = 50  # how deep elements may be nested; those of the protocol are 3 deep, and extensions a few more
MOST_NAMES = 1000  # how many different names elements and attributes may have: the parser remembers each
LONGEST_NAME = 1000  # how long such a name may be, characters
LONGEST_PIECE = MIB  # how long a tag, a comment or a line may be, bytes: it is held until its end is read
MOST_ADDRESSES = 1000  # how many addresses an entry may have; by the protocol it has one
LONGEST_TEXT = 8192  # what is kept of the text of an element, characters
HEAD = 512  # how many of the first bytes decide whether a sitemap is XML or text

_WEB = re.compile(r"https?:", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ROOTS = {"urlset": "url", "sitemapindex": "sitemap"}
_PLACED = {*_ROOTS, *_ROOTS.values(), "loc"}
"""Elements that have one place each; at the top of a sitemap, an extension has others."""
_BLANKS = b" \t\r\n"
_LINE_END = re.compile(rb"\r\n?|\n")
_HTML = re.compile(rb"(?>(?:<!--.*?-->|<\?.*?\?>|\s)*)<!doctype\s+html\b", re.IGNORECASE | re.DOTALL)
_WRONG_ROOTS = {"html": "it is a page of HTML, not a sitemap", "rss": "it is a feed", "feed": "it is a feed"}


@dataclass(frozen=True)
class Limits:
    """What a sitemap may cost; the protocol allows 50,000 pages and 50 MiB, unpacked, for each file."""

    sent: int = 50 * MIB
    """The bytes of one sitemap as they are sent, or of a local file of gzip. A local file that is not packed has only
    the limit `unpacked`."""
    unpacked: int = 100 * MIB  # the bytes of one sitemap once they are unpacked
    pages: int = 10_000_000  # the pages of all sitemaps together
    sitemaps: int = 50_000  # the sitemaps, indexes among them
    depth: int = 3  # how many indexes may lead to a sitemap, each named by the one before
    seconds: float = 60.0  # the most seconds that the download of one sitemap may take
    total_seconds: float = 3600.0
    """The most seconds for everything: downloads, and the time that the caller takes between two pages."""
    pause: float = 0.0  # seconds between two downloads


@dataclass(frozen=True, slots=True)
class Page:
    """A page that a sitemap names."""

    url: str  # in its one form: see `normalise`
    where: str  # the sitemap and the line
    data: Mapping[str, str | float]
    """What the sitemap says of the page, as far as it does: `lastmod`, `changefreq`, `priority`."""


OnRefused = Callable[[str, InvalidInput], None]
"""Gets each URL and each further sitemap that cannot be used: the place, which may be empty, and the error."""


class _TooMuch(BadSitemap):
    """A limit of the whole walk is reached: no other sitemap is read."""


def sitemap(
    source: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    refused: OnRefused | None = None,
    transport: Transport | None = None,
) -> Iterator[Page]:
    """Give the pages that a sitemap names. `source` is a URL on http or https, or a file.

    The call blocks while it downloads, so inside a running event loop a URL is refused: in asyncio, write
    `await asyncio.to_thread(list, sitemap(source))`. A sitemap is XML or a text of one URL per line, packed by
    gzip or not. The sitemaps that an index or a robots.txt names are read in their turn, each once. `refused` is called
    with the place and the error of each URL and of each further sitemap that cannot be used, and the rest goes on;
    without it, the first such error is raised.

    `transport` is called for each download and gives the transport of httpx that carries the requests: an index on the
    web may name any address, and a transport can refuse private ones (`httpx.ConnectError`).

    Raises `BadSitemap` when the first sitemap cannot be used, and when a limit of the whole is reached: the pages
    before were given. Raises `InvalidInput` for what is neither `str` nor a path, and for a URL inside a running event
    loop. Raises `MissingExtra` when a URL is given without the package httpx.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InvalidInput(f"a sitemap is a URL or a path, as str or PathLike, not {kind}: {shown(name)}")
    return _Walk(limits or Limits(), refused, transport).pages(name)


# ---- the walk


class _Walk:
    def __init__(self, limits: Limits, refused: OnRefused | None, transport: Transport | None) -> None:
        self._limits = limits
        self._refused = refused
        self._transport = transport
        self._until = time.monotonic() + limits.total_seconds
        self._seen: dict[str, str] = {}  # the address under which each sitemap is asked for, by its one form
        self._pages = 0

    def pages(self, source: str) -> Iterator[Page]:
        """Give all pages, first those of the source, then those of the sitemaps that it names, in their order."""
        waiting: list[tuple[str, ...]] = [(self._first(source),)]
        while waiting:
            chain = waiting.pop()  # the sitemap at its end, behind the indexes that led there
            named: list[tuple[str, ...]] = []
            try:
                for entry in self._entries(chain[-1]):
                    where = f"{chain[-1]}, line {entry.line}"
                    try:
                        if entry.is_sitemap:
                            named += self._further(chain, entry)
                        else:
                            yield self._page(chain[-1], entry, where)
                    except _TooMuch:
                        raise
                    except InvalidInput as error:
                        self._refuse(where, error)
            except BadSitemap as error:
                bad = type(error)(f"sitemap {shown(chain[-1], 300)}: {error}")
                if len(chain) == 1 or isinstance(error, _TooMuch):
                    raise bad from error
                self._refuse("", bad)
            waiting += reversed(named)

    def _refuse(self, where: str, error: InvalidInput) -> None:
        if self._refused is None:
            raise error
        self._refused(where, error)

    def _first(self, source: str) -> str:
        if _WEB.match(source):
            found = normalise(source)
            self._seen[found] = as_written(source)
        elif _SCHEME.match(source):
            raise BadSitemap(f"sitemap {shown(source)}: give a URL on http or https, or a file")
        else:
            found = self._seen[source] = source
        return found

    def _page(self, sitemap: str, entry: Entry, where: str) -> Page:
        self._pages += 1
        if self._pages > self._limits.pages:
            raise _TooMuch(f"with it, there are more than {self._limits.pages:,} URLs")
        return Page(normalise(entry.url, _base(sitemap, entry)), where, entry.data)

    def _further(self, chain: tuple[str, ...], entry: Entry) -> list[tuple[str, ...]]:
        """Judge a sitemap that another names: give the way there, or nothing if it was read before."""
        base = _base(chain[-1], entry)
        found = normalise(entry.url, base)
        if found in chain:
            raise BadSitemap(f"sitemap {shown(found, 300)} names itself again: a loop")
        if len(chain) > self._limits.depth:
            raise BadSitemap(f"sitemap {shown(found, 300)} is behind more than {self._limits.depth} indexes")
        if found in self._seen:
            return []
        if len(self._seen) >= self._limits.sitemaps:
            raise _TooMuch(f"with it, there are more than {self._limits.sitemaps:,} sitemaps")
        self._seen[found] = as_written(entry.url, self._seen[chain[-1]] if base else None)
        return [(*chain, found)]

    def _entries(self, name: str) -> Iterator[Entry]:
        if len(self._seen) > 1 and _WEB.match(name):
            time.sleep(self._limits.pause)
        self._check_time()
        is_robots = name.partition("?")[0].rpartition("/")[2] == "robots.txt"
        with self._opened(name) as file:
            try:
                yield from read(self._unpacked(file), is_robots=is_robots)
            except OSError as error:
                raise BadSitemap(f"it cannot be read: {error.strerror}") from error
            except (bodies.Broken, bodies.TooLong) as error:
                raise BadSitemap(str(error)) from error

    def _opened(self, name: str) -> IO[bytes]:
        if _WEB.match(name):
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                raise InvalidInput(
                    f"sitemap {shown(name, 300)} cannot be fetched inside a running event loop, which would stand "
                    "still: write `await asyncio.to_thread(list, sitemap(source))`"
                )
            seconds = min(self._limits.seconds, self._until - time.monotonic())
            return fetch(self._seen[name], seconds, self._limits, self._transport)
        try:
            return Path(name).open("rb")
        except OSError as error:
            raise BadSitemap(f"it cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL, or half a character
            raise BadSitemap("it cannot be read: no file can have this name") from error

    def _unpacked(self, file: IO[bytes]) -> Iterator[bytes]:
        """Give a file piece by piece, unpacked if it is gzip, whatever its name is."""
        layer: bodies.Layer | None = None
        read = given = 0
        while data := file.read(bodies.PIECE):
            if not read and data.startswith(bodies.GZIP):
                layer = bodies.Layer("gzip")
            read += len(data)
            if layer is not None and read > self._limits.sent:
                raise bodies.TooLong(f"it has more than {self._limits.sent:,} bytes")
            for piece in layer.feed(data) if layer is not None else (data,):
                given += len(piece)
                if given > self._limits.unpacked:
                    raise bodies.TooLong(f"it has more than {self._limits.unpacked:,} bytes, unpacked")
                self._check_time()
                yield piece
        if layer is not None and not layer.ended:
            raise bodies.Broken("the gzip ends too early")

    def _check_time(self) -> None:
        if time.monotonic() >= self._until:
            raise _TooMuch(f"it is not read to its end, {self._limits.total_seconds:g} s after the first began")


def _base(sitemap: str, entry: Entry) -> str | None:
    return sitemap if entry.may_be_relative and _WEB.match(sitemap) else None


# ---- a download


def fetch(url: str, seconds: float, limits: Limits, transport: Transport | None = None) -> IO[bytes]:
    """Give what a URL answers, unpacked, in a temporary file; raises `BadSitemap`, whose message is the reason."""
    try:
        import httpx
    except ImportError as error:
        raise MissingExtra(
            f"sitemaps are fetched with the package {error.name}, which is missing: pip install 'timeoutq[crawl]'"
        ) from error
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        asyncio.run(_download(url, seconds, limits, file, transport))
        file.seek(0)
    except BaseException as error:
        file.close()
        match error:
            case TimeoutError():
                reason = f"it was not there after {seconds:g} s"
            case bodies.TooLong() | bodies.Unreadable() | bodies.Broken():
                reason = str(error)
            case httpx.TooManyRedirects():
                reason = f"it redirects more than {REDIRECTS} times"
            case BadSitemap():
                raise
            case httpx.HTTPError() | httpx.InvalidURL() | ValueError():  # a ValueError: the host of a redirect
                reason = f"it cannot be fetched: {error or type(error).__name__}"
            case OSError():
                cure = "; free some space for temporary files" if error.errno in (ENOSPC, EDQUOT) else ""
                reason = f"it cannot be fetched: {error.strerror or error}{cure}"
            case _:
                raise
        raise BadSitemap(reason) from error
    return file


async def _download(url: str, seconds: float, limits: Limits, file: IO[bytes], transport: Transport | None) -> None:
    import httpx

    import timeoutq

    agent = f"timeoutq/{timeoutq.__version__}"
    client = httpx.AsyncClient(
        verify=_trust(), follow_redirects=True, max_redirects=REDIRECTS, timeout=PAUSE,
        headers={"User-Agent": agent, "Accept": "*/*", "Accept-Encoding": bodies.ACCEPTED},
        transport=transport() if transport is not None else None,
    )  # fmt: skip
    async with asyncio.timeout(seconds), client, client.stream("GET", url) as response:
        if response.status_code != 200:
            raise BadSitemap(f"the server answers HTTP {response.status_code}")
        body, count = bodies.Body(response.headers.get("content-encoding", ""), limits.unpacked), 0
        async for data in response.aiter_raw():
            count += len(data)
            if count > limits.sent:
                raise bodies.TooLong(f"it has more than {limits.sent:,} bytes")
            for piece in body.feed(data):
                file.write(piece)
                await asyncio.sleep(0)  # so that the limit of time holds while it is unpacked, too
        if not body.ended:
            raise bodies.Broken("it ends before its Content-Encoding does")


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()  # it takes a while to make


# ---- a sitemap, piece by piece


@dataclass(frozen=True, slots=True)
class Entry:
    """A page or another sitemap that a sitemap names."""

    url: str  # as it is written; empty where the sitemap names none
    line: int
    is_sitemap: bool = False
    data: Mapping[str, str | float] = field(default_factory=dict[str, str | float])
    """What the sitemap says of the page: `lastmod` and `changefreq` as they are written, `priority` as a number."""
    may_be_relative: bool = field(default=False, compare=False)  # whether the URL is joined to that of the sitemap


def read(pieces: Iterable[bytes], *, is_robots: bool = False) -> Iterator[Entry]:
    """Give the entries of a sitemap, or of a robots.txt; raises `BadSitemap` after the entries before the mistake."""
    head, rest = b"", iter(pieces)
    for piece in rest:
        head += piece
        if len(head) >= HEAD:
            break
    if not head.strip(_BLANKS):
        raise BadSitemap("it is empty" if len(head) < HEAD else f"it begins with {HEAD} blanks")
    bare = head.removeprefix(codecs.BOM_UTF8).lstrip(_BLANKS)
    if _HTML.match(bare):
        raise BadSitemap("it is a page of HTML, not a sitemap")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"<\0", b"\0<")):
        yield from _Xml().entries(chain((head,), rest))
    elif bare.startswith(b"<"):
        # some sitemaps have an empty line before the declaration, which XML forbids
        skipped = len(_LINE_END.findall(head.removesuffix(bare)))
        yield from _Xml(skipped).entries(chain((bare,), rest))
    elif b"\0" in head:
        raise BadSitemap("it is neither XML nor text in UTF-8")
    else:
        yield from _listed(chain((head,), rest), is_robots)


def _listed(pieces: Iterable[bytes], is_robots: bool) -> Iterator[Entry]:
    """Give the URLs of a list, one per line; or the sitemaps that the lines `Sitemap: URL` of a robots.txt name."""
    is_begun = False
    for number, line in enumerate(_lines(pieces), 1):
        bare = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip(_BLANKS)
        text = bare.decode("utf-8", "surrogateescape")
        if not text or text.startswith("#"):
            continue
        if is_robots:
            name, _, value = text.partition(":")
            if name.strip().lower() == "sitemap":
                url = value.partition("#")[0].strip()
                yield Entry(url, number, True, may_be_relative=bool(url))
            continue
        if not is_begun and not text.lower().startswith(("http:", "https:")):
            raise BadSitemap(f"it is neither XML nor a list of URLs: its first line is {shown(text, 60)}")
        is_begun = True
        yield Entry(text, number)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest, number = b"", 0
    for data in pieces:
        lines = (rest + data).splitlines(keepends=True)
        # a CR at the end may be the first half of a CRLF
        rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        number += len(lines)
        yield from lines
        if len(rest) > LONGEST_PIECE:
            raise BadSitemap(f"line {number + 1} has more than {LONGEST_PIECE:,} bytes")
    yield rest


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
        self._skipped = skipped  # how many lines came before
        self._fed = 0
        self._names: set[str] = set()
        self._found: list[Entry] = []
        self._path: list[str] = []  # the names of the elements that are open, without prefixes
        self._prefix = ""  # that of the root element
        self._line = 0  # where the entry begins
        self._fields: dict[str, str] | None = None  # what the entry says that is being read, without its addresses
        self._addresses: list[tuple[bool, int, str]] = []
        """Of each `<loc>` of the entry, whether it has the prefix of the root, its line, and its text."""
        self._loc: tuple[bool, int] = (False, 0)
        self._field = ""
        self._text = ""

    def entries(self, pieces: Iterable[bytes]) -> Iterator[Entry]:
        for data in pieces:
            yield from self._parse(data, last=False)
        yield from self._parse(b"", last=True)

    def _parse(self, data: bytes, *, last: bool) -> Iterator[Entry]:
        trouble: BadSitemap | None = None
        self._fed += len(data)
        try:
            self._parser.Parse(data, last)
            if self._fed - self._parser.CurrentByteIndex > LONGEST_PIECE + len(data):
                self._refuse(f" has a tag or a comment of more than {LONGEST_PIECE:,} bytes")
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

    @property
    def _here(self) -> int:
        return self._parser.CurrentLineNumber + self._skipped

    def _refuse(self, why: str) -> NoReturn:
        raise BadSitemap(f"line {self._here}{why}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        for one in (name, *attributes):
            if len(one) > LONGEST_NAME:
                self._refuse(f": an element or an attribute has a name of {len(one):,} characters: {one:.20}…")
            self._names.add(one)
        if len(self._names) > MOST_NAMES:
            self._refuse(f": more than {MOST_NAMES:,} different names of elements and attributes")
        prefix, _, local = name.rpartition(":")
        depth = len(self._path)
        if depth == DEEPEST:
            self._refuse(f": elements nested more than {DEEPEST} deep")
        if depth == 0:
            self._prefix = prefix
            if local not in _ROOTS:
                what = _WRONG_ROOTS.get(local.lower(), "it is no sitemap")
                raise BadSitemap(f"{what}: its root element is <{local:.40}>, not <urlset> or <sitemapindex>")
        elif depth == 1 and local == _ROOTS[self._path[0]]:
            self._fields, self._addresses, self._line = {}, [], self._here
        elif depth == 2 and self._fields is not None and (local == "loc" or local not in _PLACED):
            if local not in self._fields:
                self._field, self._text, self._loc = local, "", (prefix == self._prefix, self._here)
        elif depth <= 2 and prefix == self._prefix and local in _PLACED:
            self._refuse(f" has <{local}> inside <{self._path[-1]:.40}>")
        self._path.append(local)

    def _characters(self, text: str) -> None:
        if self._field and len(self._text) <= LONGEST_TEXT:
            self._text += text

    def _stop(self, name: str) -> None:
        self._path.pop()
        if self._fields is None:
            return
        if len(self._path) == 2 and self._field:
            if len(self._text) > LONGEST_TEXT:
                self._refuse(f": <{self._field:.40}> holds more than {LONGEST_TEXT:,} characters")
            if self._field != "loc":
                self._fields[self._field] = self._text.strip()
            elif len(self._addresses) == MOST_ADDRESSES:
                self._refuse(f": an entry has more than {MOST_ADDRESSES:,} times <loc>")
            else:
                self._addresses.append((*self._loc, self._text.strip()))
            self._field = ""
        elif len(self._path) == 1:
            data, is_sitemap = _data(self._fields), self._path[0] == "sitemapindex"
            own = [one for one in self._addresses if one[0]]
            for _, line, url in own or self._addresses[:1] or [(True, self._line, "")]:
                relative = is_sitemap or url.startswith("/")
                self._found.append(Entry(url, line, is_sitemap, data, may_be_relative=bool(url) and relative))
            self._fields = None

    def _entity(self, name: str, *_: object) -> None:
        self._refuse(f" declares the entity {name:.40}, as XML bombs do; a sitemap needs none")


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
