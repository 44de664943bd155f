"""The table of what the gateway answers, and its OpenAPI 3.1 description, which is made of the table."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import msgspec

from timeoutq.gateway import looks, metrics, verbs
from timeoutq.gateway.bodies import Done, arguments_of
from timeoutq.gateway.requests import Request
from timeoutq.gateway.tokens import Needs

Endpoint = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One thing that the gateway answers."""

    method: str
    path: str  # with `{queue}` where the name of a queue stands
    needs: Needs | None  # the right that the caller must have; None: anybody may
    endpoint: Endpoint
    """Takes the `Request`, and by their names the fields of the body or, of a GET, the parameters of the URL. What it
    gives is the answer, as JSON; None stands for `Done`."""
    lines: Endpoint | None = None  # takes the `Request` when its body is NDJSON, and the parameters of the URL
    page: bool = False
    """Whether the endpoint reads all of the request itself, and gives a `Response`: pages and their files, `/metrics`,
    `/readyz`."""


def verb(needs: Needs, endpoint: Endpoint, lines: Endpoint | None = None) -> Route:
    """Make the route of a verb: its name is that of the function."""
    return Route("POST", f"/v1/{{queue}}/{endpoint.__name__}", needs, endpoint, lines)


async def healthz(request: Request) -> dict[str, Any]:
    """Say that the gateway runs; it asks nobody."""
    return {"ok": True}


async def described(request: Request) -> dict[str, Any]:
    """Give the OpenAPI description of the API."""
    return describe(request.state.table, request.state.settings.prefix)


API: Sequence[Route] = (
    Route("GET", "/healthz", None, healthz),
    Route("GET", "/readyz", None, metrics.readyz, page=True),
    Route("GET", "/metrics", "look", metrics.metrics, page=True),
    Route("GET", "/v1/openapi.json", "look", described),
    Route("GET", "/v1/queues", "look", looks.queues),
    verb("put", verbs.put, verbs.put_lines),
    verb("put", verbs.schedule),
    *(
        verb("work", one)
        for one in (verbs.claim, verbs.extend, verbs.ack, verbs.fail, verbs.release, verbs.note, verbs.pull)
    ),
    verb("look", verbs.states),
    *(
        verb("manage", one)
        for one in (
            verbs.requeue, verbs.forget, verbs.cancel, verbs.retry, verbs.pause, verbs.resume, verbs.purge, verbs.block,
            verbs.unblock, verbs.ban,
        )
    ),
    *(
        Route("GET", f"/v1/{{queue}}/{look.__name__}", "look", look)
        for look in (
            looks.stats, looks.tasks, looks.task, looks.why, looks.hosts, looks.workers, looks.errors, looks.history,
            looks.failures, looks.events, looks.calls,
        )
    ),
)  # fmt: skip


REFERENCE = "#/components/schemas/{name}"
_FIELDS = ["type", "title", "status", "detail"]
PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": _FIELDS,
    "properties": {name: {"type": "integer" if name == "status" else "string"} for name in _FIELDS},
}
FAULTS = {
    "400": "The request cannot be read: no JSON, no host, or a token in the URL.",
    "401": "No token, or one that is unknown, expired or revoked.",
    "403": "The token does not allow this.",
    "404": "There is no such queue.",
    "405": "This path does not take this method.",
    "408": "The body came too slowly.",
    "409": "The lease of this call is lost.",
    "413": "The body is too large.",
    "415": "The body is of a type that is not read.",
    "421": "This gateway does not serve the host that the request names.",
    "422": "An argument cannot be used.",
    "429": "Too many requests of this caller at once: wait for Retry-After.",
    "500": "An unexpected error, which stands in the log of the gateway: tell its operator.",
    "501": "A package is missing where the gateway runs: tell its operator.",
    "502": "Redis refuses the gateway: tell its operator.",
    "503": "Redis does not answer: wait for Retry-After, and send the same call again.",
    "507": "Redis is full: free some memory. Acks that put nothing still work.",
}
QUEUE = {
    "name": "queue", "in": "path", "required": True, "description": "The name of the queue.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}  # fmt: skip


def describe(routes: Sequence[Route], prefix: str = "") -> dict[str, Any]:
    """Describe the routes of the API."""
    schemas: dict[str, Any] = {"Problem": PROBLEM}
    paths: dict[str, Any] = {}
    for route in routes:
        if not route.page:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "timeoutq", "version": "1", "description": "Work queues on Redis, over HTTP."},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    def schema(kind: Any) -> dict[str, Any]:
        (found,), more = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        schemas.update(more)
        return found

    def parameter(field: Any) -> dict[str, Any]:
        found = schema(field.type)
        # a parameter that is there is never null
        kinds = [one for one in found.get("anyOf", ()) if one != {"type": "null"}]
        rest = {name: value for name, value in found.items() if name not in ("anyOf", "default")}
        return {"name": field.name, "in": "query", "required": field.required, "schema": {**rest, **(*kinds, {})[0]}}

    named = re.sub(r"[^a-z0-9]+", "_", route.path.removeprefix("/v1/").replace("{queue}/", "").lower()).strip("_")
    answers = [signature(one, eval_str=True).return_annotation or Done for one in (route.endpoint, route.lines) if one]
    answer = schema(answers[0]) if len(answers) == 1 else {"oneOf": [*map(schema, answers)]}
    queried = route.endpoint if route.method == "GET" else route.lines
    asked = msgspec.structs.fields(arguments_of(queried)) if queried else ()
    if route.needs is None:
        codes = {"400", "403", "405", "408", "421"}
    elif route.method == "GET":
        codes = FAULTS.keys() - {"409", "413", "415", "507"}
    else:
        codes = FAULTS.keys() - (set() if route.needs == "work" else {"409"})
    problem = {"application/problem+json": {"schema": {"$ref": REFERENCE.format(name="Problem")}}}
    faults = {code: {"description": words, "content": problem} for code, words in FAULTS.items() if code in codes}
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{named}",
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [*([QUEUE] if "{queue}" in route.path else []), *map(parameter, asked)],
        "responses": {
            "200": {"description": "Done.", "content": {"application/json": {"schema": answer}}}, **faults,
        },
    }  # fmt: skip
    if route.needs is not None:
        found |= {"security": [{"token": []}], "x-needs": route.needs}
    if route.method == "POST":
        body = arguments_of(route.endpoint)
        content: dict[str, Any] = {"application/json": {"schema": schema(body)}}
        if route.lines is not None:
            content["application/x-ndjson"] = {"schema": {"type": "string"}}
        needed = any(field.required for field in msgspec.structs.fields(body))
        found["requestBody"] = {"required": needed, "content": content}
    return found
