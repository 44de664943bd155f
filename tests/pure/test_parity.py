"""The two faces of a queue, of their drivers and of each room have the same methods, with the same words."""

from __future__ import annotations

import inspect

import pytest

from timeoutq import AsyncQueue, AsyncShardedQueue, Queue, ShardedQueue
from timeoutq.client import twin
from timeoutq.client.driving import AsyncDriver, Driver
from timeoutq.client.keeper import AsyncKeeper, Keeper
from timeoutq.client.methods import QueueFlows
from timeoutq.client.shards.methods import ShardedFlows
from timeoutq.client.shards.rooms import (
    ShardedEventFlows,
    ShardedFailureFlows,
    ShardedHostFlows,
    ShardedResultFlows,
    ShardedScheduleFlows,
)
from timeoutq.rooms.batches import AsyncBatches, Batches
from timeoutq.rooms.events import AsyncEvents, EventFlows, Events
from timeoutq.rooms.failures import AsyncFailures, FailureFlows, Failures
from timeoutq.rooms.hosts import AsyncHosts, HostFlows, Hosts
from timeoutq.rooms.results import AsyncResults, ResultFlows, Results
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.rooms.schedules import AsyncSchedules, Schedules
from timeoutq.rooms.schedules.flows import ScheduleFlows

TWINS: list[tuple[type, type]] = [
    (Queue, AsyncQueue), (Driver, AsyncDriver), (Hosts, AsyncHosts), (Results, AsyncResults),
    (Schedules, AsyncSchedules), (Batches, AsyncBatches), (Events, AsyncEvents), (Failures, AsyncFailures),
    (Keeper, AsyncKeeper),
]  # fmt: skip
PLAIN = {"keeper"}
"""Methods that send nothing: they are plain functions on both sides."""
ROOMS = ["hosts", "results", "schedules", "batches", "events", "failures"]
"""The rooms of a queue, in the order of its properties."""


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") and inspect.isfunction(value)}


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS)
def test_both_have_the_same_methods_in_the_same_order(blocking: type, asynchronous: type) -> None:
    assert list(public(blocking)) == list(public(asynchronous))
    assert public(blocking)


def test_the_blocking_client_of_a_worker_differs_from_the_other_in_nothing_that_a_server_or_a_caller_sees() -> None:
    queue = AsyncQueue("q", "redis://u:p@h:1/2", timeout=7, max_runtime=70, deadline=0.7, allow_eviction=True)
    made = twin(queue)

    def settings(one: AsyncQueue | Queue) -> list[object]:
        of_link = (one.url, one.server_at.deadline, one.server_at.user)
        of_leases = (one.timeout, one.max_runtime, one.talk.deadline)
        return [one.name, one.worker, one.allow_eviction, one.given, *of_link, *of_leases]

    assert settings(made) == settings(queue)
    usual = settings(AsyncQueue("other"))
    assert [value for value, other in zip(settings(queue), usual, strict=True) if value == other] == []


def test_the_words_of_a_queue_name_all_of_its_methods_and_rooms() -> None:
    table = (inspect.getdoc(Queue) or "").partition("\n\n")[2]
    named = [name.rstrip(",") for line in table.splitlines() for name in line.partition("  ")[0].split()]
    assert sorted(named) == sorted([*public(Queue), *rooms(Queue)])


def rooms(kind: type) -> dict[str, property]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, property)}


def test_both_have_the_same_rooms() -> None:
    assert list(rooms(Queue)) == list(rooms(AsyncQueue)) == ROOMS, "ROOMS of this file lacks a room"
    for name, room in rooms(Queue).items():
        twin = rooms(AsyncQueue)[name]
        assert room.__doc__ == twin.__doc__, name
        assert room.__doc__, name
        for queue, other in ((Queue("q"), AsyncQueue("q")), (ShardedQueue("q"), AsyncShardedQueue("q"))):
            pair = type(getattr(queue, name)), type(getattr(other, name))
            assert pair in TWINS, name
            assert issubclass(pair[0], Room), name
            assert issubclass(pair[1], AsyncRoom), name
            assert repr(getattr(queue, name)) == f"<{pair[0].__name__} of {queue!r}>"


def test_only_queues_over_shards_have_other_flows_and_no_face_has_verbs_of_its_own() -> None:
    for kind, face in ((ShardedQueue, Queue), (AsyncShardedQueue, AsyncQueue)):
        assert public(kind) == {}, kind
        assert issubclass(kind, face)


IN_THE_ROOT = {"workers", "server", "cancel", "block"}
"""Flows that a sharded queue carries out with the root, whose talk is the `talk` of its flows."""


@pytest.mark.parametrize(
    ("plain", "sharded"),
    [
        (QueueFlows, ShardedFlows),
        (HostFlows, ShardedHostFlows),
        (ScheduleFlows, ShardedScheduleFlows),
        (FailureFlows, ShardedFailureFlows),
        (EventFlows, ShardedEventFlows),
        (ResultFlows, ShardedResultFlows),
    ],
)
def test_what_speaks_with_the_one_talk_of_a_plain_queue_is_overridden_for_shards(plain: type, sharded: type) -> None:
    """A flow that were not overridden would look for tasks in the root of a sharded queue, where no task is."""

    def speaks(flow: object) -> bool:
        return inspect.isfunction(flow) and "self.talk" in inspect.getsource(flow).replace("self.talk.terms", "")

    speaking = {name for name, flow in inspect.getmembers(plain) if speaks(flow)} - {"__init__"}
    assert len(speaking) > 1
    assert {name for name in speaking if getattr(sharded, name) is getattr(plain, name)} <= IN_THE_ROOT


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS)
def test_signatures_and_docstrings_are_equal_and_all_of_the_second_are_async(
    blocking: type, asynchronous: type
) -> None:
    for name, method in public(blocking).items():
        twin = vars(asynchronous)[name]
        ours, theirs = inspect.signature(method), inspect.signature(twin)  # type: ignore[arg-type]  # functions
        assert inspect.isgeneratorfunction(method) is inspect.isasyncgenfunction(twin), name
        if name == "keeper":
            twin_of = {"Keeper": "AsyncKeeper"}
            ours = ours.replace(return_annotation=twin_of[str(ours.return_annotation)])
        if inspect.isgeneratorfunction(method):
            ours = ours.replace(return_annotation=f"Async{ours.return_annotation}")
        assert ours == theirs, name
        assert name == "keeper" or inspect.getdoc(method) == inspect.getdoc(twin), name
        assert inspect.getdoc(method), name
        assert method.__name__ == name, name  # type: ignore[attr-defined]  # functions
        assert (inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)) != (name in PLAIN), name
        assert not inspect.iscoroutinefunction(method), name
