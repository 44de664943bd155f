"""Histories: what many processes did to one queue, a line an event, and the judge of what they must not have done."""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

LINE = 4096
"""The most bytes of one write."""

STALL = 0.4
"""A holder whom the machine kept from running for this part of its lease may have lost it without a strike."""

STRIKES = ("kill", "stop", "cont", "term")
TROUBLE = ("fault", "whole")
"""A fault of the server, and the end of its troubles."""
ASKED = {"ack": "acked", "release": "released", "fail": "failed", "extend": "extended"}
"""A call for a lease, and its answer."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened; which fields it has depends on `what`.

    put, put_answered: a task, the letter of the answer · claim: a token, and as `fence` how many · granted: a lease,
    when it was asked for, and the server's time · nothing: a claim that found nothing · extend, ack, release, fail: a
    lease · extended, acked, released, failed: the letter of the answer · start, end: of a handler · kill, stop, cont,
    term: what the storm did to `pid` · born: what it is · fault, whole: what was done to the server, and when all that
    followed from it was over · call: how long a call took its caller, ms, and the error in which it ended.
    """

    what: str
    at: int
    """CLOCK_MONOTONIC, ns; the same clock in all processes of a machine."""
    pid: int
    task: str = ""
    token: str = ""
    fence: int = 0
    deadline: int = 0
    """The server's clock, ms."""
    now: int = 0
    """The server's clock when it answered, ms."""
    sent: int = 0
    """When the call was sent that this event answers."""
    answer: str = ""

    def line(self) -> str:
        words = (self.what, self.at, self.pid, self.task, self.token, self.fence, self.deadline, self.now, self.sent)
        return "\t".join(map(str, (*words, self.answer))) + "\n"


def _event(line: str) -> Event:
    what, at, pid, task, token, fence, deadline, now, sent, answer = line.split("\t")
    return Event(what, int(at), int(pid), task, token, int(fence), int(deadline), int(now), int(sent), answer)


class History:
    """A history file, for one process: O_APPEND keeps the lines of many whole, and a kill cannot cut one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *events: Event) -> None:
        """Append events; those of one call go in one write as far as they fit."""
        chunk = b""
        for event in events:
            line = event.line().encode()
            if chunk and len(chunk) + len(line) > LINE:
                os.write(self._file, chunk)
                chunk = b""
            chunk += line
        if chunk:
            os.write(self._file, chunk)

    def say(self, what: str, pid: int = 0, **fields: str | int) -> None:
        self.note(Event(what, time.monotonic_ns(), pid or os.getpid(), **fields))  # type: ignore[arg-type]  # by name

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Event]:
    with path.open(encoding="utf-8") as lines:
        return sorted((_event(line.rstrip("\n")) for line in lines), key=lambda event: event.at)


@dataclass(frozen=True, slots=True)
class After:
    """The state of the queue at the end, as the server tells it."""

    done: frozenset[str]
    others: frozenset[str]
    """Tasks in any other state."""
    counters: Mapping[str, int]
    delay_ms: int | None = None
    """On a polite queue: how long a host is left alone between two visits."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The verdict on the queue as a whole, in Jepsen's words for its total-queue."""

    attempts: int = 0
    """Tasks that somebody tried to put."""
    acknowledged: int = 0
    """Those of which he was told that they are in the queue."""
    ok: int = 0
    """Those that were worked to the end and are done."""
    duplicated: int = 0
    """Starts of a handler beyond the first one of its task."""
    lost: int = 0
    """Acknowledged, but not ok."""
    unexpected: int = 0
    """Worked or done, but never put."""
    recovered: int = 0
    """Ok though nobody was told that they are in the queue."""

    def table(self) -> str:
        return "\n".join(f"{name:>14}  {value:>9,}" for name, value in self.words().items())

    def words(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            *(mine + yours for mine, yours in zip(self.words().values(), other.words().values(), strict=True))
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one history."""

    totals: Totals
    leases: int
    causes: Mapping[str, int]
    """Why tasks were handed out again: released, failed, struck, fault, stalled."""
    violations: Sequence[str]
    kinds: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many violations there are of each kind, such as `lost` or `overlap`."""


@dataclass(slots=True, eq=False)
class _Lease:
    """A lease as its holder saw it; a claim that was sent again may have told of it twice."""

    task: str
    token: str
    pid: int
    fence: int
    now: int
    deadline: int
    sent: int
    received: int
    calls: list[Event] = field(default_factory=list[Event])
    starts: int = 0
    ends: int = 0


class _Clock:
    """How the server's clock stands to the processes': each reply with a time in it narrows it down."""

    def __init__(self, events: Iterable[Event]) -> None:
        least, most = -(10**30), 10**30
        for event in events:
            if event.now and event.sent:
                least = max(least, event.now * 1_000_000 - event.at)
                most = min(most, (event.now + 1) * 1_000_000 - event.sent)
        # the bounds cross when the server's clock was corrected meanwhile: then anything between them may be right
        self._least, self._most = min(least, most), max(least, most)

    def earliest(self, at: int) -> int:
        """Give the server's time, ms, that it surely was at that moment or later."""
        return (at + self._least) // 1_000_000


class _Judge:
    def __init__(self, events: Sequence[Event], after: After) -> None:
        self.after = after
        self.violations: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.clock = _Clock(events)
        self.events = events
        self.of_kind: dict[str, list[Event]] = defaultdict(list)
        self.moments: dict[int, list[int]] = defaultdict(list)
        self.strikes: dict[int, list[Event]] = defaultdict(list)
        self.leases: dict[tuple[str, str], _Lease] = {}
        for event in events:
            self.of_kind[event.what].append(event)
            if event.what in STRIKES:
                self.strikes[event.pid].append(event)
            elif event.what not in TROUBLE:
                self.moments[event.pid].append(event.at)
        # a fault that has no end here lasts for ever
        ends = [event.at for event in self.of_kind["whole"]] + [10**30]
        self.troubles = [(event.at, ends[i]) for i, event in enumerate(self.of_kind["fault"])]
        self._gather_leases()
        self.of_task: dict[str, list[_Lease]] = defaultdict(list)
        for lease in sorted(self.leases.values(), key=lambda lease: lease.fence):
            self.of_task[lease.task].append(lease)

    def blame(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        self.violations.append(text)

    def _gather_leases(self) -> None:
        fences: dict[int, tuple[str, str]] = {}
        # a lease runs since its claim was carried out, which may have been the first of several sendings
        first: dict[str, int] = {}
        for event in self.of_kind["claim"]:
            first[event.token] = min(event.at, first.get(event.token, event.at))
        for event in self.of_kind["granted"]:
            key = (event.task, event.token)
            if fences.setdefault(event.fence, key) != key or not event.fence:
                self.blame("fence", f"fence {event.fence} was given to {fences[event.fence]} and to {key}")
            lease = self.leases.get(key)
            if lease is None:
                self.leases[key] = _Lease(
                    event.task, event.token, event.pid, event.fence,
                    event.now, event.deadline, first.get(event.token, event.sent), event.at,
                )  # fmt: skip
            else:
                lease.fence, lease.now = min(lease.fence, event.fence), min(lease.now, event.now)
                lease.deadline = max(lease.deadline, event.deadline)
        for asked, answered in ASKED.items():
            for event in (*self.of_kind[asked], *self.of_kind[answered]):
                lease = self.leases.get((event.task, event.token))
                if lease is not None:
                    lease.calls.append(event)
                elif event.answer in ("O", "R"):
                    self.blame("unasked", f"{event.task}: {answered} for {event.token}, who was never given it")
        for event in (*self.of_kind["start"], *self.of_kind["end"]):
            lease = self.leases.get((event.task, event.token))
            if lease is None or lease.pid != event.pid:
                self.blame("unasked", f"{event.task}: {event.what} in process {event.pid}, which has no lease on it")
            elif event.what == "start":
                lease.starts += 1
                if lease.starts > 1:
                    self.blame("twice", f"{event.task}: {event.token} started it twice on one lease")
            else:
                lease.ends += 1

    # ---- the queue as a whole

    def totals(self) -> Totals:
        puts = {event.task for event in self.of_kind["put"]}
        told = {event.task for event in self.of_kind["put_answered"]}
        worked = {event.task for event in self.of_kind["end"]}
        ok = worked & self.after.done & puts
        lost = told - ok
        unexpected = (worked | self.after.done | self.after.others | self.of_task.keys()) - puts
        for task in sorted(lost):
            state = "done, but nobody worked it to the end" if task in self.after.done else "not done"
            self.blame("lost", f"{task}: lost: it was acknowledged and is {state}")
        for task in sorted(unexpected):
            self.blame("unexpected", f"{task}: unexpected: nobody ever put it")
        starts = Counter(event.task for event in self.of_kind["start"])
        return Totals(
            attempts=len(puts),
            acknowledged=len(told),
            ok=len(ok),
            duplicated=sum(starts.values()) - len(starts),
            lost=len(lost),
            unexpected=len(unexpected),
            recovered=len(ok - told),
        )

    # ---- one task

    def judge_task(self, leases: list[_Lease]) -> None:
        for one, other in pairwise(leases):
            self._judge_overlap(one, other)
            self._judge_stale(one, other)
            self._judge_cause(one, other)
        done = [(lease, call) for lease in leases for call in lease.calls if call.what == "acked"]
        accepted = [lease for lease, call in done if call.answer == "O"]
        if len(accepted) > 1:
            tokens = " and ".join(lease.token for lease in accepted)
            self.blame("twice", f"{leases[0].task}: acked ok {len(accepted)} times, by {tokens}")

    def _judge_overlap(self, one: _Lease, other: _Lease) -> None:
        if other.now < one.now:
            self.blame("fence", f"{one.task}: fence {other.fence} was given before the smaller {one.fence}")
        until, why = one.deadline, "its deadline"
        for call in one.calls:
            if call.what == "extended" and call.answer == "O" and call.now <= other.now:
                until = max(until, call.deadline)
        for call in one.calls:
            if call.what in ("release", "fail") and not self._was_refused(one, call):
                ended = self.clock.earliest(call.at) - 1
                if ended < until:
                    until, why = ended, f"its {call.what}"
        if other.now < until:
            self.blame(
                "overlap",
                f"{one.task}: two valid leases: {other.token} was given it {until - other.now} ms before {why} of "
                f"{one.token}",
            )

    def _was_refused(self, lease: _Lease, asked: Event) -> bool:
        """Say whether this call was answered, and the answer was that the lease is somebody else's."""
        return any(
            call.what == ASKED[asked.what] and call.sent == asked.at and call.answer == "L" for call in lease.calls
        )

    def _judge_stale(self, one: _Lease, other: _Lease) -> None:
        for call in one.calls:
            if call.answer not in ("O", "R"):
                continue
            if call.what == "acked":
                self.blame(
                    "undone",
                    f"{one.task}: the ack of {one.token} was accepted, but {other.token} was given it afterwards",
                )
            elif call.what == "extended":
                if call.now > other.now:
                    self.blame(
                        "stale",
                        f"{one.task}: {one.token} extended it {call.now - other.now} ms after {other.token} got it",
                    )
            elif call.answer == "O" and self.clock.earliest(call.sent) > other.now + 1:
                self.blame("stale", f"{one.task}: {one.token} {call.what} it after {other.token} was given it")

    def _judge_cause(self, one: _Lease, other: _Lease) -> None:
        """Find out why a task was handed out again; what nothing explains is a violation."""
        for asked in ("release", "fail"):
            if any(call.what == asked and not self._was_refused(one, call) for call in one.calls):
                self.causes[ASKED[asked]] += 1
                return
        if self._was_struck(one, other):
            self.causes["struck"] += 1
        elif any(one.sent < whole and fault < other.received for fault, whole in self.troubles):
            self.causes["fault"] += 1
        elif self._was_stalled(one, other):
            self.causes["stalled"] += 1
        else:
            self.blame(
                "uncaused",
                f"{one.task}: handed out again without a cause: {one.token} (process {one.pid}) had it when "
                f"{other.token} got it, {other.now - one.deadline} ms after its first deadline",
            )

    def _was_struck(self, one: _Lease, other: _Lease) -> bool:
        stopped = 0
        for strike in self.strikes[one.pid]:
            if strike.at > other.received:
                break
            if strike.what in ("kill", "term"):
                return True
            if strike.what == "stop":
                stopped = strike.at
            elif stopped and strike.at >= one.sent:
                return True
            else:
                stopped = 0
        return bool(stopped)

    def _was_stalled(self, one: _Lease, other: _Lease) -> bool:
        length = (one.deadline - one.now) * 1_000_000
        moments = self.moments[one.pid]
        first, last = bisect_left(moments, one.sent), bisect_right(moments, other.received)
        seen = [*moments[first:last], other.received]
        return any(later - earlier >= STALL * length for earlier, later in pairwise(seen))

    # ---- hosts

    def judge_hosts(self, delay_ms: int) -> None:
        """Judge the visits of each host, of which there may be one at a time."""
        of_host: dict[str, list[_Lease]] = defaultdict(list)
        for lease in sorted(self.leases.values(), key=lambda lease: lease.fence):
            of_host[lease.task.split("/")[2]].append(lease)
        for host, leases in of_host.items():
            for one, other in pairwise(leases):
                answered = [call for call in one.calls if call.answer == "O" and call.what != "extended"]
                if answered:
                    ended = min(self.clock.earliest(call.sent) for call in answered)
                    until, why = ended + delay_ms - 1, "the pause after"
                else:
                    # a visit that nobody has ended, as far as the history tells, has ended with the lease
                    until, why = self._until(one, other), "the end of"
                if other.now < until:
                    self.blame(
                        "host",
                        f"{host}: {other.token} was given {other.task} {until - other.now} ms before {why} the visit "
                        f"of {one.task} by {one.token}",
                    )

    @staticmethod
    def _until(one: _Lease, other: _Lease) -> int:
        calls = [call for call in one.calls if call.what == "extended" and call.answer == "O" and call.now <= other.now]
        if any(call.what in ASKED and call.what != "extend" for call in one.calls):
            return 0  # an end that was asked for, and not answered, may have been carried out at any time
        return max([one.deadline, *(call.deadline for call in calls)])

    # ---- the counters

    def judge_counters(self) -> None:
        count = self.after.counters
        of = count.get
        ended = {what: of(what, 0) for what in ("acked", "failed", "released", "expired", "crashed", "calls_expired")}
        if of("claimed", 0) != sum(ended.values()):
            self.blame("counters", f"{of('claimed', 0)} leases were given, but {ended} do not explain their ends")
        again = self.causes["struck"] + self.causes["fault"] + self.causes["stalled"]
        if again > ended["expired"] + ended["crashed"]:
            self.blame(
                "uncaused", f"{again} leases ran out while their holders were struck, but the counters say {ended}"
            )
        done, put = len(self.after.done), of("put", 0)
        if not of("acked", 0) == done == put:
            self.blame("counters", f"{put} tasks were put and {of('acked', 0)} acked, but {done} are done")
        if self.after.others:
            self.blame("undrained", f"not drained: {sorted(self.after.others)[:10]}")
        for asked, answered in (*ASKED.items(), ("claim", "claimed")):
            if asked == "extend":
                continue
            if asked == "claim":
                seen = len(self.leases)
                open_calls = sum(event.fence for event in self._unanswered_claims())
            else:
                letters = Counter(event.answer for event in self.of_kind[answered])
                seen = letters["O"]
                open_calls = len(self.of_kind[asked]) - letters["O"] - letters["L"]
            if not seen <= of(answered, 0) <= seen + open_calls:
                self.blame(
                    "undone",
                    f"the counter says {of(answered, 0)} {answered}, the history {seen} and {open_calls} calls "
                    "without an answer",
                )

    def _unanswered_claims(self) -> list[Event]:
        told = {event.token for event in (*self.of_kind["granted"], *self.of_kind["nothing"])}
        # the last sending may ask for no more than what an earlier one took, to give it back
        asked = {event.token: event for event in self.of_kind["claim"] if event.fence}
        return [event for token, event in asked.items() if token not in told]


def judge(events: Sequence[Event], after: After) -> Verdict:
    """Judge a history whose queue was drained: nothing lost, no two valid leases, a cause for every second start."""
    judge = _Judge(sorted(events, key=lambda event: event.at), after)
    totals = judge.totals()
    for leases in judge.of_task.values():
        judge.judge_task(leases)
    judge.judge_counters()
    if after.delay_ms is not None:
        judge.judge_hosts(after.delay_ms)
    return Verdict(totals, len(judge.leases), dict(judge.causes), judge.violations, dict(judge.kinds))
