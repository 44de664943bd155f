"""The commands that look and change nothing: status, dashboard, list, inspect, drained, doctor, bench.

`app.py` runs them.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from timeoutq.cli.app import NOTHING, AsJson, Name, Url, UrlFile, app, open_queue, server_address
from timeoutq.cli.printing import Sink, iso, plain
from timeoutq.cli.reading import moment, seconds
from timeoutq.model import State
from timeoutq.text import age, safe


@app.command(rich_help_panel="Looking")
def status(queue: Name, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Show the queue once, as the dashboard does."""
    from timeoutq import dashboard as board

    with open_queue(queue, url, url_file) as opened:
        seen = board.snapshot(opened)
    if as_json:
        Sink(True).document(board.to_json(seen))
    else:
        board.show(seen)


@app.command(rich_help_panel="Looking")
def dashboard(
    queue: Name,
    interval: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Between two looks.")] = "1s",  # type: ignore[assignment]  # typer parses the default
    url: Url = None, url_file: UrlFile = None,
) -> None:  # fmt: skip
    """Watch the queue live; q or Ctrl-C ends it."""
    from timeoutq import dashboard as board

    with open_queue(queue, url, url_file) as opened:
        if not sys.stdout.isatty():
            board.show(board.snapshot(opened))
            return
        board.run(opened, interval)


@app.command("list", rich_help_panel="Looking")
def list_state(
    queue: Name, state: Annotated[State, typer.Argument(help="The state to page through.")],
    cursor: Annotated[str | None, typer.Option(help="Go on where a page ended.")] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="About so many a page.")] = 100,
    everything: Annotated[bool, typer.Option("--all", help="All pages.")] = False,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """List the tasks in a state: by deadline, by due time, or in no order."""
    sink = Sink(as_json)
    with open_queue(queue, url, url_file) as opened:
        while True:
            page = opened.list(state.value, cursor, limit)
            rows = ((e.task, iso(e.at), e.holder, e.error) for e in page.entries)
            sink.rows(("task", "at", "holder", "error"), rows)
            cursor = page.cursor
            if cursor is None or not everything:
                break
    if cursor is not None:
        typer.echo(f"timeoutq: more with --cursor {cursor}, or --all", err=True)


@app.command(rich_help_panel="Looking")
def inspect(queue: Name, task: str, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Tell all about one task; exit 1 when no state holds it."""
    with open_queue(queue, url, url_file) as opened:
        info = opened.inspect(task)
    sink = Sink(as_json)
    if as_json:
        sink.document(info)
    else:
        facts: dict[str, Any] = {
            "task": info.task,
            "state": info.state or "unknown: no state holds it",
            "due": iso(info.due),
            "lease left": None if info.lease_left is None else age(info.lease_left),
            "deadline": iso(info.deadline),
            "host": info.host,
            "holder": info.holder,
            "failures": info.failures or None,
            "crashes": info.crashes or None,
            "last error": info.error,
            "last error at": iso(info.error_at),
            "payload": None if info.payload is None else json.dumps(plain(info.payload)),
        }
        sink.rows(("fact", "value"), ((name, value) for name, value in facts.items() if value is not None))
    if info.state is None:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def drained(
    queue: Name, before: Annotated[float | None, typer.Option(parser=moment, metavar="TIME")] = None,
    wait: Annotated[float | None, typer.Option(parser=seconds, metavar="TIME", help="Wait so long for it.")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Say whether nothing is ready, held, scheduled, or waiting for its host's turn: exit 0 for yes, 1 for no."""
    with open_queue(queue, url, url_file) as opened:
        found = opened.drained(before) if wait is None else opened.wait_drained(wait, before)
    Sink(as_json).document({"drained": found}) if as_json else typer.echo("yes" if found else "no")
    if not found:
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def doctor(
    queue: Annotated[str, typer.Argument(metavar="[QUEUE]")] = "doctor",
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Examine the server and the queue: what is right, what is not, and the cure. Exit 1 when something is red."""
    from timeoutq import doctor as examine

    with open_queue(queue, url, url_file, allow_eviction=True) as opened:
        findings = examine.examine(opened)
    sink = Sink(as_json)
    if as_json or not sys.stdout.isatty():
        sink.rows(("check", "verdict", "found", "cure"), ((f.check, f.verdict, f.found, f.cure) for f in findings))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for finding in findings:
            colour, mark = examine.MARKS[finding.verdict]
            line = Text.assemble((f"{mark} ", colour), (f"{finding.check:<12} ", "bold"), safe(finding.found))
            if finding.cure:
                line.append(f"\n  → {safe(finding.cure)}", style=colour)
            console.print(line)
    if any(finding.verdict == "red" for finding in findings):
        raise typer.Exit(NOTHING)


@app.command(rich_help_panel="Looking")
def bench(
    url: Url = None, url_file: UrlFile = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="These figures, with their limits.")] = None,
    latency: Annotated[bool, typer.Option("--latency", help="A worker behind delays of 0 to 200 ms.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; else 3, or 2 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything, and nothing heavy.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a target is missed.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Measure timeoutq beside the raw limits of a server: an embedded one, or that at --url, which will be busy.

    It works on queues of its own, named bench-…, and removes them.
    """
    from timeoutq.bench import report

    address = None if url is None and url_file is None else server_address(url, url_file)
    found = report.measure(address, only or [], rounds=rounds, quick=quick, far=latency)
    Sink(True).document(report.to_json(found)) if as_json else report.show(found)
    if check and found.missed:
        raise typer.Exit(NOTHING)
