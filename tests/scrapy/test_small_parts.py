"""Parts of `timeoutq.scrapy` that need no process of their own: what a host asks for, and requests of no page."""

from __future__ import annotations

import time
from email.utils import formatdate
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import pytest

from timeoutq.model import Task

pytest.importorskip("scrapy")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
@pytest.mark.parametrize("end", [" GMT", " -0000", ""])
def test_the_date_of_a_retry_after_is_gmt_wherever_the_process_runs(
    monkeypatch: pytest.MonkeyPatch, zone: str, end: str
) -> None:
    from timeoutq.scrapy.middlewares import seconds_of

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        date = formatdate(time.time() + 100).removesuffix(" -0000") + end
        assert 95 < seconds_of(date.encode()) <= 100
    finally:
        monkeypatch.undo()
        time.tzset()


class Closing:
    """A queue that notes what is put and whether it was closed."""

    def __init__(self) -> None:
        self.found: list[Task] = []
        self.closed = False

    async def put(self, tasks: list[Task]) -> None:
        self.found += tasks

    async def close(self) -> None:
        self.closed = True


async def test_all_requests_of_no_page_are_put_when_the_crawl_closes() -> None:
    from timeoutq.scrapy.crawl import Crawl

    crawl, queue = Crawl.__new__(Crawl), Closing()
    strays = [Task(f"https://a.example/{number}") for number in range(1_200)]
    crawl._is_closed, crawl._watching, crawl._worker, crawl._putting = False, None, None, None
    crawl._strays, crawl._working, crawl.queue = list(strays), None, cast("Any", queue)
    await crawl.close()
    assert queue.found == strays
    assert queue.closed


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

    from timeoutq.scrapy import Addon, command, crawls

    kind: Any = import_module(f"scrapy.commands.{module}").Command
    settings, seen = Settings(), []
    before = settings.copy_to_dict()

    def run(self: Any, args: object, opts: object) -> None:
        seen.append(command.running())
        crawler = Crawler(Spider, settings)
        Addon(crawler).update_settings(settings)
        assert (crawler in crawls._crawls) == (not name)

    monkeypatch.setattr(kind, "run", run)
    monkeypatch.setattr(kind, "__init__", lambda self: None)
    one = kind()
    one.run([], SimpleNamespace(spargs={"cat": "2"}))
    assert seen == [(one, {"cat": "2"})]
    assert command.looks_only(one) == name
    assert (settings.copy_to_dict() == before) == bool(name)
    assert command.running() == (None, {})
    assert command.looks_only(None) == ""
