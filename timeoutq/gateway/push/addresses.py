"""Which addresses a receiver may have: those of the public internet, and private ones only where the user allows them.

A webhook's URL can be made to lead anywhere: to this machine, to the network beside it, to the metadata service of a
cloud. `posting.py` judges each address of the receiver before it connects, and `target.py` judges an address that
stands in the URL itself. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

UNICAST = ipaddress.IPv6Network("2000::/3")
"""All addresses of IPv6 that are routed between networks today."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""How a network without IPv4 reaches an IPv4 address: the last 32 bits (RFC 6052)."""
TUNNELS = {
    ipaddress.IPv6Network("2001::/32"): "Teredo",
    ipaddress.IPv6Network("2002::/16"): "6to4",
}
"""Prefixes in which an address of IPv4 is hidden, and which carry no servers any more."""
SPECIAL = [*map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20"))]
"""Parts of `UNICAST` that no server has (RFC 6890, RFC 9637); older Pythons do not know all of them."""
SPECIAL_OF_FOUR = [*map(ipaddress.IPv4Network, ("192.0.0.8/32", "192.88.99.0/24"))]
"""Addresses of IPv4 that no server has any more (RFC 7600, RFC 7526); older Pythons do not know them."""
ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The middle of an address that carries an address of IPv4 in its last 32 bits (RFC 5214)."""


def refusal(address: str, *, private: bool = False) -> str:
    """Say why nothing connects to an address; '' if it may be connected to.

    With `private`, loopback and private networks are allowed; link-local addresses, where clouds tell their secrets,
    and those that no single machine has stay refused.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "no address"
    return _of_four(found, private) if isinstance(found, ipaddress.IPv4Address) else _of_six(found, private)


def first_refusal(addresses: Iterable[str], *, private: bool = False) -> tuple[str, str] | None:
    """Give the first address that is refused, and why; None if all may be connected to: one is enough for a trap."""
    return next(((one, why) for one in addresses if (why := refusal(one, private=private))), None)


def _of_four(found: ipaddress.IPv4Address, private: bool) -> str:
    return _special(found) or _private(found, private)


def _of_six(found: ipaddress.IPv6Address, private: bool) -> str:
    if found.scope_id is not None:
        return "a link-local address"
    inner = found.ipv4_mapped or (ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF) if found in NAT64 else None)
    if inner is not None:
        why = _of_four(inner, private)
        return f"{why}, {inner}, inside one of IPv6" if why else ""
    why = _special(found)
    if why:
        return why
    if found.is_loopback or found in ipaddress.IPv6Network("fc00::/7"):
        return _private(found, private)
    tunnel = next((name for network, name in TUNNELS.items() if found in network), None)
    if tunnel is not None:
        return f"an address of IPv4 that is hidden by {tunnel}"
    if (int(found) >> 32) & 0xFFFF_FFFF in ISATAP:
        return "an address of IPv4 that is hidden by ISATAP"
    if found not in UNICAST or any(found in network for network in SPECIAL) or not found.is_global:
        return "an address that is reserved"
    return ""


def _special(found: Address) -> str:
    """Say what an address is that no receiver can have, whatever is allowed."""
    if found.is_unspecified or (isinstance(found, ipaddress.IPv4Address) and int(found) >> 24 == 0):
        return "the address of no machine"
    if found.is_link_local:
        return "a link-local address"
    if found.is_multicast or (isinstance(found, ipaddress.IPv4Address) and int(found) == 0xFFFF_FFFF):
        return "an address of many machines"
    if isinstance(found, ipaddress.IPv4Address) and (found.is_reserved or any(found in net for net in SPECIAL_OF_FOUR)):
        return "an address that is reserved"
    return ""


def _private(found: Address, allowed: bool) -> str:
    if allowed or found.is_global:
        return ""
    return "a loopback address" if found.is_loopback else "a private address"
