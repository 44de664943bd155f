"""Posts to the receiver: only to addresses that were judged, and within limits that no receiver can stretch."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import httpcore
import httpx

import timeoutq
from timeoutq.server import sockets
from timeoutq.words.errors import InvalidInput
from timeoutq.words.retry import Retry
from timeoutq.words.text import safe

UNICAST = ipaddress.IPv6Network("2000::/3")  # all addresses of IPv6 that are routed between networks today
LOCAL = ipaddress.IPv6Network("fc00::/7")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""How a network without IPv4 reaches an IPv4 address: the last 32 bits (RFC 6052)."""
ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The middle of an address that carries an address of IPv4 in its last 32 bits (RFC 5214)."""
RESERVED, NOBODY = "an address that is reserved", "the address of no machine"
MANY, LINK = "an address of many machines", "a link-local address"
HIDDEN = "an address of IPv4 that is hidden by "
NEVER = {
    ipaddress.ip_network(network): why
    for network, why in {
        "0.0.0.0/8": NOBODY, "169.254.0.0/16": LINK, "192.0.0.8/32": RESERVED, "192.88.99.0/24": RESERVED,
        "224.0.0.0/4": MANY, "240.0.0.0/4": RESERVED, "::/128": NOBODY, "fe80::/10": LINK, "ff00::/8": MANY,
        "2001::/32": f"{HIDDEN}Teredo", "2002::/16": f"{HIDDEN}6to4", "2001::/23": RESERVED, "2001:db8::/32": RESERVED,
        "3fff::/20": RESERVED,
    }.items()
}  # fmt: skip
"""Networks without servers (RFC 6890, RFC 9637, RFC 7526); older Pythons do not know all of these."""
PORTS = {"https": 443, "http": 80}


def refusal(address: str, *, private: bool = False) -> str:
    """Say why nothing connects to an address; '' if it may be, with `private` also on loopback or a private network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "no address"
    why = next((why for network, why in NEVER.items() if found in network), "")
    if not why and isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or (ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF) if found in NAT64 else None)
        if inner is not None:
            why = refusal(str(inner), private=private)
            return f"{why}, {inner}, inside one of IPv6" if why else ""
        if (int(found) >> 32) & 0xFFFF_FFFF in ISATAP:
            return f"{HIDDEN}ISATAP"
        is_local = found.is_loopback or found in LOCAL
        why = "" if is_local or (found in UNICAST and found.is_global) else RESERVED
    if why or private or found.is_global:
        return why
    return "a loopback address" if found.is_loopback else "a private address"


def first_refusal(addresses: Iterable[str], *, private: bool) -> tuple[str, str] | None:
    """Give the first address that is refused with the reason, and the cure; None if all may be connected to."""
    for address in addresses:
        if why := refusal(address, private=private):
            return f"{address}, {why}", "" if private else "; a receiver on a private network needs --allow-private"
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """Where tasks are posted to."""

    scheme: str
    host: str  # as it is looked up and named in TLS: ASCII, an address of IPv6 without brackets
    port: int
    netloc: str  # as the Host header names it
    path: str  # with its query
    private: bool = False  # whether receivers on loopback and in private networks are allowed

    @property
    def shown(self) -> str:
        """The URL for messages: without its query, which may hold a token."""
        return safe(f"{self.scheme}://{self.netloc}{self.path.partition('?')[0]}", 300)


def read_target(url: str, *, private: bool = False) -> Target:
    """Read the URL of a receiver; raises `InvalidInput`, also for an address that nothing connects to."""
    try:
        found = httpx.URL(url.strip())
        host, netloc = found.raw_host.decode("ascii"), found.netloc.decode("ascii")
        path = found.raw_path.decode("ascii")
    except (httpx.InvalidURL, ValueError) as error:
        raise InvalidInput(f"--to is no URL: {safe(error, 200)}") from None
    port = PORTS.get(found.scheme, 0) if found.port is None else found.port
    if found.scheme not in PORTS or not host or not 0 < port < 65_536:
        raise InvalidInput("--to must be a URL like https://hook.example/path")
    if found.userinfo:
        raise InvalidInput("--to names a user, and `ps` shows it: leave it out, the signature says who sends")
    target = Target(found.scheme, host, port, netloc, path or "/", private)
    with suppress(OSError):  # it is a name
        _judge(target, socket.AI_NUMERICHOST)
    return target


def check_name(target: Target) -> str:
    """Look the receiver's name up; raises `InvalidInput` if nothing may be sent there; gives a warning, or ''."""
    try:
        _judge(target)
    except OSError as error:
        return f"the name of --to {target.shown} is not known now: {safe(error, 200)}"
    return ""


def _judge(target: Target, flags: int = 0) -> None:
    try:
        entries = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    refused = first_refusal([str(entry[4][0]) for entry in entries], private=target.private)
    if refused is not None:
        raise InvalidInput(f"--to leads to {refused[0]}: nothing is sent there{refused[1]}")


MOST_READ = 65_536  # the most bytes of an answer that are read
AFTER_YES = 1.0  # the longest time, in seconds, for which the rest of an answer is read that has said yes already
IDLE = 5.0  # seconds after which a connection that is not used is closed

BROKEN = (OSError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
FAULTS = (
    (httpcore.TimeoutException, "the receiver does not answer in time"),
    ((httpcore.ConnectError, ssl.SSLError), "the receiver cannot be reached"),
    (httpcore.ProtocolError, "the receiver does not answer in HTTP"),
    (Exception, "the connection broke"),
)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host, as text; raises OSError when there is none."""


class NotDelivered(Retry):
    """A failed attempt: the retry policy decides when the task is sent again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the receiver."""

    status: int
    retry_after: str = ""
    location: str = ""
    text: str = ""  # how its body begins


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host; numbers in any spelling become the address that they mean."""
    return list(dict.fromkeys(str(entry[4][0]) for entry in await sockets.find(host, port)))


class Checked(httpcore.AsyncNetworkBackend):
    """How httpcore connects: by name to an address that was judged, with one look-up for each connection."""

    def __init__(
        self, *, private: bool = False, resolve: Resolve = resolve, network: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        """Prepare; with `private`, receivers on loopback and in private networks are connected to."""
        self._private = private
        self._resolve = resolve
        # a cast, because without anyio, which httpx requires, the class would be another
        self._network = network or cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        """Connect to the first address that answers, if all of them may be connected to; all within the timeout."""
        until = None if timeout is None else time.monotonic() + timeout
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"no address of {host} was found: {error}") from error
        refused = first_refusal(addresses, private=self._private)
        if refused is not None:
            raise NotDelivered(reason=f"nothing was sent: {host} is at {refused[0]}{refused[1]}")
        trouble: Exception = httpcore.ConnectError(f"{host} has no address")
        for i, address in enumerate(addresses):
            left = None if until is None else max(0.01, (until - time.monotonic()) / (len(addresses) - i))
            try:
                return await self._network.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                trouble = error
        raise trouble


class Poster:
    """Posts to one receiver, over connections that are kept for a few seconds; use it with `async with`."""

    def __init__(self, target: Target, *, concurrency: int, seconds: float, network: Checked | None = None) -> None:
        """Prepare: `concurrency` connections at most, `seconds` for all of a request and its answer."""
        self.target = target
        self._seconds = seconds
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context() if target.scheme == "https" else None,
            max_connections=concurrency,
            max_keepalive_connections=concurrency,
            keepalive_expiry=IDLE,
            network_backend=network or Checked(private=target.private),
        )
        self._url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)

    async def __aenter__(self) -> Poster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post a body, and give the answer; raises `NotDelivered`, whose reason says why there is none."""
        sent = {
            "Host": self.target.netloc, "User-Agent": f"timeoutq/{timeoutq.__version__}", "Accept": "*/*",
            "Accept-Encoding": "identity", "Content-Type": "application/json", **headers,
        }  # fmt: skip
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._exchange(sent, body, limit)
        except TimeoutError:
            raise NotDelivered(reason=f"the receiver has not answered within {self._seconds:g} s") from None
        except BROKEN as error:
            words = next(words for kind, words in FAULTS if isinstance(error, kind))
            said = safe(str(error) or type(error).__name__, 300)
            raise NotDelivered(reason=f"{words}: {said}") from error

    async def _exchange(self, headers: Mapping[str, str], body: bytes, limit: asyncio.Timeout) -> Answer:
        limits = dict.fromkeys(("connect", "read", "write", "pool"), self._seconds)
        sent = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        data = bytearray()
        async with self._pool.stream(
            "POST", self._url, headers=sent, content=body, extensions={"timeout": limits}
        ) as response:
            said = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            # the answer counts by its status from here on, so that the limit ends the reading of its body only
            now, end = asyncio.get_running_loop().time(), limit.when() or 0.0
            limit.reschedule(end + AFTER_YES)
            with suppress(TimeoutError, *BROKEN):
                async with asyncio.timeout_at(min(end, now + AFTER_YES) if 200 <= response.status < 300 else end):
                    async for piece in response.aiter_stream():
                        data += piece
                        if len(data) >= MOST_READ:
                            break
        text = bytes(data[:MOST_READ]).decode("utf-8", "replace")
        return Answer(response.status, said.get("retry-after", ""), said.get("location", ""), text)
