"""What the payload of a task tells: how a page was found, and what its last visit brought. Pure.

A payload can come from anywhere (`timeoutq put --payload`, another program, an older crawl), so whatever in it is none
of ours counts as absent. `crawl.py` reads and writes it, `seeds.py` begins it, `summary.py` adds it up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from timeoutq import Task

DEEPEST = 1000
"""The greatest depth that a priority can tell: priorities go from -1000 to 1000."""

LONGEST_HEADER = 500
"""A longer ETag or Last-Modified is not kept, characters."""

_TEXT = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True)
class Capture:
    """The last whole page of an address that went into the archive: what later records refer to."""

    date: str = ""
    """As in its WARC-Date; empty when there is none."""
    digest: str = ""
    """Its WARC-Payload-Digest."""


@dataclass(frozen=True)
class Seen:
    """What the last visits of a page brought; kept only by a crawl that visits pages again."""

    etag: str = ""
    modified: str = ""
    """Its Last-Modified."""
    digest: str = ""
    """Of what the page said: it tells whether the page has changed."""
    interval: float | None = None
    """Seconds from the last visit to this one."""
    visits: int = 0
    changed: int = 0
    """How many visits found the page changed."""
    unmodified: int = 0
    """How many visits were answered by 304 Not Modified."""
    capture: Capture = field(default_factory=Capture)

    @classmethod
    def of(cls, payload: object) -> Seen | None:
        """Read a part of a payload; None for what is none of ours."""
        if not isinstance(payload, Mapping):
            return None
        given = cast("Mapping[str, Any]", payload)
        kept = _mapping(given.get("capture"))
        return cls(
            etag=header_text(given.get("etag")),
            modified=header_text(given.get("modified")),
            digest=header_text(given.get("digest")),
            interval=_seconds(given.get("interval")),
            visits=_count(given.get("visits")),
            changed=_count(given.get("changed")),
            unmodified=_count(given.get("unmodified")),
            capture=Capture(header_text(kept.get("date")), header_text(kept.get("digest"))),
        )

    def asks(self, is_archived: bool) -> dict[str, str]:
        """Give the headers of a conditional request (RFC 9110, 13.1).

        A crawl that is archived asks so only for a page that is in the archive: a 304 there refers to an older record.
        """
        if is_archived and not self.capture.date:
            return {}
        asked = {"If-None-Match": self.etag, "If-Modified-Since": self.modified}
        return {name: value for name, value in asked.items() if value}


@dataclass(frozen=True)
class Trail:
    """How a page was found, and what was seen of it; the payload of its task."""

    depth: int = 0
    """How many links the page is away from the start: on a polite queue by the shortest path, else by the first path
    that reached the page."""
    redirects: tuple[str, ...] = ()
    """The addresses that redirected in a row and so led here, the first one first."""
    seen: Seen | None = None

    @classmethod
    def of(cls, payload: object) -> Trail:
        """Read a payload; what is none of ours counts as a start."""
        given = _mapping(payload)
        return cls(_count(given.get("depth")), _addresses(given.get("redirects")), Seen.of(given.get("seen")))

    def payload(self) -> dict[str, Any]:
        """Give the payload that `of` reads."""
        found: dict[str, Any] = {"depth": self.depth, "redirects": list(self.redirects)}
        if self.seen is not None:
            told = {**asdict(self.seen), "capture": asdict(self.seen.capture) if self.seen.capture.date else None}
            found["seen"] = {name: value for name, value in told.items() if value}
        return found

    def redirected(self, url: str) -> Trail:
        """Give the trail of the page to which this one, at `url`, redirects."""
        return Trail(self.depth, (*self.redirects, url))

    def linked(self) -> Trail:
        """Give the trail of the pages that this one links to."""
        return Trail(self.depth + 1)

    def next(self, seen: Seen) -> Trail:
        """Give the trail of the next visit of this page."""
        return replace(self, seen=seen)


def tasks(urls: Iterable[str], trail: Trail, *, ordered: bool, improve: bool) -> list[Task]:
    """Give the tasks of pages that were found, all by the same trail.

    In a crawl that is `ordered` (its queue is polite) the priority is minus the depth. With `improve`, a page that is
    found again by a shorter way is visited again: so a limit of depth is exact.
    """
    payload = trail.payload()
    priority = -min(trail.depth, DEEPEST) if ordered else None
    return [Task(url, payload, priority=priority, improve=ordered and improve) for url in urls]


def header_text(value: object) -> str:
    """Give a value if it may stand in a header of HTTP: printable ASCII, not too long; else nothing."""
    return value if isinstance(value, str) and len(value) <= LONGEST_HEADER and _TEXT.fullmatch(value) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _addresses(value: object) -> tuple[str, ...]:
    given = cast("Iterable[object]", value) if isinstance(value, list) else ()
    return tuple(one for one in given if isinstance(one, str))


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _seconds(value: object) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(cast("float", value)) if real else None
