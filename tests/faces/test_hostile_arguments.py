"""Whatever is passed as an argument, of whatever public method: it is used, or refused with `InvalidInput`."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rig.command import server
from timeoutq import AsyncQueue, InvalidInput, Politeness, Queue, Schedule, TimeoutqError
from timeoutq.rooms.batches import Batches
from timeoutq.rooms.events import Events
from timeoutq.rooms.failures import Failures
from timeoutq.rooms.hosts import Hosts
from timeoutq.rooms.results import Results
from timeoutq.rooms.schedules import Schedules
from timeoutq.rooms.schedules.definition import How, When
from timeoutq.testing import fake_queue

__all__ = ["server"]

HOSTILE: list[Any] = [
    1 << 70, -1, math.nan, math.inf, 1.7e308, True, Decimal("NaN"), 1j, "", "\ud800", "a\0b\r\nc", "x" * 100_000,
    b"\xff\x00", object(), len, ValueError("x"), [], {}, {frozenset[int]()}, datetime(2030, 1, 1),  # noqa: DTZ001  # that is the case
    datetime.max.replace(tzinfo=UTC), timedelta.max, timedelta.min,
]  # fmt: skip

VALID: dict[str, Callable[[Any], Any]] = {
    "lease": lambda q: q.claim()[0],
    "host": lambda q: "example.com",
    "error": lambda q: "an error",
    "state": lambda q: "todos",
    "schedules": lambda q: Schedule("other", every=60),
    "kind": lambda q: "a kind",
    "every": lambda q: 60,
    **dict.fromkeys(("for_", "after", "done"), lambda q: 1),
    **dict.fromkeys(("task", "tasks", "name", "names"), lambda q: "other"),
}
"""Values for the arguments that a method cannot do without."""

NEEDED = {"hosts.block": "for_", "schedule": "after", "schedules.set": "every", "schedules.move": "every"}
"""Arguments of which one must be given, though each may be left out."""
INSTEAD = {"hosts.block": ("until",), "schedule": ("at",), "schedules.set": ("cron", "tz"),
           "schedules.move": ("cron", "tz")}  # fmt: skip
"""Arguments in the place of these."""

LEFT_OUT = {"run", "close", "token", "another", "each", "export", "wait_drained", "follow"}
"""Not for callers; an iterator, whose arguments are those of `list`; and what may wait for ever, as it is told."""

ROOMS: dict[str, type] = {
    "": Queue, "hosts.": Hosts, "results.": Results, "schedules.": Schedules, "batches.": Batches, "events.": Events,
    "failures.": Failures,
}  # fmt: skip
WORDS = {"how": How, "when": When}
"""The arguments that a method takes by name only."""


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
    words: list[Any] = []
    named: dict[str, Any] = {}
    for other, about in parameters(getattr(ROOMS["".join(f"{part}." for part in room)], name)).items():
        is_needed = about.default is inspect.Parameter.empty
        if other == parameter:
            given = value
        elif is_needed or (NEEDED.get(method) == other and parameter not in INSTEAD[method]):
            given = VALID[other](queue)
        else:
            continue
        if about.kind is not inspect.Parameter.KEYWORD_ONLY and is_needed:
            words.append(given)
        else:
            named[other] = given
    found = attrgetter(method)(queue)(*words, **named)
    if method == "batches.members":
        list(found)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(list(cases())), st.sampled_from(HOSTILE))
def test_a_hostile_argument_is_used_or_refused(case: tuple[str, str], value: Any) -> None:
    method, parameter = case
    # a call that asks for replicas, of which there are none, waits until its deadline
    with fake_queue(politeness=Politeness(delay=0, per_host=1000), deadline=0.5) as queue, suppress(TimeoutqError):
        call(queue, method, parameter, value)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_hostile_setting_is_used_or_refused(kind: Any) -> None:
    for parameter in inspect.signature(Queue.__init__).parameters:
        for value in HOSTILE if parameter not in ("self", "allow_eviction") else ():
            with suppress(TimeoutqError):
                kind(**{"name": "q", parameter: value})


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_queue_whose_settings_were_refused_can_be_shown(kind: Any) -> None:
    half = kind.__new__(kind)
    with pytest.raises(InvalidInput):
        half.__init__("no name")
    assert repr(half) == f"{kind.__name__}(None, url=None)"


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_a_claim_that_a_signal_ends_gives_back_what_it_had_been_given(
    raised: type[BaseException], queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put("a", "b")
    link: Any = queue._link().at(None)
    send = link.send

    def interrupted(commands: Any) -> Any:
        replies = send(commands)
        if any(
            words[0] == b"FCALL" and isinstance(reply, list) and len(reply) == 7
            for words, reply in zip(commands, replies, strict=True)
        ):
            monkeypatch.setattr(link, "send", send)
            raise raised
        return replies

    monkeypatch.setattr(link, "send", interrupted)
    with pytest.raises(raised):
        queue.claim(2, timeout=60)
    stats = queue.stats()
    assert (stats.todos, stats.in_progress, stats.counters["released"]) == (2, 0, 2)


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
