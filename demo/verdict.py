"""Judges a crawl of many hosts: was it polite, and is everything done? Pure: from visits and sets to findings.

The visits are what the hosts saw, by one clock, not what the crawler says of itself. A visit starts when its request
has come and ends when its answer is handed over, or its visitor has hung up. Requests for robots.txt are judged apart:
they belong to the visit of a page and come just before it, so they neither start nor end a visit, but each process may
ask a host for it only once.

Where a host may have several visits at once, the queue hands that many over together, and a worker may begin one of
them when another has just ended: so of the visits that end within the delay before a start there may be one less.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

TOLERANCE = 0.01
"""The queue's clock has whole milliseconds and runs beside the hosts' clock, seconds."""

ROBOTS = "/robots.txt"


@dataclass(frozen=True)
class Visit:
    """One request as its host saw it; a line of the log."""

    host: str
    path: str
    start: float
    """By the monotonic clock of the process that served it, seconds."""
    end: float
    status: int
    """0 when the visitor hung up before the answer."""
    at_once: int = 1
    """How many visits the host had when this one came, itself among them."""
    pause: float = 0.0
    """What the answer asked for by Retry-After, seconds."""

    def line(self) -> str:
        """Give the line of the log."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class Terms:
    """What a crawl had to keep to."""

    delay: float | None
    """Seconds from the end of a visit to the start of the next of that host; None: visits are not kept apart."""
    per_host: int = 1
    delays: Mapping[str, float] = field(default_factory=dict[str, float])
    """Longer delays of single hosts."""
    budgets: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many pages of a host could be visited."""
    processes: int = 1
    """How many processes crawled, those that were killed among them."""


@dataclass(frozen=True)
class Finding:
    """One thing that should not have been."""

    kind: str
    """too near, too many at once, no pause, over budget, robots.txt, forbidden, lost, unexpected."""
    where: str
    what: str


@dataclass(frozen=True)
class Verdict:
    """What came of a crawl."""

    visits: int
    hosts: int
    nearest: float | None
    """The shortest time between two visits of a host, seconds."""
    most_at_once: int
    again: int
    """Visits of a page that had been answered well before."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Say whether there is nothing to complain of."""
        return not self.findings

    def counts(self) -> dict[str, int]:
        """Count the findings of each kind."""
        return dict(Counter(finding.kind for finding in self.findings))


def read_log(path: Path) -> list[Visit]:
    """Read the log of the hosts."""
    return [Visit(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def judge_visits(
    visits: Iterable[Visit], terms: Terms, forbidden: AbstractSet[tuple[str, str]] = frozenset()
) -> Verdict:
    """Judge the manners of a crawl; `forbidden` are the hosts and paths that robots.txt excludes."""
    by_host: defaultdict[str, list[Visit]] = defaultdict(list)
    robots: Counter[str] = Counter()
    for visit in visits:
        if visit.path == ROBOTS:
            robots[visit.host] += 1
        else:
            # one that took no time still was there
            by_host[visit.host].append(replace(visit, end=max(visit.end, math.nextafter(visit.start, math.inf))))
    findings: list[Finding] = []
    gaps: list[float] = []
    most = 0
    for host, seen in sorted(by_host.items()):
        seen.sort(key=lambda visit: (visit.start, visit.end))
        peak = at_once(seen)
        most = max(most, peak)
        if terms.delay is not None:
            if peak > terms.per_host:
                findings.append(Finding("too many at once", host, f"{peak} visits, where {terms.per_host} may be"))
            delay = max(terms.delay, terms.delays.get(host, 0.0))
            gaps += [gap for gap, _ in between(seen, terms.per_host)]
            findings += [
                Finding(
                    "too near", host, f"{visit.path} {gap:.3f} s after the end of another, where {delay:g} s may be"
                )
                for gap, visit in between(seen, terms.per_host)
                if gap < delay - TOLERANCE
            ]
            for earlier in seen:
                soon = [
                    visit
                    for visit in seen
                    if earlier.pause and earlier.end < visit.start < earlier.end + earlier.pause - TOLERANCE
                ]
                findings += [
                    Finding("no pause", host, f"{visit.path}, but {earlier.path} had asked for {earlier.pause:g} s")
                    for visit in soon[terms.per_host - 1 :]
                ]
            budget = terms.budgets.get(host)
            # pages, not visits: what a killed worker had begun to visit is visited again, and counted once
            pages = len({visit.path for visit in seen})
            if budget is not None and pages > budget:
                findings.append(Finding("over budget", host, f"{pages} pages, where {budget} may be"))
        findings += [
            Finding("forbidden", host, f"{path} was visited")
            for path in sorted({visit.path for visit in seen if (host, visit.path) in forbidden})
        ]
    findings += [
        Finding("robots.txt", host, f"asked for {count} times by {terms.processes} processes")
        for host, count in sorted(robots.items())
        if count > terms.processes
    ]
    findings += [
        Finding("robots.txt", host, "visited without asking for it") for host in sorted(by_host) if not robots[host]
    ]
    well = Counter((visit.host, visit.path) for seen in by_host.values() for visit in seen if 200 <= visit.status < 400)
    return Verdict(
        sum(map(len, by_host.values())),
        len(by_host),
        round(min(gaps), 3) if gaps else None,
        most,
        sum(well.values()) - len(well),
        tuple(findings),
    )


def between(seen: list[Visit], per_host: int = 1) -> list[tuple[float, Visit]]:
    """Give for each visit of one host, in order of their starts, the time since the latest end before it.

    With `per_host` above 1 it is the second latest, and so on: the others may have been handed over with the visit.
    """
    found: list[tuple[float, Visit]] = []
    ends = sorted(visit.end for visit in seen)
    i = 0
    for visit in seen:
        while i < len(ends) and ends[i] <= visit.start:
            i += 1
        if i >= per_host:
            found.append((visit.start - ends[i - per_host], visit))
    return found


def at_once(seen: Iterable[Visit]) -> int:
    """Give the most visits of one host that ran at the same time."""
    turns = sorted(turn for visit in seen for turn in ((visit.start, 1), (visit.end, -1)))
    now = most = 0
    for _, change in turns:
        now += change
        most = max(most, now)
    return most


def judge_tasks(
    done: AbstractSet[str],
    failed: AbstractSet[str],
    expected_done: AbstractSet[str],
    expected_failed: AbstractSet[str],
    limited: AbstractSet[str] = frozenset(),
) -> list[Finding]:
    """Compare what the queue holds with what it must hold; addresses that start with one of `limited` have a budget."""
    starts = tuple(limited)

    def free(url: str) -> bool:
        return not (starts and url.startswith(starts))

    return [
        *(Finding("lost", url, "in neither done nor failed") for url in sorted(expected_done - done - failed)),
        *(Finding("lost", url, "in neither done nor failed") for url in sorted(expected_failed - done - failed)),
        *(Finding("unexpected", url, "failed") for url in sorted(failed - expected_failed)),
        *(Finding("unexpected", url, "done") for url in sorted(done - expected_done) if free(url)),
        *(
            Finding("lost", start, "nothing of it is done")
            for start in starts
            if not any(u.startswith(start) for u in done)
        ),
    ]
