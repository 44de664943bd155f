"""The handler of the crawler: ask robots.txt, fetch a page, put its links and ack it in one step.

`timeoutq worker crawl demo.crawl:fetch --lifespan demo.crawl:crawler` runs it, with the settings of the environment
(see `settings.py`). A page that answers 429 or 5xx, too late or not at all is tried again as the retry policy says. A
page that answers another 4xx, or that robots.txt forbids, is given up. A redirect is a task of its own; a first page
that redirects out of the crawl is given up, and so is each page that redirects to itself or back to what led to it. A
host that says Retry-After is left alone for that long. When the archive cannot be written, nothing is acked any more:
the page is given back, and the worker drains. When only the file of results cannot be written, the attempt fails: the
page is tried again, and the crawl goes on.
"""

from __future__ import annotations

import hashlib
import logging
import signal
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from demo import polite
from demo.addresses import CheckedBackend
from demo.bounded import PageRefused, ParserLost, Reader
from demo.fetcher import Fetched, Fetcher
from demo.links import Page, canonical, origin
from demo.outside import Outside
from demo.pauses import BUSY, growing
from demo.results import Result, Results
from demo.robots import Memory, Rules
from demo.scope import Scope
from demo.settings import DEADLINE, Settings, SettingsError
from demo.trail import Seen, Trail, header_text, tasks
from demo.warc import Archive, ArchiveError
from timeoutq import Ack, AsyncQueue, AsyncShardedQueue, GiveUp, Lease, Recrawl, Release, Retry
from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.retry import retry_after

log = logging.getLogger(__name__)

MOST_COUNTED = 10_000
"""A process counts the Retry-After answers of this many pages at most; it forgets the oldest."""

GIVEN_BACK = 5.0
"""Seconds that a page waits after it was given back because the archive cannot be written."""

NOT_MODIFIED = 304


def drain() -> None:
    """Have the worker of this process claim no more and end, as on SIGTERM."""
    signal.raise_signal(signal.SIGTERM)


class Crawler:
    """A crawler of one event loop: what it fetches with, what it knows of robots.txt, and where it writes."""

    def __init__(
        self, settings: Settings, backend: CheckedBackend | None = None, stop: Callable[[], object] = drain
    ) -> None:
        """Open all that a crawl needs; `stop` is called once, when the archive cannot be written.

        Raises `ArchiveError`.
        """
        self.settings = settings
        self._archive = _archive(settings)
        self._stop = stop
        self._fetcher = Fetcher(settings, self._archive, backend)
        self._robots = Memory(settings.robots_keep, settings.robots_again)
        self._reader = Reader(settings.site, settings.parsing)
        self._scope = Scope(settings.site, settings.include, settings.exclude)
        self._recrawl = Recrawl(settings.first, settings.shortest, settings.longest)
        self._asked_to_wait: OrderedDict[str, int] = OrderedDict()
        self._results = Results(settings.results) if settings.results else None
        self._outside = Outside(settings.outside) if settings.outside else None
        self._queue = _queue(settings)
        self.trouble: ArchiveError | None = None
        """Why nothing can be crawled any more."""

    async def close(self) -> None:
        """Close connections and files, and end the parser."""
        await self._reader.close()
        await self._fetcher.close()
        if self._archive is not None:
            self._archive.close()
        if self._results is not None:
            self._results.close()
        if self._outside is not None:
            self._outside.close()
        if self._queue is not None:
            await self._queue.close()

    async def fetch(self, lease: Lease) -> Ack | Release:
        """Fetch the page that the task names; give what it links to."""
        try:
            return await self._visit(lease)
        except ArchiveError as error:
            if self.trouble is None:
                self.trouble = error
                log.error("the crawl stops here: %s", error)
                self._stop()
            return Release(GIVEN_BACK)  # whatever came of the visit: it is not in the archive

    async def _visit(self, lease: Lease) -> Ack | Release:
        url, trail = lease.task, Trail.of(lease.payload)
        if canonical(url) is None:
            raise GiveUp("not an http or https address: put a URL")
        await self._ask_robots(url)
        seen = trail.seen if self.settings.recrawl else None
        fetched = await self._fetcher.page(url, seen)
        if fetched.status in BUSY:
            return self._wait_for(url, fetched, lease.attempt)
        self._asked_to_wait.pop(url, None)
        if fetched.status >= 500:
            raise Retry(reason=f"HTTP {fetched.status}")
        if fetched.status >= 400:
            raise GiveUp(f"HTTP {fetched.status}")
        page = await self._read(fetched, fetched.body, url) if fetched.body is not None else Page()
        found, following = self._following(url, trail, fetched, page)
        if self._results is not None:
            length = None if fetched.body is None else len(fetched.body)
            now = round(time.time(), 3)
            self._results.write(Result(url, fetched.status, page.title, length, len(found), now, trail.depth))
        limited = self.settings.depth is not None
        put = tasks(found, following, ordered=self.settings.ordered, improve=limited)
        if not self.settings.recrawl:
            return Ack(put=put)
        seen = seen_after_visit(seen or Seen(), fetched, self._recrawl)
        return Ack(put=put, again_in=seen.interval, payload=trail.next(seen).payload())

    def _following(self, url: str, trail: Trail, fetched: Fetched, page: Page) -> tuple[list[str], Trail]:
        """Give the addresses that the crawl goes on to, and their trail; raises `GiveUp` after too many redirects."""
        if fetched.location is not None:
            if len(trail.redirects) >= self.settings.redirects:
                raise GiveUp(f"more than {self.settings.redirects} redirects led here")
            return self._redirected(fetched.location, url, trail), trail.redirected(url)
        if self.settings.depth is not None and trail.depth >= self.settings.depth:
            return [], trail
        return self._belonging(page.links, url), trail.linked()

    def _redirected(self, location: str, url: str, trail: Trail) -> list[str]:
        """Give the address that a redirect names, if the crawl goes on there.

        Raises `GiveUp` for a redirect in a ring; and if the crawl does not go on there, unless the page was found by a
        link, or visited before.
        """
        target = canonical(location, url)
        if target == url:
            raise GiveUp("it redirects to itself")
        if target in trail.redirects:
            raise GiveUp(f"it redirects back to {target}, which led here")
        belonging = self._belonging([target] if target is not None else [], url)
        if belonging or trail.depth > 0 or trail.seen is not None:
            return belonging
        if target is None:
            raise GiveUp(f"it redirects to {shown(location, 300)}, which is no page")
        cure = "begin there, or widen --same-site or --include"
        raise GiveUp(f"it redirects to {target}, which does not belong to the crawl: {cure}")

    def _belonging(self, urls: Sequence[str], url: str) -> list[str]:
        if self._outside is not None:
            self._outside.note(self._scope.left_out(urls, url))
        return self._scope.belonging(urls, url)

    async def _ask_robots(self, url: str) -> None:
        if not self.settings.robots:
            return
        site, host = origin(url), polite.host_of(url)

        async def ask() -> Rules:
            rules = await self._fetcher.rules(site)
            if rules.delay is not None and rules.delay > self.settings.delay:
                await polite.slow_down(self._queue, host, min(rules.delay, self.settings.most_pause))
            return rules

        rules = await self._robots.rules(site, ask)
        if not rules.reachable:
            left = self._robots.left(site)
            reason = f"robots.txt: {rules.trouble}"
            raise Retry(left, reason, block_host=left)
        if not rules.allows(url):
            raise GiveUp("robots.txt forbids it")

    async def _read(self, fetched: Fetched, html: bytes | bytearray, url: str) -> Page:
        try:
            return await self._reader.read(html, url, fetched.headers.get("content-type", ""))
        except PageRefused as error:
            raise GiveUp(str(error)) from error
        except ParserLost as error:
            raise Retry(reason=str(error)) from error

    def _wait_for(self, url: str, fetched: Fetched, attempt: int) -> Release:
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
        raise Retry(seconds, reason, block_host=seconds)


def _queue(settings: Settings) -> AnyAsyncQueue | None:
    if not settings.queue:
        return None
    if settings.shards == 1:
        return AsyncQueue(settings.queue, deadline=DEADLINE)
    return AsyncShardedQueue(settings.queue, shards=settings.shards, deadline=DEADLINE)


def _archive(settings: Settings) -> Archive | None:
    if not settings.warc:
        return None
    return Archive(settings.warc, settings.agent, largest=settings.warc_bytes, free=settings.room)


def seen_after_visit(before: Seen, fetched: Fetched, recrawl: Recrawl) -> Seen:
    """Give what is known of a page after this visit, with the time until the next.

    A page has changed if it says something else than before, or leads elsewhere. Where nothing is read, because it is
    no page of HTML, its ETag and Last-Modified decide.
    """
    same = fetched.status == NOT_MODIFIED
    digest = before.digest if same else _digest(fetched)
    changed = digest != before.digest
    again = before.visits > 0
    etag, modified = (header_text(fetched.headers.get(name)) for name in ("etag", "last-modified"))
    return Seen(
        # a 304 need not name them again
        etag=etag or (before.etag if same else ""),
        modified=modified or (before.modified if same else ""),
        digest=digest,
        interval=recrawl.interval(before.interval if again else None, changed=changed),
        visits=before.visits + 1,
        changed=before.changed + int(again and changed),
        unmodified=before.unmodified + int(same),
        capture=fetched.capture,
    )


def _digest(fetched: Fetched) -> str:
    if fetched.body is not None:
        said = bytes(fetched.body)
    else:
        names = ("location", "etag", "last-modified")
        said = "\n".join(fetched.headers.get(name, "") for name in names).encode()
    return hashlib.sha256(str(fetched.status).encode() + said).hexdigest()[:32]


@asynccontextmanager
async def crawler() -> AsyncIterator[Crawler]:
    """Open the crawler of a worker process, with the settings of the environment: the lifespan to `fetch`.

    Raises `InvalidInput` when the settings or the archive are no good: a new process would meet the same.
    """
    try:
        opened = Crawler(Settings.from_environment())
    except (SettingsError, ArchiveError) as error:
        raise InvalidInput(str(error)) from error
    try:
        yield opened
    finally:
        await opened.close()
    if opened.trouble is not None:
        raise opened.trouble


async def fetch(lease: Lease, state: Crawler) -> Ack | Release:
    """Fetch the page that the task names."""
    return await state.fetch(lease)
