"""Where the server is: a URL from the caller or the environment, parsed, checked, and shown without its password.

`connection.py` connects to what is described here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from timeoutq.errors import InvalidInput

DEFAULT_URL = "redis://localhost:6379/0"
SENTINEL_PORT = 26379
_SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
_SENTINEL_SCHEME = re.compile(r"(redis|valkey)(s?)\+sentinel")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]@/?#,]+)(?::(?P<port>[0-9]{1,5}))?")
_SHAPES = (
    "redis://[user:password@]host:port/db, rediss:// for TLS, unix:///path, or "
    "redis+sentinel://[user:password@]host:port,host:port/service/db"
)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Sentinels to ask for the primary of a service, and how to speak to both."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    server: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    """Settings of redis-py for the connections to the primary: db, username, password, ssl."""
    sentinel: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    """The same for those to the sentinels."""


def find_url(url: str | None) -> str:
    """Give the URL, else `TIMEOUTQ_URL`, else `REDIS_URL`, else redis://localhost:6379/0; checked."""
    found = url or os.environ.get("TIMEOUTQ_URL") or os.environ.get("REDIS_URL") or DEFAULT_URL
    if not isinstance(found, str):
        raise InvalidInput(f"the server URL is a str, not {type(found).__name__}")
    problem = _problem(found)
    if problem:
        raise InvalidInput(f"the server URL {redact(found)!r} does not parse: {problem}")
    return found


def _problem(url: str) -> str:
    # an error of the parser quotes what it took for a port, which may be half of a password: it ends here
    try:
        parts = urlsplit(url)
        if _SENTINEL_SCHEME.fullmatch(parts.scheme):
            return _sentinel_problem(url)
        parts.port  # noqa: B018  # reading it is the check
    except ValueError:
        return (
            "its host or port cannot be read; in a password write / as %2F, ? as %3F, # as %23 and @ as %40; "
            f"the shapes are {_SHAPES}"
        )
    if parts.scheme not in _SCHEMES or (parts.scheme == "unix" and not parts.path):
        return f"write {_SHAPES}"
    if parts.path.strip("/") and parts.scheme != "unix" and not parts.path.strip("/").isdigit():
        return "the path is a database number, like /0"
    return ""


def _sentinel_problem(url: str) -> str:
    parts = urlsplit(url)
    names = parts.netloc.rpartition("@")[2].split(",")
    if not all(_HOST.fullmatch(name) for name in names):
        return "its sentinels are host:port, with commas between them"
    if not re.fullmatch(r"/[^/]+(/[0-9]*)?/?", parts.path):
        return "the path is the name of the service that the sentinels watch, and a database number: /mymaster/0"
    unknown = set(parse_qs(parts.query, keep_blank_values=True)) - set(_SENTINEL_OPTIONS)
    if unknown:
        return f"of options it takes {' and '.join(_SENTINEL_OPTIONS)}"
    return ""


def sentinels(url: str) -> Sentinels | None:
    """Read a URL that names sentinels (one that `find_url` gave); None for any other."""
    parts = urlsplit(url)
    scheme = _SENTINEL_SCHEME.fullmatch(parts.scheme)
    if scheme is None:
        return None
    credentials, _, names = parts.netloc.rpartition("@")
    hosts: list[tuple[str, int]] = []
    for name in names.split(","):
        host = _HOST.fullmatch(name)
        assert host is not None, "find_url checks it"
        hosts.append((host["host"].strip("[]"), int(host["port"] or SENTINEL_PORT)))
    user, _, password = credentials.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    options = parse_qs(parts.query)
    tls: dict[str, object] = {"ssl": True} if scheme[2] else {}
    server: dict[str, object] = {"db": int(db or 0), **tls}
    for name, value in (("username", user), ("password", password)):
        if value:
            server[name] = unquote(value)
    sentinel = {name.removeprefix("sentinel_"): options[name][0] for name in _SENTINEL_OPTIONS if name in options}
    return Sentinels(tuple(hosts), unquote(service), server, {**sentinel, **tls})


def redact(url: str) -> str:
    """Give the URL with its password, wherever it stands, replaced by ***."""
    shown = re.sub(r"(://[^:@/?#]*):.*@", r"\1:***@", url)
    # what stands for a port and is none may be a password whose host was forgotten
    shown = re.sub(r"(://[^:@/?#\[]*):(?!\*|\d+(?:[,/?#]|\Z))[^/?#@]+", r"\1:***", shown)
    return re.sub(r"(?i)([?&][a-z_]*password=)[^&#]*", r"\1***", shown)


def secrets(url: str) -> list[str]:
    """Give the words of a URL (one that `find_url` gave) that nothing may show."""
    parts = urlsplit(url)
    found = [parts.password or ""]
    for name, values in parse_qs(parts.query).items():
        if name.lower().endswith("password"):
            found += values
    return [word for secret in found for word in {secret, unquote(secret)} if word]
