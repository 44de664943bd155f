"""What is kept of a call: values arrive as the type that the function says, and failures as text."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from timeoutq.functions import (
    BadArguments,
    BadResult,
    CallCancelled,
    CallFailed,
    CallGone,
    CallTooLarge,
    UnknownFunction,
    outcomes,
)


@dataclass
class Sent:
    to: str
    at: datetime


NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def test_a_value_arrives_as_the_type_that_the_function_says() -> None:
    unhashable = Annotated[int, msgspec.Meta(ge=1, extra={"one": 1})]
    cases: list[tuple[object, Any]] = [
        (5, int), (None, int | None), ([1, {"a": None}], Any), ((1, "a"), tuple[int, str]), ({1, 2}, set[int]),
        ([Sent("a@example.com", NOON)], list[Sent]), (b"\xff", bytes), (5, unhashable),
    ]  # fmt: skip
    for value, returns in cases:
        assert outcomes.decode(outcomes.encode(value, returns), returns) == value


class Odd:
    def __repr__(self) -> str:
        return "Odd"


class Raises(msgspec.Struct):
    def __post_init__(self) -> None:
        raise KeyError("nobody")


@pytest.mark.parametrize(
    ("value", "returns", "said"),
    [
        ("five", int, "it returned 'five', which cannot be kept: Expected `int`, got `str`"),
        (Odd(), Any, "it returned Odd, which cannot be kept: TypeError: Encoding objects of type Odd is unsupported"),
        (float("nan"), Any, "it returned nan, which cannot be kept: JSON has no NaN and no infinity"),
        ([float("inf")], list[float | None], "cannot be kept: JSON has no NaN"),
        ("a" * 262_143, str, "262,145 bytes of JSON; the limit is 262,144"),
        ({}, Raises, "cannot be kept: KeyError: 'nobody'"),
    ],
)
def test_a_value_that_would_not_arrive_is_refused_where_the_function_runs(
    value: object, returns: Any, said: str
) -> None:
    with pytest.raises(BadResult) as caught:
        outcomes.encode(value, returns)
    assert said in str(caught.value)


def test_a_failure_is_the_name_the_text_and_the_traceback_of_an_exception() -> None:
    try:
        raise ValueError("no such address")
    except ValueError as error:
        data = outcomes.failure(error)
    found = json.loads(data)
    assert (found["error"], found["message"]) == ("ValueError", "no such address")
    assert found["traceback"].startswith("Traceback (most recent call last):\n")
    assert found["traceback"].endswith("ValueError: no such address")
    assert outcomes.read_failure(data) == outcomes.CallFailure(**found)
    assert str(outcomes.read_failure(data)) == "ValueError: no such address"


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def test_a_failure_fits_and_can_be_read_whatever_the_exception_does() -> None:
    for error in (Mute(), ValueError("\udc80" * 9_999), RecursionError("x" * 99_999)):
        data = outcomes.failure(error)
        assert len(data) < outcomes.MOST
        assert outcomes.read_failure(data).error == type(error).__name__


def test_the_error_of_the_task_tells_what_no_failure_tells() -> None:
    assert str(outcomes.read_failure(None, "lost: worker w7 died")) == "lost: worker w7 died"
    assert str(outcomes.read_failure(b"", "lost: worker w7 died")) == "lost: worker w7 died"
    assert str(outcomes.read_failure(b"\xffno JSON")) == "\ufffdno JSON"
    assert str(outcomes.read_failure(None)) == "unknown error"


def test_errors_of_calls_travel_between_processes() -> None:
    told = {"id": "a", "error": "E", "message": "m", "traceback": "t"}
    errors: list[Exception] = [
        CallFailed("call a failed", **told), CallCancelled("call a was cancelled", **told), CallGone("gone", id="a"),
        BadArguments("no", function="f", parameter="p"), CallTooLarge("no", size=2, limit=1),
        UnknownFunction("no", function="f"),
    ]  # fmt: skip
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
