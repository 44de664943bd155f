"""An app for the tests of the command: `tests.rig.post:app`."""

from __future__ import annotations

from dataclasses import dataclass

from timeoutq.functions import App

app = App("post")


@dataclass
class Letter:
    to: str
    pages: int


@app.task
def write(to: str, *, pages: int = 1) -> Letter:
    if pages < 0:
        raise ValueError("a letter has no\x1b[31m negative pages")
    return Letter(to, pages)


@app.task
def burn(letter: str) -> None:
    """Burn a letter."""


@app.task(cron="0 9 * * 1-5", tz="Europe/Berlin")
def collect(box: int = 1, /, *boxes: int, **more: str) -> None:
    """Empty letter boxes."""
