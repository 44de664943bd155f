"""The OpenAPI 3.1 description of the API, made from the table of routes. `app.py` serves it at `/v1/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from timeoutq.gateway.routes import Parameter, Route

REFERENCE = "#/components/schemas/{name}"

PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}

FAULTS = {
    "400": "The request cannot be read: no JSON, no host, or a token in the URL.",
    "401": "No token, or one that is unknown, expired or revoked.",
    "403": "The token does not allow this.",
    "404": "There is no such queue.",
    "405": "This path does not take this method.",
    "408": "The head or the body came too slowly.",
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
    "507": "Redis is full: free some memory. Acks still work.",
}

QUEUE = {
    "name": "queue",
    "in": "path",
    "required": True,
    "description": "The name of the queue.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
}


def describe(routes: Sequence[Route], prefix: str = "") -> dict[str, Any]:
    """Describe the routes of the API."""
    shown = [route for route in routes if not route.by_starlette]
    types = [kind for route in shown for kind in (route.body, route.answer, route.lines_answer) if kind is not None]
    _, schemas = msgspec.json.schema_components(types, ref_template=REFERENCE)
    paths: dict[str, Any] = {}
    for route in shown:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "timeoutq", "version": "1", "description": "Work queues on Redis, over HTTP."},
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    named = re.sub(r"[^a-z0-9]+", "_", route.path.removeprefix("/v1/").replace("{queue}/", "").lower()).strip("_")
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{named}",
        "summary": route.about,
        "parameters": [*([QUEUE] if "{queue}" in route.path else []), *map(_parameter, route.parameters)],
        "responses": {"200": {"description": "Done.", "content": _json(_answer(route))}, **_faults(route)},
    }
    if route.needs is not None:
        found["security"] = [{"token": []}]
        found["x-needs"] = route.needs
    if route.body is not None:
        content = _json(_schema(route.body))
        if route.lines is not None:
            content["application/x-ndjson"] = {"schema": {"type": "string"}}
        needed = any(field.required for field in msgspec.structs.fields(route.body))
        found["requestBody"] = {"required": needed, "content": content}
    return found


def _answer(route: Route) -> dict[str, Any]:
    kinds = [route.answer] if route.lines_answer is None else [route.answer, route.lines_answer]
    found = [_schema(kind) for kind in kinds]
    return found[0] if len(found) == 1 else {"oneOf": found}


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name, "in": "query", "required": one.required, "description": one.about, "schema": one.schema,
    }  # fmt: skip


def _faults(route: Route) -> dict[str, Any]:
    def tells(code: str) -> bool:
        if route.needs is None:
            return code in ("400", "403", "405", "408", "421")
        if route.body is None:
            return code not in ("409", "413", "415", "507")
        return code != "409" or route.needs == "work"

    problem = {"application/problem+json": {"schema": {"$ref": REFERENCE.format(name="Problem")}}}
    return {code: {"description": words, "content": problem} for code, words in FAULTS.items() if tells(code)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schema(kind: Any) -> dict[str, Any]:
    (found,), _ = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    return found
