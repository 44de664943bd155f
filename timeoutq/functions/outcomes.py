"""The result of a call as JSON, or the reason why the call failed. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import Any, cast

import msgspec

from timeoutq.functions import models
from timeoutq.functions.errors import BadResult, CallCancelled, CallExpired, CallFailed
from timeoutq.server.calls import Kept
from timeoutq.words import arguments, tracebacks
from timeoutq.words.arguments import shown
from timeoutq.words.model import Ended

MOST = Kept.MOST  # bytes of a result
KEEP_FAILURE = 7 * 86_400.0  # seconds for which failures are kept
NO_MEMORY = (
    "has returned, but the server had no memory for its result: give the server more (maxmemory), or keep results for "
    "less time"
)
"""What is told of a call whose result is empty."""
_ZONE = re.compile(rb"[+-]\d\d:\d\d\"")  # what a time with a zone ends in


class CallFailure(msgspec.Struct, frozen=True):
    """Why a call failed, as text: the classes of a worker's exceptions need not exist where the call came from."""

    error: str = ""  # the name of the exception's class; empty if there was no exception
    message: str = ""
    traceback: str | None = None  # at most 16 KiB, without local variables

    def __str__(self) -> str:
        """Give the failure in one line, as the error of the task has it: `ValueError: no such address`."""
        return ": ".join(filter(None, (self.error, self.message))) or "unknown error"


def encode(value: object, returns: Any) -> bytes:
    """Give the JSON of what a function returned. Raises `BadResult` for what would not arrive as the type `returns`."""
    try:
        data = models.ENCODER.encode(value)
        _decoder(returns).decode(data)
    except Exception as error:  # the value may be anything, and its class may raise anything
        raise BadResult(f"it returned {shown(value)}, which cannot be kept: {_wrong(error)}") from error
    if b"null" in data and value is not None and _is_endless(value):
        raise BadResult(f"it returned {shown(value)}, which cannot be kept: JSON has no NaN and no infinity")
    if _ZONE.search(data) and _is_odd(models.built(value, builtin_types=(datetime, time))):
        why = "JSON holds no zone that is off by seconds: return .astimezone(UTC)"
        raise BadResult(f"it returned {shown(value)}, which cannot be kept: {why}")
    if len(data) > MOST:
        raise BadResult(
            f"it returned {len(data):,} bytes of JSON; the limit is {MOST:,}: store the data elsewhere and return its "
            "address, or keep no result, with keep_result=0"
        )
    return data


def _is_endless(value: object) -> bool:
    """Say whether a NaN or an infinity is anywhere in a value: msgspec writes null for it."""
    try:
        json.dumps(models.built(value, str_keys=True), allow_nan=False)
    except ValueError:
        return True
    return False


def _is_odd(value: object) -> bool:
    """Say whether the zone of a time in a value is off by seconds, as most were a century ago: JSON has minutes."""
    if isinstance(value, datetime | time):
        return bool((value.utcoffset() or timedelta()) % timedelta(minutes=1))
    if isinstance(value, dict):
        value = list(cast("Mapping[object, object]", value).items())
    return isinstance(value, list | tuple) and any(map(_is_odd, cast("Sequence[object]", value)))


def decode(data: bytes, returns: Any) -> Any:
    """Give the value that `encode` has written. Raises `BadResult` for what does not fit the type."""
    try:
        return _decoder(returns).decode(data)
    except Exception as error:  # a class of the caller's may raise anything when it is made
        raise BadResult(f"the result does not fit what the function says here: {_wrong(error)}") from error


def failure(error: BaseException) -> bytes:
    """Give the JSON of why a call failed. Never raises."""
    words = arguments.error_words(error)
    name = arguments.class_name(error).encode("utf-8", "backslashreplace").decode()
    message = words.removeprefix(name).removeprefix(": ")
    return models.ENCODER.encode(CallFailure(name, message, tracebacks.read_traceback(tracebacks.trace(error), words)))


def read_failure(data: bytes | None, error: str | None = None) -> CallFailure:
    """Read why a call failed; `error` is the last error of its task, which tells it where nothing is kept."""
    try:
        return msgspec.json.decode(data or b"", type=CallFailure)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # another program wrote it, or nobody did
        return CallFailure("", (data or b"").decode("utf-8", "replace") if error is None else error)


def error_of(ended: Ended) -> CallFailed:
    """Give the error of a call that was given up, or cancelled, or has expired."""
    found = read_failure(ended.result, ended.error)
    if ended.is_expired:
        return CallExpired(f"call {ended.task!r} has {found}", id=ended.task, message=found.message)
    if ended.is_cancelled:
        return CallCancelled(f"call {ended.task!r} was {found}", id=ended.task, message=found.message)
    return CallFailed(f"call {ended.task!r} failed: {found}", id=ended.task, **msgspec.structs.asdict(found))


def _decoder(returns: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _made(returns)
    except TypeError:  # what cannot be hashed can be a type, too
        return models.decoder(returns)


@lru_cache(maxsize=1_000)
def _made(returns: Any) -> msgspec.json.Decoder[Any]:
    return models.decoder(returns)


def _wrong(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.MsgspecError) else arguments.error_words(error)
