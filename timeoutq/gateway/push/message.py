"""What is posted for a task: a JSON object, and the id of the message. Pure; `pushing.py` calls it."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from timeoutq.words.arguments import unpack
from timeoutq.words.model import Lease, raw


def body(queue: str, lease: Lease, stored: bytes | None) -> bytes:
    """Give the body of the message for a lease, ASCII; `stored` is the payload as it stands in Redis.

    An id or a payload that is no text or no JSON is sent as `{"b64": …}`. The fence is a string: JavaScript rounds
    numbers of its size.
    """
    told: dict[str, Any] = {
        "queue": queue,
        "task": _id(lease.task),
        "attempt": lease.attempt,
        "fence": str(lease.fence),
        "payload": None,
    }
    payload = unpack(stored)
    if stored is not None and not isinstance(payload, bytes):
        try:
            return json.dumps({**told, "payload": payload}, allow_nan=False).encode("ascii")
        except (ValueError, RecursionError):  # a NaN, which is no JSON, or too deep
            payload = stored
    return json.dumps({**told, "payload": _b64(payload) if isinstance(payload, bytes) else None}).encode("ascii")


def message_id(queue: str, lease: Lease, stored: bytes | None) -> str:
    """Give the id of the message: the same each time when a task is sent, or put, again with the same payload."""
    parts = queue.encode(), raw(lease.task), stored or b""
    digest = hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()
    return "msg_" + base64.urlsafe_b64encode(digest[:18]).decode()


def _id(task: str) -> object:
    try:
        task.encode("utf-8")
    except UnicodeEncodeError:
        return _b64(raw(task))
    return task


def _b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}
