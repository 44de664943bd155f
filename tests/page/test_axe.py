"""Accessibility of each view, judged by axe-core in a real Chromium: no violation, dark and light, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.browsers import axe, browser, tab
from tests.rig.pages import Served, settings
from timeoutq import Politeness, Queue
from timeoutq.gateway.tokens import TokenBook

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)
"""The server makes no difference to a browser, and each of these tests takes long."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


def fill(queue: Queue) -> None:
    queue.configure(politeness=Politeness(0.0, 100))
    queue.put({f"https://a{i}.example/": {"depth": i} for i in range(30)}, priority=2)
    queue.schedule("https://later.example/", after=600)
    leases = queue.claim(20)
    queue.ack(leases[:5])
    for lease in leases[5:12]:
        try:
            raise ValueError(f"no price on page {lease.fence}")
        except ValueError as error:
            queue.fail(lease, error, give_up=True)
    queue.hosts.block("a29.example", for_=600)


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)], ids=["light and wide", "dark and narrow"])
def test_no_view_has_a_violation(chromium: Any, url: str, queue: Queue, dark: bool, width: int) -> None:
    fill(queue)
    script = axe()
    failed = next(iter(queue.list("failed"))).task
    leased = next(iter(queue.list("in_progress"))).task
    kind = queue.failures.list()[0].id
    views = [
        "/", *(f"/q/{queue.name}{path}" for path in (
            "", "/failures", "/hosts", "/workers", "/log", "/put", "/purge", f"/kind?kind={kind}",
            f"/task?id={failed}", f"/task?id={leased}", "/task?id=unknown", "/tasks?state=nonsense",
            *(f"/tasks?state={state}" for state in ("todos", "scheduled", "in_progress", "done", "failed")),
        )),
    ]  # fmt: skip
    with Served(settings(url)) as served, tab(chromium, dark=dark, width=width) as seen:
        for path in views:
            assert judged(seen.page, served.base + path, script) == [], path
        seen.page.goto(f"{served.base}/q/{queue.name}")
        seen.page.wait_for_selector("#alive.on")
        for key, dialog in (("?", "#help[open]"), ("P", "#ask[open]")):
            seen.page.keyboard.press(key)
            seen.page.wait_for_selector(dialog)
            assert judged(seen.page, None, script) == [], dialog
            seen.page.keyboard.press("Escape")


def test_the_login_has_no_violation(chromium: Any, url: str) -> None:
    script = axe()
    with TokenBook(url) as book:
        book.new("somebody", queues=["*"], allow=["look"])
    with Served(settings(url)) as served, tab(chromium) as seen:
        assert judged(seen.page, served.base + "/login", script) == []


def judged(page: Any, address: str | None, script: str) -> list[str]:
    if address is not None:
        page.goto(address)
    page.evaluate(script)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]} {one['nodes'][0]['failureSummary'][:300]}" for one in found]
