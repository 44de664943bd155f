"""What is told of a whole queue at one moment: counts, settings, and how long handlers ran. Plain frozen values.

`replies.py` makes these values from replies of the server, as those of `model.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from timeoutq.model import MAX_TIME_MS, Politeness


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
    (runs that followed at once because of `improve` or `rerun`), …"""
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

    @property
    def compact(self) -> bool:
        """Whether the queue keeps fingerprints of its done tasks (`keep_done="compact"`) and not their ids."""
        return "compact" in self.settings.get("uses", "").split()

    @property
    def has_schedules(self) -> bool:
        """Whether the queue has schedules: see `queue.schedules`."""
        mine = "schedules" in self.settings.get("uses", "").split()
        return mine or any(shard.has_schedules for shard in self.shards)

    @property
    def politeness(self) -> Politeness | None:
        """How hosts are treated; None for a queue that is not polite."""
        if "politeness" not in self.settings.get("uses", "").split():
            return None
        words = re.fullmatch(r"([0-9]{1,15}) ([0-9]{1,15})( off)?", self.settings.get("politeness", ""))
        if words is None or int(words[1]) > MAX_TIME_MS or int(words[2]) < 1:
            return Politeness()  # it cannot be read, or lets nobody visit: the scripts take the usual one, too
        return None if words[3] else Politeness(int(words[1]) / 1000, int(words[2]))

    @property
    def durable(self) -> int:
        """How many replicas must confirm what callers are told; 0 for a queue that is not durable."""
        if "durable" not in self.settings.get("uses", "").split():
            return 0
        count = self.settings.get("durable", "")
        return max(1, int(count)) if re.fullmatch("[0-9]{1,3}", count) else 1

    @property
    def sample(self) -> Sample:
        """The counters from which rates are computed."""
        of = self.counters.get
        return Sample(self.now, of("put", 0), of("claimed", 0), of("acked", 0), of("failed", 0), of("expired", 0))
