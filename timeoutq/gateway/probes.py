"""Answers for monitors: `/metrics` for Prometheus, and `/readyz`, which says whether requests can be carried out.

Readiness is public, so it tells no names and no addresses, and however often it is asked, the server is asked once a
second. The log of the gateway has the rest, if the gateway is served by itself (a host application that mounts it
begins nothing): `Probes` looks at the server every few seconds, and warns when the server is away.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from timeoutq.gateway.access import CALLER
from timeoutq.gateway.callers import NOBODY, Caller
from timeoutq.gateway.metrics import PATIENCE, Look, Watcher, exposition
from timeoutq.gateway.names import Shared, end
from timeoutq.gateway.settings import Settings
from timeoutq.verbs import sending
from timeoutq.verbs.flows import eviction_policy
from timeoutq.verbs.operations import Operations
from timeoutq.words import retry, telling
from timeoutq.words.errors import AccessDenied, NotRedis, ReadOnly, SchemaMismatch, ServerFull, TimeoutqError

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
"""Words of `server/troubles.py` about a server that does not answer, and the words for everybody: no address."""


class Probes:
    """The looks of one gateway at its server."""

    def __init__(self, settings: Settings) -> None:
        """Prepare; nothing connects yet."""
        self.watcher = Watcher(settings.url, settings.queues, settings.deadline)
        self._writes = not settings.read_only
        self.ready = Shared(self._ready, share=0.0)
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to look at the server, and to warn in the log while it is away."""
        self._watching = asyncio.create_task(self._watch(), name="gateway-watch")

    async def close(self) -> None:
        """Close the connections."""
        await end(self._watching)
        await self.ready.close()
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

    async def _ready(self) -> str:
        """Say why requests cannot be carried out; '' if they can."""
        client = self.watcher.client
        talk = replace(client.talk, operations=Operations("readyz"))
        # a key that never exists: a primary that takes writes finds nothing to delete
        asked = ("DEL", talk.operations.key("probe")) if self._writes else ("TIME",)
        with suppress(TimeoutError):
            # a little longer than the client tries, which then says why
            async with asyncio.timeout(PATIENCE + 0.5):
                try:
                    await client.run(sending.ask(talk, [asked]))
                    if await self._evicts():
                        return EVICTS
                    look = await self.watcher.look()
                    # if all queues are of another version, this gateway cannot do anything
                    strange = look.queues and all(facts.is_strange for facts in look.queues)
                    return _WORDS[SchemaMismatch] if strange else ""
                except TimeoutqError as error:
                    found = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), None)
                    return found or next((words for sign, words in _CAUSES if sign in str(error)), SILENT)
        return SILENT

    async def _evicts(self) -> bool:
        """Say whether the server may throw tasks away: then no queue is opened."""
        client = self.watcher.client
        try:
            (memory,) = await client.run(sending.ask(client.talk, [("INFO", "memory")]))
        except AccessDenied:
            return False  # the server does not tell; queues are opened then
        return eviction_policy(memory) not in (None, "noeviction")


def visible(look: Look, caller: Caller) -> Look:
    """Give the part of a look that a caller may see."""
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
    why = await probes.ready.get()
    if why:
        return JSONResponse({"ok": False, "why": why}, 503, headers={"cache-control": "no-store", "retry-after": "2"})
    return JSONResponse({"ok": True}, headers={"cache-control": "no-store"})
