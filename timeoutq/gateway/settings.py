"""The settings of an application of the gateway. `timeoutq web` fills them in from its options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Scope

from timeoutq.gateway.callers import Caller

Login = Callable[[Scope], Caller | Awaitable[Caller | None] | None]
"""The login of a host application: says who sends a request, from its ASGI scope; None: nobody who may come in."""

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one gateway. All of them may be left out."""

    url: str | None = None  # the Redis server; None: the environment says which, as for `Queue`
    queues: str = "*"  # which queues are served: a glob
    anonymous: tuple[str, ...] = ()
    """The rights of callers without a token while the server has no tokens at all: some of look, put, work and manage.
    Only callers on the same machine can be meant, or those of a network where everybody may do this."""
    read_only: bool = False  # whether every write is refused, whatever a token allows
    hosts: tuple[str, ...] = ()
    """Names that requests may have in their header Host, besides those of the loopback; and `name:port` for a page
    whose Origin has a port of its own, because a proxy listens there."""
    prefix: str = ""  # where the application is reached behind a proxy that does not cut the path, such as `/queues`
    page: bool = True
    """Whether browsers can log in; `timeoutq.gateway.page.make_app` serves the page, too, if this is true."""
    login: Login | None = None  # the login of a host application; with it, no token is asked for
    deadline: float = 5.0  # how long one call to Redis may take, seconds
    body_limit: int = 8 * MIB  # the most bytes of a body of JSON. Lines of NDJSON may be any number.
    body_seconds: float = 30.0  # how long a client may take to send a body of JSON, or the next part of NDJSON, seconds
    longest_wait: float = 60.0  # the longest that a claim may wait, seconds
    most_waits: int = 2000  # how many claims of one caller may wait at once
    most_at_once: int = 64  # how many requests are carried out at once. One caller has at most half of these places.
    most_heavy: int = 4
    """How many requests with bodies of JSON of more than `heavy` bytes are carried out at once: they take many times
    their bytes of memory while they are read. One caller has at most half of these places."""
    heavy: int = 256 * 1024
    most_in_line: int = 1000  # how many requests of one caller may wait for a place; those beyond are refused
    most_bytes: int = 256 * MIB
    """How many bytes of bodies are in memory at once. One caller has at most half of them; more is refused."""
    most_queues: int = 200  # how many queues are kept open. One caller has at most half of them.
    cleaned_for: float = 60.0  # for how long a queue is cleaned here after the last work on it over HTTP, seconds
