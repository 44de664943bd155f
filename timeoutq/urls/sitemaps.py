"""The pages that a sitemap names, on the web or in a file: walks through indexes, within limits, in bounded memory.

`timeoutq put --sitemap` calls it, and so may your programs. `entries.py` reads a sitemap, `fetching.py` fetches it.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from timeoutq.arguments import shown
from timeoutq.errors import BadSitemap, BadUrl, InvalidInput
from timeoutq.urls import bodies
from timeoutq.urls.entries import Entry, Reader
from timeoutq.urls.normal import as_written, normalise

if TYPE_CHECKING:
    from timeoutq.urls.fetching import Transport

MIB = 1024 * 1024
_WEB = re.compile(r"https?:", re.IGNORECASE)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class Limits:
    """What a sitemap may cost; the protocol allows 50,000 pages and 50 MiB, unpacked, for each file."""

    sent: int = 50 * MIB
    """The bytes of one sitemap as they are sent, or of a local file of gzip. A local file that is not packed has only
    the limit `unpacked`."""
    unpacked: int = 100 * MIB
    """The bytes of one sitemap once they are unpacked."""
    pages: int = 10_000_000
    """The pages of all sitemaps together."""
    sitemaps: int = 50_000
    """The sitemaps, indexes among them."""
    depth: int = 3
    """How many indexes may lead to a sitemap, each named by the one before."""
    seconds: float = 60.0
    """The most seconds that the download of one sitemap may take."""
    total_seconds: float = 3600.0
    """The most seconds for everything: downloads, and the time that the caller takes between two pages."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page that a sitemap names."""

    url: str
    """In its one form: see `normalise`."""
    where: str
    """The sitemap and the line."""
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
        raise InvalidInput(
            f"a sitemap is a URL or a path, as str or PathLike, not {type(name).__name__}: {shown(name)}"
        )
    return _Walk(limits or Limits(), refused, transport).pages(name)


class _Walk:
    def __init__(self, limits: Limits, refused: OnRefused | None, transport: Transport | None) -> None:
        self._limits = limits
        self._refused = refused
        self._transport = transport
        self._until = time.monotonic() + limits.total_seconds
        self._seen: dict[str, str] = {}
        """The address under which each sitemap is asked for, by its one form."""
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
                    if entry.is_sitemap:
                        named += self._further(chain, entry, where)
                    else:
                        yield from self._page(chain[-1], entry, where)
            except BadSitemap as error:
                bad = type(error)(f"sitemap {shown(chain[-1], 300)}: {error}")
                if self._refused is None or len(chain) == 1 or isinstance(error, _TooMuch):
                    raise bad from error
                self._refused("", bad)
            waiting += reversed(named)

    def _first(self, source: str) -> str:
        if _WEB.match(source):
            found = normalise(source)
            self._seen[found] = as_written(source)
        elif _SCHEME.match(source):
            raise BadSitemap(f"sitemap {shown(source)}: give a URL on http or https, or a file")
        else:
            found = self._seen[source] = source
        return found

    def _page(self, sitemap: str, entry: Entry, where: str) -> Iterator[Page]:
        self._pages += 1
        if self._pages > self._limits.pages:
            raise _TooMuch(f"with it, there are more than {self._limits.pages:,} URLs")
        try:
            yield Page(normalise(entry.url, _base(sitemap, entry)), where, entry.data)
        except BadUrl as bad:
            if self._refused is None:
                raise
            self._refused(where, bad)

    def _further(self, chain: tuple[str, ...], entry: Entry, where: str) -> list[tuple[str, ...]]:
        """Judge a sitemap that another names: give the way there, or nothing if it need not or cannot be read."""
        base = _base(chain[-1], entry)
        try:
            found = normalise(entry.url, base)
            if found in chain:
                raise BadSitemap(f"sitemap {shown(found, 300)} names itself again: a loop")
            if len(chain) > self._limits.depth:
                raise BadSitemap(f"sitemap {shown(found, 300)} is behind more than {self._limits.depth} indexes")
        except InvalidInput as error:
            if self._refused is None:
                raise
            self._refused(where, error)
            return []
        if found in self._seen:
            return []
        if len(self._seen) >= self._limits.sitemaps:
            raise _TooMuch(f"with it, there are more than {self._limits.sitemaps:,} sitemaps")
        self._seen[found] = as_written(entry.url, self._seen[chain[-1]] if base else None)
        return [(*chain, found)]

    def _entries(self, name: str) -> Iterator[Entry]:
        self._check_time()
        reader = Reader(is_robots=_is_robots(name))
        with self._opened(name, min(self._limits.seconds, self._left())) as file:
            try:
                for data in _unpacked(file, self._limits):
                    self._check_time()
                    yield from reader.feed(data)
            except OSError as error:
                raise BadSitemap(f"it cannot be read: {error.strerror}") from error
            except (bodies.Broken, bodies.TooLong) as error:
                raise BadSitemap(str(error)) from error
        yield from reader.end()

    def _opened(self, name: str, seconds: float) -> IO[bytes]:
        if _WEB.match(name):
            from timeoutq.urls.fetching import fetch

            _see_that_no_loop_runs(name)
            return fetch(self._seen[name], seconds, self._limits.sent, self._limits.unpacked, self._transport)
        try:
            return Path(name).open("rb")
        except OSError as error:
            raise BadSitemap(f"it cannot be read: {error.strerror}") from error
        except ValueError as error:  # a NUL, or half a character
            raise BadSitemap("it cannot be read: no file can have this name") from error

    def _left(self) -> float:
        return self._until - time.monotonic()

    def _check_time(self) -> None:
        if self._left() <= 0:
            raise _TooMuch(f"it is not read to its end, {self._limits.total_seconds:g} s after the first began")


def _see_that_no_loop_runs(name: str) -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput(
            f"sitemap {shown(name, 300)} cannot be fetched inside a running event loop, which would stand still: write "
            "`await asyncio.to_thread(list, sitemap(source))`"
        )


def _base(sitemap: str, entry: Entry) -> str | None:
    return sitemap if entry.may_be_relative and _WEB.match(sitemap) else None


def _is_robots(name: str) -> bool:
    return name.partition("?")[0].rpartition("/")[2] == "robots.txt"


def _unpacked(file: IO[bytes], limits: Limits) -> Iterator[bytes]:
    """Give a file piece by piece, unpacked if it is gzip, whatever its name is."""
    layer: bodies.Layer | None = None
    read = given = 0
    while data := file.read(bodies.PIECE):
        if not read and bodies.is_gzip(data):
            layer = bodies.Layer("gzip")
        read += len(data)
        if layer is not None and read > limits.sent:
            raise bodies.TooLong(f"it has more than {limits.sent:,} bytes")
        for piece in layer.feed(data) if layer is not None else (data,):
            given += len(piece)
            if given > limits.unpacked:
                raise bodies.TooLong(f"it has more than {limits.unpacked:,} bytes, unpacked")
            yield piece
    if layer is not None and not layer.ended:
        raise bodies.Broken("the gzip ends too early")
