"""The demo's many hosts: what they answer, what they log, how a crawl of them is judged, and one with real workers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from demo.hosts import Host, Server, expected, generate
from demo.polite import HeldBack, held_back
from demo.processes import free_port
from demo.verdict import Finding, Terms, Visit, judge_tasks, judge_visits, read_log
from timeoutq import Politeness
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


# ---- their log


class Served:
    """Two hosts that are served here, and how to visit them."""

    def __init__(self, folder: Path) -> None:
        self.hosts = [Host(1, "normal", 3), Host(2, "slow", 3)]
        self.port = free_port(self.hosts[0].address)
        self.log = folder / "visits.jsonl"
        self.server = Server(self.hosts, self.port, self.log)

    async def visit(self, address: str, *paths: str) -> list[int]:
        """Ask for paths on one connection."""
        reader, writer = await asyncio.open_connection(address, self.port)
        found: list[int] = []
        for path in paths:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await writer.drain()
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


async def test_a_head_without_an_end_is_cut_off_and_is_no_error(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.1.1", served.port)
    writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000)
    with suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    assert not caplog.records
    assert await served.visit("127.0.1.1", "/") == [200]


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


def test_visits_at_once_are_found_also_when_they_took_no_time() -> None:
    visits = polite_visits()
    middle = visits[3].start + 0.1
    for extra in (Visit("a", "/x", middle, middle, 200), replace(visits[3], path="/x")):
        assert kinds([*visits, extra], replace(TERMS, budgets={}))["too many at once"] == 1
        assert "too many at once" not in kinds([*visits, extra], replace(TERMS, budgets={}, per_host=2))


def test_a_visit_within_a_pause_that_was_asked_for_is_found() -> None:
    visits = polite_visits()
    visits[2] = replace(visits[2], status=429, pause=1.5)
    assert kinds(visits) == {"no pause": 1}
    visits[2] = replace(visits[2], pause=0.5)
    assert kinds(visits) == {}


def test_a_visit_to_what_robots_txt_forbids_is_found() -> None:
    assert kinds(polite_visits(), forbidden={("a", "/3"), ("b", "/other")}) == {"forbidden": 1}


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


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--hosts", "0"), "--hosts"),
        (("--hosts", "5", "--url", "http://h.example/"), "give one of"),
        (("--url", "http://h.example/", "--same-site", "planet"), "none of origin, host, any"),
        (("--delay", "3"), "give one of these too"),
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
