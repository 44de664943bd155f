"""What a crawl did, by host and by kind of error, and how often it visited its pages: read from the queue at its end.

The figures are the queue's own, so they count what killed workers did, too, and what was done before a crawl that is
kept was started again. `course.py` asks for them, `report.py` shows them.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from typing import Any

from demo import polite
from demo.trail import Seen, Trail
from timeoutq import State
from timeoutq.client.shards import AnyQueue
from timeoutq.watch.transfer import export
from timeoutq.words.model import Record, text

MOST_HOSTS = 100
"""Of how many hosts a summary tells: those with the most pages."""

MOST_PAGES = 10
"""How many of the pages that were visited most often are named."""

KINDS: tuple[tuple[str, str], ...] = (
    (r"HTTP (\d{3})\b", r"HTTP \1"),
    (r"robots\.txt forbids it", "forbidden by robots.txt"),
    (r"robots\.txt: ", "robots.txt cannot be had"),
    (r".* has the private address ", "private address"),
    (r"more than \d+ redirects led here", "too many redirects"),
    (r"it redirects (to itself|back to )", "redirects in a ring"),
    (r"it redirects to ", "redirects elsewhere"),
    (r"the page has .*raise --max-bytes", "longer than --max-bytes"),
    (r"the page took over ", "too slow"),
    (r"Content-Encoding |packed \d+ times|.*the body (is not the|goes on after)", "cannot be unpacked"),
    (r"parsing |the parser |more than [\d,]+ links|links of more than ", "cannot be parsed within limits"),
    (r"not an http or https address", "no URL of a page"),
    (r"(Connect|Read|Write|Pool|Close|\w*Protocol|Network|Unsupported\w*)(Timeout|Error)\b", "no answer"),
)
"""How an error begins, and its kind. What fits nowhere has its own first words as its kind."""


def kind_of(error: str | None) -> str:
    """Give the kind of an error: short, and the same for all pages that failed for that reason."""
    said = re.sub(r"^(GiveUp|Retry): ", "", " ".join((error or "unknown").split()))
    for pattern, kind in KINDS:
        if found := re.match(pattern, said):
            return found.expand(kind)
    return said.partition(":")[0][:60]


@dataclass
class Host:
    """What became of the pages of one host."""

    done: int = 0
    failed: int = 0
    left: int = 0
    """Pages that are still to be visited, or to be visited again."""
    visits: int = 0
    """Visits that ended, retries among them; only a polite queue counts them."""

    @property
    def pages(self) -> int:
        """How many pages the queue knows of the host."""
        return self.done + self.failed + self.left


@dataclass
class Kind:
    """Pages that failed for one reason."""

    pages: int = 0
    example: str = ""


@dataclass
class Again:
    """How a crawl that visits pages again has visited them."""

    pages: int = 0
    visits: int = 0
    changed: int = 0
    """Visits that found a page changed."""
    unmodified: int = 0
    """Visits that were answered by 304 Not Modified."""
    often: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The pages that were visited most often, with the number of their visits."""

    def add(self, url: str, seen: Seen) -> None:
        """Count a page."""
        self.pages += 1
        self.visits += seen.visits
        self.changed += seen.changed
        self.unmodified += seen.unmodified
        self.often = nlargest(MOST_PAGES, [*self.often, (seen.visits, url)])


@dataclass
class Summary:
    """What a queue holds at the end of a crawl."""

    hosts: dict[str, Host] = field(default_factory=dict[str, Host])
    kinds: dict[str, Kind] = field(default_factory=dict[str, Kind])
    again: Again | None = None
    """None where no page is visited again."""

    def add(self, record: Record) -> None:
        """Count a page."""
        url = text(record.task)
        host = self.hosts.setdefault(polite.host_of(url), Host())
        if record.state is State.DONE:
            host.done += 1
        elif record.state is State.FAILED:
            host.failed += 1
            self.kinds.setdefault(kind_of(record.error), Kind(example=url)).pages += 1
        else:
            host.left += 1
            seen = Trail.of(record.payload).seen
            if self.again is not None and seen is not None:
                self.again.add(url, seen)

    def figures(self) -> dict[str, Any]:
        """Give it as a part of the result in JSON: the largest hosts, all kinds."""
        largest = nlargest(MOST_HOSTS, self.hosts, key=lambda name: self.hosts[name].pages)
        kinds = sorted(self.kinds, key=lambda name: (-self.kinds[name].pages, name))
        found: dict[str, Any] = {
            "hosts": len(self.hosts),
            "by_host": {name: asdict(self.hosts[name]) for name in largest},
            "by_error": {name: asdict(self.kinds[name]) for name in kinds},
        }
        return found if self.again is None else {**found, "recrawl": asdict(self.again)}


def summarise(queue: AnyQueue, *, recrawl: bool) -> Summary:
    """Read a queue, each page once; memory grows with the number of hosts, not of pages."""
    found = Summary(again=Again() if recrawl else None)
    for records in export(queue):
        for record in records:
            found.add(record)
    if queue.stats().politeness is not None:
        for one in queue.hosts.each():
            if one.host in found.hosts:
                found.hosts[one.host].visits = one.visits
    return found
