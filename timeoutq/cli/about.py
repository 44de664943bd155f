"""The commands about the package and its server: help, its pages; doctor; bench; check, a spider; protocol; library."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from timeoutq.cli.command import Known, Seconds, Server, argument, command, queue_names
from timeoutq.cli.lines import Sink, read_option
from timeoutq.cli.saying import exit_unless, meant, refuse, say, stop, unknown_words
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.exit_codes import USAGE
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.watch.doctor import Finding


def pages() -> dict[str, str]:
    """Give the text of each page by its topic, in the order of the topics."""
    folder = Path(str(files("timeoutq"))) / "help"
    return {page.stem: page.read_text("utf-8") for page in sorted(folder.glob("*.md"))}


def topics(incomplete: str) -> list[str]:
    """Give the topics that begin so, for a shell that completes."""
    return [topic for topic in pages() if topic.startswith(incomplete)]


@command()
def help(
    topic: Annotated[str | None, argument("TOPIC", "Name of a page.", autocompletion=topics)] = None,
    search: Annotated[str | None, "WORD: List the lines of the pages with WORD."] = None,
) -> None:
    """Show the help page of a topic, or list the topics. Exit 1: no line of a page has the word of --search.

    On a terminal, a page is shown in your pager (PAGER); elsewhere, its Markdown is printed. `timeoutq COMMAND --help`
    says what the options of a command are.
    """
    found = pages()
    if topic is not None and topic not in found:
        alike = get_close_matches(topic.lower(), found)
        stop(f"no topic {topic!r:.80}; {meant(alike, '`timeoutq help` lists all')}", USAGE)
    shown = found if topic is None else {topic: found[topic]}
    if search is not None:
        lines = [(name, line) for name, text in shown.items() for line in text.splitlines()]
        hits = [(name, line.strip()) for name, line in lines if search.lower() in line.lower()]
        Sink().rows(("topic", "line"), hits)
        exit_unless(hits, f"no page has {search!r:.80}")
    elif topic is None:
        Sink().rows(("topic", ""), [(name, text[2 : text.index("\n")]) for name, text in found.items()])
    else:
        _show(found[topic])


def _show(text: str) -> None:
    """Show a page: in the pager of the user on a terminal, else as it is."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        typer.echo(text, nl=False)
        return
    from rich.console import Console, ConsoleOptions
    from rich.markdown import Markdown, TableElement

    class Folded(TableElement):
        """A table that breaks long words: rich would cut them off where the terminal is narrow."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
            for table in super().__rich_console__(console, options):
                for column in getattr(table, "columns", ()):
                    column.overflow = "fold"
                yield table

    class Shown(Markdown):
        elements: ClassVar[dict[str, Any]] = {**Markdown.elements, "table_open": Folded}

    os.environ.setdefault("LESS", "FRX")  # as git sets it: short pages end at once, and colours are colours
    text = re.sub(r"\[([^]]*)\]\(([\w-]+)\.md[^)]*\)", r"\1 (timeoutq help \2)", text)
    console = Console()
    with console.pager(styles=True):
        console.print(Shown(text, hyperlinks=False))


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

    With --workers, --max-failed or --max-age the command is a health check of a queue, for containers and monitors.
    """
    from timeoutq.server.troubles import is_sharded
    from timeoutq.watch.doctor import Finding, check_limits

    is_health = (workers, max_failed, max_age) != (None, None, None)
    refuse(here and workers is None, "--here is about --workers: give --workers 1 as well")
    refuse(is_health and queue is None, "--workers, --max-failed and --max-age are about a queue: name one")
    refuse(repair and queue is None, "--repair is about a queue: name one")
    with server.open(queue or "doctor", allow_eviction=True, waits=True) as opened:
        findings = _examined(opened, named=queue is not None, repair=repair)
        try:
            findings += check_limits(opened, workers, max_failed, max_age, here=here) if is_health else []
        except TimeoutqError as error:
            if is_sharded(error):
                raise
            findings.append(Finding("health", "red", str(error)))
    _show_findings(findings, out)
    exit_unless(all(finding.verdict != "red" for finding in findings))


def _examined(opened: Known, *, named: bool, repair: bool) -> list[Finding]:
    from timeoutq.client.shards import ShardedQueue
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

    The server is an embedded one, or the one at --url, which will be busy for half a minute. The work is in queues
    named bench-…, which are removed in the end, also by Ctrl-C.
    """
    from timeoutq.cli import bench as measures

    tell: Callable[[str], object] = say if sys.stderr.isatty() else bool
    found = measures.measure(server.address(), only or [], each, tell)
    if out.as_json:
        out.document(found)
        return
    tell(f"timeoutq bench: {found['server']}, {found['machine']}")
    rows = [{**row, "value": measures.number(row["value"])} for row in found["figures"]]
    out.rows([*rows[0]], ([*row.values()] for row in rows))


@command()
def check(
    project: Annotated[Path, argument("PROJECT", "Folder with scrapy.cfg.")],
    spider: Annotated[str, argument("SPIDER", "Name of the spider.")],
    page: Annotated[str, argument("URL", "The page to fetch.")],
    callback: Annotated[str | None, "NAME: The method that parses it."] = None,
    payload: Annotated[str | None, "JSON: What a task of the page has, such as {\"meta\": {\"job\": 7}}."] = None,
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
    task: dict[str, Any] = (
        {} if payload is None else read_option("--payload", payload, dict, 'an object, such as {"meta": {}}')
    )
    found = judge(project, spider, page, task if callback is None else {**task, "callback": callback}, arguments)
    if not found.responses and not found.refused:
        found.refused.append("no response reached the spider: the log above says why")
    if out.as_json:
        out.document(found)
    else:
        for line in found.refused:
            typer.echo(f"refused: {safe(line)}")
        typer.echo(f"{found.requests} requests, {found.items} items, {len(found.refused)} refused")
    exit_unless(not found.refused)


@command()
def protocol(
    out: Annotated[Path | None, "--out -o FILE: Write to this file."] = None,
    as_json: Annotated[bool, "--json: Write JSON, for programs: the default."] = False,
    as_markdown: Annotated[bool, "--markdown: Write Markdown, for people."] = False,
) -> None:
    """Write what travels between clients and the server: for a client in another language.

    The JSON has the library, and of each verb its function, what its arguments are, and what its replies mean: timeoutq
    protocol -o protocol.json
    """
    from timeoutq.gateway.protocol import document, markdown

    refuse(as_json and as_markdown, "give --json or --markdown, not both")
    text = markdown() if as_markdown else json.dumps(document(), ensure_ascii=True, indent=1) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, "utf-8")


@command()
def library(
    load: Annotated[bool, "Have the server load it; a cluster: all primaries."] = False, *, server: Server
) -> None:
    """Print the library of functions that a server needs, or have it loaded.

    Clients load it by themselves. Where their user may not, an administrator does, with --load, or: timeoutq library |
    redis-cli -x FUNCTION LOAD REPLACE
    """
    from timeoutq.server import scripts
    from timeoutq.verbs import reads, sending

    if not load:
        typer.echo(scripts.library(), nl=False)
        return
    with server.open("library") as opened:
        for place in opened.run(reads.primaries(opened.talk)):
            found = opened.run(sending.load(opened.talk, place))
            at = "" if place is None else f" on {place}"
            typer.echo(f"loaded {scripts.NAME}, revision {found.revision} ({found.digest[:12]}){at}")
