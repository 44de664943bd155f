"""A receiver of webhooks on loopback, for the tests of push: it verifies signatures, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from tests.rig.processes import ROOT

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(slots=True)
class Message:
    path: str
    headers: dict[str, str]
    body: bytes
    is_signed: bool

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


Answering = Callable[[Message, asyncio.StreamWriter], Awaitable[None]]
"""Writes the answer to a request; afterwards the connection is kept, unless the writer was closed."""


def says(answer: bytes, *, close: bool = False) -> Answering:

    async def answering(_: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        if close:
            writer.close()

    return answering


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {code} So", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def hangs(_: Message, writer: asyncio.StreamWriter) -> None:
    await _until_gone(writer)


async def resets(_: Message, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


def lies(code: int = 200) -> Answering:
    """Promise more bytes than come, and close."""
    return says(b"HTTP/1.1 %d So\r\nContent-Length: 5000\r\n\r\nshort" % code, close=True)


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Answering:
    """Write a head, and then the same piece until the sender has gone."""

    async def answering(_: Message, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        with suppress(OSError):
            while not writer.is_closing() and not _is_gone(writer):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        writer.close()

    return answering


def _is_gone(writer: asyncio.StreamWriter) -> bool:
    """Say whether the other end has closed; asks the kernel, so that it knows before the loop has read it."""
    sock = writer.get_extra_info("socket")
    if writer.is_closing() or sock is None:
        return True
    try:
        with socket.socket(fileno=socket.dup(sock.fileno())) as own:
            return own.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def _until_gone(writer: asyncio.StreamWriter) -> None:
    while not _is_gone(writer):
        await asyncio.sleep(0.02)
    writer.close()


@dataclass
class Receiver:
    answer: Answering = field(default_factory=lambda: says(OK))
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    """"" is all addresses of this machine."""
    port: int = 0
    connections: int = 0
    messages: list[Message] = field(default_factory=list[Message])
    most: Counter[str] = field(default_factory=Counter[str])
    """The most requests that were under way at once, by path."""
    _open: dict[str, set[asyncio.StreamWriter]] = field(default_factory=dict[str, set[asyncio.StreamWriter]])
    _webhook: Webhook = field(default_factory=lambda: Webhook(SECRET))

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}/hook"

    def tasks(self) -> list[str]:
        return [message.told["task"] for message in self.messages]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing() and (message := await self._read(reader)) is not None:
                self.messages.append(message)
                under_way = self._open.setdefault(message.path, set())
                under_way.add(writer)
                if len(under_way) > self.most[message.path]:
                    # those whose sender has gone are over, though their answers still sleep
                    self.most[message.path] = max(
                        self.most[message.path], sum(not _is_gone(one) for one in list(under_way))
                    )
                try:
                    await self.answer(message, writer)
                finally:
                    under_way.discard(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a task that ends as cancelled would be told of, as an error of the loop
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Message | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        try:
            self._webhook.verify(body.decode(), headers)
            is_signed = True
        except WebhookVerificationError:
            is_signed = False
        return Message(first.split(" ")[1], headers, body, is_signed)


@contextmanager
def receiving(receiver: Receiver) -> Iterator[Receiver]:
    loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def body() -> None:
        everywhere = not receiver.host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if everywhere else socket.AF_INET
        listener = socket.create_server((receiver.host, 0), family=family, dualstack_ipv6=everywhere)
        server = await asyncio.start_server(receiver.serve, sock=listener, ssl=receiver.tls, limit=2**21)
        receiver.port = server.sockets[0].getsockname()[1]
        ready.set()
        await ended.wait()
        server.close()
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not mine), return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(body()), name="receiver")
    thread.start()
    assert ready.wait(10)
    try:
        yield receiver
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


NODE = """
const {Webhook} = require("standardwebhooks");
const {secret, messages} = JSON.parse(require("fs").readFileSync(0, "utf8"));
let verified = 0, refused = 0;
for (const {body, headers} of messages) {
  try { new Webhook(secret).verify(body, headers); verified += 1; } catch {}
  try { new Webhook(secret).verify(body + " ", headers); } catch { refused += 1; }
}
console.log(verified, refused);
"""


def node() -> tuple[str, str] | None:
    """Give node and the folder of its packages, if the official package of Standard Webhooks is there."""
    found = shutil.which("node")
    folders = [os.environ.get("NODE_PATH", ""), "/node_modules", str(ROOT / "node_modules")]
    have = [folder for folder in folders if folder and (Path(folder) / "standardwebhooks").is_dir()]
    return (found, have[0]) if found and have else None


def verified_by_node(messages: list[Message]) -> tuple[int, int]:
    """Have the official package of node verify messages: how many it accepts, and how many changed ones it refuses.

    The signatures must be young: the package refuses those that are older than five minutes.
    """
    given = {"secret": SECRET, "messages": [{"body": one.body.decode(), "headers": one.headers} for one in messages]}
    command, packages = node() or ("", "")
    done = subprocess.run(
        [command, "-e", NODE], input=json.dumps(given), env={**os.environ, "NODE_PATH": packages}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    verified, refused = map(int, done.stdout.split())
    return verified, refused
