"""One exchange with a server, as it was on the wire: the request, the answer, and why the answer was cut.

`fetcher.py` fills it while the answer comes, also when the answer never ends; `warc.py` writes it down.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

Header = tuple[bytes, bytes]


@dataclass
class Exchange:
    """One request and its answer."""

    url: str
    began: float = field(default_factory=time.time)
    """Unix seconds."""
    address: str = ""
    """The IP address of the machine that answered; empty when it is not known."""
    target: bytes = b"/"
    """The part of the request line between the method and the version of HTTP."""
    asked: list[Header] = field(default_factory=list[Header])
    version: bytes = b"HTTP/1.1"
    status: int = 0
    """0 as long as there is no answer."""
    reason: bytes = b""
    answered: list[Header] = field(default_factory=list[Header])
    body: bytearray | bytes = b""
    """The bytes of the body as they were sent, so still packed if the answer has a Content-Encoding."""
    is_whole: bool = False
    """Whether all of the body is there."""
    cut: str = ""
    """Why the body is cut, in WARC's words: length, time, disconnect or unspecified; empty if it is whole."""

    def sent(self, request: httpx.Request) -> None:
        """Note a request."""
        self.target, self.asked = request.url.raw_path, list(request.headers.raw)

    def came(self, response: httpx.Response) -> None:
        """Note the head of the answer, and who gave it."""
        self.version = response.extensions.get("http_version", self.version)
        self.reason = response.extensions.get("reason_phrase", b"")
        self.status, self.answered = response.status_code, list(response.headers.raw)
        stream = response.extensions.get("network_stream")
        server: tuple[Any, ...] | None = stream.get_extra_info("server_addr") if stream is not None else None
        if server:
            self.address = str(server[0])


def is_readable(encodings: str) -> bool:
    """Say whether readers of archives can undo a Content-Encoding: warcio stops at brotli."""
    return encodings.strip().lower() in ("", "identity", "gzip", "x-gzip", "deflate")
