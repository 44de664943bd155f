"""The commands about many tasks: states, requeue, export and import; and diff and intersect, which compare sets."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from timeoutq.cli.command import FIVE_MINUTES, Ids, Known, Name, Server, Shards, Wait, Yes, argument, command, sides
from timeoutq.cli.lines import LONGEST_LINE, Sink, ids, ids_of, length, lines_of, piped_in, size_of, with_ended
from timeoutq.cli.saying import exit_unless, patiently, progress, refuse, say, stop, sure
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import HostRecord, Politeness, Record, State, TaskId, raw, text

if TYPE_CHECKING:
    from timeoutq.watch.transfer import Item

MANY = 1000  # to put back more tasks than this, the command asks first
NAMED = 5  # at most this many batches or groups are named on stderr
LOOKED = 100  # of at most this many groups, an import looks whether their rules are there
SHOWN = 3  # for at most this many broken lines the command says what is wrong with them
CHUNK_BYTES = 4 * 1024 * 1024

Null = Annotated[bool, "--null -0: Ids end with a NUL, not a newline, in files and in the output."]


class Ended(StrEnum):
    done = "done"
    failed = "failed"


@command()
def states(
    queue: Name, tasks: Ids = None,
    file: Annotated[Path | None, "--file -f: File of ids, one per line; - is stdin."] = None,
    null: Null = False, count: Annotated[bool, "Only count the tasks in each state."] = False,
    *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Say for each task in which state it is; exit 1 when none of the tasks is in a state.

    A call that has returned is done for as long as its result is kept.
    """
    from timeoutq.watch import transfer

    refuse(bool(tasks) == (file is not None), "name tasks, or give --file with one id per line")
    totals = Counter[str]()
    given: Iterator[TaskId] = iter(tasks or ()) if file is None else ids_of(file, null)
    with server.known(queue) as opened:
        for batch in transfer.parts(given):
            outcome = with_ended(opened, opened.states(batch))
            totals.update(outcome.counts())
            if not count:
                out.rows(("task", "state"), ((task, answer.value) for task, answer in outcome.items()))
    if count:
        out.facts(totals, totals.items(), ("state", "tasks"))
    exit_unless(totals.keys() - {"unknown"})


@command()
def requeue(
    queue: Known,
    source: Annotated[Ended, "--from: The state in which the tasks are now."],
    match: Annotated[str | None, "GLOB: Only ids that match; * ? [a-z] as in Redis."] = None,
    cancelled: Annotated[bool, "With --from failed: those that were cancelled, too."] = False,
    expired: Annotated[bool, "With --from failed: calls that have expired, too."] = False,
    dry_run: Annotated[bool, "Only count the tasks."] = False, yes: Yes = False, *, out: Sink,
) -> None:  # fmt: skip
    """Put done or failed tasks back into todos, with a clean record. Asks if there are more than 1,000.

    Tasks that somebody has cancelled, and calls that have expired, stay in failed. Exit 1 when no task matches.
    """
    from timeoutq.client.shards import talks_of
    from timeoutq.verbs import flows
    from timeoutq.watch import transfer

    state, pattern = State(source.value), None if match is None else raw(match)
    left = [name for name, chosen in (("cancelled", cancelled), ("expired", expired)) if not chosen]
    matched = looked = moved = 0
    if not (dry_run or yes) and transfer.size(queue, state) > MANY:
        some = transfer.once(transfer.scan(queue, state, pattern))
        if sum(1 for _ in islice(chain.from_iterable(some), MANY + 1)) > MANY:
            matching = f" that match {match}" if match else ""
            sure(f"Put more than {MANY:,} tasks of {queue.name}:{state}{matching} back into todos?", yes)
    what, far = "counting" if dry_run else "putting back", "{:,} tasks matched, {:,} are back in todos"
    with progress(what, transfer.size(queue, state), far=lambda: (matched, far.format(matched, moved))) as tell:
        for talk in talks_of(queue):
            for batch in transfer.once(transfer.scan(queue, state, pattern, [talk])):
                looked += len(batch)
                if state is State.FAILED and left:
                    batch = queue.run(flows.without(talk, batch, left))
                matched += len(batch)
                if batch and not dry_run:
                    moved += transfer.put_again(queue, talk, batch)
                tell(looked, matched)
    words = f"{matched} would be put back" if dry_run else f"{moved} put back"
    out.answer({"matched": matched, "requeued": moved}, words)
    exit_unless(matched)


@command()
def export(
    queue: Known,
    states: Annotated[list[State] | None, "--state: Only tasks in this state; may be given again."] = None,
    without_done: Annotated[bool, "Leave done tasks out."] = False,
) -> None:  # fmt: skip
    """Print the queue as JSON lines: its politeness, hosts, schedules, tasks and batches.

    The line of a task has its state, due time, failures, crashes, last error, group, priority and payload; the line of
    a host has its rules, block or ban, and how often it was visited. Results of tasks are left out: who waits for them
    waits on this queue. A batch that is over has one line for each of its tasks, and then a line with what it was
    sealed with. Batches that are not over are left out, with their callbacks: stderr names them, and so does the last
    line; their tasks are tasks like others. With --state, only tasks are printed.

    `timeoutq import` reads these lines. For a picture of one moment, pause the queue first; without a pause, each task
    is printed once, as it was when export read it. Exit 1 when there is no task and no host. The last line says that
    the export is whole.

    A queue with --keep-done compact has no ids of its done tasks: export the rest with --without-done.
    """
    from timeoutq.rooms import batches as of_batches
    from timeoutq.rooms.schedules.definition import Stored
    from timeoutq.watch import transfer

    def wrote(lines: Iterable[str]) -> None:
        sys.stdout.write("".join(line + "\n" for line in lines))

    written = met = 0
    wanted = transfer.exported(queue, states or (), without_done=without_done)
    wrote([transfer.header(queue, whole=not states)])
    first: Any = ((transfer.hosts, transfer.write_host), (transfer.schedules, Stored.line))
    for things, write in first:
        for some in () if states else things(queue):
            wrote(map(write, some))
            met += len(some)
    total = sum(transfer.size(queue, state) for state in wanted)
    far = "{:,} of about {:,} tasks were written, not all"
    with progress("exporting", total, far=lambda: (written, far.format(written, total)), prints_ids=True) as tell:
        for records in transfer.export(queue, wanted):
            wrote(map(transfer.write, records))
            sys.stdout.flush()  # so that every line that is counted is really written
            written += len(records)
            tell(written, written)
        left_out = dict.fromkeys(transfer.open_batches(queue))
        # last, so that an import finds the tasks before their batches
        for batches in () if states else transfer.batches(queue):
            wrote(map(of_batches.write_line, batches))
            for one in batches:
                left_out.pop(one.batch, None)  # it has ended meanwhile
    wrote([transfer.footer(list(left_out))])
    if left_out:
        say(
            f"the export leaves out batches of queue {queue.name} that are not over ({len(left_out):,}), and their "
            f"callbacks: {_named(list(left_out))}: let them end first, or put their tasks into batches again after the "
            "import, and seal these"
        )
    exit_unless(written or met, f"queue {queue.name} has no tasks" + (f" in {', '.join(states)}" if states else ""))


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:NAMED])}{', …' if len(names) > NAMED else ''}"


@dataclass
class Import:
    """The lines of an export on their way into a queue, and what became of them."""

    queue: Known
    lenient: bool
    tasks_only: bool
    wait: float
    taken: int = 0  # the number of lines, from the first on, that need not be read again
    seen: Counter[str] = field(default_factory=Counter[str])  # what became of the lines, by its name in the answer
    refused: list[str] = field(default_factory=list[str])  # batches that the queue does not take
    broken: str = ""  # what is wrong with the line that has ended the import
    is_cut: bool = False  # whether an export among the lines has promised a last line, and has none
    groups: dict[str, None] = field(default_factory=dict[str, None])
    """Groups, `LOOKED` at most, whose rules the lines do not bring in."""
    lacks_rules: bool = False  # whether the export that is read has left rules out
    awaits_end: bool = False  # whether it has promised a last line

    def chunks(self, lines: Iterator[bytes], skip: int) -> Iterator[tuple[int, int, list[Item]]]:
        """Read lines up to a broken one; give for each step its last line's number, the bytes read, the items."""
        from timeoutq.server.calls import BATCH

        chunk: list[Item] = []
        size = read = number = 0
        for number, line in enumerate(lines, 1):
            read += len(line)
            is_skipped = number > 1 and (number <= skip or not line.strip())  # the first line is read each time
            if is_skipped and not line.startswith(b'{"timeoutq":'):
                continue
            try:
                found = _item_of(number, line)
            except InvalidInput as error:
                if is_skipped:
                    continue
                if not self.lenient or number == 1:
                    self.broken, number = f"line {number} is broken: {error}", number - 1
                    break
                self.seen["broken"] += 1
                if self.seen["broken"] <= SHOWN:
                    say(f"line {number} is left out: {error}")
                continue
            if self._wants(found) and not is_skipped:
                chunk.append(found)
                size += len(line)
            if len(chunk) >= BATCH or size > CHUNK_BYTES:
                yield number, read, chunk
                chunk, size = [], 0
        if chunk:
            yield number, read, chunk
        self.taken = number
        self.is_cut |= (self.awaits_end or not number) and not self.broken

    def _wants(self, item: Item) -> bool:
        """Note what a line tells of its export, and say whether the line is to be brought in."""
        from timeoutq.watch.transfer import Header

        if isinstance(item, Header):
            if not item.is_last:
                self.is_cut |= self.awaits_end  # another export begins where the one before it has not ended
                self.lacks_rules = item.rules > 0
            self.awaits_end = item.ends and not item.is_last
            return item.politeness is not None and not self.tasks_only
        if len(self.groups) < LOOKED:
            if isinstance(item, Record) and self.lacks_rules and item.group is not None:
                self.groups[item.group] = None
            elif self.tasks_only and isinstance(item, HostRecord) and (item.delay, item.per_host) != (None, None):
                self.groups[text(item.host)] = None
        return isinstance(item, Record) or not self.tasks_only

    def step(self, number: int, items: list[Item]) -> None:
        """Bring in what some lines tell: their tasks in one atomic step, and before that their hosts in one."""
        from timeoutq.client.shards import ShardedQueue
        from timeoutq.rooms.batches import Joined, Sealed
        from timeoutq.rooms.schedules.definition import Stored
        from timeoutq.watch import transfer

        def bring(restore: Any, some: Sequence[Any]) -> Any:
            return patiently(self.queue, partial(restore, self.queue, some), self.wait)

        for item in items:
            if isinstance(item, transfer.Header) and item.politeness is not None:
                kept = transfer.adopt(self.queue, item.politeness)
                if kept is not None and kept != item.politeness:
                    words = f"{_words(kept)}; the file has {_words(item.politeness)}"
                    say(f"queue {self.queue.name} keeps its own politeness, {words}")
        # hosts before their tasks, so that bans, blocks and delays count for them at once
        for what, kind, restore in (("hosts", HostRecord, transfer.restore_hosts),
                                    ("schedules", Stored, transfer.restore_schedules)):  # fmt: skip
            if some := [item for item in items if isinstance(item, kind)]:
                new = bring(restore, some)
                self.seen.update({what: new, f"{what}_known": len(some) - new})
        if records := [item for item in items if isinstance(item, Record)]:
            outcome = bring(transfer.restore, records)
            self.seen.update(restored=outcome.added, known=len(outcome) - outcome.added)
        if batches := [item for item in items if isinstance(item, Joined | Sealed)]:
            seals = [item.batch for item in batches if isinstance(item, Sealed)]
            refused, new = seals, 0
            if not isinstance(self.queue, ShardedQueue):  # which has no batches
                new, refused = bring(transfer.restore_batches, batches)
            self.seen.update(batches=len(seals) - len(refused), members=new)
            self.refused += refused
        self.taken = number

    def tell(self, out: Sink) -> None:
        """Print what became of the lines, and name what is not in the queue now."""
        name, polite = self.queue.name, self.queue.stats().politeness if self.groups else None
        groups = list(self.groups)
        if polite is not None:  # those that have no rules in the queue
            found = {group: self.queue.hosts.inspect(group) for group in groups}
            groups = [group for group, host in found.items() if Politeness(host.delay, host.per_host) == polite]
        always = dict.fromkeys(("restored", "known", "broken", "hosts", "hosts_known"), 0)
        rare = {"without_rules": len(groups), "cut": int(self.is_cut)}
        counts = {"lines": self.taken, **always, **self.seen, **{what: many for what, many in rare.items() if many}}
        out.facts(counts, counts.items(), ("what", "count"))
        if self.refused:
            say(
                f"batches of the file that are not in queue {name} now ({len(self.refused):,}), because the queue lies "
                f"in shards, or has other batches of these names: {_named(self.refused)}"
            )
        if groups:
            make_polite = f"make the queue polite (timeoutq configure {name} --delay 0 --per-host 10000), "
            say(
                f"tasks are in queue {name} now, and the rules of their groups are not ({len(groups):,}): "
                f"{_named(groups)}. The limits of functions are such rules: until a caller or a worker declares "
                "them, these calls run without a limit. Before workers run, "
                f"{'' if polite else make_polite}import an export of the whole queue, without "
                "--state and --tasks-only (what is there stays), or set the rules: timeoutq host "
                f"{name} GROUP --per-host N --delay TIME"
            )


def _item_of(number: int, line: bytes) -> Item:
    """Read one line of an export. Raises `InvalidInput`."""
    from timeoutq.watch import transfer

    if len(line) >= LONGEST_LINE:
        raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
    found = transfer.read(line) if number > 1 or b'"timeoutq"' in line else None
    if found is None or (number == 1 and not isinstance(found, transfer.Header)):
        raise InvalidInput('it is not the first line of an export, which is {"timeoutq": 1, …}: add this line')
    return found


def _words(politeness: Politeness) -> str:
    return f"delay {length(politeness.delay)}, per host {politeness.per_host}"


@command(name="import")
def import_tasks(
    queue: Name,
    file: Annotated[Path | None, argument("[FILE]", "What export printed; stdin by default.")] = None,
    skip_lines: Annotated[int, "N 0..: Leave out the first N lines, which an earlier import has taken."] = 0,
    lenient: Annotated[bool, "Leave broken lines out, and count them."] = False,
    tasks_only: Annotated[bool, "Leave all but the tasks of the file out."] = False,
    wait: Wait = FIVE_MINUTES, shards: Shards = None, *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Bring in what export printed: the politeness, the hosts, each task as it was, the batches.

    What the queue has already stays: a task that it knows, its own politeness, the rules of a host that has rules, the
    counts of a host that was visited. So after Ctrl-C, run the command again, and it goes on. A queue with tasks that
    is not polite does not become polite: the command ends with exit code 2, and brings nothing in; make the queue
    polite, or give --tasks-only.

    "known" counts tasks that the queue had already. If the network lost the answer to a step with such tasks in it, the
    tasks that this step itself has brought in count as known, too.

    Tasks that were in progress become ready. A broken line ends the command with exit code 1; no later line is brought
    in. So does a file that lacks the last line of its export, because it was cut; what it has is brought in.
    """
    refuse(file is None and piped_in() is None, "name a file, or pipe in what export printed")
    far = "{0:,} lines were taken; go on with --skip-lines {0}"
    with server.open(queue, shards) as opened:
        work = Import(opened, lenient, tasks_only, wait)
        with progress("importing", size_of(file), far=lambda: (work.taken, far.format(work.taken))) as tell:
            for number, read, items in work.chunks(lines_of(file), skip_lines):
                work.step(number, items)
                tell(read, work.seen["restored"] + work.seen["known"])
        work.tell(out)
    if work.broken:
        say(work.broken)
        stop("no later line was brought in; --lenient leaves broken lines out")
    if work.is_cut:
        stop(
            "the file is cut: the last line of its export is missing. What the file has is in; before workers run, "
            "export again, and import the whole file: what is there stays"
        )


SIDES = (
    " A side is QUEUE:STATE, as in crawl:done, or a file of ids, one per line, or - for stdin. A name with a / is "
    "always a file: write ./crawl:done for a file of that name. Exit 1 when there is no such id."
)

First = Annotated[str, argument("FIRST", "QUEUE:STATE, a file, or -.", autocompletion=sides)]
Second = Annotated[str, argument("SECOND", "QUEUE:STATE, a file, or -.", autocompletion=sides)]
Count = Annotated[bool, "Only print the number of ids."]
Side = tuple[str, State] | Path  # a state of a queue, or a file


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
    refuse(first == second == "-", "only one side can be stdin")
    refuse(null and out.as_json, "give --null or --json, not both")
    looked = found = 0
    total: int | None = None
    there: Callable[[Sequence[bytes]], Sequence[bool]]
    word = "are on both sides" if both else f"are not in {second}"

    def far() -> tuple[int, str]:
        return looked, f"{looked:,} tasks of {first} were looked at, {found:,} of them {word}"

    with ExitStack() as stack:
        if isinstance(one, Path):
            batches = transfer.parts(ids_of(one, null))
        else:
            queue = stack.enter_context(server.known(one[0]))
            total, batches = transfer.size(queue, one[1]), transfer.scan(queue, one[1])
        if isinstance(other, Path):
            met = stack.enter_context(transfer.meeting())
            with progress(f"reading {second}", far=far) as tell:
                met.load(_counted(transfer.parts(ids_of(other, null)), lambda read: tell(0, read)))
            there = met.known
        else:
            there = partial(transfer.within, stack.enter_context(server.known(other[0])), other[1])
        tell = stack.enter_context(progress(f"comparing {first}", total, far=far, prints_ids=not count))

        def note(read: int) -> None:
            nonlocal looked
            looked = read
            tell(looked, found)

        for batch in transfer.compare(_counted(batches, note), there, both=both):
            if batch and not count:
                ids(batch, out.as_json, null)
            found += len(batch)
    if count:
        out.answer({"count": found}, f"{found}")
    exit_unless(found)


def _counted(batches: Iterable[list[bytes]], tell: Callable[[int], None]) -> Iterator[list[bytes]]:
    read = 0
    for batch in batches:
        yield batch
        read += len(batch)
        tell(read)


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
