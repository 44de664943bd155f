"""Gateways for the tests: `timeoutq web` as a process of its own, on a port that it keeps when it is started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx

from tests.rig.processes import ROOT
from tests.rig.waiting import wait_until

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of the loopback: without it, each of them reads the certificates of the world, for 30 ms."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class WebProcess:
    """A gateway; `with WebProcess(url, folder) as web`, and then `web.base` is where it is."""

    def __init__(self, url: str, folder: Path, *words: str, code: str = "", **environment: str) -> None:
        """Prepare; `code` is run in the place of the command."""
        self.redis = url
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"web-{self.port}.log"
        self._words = [*(("-c", code) if code else ("-m", "timeoutq")), "web", "--port", str(self.port), *words]
        self._environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.launch()
        wait_until(self.answers, 30)

    def launch(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._words],
                cwd=ROOT, env={**os.environ, "TIMEOUTQ_URL": self.redis, "PYTHONPATH": str(ROOT), **self._environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.base}/healthz", timeout=5, verify=NO_TLS).status_code == 200
        return False

    @property
    def said(self) -> str:
        return re.sub(r"redis://\S+", "redis://…", self._log.read_text("utf-8", "replace"))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> int:
        """End it as an init system does; give its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)
