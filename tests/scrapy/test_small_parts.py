"""Parts of `timeoutq.scrapy` that need no process of their own: the addon, the opening of a queue, what is told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from timeoutq import AsyncQueue, GiveUp, Lease, Politeness, Queue, Release, Retry, Task, Worker
from timeoutq.words.errors import InvalidInput

pytest.importorskip("scrapy")


def never(*given: object) -> None:
    raise AssertionError(f"this is not to be called, but was, with {given}")


@pytest.mark.parametrize(
    ("module", "name"),
    [("bench", "bench"), ("check", "check"), ("fetch", "fetch"), ("parse", "parse"), ("shell", "shell"),
     ("view", "view"), ("crawl", ""), ("runspider", "")],
)  # fmt: skip
def test_the_addon_steps_aside_for_commands_that_look_at_single_pages(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings
    from scrapy.spiders import Spider

    from timeoutq.scrapy import Addon, addon, crawl

    kind: Any = import_module(f"scrapy.commands.{module}").Command
    settings, seen = Settings(), []
    before = settings.copy_to_dict()

    def run(self: Any, args: object, opts: object) -> None:
        seen.append(addon.running_command())
        crawler = Crawler(Spider, settings)
        Addon(crawler).update_settings(settings)
        assert (crawler in crawl.CRAWLS) == (not name)

    monkeypatch.setattr(kind, "run", run)
    monkeypatch.setattr(kind, "__init__", lambda self: None)
    one = kind()
    one.run([], SimpleNamespace(spargs={"cat": "2"}))
    assert seen == [(one, {"cat": "2"})]
    assert addon.looks_only(one) == name
    assert (settings.copy_to_dict() == before) == bool(name)
    assert addon.running_command() == (None, {})
    assert addon.looks_only(None) == ""


class Telling:
    """A crawl that notes what it counts and says."""

    def __init__(self) -> None:
        from timeoutq.scrapy.crawl import Crawl

        self.crawl = Crawl.__new__(Crawl)
        self.said: list[str] = []
        self.counted: list[str] = []
        crawl: Any = self.crawl
        crawl._count = self.counted.append
        crawl._say = lambda level, message, *words: self.said.append(message % words)


async def test_a_task_waits_for_a_method_and_these_waits_use_up_one_attempt_at_most(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutq.scrapy.crawl.SHORTEST_WAIT", 0.01)
    telling, error = Telling(), "spider 'shop' has no method 'parse_item'"
    crawl = telling.crawl
    crawl._lacking = set()
    attempts: list[int] = []
    reasons: list[str] = []
    async with AsyncQueue(name, url) as crawl.queue:

        async def handle(lease: Lease) -> Retry | Release | None:
            attempts.append(lease.attempt)
            reasons.append((await crawl.queue.inspect(lease.task)).error or "")
            return await crawl._wait_for_method(lease, error) if len(attempts) < 5 else None

        await crawl.queue.put("https://a.example/1")
        await Worker(crawl.queue, handle, prefetch=0, burst=True, signals=False, max_releases=None).run()
        assert attempts == [1, 2, 2, 2, 2]
        assert reasons == ["", *[f"Retry: {error}"] * 4]
        assert telling.said == [f"queue {name}: {error}"]
        await crawl.queue.purge()


async def test_a_request_of_no_page_is_put_at_once(url: str, name: str) -> None:
    telling = Telling()
    crawl: Any = telling.crawl
    crawl.engine, crawl._is_drained = SimpleNamespace(poke=str), False
    with Queue(name, url) as crawl._twin:
        crawl._put_now(Task("https://a.example/1"))
        assert crawl._twin.states("https://a.example/1") == ["todos"]
        with pytest.raises(InvalidInput):
            crawl._put_now(Task("x" * 2000))
        crawl._twin.purge()


async def test_a_refused_request_is_told_with_the_page_and_the_method_that_yielded_it() -> None:
    from scrapy import Request

    from timeoutq.scrapy.visits import Visit

    telling = Telling()
    visit = Visit(Lease("https://a.example/list", "w#1", 0.0, 1, 0, 1), "https://a.example/list")
    visit.request = Request("https://a.example/list")
    telling.crawl._refuse(InvalidInput("no lambda"), visit)
    told = "no lambda; it was yielded by parse of https://a.example/list"
    assert (telling.said, telling.counted) == ([told], ["timeoutq/refused"])
    assert visit.result() == GiveUp(told)  # a returned one: no traceback of timeoutq's own functions is kept


class Prints:
    """A fingerprinter to whom all requests are the same."""

    def fingerprint(self, request: object) -> bytes:
        return b"\x1f\x0c"


def test_a_get_that_has_a_body_is_another_task_than_the_plain_get() -> None:
    from scrapy import Request

    from timeoutq.scrapy.tasks import base_id

    page = "https://a.example/search"
    assert base_id(Request(page), Prints(), usual=True) == page
    assert base_id(Request(page, body=b"q"), Prints(), usual=True) == f"{page}#GET:1f0c"


def test_a_slot_that_scrapy_gave_to_a_page_is_no_group_of_the_requests_that_take_over_its_meta() -> None:
    from scrapy import Request, Spider

    from timeoutq.scrapy.tasks import payload_of

    link = "https://b.example/"
    request = Request(link, meta={"download_slot": "a.example", "depth": 1})
    assert payload_of(request, Spider("shop"), link, None, inherited="a.example") == ({"meta": {"depth": 1}}, None)
    chosen = {"meta": {"download_slot": "a.example", "depth": 1}}, "a.example"
    assert payload_of(request, Spider("shop"), link, None, inherited="c.example") == chosen


@pytest.mark.parametrize(
    ("status", "asked", "seconds"),
    [(429, "120", 120), (503, "3601", 3600), (500, "120", 0), (429, "", 0)],
)
async def test_a_host_is_spared_as_long_as_it_asks_but_not_longer_than_an_hour(
    status: int, asked: str, seconds: float
) -> None:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.spiders import Spider

    from timeoutq.scrapy import Addon
    from timeoutq.scrapy.middlewares import DownloaderSide
    from timeoutq.scrapy.visits import Errback, Visit

    crawler, url = Crawler(Spider), "https://a.example/"
    Addon(crawler).update_settings(crawler.settings)
    visit = Visit(Lease(url, "w#1", 9e9, 1), url)
    request = Request(url, errback=Errback(visit, None, never))
    DownloaderSide(crawler).process_response(request, Response(url, status=status, headers={"Retry-After": asked}))
    assert (visit.retry_after, visit.reason) == (seconds, f"HTTP {status}")


async def test_the_rules_of_download_slots_are_those_of_a_new_queue_only(url: str, name: str) -> None:
    from scrapy import Spider
    from scrapy.settings import Settings

    from timeoutq.scrapy import opening, plan

    slots = {"a.example": {"delay": 7}}
    settings = Settings({"TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": name, "DOWNLOAD_SLOTS": slots})
    async with AsyncQueue(name, url) as operator:
        await operator.configure(politeness=Politeness(0, 8))
        await operator.hosts.set("a.example", delay=20)
        for made_by, delay in (("the operator", 20), ("the spider", 7)):
            opened, _ = await opening.opened(plan.read(settings), Spider("shop"))
            await opened.close()
            host = await operator.hosts.inspect("a.example")
            assert host is not None
            assert host.delay == delay, made_by
            await operator.purge()


async def test_a_queue_that_was_only_set_up_becomes_polite_and_one_that_is_in_use_without_is_refused(
    url: str, name: str
) -> None:
    from scrapy import Spider
    from scrapy.settings import Settings

    from timeoutq.scrapy import opening, plan

    slots = {"a.b": {"delay": 7}}
    settings = {"TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": name, "DOWNLOAD_DELAY": 3, "DOWNLOAD_SLOTS": slots}
    given = plan.read(Settings(settings))
    async with AsyncQueue(name, url) as operator:
        await operator.configure(max_crashes=99)
        opened, _ = await opening.opened(given, Spider("shop"))
        await opened.close()
        stats, host = await operator.stats(), await operator.hosts.inspect("a.b")
        assert (stats.politeness, stats.settings["max_crashes"]) == (Politeness(3, 1), "99")
        assert host is not None
        assert host.delay == 7
        await operator.configure(politeness="off")
        with pytest.raises(InvalidInput, match="is not polite"):
            await opening.opened(given, Spider("shop"))
        await operator.purge()
        await operator.put("https://a.b/")
        with pytest.raises(InvalidInput, match="is not polite"):
            await opening.opened(given, Spider("shop"))
        await operator.purge()


class Sowing:
    """What the start of a spider needs of its crawl; a visit of a page does nothing."""

    def __init__(self, queue: AsyncQueue) -> None:
        from scrapy import Spider

        self.queue: Any = queue
        self.plan: Any = SimpleNamespace(lease=5.0)
        self.engine: Any = None
        self.spider = Spider("shop")

    def send(self, visit: Any, request: Any) -> None:
        visit.found.append(Task(request.url))

    async def crawl(self, start: object) -> None:
        """Begin as a process of the spider does, and work until the queue is drained."""
        from timeoutq.scrapy.seeds import Seeds

        seeds = Seeds(self)
        seeds.start = start

        async def handle(lease: Lease) -> Any:
            return await seeds.sow(lease) if lease.task == seeds.task else None

        await seeds.put()
        await Worker(self.queue, handle, burst=True, signals=False, retry=[]).run()


async def test_a_start_that_breaks_off_is_no_start_and_a_mended_one_puts_the_rest(url: str, name: str) -> None:
    from scrapy import Request

    one, two = "https://a.example/1", "https://a.example/2"

    async def start(*, breaks_off: bool) -> AsyncIterator[Any]:
        yield Request(one)
        if breaks_off:
            raise ZeroDivisionError
        yield Request(two)

    async with AsyncQueue(name, url, politeness=Politeness(0, 8)) as queue:
        sowing = Sowing(queue)
        await sowing.crawl(start(breaks_off=True))
        assert await queue.states("start:shop", one, two) == ["failed", "done", "unknown"]
        assert "scrapy_started" not in (await queue.stats()).settings
        await sowing.crawl(start(breaks_off=False))
        assert await queue.states("start:shop", one, two) == ["done"] * 3
        assert "scrapy_started" in (await queue.stats()).settings
        await queue.purge()


async def test_a_start_task_that_comes_back_to_a_process_that_closes_goes_back_at_once() -> None:
    from timeoutq.scrapy.seeds import Seeds

    seeds = Seeds(SimpleNamespace(plan=SimpleNamespace(lease=30.0)))
    assert await seeds.sow(Lease("start:docs", "t", 0.0)) == Release(delay=30.0)
    seeds.stop()
    assert await seeds.sow(Lease("start:docs", "t", 0.0)) == Release()


async def test_start_requests_are_put_a_hundred_at_a_time(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from scrapy import Request

    async def start() -> AsyncIterator[Any]:
        for number in range(250):
            yield Request(f"https://a.example/{number}")

    async with AsyncQueue(name, url) as queue:
        sizes, put = list[int](), queue.put

        async def noted(tasks: Any) -> Any:
            sizes.append(len(tasks) if isinstance(tasks, list) else 0)
            return await put(tasks)

        monkeypatch.setattr(AsyncQueue, "put", lambda _, tasks: noted(tasks))
        await Sowing(queue).crawl(start())
        assert sizes == [0, 100, 100, 50], "the start task comes first"
        await queue.purge()


async def test_a_spider_says_at_its_end_what_is_in_failed(url: str, name: str) -> None:
    from scrapy.settings import Settings

    from timeoutq.scrapy import plan

    telling = Telling()
    async with AsyncQueue(name, url) as queue:
        telling.crawl.queue, telling.crawl.plan = queue, plan.read(Settings())
        await telling.crawl._tell_failed()
        assert telling.said == []
        await queue.put(["a", "b"])
        for lease in await queue.claim(2):
            await queue.fail(lease, GiveUp("no"))
        await telling.crawl._tell_failed()
        assert telling.said == [f"queue {name}: 2 tasks are in failed; to see them: timeoutq list {name} failed"]
        await queue.purge()


async def test_a_drained_queue_and_other_arguments_are_told(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    from scrapy import Spider
    from scrapy.settings import Settings

    from timeoutq.scrapy import opening, plan

    def planned(**arguments: str) -> plan.Plan:
        found = plan.read(Settings({"TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": name}))
        return replace(found, arguments=arguments)

    spider = Spider("shop")
    queue, started = await opening.opened(planned(cat="1", token="x"), spider)
    assert not started
    await queue.put("https://a.example/")
    await opening.mark_started(queue)
    (lease,) = await queue.claim(1)
    queue2, started = await opening.opened(planned(cat="1", token="x"), spider)
    assert started
    assert not caplog.messages
    with caplog.at_level("INFO"):
        await (await opening.opened(planned(cat="1", token="x"), spider))[0].close()
    (leased,) = caplog.messages
    assert f"queue {name}: leased to other processes: 1 of its tasks; " in leased
    caplog.clear()
    await queue.ack(lease)
    queue3, _ = await opening.opened(planned(cat="2", token="x"), spider)
    other, drained = caplog.messages
    assert f"queue {name} was made by this spider with other arguments (-a). " in other
    assert f"queue {name} is drained: 1 done, 0 failed. The start requests were put at 20" in drained
    assert f"To crawl anew: timeoutq purge {name}, or set TIMEOUTQ_QUEUE to another name" in drained
    with pytest.raises(InvalidInput) as refused:
        await opening.opened(planned(), Spider("other"))
    assert "set TIMEOUTQ_QUEUE to another name" in str(refused.value)
    assert "purge" not in str(refused.value)
    await queue.purge()
    for one in (queue, queue2, queue3):
        await one.close()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("TIMEOUTQ_URL", "http://localhost", "the setting TIMEOUTQ_URL: the server URL does not parse"),
        ("TIMEOUTQ_QUEUE", "no name!", "the setting TIMEOUTQ_QUEUE: 'no name!' is not a queue name"),
    ],
)
def test_the_addon_refuses_an_address_and_a_name_that_cannot_be_used(setting: str, value: str, words: str) -> None:
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings
    from scrapy.spiders import Spider

    from timeoutq.scrapy import Addon

    settings = Settings({setting: value})
    with pytest.raises(InvalidInput, match=re.escape(words)):
        Addon(Crawler(Spider, settings)).update_settings(settings)


def test_settings_that_timeoutq_does_not_know_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings
    from scrapy.spiders import Spider

    from timeoutq.scrapy import Addon

    settings = Settings({"TIMEOUTQ_QEUE": "shop", "TIMEOUTQ_LEASE": 20})
    Addon(Crawler(Spider, settings)).update_settings(settings)
    assert caplog.messages == [
        "TIMEOUTQ_QEUE is no setting of timeoutq, and has no effect: did you mean TIMEOUTQ_QUEUE?"
    ]


def test_start_requests_that_scrapy_does_not_call_are_told() -> None:
    from scrapy import Spider, version_info

    from timeoutq.scrapy.seeds import former_start

    class Plain(Spider):
        name = "shop"

    class Former(Plain):
        def start_requests(self) -> Any:
            yield None

    class Both(Former):
        async def start(self) -> AsyncIterator[Any]:
            yield None

    assert former_start(Plain()) == former_start(Both()) == ""
    if version_info < (2, 16):
        assert former_start(Former()) == ""
        return
    version = f"Scrapy {version_info[0]}.{version_info[1]}"
    urls = Former(start_urls=["https://a.example/"])
    assert former_start(urls) == f"the spider has start_requests(), which {version} does not call"
    with pytest.raises(InvalidInput) as refused:
        former_start(Former())
    assert str(refused.value) == (
        f"spider 'shop' begins by start_requests(), which {version} does not call: give it an `async def start(self)` "
        "that yields the same requests"
    )
