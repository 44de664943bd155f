"""The commands that move tasks by the million: requeue, within a queue; export and import, between queues."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timeoutq.cli.app import exit_unless, patiently, say, saying_how_far, stop, sure
from timeoutq.cli.command import FIVE_MINUTES, Known, Name, Server, Shards, Wait, Yes, command, option
from timeoutq.cli.printing import Sink, length, progress
from timeoutq.cli.reading import LONGEST_LINE, lines_of, piped_in
from timeoutq.errors import InvalidInput
from timeoutq.exit_codes import NOTHING
from timeoutq.model import HostRecord, Politeness, Record, State, raw, text
from timeoutq.text import safe

if TYPE_CHECKING:
    from timeoutq.batches.operations import Joined, Sealed
    from timeoutq.shards import AnyQueue
    from timeoutq.transfer import Header, Item

MANY = 1000
"""To put back more tasks than this, the command asks first."""

NAMED = 5
"""At most this many batches that are left out are named."""

LOOKED = 100
"""Of at most this many groups, an import looks whether their rules are there."""

SHOWN = 3
"""For at most this many broken lines the command says what is wrong with them."""

CHUNK_BYTES = 4 * 1024 * 1024


class Ended(StrEnum):
    """The states that tasks are put back from."""

    done = "done"
    failed = "failed"


@command()
def requeue(
    queue: Known,
    source: Annotated[Ended, typer.Option("--from", help="The state in which the tasks are now.", show_default=False)],
    match: Annotated[str | None, option("Only ids that match; * ? [a-z] as in Redis.", metavar="GLOB")] = None,
    cancelled: Annotated[bool, "With --from failed: those that were cancelled, too."] = False,
    dry_run: Annotated[bool, "Only count the tasks."] = False, yes: Yes = False, *, out: Sink,
) -> None:  # fmt: skip
    """Put done or failed tasks back into todos, with a clean record. Asks if there are more than 1,000.

    Tasks that somebody has cancelled stay in failed. Exit 1 when no task matches.
    """
    from timeoutq import flows, transfer
    from timeoutq.shards import talks_of

    state, pattern = State(source.value), None if match is None else raw(match)
    matched = looked = moved = 0
    if not (dry_run or yes) and _more_than(queue, state, pattern):
        what = f"more than {MANY:,} tasks of {queue.name}:{state}" + (f" that match {match}" if match else "")
        sure(f"Put {what} back into todos?", yes)
    with (
        saying_how_far(lambda: (matched, f"{matched:,} tasks matched, {moved:,} are back in todos")),
        progress("counting" if dry_run else "putting back", transfer.size(queue, state)) as tell,
    ):
        for talk in talks_of(queue):
            for batch in transfer.once(transfer.scan_shard(queue, talk, state, pattern)):
                looked += len(batch)
                if state is State.FAILED and not cancelled:
                    batch = queue.run(flows.uncancelled(talk, batch))
                matched += len(batch)
                if batch and not dry_run:
                    moved += transfer.put_again(queue, talk, batch)
                tell(looked, matched)
    words = f"{matched} would be put back" if dry_run else f"{moved} put back"
    out.answer({"matched": matched, "requeued": moved}, words)
    exit_unless(matched)


def _more_than(queue: AnyQueue, state: State, pattern: bytes | None) -> bool:
    from timeoutq import transfer

    if transfer.size(queue, state) <= MANY:
        return False
    found = 0
    for batch in transfer.once(transfer.scan(queue, state, pattern)):
        found += len(batch)
        if found > MANY:
            return True
    return False


@command()
def export(
    queue: Known,
    states: Annotated[
        list[State] | None, option("Only tasks in this state; may be given again.", "--state")
    ] = None,
    without_done: Annotated[bool, "Leave done tasks out."] = False,
) -> None:  # fmt: skip
    """Print the queue as JSON lines: its politeness, hosts, schedules, tasks and batches.

    The line of a task has its state, due time, failures, crashes, last error,
    group, priority and payload; the line of a host has its rules, block or ban,
    and how often it was visited. Results of tasks are left out: who waits for
    them waits on this queue. A batch has one line for each of its tasks, and then a
    line with what it is sealed with. With --state, only tasks are printed, and
    stderr names the batches that are not over.

    `timeoutq import` reads these lines. For a picture of one moment, pause the
    queue first; without a pause, each task is printed once, as it was when export
    read it. Exit 1 when there is no task and no host. The last line says that the
    export is whole.

    A queue with --keep-done compact has no ids of its done tasks: export the rest
    with --without-done.
    """
    from timeoutq import carrying, transfer
    from timeoutq.batches import lines as batch_lines

    written = met = 0
    wanted = transfer.exported(queue, states or (), without_done=without_done)
    left = carrying.open_batches(queue)
    sys.stdout.write(transfer.header(queue, whole=not states, batches=len(left)) + "\n")
    for hosts in () if states else transfer.hosts(queue):
        sys.stdout.write("".join(transfer.write_host(host) + "\n" for host in hosts))
        met += len(hosts)
    for schedules in () if states else transfer.schedules(queue):
        sys.stdout.write("".join(one.line() + "\n" for one in schedules))
        met += len(schedules)
    total = sum(transfer.size(queue, state) for state in wanted)
    with (
        saying_how_far(lambda: (written, f"{written:,} of about {total:,} tasks were written, not all")),
        progress("exporting", total, beside_output=True) as tell,
    ):
        for records in transfer.export(queue, wanted):
            sys.stdout.write("".join(transfer.write(record) + "\n" for record in records))
            sys.stdout.flush()  # so that every line that is counted is really written
            written += len(records)
            tell(written, written)
        # last, so that an import finds the tasks before their batches
        for batches in () if states else carrying.batches(queue):
            sys.stdout.write("".join(batch_lines.write(one) + "\n" for one in batches))
    sys.stdout.write(transfer.footer() + "\n")
    left = carrying.open_batches(queue) if states else {}
    if left:
        _say_left_out(queue.name, left)
    if not written and not met:
        stop(NOTHING, f"queue {queue.name} has no tasks" + (f" in {', '.join(states)}" if states else ""))


def _say_left_out(queue: str, batches: Mapping[str, str | None]) -> None:
    names = f"{', '.join(list(batches)[:NAMED])}{', …' if len(batches) > NAMED else ''}"
    callbacks = [callback for callback in batches.values() if callback is not None]
    cure = "let them end first, or put their tasks into batches again after the import, and seal these"
    if callbacks:
        shown = f"{', '.join(callbacks[:NAMED])}{', …' if len(callbacks) > NAMED else ''}"
        cure += f"; before that, forget the callbacks there, which would wait for ever: {shown}"
    say(f"the export leaves out batches of queue {queue} that are not over ({len(batches):,}): {names}: {cure}")


class BrokenLine(InvalidInput):
    """A line is not what export prints: mend the file, or leave such lines out."""


class Import:
    """The lines of an export on their way into a queue, and what became of them."""

    def __init__(self, queue: AnyQueue, lenient: bool, tasks_only: bool, wait: float = 0.0) -> None:
        self.queue = queue
        self.lenient = lenient
        self.tasks_only = tasks_only
        self.wait = wait
        """How long the server may be away once it has taken something, seconds."""
        self.taken = 0
        """The number of lines, from the first on, that need not be read again."""
        self.restored = self.known = self.broken = self.hosts = self.hosts_known = 0
        self.schedules = self.schedules_known = self.batches = self.members = 0
        self.refused: list[Sealed] = []
        """Batches that the queue does not take; their callbacks wait for ever."""
        self.is_cut = False
        """Whether an export among the lines has promised a last line, and has none."""
        self.open_batches = 0
        """How many batches are not over, as the first line tells."""
        self.groups: dict[str, None] = {}
        """Groups, `LOOKED` at most, whose rules the lines do not bring in."""
        self._lacks_rules = self._awaits_end = False

    def counts(self) -> dict[str, int]:
        """Give what became of the lines."""
        timed = {"schedules": self.schedules, "schedules_known": self.schedules_known}
        return {
            "lines": self.taken,
            "restored": self.restored,
            "known": self.known,
            "broken": self.broken,
            "hosts": self.hosts,
            "hosts_known": self.hosts_known,
            **(timed if any(timed.values()) else {}),
            **({"batches": self.batches, "members": self.members} if self.batches else {}),
            **({"without_rules": len(self.groups)} if self.groups else {}),
            **({"cut": 1} if self.is_cut else {}),
        }

    def chunks(self, lines: Iterator[bytes], skip: int) -> Iterator[tuple[int, int, list[Item]]]:
        """Read lines; give, for each step, the number of its last line, the bytes read so far, and what they tell.

        Raises `BrokenLine`, after the tasks before it were given.
        """
        from timeoutq.batches.operations import Sealed
        from timeoutq.calls import BATCH
        from timeoutq.transfer import Header

        chunk: list[Item] = []
        size = read = number = 0
        for number, line in enumerate(lines, 1):
            read += len(line)
            if number > 1 and (number <= skip or not line.strip()):  # the first line is read each time
                self._skip(line)
                continue
            try:
                found = _item_of(number, line)
            except InvalidInput as error:
                if self.lenient and number > 1:
                    self._leave_out(number, error)
                    continue
                if chunk:
                    yield number - 1, read, chunk
                self.taken = number - 1
                raise BrokenLine(f"line {number} is broken: {error}") from error
            if isinstance(found, Header):
                self._note(found)
            elif isinstance(found, Sealed) and self.tasks_only:
                self.refused.append(found)
            self._note_group(found)
            tells = not isinstance(found, Header) or found.politeness is not None or found.batches
            if isinstance(found, Record) or (tells and not self.tasks_only):
                chunk.append(found)
                size += len(line)
            if len(chunk) >= BATCH or size > CHUNK_BYTES:
                yield number, read, chunk
                chunk, size = [], 0
        if chunk:
            yield number, read, chunk
        self.taken = number
        self.is_cut |= self._awaits_end

    def _skip(self, line: bytes) -> None:
        from timeoutq.transfer import Header, read_line

        if line.startswith(b'{"timeoutq":'):
            with suppress(InvalidInput):
                found = read_line(line)
                if isinstance(found, Header):
                    self._note(found)

    def _note(self, header: Header) -> None:
        if not header.is_last:
            self.is_cut |= self._awaits_end  # another export begins where the one before it has not ended
            self._lacks_rules = header.rules > 0
        self._awaits_end = header.ends and not header.is_last

    def _note_group(self, item: Item) -> None:
        if len(self.groups) >= LOOKED:
            return
        if isinstance(item, Record) and self._lacks_rules and item.group is not None:
            self.groups[item.group] = None
        elif self.tasks_only and isinstance(item, HostRecord) and (item.delay, item.per_host) != (None, None):
            self.groups[text(item.host)] = None

    def look_for_rules(self) -> None:
        """Keep of the groups only those that have no rules in the queue."""
        usual = self.queue.stats().politeness if self.groups else None
        if usual is None:
            return
        for name in list(self.groups):
            found = self.queue.hosts.inspect(name)
            if (found.delay, found.per_host) != (usual.delay, usual.per_host):
                del self.groups[name]

    def _leave_out(self, number: int, error: InvalidInput) -> None:
        self.broken += 1
        if self.broken <= SHOWN:
            say(f"line {number} is left out: {error}")

    def step(self, number: int, items: list[Item]) -> None:
        """Bring in what some lines tell: their tasks in one atomic step, and before that their hosts in one."""
        from timeoutq import transfer
        from timeoutq.batches.operations import Joined, Sealed
        from timeoutq.schedules.definition import Stored
        from timeoutq.transfer import Header

        for item in items:
            if isinstance(item, Header):
                self._begin(item)
        # before their tasks, so that bans, blocks and delays count for them at once
        if hosts := [item for item in items if isinstance(item, HostRecord)]:
            taken = patiently(self.queue, partial(transfer.restore_hosts, self.queue, hosts), self.wait)
            self.hosts += taken
            self.hosts_known += len(hosts) - taken
        if schedules := [item for item in items if isinstance(item, Stored)]:
            new = patiently(self.queue, partial(transfer.restore_schedules, self.queue, schedules), self.wait)
            self.schedules += new
            self.schedules_known += len(schedules) - new
        if records := [item for item in items if isinstance(item, Record)]:
            outcome = patiently(self.queue, partial(transfer.restore, self.queue, records), self.wait)
            self.restored += outcome.added
            self.known += len(outcome) - outcome.added
        if batches := [item for item in items if isinstance(item, Joined | Sealed)]:
            self._batches(batches)
        self.taken = number

    def _batches(self, batches: list[Joined | Sealed]) -> None:
        from timeoutq import carrying
        from timeoutq.batches.operations import Sealed
        from timeoutq.shards import ShardedQueue

        seals = [one for one in batches if isinstance(one, Sealed)]
        if isinstance(self.queue, ShardedQueue):  # it has no batches
            self.refused += seals
            return
        new, refused = patiently(self.queue, partial(carrying.restore_batches, self.queue, batches), self.wait)
        self.batches += len(seals) - len(refused)
        self.members += new
        self.refused += refused

    def _begin(self, header: Header) -> None:
        """Prepare the queue for an export. Raises `InvalidInput` if it cannot be brought in."""
        from timeoutq.shards import ShardedQueue

        if header.batches and not isinstance(self.queue, ShardedQueue):
            self.open_batches = header.batches
            self._refuse_workers()
        if header.politeness is not None:
            self._adopt(header.politeness)

    def _refuse_workers(self) -> None:
        from timeoutq.watch.snapshot import is_gone

        name, stats = self.queue.name, self.queue.stats()
        if stats.paused or all(is_gone(worker, stats.now) for worker in self.queue.workers()):
            return
        pause = f"timeoutq pause {name}, and after the import timeoutq resume {name}" if self.queue.exists() else ""
        raise InvalidInput(
            f"the file has batches that are not over ({self.open_batches:,}), and workers run on queue {name}: a task "
            "that they end before its batch is in may count as not done; stop the workers and import then"
            + (f", or: {pause}" if pause else "")
        )

    def _adopt(self, given: Politeness) -> None:
        from timeoutq import transfer

        kept = transfer.adopt(self.queue, given)
        if kept is not None and kept != given:
            say(f"queue {self.queue.name} keeps its own politeness, {_words(kept)}; the file has {_words(given)}")


def _say_refused(queue: str, refused: Sequence[Sealed]) -> None:
    names = f"{', '.join(one.batch for one in refused[:NAMED])}{', …' if len(refused) > NAMED else ''}"
    callbacks = [safe(one.callback) for one in refused if one.callback]
    cure = ""
    if callbacks:
        shown = f"{', '.join(callbacks[:NAMED])}{', …' if len(callbacks) > NAMED else ''}"
        cure = f"; forget the callbacks that wait for them, which would wait for ever: {shown}"
    say(
        f"batches of the file that are not in queue {queue} now ({len(refused):,}), because of --tasks-only, or "
        f"because the queue lies in shards, or has sealed others of these names: {names}{cure}"
    )


def _say_unruled(queue: AnyQueue, groups: Sequence[str]) -> None:
    names = f"{', '.join(groups[:NAMED])}{', …' if len(groups) > NAMED else ''}"
    polite = (
        ""
        if queue.stats().politeness
        else f"make the queue polite (timeoutq configure {queue.name} --delay 0 --per-host 10000), "
    )
    say(
        f"tasks are in queue {queue.name} now, and the rules of their groups are not ({len(groups):,}): {names}. The "
        "limits of functions are such rules: until a caller or a worker declares them, these calls run without a "
        f"limit. Before workers run, {polite}import an export of the whole queue, without --state and --tasks-only "
        f"(what is there stays), or set the rules: timeoutq host {queue.name} GROUP --per-host N --delay TIME"
    )


def _item_of(number: int, line: bytes) -> Item:
    """Read one line of an export. Raises `InvalidInput`."""
    from timeoutq import transfer

    if number == 1 and not transfer.is_header(line):
        raise InvalidInput('it is not the first line of an export, which is {"timeoutq": 1, …}: add this line')
    if len(line) >= LONGEST_LINE:
        raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
    return transfer.read_header(line) if number == 1 else transfer.read_line(line)


def _words(politeness: Politeness) -> str:
    return f"delay {length(politeness.delay)}, per host {politeness.per_host}"


@command(name="import")
def import_tasks(
    queue: Name,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="What export printed; stdin by default.")
    ] = None,
    skip_lines: Annotated[
        int, option("Leave out the first N lines, which an earlier import has taken.", min=0, metavar="N")
    ] = 0,
    lenient: Annotated[bool, "Leave broken lines out, and count them."] = False,
    tasks_only: Annotated[bool, "Leave all but the tasks of the file out."] = False,
    wait: Wait = FIVE_MINUTES, shards: Shards = None, *, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Bring in what export printed: the politeness, the hosts, each task as it was, the batches.

    What the queue has already stays: a task that it knows, its own politeness,
    the rules of a host that has rules, the counts of a host that was visited. So
    after Ctrl-C, run the command again, and it goes on. A queue with tasks that
    is not polite does not become polite: the command ends with exit code 2, and
    brings nothing in; make the queue polite, or give --tasks-only.

    Let no worker run before an import of batches is through: a task that ends
    before its batch is in may count as not done. If workers run on a queue that
    is not paused, the command ends with exit code 2, and brings nothing in.

    "known" counts tasks that the queue had already. If the network lost the
    answer to a step with such tasks in it, the tasks that this step itself has
    brought in count as known, too.

    Tasks that were in progress become ready. A broken line ends the command with
    exit code 1; no later line is brought in. So does a file that lacks the last
    line of its export, because it was cut; what it has is brought in.
    """
    if file is None and piped_in() is None:
        raise InvalidInput("name a file, or pipe in what export printed")
    total = file.stat().st_size if file is not None and file.is_file() else None
    with server.open(queue, shards) as opened:
        work = Import(opened, lenient, tasks_only, wait)
        chunks = work.chunks(lines_of(file), skip_lines)

        def far() -> tuple[int, str]:
            first = ", before workers run" if work.open_batches else ""
            return work.taken, f"{work.taken:,} lines were taken; go on with --skip-lines {work.taken}{first}"

        broken: BrokenLine | None = None
        with saying_how_far(far), progress("importing", total) as tell:
            while True:
                try:
                    found = next(chunks, None)
                except BrokenLine as error:
                    found, broken = None, error
                if found is None:
                    break
                number, read, items = found
                work.step(number, items)
                tell(read, work.restored + work.known)
        work.look_for_rules()
        _tell(work, out)
    if broken is not None:
        say(str(broken))
        stop(NOTHING, "no later line was brought in; --lenient leaves broken lines out")
    if work.is_cut:
        stop(
            NOTHING,
            "the file is cut: the last line of its export is missing. What the file has is in; before workers run, "
            "export again, and import the whole file: what is there stays",
        )


def _tell(work: Import, out: Sink) -> None:
    out.facts(work.counts(), work.counts().items(), ("what", "count"))
    if work.refused:
        _say_refused(work.queue.name, work.refused)
    if work.groups:
        _say_unruled(work.queue, list(work.groups))
    if work.broken and (work.open_batches or work.batches):
        say(
            "a line that is left out may be a task of a batch, what the batch is sealed with, or its callback: see to "
            "these batches, or mend the lines and import them into an empty queue"
        )
