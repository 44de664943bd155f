"""Which calls replicas must confirm, and how many replicas; and what a caller is told when they have not confirmed.

On a queue with the setting `durable=N`, a WAIT follows each call that accepts tasks, hands out leases or ends leases,
in the same flush, because a WAIT waits only for what its own connection has written. Cleaners, supervisors and
heartbeats wait for no replica: a failover that loses a requeue also loses every later claim, and those claimers were
never told yes. So the old lease is back, and it is the only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from timeoutq.server.calls import Call, Command
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.replies import Claimed, whole
from timeoutq.words.arguments import MOST_REPLICAS
from timeoutq.words.errors import NotReplicated
from timeoutq.words.model import Outcome
from timeoutq.words.text import counted

FRESH = 5.0
"""Seconds between two looks at the setting of the queue. A client looks with a call that it makes anyway."""

UNCONFIRMED = -1  # in the place of a number of replicas: wait for no replica, whatever the queue's setting says

CONFIRMED = frozenset(
    {
        "put", "schedule", "restore", "claim", "extend", "ack", "fail", "release", "retry_failed", "forget", "host",
        "restore_hosts", "set_schedule", "tick", "seal_batch", "restore_batch", "cancel", "kind",
    }
)  # fmt: skip
"""The scripts whose callers are told something that a failover must not undo. `configure` waits where it changes the
politeness (`flows.py`); it does not wait to pause a queue, or to end that it is durable, while replicas are away."""

ENDS = frozenset({"ack", "fail", "release"})
"""The scripts that end leases. If a call is sent again, it answers `ALREADY` for each lease that it ended before."""


@dataclass(slots=True)
class Durable:
    """The setting `durable` of a queue, as a client has last read it."""

    replicas: int = 0  # how many replicas must confirm; 0 where the queue is not durable
    until: float = 0.0  # when the client is to look again, by the monotonic clock
    proved: bool = False
    """Whether the user may run WAIT; this is tried before the first call that replicas must confirm."""

    def learn(self, replicas: int, now: float) -> None:
        """Take the setting as it is now."""
        self.replicas, self.until = replicas, now + FRESH

    def read(self, reply: object, now: float) -> None:
        """Take the reply to `look`; an error tells nothing."""
        if isinstance(reply, list | tuple):
            uses, replicas = cast("Any", reply)
            self.learn(min(max(1, whole(replicas)), MOST_REPLICAS) if b"durable" in (uses or b"").split() else 0, now)


def look(operations: Operations) -> Command:
    """Build the command that reads the setting."""
    return ("HMGET", operations.key("meta"), "uses", "durable")


def patience(calls: Sequence[Call[Any]]) -> float:
    """Give how many seconds replicas may take: half of the shortest lease that is claimed; infinity without a claim."""
    # a lease that ran out meanwhile would count as a crash of its task
    return min((cast("int", call.args[1]) / 2000 for call in calls if call.name == "claim"), default=float("inf"))


def is_promise(answer: object) -> bool:
    """Say whether an answer tells of a write: a claim that found nothing does not, nor do `LOST` and `MAX_RUNTIME`."""
    if answer is None:  # a rule of a host, on a queue that is not polite
        return False
    if isinstance(answer, Claimed):
        return bool(answer.leases)
    outcome = cast("Any", answer)[1] if isinstance(answer, tuple) else answer  # an extend has its deadline before it
    return not isinstance(outcome, Outcome) or bool(outcome.codes.strip(b"LX"))


def merged(call: Call[Any], first: Any, last: Any) -> Any:
    """Choose between the two answers to a call that was sent again because replicas had not confirmed the first."""
    if call.name in ENDS:
        # where the last answer is ALREADY (R), the first one counts; all others are as the server says now, since a
        # failover may have undone the first
        codes = bytes(old if new == ord("R") else new for old, new in zip(first.codes, last.codes, strict=True))
        return Outcome(last.tasks, codes)
    return last if call.name in ("claim", "extend") else first


def not_replicated(call: Call[Any], queue: str, url: str, why: str, few: str) -> NotReplicated:
    """Make the error of a call that was carried out, and that replicas have not confirmed."""
    if call.name == "claim":
        said = f"{url} has leased tasks of queue {queue}, but {why}; they are given back, and nothing is to be run"
    elif call.name in ("put", "schedule", "restore"):
        said = (
            f"the tasks sent so far are in the queue at {url}, but {why}; a failover now may lose them: put them "
            "again, and they are not added twice"
        )
    else:
        said = (
            f"{call.name} is done at {url}, but {why}; a failover now may undo it: the same call again does nothing "
            "twice"
        )
    error = NotReplicated(said + (f"; {few}" if few else ""))
    error.verb = call.name
    return error


def too_few(connected: int, queue: str) -> str:
    """Say how many replicas the server has, and the cure."""
    cure = f"connect more, or ask for fewer (durable= of put, or timeoutq configure {queue} --durable {connected})"
    return f"the server has {counted(connected, 'replica')}: {cure}"


def told(confirmed: object, wanted: int) -> str:
    """Say how few replicas have confirmed; `confirmed` is their number, or the words of an error."""
    if isinstance(confirmed, int):
        return f"only {confirmed} of {counted(wanted, 'replica')} confirmed it"
    return f"none of {counted(wanted, 'replica')} confirmed it: {confirmed}"
