"""What a crawl tells people: how far it is, what came of it, by host and by kind of error, and where its queue is."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.polite import HeldBack
from demo.settings import Settings
from timeoutq import Stats
from timeoutq.server.address import redact
from timeoutq.words.text import safe

SHOWN = 10
"""How many hosts, and how many kinds of errors, people are shown."""


def words_of_progress(stats: Stats, held_back: HeldBack, killed: int) -> str:
    """Give the line that says how far a crawl is; counts of zero are left out."""
    counts = (
        (stats.waiting, "waiting"), (stats.todos, "todos"), (stats.scheduled, "scheduled"),
        (stats.in_progress, "in progress"), (stats.failed, "failed"), (killed, "killed"),
    )  # fmt: skip
    line = ", ".join([f"{stats.done} done", *(f"{count} {what}" for count, what in counts if count)])
    return f"{line}; hosts: {held_back}" if str(held_back) else line


def words_of_rules(settings: Settings, per_host: int, durable: int | None = None) -> str:
    """Give the line that says under which rules a crawl runs."""
    again = f"again after {settings.shortest:g} s to {settings.longest:g} s" if settings.recrawl else ""
    return ", ".join(
        [
            f"delay {settings.delay:g} s, {per_host} at once a host" if settings.delay else "delay 0",
            "robots.txt asked" if settings.robots else "robots.txt not asked",
            "private addresses allowed" if settings.allow_private else "public addresses only",
            f"links to the same {settings.site}" if settings.site != "any" else "links to anywhere",
            *([f"depth up to {settings.depth}"] if settings.depth is not None else []),
            *([again] if again else []),
            *([f"{settings.shards} shards"] if settings.shards > 1 else []),
            *(["confirmed by a replica"] if durable else []),
            *([f"archived in {settings.warc}"] if settings.warc else []),
        ]
    )


def say_result(verdict: dict[str, Any], console: Console, as_json: bool) -> None:
    """Print the result, for people or as JSON."""
    if as_json:
        typer.echo(json.dumps(verdict))
    else:
        say_to_people(verdict, console)


def say_to_people(verdict: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    table = Table(title="the crawl", title_justify="left", show_header=False, box=None)
    bad_unless_0 = ("lost", "done but not reachable")
    for name, value in _rows(verdict):
        good = name not in bad_unless_0 or value == "0"
        table.add_row(name, f"[{'bold green' if good else 'bold red'}]{value}[/]")
    console.print(table)
    _say_hosts(verdict, console)
    _say_errors(verdict, console)
    _say_often(verdict, console)
    _say_verdict(verdict, console)


def _rows(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    manners, again, warc = verdict.get("manners"), verdict.get("recrawl"), verdict.get("warc")
    cluster: dict[str, Any] = verdict.get("cluster") or {}
    rows = [
        ("pages visited" if again else "pages done", f"{verdict['pages']}"),
        ("given up" if verdict["lost"] is None or manners else "dead links failed", f"{verdict['failed']}"),
        *_left(verdict),
        ("took", f"{verdict['seconds']} s" + ("" if again else f", {verdict['pages_per_second']} pages/s")),
        ("workers killed with -9", f"{verdict['killed']}"),
        *((f"redelivered: {cause}", f"{count}") for cause, count in verdict["redeliveries"].items()),
    ]
    if again:
        rows += [
            ("visits of these pages", f"{again['visits']}"),
            ("visits that found a change", f"{again['changed']}"),
            ("answered by 304 Not Modified", f"{again['unmodified']}"),
        ]
    if cluster.get("killed"):
        rows += [("a primary killed with -9", f"replaced after {cluster['replaced_after']} s")]
    if warc:
        rows += [("in the WARC folder", f"{warc['files']} files, {warc['bytes']:,} bytes")]
    if manners:
        rows += [
            ("hosts visited", f"{manners['hosts']}, {manners['visits']} visits"),
            ("two visits of a host", f"{manners['nearest']} s apart at least"),
            ("visits of a host at once", f"{manners['most_at_once']} at most"),
            ("pages fetched again", f"{manners['again']}"),
        ]
    if verdict["lost"] is not None:
        rows += [("done but not reachable", f"{verdict['unexpected']}"), ("lost", f"{verdict['lost']}")]
    return rows


def _left(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    hosts, blocked, seeds = verdict["hosts_used_up"], verdict["hosts_blocked"], verdict.get("seeds", {})
    beyond_patterns = verdict.get("outside_patterns")
    beyond = f"{verdict['waiting']}, of {hosts} host{'' if hosts == 1 else 's'}"
    return [
        *([("pages beyond a budget", beyond)] if verdict["waiting"] and hosts else []),
        *([("hosts still blocked", f"{blocked}")] if blocked else []),
        *([("of sitemaps: refused", f"{seeds['refused']}")] if seeds.get("refused") else []),
        *([("of sitemaps: outside the crawl", f"{seeds['outside']}")] if seeds.get("outside") else []),
        *([("outside the patterns", f"{beyond_patterns:,} addresses")] if beyond_patterns is not None else []),
    ]


def _say_hosts(verdict: dict[str, Any], console: Console) -> None:
    found = verdict.get("by_host", {})
    if verdict.get("hosts", 0) < 2:
        return
    table = Table(title="by host", title_justify="left", box=None)
    for name in ("host", "done", "failed", "left", "visits"):
        table.add_column(name, justify="left" if name == "host" else "right")
    for name, host in list(found.items())[:SHOWN]:
        table.add_row(escape(safe(name)), *(f"{host[key]}" for key in ("done", "failed", "left", "visits")))
    if verdict["hosts"] > SHOWN:
        table.add_row(f"and {verdict['hosts'] - SHOWN} more")
    console.print(table)


def _say_errors(verdict: dict[str, Any], console: Console) -> None:
    found = verdict.get("by_error", {})
    if not found:
        return
    table = Table(title="by kind of error", title_justify="left", box=None)
    for name in ("pages", "error", "for example"):
        table.add_column(name, justify="right" if name == "pages" else "left", no_wrap=True)
    for name, kind in list(found.items())[:SHOWN]:
        table.add_row(f"{kind['pages']}", escape(safe(name)), escape(safe(kind["example"])))
    if len(found) > SHOWN:
        table.add_row("", f"and {len(found) - SHOWN} more kinds")
    console.print(table)


def _say_often(verdict: dict[str, Any], console: Console) -> None:
    again: dict[str, Any] = verdict.get("recrawl") or {}
    often: list[tuple[int, str]] = again.get("often", [])
    if not often:
        return
    table = Table(title="visited most often", title_justify="left", box=None, show_header=False)
    for visits, url in often:
        table.add_row(f"{visits}", escape(safe(url)))
    console.print(table)


def _say_verdict(verdict: dict[str, Any], console: Console) -> None:
    if verdict.get("manners"):
        for kind, where, what in verdict["findings"]:
            console.print(f"[red]{escape(f'{kind}: {safe(where)}: {safe(what)}')}[/]")
        if verdict["ok"]:
            console.print(
                "[green]every page within its host's budget is done, and no host was visited too soon or too often[/]"
            )
    elif verdict.get("not_begun"):
        url, error = (escape(safe(verdict["not_begun"][key])) for key in ("url", "error"))
        console.print(f"[red]the crawl could not begin: {url}: {error}[/]")
    elif verdict.get("recrawl"):
        console.print("[green]stopped; what was to be visited again waits in the queue[/]")
    elif verdict["lost"] is None:
        console.print("[green]everything that was found is done or given up[/]")
    elif verdict["ok"]:
        console.print("[green]every page reachable from the start is done, and nothing else is[/]")
    else:
        console.print("[red]the crawl and the plain traversal differ:[/]")
        for url in (*verdict["not_done"], *verdict["not_reachable"]):
            console.print(f"  {safe(url)}", markup=False, highlight=False)


def say_where(queue: str, address: str, private: bool) -> None:
    """Say how the queue that was kept can be looked at."""
    until = " until Ctrl-C" if private else ""
    typer.echo(f"queue {queue} is kept{until}; look at it: timeoutq status {queue} --url {redact(address)}", err=True)
