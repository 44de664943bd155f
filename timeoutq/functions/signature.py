"""What a function takes, read when the function is decorated: how arguments become JSON, and JSON becomes arguments.

`task.py` makes a `Signature` for each function. A caller encodes with it, and so learns at the call what does not fit;
a worker decodes with it. No I/O.

A parameter that can be named travels under its name, in `k`, however the caller passed it; so two equal calls are equal
bytes. Only parameters that have no name for callers, and all positional ones of a function with `*args`, travel by
their place, in `a`. Defaults do not travel: the worker's program knows them. A worker takes both forms, so programs in
other languages may write either.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter
from types import GenericAlias, MappingProxyType
from typing import Any, NamedTuple, Never, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from timeoutq.functions import kinds
from timeoutq.functions.context import Context
from timeoutq.functions.errors import BadArguments, BadFunction
from timeoutq.words.arguments import error_words, shown

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()

_EXACT = (int, str, bool)
"""What always arrives as it was sent: msgspec takes nothing else for these."""
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NOTHING: Mapping[str, object] = MappingProxyType({})

_AT = re.compile(r"(?s)(?P<what>.*?)(?: - at (?P<place>.*))?")
_GOT = re.compile(r", got `[^`]*`\Z")
_OBJECT = re.compile(r"(?<=^expected )object\b(?!.* at )")
"""What msgspec says of any class."""
_SHOWN = re.compile(r"(?s)(?<=^Invalid enum value) .*")
"""A value that msgspec itself puts into an error."""


class Arguments(NamedTuple):
    """The arguments of a call as JSON: by place, and by name."""

    a: bytes
    k: bytes


@dataclass(frozen=True)
class Slot:
    """A parameter as callers see it."""

    parameter: Parameter
    annotation: Any
    check: kinds.Check | None
    otherwise: Any
    """What the function has if nothing is passed, as if it had been passed: of `x: float = 1`, 1.0."""

    @cached_property
    def name(self) -> str:
        """Its name."""
        return self.parameter.name

    @cached_property
    def is_needed(self) -> bool:
        """Whether each call passes something for it."""
        variable = self.parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return not variable and self.parameter.default is Parameter.empty


class Encoded(NamedTuple):
    """The arguments of a call as JSON, and what went into it."""

    arguments: Arguments
    names: Collection[str]
    """The parameters for which something was passed."""
    struct: msgspec.Struct
    signature: Signature

    @property
    def values(self) -> dict[str, object]:
        """Give the values by the names of parameters, defaults too. `*args` is a list, `**kwargs` a dict."""
        return self.signature.values(self.struct, self.names)


class Signature:
    """The parameters of a function that callers pass."""

    def __init__(self, name: str, slots: Sequence[Slot], context: str | None = None) -> None:
        """Prepare; `of` is what others call."""
        self.name = name
        self.context = context
        """The name of the parameter that the worker fills, or None."""
        self.slots = {one.name: one for one in slots}
        self._places = [one for one in slots if one.parameter.kind in _POSITIONAL]
        self._place_names = [one.name for one in self._places]
        self._needed = {one.name for one in slots if one.is_needed}
        self._rest = next((one.name for one in slots if one.parameter.kind is Parameter.VAR_POSITIONAL), None)
        self._more = next((one.name for one in slots if one.parameter.kind is Parameter.VAR_KEYWORD), None)
        self._by_place = [
            one.name
            for one in self._places
            if self._rest is not None or one.parameter.kind is Parameter.POSITIONAL_ONLY
        ]
        self._named = {
            one.name for one in slots if one.parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        }
        self._is_simple = not (self._by_place or self._rest or self._more)
        self._is_positional = self._is_simple and all(one.parameter.kind in _POSITIONAL for one in slots)
        self._is_whole = all(one.is_needed for one in slots)
        self._struct = _struct(name, slots)
        self._decoder = msgspec.json.Decoder(self._struct)
        self._fields = dict(zip(self._struct.__struct_encode_fields__, self._struct.__struct_fields__, strict=True))
        self._checks = [(one.name, one.check) for one in slots if one.check is not None]
        self._is_exact = self._is_simple and all(one.annotation in _EXACT for one in slots)
        self._after_first: Signature | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> Signature:
        """Read the signature of a function. Raises `BadFunction`, which names the parameter that cannot be used."""
        read, defined = _read(function, name)
        slots: list[Slot] = []
        context: str | None = None
        for place, one in enumerate(read.parameters.values()):
            annotation = _resolved(defined, name, one.name, one.annotation)
            if _is_context(annotation):
                if place or one.kind not in _POSITIONAL:
                    raise BadFunction(f"{name}(): {one.name!r} is the context: let it be the first parameter")
                context = one.name
            elif one.name == "ctx" and annotation is Parameter.empty:
                raise BadFunction(
                    f"{name}(): annotate 'ctx' as Context, so that the worker gives it and callers do not"
                )
            else:
                slots.append(_slot(one, annotation, name))
        return cls(name, slots, context)

    def without_first(self) -> Signature:
        """Give the signature of what is left to pass when the first argument comes from somewhere else.

        Raises `BadArguments` for a function that takes no argument by its place.
        """
        if not self._places and self._rest is None:
            raise BadArguments(f"{self.name}() takes no positional argument, so no result", function=self.name)
        if self._after_first is None:
            first = self._places[0].name if self._places else None
            left = [one for one in self.slots.values() if one.name != first]
            self._after_first = Signature(self.name, left, self.context)
        return self._after_first

    def refuse_result(self, returns: object, of: str) -> None:
        """Raise `BadArguments` if what another function returns can never be the first argument.

        Only plain classes are compared: about unions, generics and Any, the worker decides with the value.
        """
        first = self._places[0] if self._places else None
        if first is None or not isinstance(returns, type) or not isinstance(first.annotation, type):
            return
        if kinds.never_fits(returns, first.annotation):
            raise BadArguments(
                f"{self.name}() takes {first.annotation.__qualname__} as {first.name!r}, but {of}() returns "
                f"{returns.__qualname__}: let them fit, or put a function between them",
                function=self.name, parameter=first.name,
            )  # fmt: skip

    def with_first(self, value: bytes, arguments: Arguments) -> Arguments:
        """Put the JSON of a first argument to the arguments that `without_first` has encoded.

        Raises `BadArguments` for what is no JSON of arguments.
        """
        by_place, by_name = self._apart(arguments)
        first = self._places[0].name if self._places else None
        if by_place or first is None or first in self._by_place:
            by_place.insert(0, value)
        elif first in by_name:
            self._raise(first, f"{self.name}() got {first!r} twice")
        else:
            by_name = {first: value, **by_name}
        pairs = [_pair(*item) for item in by_name.items()]
        return Arguments(_joined(b"[", by_place, b"]"), _joined(b"{", pairs, b"}"))

    # ---- from a call to JSON

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Encoded:
        """Write the arguments of a call. Raises `BadArguments`, which names the parameter and what it expects."""
        bound = self.bind(args, kwargs)
        try:
            struct = msgspec.convert(bound, self._struct)
            data = _ENCODER.encode(struct)
            arrived = None if self._is_exact else self._decoder.decode(data)
        except Exception as error:  # the arguments may be anything, and their classes may raise anything
            self._refuse_unfit(bound, error)
        if arrived is not None:
            self._refuse_changed(bound, struct, data, arrived)
        return Encoded(self._split(data, bound), bound, struct, self)

    def values(self, struct: msgspec.Struct, names: Collection[str]) -> dict[str, object]:
        """Give the values by the names of parameters; for those that are not among `names`, what the function has."""
        return {
            name: getattr(struct, self._fields[name]) if name in names else one.otherwise
            for name, one in self.slots.items()
        }

    def bind(self, args: Sequence[T], kwargs: Mapping[str, T]) -> dict[str, T | list[T] | dict[str, T]]:
        """Say which parameter takes which argument. Raises `BadArguments` as Python would raise `TypeError`."""
        bound: dict[str, T | list[T] | dict[str, T]] = dict(zip(self._place_names, args, strict=False))
        if len(args) > len(self._places):
            if self._rest is None:
                takes = f"{len(self._places)} positional argument{'s' * (len(self._places) != 1)}"
                raise BadArguments(f"{self.name}() takes {takes}, but got {len(args)}", function=self.name)
            bound[self._rest] = list(args[len(self._places) :])
        more: dict[str, T] = {}
        for name, value in kwargs.items():
            if name not in self._named:
                if self._more is None or name == self.context:
                    self._stranger(name)
                more[name] = value
            elif name in bound:
                raise BadArguments(f"{self.name}() got {name!r} twice", function=self.name, parameter=name)
            else:
                bound[name] = value
        if more and self._more is not None:
            bound[self._more] = more
        if not bound.keys() >= self._needed:
            missing = [name for name in self.slots if name in self._needed and name not in bound]
            needs = " and ".join(map(repr, missing))
            raise BadArguments(f"{self.name}() needs {needs}", function=self.name, parameter=missing[0])
        return bound

    def _stranger(self, name: str) -> NoReturn:
        if name == self.context:
            what = f"gets {name!r} from the worker: leave it out"
        elif name in self.slots:
            what = f"takes {name!r} as a positional argument only"
        else:
            what = f"has no parameter {shown(name)}; it takes {', '.join(self.slots) or 'none'}"
        raise BadArguments(f"{self.name}() {what}", function=self.name, parameter=name)

    def _refuse_changed(self, bound: Mapping[str, object], struct: object, data: bytes, arrived: object) -> None:
        """Raise `BadArguments` for an argument that would arrive in the worker as another value."""
        for name, check in self._checks:
            wrong = check(bound[name]) if name in bound else None
            if wrong is not None:
                cure = "annotate the parameter, or pass None, bool, int, float, str, list or dict"
                self._raise(name, f"{self.name}() cannot take {name!r}: {wrong}; {cure}")
        for name in bound:
            wrong = kinds.inexact(getattr(struct, self._fields[name]), data)
            if wrong is not None:
                self._raise(name, f"{self.name}() cannot take {name!r}: {wrong}")
        if b"null" in data:
            for name in bound:
                if kinds.is_endless(getattr(struct, self._fields[name])):
                    self._raise(name, f"{self.name}() got {_value(bound[name])} for {name!r}: {kinds.NO_NUMBER}")
        if _ENCODER.encode(arrived) != data:  # a set may only have come in another order
            for name in bound:
                sent, came = (canonical(getattr(one, self._fields[name])) for one in (struct, arrived))
                if sent != came:
                    what = f"{_value(bound[name])} for {name!r}, but would get {came[:80].decode('utf-8', 'replace')}"
                    self._raise(name, f"{self.name}() was passed {what}: pass what the annotation says")

    def _refuse_unfit(self, bound: Mapping[str, object], error: Exception) -> NoReturn:
        """Raise `BadArguments` for arguments that msgspec has refused; find out which parameter it was."""
        for name, value in bound.items():
            field = self._fields[name]
            only = msgspec.defstruct("_", [(field, _travelling(self.slots[name]))], rename={field: name})
            try:
                msgspec.json.decode(_ENCODER.encode(msgspec.convert({name: value}, only)), type=only)
            except Exception as found:  # likewise
                wrong = kinds.NO_NUMBER if kinds.is_endless(value) else _wrong(name, found)
                wrong = _OBJECT.sub(kinds.names_of(self.slots[name].annotation) or "object", wrong)
                self._raise(name, f"{self.name}() got {_value(value)} for {name!r}: {wrong}", found)
        raise BadArguments(f"{self.name}(): {error_words(error)}", function=self.name) from error

    def _raise(self, parameter: str, message: str, cause: Exception | None = None) -> NoReturn:
        raise BadArguments(message, function=self.name, parameter=parameter) from cause

    def _split(self, data: bytes, bound: Mapping[str, object]) -> Arguments:
        if self._is_simple:
            return Arguments(b"[]", data)
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        a: list[bytes] = []
        for name in self._by_place:
            if name not in bound:
                break  # what comes behind the gap travels by its name
            a.append(bytes(raw.pop(name)))
        k = [_pair(name, bytes(one)) for name, one in raw.items() if name not in (self._rest, self._more)]
        if self._rest is not None and self._rest in raw:
            a.append(bytes(raw[self._rest])[1:-1])
        if self._more is not None and self._more in raw:
            k.append(bytes(raw[self._more])[1:-1])
        return Arguments(_joined(b"[", a, b"]"), _joined(b"{", k, b"}"))

    # ---- from JSON to a call

    def decode(self, arguments: Arguments) -> tuple[list[object], dict[str, object]]:
        """Read the arguments of a call: those by place, and those by name.

        Raises `BadArguments`, which names the parameter; the message holds no value of an argument, except for what
        classes of the program say when they are made.
        """
        return self._split_struct(self._read(arguments))

    def take(self, arguments: Arguments) -> tuple[Sequence[object], Mapping[str, object]]:
        """Do as `decode`, but give all arguments by their places if that is quicker."""
        struct = self._read(arguments)
        if self._is_positional:
            args = msgspec.structs.astuple(struct)
            if self._is_whole or all(one is not msgspec.UNSET for one in args):
                return args, _NOTHING
        return self._split_struct(struct)

    def _read(self, arguments: Arguments) -> msgspec.Struct:
        data = arguments.k
        if not self._is_simple or arguments.a != b"[]":
            data = self._together(arguments)
        try:
            return self._decoder.decode(data)
        except Exception as error:  # a class of the caller's may raise anything when it is made
            self._together(arguments)  # which says what is missing, and what is too much
            place = _AT.fullmatch(str(error))
            name = _parameter(place["place"]) if place is not None else None
            found = name if name in self.slots else None
            what = f" cannot take {found!r}" if found else ""
            wrong = _wrong(name or "", error, told=True)
            raise BadArguments(f"{self.name}(){what}: {wrong}", function=self.name, parameter=found) from error

    def _split_struct(self, struct: msgspec.Struct) -> tuple[list[object], dict[str, object]]:
        values = {name: getattr(struct, field) for name, field in self._fields.items()}
        came = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        args: list[object] = []
        for name in self._by_place:
            if name not in came:
                break
            args.append(came.pop(name))
        args += cast("list[object]", came.pop(self._rest, ())) if self._rest is not None else ()
        more = cast("dict[str, object]", came.pop(self._more, {})) if self._more is not None else {}
        return args, {**came, **more}

    def _apart(self, arguments: Arguments) -> tuple[list[bytes], dict[str, bytes]]:
        try:
            by_place = msgspec.json.decode(arguments.a, type=list[msgspec.Raw])
            by_name = msgspec.json.decode(arguments.k, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadArguments(f"{self.name}(): {error_words(error)}", function=self.name) from error
        return [bytes(one) for one in by_place], {name: bytes(one) for name, one in by_name.items()}

    def _together(self, arguments: Arguments) -> bytes:
        """Give one JSON object of all arguments, by the names of parameters."""
        bound = self.bind(*self._apart(arguments))
        pairs: list[bytes] = []
        for name, found in bound.items():
            if isinstance(found, list):
                pairs.append(_pair(name, _joined(b"[", found, b"]")))
            elif isinstance(found, dict):
                pairs.append(_pair(name, _joined(b"{", [_pair(*item) for item in found.items()], b"}")))
            else:
                pairs.append(_pair(name, found))
        return _joined(b"{", pairs, b"}")

    # ---- what others may know

    def schema(self) -> dict[str, Any]:
        """Give the JSON Schema of the payload of a call, for programs in other languages.

        It describes what `encode` writes. A worker takes arguments that have a name by their place, too.
        """
        (found,), parts = msgspec.json.schema_components([self._struct], ref_template="#/$defs/{name}")
        inside = parts.pop(cast("str", found["$ref"]).rpartition("/")[2])
        shapes: dict[str, Any] = inside["properties"]
        for name, one in self.slots.items():
            if one.parameter.default is not Parameter.empty and kinds.plain(one.parameter.default) is None:
                shapes[name] = {**shapes[name], "default": one.parameter.default}
        named = [one for one in self.slots.values() if one.name in self._named and one.name not in self._by_place]
        a: dict[str, Any] = {"type": "array", "prefixItems": [shapes[name] for name in self._by_place]}
        a["minItems"] = sum(self.slots[name].is_needed for name in self._by_place)
        a["items"] = shapes[self._rest]["items"] if self._rest is not None else False
        k: dict[str, Any] = {"type": "object", "properties": {one.name: shapes[one.name] for one in named}}
        k["required"] = [one.name for one in named if one.is_needed]
        k["additionalProperties"] = shapes[self._more]["additionalProperties"] if self._more is not None else False
        properties = {"v": {"const": 1}, "f": {"const": self.name}, "a": a, "k": k}
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": self.name, "type": "object"}
        required = ["v", "f", *(["a"] if a["minItems"] else []), *(["k"] if k["required"] else [])]
        return {**schema, "properties": properties, "required": required, **({"$defs": parts} if parts else {})}


# ---- reading a function


def _read(function: Callable[..., Any], name: str) -> tuple[inspect.Signature, Callable[..., Any]]:
    """Give what Python knows of a call, and the function to whose module the annotations belong."""
    found: Any = function
    while True:
        try:
            read = inspect.signature(found, follow_wrapped=False)
        except Exception as error:  # from Python 3.14 on, this evaluates annotations
            raise BadFunction(f"{name}(): its parameters cannot be read: {error_words(error)}") from error
        wrapped = getattr(found, "__wrapped__", None)
        # a wrapper with *args takes what the function takes that it wraps
        if wrapped is None or not any(one.kind is Parameter.VAR_POSITIONAL for one in read.parameters.values()):
            return read, found
        found = wrapped


def _resolved(function: Callable[..., Any], name: str, parameter: str, annotation: Any) -> Any:
    """Give an annotation that may have been written, or kept, as a text."""
    if annotation is Parameter.empty:
        return annotation

    def bare() -> None: ...

    bare.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(bare, _names(function), include_extras=True)["it"]
    except Exception as error:  # an annotation is an expression, which may raise anything
        text = annotation if isinstance(annotation, str) else shown(annotation)
        raise BadFunction(
            f"{name}(): the annotation {text} of {parameter!r} cannot be read: {error_words(error)}; what it names "
            "must be there at run time, at the top of the module, and not under `if TYPE_CHECKING`"
        ) from error


def _names(function: Callable[..., Any]) -> dict[str, Any]:
    """Give what the text of an annotation may name: what is in the module, and what the function uses from outside."""
    found = dict(getattr(function, "__globals__", {}))
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(getattr(getattr(function, "__code__", None), "co_freevars", ()), cells, strict=False):
        with suppress(ValueError):  # a function that calls itself is not there yet
            found[name] = cell.cell_contents
    return found


def _is_context(annotation: Any) -> bool:
    found = get_origin(annotation) or annotation
    return isinstance(found, type) and issubclass(found, Context)


def _slot(parameter: Parameter, annotation: Any, name: str) -> Slot:
    kept: Any = Any if annotation is Parameter.empty else annotation
    try:
        kind = kinds.kind_of(kept)
        msgspec.json.Decoder(kept)
    except TypeError as error:
        raise BadFunction(f"{name}(): {parameter.name!r} cannot be passed: {error}") from error
    return Slot(parameter, kept, _check(parameter, kinds.check_of(kind)), _otherwise(parameter, kept))


def _otherwise(parameter: Parameter, annotation: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return []
    if parameter.kind is Parameter.VAR_KEYWORD:
        return {}
    try:
        return msgspec.convert(parameter.default, annotation)
    except Exception:  # many write x: int = None
        return parameter.default


def _check(parameter: Parameter, check: kinds.Check | None) -> kinds.Check | None:
    if check is None or parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        return check

    def each(values: object) -> str | None:
        items = cast("dict[str, object]", values).values() if isinstance(values, dict) else cast("list[object]", values)
        return next((wrong for one in items if (wrong := check(one)) is not None), None)

    return each


def returned(function: Callable[..., Any], name: str) -> Any:
    """Give the type that a function returns; Any if it does not say. Raises `BadFunction` if JSON cannot hold it."""
    read, defined = _read(function, name)
    found = _resolved(defined, name, "return", read.return_annotation)
    if get_origin(found) in (Awaitable, Coroutine):
        found = get_args(found)[-1]  # a `def` that gives what an `async def` has made
    if found is Parameter.empty:
        return Any
    if found in (Never, NoReturn):
        return None
    try:
        kinds.kind_of(found)
        msgspec.json.Decoder(found)
    except TypeError as error:
        cure = "or keep no results, with keep_result=0"
        raise BadFunction(f"{name}(): what it returns cannot be kept: {error}; {cure}") from error
    return found


def _travelling(slot: Slot) -> Any:
    kind = slot.annotation
    if slot.parameter.kind is Parameter.VAR_POSITIONAL:
        return GenericAlias(list, kind)
    return GenericAlias(dict, (str, kind)) if slot.parameter.kind is Parameter.VAR_KEYWORD else kind


def _struct(name: str, slots: Sequence[Slot]) -> type[msgspec.Struct]:
    """Make a Struct of parameters. Its own fields have names that clash with nothing."""
    fields: list[Any] = []
    for place, one in enumerate(slots):
        kind = _travelling(one)
        own = f"p{place}"
        fields.append((own, kind) if one.is_needed else (own, kind | msgspec.UnsetType, msgspec.UNSET))
    try:
        made = msgspec.defstruct(
            name, fields, rename={f"p{place}": one.name for place, one in enumerate(slots)},
            forbid_unknown_fields=True, kw_only=True,
        )  # fmt: skip
        msgspec.json.Decoder(made)
    except Exception as error:
        raise BadFunction(f"{name}(): its parameters cannot be passed together: {error_words(error)}") from error
    return made


# ---- words and bytes


def canonical(value: object) -> bytes:
    """Write equal values as equal bytes of JSON: dicts and sets in order."""
    return _ENCODER.encode(built(value))


def built(value: object) -> object:
    """Give the one form in which JSON has all values that are equal to this one."""
    found = msgspec.to_builtins(value, order="deterministic", builtin_types=kinds.MANY_FORMS)
    return msgspec.to_builtins(kinds.one_form(found), str_keys=True)


def _value(value: object) -> str:
    return shown(value, 60)


def _parameter(place: str | None) -> str | None:
    found = re.search(r"\$\.(\w+)", place or "")
    return found[1] if found else None


def _wrong(name: str, error: Exception, told: bool = False) -> str:
    """Say what msgspec found wrong, in our words: `expected str`; `told` also says what was there instead."""
    if isinstance(error, UnicodeEncodeError):
        return "it holds a lone surrogate, which UTF-8 cannot write"
    if not isinstance(error, msgspec.MsgspecError):
        return error_words(error)
    found = _AT.fullmatch(str(error))
    assert found is not None, "this matches any text"
    place = (found["place"] or "").replace("`", "").replace(f"$.{name}", name, 1).replace("$", name, 1)
    what = _SHOWN.sub("", found["what"]) if told else found["what"]
    if place == name and not told:
        what = _GOT.sub("", what)
    what = what.replace("`", "")
    what = what[:1].lower() + what[1:]
    return what if place in ("", name) else f"{what} at {place}"


def _pair(name: str, value: bytes) -> bytes:
    return _ENCODER.encode(name) + b":" + value


def _joined(begin: bytes, parts: Sequence[bytes], end: bytes) -> bytes:
    return begin + b",".join(filter(None, parts)) + end
