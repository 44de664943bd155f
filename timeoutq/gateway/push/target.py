"""The URL of the receiver, read and checked before anything is sent. Pure; `timeoutq push` calls it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from timeoutq.gateway.push.addresses import first_refusal
from timeoutq.words.errors import InvalidInput, MissingExtra
from timeoutq.words.text import safe

PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """Where tasks are posted to."""

    scheme: str
    host: str
    """As it is looked up and named in TLS: ASCII, an address of IPv6 without brackets."""
    port: int
    netloc: str
    """As the Host header names it."""
    path: str
    """With its query."""
    private: bool = False
    """Whether receivers on loopback and in private networks are allowed."""

    @property
    def shown(self) -> str:
        """The URL for messages: without its query, which may hold a token."""
        return safe(f"{self.scheme}://{self.netloc}{self.path.partition('?')[0]}", 300)


def read_target(url: str, *, private: bool = False) -> Target:
    """Read the URL of a receiver; raises `InvalidInput`, also for an address that nothing connects to."""
    try:
        import httpx
    except ImportError as error:
        raise MissingExtra(
            f"timeoutq push needs the package {error.name}, which is missing: pip install 'timeoutq[web]'"
        ) from error
    try:
        found = httpx.URL(url.strip())
        host, netloc = found.raw_host.decode("ascii"), found.netloc.decode("ascii")
        path = found.raw_path.decode("ascii")
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise InvalidInput(f"--to is no URL: {safe(error, 200)}") from None
    if found.scheme not in PORTS or not host:
        raise InvalidInput("--to must be a URL like https://hook.example/path")
    if found.userinfo:
        raise InvalidInput("--to names a user, and `ps` shows it: leave it out, the signature says who sends")
    port = found.port or PORTS[found.scheme]
    refused = first_refusal(_numbers(host, port), private=private)
    if refused is not None:
        raise InvalidInput(_refusal(*refused, private=private))
    return Target(found.scheme, host, port, netloc, path or "/", private)


def check_name(target: Target) -> str:
    """Look the name of the receiver up, once at the start; raises `InvalidInput` if nothing may be sent there.

    Gives a warning if the name is not known now: it may be known when tasks are sent, and is looked up anew then.
    """
    try:
        entries = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"the name of --to {target.shown} is not known now: {safe(error, 200)}"
    refused = first_refusal([str(entry[4][0]) for entry in entries], private=target.private)
    if refused is not None:
        raise InvalidInput(_refusal(*refused, private=target.private))
    return ""


def _refusal(address: str, why: str, *, private: bool) -> str:
    cure = "" if private else "; a receiver on a private network needs --allow-private"
    return f"--to leads to {address}, {why}: nothing is sent there{cure}"


def _numbers(host: str, port: int) -> list[str]:
    """Give the address that a host is, in whatever spelling of numbers; none for a name."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in entries]
