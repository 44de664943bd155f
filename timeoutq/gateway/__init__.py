"""The gateway: a queue over HTTP, for programs in any language. `timeoutq web` serves it; any ASGI server can mount it.

`make_app(Settings(...))` gives the ASGI application with the API; that of `timeoutq.page.make_app` has the page, too.
`routes.py` has the table of the API's verbs and looks, `access.py` decides who may ask, `tokens.py` keeps the tokens.
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
