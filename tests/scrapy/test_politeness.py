"""The politeness that the settings of a Scrapy project, and the attributes of its spider, ask for; without a crawl."""

from __future__ import annotations

from typing import Any

import pytest

from timeoutq import Politeness

pytest.importorskip("scrapy")
pytestmark = pytest.mark.filterwarnings("ignore:The CONCURRENT_REQUESTS_PER_IP setting is deprecated")


def asked(settings: dict[str, Any], **attributes: Any) -> tuple[Any, Any]:
    """Give the crawl's plan, and Scrapy's settings as the addon leaves them, for a spider class with attributes."""
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings

    from timeoutq.scrapy import Addon, crawl

    crawler = Crawler(type("Shop", (Spider,), {"name": "shop", **attributes}), Settings(settings))
    Addon(crawler).update_settings(crawler.settings)
    return crawl.crawl_of(crawler).plan, crawler.settings


@pytest.mark.parametrize(
    ("settings", "politeness"),
    [
        ({}, Politeness(0, 8)),
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": 0}, Politeness(0, 16)),
        ({"DOWNLOAD_DELAY": 0.5}, Politeness(0.5, 1)),
        ({"DOWNLOAD_DELAY": 0.5, "CONCURRENT_REQUESTS_PER_DOMAIN": 20}, Politeness(0.5, 1)),
        ({"CONCURRENT_REQUESTS_PER_IP": 2}, Politeness(0, 2)),
        ({"AUTOTHROTTLE_ENABLED": True}, Politeness(5, 1)),
        ({"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 2, "DOWNLOAD_DELAY": 3}, Politeness(3, 1)),
        ({"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 2, "DOWNLOAD_DELAY": 1}, Politeness(2, 1)),
    ],
)
def test_with_a_delay_a_new_queue_has_one_place_for_each_host(settings: dict[str, Any], politeness: Politeness) -> None:
    assert asked(settings)[0].politeness == politeness


def test_the_attributes_of_a_spider_that_stand_for_settings_are_honoured() -> None:
    assert asked({"DOWNLOAD_DELAY": 1}, download_delay=3)[0].politeness == Politeness(3, 1)
    assert asked({"DOWNLOAD_DELAY": 1}, download_delay=0)[0].politeness == Politeness(0, 8)
    assert asked({}, max_concurrent_requests=2)[0].politeness == Politeness(0, 2)


def test_since_scrapy_2_18_the_own_settings_of_a_spider_count_more_than_its_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from timeoutq.scrapy import plan

    both: dict[str, Any] = {"download_delay": 3, "custom_settings": {"DOWNLOAD_DELAY": 2}}
    for version, delay in (((2, 17, 0), 3), ((2, 18, 0), 2)):
        monkeypatch.setattr(plan, "version_info", version)
        assert asked({}, **both)[0].politeness == Politeness(delay, 1), version


def test_the_rules_of_single_hosts_have_one_place_with_a_delay_and_several_without() -> None:
    slots = {
        "slow.example": {"delay": 7, "concurrency": 2}, "quick.example": {"delay": 0},
        "many.example": {"concurrency": 3}, "odd.example": {"jitter": 0},
    }  # fmt: skip
    assert asked({"DOWNLOAD_SLOTS": slots})[0].hosts == {
        "slow.example": {"delay": 7, "per_host": 1}, "quick.example": {"delay": 0},
        "many.example": {"per_host": 3}, "odd.example": {},
    }  # fmt: skip
    assert asked({"DOWNLOAD_SLOTS": slots, "DOWNLOAD_DELAY": 1})[0].hosts == {
        "slow.example": {"delay": 7, "per_host": 1}, "quick.example": {"delay": 0, "per_host": 8},
        "many.example": {"per_host": 1}, "odd.example": {},
    }  # fmt: skip


def test_scrapys_own_delay_and_places_stay_for_requests_that_are_no_tasks() -> None:
    slots = {"a.example": {"delay": 7}}
    plan, settings = asked({"DOWNLOAD_DELAY": 0.5, "DOWNLOAD_SLOTS": slots})
    assert plan.unheld == ()
    assert settings.getfloat("DOWNLOAD_DELAY") == 0.5
    assert settings.getdict("DOWNLOAD_SLOTS") == slots
    assert settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN") == 8


def test_what_the_addon_cannot_hold_is_known_at_the_start() -> None:
    plan, settings = asked({"AUTOTHROTTLE_ENABLED": True, "CONCURRENT_REQUESTS_PER_IP": 4})
    assert plan.unheld == (
        "AUTOTHROTTLE_ENABLED is turned off, and the delay of a new queue stays at 5 s",
        "CONCURRENT_REQUESTS_PER_IP counts for each host, not for each address",
    )
    assert not settings.getbool("AUTOTHROTTLE_ENABLED")
    assert settings.getfloat("DOWNLOAD_DELAY") == 5
    assert settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN") == 4


def test_a_project_whose_own_filter_tells_anchors_apart_is_told_that_the_filter_has_no_effect() -> None:
    (told,) = asked({"DUPEFILTER_CLASS": "shop.filters.WithAnchors"})[0].unheld
    assert told.startswith("DUPEFILTER_CLASS has no effect")
