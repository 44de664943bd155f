"""What commands ask for: the decorator `command`, the server, arguments that commands share, what a shell completes.

A command is a function. `command` makes options of its parameters, and of the fields of a parameter that is a dataclass
(`Server`, `Sink`, `Log`); the text in `Annotated` is the help. A queue is opened before the function runs.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NewType, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from timeoutq.cli.app import app, say, unknown
from timeoutq.cli.printing import Sink, length
from timeoutq.cli.reading import moment, seconds
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import State

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

Body: TypeAlias = Callable[..., None]
Seconds = NewType("Seconds", float)  # a length of time, which is written as 250ms, 30s, 5m, 2h or 1d
Moment = NewType("Moment", float)  # Unix seconds, which may be written in ISO 8601, too
READERS: dict[Any, Callable[[str], float]] = {Seconds: seconds, Moment: moment}

PANELS = {
    "Tasks in": "put schedule",
    "Leases": "claim ack extend release fail pull",
    "Processes": "worker cleaner server",
    "From anywhere": "push log report failures web",
    "Looking": "queues status dashboard list inspect states drained doctor bench why check help",
    "Hosts of a polite queue": "hosts host block unblock ban",
    "Functions": "call result functions",
    "Sets and files": "diff intersect requeue export import",
    "Operating": "retry forget cancel pause resume configure purge protocol library",
}
"""The commands in the order of --help, under the headings there."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}


def argument(metavar: str, help: str, **how: Any) -> Any:
    """Give an argument."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, **how)


_HELP = re.compile(r"((?:--?[\w/-]+ ?)*)([A-Z[][][A-Z:=|,…+]*|[a-z]+(?:\|[a-z]+)+)? ?(?:(\d+)\.\.(\d*))?: (.+)")


def option(help: str, **how: Any) -> Any:
    """Give an option: `-n --count N 1..500: The number.` has these names, and a value from 1 to 500, called N.

    Each of the three may be left out: without names, the option is named as its parameter.
    """
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
        if url is not None and file is not None:
            raise InvalidInput("give --url or --url-file, not both")
        # an empty --url comes from a variable that was not set: the command must not go to the default server instead
        if url is not None and not url.strip():
            raise InvalidInput("--url is empty: write an address, or leave it out")
        if file is not None:
            try:
                words = file.read_text("utf-8").split()
            except OSError as error:
                raise InvalidInput(f"cannot read --url-file {file}: {error.strerror}") from error
            except UnicodeDecodeError:
                words = []
            if len(words) != 1:
                raise InvalidInput(f"--url-file {file} must hold one line, the URL, and nothing else")
            return words[0]
        if url is not None and redact(url) != url:
            say("the password in --url can be seen by all users of this machine (ps); use TIMEOUTQ_URL or --url-file")
        return url

    def open(self, name: str, shards: int | None = None, *, waits: bool = False, **settings: Any) -> AnyQueue:
        """Open a queue as what it is: plain, or over several shards.

        Raises `Unavailable` if the server does not say what the queue is. With `waits`, the queue is then opened as a
        plain one, for a caller that waits for the server, and opens the queue again if it has shards.
        """
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
        if ":" in name:
            raise InvalidInput(f"{name!r:.80} is not a queue name: calls of an App are in queues of their own names")
        with self.open(name) as opened:
            if not opened.exists():
                unknown(opened)
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
        try:
            url, file = ctx.params.get("url"), ctx.params.get("url_file")
            address = Path(file).read_text("utf-8").strip() if file else url or None
            with Queue("completion", address, deadline=PATIENCE, allow_eviction=True) as opened:
                found.extend(name for name in directory.within(opened, PATIENCE / 2) if name.startswith(incomplete))
        except Exception:  # noqa: S110  # whatever it is, a shell cannot use it
            pass

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
ManyIds = Annotated[list[str], typer.Argument(metavar="TASK...", help="Task ids.")]
Host = Annotated[str, argument("HOST", "example.com, example.com:8080, a URL of the host, or a group.")]
AppPath = Annotated[str, argument("MODULE:APP", "The App of a module.")]
Where = Annotated[str, argument("QUEUE|MODULE:APP", "A queue, or the App of a module.")]
Yes = Annotated[bool, "--yes -y: Do not ask."]
Count = Annotated[int, "-n --count 1..500: The most tasks to take."]
Cursor = Annotated[str | None, "Where to go on: the cursor that the last page printed."]
AllPages = Annotated[bool, "--all: Print all pages."]
Shards = Annotated[
    int | None, "N 1..1000: Divide a new queue into N shards, for ever; a queue that is there must have as many."
]
Wait = Annotated[Seconds, "How long to wait for the server if it goes away in the middle of many tasks; 0: not at all."]
FIVE_MINUTES = Seconds(300)


def command(group: typer.Typer = app, name: str = "", **how: Any) -> Callable[[Body], Body]:
    """Make a command of a function, under the name of the function if `name` is empty."""

    def add(body: Body) -> Body:
        hints = get_type_hints(body, include_extras=True)
        # what the function wants, and what typer is asked for in its place
        wanted = [(one.name, hints[one.name], one.default) for one in inspect.signature(body).parameters.values()]
        opens = {each: kind.__metadata__[1] for each, kind, _ in wanted if len(getattr(kind, "__metadata__", ())) > 1}
        # a command that only wants a queue has the options of its server, too
        is_given = any(kind is Server for _, kind, _ in wanted)
        if opens and not is_given:
            place = next((place for place, one in enumerate(wanted) if one[1] is Sink), len(wanted))
            wanted.insert(place, ("server", Server, None))
        asked: dict[str, inspect.Parameter] = {}
        groups: dict[str, tuple[Any, list[str]]] = {}
        for each, kind, default in wanted:
            if not is_dataclass(kind):
                asked[each] = _asked(each, kind, default)
                continue
            inner = get_type_hints(kind, include_extras=True)
            found = [one for one in fields(kind) if get_origin(inner[one.name]) is Annotated]
            groups[each] = kind, [one.name for one in found]
            for one in found:
                default = inspect.Parameter.empty if one.default is MISSING else one.default
                asked[one.name] = _asked(one.name, inner[one.name], default)

        def run(**given: Any) -> None:
            for each, (kind, parts) in groups.items():
                given[each] = kind(**{part: given.pop(part) for part in parts})
            server = given.get("server") if is_given else given.pop("server", None)
            with ExitStack() as stack:
                for each, way in opens.items():
                    given[each] = stack.enter_context(way(server, given[each]))
                body(**given)

        run.__dict__["__signature__"] = inspect.Signature(list(asked.values()))
        run.__annotations__ = {each: one.annotation for each, one in asked.items()}
        run.__name__, run.__doc__, run.__module__ = body.__name__, body.__doc__, body.__module__
        panel = PANEL_OF.get(name or body.__name__) if group is app else None
        group.command(name or body.__name__, rich_help_panel=panel, **how)(run)
        return body

    return add


def _asked(name: str, kind: Any, default: Any) -> inspect.Parameter:
    """Give the argument or the option of a parameter, as typer reads it."""
    kind, found, *_ = get_args(kind)
    info: ParameterInfo = option(found) if isinstance(found, str) else copy(found)
    if kind is bool and isinstance(info, OptionInfo) and info.default is ...:
        info.param_decls = (f"--{name.replace('_', '-')}",)  # else typer adds --no-…
    for marker, reader in READERS.items():
        if marker in (kind, *get_args(kind)):
            info.parser, info.metavar = reader, info.metavar or "TIME"
            kind = float | None if default is None else float
            default = (length(default) if default else "0") if isinstance(default, int | float) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])
