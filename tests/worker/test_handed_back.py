"""What handlers and functions hand back and no queue can take: their work is done once, whatever the retry policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from timeoutq import Ack, AsyncQueue, Lease, Queue, State, Task, Worker

LONG = "https://example.com/" + "x" * 1_218
"""A link of 1,238 bytes."""
AGAIN = [0.0, 0.0, 0.0]
MANY = [f"link-{n}" for n in range(600)]
"""More than one call takes."""


class Site:
    """A handler that counts how often it fetches each page."""

    def __init__(self, gives: Callable[[], Any]) -> None:
        self.fetched: list[str] = []
        self._gives = gives

    async def fetch(self, lease: Lease) -> Any:
        self.fetched.append(lease.task)
        return self._gives() if lease.task == "page" else None

    async def fetch_and_raise(self, lease: Lease) -> Any:
        came = await self.fetch(lease)
        if came is not None:
            raise came

    def fetch_in_a_thread(self, lease: Lease) -> Any:
        self.fetched.append(lease.task)
        return self._gives() if lease.task == "page" else None


async def work(queue: Queue, handler: Any, url: str) -> Any:
    async with asyncio.timeout(20), AsyncQueue(queue.name, url, timeout=5) as mine:
        return await Worker(mine, handler, burst=True, retry=AGAIN, signals=False).run()


def lazily(*links: Any) -> Iterator[Any]:
    yield from links


LISTS: dict[str, Callable[[], Any]] = {
    "a list": lambda: ["a", LONG, "b"],
    "a set": lambda: {"a", LONG, "b"},
    "a generator": lambda: lazily("a", LONG, "b"),
    "a mapping": lambda: {"a": 1, LONG: {"depth": 2}, "b": {"depth": 3}},
    "tasks": lambda: [Task("a"), Task(LONG, {"n": 1}, rerun=True), Task("b", {"n": 2})],
    "a priority too high": lambda: ["a", Task(LONG[:900], priority=5_000, rerun=True), "b"],
    "an empty link": lambda: ["a", "", "b"],
    "a link that would raise": lambda: ["a", "b", Task(LONG, priority=1, improve=True)],
}


@pytest.mark.parametrize(
    ("links", "how"),
    [*((links, "fetch") for links in LISTS), ("a generator", "fetch_and_raise"), ("a generator", "fetch_in_a_thread")],
)
async def test_a_page_with_a_link_too_long_among_good_ones_is_fetched_once(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture, links: str, how: str
) -> None:
    site = Site(lambda: Ack(put=LISTS[links]()))
    queue.put("page")
    with caplog.at_level(logging.WARNING):
        tally = await work(queue, getattr(site, how), url)
    assert sorted(site.fetched) == ["a", "b", "page"]
    assert (tally.acked, tally.failed, tally.left_out) == (3, 0, 1)
    (line,) = [one for one in caplog.messages if "left out" in one]
    assert line.startswith(f"queue {queue.name}: 1 of the tasks that the handler of task 'page' found cannot be put")
    words = {"a priority too high": "priority of task 'https://", "an empty link": "must not be empty"}
    assert words.get(links, "'https://example.com/xxxxxxxxxxxxxxxxxxxx'… has 1,238 bytes; the limit is 1,024") in line


WRONG: dict[str, tuple[Any, str]] = {
    "a result too large": (Ack(result=b"x" * 262_145), "InvalidInput: a result of 262,145 bytes cannot be kept"),
    "no result at all": (5, "WrongResult: "),
    "no task among others": (Ack(put=[*lazily("a", 5)]), "InvalidInput: "),
    "no moment": (Ack(again_in=-1), "InvalidInput: again_in must be"),
    "what this queue refuses": (Ack(put=[Task("a", priority=1, improve=True)]), "InvalidInput: "),
    "no moment beside many links": (Ack(put=MANY, again_in=-1), "InvalidInput: again_in must be"),
    "many that this queue refuses": (Ack(put=[Task(n, priority=1, improve=True) for n in MANY]), "InvalidInput: "),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_no_repeat_can_mend_fails_once_with_the_reason(queue: Queue, url: str, what: str) -> None:
    given, words = WRONG[what]
    if "this queue refuses" in what:
        queue.configure(keep_done="compact")
    site = Site(lambda: given)
    queue.put("page")
    tally = await work(queue, site.fetch, url)
    found = queue.inspect("page")
    assert (site.fetched, tally.failed, found.state) == (["page"], 1, State.FAILED)
    assert (found.error or "").startswith(words)
