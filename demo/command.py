"""What `python -m demo` does: crawls that finish with nothing lost although workers are killed under them.

Starts a private server and a site, seeds the queue, runs worker processes and cleaners, kills workers with SIGKILL
while they hold leases, and compares what is done with a plain traversal of the same links. With --hosts it crawls many
generated hosts instead, each of its own temper, and judges by their log whether the crawl was polite to each. With
--url it is a crawler: a guest on somebody's site, which it keeps to.
"""

from __future__ import annotations

import json
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from demo import polite
from demo.crawl import Trail
from demo.hosts import MOST, expected, generate
from demo.links import canonical, origin
from demo.processes import LEASE as LEASE
from demo.processes import Crawl, DemoError, Interrupts, wait_for_site
from demo.processes import free_port as free_port
from demo.settings import SITES, Settings, SettingsError
from demo.traverse import traverse
from demo.verdict import Terms, judge_tasks, judge_visits, read_log
from timeoutq import Queue, State, Stats
from timeoutq.address import redact
from timeoutq.embedded import EmbeddedServer
from timeoutq.errors import TimeoutqError
from timeoutq.text import safe
from timeoutq.watch.draw import render
from timeoutq.watch.snapshot import snapshot

OWN = Settings(site="origin", allow_private=True)
"""The demo's own site is on loopback, and nobody is disturbed by haste."""

LEFT_ALONE = 120.0
"""A crawl of many hosts has gone wrong when nothing is done for this long, seconds."""


def watch(crawl: Crawl, kill: Callable[[int], bool], console: Console, quiet: bool) -> float:
    """Show the crawl until nothing is left to do, and kill workers on the way; give the seconds that the crawl took.

    Raises `DemoError` when nothing is done any more.
    """
    began = moved = time.monotonic()
    said = 0.0
    before = -1
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal and not quiet else None
    with live or ExitStack():
        while True:
            seen = snapshot(crawl.queue)
            stats = seen.stats
            if live is not None:
                live.update(render(seen, console.width, min(24, console.height)), refresh=True)
            elif not quiet and time.monotonic() - said >= 1:
                said = time.monotonic()
                line = progress(stats, polite.held_back(crawl.queue), crawl.killed)
                console.print(f"{said - began:5.1f} s  {line}", highlight=False, soft_wrap=True)
            if stats.known and polite.over(crawl.queue):
                return time.monotonic() - began
            crawl.check()
            if stats.done + stats.failed != before:
                before, moved = stats.done + stats.failed, time.monotonic()
            elif time.monotonic() - moved > max(LEFT_ALONE, 2 * crawl.settings.most_pause):
                raise DemoError(f"nothing was done for {time.monotonic() - moved:.0f} s: {stats}")
            time.sleep(0.02 if kill(stats.done) else 0.1)


def progress(stats: Stats, held_back: polite.HeldBack, killed: int) -> str:
    """Say in one line how far a crawl is; counts of zero are left out."""
    counts = (
        (stats.waiting, "waiting"), (stats.todos, "todos"), (stats.scheduled, "scheduled"),
        (stats.in_progress, "in progress"), (stats.failed, "failed"), (killed, "killed"),
    )  # fmt: skip
    line = ", ".join([f"{stats.done} done", *(f"{count} {what}" for count, what in counts if count)])
    return f"{line}; hosts: {held_back}" if str(held_back) else line


def members(queue: Queue, state: State) -> set[str]:
    """Read a whole state, page by page."""
    found: set[str] = set()
    cursor: str | None = None
    while True:
        page = queue.list(state, cursor, 500)
        found |= {entry.task for entry in page.entries}
        cursor = page.cursor
        if cursor is None:
            return found


def of_site(queue: Queue, state: State, start: str) -> set[str]:
    """Read the tasks of one site in a state: a queue that is kept may hold other sites, too."""
    return {url for url in members(queue, state) if origin(url) == origin(start)}


def outcome(queue: Queue, done: set[str], failed: set[str], seconds: float, killed: int) -> dict[str, Any]:
    """Give the figures that are reported of every crawl."""
    stats, held_back = queue.stats(), polite.held_back(queue)
    counters = stats.counters
    return {
        "queue": queue.name,
        "pages": len(done),
        "failed": len(failed),
        "waiting": stats.waiting,
        "hosts_used_up": held_back.used_up,
        "hosts_blocked": held_back.blocked,
        "seconds": round(seconds, 2),
        "pages_per_second": round(len(done) / seconds, 1),
        "killed": killed,
        "redeliveries": {
            "lease ran out": counters.get("expired", 0),
            "process died": counters.get("crashed", 0),
            "given back": counters.get("released", 0),
            "retried": max(0, counters.get("failed", 0) - counters.get("gave_up", 0)),
        },
    }


def judge(queue: Queue, start: str, seconds: float, killed: int) -> dict[str, Any]:
    """Compare what the queue holds with a plain traversal of the same links."""
    done, failed = of_site(queue, State.DONE, start), of_site(queue, State.FAILED, start)
    reachable, dead = traverse(start)
    return {
        **outcome(queue, done, failed, seconds, killed),
        "lost": len((reachable | dead) - done - failed),
        "unexpected": len(done - reachable) + len(failed - dead),
        "not_done": sorted(reachable - done)[:5],
        "not_reachable": sorted((done - reachable) | (failed - dead))[:5],
        "ok": done == reachable and failed == dead,
    }


def told(settings: Settings, delay: float, per_host: int) -> str:
    """Say in a line under which rules a crawl runs."""
    return ", ".join(
        [
            f"delay {delay:g} s, {per_host} at once a host" if delay else "delay 0",
            "robots.txt asked" if settings.robots else "robots.txt not asked",
            "private addresses allowed" if settings.allow_private else "public addresses only",
            f"links to the same {settings.site}" if settings.site != "any" else "links to anywhere",
            *([f"depth up to {settings.depth}"] if settings.depth is not None else []),
        ]
    )


def _left(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    hosts, blocked = verdict["hosts_used_up"], verdict["hosts_blocked"]
    beyond = f"{verdict['waiting']}, of {hosts} host{'' if hosts == 1 else 's'}"
    return [
        *([("pages beyond a budget", beyond)] if verdict["waiting"] else []),
        *([("hosts still blocked", f"{blocked}")] if blocked else []),
    ]


def tell(verdict: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    table = Table(title="the crawl", title_justify="left", show_header=False, box=None)
    bad_unless_0 = ("lost", "done but not reachable")
    manners = verdict.get("manners")
    rows = [
        ("pages done", f"{verdict['pages']}"),
        ("given up" if verdict["lost"] is None or manners else "dead links failed", f"{verdict['failed']}"),
        *_left(verdict),
        ("took", f"{verdict['seconds']} s, {verdict['pages_per_second']} pages/s"),
        ("workers killed with -9", f"{verdict['killed']}"),
        *((f"redelivered: {cause}", f"{count}") for cause, count in verdict["redeliveries"].items()),
    ]
    if manners:
        rows += [
            ("hosts visited", f"{manners['hosts']}, {manners['visits']} visits"),
            ("two visits of a host", f"{manners['nearest']} s apart at least"),
            ("visits of a host at once", f"{manners['most_at_once']} at most"),
            ("pages fetched again", f"{manners['again']}"),
        ]
    if verdict["lost"] is not None:
        rows += [("done but not reachable", f"{verdict['unexpected']}"), ("lost", f"{verdict['lost']}")]
    for name, value in rows:
        good = name not in bad_unless_0 or value == "0"
        table.add_row(name, f"[{'bold green' if good else 'bold red'}]{value}[/]")
    console.print(table)
    if manners:
        for kind, where, what in verdict["findings"]:
            console.print(f"[red]{escape(f'{kind}: {safe(where)}: {safe(what)}')}[/]")
        if verdict["ok"]:
            console.print(
                "[green]every page within its host's budget is done, and no host was visited too soon or too often[/]"
            )
    elif verdict["lost"] is None:
        console.print("[green]everything that was found is done or given up[/]")
    elif verdict["ok"]:
        console.print("[green]every page reachable from the start is done, and nothing else is[/]")
    else:
        console.print("[red]the crawl and the plain traversal differ:[/]")
        for url in (*verdict["not_done"], *verdict["not_reachable"]):
            console.print(f"  {safe(url)}", markup=False, highlight=False)


def main(
    site: Annotated[Path | None, typer.Option(help="Serve this folder of HTML, and crawl that.")] = None,
    url: Annotated[str | None, typer.Option(help="Crawl a site as it is, from this page, as a polite guest.")] = None,
    hosts: Annotated[int | None, typer.Option(min=1, max=MOST, help="Crawl this many generated hosts.")] = None,
    queue: Annotated[str | None, typer.Option(help="Work on a queue of this name; it must be new, or kept.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the queue as it is at the end.")] = False,
    redis: Annotated[str | None, typer.Option(help="Use this server instead of a private one.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 4,
    kills: Annotated[int | None, typer.Option(min=0, help="Workers to kill; 2, or none with --url or --hosts.")] = None,
    kill: Annotated[bool, typer.Option("--kill", help="Kill workers at random until the end.")] = False,
    delay: Annotated[float | None, typer.Option(min=0, help="Seconds between two visits of a host; 1.")] = None,
    per_host: Annotated[int, typer.Option(min=1, help="Visits of a host at once.")] = 1,
    depth: Annotated[int | None, typer.Option(min=0, help="Follow links at most this far.")] = None,
    same_site: Annotated[str | None, typer.Option(help=f"Follow links to the same … : {', '.join(SITES)}.")] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="Longer pages fail.")] = Settings.max_bytes,
    allow_private: Annotated[bool, typer.Option("--allow-private", help="Allow addresses like 10.0.0.1.")] = False,
    results: Annotated[Path | None, typer.Option(help="Append a line of JSON for each page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Crawl with workers that are killed on the way, and show that nothing is lost."""
    if sum(given is not None for given in (site, url, hosts)) > 1:
        raise typer.BadParameter("give one of --site, --url and --hosts")
    if site is not None and not site.is_dir():
        raise typer.BadParameter(f"--site {site} is not a folder")
    if url is not None and canonical(url) is None:
        raise typer.BadParameter(f"--url {url} is not an http or https address")
    if results is not None and not results.absolute().parent.is_dir():
        raise typer.BadParameter(f"--results {results}: there is no folder {results.absolute().parent}")
    if same_site is not None and same_site not in SITES:
        raise typer.BadParameter(f"--same-site {same_site} is none of {', '.join(SITES)}")
    guest = url is not None or hosts is not None
    if not guest and (delay, depth, same_site) != (None, None, None):
        raise typer.BadParameter("--delay, --depth and --same-site are for --url and --hosts: give one of these too")
    if hosts is not None and (depth, same_site) != (None, None):
        raise typer.BadParameter("--depth and --same-site are for --url: the generated hosts are crawled whole")
    between = 0.0 if not guest else 1.0 if delay is None else delay
    limits = Settings(
        delay=between, max_bytes=max_bytes, depth=depth, results=str(results.absolute()) if results is not None else ""
    )
    if url is not None:
        settings = replace(limits, site=same_site or "host", allow_private=allow_private)
    elif hosts is not None:
        # the hosts are the demo's own; the depth ends an endless calendar that no budget ends
        settings = replace(limits, site="any", allow_private=True, depth=60, most_pause=60.0)
    else:
        # the plain traversal, with which the crawl is compared, does not read a folder's robots.txt
        settings = replace(OWN, robots=site is None, max_bytes=max_bytes, results=limits.results)
    count = kills if kills is not None else 0 if guest else 2
    console = Console(highlight=False)
    interrupts = Interrupts()
    interrupts.install()
    try:
        with ExitStack() as stack:
            address = redis or stack.enter_context(EmbeddedServer()).url
            verdict = run(
                site, url, hosts, Place(address, queue, keep), workers, count, kill, settings, per_host, console,
                as_json, interrupts,
            )  # fmt: skip
            say(verdict, console, as_json)
            where = partial(tell_where, verdict["queue"], address, private=redis is None)
            if keep and redis is None:
                interrupts.wait(where)
            elif keep:
                where()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (TimeoutqError, DemoError, SettingsError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(3) from None
    raise typer.Exit(0 if verdict["ok"] else 1)


def say(verdict: dict[str, Any], console: Console, as_json: bool) -> None:
    """Print the result, for people or as JSON."""
    if as_json:
        typer.echo(json.dumps(verdict))
    else:
        tell(verdict, console)


def tell_where(queue: str, address: str, private: bool) -> None:
    """Say how the queue that was kept can be looked at."""
    until = " until Ctrl-C" if private else ""
    typer.echo(f"queue {queue} is kept{until}; look at it: timeoutq status {queue} --url {redact(address)}", err=True)


@dataclass(frozen=True)
class Place:
    """Where a crawl's queue is, and what becomes of it."""

    address: str
    name: str | None = None
    """None: a new name."""
    keep: bool = False
    """Whether it stays after the crawl."""

    @contextmanager
    def open(self) -> Generator[Queue]:
        """Open the queue, and purge it at the end unless it is kept.

        Raises `DemoError` when there is such a queue already and it is not to be kept: it is not ours to purge.
        """
        with Queue(self.name or f"demo-{secrets.token_hex(4)}", self.address, timeout=LEASE) as queue:
            if not self.keep and queue.exists():
                raise DemoError(
                    f"there is a queue {queue.name} already, and the demo would purge it: give --keep, or another name"
                )
            try:
                yield queue
            finally:
                if not self.keep:
                    queue.purge()


def run(
    site: Path | None, url: str | None, hosts: int | None, place: Place, workers: int, kills: int, kill: bool,
    settings: Settings, per_host: int, console: Console, quiet: bool, interrupts: Interrupts,
) -> dict[str, Any]:  # fmt: skip
    """Run the whole; whatever happens, no process and no file of it is left."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-demo-")))
        queue = stack.enter_context(place.open())
        settings = replace(settings, queue=queue.name)
        retry = "0.2,0.5,1,2,4" if url is None else "1,10,60,300"
        work = Crawl(queue, place.address, workers, logs, settings, retry, interrupts=interrupts)
        stack.callback(work.stop)
        if not quiet:
            console.print(told(settings, settings.delay, per_host), highlight=False)
        if url is not None or hosts is not None:
            polite.set_up(queue, settings.delay, per_host)
        if hosts is not None:
            return crawl_hosts(work, hosts, kills, kill, per_host, console, quiet)
        start = url
        if start is None:
            port = free_port()
            served = ["--dir", str(site.resolve())] if site is not None else []
            process = work.start_helper("demo.site", "--port", str(port), *served, name="site")
            start = f"http://127.0.0.1:{port}/"
            wait_for_site(f"{start}healthz" if site is None else start, process)
        first = canonical(start)
        assert first is not None
        seconds = crawl(work, first, killer(work, kills, kill, every=40), console, quiet)
        if url is not None:
            done, failed = members(queue, State.DONE), members(queue, State.FAILED)
            told_of = outcome(queue, done, failed, seconds, work.killed)
            # nobody knows what a foreign site should have had
            return {**told_of, "lost": None, "unexpected": 0, "ok": True}
        if not quiet:
            console.print("drained; now the same links, one after the other, without a queue …", highlight=False)
        return judge(queue, first, seconds, work.killed)


def crawl(work: Crawl, first: str, kill: Callable[[int], bool], console: Console, quiet: bool) -> float:
    """Put the first page, start the processes, and watch until it is over; give the seconds it took."""
    work.queue.put({first: Trail().payload()})
    for _ in range(work.workers):
        work.start_worker()
    for _ in range(2):
        work.start_cleaner()
    return watch(work, kill, console, quiet)


def killer(work: Crawl, kills: int, until_the_end: bool, every: int) -> Callable[[int], bool]:
    """Give what kills a worker when it is time: each `every` pages one that holds leases, or each second or two any.

    It is called with the number of pages done, and says whether more kills may come soon.
    """
    at = time.monotonic() + random.uniform(1, 2)  # noqa: S311  # any time will do

    def kill(done: int) -> bool:
        nonlocal at
        if until_the_end and time.monotonic() >= at:
            at = time.monotonic() + random.uniform(1, 2)  # noqa: S311  # any time will do
            return work.kill_any()
        if work.killed < kills and done >= every * (work.killed + 1):
            work.kill_one()
        return work.killed < kills

    return kill


def crawl_hosts(
    work: Crawl, count: int, kills: int, kill: bool, per_host: int, console: Console, quiet: bool
) -> dict[str, Any]:
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
    seconds = crawl(work, made[0].url(port), killer(work, kills, kill, every=20), console, quiet)
    port_of = f":{port}"  # a queue that is kept may hold the hosts of another run
    done, failed = (
        {url for url in members(work.queue, state) if origin(url).endswith(port_of)}
        for state in (State.DONE, State.FAILED)
    )
    told_of = outcome(work.queue, done, failed, seconds, work.killed)
    processes = work.workers + work.killed
    work.stop()  # what is still being visited is logged now
    right = expected(made, port)
    terms = Terms(
        work.settings.delay,
        per_host,
        {host.address: host.delay for host in made if host.delay is not None},
        {host.address: host.budget for host in made if host.budget is not None},
        processes,
    )
    forbidden = {(host.address, "/secret/diary") for host in made}
    manners = judge_visits(read_log(log), terms, forbidden)
    limited = {host.url(port) for host in made if host.budget is not None}
    findings = [*manners.findings, *judge_tasks(done, failed, right.done, right.failed, limited)]
    return {
        **told_of,
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


def start() -> None:
    """Read the words of the command line and run."""
    typer.run(main)
