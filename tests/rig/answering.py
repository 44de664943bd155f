"""A server on loopback for the tests of the demo's crawler, and what stands between the crawler and the internet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from demo.addresses import CheckedBackend
from timeoutq import Ack, Lease, Release, Task


class Names:
    """Answers each question with the next of its answers, and the last for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.asked = 0

    @classmethod
    def backend(cls, *addresses: str) -> CheckedBackend:
        """Give what connects to any name at these addresses."""
        return CheckedBackend(True, cls(addresses))

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


class Site:
    """A server on loopback that answers each path with the bytes it is given, and notes what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.port = 0
        self._open: set[asyncio.Task[None]] = set()

    def url(self, path: str) -> str:
        return f"http://site.example:{self.port}{path}"

    def say(self, path: str, status: int = 200, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} -", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.answers[path] = "\r\n".join([*lines, "", ""]).encode() + body

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split(" ")[1]
                self.asked.append(path)
                self.heads.append(head)
                answer = self.answers.get(path, b"HTTP/1.1 404 -\r\nContent-Length: 0\r\n\r\n")
                writer.write(answer)
                await writer.drain()
        self._open.discard(task)
        writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Site]:
        server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)


def lease(url: str, payload: object = None, attempt: int = 1) -> Lease:
    return Lease(url, "w#1", 0.0, attempt=attempt, payload=payload)


def put(found: Ack | Release) -> dict[str, object]:
    assert isinstance(found, Ack)
    return {task.task: task.payload for task in cast("list[Task]", found.put)}
