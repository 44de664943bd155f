"""Failed tasks grouped by kind: what has failed how often, and to retry or forget all tasks of one kind."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest

from timeoutq.rooms.room import AsyncRoom, Room, RoomFlows
from timeoutq.server.calls import BATCH, Call, Command
from timeoutq.verbs.faces import awaiting, blocking
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.reads import failed, pairs_of
from timeoutq.verbs.sending import Flow, Talk, answer, ask
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Entry, Page, State, text

WIDTH = 1 << 42  # in a score of `kind_of`, the number of the kind stands above so many milliseconds
KINDS = 1000  # the most kinds that a queue tells apart; the tasks of all further kinds are counted together
OTHER = "other"  # the id of the kind of all tasks of kinds beyond the thousandth
AT_ONCE = 100  # about so many kinds are asked for in one exchange


@dataclass(frozen=True, slots=True)
class FailureKind:
    """What some failed tasks have in common: the first line of their errors, without what differs from task to task."""

    id: str  # a short name of the kind, made of its text: the same on every queue and shard
    text: str
    """The type and the first line of the error. `<url>` stands for URLs, `<id>` for the task's id, and `#` for numbers,
    but not for codes such as HTTP 404."""
    count: int  # how many tasks of this kind are in failed
    first: float  # when the first of these tasks was given up, Unix seconds
    last: float  # when the last of these tasks was given up, Unix seconds
    task: str  # the id of the last of these tasks


@dataclass(frozen=True, slots=True)
class Moved:
    """What a retry or a forget of a kind has moved so far, and what is left."""

    moved: int  # how many tasks were retried or forgotten
    left: int  # how many tasks of the kind are still to be retried or forgotten
    before: float
    """Only tasks that were given up until then are moved, Unix seconds. Who goes on gives it to the next call."""


def id_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12] if text else OTHER


def text_of(text: bytes) -> str:
    """Give the text of a kind as users read it."""
    return text.decode("utf-8", "replace") if text else f"all kinds beyond the first {KINDS:,}"


def move_kind(
    operations: Operations, verb: str, text: bytes, before: float, n: int, nonce: Callable[[], bytes] = bytes
) -> Call[Moved]:
    """Build the call that retries or forgets up to `n` tasks of a kind that were given up until `before`; 0 is now."""
    return operations.call(
        "kind",
        [verb, text, round(before * 1000), n],
        lambda reply: Moved(int(reply[0]), int(reply[1]), int(reply[2]) / 1000),
        id=nonce(),
    )


Counts = Counter[bytes]
"""How many tasks each kind has, by its text; the empty text stands for all kinds beyond the thousandth."""
Found = list[FailureKind]  # in the classes below, `list` is a method


def checked(kind: object) -> str:
    """Check what names a kind: a `FailureKind`, its id, or its text."""
    if isinstance(kind, FailureKind):
        return kind.id
    if not isinstance(kind, str) or not 0 < len(kind) <= 400:
        raise InvalidInput(
            f"a kind of failure is a FailureKind, its id or its text, not {shown(kind)}: failures.list() gives them"
        )
    return kind


def _fields(talk: Talk) -> Flow[dict[int, tuple[bytes, int]]]:
    # text and count of each kind, by its number; 0 is what is beyond the thousandth
    (fields,) = yield from ask(talk, [("HGETALL", talk.operations.key("kinds"))])
    numbers = [int(field[1:]) for field in fields if field[:1] == b"+"]
    return {at: (fields.get(b"#%d" % at, b""), int(fields[b"+%d" % at])) for at in numbers}


def counts(talk: Talk) -> Flow[Counts]:
    """Count the tasks of all kinds of a queue, by the texts of the kinds; one command for any number of tasks."""
    found = Counts()
    for words, count in (yield from _fields(talk)).values():
        found[words] += count
    return found


def about(talk: Talk, texts: Collection[bytes]) -> Flow[list[FailureKind]]:
    """Tell about the kinds with these texts, as far as the queue has tasks of them."""
    known = {number: one for number, one in sorted((yield from _fields(talk)).items()) if one[0] in texts}
    key, found, numbers = talk.operations.key("kind_of"), list[FailureKind](), list(known)
    for at in range(0, len(numbers), AT_ONCE):
        some, commands = numbers[at : at + AT_ONCE], list[Command]()
        for number in some:
            low, high = number * WIDTH, f"({(number + 1) * WIDTH}"
            commands += [
                ("ZRANGEBYSCORE", key, low, high, "WITHSCORES", "LIMIT", 0, 1),
                ("ZREVRANGEBYSCORE", key, high, low, "WITHSCORES", "LIMIT", 0, 1),
            ]
        replies = yield from ask(talk, commands)
        for number, first, last in zip(some, replies[::2], replies[1::2], strict=True):
            if first and last:
                (words, count), ((_, since),), ((task, until),) = known[number], pairs_of(first), pairs_of(last)
                begin, end = ((float(score) - number * WIDTH) / 1000 for score in (since, until))
                found.append(FailureKind(id_of(words), text_of(words), count, begin, end, text(task)))
    return found


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


def _named(talk: Talk, kind: str) -> Flow[tuple[int, bytes] | None]:
    # the number and the text of the kind that an id or a text names
    for number, (words, _) in (yield from _fields(talk)).items():
        if kind in (id_of(words), words.decode("utf-8", "surrogateescape") or None):
            return number, words
    return None


def tasks(talk: Talk, kind: str, start: str, n: int) -> Flow[tuple[list[Entry], str | None]]:
    """Read `n` tasks of a kind from the place `start` on, the last one that was given up first."""
    named = yield from _named(talk, kind)
    if named is None:
        return [], None
    key, low, behind = talk.operations.key("kind_of"), named[0] * WIDTH, (named[0] + 1) * WIDTH
    (above,) = yield from ask(talk, [("ZCOUNT", key, behind, "+inf")])
    begin = int(above) + int(start)
    (reply,) = yield from ask(talk, [("ZREVRANGE", key, begin, begin + n - 1, "WITHSCORES")])
    # tasks of other kinds may come and go between the two questions
    ids = [id for id, score in pairs_of(reply) if low <= float(score) < behind]
    entries = (yield from failed(talk, ids)) if ids else []
    return entries, str(int(start) + n) if len(ids) == n else None


def through(talks: Sequence[Talk], verb: str, kind: str, before: float, at_most: int | None) -> Flow[Moved]:
    """Retry or forget the tasks of a kind that were given up until `before`, shard by shard: all, or `at_most`."""
    moved = left = 0
    for talk in talks:
        named = yield from _named(talk, kind)
        while named is not None:
            n = BATCH if at_most is None else min(BATCH, at_most - moved)
            if n == 0:  # enough: what is left is counted
                low = named[0] * WIDTH
                command = ("ZCOUNT", talk.operations.key("kind_of"), low, low + round(before * 1000))
                left += int((yield from ask(talk, [command]))[0])
                break
            found = yield from answer(talk, move_kind(talk.operations, verb, named[1], before, n, talk.nonce))
            moved, before = moved + found.moved, found.before
            if found.left == 0:
                break
    return Moved(moved, left, before)


class FailureFlows(RoomFlows):
    """The flows about the failed tasks of a plain queue; those of a sharded queue add up its shards."""

    def _page(self, kind: str, cursor: str | None, n: int) -> Flow[Page]:
        return Page(State.FAILED, *(yield from tasks(self.talk, kind, arguments.cursor(cursor), n)))

    def list(self, n: int = 100) -> Flow[Found]:
        """Tell about the `n` kinds of failures with most tasks, those with most tasks first.

        A task is grouped when it is given up, by the type and the first line of its error. What differs from task to
        task is left out: URLs, the id of the task, and numbers, but not codes such as HTTP 404. A queue tells a
        thousand kinds apart; the tasks of all others are counted together, as the kind `other`. However many tasks have
        failed, this asks for counts only.
        """
        most, found = arguments.count(n, high=KINDS + 1), Counts()
        for part in (yield from self._each(counts)):
            found.update(part)
        wanted = set(nlargest(most, (words for words in found if found[words] > 0), key=lambda one: (found[one], one)))
        parts = yield from self._each(lambda talk: about(talk, wanted))
        return merged(kind for part in parts for kind in part)

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
        return through(self._talks(), verb, checked(kind), until, most)


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
