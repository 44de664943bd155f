"""The commands that examine: doctor, a server and a queue; report, a crawl; check, a spider; bench, this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timeoutq.cli.app import exit_unless, say, unknown_words
from timeoutq.cli.command import Name, Seconds, Server, argument, command, queue_names
from timeoutq.cli.printing import Sink
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.watch.doctor import Finding, Limits


@command()
def doctor(
    queue: Annotated[
        str | None,
        argument("[QUEUE]", "Name of the queue; without it, only the server is examined.", autocompletion=queue_names),
    ] = None,
    workers: Annotated[int | None, "N 0..: Red when fewer than N workers are alive."] = None,
    here: Annotated[bool, "Let --workers count only workers on this machine, or in this container."] = False,
    max_failed: Annotated[int | None, "N 0..: Red when more than N tasks have failed."] = None,
    max_age: Annotated[
        Seconds | None, "Red when ready tasks wait for longer than TIME; `timeoutq help health`: how this is measured."
    ] = None,
    repair: Annotated[bool, "First mend what a hand, or a call that stopped half-way, has left."] = False,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Examine the server and the queue: what is right, what is not, and the cure. Exit 1 when something is red.

    With --workers, --max-failed or --max-age the command is a health check of a
    queue, for containers and monitors.
    """
    from timeoutq.watch.doctor import Limits

    wanted = Limits(workers, max_failed, max_age, here)
    if here and workers is None:
        raise InvalidInput("--here is about --workers: give --workers 1 as well")
    if wanted and queue is None:
        raise InvalidInput("--workers, --max-failed and --max-age are about a queue: name one")
    if repair and queue is None:
        raise InvalidInput("--repair is about a queue: name one")

    with server.open(queue or "doctor", allow_eviction=True, waits=True) as opened:
        findings = _examined(opened, wanted, named=queue is not None, repair=repair)
    _show_findings(findings, out)
    exit_unless(all(finding.verdict != "red" for finding in findings))


def _examined(opened: AnyQueue, wanted: Limits, *, named: bool, repair: bool) -> list[Finding]:
    from timeoutq.client.shards import ShardedQueue
    from timeoutq.server.troubles import is_sharded
    from timeoutq.watch import divided, nodes
    from timeoutq.watch import doctor as examine

    mended = [examine.repair(opened)] if repair else []
    findings = mended + nodes.examine(opened)
    try:
        if isinstance(opened, ShardedQueue):
            findings += divided.examine(opened)
        else:
            findings += examine.examine(opened, named=named)
        with suppress(TimeoutqError):  # another check reports this error
            stats = opened.stats()
            # if a worker waits for the first task of a queue, the queue's name is not mistyped
            if named and not stats.exists and not stats.workers:
                findings.append(examine.Finding("queue", "red", unknown_words(opened)))
    except Unavailable as error:
        if not findings:
            raise
        findings.append(examine.Finding("queue", "red", str(error)))  # the node of the queue is away
    try:
        findings += examine.check_limits(opened, wanted) if wanted else []
    except TimeoutqError as error:
        if is_sharded(error):
            raise
        findings.append(examine.Finding("health", "red", str(error)))
    return findings


MARKS = {"green": "✓", "yellow": "!", "red": "✗"}


def _show_findings(findings: Sequence[Finding], out: Sink) -> None:
    if out.as_json or not sys.stdout.isatty():
        out.rows(("check", "verdict", "found", "cure"), ((f.check, f.verdict, f.found, f.cure) for f in findings))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for finding in findings:
            colour = finding.verdict
            line = Text.assemble((f"{MARKS[colour]} ", colour), (f"{finding.check:<12} ", "bold"), safe(finding.found))
            if finding.cure:
                line.append(f"\n  → {safe(finding.cure)}", style=colour)
            console.print(line)


@command()
def bench(
    *, server: Server, only: Annotated[list[str] | None, "NAME: Only these: put, claim, worker, pickup, calls."] = None,
    each: Annotated[Seconds, "--for: How long to take each figure, like 500ms."] = Seconds(3.0), out: Sink,
) -> None:  # fmt: skip
    """Measure how many tasks a second a server gives, and how soon an idle worker picks up a task.

    The server is an embedded one, or the one at --url, which will be busy for half a minute.
    The work is in queues named bench-…, which are removed in the end, also by Ctrl-C.
    """
    from timeoutq.cli.bench import measures

    tell: Callable[[str], object] = say if sys.stderr is not None and sys.stderr.isatty() else bool
    found = measures.measure(server.address(), only or [], seconds=each, tell=tell)
    if out.as_json:
        out.document(found)
        return
    tell(f"timeoutq bench: {found['server']}, {found['machine']}")
    rows = [{**row, "value": measures.number(row["value"])} for row in found["figures"]]
    out.rows([*rows[0]], ([*row.values()] for row in rows))


@command()
def report(
    queue: Name, html: Annotated[Path | None, "FILE: Write the report there; - is stdout."] = None,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Draw pictures of a crawl: states over time, rates, durations, errors by kind, hosts.

    The report is one file of HTML, which needs no network and runs no script.
    """
    if (html is None) != out.as_json:
        raise InvalidInput("say what is wanted: --html FILE or --json")
    from timeoutq.watch import report as reports

    with server.known(queue) as opened:
        found = reports.gather(opened)
    if html is None:
        out.document(reports.document(found))
        return
    text = reports.page(found)
    if str(html) == "-":
        sys.stdout.write(text)
        return
    part = html.with_name(f".{html.name}.{os.getpid()}")  # so that nobody reads half of a report
    try:
        part.write_text(text, "utf-8")
        part.replace(html)
    except OSError as error:
        raise InvalidInput(f"cannot write {html}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    say(f"wrote {html}, {len(text.encode()) // 1024 + 1} KiB")


@command()
def check(
    project: Annotated[Path, argument("PROJECT", "Folder with scrapy.cfg.")],
    spider: Annotated[str, argument("SPIDER", "Name of the spider.")],
    page: Annotated[str, argument("URL", "The page to fetch.")],
    callback: Annotated[str | None, "NAME: The method that parses it."] = None,
    given: Annotated[list[str] | None, "-a NAME=VALUE: An argument of the spider."] = None,
    *, out: Sink,
) -> None:  # fmt: skip
    """Fetch one page with a spider of Scrapy, and list what timeoutq would refuse. Exit 1: something.

    No queue is used, no item is stored, and no link is followed.
    """
    try:
        from timeoutq.scrapy.trial import judge
    except ModuleNotFoundError as error:
        raise InvalidInput(f"check needs Scrapy (pip install 'timeoutq[scrapy]'): {error}") from None

    arguments = {name: value for name, _, value in (one.partition("=") for one in given or ())}
    found = judge(project, spider, page, callback, arguments)
    if not found.responses and not found.refused:
        found.refused.append("no response reached the spider: the log above says why")
    if out.as_json:
        out.document(found)
    else:
        for line in found.refused:
            typer.echo(f"refused: {safe(line)}")
        typer.echo(f"{found.requests} requests, {found.items} items, {len(found.refused)} refused")
    exit_unless(not found.refused)
