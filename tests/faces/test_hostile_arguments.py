"""Whatever is passed as an argument, of whatever public method: it is used, or refused with `InvalidInput`."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from operator import attrgetter
from typing import Any, get_type_hints

import pytest

from timeoutq import AsyncQueue, InvalidInput, Politeness, Queue, Schedule, TimeoutqError
from timeoutq.rooms.batches import Batches
from timeoutq.rooms.events import Events
from timeoutq.rooms.failures import Failures
from timeoutq.rooms.hosts import Hosts
from timeoutq.rooms.results import Results
from timeoutq.rooms.schedules import Schedules
from timeoutq.rooms.schedules.flows import How, When
from timeoutq.words import arguments


class Color(IntEnum):
    RED = 1


class Mute:
    """It does not even show itself."""

    def __repr__(self) -> str:
        raise KeyError("no repr")

    def __eq__(self, other: object) -> bool:
        raise KeyError("no comparison")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise KeyError("no truth")


class Index:
    def __index__(self) -> int:
        return 3


HOSTILE: dict[str, Callable[[], Any]] = {
    "a huge number": lambda: 10**5000,
    "a huge negative number": lambda: -(10**5000),
    "more than 64 bits": lambda: 1 << 70,
    "an enumeration": lambda: Color.RED,
    "not a number": lambda: math.nan,
    "infinity": lambda: math.inf,
    "the largest float": lambda: 1.7e308,
    "a truth": lambda: True,
    "a decimal": lambda: Decimal("NaN"),
    "a fraction": lambda: Fraction(1, 3),
    "a complex number": lambda: 1j,
    "an index": Index,
    "an empty text": lambda: "",
    "a text with a lone surrogate": lambda: "\ud800",
    "a text with a NUL": lambda: "a\0b\r\nc",
    "a long text": lambda: "x" * 100_000,
    "bytes": lambda: b"\xff\x00",
    "a bytearray": lambda: bytearray(b"x"),
    "a view": lambda: memoryview(b"x"),
    "what cannot be shown": Mute,
    "what cannot be shown, in a list": lambda: [Mute()],
    "what cannot be shown, in a mapping": lambda: {"a": Mute()},
    "what cannot be shown, as a key": lambda: {Mute(): 1},
    "an object": object,
    "a class": lambda: Mute,
    "a function": lambda: len,
    "an error": lambda: ValueError(Mute()),
    "a list": list,
    "a mapping": dict,
    "a set of a set": lambda: {frozenset()},
    "a generator": lambda: (n for n in [Mute()]),
    "a time without a zone": lambda: datetime(2030, 1, 1),  # noqa: DTZ001  # that is the case
    "the last time": lambda: datetime.max.replace(tzinfo=UTC),
    "the first time": lambda: datetime.min.replace(tzinfo=UTC),
    "the longest span": lambda: timedelta.max,
    "a negative span": lambda: timedelta.min,
}

VALID: dict[str, Callable[[Any], Any]] = {
    "lease": lambda q: q.claim()[0],
    "host": lambda q: "example.com",
    "error": lambda q: "an error",
    "state": lambda q: "todos",
    "task": lambda q: "other",
    "tasks": lambda q: "other",
    "for_": lambda q: 1,
    "after": lambda q: 1,
    "every": lambda q: 60,
    "done": lambda q: 1,
    "name": lambda q: "other",
    "names": lambda q: "other",
    "schedules": lambda q: Schedule("other", every=60),
    "kind": lambda q: "a kind",
}
"""What stands for the arguments that a method cannot do without."""

NEEDED = {"hosts.block": ["for_"], "schedule": ["after"], "schedules.set": ["every"], "schedules.move": ["every"]}
"""Arguments of which one must be given, though each may be left out."""

LEFT_OUT = {"run", "close", "token", "each", "export", "wait_drained", "follow"}
"""Not for callers; an iterator, whose arguments are those of `list`; and what may wait for ever, as it is told."""


ROOMS: dict[str, type] = {
    "": Queue, "hosts.": Hosts, "results.": Results, "schedules.": Schedules, "batches.": Batches,
    "events.": Events,
    "failures.": Failures,
}  # fmt: skip
WORDS = {"how": How, "when": When}
"""What a method takes by these names only."""


def parameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Give the names of the arguments of a method, each with its kind and its default."""
    found: dict[str, Any] = {}
    for name, about in list(inspect.signature(method).parameters.items())[1:]:
        if about.kind is inspect.Parameter.VAR_KEYWORD:
            words = get_type_hints(WORDS[name])
            found |= {word: inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=None) for word in words}
        else:
            found[name] = about
    return found


def cases() -> Iterator[tuple[str, str]]:
    for room, kind in ROOMS.items():
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in LEFT_OUT:
                for parameter in parameters(method):
                    yield room + name, parameter


def call(queue: Any, method: str, parameter: str, value: Any) -> None:
    queue.put("https://example.com/", again=True)
    *room, name = method.split(".")
    known = parameters(getattr(ROOMS["".join(f"{part}." for part in room)], name))
    words: list[Any] = []
    named: dict[str, Any] = {}
    for other, about in known.items():
        needed = about.default is inspect.Parameter.empty or other in NEEDED.get(method, ())
        if other == parameter:
            given = value
        elif (
            needed
            and not (method == "hosts.block" and parameter == "until" and other == "for_")
            and not (method == "schedule" and parameter == "at" and other == "after")
            and not (other == "every" and parameter in ("cron", "tz"))
        ):
            assert other in VALID, f"VALID lacks what stands for {other}= of {method}"
            given = VALID[other](queue)
        else:
            continue
        if about.kind is not inspect.Parameter.KEYWORD_ONLY and about.default is inspect.Parameter.empty:
            words.append(given)
        else:
            named[other] = given
    found = attrgetter(method)(queue)(*words, **named)
    if method == "batches.members":
        list(found)


@pytest.mark.parametrize(("method", "parameter"), list(cases()))
def test_a_hostile_argument_is_used_or_refused(face: Any, method: str, parameter: str) -> None:
    deadline = face.talk.deadline
    face.configure(politeness=Politeness(delay=0, per_host=1000))
    for what, make in HOSTILE.items():
        # a call that asks for replicas, of which there are none, waits until its deadline
        face.talk.deadline = 0.5 if parameter == "durable" else deadline
        try:
            call(face, method, parameter, make())
        except TimeoutqError:
            pass
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{method}({parameter}={what}) ends in {type(error).__name__}") from error
        finally:
            face.talk.deadline = deadline
        face.purge()
        face.configure(politeness=Politeness(delay=0, per_host=1000))


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize(
    "parameter",
    [name for name in inspect.signature(Queue.__init__).parameters if name not in ("self", "allow_eviction")],
)
def test_a_hostile_setting_is_used_or_refused(kind: Any, parameter: str) -> None:
    for what, make in HOSTILE.items():
        try:
            kind(**{"name": "q", parameter: make()})
        except TimeoutqError:
            continue
        except Exception as error:
            raise AssertionError(f"{parameter}={what} ends in {type(error).__name__}") from error


def test_a_huge_number_is_refused_before_it_reaches_the_wire(face: Any) -> None:
    with pytest.raises(InvalidInput, match="again must be True or False, not <a huge int>"):
        face.put("a", again=10**5000)
    with pytest.raises(InvalidInput, match="again must be True or False"):
        face.schedule("a", after=1, again="yes")


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_queue_whose_settings_were_refused_can_be_shown(kind: Any) -> None:
    half = kind.__new__(kind)
    with pytest.raises(InvalidInput):
        half.__init__("no name")
    assert repr(half) == f"{kind.__name__}(None, url=None)"
    with pytest.raises(InvalidInput):
        half.__init__("q", "redis://h/?bogus=1")
    assert repr(half) == f"{kind.__name__}('q', url=None)"


def test_what_is_shown_of_a_value_is_short_and_always_there() -> None:
    assert arguments.shown("x" * 500) == "'" + "x" * 79
    assert arguments.shown(Mute()) == "<Mute without a repr>"
    assert arguments.shown(10**5000) == "<a huge int>"


# ---- one queue, several event loops


def test_a_queue_for_asyncio_works_in_one_event_loop_after_another(url: str, name: str) -> None:
    queue = AsyncQueue(name, url)

    async def put(task: str) -> None:
        assert (await queue.put(task)).added == 1
        assert len(await queue.claim(wait=1)) == 1
        assert await queue.claim(wait=0.01) == []

    async def end() -> None:
        assert (await queue.stats()).in_progress == 3
        await queue.purge()
        await queue.close()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        for runner, task in ((first, "a"), (second, "b"), (first, "c")):
            runner.run(put(task))
        first.run(queue.close())
        second.run(end())


@pytest.mark.filterwarnings("ignore:unclosed", "ignore:loop is closed")
def test_a_queue_that_was_not_closed_works_in_a_second_asyncio_run(url: str, name: str) -> None:
    queue = AsyncQueue(name, url)

    async def put(task: str) -> None:
        assert (await queue.put(task)).added == 1
        assert len(await queue.claim(wait=1)) == 1

    async def end() -> None:
        await queue.purge()
        await queue.close()

    asyncio.run(put("a"))
    asyncio.run(put("b"))
    asyncio.run(end())
    gc.collect()  # what was never closed is warned of here, and not in a later test
