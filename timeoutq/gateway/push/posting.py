"""Posts to the receiver, within limits that no receiver can stretch, and only to addresses that were judged.

The name is resolved once for each connection, every address of it is judged, and the connection goes to one of these
addresses: no second look-up can answer anything else in between. The Host header and the name in TLS stay those of the
URL. No redirect is followed, no proxy is used.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

import httpcore
import httpx

import timeoutq
from timeoutq.gateway.push.endpoint import Answer, NotDelivered
from timeoutq.gateway.push.target import Target, first_refusal
from timeoutq.server import names
from timeoutq.words.text import safe

MOST_READ = 65_536  # the most bytes of an answer that are read
AFTER_YES = 1.0  # the longest time, in seconds, for which the rest of an answer is read that has said yes already
IDLE = 5.0  # seconds after which a connection that is not used is closed

FAULTS = (
    (httpcore.TimeoutException, "the receiver does not answer in time"),
    (httpcore.ConnectError, "the receiver cannot be reached"),
    (ssl.SSLError, "the receiver cannot be reached"),
    (httpcore.ProtocolError, "the receiver does not answer in HTTP"),
    (Exception, "the connection broke"),
)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host, as text; raises OSError when there is none."""


class Refused(Exception):
    """The receiver has an address that nothing connects to; the message names the address, the reason and the cure."""


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host; numbers in any spelling become the address that they mean."""
    return list(dict.fromkeys(str(entry[4][0]) for entry in await names.find(host, port)))


class Checked(httpcore.AsyncNetworkBackend):
    """How httpcore connects: by name to an address that was judged."""

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
            raise Refused(f"nothing was sent: {host} is at {refused[0]}{refused[1]}")
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
        except Refused as error:
            raise NotDelivered(reason=str(error)) from None
        except (OSError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            words = next(words for kind, words in FAULTS if isinstance(error, kind))
            said = safe(str(error) or type(error).__name__, 300)
            raise NotDelivered(reason=f"{words}: {said}") from error

    async def _exchange(self, headers: Mapping[str, str], body: bytes, limit: asyncio.Timeout) -> Answer:
        limits = {"connect": self._seconds, "read": self._seconds, "write": self._seconds, "pool": self._seconds}
        sent = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        async with self._pool.stream(
            "POST", self._url, headers=sent, content=body, extensions={"timeout": limits}
        ) as response:
            said = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            # the status counts from here on, so the limit ends the reading only
            now, end = asyncio.get_running_loop().time(), limit.when() or 0.0
            limit.reschedule(end + AFTER_YES)
            text = await _begin(response, min(end, now + AFTER_YES) if 200 <= response.status < 300 else end)
        return Answer(response.status, said.get("retry-after", ""), said.get("location", ""), text)


async def _begin(response: httpcore.Response, until: float) -> str:
    """Read how the body of an answer begins. The answer counts by its status, whatever becomes of its body."""
    data = bytearray()
    try:
        async with asyncio.timeout_at(until):
            async for piece in response.aiter_stream():
                data += piece
                if len(data) >= MOST_READ:
                    break
    except (TimeoutError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError):
        pass
    return bytes(data[:MOST_READ]).decode("utf-8", "replace")
