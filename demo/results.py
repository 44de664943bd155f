"""The results of a crawl as lines of JSON in a file that several processes share. `crawl.py` writes one for each page.

A line is written before its task is acked, so none is missing; one may be there twice when a worker died between the
two: the last line of an address counts. An error of the disk fails the attempt, and the page is tried again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What is kept of one page."""

    url: str
    status: int
    title: str
    length: int | None
    """Bytes of the body as it was read; None when it was not."""
    links: int
    """How many were found that belong to the crawl."""
    fetched_at: float
    """Unix seconds."""
    depth: int


class Results:
    """A file of results, open for appending."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, result: Result) -> None:
        """Append a line: in one write, so that several processes do not mix theirs. Raises OSError when it is short."""
        line = (json.dumps(asdict(result)) + "\n").encode()
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a result were written: is the disk full?")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
