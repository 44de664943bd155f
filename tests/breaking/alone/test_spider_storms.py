"""Storms of spiders: processes of Scrapy, or crawlee, are killed with -9 every two seconds, and nothing is lost."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from tests.rig.spiders.site import Site
from timeoutq.server.embedded import EmbeddedServer

pytest.importorskip("crawlee")
pytest.importorskip("scrapy")

PAGES = 250


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A site of pages that link to each other."""
    folder = tmp_path / "pages"
    folder.mkdir()
    dice = random.Random(7)
    names = ["index.html", *(f"p{number}.html" for number in range(1, PAGES))]
    for number, name in enumerate(names):
        links = [names[(number + 1) % PAGES], *dice.choices(names, k=8)]
        text = "".join(f'<a href="{link}">{link}</a>' for link in links)
        (folder / name).write_text(f"<title>Page {number}</title>{text}")
    return folder


@pytest.mark.timeout(660)  # an idle machine needs a minute
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_a_crawl_whose_processes_are_killed_again_and_again_brings_the_items_of_an_undisturbed_one(
    server: EmbeddedServer, corpus: Path, tmp_path: Path
) -> None:
    from tests.rig.spiders import storm

    alone, ours = storm.storms(corpus, server.url, tmp_path, at_once=3, most=storm.KILLS + 2, beside=False)
    assert len(alone.found) == PAGES
    assert ours.found == alone.found
    assert ours.met >= storm.KILLS


@pytest.mark.timeout(660)
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_crawlers_of_crawlee_lose_no_page_and_no_two_that_live_fetch_the_same(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    from tests.rig.spiders.crawlee import page, storm

    with Site(partial(page, pages=PAGES)) as site:
        ran, _, wrong = storm(site, server.url, tmp_path, PAGES, lease=5, kills=4)
    assert not wrong
    assert ran.found == {f"/{number}" for number in range(PAGES)}
