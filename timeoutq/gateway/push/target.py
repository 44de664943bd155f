"""Where push may send: the URL of the receiver, and which addresses a receiver may have. Pure but for `check_name`.

A webhook's URL can be made to lead anywhere: to this machine, to the network around it, to the metadata service of a
cloud. So `posting.py` judges each address of the receiver before it connects, and `read_target` judges an address that
stands in the URL itself.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import httpx

from timeoutq.words.errors import InvalidInput
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
    """Say why nothing connects to an address; '' if it may be connected to.

    With `private`, loopback and private networks are allowed; link-local addresses, where clouds tell their secrets,
    and those that no single machine has stay refused.
    """
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
    if found.scheme not in PORTS or not host:
        raise InvalidInput("--to must be a URL like https://hook.example/path")
    if found.userinfo:
        raise InvalidInput("--to names a user, and `ps` shows it: leave it out, the signature says who sends")
    target = Target(found.scheme, host, found.port or PORTS[found.scheme], netloc, path or "/", private)
    with suppress(OSError):  # it is a name
        _judge(target, socket.AI_NUMERICHOST)
    return target


def check_name(target: Target) -> str:
    """Look the name of the receiver up, once at the start; raises `InvalidInput` if nothing may be sent there.

    Gives a warning if the name is not known now: it is looked up again when tasks are sent.
    """
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
