"""Where the server is: a URL from the caller or the environment, read, and shown without its password."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from timeoutq.words.errors import InvalidInput

DEFAULT_URL = "redis://localhost:6379/0"
CA, CERT, KEY = "TIMEOUTQ_CA", "TIMEOUTQ_CERT", "TIMEOUTQ_KEY"
"""Environment: a file or folder of CA certificates, a client certificate and its key, where the URL names none."""

Settings = Mapping[str, object]
"""How to connect and to sign on, by redis-py's names; `ssl` says whether TLS is spoken."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server, a cluster, or the sentinels that know a server."""

    url: str
    """As it may be shown."""
    settings: Settings = field(repr=False)
    hosts: tuple[tuple[str, int], ...] = ()
    """The server, or the nodes of a cluster or the sentinels that are asked first; empty for a unix socket."""
    is_cluster: bool = False
    service: str | None = None
    """What the sentinels watch; None without sentinels."""
    sentinel: Settings = field(default_factory=dict[str, object], repr=False)
    """The settings of connections to the sentinels."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """The words that nothing may show."""


# ---- options


def _whole(word: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", word):
        raise ValueError
    return int(word)


def _word(word: str) -> str:
    if not word or "\0" in word:
        raise ValueError
    return word


def _one_of(values: Mapping[str, object]) -> Callable[[str], object]:
    return lambda word: values[word.lower().removeprefix("tlsv")]


_Options = Mapping[str, tuple[Callable[[str], object], str]]
"""How the value of each option is read, and what it is."""
_DB: _Options = {"db": (_whole, "the number of a database")}
_USER: _Options = {"username": (_word, "a name"), "password": (_word, "a password")}
_NAME: _Options = {"client_name": (_word, "a name")}
_SENTINEL: _Options = {f"sentinel_{name}": option for name, option in _USER.items()}
_TLS: _Options = {
    "ssl_ca_certs": (_word, "the path of a file of CA certificates"),
    "ssl_ca_path": (_word, "the path of a folder of CA certificates"),
    "ssl_certfile": (_word, "the path of a client certificate"),
    "ssl_keyfile": (_word, "the path of its key"),
    "ssl_password": (_word, "the password of that key"),
    "ssl_check_hostname": (
        _one_of({"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}), "true or false",
    ),
    "ssl_cert_reqs": (_one_of({word: word for word in ("required", "optional", "none")}), "required, optional or none"),
    "ssl_min_version": (_one_of({"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}), "1.2 or 1.3"),
    "ssl_ciphers": (_word, "a list of ciphers as OpenSSL writes it"),
}  # fmt: skip
_OURS = frozenset({
    "socket_timeout", "socket_connect_timeout", "timeout", "retry_on_timeout", "retry_on_error", "max_connections",
    "health_check_interval", "protocol", "decode_responses", "encoding", "encoding_errors", "socket_keepalive",
    "socket_read_size", "legacy_responses",
})  # fmt: skip
"""What redis-py takes in a URL and timeoutq decides by itself."""


def _read_options(query: str, known: _Options) -> dict[str, object]:
    found: dict[str, object] = {}
    if "@" in query:
        # it may be the rest of a password: none of it is shown
        raise InvalidInput(f"there is an @ after the ?; {_ESCAPES}")
    for name, word in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            # without a value the name may be the secret
            shown = repr(name) if word and re.fullmatch("[A-Za-z_]{1,40}", name) else "one"
            if name in _OURS:
                raise InvalidInput(
                    f"{shown} is for timeoutq to decide (deadline= bounds how long a call takes): leave it out"
                )
            if name in _TLS:
                raise InvalidInput(f"{shown} is for TLS: write rediss:// (or rediss+sentinel://, …), or leave it out")
            raise InvalidInput(f"{shown} is not an option; of those it takes {', '.join(known)}")
        if name in found:
            raise InvalidInput(f"{name} is given twice")
        read, about = known[name]
        try:
            found[name] = read(word)
        except (ValueError, KeyError):
            raise InvalidInput(f"{name} is {about}, not what stands there") from None
    return found


def _certificates(options: Settings) -> Settings:
    # what the environment says of TLS where the options do not
    found: dict[str, object] = {}
    ca, cert, key = (os.environ.get(name) for name in (CA, CERT, KEY))
    if ca and not {"ssl_ca_certs", "ssl_ca_path"} & options.keys():
        found["ssl_ca_path" if Path(ca).is_dir() else "ssl_ca_certs"] = ca
    if cert and "ssl_certfile" not in options:
        found["ssl_certfile"] = cert
        if key and "ssl_keyfile" not in options:
            found["ssl_keyfile"] = key
    if "ssl_keyfile" in options and "ssl_certfile" not in {**options, **found}:
        raise InvalidInput(f"ssl_keyfile needs its certificate: pass ssl_certfile, too, or set {CERT}")
    if options.get("ssl_cert_reqs") == "none":
        found["ssl_check_hostname"] = False
    return found


# ---- the URL

_URL = re.compile(
    r"(?:(?P<unix>unix)|(?:redis|valkey)(?P<tls>s?)(?:\+(?P<many>sentinel|cluster))?)://"
    r"(?:(?P<user>[^/?#]*)@)?(?P<hosts>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>#.*)?",
    re.DOTALL | re.IGNORECASE,
)
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^:\[\]@]*))(?::(?P<port>[0-9]{0,6}))?")
_CUT = re.compile(r"[^/?#]*//[^/?#]*[/#].*@", re.DOTALL)
"""Matches a URL with an @ behind the first / or #, where no part of a URL has one: a password was cut there."""
_ESCAPES = "in a password write / as %2F, ? as %3F, # as %23 and @ as %40"
_SHAPES = (
    "redis://[user:password@]host:port/db, rediss:// for TLS, unix:///path, "
    "redis+sentinel://[user:password@]host:port,host:port/service/db, or "
    "redis+cluster://[user:password@]host:port,host:port"
)


class _Kind(NamedTuple):
    """What the URLs of one kind of servers have, and what is said of other hosts and other paths."""

    port: int
    path: str
    options: _Options
    no_hosts: str
    no_path: str


_KINDS = {
    None: _Kind(
        6379, "/*(?P<db>[0-9]{0,9})/*", {**_DB, **_USER, **_NAME},
        f"its host or port cannot be read; {_ESCAPES}; the shapes are {_SHAPES}",
        "the path is a database number, like /0",
    ),
    "sentinel": _Kind(
        26379, "/(?P<service>[^/]+)(/(?P<db>[0-9]{0,9}))?/?", {**_SENTINEL, **_NAME},
        "its sentinels are host:port, with commas between them",
        "the path is the name of the service that the sentinels watch, and a database number: /mymaster/0",
    ),
    "cluster": _Kind(
        6379, "(/(?P<db>0?))?", {**_USER, **_NAME},
        "its nodes are host:port, with commas between them",
        "a cluster has only the database 0: write nothing behind the nodes",
    ),
}  # fmt: skip


def read(url: str | None) -> Address:
    """Read the URL, else `TIMEOUTQ_URL`, else `REDIS_URL`, else redis://localhost:6379/0, and the environment for TLS.

    Raises `InvalidInput`, with no part of the URL that may be a password.
    """
    if url is not None and not isinstance(url, str):
        raise InvalidInput(f"the server URL is a str, not {type(url).__name__}")
    named = next((name for name in ("TIMEOUTQ_URL", "REDIS_URL") if not url and os.environ.get(name)), "")
    found = (url or os.environ.get(named) or DEFAULT_URL).strip()
    try:
        return _parse(found)
    except InvalidInput as error:
        problem = str(error)
    if _ESCAPES not in problem and not found.startswith("unix") and _CUT.match(found.partition("?")[0]):
        problem = f"there is an @ after a / or #; {_ESCAPES}"
    raise InvalidInput(f"the server URL{' in ' * bool(named)}{named} does not parse: {problem}")


def _parse(url: str) -> Address:
    parts = _URL.fullmatch(url)
    if parts is None or (parts["unix"] and not parts["path"]):
        raise InvalidInput(f"write {_SHAPES}")
    if parts["unix"] and parts["hosts"]:
        # the name is not quoted: it may be a password whose user was forgotten
        raise InvalidInput("the path of a unix socket begins with a third slash: unix:///tmp/x.sock")
    many = parts["many"] and parts["many"].lower()
    kind = _KINDS[many]
    hosts = () if parts["unix"] else _hosts(parts["hosts"], kind, many=bool(many))
    path = re.fullmatch(kind.path, "" if parts["unix"] else parts["path"], re.ASCII)
    if path is None:
        raise InvalidInput(kind.no_path)
    if parts["rest"] is not None:
        raise InvalidInput("a URL here has no part after a #; in a password write # as %23")
    options = _read_options(parts["query"] or "", {**kind.options, **_TLS} if parts["tls"] else kind.options)
    if path["db"] and options.get("db", int(path["db"])) != int(path["db"]):
        raise InvalidInput(f"it names two databases: /{path['db']} and db={options['db']}")
    secrets = [str(word) for name, word in options.items() if name.endswith("password")]
    settings: dict[str, object] = {"ssl": bool(parts["tls"]), **options}
    if parts["tls"]:
        settings |= _certificates(options)
    # the users of the sentinels are their own
    sentinel = {name.removeprefix("sentinel_"): word for name, word in settings.items()}
    settings = {name: word for name, word in settings.items() if name not in _SENTINEL}
    user, _, password = (parts["user"] or "").partition(":")
    if parts["unix"]:
        settings["path"] = unquote(parts["path"])
    if path["db"]:
        settings["db"] = int(path["db"])
    for name, word in (("username", user), ("password", password)):
        if word:
            settings[name] = unquote(word)
    service = unquote(path["service"]) if many == "sentinel" else None
    hidden = frozenset(word for secret in (password, *secrets) for word in (secret, unquote(secret)) if word)
    return Address(redact(url), settings, hosts, many == "cluster", service, sentinel, hidden)


def _hosts(words: str, kind: _Kind, *, many: bool) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for word in words.split(",") if many else [words]:
        host = _HOST.fullmatch(word)
        if host is None or (many and not word.partition(":")[0]):
            raise InvalidInput(kind.no_hosts)
        name, port = unquote(host["six"] or host["host"] or "localhost"), int(host["port"] or kind.port)
        if not 1 <= port <= 65535:
            raise InvalidInput("a port is 1 to 65535")
        try:
            name.encode("idna")
        except UnicodeError:
            raise InvalidInput(
                "the name of its host has an empty part, one of more than 63 letters, or a letter that no name has"
            ) from None
        found.append((name, port))
    return tuple(found)


def redact(url: str) -> str:
    """Give the URL with its password, wherever it stands, replaced by ***."""
    shown = re.sub(r"(://[^:@/?#]*):.*@", r"\1:***@", url)
    # a name without a password may be a password without its colon
    shown = re.sub(r"://[^:@/?#]+@", "://***@", shown)
    # what stands for a port and is none may be a password whose host was forgotten
    shown = re.sub(r"(://[^:@/?#\[]*):(?!\*|\d+(?:[,/?#]|\Z))[^/?#@]+", r"\1:***", shown)
    return re.sub(r"(?i)([?&][a-z_]*password=)[^&#]*", r"\1***", shown)
