"""The operation on kinds of failures: which script, which arguments, how to read the reply; and what users learn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from timeoutq.server.calls import Call
from timeoutq.verbs.operations import Operations

WIDTH = 1 << 42
"""In a score of `kind_of`, the number of the kind stands above so many milliseconds."""

KINDS = 1000
"""The most kinds that a queue tells apart; the tasks of all further kinds are counted together."""

OTHER = "other"
"""Stands for the id of a kind, for the tasks of all kinds beyond the thousandth."""


@dataclass(frozen=True, slots=True)
class FailureKind:
    """What some failed tasks have in common: the first line of their errors, without what differs from task to task."""

    id: str
    """A short name of the kind, made of its text: the same on every queue and shard."""
    text: str
    """The type and the first line of the error. `<url>` stands for URLs, `<id>` for the task's id, and `#` for numbers,
    but not for codes such as HTTP 404."""
    count: int
    """How many tasks of this kind are in failed."""
    first: float
    """When the first of these tasks was given up, Unix seconds."""
    last: float
    """When the last of these tasks was given up, Unix seconds."""
    task: str
    """The id of the last of these tasks."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a retry or a forget of a kind has moved so far, and what is left."""

    moved: int
    """How many tasks were retried or forgotten."""
    left: int
    """How many tasks of the kind are still to be retried or forgotten."""
    before: float
    """Only tasks that were given up until then are moved, Unix seconds. Who goes on gives it to the next call."""


def id_of(text: bytes) -> str:
    """Give the id of the kind with this text."""
    return hashlib.sha256(text).hexdigest()[:12] if text else OTHER


def text_of(text: bytes) -> str:
    """Give the text of a kind as users read it."""
    return text.decode("utf-8", "replace") if text else f"all kinds beyond the first {KINDS:,}"


def move_kind(
    operations: Operations, verb: str, text: bytes, before: float, n: int, nonce: Callable[[], bytes] = bytes
) -> Call[Moved]:
    """Build the call that retries or forgets up to `n` tasks of a kind that were given up until `before`; 0 is now."""
    return operations.call(
        "kind",
        [verb, text, round(before * 1000), n],
        lambda reply: Moved(int(reply[0]), int(reply[1]), int(reply[2]) / 1000),
        id=nonce(),
    )
