"""Whether a worker process is healthy: the worker writes its signs into memory, and others judge them."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from enum import IntEnum
from mmap import mmap

LEASES = 3  # after so many leases without a turn, a loop counts as hung
OFTEN = 0.5  # seconds between two writes of the signs, at most


class Phase(IntEnum):
    """The phases in the life of a worker: it starts until it knows its queue, and drains when it is to end."""

    STARTING = 0
    WORKING = 1
    DRAINING = 2


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of a worker; moments by the monotonic clock, which is the same in all processes of a machine."""

    phase: Phase = Phase.STARTING
    lease: float = 0.0  # the shortest lease of its queues, seconds
    looped: float = 0.0  # when the event loop has last turned
    turned: float = 0.0  # when the claim loop has last completed a turn
    answered: float = 0.0  # when the server has last answered the heartbeat, which has a connection of its own
    away: bool = False  # whether no server answers the claim loop, which knows this, and asks again and again
    running: int = 0  # how many handlers run

    @property
    def worked(self) -> float:
        """When the process has last worked; 0 if it has only begun to start."""
        return 0.0 if self.phase is Phase.STARTING else self.looped


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a worker: whether it is alive, or to be replaced, and whether it is ready to work."""

    alive: bool
    ready: bool
    words: str


def judge(signs: Signs, now: float) -> Verdict:
    """Say whether a worker process is healthy; `now` is the monotonic clock."""
    limit = LEASES * signs.lease
    if signs.phase is Phase.STARTING:
        return Verdict(True, False, "starting: the handler and the lifespan are not ready yet")
    if now - signs.looped > limit:
        words = f"the event loop has been blocked for {now - signs.looped:.1f} s, which is more than {LEASES} leases"
        cure = "the log says by which handler; does an async def make a blocking call?"
        return Verdict(False, False, f"{words}: {cure}")
    handlers = {0: "no handler runs", 1: "1 handler runs"}.get(signs.running, f"{signs.running} handlers run")
    if signs.phase is Phase.DRAINING:
        return Verdict(True, False, f"draining: {handlers}")
    if signs.away:
        return Verdict(True, True, "waiting for the server, which does not answer")
    # the server answers if it has answered the heartbeat since, and not just at the time of the last turn
    if now - signs.turned > limit and signs.answered > signs.turned + signs.lease:
        words = f"the claim loop has not completed a turn for {now - signs.turned:.1f} s"
        return Verdict(False, False, f"{words}, which is more than {LEASES} leases, though the server answers")
    return Verdict(True, True, f"busy: {handlers}" if signs.running else "idle")


def judge_all(
    signs: Mapping[int, Signs], now: float, processes: int, lease: float, worked: float, died: float, stopping: bool
) -> Verdict:
    """Say whether a supervisor and its processes are healthy; `signs` are those of the processes that run, by pid.

    There should be so many `processes`; `lease` is the shortest of their queues, seconds. One has last `worked`, or the
    supervisor began, and one has last `died` at these moments of the monotonic clock; 0 if none has died.
    """
    verdicts = {pid: judge(one, now) for pid, one in signs.items()}
    hung = [f"process {pid}: {verdict.words}" for pid, verdict in verdicts.items() if not verdict.alive]
    if hung:
        return Verdict(False, False, "; ".join(hung[:3]))
    there = f"{len(signs)} of {processes} processes run"
    if stopping:
        return Verdict(True, False, f"stopping: {there}")
    working = any(one.phase is not Phase.STARTING for one in signs.values())
    if not working and died > worked and now - worked > LEASES * lease:
        words = f"no worker process has worked for {now - worked:.1f} s: they die as soon as they are started"
        return Verdict(False, False, f"{words}; the log says why")
    kinds = Counter(verdict.words.partition(":")[0].partition(",")[0] for verdict in verdicts.values())
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none yet"
    return Verdict(True, any(verdict.ready for verdict in verdicts.values()), f"{there}: {told}")


class Sheet:
    """Memory into which a worker process writes its signs, and from which others read them, at any moment."""

    _FORM = struct.Struct("=7d")
    SIZE = _FORM.size

    def __init__(self, memory: bytearray | mmap | None = None, at: int = 0) -> None:
        """Use this part of a memory that is all zeros; without one, memory of this process."""
        self._memory = bytearray(self.SIZE) if memory is None else memory
        self._at = at

    def write(self, signs: Signs) -> None:
        """Write all signs."""
        self._FORM.pack_into(self._memory, self._at, *astuple(signs))

    def read(self) -> Signs:
        """Read the signs that were written last; without any, those of a worker that starts."""
        phase, lease, looped, turned, answered, away, running = self._FORM.unpack_from(self._memory, self._at)
        return Signs(Phase(int(phase)), lease, looped, turned, answered, bool(away), int(running))


class Vitals:
    """Writes the signs of one worker again and again, in its event loop, so that their age shows a blocked loop."""

    def __init__(self, sheet: Sheet, lease: float, look: Callable[[float], Signs], poke: Callable[[], object]) -> None:
        """Prepare; `lease` is the shortest one in seconds, `look` gives the signs at a moment.

        `poke` makes the claim loop turn: it rests while all handlers run for hours, and would look as if it hung.
        """
        self._sheet, self._lease, self._look, self._poke = sheet, lease, look, poke
        self._poked = 0.0
        self._next: asyncio.TimerHandle | None = None

    def write(self) -> Signs:
        """Write the signs now."""
        signs = self._look(time.monotonic())
        self._sheet.write(signs)
        return signs

    def __enter__(self) -> None:
        """Write from now on: by timers, since a handler may cancel all asyncio tasks."""
        self._next = asyncio.get_running_loop().call_later(min(OFTEN, self._lease / 4), self.__enter__)
        signs, now = self.write(), time.monotonic()
        if signs.phase is not Phase.STARTING and now - max(self._poked, signs.turned) >= self._lease / 2:
            self._poked = now
            self._poke()

    def __exit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()
