"""The command report: pictures of a crawl in one file, or the same as JSON.

`app.py` runs it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from timeoutq.cli.app import AsJson, Name, Url, UrlFile, app, known_queue, say
from timeoutq.cli.printing import Sink
from timeoutq.errors import InvalidInput


@app.command(rich_help_panel="From anywhere")
def report(
    queue: Name,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report there; - is stdout.", show_default=False)
    ] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Draw pictures of a crawl: states over time, rates, durations, errors by kind, hosts.

    The report is one file of HTML, which needs no network and runs no script.
    """
    if (html is None) != as_json:
        raise InvalidInput("say what is wanted: --html FILE or --json")
    from timeoutq.watch import report as reports

    with known_queue(queue, url, url_file) as opened:
        found = reports.gather(opened)
    if html is None:
        Sink(True).document(reports.document(found))
        return
    text = reports.page(found)
    if str(html) == "-":
        sys.stdout.write(text)
        return
    _write(html, text)
    say(f"wrote {html}, {len(text.encode()) // 1024 + 1} KiB")


def _write(file: Path, text: str) -> None:
    # whoever reads the file meanwhile finds the report before this one, and never half of one
    try:
        number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise InvalidInput(f"cannot write {file}: {error.strerror}") from error
    try:
        with os.fdopen(number, "w", encoding="utf-8") as opened:
            opened.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
