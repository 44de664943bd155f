"""The settings of a project, and a warning of those that cannot hold on a queue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scrapy import version_info
from scrapy.pipelines.media import MediaPipeline
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object

from timeoutq.server import address
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Politeness

T = TypeVar("T")
N = TypeVar("N", bound=float)

SCHEDULER, SCRAPYS = "timeoutq.scrapy.crawl.Crawl", "scrapy.core.scheduler.Scheduler"
LINE = 'ADDONS = {"timeoutq.scrapy.Addon": 100}'  # the setting that brings timeoutq into a project

NAMES = (
    "TIMEOUTQ_BATCH", "TIMEOUTQ_FAIL_EXIT", "TIMEOUTQ_ITEMS", "TIMEOUTQ_LEASE", "TIMEOUTQ_QUEUE", "TIMEOUTQ_STAY",
    "TIMEOUTQ_URL",
)  # fmt: skip
"""The settings of timeoutq."""

LONGEST = 86_400.0
"""The longest lease, and the longest delay between two visits of a host, that settings may name. Seconds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one crawl."""

    url: str | None  # where the server is; None: as the environment says
    queue: str | None  # the name of the queue; None: that of the spider
    lease: float  # the length of a lease, seconds
    stay: bool  # whether the process stays when the queue is drained
    batch: int
    """How many tasks the process holds at most: those that are fetched, parsed or stored, and those that wait."""
    politeness: Politeness
    per_host: int  # how many requests this process makes of one host at once, those included that are no tasks
    hosts: Mapping[str, Mapping[str, float | int]]  # the rules of single hosts, from `DOWNLOAD_SLOTS`
    unheld: Sequence[str]  # what the settings say and the addon cannot hold, in words
    project: str | None  # the name of the project, `BOT_NAME`
    items: str | None  # the folder of the item store; None: there is none
    fail_exit: bool  # whether failed tasks let Scrapy's command end with an exit code that is not 0
    arguments: Mapping[str, str] | None = None
    """The arguments (-a) that Scrapy's command gave the spider; None: a program started the spider."""
    note_error: Callable[[], None] = lambda: None  # lets Scrapy's command end with an exit code that is not 0


def read(settings: BaseSettings, spider: object = None) -> Plan:
    """Read the settings, and the attributes of the spider (or of its class) that stand for settings.

    Raises `InvalidInput`, which names the setting, for a value that cannot be used.
    """
    scheduler = settings.get("SCHEDULER")
    if scheduler not in (SCRAPYS, SCHEDULER):
        raise InvalidInput(
            f"SCHEDULER is {scheduler!r}, and the addon of timeoutq sets its own: remove the line from the settings"
        )
    at_once = _read(settings.getint, "CONCURRENT_REQUESTS", "a whole number")
    usual = max(1, at_once) + max(4, at_once // 4)
    delay, per_host = _rules(settings, spider, at_once)
    return Plan(
        url=_text(settings, "TIMEOUTQ_URL", address.read),
        queue=_text(settings, "TIMEOUTQ_QUEUE", arguments.queue_name),
        lease=_number(lambda one: settings.getfloat(one, 30.0), "TIMEOUTQ_LEASE", "a number of seconds", 0.5, LONGEST),
        stay=_read(lambda name: settings.getbool(name, False), "TIMEOUTQ_STAY", "True or False"),
        batch=_number(lambda name: settings.getint(name, usual), "TIMEOUTQ_BATCH", "a whole number", 1, 10_000),
        politeness=Politeness(delay, _places(delay, per_host)),
        per_host=per_host,
        hosts=_slots(_read(settings.getdict, "DOWNLOAD_SLOTS", "a dict"), delay, per_host),
        unheld=tuple(_unheld(settings, delay)),
        project=_text(settings, "BOT_NAME"),
        items=_text(settings, "TIMEOUTQ_ITEMS"),
        fail_exit=_read(lambda name: settings.getbool(name, False), "TIMEOUTQ_FAIL_EXIT", "True or False"),
    )


def _rules(settings: BaseSettings, spider: object, at_once: int) -> tuple[float, int]:
    """Give the delay and the places of a host, as Scrapy means them."""
    value = _asked(settings, spider, "DOWNLOAD_DELAY", "download_delay")
    delay = _number(lambda _: float(value), "DOWNLOAD_DELAY", "a number of seconds", 0, LONGEST)
    if settings.getbool("AUTOTHROTTLE_ENABLED"):
        name = "AUTOTHROTTLE_START_DELAY"
        delay = max(delay, _number(settings.getfloat, name, "a number of seconds", 0, LONGEST))
    # that of an address counts in place of the other
    per_host = _number(settings.getint, "CONCURRENT_REQUESTS_PER_IP", "a whole number", 0, 10_000)
    if not per_host:
        name = "CONCURRENT_REQUESTS_PER_DOMAIN"
        places = _asked(settings, spider, name, "max_concurrent_requests")
        per_host = _number(lambda _: int(places), name, "a whole number", 0, 10_000)
    return delay, per_host or max(1, at_once)


def _asked(settings: BaseSettings, spider: object, name: str, attribute: str) -> Any:
    """Give the value of a setting, or of the attribute of the spider that stands for it.

    Since Scrapy 2.18, the attribute does not count if `custom_settings` or the command line has the setting.
    """
    if version_info >= (2, 18) and (settings.getpriority(name) or 0) >= SETTINGS_PRIORITIES["spider"]:
        return settings.get(name)
    return getattr(spider, attribute, settings.get(name))


def _places(delay: float, per_host: int) -> int:
    """Give how many visits a host may have at once: with a delay, as in Scrapy, each visit begins by itself."""
    return 1 if delay else per_host


def _read(get: Callable[[str], T], name: str, kind: str) -> T:
    try:
        return get(name)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the setting {name} must be {kind}: {error}") from None


def _number(get: Callable[[str], N], name: str, kind: str, low: float, high: float) -> N:
    return _within(name, _read(get, name, kind), low, high)


def _within(name: str, value: N, low: float, high: float) -> N:
    if not low <= value <= high:
        raise InvalidInput(f"the setting {name} must be from {low:,g} to {high:,g}, not {value!r}")
    return value


def _text(settings: BaseSettings, name: str, check: Callable[[str], object] = str) -> str | None:
    value = settings.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidInput(f"the setting {name} must be text, not {type(value).__name__}")
    try:
        check(value)
    except InvalidInput as error:
        raise InvalidInput(f"the setting {name}: {error}") from None
    return value


def _slots(slots: Mapping[str, Any], delay: float, per_host: int) -> Mapping[str, Mapping[str, float | int]]:
    found: dict[str, dict[str, float | int]] = {}
    for host, rules in slots.items():
        kept = found[host] = {}
        name = f"DOWNLOAD_SLOTS[{host!r}]"
        try:
            if "delay" in rules:
                kept["delay"] = _within(f"{name}['delay']", float(rules["delay"]), 0, LONGEST)
            if "concurrency" in rules:
                kept["per_host"] = _within(f"{name}['concurrency']", int(rules["concurrency"]), 1, 10_000)
        except InvalidInput:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the setting DOWNLOAD_SLOTS has odd rules for {host!r}: {error}") from None
        places = _places(kept.get("delay", delay), int(kept.get("per_host", per_host)))
        if "per_host" in kept or places != _places(delay, per_host):
            kept["per_host"] = places
    return found


def _unheld(settings: BaseSettings, delay: float) -> Iterator[str]:
    """Say in words what settings cannot mean on a queue; `delay` (seconds) is that of a new queue."""
    if settings.getbool("AUTOTHROTTLE_ENABLED"):
        yield f"AUTOTHROTTLE_ENABLED is turned off, and the delay of a new queue stays at {delay:g} s"
    if settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        yield "CONCURRENT_REQUESTS_PER_IP counts for each host, not for each address"
    if settings.get("DUPEFILTER_CLASS") != "scrapy.dupefilters.RFPDupeFilter":
        yield (
            "DUPEFILTER_CLASS has no effect: the queue knows which requests were made. For another sameness, set "
            "REQUEST_FINGERPRINTER_CLASS; for none, make requests with dont_filter=True"
        )


def unheld_by_pipelines(settings: BaseSettings) -> Iterator[str]:
    """Say that what a media pipeline fetches is no task, if there is one. Loads the pipelines."""
    for one, place in settings.getwithbase("ITEM_PIPELINES").items():
        kind = load_object(one)
        if place is not None and isinstance(kind, type) and issubclass(kind, MediaPipeline):
            yield "what media pipelines fetch is no task: each process spaces it by itself, by DOWNLOAD_DELAY"
            return
