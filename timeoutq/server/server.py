"""A server to talk to: where it is, by its URL or by a redis-py client, how to sign on there, and how long to wait.

A client that the caller gave is not used itself: its settings are read.
"""

from __future__ import annotations

import copy
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from timeoutq.server import address
from timeoutq.server.address import Address, Settings
from timeoutq.server.calls import Command
from timeoutq.server.deadlines import ATTEMPT, CONNECT, WAIT
from timeoutq.server.troubles import LINK_ERRORS, explain
from timeoutq.words.errors import InvalidInput, TimeoutqError

_PLAIN = frozenset({
    redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection,
    redis.asyncio.Connection, redis.asyncio.SSLConnection, redis.asyncio.UnixDomainSocketConnection,
    redis.sentinel.SentinelManagedConnection, redis.sentinel.SentinelManagedSSLConnection,
    redis.asyncio.sentinel.SentinelManagedConnection, redis.asyncio.sentinel.SentinelManagedSSLConnection,
})  # fmt: skip
"""The connections whose settings say how to connect without them."""


class Endpoint:
    """One server to connect to: its host and port or its socket, TLS, and what signs on there."""

    def __init__(self, settings: Settings, hosts: Sequence[tuple[str, int]]) -> None:
        """Prepare, and read the certificates. Raises `InvalidInput` for files and settings of TLS of no use."""
        self._settings: Mapping[str, Any] = settings
        self.path: Any = settings.get("path")
        self.host, self.port = hosts[0] if hosts else ("", 0)
        self.context = _context(self._settings) if settings["ssl"] else None
        """What TLS checks and shows; None without TLS."""
        self.provider: Any = settings.get("credential_provider")
        """What gives the words of AUTH, as they are when a connection is made; None if the settings hold them."""

    def at(self, host: str, port: int) -> Self:
        """Give another server, which is spoken to in the same way, with the same TLS context."""
        found = copy.copy(self)
        found.host, found.port = host, port
        return found

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def greeting(self, provided: Sequence[str] | None) -> list[Command]:
        """Give the first commands of a new connection; `provided` are the words of AUTH of the `provider`."""
        user, password = self._settings.get("username"), self._settings.get("password")
        words = provided or ((user, password or "") if user else (password,) if password else ())
        said: list[Command] = [("AUTH", *map(str, words))] if words else []
        if name := self._settings.get("client_name"):
            said.append(("CLIENT", "SETNAME", str(name)))
        if db := self._settings.get("db"):
            said.append(("SELECT", int(db)))
        return said


def _context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    given = {name[4:]: word for name, word in settings.items() if name.startswith("ssl_") and word is not None}
    if any(value for name, value in given.items() if "ocsp" in name):
        raise InvalidInput("client= checks certificates by OCSP, which timeoutq does not: pass a URL")
    file, folder = given.get("ca_certs"), given.get("ca_path")
    if folder is not None and not Path(folder).is_dir():
        raise InvalidInput(f"the CA certificates in {folder!r} cannot be read: it is not a folder")
    try:
        context = ssl.create_default_context(cafile=file, capath=folder, cadata=given.get("ca_data"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the CA certificates in {file!r} cannot be read: {_why_not(error, file)}") from None
    needs = given.get("cert_reqs", "required")
    named = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    mode = named[needs] if isinstance(needs, str) else ssl.VerifyMode(needs)
    context.check_hostname = bool(given.get("check_hostname", True)) and mode != ssl.CERT_NONE
    context.verify_mode = mode
    cert, key = given.get("certfile"), given.get("keyfile")
    if cert:
        try:
            # without a password, nobody is asked for one on a terminal
            context.load_cert_chain(cert, key, given.get("password", lambda: ""))
        except (OSError, ValueError) as error:
            names = repr(cert) if key is None else f"{cert!r} with the key {key!r}"
            raise InvalidInput(f"the client certificate {names} cannot be used: {_why_not(error, cert, key)}") from None
    if given.get("min_version"):
        context.minimum_version = given["min_version"]
    if given.get("ciphers"):
        try:
            context.set_ciphers(given["ciphers"])
        except ssl.SSLError:
            raise InvalidInput("ssl_ciphers names no cipher of this OpenSSL") from None
    for flag in given.get("include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in given.get("exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    return context


def _why_not(error: Exception, *files: str | None) -> str:
    missing = [name for name in files if name is not None and not os.access(name, os.R_OK)]
    if missing:
        return f"{missing[0]!r} is missing, or not for this user to read"
    said = str(error)
    if "KEY_VALUES_MISMATCH" in said:
        return "the key is that of another certificate"
    if "NO_CERTIFICATE_OR_CRL_FOUND" in said or "PEM lib" in said or "NO_START_LINE" in said:
        return (
            "it holds no certificate in PEM, or no key, or the key has a password (ssl_password) that is not this one"
        )
    return said


class Server:
    """Where the server is and how long to wait for it."""

    def __init__(self, url: str | None, client: Any, deadline: float) -> None:
        self.deadline = deadline
        self._pool: Any = None
        if client is not None:
            self._pool = getattr(client, "connection_pool", None)
            if not hasattr(self._pool, "connection_kwargs"):
                cure = "; a cluster goes by its URL, redis+cluster://" if "Cluster" in type(client).__name__ else ""
                raise InvalidInput(
                    f"client= takes a redis.Redis or redis.asyncio.Redis, not {type(client).__name__}{cure}"
                )
        self._given = address.read(url) if self._pool is None else _address_of(self._pool)
        self.url = self._given.url
        """As it may be shown, without its password."""
        self.nodes = self._given.hosts if self._given.is_cluster else ()
        """The nodes of a cluster that the URL names, host and port; empty without a cluster."""
        self._endpoint = Endpoint(self._given.settings, self._given.hosts)
        self._sentinel = None if self._given.service is None else Endpoint(self._given.sentinel, ())

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    @property
    def place(self) -> str:
        """The URL, for a message; of a cluster with many nodes, the first of them stands for all."""
        if len(self.nodes) < 3:
            return self.url
        first, _, _ = self.url.partition(",")
        return f"{first},… ({len(self.nodes)} nodes)"

    @property
    def user(self) -> str:
        """The name of the user in the URL or the client; empty if none is given."""
        return str(self._given.settings.get("username") or "")

    @property
    def patience(self) -> float:
        """For how many seconds a link may connect."""
        return min(2.0, self.deadline * CONNECT)

    async def find(self, ask: Callable[[Endpoint, Command], Awaitable[Any]]) -> Endpoint:
        """Give the server to connect to; `ask` sends a command to a sentinel, and gives its reply."""
        if self._sentinel is None:
            return self._endpoint
        errors: list[BaseException] = []
        for host, port in self._given.hosts:
            try:
                answer = await ask(self._sentinel.at(host, port), ("SENTINEL", "MASTER", str(self._given.service)))
            except LINK_ERRORS as error:
                answer = error
            if isinstance(answer, BaseException):
                errors.append(answer)
                continue
            told = dict(zip(answer[::2], answer[1::2], strict=True))
            if b"down" not in told[b"flags"]:
                return self._endpoint.at(told[b"ip"].decode(), int(told[b"port"]))
        said = f" : {errors}" if errors else ""
        raise redis.sentinel.MasterNotFoundError(f"No master found for {self._given.service!r}{said}") from next(
            iter(errors), None
        )

    @property
    def is_plain(self) -> bool:
        """Whether links may connect by themselves; else the caller's client has connections of a class of its own."""
        return self._pool is None or self._pool.connection_class in _PLAIN

    @property
    def in_memory(self) -> bool:
        """Whether the caller's client is one of fakeredis: its connections are no sockets."""
        return not self.is_plain and "server" in self._pool.connection_kwargs

    def client(self, *, asynchronous: bool) -> Any:
        """Make a client with connections of the class of the caller's client; a wait may take `WAIT`."""
        retry = AsyncRetry(NoBackoff(), 0) if asynchronous else Retry(NoBackoff(), 0)
        if self.in_memory:
            import fakeredis

            fake: Any = fakeredis.FakeAsyncRedis if asynchronous else fakeredis.FakeRedis
            return fake(server=self._pool.connection_kwargs["server"], socket_timeout=None, retry=retry)
        kind: Any = redis.asyncio.Redis if asynchronous else redis.Redis
        pools: Any = redis.asyncio.ConnectionPool if asynchronous else redis.ConnectionPool
        if not isinstance(self._pool, pools):
            raise InvalidInput(
                f"client= has connections of a class of its own ({self._pool.connection_class.__name__}), which only "
                f"{'a blocking' if asynchronous else 'an asyncio'} queue can use: pass a URL, or a plain client"
            )
        longest = self.deadline * ATTEMPT + WAIT
        words = {**self._pool.connection_kwargs, "decode_responses": False, "retry": retry, "socket_timeout": longest}
        return kind.from_pool(type(self._pool)(connection_class=self._pool.connection_class, **words))

    def node(self, host: str, port: int) -> Self:
        """Give one node of this cluster as a server, with the user and the transport of the cluster's URL."""
        found = copy.copy(self)
        found.url = f"redis{'s' * bool(self._endpoint.context)}://{f'[{host}]' if ':' in host else host}:{port}"
        found.nodes = ()
        found._endpoint = self._endpoint.at(host, port)
        return found

    def within(self, deadline: float) -> Self:
        """Give the same server for calls with another deadline, seconds."""
        found = copy.copy(self)
        found.deadline = deadline
        return found

    def explain(self, error: BaseException) -> TimeoutqError:
        """Translate an error of a link into the error that a caller gets; no password stands in it."""
        notes = getattr(error, "__notes__", ())
        where = f"{self.place} ({'; '.join(notes)})" if self.nodes and notes else self.place
        return explain(error, where, self._given.secrets, self.deadline)


def _address_of(pool: Any) -> Address:
    # server, user and transport come from the caller's connections; we decide everything else
    words: Mapping[str, Any] = pool.connection_kwargs
    settings, scheme, db = _settings_of(pool), _scheme_of(pool), words.get("db") or 0
    secrets = frozenset(str(words[name]) for name in ("password", "ssl_password") if words.get(name))
    if not hasattr(pool, "service_name"):
        host, port = str(words.get("host") or "localhost"), int(words.get("port") or 6379)
        url = f"{scheme}://{words.get('host') or words.get('path') or 'client'}:{words.get('port', '')}/{db}"
        return Address(url, settings, ((host, port),), secrets=secrets)
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    hosts = tuple((str(one.connection_kwargs["host"]), int(one.connection_kwargs["port"])) for one in pools)
    url = f"{scheme}+sentinel://{','.join(f'{host}:{port}' for host, port in hosts)}/{pool.service_name}/{db}"
    return Address(url, settings, hosts, False, str(pool.service_name), _settings_of(pools[0]), secrets)


def _scheme_of(pool: Any) -> str:
    return "rediss" if "SSL" in pool.connection_class.__name__ else "redis"


def _settings_of(pool: Any) -> Settings:
    ours = ("path", "db", "username", "password", "credential_provider", "client_name")
    given: Mapping[str, Any] = pool.connection_kwargs
    found = {name: value for name, value in given.items() if name in ours or name.startswith("ssl_")}
    # a connection class of the caller's own connects by itself
    return {**found, "ssl": pool.connection_class in _PLAIN and _scheme_of(pool) == "rediss"}
