"""The work of a worker on one of its queues: how many tasks it claims, and when its exchanges begin."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any

from timeoutq.client import sibling
from timeoutq.client.heartbeat import Beat, about
from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.verbs.replies import Claimed
from timeoutq.words import retry
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import Lease
from timeoutq.worker.cleaner import Cleaner
from timeoutq.worker.crews import Crew
from timeoutq.worker.decisions import CRASHES, Appetite, Life, Pace, Strict, Suspects
from timeoutq.worker.exchanges import LATE, Claims, Exchanges
from timeoutq.worker.interrupts import Interrupts
from timeoutq.worker.leases import Leases
from timeoutq.worker.served import Place

SIDE_BY_SIDE = 2
"""How many exchanges of a queue are under way at once, at most; each has a connection of its own. Late ones do not
count."""
LOOK_EVERY = 1.0  # seconds between two looks for a queue, if nobody knows before of which shards it will consist
CHOOSE_EVERY = 5.0  # seconds between two questions which shards a worker tends
IDLE = 1.0  # seconds after which a worker without tasks helps another shard
GO_ON = 0.2  # seconds after which a worker that has helped looks where it can help next
SILENT = 3 * sending.BELL_WAIT
"""Seconds after which it is wrong that a worker without tasks has asked its queue for none, or its bell."""


class Shared:
    """The things that the queues of one worker share."""

    def __init__(self, concurrency: int, crew: Crew, sharing: Strict, life: Life) -> None:
        self.concurrency, self.crew, self.sharing, self.life = concurrency, crew, sharing, life
        self.suspects = Suspects()
        self.works: list[QueueWork] = []

    @property
    def shards(self) -> list[Exchanges]:
        """The exchanges with all shards of all queues."""
        return [shard for work in self.works for shard in work.shards]

    @property
    def running(self) -> int:
        """How many handlers are at work."""
        return sum(len(work.leases.running) for work in self.works)

    @property
    def runs(self) -> int:
        """How many handlers have run to their end."""
        return sum(work.leases.runs for work in self.works)

    def deafen(self) -> None:
        """End the waits on bells behind which claims stand."""
        for shard in self.shards:
            shard.claims.deafen()

    def give_back_unstarted(self) -> None:
        """Release the leases whose handlers have not begun; when the worker stops, those that wait there, too."""
        for work in self.works:
            work.leases.given_back(self.crew.give_back(work.number))
            for run in list(work.leases.running.values()) if self.life.level else []:
                if run.waits:
                    work.interrupts.cancel(run, "shutdown")
        suspect = self.suspects.take_out() if self.life.level else None
        if suspect is not None:
            self.works[self.suspects.number].leases.given_back([suspect])


class QueueWork:
    """The claims of one worker from one queue."""

    def __init__(self, leases: Leases, pace: Pace, shared: Shared, place: Place | None) -> None:
        """Prepare; nothing is claimed before `open`. `place` is the queue as its handler sees it."""
        self.leases, self.pace, self.shared, self._place = leases, pace, shared, place
        self.number = leases.number
        self.shards: list[Exchanges] = []
        """The exchanges with each shard; none while it is unknown of which shards the queue consists."""
        self.interrupts = Interrupts(leases, shared.crew, shared.suspects)
        self.beat = Beat(
            sibling(leases.queue), leases.held, self.interrupts.lose_soon, self._about, leases.spans, leases.over_at,
            lambda: bool(self.shards),
        )  # fmt: skip
        self.tasks: dict[str, asyncio.Task[None]] = {}  # what runs besides the pump, by its name
        self._queue, self._log = leases.queue, leases.log
        self._turn = 0  # which shard has the next turn
        self.fed_at = time.monotonic()  # when a claim has last brought something
        self.is_missing = False  # whether the queue did not exist when it was looked for
        self.has_left = False  # whether the worker has given the queue up

    # ---- how it begins, and what runs besides the pump

    def open(self) -> None:
        """Begin to claim; if it is unknown of which shards the queue consists, as soon as it is known."""
        if self._queue.division.is_known:
            self._open()
        else:
            self.start("opening", self._open_later())

    async def _open_later(self) -> None:
        queue, life, failures = self._queue, self.shared.life, 0
        try:
            while not queue.division.is_known:
                try:
                    await queue.run(queue.division.look())
                    failures = 0
                except TimeoutqError as error:
                    failures += 1
                    if flows.is_final(error) and not life.met:
                        life.refuse(self.number, error)
                    if failures == 1:
                        self._log.of_worker(logging.WARNING, "waits for the server: %s", error, error=error)
                if not queue.division.is_known:
                    self.is_missing = not failures
                    self.leases.wake()  # a burst looks whether anything is left
                    await asyncio.sleep(retry.pause(failures) if failures else LOOK_EVERY)
            self._open()
        except TimeoutqError as error:
            life.broken = life.broken or error

    def _open(self) -> None:
        self.leases.divide()
        for number, talk in enumerate(self._queue.division.talks):
            cleaner = Cleaner(self._queue, talk=talk)
            cleaner.heed_cancels = partial(self.interrupts.heed_cancels, talk)
            cleaner.met = not self._is_alone  # a server that refuses one queue must not end the work on the others
            claims = Claims(self.leases, self.pace, is_burst=self.shared.life.burst, shard=number)
            self.shards.append(Exchanges(self.leases, claims, self.shared.life, cleaner, self._receive))
        if len(self.shards) == 1:
            self.start("cleaner", self.shards[0].cleaner.run())
        else:
            tending = Tending(self)
            self.start("choice of shards", tending.choose())
            self.start("help for shards", tending.help())
        if self._place is not None and self._place.functions:
            self.start("telling of functions", self._place.tell())
        if self.leases.runtime.ms:
            self.start("watch of max_runtime", self.interrupts.watch_runtime())

    def start(self, name: str, run: Coroutine[Any, Any, None]) -> None:
        """Run this under a name; whoever else cancels it ends the worker."""

        def over(task: asyncio.Task[None]) -> None:
            if task.cancelled() and self.tasks.get(name) is task:
                self.leases.on_cancelled(name)
            self.leases.wake()

        self.tasks[name] = asyncio.create_task(run, name=f"{name}-{self._queue.name}")
        self.tasks[name].add_done_callback(over)

    def stop(self, name: str) -> None:
        """End what runs under a name, if it runs."""
        task = self.tasks.pop(name, None)
        if task is not None:
            task.cancel()

    def check(self) -> None:
        """Raise the error that has ended what runs besides the pump; if other queues are left, only leave this one."""
        for task in list(self.tasks.values()):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.has_left = True
                if not isinstance(error, InvalidInput) or all(work.has_left for work in self.shared.works):
                    raise error
                self._leave(error)

    def _leave(self, error: InvalidInput) -> None:
        for name in list(self.tasks):
            self.stop(name)
        for shard in self.shards:
            shard.claims.tended, shard.claims.idle = False, True
        words = "claims nothing more: %s; start the worker again when this is mended"
        self._log.of_worker(logging.ERROR, words, error, error=error)

    # ---- how it stands

    @property
    def tended(self) -> list[int]:
        """The numbers of the shards that the worker tends; a plain queue is one shard."""
        return [number for number, shard in enumerate(self.shards) if shard.claims.tended]

    @property
    def is_away(self) -> bool:
        """Whether no server of the queue answers."""
        return all(shard.away for shard in self.shards)

    @property
    def unconfirmed(self) -> str:
        """Why replicas confirm nothing; empty while they do."""
        return next((shard.unconfirmed for shard in self.shards if shard.unconfirmed), "")

    def _about(self) -> dict[str, object]:
        """Give the report of the worker, which goes with its signs of life; the heartbeat's thread asks."""
        leases, tally = self.leases, self.leases.tally
        found = about(
            leases.queue, concurrency=self.shared.concurrency, held=len(leases.held), acked=tally.acked,
            failed=tally.failed, started=leases.started,
        )  # fmt: skip
        if len(self.shards) > 1:
            found["tends"] = self.tended
        failing = [*leases.untaken.values(), *(shard.trouble for shard in self.shards if shard.failures)]
        if trouble := self._trouble():
            found["trouble"] = trouble
        elif leases.held and failing:
            found |= {"trouble": f"the server does not take the end of a task: {failing[0]}", "claims": True}
        return found

    def _trouble(self) -> str:
        """Say why the worker does not claim, although it lives; empty while all is well."""
        now, shared = time.monotonic(), self.shared
        asked_at = max((shard.claims.asked_at for shard in self.shards), default=now)
        fed_at = max(work.fed_at for work in shared.works)  # while a queue has tasks, those below it may wait for long
        busy = shared.life.level or self.pauses or any(work.leases.held for work in shared.works)
        if self.unconfirmed or busy or now - max(asked_at, fed_at) < SILENT:
            return self.unconfirmed
        since = datetime.fromtimestamp(round(time.time() - (now - asked_at)), UTC)
        return f"it has no tasks, and has asked for none since {since:%H:%M:%S} UTC"

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

    @property
    def _peers(self) -> int:
        return self._queue.division.sharing(self.beat.peers)

    # ---- claims go out

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

    def _wanted(self, shard: Exchanges) -> int:
        shared = self.shared
        if shard.claims.idle or self.has_left or self.pauses:
            return 0
        if shared.life.level or shared.suspects.keep_others_away:
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
            elif claims.idle and claims.tended and claims.bell is None:
                claims.listen(self._behind_bell(shard), shard.receive, partial(self._has_room, shard))

    def _has_room(self, shard: Exchanges) -> bool:
        return not self.shared.life.level and not self.shared.suspects.keep_others_away and self._room(shard) > 0

    def _behind_bell(self, shard: Exchanges) -> Call[Claimed] | None:
        """Build the claim that waits behind the bell: of one task, so that a worker that hangs keeps no more."""
        if len(self.shards) > 1 or not self._is_alone:
            return None  # claims behind several bells would take handlers from each other
        if shard.claims.talk.durable.replicas or not self._has_room(shard):
            return None  # replicas must confirm a claim, and `hear_bell` would not send it
        return shard.claims.claim(1, self._peers)

    def _room(self, shard: Exchanges) -> int:
        shared, crew, rank = self.shared, self.shared.crew, self.shared.sharing.rank
        tallies = [work.leases.tally for work in shared.works]
        ended = sum(tally.acked + tally.failed + tally.expired for tally in tallies)
        self.pace.ended(ended, time.monotonic())
        # tasks that may soon come and begin before those of this shard; late ones keep no handler free
        claiming = sum(
            other.claims.claiming
            for work in shared.works
            if rank(work.number) <= rank(self.number)
            for other in work.shards
            if other is shard or not other.is_late
        )
        left = None
        if shared.life.max_tasks is not None:
            left = shared.life.max_tasks - shared.runs - crew.taken - sum(one.claims.claiming for one in shared.shards)
        want = self.pace.wanted(
            shared.running, crew.before(self.number), claiming, still_to_run=left, plenty=shard.claims.plenty
        )
        if shard.unconfirmed:
            # ends that wait show whether replicas confirm again; or else one task, which is given back if they do not
            want = min(want, 0 if shard.ends else 1)
        return want

    # ---- leases come back

    def _receive(self, shard: Exchanges, leases: list[Lease]) -> None:
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
            suspects.waits(leases[0], self._queue.timeout, time.monotonic(), self.number, self.leases.held)
            shard.claims.idle = False
            shared.deafen()
            shared.give_back_unstarted()
        else:
            shared.crew.take(leases, self.number)
            if not self._is_alone:
                self._displace()

    def _displace(self) -> None:
        """Give back tasks of lower queues that wait for a handler, if more tasks wait now than there are places."""
        shared, rank = self.shared, self.shared.sharing.rank
        over = shared.running + shared.crew.unstarted - self.pace.places
        for work in reversed(shared.works):
            if over <= 0 or rank(work.number) <= rank(self.number):
                return
            back = shared.crew.give_back(work.number, over)
            work.leases.given_back(back)
            over -= len(back)


class Tending:
    """Which shards of a queue a worker tends, and which one it helps: only for a queue that has several."""

    def __init__(self, work: QueueWork) -> None:
        """Prepare; at first, the worker tends nothing."""
        self._work, self._queue = work, work.leases.queue
        self._helps = False  # whether the last look has found a shard to help
        for shard in work.shards:
            shard.claims.tended, shard.claims.idle = False, True

    async def choose(self) -> None:
        """Ask again and again which shards to tend; raises `InvalidInput` if the queue is divided again."""
        # besides `help`: the node that knows the workers may be away, and other shards have tasks
        while True:
            try:
                chosen = await self._queue.run(self._queue.division.tended(self._queue.worker))
            except InvalidInput:
                raise
            except TimeoutqError:
                # better too many listeners than a shard without any
                chosen = self._work.tended or range(len(self._work.shards))
            self._tend(chosen)
            await asyncio.sleep(CHOOSE_EVERY * random.uniform(1.0, 1.2))  # noqa: S311  # jitter

    def _tend(self, chosen: Collection[int]) -> None:
        for number, shard in enumerate(self._work.shards):
            if number in chosen and not shard.claims.tended:
                shard.claims.tended, shard.claims.idle = True, False
                shard.cleaner.met = shard.cleaner.met or self._work.shared.life.met
                self._work.start(f"cleaner-{number}", shard.cleaner.run())
                self._work.leases.wake()
            elif number not in chosen and shard.claims.tended:
                shard.claims.tended = False
                self._work.stop(f"cleaner-{number}")

    async def help(self) -> None:
        """Look again and again for a shard to help, while the worker has nothing to do."""
        while True:
            if self._may_help():
                try:
                    number = await self._queue.run(self._queue.division.deepest())
                except TimeoutqError:
                    number = None
                self._helps = number is not None
                if number is not None:
                    self._work.shards[number].claims.idle = False
                self._work.leases.wake()  # a burst asks again whether the queue is drained
            await asyncio.sleep((GO_ON if self._helps else IDLE) * random.uniform(0.8, 1.2))  # noqa: S311  # jitter

    def _may_help(self) -> bool:
        work, shared = self._work, self._work.shared
        if shared.crew.taken >= shared.concurrency or shared.suspects.keep_others_away:
            return False
        starves = all(shard.claims.idle for shard in work.shards)
        return starves and (self._helps or time.monotonic() - work.fed_at >= IDLE)
