"""The item store: each process writes its items as JSON lines into a file of its own, before their page is acked.

A killed process may have written items of a page that another process fetches again. So each line says of which lease
the item is, and `joined`, or `python -m timeoutq.scrapy FOLDER`, leaves these doubles out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from scrapy.utils.serialize import ScrapyJSONEncoder

from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Lease

_JSON = ScrapyJSONEncoder(ensure_ascii=False)


class Store:
    """The file of one process."""

    def __init__(self, folder: str, name: str) -> None:
        """Make the file, and the folder if need be. Raises `InvalidInput` if this cannot be done."""
        path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InvalidInput(f"the setting TIMEOUTQ_ITEMS: {error}") from None

    def write(self, item: Any, lease: Lease | None) -> None:
        """Write an item of a lease; None: of no page. Raises `OSError`, and `TypeError` for what is no JSON."""
        line: dict[str, Any] = {"task": None, "item": item}
        if lease is not None:
            run = f"{lease.attempt}\n{json.dumps(lease.payload, sort_keys=True, default=repr)}"
            line = {"task": lease.task, "fence": lease.fence, "run": sha256(run.encode()).hexdigest()[:8], "item": item}
        self._file.write(_JSON.encode(line).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def joined(folder: str | Path) -> Iterator[Any]:
    """Give the items of all files of a folder, each once: of a page that was fetched again, those of the last lease.

    Of an attempt that ended, by a retry or because the page asked for itself, the items stay. A last line that was not
    finished is left out; its page was not acked. Raises `OSError`.
    """
    last: dict[tuple[str, str], int] = {}
    for line in _lines(folder):
        if line["task"] is not None:
            key = line["task"], line["run"]
            last[key] = max(line["fence"], last.get(key, 0))
    for line in _lines(folder):
        if line["task"] is None or line["fence"] == last[line["task"], line["run"]]:
            yield line["item"]


def _lines(folder: str | Path) -> Iterator[Mapping[str, Any]]:
    for path in sorted(Path(folder).glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield cast("Mapping[str, Any]", json.loads(line))
