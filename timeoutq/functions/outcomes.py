"""What is kept of a call that has ended: the JSON of what it returned, or why it failed. Workers write, callers read.

If the task is in failed, what is kept is a `Failure`; if the task has ended in any other way, it is the value that the
function returned. No I/O.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from timeoutq.functions import kinds
from timeoutq.functions.errors import BadResult
from timeoutq.server.calls import Kept
from timeoutq.words import arguments, tracebacks
from timeoutq.words.arguments import shown

MOST = Kept.MOST
"""Bytes of what is kept of a call."""
KEEP_FAILURE = 7 * 86_400.0
"""Seconds for which failures are kept."""

_ENCODER = msgspec.json.Encoder()


class Failure(msgspec.Struct, frozen=True):
    """Why a call failed, as text: the classes of a worker's exceptions need not exist where the call came from."""

    error: str = ""
    """The name of the exception's class; empty if there was no exception."""
    message: str = ""
    traceback: str | None = None
    """At most 16 KiB, without local variables."""

    def __str__(self) -> str:
        """Give the failure in one line, as the error of the task has it: `ValueError: no such address`."""
        return ": ".join(filter(None, (self.error, self.message))) or "unknown error"


_FAILURES = msgspec.json.Decoder(Failure)


def encode(value: object, returns: Any) -> bytes:
    """Give the JSON of what a function returned, at most 256 KiB.

    `returns` is the type that the function says. Raises `BadResult` for a value that would not arrive as that type.
    """
    try:
        data = _ENCODER.encode(value)
        _decoder(returns).decode(data)
    except Exception as error:  # the value may be anything, and its class may raise anything
        raise BadResult(f"it returned {shown(value)}, which cannot be kept: {_wrong(error)}") from error
    if b"null" in data and kinds.is_endless(value):
        raise BadResult(f"it returned {shown(value)}, which cannot be kept: {kinds.NO_NUMBER}")
    if (wrong := kinds.inexact(value, data)) is not None:
        raise BadResult(f"it returned {shown(value)}, which cannot be kept: {wrong}")
    if len(data) > MOST:
        raise BadResult(
            f"it returned {len(data):,} bytes of JSON; the limit is {MOST:,}: store the data elsewhere and return its "
            "address, or keep no result, with keep_result=0"
        )
    return data


def decode(data: bytes, returns: Any) -> Any:
    """Give the value that `encode` has written. Raises `BadResult` for what does not fit the type."""
    try:
        return _decoder(returns).decode(data)
    except Exception as error:  # likewise
        raise BadResult(f"the result does not fit what the function says here: {_wrong(error)}") from error


def failure(error: BaseException | str) -> bytes:
    """Give the JSON of why a call failed: an exception, or a reason. Never raises."""
    words = arguments.error_words(error)
    if isinstance(error, str):
        return _ENCODER.encode(Failure("", words))
    name = arguments.class_name(error).encode("utf-8", "backslashreplace").decode()
    message = words.removeprefix(name).removeprefix(": ")
    trace = tracebacks.trace(error)
    found = Failure(name, message, tracebacks.read_traceback(trace, words))
    return _ENCODER.encode(found)


def read_failure(data: bytes | None, error: str | None = None) -> Failure:
    """Read why a call failed; `error` is the last error of its task, which tells it where nothing is kept."""
    try:
        return _FAILURES.decode(data or b"")
    except Exception:  # another program wrote it, or nobody did
        return Failure("", (data or b"").decode("utf-8", "replace") if error is None else error)


def _decoder(returns: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _made(returns)
    except TypeError:  # what cannot be hashed can be a type, too
        return msgspec.json.Decoder(returns)


@lru_cache(maxsize=1_000)
def _made(returns: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(returns)


def _wrong(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.MsgspecError) else arguments.error_words(error)
