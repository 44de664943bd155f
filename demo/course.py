"""The course of a crawl: seeds the queue, runs workers and cleaners, kills some, and judges what came of it.

A crawl of the demo's own site is compared with a plain traversal of the same links; one of many hosts is judged by the
log of these hosts; of somebody else's site, nobody knows what it should have had. `command.py` calls this.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live

from demo import outside, polite, warc
from demo.hosts import Host, expected, generate
from demo.links import canonical, origin
from demo.options import Options
from demo.outage import Outage
from demo.place import Place
from demo.processes import DemoError, Interrupts, Processes, free_port, wait_for_site
from demo.report import words_of_progress, words_of_rules
from demo.seeds import Seeds
from demo.settings import Settings
from demo.summary import summarise
from demo.trail import Trail
from demo.traverse import traverse
from demo.verdict import Terms, judge_tasks, judge_visits, read_log
from timeoutq import State
from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.watch.draw import render
from timeoutq.watch.snapshot import Snapshot, snapshot
from timeoutq.words.text import safe

LEFT_ALONE = 120.0
"""A crawl has gone wrong when nothing is done for this long, seconds; one that visits pages again may rest for days."""


class Course:
    """One crawl from its first page to the verdict. Whatever happens, no process and no temporary file is left."""

    def __init__(self, options: Options, settings: Settings, console: Console, interrupts: Interrupts) -> None:
        self._options = options
        self._settings = settings
        self._console = console
        self._interrupts = interrupts
        self._outage: Outage | None = None

    def run(self, place: Place) -> dict[str, Any]:
        """Run the whole; give the verdict. Raises `DemoError`, `ArchiveError` and the errors of the queue."""
        options = self._options
        if self._settings.warc:
            warc.prepare(self._settings.warc, self._settings.room)
        with ExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-demo-")))
            queue = stack.enter_context(place.open())
            has_patterns = bool(self._settings.include or self._settings.exclude)
            settings = replace(
                self._settings, queue=queue.name, shards=len(talks_of(queue)), outside=str(logs) if has_patterns else ""
            )
            work = Processes(
                queue, place.address, options.workers, logs, settings, options.retry, place.lease,
                interrupts=self._interrupts,
            )  # fmt: skip
            stack.callback(work.stop)
            if place.cluster is not None:
                self._outage = Outage(place.cluster, queue, self._interrupts, self._say)
            self._say(words_of_rules(settings, options.per_host, place.durable))
            if options.guest:
                polite.set_up(queue, settings.delay, options.per_host)
            if options.hosts is not None:
                return self._finished(work, self._crawl_hosts(work, options.hosts))
            if options.foreign:
                return self._finished(work, self._crawl_foreign(work))
            return self._finished(work, self._crawl_own(work))

    def _say(self, line: str) -> None:
        if not self._options.as_json:
            self._console.print(line, highlight=False)

    def _finished(self, work: Processes, verdict: dict[str, Any]) -> dict[str, Any]:
        """Add what is known when all processes have ended."""
        work.stop()
        summary = summarise(work.queue, recrawl=self._settings.recrawl)
        found = {**verdict, **summary.figures()}
        if summary.again is not None:
            found["pages"] += summary.again.pages  # a page that is visited again is scheduled, never done
        if work.settings.shards > 1:
            found["shards"] = work.settings.shards
        if self._outage is not None:
            found["cluster"] = self._outage.figures()
        if work.settings.outside:
            found["outside_patterns"] = outside.count(work.settings.outside)
        if self._settings.warc:
            warc.mend(self._settings.warc)  # what killed workers have left
            files, size = warc.finished(self._settings.warc)
            found["warc"] = {"folder": self._settings.warc, "files": files, "bytes": size}
        return found

    def _crawl_own(self, work: Processes) -> dict[str, Any]:
        """Crawl the demo's own site, or a folder, and compare with a plain traversal."""
        site = self._options.site
        port = free_port()
        served = ["--dir", str(site.resolve())] if site is not None else []
        process = work.start_helper("demo.site", "--port", str(port), *served, name="site")
        start = canonical(f"http://127.0.0.1:{port}/")
        assert start is not None
        wait_for_site(f"{start}healthz" if site is None else start, process)
        seconds = self._crawl(work, start, every=40)
        self._say("drained; now the same links without a queue …")
        return judge(work.queue, start, seconds, work.killed)

    def _crawl_foreign(self, work: Processes) -> dict[str, Any]:
        """Crawl somebody's site, until nothing is left, or until Ctrl-C if pages are visited again."""
        first = canonical(self._options.url) if self._options.url is not None else None
        seeds = Seeds(work.settings, lambda line: typer.echo(f"demo: {safe(line)}", err=True))
        began = time.monotonic()
        try:
            seconds = self._crawl(work, first, every=40, seeds=seeds)
        except KeyboardInterrupt:
            if not work.settings.recrawl:
                raise
            seconds = time.monotonic() - began
        stats, trouble = work.queue.stats(), not_begun(work.queue, first)
        # nobody knows what a foreign site should have had
        verdict = {
            **outcome(work.queue, stats.done, stats.failed, seconds, work.killed),
            "lost": None, "unexpected": 0, "not_begun": trouble, "ok": trouble is None,
        }  # fmt: skip
        return {**verdict, "seeds": {"put": seeds.put, "outside": seeds.outside, "refused": seeds.refused}}

    def _crawl(self, work: Processes, first: str | None, every: int, seeds: Seeds | None = None) -> float:
        """Put the first pages, start the processes, and watch until it is over; give the seconds it took.

        If workers are to be killed, one is killed after each `every` pages; on a cluster, one primary is killed after
        the first `every` pages.
        """
        (seeds or Seeds(work.settings, self._say)).plant(work.queue, first, self._options.sitemap)
        if not work.queue.stats().known:
            raise DemoError("no page to begin with: the sitemap names none that belongs to the crawl")
        for _ in range(work.workers):
            work.start_worker()
        work.start_cleaner()  # each worker has one, too; this one lives on when workers are killed
        outage = self._outage if self._options.kills_primary else None
        kill = killer(work, self._options.most_kills, self._options.kill, every, outage)
        seconds = watch(work, kill, self._console, self._options.as_json)
        if outage is not None:
            outage.end()
        return seconds

    def _crawl_hosts(self, work: Processes, count: int) -> dict[str, Any]:
        """Crawl the generated hosts from the first of them, and judge by their log."""
        made = generate(count)
        port = free_port(made[0].address)
        log = work.logs / "visits.jsonl"
        server = work.start_helper(
            "demo.hosts", "--hosts", str(count), "--port", str(port), "--log", str(log), name="hosts"
        )
        wait_for_site(f"http://{made[-1].address}:{port}/robots.txt", server, work.logs / "hosts.log")
        log.write_text("")  # that visit was ours
        for host in made:
            if host.budget is not None:
                polite.set_budget(work.queue, f"{host.address}:{port}", host.budget)
        seconds = self._crawl(work, made[0].url(port), every=20)
        ending = f":{port}"  # a queue that is kept may hold the hosts of another run
        done, failed = (
            {url for url in members(work.queue, state) if origin(url).endswith(ending)}
            for state in (State.DONE, State.FAILED)
        )
        told_of = outcome(work.queue, len(done), len(failed), seconds, work.killed)
        work.stop()  # what is still being visited is logged now
        return {**told_of, **self._manners(work, made, port, done, failed)}

    def _manners(
        self, work: Processes, made: list[Host], port: int, done: set[str], failed: set[str]
    ) -> dict[str, Any]:
        """Judge by the log of the hosts whether the crawl was polite to each, and by the queue whether all is done."""
        processes = work.workers + work.killed
        right = expected(made, port)
        terms = Terms(
            work.settings.delay,
            self._options.per_host,
            {host.address: host.delay for host in made if host.delay is not None},
            {host.address: host.budget for host in made if host.budget is not None},
            processes,
        )
        forbidden = {(host.address, "/secret/diary") for host in made}
        manners = judge_visits(read_log(work.logs / "visits.jsonl"), terms, forbidden)
        limited = {host.url(port) for host in made if host.budget is not None}
        findings = [*manners.findings, *judge_tasks(done, failed, right.done, right.failed, limited)]
        return {
            "lost": sum(finding.kind == "lost" for finding in findings),
            "unexpected": sum(finding.kind == "unexpected" for finding in findings),
            "manners": {
                "visits": manners.visits,
                "hosts": manners.hosts,
                "nearest": manners.nearest,
                "most_at_once": manners.most_at_once,
                "again": manners.again,
            },
            "findings": [(finding.kind, finding.where, finding.what) for finding in findings[:20]],
            "ok": not findings,
        }


def watch(work: Processes, kill: Callable[[int], bool], console: Console, quiet: bool) -> float:
    """Show the crawl until nothing is left to do, and kill workers on the way; give the seconds that the crawl took.

    Raises `DemoError` when nothing is done any more.
    """
    began = moved = time.monotonic()
    before = -1
    most = math.inf if work.settings.recrawl else max(LEFT_ALONE, 2 * work.settings.most_pause)
    with _screen(work, console, quiet) as show:
        while True:
            seen = snapshot(work.queue)
            show(seen)
            stats = seen.stats
            if stats.known and polite.over(work.queue):
                return time.monotonic() - began
            work.check()
            if stats.done + stats.failed != before:
                before, moved = stats.done + stats.failed, time.monotonic()
            elif time.monotonic() - moved > most:
                raise DemoError(f"nothing was done for {time.monotonic() - moved:.0f} s: {stats}")
            time.sleep(0.02 if kill(stats.done) else 0.1)


@contextmanager
def _screen(work: Processes, console: Console, quiet: bool) -> Generator[Callable[[Snapshot], None]]:
    """Give a function that shows how far the crawl is: like the dashboard on a terminal, else in lines."""
    if quiet:
        yield lambda seen: None
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda seen: live.update(render(seen, console.width, min(24, console.height)), refresh=True)
    else:
        began = time.monotonic()
        said = -math.inf

        def show(seen: Snapshot) -> None:
            nonlocal said
            if time.monotonic() - said >= 1:
                said = time.monotonic()
                line = words_of_progress(seen.stats, polite.held_back(work.queue), work.killed)
                console.print(f"{said - began:5.1f} s  {line}", highlight=False, soft_wrap=True)

        yield show


def killer(
    work: Processes, kills: int, until_the_end: bool, every: int, outage: Outage | None
) -> Callable[[int], bool]:
    """Give a function that kills a worker when it is time; call it often, with the number of pages that are done.

    It kills `kills` workers that hold leases, one after each `every` pages; with `until_the_end` it kills any worker,
    every one to two seconds. The `outage` begins after the first `every` pages. It returns whether the caller should
    call again soon, because the next kill depends on the number of pages.
    """
    at = time.monotonic() + random.uniform(1, 2)  # noqa: S311  # any time will do

    def kill(done: int) -> bool:
        nonlocal at
        if outage is not None and done >= every:
            outage.look()
        if until_the_end and time.monotonic() >= at:
            at = time.monotonic() + random.uniform(1, 2)  # noqa: S311  # any time will do
            return work.kill_any()
        if work.killed < kills and done >= every * (work.killed + 1):
            work.kill_one()
        return work.killed < kills

    return kill


def members(queue: AnyQueue, state: State) -> set[str]:
    """Give the ids of all tasks in a state."""
    return {entry.task for entry in queue.each(state)}


def of_site(queue: AnyQueue, state: State, start: str) -> set[str]:
    """Read the tasks of one site in a state: a queue that is kept may hold other sites, too."""
    return {url for url in members(queue, state) if origin(url) == origin(start)}


def not_begun(queue: AnyQueue, first: str | None) -> dict[str, str] | None:
    """Give the page where the crawl ended before it began, as `url` and `error`; None if it could begin.

    It could not if the first page failed, or the page that this one redirects to. Without a first page, it could not if
    all pages of its sitemaps failed.
    """
    if first is not None:
        info = queue.inspect(first)
        if info.state is State.FAILED:
            return {"url": first, "error": info.error or "unknown"}
    stats = queue.stats()
    failed = next(iter(queue.list(State.FAILED, n=1).entries), None)
    if failed is None:
        return None
    hops = len(Trail.of(queue.inspect(failed.task).payload).redirects) if stats.failed == 1 else 0
    if stats.failed + hops < stats.known:
        return None
    return {"url": failed.task, "error": failed.error or "unknown"}


def outcome(queue: AnyQueue, done: int, failed: int, seconds: float, killed: int) -> dict[str, Any]:
    """Give the figures that are reported of every crawl."""
    stats, held_back = queue.stats(), polite.held_back(queue)
    counters = stats.counters
    return {
        "queue": queue.name,
        "pages": done,
        "failed": failed,
        "waiting": stats.waiting,
        "hosts_used_up": held_back.used_up,
        "hosts_blocked": held_back.blocked,
        "seconds": round(seconds, 2),
        "pages_per_second": round(done / seconds, 1),
        "killed": killed,
        "redeliveries": {
            "lease ran out": counters.get("expired", 0),
            "process died": counters.get("crashed", 0),
            "given back": counters.get("released", 0),
            "retried": max(0, counters.get("failed", 0) - counters.get("gave_up", 0)),
        },
    }


def judge(queue: AnyQueue, start: str, seconds: float, killed: int) -> dict[str, Any]:
    """Compare what the queue holds with a plain traversal of the same links."""
    done, failed = of_site(queue, State.DONE, start), of_site(queue, State.FAILED, start)
    reachable, dead = traverse(start)
    return {
        **outcome(queue, len(done), len(failed), seconds, killed),
        "lost": len((reachable | dead) - done - failed),
        "unexpected": len(done - reachable) + len(failed - dead),
        "not_done": sorted(reachable - done)[:5],
        "not_reachable": sorted((done - reachable) | (failed - dead))[:5],
        "ok": done == reachable and failed == dead,
    }
