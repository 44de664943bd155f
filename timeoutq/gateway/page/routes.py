"""The routes of the page, in the gateway's own form: path, the right that the caller must have, and the endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.responses import Response

from timeoutq.gateway import app as gateway
from timeoutq.gateway.app import Gateway
from timeoutq.gateway.callers import Needs
from timeoutq.gateway.page import acts, paint, views, visits
from timeoutq.gateway.page.hub import Hub
from timeoutq.gateway.page.visits import Visit, tell, visiting
from timeoutq.gateway.routes import Route
from timeoutq.gateway.settings import Settings

Endpoint = Callable[[Visit], Awaitable[Response]]


def _route(method: str, path: str, needs: Needs | None, endpoint: Endpoint) -> Route:
    return Route(method, path, needs, visiting(endpoint), page=True)


def _look(path: str, endpoint: Endpoint) -> Route:
    return _route("GET", path, "look", endpoint)


def _act(verb: str, endpoint: Endpoint, needs: Needs = "manage") -> Route:
    return _route("POST", f"/q/{{queue}}/{verb}", needs, endpoint)


ROUTES: Sequence[Route] = (
    _route("GET", "/static/{name}", None, views.static),
    _look("/", views.cards("overview")),
    _look("/live", views.live),
    _look("/q/{queue}", views.cards("queue")),
    _look("/q/{queue}/live", views.live),
    _look("/q/{queue}/tasks", views.tasks),
    _look("/q/{queue}/task", views.task),
    _look("/q/{queue}/kind", views.kind),
    *(_look(f"/q/{{queue}}/{name}", views.cards(name)) for name in ("failures", "hosts", "workers", "log")),
    _route("GET", "/put", "put", views.puts),
    _route("GET", "/q/{queue}/put", "put", acts.put_form),
    _act("put", acts.put, "put"),
    *(
        _act(act.__name__.replace("_", "-"), act)
        for act in (
            acts.retry, acts.run_now, acts.forget, acts.cancel, acts.release, acts.pause, acts.resume, acts.block,
            acts.unblock, acts.empty, acts.retry_all, acts.retry_kind, acts.forget_kind,
        )
    ),
    _route("GET", "/q/{queue}/purge", "manage", acts.purge_form),
    _act("purge", acts.purge),
)  # fmt: skip
LOGIN: Sequence[Route] = (
    _route("GET", "/login", None, visits.login),
    _route("POST", "/login", None, visits.enter),
    _route("POST", "/logout", None, visits.leave),
)


def make_app(settings: Settings | None = None, more: Sequence[Route] = ()) -> Gateway:
    """Make the application of the gateway with the page, if the settings want one; an ASGI application.

    `more` has further routes. A host application that mounts it calls its `close()` at the end.
    """
    settings = settings or Settings()
    if not settings.page:
        return gateway.make_app(settings, more)
    login = LOGIN if settings.login is None else ()
    made = gateway.make_app(settings, [*ROUTES, *login, *more], tell)
    paint.warm()
    made.state.page = Hub(made.state.queues)
    made.at_stop.append(made.state.page.stop)
    made.at_close.append(made.state.page.close)
    return made
