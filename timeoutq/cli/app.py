"""The command itself: the typer app, what commands say and ask, their exit codes, and `main`."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO, TypeVar

import typer

from timeoutq.words import exit_codes
from timeoutq.words.errors import ServerError, TimeoutqError
from timeoutq.words.exit_codes import DONE, INTERRUPTED, NOTHING, USAGE
from timeoutq.words.model import Answer, Outcome
from timeoutq.words.text import age, safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

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


def exit_unless(found: object) -> None:
    """End the command with exit code 1 if nothing was found, or the answer is no."""
    if not found:
        raise typer.Exit(NOTHING)


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
    """Take a step of long work; if the server goes away, wait for it, `wait` seconds at most, and take the step again.

    The step may be taken twice: what it brings in must not be brought in twice by that. A server that has never
    answered is not waited for: its address may be wrong.
    """
    from timeoutq.verbs import flows
    from timeoutq.words import retry

    began, failures = 0.0, 0
    while True:
        try:
            found = step()
        except TimeoutqError as error:
            if flows.is_final(error) or isinstance(error, ServerError):
                raise
            now = time.monotonic()
            if not failures:
                began, wait = now, wait if queue.met else 0.0
            if now >= began + wait:
                raise
            if not failures:
                say(f"waits for the server, {age(wait)} at most (--wait): {error}")
            failures += 1
            time.sleep(min(began + wait - now, retry.pause(failures)))
        else:
            if failures:
                say(f"goes on after {age(time.monotonic() - began)}; tasks that were sent twice count as known")
            return found


def meant(names: Iterable[str], otherwise: str = "") -> str:
    """Ask whether one of these names was meant; if there are none, say something else."""
    found = " or ".join(names)
    return f"did you mean {found}?" if found else otherwise


def unknown(queue: AnyQueue) -> NoReturn:
    """End the command; say that this queue is unknown, and which queue may have been meant."""
    stop(NOTHING, unknown_words(queue))


def unknown_words(queue: AnyQueue) -> str:
    """Say that a queue is unknown on its server, and which queue may have been meant."""
    from timeoutq.watch import directory

    hint = meant(directory.meant(queue, queue.name), "`timeoutq queues` lists the queues that are there")
    return f"queue {queue.name} is unknown: nothing was put to it at {queue.url}, or its data is gone; {hint}"


def new_words(queue: AnyQueue) -> str:
    """Say that a queue is new, and which queue may have been meant; '' if it is not new, or if no name is alike."""
    from timeoutq.watch import directory

    hint = "" if queue.exists() else meant(directory.meant(queue, queue.name, 0.5))
    return hint and f"queue {queue.name} is new here; {hint}"


def with_ended(queue: AnyQueue, outcome: Outcome) -> Outcome:
    """Answer done for each id that no state holds and whose result is kept: the id of a call is not kept in done."""
    unknown = [task for task, answer in outcome.items() if answer is Answer.UNKNOWN]
    ended = queue.results.look(unknown) if unknown else {}
    done = {task for task, one in ended.items() if one.state is None and one.result is not None}
    codes = [ord("d") if task in done else code for (task, _), code in zip(outcome.items(), outcome.codes, strict=True)]
    return Outcome(outcome.tasks, bytes(codes)) if done else outcome


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
    except OSError:  # `_run` has said so
        _discard(sys.stdout)
    sys.exit(code)


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except TimeoutqError as error:
        _complain(str(error))
        return exit_codes.of(error)
    except (KeyboardInterrupt, EOFError, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone
        _discard(sys.stdout)
        return DONE
    except OSError as error:
        if error.filename is None:  # it may be the output that cannot be written
            _discard(sys.stdout)
        _complain(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
        return USAGE
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None and hasattr(error, "exit_code"):  # an error of typer: wrong usage
            error.__dict__["message"] = safe(str(getattr(error, "message", "")))  # it quotes what the user typed
            _written(show)
            return USAGE
        if "_TIMEOUTQ_COMPLETE" in os.environ:  # a completion never prints an error
            return NOTHING
        raise


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
