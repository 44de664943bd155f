"""The commands that write the protocol and the library: protocol, library.

`app.py` runs them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from timeoutq.cli.app import Url, UrlFile, app, open_queue
from timeoutq.errors import InvalidInput


@app.command(rich_help_panel="Operating")
def protocol(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, for programs: the default.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Write Markdown, for people.")] = False,
) -> None:
    """Write what travels between clients and the server: for a client in another language.

    The JSON has the library, and of each verb its function, what its arguments
    are, and what its replies mean: timeoutq protocol -o protocol.json
    """
    from timeoutq.protocol import document, markdown

    if as_json and as_markdown:
        raise InvalidInput("give --json or --markdown, not both")
    text = markdown() if as_markdown else json.dumps(document(), ensure_ascii=True, indent=1) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, "utf-8")


@app.command(rich_help_panel="Operating")
def library(
    load: Annotated[bool, typer.Option("--load", help="Have the server load it; a cluster: all primaries.")] = False,
    url: Url = None,
    url_file: UrlFile = None,
) -> None:
    """Print the library of functions that a server needs, or have it loaded.

    Clients load it by themselves. Where their user may not, an administrator does,
    with --load, or: timeoutq library | redis-cli -x FUNCTION LOAD REPLACE
    """
    from timeoutq import reads, scripts, sending

    if not load:
        typer.echo(scripts.library(), nl=False)
        return
    with open_queue("library", url, url_file) as opened:
        for place in opened.run(reads.primaries(opened.talk)):
            found = opened.run(sending.load(opened.talk, place))
            at = "" if place is None else f" on {place}"
            typer.echo(f"loaded {scripts.NAME}, revision {found.revision} ({found.digest[:12]}){at}")
