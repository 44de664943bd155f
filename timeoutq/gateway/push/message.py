"""The message for a task: a JSON object, its id, and its signatures as Standard Webhooks says."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

from timeoutq.gateway.problems import spelled
from timeoutq.words.arguments import unpack
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Lease, raw

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # how many bytes a secret has (Standard Webhooks, "Signature scheme")
MOST_SECRETS = 5
CURE = 'make one with: (umask 077; echo "whsec_$(openssl rand -base64 32)" > FILE)'


def body(queue: str, lease: Lease, stored: bytes | None) -> bytes:
    """Give the body of the message for a lease, ASCII; `stored` is the payload as it stands in Redis."""
    payload: Any = unpack(stored)
    task, fence = spelled(lease.task), str(lease.fence)
    told: dict[str, Any] = {"queue": queue, "task": task, "attempt": lease.attempt, "fence": fence}
    try:
        shown = {"b64": payload} if isinstance(payload, bytes) else payload
        return _json({**told, "payload": shown})
    except (ValueError, RecursionError):  # a NaN, which is no JSON, or too deep
        return _json({**told, "payload": {"b64": stored}})


def _json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, allow_nan=False, default=lambda data: base64.b64encode(data).decode()).encode("ascii")


def message_id(queue: str, lease: Lease, stored: bytes | None) -> str:
    """Give the id of the message: the same each time when a task is sent, or put, again with the same payload."""
    parts = queue.encode(), raw(lease.task), stored or b""
    digest = hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()
    return "msg_" + base64.urlsafe_b64encode(digest[:18]).decode()


def headers(secrets: Sequence[bytes], id: str, at: int, body: bytes) -> dict[str, str]:
    """Give the three headers of a message, with a signature for each secret; `at` is Unix time when it is sent."""
    moment = datetime.fromtimestamp(at, UTC)
    signatures = (Webhook(secret).sign(id, moment, body.decode()) for secret in secrets)
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": " ".join(signatures)}


def read_secret(word: str) -> bytes:
    """Read a secret, which is `whsec_` and base64; raises `ValueError`, whose message never quotes the secret."""
    if not word.startswith(PREFIX):
        raise ValueError(f"it does not begin with {PREFIX}")
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except ValueError:
        raise ValueError(f"what stands behind {PREFIX} is not base64") from None
    if not SHORTEST <= len(secret) <= LONGEST:
        raise ValueError(f"it has {len(secret)} bytes, not {SHORTEST} to {LONGEST}")
    return secret


def read_secrets(file: Path) -> tuple[list[bytes], str]:
    """Give the secrets of a file, one a line, and a warning if others may read it, else ''; raises `InvalidInput`."""
    try:
        words = file.read_text("utf-8").split()
        mode = file.stat().st_mode
    except OSError as error:
        raise InvalidInput(f"cannot read --secret-file {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidInput(f"--secret-file {file} is no text: {CURE}") from None
    if not 1 <= len(words) <= MOST_SECRETS:
        raise InvalidInput(
            f"--secret-file {file} has {len(words)} secrets, not 1 to {MOST_SECRETS}, one a line: {CURE}"
        )
    secrets: list[bytes] = []
    for number, word in enumerate(words, 1):
        try:
            secrets.append(read_secret(word))
        except ValueError as error:
            raise InvalidInput(f"--secret-file {file}: secret {number} cannot be used: {error}; {CURE}") from None
    others = stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO)
    return secrets, f"other users may read --secret-file {file}: chmod 600 {file}" if others else ""
