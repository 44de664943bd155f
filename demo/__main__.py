"""`python -m demo`: a crawl that finishes with nothing lost although workers are killed under it.

Starts a private server and a site, seeds the queue, runs worker processes and cleaners, kills workers with SIGKILL
while they hold leases, and compares what is done with a plain traversal of the same links.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from demo.links import canonical
from demo.traverse import traverse
from timeoutq import Queue, State
from timeoutq.dashboard import render, snapshot
from timeoutq.embedded import EmbeddedServer
from timeoutq.errors import TimeoutqError

HERE = Path(__file__).resolve().parent.parent
LEASE = 2.0


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass
class Crawl:
    """The processes of one crawl, and what happened to them."""

    queue: Queue
    url: str
    workers: int
    logs: Path
    concurrency: int = 8
    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict[int, "subprocess.Popen[bytes]"])
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list["subprocess.Popen[bytes]"])
    killed: int = 0

    def spawn(self, *command: str, name: str) -> subprocess.Popen[bytes]:
        """Start `python -m command` as a plain process; what it says goes to a file of its own."""
        environment = {**os.environ, "TIMEOUTQ_URL": self.url, "PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1"}
        with (self.logs / f"{name}.log").open("ab") as log:
            # a session of its own: Ctrl-C is for this process, which then ends the others in order
            return subprocess.Popen(  # noqa: S603  # our own commands
                [sys.executable, "-m", *command],
                cwd=HERE, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start_worker(self) -> None:
        """Start one more worker process."""
        number = len(self.running) + self.killed
        process = self.spawn(
            "timeoutq", "worker", self.queue.name, "demo.crawl:fetch", "--no-supervise", "--timeout", f"{LEASE}s",
            "--concurrency", str(self.concurrency), "--retry", "0.2,0.5,1,2,4", name=f"worker-{number}",
        )  # fmt: skip
        self.running[process.pid] = process

    def start_cleaner(self) -> None:
        """Start one more cleaner process."""
        name = f"cleaner-{len(self.helpers)}"
        self.helpers.append(self.spawn("timeoutq", "cleaner", self.queue.name, name=name))

    def kill_one(self) -> bool:
        """Kill a worker with SIGKILL while it holds leases, and start another; False when none holds any just now."""
        held: dict[int, int] = {}
        for entry in self.queue.list(State.IN_PROGRESS, n=500).entries:
            pid = int((entry.holder or "::").split(":")[1] or 0)
            held[pid] = held.get(pid, 0) + 1
        victims = [pid for pid in held if pid in self.running]
        if not victims:
            return False
        pid = random.choice(victims)  # noqa: S311  # any of them
        process = self.running.pop(pid)
        process.kill()
        process.wait()
        self.killed += 1
        self.start_worker()
        return True

    def check(self) -> None:
        """Say so when a process ended by itself."""
        for process in [*self.running.values(), *self.helpers]:
            if process.poll() is not None:
                logs = sorted(self.logs.glob("*.log"))
                said = "\n".join(f"{log.name}: {log.read_text('utf-8', 'replace')[-400:]}" for log in logs)
                raise DemoError(f"a process ended with {process.returncode}:\n{said}")

    def stop(self) -> None:
        """End all processes: asked first, killed after five seconds."""
        everyone = [*self.running.values(), *self.helpers]
        for process in everyone:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 5
        for process in everyone:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_site(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the site answers."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DemoError(f"the site ended with {process.returncode}")
        with suppress(httpx.TransportError):
            httpx.get(url, timeout=5.0, trust_env=False)
            return
        time.sleep(0.02)
    raise DemoError(f"the site does not answer at {url}")


def free_port() -> int:
    """Find a port that nobody listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def watch(crawl: Crawl, kills: int, console: Console, quiet: bool) -> float:
    """Show the crawl until the queue is drained, killing workers on the way; give the seconds it took."""
    began = time.monotonic()
    said = 0.0
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal and not quiet else None
    with live or ExitStack():
        while True:
            seen = snapshot(crawl.queue)
            stats = seen.stats
            if live is not None:
                live.update(render(seen, console.width, min(24, console.height)), refresh=True)
            elif not quiet and time.monotonic() - said >= 1:
                said = time.monotonic()
                console.print(
                    f"{said - began:5.1f} s  {stats.done} done, {stats.todos} todos, {stats.scheduled} scheduled, "
                    f"{stats.in_progress} in progress, {stats.failed} failed, {crawl.killed} killed",
                    highlight=False,
                )
            if stats.drained and stats.known:
                return time.monotonic() - began
            crawl.check()
            if crawl.killed < kills and stats.done >= 40 * (crawl.killed + 1):
                crawl.kill_one()
            time.sleep(0.1 if crawl.killed >= kills else 0.02)


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


def judge(queue: Queue, start: str, seconds: float, killed: int) -> dict[str, Any]:
    """Compare what the queue holds with a plain traversal of the same links."""
    done, failed = members(queue, State.DONE), members(queue, State.FAILED)
    reachable, dead = traverse(start)
    counters = queue.stats().counters
    return {
        "pages": len(done),
        "failed": len(failed),
        "seconds": round(seconds, 2),
        "pages_per_second": round(len(done) / seconds, 1),
        "killed": killed,
        "redeliveries": {
            "lease ran out": counters.get("expired", 0),
            "process died": counters.get("crashed", 0),
            "given back": counters.get("released", 0),
            "retried": counters.get("failed", 0) - counters.get("gave_up", 0),
        },
        "lost": len((reachable | dead) - done - failed),
        "unexpected": len(done - reachable) + len(failed - dead),
        "not_done": sorted(reachable - done)[:5],
        "not_reachable": sorted((done - reachable) | (failed - dead))[:5],
        "ok": done == reachable and failed == dead,
    }


def tell(verdict: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    table = Table(title="the crawl", title_justify="left", show_header=False, box=None)
    rows = [
        ("pages done", f"{verdict['pages']}"),
        ("dead links failed", f"{verdict['failed']}"),
        ("took", f"{verdict['seconds']} s, {verdict['pages_per_second']} pages/s"),
        ("workers killed with -9", f"{verdict['killed']}"),
        *((f"redelivered: {cause}", f"{count}") for cause, count in verdict["redeliveries"].items()),
        ("done but not reachable", f"{verdict['unexpected']}"),
        ("lost", f"{verdict['lost']}"),
    ]
    for name, value in rows:
        good = name not in ("lost", "done but not reachable") or value == "0"
        table.add_row(name, f"[{'bold green' if good else 'bold red'}]{value}[/]")
    console.print(table)
    if verdict["ok"]:
        console.print("[green]every page reachable from the start is done, and nothing else is[/]")
    else:
        console.print("[red]the crawl and the plain traversal differ:[/]")
        for url in (*verdict["not_done"], *verdict["not_reachable"]):
            console.print(f"  {url}", markup=False, highlight=False)


def main(
    site: Annotated[Path | None, typer.Option(help="Serve this folder of HTML, and crawl that.")] = None,
    url: Annotated[str | None, typer.Option(help="Crawl a site as it is, from this page.")] = None,
    redis: Annotated[str | None, typer.Option(help="Use this server instead of a private one.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 4,
    kills: Annotated[int | None, typer.Option(min=0, help="Workers to kill; 2, or none with --url.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Crawl a site with workers that are killed on the way, and show that nothing is lost."""
    if site is not None and url is not None:
        raise typer.BadParameter("give --site or --url, not both")
    if site is not None and not site.is_dir():
        raise typer.BadParameter(f"--site {site} is not a folder")
    if url is not None and canonical(url) is None:
        raise typer.BadParameter(f"--url {url} is not an http or https address")
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        verdict = crawl(site, url, redis, workers, kills if kills is not None else 0 if url else 2, console, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (TimeoutqError, DemoError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(3) from None
    if as_json:
        typer.echo(json.dumps(verdict))
    else:
        tell(verdict, console)
    raise typer.Exit(0 if verdict["ok"] else 1)


def crawl(
    site: Path | None, url: str | None, redis: str | None, workers: int, kills: int, console: Console, quiet: bool
) -> dict[str, Any]:
    """Run the whole; whatever happens, no process and no file of it is left."""
    with ExitStack() as stack:
        defer: Callable[..., Any] = stack.callback
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-demo-")))
        address = redis or stack.enter_context(EmbeddedServer()).url
        queue = stack.enter_context(Queue(f"demo-{secrets.token_hex(4)}", address, timeout=LEASE))
        defer(queue.purge)
        work = Crawl(queue, address, workers, logs)
        defer(work.stop)
        start = url
        if start is None:
            port = free_port()
            served = ["--dir", str(site.resolve())] if site is not None else []
            process = work.spawn("demo.site", "--port", str(port), *served, name="site")
            work.helpers.append(process)
            start = f"http://127.0.0.1:{port}/"
            wait_for_site(f"{start}healthz" if site is None else start, process)
        first = canonical(start)
        assert first is not None
        queue.put(first)
        for _ in range(workers):
            work.start_worker()
        for _ in range(2):
            work.start_cleaner()
        seconds = watch(work, kills, console, quiet)
        if not quiet:
            console.print("drained; now the same links, one after the other, without a queue …", highlight=False)
        return judge(queue, first, seconds, work.killed)


if __name__ == "__main__":
    typer.run(main)
