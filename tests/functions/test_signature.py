"""Signatures: which arguments a function takes, as JSON and back, and what is refused, by name."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from timeoutq.functions import App, BadArguments, BadFunction, Context
from timeoutq.functions.signature import Arguments, Signature, returned

if TYPE_CHECKING:
    from fractions import Fraction

Function = Callable[..., Any]


@dataclass
class Visit:
    at: datetime


class Colour(enum.Enum):
    RED = "red"


class Place(NamedTuple):
    x: int
    y: int


class Head(TypedDict, total=False):
    title: str


@dataclass
class User:
    name: str
    friends: list[User]


class Pair(msgspec.Struct):
    left: int
    right: Any = None


class Triple(Pair):
    more: int = 0


@dataclass
class Holder:
    pair: Pair


class Database: ...


def send(to: str, *, subject: str = "Hi") -> None: ...
def mixed(x: int, /, y: int = 2, *rest: int, z: float | None = None, **more: list[int]) -> None: ...
def bare(x, y=None): ...  # type: ignore[no-untyped-def]  # as many write them
def with_context(ctx: Context[Database], to: str) -> None: ...


def sign(function: Function) -> Signature:
    return Signature.of(function, function.__name__)


def sent(function: Function, *args: object, **kwargs: object) -> tuple[str, str]:
    (a, k), _ = sign(function).encode(args, kwargs)
    return a.decode(), k.decode()


def came(function: Function, a: str = "[]", k: str = "{}") -> tuple[list[object], dict[str, object]]:
    args, kwargs = sign(function).decode(Arguments(a.encode(), k.encode()))
    return list(args), dict(kwargs)


def refused(function: Function, *args: object, **kwargs: object) -> str:
    with pytest.raises(BadArguments) as caught:
        sign(function).encode(args, kwargs)
    assert caught.value.function == function.__name__
    assert caught.value.parameter is None or repr(caught.value.parameter) in str(caught.value)
    return str(caught.value)


def bad(function: Function) -> str:
    with pytest.raises(BadFunction) as caught:
        sign(function)
    return str(caught.value)


# ---- from a call to JSON


def test_a_parameter_that_has_a_name_travels_under_its_name_however_it_was_passed() -> None:
    assert sent(send, "a", subject="b") == ("[]", '{"to":"a","subject":"b"}')
    assert sent(send, subject="b", to="a") == ("[]", '{"to":"a","subject":"b"}')


def test_a_default_does_not_travel_but_is_among_the_values() -> None:
    assert sent(send, "a") == ("[]", '{"to":"a"}')
    for function, args, values in (
        (send, ("a",), {"to": "a", "subject": "Hi"}),
        (mixed, (1,), {"x": 1, "y": 2, "rest": [], "z": None, "more": {}}),
    ):
        signature = sign(function)
        assert signature.values(signature.encode(args, {})[1]) == values


def test_what_has_no_name_for_callers_travels_by_its_place() -> None:
    assert sent(mixed, 1) == ("[1]", "{}")
    assert sent(mixed, 1, 2, 3, 4, z=1.5, q=[5]) == ("[1,2,3,4]", '{"z":1.5,"q":[5]}')
    assert sent(mixed, 1, y=5) == ("[1,5]", "{}")


def test_behind_an_argument_that_was_left_out_the_others_keep_their_parameters() -> None:
    def sized(width: int = 1, height: int = 2, *rest: int) -> None: ...

    encoded = sent(sized, height=5)
    assert encoded == ("[]", '{"height":5}')
    assert came(sized, *encoded) == ([], {"height": 5})


def test_what_json_would_change_is_refused_where_nothing_says_its_type() -> None:
    for value in ((1, 2), [(1,)], {"a": {1: 2}}, {3}, b"x", Colour.RED, Place(1, 2), date(2026, 1, 1)):
        said = refused(bare, value)
        assert said.startswith(f"bare() was passed {value!r} for 'x', but would get ")
        assert said.endswith(": annotate the parameter, or pass what its annotation says")

    def inside(x: list[Any] | dict[str, list[Any]], y: dict[Any, int] | None = None) -> None: ...

    assert sent(inside, [1, [2]], {"1": 2})[1] == '{"x":[1,[2]],"y":{"1":2}}'
    assert "'x', but would get [1, [2]]" in refused(inside, [1, (2,)])
    assert "'y', but would get {'1': 2}" in refused(inside, [], {1: 2})


# ---- what callers are told


def test_an_error_names_the_function_the_parameter_and_what_it_expects() -> None:
    assert refused(send, 1) == "send() got 1 for 'to': Expected `str`, got `int`"
    assert refused(send, "a", subject=b"b") == "send() got b'b' for 'subject': Expected `str`, got `bytes`"
    assert (
        refused(mixed, 1, 2, "three") == "mixed() got ['three'] for 'rest': Expected `int`, got `str` - at `$.rest[0]`"
    )
    assert refused(mixed, True) == "mixed() got True for 'x': Expected `int`, got `bool`"
    assert refused(mixed, 1.0) == "mixed() got 1.0 for 'x': Expected `int`, got `float`"


def test_arguments_that_python_would_refuse_are_refused_with_the_same_reason() -> None:
    assert refused(send) == "send() needs 'to'"
    assert refused(send, "a", "b") == "send() takes 1 positional argument, but got 2"
    assert refused(send, "a", to="b") == "send() got 'to' twice"
    assert refused(send, "a", body="b") == "send() has no parameter 'body'; it takes to, subject"
    assert refused(send, "a", **{"é\ud800": 1}) == "send() has no parameter 'é\\ud800'; it takes to, subject"

    def by_place(x: int, /) -> None: ...

    assert refused(by_place, x=1) == "by_place() takes 'x' as a positional argument only"


def test_nan_and_infinity_are_refused_and_do_not_become_null() -> None:
    def takes(x: Any = None, y: float | None = None, z: float = 0) -> None: ...

    def only(x: float) -> None: ...

    for value in (float("nan"), -float("inf")):
        assert "for 'x': Expected `float`" in refused(only, value)
        assert "'x', but would get [None]" in refused(takes, [value])
        assert "'y', but would get None" in refused(takes, y=value)
        assert "for 'z': Expected `float`" in refused(takes, z=value)


def test_what_cannot_be_written_at_all_is_an_error_of_the_same_kind() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, 10**5000, [object()]):
        assert "'x'" in refused(bare, value)
    assert "lone surrogate" in refused(send, "\udcff")


def test_a_subclass_that_would_arrive_as_its_base_is_refused() -> None:
    def takes(pairs: list[Pair], holder: Holder) -> None: ...

    assert "'pairs'" in refused(takes, [Triple(1)], Holder(Pair(1)))
    assert "takes() was passed" in refused(takes, [], Holder(Triple(1, more=5)))
    assert sent(takes, [Pair(1)], Holder(Pair(1)))[0] == "[]"


# ---- from JSON to a call


def test_a_worker_takes_arguments_by_name_and_by_place() -> None:
    assert came(send, "[]", '{"to":"a","subject":"b"}') == ([], {"to": "a", "subject": "b"})
    assert came(send, '["a"]', '{"subject":"b"}') == ([], {"to": "a", "subject": "b"})
    assert came(send, ' [ "a" ] ', " { } ") == ([], {"to": "a"})
    assert came(mixed, "[1,2,3]", '{"z":null}') == ([1, 2, 3], {"z": None})


def test_a_worker_tells_what_does_not_fit_and_no_value() -> None:
    cases = {
        ('["a"]', '{"subject":12345}'): "send() cannot take 'subject': Expected `str`, got `int`",
        ("[]", "{}"): "send() needs 'to'",
        ('["a","12345"]', "{}"): "send() takes 1 positional argument, but got 2",
        ('["a"]', '{"to":"12345"}'): "send() got 'to' twice",
        ("[]", '{"to":"a","body":"12345"}'): "send() has no parameter 'body'; it takes to, subject",
    }
    for (a, k), said in cases.items():
        with pytest.raises(BadArguments) as caught:
            came(send, a, k)
        assert str(caught.value) == said


def test_a_worker_does_not_tell_the_value_that_is_none_of_those_expected() -> None:
    def takes(colour: Colour, size: Literal["s", "m"] = "s") -> None: ...

    assert refused(takes, "12345") == "takes() got '12345' for 'colour': Invalid enum value '12345'"
    for k in ('{"colour":"12345"}', '{"colour":"red","size":"12345"}'):
        with pytest.raises(BadArguments, match=r"cannot take '\w+': Invalid enum value\Z"):
            came(takes, "[]", k)


def test_what_is_no_json_of_arguments_is_an_error_of_the_same_kind() -> None:
    for function in (send, mixed):
        for k in ("", "[]", "null", '{"to":"\\ud800"}', '{"to":"a"} x', "[" * 100_000):
            for a in ("[]", '["a"]', "5"):
                with pytest.raises(BadArguments):
                    came(function, a, k)


# ---- the context


def test_the_context_is_hidden_from_callers() -> None:
    assert sign(with_context).context == "ctx"
    assert sent(with_context, "a") == ("[]", '{"to":"a"}')
    assert refused(with_context, "a", ctx=1) == "with_context() gets 'ctx' from the worker: leave it out"
    assert "ctx" not in json.dumps(sign(with_context).schema())

    def any_names(ctx: Context[Any], **more: int) -> None: ...

    assert refused(any_names, ctx=1) == "any_names() gets 'ctx' from the worker: leave it out"


def test_a_context_that_is_not_the_first_parameter_is_refused() -> None:
    def second(x: int, ctx: Context[Any]) -> None: ...

    def by_name(*, ctx: Context[Any]) -> None: ...

    def bare_context(ctx, x: int) -> None: ...  # type: ignore[no-untyped-def]  # this is what is refused

    assert bad(second) == "second(): 'ctx' is the context: let it be the first parameter"
    assert bad(by_name) == "by_name(): 'ctx' is the context: let it be the first parameter"
    assert bad(bare_context).startswith("bare_context(): annotate 'ctx' as Context")


# ---- reading a function


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Database, "Database is no type of JSON"),
        (dict[str, tuple[int, Database | None]], "Database is no type of JSON"),
        (Path, "Path is no type of JSON"),
        (object, "object is no type of JSON: pass what it is made of, make it a dataclass, or say Any"),
        (list[int] | set[int], "more than one array-like"),
    ],
)
def test_a_type_that_json_cannot_hold_is_refused_when_the_function_is_decorated(annotation: Any, why: str) -> None:
    def takes(fine: int, db) -> None: ...  # type: ignore[no-untyped-def]  # its annotation is set by hand

    takes.__annotations__["db"] = annotation
    said = bad(takes)
    assert said.startswith("takes(): 'db' cannot be passed: ")
    assert why in said


def test_an_annotation_that_is_not_there_at_run_time_is_named() -> None:
    def takes(share: Fraction) -> None: ...

    assert bad(takes).startswith("takes(): its annotations cannot be read: NameError: name 'Fraction' is not defined")
    assert "TYPE_CHECKING" in bad(takes)


def test_a_result_that_json_cannot_hold_is_refused() -> None:
    def gives() -> Database: ...  # type: ignore[empty-body]  # never called

    def says_nothing(): ...  # type: ignore[no-untyped-def]  # as many write them

    with pytest.raises(BadFunction, match=r"gives\(\): what it returns cannot be kept: Database .* keep_result=0"):
        returned(gives, "gives")
    assert returned(says_nothing, "says_nothing") is Any
    assert returned(send, "send") is type(None)


def test_a_function_may_call_itself_and_use_classes_of_the_function_around_it() -> None:
    def make() -> Signature:
        @dataclass
        class Local:
            n: int

        found: list[Signature] = []

        def decorated(function: Function) -> Function:
            found.append(sign(function))
            return function

        @decorated
        def inner(to: Local) -> None:
            inner(Local(1))

        return found[0]

    (found,), _ = make().decode(Arguments(b"[]", b'{"to":{"n":5}}'))
    assert str(found).rpartition(".")[2] == "Local(n=5)"


def test_a_wrapper_takes_what_the_function_takes_that_it_wraps() -> None:
    @functools.wraps(send)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert sent(wrapper, "a", subject="b") == ("[]", '{"to":"a","subject":"b"}')


# ---- the result of another call as the first argument


def test_a_result_becomes_the_first_argument() -> None:
    def named(page: str, depth: int = 0) -> None: ...

    def any_number(*pages: str) -> None: ...

    def alone(page: str, /, depth: int = 0) -> None: ...

    cases: list[tuple[Function, tuple[object, ...], str]] = [
        (named, (), '"p"'),
        (named, (3,), '"p"'),
        (mixed, (3, 4), "5"),
        (any_number, ("q",), '"p"'),
        (alone, (), '"p"'),
    ]
    for function, args, first in cases:
        signature = sign(function)
        rest, _ = signature.without_first().encode(args, {})
        found = signature.decode(signature.with_first(first.encode(), rest))
        wanted = signature.decode(signature.encode((json.loads(first), *args), {})[0])
        assert found == wanted


# ---- schemas


def test_the_schema_says_what_a_program_in_another_language_has_to_write() -> None:
    schema = sign(send).schema()
    assert schema["properties"]["f"] == {"const": "send"}
    assert schema["properties"]["k"] == {
        "type": "object",
        "properties": {"to": {"type": "string"}, "subject": {"type": "string", "default": "Hi"}},
        "required": ["to"],
        "additionalProperties": False,
    }
    assert schema["required"] == ["v", "f", "k"]


def test_the_schema_of_a_function_with_all_kinds_of_parameters() -> None:
    schema = sign(mixed).schema()["properties"]
    assert schema["a"] == {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "integer", "default": 2}],
        "minItems": 1,
        "items": {"type": "integer"},
    }
    assert schema["k"]["properties"] == {"z": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}}
    assert schema["k"]["additionalProperties"] == {"type": "array", "items": {"type": "integer"}}


def test_a_def_may_say_that_it_returns_a_coroutine() -> None:
    @App("mail").task
    def later() -> Coroutine[Any, Any, date]: ...  # type: ignore[empty-body]  # nobody calls it

    assert later.definition.returns is date
