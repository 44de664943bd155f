"""What a project's settings say: where the queue is, how long leases are, and how polite the crawl is. Pure.

The addon reads the settings before it turns Scrapy's own delays off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scrapy.settings import BaseSettings

from timeoutq.errors import InvalidInput
from timeoutq.model import Politeness

T = TypeVar("T")

LINE = 'ADDONS = {"timeoutq.scrapy.Addon": 100}'
"""The setting that brings timeoutq into a project."""

NAMES = (
    "TIMEOUTQ_BATCH", "TIMEOUTQ_FAIL_EXIT", "TIMEOUTQ_ITEMS", "TIMEOUTQ_LEASE", "TIMEOUTQ_QUEUE", "TIMEOUTQ_STAY",
    "TIMEOUTQ_URL",
)  # fmt: skip
"""The settings of timeoutq."""

SCHEDULER, SCRAPYS_OWN = "timeoutq.scrapy.scheduler.Scheduler", "scrapy.core.scheduler.Scheduler"
"""The schedulers that the setting SCHEDULER may name; the addon replaces the second by the first."""

LONGEST = 86_400.0
"""The longest lease, and the longest delay between two visits of a host, that settings may name. Seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one crawl."""

    url: str | None
    """Where the server is; None: as the environment says."""
    queue: str | None
    """The name of the queue; None: that of the spider."""
    lease: float
    """The length of a lease, seconds."""
    stay: bool
    """Whether the process stays when the queue is drained."""
    batch: int
    """How many tasks the process holds at most: those that are fetched, parsed or stored, and those that wait."""
    politeness: Politeness
    hosts: Mapping[str, Mapping[str, float | int]]
    """The rules of single hosts, from `DOWNLOAD_SLOTS`."""
    project: str | None = None
    """The name of the project, `BOT_NAME`."""
    items: str | None = None
    """The folder of the item store; None: there is none."""
    fail_exit: bool = False
    """Whether failed tasks let Scrapy's command end with an exit code that is not 0."""
    arguments: Mapping[str, str] | None = None
    """The arguments (-a) that Scrapy's command gave the spider; None: a program started the spider."""
    note_error: Callable[[], None] = lambda: None
    """Lets Scrapy's command end with an exit code that is not 0."""


def read(settings: BaseSettings) -> Plan:
    """Read the settings. Raises `InvalidInput`, which names the setting, for a value that cannot be used."""
    at_once = _read(settings.getint, "CONCURRENT_REQUESTS", "a whole number")
    per_host = _read(settings.getint, "CONCURRENT_REQUESTS_PER_DOMAIN", "a whole number")
    delay = _read(settings.getfloat, "DOWNLOAD_DELAY", "a number of seconds")
    usual = max(1, at_once) + max(4, at_once // 4)
    batch = _read(lambda name: settings.getint(name, usual), "TIMEOUTQ_BATCH", "a whole number")
    lease = _read(lambda name: settings.getfloat(name, 30.0), "TIMEOUTQ_LEASE", "a number of seconds")
    _check("TIMEOUTQ_BATCH", batch, 1, 10_000)
    _check("TIMEOUTQ_LEASE", lease, 0.5, LONGEST)
    _check("DOWNLOAD_DELAY", delay, 0, LONGEST)
    _check("CONCURRENT_REQUESTS_PER_DOMAIN", per_host, 0, 10_000)
    return Plan(
        url=_text(settings, "TIMEOUTQ_URL"),
        queue=_text(settings, "TIMEOUTQ_QUEUE"),
        lease=lease,
        stay=_read(lambda name: settings.getbool(name, False), "TIMEOUTQ_STAY", "True or False"),
        batch=batch,
        politeness=Politeness(delay, per_host or max(1, at_once)),
        project=_text(settings, "BOT_NAME"),
        items=_text(settings, "TIMEOUTQ_ITEMS"),
        fail_exit=_read(lambda name: settings.getbool(name, False), "TIMEOUTQ_FAIL_EXIT", "True or False"),
        hosts=_slots(_read(settings.getdict, "DOWNLOAD_SLOTS", "a dict")),
    )


def _read(get: Callable[[str], T], name: str, kind: str) -> T:
    try:
        return get(name)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the setting {name} must be {kind}: {error}") from None


def _check(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidInput(f"the setting {name} must be from {low:,g} to {high:,g}, not {value!r}")


def _text(settings: BaseSettings, name: str) -> str | None:
    value = settings.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"the setting {name} must be text, not {type(value).__name__}")
    return value


def _slots(slots: Mapping[str, Any]) -> Mapping[str, Mapping[str, float | int]]:
    found: dict[str, dict[str, float | int]] = {}
    for host, rules in slots.items():
        kept = found[host] = {}
        try:
            if "delay" in rules:
                kept["delay"] = float(rules["delay"])
            if "concurrency" in rules:
                kept["per_host"] = int(rules["concurrency"])
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the setting DOWNLOAD_SLOTS has odd rules for {host!r}: {error}") from None
        _check(f"DOWNLOAD_SLOTS[{host!r}]['delay']", kept.get("delay", 0), 0, LONGEST)
        _check(f"DOWNLOAD_SLOTS[{host!r}]['concurrency']", kept.get("per_host", 1), 1, 10_000)
    return found
