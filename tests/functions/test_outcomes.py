"""What is kept of a call: values arrive as the type that the function says, and failures as text."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any

import msgspec
import pytest

from timeoutq.functions import BadResult, CallCancelled, CallFailed, CallGone, outcomes


@dataclass
class Sent:
    to: str
    at: datetime


NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        (5, int),
        (None, None),
        (None, int | None),
        ("a", Any),
        ([1, {"a": None}], Any),
        ((1, "a"), tuple[int, str]),
        ({1, 2}, set[int]),
        (Sent("a@example.com", NOON), Sent),
        ([Sent("a@example.com", NOON)], list[Sent]),
        (b"\xff", bytes),
        (5, Annotated[int, msgspec.Meta(ge=1, extra={"one": 1})]),  # no hash can be had of this type
    ],
)
def test_a_value_arrives_as_the_type_that_the_function_says(value: object, returns: Any) -> None:
    data = outcomes.encode(value, returns)
    json.loads(data)
    assert outcomes.decode(data, returns) == value


def test_a_whole_number_arrives_as_a_float_where_the_function_says_so() -> None:
    assert repr(outcomes.decode(outcomes.encode(1, float), float)) == "1.0"


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
        (datetime(1880, 1, 1, tzinfo=timezone(timedelta(seconds=5025))), Any, "is off by seconds, which JSON does not"),
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


def test_a_value_of_another_version_of_the_function_is_refused_by_name() -> None:
    with pytest.raises(BadResult, match="does not fit what the function says here: Expected `int`, got `str`"):
        outcomes.decode(b'"five"', int)


def test_a_failure_is_the_name_the_text_and_the_traceback_of_an_exception() -> None:
    try:
        raise ValueError("no such address")
    except ValueError as error:
        data = outcomes.failure(error)
    found = json.loads(data)
    assert (found["error"], found["message"]) == ("ValueError", "no such address")
    assert found["traceback"].startswith("Traceback (most recent call last):\n")
    assert found["traceback"].endswith("ValueError: no such address")
    assert outcomes.read_failure(data) == outcomes.Failure(**found)
    assert str(outcomes.read_failure(data)) == "ValueError: no such address"


def test_a_reason_is_a_failure_without_an_exception() -> None:
    found = outcomes.read_failure(outcomes.failure("nobody has the function 'send'"))
    assert found == outcomes.Failure("", "nobody has the function 'send'", None)
    assert str(found) == "nobody has the function 'send'"


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize("error", [Mute(), ValueError("\udc80" * 9_999), RuntimeError(), RecursionError("x" * 99_999)])
def test_a_failure_fits_and_can_be_read_whatever_the_exception_does(error: Exception) -> None:
    data = outcomes.failure(error)
    assert len(data) < outcomes.MOST
    assert outcomes.read_failure(data).error == type(error).__name__


def test_the_error_of_the_task_tells_what_no_failure_tells() -> None:
    assert str(outcomes.read_failure(None, "lost: worker w7 died")) == "lost: worker w7 died"
    assert str(outcomes.read_failure(b"", "lost: worker w7 died")) == "lost: worker w7 died"
    assert str(outcomes.read_failure(b"\xffno JSON")) == "\ufffdno JSON"
    assert str(outcomes.read_failure(None)) == "unknown error"


def test_errors_of_calls_travel_between_processes() -> None:
    failed = CallCancelled("call a was cancelled", id="a", error="E", message="m", traceback="t")
    again = pickle.loads(pickle.dumps(failed))
    assert (type(again), str(again), vars(again)) == (CallCancelled, str(failed), vars(failed))
    assert isinstance(again, CallFailed)
    gone = pickle.loads(pickle.dumps(CallGone("call a is gone", id="a")))
    assert (str(gone), gone.id) == ("call a is gone", "a")
