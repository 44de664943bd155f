"""Handlers of every shape, and what they do: `shaped` makes a handler, whose body follows the plan of the task."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.rig.simulate.clock import Owner
from tests.rig.simulate.machine import Over, SimulatedMachine
from timeoutq import Ack, GiveUp, Lease, Release, Retry

if TYPE_CHECKING:
    from tests.rig.simulate.world import Simulation

HEAVY = 420_000
"""Bytes of the payload of a child that is heavy: more than a slow link carries within the patience of an attempt."""
trace: ContextVar[int] = ContextVar("trace")


class OddText(Exception):
    """An error that raises when it is asked for its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Foreign(BaseException):
    """An error that no `except Exception` catches."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a handler runs."""

    world: Simulation
    owner: Owner
    machine: SimulatedMachine
    die: Callable[[int], None]
    timeout: float
    claims: Callable[[], bool]


async def work(place: Place, lease: Lease) -> Any:
    """Be the body of a handler in the event loop."""
    what, seconds = place.world.began(lease, place.owner.name)
    try:
        if seconds:
            await asyncio.sleep(seconds)
        return await _do(place, lease, what)
    except asyncio.CancelledError:
        place.world.ended(lease, "cancelled")
        if what == "slow_cleanup":
            await asyncio.sleep(1.5)
        raise


async def _do(place: Place, lease: Lease, what: str) -> Any:
    world = place.world
    if what.startswith("die_"):
        world.ended(lease, what)
        place.die(_code(what))
        await asyncio.Event().wait()
    elif what == "long":
        await asyncio.sleep(place.timeout * 1.6)
    elif what == "turns":
        for _ in range(20):
            await asyncio.sleep(0)
    elif what == "hang":
        await asyncio.Event().wait()
    elif what == "swallow":
        try:
            await asyncio.sleep(place.timeout)
        except asyncio.CancelledError:
            await asyncio.sleep(1.0)
    elif what in ("cancel_self", "cancel_self_late"):
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        if what == "cancel_self":
            await asyncio.sleep(1)
    elif what == "cancel_other":
        _cancel_one(place, lease)
        await asyncio.sleep(0.05)
    elif what == "cancel_all":
        for _ in range(1000):  # until a claim is on its way, or its reply is, if one comes soon
            if place.claims():
                await asyncio.sleep(lease.fence % 4 * 0.0008)
                break
            await asyncio.sleep(0.001)
        _cancel_all(place, lease)
        await asyncio.sleep(0.05)
    elif what == "spawn":
        asyncio.get_running_loop().create_task(asyncio.sleep(0.3))
    return _result(place, lease, what)


def _work_in_thread(place: Place, lease: Lease) -> Any:
    """Be the body of a handler in a thread."""
    world, machine = place.world, place.machine
    what, seconds = world.began(lease, place.owner.name)
    if seconds:
        machine.sleep(seconds)
    if what.startswith("die_"):
        world.ended(lease, what)
        machine.soon(lambda: place.die(_code(what)))
        machine.sleep(3600)
    elif what == "long":
        machine.sleep(place.timeout * 1.6)
    elif what == "hang":
        machine.sleep(40)
        raise Over
    elif what == "cancel_other":
        machine.soon(lambda: _cancel_one(place, lease))
        machine.sleep(0.05)
    elif what == "cancel_all":
        machine.soon(lambda: _cancel_all(place, lease))
        machine.sleep(0.05)
    return _result(place, lease, what)


def _cancel_one(place: Place, lease: Lease) -> None:
    others = [task for task in place.owner.tasks if not task.done() and task is not asyncio.current_task()]
    if others:
        others[lease.fence * 7 % len(others)].cancel()


def _cancel_all(place: Place, lease: Lease) -> None:
    """Cancel all asyncio tasks of the process; in half of all cases not its main task, nor the handler's."""
    spared = (place.owner.tasks[0], asyncio.current_task()) if lease.fence % 2 else ()
    for task in place.owner.tasks:
        if not task.done() and task not in spared:
            task.cancel()


def _code(what: str) -> int:
    number = int(what.removeprefix("die_"))
    return -number if number > 2 else number


def _result(place: Place, lease: Lease, what: str) -> Any:
    """Return or raise what the plan says, the last deed of a run."""
    world = place.world
    if what == "block":
        place.world.clock.sleep(0.2 * place.timeout)
    children = world.children(lease, 1 if what == "heavy" else 2) if what in _WITH_CHILDREN else []
    world.ended(lease, what)
    match what:
        case "ack":
            return Ack()
        case "ack_raised":
            raise Ack()
        case "children":
            return Ack(put=children)
        case "generator":
            return Ack(put=(child for child in children))
        case "heavy":
            return Ack(put=replace(children[0], payload="x" * HEAVY))
        case "again":
            return Ack(again_in=0.7)
        case "context":
            trace.set(lease.fence)
            return None
        case "release":
            return Release(delay=0.2)
        case "release_raised":
            raise Release()
        case "release_block":
            return Release(block_host=0.6)
        case "retry_block":
            raise Retry(block_host=0.4)
        case "group_of_releases":
            raise ExceptionGroup("busy", [Release(delay=0.1), Release(delay=0.3)])
        case "retry":
            return Retry(after=0.2)
        case "retry_raised":
            raise Retry(after=0.4)
        case "give_up":
            raise GiveUp()
        case _:
            return _odd(what)


_WITH_CHILDREN = ("children", "generator", "heavy")


def _odd(what: str) -> Any:
    match what:
        case "raise":
            raise ValueError("a page was not there")
        case "timeout_error":
            raise TimeoutError("a site was silent")
        case "odd_text":
            raise OddText
        case "generator_exit":
            raise GeneratorExit
        case "base":
            raise Foreign("a foreign error")
        case "base_group":
            raise BaseExceptionGroup("many", [Foreign("one"), ValueError("two")])
        case "system_exit":
            raise SystemExit(0)
        case "cancelled_error":
            raise asyncio.CancelledError
        case "wrong":
            return 42
        case "wrong_generator":
            return (link for link in ("a", "b"))
        case "wrong_class":
            return Ack
        case "bad_put":
            return Ack(put=["ok", 3.5])  # type: ignore[list-item]  # this is what the handler does wrong
        case _:
            return None


# ---- shapes


@asynccontextmanager
async def lifespan() -> AsyncIterator[str]:
    """Give a state that takes a moment to come and to go."""
    await asyncio.sleep(0.01)
    yield "state"
    await asyncio.sleep(0.01)


def shaped(shape: str, place: Place) -> Any:

    async def fetch(lease: Lease) -> Any:
        return await work(place, lease)

    def read(lease: Lease) -> Any:
        return _work_in_thread(place, lease)

    def give(lease: Lease) -> Any:
        place.world.called(lease)
        return fetch(lease)

    return _SHAPES[shape](give if shape in GIVING else fetch, read)


def _decorated(fetch: Any, read: Any) -> Any:
    @functools.wraps(fetch)
    def around(*args: Any, **kwargs: Any) -> Any:
        return fetch(*args, **kwargs)

    return around


def _object(fetch: Any, read: Any) -> Any:
    class Fetcher:
        async def __call__(self, lease: Lease) -> Any:
            return await fetch(lease)

    return Fetcher()


def _object_with_def(fetch: Any, read: Any) -> Any:
    class Reader:
        def __call__(self, lease: Lease) -> Any:
            return read(lease)

    return Reader()


def _with_state(fetch: Any, read: Any) -> Any:
    async def stated(lease: Lease, state: Any) -> Any:
        assert state == "state"
        return await fetch(lease)

    return stated


def _giving_coroutine(fetch: Any, read: Any) -> Any:
    def giving(lease: Lease) -> Any:
        return fetch(lease)

    return giving


GIVING = {"lambda", "decorated", "def that gives a coroutine"}
"""Shapes that a thread calls, and whose coroutine the event loop runs a moment later: a process may die in between."""
_SHAPES: dict[str, Callable[[Any, Any], Any]] = {
    "async def": lambda fetch, read: fetch,
    "lambda": lambda fetch, read: lambda lease: fetch(lease),
    "decorated": _decorated,
    "partial": lambda fetch, read: functools.partial(fetch),
    "object": _object,
    "partial of object": lambda fetch, read: functools.partial(_object(fetch, read)),
    "with state": _with_state,
    "def": lambda fetch, read: read,
    "def that gives a coroutine": _giving_coroutine,
    "object with def": _object_with_def,
    "partial of def": lambda fetch, read: functools.partial(read),
}
