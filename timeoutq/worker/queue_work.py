"""The work of a worker on one of its queues: how many tasks it claims, and when its exchanges begin."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from timeoutq.client.heartbeat import Beat
from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Claimed
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.background import Background
from timeoutq.worker.cleaner import Cleaner
from timeoutq.worker.exchanges import LATE, Claims, Exchanges
from timeoutq.worker.interrupts import Interrupts
from timeoutq.worker.leases import Leases
from timeoutq.worker.pace import Appetite, Load, Pace, Strict
from timeoutq.worker.state import CRASHES, Life, Suspects
from timeoutq.worker.threads import Crew

SIDE_BY_SIDE = 2
"""How many exchanges of a queue are under way at once, at most; each has a connection of its own. Late ones do not
count."""
SILENT = 3 * sending.BELL_WAIT
"""Seconds after which it is wrong that a worker without tasks has asked its queue for none, or its bell."""


@dataclass(slots=True)
class Shared:
    """The things that the queues of one worker share."""

    concurrency: int
    crew: Crew
    sharing: Strict
    life: Life
    suspects: Suspects = field(default_factory=Suspects)
    works: list[QueueWork] = field(default_factory=list)

    @property
    def running(self) -> int:
        """How many handlers are at work."""
        return sum(len(work.leases.running) for work in self.works)

    @property
    def runs(self) -> int:
        """How many handlers have run to their end."""
        return sum(work.leases.runs for work in self.works)

    @property
    def ended(self) -> int:
        """How many tasks have been acked, or have failed."""
        return sum(work.leases.tally.acked + work.leases.tally.failed for work in self.works)

    @property
    def claims(self) -> list[Claims]:
        """The claims from all shards of all queues."""
        return [shard.claims for work in self.works for shard in work.shards]

    @property
    def suspect_keeps_others_away(self) -> bool:
        """Whether a suspect of any queue waits or runs."""
        suspects = self.suspects
        return suspects.keeps_others_away(self.works[suspects.number].leases.held.keys())

    @property
    def places(self) -> int:
        """How many handlers may be at work: towards the end of `max_tasks`, no more than there are runs left."""
        most = self.life.max_tasks
        return self.concurrency if most is None else min(self.concurrency, most - self.runs)

    def deafen(self) -> None:
        """End the waits on bells behind which claims stand."""
        for one in self.claims:
            one.deafen()

    def give_back_unstarted(self) -> None:
        """Release the leases whose handlers have not begun; when the worker stops, a waiting suspect, too."""
        for work in self.works:
            work.leases.given_back(self.crew.give_back(work.number))
        suspect = self.suspects.take_out() if self.life.level else None
        if suspect is not None:
            self.works[self.suspects.number].leases.given_back([suspect])


class QueueWork:
    """The claims of one worker from one queue."""

    def __init__(self, leases: Leases, pace: Pace, shared: Shared) -> None:
        """Prepare; nothing is claimed before `open`."""
        self.leases, self.pace, self.shared = leases, pace, shared
        self.number = leases.number
        self.shards: list[Exchanges] = []
        """The exchanges with each shard; none while it is unknown of which shards the queue consists."""
        self.beat: Beat | None = None
        self.interrupts = Interrupts(leases, shared.crew, shared.suspects)
        self.background = Background(leases.queue.name, leases.on_cancelled, leases.wake)
        self._queue, self._log = leases.queue, leases.log
        self._turn = 0  # which shard has the next turn
        self.fed_at = time.monotonic()  # when a claim has last brought something
        self.is_missing = False  # whether the queue did not exist when it was looked for
        self.has_left = False  # whether the worker has given the queue up
        self.tends: Callable[[], list[int]] | None = None
        """Gives the numbers of the shards that the worker tends; None for a plain queue."""

    def open(self) -> None:
        """Begin to claim: it is known of which shards the queue consists."""
        self.leases.divide()
        for number, talk in enumerate(self._queue.division.talks):
            cleaner = Cleaner(self._queue, talk=talk)
            cleaner.heed_cancels = partial(self.interrupts.heed_cancels, talk)
            cleaner.met = not self._is_alone  # a server that refuses one queue must not end the work on the others
            claims = Claims(self.leases, self.pace, is_burst=self.shared.life.burst, shard=number)
            self.shards.append(Exchanges(self.leases, claims, self.shared.life, cleaner, self.receive))

    # ---- how it stands

    def is_open(self) -> bool:
        """Say whether it is known of which shards the queue consists."""
        return bool(self.shards)

    @property
    def is_away(self) -> bool:
        """Whether no server of the queue answers."""
        return all(shard.away for shard in self.shards)

    @property
    def unconfirmed(self) -> str:
        """Why replicas confirm nothing; empty while they do."""
        return next((shard.unconfirmed for shard in self.shards if shard.unconfirmed), "")

    @property
    def trouble(self) -> str:
        """Why the worker does not claim, although it lives; empty while all is well. The heartbeat's thread asks."""
        now, shared = time.monotonic(), self.shared
        asked_at = max((shard.claims.asked_at for shard in self.shards), default=now)
        fed_at = max(work.fed_at for work in shared.works)  # while a queue has tasks, those below it may wait for long
        busy = shared.life.level or self.pauses or any(work.leases.held for work in shared.works)
        if self.unconfirmed or busy or now - max(asked_at, fed_at) < SILENT:
            return self.unconfirmed
        since = datetime.fromtimestamp(round(time.time() - (now - asked_at)), UTC)
        return f"it has no tasks, and has asked for none since {since:%H:%M:%S} UTC"

    @property
    def untaken(self) -> str:
        """Why a server does not take the end of a task, or what goes before it; the heartbeat's thread asks."""
        reasons = [*self.leases.untaken.values(), *(shard.trouble for shard in self.shards if shard.failures)]
        return f"the server does not take the end of a task: {reasons[0]}" if self.leases.held and reasons else ""

    @property
    def starves(self) -> bool:
        """Whether no shard has tasks for this worker, as far as it knows."""
        return not self.shared.suspect_keeps_others_away and all(shard.claims.idle for shard in self.shards)

    @property
    def appetite(self) -> Appetite:
        """How the queue stands, for the other queues."""
        has_tasks = [shard for shard in self.shards if not (shard.claims.idle or self.pauses)]
        hungry = any(not shard.is_late for shard in has_tasks)
        late = not hungry and any(not shard.failures for shard in has_tasks)
        return Appetite(hungry, late, sum(shard.claims.claiming for shard in self.shards))

    @property
    def has_nothing(self) -> bool:
        """Whether there is nothing to do here, and nothing more came from the queue."""
        leases = self.leases
        if leases.held or leases.running:
            return False
        if not self.shards:
            return self.is_missing
        return all(shard.claims.idle and not (shard.under_way or shard.ends) for shard in self.shards)

    @property
    def unsent(self) -> bool:
        """Whether something is still to be sent; to a server that is away, only what handlers have given."""
        return any(shard.owes if shard.failures else (shard.ends or shard.under_way) for shard in self.shards)

    @property
    def _is_alone(self) -> bool:
        return len(self.shared.works) == 1

    @property
    def pauses(self) -> bool:
        """Whether the handler wants nothing from this queue now."""
        return time.monotonic() < self.leases.paused_until

    # ---- claims go out, and come back

    def begin(self) -> bool:
        """Start exchanges, if there is something to send and nothing against it; say whether one was started."""
        many = len(self.shards)
        if many == 1:
            return self._begin_with(self.shards[0])
        begun, turn = False, self._turn
        busy = sum(shard.keeps_busy for shard in self.shards)
        for at in range(turn, turn + many):
            shard = self.shards[at % many]
            if shard.claims.idle and not shard.has_more:
                continue
            if busy - shard.keeps_busy >= SIDE_BY_SIDE and not shard.ends.presses:
                continue
            if self._begin_with(shard):
                begun, busy, self._turn = True, busy + 1, (at + 1) % many
        return begun

    def _begin_with(self, shard: Exchanges) -> bool:
        under_way = len(shard.under_way)
        if under_way >= SIDE_BY_SIDE or shard.waiting_out or (under_way and shard.failures):
            return False
        want = self._wanted(shard)
        if not self.pace.is_worth(len(shard.ends) + shard.worth_asking, want, under_way):
            return False
        shard.begin(shard.claims.claim(want, self._peers) if want else None)
        if len(self.shards) > 1 or not self._is_alone:
            asyncio.get_running_loop().call_later(LATE, self.leases.wake)
        return True

    @property
    def _peers(self) -> int:
        return self._queue.division.sharing(1 if self.beat is None else self.beat.peers)

    def _wanted(self, shard: Exchanges) -> int:
        shared = self.shared
        if shared.life.level or shard.claims.idle or self.has_left or self.pauses:
            return 0
        if shared.suspect_keeps_others_away:
            return 0
        want = self._room(shard)
        if want and not self._is_alone:
            want = shared.sharing.portion(self.number, want, [work.appetite for work in shared.works])
        return want

    def listen(self) -> None:
        """Wait on the bells of the shards that have no tasks."""
        for shard in self.shards:
            claims = shard.claims
            if self.pauses:
                claims.deafen(always=True)
                claims.idle = False  # afterwards it looks, for it has not heard the bell
            elif claims.idle and claims.tended:
                has_room = None if self._is_alone else partial(self._has_room, shard)
                claims.listen(partial(self._next, shard), shard.receive, has_room)

    def _has_room(self, shard: Exchanges) -> bool:
        shared = self.shared
        return not shared.life.level and not shared.suspect_keeps_others_away and self._room(shard) > 0

    def _next(self, shard: Exchanges) -> Call[Claimed] | None:
        """Build the claim that waits behind the bell: of one task, so that a worker that hangs keeps no more."""
        if len(self.shards) > 1 or not self._is_alone:
            return None  # claims behind several bells would take handlers from each other
        if shard.claims.talk.durable.replicas:
            return None  # replicas must confirm a claim, and `hear_bell` would not send it
        if self.shared.suspect_keeps_others_away or not self._room(shard):
            return None
        return shard.claims.claim(1, self._peers)

    def _room(self, shard: Exchanges) -> int:
        shared, crew = self.shared, self.shared.crew
        self.pace.ended(shared.ended, time.monotonic())
        # tasks that may soon come and begin before those of this shard; late ones keep no handler free
        rank = shared.sharing.rank
        claiming = sum(
            other.claims.claiming
            for work in shared.works
            if rank(work.number) <= rank(self.number)
            for other in work.shards
            if other is shard or not other.is_late
        )
        left = None
        if shared.life.max_tasks is not None:
            left = shared.life.max_tasks - shared.runs - crew.taken - sum(one.claiming for one in shared.claims)
        load = Load(shared.running, crew.before(self.number), claiming, left)
        want = self.pace.wanted(load, plenty=shard.claims.plenty)
        if shard.unconfirmed:
            # ends that wait show whether replicas confirm again; or else one task, which is given back if they do not
            want = min(want, 0 if shard.ends else 1)
        return want

    def receive(self, shard: Exchanges, leases: list[Lease]) -> None:
        """Take the leases that a claim has brought, and give them to the crew."""
        shard.cleaner.peers = self._peers
        if not leases:
            return
        shared, suspects = self.shared, self.shared.suspects
        self.fed_at = time.monotonic()
        self.leases.took(leases)
        shared.sharing.came(self.number, len(leases))
        if shared.life.level or shared.life.leaving or suspects.waiting is not None:
            # the claim was under way before the stop, or before the suspect came
            self.leases.given_back(leases)
        elif leases[0].crashes >= CRASHES:
            suspects.waits(leases[0], self._queue.timeout, time.monotonic(), self.number)
            shard.claims.idle = False
            shared.deafen()
            shared.give_back_unstarted()
        else:
            shared.crew.take(leases, self.number)
            if not self._is_alone:
                self._displace()

    def _displace(self) -> None:
        """Give back tasks of lower queues that wait for a handler, if more tasks wait now than there are places."""
        shared = self.shared
        over = shared.running + shared.crew.unstarted - self.pace.places
        rank = shared.sharing.rank
        for work in reversed(shared.works):
            if over <= 0 or rank(work.number) <= rank(self.number):
                return
            back = shared.crew.give_back(work.number, over)
            work.leases.given_back(back)
            over -= len(back)

    # ---- troubles

    def tell_unknown(self, error: TimeoutqError, times: int) -> None:
        """Note that the queue cannot be looked at; raises the error if no queue of the worker can be worked on."""
        if flows.is_final(error) and not self.shared.life.met:
            self.shared.life.refuse(self.number, error)
        if times == 1:
            self._log.of_worker(logging.WARNING, "waits for the server: %s", error, error=error)

    def check(self) -> None:
        """Raise the error that has ended the cleaner; if other queues are left, only give this queue up."""
        try:
            self.background.check("cleaner")
        except InvalidInput as error:
            if not self.has_left:
                self._leave(error)
            if all(work.has_left for work in self.shared.works):
                raise

    def _leave(self, error: InvalidInput) -> None:
        self.has_left = True
        for shard in self.shards:
            shard.claims.tended, shard.claims.idle = False, True
        if not self._is_alone:
            words = "claims nothing more: %s; start the worker again when this is mended"
            self._log.of_worker(logging.ERROR, words, error, error=error)
