"""Signs what is posted, as Standard Webhooks says (standardwebhooks.com): a receiver checks who sent it, and when.

`pushing.py` signs; `timeoutq push` reads the secrets from a file. The id of a message is made of queue, task and
payload: it is the same when a task is sent again, also when the task is put again with the same payload.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stat
from collections.abc import Sequence
from pathlib import Path

from timeoutq.words.errors import InvalidInput

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""How many bytes a secret has (Standard Webhooks, "Signature scheme")."""
MOST_SECRETS = 5
CURE = 'make one with: (umask 077; echo "whsec_$(openssl rand -base64 32)" > FILE)'


def read_secret(word: str) -> bytes:
    """Read a secret, which is `whsec_` and base64; raises `ValueError`, whose message never quotes the secret."""
    if not word.startswith(PREFIX):
        raise ValueError(f"it does not begin with {PREFIX}")
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"what stands behind {PREFIX} is not base64") from None
    if not SHORTEST <= len(secret) <= LONGEST:
        raise ValueError(f"it has {len(secret)} bytes, not {SHORTEST} to {LONGEST}")
    return secret


def read_secrets(file: Path) -> tuple[list[bytes], str]:
    """Give the secrets of a file, one a line, and a warning if others may read the file ('' if they may not).

    With several secrets each message has a signature by each: so a receiver can change its secret without a gap.
    Raises `InvalidInput`.
    """
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


def signatures(secrets: Sequence[bytes], id: str, at: int, body: bytes) -> str:
    """Give the value of `webhook-signature`: one signature for each secret."""
    signed = f"{id}.{at}.".encode() + body
    made = (base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets)
    return " ".join(f"v1,{one}" for one in made)


def headers(secrets: Sequence[bytes], id: str, at: int, body: bytes) -> dict[str, str]:
    """Give the three headers of a message; `at` is when it is sent, whole seconds of Unix time."""
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": signatures(secrets, id, at, body)}
