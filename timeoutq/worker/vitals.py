"""What a worker shows of its health: it writes its `Signs` again and again, while it lives, if anybody wants to know.

The event loop of the worker has this done, so a blocked event loop is seen by the age of the signs. The pump is also
made to go round twice in each lease: the pump of a worker whose handlers all run for hours rests until one ends, and
would look as if it hung.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from timeoutq.worker.health import Phase, Sheet, Signs
from timeoutq.worker.lanes import Lane
from timeoutq.worker.pump import Pump
from timeoutq.worker.stopping import Stopping

OFTEN = 0.5
"""Seconds between two looks, at most."""


class Vitals:
    """Watches the loops of one worker."""

    def __init__(self, sheet: Sheet, lease: float, stopping: Stopping) -> None:
        """Prepare; `lease` is the shortest one of the worker's queues, seconds."""
        self._sheet, self._lease, self._stopping = sheet, lease, stopping
        self._pump: Pump | None = None
        self._turns = 0
        self._turned = self._poked = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to write; call this in the worker's event loop."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def watch(self, pump: Pump) -> None:
        """Look at the pump from now on, and write so at once: the first task may block the event loop."""
        self._pump = pump
        self._sheet.write(self.signs(time.monotonic()))

    def stop(self) -> None:
        """Write no more."""
        if self._next is not None:
            self._next.cancel()

    def _tick(self) -> None:
        # no asyncio task: a handler may cancel all of them
        self._next = self._loop.call_later(min(OFTEN, self._lease / 4), self._tick)
        now = time.monotonic()
        signs = self.signs(now)
        self._sheet.write(signs)
        if self._pump is not None and now - max(self._poked, signs.turned) >= self._lease / 2:
            self._poked = now
            self._pump.woken.set()

    def signs(self, now: float) -> Signs:
        """Look at the worker; `now` is the monotonic clock."""
        pump, lease = self._pump, self._lease
        phase = Phase.DRAINING if self._stopping.level else Phase.STARTING if pump is None else Phase.WORKING
        if pump is None:
            return Signs(phase, lease, looped=now, turned=now)
        if pump.turns != self._turns:
            self._turns, self._turned = pump.turns, now
        self._turned = self._turned or now
        turned = min((_stuck_since(lane, lease, self._turned) for lane in pump.lanes), default=self._turned)
        answered = max((lane.beating.pulse.answered for lane in pump.lanes if lane.beating is not None), default=0.0)
        running = sum(len(lane.desk.running) for lane in pump.lanes)
        return Signs(phase, lease, now, turned, answered, pump.is_away, running)


def _stuck_since(lane: Lane, lease: float, turned: float) -> float:
    """Give since when no exchange with a part of a queue has ended though its server answers; else `turned`."""
    if lane.beating is None:
        return turned
    answered = lane.beating.pulse.answered
    began: Sequence[float] = [part.stuck_since for part in lane.parts if 0 < part.stuck_since < answered - lease]
    return min(turned, *began) if began else turned
