"""The report: what its pictures say; in a real browser: no network, no errors, and hostile text is inert."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.rig.command import Say
from tests.rig.command import say as say
from timeoutq import Period, Politeness, Queue, Stats
from timeoutq.verbs import sending
from timeoutq.watch import charts, report
from timeoutq.words.durations import Delta

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "\"><svg onload=alert(3)>", "' onmouseover='alert(4)",
    "</style><script>alert(5)</script>", "</title></svg><script>alert(6)</script>", "javascript:alert(7)",
    "<iframe src='https://a.example/'></iframe>", "<link rel=stylesheet href=https://a.example/x.css>",
    "{{7*7}}${alert(8)}", "]]><!--", "\x1b[2J\u202e\u0000\x85", "&lt;b&gt;&#x3c;script&#x3e;",
    "<base href=//a.example>",
]  # fmt: skip
MARK = "canary"


def plan(queue: Any) -> None:
    for talk in queue.shards.talks if hasattr(queue, "shards") else [queue.talk]:
        queue.run(sending.answer(talk, talk.operations.plan(10_000)))


def fill(queue: Any) -> None:
    """Let hostile text stand in each field that a report shows."""
    ids = [f"https://h{n}.example/{text}{MARK}" for n, text in enumerate(HOSTILE)] + [
        f"{text}{MARK}" for text in HOSTILE
    ]
    queue.put(ids)
    for lease in queue.claim(len(ids)):
        queue.fail(lease, f"{HOSTILE[len(lease.task) % len(HOSTILE)]} {lease.task} {MARK}", give_up=True)
    queue.put(*(f"{text} waits" for text in HOSTILE), group=f"x{HOSTILE[0]}y"[:200])
    for text in HOSTILE:
        about = {"host": text, "pid": 1, "held": 1, "acked": 2, "failed": 3, "trouble": text}
        queue.run(sending.answer(queue.talk, queue.operations.beat(f"{text}{MARK}", about, Delta(9, {-30: 5, 8: 2}))))
    plan(queue)


@pytest.fixture
def hostile(url: str, name: str) -> Iterator[Queue]:
    """A polite queue whose every text is hostile."""
    with Queue(name, url, politeness=Politeness(0, 9)) as queue:
        fill(queue)
        yield queue
        queue.purge()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    if path is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.timeout(90)
def test_a_browser_shows_it_without_network_and_hostile_text_is_inert(
    chromium: Any, hostile: Queue, say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    assert say("report", hostile.name, "--html", file).code == 0
    context = chromium.new_context(offline=True, color_scheme="dark")
    page, seen, asked = context.new_page(), list[str](), list[str]()

    def dismiss(dialog: Any) -> None:
        seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda message: seen.append(message.text))
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("dialog", dismiss)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    shown = page.evaluate("document.body.innerText")
    assert seen == []
    assert asked == [file.as_uri()]
    assert "<script>alert(1)</script>" in shown
    assert MARK in shown
    counted = "[...document.querySelectorAll('script, img, iframe, link, base, object, a')].length"
    assert page.evaluate(counted) == 0
    attributes = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).map(a => a.name)"
    assert [one for one in page.evaluate(attributes) if one.startswith("on") or one == "style"] == []
    ground, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    light = sum(map(int, re.findall(r"\d+", ground)[:3])) > sum(map(int, re.findall(r"\d+", ink)[:3]))
    assert not light
    context.close()


class Elements(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"@{name}" for name, _ in attrs)}


def test_the_report_has_no_other_elements_than_it_should_whatever_text_it_shows(hostile: Queue) -> None:
    parser = Elements()
    parser.feed(report.page(report.gather(hostile)))
    assert not parser.found & {"script", "img", "iframe", "link", "base", "object", "a", "@style", "@href", "@src"}
    assert not {name for name in parser.found if name.startswith("@on")}


def test_the_report_as_json_says_what_the_pictures_show(hostile: Queue, say: Say) -> None:
    found = json.loads(say("report", hostile.name, "--json").out)
    assert found["stats"]["failed"] == sum(kind["count"] for kind in found["failures"]) == 2 * len(HOSTILE)
    assert found["minutes"][0]["failed"] == found["hours"][0]["failed"] == 2 * len(HOSTILE)
    assert sum(row["count"] for row in found["durations"]) == 7 * len(HOSTILE)
    assert max(host["visits"] for host in found["hosts"]) >= 1


def test_a_report_goes_to_stdout_and_never_half_into_a_file(hostile: Queue, say: Say, tmp_path: Path) -> None:
    assert say("report", hostile.name, "--html", "-").out.startswith("<!DOCTYPE html>")
    refused = say("report", hostile.name, "--html", tmp_path / "no" / "such.html")
    assert (refused.code, refused.out) == (2, "")
    assert f"cannot write {tmp_path / 'no' / 'such.html'}: No such file or directory" in refused.err
    assert say("report", hostile.name).code == 2
    assert say("report", hostile.name, "--html", "-", "--json").code == 2
    assert list(tmp_path.iterdir()) == []


# ---- the pictures

NONE = Stats(0.0, 0, 0, 0, 0, 0, paused=False, counters={})  # a look that is older than every minute


def minutes(*todos: int | None) -> list[Period]:
    return [
        Period(60.0 * at)
        if count is None
        else Period(60.0 * at, count, 0, 0, 1, at, 0, put=5, acked=3, errors=0, expired=0)
        for at, count in enumerate(todos)
    ]


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def said(picture: str) -> str:
    return str(re.findall(r"<desc[^>]*>([^<]*)</desc>", picture)[0])


def test_the_picture_of_states_ends_with_what_is_now() -> None:
    stats = Stats(75.0, 2, 0, 0, 6, 1, paused=False, counters={})
    picture = charts.states(minutes(5, 9), "n", stats)
    assert said(picture) == (
        "done: 6 at last, 6 at most; failed: 1 at last, 1 at most; in progress: 0 at last, 1 at most; "
        "todos: 2 at last, 9 at most"
    )
    # a look that is older than the last minute comes too late
    assert "todos: 9 at last" in said(charts.states(minutes(5, 9), "n", replace(stats, now=59.0)))


def test_the_rates_of_a_minute_that_is_not_over_are_of_the_time_that_it_had() -> None:
    some = minutes(5, 9)
    assert (
        said(charts.rates(some, 60, "n", 80.0)) == "put: 0.25 at last, 0.25 at most; acked: 0.15 at last, 0.15 at most"
    )
    assert said(charts.rates(some, 60, "n", 500.0)).startswith("put: 0.0833 at last"), "the last minute is over"
    assert said(charts.rates(some, 60, "n", 60.0)).startswith("put: 5 at last"), "no time at all counts as a second"


def test_gaps_are_shaded_and_no_line_is_drawn_across_them() -> None:
    picture = charts.states(minutes(5, 6, None, None, 7, 8), "n", NONE)
    paths = re.findall(r'<path class="c-todos"[^>]*d="([^"]*)"', picture)
    assert len(paths) == 2
    assert picture.count('class="gap"') == 1
    assert len(re.findall('class="line c-put"', charts.rates(minutes(5, None, 7), 60, "n", 180.0))) == 2


def test_states_lie_upon_each_other_and_the_top_is_their_sum() -> None:
    counts = {"waiting": 0, "scheduled": 0, "in_progress": 0, "failed": 0}
    picture = charts.states([Period(0.0, 70, done=30, **counts), Period(60.0, 20, done=30, **counts)], "n", NONE)
    (path,) = re.findall(r'<path class="c-todos"[^>]*d="M([^"]*)Z"', picture)
    places = [tuple(map(float, place.split())) for place in path.split("L")]
    span = charts.Span(0.0, 60.0, 100.0)
    assert places == [
        (44.0, span.y(100)),
        (470.0, span.y(50)),
        (470.0, round(span.y(30), 1)),
        (44.0, round(span.y(30), 1)),
    ]


def test_states_have_the_same_colours_in_a_report_and_on_the_page() -> None:
    page = (Path(charts.__file__).parents[1] / "gateway" / "page" / "static" / "page.css").read_text("utf-8")
    for state in charts.STACK:
        colours = re.findall(rf"--{state}: (#[0-9a-f]+)", charts.STYLE)
        assert len(colours) == 2, "light and dark"
        assert colours == re.findall(rf"--{state}: (#[0-9a-f]+)", page), state


def test_pictures_of_nothing_of_one_moment_and_of_months_are_small() -> None:
    for many in (0, 1, 2160):
        some = minutes(*range(many))
        runs = {n: n + 90 for n in range(-89, min(many, 60))}
        pictures = charts.states(some, "n", NONE), charts.rates(some, 60, "n", 60.0 * many), charts.durations(runs)
        for picture in pictures:
            parsed(picture)
            assert len(picture) < 40_000


def test_durations_are_counted_by_doublings() -> None:
    picture = charts.durations({0: 5, 1: 2, 8: 1})
    said = parsed(picture)[1].text or ""
    assert said == "up to 500 ms: 7; up to 1.0 s: 1"
