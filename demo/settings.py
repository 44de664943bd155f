"""What a crawl may do and how far it goes: one frozen value, made by the command and read by every worker process.

It travels to the processes in the environment variable `DEMO_SETTINGS`, as JSON; what is not named has its default,
and the defaults are those of a guest: robots.txt is asked, private addresses are not, sizes and times have limits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from demo.trail import DEEPEST

VARIABLE = "DEMO_SETTINGS"

SITES = ("origin", "host", "any")
"""How far links lead: same scheme, host and port; same host, with or without www.; anywhere."""


DEADLINE = 30.0
"""How long a call of the crawl to its queue may take, seconds: while a replica takes over, shards are silent."""


class SettingsError(ValueError):
    """The settings cannot be used; the message says which, why, and what can be."""


@dataclass(frozen=True)
class Settings:
    """The limits of a crawl. Times are seconds, sizes are bytes."""

    queue: str = ""
    """The queue that is crawled from: hosts are slowed down and blocked there. Without it Crawl-delay has no effect."""
    shards: int = 1
    """Of how many shards the queue consists; 1: it is a plain queue."""
    agent: str = "timeoutq-demo/1"
    site: str = "host"
    """One of `SITES`."""
    depth: int | None = None
    """How many links away from the start a page may be; None: any number."""
    ordered: bool = False
    """Whether the queue is polite, so that tasks may have priorities: then pages near the start come first, and a limit
    of depth is exact."""
    include: tuple[str, ...] = ()
    """Patterns of addresses that are followed (see `scope.py`); without any, all are."""
    exclude: tuple[str, ...] = ()
    """Patterns of addresses that are not followed, whatever `include` says."""
    outside: str = ""
    """The folder in which each process notes the addresses that the patterns leave out; none when empty."""
    redirects: int = 10
    """How many redirects may lead to a page."""
    max_bytes: int = 10 * 1024 * 1024
    """A longer page is given up, at the latest when so much of it has come."""
    timeout: float = 20.0
    """How long to wait for a connection, and for the next bytes."""
    total: float = 60.0
    """How long one page may take to come, in all."""
    parsing: float = 2.0
    """How long the processor may work on reading one page. On the clock three times as long: it serves others too."""
    delay: float = 0.0
    """What the queue keeps between two visits of a host: a shorter Crawl-delay does not make it less."""
    allow_private: bool = False
    """Whether addresses that are not of the public internet are asked too: loopback, 10.0.0.0/8, link-local, …"""
    robots: bool = True
    robots_keep: float = 3600.0
    """How long a robots.txt counts."""
    robots_again: float = 60.0
    """How long a host is left alone whose robots.txt could not be had."""
    most_pause: float = 3600.0
    """The longest time that a host can ask for, by Retry-After or Crawl-delay."""
    patience: int = 20
    """How often a page may say Retry-After in a row before that counts as a failed attempt."""
    results: str = ""
    """The file that takes a line of JSON for each page; none when empty."""
    warc: str = ""
    """The folder that takes every answer, as WARC; none when empty."""
    warc_bytes: int = 1024 * 1024 * 1024
    """A WARC file of this size is finished, and the next one begun; 1 GiB is the size that archives usually have."""
    recrawl: bool = False
    """Whether pages are visited again and again, sooner if they change."""
    first: float = 86_400.0
    """How long after the first visit a page is visited again."""
    shortest: float = 3_600.0
    """The shortest time between two visits of a page."""
    longest: float = 30 * 86_400.0
    """The longest time between two visits of a page."""

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise SettingsError(f"site {self.site!r} is none of {', '.join(SITES)}")
        for name in ("redirects", "max_bytes", "depth", "delay", "patience", "warc_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingsError(f"{name} {value!r} is below 0: give 0 or more")
        for name in ("timeout", "total", "parsing", "most_pause", "first", "shortest", "longest"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} {getattr(self, name)!r} is no time: give more than 0 seconds")
        if self.shortest > self.longest:
            raise SettingsError(f"shortest {self.shortest:g} s is longer than longest {self.longest:g} s")
        if self.ordered and self.depth is not None and self.depth > DEEPEST:
            raise SettingsError(f"depth {self.depth} is more than {DEEPEST}, the lowest priority that there is")

    @property
    def room(self) -> int:
        """Bytes that the archive of one page may need: a page and its head, once as it came and once packed again."""
        return 2 * self.max_bytes

    def environment(self) -> dict[str, str]:
        """Give the variable that makes `from_environment` of another process find the same."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from the environment; raises `SettingsError` when they are no good."""
        text = environment.get(VARIABLE, "{}")
        try:
            given: Any = json.loads(text)
        except ValueError as error:
            raise SettingsError(f'{VARIABLE} is not JSON ({error}): give an object like {{"depth": 3}}') from error
        if not isinstance(given, dict):
            raise SettingsError(f'{VARIABLE} is not an object: give one like {{"depth": 3}}')
        values = cast("dict[str, Any]", given)
        known = {field.name: field.default for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise SettingsError(f"{VARIABLE} names {name!r}, which is none of {', '.join(known)}")
            if not _fits(value, known[name]):
                raise SettingsError(f"{VARIABLE}: {name} is {value!r}, where {known[name]!r} is the default")
        for name in ("include", "exclude"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def _fits(value: object, default: object) -> bool:
    if default is None:
        return value is None or (isinstance(value, int) and not isinstance(value, bool))
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, tuple):
        return isinstance(value, list) and all(isinstance(one, str) for one in cast("list[object]", value))
    return type(value) is type(default)
