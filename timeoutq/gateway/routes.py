"""The table of the verbs and looks of the API: the application, its OpenAPI description and its tests read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from timeoutq.gateway import intake, looks, verbs
from timeoutq.gateway.callers import Needs

Endpoint = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One thing that the gateway answers."""

    method: str
    path: str  # with `{queue}` where the name of a queue stands
    needs: Needs | None  # the right that the caller must have; None: anybody may
    endpoint: Endpoint
    """Takes the `Request`, and by their names the fields of the body or, of a GET, the parameters of the URL."""
    lines: Endpoint | None = None  # takes the `Request` when its body is NDJSON, and the parameters of the URL
    page: bool = False
    """Whether the endpoint reads all of the request itself, and gives a `Response`: pages and their files, `/metrics`,
    `/readyz`."""


def verb(needs: Needs, endpoint: Endpoint, lines: Endpoint | None = None) -> Route:
    """Make the route of a verb: its name is that of the function."""
    return Route("POST", f"/v1/{{queue}}/{endpoint.__name__}", needs, endpoint, lines)


API: Sequence[Route] = (
    verb("put", verbs.put, intake.put_lines),
    verb("put", verbs.schedule),
    verb("work", verbs.claim),
    verb("work", verbs.extend),
    verb("work", verbs.ack),
    verb("work", verbs.fail),
    verb("work", verbs.release),
    verb("work", verbs.note),
    verb("work", verbs.pull),
    verb("look", verbs.states),
    verb("manage", verbs.requeue),
    verb("manage", verbs.forget),
    verb("manage", verbs.cancel),
    verb("manage", verbs.retry),
    verb("manage", verbs.pause),
    verb("manage", verbs.resume),
    verb("manage", verbs.purge),
    verb("manage", verbs.block),
    verb("manage", verbs.unblock),
    verb("manage", verbs.ban),
    *(
        Route("GET", f"/v1/{{queue}}/{look.__name__}", "look", look)
        for look in (
            looks.stats, looks.tasks, looks.task, looks.why, looks.hosts, looks.workers, looks.errors, looks.history,
            looks.failures, looks.events,
        )
    ),
)  # fmt: skip
