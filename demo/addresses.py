"""Keeps the crawler on the public internet: a transport for httpx that connects only to addresses that were checked.

A link can name any host, and a host's name can be made to lead anywhere: to the crawler's own loopback, to a machine of
the network beside it, to the metadata service of a cloud. A name is resolved once for a connection, every address of it
is judged, and the connection goes to one of those addresses: no second look-up could answer something else in between.
The Host header and the name in TLS stay those of the URL. `crawl.py` calls this.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

import httpcore
import httpx

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host, as text; raises OSError when there is none."""

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PrivateAddress(Exception):
    """The host has an address that is not of the public internet; the message names it and the cure."""


def is_public(address: str) -> bool:
    """Say whether an address is of the public internet, also the IPv4 address that is carried in one of IPv6."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found in NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        carried = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        inner = [one for one in carried if one is not None]
        if inner:
            return all(is_public(str(one)) for one in inner)
        if found.is_site_local:
            return False
    # multicast counts as global for `ipaddress`, but nobody serves pages there
    return found.is_global and not found.is_multicast and not found.is_reserved and not found.is_unspecified


def check(host: str, addresses: Sequence[str]) -> None:
    """Raise `PrivateAddress` when one of the host's addresses is not public: one is enough for a trap."""
    for address in addresses:
        if not is_public(address):
            raise PrivateAddress(f"{host} has the private address {address}: crawl it with --allow-private")


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """How httpcore connects: by name to an address that was judged."""

    def __init__(
        self,
        allow_private: bool,
        resolve: Resolve = resolve,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._resolve = resolve
        # a cast, because without anyio, which httpx requires, the class would be another
        self._network = network or cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first checked address that answers; all of it within the timeout."""
        until = None if timeout is None else time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no address of {host} was found within {timeout} s") from error
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"no address of {host} was found: {error}") from error
        if not self._allow_private:
            check(host, addresses)
        trouble: Exception = httpcore.ConnectError(f"{host} has no address")
        for i, address in enumerate(addresses):
            left = None if until is None else max(0.01, (until - time.monotonic()) / (len(addresses) - i))
            try:
                return await self._network.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                trouble = error
        raise trouble


class CheckedTransport(httpx.AsyncHTTPTransport):
    """The transport of the crawler's httpx client; it uses no proxy, which would resolve names by itself."""

    def __init__(self, allow_private: bool, limits: httpx.Limits, backend: CheckedBackend | None = None) -> None:
        super().__init__(trust_env=False, limits=limits)
        # httpx has no word for httpcore's backend; the pool is made here as httpx makes it
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=backend or CheckedBackend(allow_private),
        )
