"""Depth-limited crawls, with workers that die: they find exactly the pages that BFS finds, each at its own depth."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.rig.depth import LIMITS, Crawled, graph, on_scripts, on_the_model, page, within
from tests.rig.processes import ROOT


@pytest.mark.parametrize("limit", LIMITS)
def test_whatever_the_order_of_events_a_crawl_finds_what_bfs_finds(limit: int) -> None:
    kills = visits = pages = 0
    for seed in range(20):
        links = graph(seed)
        crawled = on_the_model(links, limit, seed)
        assert crawled.wrong(links, limit) == [], f"seed {seed}"
        kills, visits, pages = kills + crawled.kills, visits + crawled.visits, pages + len(crawled.depths)
    assert kills > 0
    assert visits >= pages


def test_the_orders_of_events_are_such_that_without_improve_pages_are_missed() -> None:
    wrong = [on_the_model(graph(seed), 6, seed, improve=False).wrong(graph(seed), 6) for seed in range(20)]
    assert sum(map(bool, wrong)) >= 3
    assert any("was not found" in text for texts in wrong for text in texts)


@pytest.mark.parametrize("seed", [5])
def test_the_scripts_find_what_bfs_finds(seed: int) -> None:
    links = graph(seed, 150)
    crawled = on_scripts(links, 4, seed)
    assert crawled.wrong(links, 4) == []
    assert len(crawled.depths) > 30 and crawled.kills > 0


def test_workers_that_are_killed_find_what_bfs_finds() -> None:
    words = [sys.executable, "-m", "tests.rig.depth", "--runs", "1", "--limits", "3", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"limit 3: 1 runs, .* [1-9]\d* kills", done.stdout), done.stdout


def test_the_judge_sees_a_page_that_was_missed_and_one_that_is_too_deep() -> None:
    links = {page(0): [page(1), page(2)], page(1): [page(3)], page(2): [], page(3): [page(4)], page(4): []}
    assert within(links, 2) == {page(0): 0, page(1): 1, page(2): 1, page(3): 2}
    right = within(links, 2)
    assert Crawled(dict(right)).wrong(links, 2) == []
    assert Crawled(right | {page(4): 3}).wrong(links, 2) == [f"{page(4)} is deeper than 2"]
    assert Crawled(right | {page(3): 3}).wrong(links, 2) == [f"{page(3)} was taken for 3 deep, and is 2"]
    del right[page(3)]
    assert Crawled(right).wrong(links, 2) == [f"{page(3)} was not found, its depth is 2"]
