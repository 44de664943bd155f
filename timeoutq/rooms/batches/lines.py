"""Batches as lines of an export: one line for each task of a batch, and a last line with what it was sealed with."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from timeoutq.rooms.batches.flows import checked
from timeoutq.rooms.batches.operations import ENDS, ONS, Joined, Sealed
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput

_DIGEST = re.compile(r"[!-~]{1,64}\Z")


def write(one: Joined | Sealed) -> str:
    """Give the line: JSON in ASCII; an id that is not text goes into a field of its own, in base64."""
    if isinstance(one, Joined):
        return json.dumps({**_named("member", one.task), "batch": one.batch, "end": one.end})
    callback = _named("callback", one.callback) if one.callback else {}
    return json.dumps({"batch": one.batch, "on": one.on, "keep": one.keep_ms / 1000, "digest": one.digest, **callback})


def read(fields: Mapping[str, Any]) -> Joined | Sealed:
    """Read a line, whose JSON is given. Raises `InvalidInput`."""
    name = checked(fields.get("batch"))
    if "member" in fields or "member_b64" in fields:
        end = fields.get("end", "open")
        if end not in ENDS.values():
            raise InvalidInput(f'"end" is one of {", ".join(ENDS.values())}, not {shown(end)}')
        return Joined(name, _id(fields, "member"), end)
    on: Any = fields.get("on")
    digest = fields.get("digest")
    if on not in ONS.values():
        raise InvalidInput(f'"on" is one of {", ".join(ONS.values())}, not {shown(on)}')
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        raise InvalidInput(f'"digest" is up to 64 letters and digits, not {shown(digest)}')
    keep = fields.get("keep")
    arguments.delay_ms(keep, "keep")
    keep_ms = round(arguments.seconds(keep, "keep") * 1000)
    callback = _id(fields, "callback") if "callback" in fields or "callback_b64" in fields else b""
    return Sealed(name, on, keep_ms, digest, callback)


def _named(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}


def _id(fields: Mapping[str, Any], name: str) -> bytes:
    encoded = fields.get(f"{name}_b64")
    if encoded is None:
        return arguments.task_id(fields.get(name))
    try:
        return arguments.task_id(base64.b64decode(encoded, validate=True))
    except (ValueError, TypeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f'"{name}_b64" is not base64: {error}') from error
