"""The parameters of a function, read when it is decorated: arguments become JSON, and JSON arguments. No I/O."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter
from types import GenericAlias, MappingProxyType
from typing import Any, NamedTuple, Never, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from timeoutq.functions import models
from timeoutq.functions.context import Context
from timeoutq.functions.errors import BadArguments, BadFunction
from timeoutq.words.arguments import error_words, shown

T = TypeVar("T")

_EXACT = (int, str, bool)  # what always arrives as it was sent: msgspec takes nothing else for these
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NOTHING: Mapping[str, object] = MappingProxyType({})


class Arguments(NamedTuple):
    """The arguments of a call as JSON: by place, and by name."""

    a: bytes
    k: bytes


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter as callers see it."""

    name: str
    kind: Any  # as `Parameter` has it
    annotation: Any
    travelling: Any  # the type of all that is passed for it
    otherwise: Any  # what the function has if nothing is passed, as if it had been passed: of `x: float = 1`, 1.0

    @property
    def is_needed(self) -> bool:
        """Whether each call passes something for it."""
        return self.otherwise is Parameter.empty


class Signature:
    """The parameters of a function that callers pass.

    A parameter that can be named travels under its name, in `k`, however the caller passed it; so two equal calls are
    equal bytes. Only parameters that have no name for callers, and all positional ones of a function with `*args`,
    travel by their place, in `a`. Defaults do not travel: the worker's program knows them. A worker takes both forms.
    """

    def __init__(self, name: str, slots: Sequence[Slot], context: str | None = None) -> None:
        self.name = name
        self.context = context  # the name of the parameter that the worker fills, or None
        self.state: Any = None  # the type of the state in the annotation of the context, if it says one
        self.behind = ""  # words for the message that there are too many arguments: behind what those stand
        self.slots = {one.name: one for one in slots}
        kind_of = {one.name: one.kind for one in slots}
        self._places = [name for name, kind in kind_of.items() if kind in _POSITIONAL]
        self._needed = {one.name for one in slots if one.is_needed}
        self._rest = next((name for name, kind in kind_of.items() if kind is Parameter.VAR_POSITIONAL), None)
        self._more = next((name for name, kind in kind_of.items() if kind is Parameter.VAR_KEYWORD), None)
        self._by_place = [one for one in self._places if self._rest or kind_of[one] is Parameter.POSITIONAL_ONLY]
        by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        self._named = dict.fromkeys(name for name, kind in kind_of.items() if kind in by_name)
        self._is_simple = not (self._by_place or self._rest or self._more)
        self._is_positional = self._is_simple and len(self._places) == len(slots)
        self._is_whole = len(self._needed) == len(slots)
        self._is_exact = self._is_simple and all(one.annotation in _EXACT for one in slots)
        self._struct = _struct(name, slots)
        self._decoder: msgspec.json.Decoder[msgspec.Struct] = models.decoder(self._struct)
        self._fields = dict(zip(self._struct.__struct_encode_fields__, self._struct.__struct_fields__, strict=True))
        self._after_first: Signature | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> Signature:
        """Read the signature of a function. Raises `BadFunction`, which names the parameter that cannot be used."""
        parameters, hints = _read(function, name)
        slots: list[Slot] = []
        context: str | None = None
        state: Any = None
        for place, one in enumerate(parameters):
            annotation = hints.get(one.name, Parameter.empty)
            kind = get_origin(annotation) or annotation
            if isinstance(kind, type) and issubclass(kind, Context):
                if place or one.kind not in _POSITIONAL:
                    raise BadFunction(f"{name}(): {one.name!r} is the context: let it be the first parameter")
                context, state = one.name, next(iter(get_args(annotation)), None)
            elif one.name == "ctx" and annotation is Parameter.empty:
                raise BadFunction(
                    f"{name}(): annotate 'ctx' as Context, so that the worker gives it and callers do not"
                )
            else:
                slots.append(_slot(one, annotation, name))
        found = cls(name, slots, context)
        found.state = state
        return found

    # ---- the result of another call as the first argument

    def without_first(self) -> Signature:
        """Give the signature without the first parameter, whose argument is the result of another call."""
        if not self._places and self._rest is None:
            raise self._wrong(None, "takes no positional argument, so no result of the call that it follows")
        if self._after_first is None:
            left = [one for name, one in self.slots.items() if name not in self._places[:1]]
            self._after_first = Signature(self.name, left, self.context)
            self._after_first.behind = " behind the result of the call that it follows"
        return self._after_first

    def refuse_result(self, returns: Any, of: str) -> None:
        """Raise `BadArguments` if what another function returns, a plain class, can never be the first argument."""
        for name in self._places[:1]:
            takes = self.slots[name].annotation
            plain = isinstance(returns, type) and isinstance(takes, type) and returns in _PLAIN and takes in _PLAIN
            if plain and takes not in _PLAIN[returns]:
                words = f"takes {takes.__name__} as {name!r}, but {of}() returns {returns.__name__}"
                raise self._wrong(name, f"{words}: let them fit, or put a function between them")

    def with_first(self, value: bytes, arguments: Arguments) -> Arguments:
        """Put the JSON of a first argument to the arguments that `without_first` has encoded."""
        by_place, by_name = self._apart(arguments)
        first = next(iter(self._places), None)
        if by_place or first is None or first in self._by_place:
            by_place.insert(0, value)
        elif first in by_name:
            raise self._wrong(first, f"got {first!r} twice")
        else:
            by_name = {first: value, **by_name}
        return Arguments(_list(by_place), _dict(by_name))

    # ---- from a call to JSON

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[Arguments, msgspec.Struct]:
        """Write the arguments of a call; give what `values` reads, too. Raises `BadArguments`, with the parameter."""
        bound = self.bind(args, kwargs)
        try:
            struct = models.convert(bound, self._struct)
            data = models.ENCODER.encode(struct)
            arrived = struct if self._is_exact else self._decoder.decode(data)
            is_same = arrived is struct or bool(arrived == struct)
        except Exception as error:  # the arguments may be anything, and their classes may raise anything
            raise self._unfit(bound, error) from error
        if not is_same:
            self._refuse_changed(bound, struct, arrived)
        return self._split(data, bound), struct

    def values(self, struct: msgspec.Struct) -> dict[str, object]:
        """Give the values by the names of parameters, defaults too. `*args` is a list, `**kwargs` a dict."""
        found = {name: getattr(struct, field) for name, field in self._fields.items()}
        return {name: self.slots[name].otherwise if one is msgspec.UNSET else one for name, one in found.items()}

    def bind(self, args: Sequence[T], kwargs: Mapping[str, T]) -> dict[str, T | list[T] | dict[str, T]]:
        """Say which parameter takes which argument. Raises `BadArguments` as Python would raise `TypeError`."""
        bound: dict[str, T | list[T] | dict[str, T]] = dict(zip(self._places, args, strict=False))
        if len(args) > len(self._places):
            if self._rest is None:
                takes = f"{len(self._places)} positional argument{'s' * (len(self._places) != 1)}"
                raise self._wrong(None, f"takes {takes}{self.behind}, but got {len(args)}")
            bound[self._rest] = list(args[len(self._places) :])
        more: dict[str, T] = {}
        for name, value in kwargs.items():
            if name not in self._named:
                if self._more is None or name == self.context:
                    raise self._wrong(name, self._stranger(name))
                more[name] = value
            elif name in bound:
                raise self._wrong(name, f"got {name!r} twice")
            else:
                bound[name] = value
        if more and self._more is not None:
            bound[self._more] = more
        if not bound.keys() >= self._needed:
            missing = [name for name in self.slots if name in self._needed and name not in bound]
            raise self._wrong(missing[0], f"needs {' and '.join(map(repr, missing))}")
        return bound

    def _stranger(self, name: str) -> str:
        if name == self.context:
            return f"gets {name!r} from the worker: leave it out"
        if name in self.slots:
            return f"takes {name!r} as a positional argument only"
        return f"has no parameter {shown(name)}; it takes {', '.join(self.slots) or 'none'}"

    def _wrong(self, parameter: str | None, words: str) -> BadArguments:
        return BadArguments(f"{self.name}() {words}", function=self.name, parameter=parameter)

    def _refuse_changed(self, bound: Mapping[str, object], struct: object, arrived: object) -> None:
        """Raise `BadArguments` for an argument that would arrive in the worker as another value."""
        for name, value in bound.items():
            sent, came = (getattr(one, self._fields[name]) for one in (struct, arrived))
            if sent != came:
                words = f"was passed {shown(value, 60)} for {name!r}, but would get {shown(came, 60)}"
                raise self._wrong(name, f"{words}: annotate the parameter, or pass what its annotation says")

    def _unfit(self, bound: Mapping[str, object], error: Exception) -> BadArguments:
        """Give the error for arguments that msgspec has refused; find out which parameter it was."""
        name = self._named_in(error) or next((name for name, one in bound.items() if not _is_written(one)), None)
        if name is None:
            return self._wrong(None, f"cannot take these arguments: {error_words(error)}")
        return self._wrong(name, f"got {shown(bound[name], 60)} for {name!r}: {_words(error, name)}")

    def _named_in(self, error: Exception) -> str | None:
        place = re.search(r" - at .*\$\.(\w+)", str(error))
        return place[1] if place is not None and place[1] in self.slots else None

    def _split(self, data: bytes, bound: Mapping[str, object]) -> Arguments:
        if self._is_simple:
            return Arguments(b"[]", data)
        raw = _raw(data)
        a: list[bytes] = []
        for name in self._by_place:
            if name not in bound:
                break  # what comes behind the gap travels by its name
            a.append(raw.pop(name))
        a.append(raw.pop(self._rest or "", b"[]")[1:-1])
        more = raw.pop(self._more or "", b"{}")[1:-1]
        return Arguments(_list(a), _dict(raw, more))

    # ---- from JSON to a call

    def decode(self, arguments: Arguments) -> tuple[Sequence[object], Mapping[str, object]]:
        """Read the arguments of a call: those by place, and those by name; all by their places if that is quicker.

        Raises `BadArguments`, whose message holds no argument, except for what classes of the program say.
        """
        return self._spread(self._decode(arguments))

    def decode_named(self, data: bytes) -> tuple[Sequence[object], Mapping[str, object]] | None:
        """Read arguments by name from JSON, as `decode` does; None if that is not possible, or not so simple."""
        if not self._is_simple:
            return None
        try:
            return self._spread(self._decoder.decode(data))
        except Exception:  # `decode` says what is wrong
            return None

    def _spread(self, struct: msgspec.Struct) -> tuple[Sequence[object], Mapping[str, object]]:
        if self._is_positional:
            args = msgspec.structs.astuple(struct)
            if self._is_whole or all(one is not msgspec.UNSET for one in args):
                return args, _NOTHING
        values: dict[str, Any] = {name: getattr(struct, field) for name, field in self._fields.items()}
        came = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        by_place: list[object] = []
        for name in self._by_place:
            if name not in came:
                break
            by_place.append(came.pop(name))
        by_place += came.pop(self._rest or "", ())
        more = came.pop(self._more or "", {})
        return by_place, {**came, **more}

    def _decode(self, arguments: Arguments) -> msgspec.Struct:
        data = arguments.k
        if not self._is_simple or arguments.a != b"[]":
            data = self._together(arguments)
        try:
            return self._decoder.decode(data)
        except Exception as error:  # a class of the caller's may raise anything when it is made
            self._together(arguments)  # which says what is missing, and what is too much
            name = self._named_in(error)
            what = f" cannot take {name!r}" if name else ""
            words = _INVALID.sub("", _words(error, name))
            raise BadArguments(f"{self.name}(){what}: {words}", function=self.name, parameter=name) from error

    def _apart(self, arguments: Arguments) -> tuple[list[bytes], dict[str, bytes]]:
        try:
            return [bytes(one) for one in msgspec.json.decode(arguments.a, type=list[msgspec.Raw])], _raw(arguments.k)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._wrong(None, f"cannot take these arguments: {error_words(error)}") from error

    def _together(self, arguments: Arguments) -> bytes:
        """Give one JSON object of all arguments, by the names of parameters."""
        bound = self.bind(*self._apart(arguments))
        return _dict({
            name: _list(one) if isinstance(one, list) else _dict(one) if isinstance(one, dict) else one
            for name, one in bound.items()
        })  # fmt: skip

    # ---- for programs in other languages

    def schema(self) -> dict[str, Any]:
        """Give the JSON Schema of the payload of a call, for programs in other languages.

        It describes what `encode` writes. A worker takes arguments that have a name by their place, too.
        """
        (found,), parts = msgspec.json.schema_components(
            [self._struct], schema_hook=models.schema, ref_template="#/$defs/{name}"
        )
        inside = parts.pop(cast("str", found["$ref"]).rpartition("/")[2])
        shapes: dict[str, Any] = inside["properties"]
        for name, one in self.slots.items():
            if not one.is_needed and _is_written(one.otherwise):
                shapes[name] = {**shapes[name], "default": msgspec.json.decode(models.ENCODER.encode(one.otherwise))}
        named = [name for name in self._named if name not in self._by_place]
        a: dict[str, Any] = {"type": "array", "prefixItems": [shapes[name] for name in self._by_place]}
        a["minItems"] = sum(self.slots[name].is_needed for name in self._by_place)
        a["items"] = shapes[self._rest]["items"] if self._rest is not None else False
        k: dict[str, Any] = {"type": "object", "properties": {name: shapes[name] for name in named}}
        k["required"] = [name for name in named if self.slots[name].is_needed]
        k["additionalProperties"] = shapes[self._more]["additionalProperties"] if self._more is not None else False
        properties = {"v": {"const": 1}, "f": {"const": self.name}, "a": a, "k": k}
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": self.name, "type": "object"}
        required = ["v", "f", *(["a"] if a["minItems"] else []), *(["k"] if k["required"] else [])]
        return {**schema, "properties": properties, "required": required, **({"$defs": parts} if parts else {})}


# ---- types


def check_type(annotation: object) -> None:
    """Raise `TypeError`, with the reason, for a type that JSON cannot hold."""
    try:
        models.decoder(annotation)
        msgspec.json.schema(annotation, schema_hook=models.schema)
    except Exception as error:  # an annotation inside a class may name what is not there, for example
        raise TypeError(str(error)) from error


_PLAIN: Mapping[Any, Collection[type]] = {
    bool: (bool,), int: (int, float), float: (int, float), str: (str,), list: (list,), dict: (dict,),
}  # fmt: skip
"""Classes, and those as which their JSON can be read. Of float, 1.0 is an int, too."""


# ---- reading a function


def _read(function: Any, name: str) -> tuple[Sequence[Parameter], dict[str, Any]]:
    """Give the parameters of a function, and its annotations, which may have been written, or kept, as texts."""
    while True:
        try:
            parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
        except Exception as error:  # from Python 3.14 on, this evaluates annotations
            raise BadFunction(f"{name}(): its parameters cannot be read: {error_words(error)}") from error
        # a wrapper with *args takes what the function takes that it wraps
        if not hasattr(function, "__wrapped__") or all(one.kind is not Parameter.VAR_POSITIONAL for one in parameters):
            break
        function = function.__wrapped__
    around: dict[str, Any] = {}  # the names of the functions around this one
    for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a function that calls itself is not there yet
            around[free] = cell.cell_contents
    # a decorator may say what a function takes by `__signature__` alone; of a text nobody knows where it was written
    given = {
        one.name: one.annotation
        for one in parameters
        if one.annotation is not Parameter.empty and not isinstance(one.annotation, str)
    }
    try:
        return parameters, given | get_type_hints(function, localns=around, include_extras=True)
    except Exception as error:  # an annotation is an expression, which may raise anything
        raise BadFunction(
            f"{name}(): its annotations cannot be read: {error_words(error)}; what they name must be there at run "
            "time, at the top of the module, and not under `if TYPE_CHECKING`"
        ) from error


def _slot(parameter: Parameter, annotation: Any, name: str) -> Slot:
    kept: Any = Any if annotation is Parameter.empty else annotation
    try:
        check_type(kept)
    except TypeError as error:
        raise BadFunction(f"{name}(): {parameter.name!r} cannot be passed: {error}") from error
    travelling, otherwise = kept, parameter.default
    if parameter.kind is Parameter.VAR_POSITIONAL:
        travelling, otherwise = GenericAlias(list, kept), []
    elif parameter.kind is Parameter.VAR_KEYWORD:
        travelling, otherwise = GenericAlias(dict, (str, kept)), {}
    elif otherwise is not Parameter.empty:
        with suppress(Exception):  # many write x: int = None
            otherwise = models.convert(otherwise, kept)
    return Slot(parameter.name, parameter.kind, kept, travelling, otherwise)


def returned(function: Callable[..., Any], name: str) -> Any:
    """Give the type that a function returns; Any if it does not say. Raises `BadFunction` if JSON cannot hold it."""
    _, hints = _read(function, name)
    found = hints.get("return", Any)
    if get_origin(found) in (Awaitable, Coroutine):
        found = get_args(found)[-1]  # a `def` that gives what an `async def` has made
    if found in (Never, NoReturn):
        return None
    try:
        check_type(found)
    except TypeError as error:
        cure = "or keep no results, with keep_result=0"
        raise BadFunction(f"{name}(): what it returns cannot be kept: {error}; {cure}") from error
    return found


def _struct(name: str, slots: Sequence[Slot]) -> type[msgspec.Struct]:
    """Make a Struct of parameters. Its own fields have names that clash with nothing."""
    fields: list[Any] = []
    for place, one in enumerate(slots):
        own, kind = f"p{place}", one.travelling
        fields.append((own, kind) if one.is_needed else (own, kind | msgspec.UnsetType, msgspec.UNSET))
    try:
        made = msgspec.defstruct(
            name, fields, rename={f"p{place}": one.name for place, one in enumerate(slots)},
            forbid_unknown_fields=True, kw_only=True,
        )  # fmt: skip
        models.decoder(made)
    except Exception as error:
        raise BadFunction(f"{name}(): its parameters cannot be passed together: {error_words(error)}") from error
    return made


# ---- words and bytes


_INVALID = re.compile(r"(?s)(?<=^Invalid enum value) .*")
"""Where msgspec shows a value: no message of a worker holds one."""


def _words(error: Exception, name: str | None) -> str:
    """Give what msgspec found wrong; the place only if it is inside of the parameter."""
    if isinstance(error, UnicodeEncodeError):
        return "it holds a lone surrogate, which UTF-8 cannot write"
    words = str(error) if isinstance(error, msgspec.MsgspecError) else error_words(error)
    return words.removesuffix(f" - at `$.{name}`")


def _is_written(value: object) -> bool:
    try:
        return bool(models.ENCODER.encode(value))
    except Exception:  # an argument may be anything
        return False


def _raw(data: bytes) -> dict[str, bytes]:
    return {name: bytes(one) for name, one in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items()}


def _list(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(filter(None, parts)) + b"]"


def _dict(parts: Mapping[str, bytes], more: bytes = b"") -> bytes:
    pairs = [models.ENCODER.encode(name) + b":" + value for name, value in parts.items()]
    return b"{" + b",".join(filter(None, [*pairs, more])) + b"}"
