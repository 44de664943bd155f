"""The command that tries a spider of Scrapy on one page before its crawl: check.

`app.py` runs it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from timeoutq.cli.app import NOTHING, AsJson, app
from timeoutq.errors import InvalidInput
from timeoutq.text import safe


@app.command(rich_help_panel="Looking")
def check(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Folder with scrapy.cfg.", show_default=False)],
    spider: Annotated[str, typer.Argument(metavar="SPIDER", help="Name of the spider.", show_default=False)],
    page: Annotated[str, typer.Argument(metavar="URL", help="The page to fetch.", show_default=False)],
    callback: Annotated[
        str | None, typer.Option("--callback", metavar="NAME", help="The method that parses it.", show_default=False)
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("-a", metavar="NAME=VALUE", help="An argument of the spider.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
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
    if as_json:
        typer.echo(json.dumps(asdict(found)))
    else:
        for line in found.refused:
            typer.echo(f"refused: {safe(line)}")
        typer.echo(f"{found.requests} requests, {found.items} items, {len(found.refused)} refused")
    if found.refused:
        raise typer.Exit(NOTHING)
