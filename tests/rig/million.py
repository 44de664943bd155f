"""A queue of ten million tasks, a million of them failed, and the page in front of it: does the page stay quick?"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import redis

from tests.rig.gateways import WebProcess
from timeoutq import Queue
from timeoutq.gateway.page import paint
from timeoutq.server.embedded import EmbeddedServer

NAME = "million"
SLOW_US = 2_000
FIRST_VIEW, ASSETS, MORE = 0.5, 60_000, 1.1
ERRORS = ("ValueError: no price on page", "TimeoutError: no answer after", "HTTP 503: Service Unavailable", "KeyError:")
ROUNDS = 5


@dataclass
class Found:
    tasks: int = 0
    failed: int = 0
    first_view: float = 0.0
    views: dict[str, float] = field(default_factory=dict[str, float])
    """The median time of each view, seconds."""
    slow: dict[str, int] = field(default_factory=dict[str, int])
    """Commands that were slow in most rounds, and their time in the quickest of these, microseconds."""
    assets: int = 0
    one: int = 0
    """Commands that one viewer costs in `watched` seconds."""
    many: int = 0
    watched: float = 0.0

    def wrong(self) -> list[str]:
        found = [f"{name} took the server {us:,} µs" for name, us in self.slow.items()]
        if self.first_view > FIRST_VIEW:
            found.append(f"the first view took {self.first_view * 1000:.0f} ms")
        if self.assets > ASSETS:
            found.append(f"the assets have {self.assets:,} bytes")
        look = self.one / max(1.0, self.watched / 1.25)  # it is chance whether one look more falls into the time
        if self.many > MORE * self.one + look:
            found.append(f"50 viewers cost {self.many} commands, one costs {self.one}")
        if not self.many:
            found.append("50 viewers have seen nothing new")
        return found

    def lines(self) -> Iterator[str]:
        yield f"{self.tasks:,} tasks, {self.failed:,} of them failed"
        yield f"first view {self.first_view * 1000:.0f} ms; assets {self.assets:,} bytes"
        for name, seconds in self.views.items():
            yield f"  {name:40} {seconds * 1000:6.1f} ms"
        yield f"commands in {self.watched:g} s: one viewer {self.one}, 50 viewers {self.many}"
        yield "wrong: " + ("; ".join(self.wrong()) or "nothing")


def fill(url: str, tasks: int, failed: int) -> None:
    """Make the queue: most tasks ready or done, `failed` of them failed, some scheduled and in progress."""
    with Queue(NAME, url) as queue, redis.Redis.from_url(url) as raw:
        queue.configure(events="10MB", level="ends")
        queue.put("first")
        queue.ack(queue.claim())
        key = f"timeoutq:{{{NAME}}}:"
        queue.pause()
        queue.resume()
        for number, error in enumerate(ERRORS):
            queue.put(*(f"https://failing.example/{number}/{n}" for n in range(50)))
            queue.fail(queue.claim(50), f"{error} {number}", give_up=True)
        _like_those(raw, key, failed - queue.stats().failed)
        queue.schedule(*(f"https://later.example/{n}" for n in range(min(tasks // 100, 50_000))), after=86_400)
        left = tasks - queue.stats().known
        for state, count in (("todos", left // 2), ("done", left - left // 2)):
            for start in range(0, count, 10_000):
                raw.sadd(
                    key + state, *(f"https://{state}.example/{n}" for n in range(start, min(start + 10_000, count)))
                )
        queue.claim(500, timeout=3600)


def _like_those(raw: Any, key: str, count: int) -> None:
    # further failed tasks with the errors and the kinds of those that have failed
    kinds = raw.zrange(key + "kind_of", 0, -1, withscores=True)
    errors = raw.hmget(key + "errors", [id for id, _ in kinds])
    alike = [(error, score) for (_, score), error in zip(kinds, errors, strict=True)]
    for start in range(0, count, 5_000):
        rows = {f"https://failed.example/{n}": alike[n % len(alike)] for n in range(start, min(start + 5_000, count))}
        with raw.pipeline(transaction=False) as pipe:
            pipe.sadd(key + "failed", *rows)
            pipe.hset(key + "errors", mapping={id: error for id, (error, _) in rows.items()})
            pipe.zadd(key + "kind_of", {id: score for id, (_, score) in rows.items()})
            pipe.execute()


def views(url: str) -> Sequence[str]:
    here = f"/q/{NAME}"
    with Queue(NAME, url) as queue:
        kinds = queue.failures.list()
        failed = queue.list("failed", n=50)
        ready = queue.list("todos", n=50)
        leased = queue.list("in_progress", n=50)
    second = [f"{here}/tasks?state={page.state.value}&cursor={page.cursor}" for page in (failed, ready) if page.cursor]
    ids = [failed.entries[0].task, ready.entries[0].task, leased.entries[0].task, "https://nowhere.example/#x"]
    return [
        "/", here, f"{here}/failures", f"{here}/hosts", f"{here}/workers", f"{here}/log", f"{here}/put",
        *(f"{here}/tasks?state={state}" for state in ("todos", "scheduled", "in_progress", "done", "failed")),
        *second, f"{here}/kind?kind={kinds[0].id}", *(f"{here}/task?id={quote(id, safe='')}" for id in ids),
    ]  # fmt: skip


def first_view(web: WebProcess) -> float:
    """Give how long the first view takes of a gateway that has just begun, seconds."""
    with web:
        began = time.monotonic()
        answer = httpx.get(f"{web.base}/q/{NAME}", timeout=30)
        taken = time.monotonic() - began
    assert answer.status_code == 200
    return taken


def measure_views(base: str, raw: Any, paths: Sequence[str], found: Found) -> None:
    """Get each view some times; note how long it takes, and which commands were slow."""
    raw.config_set("slowlog-log-slower-than", SLOW_US)
    raw.config_set("slowlog-max-len", 1000)
    taken: dict[str, list[float]] = {path: [] for path in paths}
    slow, best = Counter[str](), dict[str, int]()
    for _ in range(ROUNDS):
        raw.slowlog_reset()
        with httpx.Client(base_url=base, timeout=30, headers={"accept": "text/html"}) as client:
            for path in paths:
                began = time.monotonic()
                answer = client.get(path)
                taken[path].append(time.monotonic() - began)
                assert answer.status_code == 200, (path, answer.text[:500])
                assert len(answer.content) < 200_000, path
        time.sleep(1.1)  # what was seen is fresh for a second
        names = {_named(entry): int(entry["duration"]) for entry in raw.slowlog_get(1000)}
        slow.update(names.keys())
        for name, us in names.items():
            best[name] = min(us, best.get(name, us))
    found.views = {path: sorted(times)[len(times) // 2] for path, times in taken.items()}
    found.slow = {name: best[name] for name, rounds in slow.items() if rounds > ROUNDS // 2}


def _named(entry: Any) -> str:
    words: bytes = entry["command"]
    return b" ".join(words.split()[:4]).decode("utf-8", "replace")[:120]


def commands(raw: Any) -> int:
    """Count the commands that the server has carried out, also those of scripts, but for our own."""
    stats = raw.info("commandstats")
    return sum(int(told["calls"]) for name, told in stats.items() if name not in ("cmdstat_info", "cmdstat_auth"))


def watch(base: str, path: str, viewers: int, seconds: float, raw: Any) -> int:
    """Let some viewers watch a page; give how many commands this costs in so many seconds."""
    over, ready = threading.Event(), threading.Semaphore(0)

    def look() -> None:
        with contextlib.suppress(httpx.HTTPError), httpx.Client(timeout=30) as client:
            with client.stream("GET", base + path) as stream:
                for number, _ in enumerate(stream.iter_lines()):
                    if number == 0:
                        ready.release()
                    if over.is_set():
                        return

    threads = [threading.Thread(target=look, daemon=True) for _ in range(viewers)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert ready.acquire(timeout=30), "a viewer gets nothing"
    before = commands(raw)
    time.sleep(seconds)
    count = commands(raw) - before
    over.set()
    for thread in threads:
        thread.join(10)
    return count


def run(tasks: int, failed: int, seconds: float = 10.0) -> Found:
    found = Found(watched=seconds, assets=sum(path.stat().st_size for path in paint.STATIC.iterdir()))
    with (
        EmbeddedServer() as server,
        redis.Redis.from_url(server.url) as raw,
        tempfile.TemporaryDirectory() as folder,
    ):
        web = WebProcess(server.url, Path(folder), "--log-level", "warning")
        fill(server.url, tasks, failed)
        with Queue(NAME, server.url) as queue:
            stats = queue.stats()
        found.tasks, found.failed = stats.known, stats.failed
        paths = views(server.url)
        found.first_view = min(first_view(web) for _ in range(ROUNDS))
        with web:
            measure_views(web.base, raw, paths, found)
            live = f"/q/{NAME}/live?view=queue"
            found.one = watch(web.base, live, 1, seconds, raw)
            found.many = watch(web.base, live, 50, seconds, raw)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=10_000_000)
    parser.add_argument("--failed", type=int, default=1_000_000)
    given = parser.parse_args()
    found = run(given.tasks, given.failed)
    print("\n".join(found.lines()))
    return 1 if found.wrong() else 0


if __name__ == "__main__":
    sys.exit(main())
