"""What goes wrong, as answers: RFC 9457 problems. One type for each class of `errors.py`, and some others.

Every part of the gateway raises a `Problem`, or an error of `errors.py`, which `problem_of` turns into one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from timeoutq.words import errors

RETRY_AFTER = 1
"""After how many seconds a client is to ask again when Redis is away."""

STATUS: Mapping[type[errors.TimeoutqError], int] = {
    errors.InvalidInput: 422,
    errors.BadUrl: 422,
    errors.BadSitemap: 422,
    errors.LeaseLost: 409,
    errors.Unavailable: 503,
    errors.ServerFull: 507,
    errors.ShardsUnavailable: 503,
    errors.ReadOnly: 503,
    errors.NotReplicated: 503,
    errors.AccessDenied: 502,
    errors.NotRedis: 502,
    errors.UnsafeServer: 502,
    errors.SchemaMismatch: 502,
    errors.ServerError: 502,
    errors.MissingExtra: 501,
}
"""The status for each error. 502: Redis refuses the gateway, and whoever runs the gateway has to mend this."""

TITLES: Mapping[str, str] = {
    "bad-json": "The body is not JSON",
    "bad-body": "The body does not fit the verb",
    "unknown-queue": "There is no such queue",
    "not-found": "There is nothing at this path",
    "unknown-verb": "There is no such verb",
    "wrong-method": "The path is known, the method is not",
    "too-large": "The body is too large",
    "too-slow": "The body comes too slowly",
    "wrong-media": "The body is of a type that is not read",
    "too-many": "Too many requests of this caller at once",
    "unauthorized": "A token is needed",
    "forbidden": "This caller may not do that",
    "bad-http": "This is not HTTP/1.1 as it should be",
    "bad-host": "The request names no host, or several",
    "foreign-host": "This host is not served here",
    "foreign-origin": "A page of another site has sent this",
    "token-in-url": "A token must not stand in a URL",
    "failed": "The gateway has failed",
    "invalid-input": "An argument cannot be used",
    "lease-lost": "The lease is not this holder's any more",
    "unavailable": "Redis does not answer",
    "server-full": "Redis is full",
}


class Problem(Exception):
    """A request that fails: the status, the name of the type, and what to tell the caller."""

    def __init__(
        self,
        status: int,
        name: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = dict(more or {})
        """Further fields of the answer."""

    @property
    def title(self) -> str:
        """What has happened, in a few words."""
        return TITLES.get(self.name) or self.name.replace("-", " ").capitalize()

    def body(self) -> bytes:
        """Give the body of the answer."""
        found = {
            "type": f"/problems/{self.name}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        return encode({**found, **self.more})


def kebab(name: str) -> str:
    """Give the name of a class as a problem has it: `LeaseLost` is `lease-lost`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def problem_of(error: BaseException) -> Problem:
    """Give the problem that tells of an error."""
    if isinstance(error, Problem):
        return error
    known = next((kind for kind in type(error).__mro__ if kind in STATUS), None)
    if known is None or not isinstance(error, errors.TimeoutqError):
        # what nobody expects may quote anything: its text stays in the log
        return Problem(500, "failed", "an unexpected error, which stands in the log of the gateway: tell its operator")
    status = STATUS[known]
    headers = {"retry-after": str(RETRY_AFTER)} if status == 503 else {}
    more: dict[str, Any] = {}
    if isinstance(error, errors.LeaseLost):
        more = {"task": spelled(error.task), "holder": error.holder, "state": error.state}
    elif isinstance(error, errors.ShardsUnavailable):
        more = {"shards": {str(shard): str(why) for shard, why in error.shards.items()}}
        answers = getattr(error.outcome, "codes", None)
        if answers is not None:
            more["answers"] = [str(answer) for answer in error.outcome]
    return Problem(status, kebab(known.__name__), str(error), headers=headers, more=more)


def spelled(task: str) -> Any:
    """Give an id as JSON has it: text, or `{"b64": …}` for bytes that are not UTF-8."""
    if task.isascii():
        return task
    try:
        task.encode()
    except UnicodeEncodeError:
        return {"b64": task.encode("utf-8", "surrogateescape")}
    return task


def from_base64(word: str) -> bytes:
    """Read what `?b64=` names: base64 in either alphabet, also without the `=` at its end. Raises `ValueError`."""
    plain = word.replace("-", "+").replace("_", "/").encode("ascii")
    return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)


def encode(value: Any) -> bytes:
    """Write JSON. Text with lone surrogates and numbers of any size are written, too."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        return json.dumps(msgspec.to_builtins(value)).encode()
