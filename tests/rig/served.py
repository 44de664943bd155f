"""`timeoutq web` as a process of its own, for tests that attack it: raw bytes go in, what comes back is read whole."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.rig.gateways import WebProcess


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes
    asked: str = ""

    @property
    def problem(self) -> str:
        """The name of the problem; '' if the answer is none. A problem has all that RFC 9457 wants."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        found = json.loads(self.body)
        assert set(found) >= {"type", "title", "status", "detail"}, found
        assert found["status"] == self.status, found
        assert found["title"]
        assert found["detail"]
        return str(found["type"]).removeprefix("/problems/")


class Served(WebProcess):
    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def log(self) -> str:
        assert self.process is not None
        assert self.process.poll() is None, self.said
        return self._log.read_text("utf-8", "replace")

    def answers(self) -> bool:
        return "serves http://127.0.0.1:" in self.log

    @property
    def memory(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096

    @property
    def connections(self) -> int:
        return len(self.unread)

    @property
    def unread(self) -> list[int]:
        """For each open connection, how many bytes have arrived that the gateway has not read."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        mine = [words for words in lines if words[1].endswith(f":{self.port:04X}") and words[3] == "01"]
        return [int(words[4].split(":")[1], 16) for words in mine]

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        plug: socket.socket | None = None,
    ) -> Reply:
        """Send a request on a connection of its own, or on an open one, and read the answer to its end."""
        lines = {"Host": self.host, **({"Connection": "close"} if plug is None else {}), **(headers or {})}
        if body is not None:
            lines.setdefault("Content-Length", str(len(body)))
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        data = head.encode("latin-1") + b"\r\n" + (body or b"")
        if plug is not None:
            reply = self.exchange(plug, data, method == "HEAD")
        else:
            with self.open() as own:
                reply = self.exchange(own, data, method == "HEAD")
        return replace(reply, asked=f"{method} {target}")

    def exchange(self, plug: socket.socket, data: bytes, bare: bool = False) -> Reply:
        """Send bytes, and read one answer; `bare` says that it has no body."""
        with suppress(ConnectionError):  # a server may refuse a body before it has come whole
            plug.sendall(data)
        return self.read(plug, bare)

    def read(self, plug: socket.socket, bare: bool = False) -> Reply:
        data = b""
        while b"\r\n\r\n" not in data:
            part = plug.recv(65536)
            assert part, f"closed without an answer: {data[:200]!r}"
            data += part
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if bare or headers.get("content-type", "").startswith("text/event-stream"):  # a stream has no end
            return Reply(int(first.split()[1]), headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            while not rest.endswith(b"0\r\n\r\n"):
                rest += plug.recv(65536)
            rest = b"".join(rest.split(b"\r\n")[1::2])
        while len(rest) < int(headers.get("content-length", 0)):
            part = plug.recv(65536)
            assert part, "the answer was cut"
            rest += part
        if "content-length" in headers:  # the next answer may stand behind this one
            rest = rest[: int(headers["content-length"])]
        return Reply(int(first.split()[1]), headers, rest)

    def call(self, verb: str, body: Any, token: str = "", queue: str = "crawl") -> Reply:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self.ask("POST", f"/v1/{queue}/{verb}", headers, json.dumps(body).encode())

    def is_well(self) -> None:
        """Check that the gateway answers, and has logged no traceback."""
        assert self.ask("GET", "/healthz").status == 200
        log = self.log
        assert "Traceback" not in log, log[-3000:]
        assert "ERROR" not in log, log[-3000:]


IMPATIENT = """
import sys
from timeoutq import cli
from timeoutq.cli import web
from timeoutq.gateway import serving, settings
serving.HEAD_SECONDS = serving.ANSWER_SECONDS = 0.6
serving.ANSWER_BYTES *= 1000
usual = settings.Settings.__init__
def impatient(self, **given):
    usual(self, **{"body_seconds": 0.6, "most_bytes": 24 * settings.MIB, **given})
settings.Settings.__init__ = impatient
cli.main()
"""
"""The command, with less patience and less memory for clients than usual."""


@contextmanager
def served(url: str, folder: Path, *words: str, code: str = "", **environment: str) -> Iterator[Served]:
    """Start `timeoutq web` with these words, or `code` in its place; it must end on SIGTERM."""
    with Served(url, folder, *words, code=code, **environment) as gateway:
        yield gateway
        gateway.terminate()
