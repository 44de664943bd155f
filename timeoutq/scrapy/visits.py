"""A visit is one lease on its way through Scrapy: fetched, parsed, its items stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from scrapy import Request
from scrapy.exceptions import CloseSpider
from twisted.python.failure import Failure

from timeoutq.words.arguments import Packed, error_words, pack
from timeoutq.words.model import Ack, Lease, Release, Task
from timeoutq.words.retry import GiveUp, Retry

End = Ack | Release | Retry | GiveUp  # what a handler of the worker returns
CLOSED = "closed"  # the mark in the payload of a page that runs once more because its callback has closed the spider


class Visit:
    """One lease on its way through Scrapy."""

    def __init__(self, lease: Lease, base: str) -> None:
        """Prepare; `base` is the id of the request, without what makes it another one (`dont_filter`)."""
        self.lease = lease
        self.base = base
        self.request: Request | None = None
        self.found: list[Task] = []  # the tasks of the requests that the callback has yielded
        self.ids: set[str] = {base} & {lease.task}
        """The ids of these requests and of the visit itself, without those with `dont_filter`, as in Scrapy."""
        self.fresh: Counter[str] = Counter()  # how many requests with `dont_filter` it has yielded, by their ids
        self.again: bytes | None = None  # the packed payload with which the task is to run again at once, if it is
        self.retry: Retry | None = None
        self.end: Release | BaseException | None = None  # how the visit ends if something went wrong
        self.sent: list[Any] | None = None  # the contents of the request, when it went to the downloader
        self.reason = ""  # what came last from the downloader, in words
        self.retry_after = 0.0  # for how long the host asked to be left alone, seconds
        self.keeps_slot = False  # whether the task named its `download_slot`
        self.has_response = False
        """Whether a response has reached the spider's side: from then on, all output passes the spider middleware."""
        self.items = 0  # how many items are in the pipelines
        self.output_over = False  # whether the callback has yielded all that it will
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Whether the visit has ended, or its lease is lost."""
        return self.over.done()

    @property
    def _payload(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.lease.payload or {})

    @property
    def turn(self) -> int:
        """How often the page has asked for itself before. So each time has a payload, and items, of its own."""
        return int(self._payload.get("turn", 0))

    @property
    def slot(self) -> str | None:
        """The `download_slot` that requests of this visit inherit without wanting it."""
        return None if self.request is None or self.keeps_slot else self.request.meta.get("download_slot")

    def is_retried_by(self, request: Request) -> bool:
        """Say whether a request for the same page is a retry."""
        if self.request is None:
            return False
        return int(request.meta.get("retry_times", 0)) > int(self.request.meta.get("retry_times", 0))

    def is_changed_in(self, request: Request) -> bool:
        """Say whether a retry asks for something else than the downloader was asked for."""
        return contents(request) != (self.sent or (self.request and contents(self.request)))

    def item_in(self) -> None:
        self.items -= 1
        self._look()

    def end_output(self) -> None:
        """Note that the callback has yielded all that it will; the visit ends with the last of its items."""
        self.output_over = True
        self._look()

    def _look(self) -> None:
        if self.output_over and self.items <= 0:
            self.finish()

    def broke(self, error: BaseException) -> None:
        """Note that a callback, an errback, a middleware or a pipeline has raised an error, or was ended by Scrapy."""
        if not isinstance(error, CloseSpider):
            self.close(Release() if isinstance(error, GeneratorExit | asyncio.CancelledError) else error)
        elif self.again is None and not self._payload.get(CLOSED):
            # the page runs once more, because its callback has closed the spider; after the second time, it is done
            self.again = Packed(pack({**self._payload, CLOSED: True}, self.lease.task) or b"")

    def unhandled(self, failure: Any) -> None:
        """Note that a request has failed, and that the spider has no errback for it."""
        error: BaseException = failure.value
        response: Any = getattr(error, "response", None)
        self.close(GiveUp(error_words(error) if response is None else f"HTTP {response.status}"))

    def close(self, end: Release | BaseException) -> None:
        """Note how the visit will end; the first note counts. This does not end the visit: `finish` and `_look` do."""
        if self.end is None:
            self.end = end

    def finish(self) -> None:
        """End the visit now, whatever is still under way."""
        if not self.over.done():
            self.over.set_result(None)

    @property
    def puts_with_ack(self) -> bool:
        """Whether nobody has to put what was found: the ack does, or the visit is released and finds it again."""
        return isinstance(self.end, Release) or (self.end is None and self.retry is None)

    def result(self) -> End:
        """Say what is to become of the task; raises the error that has ended the visit, if one has."""
        if isinstance(self.end, Release | GiveUp):
            return self.end
        if self.end is not None:
            raise self.end
        if self.retry is not None:
            return self.retry
        if self.again is not None:
            return Ack(put=self.found, again_in=self.retry_after, payload=self.again)
        return Ack(put=self.found)


class Errback:
    """What stands in the place of a request's errback: it knows the visit, and calls the spider's errback, if any.

    `Request.copy` and `replace` copy it, so a request that a downloader middleware has made of another one, such as a
    redirect, leads to the visit, too.
    """

    __slots__ = ("__weakref__", "_call", "function", "visit")

    def __init__(self, visit: Visit, function: Any, call: Callable[[Visit, Any, Failure], Any]) -> None:
        self.visit = visit
        self.function = function
        self._call = call

    def __call__(self, failure: Failure) -> Any:
        return self._call(self.visit, self.function, failure)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "errback"))


def visit_of(request: Request | None) -> Visit | None:
    errback = getattr(request, "errback", None)
    return errback.visit if isinstance(errback, Errback) else None


def contents(request: Request) -> list[Any]:
    """Give all of a request but what Scrapy itself counts and notes in it. It is not changed with the request."""
    headers: Any = request.headers  # without types
    noted = [{key: value for key, value in held.items() if key not in _NOTED} for held in (request.meta, headers)]
    return [*noted, *(getattr(request, name) for name in Request.attributes if name not in _NOTED)]


_NOTED = {
    "meta", "headers", "dont_filter", "priority", "retry_times", "depth", "download_slot", "download_latency",
    b"Referer",
}  # fmt: skip
"""Attributes, keys of `meta` and a header; `meta` and `headers` themselves are held key by key."""
