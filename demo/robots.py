"""What a site's robots.txt asks for (RFC 9309), and a memory for it: `crawl.py` asks before each page.

Answers are values made by `rules_of` from a status and a body. The memory asks once for each site, forgets after a
while, and holds a limited number of sites and of rules.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from protego import Protego

LONGEST_ROBOTS = 500 * 1024
"""What is read of a robots.txt, bytes (RFC 9309, 2.5)."""

MOST_HELD = 4 * LONGEST_ROBOTS
"""How long all remembered robots.txt are together, bytes; parsed they take about forty times as much."""

HOPS = 5
"""How many redirects lead to a robots.txt (RFC 9309, 2.3.1.2)."""


@dataclass(frozen=True)
class Rules:
    """What one robots.txt says to one agent."""

    parsed: Protego | None = None
    """None when everything is allowed."""
    agent: str = "*"
    reachable: bool = True
    """False when the server could not say: then nothing is asked of the site for a while."""
    trouble: str = ""
    """Why it was not reachable."""
    size: int = 0
    """How long the robots.txt is, bytes."""

    def allows(self, url: str) -> bool:
        """Say whether a page may be fetched."""
        return self.reachable and (self.parsed is None or bool(self.parsed.can_fetch(url, self.agent)))

    @property
    def delay(self) -> float | None:
        """The seconds between two visits that the site asks for."""
        if self.parsed is None:
            return None
        found = self.parsed.crawl_delay(self.agent)
        return float(found) if found is not None and math.isfinite(found) and found > 0 else None


def rules_of(status: int, body: bytes, agent: str) -> Rules:
    """Judge an answer: 2xx is read; 4xx allows everything; all else, and 429, says that the server cannot tell now.

    429 is 4xx, but a server that is asked too often has not said that it has no rules.
    """
    if 200 <= status < 300:
        text = body[:LONGEST_ROBOTS].decode("utf-8-sig", "replace").replace("\0", "")
        return Rules(Protego.parse(for_one(text, agent)), agent, size=min(len(body), LONGEST_ROBOTS))
    if 400 <= status < 500 and status != 429:
        return Rules(agent=agent)
    return Rules(agent=agent, reachable=False, trouble=f"HTTP {status}")


_AGENT_LINE = re.compile(r"\s*user[-\s]*agent\b[\s:]*([^#]*)", re.IGNORECASE)

_RULE_LINE = re.compile(r"\s*(allow|disallow|crawl-?delay|request-rate|visit-time)\b", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n?|\n")
_OTHER_ENDS = re.compile(r"[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")

_ANOTHER = "User-agent: \x01"
"""Stands for all agents that are not ours."""


def for_one(text: str, agent: str) -> str:
    """Give a robots.txt in which all other agents have one name: its rules for `agent` are the same.

    A robots.txt can name ten thousand agents and then ten thousand rules for all of them, which take minutes to read.
    """
    # Protego ends lines where Python does; only CR and LF end them (RFC 9309, 2.2)
    lines = _LINE_END.split(_OTHER_ENDS.sub(lambda found: quote(found[0]), text))
    named = {i: found[1].strip().lower() for i, line in enumerate(lines) if (found := _AGENT_LINE.match(line))}
    ours = [name for name in {name.replace("*", "") for name in named.values()} if _is_of(name, agent.lower())]
    best = max(ours, key=len, default="*")
    for i, name in named.items():
        is_best = name == best if best == "*" else name.replace("*", "") == best
        lines[i] = f"User-agent: {best}" if is_best else _ANOTHER
    return "\n".join(_names_first(lines))


def _names_first(lines: list[str]) -> Iterator[str]:
    """Give the names of each group, and then the unknown lines between them, at which Protego would end the group."""
    is_named, between = False, list[str]()
    for line in lines:
        is_name, is_rule = _AGENT_LINE.match(line), _RULE_LINE.match(line)
        if is_named and not (is_name or is_rule):
            between.append(line)
            continue
        if is_rule:
            yield from between
            between.clear()
        is_named = bool(is_name)
        yield line
    yield from between


def _is_of(name: str, agent: str) -> bool:
    return bool(name) and re.search(rf"(?<![\w-]){re.escape(name)}", agent) is not None


@dataclass(frozen=True)
class Known:
    """Rules, and until when they count, by the memory's clock."""

    rules: Rules
    until: float


class Memory:
    """The rules of the sites that were asked last."""

    def __init__(
        self, keep: float, again: float, most: int = 1000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep rules for `keep` seconds, unreachable ones for `again` seconds, of at most `most` sites."""
        self._keep, self._again, self._most, self._clock = keep, again, most, clock
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._asking: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    async def rules(self, site: str, ask: Callable[[], Awaitable[Rules]]) -> Rules:
        """Give the rules of a site; the first caller asks the site, the others wait for the answer."""
        lock = self._asking.setdefault(site, asyncio.Lock())
        async with lock:
            known = self._known.get(site)
            if known is None or known.until <= self._clock():
                rules = await ask()
                known = Known(rules, self._clock() + (self._keep if rules.reachable else self._again))
                self._known[site] = known
                while len(self._known) > 1 and (len(self._known) > self._most or self._held() > MOST_HELD):
                    self._known.popitem(last=False)
            self._known.move_to_end(site)
            return known.rules

    def _held(self) -> int:
        return sum(known.rules.size for known in self._known.values())

    def left(self, site: str) -> float:
        """Give the seconds that the rules of a site still count."""
        known = self._known.get(site)
        return max(0.0, known.until - self._clock()) if known is not None else 0.0
