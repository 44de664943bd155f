"""What a Scrapy project is told: a shared queue, limits of one process, failed pages in the exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import timeoutq
from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import order, run
from timeoutq import AsyncQueue, Queue

pytest.importorskip("scrapy")


async def test_two_projects_whose_spiders_have_one_name_are_told_that_they_share_a_queue(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    from scrapy import Spider
    from scrapy.settings import Settings

    from timeoutq.scrapy import opening, plan

    class Docs(Spider):
        name = "docs"

    queues: list[AsyncQueue] = []

    async def opened(project: str) -> list[str]:
        caplog.clear()
        planned = plan.read(Settings({"TIMEOUTQ_URL": url, "TIMEOUTQ_QUEUE": name, "BOT_NAME": project}))
        queues.append((await opening.opened(planned, Docs()))[0])
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert await opened("news") == []
    assert await opened("news") == []
    (told,) = await opened("shop")
    assert f"queue {name} was made by another project, news" in told
    assert "this one is shop" in told
    assert "Docs" in told
    assert "set TIMEOUTQ_QUEUE to another name" in told
    await queues[0].purge()
    for queue in queues:
        await queue.close()


def test_limits_of_closespider_are_told_to_count_for_each_process(caplog: pytest.LogCaptureFixture) -> None:
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings
    from scrapy.spiders import Spider

    from timeoutq.scrapy import Addon

    settings = Settings({"CLOSESPIDER_PAGECOUNT": 100, "CLOSESPIDER_ERRORCOUNT": 0, "CLOSESPIDER_TIMEOUT": 60})
    Addon(Crawler(Spider, settings)).update_settings(settings)
    assert caplog.messages == [
        "CLOSESPIDER_PAGECOUNT, CLOSESPIDER_TIMEOUT: counted in each process by itself, and not for all together"
    ]
    caplog.clear()
    settings = Settings({"FEEDS": {"items.jsonl": {"format": "jsonlines"}}})
    Addon(Crawler(Spider, settings)).update_settings(settings)
    (told,) = caplog.messages
    assert "a process that is killed loses items of pages that are done. TIMEOUTQ_ITEMS names a folder" in told
    caplog.clear()
    Addon(Crawler(Spider, Settings())).update_settings(Settings())
    assert caplog.messages == []


@pytest.mark.parametrize(("enabled", "count"), [(True, 1), (False, 0)])
def test_a_site_that_sets_cookies_is_told_once_because_other_processes_lack_them(
    enabled: bool, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import Settings
    from scrapy.spiders import Spider

    from timeoutq.scrapy import Addon
    from timeoutq.scrapy.middlewares import DownloaderSide

    settings = Settings({"COOKIES_ENABLED": enabled})
    crawler = Crawler(Spider, settings)
    Addon(crawler).update_settings(settings)
    side, request = DownloaderSide.from_crawler(crawler), Request("https://a.example/login?user=me")
    for headers in ({}, {"Set-Cookie": "session=secret"}, {"Set-Cookie": "other=secret"}):
        side.process_response(request, Response(request.url, headers=headers))
    assert len(caplog.messages) == count
    for told in caplog.messages:
        assert "a.example sets cookies, and other processes of this crawl do not have them" in told
        assert "pass cookies= with the requests, or run one process" in told
        assert "secret" not in told


ROOT = str(Path(timeoutq.__file__).parent.parent)
SPIDER = """
import scrapy

class Gone(scrapy.Spider):
    name = "gone"
    custom_settings = {"ADDONS": {"timeoutq.scrapy.Addon": 100}, "TELNETCONSOLE_ENABLED": False}

    async def start(self):
        yield scrapy.Request(self.site)

    def start_requests(self):
        yield scrapy.Request(self.site)

    def parse(self, response):
        pass
"""


def gone(seen: Seen) -> Answer:
    """Answer that nothing is there."""
    return html(status=404)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize(("setting", "code"), [(None, 0), ("1", 1)])
def test_failed_pages_end_the_command_with_1_if_the_project_wants_it(
    queue: Queue, tmp_path: Path, setting: str | None, code: int
) -> None:
    queue.purge()
    (tmp_path / "gone.py").write_text(SPIDER)
    with Site(gone) as site:
        wanted = [f"TIMEOUTQ_QUEUE={queue.name}", *([f"TIMEOUTQ_FAIL_EXIT={setting}"] if setting else [])]
        ended = subprocess.run(
            [sys.executable, "-m", "scrapy", "runspider", "gone.py", "-a", f"site={site.url}",
             *(word for line in wanted for word in ("-s", line))],
            cwd=tmp_path, env={**os.environ, "TIMEOUTQ_URL": str(queue.given[0]), "PYTHONPATH": ROOT},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert "1 task is in failed" in ended.stderr, ended.stderr
    assert ended.returncode == code


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_page_that_closes_the_spider_is_given_back_once(queue: Queue) -> None:
    queue.purge()
    with Site(lambda seen: html()) as site:
        orders = [order("mapping:Closes", site.url, TIMEOUTQ_QUEUE=queue.name)]
        (first,) = run(queue.given[0], orders)
        assert first["reason"] == "enough"
        assert not queue.drained()
        # its two pages close the spider, each time that they are fetched
        reasons = [run(queue.given[0], orders)[0]["reason"] for _ in range(4)]
    assert reasons[-1] == "finished"
    assert queue.drained()
    assert [len(site.of(path)) for path in ("/closes/", "/closes/more")] == [2, 2]
    assert queue.stats().failed == 0
