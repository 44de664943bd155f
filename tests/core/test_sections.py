"""The options of a call travel as named sections: in any order, refused by name if the script cannot read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import redis

from timeoutq import Queue, ServerError, sending
from timeoutq.arguments import How
from timeoutq.calls import Call
from timeoutq.durations import Delta
from timeoutq.model import Lease, Record, State
from timeoutq.testing import fake_queue

Build = Callable[[Queue, Lease], Call[Any]]
VERBS: dict[str, Build] = {
    "put": lambda queue, _: queue.operations.put(("new", "done"), queue.token, How(again=True))[0],
    "schedule": lambda queue, _: queue.operations.schedule(("new", "done"), queue.token, after=5)[0],
    "claim": lambda queue, _: queue.operations.claim(queue.token(), 5, 5000, 6000),
    "ack": lambda queue, lease: queue.operations.ack([lease], 5000)[0],
    "fail": lambda queue, lease: queue.operations.fail([lease], [-1], [b"no"], [b"a trace"])[0],
    "release": lambda queue, lease: queue.operations.release([lease], 5000)[0],
    "restore": lambda queue, _: queue.operations.restore([Record(b"new", State.TODOS)], queue.token),
    "beat": lambda queue, _: queue.operations.beat("w", {"pid": 1}, Delta(1, {0: 1})),
}
"""The verbs that take sections; each call would write."""


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
        (("novel",), "novel is unknown"),
        (("",), " is unknown"),
        (("%l+", 0), "%l[+] is unknown"),
        (("group=1 payloads", 0), "group=1 payloads is unknown"),
        (("x" * 1000, 0), f"{'x' * 40} is unknown"),
        (("group", 1, "h", "novel", 0), "novel is unknown"),
        (("group", 1, "h", "group", 1, "h"), "group stands twice"),
        (("group",), "group is cut short, or is not group=1"),
        (("group", 1), "group is cut short, or is not group=1"),
        (("group", 0), "group is cut short, or is not group=1"),
        (("group", 2, "g", "h"), "group is cut short, or is not group=1"),
        (("group", "many", "g"), "group is cut short, or is not group=1"),
        (("groups", -1, "g"), "groups is cut short, or is not groups=pairs"),
        (("groups", "nan", "g"), "groups is cut short, or is not groups=pairs"),
        (("groups", "inf", "g"), "groups is cut short, or is not groups=pairs"),
        (("groups", "1.5", "1", "g"), "groups is cut short, or is not groups=pairs"),
        (("groups", 1, "1"), "groups is cut short, or is not groups=pairs"),
        (("groups", 4, "1", "g", "2"), "groups is cut short, or is not groups=pairs"),
    ],
)
def test_sections_that_cannot_be_read_are_refused(words: tuple[str | int, ...], said: str) -> None:
    with fake_queue() as queue:
        (call,) = queue.operations.put(("a", "b"), queue.token)
        with pytest.raises(ServerError, match=f"SECTION {said}"):
            queue.run(sending.answer(queue.talk, more(call, *words)))
        assert queue.stats().known == 0


@pytest.mark.parametrize("moment", ["1.5", "-1", "soon", "", "1e3", "0x10", "9" * 16])
@pytest.mark.parametrize(("verb", "section"), [("ack", "again"), ("release", "delay"), ("claim", "max_runtime")])
def test_a_section_that_is_no_number_of_milliseconds_is_refused_and_nothing_is_written(
    queue: Queue, raw: redis.Redis, verb: str, section: str, moment: str
) -> None:
    call = VERBS[verb](queue, lease_of(queue))
    at = list(call.args).index(section) + 2
    before = keys(raw)
    with pytest.raises(ServerError, match=f"SECTION {section} is cut short, or is not {section}=ms"):
        queue.run(sending.answer(queue.talk, replace(call, args=[*call.args[:at], moment, *call.args[at + 1 :]])))
    assert keys(raw) == before
    queue.run(sending.answer(queue.talk, call))
    assert keys(raw) != before


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


def test_a_call_without_options_has_no_sections() -> None:
    with fake_queue() as queue:
        ops, lease = queue.operations, Lease("a", "w#1", 0.0)
        assert list(ops.put(("a", "b"), queue.token)[0].args) == [2, b"a", b"b"]
        assert list(ops.schedule(("a",), queue.token, after=1)[0].args) == [b"+1000", 1, b"a"]
        assert list(ops.claim(b"w#1", 5, 1000).args) == [5, 1000, 0]
        for (call,) in (ops.ack([lease]), ops.release([lease])):
            assert list(call.args) == [1, "w#1", 1, b"a"]
        assert list(ops.fail([lease], [-1], [b"no"])[0].args) == [1, "w#1", 1, b"a", -1, b"no"]
