"""A spider for each thing that a request may be, or may meet. `tests/scrapy/test_mapping.py` runs all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import date
from typing import Any

import scrapy
from scrapy import Field, FormRequest, Item, Request, signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import CloseSpider, DontCloseSpider, DropItem
from scrapy.http import JsonRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from tests.rig.spiders.beginning import Begun


class Mapped(Begun, scrapy.Spider):
    """A spider that begins at `/NAME/`."""

    name: str
    site: str

    def start_requests(self) -> Any:
        yield Request(f"{self.site}/{self.name}/")

    def at(self, path: str) -> str:
        return f"{self.site}/{self.name}/{path}"


class Links(Mapped):
    """Links in many forms of writing are one page each."""

    name = "links"

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.removeprefix(self.site)}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link)


class Retries(Mapped):
    """The third visit of a page succeeds."""

    name = "retries"

    def parse(self, response: Any) -> Any:
        yield {"times": response.meta.get("retry_times", 0)}


class RetriedInCallback(Mapped):
    """A callback asks for a retry, and yields something else first."""

    name = "retried_in_callback"

    def parse(self, response: Any) -> Any:
        yield {"times": response.meta.get("retry_times", 0), "text": response.text[:40]}
        if b"busy" in response.body:
            yield Request(self.at("other"), callback=self.parse_other)
            again = get_retry_request(response.request, spider=self, reason="busy")
            if again is not None:
                yield again

    def parse_other(self, response: Any) -> Any:
        yield {"other": True}


class Bans:
    """A downloader middleware that tries a page again as another agent."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> Bans:
        return cls(crawler)

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        if response.status != 403:
            return response
        again = get_retry_request(request, spider=self._crawler.spider, reason="banned")
        assert again is not None
        again.headers["User-Agent"] = "another"
        return again


class RetriedOtherwise(Mapped):
    """A callback and a downloader middleware ask for retries, and change something in the request."""

    name = "retried_otherwise"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {"tests.rig.spiders.mapping.Bans": 560}}

    def parse(self, response: Any, token: str = "") -> Any:
        noted = {key: response.meta.get(key) for key in ("before", "sent", "retry_times")}
        yield {"token": token, **noted}
        if not token:
            response.meta["before"] = "new"
            again = get_retry_request(response.request, spider=self, reason="no token")
            assert again is not None
            again.headers["X-Token"] = again.meta["sent"] = again.cb_kwargs["token"] = "new"
            yield again
            yield Request(self.at("noted"), callback=self.parse_noted)
            yield Request(self.at("handled"), callback=self.parse_handled)
            yield Request(self.at("banned"), callback=self.parse_banned)

    def parse_noted(self, response: Any) -> Any:
        """Note something in the page's own meta alone, and ask once more."""
        if "mark" in response.meta:
            yield {"mark": response.meta["mark"]}
        else:
            response.meta["mark"] = 1
            yield get_retry_request(response.request, spider=self, reason="noted")

    def parse_handled(self, response: Any) -> Any:
        """Ask once more, with something in meta that cannot travel, as download handlers put it there."""
        if response.meta.get("retry_times"):
            yield {"handled": "tab" in response.meta}
        else:
            response.meta["tab"] = object()
            yield get_retry_request(response.request, spider=self, reason="handled")

    def parse_banned(self, response: Any) -> Any:
        yield {"agent": response.request.headers["User-Agent"].decode()}


class GivesUp(Mapped):
    """Some pages cannot be had."""

    name = "gives_up"

    def start_requests(self) -> Any:
        for path in ("always503", "gone404"):
            yield Request(self.at(path))

    def parse(self, response: Any) -> Any:
        raise AssertionError("no such page has a response")


class Redirects(Mapped):
    """Redirects to another page, to itself, and in a circle."""

    name = "redirects"

    def start_requests(self) -> Any:
        for path in ("old", "itself", "circle1"):
            yield Request(self.at(path), dont_filter=path == "old", meta={"mine": path})

    def parse(self, response: Any) -> Any:
        yield {
            "path": response.url.rpartition("/")[2],
            "mine": response.meta["mine"],
            "from": [url.rpartition("/")[2] for url in response.meta.get("redirect_urls", [])],
        }


class Errbacks(Mapped):
    """Errbacks of all kinds yield items and requests, for failed downloads and for HTTP errors."""

    name = "errbacks"

    def start_requests(self) -> Any:
        nobody = "http://127.0.0.1:1"
        yield Request(f"{nobody}/plain", errback=self.on_error, cb_kwargs={"a": 1})
        yield Request(f"{nobody}/async", errback=self.on_error_async)
        yield Request(f"{nobody}/coroutine", errback=self.on_error_coroutine)
        yield Request(f"{nobody}/again", errback=self.returns_failure)
        yield Request(f"{nobody}/raises", errback=self.raises)
        yield Request(self.at("gone404"), errback=self.on_error)

    def parse(self, response: Any, **_: Any) -> Any:
        yield {"fetched": response.url.rpartition("/")[2]}

    def on_error(self, failure: Any) -> Any:
        last = failure.request.url.rpartition("/")[2]
        yield {"failed": last, "kind": failure.type.__name__, "kwargs": failure.request.cb_kwargs}
        yield Request(self.at(f"after-{last}"))

    async def on_error_async(self, failure: Any) -> Any:
        yield {"failed": "async", "kind": failure.type.__name__, "kwargs": {}}
        yield Request(self.at("after-async"))

    async def on_error_coroutine(self, failure: Any) -> Any:
        return [{"failed": "coroutine", "kind": failure.type.__name__, "kwargs": {}}, Request(self.at("after-co"))]

    def returns_failure(self, failure: Any) -> Any:
        return failure

    def raises(self, failure: Any) -> Any:
        raise KeyError("the errback is wrong")


class Again(Mapped):
    """`dont_filter`: a page asks for itself three times, and for another page that is known."""

    name = "again"

    def parse(self, response: Any, turn: int = 0) -> Any:
        yield {"turn": turn}
        if turn < 3:
            yield response.request.replace(dont_filter=True, cb_kwargs={"turn": turn + 1})
            yield response.request.replace(cb_kwargs={"turn": 77}, dont_filter=False)  # filtered
        yield Request(self.at("known"), callback=self.parse_known)
        if turn == 3:
            for number in range(2):
                yield Request(
                    self.at("known"), callback=self.parse_known, cb_kwargs={"number": number}, dont_filter=True
                )

    def parse_known(self, response: Any, number: int | None = None) -> Any:
        yield {"known": number}


class Carries(Mapped):
    """All that a request may carry arrives."""

    name = "carries"

    def parse(self, response: Any) -> Any:
        yield Request(
            self.at("one"), callback=self.show, errback=self.never, method="PUT", body="größe", priority=7,
            headers={"X-Mine": ["a", "b"], "X-Odd": b"\xff"}, cookies={"c": "1"}, flags=["f"],
            meta={"deep": {"list": [1, 2.5, None, True, "é"]}, "tuple": (1, 2)}, cb_kwargs={"k": {1: b"v"}},
        )  # fmt: skip
        yield FormRequest(self.at("form"), callback=self.show, formdata={"a": "1"}, cb_kwargs={"k": 0})
        yield FormRequest(self.at("form"), callback=self.show, formdata={"a": "2"}, cb_kwargs={"k": 0})
        yield FormRequest(self.at("form"), callback=self.show, formdata={"a": "2"}, cb_kwargs={"k": 0})
        yield JsonRequest(self.at("json"), callback=self.show, data={"a": 1}, cb_kwargs={"k": 0})
        yield Request(self.at("bytes"), callback=self.show, method="POST", body=b"\xff\x00", cb_kwargs={"k": 0})
        yield Request(self.at("x" * 2000), callback=self.show, cb_kwargs={"k": "long"})
        yield Request(self.at("jar"), callback=self.show, cb_kwargs={"k": 0}, meta={"cookiejar": "mine"})

    def show(self, response: Any, k: Any) -> Any:
        request = response.request
        yield {
            "path": response.url.rpartition("/")[2],
            "method": request.method,
            "priority": request.priority,
            "flags": request.flags,
            "deep": request.meta.get("deep"),
            "tuple": repr(request.meta.get("tuple")),
            "depth": request.meta["depth"],
            "jar": request.meta.get("cookiejar"),
            "k": repr(k),
        }

    def never(self, failure: Any) -> Any:
        raise AssertionError("this request does not fail")


_lambda: Any = lambda response: None  # noqa: E731  # a function without a name is what is refused


def outside(response: Any) -> None:
    """Be no method of a spider."""


def _deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


class Refused(Mapped):
    """Requests that cannot be put into a queue, and one that can."""

    name = "refused"

    def parse(self, response: Any) -> Any:
        def nested(response: Any) -> None:
            pass

        yield Request(self.at("object"), meta={"a": [{"b": object()}]})
        yield Request(self.at("lambda"), callback=_lambda)
        yield Request(self.at("nested"), callback=nested)
        yield Request(self.at("outside"), errback=outside)
        yield Request(self.at("number"), meta={"n": 10**5000})
        yield Request(self.at("deep"), meta={"n": _deep(20_000)})
        yield Request(self.at("large"), meta={"n": "x" * 1_100_000})
        yield Request(self.at("odd"), meta={"download_slot": "\ud800"})
        yield Request(self.at("slot"), meta={"download_slot": ""})
        yield Request(self.at("long"), meta={"download_slot": "x" * 3000})
        yield Request(self.at("method"), method="X" * 1100)
        yield Request(self.at("good"), callback=self.parse_good)

    def parse_good(self, response: Any) -> Any:
        yield {"good": True}


class Quote(Item):
    """An item that two pages fill in."""

    text = Field()
    born = Field()


class Tutorial(Mapped):
    """An item travels in `meta`, as in Scrapy's tutorials, and is yielded by the next page."""

    name = "tutorial"

    def parse(self, response: Any) -> Any:
        for number in range(3):
            item = Quote(text=f"quote {number}", born=date(1775, 12, 16))
            yield Request(self.at(f"author{number}"), callback=self.parse_author, meta={"item": item})

    def parse_author(self, response: Any) -> Any:
        item = response.meta["item"]
        yield {"kind": type(item).__name__, "year": item["born"].year, "text": item["text"]}


def twice(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:

    def decorated(self: Any, response: Any) -> Any:
        yield from function(self, response)
        yield from function(self, response)

    return decorated


class Parent(Mapped):
    """A spider whose private callback the spiders below inherit."""

    def of_parent(self) -> Any:
        return self.__parse

    def __parse(self, response: Any) -> Any:
        yield {"by": "private of the parent"}


class Methods(Parent):
    """Callbacks of each kind of method: private, static, of the class, decorated."""

    name = "methods"

    def parse(self, response: Any) -> Any:
        yield Request(self.at("private"), callback=self.__parse)
        yield Request(self.at("parent"), callback=self.of_parent())
        yield Request(self.at("static"), callback=self.parse_static)
        yield Request(self.at("class"), callback=self.parse_class)
        yield Request(self.at("decorated"), callback=self.parse_twice)
        yield Request(self.at("gone404"), callback=self.parse, errback=self.__failed)

    def __parse(self, response: Any) -> Any:
        yield {"by": "private"}

    @staticmethod
    def parse_static(response: Any) -> Any:
        yield {"by": "static"}

    @classmethod
    def parse_class(cls, response: Any) -> Any:
        yield {"by": f"the class {cls.name}"}

    @twice
    def parse_twice(self, response: Any) -> Any:
        yield {"by": "decorated"}

    def __failed(self, failure: Any) -> Any:
        yield {"by": "private errback"}


class Misses(Mapped):
    """A task of this queue names a callback that the spider lacks."""

    name = "misses"
    custom_settings = {"CLOSESPIDER_ITEMCOUNT": 1}

    def parse(self, response: Any) -> Any:
        yield {"fetched": True}


class Asynchronous(Mapped):
    """Callbacks that are asynchronous generators, and coroutines."""

    name = "asynchronous"

    async def parse(self, response: Any) -> Any:
        yield {"kind": "generator"}
        yield Request(self.at("coroutine"), callback=self.parse_coroutine)

    async def parse_coroutine(self, response: Any) -> Any:
        return [{"kind": "coroutine"}, Request(self.at("plain"), callback=self.parse_plain)]

    def parse_plain(self, response: Any) -> Any:
        return {"kind": "plain"}


class Raises(Mapped):
    """Callbacks that raise, before and after they have yielded something."""

    name = "raises"

    def parse(self, response: Any) -> Any:
        yield Request(self.at("found"), callback=self.parse_found)
        yield {"before": True}
        raise KeyError("title")

    def parse_found(self, response: Any) -> Any:
        yield {"found": True}
        yield Request(self.at("at-once"), callback=self.raise_at_once)
        yield Request(self.at("async"), callback=self.raise_async)

    def raise_at_once(self, response: Any) -> Any:
        raise ZeroDivisionError("at once")

    async def raise_async(self, response: Any) -> Any:
        yield {"async": True}
        raise ZeroDivisionError("later")


class Pipe:
    """A pipeline that stores, drops and breaks."""

    def process_item(self, item: Any, spider: Any = None) -> Any:
        if item.get("drop"):
            raise DropItem("not wanted")
        if item.get("break"):
            raise OSError("the disk is full")
        return {**item, "stored": True}


class Pipelines(Mapped):
    """Items that are stored, dropped, and that break the pipeline."""

    name = "pipelines"
    custom_settings = {"ITEM_PIPELINES": {"tests.rig.spiders.mapping.Pipe": 1}}

    def parse(self, response: Any) -> Any:
        yield {"n": 1}
        yield {"n": 2, "drop": True}
        yield Request(self.at("breaks"), callback=self.parse_break)

    def parse_break(self, response: Any) -> Any:
        yield {"n": 3, "break": True}
        yield {"n": 4}
        yield Request(self.at("found"), callback=self.parse_found)

    def parse_found(self, response: Any) -> Any:
        yield {"n": 5}


class Depths(Mapped):
    """A depth limit, and pages of other hosts."""

    name = "depths"
    custom_settings = {"DEPTH_LIMIT": 2}
    allowed_domains = ["127.0.0.1"]

    def parse(self, response: Any) -> Any:
        yield {"depth": response.meta["depth"]}
        yield Request(self.at(f"d{response.meta['depth'] + 1}"))
        yield Request("http://elsewhere.example/")


class Robots(Mapped):
    """Pages that robots.txt forbids are not visited."""

    name = "robots"
    custom_settings = {"ROBOTSTXT_OBEY": True}

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.rpartition("/")[2]}
        yield Request(self.at("private"))
        yield Request(self.at("open"))


class Rules(Begun, CrawlSpider):
    """A CrawlSpider with rules, whose callbacks Scrapy chooses itself."""

    name = "rules"
    site: str
    rules = (Rule(LinkExtractor(allow=r"/page"), callback="parse_page", follow=True),)

    def start_requests(self) -> Any:
        yield Request(f"{self.site}/rules/", dont_filter=True)

    def parse_page(self, response: Any) -> Any:
        return {"path": response.url.rpartition("/")[2], "text": response.meta.get("link_text")}


class Home(Begun, CrawlSpider):
    """A CrawlSpider whose pages link to its start page: the rule's callback gets this page, too."""

    name = "home"
    site: str
    rules = (Rule(LinkExtractor(allow=r"/home/"), callback="parse_page", follow=True),)

    def start_requests(self) -> Any:
        yield Request(f"{self.site}/home/", dont_filter=True)
        yield Request(f"{self.site}/home/moved", dont_filter=True)

    def parse_page(self, response: Any) -> Any:
        return {"path": response.url.rpartition("/")[2]}


class Closes(Mapped):
    """A callback closes the spider."""

    name = "closes"

    def parse(self, response: Any) -> Any:
        yield Request(self.at("more"))
        raise CloseSpider("enough")


class Busy(Mapped):
    """A host that asks to be left alone."""

    name = "busy"
    custom_settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1}

    def start_requests(self) -> Any:
        yield Request(self.at(""))
        yield Request(self.at("other"))

    def parse(self, response: Any) -> Any:
        yield {"times": response.meta.get("retry_times", 0)}


class Spread(Mapped):
    """A download slot of its own is a group of its own."""

    name = "spread"

    def parse(self, response: Any) -> Any:
        yield {"slot": response.meta.get("download_slot")}
        if "one" not in response.url:
            yield Request(self.at("one"), meta={"download_slot": "elsewhere"})
            yield Request(self.at("one-copied"), meta=response.meta)


class ByPath:
    """A fingerprinter of a project's own: the query of a URL does not count."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()[-20:]


class Printed(Mapped):
    """Two URLs that are one page by the project's own fingerprinter."""

    name = "printed"
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": "tests.rig.spiders.mapping.ByPath"}

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.removeprefix(self.site)}
        yield Request(self.at("page?session=1"))
        yield Request(self.at("page?session=2"))


class Starts(Mapped):
    """A start that yields one page twice, with and without `dont_filter`, a form, and an item."""

    name = "starts"

    def start_requests(self) -> Any:
        for _ in range(2):
            yield Request(self.at("one"), dont_filter=True)
            yield Request(self.at("two"))
        yield FormRequest(self.at("form"), formdata={"a": "1"}, callback=self.parse_form)

    async def start(self) -> AsyncIterator[Any]:
        for request in self.start_requests():
            yield request
        yield {"item": "of the start"}

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.rpartition("/")[2]}

    def parse_form(self, response: Any) -> Any:
        yield {"form": response.request.method}


class Ordered(Mapped):
    """Pages of one host, which is visited by one process at a time, with priorities in no order."""

    name = "ordered"
    custom_settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1}

    def parse(self, response: Any) -> Any:
        for priority in (3, -2, 0, 9, -2000, 5, 2000):
            yield Request(self.at(f"p{priority}"), priority=priority, callback=self.parse_page)
        yield Request(self.at("late"), priority=-5, callback=self.parse_page)
        yield Request("data:text/html,nowhere", priority=5, callback=self.parse_page)
        yield Request(self.at("slot"), priority=1, callback=self.parse_page, meta={"download_slot": "elsewhere"})

    def parse_page(self, response: Any, again: bool = False) -> Any:
        yield {"path": response.url.rpartition("/")[2], "again": again}
        if response.url.endswith("p9"):
            yield Request(self.at("late"), priority=7, callback=self.parse_page, cb_kwargs={"again": True})
            yield Request(self.at("p3"), priority=2, callback=self.parse_page, cb_kwargs={"again": True})


class Kept(Mapped):
    """A spider that stays open until it has seen the last page; at its first idle moment it makes a request."""

    name = "kept"
    idles = 0
    is_over = False

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.idle, signals.spider_idle)
        return spider

    def idle(self) -> None:
        self.idles += 1
        self.logger.info("idle %d", self.idles)
        if self.idles == 1:
            engine: Any = self.crawler.engine
            engine.crawl(Request(self.at("from-idle")))
        if not self.is_over:
            raise DontCloseSpider

    def parse(self, response: Any) -> Any:
        path = response.url.rpartition("/")[2]
        self.is_over = path == "last"
        yield {"path": path, "idles": self.idles}


class Odd(Mapped):
    """An item that JSON cannot hold."""

    name = "odd"

    def parse(self, response: Any) -> Any:
        yield {"it": object()}


class Other(Mapped):
    """A spider with settings that cannot be used, or at the queue of another."""

    name = "other"

    def parse(self, response: Any) -> Any:
        yield {"fetched": True}


class RefusedStart(Mapped):
    """A start with a request that cannot be put into a queue, between two that can."""

    name = "refused_start"

    def start_requests(self) -> Any:
        yield Request(self.at("first"))
        yield Request(self.at("slot"), meta={"download_slot": ""})
        yield Request(self.at("last"))

    def parse(self, response: Any) -> Any:
        yield {"path": response.url.rpartition("/")[2]}
