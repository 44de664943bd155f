"""`timeoutq check`: a spider of a project runs against one page, and all that would be refused is listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import timeoutq
from tests.rig.spiders.site import Site, html

Spider = pytest.importorskip("scrapy").Spider

SPIDER = """
from datetime import date
from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider

class Shop(Spider):
    name = "shop"

    def parse(self, response):
        yield Request(response.urljoin("good"), meta={"on": date(2026, 1, 2)})
        yield Request(response.urljoin("object"), meta={"it": object()})
        yield Request(response.urljoin("lambda"), callback=lambda response: None)
        yield {"an": "item"}

    def parse_good(self, response):
        yield {"kind": self.kind}

    def parse_job(self, response):
        yield {"job": response.meta["job"]}

class Stays(Spider):
    name = "stays"

    @classmethod
    def from_crawler(cls, crawler):
        spider = super().from_crawler(crawler)
        crawler.signals.connect(spider.stay, signals.spider_idle)
        return spider

    def stay(self):
        raise DontCloseSpider

    def parse(self, response):
        yield {"an": "item"}

class Stores:
    def process_item(self, item, spider):
        raise AssertionError("nothing is stored")
"""
SETTINGS = """
SPIDER_MODULES = ["shop"]
ADDONS = {"timeoutq.scrapy.Addon": 100}
ITEM_PIPELINES = {"shop.Stores": 1}
TIMEOUTQ_URL = "redis://127.0.0.1:1/0"
"""


def check(project: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "timeoutq", "check", str(project), *words],
        env={**os.environ, "PYTHONPATH": str(Path(timeoutq.__file__).parent.parent)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of Scrapy."""
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop_settings\n")
    (tmp_path / "shop_settings.py").write_text(SETTINGS)
    (tmp_path / "shop.py").write_text(SPIDER)
    return tmp_path


def test_check_lists_all_that_would_be_refused_of_one_page_and_fetches_no_other(project: Path) -> None:
    with Site(lambda seen: html()) as site:
        code, out, err = check(project, "shop", f"{site.url}/")
        assert (code, len(site.visits)) == (1, 1), (out, err)
    first, second, last = out.splitlines()
    assert f"refused: <GET {site.url}/object> cannot be put" in first
    assert "meta['it'] holds an object of type object" in first
    assert "a lambda will not do" in second
    assert last == "3 requests, 1 items, 2 refused"


def test_check_takes_a_callback_and_arguments_and_says_that_all_is_well(project: Path) -> None:
    with Site(lambda seen: html()) as site:
        page, port = f"{site.url}/good", urlsplit(site.url).port
        telnet = f"TELNETCONSOLE_ENABLED, TELNETCONSOLE_PORT = True, [{port}, {port}]\n"  # which the site has
        (project / "shop_settings.py").write_text(SETTINGS + telnet)
        code, out, err = check(project, "shop", page, "--callback", "parse_good", "-a", "kind=x", "--json")
    assert (code, "telnet" in err.lower()) == (0, False), err
    assert json.loads(out) == {"responses": 1, "requests": 0, "items": 1, "refused": []}


def test_check_names_a_scheduler_that_was_left_in_the_settings(project: Path) -> None:
    (project / "shop_settings.py").write_text(SETTINGS + "SCHEDULER = 'scrapy_redis.scheduler.Scheduler'\n")
    with Site(lambda seen: html()) as site:
        code, out, err = check(project, "shop", f"{site.url}/good", "--callback", "parse_good", "-a", "kind=x")
    assert code == 1, err
    assert out.startswith("refused: SCHEDULER is 'scrapy_redis.scheduler.Scheduler'")
    assert out.endswith("0 requests, 1 items, 1 refused\n")


def test_check_names_the_spiders_that_are_there(project: Path) -> None:
    code, _, err = check(project, "shpo", "http://127.0.0.1:1/")
    assert (code, "no spider 'shpo'; it has shop" in err) == (2, True)
    code, _, err = check(project / "none", "shop", "http://127.0.0.1:1/")
    assert (code, "no project of Scrapy" in err) == (2, True)


@pytest.mark.skipif(hasattr(Spider, "start_requests"), reason="this Scrapy calls start_requests")
def test_check_names_a_spider_that_scrapy_does_not_begin_any_more(project: Path) -> None:
    former = "\nclass Former(Shop):\n    name, kind = 'former', 'x'\n    def start_requests(self):\n        return []\n"
    (project / "shop.py").write_text(SPIDER + former)
    with Site(lambda seen: html()) as site:
        code, out, err = check(project, "former", f"{site.url}/good", "--callback", "parse_good")
    assert code == 1, (out, err)
    assert "spider 'former' begins by start_requests(), which Scrapy 2." in out


def test_check_takes_the_payload_of_a_task_and_names_what_it_may_have(project: Path) -> None:
    with Site(lambda seen: html()) as site:
        task = '{"callback": "parse_job", "meta": {"job": 7}}'
        code, out, err = check(project, "shop", f"{site.url}/job", "--payload", task)
        assert (code, out) == (0, "0 requests, 1 items, 0 refused\n"), err
        code, out, _ = check(project, "shop", f"{site.url}/job", "--payload", '{"callbak": "parse_job"}')
        assert (code, len(site.visits)) == (1, 1)
    assert "is no request of Scrapy: it has callbak; it may have body, callback, cb_kwargs, cookies, " in out


def test_check_ends_although_the_spider_wants_to_stay(project: Path) -> None:
    with Site(lambda seen: html()) as site:
        code, out, err = check(project, "stays", f"{site.url}/")
    assert (code, out) == (0, "0 requests, 1 items, 0 refused\n"), err
