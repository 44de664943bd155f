"""What commands say to people, on stderr: complaints, hints, questions, how far long work is; and their exit codes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from timeoutq.words.errors import InvalidInput, ServerError, TimeoutqError
from timeoutq.words.exit_codes import NOTHING, USAGE
from timeoutq.words.text import age, safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

T = TypeVar("T")


def say(message: str) -> None:
    """Print a line on stderr."""
    typer.echo(f"timeoutq: {safe(message)}", err=True)


def refuse(wrong: object, words: str) -> None:
    """Raise `InvalidInput` with these words if something is wrong."""
    if wrong:
        raise InvalidInput(words)


def stop(message: str, code: int = NOTHING) -> NoReturn:
    """End the command with an exit code, and say why, if there is something to say."""
    if message:
        say(message)
    raise typer.Exit(code)


def exit_unless(found: object, message: str = "") -> None:
    """End the command with exit code 1 if nothing was found, or the answer is no."""
    if not found:
        stop(message)


def sure(question: str, yes: bool) -> None:
    """Ask, unless --yes was given; end the command when the answer is no, or nobody can be asked."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        stop(f"{question} Nobody can be asked here: add --yes to go on.", USAGE)
    exit_unless(typer.confirm(safe(question), err=True), "nothing was done")


def meant(names: Iterable[str], otherwise: str = "") -> str:
    """Ask whether one of these names was meant; if there are none, say something else."""
    found = " or ".join(names)
    return f"did you mean {found}?" if found else otherwise


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


@contextmanager
def progress(
    what: str, total: int | None = None, *, far: Callable[[], tuple[int, str]] | None = None,
    prints_ids: bool = False, unit: str = "tasks",
) -> Iterator[Callable[[int, int], None]]:  # fmt: skip
    """Show a bar on a terminal; give what takes how far the work is, and a count. When it ends early, say `far`."""
    try:
        if not sys.stderr.isatty() or (prints_ids and sys.stdout.isatty()):
            yield lambda _completed, _done: None  # no bar in the middle of ids
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn(f"{{task.fields[done]:,}} {unit}"),
            TimeElapsedColumn(),
            # lines that are printed meanwhile go to stdout, not above the bar
            console=Console(stderr=True), transient=True, redirect_stdout=False,
        ) as shown:  # fmt: skip
            task = shown.add_task(what, total=total, done=0)
            yield lambda completed, done: shown.update(task, completed=completed, done=done)
    except (KeyboardInterrupt, TimeoutqError) as error:
        many, words = far() if far else (0, "")
        if many or (words and isinstance(error, KeyboardInterrupt)):
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
            began = began or time.monotonic()
            left = began + wait - time.monotonic()
            if flows.is_final(error) or isinstance(error, ServerError) or not queue.met or left <= 0:
                raise
            if not failures:
                say(f"waits for the server, {age(wait)} at most (--wait): {error}")
            failures += 1
            time.sleep(min(left, retry.pause(failures)))
        else:
            if failures:
                say(f"goes on after {age(time.monotonic() - began)}; tasks that were sent twice count as known")
            return found
