"""The gateway: a queue over HTTP, for programs in any language. `timeoutq web` serves it; any ASGI server can mount it.

`make_app(Settings(...))` gives the ASGI application with the API; that of `timeoutq.gateway.page` has the page, too.

The modules, in reading order: each imports only from those above it.

    grammar   The grammar of the headers of verbs: reads the comment at the top of a verb as the values of
              `protocol.json`. Pure.
    protocol  The protocol between any client and the library, in one source, for clients in every language.
    problems  Errors as answers: RFC 9457 problems. One type for each class of `errors.py`, and some others.
    callers   Who sends a request, and the rights of this caller.
    settings  The settings of an application of the gateway. `timeoutq web` fills them in from its options.
    tokens    Tokens, with which programs and browsers ask the gateway about some queues. Kept in Redis, as SHA-256
              only.
    access    Who may come in over HTTP: decisions about one request, and `Access`, which asks them.
    names     Looks that many share: one look at a time for all who ask; and the names of the queues of a server.
    fairness  Limits for callers: places for requests, and bytes of bodies, so that no caller starves the others.
    queues    The queues that a gateway has open: one client for each name, on the loop of the application, closed at
              its end.
    bodies    The types of requests and answers: requests are checked by them, and the OpenAPI description is made of
              them.
    requests  One request, as an endpoint sees it: who asks, about which queue, which words; and whether the client is
              there.
    claims    Claims with the client's own token: sent again with the token and its age, a claim gives the same leases.
              No I/O.
    polls     Claims over HTTP, and waiting for tasks: many clients wait with one blocked connection for each queue.
    tending   Cleans the queues that are worked on over HTTP: a worker in Python cleans its own queue, one with curl
              cannot.
    intake    Put of any number of tasks as NDJSON: each line is an id in quotes, or a task as an object, as in the list
              of a put.
    verbs     The verbs of `POST /v1/{queue}/{verb}`: one function each, whose arguments are the fields of the body.
    looks     The looks of `GET /v1/{queue}/…`: one function each, whose arguments are the parameters of the URL.
    metrics   The metrics of queues for Prometheus: `/metrics` of the gateway.
    probes    Answers for monitors: `/metrics` for Prometheus, and `/readyz`, which says whether requests can be carried
              out.
    routes    The table of the verbs and looks of the API: the application, its OpenAPI description and its tests read
              it.
    openapi   The OpenAPI 3.1 description of the API, made from the table of routes.
    app       The ASGI application of the gateway: finds the route, reads the body, calls the endpoint, and answers
              errors.
    serving   Serves an application of the gateway with uvicorn, and bounds the time that clients may take.
    page      The page for browsers: look at queues and act on them, by links and forms, with a script that keeps the
              page fresh.
    push      Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).
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
