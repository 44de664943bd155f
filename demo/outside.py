"""Counts the addresses that the patterns of a crawl leave out, over all of its processes, killed ones among them.

Each process notes what it leaves out in a file of its own, as it parses a page: eight bytes for each address, and each
address once. `crawl.py` notes, `course.py` counts at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

ENDING = ".outside"

SIZE = 8
"""Bytes that are noted of an address."""

MOST = 100_000
"""A process notes this many addresses at most."""


class Outside:
    """The addresses that one process has left out."""

    def __init__(self, folder: str | Path) -> None:
        """Begin the file of this process in the folder that all processes of the crawl share; may raise `OSError`."""
        path = Path(folder) / f"{os.getpid()}{ENDING}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._noted: set[bytes] = set()

    def note(self, urls: Iterable[str]) -> None:
        """Note addresses that are left out."""
        new = {blake2b(url.encode(), digest_size=SIZE).digest() for url in urls} - self._noted
        new = set(list(new)[: MOST - len(self._noted)])
        if new:
            self._noted |= new
            os.write(self._file, b"".join(new))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def count(folder: str | Path) -> int:
    """Count the different addresses that the processes of a crawl have noted."""
    found: set[bytes] = set()
    for path in Path(folder).glob(f"*{ENDING}"):
        noted = path.read_bytes()
        found.update(noted[at : at + SIZE] for at in range(0, len(noted), SIZE))
    return len(found)
