"""The routes of the page, in the gateway's own form: path, what the caller must be allowed to do, and the endpoint.

`make_app` adds these routes to those of the gateway, and `timeoutq web` calls it. The tests of access go through these
routes as through all others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.responses import Response

from timeoutq.gateway import app as gateway
from timeoutq.gateway.app import Gateway
from timeoutq.gateway.callers import Needs
from timeoutq.gateway.page import acts, paint, views
from timeoutq.gateway.page.visits import Shown, Visit, answering, tell
from timeoutq.gateway.routes import Route
from timeoutq.gateway.settings import Settings

Endpoint = Callable[[Visit], Awaitable[Response]]


def _look(path: str, endpoint: Endpoint) -> Route:
    return Route("GET", path, "look", answering(endpoint), by_starlette=True)


def _act(verb: str, endpoint: Endpoint, needs: Needs = "manage") -> Route:
    return Route("POST", f"/q/{{queue}}/{verb}", needs, answering(endpoint), by_starlette=True)


ROUTES: Sequence[Route] = (
    Route("GET", "/static/{name}", None, answering(views.static), by_starlette=True),
    _look("/", views.overview),
    _look("/live", views.live),
    _look("/q/{queue}", views.queue),
    _look("/q/{queue}/live", views.live),
    _look("/q/{queue}/tasks", views.tasks),
    _look("/q/{queue}/task", views.task),
    _look("/q/{queue}/failures", views.failures),
    _look("/q/{queue}/kind", views.kind),
    _look("/q/{queue}/hosts", views.hosts),
    _look("/q/{queue}/workers", views.workers),
    _look("/q/{queue}/log", views.log),
    Route("GET", "/put", "put", answering(views.puts), by_starlette=True),
    Route("GET", "/q/{queue}/put", "put", answering(acts.put_form), by_starlette=True),
    _act("put", acts.put, "put"),
    _act("retry", acts.retry),
    _act("run-now", acts.run_now),
    _act("forget", acts.forget),
    _act("cancel", acts.cancel),
    _act("release", acts.release),
    _act("pause", acts.pause),
    _act("resume", acts.resume),
    _act("block", acts.block),
    _act("unblock", acts.unblock),
    _act("empty", acts.empty),
    _act("retry-all", acts.retry_all),
    _act("retry-kind", acts.retry_kind),
    _act("forget-kind", acts.forget_kind),
    Route("GET", "/q/{queue}/purge", "manage", answering(acts.purge_form), by_starlette=True),
    _act("purge", acts.purge),
)
"""All routes of the page."""


def make_app(settings: Settings | None = None, more: Sequence[Sequence[Route]] = ()) -> Gateway:
    """Make the application of the gateway with the page, if the settings want one; an ASGI application.

    `more` has the routes of other rooms. A host application that mounts it calls its `close()` at the end.
    """
    settings = settings or Settings()
    if not settings.page:
        return gateway.make_app(settings, more)
    made = gateway.make_app(settings, [ROUTES, *more], _login, tell)
    shown = made.state.page = Shown(made.state.queues)
    made.at_stop.append(shown.hub.stop)
    made.at_close.append(shown.close)
    return made


def _login(base: str, wanted: str, error: str) -> str:
    return paint.whole("login.html", paint.At(base), wanted=wanted, error=error)
