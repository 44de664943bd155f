"""The command that writes the protocol, from which clients in other languages are made: protocol.

`app.py` runs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from timeoutq.cli.app import app
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

    The JSON has the text, the SHA-1 and the keys of each script, what its
    arguments are, and what its replies mean: timeoutq protocol -o protocol.json
    """
    from timeoutq.protocol import document, markdown

    if as_json and as_markdown:
        raise InvalidInput("give --json or --markdown, not both")
    text = markdown() if as_markdown else json.dumps(document(), ensure_ascii=True, indent=1) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, "utf-8")
