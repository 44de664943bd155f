"""The gateway: a queue over HTTP, for programs in any language. `timeoutq web` serves it; any ASGI server can mount it.

`make_app(Settings(...))` gives the ASGI application with the API; that of `timeoutq.gateway.page` has the page, too.

The modules, in reading order: each imports only from those above it.

    protocol  The protocol between any client and the library, made of the headers of the verbs and the package's
              constants.
    problems  Errors as answers: RFC 9457 problems. One type for each class of `errors.py`, and some others.
    names     Looks that many share: one look at a time for all who ask; and the names of the queues of a server.
    tokens    Tokens, with which programs and browsers ask the gateway about some queues; Redis has their SHA-256 only.
    callers   Who sends a request, and the rights of this caller.
    settings  The settings of an application of the gateway. `timeoutq web` fills them in from its options.
    access    Who may come in over HTTP: decisions about the head of a request, and `Access`, which asks them.
    fairness  Limits for callers: places for requests, and bytes of bodies, so that no caller starves the others.
    queues    The queues that a gateway has open: one client for each name, until nobody uses it, or others need its
              place.
    bodies    The types of requests and answers, by which requests are checked, and of which OpenAPI is made.
    requests  One request, as an endpoint sees it, and the way back to its client.
    polls     Claims over HTTP; waiting for tasks, with one blocked connection for each queue; and cleaning of queues.
    verbs     The verbs of `POST /v1/{queue}/{verb}`: one function each, whose arguments are the fields of the body.
    looks     The looks of `GET /v1/{queue}/…`: one function each, whose arguments are the parameters of the URL.
    metrics   Answers for monitors: `/metrics` for Prometheus, whose labels name no task, host, worker or error; and
              `/readyz`.
    routes    The table of what the gateway answers, and its OpenAPI 3.1 description, which is made of the table.
    app       The ASGI application: finds the route, reads the body, calls the endpoint, and answers errors.
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
