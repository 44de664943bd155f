"""A worker far away from its server: many handlers at once behind a proxy on loopback that delays every round trip."""

from __future__ import annotations

import asyncio
import random
import time
from urllib.parse import urlsplit

from tests.bench import handlers
from tests.bench.ground import Figure, Ground, Readings, measure
from tests.bench.workers import look
from tests.rig.proxy import Link, Proxy
from timeoutq.cli.bench import Sight
from timeoutq.words.errors import InvalidInput


class DelayingProxy(Proxy):
    """A proxy to the server at a URL that delays each exchange by up to `longest` seconds; `with DelayingProxy(…)`."""

    def __init__(self, url: str, longest: float) -> None:
        if urlsplit(url).scheme not in ("redis", "valkey"):
            raise InvalidInput("--latency needs an address like redis://host:port: its proxy speaks plain TCP")
        self._longest = longest
        self.delays: list[float] = []
        """How long each exchange was delayed, seconds."""
        self._exchanges: dict[Link, _Exchange] = {}
        super().__init__(url)

    async def _pass(self, pair: Link, way: str, size: int) -> None:
        one = self._exchanges.setdefault(pair, _Exchange(self._longest, self.delays))
        at = one.there() if way == "up" else one.back()
        await asyncio.sleep(max(0.0, at - time.monotonic()))


class _Exchange:
    """When the bytes of a connection may pass: one delay for a request and its reply, however they come in pieces."""

    def __init__(self, longest: float, delays: list[float]) -> None:
        self._longest = longest
        self._delays = delays
        self._answered = True
        self._there = self._back = 0.0
        self._rest = 0.0

    def there(self) -> float:
        """Give when a piece of a request that is here now may leave."""
        now = time.monotonic()
        if self._answered:
            delay = random.uniform(0, self._longest)
            self._delays.append(delay)
            part = random.uniform(0, delay)
            self._there, self._rest, self._answered = now + part, delay - part, False
        return max(now, self._there)

    def back(self) -> float:
        """The same for a piece of a reply."""
        now = time.monotonic()
        if not self._answered:
            self._back, self._answered = now + self._rest, True
        return max(now, self._back)


@measure(
    "latency",
    Figure("latency-work", "what the work alone allows", "tasks/s"),
    Figure(
        "latency",
        "160 handlers, round trips of 0–200 ms, work of 0–220 ms, lease 1 s",
        "tasks/s",
        "latency-work",
        "≥ 1,250",
    ),
    Figure("latency-duplicates", "handlers that began on a task once more", "tasks", None, "≤ 0"),
    Figure("latency-lost", "tasks that are not done in the end", "tasks", None, "≤ 0"),
    Figure("latency-expired", "leases that ran out", "leases"),
    asked=True,
)
def latency(ground: Ground) -> Readings:
    sizes = ground.sizes
    with DelayingProxy(ground.url, sizes.delay) as proxy, ground.queue(timeout=1) as queue:
        ground.fill(queue.operations.key("todos"), sizes.worked)
        words = ("-c", f"{sizes.handlers}", "--timeout", "1s")
        environment = {handlers.WORK: f"{sizes.work}"}
        with ground.worker(queue, handlers.work, *words, url=proxy.url, environment=environment) as crew:
            first: list[Sight] = []

            def ended() -> Sight | None:
                seen = look(ground, queue)
                if not first and queue.stats().in_progress:
                    first.append(seen)
                return seen if seen.acked >= sizes.worked else None

            last = crew.until(ended, "work through the tasks", 60 + sizes.worked / 50)
            stats, notes = queue.stats(), crew.notes()
    began = min(min(times) for times in notes.values())
    span = (last.at - first[0].at) if first else (time.monotonic_ns() - began) / 1e9
    return {
        "latency": sizes.worked / span,
        "latency-work": sizes.handlers / (sizes.work / 2),
        "latency-duplicates": sum(len(times) - 1 for times in notes.values()),
        "latency-lost": sizes.worked - stats.done,
        "latency-expired": stats.counters.get("expired", 0),
    }
