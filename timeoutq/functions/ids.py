"""The ids of calls: random ones, those that a `key=` makes of the arguments, and those of calls that follow a call."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from string import Formatter
from typing import cast

import msgspec

from timeoutq.functions import models
from timeoutq.functions.errors import BadFunction
from timeoutq.functions.signature import Arguments, Signature
from timeoutq.words.arguments import MAX_ID, host, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import text

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, in small letters
SIGNS = 16  # how many of them make an id: 80 random bits
LONGEST = 120  # bytes of an id that a key makes. A longer id keeps its beginning, and a digest stands for all of it
KEPT = 100  # bytes that stay of a longer id. With its digest it is longer than `LONGEST`: no whole id equals one
TICK_DIGITS = 15  # the most digits of the time of a tick, ms

_SIGNS = (ALPHABET * 8).encode()  # the sign for each byte; each sign stands for eight bytes
_READY: list[str] = []  # random signs for the next ids: the system is asked for many at a time
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_READY.clear)  # or both processes would make the same ids
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_EXACT_INT = 2**53
_DAY = date(2000, 1, 2)
_ENCODER = msgspec.json.Encoder()
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def function_name(name: object) -> str:
    """Check the name of a function: ids begin with it. Raises `BadFunction`."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise BadFunction(f"{shown(name)} is no name for a function: pass name=, of 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


def random_id(function: str) -> str:
    """Give an id that no other call has: the function's name and 80 random bits, in 16 letters and digits."""
    while True:
        try:
            return f"{function}:{_READY.pop()}"
        except IndexError:  # nothing is ready, or another thread was quicker
            signs = secrets.token_bytes(SIGNS * 64).translate(_SIGNS).decode()
            _READY.extend(signs[at : at + SIGNS] for at in range(0, len(signs), SIGNS))


def in_batch(function: str, batch: str, place: int, arguments: Arguments) -> str:
    """Give the id of a call of a batch that somebody has named: whoever puts the batch again puts the same calls."""
    said = b"".join(b"%d:%s" % (len(one), one) for one in (batch.encode(), b"%d" % place, *arguments))
    return f"{function}:{hashlib.sha256(said).hexdigest()[:20]}"


def shortened(id: str) -> str:
    """Give an id of at most 120 bytes as it is; of a longer id its first 100 bytes and 32 hex digits of its SHA-256."""
    data = id.encode()
    if len(data) <= LONGEST:
        return id
    return f"{data[:KEPT].decode('utf-8', 'ignore')}~{hashlib.sha256(data).hexdigest()[:32]}"


def group(text: str) -> str:
    """Give the name of the group that counts for this text."""
    whole = shortened(text)
    # a queue reads it as the name of a host, which has no capitals and no dot at its end. A text that is no such name
    # keeps what is left of it, and a digest tells it from other texts
    try:
        name = host(whole).decode("utf-8", "surrogateescape")
    except InvalidInput:  # nothing is left of it
        name = "limit"
    return whole if name == whole else f"{name}~{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def following(parent: bytes, function: str) -> bytes:
    """Give the id of the call that follows a call: the same at each repetition, so that the call is put once."""
    return _behind(parent, b">", function)


def on_failed(parent: bytes, function: str) -> bytes:
    """Give the id of the call that is put when a call has failed for good, likewise."""
    return _behind(parent, b"!", function)


def _behind(parent: bytes, sign: bytes, function: str) -> bytes:
    id = parent + sign + function.encode()
    if len(id) <= MAX_ID:
        return id
    return parent[: MAX_ID - 33] + sign + hashlib.sha256(id).hexdigest()[:32].encode()


def chain(id: bytes) -> list[tuple[bytes, str]]:
    """Give the ids of the calls of a chain, this one the last, each with its function, which is empty for the first."""
    cut = id.split(b">")
    return [(b">".join(cut[:n]), text(cut[n - 1]) if n > 1 else "") for n in range(1 + (not cut[0]), len(cut) + 1)]


def without_tick(id: bytes) -> bytes | None:
    """Give an id without the `@` and the time of a tick, ms, that a schedule has added; None if this is no such id."""
    base, at, tick = id.rpartition(b"@")
    return base if at and base and tick.isdigit() else None


def tick_of(id: bytes, last: int) -> int:
    """Give the time of the tick that has put a call, ms; ticks that are put together share a payload, with the last."""
    digits = id.rpartition(b"@")[2]
    return last if without_tick(id) is None or len(digits) > TICK_DIGITS else int(digits)


def as_json(value: object) -> str:
    """Write all equal values in one way; a text stands as it is."""
    # msgspec sorts sets and keys, but has more than one text for a moment, and for 1.5 and 1.50
    found = models.built(value, order="deterministic", builtin_types=(datetime, time, Decimal))
    built = msgspec.to_builtins(_one_form(found), str_keys=True)
    return built if isinstance(built, str) else _ENCODER.encode(built).decode()


def _one_form(value: object) -> object:
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case time() if value.utcoffset() is not None:
            return datetime.combine(_DAY, value).astimezone(UTC).timetz()
        case Decimal() if value.is_finite():
            short = value.normalize(_EXACT) if value else Decimal(0)
            return f"{short:f}" if abs(short.adjusted()) < 40 else str(short)
        case float() if value.is_integer() and abs(value) <= _EXACT_INT:
            return int(value)
        case dict():
            rows = cast("dict[object, object]", value).items()
            found = {msgspec.to_builtins(_one_form(key)): _one_form(one) for key, one in rows}
            return {key: found[key] for key in sorted(found, key=str)}
        case list() | tuple():
            return [_one_form(one) for one in cast("Sequence[object]", value)]
        case _:
            return value


def whole_call(function: str, values: Mapping[str, object]) -> str:
    """Give the id that stands for a function and all its arguments, defaults too (`key=True`)."""
    return shortened(f"{function}:{as_json(dict(values))}")


@dataclass(frozen=True, slots=True)
class Template:
    """A text with the names of parameters in braces, such as `thumb:{path}`: other arguments make another text.

    A text stands as it is, any other value as JSON has it. Where more than one parameter is named, `%` and the signs
    with which the texts between the braces begin are written as `%25` and so on, as in a URL, so that no two lists of
    arguments make the same text. Only a text that looks like a number, or like other JSON, is not told from the number.
    """

    parts: tuple[tuple[str, str], ...]  # a literal text, and the name of the parameter behind it
    end: str
    _quoted: Mapping[int, str]

    @classmethod
    def of(cls, text: object, signature: Signature, what: str = "key") -> Template:
        """Read a template. Raises `BadFunction`."""
        where = f"{signature.name}(): {what}={shown(text)}"
        if not isinstance(text, str) or not text:
            raise BadFunction(f"{where} is neither True nor a text such as {what}='{signature.name}:{{path}}'")
        try:
            found = list(Formatter().parse(text))
            text.encode()
        except (ValueError, UnicodeEncodeError) as error:
            raise BadFunction(f"{where} cannot be read: {error}") from error
        parts: list[tuple[str, str]] = []
        begun = ""  # {{ and }} end a part, too
        for literal, name, spec, conversion in found:
            begun += literal
            if name is None:
                continue
            if spec or conversion:
                raise BadFunction(f"{where}: write {{{name}}} alone, without ! or :")
            if name not in signature.slots:
                known = ", ".join(signature.slots) or "none"
                raise BadFunction(f"{where}: there is no parameter {name!r}; there is {known}")
            if parts and (not begun or begun[0].isalnum() or begun[0] == "%"):
                raise BadFunction(f"{where}: put a sign such as : between {{{parts[-1][1]}}} and {{{name}}}")
            parts.append((begun, name))
            begun = ""
        signs = {"%", *(literal[0] for literal, _ in parts[1:])} if len(parts) > 1 else set[str]()
        quoted = {ord(sign): "".join(f"%{byte:02X}" for byte in sign.encode()) for sign in signs}
        return cls(tuple(parts), begun, quoted)

    @property
    def begin(self) -> str:
        """What all texts of this template begin with."""
        return self.parts[0][0] if self.parts else self.end

    def fill(self, values: Mapping[str, object]) -> str:
        """Give the text for these arguments, in full length."""
        said = (literal + as_json(values[name]).translate(self._quoted) for literal, name in self.parts)
        return "".join(said) + self.end
