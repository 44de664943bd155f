"""Makes redis-py clients from a URL, from the environment, or from a client that the caller gave.

`link.py` sends through these clients. redis-py's own retries are off: only `sending.py` decides what may be sent again,
and for how long.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from timeoutq.server import address, names
from timeoutq.server.address import Address, Sentinels
from timeoutq.server.deadlines import CONNECT
from timeoutq.server.patience import AsyncPatientParser, PatientParser
from timeoutq.server.troubles import explain
from timeoutq.words.errors import InvalidInput, TimeoutqError

_UNNAMED: Mapping[str, Any] = {"driver_info": None}
"""A connection does not tell the server its library: this costs two round trips, and hides why access is refused."""


class Server:
    """Where the server is and how long to wait for it; makes the redis-py clients of the links."""

    def __init__(self, url: str | None, client: Any, deadline: float) -> None:
        self.deadline = deadline
        self._kwargs: dict[str, Any] = {}
        self._pool: Any = None
        self._sentinels: Sentinels | None = None
        self._given: Address | None = None
        if client is not None:
            pool = getattr(client, "connection_pool", None)
            if pool is None or not hasattr(pool, "connection_kwargs"):
                cure = "; a cluster goes by its URL, redis+cluster://" if "Cluster" in type(client).__name__ else ""
                raise InvalidInput(
                    f"client= takes a redis.Redis or redis.asyncio.Redis, not {type(client).__name__}{cure}"
                )
            self._pool = pool
            self._kwargs = dict(pool.connection_kwargs)
            host = self._kwargs.get("host") or self._kwargs.get("path") or "client"
            scheme = "rediss" if "SSL" in pool.connection_class.__name__ else "redis"
            self.url = f"{scheme}://{host}:{self._kwargs.get('port', '')}/{self._kwargs.get('db') or 0}"
            if hasattr(pool, "service_name"):
                self._sentinels = _given_sentinels(pool, self._plain())
                self.url = f"{scheme}+sentinel://{','.join(f'{h}:{p}' for h, p in self._sentinels.hosts)}"
                self.url += f"/{self._sentinels.service}/{self._kwargs.get('db') or 0}"
            self._secrets = [str(self._kwargs[name]) for name in ("password", "ssl_password") if self._kwargs.get(name)]
        else:
            found = address.find_url(url)
            self._given = address.read(found)
            self.url = self._given.url
            self._secrets = address.secrets(found)
            self._sentinels = self._given.sentinels

    def __repr__(self) -> str:
        return f"Server({getattr(self, 'url', '?')!r})"

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
        if self._given is not None:
            return str(self._given.settings.get("username") or "")
        return str(self._kwargs.get("username") or "")

    def _options(self, read_timeout: float) -> dict[str, Any]:
        return {
            "decode_responses": False,
            "health_check_interval": 0,
            "protocol": 2,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "socket_connect_timeout": min(2.0, self.deadline * CONNECT),
            "socket_keepalive": True,
            "socket_timeout": read_timeout,
            **_UNNAMED,
        }

    def client(self, *, asynchronous: bool, read_timeout: float) -> Any:
        """Make a redis-py client with its own connections: bytes, RESP2, no retries of its own."""
        options = self._options(read_timeout)
        if asynchronous:
            options["retry"] = AsyncRetry(NoBackoff(), 0)
            options["parser_class"] = AsyncPatientParser
        else:
            options["retry"] = Retry(NoBackoff(), 0)
            options["parser_class"] = PatientParser
        kind: Any = redis.asyncio.Redis if asynchronous else redis.Redis
        if self._sentinels is not None:
            return kind(connection_pool=self._watched(self._sentinels, asynchronous, options))
        module: Any = redis.asyncio.connection if asynchronous else redis.connection
        connection: Any
        if self._given is not None:
            connection = getattr(module, self._given.connection)
            settings: Mapping[str, Any] = self._given.settings
        else:
            if self.in_memory:
                return self._fake(asynchronous, options["retry"])
            given = self._pool.connection_class
            connection = getattr(module, given.__name__, given)
            settings = self._plain()
        connection = names.FINDING.get(connection, connection)
        if "path" in settings:
            options.pop("socket_keepalive")
        return kind(connection_pool=module.ConnectionPool(connection_class=connection, **settings, **options))

    def _watched(self, where: Sentinels, asynchronous: bool, options: dict[str, Any]) -> Any:
        # each new connection asks the sentinels for the primary; a connection that reached a replica is closed
        module: Any = redis.asyncio.sentinel if asynchronous else redis.sentinel
        patience = min(1.0, self.deadline / 4)
        asking: dict[str, Any] = {
            **where.sentinel, "protocol": 2, "retry": options["retry"], "retry_on_error": [],
            "socket_connect_timeout": patience, "socket_timeout": patience,
        }  # fmt: skip
        kind: Any = module.Sentinel
        if where.sentinel.get("ssl"):
            kind = _AsyncSentinelsOverTls if asynchronous else _SentinelsOverTls
        manager = kind(where.hosts, sentinel_kwargs=asking)
        pools = [sentinel.connection_pool for sentinel in manager.sentinels]
        pools.append(module.SentinelConnectionPool(where.service, manager, **where.server, **options))
        for pool in pools:
            pool.connection_class = names.FINDING.get(pool.connection_class, pool.connection_class)
        return pools[-1]

    def _plain(self) -> dict[str, Any]:
        # server, user and transport come from the caller's connections; we decide everything else
        return {
            name: value
            for name, value in self._kwargs.items()
            if name in ("host", "port", "path", "db", "username", "password", "credential_provider", "client_name")
            or (name.startswith("ssl_") and (value or ("ocsp" not in name and name != "ssl_password")))
        }

    def _fake(self, asynchronous: bool, retry: Any) -> Any:
        import fakeredis

        kind: Any = fakeredis.FakeAsyncRedis if asynchronous else fakeredis.FakeRedis
        return kind(server=self._kwargs["server"], retry=retry, socket_timeout=None)

    @property
    def in_memory(self) -> bool:
        """Whether the caller's client is one of fakeredis: its connections are no sockets."""
        return self._pool is not None and "fakeredis" in self._pool.connection_class.__module__

    @property
    def service(self) -> str | None:
        """The service that the sentinels watch; None without sentinels."""
        return None if self._sentinels is None else self._sentinels.service

    @property
    def nodes(self) -> Sequence[tuple[str, int]]:
        """The nodes of a cluster that the URL names, host and port; empty without a cluster."""
        return () if self._given is None else self._given.nodes

    def node(self, host: str, port: int) -> Self:
        """Give one node of this cluster as a server, with the user and the transport of the cluster's URL."""
        assert self._given is not None, "only a URL names a cluster"
        found = copy.copy(self)
        found.url = f"redis{'s' * self._given.tls}://{f'[{host}]' if ':' in host else host}:{port}"
        found._given = replace(
            self._given, url=found.url, settings={**self._given.settings, "host": host, "port": port}, nodes=()
        )
        return found

    def within(self, deadline: float) -> Self:
        """Give the same server for calls with another deadline, seconds."""
        found = copy.copy(self)
        found.deadline = deadline
        return found

    def explain(self, error: BaseException) -> TimeoutqError:
        """Translate an error that redis-py raised into the error that a caller gets; no password stands in it."""
        notes = getattr(error, "__notes__", ())
        where = f"{self.place} ({'; '.join(notes)})" if self.nodes and notes else self.place
        return explain(error, where, self._secrets, self.deadline)


_Sentinels: Any = redis.sentinel.Sentinel
_AsyncSentinels: Any = redis.asyncio.sentinel.Sentinel


class _SentinelsOverTls(_Sentinels):  # type: ignore[misc]  # redis-py gives it no types
    """Sentinels that say why they cannot be asked: redis-py alone hides the errors of TLS."""

    def discover_master(self, service_name: str) -> Any:
        sentinel: Any = self.sentinels[0]
        try:
            return _Sentinels.discover_master(self, service_name)
        except redis.sentinel.MasterNotFoundError as error:
            try:
                sentinel.ping()
            except (redis.ConnectionError, redis.TimeoutError) as why:
                raise error from why
            raise


class _AsyncSentinelsOverTls(_AsyncSentinels):  # type: ignore[misc]  # redis-py gives it no types
    """The same for asyncio."""

    async def discover_master(self, service_name: str) -> Any:
        sentinel: Any = self.sentinels[0]
        try:
            return await _AsyncSentinels.discover_master(self, service_name)
        except redis.asyncio.sentinel.MasterNotFoundError as error:
            try:
                await sentinel.ping()
            except (redis.ConnectionError, redis.TimeoutError) as why:
                raise error from why
            raise


def _given_sentinels(pool: Any, plain: dict[str, Any]) -> Sentinels:
    manager = pool.sentinel_manager
    kwargs = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    hosts = tuple((str(words["host"]), int(words["port"])) for words in kwargs)
    server = {name: value for name, value in plain.items() if name not in ("host", "port")}
    tls = {"ssl": True} if "SSL" in pool.connection_class.__name__ else {}
    asked = {} if not kwargs else {
        name: value for name, value in kwargs[0].items()
        if value and (name in ("username", "password") or name.startswith("ssl_"))
    }  # fmt: skip
    if kwargs and "SSL" in manager.sentinels[0].connection_pool.connection_class.__name__:
        asked["ssl"] = True
    return Sentinels(hosts, str(pool.service_name), {**server, **tls}, asked)
