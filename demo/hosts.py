"""Many hosts on loopback, each with a size and a temper of its own, and a log of every visit: whom to be polite to.

`python -m demo.hosts --hosts 50 --port 8080 --log visits.jsonl` serves them at 127.0.1.1 … 127.0.1.50 from one process,
so that one clock stamps all visits; the demo starts it so. Every answer follows from the host's number, the path and
how often it was asked for, so that what a crawl must find is known without crawling: see `expected`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from demo.verdict import Visit

MOST = 254

TEMPERS = ("normal", "slow", "busy", "failing", "calendar", "normal", "strict", "busy", "failing", "normal")
"""Host after host, again from the start when they are used up.

normal: answers. slow: takes a while. busy: 429 with Retry-After now and then. failing: 5xx now and then, at most twice
for a page. strict: its robots.txt asks for a longer delay. calendar: each day links to the next, for ever.
"""

BUDGET = 12
"""Visits that a calendar is given."""

STRICT_DELAY = 0.5
"""What strict hosts ask for, seconds."""

PAUSE = 1
"""What busy hosts ask for, seconds."""


@dataclass(frozen=True)
class Host:
    """One host: everything that it answers follows from this."""

    number: int
    """From 1; also the last part of its address."""
    temper: str
    pages: int
    neighbours: tuple[int, ...] = ()
    """The hosts that its first page links to."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.1.{self.number}"

    @property
    def delay(self) -> float | None:
        """The delay that its robots.txt asks for, seconds."""
        return STRICT_DELAY if self.temper == "strict" else None

    @property
    def budget(self) -> int | None:
        """How often it may be visited; without it a calendar has no end."""
        return BUDGET if self.temper == "calendar" else None

    def url(self, port: int, path: str = "/") -> str:
        """Give the canonical URL of a page."""
        return f"http://{self.address}:{port}{path}"


@dataclass(frozen=True)
class Answer:
    """What a host answers."""

    status: int = 200
    links: tuple[str, ...] = ()
    """Paths of its own, or whole addresses."""
    wait: float = 0.0
    """Seconds before it answers."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "text/html; charset=utf-8"
    text: str = ""

    def body(self) -> bytes:
        """Give the body."""
        if self.text:
            return self.text.encode()
        return "".join(f'<p><a href="{link}">{link}</a>' for link in self.links).encode()


def generate(hosts: int) -> list[Host]:
    """Make the hosts; all can be reached from the first."""
    rng = random.Random(11)  # noqa: S311  # the same hosts each time
    return [
        Host(
            i,
            TEMPERS[(i - 1) % len(TEMPERS)],
            rng.choice((3, 5, 8, 12, 20)),
            tuple(j for j in (2 * i, 2 * i + 1) if j <= hosts),
        )
        for i in range(1, hosts + 1)
    ]


def answer(host: Host, path: str, visit: int, port: int) -> Answer:
    """Give what a host answers to the visit with this number (from 1) of a path."""
    if path == "/robots.txt":
        delay = f"Crawl-delay: {host.delay}\n" if host.delay is not None else ""
        return Answer(content_type="text/plain", text=f"User-agent: *\nDisallow: /secret\n{delay}")
    page = _page(host, path, port)
    # what one address answers differs from host to host, and not with each run
    mood = random.Random(f"{host.number} {path}").random()  # noqa: S311  # the same mood each time
    if host.temper == "busy" and mood < 0.3 and visit == 1:
        return Answer(429, headers={"Retry-After": str(PAUSE)}, text="later")
    if host.temper == "failing" and mood < 0.4 and visit <= 1 + (mood < 0.15):
        return Answer(503 if mood < 0.2 else 500, text="broken")
    wait = 0.1 + 0.3 * mood if host.temper == "slow" else 0.0
    return Answer(page.status, page.links, wait, page.headers, page.content_type, page.text)


def _page(host: Host, path: str, port: int) -> Answer:
    if host.temper == "calendar":
        day = int(path.removeprefix("/day/")) if path.startswith("/day/") and path[5:].isdecimal() else 0
        if path != "/" and not day:
            return Answer(404, text="no such day")
        return Answer(links=(f"/day/{day + 1}", *(_roots(host, port) if path == "/" else ())))
    if path == "/moved":
        return Answer(302, headers={"Location": f"/page/{host.pages - 1}"}, text="moved")
    if path == "/notes.txt":
        return Answer(content_type="text/plain", text="/page/1 is not a link here")
    number = 0 if path == "/" else int(path[6:]) if path.startswith("/page/") and path[6:].isdecimal() else -1
    if not 0 <= number < host.pages or path == "/page/0":
        return Answer(404, text="not here")
    rng = random.Random(f"{host.number} {number}")  # noqa: S311  # the same page each time
    links = [f"/page/{j}" for j in (2 * number + 1, 2 * number + 2) if j < host.pages]
    links += [f"/page/{rng.randrange(1, host.pages)}#part" for _ in range(2)]
    if number == 0:
        links += ["/moved", "/notes.txt", "/secret/diary", "/gone", *_roots(host, port)]
    return Answer(links=tuple(links))


def _roots(host: Host, port: int) -> tuple[str, ...]:
    return tuple(f"http://127.0.1.{number}:{port}/" for number in host.neighbours)


@dataclass(frozen=True)
class Expected:
    """What a crawl of the hosts must end with."""

    done: frozenset[str]
    """Every page that can be reached, but for those of hosts with a budget."""
    failed: frozenset[str]
    """What is not there, and what robots.txt forbids."""
    forbidden: frozenset[str]
    """What robots.txt forbids: it must not be visited."""


def expected(hosts: list[Host], port: int) -> Expected:
    """Work out from the hosts what a crawl from the first of them must end with."""
    from demo.links import canonical

    by_netloc = {f"{host.address}:{port}": host for host in hosts}
    done: set[str] = set()
    failed: set[str] = set()
    forbidden: set[str] = set()
    open_urls = [hosts[0].url(port)] if hosts else []
    seen = set(open_urls)
    while open_urls:
        url = open_urls.pop()
        parts = urlsplit(url)
        host = by_netloc[parts.netloc]
        page = _page(host, parts.path, port)
        if parts.path.startswith("/secret"):
            forbidden.add(url)
        elif page.status >= 400:
            failed.add(url)
        else:
            done.add(url)
            location = page.headers.get("Location")
            for link in [location] if location is not None else page.links:
                target = canonical(link, url)
                # a calendar's days have no end; its first page leads on
                if target is not None and target not in seen and "/day/" not in target:
                    seen.add(target)
                    open_urls.append(target)
    limited = {host.url(port) for host in hosts if host.budget is not None}
    return Expected(frozenset(done - limited), frozenset(failed | forbidden), frozenset(forbidden))


class Server:
    """All hosts in one event loop; each visit is a line of the log."""

    def __init__(self, hosts: list[Host], port: int, log: Path) -> None:
        self._hosts = {host.address: host for host in hosts}
        self._port = port
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._visits: Counter[tuple[str, str]] = Counter()
        self.now: Counter[str] = Counter()
        """How many visits each host has just now."""
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen on every address. Raises OSError when one of them cannot be had."""
        for address in self._hosts:
            self._servers.append(await asyncio.start_server(self._connected, address, self._port, backlog=128))

    async def stop(self) -> None:
        """Listen no more, and end the connections; visits that run are logged as cut off."""
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        os.close(self._log)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while await self._serve(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the end of the server, and of this connection with it
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        start = time.monotonic()
        path = urlsplit(head.split(b" ", 2)[1].decode("ascii")).path
        host = self._hosts[str(writer.get_extra_info("sockname")[0])]
        self._visits[host.address, path] += 1
        found = answer(host, path, self._visits[host.address, path], self._port)
        robots = path == "/robots.txt"
        self.now[host.address] += not robots
        at_once = self.now[host.address]
        status, end = 0, start
        try:
            gone = await _hung_up(reader, found.wait) if found.wait else False
            end = time.monotonic()
            if not gone:
                status = found.status
                writer.write(_wire(found))
        finally:
            # the end is when the answer is handed over, or nobody waits for it any more
            self.now[host.address] -= not robots
            pause = float(found.headers.get("Retry-After", 0)) if status else 0.0
            visit = Visit(host.address, path, start, max(end, start), status, at_once, pause)
            os.write(self._log, visit.line().encode())
        await writer.drain()
        return not gone


async def _hung_up(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Wait, but not longer than the other side does; say whether it left."""
    try:
        async with asyncio.timeout(seconds):
            return await reader.read(1) == b""
    except TimeoutError:
        return False


def _wire(found: Answer) -> bytes:
    body = found.body()
    lines = [f"HTTP/1.1 {found.status} -", f"Content-Type: {found.content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in found.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


async def serve(hosts: list[Host], port: int, log: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = Server(hosts, port, log)
    await server.start()
    print(json.dumps({"hosts": len(hosts), "port": port}), flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await server.stop()


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(prog="python -m demo.hosts", description="Many hosts on loopback to crawl.")
    parser.add_argument("--hosts", type=int, default=50, help=f"how many, up to {MOST}")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--log", type=Path, required=True, help="takes a line of JSON for each visit")
    given = parser.parse_args()
    if not 1 <= given.hosts <= MOST:
        parser.error(f"--hosts {given.hosts}: give 1 to {MOST}, the addresses are 127.0.1.1 to 127.0.1.{MOST}")
    try:
        asyncio.run(serve(generate(given.hosts), given.port, given.log))
    except OSError as error:
        parser.exit(
            3,
            f"{error}\nevery address 127.0.1.1 to 127.0.1.{given.hosts} must be there: Linux has all of 127.0.0.0/8, "
            "elsewhere add them (macOS: sudo ifconfig lo0 alias 127.0.1.1), or give another --port\n",
        )


if __name__ == "__main__":
    main()
