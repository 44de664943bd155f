"""The life of a spider's process: how it starts, what it shows, how it stops, and what it refuses."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import Spiders, order, run
from tests.rig.waiting import wait_until
from timeoutq import Queue

pytest.importorskip("scrapy")
pytestmark = [
    pytest.mark.breaking, pytest.mark.timeout(400), pytest.mark.parametrize("server", ["valkey"], indirect=True)
]  # fmt: skip

SPIDER = "mapping:Links"
START = 100.0
"""Seconds in which a process of Scrapy has surely begun to work, on a busy machine, too."""


def many(seen: Seen) -> Answer:
    """Answer with a page that links to pages 0 to 59."""
    return html(*(f"/links/{number}" for number in range(60)) if seen.path == "/links/" else (), title=seen.path)


def running(queue: Queue, site: Site, **settings: Any) -> Spiders:
    settings = {"TIMEOUTQ_QUEUE": queue.name, "CONCURRENT_REQUESTS": 8, **settings}
    return Spiders(queue.given[0], [order(SPIDER, site.url, **settings)])


@pytest.fixture
def fresh(queue: Queue) -> Queue:
    """A queue that does not exist yet."""
    queue.purge()
    return queue


def in_work(queue: Queue, least: int = 4) -> Callable[[], bool]:
    return lambda: queue.stats().in_progress >= least and queue.stats().done >= 10


def test_ctrl_c_gives_back_what_waits_and_what_is_fetched_is_acked(fresh: Queue) -> None:
    with Site(many, delay=0.4) as site, running(fresh, site) as process:
        wait_until(in_work(fresh), START)
        os.kill(process.pid, signal.SIGINT)
        (result,) = process.results()
        log = process.log()
    stats = fresh.stats()
    assert result["reason"] == "shutdown"
    assert "drains" in log
    assert "stops at once" not in log
    assert stats.in_progress == 0
    assert stats.todos + stats.waiting > 20
    assert stats.done == len({seen.path for seen in site.visits}) + 1  # all pages that were fetched, and the start
    assert stats.counters.get("expired", 0) == stats.counters.get("crashed", 0) == 0
    assert fresh.workers() == []


def test_a_second_ctrl_c_gives_everything_back_at_once(fresh: Queue) -> None:
    with Site(many, delay=0.3) as site, running(fresh, site) as process:
        wait_until(in_work(fresh), START)
        site.delay = 30.0
        wait_until(lambda: fresh.stats().in_progress >= 8, START)
        os.kill(process.pid, signal.SIGINT)
        wait_until(lambda: "Closing spider" in process.log(), 20)
        os.kill(process.pid, signal.SIGINT)
        process.code(15)
    assert fresh.stats().in_progress == 0
    assert fresh.stats().counters.get("expired", 0) == 0


def test_a_spider_shows_as_a_worker_with_what_it_holds(fresh: Queue) -> None:
    with Site(many, delay=0.3) as site, running(fresh, site) as process:
        wait_until(lambda: any(worker.held >= 4 for worker in fresh.workers()), START)
        (worker,) = fresh.workers()
        assert worker.pid == process.pid
        assert worker.concurrency == 12  # CONCURRENT_REQUESTS, and some that are parsed meanwhile
        os.kill(process.pid, signal.SIGINT)
        process.results()


def test_a_process_that_stays_works_on_what_is_put_later(fresh: Queue) -> None:
    with Site(many) as site, running(fresh, site, TIMEOUTQ_STAY=True) as process:
        wait_until(lambda: fresh.stats().done == 62, START)
        assert fresh.drained()
        fresh.put(f"{site.url}/links/late")
        wait_until(lambda: fresh.states(f"{site.url}/links/late")[0] == "done", 10)
        assert process.process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        (result,) = process.results()
    assert {"path": "/links/late"} in result["items"]


@pytest.mark.parametrize("stay", [False, True])
def test_a_process_that_the_spider_keeps_open_works_on_what_is_put_later(fresh: Queue, stay: bool) -> None:
    with Site(many) as site:
        orders = [order("mapping:Kept", site.url, TIMEOUTQ_QUEUE=fresh.name, TIMEOUTQ_STAY=stay)]
        with Spiders(fresh.given[0], orders) as process:
            wait_until(lambda: fresh.states(f"{site.url}/kept/from-idle")[0] == "done" and fresh.drained(), START)
            idles = process.log().count("] INFO: idle")
            wait_until(lambda: process.log().count("] INFO: idle") > idles, 20)
            fresh.put(f"{site.url}/kept/late")
            wait_until(lambda: fresh.states(f"{site.url}/kept/late")[0] == "done", 20)
            late = process.log().count("] INFO: idle")
            wait_until(lambda: process.log().count("] INFO: idle") > late, 20)  # idle again
            fresh.put(f"{site.url}/kept/last")
            wait_until(lambda: fresh.states(f"{site.url}/kept/last")[0] == "done", 20)
            if stay:
                over = process.log().count("] INFO: idle")
                wait_until(lambda: process.log().count("] INFO: idle") > over, 20)  # no handler keeps it open any more
                fresh.put(f"{site.url}/kept/more")
                wait_until(lambda: fresh.states(f"{site.url}/kept/more")[0] == "done", 20)
                os.kill(process.pid, signal.SIGINT)
            (result,) = process.results()
    assert [item["path"] for item in result["items"]] == ["", "from-idle", "late", "last", *(["more"] if stay else [])]
    assert result["reason"] == ("shutdown" if stay else "finished")
    assert fresh.workers() == []


def test_start_requests_are_put_once_and_a_second_process_ends_at_once(fresh: Queue) -> None:
    with Site(many) as site:
        orders = [order(SPIDER, site.url, TIMEOUTQ_QUEUE=fresh.name)]
        (first,) = run(fresh.given[0], orders)
        count = len(site.visits)
        assert len(first["items"]) == count == 61
        fresh.forget(f"{site.url}/links/")  # were the start requests put again, this would be one
        (second,) = run(fresh.given[0], orders)
        assert (second["items"], second["reason"], len(site.visits)) == ([], "finished", count)


def test_what_cannot_be_used_is_refused_with_the_cure(fresh: Queue) -> None:
    """Each spider of one process meets one mistake; `cases` says what is wrong, and what the error has to say."""
    url = fresh.given[0]
    assert url is not None
    with Queue(f"{fresh.name}-plain", url) as plain, Queue(f"{fresh.name}-theirs", url) as theirs, Site(many) as site:
        plain.put("a")
        cases: list[tuple[dict[str, Any], str]] = [
            ({"TIMEOUTQ_LEASE": 0}, "the setting TIMEOUTQ_LEASE must be from 0.5 to 86,400, not 0.0"),
            ({"TIMEOUTQ_LEASE": "long"}, "the setting TIMEOUTQ_LEASE must be a number of seconds"),
            ({"TIMEOUTQ_BATCH": 0}, "the setting TIMEOUTQ_BATCH must be from 1 to 10,000, not 0"),
            ({"TIMEOUTQ_STAY": "perhaps"}, "the setting TIMEOUTQ_STAY must be True or False"),
            ({"TIMEOUTQ_URL": "http://localhost"}, "the server URL does not parse"),
            ({"DOWNLOAD_DELAY": -1}, "the setting DOWNLOAD_DELAY must be from 0"),
            ({"DOWNLOAD_SLOTS": {"a.example": {"delay": "long"}}}, "DOWNLOAD_SLOTS has odd rules for 'a.example'"),
            (
                {"DOWNLOAD_SLOTS": {"a.example": {"concurrency": 0}}},
                "the setting DOWNLOAD_SLOTS['a.example']['concurrency'] must be from 1 to 10,000, not 0",
            ),
            ({"TIMEOUTQ_QUEUE": "no name!"}, "name"),
            ({"TIMEOUTQ_QUEUE": plain.name}, f"timeoutq configure {plain.name} --delay 0s --per-host 8"),
            ({"TIMEOUTQ_QUEUE": theirs.name}, f"queue '{theirs.name}' was made by spider 'links', not by 'other'"),
            (
                {"ADDONS": {}, "SCHEDULER": "timeoutq.scrapy.crawl.Crawl"},
                'write ADDONS = {"timeoutq.scrapy.Addon": 100}',
            ),
            ({"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}, "remove the line from the settings"),
        ]
        run(url, [order(SPIDER, site.url, TIMEOUTQ_QUEUE=theirs.name)])
        count = len(site.visits)
        with Spiders(url, [order("mapping:Other", site.url, **settings) for settings, _ in cases]) as spiders:
            results, lines = spiders.results(), spiders.log().splitlines()
        for (settings, cure), result in zip(cases, results, strict=True):
            if result.get("reason") == "timeoutq_error":  # what the server has said: one line, no traceback
                assert [cure in line for line in lines if "timeoutq cannot begin" in line].count(True) == 1
            else:
                assert cure in result["error"], (settings, result["error"])
            assert result["items"] == []
        assert [result.get("reason") for result in results].count("timeoutq_error") == 2
        assert len(site.visits) == count
        assert plain.stats().todos == 1
        plain.purge()
        theirs.purge()


def test_a_server_that_is_away_at_the_start_is_an_error(fresh: Queue) -> None:
    orders = [order(SPIDER, "http://127.0.0.1:1", TIMEOUTQ_QUEUE=fresh.name)]
    with Spiders("redis://127.0.0.1:1/0", orders) as spiders:
        (result,) = spiders.results()
        log = spiders.log()
    assert (result["error"], result["reason"]) == ("", "timeoutq_error")
    assert "ERROR: timeoutq cannot begin: no answer from redis://127.0.0.1:1/0" in log
    assert "(TIMEOUTQ_URL says where it is)" in log
    assert "Traceback" not in log
