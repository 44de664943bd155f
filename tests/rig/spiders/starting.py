"""Starts spiders in processes of their own; the server's address goes by the environment, so `ps` does not show it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self

Order = Mapping[str, Any]


def order(spider: str, site: str, **settings: Any) -> Order:
    """Say which spider is to run: `module:Class` of this folder, the address of its site, and its settings."""
    return {"spider": f"tests.rig.spiders.{spider}", "arguments": {"site": site}, "settings": settings}


class Spiders:
    """A process that runs spiders, all at once. At the end of the `with` block it is killed, if it still lives."""

    def __init__(self, url: str | None, orders: Sequence[Order], **environment: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # it is closed with the process
        self.process = subprocess.Popen(
            [os.environ.get("TIMEOUTQ_SCRAPY_PYTHON", sys.executable), "-m", "tests.rig.spiders.run"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **({"TIMEOUTQ_URL": url} if url else {}), **environment},
        )  # fmt: skip
        self.pid = self.process.pid
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(orders))
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()

    def log(self) -> str:
        return os.pread(self._log.fileno(), 10_000_000, 0).decode("utf-8", "replace")

    def code(self, timeout: float = 60.0) -> int:
        return self.process.wait(timeout)

    def results(self, timeout: float = 60.0) -> list[dict[str, Any]]:
        """Wait until the process has ended well, and give what came of its spiders."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        assert self.code(timeout) == 0, self.log()
        found: list[dict[str, Any]] = json.loads(out)
        return found


def run(url: str | None, orders: Sequence[Order], **environment: str) -> list[dict[str, Any]]:
    with Spiders(url, orders, **environment) as spiders:
        return spiders.results()
