"""The command that shows the help pages: help. It needs no server and no network.

`app.py` runs it. The pages are the Markdown files in `timeoutq/help/`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated, Any, ClassVar

import typer

from timeoutq.cli.app import app, stop
from timeoutq.cli.printing import Sink
from timeoutq.exit_codes import NOTHING, USAGE


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


@app.command(rich_help_panel="Looking")
def help(
    topic: Annotated[
        str | None, typer.Argument(show_default=False, autocompletion=topics, help="Name of a page.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="WORD", show_default=False, help="List the lines of the pages with WORD.")
    ] = None,
) -> None:
    """Show the help page of a topic, or list the topics. Exit 1: no line of a page has the word of --search.

    On a terminal, a page is shown in your pager (PAGER); elsewhere, its Markdown is
    printed. `timeoutq COMMAND --help` says what the options of a command are.
    """
    found = pages()
    if topic is not None and topic not in found:
        alike = " or ".join(get_close_matches(topic.lower(), found))
        stop(USAGE, f"no topic {topic!r:.80}; {f'did you mean {alike}?' if alike else '`timeoutq help` lists all'}")
    shown = found if topic is None else {topic: found[topic]}
    if search is not None:
        lines = [(name, line) for name, text in shown.items() for line in text.splitlines()]
        hits = [(name, line.strip()) for name, line in lines if search.lower() in line.lower()]
        Sink(False).rows(("topic", "line"), hits)
        if not hits:
            stop(NOTHING, f"no page has {search!r:.80}")
    elif topic is None:
        Sink(False).rows(("topic", ""), [(name, text[2 : text.index("\n")]) for name, text in found.items()])
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
