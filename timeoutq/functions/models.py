"""Values and types as JSON: what msgspec knows, and the models of pydantic, if the program uses pydantic. No I/O."""

from __future__ import annotations

import sys
from typing import Any

import msgspec


def _is_model(kind: Any) -> bool:
    base: Any = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return isinstance(kind, type) and hasattr(base, "model_validate") and issubclass(kind, base)


def write(value: Any) -> Any:
    """Give what msgspec can write for a value that it does not know. Raises `TypeError`."""
    if not _is_model(type(value)):
        raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")
    return value.model_dump(mode="json", by_alias=True, round_trip=True)


def read(kind: Any, value: Any) -> Any:
    """Give a value of a type that msgspec does not know. Raises `TypeError`, and `ValueError` with the fields."""
    if not _is_model(kind):
        raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
    try:
        return kind.model_validate(value)
    except ValueError as error:
        rows: list[Any] = getattr(error, "errors", list)()
        wrong = "; ".join(f"{'.'.join(map(str, row['loc'])) or kind.__name__}: {row['msg']}" for row in rows)
        raise ValueError(wrong or str(error)) from None


def schema(kind: Any) -> dict[str, Any]:
    """Give the JSON Schema of a type that msgspec does not know. Raises `TypeError`."""
    if not _is_model(kind):
        raise TypeError(
            f"{kind.__qualname__} is no type of JSON: pass what it is made of, make it a dataclass, or say Any"
        )
    found: dict[str, Any] = kind.model_json_schema()
    # its references are to its own $defs, so it is a document of its own
    return {"$id": f"urn:{kind.__module__}.{kind.__qualname__}", **found} if "$defs" in found else found


ENCODER = msgspec.json.Encoder(enc_hook=write)


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Make what reads JSON as a type."""
    return msgspec.json.Decoder(kind, dec_hook=read)


def convert(value: object, kind: Any) -> Any:
    """Give a value as a type. Raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=read)


def built(value: object, **how: Any) -> Any:
    """Give a value in lists, dicts and what stands in these, as `msgspec.to_builtins` does."""
    return msgspec.to_builtins(value, enc_hook=write, **how)
