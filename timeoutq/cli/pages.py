"""The commands that print what comes with the package: help, its pages; protocol; library, which a server can load."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from timeoutq.cli.app import meant, stop
from timeoutq.cli.command import Server, command
from timeoutq.cli.printing import Sink
from timeoutq.words.errors import InvalidInput
from timeoutq.words.exit_codes import NOTHING, USAGE


def pages() -> dict[str, str]:
    """Give the text of each page by its topic, in the order of the topics."""
    folder = files("timeoutq") / "help"
    found = {
        page.name.removesuffix(".md"): page.read_text("utf-8") for page in folder.iterdir() if page.name.endswith(".md")
    }
    return dict(sorted(found.items()))


def topics(incomplete: str) -> list[str]:
    """Give the topics that begin so, for a shell that completes."""
    return [topic for topic in pages() if topic.startswith(incomplete)]


@command()
def help(
    topic: Annotated[
        str | None, typer.Argument(show_default=False, autocompletion=topics, help="Name of a page.")
    ] = None,
    search: Annotated[str | None, "WORD: List the lines of the pages with WORD."] = None,
) -> None:
    """Show the help page of a topic, or list the topics. Exit 1: no line of a page has the word of --search.

    On a terminal, a page is shown in your pager (PAGER); elsewhere, its Markdown is
    printed. `timeoutq COMMAND --help` says what the options of a command are.
    """
    found = pages()
    if topic is not None and topic not in found:
        alike = get_close_matches(topic.lower(), found)
        stop(USAGE, f"no topic {topic!r:.80}; {meant(alike, '`timeoutq help` lists all')}")
    shown = found if topic is None else {topic: found[topic]}
    if search is not None:
        lines = [(name, line) for name, text in shown.items() for line in text.splitlines()]
        hits = [(name, line.strip()) for name, line in lines if search.lower() in line.lower()]
        Sink().rows(("topic", "line"), hits)
        if not hits:
            stop(NOTHING, f"no page has {search!r:.80}")
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
def protocol(
    out: Annotated[Path | None, "--out -o FILE: Write to this file."] = None,
    as_json: Annotated[bool, "--json: Write JSON, for programs: the default."] = False,
    as_markdown: Annotated[bool, "--markdown: Write Markdown, for people."] = False,
) -> None:
    """Write what travels between clients and the server: for a client in another language.

    The JSON has the library, and of each verb its function, what its arguments
    are, and what its replies mean: timeoutq protocol -o protocol.json
    """
    from timeoutq.gateway.protocol import document, markdown

    if as_json and as_markdown:
        raise InvalidInput("give --json or --markdown, not both")
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

    Clients load it by themselves. Where their user may not, an administrator does,
    with --load, or: timeoutq library | redis-cli -x FUNCTION LOAD REPLACE
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
