"""What is told of a whole queue at one moment: counts, settings, and how long handlers ran. Plain frozen values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from timeoutq.words.model import MAX_TIME_MS, Politeness


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters at one moment. A rate is the difference of two samples."""

    at: float
    put: int = 0
    claimed: int = 0
    acked: int = 0
    failed: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Period:
    """A minute or an hour of a queue: how many tasks each state had when it began, and how often things happened in it.

    All counts are None if nobody noted them: no worker and no cleaner was running. Then what happened counts in the
    period before that gap. The first period of all also counts what happened before it, and the last one what has
    happened until now: so what happened in all periods adds up to the counters of the queue, until the oldest periods
    are removed.
    """

    at: float
    """When it began, Unix seconds: a whole minute or hour."""
    todos: int | None = None
    waiting: int | None = None
    scheduled: int | None = None
    in_progress: int | None = None
    done: int | None = None
    failed: int | None = None
    put: int | None = None
    claimed: int | None = None
    acked: int | None = None
    errors: int | None = None
    """Failed attempts, given up or not."""
    expired: int | None = None


IN_STATES = ("todos", "waiting", "scheduled", "in_progress", "done", "failed")
"""What a period counts when it begins."""
HAPPENED = ("put", "claimed", "acked", "errors", "expired")
"""What a period counts until it ends."""


def periods_of(
    lines: Sequence[Period], latest: Period | None, now: float, length: int, most: int, *, whole: bool
) -> list[Period]:
    """Give the last `most` periods of `length` seconds, the oldest first, from the first that was noted until now.

    `lines` come newest first; `latest` is what a line of now would say. With `whole`, no line was ever removed: the
    counters before the first line were 0. What happened between two lines counts in the period of the earlier one. A
    clock that has stepped back notes a period twice: the newer line says the sizes, and what happened is added up.
    """
    last = int(now // length)
    noted, happened = dict[int, Period](), dict[int, dict[str, int]]()
    told = [*reversed(lines), *([] if latest is None else [latest])]
    for at, (one, following) in enumerate(zip(told, [*told[1:], latest], strict=False)):
        number = int(one.at // length)
        if not last - most < number <= last:
            continue
        if one is not latest or number not in noted:
            noted[number] = one
        if following is not None:
            counts = happened.setdefault(number, dict.fromkeys(HAPPENED, 0))
            for name in HAPPENED:
                before = 0 if whole and at == 0 else getattr(one, name)
                counts[name] += max(0, getattr(following, name) - before)
    if not noted:
        return []
    found: list[Period] = []
    for number in range(min(noted), last + 1):
        began = noted.get(number)
        sizes = {} if began is None else {name: getattr(began, name) for name in IN_STATES}
        found.append(Period(float(number * length), **sizes, **happened.get(number, {})))
    return found


def summed(parts: Sequence[Sequence[Period]]) -> list[Period]:
    """Add up the periods of several shards."""
    by_time = [{one.at: one for one in part} for part in parts if part]
    times = sorted({at for part in by_time for at in part})
    begins = [min(part) for part in by_time]
    found: list[Period] = []
    for at in times:
        # a shard that nobody had used by then has no tasks
        some = [part.get(at, Period(at)) for part, begin in zip(by_time, begins, strict=True) if begin <= at]
        counts: dict[str, int] = {}
        for name in (*IN_STATES, *HAPPENED):
            values = [value for one in some if (value := getattr(one, name)) is not None]
            if len(values) == len(some) or (values and name in HAPPENED):
                counts[name] = sum(values)
        found.append(Period(at, **counts))
    return found


@dataclass(frozen=True, slots=True)
class Durations:
    """How long handlers ran, in the last 10 to 20 minutes with any run. Seconds, at most 12.5 % too high.

    A run counts however it ended, if its worker lived to report it. A run that max_runtime ended counts with the time
    that it had.
    A run shorter than 0.12 ms counts as 0.12 ms, a run longer than a day as a day.
    """

    count: int
    p50: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Stats:
    """One atomic look at the queue."""

    now: float
    todos: int
    scheduled: int
    in_progress: int
    done: int
    failed: int
    paused: bool
    counters: Mapping[str, int]
    """Everything that ever happened: put, claimed, acked, failed, gave_up, expired, crashed, released, promoted, reruns
    (runs that followed at once because of `improve` or `rerun`), calls_expired (never begun, by their `expires`), …"""
    next_due: float | None = None
    next_deadline: float | None = None
    todos_since: float | None = None
    """Since when todos has held tasks without a break: no ready task has waited longer. The queue keeps no time for
    each ready task."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    workers: int = 0
    waiting: int = 0
    """Ready tasks of a polite queue that wait for their host's turn."""
    hosts: int = 0
    next_turn: float | None = None
    """When the next host has its turn."""
    durations: Durations | None = None
    """How long handlers ran lately; None if no worker has reported yet."""
    ran: Mapping[float, int] = field(default_factory=dict[float, int])
    """How many runs there were since the queue was made, by how long they took: the upper bound of a bucket, seconds,
    and the runs in the bucket. Numbers that only grow, so that a monitor can tell rates and percentiles of any span."""
    shards: Sequence[Stats] = ()
    """Of a queue over several shards: the same of each shard, each at a moment of its own; else nothing."""

    @property
    def known(self) -> int:
        """todos + waiting + scheduled + in_progress + done + failed."""
        return self.todos + self.waiting + self.scheduled + self.in_progress + self.done + self.failed

    @property
    def exists(self) -> bool:
        """Whether something was put to the queue, or set for it, since the queue was last purged."""
        return "schema" in self.settings or self.known > 0

    @property
    def drained(self) -> bool:
        """Whether nothing is ready, scheduled or held, and no host waits for its turn."""
        return not (self.todos or self.scheduled or self.in_progress or self.next_turn is not None)

    def _uses(self, what: str) -> bool:
        return what in self.settings.get("uses", "").split()

    @property
    def compact(self) -> bool:
        """Whether the queue keeps fingerprints of its done tasks (`keep_done="compact"`) and not their ids."""
        return self._uses("compact")

    @property
    def has_schedules(self) -> bool:
        """Whether the queue has schedules: see `queue.schedules`."""
        return self._uses("schedules") or any(shard.has_schedules for shard in self.shards)

    @property
    def politeness(self) -> Politeness | None:
        """How hosts are treated; None for a queue that is not polite."""
        if not self._uses("politeness"):
            return None
        words = re.fullmatch(r"([0-9]{1,15}) ([0-9]{1,15})( off)?", self.settings.get("politeness", ""))
        if words is None or int(words[1]) > MAX_TIME_MS or int(words[2]) < 1:
            return Politeness()  # it cannot be read, or lets nobody visit: the scripts take the usual one, too
        return None if words[3] else Politeness(int(words[1]) / 1000, int(words[2]))

    @property
    def durable(self) -> int:
        """How many replicas must confirm what callers are told; 0 for a queue that is not durable."""
        if not self._uses("durable"):
            return 0
        count = self.settings.get("durable", "")
        return max(1, int(count)) if re.fullmatch("[0-9]{1,3}", count) else 1

    @property
    def sample(self) -> Sample:
        """The counters from which rates are computed."""
        of = self.counters.get
        return Sample(self.now, of("put", 0), of("claimed", 0), of("acked", 0), of("failed", 0), of("expired", 0))

    @property
    def noted(self) -> Period:
        """What a line of `minutes` or `hours` would say of this moment: all counters in the place of what happened."""
        counters = {name: self.counters.get("failed" if name == "errors" else name, 0) for name in HAPPENED}
        return Period(self.now, **{name: getattr(self, name) for name in IN_STATES}, **counters)
