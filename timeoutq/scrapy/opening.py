"""Opens the queue of a spider: a new queue becomes polite and gets the spider's name.

A queue that another spider made, or that is not polite, is refused.
"""

from __future__ import annotations

import logging

from scrapy import Spider

from timeoutq import arguments, sending, telling
from timeoutq.client import AsyncQueue
from timeoutq.errors import InvalidInput
from timeoutq.model import Politeness, Stats
from timeoutq.scrapy.plan import Plan

log = logging.getLogger(__name__)

OWNER, STARTED = "scrapy_spider", "scrapy_started"
"""The marks in the settings of a queue: whose queue it is, and that its start requests were put."""


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
    exists, stats = await queue.exists(), await queue.stats()
    owner = stats.settings.get(OWNER)
    if owner is not None and owner != spider.name:
        raise InvalidInput(
            f"queue {queue.name!r} was made by spider {owner!r}, not by {spider.name!r}: set TIMEOUTQ_QUEUE to another "
            f"name, or remove the queue (timeoutq purge {queue.name})"
        )
    if exists and stats.politeness is None:
        polite = plan.politeness
        raise InvalidInput(
            f"queue {queue.name!r} is there already and is not polite: no host would be spared. Make it polite "
            f"(timeoutq configure {queue.name} --delay {polite.delay:g}s --per-host {polite.per_host}), or set "
            "TIMEOUTQ_QUEUE to another name"
        )
    if not exists:
        await queue.configure(politeness=plan.politeness)
        for host, rules in plan.hosts.items():
            await queue.hosts.set(host, **rules)  # type: ignore[arg-type]  # delay and per_host
    elif stats.politeness != plan.politeness:
        _tell_difference(queue, stats, plan.politeness)
    if owner is None:
        await _write(queue, OWNER, spider.name)
    return STARTED in stats.settings


def _tell_difference(queue: AsyncQueue, stats: Stats, wanted: Politeness) -> None:
    telling.say(
        log, logging.WARNING,
        "queue %s keeps its own politeness, %s; the project's settings say %s. To change it: timeoutq configure %s "
        "--delay %gs --per-host %d",
        queue.name, stats.politeness, wanted, queue.name, wanted.delay, wanted.per_host,
    )  # fmt: skip


async def mark_started(queue: AsyncQueue) -> None:
    """Note in the settings of the queue that all start requests were put."""
    await _write(queue, STARTED, "1")


async def _write(queue: AsyncQueue, name: str, value: str) -> None:
    call = queue.operations.configure({name: value.encode("utf-8", "surrogateescape")})
    await queue.run(sending.answer(queue.talk, call))
