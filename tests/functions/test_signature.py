"""Signatures: which arguments a function takes, as JSON and back, and what is refused, by name."""

from __future__ import annotations

import enum
import functools
import json
import pickle
import uuid
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn, TypedDict

import msgspec
import pytest

from timeoutq.functions import BadArguments, BadFunction, Context
from timeoutq.functions.signature import Arguments, Signature, returned
from timeoutq.words.errors import InvalidInput

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


class Database: ...


def send(to: str, *, subject: str = "Hi") -> None: ...
def mixed(x: int, /, y: int = 2, *rest: int, z: float | None = None, **more: list[int]) -> None: ...
def bare(x, y=None): ...  # type: ignore[no-untyped-def]  # as many write them
def with_context(ctx: Context[Database], to: str) -> None: ...


def sign(function: Function) -> Signature:
    return Signature.of(function, function.__name__)


def sent(function: Function, *args: object, **kwargs: object) -> tuple[str, str]:
    a, k = sign(function).encode(args, kwargs).arguments
    return a.decode(), k.decode()


def came(function: Function, a: str = "[]", k: str = "{}") -> tuple[list[object], dict[str, object]]:
    return sign(function).decode(Arguments(a.encode(), k.encode()))


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
    found = sign(send).encode(("a",), {})
    assert found.arguments == (b"[]", b'{"to":"a"}')
    assert found.values == {"to": "a", "subject": "Hi"}
    assert sign(mixed).encode((1,), {}).values == {"x": 1, "y": 2, "rest": [], "z": None, "more": {}}


def test_what_has_no_name_for_callers_travels_by_its_place() -> None:
    assert sent(mixed, 1) == ("[1]", "{}")
    assert sent(mixed, 1, 2, 3, 4, z=1.5, q=[5]) == ("[1,2,3,4]", '{"z":1.5,"q":[5]}')
    assert sent(mixed, 1, y=5) == ("[1,5]", "{}")


def test_a_name_may_be_that_of_a_positional_parameter_where_any_name_is_taken() -> None:
    assert sent(mixed, 1, x=[2]) == ("[1]", '{"x":[2]}')
    assert came(mixed, "[1]", '{"x":[2]}') == ([1], {"x": [2]})


def test_behind_a_gap_arguments_travel_by_their_names() -> None:
    def gap(x: int = 1, y: int = 2, *rest: int) -> None: ...

    assert sent(gap, y=3) == ("[]", '{"y":3}')
    assert came(gap, "[]", '{"y":3}') == ([], {"y": 3})


def test_a_parameter_without_annotation_takes_any_json() -> None:
    assert sent(bare, {"a": [1, 2.5, None, True, "x"]}) == ("[]", '{"x":{"a":[1,2.5,null,true,"x"]}}')


@pytest.mark.parametrize("value", [(1, 2), [(1,)], {"a": {1: 2}}, {3}, b"x", Colour.RED, Place(1, 2), date(2026, 1, 1)])
def test_what_json_would_change_is_refused_where_nothing_says_its_type(value: object) -> None:
    said = refused(bare, value)
    assert said.startswith("bare() cannot take 'x': ")
    assert said.endswith("annotate the parameter, or pass None, bool, int, float, str, list or dict")


@pytest.mark.parametrize(
    "annotation",
    [
        list[Any],
        dict[str, Any],
        dict[str, list[Any]],
        list[Any] | None,
        tuple[int, Any],
        list[Any] | dict[str, Any],
        list,
        Annotated[list[Any], msgspec.Meta(max_length=3, description="words")],
    ],
)
def test_any_inside_of_other_types_is_looked_into(annotation: Any) -> None:
    def takes(x) -> None: ...  # type: ignore[no-untyped-def]  # the annotation comes in the next line

    takes.__annotations__["x"] = annotation
    good, wrong = ([1, [2]], [1, (2,)])
    if "dict" in str(annotation) and "list[typing.Any] |" not in str(annotation):
        good, wrong = {"a": good}, {"a": wrong}  # type: ignore[assignment]  # values of another kind
    if "tuple" in str(annotation):
        good, wrong = (1, [2]), (1, (2,))  # type: ignore[assignment]  # values of another kind
    assert sent(takes, good)[1] == json.dumps({"x": good}, separators=(",", ":"))
    assert "would arrive as a list" in refused(takes, wrong)


def test_keys_of_a_dict_that_are_no_texts_are_refused_unless_the_annotation_says_what_they_are() -> None:
    def takes(x: dict[Any, int], y: dict[int, int]) -> None: ...

    assert sent(takes, {"1": 2}, {1: 2}) == ("[]", '{"x":{"1":2},"y":{"1":2}}')
    assert came(takes, "[]", '{"x":{"1":2},"y":{"1":2}}')[1] == {"x": {"1": 2}, "y": {1: 2}}
    assert "the key 1 would arrive as a text" in refused(takes, {1: 2}, {})


def test_arguments_of_many_types_arrive_as_they_were() -> None:
    def takes(
        a: User, b: Pair, c: Place, d: Head, e: Colour, f: uuid.UUID, g: datetime, h: timedelta, i: Decimal, j: bytes,
        k: set[int], m: tuple[int, str], n: Literal["x", "y"], o: Annotated[int, msgspec.Meta(gt=0)],
        p: int | str | None,
    ) -> None: ...  # fmt: skip

    values = [
        User("ann", [User("bob", [])]), Pair(1), Place(1, 2), {"title": "t"}, Colour.RED, uuid.uuid4(),
        datetime.now(UTC), timedelta(days=1, microseconds=5), Decimal("1.10"), b"\0\xff", {1, 2}, (1, "é"), "x", 5,
        None,
    ]  # fmt: skip
    signature = sign(takes)
    args, kwargs = signature.decode(signature.encode(values, {}).arguments)
    assert (args, list(kwargs.values())) == ([], values)


def test_huge_numbers_and_odd_texts_travel() -> None:
    assert came(bare, "[]", sent(bare, 2**200, '\0\u2028\U0001f600"\\')[1]) == (
        [],
        {"x": 2**200, "y": '\0\u2028\U0001f600"\\'},
    )


# ---- what callers are told


def test_an_error_names_the_function_the_parameter_and_what_it_expects() -> None:
    assert refused(send, 1) == "send() got 1 for 'to': expected str"
    assert refused(send, "a", subject=b"b") == "send() got b'b' for 'subject': expected str"
    assert refused(mixed, 1, 2, "three") == "mixed() got ['three'] for 'rest': expected int, got str at rest[0]"
    assert refused(mixed, True) == "mixed() got True for 'x': expected int"
    assert refused(mixed, 1.0) == "mixed() got 1.0 for 'x': expected int"


def test_an_error_names_the_class_that_a_parameter_expects() -> None:
    def takes(user: User, pair: Pair | None = None, more: dict[str, int] | None = None) -> None: ...

    wrong: Any = object()
    assert refused(takes, wrong).endswith("for 'user': expected User")
    assert refused(takes, User("ann", []), 5).endswith("for 'pair': expected Pair | null")
    assert refused(takes, User("ann", []), more=5).endswith("for 'more': expected dict | null")


def test_an_error_says_where_inside_of_an_argument_it_is() -> None:
    def takes(user: User) -> None: ...

    wrong = User("ann", [User(5, [])])  # type: ignore[arg-type]  # dataclasses do not check
    assert refused(takes, wrong).endswith("for 'user': expected str, got int at user.friends[0].name")


def test_arguments_that_python_would_refuse_are_refused_with_the_same_reason() -> None:
    assert refused(send) == "send() needs 'to'"
    assert refused(send, "a", "b") == "send() takes 1 positional argument, but got 2"
    assert refused(send, "a", to="b") == "send() got 'to' twice"
    assert refused(send, "a", body="b") == "send() has no parameter 'body'; it takes to, subject"
    assert refused(send, "a", **{"é\ud800": 1}) == "send() has no parameter 'é\\ud800'; it takes to, subject"

    def by_place(x: int, /) -> None: ...

    assert refused(by_place, x=1) == "by_place() takes 'x' as a positional argument only"


def test_a_time_of_a_zone_that_counts_seconds_is_refused() -> None:
    def takes(one: datetime | None = None, many: list[Visit] | None = None) -> None: ...

    lmt = timezone(timedelta(hours=1, minutes=23, seconds=45))
    odd, even = (
        datetime(1880, 1, 1, tzinfo=lmt),
        datetime(1880, 1, 1, tzinfo=timezone(timedelta(hours=-1, minutes=-23))),
    )
    for given in ({"one": odd}, {"many": [Visit(even), Visit(odd)]}):
        (name,) = given
        said = refused(takes, **given)
        assert f"cannot take {name!r}: the zone of datetime.datetime(1880, 1, 1, 0, 0, tzinfo=" in said
        assert "is off by seconds, which JSON does not hold: pass .astimezone(UTC)" in said
    signature = Signature.of(takes, "takes")
    sent = signature.encode((), {"one": even, "many": [Visit(odd.astimezone(UTC))]})
    assert signature.decode(sent.arguments)[1] == {"one": even, "many": [Visit(odd)]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, -float("inf")], {"a": (float("nan"),)}])
def test_nan_and_infinity_are_refused_and_do_not_become_null(value: object) -> None:
    def takes(x: Any = None, y: float | list[Any] | dict[str, Any] | None = None, z: float = 0) -> None: ...

    if not isinstance(value, dict):
        assert "for 'y': JSON has no NaN and no infinity" in refused(takes, y=value)
    assert "'x'" in refused(takes, value)
    if isinstance(value, float):
        assert "for 'z': JSON has no NaN and no infinity" in refused(takes, z=value)


def test_what_cannot_be_written_at_all_is_an_error_of_the_same_kind() -> None:
    endless: list[Any] = []
    endless.append(endless)

    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    assert "'x'" in refused(bare, endless)
    assert "'x'" in refused(bare, 10**5000)
    assert "'x'" in refused(bare, Odd())
    assert "lone surrogate" in refused(send, "\udcff")
    assert "'x'" in refused(bare, [object()])


def test_a_subclass_that_would_arrive_as_its_base_is_refused() -> None:
    def takes(pair: Pair) -> None: ...

    def nested(pairs: list[Pair]) -> None: ...

    @dataclass
    class Holder:
        pair: Pair

    def holder(one) -> None: ...  # type: ignore[no-untyped-def]  # a local class is no name of the module

    holder.__annotations__["one"] = Holder

    assert "'pair'" in refused(takes, Triple(1))
    assert "'pairs'" in refused(nested, [Triple(1)])
    assert "holder() was passed" in refused(holder, Holder(Triple(1, more=5)))
    assert sent(holder, Holder(Pair(1)))[1] == '{"one":{"pair":{"left":1,"right":null}}}'


def test_a_class_that_refuses_its_values_is_heard() -> None:
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise KeyError("odd")

    def takes(even) -> None: ...  # type: ignore[no-untyped-def]  # its annotation is set by hand

    takes.__annotations__["even"] = Even

    assert sent(takes, Even(2)) == ("[]", '{"even":{"n":2}}')
    assert "odd" in refused(takes, {"n": 1})
    with pytest.raises(BadArguments, match="odd"):
        came(takes, "[]", '{"even":{"n":1}}')


def test_errors_can_be_pickled_whole() -> None:
    with pytest.raises(BadArguments) as caught:
        sign(send).encode((1,), {})
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.function, again.parameter) == (str(caught.value), "send", "to")
    assert isinstance(again, InvalidInput)
    assert isinstance(again, TypeError)


# ---- from JSON to a call


def test_a_worker_takes_arguments_by_name_and_by_place() -> None:
    assert came(send, "[]", '{"to":"a","subject":"b"}') == ([], {"to": "a", "subject": "b"})
    assert came(send, '["a"]', '{"subject":"b"}') == ([], {"to": "a", "subject": "b"})
    assert came(send, ' [ "a" ] ', " { } ") == ([], {"to": "a"})
    assert came(mixed, "[1,2,3]", '{"z":null}') == ([1, 2, 3], {"z": None})


def test_a_worker_tells_what_does_not_fit_and_no_value() -> None:
    cases = {
        ("[]", '{"to":"a","subject":12345}'): "send() cannot take 'subject': expected str, got int",
        ('["a"]', '{"subject":12345}'): "send() cannot take 'subject': expected str, got int",
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

    assert refused(takes, "12345") == "takes() got '12345' for 'colour': invalid enum value '12345'"
    for k in ('{"colour":"12345"}', '{"colour":"red","size":"12345"}'):
        with pytest.raises(BadArguments, match=r"cannot take '\w+': invalid enum value\Z"):
            came(takes, "[]", k)


@pytest.mark.parametrize("k", ["", "[]", "{", '{"to":}', "null", '{"to":"\\ud800"}', '{"to":"a"} x', "[" * 100_000])
@pytest.mark.parametrize("function", [send, mixed])
def test_what_is_no_json_of_arguments_is_an_error_of_the_same_kind(function: Function, k: str) -> None:
    for a in ("[]", '["a"]', "5"):
        with pytest.raises(BadArguments):
            came(function, a, k)
    with pytest.raises(BadArguments):
        sign(function).decode(Arguments(b"[]", b'{"to":"\xff"}'))


def test_a_name_that_comes_twice_has_the_last_value() -> None:
    assert came(send, "[]", '{"to":"a","to":"b"}') == came(send, "[]", '{"to":"b"}')


# ---- the context


def test_the_context_is_hidden_from_callers() -> None:
    assert sign(with_context).context == "ctx"
    assert sent(with_context, "a") == ("[]", '{"to":"a"}')
    assert refused(with_context, "a", ctx=1) == "with_context() gets 'ctx' from the worker: leave it out"
    assert "ctx" not in json.dumps(sign(with_context).schema())

    def any_names(ctx: Context[Any], **more: int) -> None: ...

    assert refused(any_names, ctx=1) == "any_names() gets 'ctx' from the worker: leave it out"


def test_any_name_is_that_of_the_context_if_the_annotation_says_so() -> None:
    def job(run: Context[Any], *names: str) -> None: ...

    def plain(run: Context) -> None: ...  # type: ignore[type-arg]  # as many write it

    assert sign(job).context == "run"
    assert sign(plain).context == "run"
    assert sent(job, "a") == ('["a"]', "{}")


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
        (list[Database], "Database is no type of JSON"),
        (dict[str, tuple[int, Database | None]], "Database is no type of JSON"),
        (Path, "Path is no type of JSON"),
        (Callable[[], int], "Callable is no type of JSON"),
        (Iterable[int], "Iterable is no type of JSON"),
        (complex, "complex is no type of JSON"),
        (type, "type is no type of JSON"),
        (object, "write Any"),
        (msgspec.Raw, "Raw is no type of JSON"),
        (list[int] | set[int], "more than one array-like"),
        (uuid.UUID | str, "more than one"),
        (Literal[b"x"], "Literal"),
        (dict[int | str, int], "let its keys be of one type"),
    ],
)
def test_a_type_that_json_cannot_hold_is_refused_when_the_function_is_decorated(annotation: Any, why: str) -> None:
    def takes(fine: int, db) -> None: ...  # type: ignore[no-untyped-def]  # its annotation is set by hand

    takes.__annotations__["db"] = annotation
    said = bad(takes)
    assert said.startswith("takes(): 'db' cannot be passed: ")
    assert why in said


def test_the_field_of_a_class_is_named() -> None:
    @dataclass
    class Inner:
        db: Database

    @dataclass
    class Outer:
        inner: Inner

    def takes(outer) -> None: ...  # type: ignore[no-untyped-def]  # its annotation is set by hand

    Outer.__annotations__["inner"], Inner.__annotations__["db"] = Inner, Database
    takes.__annotations__["outer"] = Outer
    assert "Outer.inner: " in bad(takes)
    assert "Inner.db: Database is no type of JSON" in bad(takes)


def test_an_annotation_that_is_not_there_at_run_time_is_named() -> None:
    def takes(share: Fraction) -> None: ...

    assert bad(takes).startswith("takes(): the annotation Fraction of 'share' cannot be read: NameError")
    assert "TYPE_CHECKING" in bad(takes)


def test_what_a_function_returns_may_be_unknown_where_only_arguments_are_read() -> None:
    def gives(x: int) -> Fraction: ...  # type: ignore[empty-body]  # never called

    assert sent(gives, 1) == ("[]", '{"x":1}')
    with pytest.raises(BadFunction, match="'return'"):
        returned(gives, "gives")


def test_a_result_that_json_cannot_hold_is_refused() -> None:
    def gives() -> Database: ...  # type: ignore[empty-body]  # never called

    def says_nothing(): ...  # type: ignore[no-untyped-def]  # as many write them

    with pytest.raises(BadFunction, match=r"gives\(\): what it returns cannot be kept: Database .* keep_result=0"):
        returned(gives, "gives")
    assert returned(says_nothing, "says_nothing") is Any
    assert returned(send, "send") is type(None)


def test_a_result_of_a_coroutine_is_what_it_gives_and_a_function_may_never_return() -> None:
    def gives() -> Coroutine[Any, Any, int]: ...  # type: ignore[empty-body]  # never called

    def never() -> NoReturn:
        raise SystemExit

    assert returned(gives, "gives") is int
    assert returned(never, "never") is None


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

    args, kwargs = make().decode(Arguments(b"[]", b'{"to":{"n":5}}'))
    assert (args, str(kwargs["to"]).rpartition(".")[2]) == ([], "Local(n=5)")


def test_a_wrapper_takes_what_the_function_takes_that_it_wraps() -> None:
    @functools.wraps(send)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert sent(wrapper, "a", subject="b") == ("[]", '{"to":"a","subject":"b"}')


def test_parameters_may_have_any_names() -> None:
    def odd(self: int, _: int, _x: int, v: int, f: int, é: int, p0: int, class_: int) -> None: ...

    assert came(odd, "[]", sent(odd, 1, 2, 3, 4, 5, 6, 7, 8)[1])[1] == {
        "self": 1, "_": 2, "_x": 3, "v": 4, "f": 5, "é": 6, "p0": 7, "class_": 8,
    }  # fmt: skip
    assert refused(odd, 1, 2, 3, 4, 5, "x", 7, 8) == "odd() got 'x' for 'é': expected int"


# ---- the result of another call as the first argument


def test_a_result_becomes_the_first_argument() -> None:
    def named(page: str, depth: int = 0) -> None: ...

    def any_number(*pages: str) -> None: ...

    cases: list[tuple[Function, tuple[object, ...], str]] = [
        (named, (), '"p"'),
        (named, (3,), '"p"'),
        (mixed, (3, 4), "5"),
        (any_number, ("q",), '"p"'),
    ]
    for function, args, first in cases:
        signature = sign(function)
        rest = signature.without_first().encode(args, {}).arguments
        found = signature.decode(signature.with_first(first.encode(), rest))
        wanted = signature.decode(signature.encode((json.loads(first), *args), {}).arguments)
        assert found == wanted


def test_a_result_is_put_to_arguments_that_another_language_wrote() -> None:
    def named(page: str, depth: int = 0) -> None: ...

    signature = sign(named)
    for a, k in [("[ ]", ' { "depth" : 3 } '), ("[ 3 ]", "{ }")]:
        found = signature.with_first(b'"p"', Arguments(a.encode(), k.encode()))
        args, kwargs = signature.decode(found)
        assert (args, kwargs) == ([], {"page": "p", "depth": 3})
    for a, k in [("5", "{}"), ("[]", '{"page":"q"}'), ("[]", "[]"), ('"x"', "{}")]:
        with pytest.raises(BadArguments):
            signature.with_first(b'"p"', Arguments(a.encode(), k.encode()))


def test_a_function_that_takes_nothing_by_place_takes_no_result() -> None:
    def by_name(*, page: str) -> None: ...

    with pytest.raises(BadArguments, match="takes no positional argument, so no result"):
        sign(by_name).without_first()


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


def test_a_schema_holds_the_classes_that_it_refers_to() -> None:
    def takes(user: User) -> None: ...

    schema = json.loads(json.dumps(sign(takes).schema()))
    assert schema["properties"]["k"]["properties"]["user"] == {"$ref": "#/$defs/User"}
    assert schema["$defs"]["User"]["properties"]["friends"]["items"] == {"$ref": "#/$defs/User"}
