"""The command itself: its typer app, the decorator `command`, what commands ask for and share, and `main`.

A command is a function. `command` makes options of its parameters, and of the fields of a parameter that is a dataclass
(`Server`, `Sink`, `Log`); the text in `Annotated` is the help. A queue is opened before the function runs.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NewType, TypeAlias, TypeVar, get_args, get_type_hints

import typer

from timeoutq.cli.lines import Sink, length, moment, seconds
from timeoutq.cli.saying import refuse, say, stop, unknown_words
from timeoutq.words import exit_codes
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.exit_codes import DONE, INTERRUPTED, NOTHING, USAGE
from timeoutq.words.model import State
from timeoutq.words.text import safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

T = TypeVar("T")
Body: TypeAlias = Callable[..., None]
Seconds = NewType("Seconds", float)  # a length of time, which is written as 250ms, 30s, 5m, 2h or 1d
Moment = NewType("Moment", float)  # Unix seconds, which may be written in ISO 8601, too
READERS: dict[Any, Callable[[str], float]] = {Seconds: seconds, Moment: moment}

app = typer.Typer(
    help="A work queue on Redis made of sets: put tasks, lease them to workers, look into everything. "
    "`timeoutq help` lists pages that explain it.",
    epilog="Exit codes: 0 done · 1 nothing found, or the answer is no · 2 wrong usage, input or file · 3 the server is "
    "away or refuses · 4 a lease is lost · 5 call and result: not ended within --wait · 130 Ctrl-C.  "
    "The server: --url, else TIMEOUTQ_URL, else REDIS_URL, else redis://localhost:6379/0.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PANELS = {
    "Tasks in": "put schedule",
    "Leases": "claim ack extend release fail pull",
    "Processes": "worker cleaner server",
    "From anywhere": "push log report failures web",
    "Looking": "queues status dashboard list inspect states drained doctor bench why check help",
    "Hosts of a polite queue": "hosts host block unblock ban",
    "Functions": "call result calls functions",
    "Sets and files": "diff intersect requeue export import",
    "Operating": "retry forget cancel pause resume configure purge protocol library",
}
"""The commands in the order of --help, under the headings there."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


def _version(asked: bool) -> None:
    if asked:
        import timeoutq

        typer.echo(timeoutq.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show version.")] = False,
) -> None:
    """Take the options that stand before the command."""


# ---- the server, and the arguments that commands share


def argument(metavar: str, help: str, **how: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, **how)


_HELP = re.compile(r"((?:--?[\w/-]+ ?)*)([A-Z[][][A-Z:=|,…+]*|[a-z]+(?:\|[a-z]+)+)? ?(?:(\d+)\.\.(\d*))?: (.+)")


def option(help: str, **how: Any) -> Any:
    """Give an option: `-n --count N 1..500: Help.` has these names, a value N, and limits; each may be left out."""
    names: list[str] = []
    if found := _HELP.fullmatch(help):
        given, metavar, low, high, help = found.groups()
        names = given.split()
        limits = {name: int(value) for name, value in (("min", low), ("max", high)) if value}
        how = {"metavar": metavar, **limits, **how}
    return typer.Option(*names, help=help, **how)


@dataclass(frozen=True)
class Server:
    """The server that --url or --url-file names, or else the environment."""

    url: Annotated[
        str | None, "Server: redis://, rediss://, redis+sentinel://, redis+cluster://, unix://, valkey://."
    ] = None
    url_file: Annotated[Path | None, "File with the server's URL: keeps a password out of `ps`."] = None

    def address(self) -> str | None:
        """Give the URL; None if the environment names the server."""
        from timeoutq.server.address import redact

        url, file = self.url, self.url_file
        refuse(url is not None and file is not None, "give --url or --url-file, not both")
        # an empty --url comes from a variable that was not set: the command must not go to the default server instead
        refuse(url is not None and not url.strip(), "--url is empty: write an address, or leave it out")
        if url is not None and redact(url) != url:
            say("the password in --url can be seen by all users of this machine (ps); use TIMEOUTQ_URL or --url-file")
        if file is None:
            return url
        try:
            words = file.read_text("utf-8", "replace").split()
        except OSError as error:
            raise InvalidInput(f"cannot read --url-file {file}: {error.strerror}") from error
        refuse(len(words) != 1, f"--url-file {file} must hold one line, the URL, and nothing else")
        return words[0]

    def open(self, name: str, shards: int | None = None, *, waits: bool = False, **settings: Any) -> AnyQueue:
        """Open a queue as what it is, plain or over shards; a caller that `waits` for a server gets a plain one."""
        from timeoutq.client import Queue
        from timeoutq.client.shards import open_queue

        address = self.address()
        try:
            return open_queue(name, address, shards=shards, **settings)
        except TimeoutqError as error:
            if isinstance(error, InvalidInput) or (isinstance(error, Unavailable) and not waits):
                raise
            return Queue(name, address, **settings)  # the first call says what is wrong

    @contextmanager
    def known(self, name: str) -> Iterator[AnyQueue]:
        """Open a queue that must exist; end the command with exit code 1 when nothing was ever put to the queue."""
        refuse(":" in name, f"{name!r:.80} is not a queue name: calls of an App are in queues of their own names")
        with self.open(name) as opened:
            if not opened.exists():
                stop(unknown_words(opened))
            yield opened


PATIENCE = 1.0
"""Seconds after which a shell gets the names that were found until then: none, if the server is away or refuses."""


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the queues whose names begin with what was typed."""
    from timeoutq.client import Queue
    from timeoutq.watch import directory

    found: list[str] = []

    def ask() -> None:
        # a thread can be left behind: so no name server and no network can keep the shell waiting
        with suppress(Exception):  # whatever it is, a shell cannot use it
            url, file = ctx.params.get("url"), ctx.params.get("url_file")
            address = Path(file).read_text("utf-8").strip() if file else url or None
            with Queue("completion", address, deadline=PATIENCE, allow_eviction=True) as opened:
                found.extend(name for name in directory.within(opened, PATIENCE / 2) if name.startswith(incomplete))

    thread = threading.Thread(target=ask, name="completion", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return sorted(found)


def sides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give QUEUE:STATE for what was typed; a shell completes files by itself."""
    name, colon, state = incomplete.partition(":")
    if colon:
        return [f"{name}:{known}" for known in State if known.startswith(state)]
    return [f"{queue}:" for queue in queue_names(ctx, name)]


_QUEUE = argument("QUEUE", "Name of the queue.", autocompletion=queue_names)
Name = Annotated[str, _QUEUE]
if TYPE_CHECKING:
    Opened: TypeAlias = AnyQueue  # a queue, opened; it may be new
    Known: TypeAlias = AnyQueue  # a queue, opened, to which something was put
else:
    Opened = Annotated[str, _QUEUE, Server.open]
    Known = Annotated[str, _QUEUE, Server.known]
TaskName = Annotated[str, argument("TASK", "Id of the task.")]
Ids = Annotated[list[str] | None, argument("[TASK]...", "Task ids.")]
Where = Annotated[str, argument("QUEUE|MODULE:APP", "A queue, or the App of a module.")]
Yes = Annotated[bool, "--yes -y: Do not ask."]
Shards = Annotated[
    int | None, "N 1..1000: Divide a new queue into N shards, for ever; a queue that is there must have as many."
]
Wait = Annotated[Seconds, "How long to wait for the server if it goes away in the middle of many tasks; 0: not at all."]
FIVE_MINUTES = Seconds(300)


def command(group: typer.Typer = app, name: str = "", **how: Any) -> Callable[[Body], Body]:
    """Make a command of a function, under the name of the function if `name` is empty; its docstring is the help."""

    def add(body: Body) -> Body:
        hints = get_type_hints(body, include_extras=True)
        opens = getattr(hints.get("queue"), "__metadata__", ())[1:]
        wanted = [(one.name, hints[one.name], one.default) for one in inspect.signature(body).parameters.values()]
        if opens and Server not in hints.values():
            # a command that only wants a queue has the options of its server, too, before --json
            wanted.insert(len(wanted) - (Sink in hints.values()), ("server", Server, None))
        groups = {each: get_type_hints(kind, include_extras=True) for each, kind, _ in wanted if is_dataclass(kind)}
        asked: dict[str, inspect.Parameter] = {}
        for each, kind, default in wanted:
            if each in groups:
                asked |= {part: _asked(part, of, getattr(kind, part)) for part, of in groups[each].items()}
            else:
                asked[each] = _asked(each, kind, default)

        def run(**given: Any) -> None:
            for each, kind, _ in wanted:
                if each in groups:
                    given[each] = kind(**{part: given.pop(part) for part in groups[each]})
            if not opens:
                body(**given)
                return
            server = given["server"] if "server" in hints else given.pop("server")
            with opens[0](server, given["queue"]) as given["queue"]:
                body(**given)

        run.__dict__["__signature__"] = inspect.Signature([*asked.values()])
        run.__annotations__ = {each: one.annotation for each, one in asked.items()}
        run.__name__, run.__module__ = body.__name__, body.__module__
        # each paragraph, and each item of a list, is one line, as wide as the terminal
        run.__doc__ = re.sub(r"(?<!\n)\n(?!\n|- ) *", " ", inspect.getdoc(body) or "")
        panel = PANEL_OF.get(name or body.__name__) if group is app else None
        group.command(name or body.__name__, rich_help_panel=panel, **how)(run)
        return body

    return add


def _asked(name: str, kind: Any, default: Any) -> inspect.Parameter:
    """Give the argument or the option of a parameter, as typer reads it."""
    kind, info, *_ = get_args(kind)
    if isinstance(info, str):
        info = option(info)
        if kind is bool and info.default is ...:
            info.param_decls = (f"--{name.replace('_', '-')}",)  # else typer adds --no-…
    for marker, reader in READERS.items():
        if marker in (kind, *get_args(kind)):
            info.parser, info.metavar = reader, info.metavar or "TIME"
            kind = float | None if default is None else float
            default = (length(default) if default else "0") if isinstance(default, int | float) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def main() -> None:
    """Run the command. An error prints one line; Ctrl-C and a closed pipe print nothing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller has closed it: throw away what is written there
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            # a character that the terminal lacks is shown as \uXXXX; without this, the command would end
            stream.reconfigure(errors="backslashreplace")
    code, complaint = DONE, ""
    try:
        code = app(standalone_mode=False) or DONE
        sys.stdout.flush()
    except TimeoutqError as error:
        code, complaint = exit_codes.of(error), str(error)
    except (KeyboardInterrupt, EOFError, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        pass  # the reader of our output has gone
    except OSError as error:
        code = USAGE
        complaint = f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}"
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None and hasattr(error, "exit_code"):  # an error of typer: wrong usage
            error.__dict__["message"] = safe(str(getattr(error, "message", "")))  # it quotes what the user typed
            code = USAGE
            with suppress(OSError):
                show()
        elif "_TIMEOUTQ_COMPLETE" in os.environ:  # a completion never prints an error
            code = NOTHING
        else:
            raise
    with suppress(OSError):
        if complaint:
            say(complaint)
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError:  # what cannot be written, for example because a disk is full, changes no exit code
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
