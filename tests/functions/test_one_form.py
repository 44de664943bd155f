"""Keys and limits of equal arguments: one id and one group, however, and in whatever process, they are written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from timeoutq.functions import App, Limit, ids

EAST = timezone(timedelta(hours=1))
NOON, NOON_IN_THE_EAST = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=EAST)

EQUAL: Mapping[str, tuple[Any, Any, Any, str]] = {
    "a set": (set[int], {8, 0}, {0, 8}, "[0,8]"),
    "a frozenset in a dict": (
        dict[str, frozenset[int]],
        {"a": frozenset([8, 0])},
        {"a": frozenset([0, 8])},
        '{"a":[0,8]}',
    ),
    "a dict": (dict[str, int], {"a": 1, "b": 2}, {"b": 2, "a": 1}, '{"a":1,"b":2}'),
    "a moment": (datetime, NOON_IN_THE_EAST, NOON, "2026-01-01T12:00:00Z"),
    "a set of moments": (set[datetime], {NOON_IN_THE_EAST}, {NOON}, '["2026-01-01T12:00:00Z"]'),
    "moments as keys": (dict[datetime, int], {NOON_IN_THE_EAST: 1}, {NOON: 1}, '{"2026-01-01T12:00:00Z":1}'),
    "a decimal": (Decimal, Decimal("1.50"), Decimal("1.5"), "1.5"),
    "a large decimal": (Decimal, Decimal("1E+2"), Decimal("100.0"), "100"),
    "no decimal": (Decimal, Decimal("-0.00"), Decimal(0), "0"),
    "decimals in a list": (list[Decimal], [Decimal("1.0")], [Decimal(1)], '["1"]'),
    "a float": (float, 1, 1.0, "1"),
    "a float or an int": (float | int, 2, 2.0, "2"),
    "zero": (float, -0.0, 0.0, "0"),
    "a set of floats": (set[float], {1, 2.5}, {2.5, 1.0}, "[1,2.5]"),
    "a length of time": (timedelta, timedelta(days=1), timedelta(hours=24), "P1D"),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_two_spellings_of_one_value_make_one_id_and_one_group(kind: str) -> None:
    annotation, one, other, form = EQUAL[kind]
    app = App("q")

    def of(x: Any) -> None: ...

    of.__annotations__["x"] = annotation
    keyed: Any = app.task(name="keyed", key="k:{x}", limit=Limit(per="g:{x}"))(of)
    whole: Any = app.task(name="whole", key=True)(of)
    assert one == other
    assert {keyed.call(one).key, keyed.call(other).key} == {f"k:{form}"}
    assert {keyed.call(one).group, keyed.call(other).group} == {ids.group(f"g:{form}")}
    assert whole.call(one).key == whole.call(other).key
    opened = keyed.definition.group_of_call((other,), {})
    assert opened == ids.group(f"g:{form}")


def test_values_that_differ_make_ids_that_differ() -> None:
    app = App("q")

    @app.task(key="k:{x}")
    def told(x: Any) -> None: ...

    values: list[Any] = [1, 1.5, True, None, [1], {"a": 1}, 2**60, float(2**60) * 3, "x"]
    call: Any = told.call
    assert len({call(one).key for one in values}) == len(values)


def test_the_name_of_a_function_with_capitals_is_a_group_of_its_own() -> None:
    app = App("q")
    for name in ("Send", "send"):

        @app.task(name=name, limit=Limit())
        def send() -> None: ...

    found: Any = app.functions
    assert len({found[name].call().group for name in ("Send", "send")}) == 2
