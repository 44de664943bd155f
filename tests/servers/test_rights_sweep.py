"""Every command of every script is forbidden, and every key clobbered, in turn: nothing that was accepted is lost."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.rig.rights import RULES, Case, cases, play

ALL = list(cases())


def trial(url: str, raw: redis.Redis, some: list[Case]) -> None:
    """Play these cases."""
    plain: Any = redis.Redis.from_url(url)
    try:
        wrong = [f"{case}: {said}" for case in some if (said := play(url, plain, case)) is not None]
    finally:
        plain.execute_command("ACL", "DELUSER", "half")
        plain.close()
    assert wrong == []


@pytest.mark.parametrize("part", range(2))
def test_a_script_that_is_refused_half_way_loses_nothing(url: str, raw: redis.Redis, part: int) -> None:
    trial(url, raw, ALL[part::64])


@pytest.mark.breaking
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(12))
def test_no_script_that_is_refused_half_way_loses_anything(url: str, raw: redis.Redis, part: int) -> None:
    trial(url, raw, ALL[part::12])


def test_all_cases_are_many() -> None:
    assert len(ALL) > 1500
    assert {case.rule for case in ALL} == set(RULES)
