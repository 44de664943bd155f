"""`queue.failures`: what it does, and its two faces, `Failures` and `AsyncFailures`. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from heapq import nlargest
from typing import Any

from timeoutq.rooms.failures.operations import KINDS, WIDTH, FailureKind, Moved, id_of, move_kind, text_of
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.server.calls import BATCH, Command
from timeoutq.verbs import reads
from timeoutq.verbs.faces import awaiting, blocking
from timeoutq.verbs.replies import whole
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Entry, Page, State, text

AT_ONCE = 100
"""About so many kinds are asked for in one exchange."""

Counts = dict[bytes, int]
"""How many tasks each kind has, by its text; the empty text stands for all kinds beyond the thousandth."""


def checked(kind: object) -> str:
    """Check what names a kind: a `FailureKind`, its id, or its text."""
    if isinstance(kind, FailureKind):
        return kind.id
    if not isinstance(kind, str) or not kind or len(kind) > 400 or not _is_text(kind):
        raise InvalidInput(
            f"a kind of failure is a FailureKind, its id or its text, not {shown(kind)}: failures.list() gives them"
        )
    return str.__str__(kind)


def _is_text(kind: str) -> bool:
    try:
        kind.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


Found = list[FailureKind]
"""In the classes below, `list` is a method."""
Fields = dict[int, tuple[bytes, int]]
"""Text and count of each kind, by its number; 0 is what is beyond the thousandth."""


def _fields(talk: Talk) -> Flow[Fields]:
    (fields,) = yield from ask(talk, [("HGETALL", talk.operations.key("kinds"))])
    found: Fields = {}
    for field, value in fields.items():
        if field[:1] == b"+" and field[1:].isdigit() and len(field) < 6:
            number = int(field[1:])
            words = fields.get(b"#%d" % number) if number else b""
            if words is not None:
                found[number] = words, whole(value)
    return found


def _numbers(talk: Talk) -> Flow[dict[int, bytes]]:
    return {number: words for number, (words, _) in (yield from _fields(talk)).items()}


def _scores(number: int) -> tuple[str, str]:
    return str(number * WIDTH), f"({(number + 1) * WIDTH}"


def counts(talk: Talk) -> Flow[Counts]:
    """Count the tasks of all kinds of a queue, by the texts of the kinds; one command for any number of tasks."""
    return _counted((yield from _fields(talk)))


def _counted(known: Fields) -> Counts:
    found: Counts = {}
    for words, count in known.values():
        found[words] = found.get(words, 0) + count
    return found


def most(counts: Counts, n: int) -> list[bytes]:
    """Give the texts of the `n` kinds with most tasks."""
    return nlargest(
        n, (words for words, count in counts.items() if count > 0), key=lambda words: (counts[words], words)
    )


def about(talk: Talk, texts: Collection[bytes]) -> Flow[list[FailureKind]]:
    """Tell about the kinds with these texts, as far as the queue has tasks of them."""
    return (yield from _about(talk, (yield from _fields(talk)), texts))


def _about(talk: Talk, fields: Fields, texts: Collection[bytes]) -> Flow[list[FailureKind]]:
    known = {number: one for number, one in fields.items() if one[0] in texts}
    key, found, numbers = talk.operations.key("kind_of"), list[FailureKind](), sorted(known)
    for at in range(0, len(numbers), AT_ONCE):
        some, commands = numbers[at : at + AT_ONCE], list[Command]()
        for number in some:
            low, high = _scores(number)
            commands += [
                ("ZRANGEBYSCORE", key, low, high, "WITHSCORES", "LIMIT", 0, 1),
                ("ZREVRANGEBYSCORE", key, high, low, "WITHSCORES", "LIMIT", 0, 1),
            ]
        replies = yield from ask(talk, commands)
        for number, (first, last) in zip(some, zip(*[iter(replies)] * 2, strict=True), strict=True):
            if first and last:
                words, count = known[number]
                found.append(_kind(words, number, count, first, last))
    return merged(found)


def kinds(talk: Talk, n: int) -> Flow[list[FailureKind]]:
    """Tell about the `n` kinds of a queue with most tasks, those with most tasks first."""
    fields = yield from _fields(talk)
    return (yield from _about(talk, fields, set(most(_counted(fields), n))))


def _kind(words: bytes, number: int, count: Any, first: Any, last: Any) -> FailureKind:
    (begin,), (end,) = reads.pairs_of(first), reads.pairs_of(last)
    since, until = ((float(score) - number * WIDTH) / 1000 for _, score in (begin, end))
    return FailureKind(id_of(words), text_of(words), int(count), since, until, text(end[0]))


def merged(kinds: Iterable[FailureKind]) -> list[FailureKind]:
    """Add up kinds of the same text, which come from several shards; those with most tasks come first."""
    found: dict[str, FailureKind] = {}
    for kind in kinds:
        other = found.get(kind.id)
        if other is not None:
            newer = max(kind, other, key=lambda one: one.last)
            first, count = min(kind.first, other.first), kind.count + other.count
            kind = FailureKind(kind.id, kind.text, count, first, newer.last, newer.task)
        found[kind.id] = kind
    return sorted(found.values(), key=lambda kind: (-kind.count, -kind.last, kind.id))


def _of(known: Mapping[int, bytes], kind: str) -> dict[int, bytes]:
    # the kinds that an id or a text names, by their numbers: one at most, unless a foreign hand has damaged the queue
    words = kind.encode("utf-8", "surrogateescape")
    return {at: one for at, one in known.items() if id_of(one) == kind or (one and one == words)}


def tasks(talk: Talk, kind: str, start: str, n: int) -> Flow[tuple[list[Entry], str | None]]:
    """Read `n` tasks of a kind from the place `start` on, the last one that was given up first."""
    number = next(iter(_of((yield from _numbers(talk)), kind)), None)
    if number is None:
        return [], None
    key, behind = talk.operations.key("kind_of"), (number + 1) * WIDTH
    (above,) = yield from ask(talk, [("ZCOUNT", key, behind, "+inf")])
    begin = int(above) + int(start)
    (reply,) = yield from ask(talk, [("ZREVRANGE", key, begin, begin + n - 1, "WITHSCORES")])
    # tasks of other kinds may come and go between the two questions
    ids = [id for id, score in reads.pairs_of(reply) if number * WIDTH <= float(score) < behind]
    entries = (yield from reads.failed(talk, ids)) if ids else []
    return entries, str(int(start) + n) if len(ids) == n else None


def left(talk: Talk, kind: str, before: float) -> Flow[int]:
    """Count the tasks of a kind that were given up until `before`."""
    found, key = 0, talk.operations.key("kind_of")
    for number in _of((yield from _numbers(talk)), kind):
        low = number * WIDTH
        (count,) = yield from ask(talk, [("ZCOUNT", key, low, low + round(before * 1000))])
        found += int(count)
    return found


def step(talk: Talk, verb: str, kind: str, before: float, n: int) -> Flow[Moved]:
    """Retry or forget up to `n` tasks of a kind, those that were given up first."""
    words = next(iter(_of((yield from _numbers(talk)), kind).values()), None)
    if words is None:
        return Moved(0, 0, before)
    return (yield from answer(talk, move_kind(talk.operations, verb, words, before, n, talk.nonce)))


def through(talk: Talk, verb: str, kind: str, before: float, at_most: int | None) -> Flow[Moved]:
    """Retry or forget the tasks of a kind that were given up until `before`: all of them, or `at_most`."""
    moved = 0
    while True:
        n = BATCH if at_most is None else min(BATCH, at_most - moved)
        found = yield from step(talk, verb, kind, before, n)
        moved, before = moved + found.moved, found.before
        if found.left == 0 or moved == at_most:
            return Moved(moved, found.left, before)


def _page(talk: Talk, kind: str, start: str, n: int) -> Flow[Page]:
    entries, following = yield from tasks(talk, kind, start, n)
    return Page(State.FAILED, entries, following)


def in_turn(talks: Sequence[Talk], verb: str, kind: str, before: float, at_most: int | None) -> Flow[Moved]:
    """Retry or forget the tasks of a kind shard by shard, each as `through` does; `left` is of all shards."""
    moved = rest = 0
    for talk in talks:
        most = None if at_most is None else at_most - moved
        if most == 0:
            rest += yield from left(talk, kind, before)
            continue
        found = yield from through(talk, verb, kind, before, most)
        moved, rest, before = moved + found.moved, rest + found.left, before or found.before
    return Moved(moved, rest, before)


class FailureFlows:
    """The flows about the failed tasks of a plain queue; those of a sharded queue add up its shards."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    def list(self, n: int = 100) -> Flow[Found]:
        """Tell about the `n` kinds of failures with most tasks, those with most tasks first.

        A task is grouped when it is given up, by the type and the first line of its error. What differs from task to
        task is left out: URLs, the id of the task, and numbers, but not codes such as HTTP 404. A queue tells a
        thousand kinds apart; the tasks of all others are counted together, as the kind `other`. However many tasks have
        failed, this asks for counts only.
        """
        return self._kinds(arguments.count(n, high=KINDS + 1))

    def tasks(self, kind: FailureKind | str, cursor: str | None = None, n: int = 100) -> Flow[Page]:
        """Read a page of the tasks of a kind, with their errors; the task that was given up last comes first.

        `kind` is a `FailureKind`, its id or its text. Give the `cursor` of a page to read the next one. Tasks that
        come or go meanwhile may be missed, or seen twice. Raises `InvalidInput` for what names no kind.
        """
        return self._page(checked(kind), cursor, arguments.count(n, high=500))

    def retry(
        self, kind: FailureKind | str, *, at_most: int | None = None, before: float | datetime | None = None
    ) -> Flow[Moved]:
        """Make the tasks of a kind ready again, with a clean record; those that were given up first go first.

        It goes on part by part, up to 500 tasks in a call, until no task is left that was given up before it began:
        what fails meanwhile is not retried. With `at_most` it stops after so many tasks: `left` of the answer says how
        many are left, and who goes on later gives `before` of the answer. Whoever is interrupted calls it again. If the
        kind has no tasks, nothing is moved. Raises `InvalidInput` for what names no kind.
        """
        return self._move("retry", kind, at_most, before)

    def forget(
        self, kind: FailureKind | str, *, at_most: int | None = None, before: float | datetime | None = None
    ) -> Flow[Moved]:
        """Remove the tasks of a kind from the queue, those that were given up first go first.

        It goes on part by part, and `at_most` and `before` are as in `retry`. A task that is retried meanwhile is not
        removed.
        """
        return self._move("forget", kind, at_most, before)

    def _move(
        self, verb: str, kind: FailureKind | str, at_most: int | None, before: float | datetime | None
    ) -> Flow[Moved]:
        most = None if at_most is None else arguments.count(at_most, "at_most")
        until = 0.0 if before is None else int(arguments.due(before, None)) / 1000
        return self._through(verb, checked(kind), until, most)

    def _kinds(self, n: int) -> Flow[Found]:
        return kinds(self.talk, n)

    def _page(self, kind: str, cursor: str | None, n: int) -> Flow[Page]:
        return _page(self.talk, kind, arguments.cursor(cursor), n)

    def _through(self, verb: str, kind: str, before: float, at_most: int | None) -> Flow[Moved]:
        return through(self.talk, verb, kind, before, at_most)


class Failures(Room[FailureFlows]):
    """The failed tasks of a queue, grouped by kind."""

    list = blocking(FailureFlows.list)
    tasks = blocking(FailureFlows.tasks)
    retry = blocking(FailureFlows.retry)
    forget = blocking(FailureFlows.forget)


class AsyncFailures(AsyncRoom[FailureFlows]):
    """The failed tasks of a queue, grouped by kind, for asyncio."""

    list = awaiting(FailureFlows.list)
    tasks = awaiting(FailureFlows.tasks)
    retry = awaiting(FailureFlows.retry)
    forget = awaiting(FailureFlows.forget)
