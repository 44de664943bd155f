"""Where a server is, from a URL, from the environment, or from a redis-py client that the caller gave.

A client that the caller gave is not used itself: its settings are read.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from timeoutq.server import address
from timeoutq.server.address import Address, Sentinels
from timeoutq.server.calls import Command
from timeoutq.server.deadlines import ATTEMPT, CONNECT, WAIT
from timeoutq.server.endpoint import Endpoint
from timeoutq.server.troubles import explain
from timeoutq.words.errors import InvalidInput, TimeoutqError

_PLAIN = frozenset({
    redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection,
    redis.asyncio.Connection, redis.asyncio.SSLConnection, redis.asyncio.UnixDomainSocketConnection,
    redis.sentinel.SentinelManagedConnection, redis.sentinel.SentinelManagedSSLConnection,
    redis.asyncio.sentinel.SentinelManagedConnection, redis.asyncio.sentinel.SentinelManagedSSLConnection,
})  # fmt: skip
"""The connections whose settings say how to connect without them."""


class Server:
    """Where the server is and how long to wait for it."""

    def __init__(self, url: str | None, client: Any, deadline: float) -> None:
        self.deadline = deadline
        self._pool: Any = None
        if client is None:
            found = address.find_url(url)
            self._given = address.read(found)
            self._secrets = address.secrets(found)
        else:
            self._pool = getattr(client, "connection_pool", None)
            if not hasattr(self._pool, "connection_kwargs"):
                cure = "; a cluster goes by its URL, redis+cluster://" if "Cluster" in type(client).__name__ else ""
                raise InvalidInput(
                    f"client= takes a redis.Redis or redis.asyncio.Redis, not {type(client).__name__}{cure}"
                )
            self._given = _of_pool(self._pool)
            words: Mapping[str, Any] = self._pool.connection_kwargs
            self._secrets = [str(words[name]) for name in ("password", "ssl_password") if words.get(name)]
        # a connection class of the caller's own connects by itself
        self._endpoint = Endpoint(self._given.settings, tls=self._given.tls and self.is_plain)
        sentinels = self._given.sentinels
        self._sentinel = Endpoint(sentinels.settings, tls=sentinels.tls) if sentinels else None

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    @property
    def url(self) -> str:
        """As it may be shown, without its password."""
        return self._given.url

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

    def search(self) -> Generator[tuple[Endpoint, Command], Any, Endpoint]:
        """Give the server to connect to; commands that it yields are to be sent first, for replies or errors."""
        sentinels = self._given.sentinels
        if sentinels is None or self._sentinel is None:
            return self._endpoint
        errors: list[BaseException] = []
        for host, port in sentinels.hosts:
            answer = yield self._sentinel.at(host, port), ("SENTINEL", "MASTER", sentinels.service)
            if isinstance(answer, BaseException):
                errors.append(answer)
                continue
            told = dict(zip(answer[::2], answer[1::2], strict=True))
            if b"down" not in told[b"flags"]:
                return self._endpoint.at(told[b"ip"].decode(), int(told[b"port"]))
        said = f" : {errors}" if errors else ""
        raise redis.sentinel.MasterNotFoundError(f"No master found for {sentinels.service!r}{said}") from next(
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

    @property
    def service(self) -> str | None:
        """The service that the sentinels watch; None without sentinels."""
        return None if self._given.sentinels is None else self._given.sentinels.service

    @property
    def nodes(self) -> Sequence[tuple[str, int]]:
        """The nodes of a cluster that the URL names, host and port; empty without a cluster."""
        return self._given.nodes

    def node(self, host: str, port: int) -> Self:
        """Give one node of this cluster as a server, with the user and the transport of the cluster's URL."""
        found = copy.copy(self)
        url = f"redis{'s' * self._given.tls}://{f'[{host}]' if ':' in host else host}:{port}"
        found._given = replace(self._given, url=url, nodes=())
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
        return explain(error, where, self._secrets, self.deadline)


def _of_pool(pool: Any) -> Address:
    # server, user and transport come from the caller's connections; we decide everything else
    words: Mapping[str, Any] = pool.connection_kwargs
    settings = {
        name: value
        for name, value in words.items()
        if name in ("host", "port", "path", "db", "username", "password", "credential_provider", "client_name")
        or name.startswith("ssl_")
    }
    tls = "SSL" in pool.connection_class.__name__
    scheme, db = "rediss" if tls else "redis", words.get("db") or 0
    if not hasattr(pool, "service_name"):
        host = words.get("host") or words.get("path") or "client"
        return Address(f"{scheme}://{host}:{words.get('port', '')}/{db}", tls, settings)
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    hosts = tuple((str(one.connection_kwargs["host"]), int(one.connection_kwargs["port"])) for one in pools)
    asked = {
        name: value for name, value in pools[0].connection_kwargs.items()
        if name in ("username", "password", "credential_provider") or name.startswith("ssl_")
    }  # fmt: skip
    where = Sentinels(hosts, str(pool.service_name), "SSL" in pools[0].connection_class.__name__, asked)
    url = f"{scheme}+sentinel://{','.join(f'{host}:{port}' for host, port in hosts)}/{pool.service_name}/{db}"
    return Address(url, tls, settings, where)
