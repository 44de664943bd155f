"""The commands about tokens for the gateway: token new, list, revoke.

`app.py` runs them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timeoutq.cli.app import NOTHING, AsJson, Url, UrlFile, app, say, server_address, stop
from timeoutq.cli.printing import Sink, iso
from timeoutq.cli.reading import duration

if TYPE_CHECKING:
    from timeoutq.gateway.tokens import Table, Token

COLUMNS = ("token", "queues", "allow", "created", "expires", "state")
MOMENTS = ("created", "expires")

group = typer.Typer(help="Tokens for the gateway: who may ask what.", no_args_is_help=True)
app.add_typer(group, name="token", rich_help_panel="From anywhere")

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.", show_default=False)]


def _words(option: str) -> list[str]:
    return [word.strip() for word in option.split(",") if word.strip()]


def _told(token: Token, state: str) -> dict[str, Any]:
    return {
        "token": token.name, "queues": list(token.queues), "allow": list(token.allow), "created": token.created,
        "expires": token.expires, "state": state,
    }  # fmt: skip


@group.command()
def new(
    name: TokenName,
    queues: Annotated[
        str, typer.Option("--queues", metavar="NAMES", help="Queues, with commas between; 'crawl*': all that begin so.")
    ],
    allow: Annotated[
        str, typer.Option("--allow", metavar="SCOPES", help="Of look, put, work, manage, with commas between.")
    ] = "look",
    expires: Annotated[float | None, duration("When the token ends: 12h, 30d; else never.", "--expires")] = None,
    url: Url = None, url_file: UrlFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make a token, and print it: this once, because only its SHA-256 is kept.

    look: see the queue and its tasks · put: put and schedule tasks · work: claim, extend, ack, fail, release,
    note, pull · manage: forget, retry, requeue, cancel, pause, resume and the rest.
    """
    from timeoutq.gateway.tokens import TokenBook

    with TokenBook(server_address(url, url_file)) as book:
        is_first = book.table().empty
        secret, made = book.new(name, queues=_words(queues), allow=_words(allow), expires=expires)
    if as_json:
        Sink(as_json).document({**_told(made, "good"), "secret": secret})
        return
    sys.stdout.write(secret + "\n")
    sys.stdout.flush()
    ends = "" if made.expires is None else f", until {iso(made.expires)}"
    say(f"token {name} may {', '.join(made.allow)} in {', '.join(made.queues)}{ends}; it is not shown again")
    if is_first:
        say("it is the first token of this server: from now on, gateways let in nobody who has none")


@group.command("list")
def list_(url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """List the tokens, without what makes them valid. Exit 1 when there are none."""
    from timeoutq.gateway.tokens import TokenBook

    with TokenBook(server_address(url, url_file)) as book:
        table = book.table()
    if table.empty:
        stop(NOTHING, f"there are no tokens at {book.url}: timeoutq token new NAME --queues '*' makes one")
    sink = Sink(as_json)
    told = [_told(token, state) for token, state in _states(table)]
    if as_json:
        for line in told:
            sink.document(line)
    else:
        sink.rows(COLUMNS, [[_cell(column, line[column]) for column in COLUMNS] for line in told])
    for name in table.broken:
        say(f"the entry {name!r:.80} cannot be read, and lets nobody in: timeoutq token revoke removes it")


def _cell(column: str, value: Any) -> Any:
    if column in MOMENTS:
        return iso(value)
    return ",".join(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # of text


def _states(table: Table) -> list[tuple[Token, str]]:
    tokens = sorted(table.by_digest.values(), key=lambda token: token.name)
    return [(one, "expired" if one.expires is not None and one.expires <= table.now else "good") for one in tokens]


@group.command()
def revoke(name: TokenName, url: Url = None, url_file: UrlFile = None, as_json: AsJson = False) -> None:
    """Revoke a token: within 5 seconds, no gateway lets it in. Exit 1 when there is none of this name."""
    from timeoutq import directory
    from timeoutq.gateway.tokens import TokenBook

    with TokenBook(server_address(url, url_file)) as book:
        if not book.revoke(name):
            alike = " or ".join(directory.alike(name, (one.name for one in book.table().by_digest.values())))
            meant = f"did you mean {alike}?" if alike else "`timeoutq token list` lists those that there are"
            stop(NOTHING, f"there is no token {name!r:.80}: {meant}")
    if as_json:
        Sink(as_json).document({"token": name, "revoked": True})
    else:
        say(f"token {name} is revoked: gateways let it in for 5 seconds at most")
