"""The standing of a host: which one wins when several hold, and what it needs to hold at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from timeoutq import HostInfo
from timeoutq.words.standing import HOLDS, Standing, standing

NOW = 1_800_000_000.0
HOST = HostInfo("a.example", 3, (), None, 1.0, 2, None, 0, 0, None, None, "", None, 0)

MAKES: dict[Standing, dict[str, Any]] = {
    Standing.BANNED: {"banned": "spider trap"},
    Standing.BLOCKED: {"blocked_until": NOW + 60},
    Standing.FULL: {"busy": 2},
    Standing.TURN: {"turn": NOW + 5},
    Standing.USED_UP: {"budget": 5, "visits": 5},
    Standing.RESTING: {"next_allowed": NOW + 5},
    Standing.FREE: {},
}
"""In the order of precedence: facts that make each standing hold, and no other one."""


def host(*facts: dict[str, Any]) -> HostInfo:
    return replace(HOST, **{name: value for fact in facts for name, value in fact.items()})


def test_the_table_names_each_standing_once_in_the_order_of_precedence() -> None:
    assert list(HOLDS) == list(MAKES) == list(Standing)


@pytest.mark.parametrize("wins", MAKES)
def test_a_standing_wins_over_all_that_come_after_it(wins: Standing) -> None:
    after = list(MAKES)[list(MAKES).index(wins) :]
    assert standing(host(*(MAKES[each] for each in after)), NOW) is wins


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"banned": ""}, Standing.BANNED),  # without a reason
        ({"blocked_until": NOW + 0.001}, Standing.BLOCKED),
        ({"blocked_until": NOW}, Standing.FREE),
        ({"busy": 1}, Standing.FREE),
        ({"busy": 3}, Standing.FULL),  # its rules have changed
        ({"turn": NOW - 5}, Standing.TURN),  # no cleaner has come by yet
        ({"budget": 5, "visits": 4}, Standing.FREE),
        ({"budget": 5, "visits": 4, "busy": 1}, Standing.USED_UP),
        ({"budget": 5, "visits": 3, "busy": 2}, Standing.FULL),  # one of them may yet be given back
        ({"next_allowed": NOW}, Standing.FREE),
    ],
)
def test_where_each_standing_begins_and_ends(facts: dict[str, Any], found: Standing) -> None:
    assert standing(host(facts), NOW) is found
