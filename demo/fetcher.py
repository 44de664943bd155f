"""Fetches pages and robots.txt over HTTP, within limits of time and of length, and has each answer archived.

Nothing here decides what becomes of a task: an answer is given back, and what went wrong is raised as the `GiveUp` or
`Retry` that it is for one page. `crawl.py` calls this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urljoin

import httpx

from demo.addresses import CheckedBackend, CheckedTransport, PrivateAddress
from demo.exchange import Exchange, is_readable
from demo.links import is_html
from demo.robots import HOPS, LONGEST_ROBOTS, Rules, rules_of
from demo.settings import Settings
from demo.trail import Capture, Seen
from demo.warc import Archive
from timeoutq import GiveUp, Retry
from timeoutq.urls.bodies import ACCEPTED, Body, Broken, TooLong, Unreadable

ARCHIVED = "gzip"
"""What a crawl asks for with Accept-Encoding if it is archived: readers of archives know it."""

REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class Fetched:
    """What came back: the head, and the body of a page."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes | bytearray | None = None
    """Unpacked; None for what is no page of HTML."""
    capture: Capture = field(default_factory=Capture)
    """Where it is in the archive."""

    @property
    def location(self) -> str | None:
        """Where the answer redirects to."""
        return self.headers.get("location") if self.status in REDIRECTS else None


class Fetcher:
    """The connections of one event loop."""

    def __init__(self, settings: Settings, archive: Archive | None, backend: CheckedBackend | None = None) -> None:
        self._settings = settings
        self._archive = archive
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=32)
        # no client around it: that would keep cookies, and trip over a Location that leads nowhere
        self._transport = CheckedTransport(settings.allow_private, limits, backend)
        self._timeout = httpx.Timeout(settings.timeout).as_dict()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def page(self, url: str, seen: Seen | None = None) -> Fetched:
        """Fetch a page; with `seen`, ask whether it is another than then.

        Raises `GiveUp` and `Retry` with the reason, and `ArchiveError`.
        """
        exchange = Exchange(url)
        asked = seen.asks(self._archive is not None) if seen is not None else {}
        try:
            found = await self._page(exchange, asked)
        except (GiveUp, Retry):
            await self._keep(exchange, None)
            raise
        capture = await self._keep(exchange, seen.capture if seen is not None else None)
        return Fetched(found.status, found.headers, found.body, capture)

    async def rules(self, site: str) -> Rules:
        """Fetch the robots.txt of a site.

        One that cannot be had gives rules that say so. If its redirects lead nowhere, the site has no rules (RFC 9309,
        2.3.1.2). `GiveUp` is raised if its address cannot be asked at all.
        """
        first = address = f"{site}/robots.txt"
        until = asyncio.get_running_loop().time() + self._settings.total
        for _ in range(HOPS + 1):
            exchange = Exchange(address)
            try:
                async with asyncio.timeout_at(until):
                    body = await self._rules_body(exchange)
            except (TimeoutError, httpx.RequestError, Unreadable, TooLong, Broken) as error:
                exchange.cut = _cut(error)
                await self._keep(exchange, None)
                late = isinstance(error, TimeoutError)
                trouble = f"it took over {self._settings.total:g} s" if late else words_of(error)
                return Rules(reachable=False, trouble=trouble)
            except (httpx.InvalidURL, ValueError, PrivateAddress) as error:
                if address == first:
                    raise GiveUp(str(error)) from error
                return Rules()
            await self._keep(exchange, None)
            if body is not None:
                # a long one takes a while to read, and others have work meanwhile
                return await asyncio.to_thread(rules_of, exchange.status, body, self._settings.agent)
            try:
                address = urljoin(address, _header(exchange, b"location"))
            except ValueError:
                return Rules()
        return Rules()

    async def _keep(self, exchange: Exchange, before: Capture | None) -> Capture:
        if self._archive is None or not exchange.status:
            return Capture()
        return await self._archive.write(exchange, before)

    @asynccontextmanager
    async def _open(self, exchange: Exchange, asked: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        headers = {
            "User-Agent": self._settings.agent,
            "Accept": "text/html, application/xhtml+xml, */*;q=0.1",
            "Accept-Encoding": ACCEPTED if self._archive is None else ARCHIVED,
            **asked,
        }
        request = httpx.Request("GET", exchange.url, headers=headers, extensions={"timeout": self._timeout})
        exchange.sent(request)
        response = await self._transport.handle_async_request(request)
        try:
            exchange.came(response)
            yield response
        finally:
            await response.aclose()

    async def _page(self, exchange: Exchange, asked: Mapping[str, str]) -> Fetched:
        """Fetch one URL. Raises `GiveUp` or `Retry` without an answer, and if a page of HTML cannot be read to its end.

        Anything else (an error, a redirect, a file) is read only if there is an archive, and only for the archive: if
        such a body is too long or never ends, the archive gets a part of it, and nothing is raised.
        """
        headers: dict[str, str] = {}
        is_page = False
        try:
            async with asyncio.timeout(self._settings.total), self._open(exchange, asked) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                is_page = response.is_success and is_html(headers.get("content-type", ""))
                body = await self._body(exchange, response, is_page) if is_page or self._archive is not None else None
                return Fetched(response.status_code, headers, body if is_page else None)
        except (PrivateAddress, httpx.InvalidURL) as error:
            raise GiveUp(str(error)) from error
        except (TooLong, Unreadable, TimeoutError, httpx.RequestError, Broken) as error:
            exchange.cut = _cut(error)
            if exchange.status and not is_page:
                return Fetched(exchange.status, headers)
            raise self._judged(error) from error

    def _judged(self, error: Exception) -> GiveUp | Retry:
        if isinstance(error, TooLong):
            return GiveUp(f"the page has {error}: to read it, raise --max-bytes")
        if isinstance(error, Unreadable):
            return GiveUp(str(error))
        if isinstance(error, TimeoutError):
            return Retry(reason=f"the page took over {self._settings.total:g} s")
        return Retry(reason=words_of(error))

    async def _body(self, exchange: Exchange, response: httpx.Response, is_page: bool) -> bytearray:
        """Read a body. Gives the unpacked bytes of a page, the bytes as they were sent of anything else.

        `exchange.body` gets the bytes as they were sent, also if the body breaks off; but those of a page unpacked, if
        readers of archives do not know its encoding. Raises `TooLong`, `Unreadable`
        and `Broken`.
        """
        most = self._settings.max_bytes
        named = response.headers.get("content-length", "")
        if named.isdecimal() and int(named) > most and (is_page or self._archive is None):
            raise TooLong(f"{int(named):,} bytes, which are more than {most:,}")
        found = bytearray()
        packed = response.headers.get("content-encoding", "") if is_page else ""
        keeps_sent = bool(packed) and is_readable(packed)
        exchange.body = sent = bytearray() if keeps_sent else found
        body = Body(packed, most)
        async for part in response.aiter_raw():
            if keeps_sent and self._archive is not None:
                sent += part[: most - len(sent)]
            for piece in body.feed(part):
                found += piece
        exchange.is_whole = True
        return found

    async def _rules_body(self, exchange: Exchange) -> bytes | None:
        """Read a robots.txt as far as it counts; None for a redirect."""
        async with self._open(exchange, {}) as response:
            if exchange.status // 100 == 3 and "location" in response.headers:
                return None
            if not response.is_success:
                return b""
            found = bytearray()
            exchange.body = sent = bytearray()
            body = Body(response.headers.get("content-encoding", ""), self._settings.max_bytes)
            async for part in response.aiter_raw():
                sent += part
                for piece in body.feed(part):
                    found += piece
                    if len(found) >= LONGEST_ROBOTS:
                        exchange.cut = "length"
                        return bytes(found[:LONGEST_ROBOTS])
            exchange.is_whole = True
            return bytes(found)


def _cut(error: Exception) -> str:
    if isinstance(error, TooLong):
        return "length"
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "time"
    return "disconnect" if isinstance(error, httpx.RequestError) else "unspecified"


def _header(exchange: Exchange, name: bytes) -> str:
    return next((value.decode("latin-1") for header, value in exchange.answered if header.lower() == name), "")


def words_of(error: Exception) -> str:
    """Give the words for an error of the network."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
