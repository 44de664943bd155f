"""A walk over signatures: parameters of any kind and any nested type, called in any way, as JSON and back."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from inspect import Parameter
from inspect import Signature as PythonSignature
from types import GenericAlias
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from timeoutq.functions import ids
from timeoutq.functions.signature import Signature


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class User:
    name: str
    born: date | None = None


class Order(msgspec.Struct):
    users: list[User]
    paid: Decimal


class Box(msgspec.Struct, tag="box"):
    inside: Box | Ball | None


class Ball(msgspec.Struct, tag="ball"):
    size: int


@dataclass(frozen=True)
class Kind:
    """A type, and values of it."""

    annotation: Any
    values: st.SearchStrategy[Any]


texts = st.text(max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
ints = st.integers(-(2**70), 2**70)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1000, 1, 1), datetime(9999, 1, 1), timezones=zones | st.just(UTC))  # noqa: DTZ001  # bounds
decimals = st.decimals(allow_nan=False, allow_infinity=False)
users = st.builds(User, texts, st.dates() | st.none())
boxes: st.SearchStrategy[Any] = st.recursive(
    st.builds(Ball, st.integers(0, 9)) | st.none(), lambda inner: st.builds(Box, inner), max_leaves=4
)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | ints | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

SIMPLE = [
    Kind(str, texts),
    Kind(int, ints),
    Kind(bool, st.booleans()),
    Kind(float, floats),
    Kind(bytes, st.binary(max_size=8)),
    Kind(type(None), st.none()),
    Kind(Any, anything),
    Kind(Parameter.empty, anything),
    Kind(Decimal, decimals),
    Kind(date, st.dates()),
    Kind(datetime, moments),
    Kind(timedelta, st.timedeltas(timedelta(days=-9_000), timedelta(days=9_000))),
    Kind(Colour, st.sampled_from(Colour)),
    Kind(User, users),
    Kind(Order, st.builds(Order, st.lists(users, max_size=2), decimals)),
    Kind(Box, st.builds(Box, boxes)),
    Kind(int | str | None, ints | texts | st.none()),
]
NESTED: list[Callable[[Kind], Kind]] = [
    lambda kind: Kind(GenericAlias(list, kind.annotation), st.lists(kind.values, max_size=3)),
    lambda kind: Kind(GenericAlias(tuple, (kind.annotation, ...)), st.lists(kind.values, max_size=3).map(tuple)),
    lambda kind: Kind(GenericAlias(tuple, (int, kind.annotation)), st.tuples(ints, kind.values)),
    lambda kind: Kind(GenericAlias(dict, (str, kind.annotation)), st.dictionaries(texts, kind.values, max_size=3)),
    lambda kind: Kind(GenericAlias(dict, (int, kind.annotation)), st.dictionaries(ints, kind.values, max_size=3)),
    lambda kind: Kind(GenericAlias(Sequence, kind.annotation), st.lists(kind.values, max_size=3)),
]


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    kind = draw(st.sampled_from(SIMPLE))
    for _ in range(draw(st.integers(0, 2))):
        if kind.annotation is not Parameter.empty:
            kind = draw(st.sampled_from(NESTED))(kind)
    return kind


@dataclass
class Case:
    """A function, and a call of it."""

    signature: Signature
    python: PythonSignature
    args: list[Any]
    kwargs: dict[str, Any]


ORDER = [
    Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY,
    Parameter.VAR_KEYWORD,
]  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw parameters in the order that Python wants, and arguments that Python would take."""
    drawn = sorted(draw(st.lists(st.sampled_from(ORDER), max_size=5)))
    once = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    shapes = [kind for place, kind in enumerate(drawn) if kind not in once or kind not in drawn[:place]]
    parameters: list[Parameter] = []
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    optional, by_place = False, True
    for place, shape in enumerate(shapes):
        kind, name = draw(kinds()), f"p{place}"
        default = Parameter.empty
        if shape not in once and (draw(st.booleans()) or (optional and shape is not Parameter.KEYWORD_ONLY)):
            default, optional = draw(kind.values), optional or shape is not Parameter.KEYWORD_ONLY
        parameters.append(Parameter(name, shape, default=default, annotation=kind.annotation))
        if shape is Parameter.VAR_POSITIONAL:
            args += draw(st.lists(kind.values, max_size=3)) if by_place else []
        elif shape is Parameter.VAR_KEYWORD:
            kwargs |= draw(st.dictionaries(st.sampled_from(["é", "x", "self", "a b"]), kind.values, max_size=2))
        elif default is not Parameter.empty and draw(st.booleans()):
            by_place = by_place and shape is Parameter.KEYWORD_ONLY
        elif (
            shape is Parameter.KEYWORD_ONLY
            or not by_place
            or (shape is not Parameter.POSITIONAL_ONLY and draw(st.booleans()))
        ):
            if shape is Parameter.POSITIONAL_ONLY:
                continue  # behind a default that was left out, it cannot be passed
            by_place = by_place and shape is Parameter.KEYWORD_ONLY
            kwargs[name] = draw(kind.values)
        else:
            args.append(draw(kind.values))
    python = PythonSignature(parameters)

    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__signature__ = python  # type: ignore[attr-defined]  # inspect looks for it
    return Case(Signature.of(function, "function"), python, args, kwargs)


@given(cases())
def test_arguments_arrive_as_they_were_sent_however_they_were_passed(case: Case) -> None:
    encoded, _ = case.signature.encode(case.args, case.kwargs)
    args, kwargs = case.signature.decode(encoded)
    sent, came = case.python.bind(*case.args, **case.kwargs), case.python.bind(*args, **kwargs)
    assert came.arguments == sent.arguments
    for name, value in came.arguments.items():
        assert type(value) is type(sent.arguments[name]) or isinstance(value, float)
    assert case.signature.encode(args, kwargs)[0] == encoded, "the same call is the same bytes"


@given(cases())
def test_the_same_call_has_the_same_key_however_it_was_passed(case: Case) -> None:
    def key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return ids.whole_call("function", case.signature.values(case.signature.encode(args, kwargs)[1]))

    encoded, _ = case.signature.encode(case.args, case.kwargs)
    whole = case.python.bind(*case.args, **case.kwargs)
    whole.apply_defaults()
    assert key(case.args, case.kwargs) == key(*case.signature.decode(encoded)) == key(whole.args, whole.kwargs)
