"""The command `timeoutq web`: serves the gateway, which is the API over HTTP and the page for browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import Url, UrlFile, app, say, server_address
from timeoutq.cli.serving import LogJson, LogLevel
from timeoutq.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from timeoutq.gateway.settings import Settings


@app.command(rich_help_panel="From anywhere")
def web(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    queues: Annotated[str, typer.Option(metavar="GLOB", help="Serve only these queues.")] = "*",
    host_name: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="A name by which others reach it, such as that of a proxy."),
    ] = None,
    first_token: Annotated[
        str | None,
        typer.Option(
            "--first-token", metavar="NAME", show_default=False,
            help="If there are no tokens yet, make one for everything, and print it.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write.")] = False,
    prefix: Annotated[
        str, typer.Option(metavar="PATH", help="Path before all others, behind a proxy that does not cut it.")
    ] = "",
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Serve queues over HTTP: an API for programs in any language, and a page for browsers."""
    from timeoutq import logs

    logs.configure(log_level, as_json=log_json)
    address = server_address(url, url_file)
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise InvalidInput(f"--prefix {prefix} must begin with a slash, and not end with one")
    try:
        from timeoutq.gateway.serving import serve
        from timeoutq.gateway.settings import Settings
    except ImportError as error:
        raise MissingExtra(f"timeoutq web needs more packages ({error.name}): pip install 'timeoutq[web]'") from error
    anonymous = _who_needs_no_token(host, address, first_token, behind_proxy=bool(host_name or prefix))
    serve(
        made(
            Settings(
                url=address, queues=queues, read_only=read_only, prefix=prefix, anonymous=anonymous,
                hosts=tuple(name.lower() for name in host_name or ()),
            )
        ),
        host, port,
        lambda place: say(f"serves http://{place}{prefix}/ (API: {prefix}/v1/openapi.json); Ctrl-C or SIGTERM ends it"),
    )  # fmt: skip


def _who_needs_no_token(host: str, url: str | None, first_token: str | None, *, behind_proxy: bool) -> tuple[str, ...]:
    """Say what callers may do without a token; refuse to listen where others can come in while nobody needs one."""
    from timeoutq.gateway import access
    from timeoutq.gateway.tokens import SCOPES, TokenBook

    if first_token is not None or not access.is_loopback(host):
        with TokenBook(url) as book:
            secret = None if first_token is None else book.first(first_token)
            table = book.table()
            access.check_bind(host, not table.empty)
        if secret is not None:
            say(f"token {first_token}, which may do everything, and is not shown again: {secret}")
        elif first_token is not None:
            many = len(table.by_digest) + len(table.broken)
            there = "is 1 token" if many == 1 else f"are {many:,} tokens"
            say(
                f"there {there} already: --first-token makes none; timeoutq token new {first_token} --queues '*' "
                "--allow look,put,work,manage makes one more"
            )
    if not access.is_loopback(host):
        say("tokens and payloads travel as they are: let a proxy with TLS stand before it, where others can listen in")
        return ()
    if behind_proxy:
        # all who reach the proxy come from the loopback
        say(
            "every caller needs a token: timeoutq token new NAME --queues '*' --allow look,put,work makes one; "
            "or take --first-token NAME"
        )
        return ()
    if first_token is None:
        say(
            "callers on this machine need no token as long as the server has none, and has had none since this start "
            "(timeoutq token list): make one before a proxy stands here"
        )
    return SCOPES


def made(settings: Settings) -> Any:
    """Make the application with the routes of all rooms."""
    from timeoutq.page import make_app

    return make_app(settings)
