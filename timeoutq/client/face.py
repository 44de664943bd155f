"""What both faces hold: the settings of a client, its name, and its tokens."""

from __future__ import annotations

import os
import re
import secrets
import socket
from contextvars import ContextVar
from datetime import timedelta
from itertools import count
from typing import Any, TypedDict, TypeVar

from timeoutq.client.keeper import Keepers
from timeoutq.client.methods import QueueFlows
from timeoutq.client.slots import Guide
from timeoutq.server.cluster import Map, slot_of
from timeoutq.server.deadlines import ATTEMPT
from timeoutq.server.server import Server
from timeoutq.verbs.division import Division
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import Flow, ServerClock, Talk, Terms
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Politeness
from timeoutq.words.retry import Retries, RetryPolicy

acts_for: ContextVar[bytes] = ContextVar("acts_for", default=b"")
"""For whom the calls of this context are made, if not for the client itself: the names of calls begin with this name.

The gateway sets it for each request that puts or manages tasks, so that an event log tells whose request it was.
"""

T = TypeVar("T")
F = TypeVar("F", bound="Face")


class Settings(TypedDict, total=False):
    """The settings that a client has, as `Queue` takes them."""

    client: Any
    timeout: float
    max_runtime: float | None
    retry: Retries
    keep_done: int | str | timedelta | None
    max_crashes: int | None
    politeness: Politeness | None
    durable: int | None
    deadline: float
    allow_eviction: bool


class Face:
    """What `Queue` and `AsyncQueue` have in common."""

    beats_apart = False
    """Whether signs of life go to another node than leases may lie on."""
    met = False
    """Whether the server has answered this client."""
    _opened = False

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        client: Any = None,
        timeout: float = 30.0,
        max_runtime: float | None = None,
        retry: Retries = None,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | None = None,
        durable: int | None = None,
        deadline: float = 5.0,
        allow_eviction: bool = False,
    ) -> None:
        """Describe a queue; the first operation connects.

        `name` is 1 to 64 of `A-Z a-z 0-9 . _ -`. The server is `url` (`redis://`, `rediss://`, `redis+sentinel://`,
        `redis+cluster://`, `unix://`, `valkey://`), else `TIMEOUTQ_URL`, else `REDIS_URL`, else
        `redis://localhost:6379/0`. Or pass `client`, a redis-py client: the queue takes its address and credentials,
        and opens connections of its own. TLS is `rediss://`, with `?ssl_ca_certs=`, `ssl_certfile=` and `ssl_keyfile=`
        in the URL, or `TIMEOUTQ_CA`, `TIMEOUTQ_CERT` and `TIMEOUTQ_KEY`.

        `timeout` is the length of a lease and `max_runtime` the longest that a task may be held in all, both in
        seconds. `retry` says when a failed task is tried again: tenacity's `wait_*` and `stop_*` objects or a list of
        delays in seconds.

        Four settings belong to the queue, and passing one changes it for all clients: `keep_done` ("forever", 0, a
        count, a timedelta, or "compact": for ever, in about 10 bytes a task, but without the ids; this one can be set
        only while the queue has no tasks), `max_crashes` (the number of lost leases after which a task goes to failed,
        5 at first), `politeness` (how often hosts may be visited, see `Politeness`) and `durable` (how many replicas
        must confirm each call that accepts tasks, gives out leases or ends leases, before the call returns; 0 is none).
        Other clients heed a new `durable` within 5 s.

        A call takes `deadline` seconds at most, and one second more for each 128 KiB that the call carries; the time
        for which `claim` is told to wait does not count. A call that was first sent more than 50 s ago is not sent
        again, whatever the deadline, because the queue remembers only the calls of the last minute. `allow_eviction`
        accepts a server that may throw tasks away.

        Raises `InvalidInput` for an argument that cannot be used.
        """
        self.operations = Operations(name)
        self.name = name
        terms = Terms(
            arguments.timeout_ms(timeout),
            0 if max_runtime is None else arguments.timeout_ms(max_runtime, "max_runtime"),
            RetryPolicy.of(retry),
        )
        self.allow_eviction = allow_eviction
        deadline = arguments.deadline(deadline)
        self.server_at = Server(url, client, deadline)
        self.url = self.server_at.url
        settings = {
            "keep_done": keep_done, "max_crashes": max_crashes, "politeness": politeness, "durable": durable,
        }  # fmt: skip
        self._settings = arguments.settings(settings)
        self.given = (url, client, deadline)
        nodes = self.server_at.nodes
        self._guide = Guide(Map(nodes, deadline * ATTEMPT), slot_of(name), self._moved) if nodes else None
        self._identify()
        self._keepers = Keepers()
        self._prepare()
        self.talk = Talk(self.operations, self.server_at, ServerClock(), deadline, self.token, terms)
        self.flows = QueueFlows(self.talk, self._keepers)
        self.division = Division(self.talk)

    def __repr__(self) -> str:
        # if the constructor has raised, a traceback or a debugger shows a client without these attributes
        name, url = getattr(self, "name", None), getattr(self, "url", None)
        return f"{type(self).__name__}({name!r}, url={url!r})"

    @property
    def timeout(self) -> float:
        """The length of a lease, seconds."""
        return self.talk.terms.timeout_ms / 1000

    @property
    def max_runtime(self) -> float | None:
        """The longest time that a task may be held in all, seconds; None is no limit."""
        return self.talk.terms.max_runtime_ms / 1000 or None

    @property
    def retry(self) -> RetryPolicy:
        """When a failed task is tried again."""
        return self.talk.terms.retry

    def settings(self) -> dict[str, Any]:
        """Give the arguments that make another client of this queue, but for its name, and the queue's settings."""
        url, client, deadline = self.given
        return {
            "url": url,
            "client": client,
            "timeout": self.timeout,
            "max_runtime": self.max_runtime,
            "deadline": deadline,
            "allow_eviction": self.allow_eviction,
        }

    def another(self, kind: type[F]) -> F:
        """Make a client of the same queue and the same name, with connections of its own."""
        made = kind(self.name, **self.settings())
        made.name_as(self)
        return made

    def _opening(self) -> Flow[None]:
        """Check the server, and write the settings of the queue."""
        return self.flows.opening(self._settings, self.allow_eviction)

    def _is_open(self) -> bool:
        """Say whether the next flow may do without another opening."""
        return True

    def _moved(self, slot: int) -> None:
        # the keys of a slot have moved to another node, which has a clock of its own
        self.talk.clock.forget()

    def _prepare(self) -> None:
        """Prepare the attributes of the driver."""

    def _led(self, flow: Flow[T]) -> Flow[T]:
        """Give the flow whose steps name nodes, if the server is a cluster."""
        return flow if self._guide is None else self._guide.lead(flow)

    def _identify(self) -> None:
        self._pid = os.getpid()
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:24]
        self.worker = f"{host}:{self._pid}:{secrets.token_hex(4)}"
        self._numbers = count(1)

    def name_as(self, other: Face) -> None:
        """Take the name of another client; the two count their calls together, so that no two calls have one id."""
        if not isinstance(other, Face):  # pyright: ignore[reportUnnecessaryIsInstance]  # what users pass
            raise InvalidInput(f"name_as() takes a client of a queue, not {shown(other)}")
        self.worker, self._numbers = other.worker, other._numbers

    def token(self) -> bytes:
        """Make a new token: this client's name and a number. In a forked process, the client first takes a new name."""
        if os.getpid() != self._pid:
            self._identify()
        whom = acts_for.get()
        return b"%s%s#%x" % (whom and whom + b"/", self.worker.encode(), next(self._numbers))
