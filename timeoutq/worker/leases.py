"""The leases of a worker on one queue: `took` brings them in, and every end of a lease goes through `Leases`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from timeoutq.client import AsyncDriver
from timeoutq.server.calls import Call, Kept
from timeoutq.verbs import flows
from timeoutq.verbs.sending import Talk
from timeoutq.words import arguments, retry
from timeoutq.words.arguments import TaskList
from timeoutq.words.durations import Spans
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import KEPT, Ack, Answer, Lease, Outcome, Release, text
from timeoutq.words.retry import GiveUp, Retry, RetryPolicy
from timeoutq.worker import handlers
from timeoutq.worker.ends import AckOfFound, AckOfResult, Ends, PendingCall, may_be_long
from timeoutq.worker.found import Found, is_nothing, listed
from timeoutq.worker.handlers import AckAfter, AckOfValue, Expired, Hopeless, Unrun, Verdict
from timeoutq.worker.runs import Failure, Failures, MaxRuntime, Run
from timeoutq.worker.worker_log import WorkerLog

MANY, MOST_HOSTS = 10, 1000
"""A worker warns of so many releases in a row that block one host, and counts them for so many hosts at most."""


class Ledger(Protocol):
    """Where a supervisor reads what a process that died had: claims under way, leases, and running handlers."""

    def ask(self, token: bytes, shard: int, lengths_ms: tuple[int, int]) -> None: ...
    def answered(self, token: bytes) -> None: ...
    def hold(self, leases: Iterable[Lease]) -> None: ...
    def start(self, lease: Lease) -> None: ...
    def wait(self, lease: Lease) -> None: ...
    def finish(self, lease: Lease) -> None: ...
    def end(self, leases: Iterable[Lease]) -> None: ...


@dataclass(slots=True)
class Tally:
    """The counts of a worker."""

    claimed: int = 0
    acked: int = 0
    failed: int = 0
    expired: int = 0
    """Calls that had not begun by the time that `expires=` says."""
    released: int = 0
    lost: int = 0
    left_out: int = 0
    """Tasks that handlers found and that no queue takes."""
    end: str = ""
    """Why the worker ended: "stopped", "drained" (a burst), "max_tasks", or "worn_out" (a thread hangs); empty while it
    works and after an error."""


def added(tallies: Iterable[Tally]) -> Tally:
    """Add tallies of one worker, whose end is the same in each."""
    total = Tally()
    for one in tallies:
        for count in ("claimed", "acked", "failed", "expired", "released", "lost", "left_out"):
            setattr(total, count, getattr(total, count) + getattr(one, count))
        total.end = total.end or one.end
    return total


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a worker by which leases end."""

    handler: str  # the name of the handler, for messages
    judge: Callable[[Lease, BaseException], Verdict | None]
    retry: RetryPolicy | None  # None: as each queue says
    max_runtime: float | None  # seconds; None: likewise
    most_releases: int
    read: Callable[[bytes | None], Any]  # reads the payloads of leases from the bytes in Redis


class Leases:
    """The leases of one worker on one queue, and how each of them ends."""

    def __init__(
        self,
        queue: AsyncDriver,
        number: int,
        rules: Rules,
        worker_log: WorkerLog,
        ledger: Ledger | None,
        on_cancelled: Callable[[str], None],
        woken: asyncio.Event,
    ) -> None:
        """Prepare; `on_cancelled` ends the worker, because somebody else has cancelled a part of it."""
        self.queue, self.number, self.rules, self.log, self.ledger = queue, number, rules, worker_log, ledger
        self.on_cancelled = on_cancelled
        self.woken = woken  # set when there is something to send, or another reason for the pump to look
        self.wake = woken.set
        self.runtime = MaxRuntime(queue, rules.max_runtime)
        policy = queue.retry if rules.retry is None else rules.retry
        self._failures = Failures(queue.name, policy, worker_log, rules.judge)
        self.started = time.time()
        self.tally = Tally()
        self._expired = set[int]()  # the leases of calls that expired, whose end is on its way
        self.spans = Spans()  # how long handlers ran
        self.runs = 0  # how many handlers have run to their end, for `max_tasks`
        self.key_of = queue.division.key_of
        self.held: dict[int, Lease] = {}  # all leases that have not ended, by their keys
        self.running: dict[int, Run] = {}  # the handlers at work, by the keys of their leases
        self.shards = [Ends(queue.talk, rules.most_releases)]
        """The ends of each shard of the queue; a plain queue is one shard."""
        self.last_sent: list[PendingCall] = []  # the calls of the last exchange that had some
        self.untaken: Mapping[int, str] = {}
        """Why a server does not take what goes before an ack, by the key of the lease; the heartbeat's thread reads."""
        self.paused_until = 0.0  # until when the handler wants nothing from this queue, by the monotonic clock
        self.over_at: dict[int, float] = {}
        """From when on leases with a limit of their own are not extended, by their keys and the monotonic clock."""
        self.records: dict[int, tuple[float, int | None, str]] = {}
        """Of leases on calls whose results are kept: when the run began (monotonic), the put (ms), the function."""
        self._told_kept = False
        self._unrun: dict[int, BaseException] = {}
        """Of each lease that goes back because the worker cannot run its task: why, by its key."""
        self._blocks: dict[str, int] = {}
        """How often in a row handlers have released tasks of a host to block it, which counts against no limit."""
        self._putting, self._asking = asyncio.Lock(), asyncio.Lock()
        self._telling: set[asyncio.Task[None]] = set()  # each asks why a lease was lost

    def divide(self) -> None:
        """Have ends of its own for each shard of the queue; it is known now of which shards the queue consists."""
        self.shards = [Ends(talk, self.rules.most_releases) for talk in self.queue.division.talks]

    def ends_of(self, lease: Lease) -> Ends:
        """Give the ends to which a lease belongs."""
        return self.shards[0 if len(self.shards) == 1 else self.queue.division.which(lease)]

    @property
    def ending(self) -> dict[int, Lease]:
        """The leases that are to be ended, by their keys."""
        return {lease.key: lease for ends in self.shards for lease in ends.leases()}

    @property
    def begun(self) -> list[Lease]:
        """The leases whose handlers are running, or were the last to end."""
        running = [run.lease for run in list(self.running.values())]
        ended = [*self.ending.values(), *(lease for one in self.last_sent for lease in one.leases)]
        return list({lease.key: lease for lease in (*running, *ended)}.values())

    def is_cancelled(self, lease: Lease) -> bool:
        """Say whether somebody has cancelled the task of this lease, whose handler is running. Any thread may ask."""
        run = self.running.get(lease.key)
        return run is not None and run.cancelled and run.lease is lease

    # ---- leases come

    def took(self, leases: list[Lease]) -> None:
        """Hold the leases that a claim has brought."""
        self.tally.claimed += len(leases)
        self.held.update(zip(map(self.key_of, leases), leases, strict=True))
        if self.ledger is not None:
            self.ledger.hold(leases)

    # ---- handlers end. `came` is what a handler has returned or, with `raised`, raised

    def done(self, key: int, lease: Lease, came: Ack | AckOfValue | None) -> None:
        """Ack the lease with this key, whose handler gave None, `LEAVES_NO_ID` or a result: `finished`, made quick."""
        self.running.pop(key, None)
        self.runs += 1
        ends = self.shards[0] if len(self.shards) == 1 else self.ends_of(lease)
        if type(came) is AckOfValue:
            ends.kept.append(self._ack_of_value(lease, came))
        else:
            (ends.acks if came is None else ends.bare).append(lease)
        self.wake()

    def finished(self, run: Run, came: Any, raised: bool) -> None:
        """End the lease as its handler has ended; never raises, whatever the handler gave."""
        if run.left:
            return
        lease = run.lease
        self.running.pop(lease.key, None)
        self.runs += 1
        try:
            if run.settled:
                pass
            elif run.cancelled and run.task is None:
                run.end = "cancelled"
                self.interrupted(run)
            elif raised and run.end:
                self.interrupted(run)
            elif raised and (told := run.cancelled_by_others(came)) is not None:
                self.failed(lease, told)
            else:
                self._finish(lease, handlers.released(came) if raised else came, raised)
        except BaseException as error:  # the result cannot be used: that is a failure of the task
            self.failed(lease, error, hopeless=True)
        self.wake()

    def _finish(self, lease: Lease, came: Any, raised: bool) -> None:
        if came is None:
            self.ends_of(lease).acks.append(lease)
        elif isinstance(came, AckOfFound):
            self._give(came)
        elif isinstance(came, AckOfValue):
            self.ends_of(lease).kept.append(self._ack_of_value(lease, came))
        elif isinstance(came, Ack):
            self._give(self._ack_of(lease, came))
        elif isinstance(came, Release):
            self._release(lease, came)
        elif isinstance(came, Expired):
            self._expired.add(lease.key)
            self.log.of_task(logging.INFO, lease, "is given up: %s", came.words, error=came.words)
            self._fail(Failure(lease, -1, came.words.encode(), b"", record=self._record(lease), then=came.then))
        elif raised or isinstance(came, Retry | GiveUp):
            self.failed(lease, came)
        else:
            self.failed(lease, handlers.wrong_result(self.rules.handler, came), hopeless=True)

    async def given(self, run: Run, came: Any, raised: bool) -> tuple[Any, bool]:
        """Give the end of a handler, ready for `finished`, when all is with the servers that goes before its ack."""
        try:
            if isinstance(came, AckAfter):
                words = "has returned, but what goes before its ack is not there yet. The worker asks again: %s"
                await self._persist(run, came.first, words)
                came = came.ack
            came = await listed(came)
        except BaseException as error:  # the code of an iterable may raise anything
            return error, True
        if not may_be_long(came):
            return came, raised
        try:
            ack = self._ack_of(run.lease, came)
            if ack.is_long:
                await self._put_rest(run, ack)
        except asyncio.CancelledError as error:
            return error, True
        except Exception as error:  # the result cannot be used
            return Hopeless(error), True
        return ack, False

    async def _put_rest(self, run: Run, ack: AckOfFound) -> None:
        division, grouped = self.queue.division, ack.grouped
        words = "has found more than fits into its ack, and not all of it could be put yet. The worker tries again: %s"

        async def put(talk: Talk, call: Call[Outcome]) -> None:
            # one call at a time: if many were sent at once over a slow link, each would be too slow
            async with self._putting:
                (answer,) = await self.queue.run(division.exchange(talk, [call], puts=True, grouped=grouped))
            if isinstance(answer, TimeoutqError):
                raise answer

        for talk, call in ack.take_out(division.talks, division.talk_of(ack.lease)):
            await self._persist(run, partial(put, talk, call), words)

    async def _persist(self, run: Run, ask: Callable[[], Awaitable[object]], words: str) -> None:
        """Ask a server until it has answered; raises an error that no repeat mends."""
        lease, tries = run.lease, 0
        run.returned = run.returned or self.runtime.over_ms(lease) < 0
        try:
            while True:
                try:
                    await ask()
                    return
                except TimeoutqError as error:
                    if isinstance(error, InvalidInput):
                        raise
                    tries += 1
                    if tries == 1:
                        self.log.of_task(logging.WARNING, lease, words, error, error=error)
                        self.untaken = {**self.untaken, lease.key: str(error)}
                await asyncio.sleep(retry.pause(tries))
        finally:
            if tries:
                self.untaken = {key: why for key, why in self.untaken.items() if key != lease.key}

    def _ack_of_value(self, lease: Lease, came: AckOfValue) -> AckOfResult:
        return AckOfResult(lease, came.kept, came.keep_ms, self._record(lease))

    def _ack_of(self, lease: Lease, result: Ack) -> AckOfFound:
        again_ms, payload = arguments.again(result.again_in, result.payload, lease.task)
        kept, keep_ms = Kept.of(result.result, result.keep_result), None
        if isinstance(result.keep_id, timedelta):
            keep_ms = arguments.delay_ms(result.keep_id, "keep_id")
        elif not arguments.flag(result.keep_id, "keep_id"):
            keep_ms = 0
        if again_ms >= 0 and (kept is not None or keep_ms is not None):
            what = "result=" if kept is not None else f"keep_id={result.keep_id!r}"
            raise InvalidInput(f"{what} and again_in= exclude each other: a task that runs again has not ended")
        put: Any = result.put
        record = None if kept is None else self._record(lease)
        ack = AckOfFound(lease, TaskList(), again_ms, payload, kept=kept, record=record, keep_ms=keep_ms)
        if not is_nothing(put):
            tasks = put if isinstance(put, TaskList) else arguments.tasks((put,))
            ack.found, ack.away = self.queue.division.sorted(lease, tasks)
        if isinstance(put, Found) and put.left_out:
            self.tally.left_out += put.left_out
            self.log.of_queue(
                logging.WARNING, "%d of the tasks that the handler of task %a found cannot be put and were left out: "
                "%s", put.left_out, lease.task, put.why, lease=lease, error=put.why, more={"left_out": put.left_out},
            )  # fmt: skip
        return ack

    def _give(self, ack: AckOfFound) -> None:
        ack.missing = len(ack.away)
        for shard, found in ack.away.items():
            self.shards[shard].put_first(ack, found)
        if not ack.away:
            self.ends_of(ack.lease).ack_found(ack)

    def _release(self, lease: Lease, result: Release) -> None:
        delay_ms, ends = arguments.delay_ms(result.delay, "delay"), self.ends_of(lease)
        if isinstance(result, Unrun):
            self._unrun[lease.key] = result.error
            why = arguments.error_text(result.error)
            ends.postpone(lease, delay_ms, arguments.delay_ms(result.within, "within"), why)
            return
        block_ms = arguments.delay_ms(result.block_host, "block_host")
        if block_ms:
            self._count_block(lease, block_ms)
        ends.release(lease, delay_ms, block_ms)

    def _count_block(self, lease: Lease, block_ms: int) -> None:
        """Count a release that blocks the host of its task; warn of ten in a row, of a hundred, and so on."""
        host = _host_of(lease)
        times = self._blocks[host] = self._blocks.pop(host, 0) + 1
        if len(self._blocks) > MOST_HOSTS:
            del self._blocks[next(iter(self._blocks))]
        if times >= MANY and str(times).strip("0") == "1":
            self.log.of_queue(
                logging.WARNING, "handlers have put tasks back %d times in a row to block host %a, the last time task "
                "%a, for %g s; such releases do not count against max_releases, so visits to this host go on",
                times, host, lease.task, block_ms / 1000, lease=lease, more={"host": host, "times": times},
            )  # fmt: skip

    # ---- leases end otherwise

    def failed(self, lease: Lease, error: BaseException, *, hopeless: bool = False) -> None:
        """End the lease as a failed attempt; never raises, whatever the error and the retry policy do."""
        if isinstance(error, Hopeless):
            error, hopeless = error.error, True
        self._fail(self._failures.judge(lease, error, self._record(lease), hopeless=hopeless))

    def _fail(self, failure: Failure) -> None:
        lease = failure.lease
        if failure.then is None:
            self.ends_of(lease).fails.append(failure)
            return
        here, away = self.queue.division.sorted(lease, arguments.tasks((failure.then,)))
        puts = away or {self.queue.division.which(lease): here}
        ack = AckOfFound(lease, TaskList(), away=puts, failure=failure)
        self.ends_of(lease).extend(ack, round(self.queue.timeout * 1000))

    def _extended(self, sent: PendingCall, answer: Answer) -> None:
        """Put what is put because an attempt has failed, if the lease is still held."""
        (ack,) = sent.acks
        if answer is Answer.LOST:
            self.lost(ack.lease, "fail")
        elif ack.failure is not None and time.monotonic() - sent.made >= self.queue.timeout:
            self._fail(ack.failure)  # the answer is old: this process was frozen, or the server away
        else:
            self._give(ack)

    def _record(self, lease: Lease) -> bytes | None:
        """Give what the record of a call says of this attempt, as `lua/results.lua` has it; None for no record."""
        found = self.records.get(lease.key)
        if found is None:
            return None
        began, put_ms, function = found
        # the time of the server, as far as it is known: it is too early rather than too late, but not before the claim
        now_ms = self.queue.division.talk_of(lease).clock.now_ms
        start_ms = max(now_ms - int((time.monotonic() - began) * 1000), round(self.runtime.claimed_ms(lease)))
        put = "-" if put_ms is None else put_ms
        return f"{lease.attempt} {lease.crashes} {start_ms} {put} {function}".encode()

    def interrupted(self, run: Run) -> None:
        """End the lease of a handler that was stopped; `run.end` says why the handler was stopped."""
        if run.end == "cancelled" and (record := self._record(run.lease)) is not None:
            self.ends_of(run.lease).postpone(run.lease, 0, record=record)
        elif run.end in ("shutdown", "cancelled"):  # the queue knows of a cancelled task, which goes to failed
            self.given_back([run.lease])
        elif run.end == "max_runtime":
            # the task has used up its time: this counts as a failed attempt, not as a crash of the process
            self.failed(run.lease, self.runtime.error(seconds=run.limit))
        else:
            self.lost(run.lease)

    def abandon(self, run: Run) -> None:
        """End the lease of a handler that was stopped, even if the handler still runs."""
        self.running.pop(run.lease.key, None)
        self.runs += 1
        if not run.settled:
            run.settled = True
            self.interrupted(run)

    def given_back(self, leases: Iterable[Lease]) -> None:
        """Release leases because the worker says so: such releases do not count against `max_releases`."""
        for lease in leases:
            self.ends_of(lease).releases.append(lease)

    def lost(self, lease: Lease, verb: str = "lease extension") -> None:
        """Let go of a lease that this worker has lost, and warn of the loss; `verb` is what came too late."""
        self._let_go([lease])
        self.tally.lost += 1
        task = asyncio.get_running_loop().create_task(self._tell_loss(lease, verb))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _let_go(self, leases: list[Lease]) -> None:
        pop = self.held.pop
        for key in map(self.key_of, leases):
            pop(key, None)
        for lease in leases if self.records else ():
            self.records.pop(lease.key, None)
        if self.ledger is not None:
            self.ledger.end(leases)

    async def _tell_loss(self, lease: Lease, verb: str) -> None:
        try:
            # many leases may be lost at once: ask one question at a time, or each would open and keep a connection
            async with self._asking:
                why = flows.lost(self.queue.division.talk_of(lease), lease, self.runtime.ends_ms(lease))
                loss: object = await self.queue.run(why)
        except TimeoutqError as error:
            loss = f"lease on {lease.task!a} is lost; why cannot be asked: {error}"
        words = "the %s of a task came too late: %s"
        self.log.of_queue(logging.WARNING, words, verb, loss, lease=lease, error=loss)

    async def end_losses(self) -> None:
        """Wait until the reason of each loss is known, but no longer than one call may take."""
        if self._telling:
            await asyncio.wait(self._telling, timeout=self.queue.talk.deadline)
            for task in self._telling:
                task.cancel()

    # ---- the queue answers

    def settled(self, sent: PendingCall, came: Any) -> None:
        """Let go of the leases of a call that the queue has answered, and count the answers."""
        if sent.verb == "extend":
            self._extended(sent, came[1][0])
            return
        outcome: Outcome = came
        if sent.acks:
            for ack in sent.acks:
                ack.missing -= 1
                if not (ack.missing or ack.is_void):  # all puts for other shards are there
                    self.ends_of(ack.lease).ack_found(ack)
            return
        leases, good, releases = sent.leases, outcome.ok, sent.verb == "release"
        gone = leases
        if self._unrun and releases:
            gone = list[Lease]()
            for lease, answer in zip(leases, outcome, strict=True):
                why = self._unrun.pop(lease.key, None)
                if answer is Answer.OVERDUE and why is not None:  # it is still leased
                    self.failed(lease, why)
                else:
                    gone.append(lease)
        self._let_go(gone)
        if self._blocks and not releases:
            for lease in leases:
                self._blocks.pop(_host_of(lease), None)
        if sent.verb == "ack":
            self.tally.acked += good
            if not self._told_kept and KEPT in outcome.codes:
                self._tell_kept(leases[outcome.codes.index(KEPT)])
        elif sent.verb == "fail":
            late = {lease.key for lease in leases} & self._expired
            self._expired -= late
            self.tally.expired += len(late)
            self.tally.failed += max(0, good - len(late))
        else:
            self.tally.released += good
        if good < len(leases):
            for lease, answer in zip(leases, outcome, strict=True):
                if answer is Answer.LOST and not releases:
                    self.lost(lease, sent.verb)
                elif answer is Answer.FAILED:
                    self.tally.failed += 1
                    error = f"released {self.rules.most_releases} times by its handler"
                    self.log.of_task(logging.WARNING, lease, "is given up: %s", error, error=error)
                elif answer is Answer.CANCELLED:
                    self.tally.failed += 1

    def _tell_kept(self, lease: Lease) -> None:
        self._told_kept = True
        self.log.of_task(
            logging.WARNING, lease, "is done, and blocks its id for ever, not for the time that its ack has said: the "
            'queue has keep_done="compact", which keeps fingerprints of done tasks, not ids with a time. The same '
            'holds for other tasks, of which nothing is said. Use unique="active" or "forever" (keep_id=False or '
            "True), or a queue with another keep_done",
        )  # fmt: skip

    def refused(self, sent: PendingCall, error: Exception) -> None:
        """Fail the tasks whose ack the queue refuses, as it would each time: their found tasks cannot be put."""
        leases = [ack.lease for ack in sent.acks if not ack.is_void] if sent.acks else sent.leases
        for ack in sent.acks:
            ack.is_void = True
            if ack.failure is not None:  # its attempt has failed in any case
                leases.remove(ack.lease)
                self.ends_of(ack.lease).fails.append(ack.failure)
                self.log.of_task(logging.WARNING, ack.lease, "has failed, and nothing is put for it: %s", error)
        for lease in leases:
            self.failed(lease, error, hopeless=True)
        self.wake()


def _host_of(lease: Lease) -> str:
    try:
        return text(arguments.host(lease.task))
    except InvalidInput:  # a task that has no host stands for itself
        return lease.task
