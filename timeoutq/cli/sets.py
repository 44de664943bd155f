"""The commands that compare: diff and intersect, of states of queues and files of ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from timeoutq.cli.app import exit_unless, saying_how_far
from timeoutq.cli.command import Server, argument, command
from timeoutq.cli.completion import sides
from timeoutq.cli.printing import Sink, ids, progress
from timeoutq.cli.reading import ids_of
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import State

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

SIDES = (
    " A side is QUEUE:STATE, as in crawl:done, or a file of ids, one per line, or - for stdin. A name with a / is "
    "always a file: write ./crawl:done for a file of that name. Exit 1 when "
    "there is no such id."
)

First = Annotated[str, argument("FIRST", "QUEUE:STATE, a file, or -.", autocompletion=sides)]
Second = Annotated[str, argument("SECOND", "QUEUE:STATE, a file, or -.", autocompletion=sides)]
Count = Annotated[bool, "Only print the number of ids."]
Null = Annotated[bool, "--null -0: Ids end with a NUL, not a newline, in files and in the output."]


Side = tuple[str, State] | Path
"""A state of a queue, or a file."""


def side(name: str) -> Side:
    """Read a side; raises `InvalidInput` if the name is no state and no file."""
    found = re.fullmatch(r"([A-Za-z0-9._-]{1,64}):(\w+)", name)
    if found and found[2] in list(State):
        return found[1], State(found[2])
    path = Path(name)
    if name == "-" or path.exists():
        return path
    if found:
        raise InvalidInput(f"{name}: {found[2]!r} is not a state, and no file has this name: {', '.join(State)}")
    if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise InvalidInput(f"there is no file {name!r}; for the tasks of a queue name a state too, as in {name}:done")
    raise InvalidInput(f"there is no file {name!r}; a side is a file, - for stdin, or QUEUE:STATE, as in crawl:done")


def _compare(first: str, second: str, both: bool, count: bool, null: bool, server: Server, out: Sink) -> None:
    from timeoutq.watch import transfer

    one, other = side(first), side(second)
    if first == second == "-":
        raise InvalidInput("only one side can be stdin")
    if null and out.as_json:
        raise InvalidInput("give --null or --json, not both")
    with ExitStack() as stack:

        def opened(name: str) -> AnyQueue:
            return stack.enter_context(server.known(name))

        looked = found = 0
        word = "are on both sides" if both else f"are not in {second}"
        total: int | None = None
        if isinstance(one, Path):
            batches = transfer.parts(ids_of(one, null))
        else:
            queue = opened(one[0])
            total, batches = transfer.size(queue, one[1]), transfer.scan(queue, one[1])
        stack.enter_context(
            saying_how_far(lambda: (looked, f"{looked:,} tasks of {first} were looked at, {found:,} of them {word}"))
        )
        there = _membership(stack, opened, other, second, null)
        tell = stack.enter_context(progress(f"comparing {first}", total, beside_output=not count))

        def counted(batches: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
            nonlocal looked
            for batch in batches:
                yield batch
                looked += len(batch)
                tell(looked, found)

        for batch in transfer.compare(counted(batches), there, both=both):
            if batch and not count:
                ids(batch, out.as_json, null)
            found += len(batch)
    if count:
        out.answer({"count": found}, f"{found}")
    exit_unless(found)


def _membership(
    stack: ExitStack, opened: Callable[[str], AnyQueue], other: Side, name: str, null: bool
) -> Callable[[Sequence[bytes]], Sequence[bool]]:
    from timeoutq.watch import transfer

    if not isinstance(other, Path):
        queue, state = opened(other[0]), other[1]
        return lambda batch: transfer.within(queue, state, batch)
    met, read = stack.enter_context(transfer.Met()), 0

    def counted() -> Iterator[list[bytes]]:
        nonlocal read
        for batch in transfer.parts(ids_of(other, null)):
            read += len(batch)
            tell(0, read)
            yield batch

    with progress(f"reading {name}") as tell:
        met.load(counted())
    return met.known


@command(help="Print the ids that are in the first side and not in the second." + SIDES)
def diff(first: First, second: Second, count: Count = False, null: Null = False, *, server: Server, out: Sink) -> None:
    """Print the ids that are in the first side and not in the second; see `SIDES`."""
    _compare(first, second, False, count, null, server, out)


@command(help="Print the ids that are in both sides." + SIDES)
def intersect(
    first: First, second: Second, count: Count = False, null: Null = False, *, server: Server, out: Sink
) -> None:
    """Print the ids that are in both sides; see `SIDES`."""
    _compare(first, second, True, count, null, server, out)
