"""Answers for monitors: `/metrics` for Prometheus, and `/readyz`, which says whether requests can be carried out.

Readiness is public: it tells no names and no addresses, and the server is asked once a second at most. The log of the
gateway has the rest, unless a host application mounts it: `Probes` looks at the server every few seconds, and warns.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from starlette.responses import JSONResponse, Response

from timeoutq.gateway.metrics import PATIENCE, Watcher, exposition
from timeoutq.gateway.names import Shared, end
from timeoutq.gateway.requests import Request
from timeoutq.gateway.settings import Settings
from timeoutq.verbs import sending
from timeoutq.verbs.flows import eviction_policy
from timeoutq.verbs.operations import Operations
from timeoutq.words import retry, telling
from timeoutq.words.errors import AccessDenied, NotRedis, ReadOnly, SchemaMismatch, ServerFull, TimeoutqError

log = logging.getLogger(__name__)

LOOK = 5.0  # seconds between two looks at a server that answers
SILENT = "the server has not answered in time"
_WORDS: dict[type[TimeoutqError], str] = {
    ReadOnly: "the server is a replica, or takes no writes now",
    ServerFull: "the server is full",
    AccessDenied: "the server does not let this gateway in, or does not let it write",
    SchemaMismatch: "the queues are of another version of timeoutq",
    NotRedis: "what answers at the address of the server is not Redis",
}
"""What everybody may hear of an error: no names, and no addresses."""


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
        try:
            async with asyncio.timeout(PATIENCE + 0.5):
                await client.run(sending.ask(talk, [asked]))
                if await self._evicts():
                    return "the server may throw tasks away: its maxmemory-policy is not noeviction"
                look = await self.watcher.look()
        except TimeoutError:
            return SILENT
        except TimeoutqError as error:
            return next((words for kind, words in _WORDS.items() if isinstance(error, kind)), SILENT)
        # if all queues are of another version, this gateway cannot do anything
        strange = look.queues and all(facts.is_strange for facts in look.queues)
        return _WORDS[SchemaMismatch] if strange else ""

    async def _evicts(self) -> bool:
        """Say whether the server may throw tasks away: then no queue is opened."""
        client = self.watcher.client
        try:
            (memory,) = await client.run(sending.ask(client.talk, [("INFO", "memory")]))
        except AccessDenied:
            return False  # the server does not tell; queues are opened then
        return eviction_policy(memory) not in (None, "noeviction")


async def metrics(request: Request) -> Response:
    """Give the metrics of all queues that the caller may look at, for Prometheus."""
    probes: Probes = request.state.probes
    look, may = await probes.watcher.look(), request.caller.may
    seen = replace(
        look,
        queues=[facts for facts in look.queues if may("look", facts.queue)],
        left_out=[name for name in look.left_out if may("look", name)],
    )
    text, media_type = exposition(seen, request.header(b"accept").decode("latin-1"))
    return Response(text, media_type=media_type)


async def readyz(request: Request) -> Response:
    """Say whether the gateway can carry out requests.

    503 if the server takes no writes (if the gateway is read-only: if the server does not answer), if the server may
    throw tasks away, or if all the queues are of another version of timeoutq.
    """
    probes: Probes = request.state.probes
    why = await probes.ready.get()
    return JSONResponse({"ok": False, "why": why}, 503, {"retry-after": "2"}) if why else JSONResponse({"ok": True})
