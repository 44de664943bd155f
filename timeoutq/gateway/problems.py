"""Errors as answers: RFC 9457 problems. One type for each class of `errors.py`, and some others."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from timeoutq.words import errors, telling
from timeoutq.words.model import raw
from timeoutq.words.tracebacks import read_traceback, trace

log = logging.getLogger(__name__)

STATUS: Mapping[type[errors.TimeoutqError], int] = {
    errors.LeaseLost: 409,
    **dict.fromkeys((errors.InvalidInput, errors.BadUrl, errors.BadSitemap), 422),
    errors.MissingExtra: 501,
    # Redis refuses the gateway, and whoever runs the gateway has to mend this
    **dict.fromkeys((errors.AccessDenied, errors.NotRedis, errors.UnsafeServer), 502),
    **dict.fromkeys((errors.SchemaMismatch, errors.ServerError), 502),
    **dict.fromkeys((errors.Unavailable, errors.ShardsUnavailable, errors.ReadOnly, errors.NotReplicated), 503),
    errors.ServerFull: 507,
}
HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": 'Bearer realm="timeoutq"'},
    408: {"connection": "close"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}
"""Headers that every problem of a status has."""


class Problem(Exception):
    """A request that fails: the status, the name of the type, the words for the caller, and what else they are told."""

    def __init__(
        self, status: int, name: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.name, self.detail, self.more = status, name, detail, more
        self.title = name.replace("-", " ").capitalize()
        self.headers = {**HEADERS.get(status, {}), **(headers or {})}

    def body(self) -> bytes:
        found = {"type": f"/problems/{self.name}", "title": self.title, "status": self.status, "detail": self.detail}
        return encode({**found, **self.more})


def problem_of(error: BaseException) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, msgspec.ValidationError):
        return Problem(422, "bad-body", f"{error}: /v1/openapi.json says which fields there are")
    known = next((kind for kind in type(error).__mro__ if kind in STATUS), None)
    if known is None:
        # an error that nobody expects may quote anything: its text stays in the log
        return Problem(500, "failed", "an unexpected error, which stands in the log of the gateway: tell its operator")
    more: dict[str, Any] = {}  # further fields of the answer
    if isinstance(error, errors.LeaseLost):
        more = {"task": spelled(error.task), "holder": error.holder, "state": error.state}
    elif isinstance(error, errors.ShardsUnavailable):
        more = {"shards": {str(shard): str(why) for shard, why in error.shards.items()}}
        if hasattr(error.outcome, "codes"):
            more["answers"] = [str(answer) for answer in error.outcome]
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", known.__name__).lower()
    return Problem(STATUS[known], name, str(error), **more)


def report(words: str, error: BaseException) -> None:
    """Log an error that nobody expects, with its traceback."""
    said = type(error).__name__
    fields, traceback = {"error": said}, read_traceback(trace(error), said)
    telling.say(log, logging.ERROR, "%s: %s", words, said, fields=fields, traceback=traceback)


def spelled(task: str) -> Any:
    """Give an id as JSON has it: text, or `{"b64": …}` for bytes that are not UTF-8."""
    try:
        task.encode()
    except UnicodeEncodeError:
        return {"b64": raw(task)}
    return task


def from_base64(word: str) -> bytes:
    """Read base64 in either alphabet, also without the `=` at its end. Raises `ValueError`."""
    plain = word.replace("-", "+").replace("_", "/").encode("ascii")
    return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


def encode(value: Any) -> bytes:
    """Write JSON. Text with lone surrogates and numbers of any size are written, too."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return json.dumps(msgspec.to_builtins(value)).encode()
