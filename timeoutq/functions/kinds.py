"""Which types can travel as JSON, and which values arrive as they were sent where a type says nothing. Pure.

`signature.py` asks once for each parameter, when a function is decorated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, cast

import msgspec
from msgspec import inspect as spec

from timeoutq.words.arguments import shown

NO_NUMBER = "JSON has no NaN and no infinity"

_OFFSET = re.compile(rb"[+-][0-9]{2}:[0-9]{2}\"")
_MINUTE = timedelta(minutes=1)

Check = Callable[[object], str | None]
"""Says what is wrong with a value, or None."""

_SEQUENCES = (spec.ListType, spec.VarTupleType, spec.SetType, spec.FrozenSetType)
_CLASSES = (spec.StructType, spec.DataclassType, spec.NamedTupleType, spec.TypedDictType)
_FOREIGN = (spec.CustomType, spec.RawType, spec.ExtType)


def kind_of(annotation: object) -> spec.Type:
    """Give msgspec's view of a type. Raises `TypeError`, with the reason, for a type that JSON cannot hold."""
    try:
        found = spec.type_info(annotation)
    except Exception as error:  # an annotation inside a class may name what is not there, for example
        raise TypeError(str(error)) from error
    foreign = _foreign(found, set())
    if foreign is not None:
        raise TypeError(foreign)
    return found


def _foreign(kind: spec.Type, seen: set[type]) -> str | None:
    if isinstance(kind, _FOREIGN):
        cls: type = getattr(kind, "cls", msgspec.Raw)
        if cls is object:
            return "object says nothing of a value: write Any, or leave the annotation out"
        return f"{cls.__qualname__} is no type of JSON: pass what it is made of, or make it a dataclass"
    if isinstance(kind, _CLASSES):
        if kind.cls in seen:
            return None
        seen.add(kind.cls)
        for one in kind.fields:
            inside = _foreign(one.type, seen)
            if inside is not None:
                return f"{kind.cls.__qualname__}.{one.name}: {inside}"
        return None
    if isinstance(kind, spec.DictType) and isinstance(kind.key_type, spec.UnionType):
        return (
            "the keys of a dict are texts in JSON, and several types cannot be told apart: let its keys be of one type"
        )
    return next((found for one in _inner(kind) if (found := _foreign(one, seen)) is not None), None)


def _inner(kind: spec.Type) -> Iterator[spec.Type]:
    if isinstance(kind, spec.Metadata):
        yield kind.type
    elif isinstance(kind, _SEQUENCES):
        yield kind.item_type
    elif isinstance(kind, spec.TupleType):
        yield from kind.item_types
    elif isinstance(kind, spec.DictType):
        yield kind.key_type
        yield kind.value_type
    elif isinstance(kind, spec.UnionType):
        yield from kind.types


def names_of(annotation: object) -> str:
    """Name what is an object in JSON: `Order`, `dict`, or of `Order | None`, `Order`; empty if nothing is."""
    kind = spec.type_info(annotation)
    found = kind.types if isinstance(kind, spec.UnionType) else (kind,)
    classes = spec.StructType, spec.DataclassType, spec.TypedDictType
    names = (
        "dict" if isinstance(one, spec.DictType) else one.cls.__qualname__
        for one in found
        if isinstance(one, (spec.DictType, *classes))
    )
    return " | ".join(names)


_PLAIN: Mapping[type, Collection[type]] = {
    bool: (bool,), int: (int, float), float: (int, float), str: (str,), list: (list,), dict: (dict,),
}  # fmt: skip
"""Classes, and those as which their JSON can be read. Of float, 1.0 is an int, too."""


def never_fits(returned: type, taken: type) -> bool:
    """Say whether no value of one plain class can be read as the other one; of any other class nobody knows."""
    return returned in _PLAIN and taken in _PLAIN and taken not in _PLAIN[returned]


def check_of(kind: spec.Type) -> Check | None:
    """Give the check of values of a type that says `Any` somewhere; None if the type says all.

    Where a type says `Any`, msgspec cannot know what a value was, so a tuple would arrive as a list. The check finds
    such values. Fields of classes are not looked into.
    """
    if isinstance(kind, spec.AnyType):
        return plain
    checks = [check_of(one) for one in _inner(kind)]
    if not any(checks):
        return None
    if isinstance(kind, spec.Metadata):
        return checks[0]
    if isinstance(kind, spec.TupleType):
        return lambda value: _first(zip(checks, cast("tuple[object, ...]", value), strict=False))
    if isinstance(kind, spec.DictType):
        keys, values = _wrong_key if checks[0] is plain else checks[0], checks[1]
        return lambda value: _first(
            pair for key, one in cast("Mapping[object, object]", value).items() for pair in ((keys, key), (values, one))
        )
    if isinstance(kind, spec.UnionType):
        if plain in checks:  # a union with Any says nothing
            return plain
        held = [(_HOLDERS.get(type(one), (list, tuple, set, frozenset)), check_of(one)) for one in kind.types]
        return lambda value: _first((check, value) for classes, check in held if isinstance(value, classes))
    return lambda value: _first((checks[0], one) for one in cast("list[object]", value))


_HOLDERS: Mapping[type[spec.Type], Any] = {spec.DictType: Mapping}


def _first(pairs: Iterator[tuple[Check | None, object]]) -> str | None:
    return next((found for check, one in pairs if check is not None and (found := check(one)) is not None), None)


def plain(value: object) -> str | None:
    """Say what keeps a value from arriving as it is through JSON; None if nothing does."""
    kind = type(value)
    if kind in (str, int, bool) or value is None or kind is float:
        return None
    if kind is list:
        return next(filter(None, map(plain, cast("list[object]", value))), None)
    if kind is dict:
        items = cast("dict[object, object]", value)
        return next(filter(None, (*map(_wrong_key, items), *map(plain, items.values()))), None)
    if kind is tuple:
        return f"the tuple {shown(value)} would arrive as a list"
    return f"{shown(value)} is a {kind.__qualname__}, which JSON does not know"


def _wrong_key(key: object) -> str | None:
    return None if type(key) is str else f"the key {shown(key)} would arrive as a text"


def inexact(value: object, data: bytes) -> str | None:
    """Say which time in a value arrives as another one in `data`, its JSON: one of a zone that counts seconds.

    Most zones did so a century ago; JSON has minutes, and msgspec rounds.
    """
    if not _OFFSET.search(data):
        return None
    built = msgspec.to_builtins(value, builtin_types=(datetime, time), enc_hook=lambda _: None)
    found = next((one for one in _times(built) if (one.utcoffset() or _MINUTE) % _MINUTE), None)
    if found is None:
        return None
    return f"the zone of {shown(found, 200)} is off by seconds, which JSON does not hold: pass .astimezone(UTC)"


def _times(value: object) -> Iterator[datetime | time]:
    if isinstance(value, datetime | time):
        yield value
    elif isinstance(value, dict):
        for key, one in cast("dict[object, object]", value).items():
            yield from (*_times(key), *_times(one))
    elif isinstance(value, list | tuple):
        for one in cast("list[object]", value):
            yield from _times(one)


def is_endless(value: object) -> bool:
    """Say whether a NaN or an infinity is anywhere in a value: JSON has neither, and msgspec would write null."""
    try:
        return _endless(msgspec.to_builtins(value, str_keys=True))
    except Exception:  # what cannot be written at all holds something worse
        return False


def _endless(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_endless, cast("dict[str, object]", value).values()))
    return isinstance(value, list | tuple) and any(map(_endless, cast("list[object]", value)))


MANY_FORMS = (datetime, time, Decimal)
"""Types that write equal values in several ways, as 1.0 and 1, or one moment in two time zones."""
_DAY = date(2000, 1, 2)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_EXACT_INT = 2**53


def one_form(value: object) -> object:
    """Give the one of all equal values that stands for them, for what `msgspec.to_builtins` leaves of arguments."""
    match value:
        case datetime():
            return value if value.utcoffset() is None else value.astimezone(UTC)
        case time() if value.utcoffset() is not None:
            return datetime.combine(_DAY, value).astimezone(UTC).timetz()
        case Decimal() if value.is_finite():
            short = value.normalize(_EXACT) if value else Decimal(0)
            return f"{short:f}" if abs(short.adjusted()) < 40 else str(short)
        case float() if value.is_integer() and abs(value) <= _EXACT_INT:
            return int(value)
        case dict():
            rows = cast("dict[object, object]", value).items()
            found = {msgspec.to_builtins(one_form(key)): one_form(one) for key, one in rows}
            return {key: found[key] for key in sorted(found, key=str)}
        case list() | tuple():
            return [one_form(one) for one in cast("Sequence[object]", value)]
        case _:
            return value
