"""A lane is one queue of a worker: what the worker claims from the queue, and its exchanges with the queue.

Most workers have one queue, and so one lane. The lanes of a worker share its handlers, as `sharing.py` says; all else
is each lane's own, so that the trouble of one queue stays with this queue.

If the queue has several parts, an exchange is with one of them, and the parts take turns. A part whose server does not
answer keeps no other part waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from timeoutq.client.heartbeat import Pulse
from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Claimed
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.beside import Beside
from timeoutq.worker.cleaner import Cleaner
from timeoutq.worker.crews import Crew
from timeoutq.worker.desk import Desk
from timeoutq.worker.exchanges import LATE, Common, Exchanges
from timeoutq.worker.interrupts import Interrupts
from timeoutq.worker.pace import Load, Pace
from timeoutq.worker.sharing import Appetite, Sharing
from timeoutq.worker.sources import Source
from timeoutq.worker.stopping import Stopping
from timeoutq.worker.suspects import CRASHES, Suspects

SIDE_BY_SIDE = 2
"""How many exchanges of a lane are under way at once, at most; each has a connection of its own. Late ones do not
count."""


CROWDED = 5.0
"""Seconds, after all handlers were busy, in which no claims wait behind the bells of a worker with several queues: to
withdraw such a claim costs a connection."""

SILENT = 3 * sending.BELL_WAIT
"""Seconds after which it is wrong that a worker without tasks has asked its queue for none, or its bell."""


class Beating(Protocol):
    """What gives the signs of life of a lane's queue."""

    peers: int
    pulse: Pulse


@dataclass(slots=True)
class Shared:
    """What the lanes of one worker share."""

    concurrency: int
    crew: Crew
    sharing: Sharing
    stopping: Stopping
    suspects: Suspects = field(default_factory=Suspects)
    common: Common = field(default_factory=Common)
    lanes: list[Lane] = field(default_factory=list)
    crowded_until: float = 0.0
    """Until when no claims wait behind the bells, by the monotonic clock."""

    @property
    def running(self) -> int:
        """How many handlers are at work."""
        return sum(len(lane.desk.running) for lane in self.lanes)

    @property
    def runs(self) -> int:
        """How many handlers have run to their end."""
        return sum(lane.desk.runs for lane in self.lanes)

    @property
    def ended(self) -> int:
        """How many tasks have been acked, or have failed."""
        return sum(lane.desk.tally.acked + lane.desk.tally.failed for lane in self.lanes)

    @property
    def claiming(self) -> int:
        """How many tasks may come from all claims that are under way."""
        return sum(source.claiming for lane in self.lanes for source in lane.sources)

    @property
    def claiming_now(self) -> int:
        """How many tasks may come from those claims that the servers carry out at once."""
        return sum(source.claiming_now for lane in self.lanes for source in lane.sources)

    @property
    def suspect_keeps_others_away(self) -> bool:
        """Whether a suspect of any lane waits or runs."""
        suspects = self.suspects
        return suspects.keeps_others_away(self.lanes[suspects.lane].desk.held.keys())

    @property
    def free(self) -> int:
        """How many handlers are free, though all claims that are under way bring what they ask for."""
        return self.places - self.running - self.crew.unstarted - self.claiming

    @property
    def places(self) -> int:
        """How many handlers may be at work: towards the end of `max_tasks`, no more than there are runs left."""
        most = self.stopping.limits.max_tasks
        return self.concurrency if most is None else min(self.concurrency, most - self.runs)

    def make_room(self) -> None:
        """Withdraw the claims that wait behind bells, if no other handler is free: each keeps a handler free."""
        if len(self.lanes) == 1:
            return
        waiting = sum(source.waiting for lane in self.lanes for source in lane.sources)
        if waiting and self.running + self.crew.unstarted + waiting >= self.places:
            self.crowded_until = time.monotonic() + CROWDED
            self.deafen()

    def deafen(self) -> None:
        """End the waits on bells behind which claims stand."""
        for lane in self.lanes:
            for source in lane.sources:
                source.deafen()

    def give_back_unstarted(self) -> None:
        """Release the leases whose handlers have not begun; when the worker stops, a waiting suspect, too."""
        for lane in self.lanes:
            lane.desk.given_back(self.crew.give_back(lane.number))
        suspect = self.suspects.take_out() if self.stopping.level else None
        if suspect is not None:
            self.lanes[self.suspects.lane].desk.given_back([suspect])


class Lane:
    """The claims of one worker from one queue."""

    def __init__(self, desk: Desk, pace: Pace, shared: Shared) -> None:
        """Prepare; nothing is claimed before `open`."""
        self.desk = desk
        self.number = desk.lane
        self.pace = pace
        self.shared = shared
        self.sources: list[Source] = []
        self.cleaners: list[Cleaner] = []
        self.parts: list[Exchanges] = []
        """The exchanges with each part of the queue; none while it is unknown of which parts the queue consists."""
        self.beating: Beating | None = None
        self.interrupts = Interrupts(desk, shared.crew, shared.suspects)
        self.beside = Beside(desk)
        """What runs beside the pump for this queue."""
        self._queue, self._voice = desk.queue, desk.voice
        self._turn = 0
        """Which part has the next turn."""
        self.fed_at = time.monotonic()
        """When a claim has last brought something."""
        self.is_missing = False
        """Whether the queue did not exist when it was looked for."""
        self.has_left = False
        """Whether the worker has given the queue up."""
        self.tends: Callable[[], list[int]] | None = None
        """Gives the numbers of the parts that the worker tends; None for a queue that is one part."""

    def open(self, parts: Sequence[tuple[Source, Cleaner]]) -> None:
        """Begin to claim; `parts` has a source and a cleaner for each part of the queue."""
        self.sources = [source for source, _ in parts]
        self.cleaners = [cleaner for _, cleaner in parts]
        self.parts = [
            Exchanges(
                self.desk, source, self.shared.stopping, cleaner, partial(self.receive, source, cleaner),
                self.shared.common,
            )
            for source, cleaner in parts
        ]  # fmt: skip

    # ---- what it says of itself

    def is_open(self) -> bool:
        """Say whether it is known of which parts the queue consists."""
        return bool(self.parts)

    @property
    def is_away(self) -> bool:
        """Whether no server of the queue answers."""
        return all(part.away for part in self.parts)

    @property
    def unconfirmed(self) -> str:
        """Why replicas do not confirm what the worker does; empty while they do."""
        return next((part.unconfirmed for part in self.parts if part.unconfirmed), "")

    @property
    def trouble(self) -> str:
        """Why the worker does not claim, although it lives; empty while all is well. The heartbeat's thread asks."""
        return self.unconfirmed or self._silence

    @property
    def _silence(self) -> str:
        now, shared = time.monotonic(), self.shared
        asked_at = max((source.asked_at for source in self.sources), default=now)
        fed_at = max(lane.fed_at for lane in shared.lanes)  # while a queue has tasks, those below it may wait for long
        busy = shared.stopping.level or self.pauses or any(lane.desk.held for lane in shared.lanes)
        if busy or now - max(asked_at, fed_at) < SILENT:
            return ""
        since = datetime.fromtimestamp(round(time.time() - (now - asked_at)), UTC)
        return f"it has no tasks, and has asked for none since {since:%H:%M:%S} UTC"

    @property
    def starves(self) -> bool:
        """Whether no part of the queue has tasks for this worker, as far as it knows."""
        return not self.shared.suspect_keeps_others_away and all(source.idle for source in self.sources)

    @property
    def appetite(self) -> Appetite:
        """What the other lanes must know of this one."""
        has_tasks = [part for part in self.parts if not (part.source.idle or self.pauses)]
        # the lanes below may have what makes room for the calls that follow those of this one
        is_full = len(self.desk.followers) > self.shared.concurrency
        hungry = not is_full and any(not part.is_late for part in has_tasks)
        late = not hungry and any(not part.failures for part in has_tasks)
        return Appetite(hungry, late, sum(source.claiming for source in self.sources))

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to do here, and nothing more came from the queue."""
        desk = self.desk
        if desk.held or desk.running or desk.ends:
            return False
        if not self.parts:
            return self.is_missing
        return all(part.source.idle and not (part.under_way or part.ends) for part in self.parts)

    @property
    def unsent(self) -> bool:
        """Whether something that handlers have given is still to be sent, and the server takes it."""
        self.desk.deal()
        waits = any(part.failures == 0 and (part.ends or part.under_way) for part in self.parts)
        return bool(self.desk.followers) or waits

    @property
    def _is_alone(self) -> bool:
        return len(self.shared.lanes) == 1

    @property
    def pauses(self) -> bool:
        """Whether the handler wants nothing from this queue now."""
        return time.monotonic() < self.desk.paused_until

    # ---- claims go out, and come back

    def begin(self) -> bool:
        """Start exchanges, if there is something to send and nothing against it; say whether one was started."""
        self.desk.deal()
        many = len(self.parts)
        if many == 1:
            return self._begin_with(self.parts[0])
        begun, turn = False, self._turn
        busy = sum(part.keeps_busy for part in self.parts)
        for at in range(turn, turn + many):
            part = self.parts[at % many]
            if part.source.idle and not part.has_more:
                continue
            if busy - part.keeps_busy >= SIDE_BY_SIDE and not part.ends.presses:
                continue
            if self._begin_with(part):
                begun, busy, self._turn = True, busy + 1, (at + 1) % many
        return begun

    def _begin_with(self, part: Exchanges) -> bool:
        under_way = len(part.under_way)
        if under_way >= SIDE_BY_SIDE or part.waiting_out or (under_way and part.failures):
            return False
        want = self._wanted(part)
        if not self.pace.is_worth(len(part.ends) + part.worth_asking, want, under_way):
            return False
        part.begin(part.source.claim(want, self._peers) if want else None)
        if len(self.parts) > 1 or not self._is_alone:
            asyncio.get_running_loop().call_later(LATE, self.desk.wake)
        return True

    @property
    def _peers(self) -> int:
        return self._queue.division.sharing(1 if self.beating is None else self.beating.peers)

    def _wanted(self, part: Exchanges) -> int:
        shared = self.shared
        if shared.stopping.level or part.source.idle or self.has_left or self.pauses:
            return 0
        if shared.suspect_keeps_others_away:
            return 0
        want = self._room(part)
        if want and not self._is_alone:
            want = shared.sharing.portion(self.number, want, [lane.appetite for lane in shared.lanes])
        return want

    def listen(self) -> None:
        """Wait on the bells of the parts that have no tasks."""
        for part in self.parts:
            if self.pauses:
                part.source.deafen(always=True)
                part.source.idle = False  # afterwards it looks, for it has not heard the bell
            elif part.source.idle and part.source.tended:
                has_room = None if self._is_alone else partial(self._has_room, part)
                part.source.listen(partial(self._next, part), part.receive, part.miss, has_room)

    def _has_room(self, part: Exchanges) -> bool:
        shared = self.shared
        return not shared.stopping.level and not shared.suspect_keeps_others_away and self._room(part) > 0

    def _next(self, part: Exchanges) -> Call[Claimed] | None:
        """Build the claim that waits behind the bell: of one task, so that a worker that hangs keeps no more."""
        if len(self.parts) > 1:
            return None  # a claim behind the bell of each part would take handlers from each other
        shared = self.shared
        if not self._is_alone and (shared.free <= len(shared.lanes) or time.monotonic() < shared.crowded_until):
            return None  # as long as there are free handlers enough, each queue may have one
        if part.source.talk.durable.replicas:
            return None  # replicas must confirm a claim, and `hear_bell` would not send it
        if self.shared.suspect_keeps_others_away or not self._room(part):
            return None
        return part.source.claim(1, self._peers)

    def _room(self, part: Exchanges) -> int:
        shared, crew, source = self.shared, self.shared.crew, part.source
        self.pace.ended(shared.ended, time.monotonic())
        left, claiming = None, self._claiming(part)
        if shared.stopping.limits.max_tasks is not None:
            left = shared.stopping.limits.max_tasks - shared.runs - crew.taken - shared.claiming
        load = Load(shared.running, crew.before(self.number), claiming, len(self.desk.followers), left)
        want = self.pace.wanted(load, plenty=source.plenty)
        if part.unconfirmed:
            # ends that wait show whether replicas confirm again; or else one task, which is given back if they do not
            want = min(want, 0 if part.ends else 1)
        return want

    def _claiming(self, part: Exchanges) -> int:
        """Give how many tasks may soon come that begin before those of this part, or keep a handler free.

        Tasks from other parts that are late keep no handler free.
        """
        rank = self.shared.sharing.rank
        return sum(
            other.source.claiming if rank(lane.number) <= rank(self.number) else other.source.waiting
            for lane in self.shared.lanes
            for other in lane.parts
            if other is part or not other.is_late
        )

    def receive(self, source: Source, cleaner: Cleaner, leases: list[Lease]) -> None:
        """Take what a claim has brought, and give it to the crew."""
        cleaner.peers = self._peers
        if not leases:
            return
        shared, suspects = self.shared, self.shared.suspects
        self.fed_at = time.monotonic()
        self.desk.took(leases)
        shared.sharing.came(self.number, len(leases))
        if shared.stopping.level or shared.common.leaving or suspects.waiting is not None:
            # the claim was under way before the stop, or before the suspect came
            self.desk.given_back(leases)
        elif leases[0].crashes >= CRASHES:
            suspects.waits(leases[0], self._queue.timeout, time.monotonic(), self.number)
            source.idle = False
            shared.deafen()
            shared.give_back_unstarted()
        else:
            shared.crew.take(leases, self.number)
            if not self._is_alone:
                self._displace()

    def _displace(self) -> None:
        """Give back tasks of lower lanes that wait for a handler, if more tasks wait now than there are places."""
        shared = self.shared
        over = shared.running + shared.crew.unstarted - self.pace.places
        rank = shared.sharing.rank
        for lane in reversed(shared.lanes):
            if over <= 0 or rank(lane.number) <= rank(self.number):
                return
            back = shared.crew.give_back(lane.number, over)
            lane.desk.given_back(back)
            over -= len(back)

    # ---- troubles

    def tell_unknown(self, error: TimeoutqError, times: int) -> None:
        """Note that the queue cannot be looked at; raises the error if no queue of the worker can be worked on."""
        if flows.is_final(error) and not self.shared.common.met:
            self.shared.common.refuse(self.number, error)
        if times == 1:
            what = "worker %s waits for the server: %s"
            self._voice.say(logging.WARNING, what, self._voice.worker, error, error=error)

    def check(self) -> None:
        """Raise the error that has ended the cleaner; if other queues are left, only give this queue up."""
        try:
            self.beside.check("cleaner")
        except InvalidInput as error:
            if not self.has_left:
                self._leave(error)
            if all(lane.has_left for lane in self.shared.lanes):
                raise

    def _leave(self, error: InvalidInput) -> None:
        self.has_left = True
        for source in self.sources:
            source.tended, source.idle = False, True
        if not self._is_alone:
            self._voice.say(
                logging.ERROR, "worker %s claims nothing more: %s; start the worker again when this is mended",
                self._voice.worker, error, error=error,
            )  # fmt: skip
