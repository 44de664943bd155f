"""The commands about the gateway: web, which serves the API over HTTP and the page; and token new, list, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.command import Seconds, Server, app, argument, command
from timeoutq.cli.lines import Sink, iso
from timeoutq.cli.logs import Log
from timeoutq.cli.saying import exit_unless, meant, refuse, say, stop
from timeoutq.words.errors import MissingExtra

if TYPE_CHECKING:
    from timeoutq.gateway.tokens import Token

group = typer.Typer(help="Tokens for the gateway: who may ask what.", no_args_is_help=True)
app.add_typer(group, name="token", rich_help_panel="From anywhere")

TokenName = Annotated[str, argument("NAME", "Name of the token.")]


@command()
def web(
    host: Annotated[str, "Address to listen at."] = "127.0.0.1",
    port: Annotated[int, "0..65535: Port; 0 takes a free one."] = 8080,
    queues: Annotated[str, "GLOB: Serve only these queues."] = "*",
    host_name: Annotated[list[str] | None, "NAME: A name by which others reach it, such as that of a proxy."] = None,
    first_token: Annotated[
        str | None, "NAME: If there are no tokens yet, make one for everything, and print it."
    ] = None,
    read_only: Annotated[bool, "Refuse every write."] = False,
    prefix: Annotated[str, "PATH: Path before all others, behind a proxy that does not cut it."] = "",
    *, server: Server, logs: Log,
) -> None:  # fmt: skip
    """Serve queues over HTTP: an API for programs in any language, and a page for browsers."""
    logs.begin()
    address = server.address()
    whole = not prefix or (prefix.startswith("/") and not prefix.endswith("/"))
    refuse(not whole, f"--prefix {prefix} must begin with a slash, and not end with one")
    try:
        from timeoutq.gateway.page import make_app
        from timeoutq.gateway.serving import serve
        from timeoutq.gateway.settings import Settings
    except ImportError as error:
        raise MissingExtra(f"timeoutq web needs more packages ({error.name}): pip install 'timeoutq[web]'") from error
    settings = Settings(
        url=address, queues=queues, read_only=read_only, prefix=prefix,
        anonymous=_who_needs_no_token(host, address, first_token, behind_proxy=bool(host_name or prefix)),
        hosts=tuple(name.lower() for name in host_name or ()),
    )  # fmt: skip
    serve(
        make_app(settings), host, port,
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


def _words(option: str) -> list[str]:
    return [word.strip() for word in option.split(",") if word.strip()]


def _told(token: Token, state: str = "good") -> dict[str, Any]:
    return {
        "token": token.name, "queues": list(token.queues), "allow": list(token.allow), "created": token.created,
        "expires": token.expires, "state": state,
    }  # fmt: skip


@command(group)
def new(
    name: TokenName,
    queues: Annotated[str, "NAMES: Queues, with commas between; 'crawl*': all that begin so."],
    allow: Annotated[str, "SCOPES: Of look, put, work, manage, with commas between."] = "look",
    expires: Annotated[Seconds | None, "When the token ends: 12h, 30d; else never."] = None,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Make a token, and print it: this once, because only its SHA-256 is kept.

    look: see the queue and its tasks · put: put and schedule tasks · work: claim, extend, ack, fail, release,
    note, pull · manage: forget, retry, requeue, cancel, pause, resume and the rest.
    """
    from timeoutq.gateway.tokens import TokenBook

    with TokenBook(server.address()) as book:
        is_first = book.table().empty
        secret, made = book.new(name, queues=_words(queues), allow=_words(allow), expires=expires)
    if out.as_json:
        out.document({**_told(made), "secret": secret})
        return
    typer.echo(secret)
    ends = "" if made.expires is None else f", until {iso(made.expires)}"
    say(f"token {name} may {', '.join(made.allow)} in {', '.join(made.queues)}{ends}; it is not shown again")
    if is_first:
        say("it is the first token of this server: from now on, gateways let in nobody who has none")


@command(group, "list")
def list_(*, server: Server, out: Sink) -> None:
    """List the tokens, without what makes them valid. Exit 1 when there are none."""
    from timeoutq.gateway.tokens import TokenBook

    with TokenBook(server.address()) as book:
        table = book.table()
    exit_unless(not table.empty, f"there are no tokens at {book.url}: timeoutq token new NAME --queues '*' makes one")
    told = [
        _told(token, "expired" if token.expires is not None and token.expires <= table.now else "good")
        for token in sorted(table.by_digest.values(), key=lambda token: token.name)
    ]
    out.each(("token", "queues", "allow", "created", "expires", "state"), told, lambda one: (
        one["token"], ",".join(one["queues"]), ",".join(one["allow"]), iso(one["created"]), iso(one["expires"]),
        one["state"],
    ))  # fmt: skip
    for name in table.broken:
        say(f"the entry {name!r:.80} cannot be read, and lets nobody in: timeoutq token revoke removes it")


@command(group)
def revoke(name: TokenName, *, server: Server, out: Sink) -> None:
    """Revoke a token: within 5 seconds, no gateway lets it in. Exit 1 when there is none of this name."""
    from timeoutq.gateway.tokens import TokenBook
    from timeoutq.watch import directory

    with TokenBook(server.address()) as book:
        if not book.revoke(name):
            alike = directory.alike(name, (one.name for one in book.table().by_digest.values()))
            lists = "`timeoutq token list` lists those that there are"
            stop(f"there is no token {name!r:.80}: {meant(alike, lists)}")
    if out.as_json:
        out.document({"token": name, "revoked": True})
    else:
        say(f"token {name} is revoked: gateways let it in for 5 seconds at most")
