"""The handler of the crawler: ask robots.txt, fetch a page, put its links and ack it in one step.

`timeoutq worker crawl demo.crawl:fetch --lifespan demo.crawl:crawler` runs it, with the settings of the environment
(see `settings.py`). A page that answers 5xx, late or not at all is tried again as the retry policy says; one that
answers 4xx is given up, as is one that robots.txt forbids; a redirect is a task of its own; a host that says
Retry-After is left alone for that long.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin

import httpx

from demo import polite
from demo.addresses import CheckedBackend, CheckedTransport, PrivateAddress
from demo.bounded import ParserLost, Reader, Refused
from demo.links import Page, canonical, is_html, origin, same_site
from demo.pauses import BUSY, growing, retry_after
from demo.results import Result, Results
from demo.robots import HOPS, LONGEST, Memory, Rules, rules_of
from demo.settings import Settings
from timeoutq import Ack, AsyncQueue, GiveUp, Lease, Release, Retry
from timeoutq.urls.bodies import Body, Broken, TooLong, Unreadable

MOST_COUNTED = 10_000
"""Of how many pages a process remembers how often they said Retry-After."""


@dataclass(frozen=True)
class Trail:
    """How a page was found; the payload of its task."""

    depth: int = 0
    """Links from the start, by the way that was found first."""
    redirects: int = 0
    """Redirects in a row that led here."""

    @classmethod
    def of(cls, payload: object) -> Trail:
        """Read a payload; what is none of ours counts as a start."""
        given: Mapping[str, Any] = cast("Mapping[str, Any]", payload) if isinstance(payload, Mapping) else {}
        depth, redirects = given.get("depth"), given.get("redirects")
        return cls(
            depth if isinstance(depth, int) and depth > 0 else 0,
            redirects if isinstance(redirects, int) and redirects > 0 else 0,
        )

    def payload(self) -> dict[str, int]:
        """Give the payload that `of` reads."""
        return {"depth": self.depth, "redirects": self.redirects}


@dataclass(frozen=True)
class Fetched:
    """What came back: the head, and the body when it was wanted."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes | bytearray | None = None


def redirected(url: str, fetched: Fetched, trail: Trail, settings: Settings) -> dict[str, dict[str, int]] | None:
    """Give the task that a redirect becomes, none when it leads away; None when the answer is no redirect.

    Raises `GiveUp` when too many redirects led here.
    """
    location = fetched.headers.get("location")
    if fetched.status not in (301, 302, 303, 307, 308) or location is None:
        return None
    if trail.redirects >= settings.redirects:
        raise GiveUp(f"more than {settings.redirects} redirects led here")
    target = canonical(location, url)
    if target is None or not same_site(target, url, settings.site):
        return {}
    return {target: Trail(trail.depth, trail.redirects + 1).payload()}


def followed(page: Page, trail: Trail, settings: Settings) -> dict[str, dict[str, int]]:
    """Give the tasks that a page's links become."""
    if settings.depth is not None and trail.depth >= settings.depth:
        return {}
    payload = Trail(trail.depth + 1).payload()
    return dict.fromkeys(page.links, payload)


class Crawler:
    """A crawler of one event loop: its connections, what it knows of robots.txt, its file of results."""

    def __init__(self, settings: Settings, backend: CheckedBackend | None = None) -> None:
        self.settings = settings
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=32)
        # no client around it: that would keep cookies, and trip over a Location that leads nowhere
        self._transport = CheckedTransport(settings.allow_private, limits, backend)
        self._timeout = httpx.Timeout(settings.timeout).as_dict()
        self._robots = Memory(settings.robots_keep, settings.robots_again)
        self._reader = Reader(settings.site, settings.parsing)
        self._asked_to_wait: OrderedDict[str, int] = OrderedDict()
        self._results = Results(settings.results) if settings.results else None
        self._queue = AsyncQueue(settings.queue) if settings.queue else None

    async def close(self) -> None:
        """Close connections and files, and end the parser."""
        await self._reader.close()
        await self._transport.aclose()
        if self._results is not None:
            self._results.close()
        if self._queue is not None:
            await self._queue.close()

    async def fetch(self, lease: Lease) -> Ack | Release:
        """Fetch the page that the task names; give what it links to."""
        url, trail = lease.task, Trail.of(lease.payload)
        if canonical(url) is None:
            raise GiveUp("not an http or https address: put a URL")
        await self._ask_robots(url)
        fetched = await self._get(url)
        if fetched.status in BUSY:
            return await self._wait_for(url, fetched, lease.attempt)
        self._asked_to_wait.pop(url, None)
        if fetched.status >= 500:
            raise Retry(reason=f"HTTP {fetched.status}")
        if fetched.status >= 400:
            raise GiveUp(f"HTTP {fetched.status}")
        target = redirected(url, fetched, trail, self.settings)
        page = Page()
        if target is None and fetched.body is not None:
            page = await self._read(fetched.body, url)
        if self._results is not None:
            length = None if fetched.body is None else len(fetched.body)
            found = len(page.links if target is None else target)
            self._results.write(
                Result(url, fetched.status, page.title, length, found, round(time.time(), 3), trail.depth)
            )
        return Ack(put=followed(page, trail, self.settings) if target is None else target)

    async def _ask_robots(self, url: str) -> None:
        if not self.settings.robots:
            return
        site, host = origin(url), polite.host_of(url)

        async def ask() -> Rules:
            rules = await self._get_rules(site)
            if rules.delay is not None and rules.delay > self.settings.delay:
                await polite.slow_down(self._queue, host, min(rules.delay, self.settings.most_pause))
            return rules

        rules = await self._robots.rules(site, ask)
        if not rules.reachable:
            left = self._robots.left(site)
            reason = f"robots.txt: {rules.trouble}"
            await polite.leave_alone(self._queue, host, left, reason)
            raise Retry(left, reason)
        if not rules.allows(url):
            raise GiveUp("robots.txt forbids it")

    async def _get_rules(self, site: str) -> Rules:
        address = f"{site}/robots.txt"
        try:
            async with asyncio.timeout(self.settings.total):
                for _ in range(HOPS + 1):
                    async with self._open(address) as response:
                        location = response.headers.get("location")
                        if response.status_code // 100 == 3 and location is not None:
                            address = urljoin(address, location)
                            continue
                        body = await self._rules_body(response) if response.is_success else b""
                        # a long one takes a while to read, and others have work meanwhile
                        return await asyncio.to_thread(rules_of, response.status_code, body, self.settings.agent)
        except TimeoutError:
            return Rules(reachable=False, trouble=f"it took over {self.settings.total:g} s")
        except (httpx.RequestError, Unreadable, TooLong, Broken) as error:
            return Rules(reachable=False, trouble=_said(error))
        except (httpx.InvalidURL, ValueError, PrivateAddress) as error:
            if address == f"{site}/robots.txt":
                raise GiveUp(str(error)) from error
        return Rules()  # redirects that lead nowhere: as if there were none (RFC 9309, 2.3.1.2)

    @asynccontextmanager
    async def _open(self, url: str) -> AsyncIterator[httpx.Response]:
        headers = {
            "User-Agent": self.settings.agent,
            "Accept": "text/html, application/xhtml+xml, */*;q=0.1",
            "Accept-Encoding": "gzip, deflate",
        }
        request = httpx.Request("GET", url, headers=headers, extensions={"timeout": self._timeout})
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def _get(self, url: str) -> Fetched:
        try:
            async with asyncio.timeout(self.settings.total), self._open(url) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                body = None
                if response.is_success and is_html(headers.get("content-type", "")):
                    body = await self._body(response)
                return Fetched(response.status_code, headers, body)
        except (PrivateAddress, httpx.InvalidURL) as error:
            raise GiveUp(str(error)) from error
        except TimeoutError as error:
            raise Retry(reason=f"the page took over {self.settings.total:g} s") from error
        except (httpx.RequestError, Broken) as error:
            raise Retry(reason=_said(error)) from error

    async def _body(self, response: httpx.Response) -> bytearray:
        most = self.settings.max_bytes
        named = response.headers.get("content-length", "")
        if named.isdecimal() and int(named) > most:
            raise GiveUp(f"{int(named):,} bytes are more than {most:,}: raise --max-bytes")
        found = bytearray()
        try:
            body = Body(response.headers.get("content-encoding", ""), most)
            async for part in response.aiter_raw():
                for piece in body.feed(part):
                    found += piece
        except Unreadable as error:
            raise GiveUp(str(error)) from error
        except TooLong as error:
            raise GiveUp(f"the page has {error}: raise --max-bytes") from error
        return found

    async def _rules_body(self, response: httpx.Response) -> bytes:
        found = bytearray()
        body = Body(response.headers.get("content-encoding", ""), self.settings.max_bytes)
        async for part in response.aiter_raw():
            for piece in body.feed(part):
                found += piece
                if len(found) >= LONGEST:
                    return bytes(found[:LONGEST])
        return bytes(found)

    async def _read(self, html: bytes | bytearray, url: str) -> Page:
        try:
            return await self._reader.read(html, url)
        except Refused as error:
            raise GiveUp(str(error)) from error
        except ParserLost as error:
            raise Retry(reason=str(error)) from error

    async def _wait_for(self, url: str, fetched: Fetched, attempt: int) -> Release:
        reason = f"HTTP {fetched.status}"
        most = self.settings.most_pause
        seconds = retry_after(fetched.headers.get("retry-after", ""), time.time(), most)
        if seconds is not None:
            times = self._asked_to_wait.pop(url, 0) + 1
            if times <= self.settings.patience:
                self._asked_to_wait[url] = times
                while len(self._asked_to_wait) > MOST_COUNTED:
                    self._asked_to_wait.popitem(last=False)
                return polite.give_back(seconds)
            reason += f" {times} times in a row, with Retry-After"
        elif fetched.status == 429:
            seconds = growing(attempt, most)
        else:
            raise Retry(reason=reason)  # this page may be broken; nobody said that the host is
        await polite.leave_alone(self._queue, polite.host_of(url), seconds, reason)
        raise Retry(seconds, reason)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@asynccontextmanager
async def crawler() -> AsyncIterator[Crawler]:
    """Open the crawler of a worker process, with the settings of the environment: the lifespan to `fetch`."""
    opened = Crawler(Settings.from_environment())
    try:
        yield opened
    finally:
        await opened.close()


async def fetch(lease: Lease, state: Crawler) -> Ack | Release:
    """Fetch the page that the task names."""
    return await state.fetch(lease)
