"""A worker far away from its server: many handlers at once behind a proxy on loopback that delays every round trip."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

from tests.bench import handlers
from tests.bench.ground import Ground, Measure
from tests.bench.terms import Figure, Readings, Target
from tests.bench.workers import look
from timeoutq.cli.bench.measures import Sight
from timeoutq.words.errors import InvalidInput


class DelayingProxy:
    """A proxy to the server at a URL that delays each exchange by up to `longest` seconds; `with DelayingProxy(…)`."""

    def __init__(self, url: str, longest: float) -> None:
        """Describe it; `url` is then where clients find the server through it."""
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "valkey") or not parts.hostname:
            raise InvalidInput("--latency needs an address like redis://host:port: its proxy speaks plain TCP")
        self._to = (parts.hostname, parts.port or 6379)
        self._longest = longest
        self.delays: list[float] = []
        """What each exchange was delayed by, seconds."""
        self._parts = parts
        self._loop = asyncio.new_event_loop()
        self._links: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="delaying proxy", daemon=True)
        self._thread.start()
        ready.wait()
        user, at, _ = self._parts.netloc.rpartition("@")
        self.url = self._parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}").geturl()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        try:
            self._loop.run_until_complete(self._serve(ready))
        finally:
            self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1000)
        self._port = int(server.sockets[0].getsockname()[1])
        ready.set()
        await self._ended.wait()
        server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        ends, ways = [writer], list[asyncio.Task[None]]()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            ends.append(far_writer)
            exchange = _Exchange(self._longest, self.delays)
            ways = [
                asyncio.create_task(_pass(reader, far_writer, exchange.there)),
                asyncio.create_task(_pass(far_reader, writer, exchange.back)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the run is over: the other end sees the connection break
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in ends:
                end.transport.abort()
            self._links.discard(link)


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


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, when: Callable[[], float]) -> None:
    # pieces are read as they come and wait in a row, so that each counts from when it came, and none overtakes
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def let_go() -> None:
        while True:
            at, piece = await waiting.get()
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            writer.write(piece)
            await writer.drain()
            if not piece:
                return

    leaving = asyncio.create_task(let_go())
    try:
        with suppress(OSError):
            while piece := await reader.read(65_536):
                waiting.put_nowait((when(), piece))
        waiting.put_nowait((0.0, b""))
        await leaving
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)


def _latency(ground: Ground) -> Readings:
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


LATENCY = Measure(
    "latency",
    [
        Figure("latency-work", "what the work alone allows", "tasks/s"),
        Figure("latency", "160 handlers, round trips of 0–200 ms, work of 0–220 ms, lease 1 s", "tasks/s",
               "latency-work", Target("value", "≥", 1250)),
        Figure("latency-duplicates", "handlers that began on a task once more", "tasks", None, Target("value", "≤", 0)),
        Figure("latency-lost", "tasks that are not done in the end", "tasks", None, Target("value", "≤", 0)),
        Figure("latency-expired", "leases that ran out", "leases"),
    ],
    _latency, asked=True,
)  # fmt: skip
