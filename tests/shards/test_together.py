"""Flows that go together, flushes that are joined, and the model that asks whether a queue is drained."""

from __future__ import annotations

import time
from typing import Any

import pytest

from timeoutq import InvalidInput, NotReplicated, Unavailable
from timeoutq.client.shards import ShardedQueue
from timeoutq.client.together import together
from timeoutq.verbs.sending import Bell, Flow, Send, Sends, Sleep


def sends(name: str, times: int) -> Flow[list[Any]]:
    """Send so often, and give what came back."""
    found: list[Any] = []
    for i in range(times):
        found.append((yield Send([(name, i)])))  # noqa: PERF401  # no comprehension may yield
    return found


def sleeps(seconds: float, then: Flow[Any]) -> Flow[Any]:
    yield Sleep(seconds)
    return (yield from then)


def fails(error: Exception, flow: Flow[Any]) -> Flow[Any]:
    yield from flow
    raise error


def carry_out(flow: Flow[Any]) -> tuple[list[list[str]], Any]:
    """Answer each command with itself; give the flushes, and the end."""
    flushes: list[list[str]] = []
    result: Any = None
    while True:
        try:
            step: Any = flow.send(result)
        except StopIteration as end:
            return flushes, end.value
        result = None
        if isinstance(step, Sleep):
            flushes.append(["sleep"])
            time.sleep(step.seconds)
        else:
            parts = step.parts if isinstance(step, Sends) else [step]
            flushes.append([" ".join(map(str, part.commands[0])) for part in parts])
            replies = [part.commands for part in parts]
            result = replies if isinstance(step, Sends) else replies[0]


def test_flows_send_in_lock_step_and_each_gets_its_own_replies() -> None:
    flushes, results = carry_out(together([sends("a", 2), sends("b", 1), sends("c", 3)]))
    assert flushes == [["a 0", "b 0", "c 0"], ["a 1", "c 1"], ["c 2"]]
    assert results == [[[("a", 0)], [("a", 1)]], [[("b", 0)]], [[("c", 0)], [("c", 1)], [("c", 2)]]]


def test_an_error_ends_its_own_flow_alone() -> None:
    away = Unavailable("away")
    _, results = carry_out(together([fails(away, sends("a", 1)), sends("b", 2)]))
    assert results[0] is away
    assert len(results[1]) == 2
    assert carry_out(together([fails(away, sends("a", 1))]))[1] == [away]
    with pytest.raises(ZeroDivisionError):
        carry_out(together([fails(ZeroDivisionError(), sends("a", 1)), sends("b", 2)]))


def test_those_that_sleep_wake_up_together_and_hold_nobody_up() -> None:
    flushes, _ = carry_out(together([sleeps(0.02, sends("a", 1)), sleeps(0.03, sends("b", 1)), sends("c", 2)]))
    assert flushes == [["c 0"], ["c 1"], ["sleep"], ["a 0", "b 0"]]


def test_a_flow_that_waits_for_a_bell_does_not_go_together_with_others() -> None:
    def waits() -> Flow[None]:
        yield Bell("bell", 1.0)

    with pytest.raises(TypeError, match="send and sleep only"):
        together([waits(), waits()]).send(None)


def test_a_durable_put_is_one_wait_for_all_shards(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=4, deadline=4.0) as queue:
        began = time.monotonic()
        with pytest.raises(NotReplicated, match=r"(only 0|none) of 1 replica"):
            queue.put([f"t{i}" for i in range(50)], durable=1)
        assert time.monotonic() - began < 10
        assert queue.stats().todos == 50
        with pytest.raises(InvalidInput, match="durable"):
            queue.put("a", durable=-1)
        queue.purge()
