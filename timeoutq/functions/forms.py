"""The one form in which JSON has all values that are equal, and times that JSON cannot hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import cast

import msgspec

MANY_FORMS = (datetime, time, Decimal)
"""Types that write equal values in several ways: one moment in two time zones, 1.50 and 1.5."""
_DAY = date(2000, 1, 2)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_EXACT_INT = 2**53
_MINUTE = timedelta(minutes=1)


def built(value: object) -> object:
    """Give the one form of all values that are equal to this one: what `json` writes in the same way."""
    found = msgspec.to_builtins(value, order="deterministic", builtin_types=MANY_FORMS)
    return msgspec.to_builtins(_one_form(found), str_keys=True)


def _one_form(value: object) -> object:
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
            found = {msgspec.to_builtins(_one_form(key)): _one_form(one) for key, one in rows}
            return {key: found[key] for key in sorted(found, key=str)}
        case list() | tuple():
            return [_one_form(one) for one in cast("Sequence[object]", value)]
        case _:
            return value


def odd_time(value: object) -> datetime | time | None:
    """Give a time in a value whose zone is off by seconds, as most were a century ago: JSON has minutes."""
    found = msgspec.to_builtins(value, builtin_types=(datetime, time), enc_hook=lambda _: None)
    return next((one for one in _times(found) if (one.utcoffset() or _MINUTE) % _MINUTE), None)


def _times(value: object) -> Iterator[datetime | time]:
    match value:
        case datetime() | time():
            yield value
        case dict():
            for key, one in cast("dict[object, object]", value).items():
                yield from (*_times(key), *_times(one))
        case list() | tuple():
            for one in cast("Sequence[object]", value):
                yield from _times(one)
        case _:
            pass
