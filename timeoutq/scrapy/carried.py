"""Values of `meta` and `cb_kwargs` in typed JSON, and back: dates, numbers, sets, tuples, bytes, items. Pure.

What JSON holds stands as it is. Every other value is an object with `$type`, as in `{"$type": "date", "value":
"2026-01-02"}`; a dict whose keys are not all text, or that has a key `$type`, is one, too. An item travels as the name
of its class and its fields. A payload builds nothing else: `unpack` takes only classes of items, named tuples and
enums (`tasks.py`: of requests), out of modules that are loaded or that belong to the spider's project.
"""

from __future__ import annotations

import base64
import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from itemadapter import ItemAdapter
from scrapy import Item

from timeoutq.words.errors import InvalidInput

TYPE, VALUE, CLASS = "$type", "value", "class"  # the keys of a typed value
_SURELY_PLAIN = {str, bool, type(None)}  # types of which JSON holds every value


class NoSuchClass(InvalidInput):
    """The project lacks a class that a value names."""


class Refused(InvalidInput):
    """A value that cannot travel; the message says what it is."""

    def __init__(self, where: str, what: str) -> None:
        self.where = where
        super().__init__(what)


# ---- to JSON


def pack(value: Any, where: str) -> Any:
    """Give a value as JSON holds it. Raises `Refused`, which names the place, for a value that cannot travel."""
    kind: Any = cast("object", value).__class__
    if kind in _SURELY_PLAIN:
        return value
    if kind in _SIMPLE:
        return {TYPE: kind.__name__, VALUE: _SIMPLE[kind][0](value)}
    if isinstance(value, Enum):
        return {TYPE: "enum", CLASS: class_name(kind, where), VALUE: value.name}
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {TYPE: "float", VALUE: repr(float(value))}
    if isinstance(value, dict):
        return _pack_dict(cast("Mapping[Any, Any]", value), where)
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        packed = [pack(item, f"{where}[{i}]") for i, item in enumerate(items)]
        if isinstance(value, list):
            return packed
        named = {CLASS: class_name(kind, where)} if hasattr(kind, "_fields") else {}
        return {TYPE: "tuple", **named, VALUE: packed}
    if isinstance(value, set | frozenset):
        members = cast("set[Any]", value)
        # sorted: equal sets have equal payloads
        return {TYPE: kind.__name__, VALUE: sorted((pack(one, where) for one in members), key=json.dumps)}
    if ItemAdapter.is_item(value):
        held = cast("Mapping[str, Any]", ItemAdapter(value))
        fields = [[name, pack(one, f"{where}[{name!r}]")] for name, one in held.items()]
        return {TYPE: "item", CLASS: class_name(kind, where), VALUE: fields}
    raise Refused(where, f"an object of type {kind.__name__}")


def _pack_dict(value: Mapping[Any, Any], where: str) -> Any:
    found: dict[Any, Any] = {}
    is_plain = TYPE not in value
    for key, item in value.items():
        is_plain = is_plain and isinstance(key, str) and not isinstance(key, Enum)
        found[key] = item if type(item) in _SURELY_PLAIN else pack(item, f"{where}[{key!r}]")
    if is_plain:
        return found
    return {TYPE: "dict", VALUE: [[pack(key, f"a key of {where}"), item] for key, item in found.items()]}


def class_name(kind: type, where: str) -> str:
    """Give the name by which other processes find a class. Raises `Refused` if they cannot."""
    module, name = kind.__module__, kind.__qualname__
    if _look_up(module, name) is not kind:
        raise Refused(where, f"an object of type {name}, which no other process can find by its name")
    return f"{module}:{name}"


# ---- from JSON


def unpack(value: Any, project: str) -> Any:
    """Give a value that `pack` has packed; `project` is the package of the spider.

    Raises `NoSuchClass` for a class that the project lacks, and `InvalidInput` for what `pack` gives of no value.
    """
    if isinstance(value, list):
        return [unpack(item, project) for item in cast("Sequence[Any]", value)]
    if not isinstance(value, dict):
        return value
    given = cast("Mapping[str, Any]", value)
    if TYPE not in given:
        return {key: unpack(item, project) for key, item in given.items()}
    try:
        return _unpack_typed(given, project)
    except InvalidInput:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise InvalidInput(f"{str(given)[:200]} is no value that timeoutq has written: {error!r}") from None


def _unpack_typed(given: Mapping[str, Any], project: str) -> Any:
    kind, held = given[TYPE], given[VALUE]
    simple = _BY_NAME.get(kind)
    if simple is not None:
        return simple(held)
    if kind == "enum":
        return find_class(given[CLASS], project, lambda found: issubclass(found, Enum))[held]
    if kind == "float":
        return float(held)
    if kind == "dict":
        return {unpack(key, project): unpack(item, project) for key, item in held}
    if kind == "item":
        fields = {name: unpack(item, project) for name, item in held}
        return _item(find_class(given[CLASS], project, ItemAdapter.is_item_class), fields)
    items = [unpack(item, project) for item in held]
    if kind == "tuple" and CLASS in given:
        return find_class(given[CLASS], project, lambda found: issubclass(found, tuple))._make(items)
    return _GROUPS[kind](items)


def _item(kind: Any, fields: dict[str, Any]) -> Any:
    if hasattr(kind, "model_construct"):  # a model of pydantic
        return kind.model_construct(**fields)
    if issubclass(kind, Item):
        return kind(fields)
    # as a copy is made: what the class does with new objects was done
    found = kind.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(found, name, value)
    return found


def find_class(name: str, project: str, fits: Callable[[type], bool]) -> Any:
    """Give the class with this name. Raises `NoSuchClass`, and `InvalidInput` for a class that does not fit."""
    module, _, qualname = name.partition(":")
    if module not in sys.modules and module.partition(".")[0] == project:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise NoSuchClass(name) from error
    found: Any = _look_up(module, qualname)
    if found is None:
        raise NoSuchClass(name)
    if not inspect.isclass(found) or issubclass(found, dict) or not fits(found):
        raise InvalidInput(f"{name} is no class of items, tuples, enums or requests")
    return found


def _look_up(module: str, qualname: str) -> object:
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _moment(value: datetime) -> list[Any]:
    zone = value.tzinfo.key if isinstance(value.tzinfo, ZoneInfo) else None
    return [value.replace(tzinfo=None).isoformat() if zone else value.isoformat(), zone, value.fold]


def _moment_of(held: list[Any]) -> datetime:
    text, zone, fold = held
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=ZoneInfo(zone) if zone else found.tzinfo, fold=fold)


_SIMPLE: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: (lambda value: base64.b64encode(value).decode(), lambda held: base64.b64decode(held, validate=True)),
    date: (date.isoformat, date.fromisoformat),
    datetime: (_moment, _moment_of),
    time: (time.isoformat, time.fromisoformat),
    timedelta: (lambda value: [value.days, value.seconds, value.microseconds], lambda held: timedelta(*held)),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
}
"""Types whose values hold no others: how such a value is written, and how it is read."""
_BY_NAME = {kind.__name__: read for kind, (_, read) in _SIMPLE.items()}
_GROUPS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
