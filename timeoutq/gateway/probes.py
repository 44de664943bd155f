"""What monitors ask of a gateway: `/metrics` for Prometheus, and `/readyz` for whoever sends it requests.

`/healthz`, which says no more than that the gateway runs, stands in `app.py`. Readiness is public, so it tells no names
and no addresses, and however often it is asked, the server is asked once a second. The log of the gateway has the rest,
if the gateway is served by itself (a host application that mounts it begins nothing, so it has no such lines):
`Probes` looks at the server every few seconds, and warns when the server is away.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from timeoutq.gateway.access import CALLER
from timeoutq.gateway.callers import NOBODY, Caller
from timeoutq.gateway.metrics import PATIENCE, Look, Once, Watcher, exposition
from timeoutq.gateway.settings import Settings
from timeoutq.verbs import sending
from timeoutq.verbs.flows import eviction_policy
from timeoutq.verbs.operations import Operations
from timeoutq.words import retry, telling
from timeoutq.words.errors import (
    AccessDenied,
    NotRedis,
    ReadOnly,
    SchemaMismatch,
    ServerFull,
    TimeoutqError,
    Unavailable,
)

log = logging.getLogger(__name__)

LOOK = 5.0
"""Seconds between two looks at a server that answers."""
EVICTS = "the server may throw tasks away: its maxmemory-policy is not noeviction"
SILENT = "the server has not answered in time"
_WORDS: dict[type[TimeoutqError], str] = {
    ReadOnly: "the server is a replica, or takes no writes now",
    ServerFull: "the server is full",
    AccessDenied: "the server does not let this gateway in, or does not let it write",
    SchemaMismatch: "the queues are of another version of timeoutq",
    NotRedis: "what answers at the address of the server is not Redis",
}
_CAUSES = (
    ("is the server up", "nothing takes connections at the address of the server: is it up?"),
    ("is the name of the host right", "the name of the host of the server is not known: is it right?"),
    ("it took the connection and is silent", "the server takes connections and is silent: is it stopped or busy?"),
    ("it hung up", "the server hangs up: is it starting or stopping, or does it speak TLS?"),
    ("name no primary", "the sentinels name no primary that is up"),
)
"""Words of `troubles.py` about a server that does not answer, and what is told to everybody: no address."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether requests can be carried out."""

    ok: bool
    why: str = ""


class Probes:
    """What one gateway tells of itself."""

    def __init__(self, settings: Settings) -> None:
        """Prepare; nothing connects yet."""
        self.watcher = Watcher(settings.url, settings.queues, settings.deadline)
        self._writes = not settings.read_only
        self.ready = Once(self._ready)
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to look at the server, and to warn in the log while it is away."""
        self._watching = asyncio.create_task(self._watch(), name="gateway-watch")

    async def close(self) -> None:
        """Close the connections."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self.ready.close()
        await self.watcher.close()

    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                await self.watcher.client.run(sending.ask(self.watcher.client.talk, [("TIME",)]))
            except TimeoutqError as error:
                failures += 1
                if failures == 1:
                    fields = {"error": str(error)}
                    telling.say(log, logging.WARNING, "the gateway waits for the server: %s", error, fields=fields)
            else:
                if failures:
                    telling.say(log, logging.INFO, "the server answers the gateway again")
                failures = 0
            await asyncio.sleep(retry.pause(failures) if failures else LOOK)

    async def _ready(self) -> Readiness:
        client = self.watcher.client
        talk = replace(client.talk, operations=Operations("readyz"))
        # a key that never exists: a primary that takes writes finds nothing to delete
        asked = ("DEL", talk.operations.key("probe")) if self._writes else ("TIME",)
        why = SILENT
        with suppress(TimeoutError):
            # a little longer than the client tries, which then says why
            async with asyncio.timeout(PATIENCE + 0.5):
                try:
                    await client.run(sending.ask(talk, [asked]))
                    if await self._evicts():
                        return Readiness(False, EVICTS)
                    return understood(await self.watcher.look())
                except TimeoutqError as error:
                    why = cause_of(error)
        return Readiness(False, why)

    async def _evicts(self) -> bool:
        """Say whether the server may throw tasks away: then no queue is opened."""
        client = self.watcher.client
        try:
            (memory,) = await client.run(sending.ask(client.talk, [("INFO", "memory")]))
        except AccessDenied:
            return False  # the server does not tell; queues are opened then
        return eviction_policy(memory) not in (None, "noeviction")


def cause_of(error: TimeoutqError) -> str:
    """Give the cause without names and addresses, for everybody."""
    found = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), None)
    if found is None and isinstance(error, Unavailable):
        found = next((words for sign, words in _CAUSES if sign in str(error)), None)
    return found or SILENT


def understood(look: Look) -> Readiness:
    """Judge by what was seen of the queues: if all are of another version, this gateway cannot do anything."""
    if look.queues and all(facts.is_strange for facts in look.queues):
        return Readiness(False, _WORDS[SchemaMismatch])
    return Readiness(True)


def visible(look: Look, caller: Caller) -> Look:
    """Give of a look what a caller may see."""
    return replace(
        look,
        queues=[facts for facts in look.queues if caller.may("look", facts.queue)],
        left_out=[name for name in look.left_out if caller.may("look", name)],
    )


async def metrics(request: Request) -> Response:
    """Give the metrics of all queues that the caller may look at, for Prometheus."""
    probes: Probes = request.app.state.probes
    look = visible(await probes.watcher.look(), request.scope.get(CALLER, NOBODY))
    text, media_type = exposition(look, request.headers.get("accept", ""))
    return Response(text, media_type=media_type, headers={"cache-control": "no-store"})


async def readyz(request: Request) -> Response:
    """Say whether the gateway can carry out requests.

    503 if the server takes no writes (if the gateway is read-only: if the server does not answer), if the server may
    throw tasks away, or if all the queues are of another version of timeoutq.
    """
    probes: Probes = request.app.state.probes
    found = await probes.ready()
    more = {"retry-after": "2"} if not found.ok else {}
    body = {"ok": True} if found.ok else {"ok": False, "why": found.why}
    return JSONResponse(body, 200 if found.ok else 503, headers={"cache-control": "no-store", **more})
