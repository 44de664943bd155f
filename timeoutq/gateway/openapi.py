"""The OpenAPI 3.1 description of the API, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import signature
from typing import Any

import msgspec

from timeoutq.gateway.bodies import arguments_of
from timeoutq.gateway.routes import Endpoint, Route

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
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    def schema(kind: Any) -> dict[str, Any]:
        (found,), more = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        schemas.update(more)
        return found

    def parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
        return [
            {"name": one.name, "in": "query", "required": one.required, "schema": _present(schema(one.type))}
            for one in msgspec.structs.fields(arguments_of(endpoint))
        ]

    named = re.sub(r"[^a-z0-9]+", "_", route.path.removeprefix("/v1/").replace("{queue}/", "").lower()).strip("_")
    answers = [signature(one, eval_str=True).return_annotation for one in (route.endpoint, route.lines) if one]
    answer = schema(answers[0]) if len(answers) == 1 else {"oneOf": [*map(schema, answers)]}
    queried = route.endpoint if route.method == "GET" else route.lines
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{named}",
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": [*([QUEUE] if "{queue}" in route.path else []), *(parameters(queried) if queried else ())],
        "responses": {"200": {"description": "Done.", "content": _json(answer)}, **_faults(route)},
    }
    if route.needs is not None:
        found["security"] = [{"token": []}]
        found["x-needs"] = route.needs
    if route.method == "POST":
        body = arguments_of(route.endpoint)
        content = _json(schema(body))
        if route.lines is not None:
            content["application/x-ndjson"] = {"schema": {"type": "string"}}
        needed = any(field.required for field in msgspec.structs.fields(body))
        found["requestBody"] = {"required": needed, "content": content}
    return found


def _present(schema: dict[str, Any]) -> dict[str, Any]:
    """Give the schema of a parameter that is there: it is never null."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**rest, **kinds[0]} if kinds else rest


def _faults(route: Route) -> dict[str, Any]:
    if route.needs is None:
        codes = {"400", "403", "405", "408", "421"}
    elif route.method == "GET":
        codes = FAULTS.keys() - {"409", "413", "415", "507"}
    else:
        codes = FAULTS.keys() - (set() if route.needs == "work" else {"409"})
    problem = {"application/problem+json": {"schema": {"$ref": REFERENCE.format(name="Problem")}}}
    return {code: {"description": words, "content": problem} for code, words in FAULTS.items() if code in codes}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
