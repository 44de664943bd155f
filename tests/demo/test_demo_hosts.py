"""The demo's many hosts: what they answer, what they log, how a crawl of them is judged, and one with real workers."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo.hosts import BUDGET, MOST, STRICT_DELAY, TEMPERS, Host, Server, answer, expected, generate
from demo.links import canonical
from demo.polite import HeldBack, held_back
from demo.processes import free_port
from demo.report import say_to_people, words_of_progress
from demo.verdict import Finding, Terms, Visit, at_once, between, judge_tasks, judge_visits, read_log
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Stats
from timeoutq.testing import fake_queue

ROOT = Path(__file__).resolve().parent.parent.parent

# ---- the hosts


def test_all_hosts_are_reached_from_the_first() -> None:
    for count in (1, 2, 7, 50):
        hosts = generate(count)
        found = expected(hosts, 8080)
        assert {host.url(8080) for host in hosts if host.budget is None} <= found.done
        assert {url for url in found.done if "/secret" in url} == set()
        assert found.forbidden <= found.failed


def test_fifty_hosts_have_every_temper_and_differ_in_size() -> None:
    hosts = generate(50)
    assert {host.temper for host in hosts} == set(TEMPERS)
    assert len({host.pages for host in hosts}) > 3
    assert [host.address for host in hosts][:: len(hosts) - 1] == ["127.0.1.1", "127.0.1.50"]
    assert generate(50) == hosts
    assert generate(MOST)[-1].address == f"127.0.1.{MOST}"


def host_of(temper: str, pages: int = 20) -> Host:
    return Host(9, temper, pages)


def statuses(host: Host, visits: int) -> list[list[int]]:
    paths = ["/", *(f"/page/{i}" for i in range(1, host.pages))]
    return [[answer(host, path, visit, 80).status for visit in range(1, visits + 1)] for path in paths]


def test_a_normal_host_answers() -> None:
    assert statuses(host_of("normal"), 2) == [[200, 200]] * 20


def test_a_busy_host_asks_for_a_pause_now_and_then_and_not_twice_for_a_page() -> None:
    seen = statuses(host_of("busy"), 3)
    assert {tuple(page) for page in seen} == {(200, 200, 200), (429, 200, 200)}
    busy = [answer(host_of("busy"), f"/page/{i}", 1, 80) for i in range(1, 20)]
    assert {found.headers.get("Retry-After") for found in busy if found.status == 429} == {"1"}


def test_a_failing_host_answers_in_the_end() -> None:
    seen = statuses(host_of("failing"), 3)
    assert {page[2] for page in seen} == {200}
    assert {page[0] for page in seen} >= {200, 500, 503}


def test_a_slow_host_takes_a_while() -> None:
    waits = [answer(host_of("slow"), f"/page/{i}", 1, 80).wait for i in range(1, 20)]
    assert min(waits) >= 0.1
    assert max(waits) <= 0.4


def test_a_calendar_has_no_end_but_a_budget() -> None:
    assert answer(host_of("calendar"), "/day/1000000", 1, 80).links == ("/day/1000001",)
    assert answer(host_of("calendar"), "/day/x", 1, 80).status == 404
    assert host_of("calendar").budget == BUDGET


def test_a_strict_host_asks_for_a_longer_delay() -> None:
    assert f"Crawl-delay: {STRICT_DELAY}" in answer(host_of("strict"), "/robots.txt", 1, 80).text
    assert "Crawl-delay" not in answer(host_of("normal"), "/robots.txt", 1, 80).text


def test_the_links_of_every_page_lead_to_what_is_known() -> None:
    hosts = generate(10)
    found = expected(hosts, 8080)
    for host in hosts:
        if host.budget is None:
            for path in ("/", *(f"/page/{i}" for i in range(1, host.pages))):
                assert host.url(8080, path) in found.done
                for link in answer(host, path, 9, 8080).links:
                    target = canonical(link, host.url(8080, path))
                    assert target is not None
                    calendar = target in {one.url(8080) for one in hosts if one.budget is not None}
                    assert calendar or target in found.done | found.failed


# ---- their log


class Served:
    """Two hosts that are served here, and how to visit them."""

    def __init__(self, folder: Path) -> None:
        self.hosts = [Host(1, "normal", 3), Host(2, "slow", 3)]
        self.port = free_port(self.hosts[0].address)
        self.log = folder / "visits.jsonl"
        self.server = Server(self.hosts, self.port, self.log)

    async def visit(self, address: str, *paths: str, leave: bool = False) -> list[int]:
        """Ask for paths on one connection; with `leave`, hang up instead of waiting for the last answer."""
        reader, writer = await asyncio.open_connection(address, self.port)
        found: list[int] = []
        for path in paths:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await writer.drain()
            if leave and path == paths[-1]:
                while not self.server.now[address]:
                    await asyncio.sleep(0.001)
                break
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line[16:]) for line in head.split("\r\n") if line.startswith("Content-Length: "))
            await reader.readexactly(length)
            found.append(int(head.split(" ")[1]))
        writer.close()
        await writer.wait_closed()
        return found


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    await made.server.start()
    yield made
    await made.server.stop()


async def test_each_visit_is_a_line_of_the_log(served: Served) -> None:
    assert await served.visit("127.0.1.1", "/robots.txt", "/", "/nothing") == [200, 200, 404]
    visits = read_log(served.log)
    assert [(v.host, v.path, v.status, v.at_once) for v in visits] == [
        ("127.0.1.1", "/robots.txt", 200, 0),
        ("127.0.1.1", "/", 200, 1),
        ("127.0.1.1", "/nothing", 404, 1),
    ]
    assert all(visit.start <= visit.end for visit in visits)
    assert [visit.start for visit in visits] == sorted(visit.start for visit in visits)


async def test_visits_at_once_are_seen_in_the_log(served: Served) -> None:
    await asyncio.gather(*(served.visit("127.0.1.2", f"/page/{i}") for i in (1, 2)))
    visits = read_log(served.log)
    assert at_once(visits) == max(visit.at_once for visit in visits) == 2
    verdict = judge_visits(visits, Terms(delay=0.0))
    assert verdict.counts() == {"too many at once": 1, "robots.txt": 1}


async def test_a_visit_ends_when_the_visitor_hangs_up(served: Served) -> None:
    await served.visit("127.0.1.2", "/page/1", leave=True)
    visits = await asyncio.to_thread(wait_until, lambda: read_log(served.log))
    assert [(visit.path, visit.status) for visit in visits] == [("/page/1", 0)]


def test_a_port_that_is_taken_is_told_with_its_cure(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.1.1", 0)) as taken:
        words = ["--hosts", "1", "--port", str(taken.getsockname()[1]), "--log", str(tmp_path / "log")]
        done = subprocess.run(
            [sys.executable, "-m", "demo.hosts", *words],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 3
    assert "or give another --port" in done.stderr
    assert "Traceback" not in done.stderr


# ---- the verdict


def polite_visits() -> list[Visit]:
    """Two hosts, each asked for robots.txt, then visited every 1.2 s for 0.2 s."""
    found: list[Visit] = []
    for host, begin in (("a", 0.0), ("b", 0.1)):
        found.append(Visit(host, "/robots.txt", begin, begin + 0.01, 200, 0))
        found += [Visit(host, f"/{i}", begin + 0.05 + 1.2 * i, begin + 0.25 + 1.2 * i, 200) for i in range(5)]
    return found


TERMS = Terms(delay=1.0, budgets={"a": 5})


def kinds(visits: list[Visit], terms: Terms = TERMS, **given: Any) -> dict[str, int]:
    return judge_visits(visits, terms, **given).counts()


def test_a_polite_crawl_has_nothing_against_it() -> None:
    verdict = judge_visits(polite_visits(), TERMS)
    assert verdict.ok
    assert (verdict.visits, verdict.hosts, verdict.nearest, verdict.most_at_once, verdict.again) == (10, 2, 1.0, 1, 0)


def test_a_visit_that_comes_too_soon_is_found() -> None:
    visits = polite_visits()
    visits[3] = replace(visits[3], start=visits[3].start - 0.05)
    verdict = judge_visits(visits, TERMS)
    assert verdict.counts() == {"too near": 1}
    assert verdict.findings[0] == Finding("too near", "a", "/2 0.950 s after the end of another, where 1 s may be")


def test_a_visit_that_lasts_into_the_delay_is_found() -> None:
    visits = polite_visits()
    visits[3] = replace(visits[3], end=visits[3].end + 0.5)
    assert kinds(visits) == {"too near": 1}


def test_visits_at_once_are_found_also_when_they_took_no_time() -> None:
    visits = polite_visits()
    middle = visits[3].start + 0.1
    for extra in (Visit("a", "/x", middle, middle, 200), replace(visits[3], path="/x")):
        assert kinds([*visits, extra], replace(TERMS, budgets={}))["too many at once"] == 1
        assert "too many at once" not in kinds([*visits, extra], replace(TERMS, budgets={}, per_host=2))


def test_the_longer_delay_of_a_host_counts() -> None:
    assert kinds(polite_visits(), replace(TERMS, delays={"b": 2.0})) == {"too near": 4}
    assert kinds(polite_visits(), replace(TERMS, delays={"b": 0.5})) == {}


def test_a_visit_within_a_pause_that_was_asked_for_is_found() -> None:
    visits = polite_visits()
    visits[2] = replace(visits[2], status=429, pause=1.5)
    assert kinds(visits) == {"no pause": 1}
    visits[2] = replace(visits[2], pause=0.5)
    assert kinds(visits) == {}


def test_more_visits_than_the_budget_are_found() -> None:
    assert kinds(polite_visits(), replace(TERMS, budgets={"a": 4, "b": 9})) == {"over budget": 1}


def test_asking_for_robots_txt_too_often_or_never_is_found() -> None:
    visits = polite_visits()
    assert kinds([*visits, visits[0]]) == {"robots.txt": 1}
    assert kinds([*visits, visits[0]], replace(TERMS, processes=2)) == {}
    assert kinds(visits[1:]) == {"robots.txt": 1}


def test_a_visit_to_what_robots_txt_forbids_is_found() -> None:
    assert kinds(polite_visits(), forbidden={("a", "/3"), ("b", "/other")}) == {"forbidden": 1}


def test_without_a_delay_only_what_the_crawler_does_is_judged() -> None:
    again = [replace(visit, path="/x") for visit in polite_visits() if visit.path != "/robots.txt"]
    visits = [*polite_visits(), *again]
    assert kinds(visits, replace(TERMS, delay=None)) == {}
    assert judge_visits(visits, replace(TERMS, delay=None)).again == 8


def test_what_was_handed_over_together_may_follow_without_a_delay_and_nothing_more() -> None:
    two = replace(TERMS, per_host=2, budgets={})
    visits = [
        Visit("a", "/robots.txt", 0.0, 0.1, 200, 0),
        Visit("a", "/1", 0.1, 0.2, 429, pause=0.5),
        Visit("a", "/2", 0.3, 0.4, 200),  # was handed over with the first
        Visit("a", "/3", 1.3, 1.4, 200),
    ]
    assert kinds(visits, two) == {}
    visits[3] = replace(visits[3], start=0.5)
    assert kinds(visits, two) == {"too near": 1, "no pause": 1}


def test_the_time_between_visits_is_from_the_latest_end() -> None:
    visits = [Visit("a", "/1", 0, 5, 200), Visit("a", "/2", 1, 2, 200), Visit("a", "/3", 7, 8, 200)]
    assert [(gap, visit.path) for gap, visit in between(visits)] == [(2, "/3")]
    assert at_once([Visit("a", "/1", 0, 5, 200), Visit("a", "/2", 5, 6, 200)]) == 1


def test_tasks_that_are_lost_or_unexpected_are_found() -> None:
    done, failed = {"http://a/1", "http://c/", "http://c/day/7"}, {"http://a/gone"}

    def judged(done: set[str], failed: set[str]) -> list[tuple[str, str]]:
        found = judge_tasks(done, failed, {"http://a/1"}, {"http://a/gone"}, {"http://c/"})
        return [(finding.kind, finding.where) for finding in found]

    assert judged(done, failed) == []
    assert judged(done - {"http://a/1"}, failed) == [("lost", "http://a/1")]
    assert judged(done, set()) == [("lost", "http://a/gone")]
    assert judged(done | {"http://a/2"}, failed) == [("unexpected", "http://a/2")]
    assert judged(done - {"http://a/1"}, failed | {"http://a/1"}) == [("unexpected", "http://a/1")]
    assert judged(done | {"http://a/gone"}, set()) == [("unexpected", "http://a/gone")]
    assert judged({"http://a/1"}, failed) == [("lost", "http://c/")]


# ---- with real workers


def demo(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *words],
        cwd=ROOT, env={**os.environ, **environment}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.breaking
def test_a_crawl_of_some_hosts_with_kills_is_polite_and_loses_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    words = ("--hosts", "7", "--workers", "3", "--delay", "0.05", "--kills", "2", "--results", str(results), "--json")
    process = demo(*words)
    try:
        said, complaint = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, said + complaint
    verdict = json.loads(said)
    assert verdict["findings"] == []
    assert verdict["killed"] == 2
    assert verdict["lost"] == verdict["unexpected"] == 0
    assert verdict["manners"]["hosts"] == 7
    assert verdict["manners"]["most_at_once"] == 1
    assert verdict["manners"]["nearest"] >= 0.04
    lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    assert len({line["url"] for line in lines}) == verdict["pages"]


@pytest.mark.breaking
def test_a_crawl_over_shards_is_polite_and_loses_nothing_when_workers_and_a_primary_are_killed() -> None:
    process = demo(
        "--hosts", "7", "--workers", "3", "--delay", "0.05", "--kills", "2", "--shards", "6", "--cluster", "3+3",
        "--json",
    )  # fmt: skip
    try:
        said, complaint = process.communicate(timeout=110)
    finally:
        process.kill()
    assert process.returncode == 0, said + complaint
    verdict = json.loads(said)
    assert (verdict["ok"], verdict["findings"], verdict["lost"], verdict["unexpected"]) == (True, [], 0, 0)
    assert (verdict["killed"], verdict["shards"]) == (2, 6)
    assert verdict["cluster"]["killed"].startswith("127.0.0.1:")
    assert verdict["cluster"]["replaced_after"] > 0
    assert verdict["manners"]["hosts"] == 7
    assert verdict["manners"]["most_at_once"] == 1
    assert verdict["manners"]["nearest"] >= 0.04


@pytest.mark.breaking
def test_a_foreign_site_is_crawled_as_far_as_it_is_said(tmp_path: Path) -> None:

    port = free_port()
    results = tmp_path / "results.jsonl"
    served = subprocess.Popen(
        [sys.executable, "-m", "demo.site", "--port", str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        served.stdout.readline()
        url = f"http://127.0.0.1:{port}/"
        refused = demo("--url", url, "--workers", "1", "--delay", "0", "--json")
        said, complaint = refused.communicate(timeout=60)
        assert refused.returncode == 1, complaint
        verdict = json.loads(said)
        assert (verdict["pages"], verdict["failed"]) == (0, 1)
        assert "has the private address 127.0.0.1: crawl it with --allow-private" in verdict["not_begun"]["error"]
        allowed = demo(
            "--url", url, "--workers", "1", "--delay", "0", "--depth", "1", "--allow-private",
            "--results", str(results), "--json",
        )  # fmt: skip
        said, complaint = allowed.communicate(timeout=60)
        assert allowed.returncode == 0, complaint
        lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
        assert {line["depth"] for line in lines} == {0, 1}
        assert json.loads(said)["pages"] == len({line["url"] for line in lines}) > 3
    finally:
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=30)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--hosts", "0"), "--hosts"),
        (("--hosts", "255"), "--hosts"),
        (("--hosts", "5", "--url", "http://h.example/"), "give one of"),
        (("--url", "http://h.example/", "--same-site", "planet"), "none of origin, host, any"),
        (("--results", "/nowhere/r.jsonl"), "there is no folder"),
        (("--delay", "3"), "give one of these too"),
        (("--hosts", "5", "--depth", "3"), "for --url"),
        (("--cluster", "3-3"), "write 3+3 for 3 primaries and 3 replicas"),
        (("--cluster", "3+3", "--redis", "redis://h.example"), "--redis names another server"),
        (("--hosts", "5", "--kill", "--cluster", "3+2"), "has no replica that takes over"),
    ],
)
def test_words_that_do_not_fit_are_told(words: tuple[str, ...], complaint: str) -> None:
    process = demo(*words, COLUMNS="200")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert complaint in said


# ---- what is told on the way


def test_a_line_says_what_waits_for_its_host_and_leaves_out_what_there_is_none_of() -> None:
    stats = Stats(0, todos=0, waiting=67, scheduled=2, in_progress=1, done=23, failed=5, paused=False, counters={})
    assert words_of_progress(stats, HeldBack(), 0) == "23 done, 67 waiting, 2 scheduled, 1 in progress, 5 failed"
    assert words_of_progress(stats, HeldBack(blocked=2, used_up=1), 3).endswith(
        ", 3 killed; hosts: 2 blocked, 1 used up"
    )
    early = replace(stats, todos=1, waiting=0, scheduled=0, in_progress=0, done=0, failed=0)
    assert words_of_progress(early, HeldBack(), 0) == "0 done, 1 todos"


def test_hosts_that_hold_pages_back_are_counted() -> None:
    with fake_queue(politeness=Politeness(1)) as queue:
        for host, pages in (("a", 3), ("used", 4), ("used-too", 2), ("blocked", 2), ("spent", 0), ("was-blocked", 1)):
            queue.put(f"http://{host}.example/{i}" for i in range(pages))
        for host in ("used", "used-too", "spent"):
            queue.hosts.set(f"{host}.example", budget=0)
        queue.hosts.block("blocked.example", for_=60)
        queue.hosts.block("was-blocked.example", for_=1)
        queue.clock.advance(2)
        assert held_back(queue) == HeldBack(blocked=1, used_up=2)
        queue.configure(politeness="off")
        assert held_back(queue) == HeldBack()
        queue.purge()


@pytest.mark.parametrize(("hosts", "said"), [(1, "7, of 1 host"), (2, "7, of 2 hosts")])
def test_the_report_tells_what_was_left_and_why(hosts: int, said: str) -> None:
    verdict: dict[str, Any] = {
        "pages": 3, "failed": 0, "waiting": 7, "hosts_used_up": hosts, "hosts_blocked": 1, "seconds": 1.0,
        "pages_per_second": 3.0, "killed": 0, "redeliveries": {}, "lost": None, "ok": True,
    }  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    with console.capture() as caught:
        say_to_people(verdict, console)
        say_to_people({**verdict, "waiting": 0, "hosts_blocked": 0}, console)
    text = caught.get()
    assert text.count("pages beyond a budget") == text.count("hosts still blocked") == 1
    assert said in text
