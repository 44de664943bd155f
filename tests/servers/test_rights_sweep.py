"""Every command of each verb is forbidden, every key clobbered, in turn, and servers are full: nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.rig.rights import RULES, Case, cases, play

ALL = list(cases())

BEHIND = [
    Case("ack", "ranked", key="in_progress"), Case("ack", "ranked", key="done"), Case("ack", "rude", key="todos"),
    Case("fail", "ranked", key="crashes"), Case("fail", "ranked", key="releases"), Case("fail", "rude", key="todos"),
    Case("ack and put itself", "plain", key="todos"), Case("ack and put itself", "plain", key="failed"),
    Case("ack and put itself", "polite", key="done"),
    Case("retry some", "plain", key="in_progress"), Case("retry some", "plain", key="done"),
    Case("retry some", "polite", key="scheduled"),
    Case("turns", "polite", key="todos"), Case("turns", "ranked", key="waiting"),
    Case("requeue_expired of what is gone", "plain", key="scheduled"),
    Case("requeue_expired of what is gone", "ranked", key="done"),
    Case("requeue_expired of what is gone", "plain", key="waiting"),
    Case("requeue_expired after a restart", "plain", key="stats"),
    Case("ack", "logged", key="events"), Case("claim", "logged", key="events"), Case("put", "logged", key="events"),
    Case("forget", "logged", key="events"), Case("turns", "logged", key="events"),
]  # fmt: skip
"""Keys that a call needs late, or rarely: it has written by then, and what it leaves must be healed."""


def trial(url: str, raw: redis.Redis, some: list[Case]) -> None:
    """Play these cases."""
    plain: Any = redis.Redis.from_url(url)
    try:
        wrong = [f"{case}: {said}" for case in some if (said := play(url, plain, case)) is not None]
    finally:
        plain.execute_command("ACL", "DELUSER", "half")
        plain.close()
    assert wrong == []


def test_a_call_that_is_refused_half_way_loses_nothing(url: str, raw: redis.Redis) -> None:
    trial(url, raw, ALL[::288])


@pytest.mark.parametrize("rule", RULES)
def test_a_full_server_refuses_what_is_new_and_nothing_else(url: str, raw: redis.Redis, rule: str) -> None:
    trial(url, raw, [case for case in ALL if case.rule == rule and not (case.command or case.key)])


def test_a_call_that_meets_a_key_of_a_foreign_type_late_loses_nothing(url: str, raw: redis.Redis) -> None:
    assert set(BEHIND) <= set(ALL)
    trial(url, raw, BEHIND)


@pytest.mark.breaking
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(6))
def test_no_call_that_is_refused_half_way_loses_anything(
    request: pytest.FixtureRequest, url: str, raw: redis.Redis, part: int
) -> None:
    """A twelfth of all cases on one server, another twelfth on the other; `python -m tests.rig.rights` plays all."""
    first = {"valkey": 0, "redis": 6}[request.node.callspec.params["server"]]
    trial(url, raw, ALL[first + part :: 72])


def test_all_cases_are_many() -> None:
    assert len(ALL) > 1500
    assert {case.rule for case in ALL} == set(RULES)
