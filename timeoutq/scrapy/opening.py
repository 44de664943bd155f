"""Opens the queue of a spider: a new queue becomes polite and gets the spider's name.

A queue that another spider made, or that is not polite, is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from time import time

from scrapy import Spider

from timeoutq.client import AsyncQueue
from timeoutq.scrapy.plan import Plan
from timeoutq.verbs import flows, sending
from timeoutq.words import arguments, telling
from timeoutq.words.counts import Stats
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import raw

_say = partial(telling.say, logging.getLogger(__name__))

OWNER, PROJECT, STARTED, ARGUMENTS = "scrapy_spider", "scrapy_project", "scrapy_started", "scrapy_arguments"
"""The marks in the settings of a queue: whose queue it is, the spider's project and class, when its start requests were
put (seconds since 1970), and a digest of the arguments of the spider that made it, which may be secret."""


async def opened(plan: Plan, spider: Spider) -> tuple[AsyncQueue, bool]:
    """Open the queue. Gives the queue, and whether its start requests were put before.

    Raises `InvalidInput` for a name that no queue may have, and for a queue that another spider made or that is not
    polite.
    """
    if plan.queue is None:
        try:
            arguments.queue_name(spider.name)
        except InvalidInput as error:
            raise InvalidInput(f"the spider's name cannot be that of a queue: {error}; set TIMEOUTQ_QUEUE") from None
    queue = AsyncQueue(plan.queue or spider.name, plan.url, timeout=plan.lease)
    try:
        return queue, await _adopt(queue, plan, spider)
    except BaseException:
        await queue.close()
        raise


async def _adopt(queue: AsyncQueue, plan: Plan, spider: Spider) -> bool:
    stats = await queue.stats()
    owner, polite = stats.settings.get(OWNER), plan.politeness
    project = f"{plan.project} ({type(spider).__module__}.{type(spider).__qualname__})"
    _check_owner(queue, owner, spider)
    is_new = stats.politeness is None  # or only set up: with other settings, and without tasks
    if is_new and (stats.known or "politeness" in stats.settings):
        raise InvalidInput(
            f"queue {queue.name!r} is there already and is not polite: no host would be spared. Make it polite "
            f"(timeoutq configure {queue.name} --delay {polite.delay:g}s --per-host {polite.per_host}), or set "
            "TIMEOUTQ_QUEUE to another name"
        )
    if owner is None:
        # two spiders may make the queue at the same moment: the first counts
        marks = {f"{OWNER}?": raw(spider.name), f"{PROJECT}?": raw(project)}
        await queue.run(flows.configure(queue.talk, {**marks, "politeness?": arguments.politeness(polite)}))
        stats = await queue.stats()
        _check_owner(queue, stats.settings.get(OWNER), spider)
        if plan.arguments is not None:
            await _write(queue, f"{ARGUMENTS}?", _digest(plan.arguments))
    made_by = stats.settings.get(PROJECT, project)
    if made_by != project:
        words = (
            "queue %s was made by another project, %s; this one is %s. If these are two projects, their spiders take "
            "each other's tasks: set TIMEOUTQ_QUEUE to another name"
        )
        _say(logging.WARNING, words, queue.name, made_by, project)
    if is_new:
        for host, rules in plan.hosts.items():
            await queue.hosts.set(host, **rules)  # type: ignore[arg-type]  # delay and per_host
    elif stats.politeness != polite:
        words = (
            "queue %s keeps its own politeness, %s; the project's settings say %s. To change it: timeoutq configure "
            "%s --delay %gs --per-host %d"
        )
        _say(logging.WARNING, words, queue.name, stats.politeness, polite, queue.name, polite.delay, polite.per_host)
    if stats.in_progress:
        words = (
            "queue %s: leased to other processes: %d of its tasks; those of a process that has died come back when "
            "their leases have run out"
        )
        _say(logging.INFO, words, queue.name, stats.in_progress)
    if owner is not None and STARTED in stats.settings:
        await _tell_what_was(queue, stats, plan)
    return STARTED in stats.settings


def _check_owner(queue: AsyncQueue, owner: str | None, spider: Spider) -> None:
    if owner is not None and owner != spider.name:
        raise InvalidInput(
            f"queue {queue.name!r} was made by spider {owner!r}, not by {spider.name!r}: set TIMEOUTQ_QUEUE to another "
            "name"
        )


def _digest(given: Mapping[str, str]) -> str:
    return sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:16]


async def _tell_what_was(queue: AsyncQueue, stats: Stats, plan: Plan) -> None:
    """Warn of a queue that has nothing to do, and of one that a spider with other arguments has made."""
    name = queue.name
    anew = f"To crawl anew: timeoutq purge {name}, or set TIMEOUTQ_QUEUE to another name"
    if plan.arguments is not None and stats.settings.get(ARGUMENTS) not in (None, _digest(plan.arguments)):
        words = "queue %s was made by this spider with other arguments (-a). Its start requests are not put again. %s"
        _say(logging.WARNING, words, name, anew)
    if not plan.stay and await queue.drained():
        words = (
            "queue %s is drained: %d done, %d failed. The start requests were put%s, and are put once for each queue. "
            "%s"
        )
        when = _moment(stats.settings.get(STARTED, ""))
        _say(logging.WARNING, words, name, stats.done, stats.failed, when, anew)


def _moment(mark: str) -> str:
    if not mark.isdigit() or not 1e9 < int(mark) < 1e11:
        return " before"
    return datetime.fromtimestamp(int(mark), UTC).strftime(" at %Y-%m-%d %H:%M:%S UTC")


async def mark_started(queue: AsyncQueue) -> None:
    await _write(queue, STARTED, f"{time():.0f}")


async def _write(queue: AsyncQueue, name: str, value: str) -> None:
    await queue.run(sending.answer(queue.talk, queue.operations.configure({name: raw(value)})))
