"""The command itself: the typer app, the options that commands share, its exit codes, and `main`.

The other modules of this folder add their commands to `app`; `timeoutq` and `python -m timeoutq` call `main`.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, TypeVar

import typer

from timeoutq import exit_codes
from timeoutq.cli.completion import queue_names
from timeoutq.errors import InvalidInput, ServerError, TimeoutqError, Unavailable
from timeoutq.exit_codes import DONE, INTERRUPTED, USAGE
from timeoutq.exit_codes import LATE as LATE
from timeoutq.exit_codes import LOST as LOST
from timeoutq.exit_codes import NOTHING as NOTHING
from timeoutq.exit_codes import SERVER as SERVER
from timeoutq.text import age, safe

if TYPE_CHECKING:
    from timeoutq.model import Outcome
    from timeoutq.shards import AnyQueue

T = TypeVar("T")

EPILOG = (
    "Exit codes: 0 done · 1 nothing found, or the answer is no · 2 wrong usage, input or file · 3 the server is away "
    "or refuses · 4 a lease is lost · 5 call and result: not ended within --wait · 130 Ctrl-C.  "
    "The server: --url, else TIMEOUTQ_URL, else REDIS_URL, else "
    "redis://localhost:6379/0."
)

app = typer.Typer(
    help="A work queue on Redis made of sets: put tasks, lease them to workers, look into everything. "
    "`timeoutq help` lists pages that explain it.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Name = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False, autocompletion=queue_names),
]
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Id of the task.", show_default=False)]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[TASK]...", help="Task ids.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Server: redis://, rediss://, redis+sentinel://, redis+cluster://, unix://, valkey://.",
        show_default=False,
    ),
]
UrlFile = Annotated[
    Path | None,
    typer.Option("--url-file", help="File with the server's URL: keeps a password out of `ps`.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Shards = Annotated[
    int | None,
    typer.Option(
        min=1, max=1000, metavar="N", show_default=False,
        help="Divide a new queue into N shards, for ever; a queue that is there must have as many.",
    ),
]  # fmt: skip
Count = Annotated[int, typer.Option("-n", "--count", min=1, max=500, help="The most tasks to take.")]


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


def say(message: str) -> None:
    """Print a line on stderr."""
    typer.echo(f"timeoutq: {safe(message)}", err=True)


def stop(code: int, message: str = "") -> NoReturn:
    """End the command with an exit code, and say why."""
    if message:
        say(message)
    raise typer.Exit(code)


@contextmanager
def saying_how_far(far: Callable[[], tuple[int, str]]) -> Iterator[None]:
    """When Ctrl-C or an error ends a long command, say how far it got; `far` tells this as a number and in words."""
    try:
        yield
    except (KeyboardInterrupt, TimeoutqError) as error:
        many, words = far()
        if many or isinstance(error, KeyboardInterrupt):
            say(f"ended early: {words}")
        raise


def patiently(queue: AnyQueue, step: Callable[[], T], wait: float) -> T:
    """Take a step of long work; if the server is away, wait for it, `wait` seconds at most, and take the step again.

    A server that has never answered is not waited for: its address may be wrong. The step may be taken twice: what it
    brings in must not be brought in twice by that. Says when it waits.
    """
    from timeoutq import flows, retry

    began = failures = 0.0
    while True:
        try:
            found = step()
        except TimeoutqError as error:
            if flows.is_final(error) or isinstance(error, ServerError):
                raise
            now = time.monotonic()
            if not failures:
                began, wait = now, wait if queue.met else 0.0
                if wait > 0:
                    say(f"waits for the server, {age(wait)} at most (--wait): {error}")
            failures += 1
            left = began + wait - now
            if left <= 0:
                raise
            time.sleep(min(left, retry.pause(int(failures))))
            continue
        if failures:
            say(f"goes on after {age(time.monotonic() - began)}; tasks that were sent twice count as known")
        return found


def server_address(url: str | None, url_file: Path | None) -> str | None:
    """Give the URL from --url or --url-file; None if neither is given: then the environment names the server."""
    from timeoutq.address import redact

    if url is not None and url_file is not None:
        raise InvalidInput("give --url or --url-file, not both")
    # an empty --url comes from a variable that was not set: the command must not go to the default server instead
    if url is not None and not url.strip():
        raise InvalidInput("--url is empty: write an address, or leave it out")
    if url_file is not None:
        try:
            words = url_file.read_text("utf-8").split()
        except OSError as error:
            raise InvalidInput(f"cannot read --url-file {url_file}: {error.strerror}") from error
        except UnicodeDecodeError:
            words = []
        if len(words) != 1:
            raise InvalidInput(f"--url-file {url_file} must hold one line, the URL, and nothing else")
        return words[0]
    if url is not None and redact(url) != url:
        say("the password in --url can be seen by all users of this machine (ps); use TIMEOUTQ_URL or --url-file")
    return url


def open_queue(
    name: str,
    url: str | None,
    url_file: Path | None,
    shards: int | None = None,
    *,
    waits: bool = False,
    **settings: Any,
) -> AnyQueue:
    """Open the queue that the arguments of a command name, as what it is: plain, or over several shards.

    Raises `Unavailable` if the server does not say what the queue is. With `waits`, the queue is then opened as a plain
    one, for a caller that waits for the server, and opens the queue again if it has shards.
    """
    from timeoutq.client import Queue
    from timeoutq.shards import open_queue

    address = server_address(url, url_file)
    try:
        return open_queue(name, address, shards=shards, **settings)
    except TimeoutqError as error:
        if isinstance(error, InvalidInput) or (isinstance(error, Unavailable) and not waits):
            raise
        return Queue(name, address, **settings)  # the first call says what is wrong


@contextmanager
def known_queue(name: str, url: str | None, url_file: Path | None) -> Iterator[AnyQueue]:
    """Open a queue that must exist; end the command with exit code 1 when nothing was ever put to the queue."""
    if ":" in name:
        raise InvalidInput(f"{name!r:.80} is not a queue name: calls of an App are in queues of their own names")
    with open_queue(name, url, url_file) as opened:
        if not opened.exists():
            unknown(opened)
        yield opened


def unknown(queue: AnyQueue) -> NoReturn:
    """End the command; say that this queue is unknown, and which queue may have been meant."""
    stop(NOTHING, unknown_words(queue))


def unknown_words(queue: AnyQueue) -> str:
    """Say that a queue is unknown on its server, and which queue may have been meant."""
    from timeoutq import directory

    alike = " or ".join(directory.meant(queue, queue.name))
    hint = f"did you mean {alike}?" if alike else "`timeoutq queues` lists the queues that are there"
    return f"queue {queue.name} is unknown: nothing was put to it at {queue.url}; {hint}"


def new_words(queue: AnyQueue) -> str:
    """Say that a queue is new, and which queue may have been meant; '' if it is not new, or if no name is alike."""
    from timeoutq import directory

    if queue.exists():
        return ""
    alike = " or ".join(directory.meant(queue, queue.name, 0.5))
    return f"queue {queue.name} is new here; did you mean {alike}?" if alike else ""


def with_ended(queue: AnyQueue, outcome: Outcome) -> Outcome:
    """Answer done for each id that no state holds and whose result is kept: the id of a call is not kept in done."""
    from timeoutq.model import Answer
    from timeoutq.model import Outcome as Answers

    unknown = [task for task, answer in outcome.items() if answer is Answer.UNKNOWN]
    ended = queue.results.look(unknown) if unknown else {}
    done = {task for task, one in ended.items() if one.state is None and one.result is not None}
    codes = [ord("d") if task in done else code for (task, _), code in zip(outcome.items(), outcome.codes, strict=True)]
    return Answers(outcome.tasks, bytes(codes)) if done else outcome


def sure(question: str, yes: bool) -> None:
    """Ask, unless --yes was given; end the command when the answer is no, or nobody can be asked."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        stop(USAGE, f"{question} Nobody can be asked here: add --yes to go on.")
    if not typer.confirm(safe(question), err=True):
        stop(NOTHING, "nothing was done")


def main() -> None:
    """Run the command. An error prints one line; Ctrl-C and a closed pipe print nothing."""
    if sys.stdout is None:  # the caller has closed stdout: throw the output away, and go on
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a character that the terminal lacks is shown as \uXXXX; without this, the command would end
            stream.reconfigure(errors="backslashreplace")
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        _complain(f"cannot write the output: {error.strerror}")
        code = code or USAGE
    sys.exit(code)


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        code = code if isinstance(code, int) else DONE
    except TimeoutqError as error:
        _complain(str(error))
        code = exit_codes.of(error)
    except (KeyboardInterrupt, EOFError):
        code = INTERRUPTED
    except BrokenPipeError:
        # the reader of our output has gone: throw the rest away, so that the flush in `main` does not fail too
        _discard(sys.stdout)
        code = DONE
    except OSError as error:
        if error.filename is None:  # it may be the output that cannot be written: then the flush would fail, too
            _discard(sys.stdout)
        _complain(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
        code = USAGE
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None and hasattr(error, "exit_code"):  # an error of typer: wrong usage
            error.__dict__["message"] = safe(str(getattr(error, "message", "")))  # it quotes what the user typed
            _written(show)
            code = USAGE
        elif type(error).__name__ == "Abort":  # Ctrl-C at a question
            code = INTERRUPTED
        elif "_TIMEOUTQ_COMPLETE" in os.environ:  # a completion never prints an error
            code = NOTHING
        else:
            raise
    return code


def _complain(message: str) -> None:
    _written(lambda: say(message))


def _written(write: Callable[[], object]) -> None:
    """Write to stderr. If this fails, for example because a disk is full, the exit code stays the same."""
    try:
        write()
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
