"""Where the server is: a URL from the caller or the environment, parsed, checked, and shown without its password.

An option of a URL that is unknown, or has a value that cannot be used, is refused with its name and with what would be
right.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from timeoutq.words.errors import InvalidInput

DEFAULT_URL = "redis://localhost:6379/0"
PORT = 6379
SENTINEL_PORT = 26379
_SCHEME = re.compile(r"(?:redis|valkey)(?P<tls>s?)(?:\+(?P<many>sentinel|cluster))?|unix")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]@/?#,]+)(?::(?P<port>[0-9]{1,5}))?")
_ESCAPES = "in a password write / as %2F, ? as %3F, # as %23 and @ as %40"
_CUT = re.compile(r"[^/?#]*//[^/?#]*[/#].*@", re.DOTALL)
"""Matches a URL with an @ behind the first / or #, where no part of a URL has one: a password was cut there."""
_NO_HOST = "the name of its host has an empty part, one of more than 63 letters, or a letter that no name has"
_NO_FRAGMENT = "a URL here has no part after a #; in a password write # as %23"
_SHAPES = (
    "redis://[user:password@]host:port/db, rediss:// for TLS, unix:///path, "
    "redis+sentinel://[user:password@]host:port,host:port/service/db, or "
    "redis+cluster://[user:password@]host:port,host:port"
)


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Sentinels to ask for the primary of a service, and how to speak to them."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    tls: bool
    settings: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    """The settings of connections to them, by redis-py's names."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server: the settings of connections to it, by redis-py's names; or the sentinels that know it."""

    url: str
    """As it may be shown."""
    tls: bool
    settings: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    sentinels: Sentinels | None = None
    nodes: tuple[tuple[str, int], ...] = ()
    """The nodes of a cluster that are asked first for all the others; empty for a single server."""


# ---- options


def _whole(word: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", word):
        raise ValueError
    return int(word)


def _yes(word: str) -> bool:
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[word.lower()]


def _requirement(word: str) -> str:
    if word not in ("required", "optional", "none"):
        raise ValueError
    return word


def _version(word: str) -> ssl.TLSVersion:
    return {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[word.lower().removeprefix("tlsv")]


def _word(word: str) -> str:
    if not word or "\0" in word:
        raise ValueError
    return word


_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "db": (_whole, "the number of a database"),
    "username": (_word, "a name"),
    "password": (_word, "a password"),
    "client_name": (_word, "a name"),
}
_TLS_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "ssl_ca_certs": (_word, "the path of a file of CA certificates"),
    "ssl_ca_path": (_word, "the path of a folder of CA certificates"),
    "ssl_certfile": (_word, "the path of a client certificate"),
    "ssl_keyfile": (_word, "the path of its key"),
    "ssl_password": (_word, "the password of that key"),
    "ssl_check_hostname": (_yes, "true or false"),
    "ssl_cert_reqs": (_requirement, "required, optional or none"),
    "ssl_min_version": (_version, "1.2 or 1.3"),
    "ssl_ciphers": (_word, "a list of ciphers as OpenSSL writes it"),
}
_SENTINEL_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "sentinel_username": (_word, "a name"),
    "sentinel_password": (_word, "a password"),
}
_OURS = frozenset({
    "socket_timeout", "socket_connect_timeout", "timeout", "retry_on_timeout", "retry_on_error", "max_connections",
    "health_check_interval", "protocol", "decode_responses", "encoding", "encoding_errors", "socket_keepalive",
    "socket_read_size", "legacy_responses",
})  # fmt: skip
"""What redis-py takes in a URL and timeoutq decides by itself."""

CA, CERT, KEY = "TIMEOUTQ_CA", "TIMEOUTQ_CERT", "TIMEOUTQ_KEY"
"""Environment: a file or folder of CA certificates, a client certificate and its key, where the URL names none."""


def _options(parts: Any, known: Mapping[str, tuple[Callable[[str], object], str]]) -> tuple[dict[str, object], str]:
    found: dict[str, object] = {}
    if "@" in parts.query:
        # it may be the rest of a password: none of it is shown
        return {}, f"there is an @ after the ?; {_ESCAPES}"
    for name, word in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            # without a value the name may be the secret
            shown = repr(name) if word and re.fullmatch("[A-Za-z_]{1,40}", name) else "one"
            if name in _OURS:
                return {}, f"{shown} is for timeoutq to decide (deadline= bounds how long a call takes): leave it out"
            if name in _TLS_OPTIONS:
                return (
                    {},
                    f"{shown} is for TLS: write rediss:// (or rediss+sentinel://, …), or leave it out",
                )
            return {}, f"{shown} is not an option; of those it takes {', '.join(known)}"
        if name in found:
            return {}, f"{name} is given twice"
        try:
            found[name] = known[name][0](word)
        except (ValueError, KeyError):
            return {}, f"{name} is {known[name][1]}, not what stands there"
    return found, ""


# ---- the URL


def find_url(url: str | None) -> str:
    """Give the URL, else `TIMEOUTQ_URL`, else `REDIS_URL`, else redis://localhost:6379/0; checked."""
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"the server URL is a str, not {type(url).__name__}")
    named = next((name for name in ("TIMEOUTQ_URL", "REDIS_URL") if not url and os.environ.get(name)), "")
    found = url or os.environ.get(named) or DEFAULT_URL
    problem = _problem(found)
    if problem:
        # what does not parse may hold a password anywhere: none of it is shown
        raise InvalidInput(f"the server URL{' in ' * bool(named)}{named} does not parse: {problem}")
    return found


def _problem(url: str) -> str:
    problem = _problem_of(url)
    if problem and _ESCAPES not in problem and not url.startswith("unix") and _CUT.match(url.partition("?")[0]):
        return f"there is an @ after a / or #; {_ESCAPES}"
    return problem


def _problem_of(url: str) -> str:
    # an error of the parser quotes what it took for a port, which may be half of a password: it ends here
    try:
        parts = urlsplit(url)
        scheme = _SCHEME.fullmatch(parts.scheme)
        if scheme is not None and scheme["many"]:
            return _problem_of_many(url, *_MANY[scheme["many"]]) or _options(parts, _known(parts.scheme))[1]
        port = parts.port
        unquote(parts.hostname or "").encode("idna")
    except UnicodeError:
        return _NO_HOST
    except ValueError:
        return f"its host or port cannot be read; {_ESCAPES}; the shapes are {_SHAPES}"
    if scheme is None or (parts.scheme == "unix" and not parts.path):
        return f"write {_SHAPES}"
    if parts.scheme == "unix" and parts.hostname:
        # the name is not quoted: it may be a password whose user was forgotten
        return "the path of a unix socket begins with a third slash: unix:///tmp/x.sock"
    if port == 0:
        return "a port is 1 to 65535"
    path = parts.path.strip("/")
    if path and parts.scheme != "unix" and not re.fullmatch("[0-9]{1,9}", path):
        return "the path is a database number, like /0"
    if "#" in url:
        return _NO_FRAGMENT
    options, problem = _options(parts, _known(parts.scheme))
    if not problem and path and parts.scheme != "unix" and options.get("db", int(path)) != int(path):
        return f"it names two databases: /{path} and db={options['db']}"
    return problem


_MANY = {
    "sentinel": (
        "sentinels", SENTINEL_PORT, r"/[^/]+(/[0-9]{0,9})?/?",
        "the path is the name of the service that the sentinels watch, and a database number: /mymaster/0",
    ),
    "cluster": ("nodes", PORT, "(/0?)?", "a cluster has only the database 0: write nothing behind the nodes"),
}  # fmt: skip
"""Of URLs with many hosts: the word for the hosts, their usual port, the path, and the cure for another path."""


def _problem_of_many(url: str, what: str, port: int, path: str, cure: str) -> str:
    parts = urlsplit(url)
    hosts = [_HOST.fullmatch(name) for name in parts.netloc.rpartition("@")[2].split(",")]
    if not all(host and 1 <= int(host["port"] or port) <= 65535 for host in hosts):
        return f"its {what} are host:port, with commas between them"
    for host in hosts:
        (host["host"] if host else "").encode("idna")  # raises UnicodeError
    if not re.fullmatch(path, parts.path, re.ASCII):
        return cure
    return _NO_FRAGMENT if "#" in url else ""


def _known(scheme: str) -> dict[str, tuple[Callable[[str], object], str]]:
    found = _SCHEME.fullmatch(scheme)
    many = found and found["many"]
    known = _OPTIONS
    if many == "sentinel":
        known = {**_SENTINEL_OPTIONS, "client_name": _OPTIONS["client_name"]}
    elif many == "cluster":
        known = {name: option for name, option in _OPTIONS.items() if name != "db"}
    return {**known, **_TLS_OPTIONS} if found and found["tls"] else known


def read(url: str) -> Address:
    """Read a URL that `find_url` gave, and the environment. Raises `InvalidInput` for a key without its certificate."""
    parts = urlsplit(url)
    options, _ = _options(parts, _known(parts.scheme))
    scheme = _SCHEME.fullmatch(parts.scheme)
    assert scheme is not None, "find_url checks it"
    tls, many = bool(scheme["tls"]), scheme["many"]
    if tls:
        options = _with_certificates(options)
    if many == "sentinel":
        return _watched(url, tls, options)
    for name, value in (("username", parts.username), ("password", parts.password)):
        if value:
            options[name] = unquote(value)
    if many == "cluster":
        nodes = _hosts(parts.netloc, PORT)
        return Address(redact(url), tls, {**options, "host": nodes[0][0], "port": nodes[0][1]}, nodes=nodes)
    if parts.scheme == "unix":
        return Address(redact(url), False, {"path": unquote(parts.path), **options})
    options |= {"host": unquote(parts.hostname or "localhost"), "port": parts.port or PORT}
    path = parts.path.strip("/")
    if path:
        options["db"] = int(path)
    return Address(redact(url), tls, options)


def _watched(url: str, tls: bool, options: Mapping[str, object]) -> Address:
    parts = urlsplit(url)
    credentials = parts.netloc.rpartition("@")[0]
    user, _, password = credentials.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    shared: dict[str, object] = {name: value for name, value in options.items() if name not in _SENTINEL_OPTIONS}
    server: dict[str, object] = {"db": int(db or 0), **shared}
    for name, value in (("username", user), ("password", password)):
        if value:
            server[name] = unquote(value)
    sentinel = {name.removeprefix("sentinel_"): options[name] for name in _SENTINEL_OPTIONS if name in options}
    hosts = _hosts(parts.netloc, SENTINEL_PORT)
    return Address(redact(url), tls, server, Sentinels(hosts, unquote(service), tls, {**shared, **sentinel}))


def _hosts(netloc: str, port: int) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for name in netloc.rpartition("@")[2].split(","):
        host = _HOST.fullmatch(name)
        assert host is not None, "find_url checks it"
        found.append((host["host"].strip("[]"), int(host["port"] or port)))
    return tuple(found)


# ---- certificates


def _with_certificates(options: dict[str, object]) -> dict[str, object]:
    found = dict(options)
    ca = os.environ.get(CA)
    if ca and not {"ssl_ca_certs", "ssl_ca_path"} & found.keys():
        found["ssl_ca_path" if Path(ca).is_dir() else "ssl_ca_certs"] = ca
    cert, key = os.environ.get(CERT), os.environ.get(KEY)
    if "ssl_certfile" not in found and cert:
        found["ssl_certfile"] = cert
        if key and "ssl_keyfile" not in found:
            found["ssl_keyfile"] = key
    if found.get("ssl_keyfile") and not found.get("ssl_certfile"):
        raise InvalidInput(f"ssl_keyfile needs its certificate: pass ssl_certfile, too, or set {CERT}")
    if found.get("ssl_cert_reqs") == "none":
        found["ssl_check_hostname"] = False
    return found


# ---- secrets


def redact(url: str) -> str:
    """Give the URL with its password, wherever it stands, replaced by ***."""
    shown = re.sub(r"(://[^:@/?#]*):.*@", r"\1:***@", url)
    # a name without a password may be a password without its colon
    shown = re.sub(r"://[^:@/?#]+@", "://***@", shown)
    # what stands for a port and is none may be a password whose host was forgotten
    shown = re.sub(r"(://[^:@/?#\[]*):(?!\*|\d+(?:[,/?#]|\Z))[^/?#@]+", r"\1:***", shown)
    return re.sub(r"(?i)([?&][a-z_]*password=)[^&#]*", r"\1***", shown)


def secrets(url: str) -> list[str]:
    """Give the words of a URL (one that `find_url` gave) that nothing may show."""
    parts = urlsplit(url)
    found = [parts.password or ""]
    for name, word in parse_qsl(parts.query):
        if name.lower().endswith("password"):
            found.append(word)
    return [word for secret in found for word in {secret, unquote(secret)} if word]
