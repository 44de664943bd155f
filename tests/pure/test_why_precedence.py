"""Which reason wins when several hold: of a task at a time, the one that has to end before the others matter."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from timeoutq import HostInfo, State, TaskInfo
from timeoutq.verbs.replies import Why
from timeoutq.verbs.why import ADVICE, Reason, advised, judge

NOW = 1_800_000_000.0
HOST = HostInfo("a.example", 3, (), None, 1.0, 2, None, 0, 0, None, None, "", None, 0)
READY = Why(TaskInfo("t", State.TODOS), NOW, None, paused=False, todos=1, workers=1)
WAITS = replace(READY, info=TaskInfo("t", State.WAITING, host="a.example"), host=HOST)

PAUSED: dict[str, Any] = {"paused": True}
NOBODY: dict[str, Any] = {"workers": 0}
CRASHED: dict[str, Any] = {"crashes": 2}
BANNED: dict[str, Any] = {"banned": "spider trap"}
BLOCKED: dict[str, Any] = {"blocked_until": NOW + 60, "blocked_by": "w1"}
SPENT: dict[str, Any] = {"budget": 5, "visits": 5}
FULL: dict[str, Any] = {"busy": 2, "in_flight": ("x", "y")}
RESTS: dict[str, Any] = {"next_allowed": NOW + 5}


def found(base: Why, *facts: dict[str, Any]) -> Why:
    """Put the facts where they belong: into what is known of the queue, of the task, or of its host."""
    for fact in facts:
        for name, value in fact.items():
            if hasattr(base, name):
                base = replace(base, **{name: value})
            elif base.host is not None and hasattr(base.host, name):
                base = replace(base, host=replace(base.host, **{name: value}))
            else:
                base = replace(base, info=replace(base.info, **{name: value}))
    return base


@pytest.mark.parametrize(
    ("base", "facts", "code"),
    [
        # ready
        (READY, (), "queued"),
        (READY, (CRASHED,), "suspect"),
        (READY, (NOBODY, CRASHED), "no_worker"),
        (READY, (PAUSED, NOBODY, CRASHED), "paused"),
        # waiting for its host's turn: what ends by itself comes after what does not
        (WAITS, (), "turn"),
        (WAITS, (NOBODY, CRASHED), "no_worker"),
        (WAITS, (RESTS, NOBODY, CRASHED), "delay"),
        (WAITS, (FULL, RESTS, NOBODY), "host_busy"),
        (WAITS, (SPENT, RESTS, NOBODY), "budget"),
        (WAITS, (SPENT, FULL, RESTS), "host_busy"),
        (WAITS, ({"budget": 5, "visits": 4}, {"busy": 1, "in_flight": ("x",)}, RESTS), "budget"),
        (WAITS, ({"budget": 5, "visits": 3}, {"busy": 1, "in_flight": ("x",)}, RESTS), "delay"),
        (WAITS, (BLOCKED, SPENT, FULL, RESTS, NOBODY), "blocked"),
        (WAITS, ({"blocked_until": NOW - 1, "next_allowed": NOW},), "turn"),
        (WAITS, (BANNED, BLOCKED, SPENT, FULL, RESTS, NOBODY), "banned"),
        (WAITS, (PAUSED, BANNED, BLOCKED, SPENT, FULL, RESTS, NOBODY), "paused"),
        # other states: nothing of the queue or the host matters
        (WAITS, ({"state": State.DONE}, PAUSED, BANNED), "done"),
        (WAITS, ({"state": State.FAILED, "error": "HTTP 404"}, PAUSED, BANNED), "failed"),
        (WAITS, ({"state": State.FAILED, "error": "host a.example is banned: x"}, PAUSED, BANNED), "banned"),
        (WAITS, ({"state": State.FAILED, "error": "host a.example is banned: x"}, PAUSED), "failed"),
        (WAITS, ({"state": State.IN_PROGRESS, "lease_left": 0.1, "holder": "w"}, PAUSED, BANNED), "running"),
        (WAITS, ({"state": State.IN_PROGRESS, "lease_left": -5.0, "holder": "w"}, NOBODY), "expired"),
        (WAITS, ({"state": State.SCHEDULED, "due": NOW + 1}, PAUSED, BANNED, NOBODY), "due"),
        (WAITS, ({"state": State.SCHEDULED, "due": NOW}, PAUSED, BANNED, NOBODY), "overdue"),
    ],
)  # fmt: skip
def test_of_several_reasons_the_one_is_told_that_has_to_end_first(
    base: Why, facts: tuple[dict[str, Any], ...], code: str
) -> None:
    assert judge(found(base, *facts))[0] == code


@pytest.mark.parametrize(
    ("todos", "workers", "says"),
    [
        (1, 1, "it is ready, and nothing else is; 1 worker is alive"),
        (2, 1, "it is ready, and so is 1 other; 1 worker takes them in any order"),
        (1201, 3, "it is ready, and so are 1,200 others; 3 workers take them in any order"),
    ],
)
def test_what_is_ready_is_told_in_numbers_that_agree(todos: int, workers: int, says: str) -> None:
    assert judge(replace(READY, todos=todos, workers=workers)) == ("queued", says)


def test_an_overdue_task_that_waits_for_a_method_says_so_beside_the_missing_cleaner() -> None:
    lacks = "Retry: spider 'shop' has no method 'parse_item' in this version"
    facts: dict[str, Any] = {"state": State.SCHEDULED, "due": NOW - 60, "failures": 1, "releases": 2, "error": lacks}
    code, message = judge(found(READY, facts))
    assert code == "overdue"
    assert lacks in message
    assert "is a worker or a cleaner alive?" in message


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (None, "the rules of its host have changed"),
        (NOW + 1, "the rules of its host have changed"),
        (NOW, "its host has its turn now"),
        (NOW - 1, "its host has its turn now"),
    ],
)
def test_a_task_that_only_waits_for_a_turn_is_told_whether_its_host_has_one(turn: float | None, says: str) -> None:
    code, message = judge(found(WAITS, {"turn": turn}))
    assert (code, message.partition(":")[0]) == ("turn", says)


def test_a_command_that_is_advised_takes_tasks_and_hosts_of_any_text() -> None:
    reason = Reason("banned", f"no; {ADVICE['banned']}", TaskInfo("c d; e", State.FAILED, host="a; b"))
    message = advised(reason, {"banned": "timeoutq unblock {queue} {host} {task}"}, "q")
    assert shlex.split(message) == ["no;", "timeoutq", "unblock", "q", "a; b", "c d; e"]
