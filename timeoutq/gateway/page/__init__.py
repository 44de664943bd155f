"""The page for browsers: look at queues and act on them, by links and forms, with a script that keeps the page fresh.

The modules, in reading order: each imports only from those above it.

    spelling  How ids travel between page and server, and how ids, texts and times are written into HTML. Pure.
    hub       Looks at queues for all who watch them, one a second and page; and long acts, whose progress they watch.
    paint     From a snapshot of a queue to HTML: the parts of pages. Pure but for the templates.
    visits    One request of a browser: who asks, about which queue, with which ids; and the answer as a page.
    acts      The acts of the page: one function for each form, which leads to a page with a message.
    views     The views of the page: each is a whole page at first; while it is shown, `live` tells what changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.responses import Response

from timeoutq.gateway import app as gateway
from timeoutq.gateway.page import acts, paint, views, visits
from timeoutq.gateway.page.hub import Hub
from timeoutq.gateway.page.visits import Visit
from timeoutq.gateway.routes import API, Route
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tokens import Needs

__all__ = ["make_app"]


def _route(method: str, path: str, needs: Needs | None, endpoint: Callable[[Visit], Awaitable[Response]]) -> Route:
    return Route(method, path, needs, endpoint, page=True)


ROUTES: Sequence[Route] = (
    _route("GET", "/static/{name}", None, views.static),
    _route("GET", "/", "look", views.cards),
    _route("GET", "/live", "look", views.live),
    _route("GET", "/q/{queue}", "look", views.cards),
    _route("GET", "/q/{queue}/live", "look", views.live),
    _route("GET", "/q/{queue}/tasks", "look", views.tasks),
    _route("GET", "/q/{queue}/task", "look", views.task),
    _route("GET", "/q/{queue}/kind", "look", views.kind),
    *(_route("GET", f"/q/{{queue}}/{name}", "look", views.cards) for name in ("failures", "hosts", "workers", "log")),
    _route("GET", "/put", "put", views.puts),
    _route("GET", "/q/{queue}/put", "put", acts.put_form),
    _route("POST", "/q/{queue}/put", "put", acts.put),
    *(_route("POST", f"/q/{{queue}}/{name}", "manage", endpoint) for name, endpoint in acts.ACTS.items()),
    _route("POST", "/q/{queue}/purge", "manage", acts.purge),
    _route("GET", "/q/{queue}/purge", "manage", acts.purge_form),
)  # fmt: skip
LOGIN: Sequence[Route] = (
    _route("GET", "/login", None, visits.login),
    _route("POST", "/login", None, visits.enter),
    _route("POST", "/logout", None, visits.leave),
)


def make_app(settings: Settings | None = None, more: Sequence[Route] = ()) -> gateway.Gateway:
    """Make the application with the page, if the settings want one; a host that mounts it calls its `close()`."""
    settings = settings or Settings()
    if not settings.page:
        return gateway.make_app(settings, more)
    login = LOGIN if settings.login is None else ()
    made = gateway.Gateway(settings, [*API, *ROUTES, *login, *more], Visit)
    for template in paint.TEMPLATES.list_templates():  # they are read, so that the first page does not wait for it
        paint.TEMPLATES.get_template(template)
    made.state.page = Hub(made.state.queues)
    return made
