"""The gateway: a queue over HTTP, for programs in any language. `timeoutq web` serves it; any ASGI server can mount it.

`make_app(Settings(...))` gives the ASGI application with the API; that of `timeoutq.gateway.page` has the page, too.

The modules, in reading order: each imports only from those above it.

    grammar      The grammar of the headers of verbs: reads the comment at the top of a verb as the values of
                 `protocol.json`. Pure.
    protocol     The protocol: what travels between any client and the library, in one source, for clients in every
                 language.
    files        How many files and connections this process may have open: the gateway has many clients.
    problems     What goes wrong, as answers: RFC 9457 problems. One type for each class of `errors.py`, and some
                 others.
    callers      Who sends a request, and what this caller may do. `access.py` finds out who the caller is; every route
                 asks it.
    settings     What an application of the gateway is told when it is made. `timeoutq web` fills this in from its
                 options.
    tokens       Tokens: what lets a program or a browser ask the gateway, and for which queues. Kept in Redis, as
                 SHA-256 only.
    access       Who may ask what over HTTP: decisions, which take values and give values, and the one ASGI middleware
                 that asks them.
    fairness     Limits for callers: places for requests, and bytes of bodies, so that no caller starves the others.
    queues       The queues that a gateway has open: one client for each name, on the loop of the application, closed at
                 its end.
    claims       Claims with the client's own token: sent again with the token and its age, a claim gives the same
                 leases. No I/O.
    polls        Claims over HTTP, and waiting for tasks: many clients wait with one blocked connection for each queue.
    tending      Cleans the queues that are worked on over HTTP: a worker in Python cleans its own queue, one with curl
                 cannot.
    state        What the endpoints of the API share: `Gateway.shared`. The pages find some of it in `app.state`.
    requests     One request, as an endpoint sees it: who asks, about which queue, with what; and whether the client is
                 there.
    bodies       The bodies of requests and answers, as types: they are checked, and the OpenAPI description is made of
                 them.
    intake       Put of any number of tasks as NDJSON: each line is an id in quotes, or a task as an object, as in the
                 list of a put.
    verbs        What `POST /v1/{queue}/{verb}` does: one function for each verb, which takes the request and its body.
    looks        What `GET /v1/{queue}/…` tells: one function for each look. None of them changes anything.
    metrics      What a queue tells Prometheus: `/metrics` of the gateway. `families` makes metrics of what was seen,
                 without I/O.
    probes       What monitors ask of a gateway: `/metrics` for Prometheus, and `/readyz` for whoever sends it requests.
    routes       The table of the verbs and looks of the API: the application, its OpenAPI description and its tests
                 read it.
    openapi      The OpenAPI 3.1 description of the API, made from the table of routes. `app.py` serves it at
                 `/v1/openapi.json`.
    login        The login of browsers: a form takes a token, which then stands in a cookie; and the logout, which
                 removes the cookie.
    app          The ASGI application of the gateway: finds the route, reads the body, calls the endpoint, and tells
                 what went wrong.
    connections  Connections of clients that are bounded: the head of a request in time and bytes, a body or an answer
                 nobody reads.
    serving      Serves an application of the gateway with uvicorn: `timeoutq web` calls `serve`, and so do the tests.
    page         The page for browsers: look at queues and act on them, by links and forms, with a script that keeps the
                 page fresh.
    push         Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeoutq.gateway.app import make_app as make_app
    from timeoutq.gateway.settings import Settings as Settings

_HOMES = {"make_app": "app", "Settings": "settings"}

__all__ = ["Settings", "make_app"]


def __getattr__(name: str) -> Any:
    # `timeoutq token` needs the tokens, and none of the packages of a server
    if name in _HOMES:
        return getattr(import_module(f"timeoutq.gateway.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
