"""The options of a call travel as named sections: in any order, refused by name if the script cannot read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import redis

from timeoutq import Queue, ServerError
from timeoutq.rooms import batches as of_batches
from timeoutq.rooms.schedules import definition as of_schedules
from timeoutq.rooms.schedules.definition import Definition
from timeoutq.rooms.schedules.timing import Timing
from timeoutq.server.calls import Call
from timeoutq.testing import fake_queue
from timeoutq.verbs import sending
from timeoutq.words import arguments
from timeoutq.words.arguments import How
from timeoutq.words.durations import Delta
from timeoutq.words.model import Lease, Record, State

Build = Callable[[Queue, Lease], Call[Any]]
VERBS: dict[str, Build] = {
    "put": lambda queue, _: queue.operations.put(("new", "done"), queue.token, How(again=True))[0],
    "schedule": lambda queue, _: queue.operations.schedule(("new", "done"), queue.token, after=5)[0],
    "claim": lambda queue, _: queue.operations.claim(queue.token(), 5, 5000, 6000),
    "ack": lambda queue, lease: queue.operations.ack([lease], 5000)[0],
    "fail": lambda queue, lease: queue.operations.fail([lease], [-1], [b"no"], [b"a trace"])[0],
    "release": lambda queue, lease: queue.operations.release([lease], 5000)[0],
    "restore": lambda queue, _: queue.operations.restore([Record(b"new", State.TODOS)], queue.token),
    "set_schedule": lambda queue, _: of_schedules.call_write(
        queue.operations, queue.token(), b"s", None, ["r", 5, *Definition(Timing(), b"new").sections("d", "set")]
    ),
    "tick": lambda queue, _: due_tick(queue),
    "seal_batch": lambda queue, _: of_batches.call_seal(
        queue.operations, queue.token(), "b", arguments.tasks(("new",)), "ended", 5000
    ),
    "beat": lambda queue, _: queue.operations.beat("w", {"pid": 1}, Delta(1, {0: 1})),
}
"""The verbs that take sections; each call would write."""


def due_tick(queue: Queue) -> Call[Any]:
    """Give the call that puts a tick which is due."""
    wanted, ops = Definition(Timing(), b"new"), queue.operations
    change = ["r", 5, *wanted.sections("d", "set")]
    queue.run(sending.answer(queue.talk, of_schedules.call_write(ops, queue.token(), b"s", None, change)))
    rows = queue.run(sending.answer(queue.talk, of_schedules.call_rows(ops, "due", 1, 0)))
    return of_schedules.call_tick(ops, queue.token(), rows.found[0], wanted, [b"new"], 0, 5, 0)


def lease_of(queue: Queue) -> Lease:
    """Prepare a queue with a ready task, a done one and one that is held; give the lease."""
    queue.put("held", "done")
    leases = {lease.task: lease for lease in queue.claim(2)}
    queue.ack(leases["done"])
    queue.put("ready")
    return leases["held"]


def more(call: Call[Any], *words: str | int) -> Call[Any]:
    """Give the same call with more words."""
    return replace(call, args=[*call.args, *words])


def keys(raw: redis.Redis) -> dict[Any, Any]:
    with redis.Redis(connection_pool=raw.connection_pool) as client:
        names: Iterable[Any] = client.scan_iter("*")
        return {
            key: (client.object("encoding", key), client.execute_command("DUMP", key, NEVER_DECODE=[])) for key in names
        }


def refused(queue: Queue, raw: redis.Redis, call: Call[Any], at: int, word: str, said: str) -> None:
    """Check that the call is refused, and writes nothing, with another word at a place; and that it writes as it is."""
    before = keys(raw)
    with pytest.raises(ServerError, match=said):
        queue.run(sending.answer(queue.talk, replace(call, args=[*call.args[:at], word, *call.args[at + 1 :]])))
    assert keys(raw) == before
    queue.run(sending.answer(queue.talk, call))
    assert keys(raw) != before


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_section_is_refused_by_name_and_nothing_is_written(
    queue: Queue, raw: redis.Redis, verb: str
) -> None:
    call = VERBS[verb](queue, lease_of(queue))
    before = keys(raw)
    with pytest.raises(ServerError, match=r"SECTION novel is unknown; this script takes [a-z_]+="):
        queue.run(sending.answer(queue.talk, more(call, "novel", 1, "x")))
    assert keys(raw) == before
    queue.run(sending.answer(queue.talk, call))
    assert keys(raw) != before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("novel", 0), "novel is unknown"),
        (("group=1 payloads", 0), "group=1 payloads is unknown"),
        (("x" * 1000, 0), f"{'x' * 40} is unknown"),
        (("group", 1, "h", "group", 1, "h"), "group stands twice"),
        (("group", 1), "group is cut short, or is not group=1"),
        (("group", 2, "g", "h"), "group is cut short, or is not group=1"),
        (("groups", -1, "g"), "groups is cut short, or is not groups=pairs"),
        (("groups", "1.5", "1", "g"), "groups is cut short, or is not groups=pairs"),
        (("groups", 2, "1.5", "g"), "groups is cut short, or is not groups=pairs"),
    ],
)
def test_sections_that_cannot_be_read_are_refused(words: tuple[str | int, ...], said: str) -> None:
    with fake_queue() as queue:
        (call,) = queue.operations.put(("a", "b"), queue.token)
        with pytest.raises(ServerError, match=f"SECTION {said}"):
            queue.run(sending.answer(queue.talk, more(call, *words)))
        assert queue.stats().known == 0


@pytest.mark.parametrize("moment", ["1.5", "-1"])
@pytest.mark.parametrize(("verb", "section"), [("ack", "again"), ("release", "delay"), ("claim", "max_runtime")])
def test_a_section_that_is_no_number_of_milliseconds_is_refused_and_nothing_is_written(
    queue: Queue, raw: redis.Redis, verb: str, section: str, moment: str
) -> None:
    call = VERBS[verb](queue, lease_of(queue))
    at = list(call.args).index(section) + 2
    refused(queue, raw, call, at, moment, f"SECTION {section} is cut short, or is not {section}=ms")


NUMBERS: dict[str, Build] = {
    "fail": lambda queue, lease: queue.operations.fail([lease], [5], [b"no"], blocks_ms={0: 5000})[0],
    "beat": VERBS["beat"],
    "restore": lambda queue, _: queue.operations.restore(
        [Record(b"soon", State.SCHEDULED, due=2e9), Record(b"new", State.TODOS)], queue.token
    ),
    "schedule": VERBS["schedule"],
}
"""Calls with words that a script reads as numbers."""


@pytest.mark.parametrize("word", ["1.5", "nan"])
@pytest.mark.parametrize(("verb", "section"), [("fail", "blocks"), ("beat", "durations"), ("restore", "times")])
def test_a_section_that_is_no_pairs_of_whole_numbers_is_refused_and_nothing_is_written(
    queue: Queue, raw: redis.Redis, verb: str, section: str, word: str
) -> None:
    call = NUMBERS[verb](queue, lease_of(queue))
    at = list(call.args).index(section) + 3
    refused(queue, raw, call, at, word, f"SECTION {section} is cut short, or is not {section}=numbers")


def test_sections_stand_in_any_order(queue: Queue, raw: Any) -> None:
    sections: list[tuple[str | int, ...]] = [
        ("again", 0), ("group", 1, "g"), ("payloads", 4, 2, '"two"', 1, '"one"'), ("groups", 2, 2, "h")
    ]  # fmt: skip
    for turn in range(len(sections)):
        (call,) = queue.operations.put((f"{turn}a", f"{turn}b"), queue.token)
        words = [word for section in sections[turn:] + sections[:turn] for word in section]
        assert queue.run(sending.answer(queue.talk, more(call, *words))).added == 2
        assert [queue.inspect(f"{turn}{letter}").payload for letter in "ab"] == ["one", "two"]
        assert raw.hmget(queue.operations.key("groups"), f"{turn}a", f"{turn}b") == ["g", "h"]
