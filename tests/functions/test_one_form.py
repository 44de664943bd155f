"""Keys and limits of equal arguments: one id and one group, however, and in whatever process, they are written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from timeoutq import Queue
from timeoutq.functions import App, BadArguments, BadResult, Limit, ids, outcomes

ROOT = Path(__file__).resolve().parent.parent.parent
EAST = timezone(timedelta(hours=1))
NOON, NOON_IN_THE_EAST = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=EAST)

IN_ANOTHER_PROCESS = """
from timeoutq.functions import App, Limit
app = App("q")
@app.task(key="tag:{tags}", limit=Limit(per="t:{tags}"), keep_result=0)
def tagged(tags: set[str]): ...
@app.task(key=True, keep_result=0)
def whole(tags: dict[str, frozenset[str]]): ...
tags = {"red", "green", "blue", "black", "white"}
call = tagged.call(tags)
print(call.key, call.group, whole.call({"b": frozenset(tags), "a": frozenset()}).key)
"""


def test_a_set_makes_one_id_and_one_group_in_every_process() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS], cwd=ROOT, env={"PYTHONHASHSEED": str(seed)}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in range(4)
    }  # fmt: skip
    tags = '["black","blue","green","red","white"]'
    assert said == {f'tag:{tags} t:{tags} whole:{{"tags":{{"a":[],"b":{tags}}}}}\n'}


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
    "a time of day": (time, time(13, tzinfo=EAST), time(12, tzinfo=UTC), "12:00:00Z"),
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


def test_texts_that_a_host_name_would_not_tell_apart_have_limits_of_their_own(queue: Queue, url: str) -> None:
    app = App(queue.name, url=url)

    @app.task(limit=Limit(per="channel:{id}"))
    def watch(id: str) -> None: ...

    @app.task(limit=Limit(per="{page}"))
    def visit(page: str) -> None: ...

    names = ("UCabc", "UCABC", "UCabc.", "ucabc", "ucabc..", "M\u00fcnchen", "m\u00fcnchen", ".", "")
    watched = [watch.call(id) for id in names]
    visited = [visit.call(page) for page in ("http://a.example/1", "http://a.example/2", "a.example", ".", "..", "")]
    app.put([*watched, *visited])
    groups = {call.group for call in [*watched, *visited]}
    assert len(groups) == 15
    assert {"channel:ucabc", "a.example"} < groups
    assert len(queue.claim(100)) == 15, "none waits for another"
    app.close()


def test_the_name_of_a_function_with_capitals_is_a_group_of_its_own() -> None:
    app = App("q")
    for name in ("Send", "send"):

        @app.task(name=name, limit=Limit())
        def send() -> None: ...

    found: Any = app.functions
    assert len({found[name].call().group for name in ("Send", "send")}) == 2


ODD = datetime(1880, 1, 1, tzinfo=timezone(timedelta(seconds=5025)))
"""A moment in a zone that counts seconds, as most zones did a century ago; JSON has minutes."""


@pytest.mark.parametrize("value", [ODD, [ODD], {"at": ODD}, {ODD: 1}], ids=["alone", "in a list", "in a dict", "a key"])
def test_a_moment_that_would_arrive_as_another_is_refused_as_an_argument_and_as_a_result(value: Any) -> None:
    app = App("q")

    def at(when: Any) -> None: ...

    at.__annotations__["when"] = (
        Any if isinstance(value, dict) else {datetime: datetime, list: list[datetime]}[type(value)]
    )
    sent: Any = app.task(name="at")(at)
    with pytest.raises(BadArguments, match="would get"):
        sent.call(value)
    with pytest.raises(BadResult, match="JSON holds no zone that is off by seconds"):
        outcomes.encode(value, Any)
