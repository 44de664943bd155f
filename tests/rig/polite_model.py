"""The polite queue as a model: what hosts, their turns, priorities and repeated runs add to `model.py`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

from tests.rig.invariants import MOST_RESTING
from tests.rig.model import NOTHING, Given, Model, Pair

POINT = 2**41
"""How far one point of priority goes before the time, ms."""


class Refused(Exception):
    """A put gave a priority where none can be."""


def host_of(task: str) -> str:
    """Give the host that the name of a task tells, '' for a task that has none."""
    return task.split("/")[2] if task.startswith("http://") else ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one host; None stands for the queue's own."""

    delay: int | None = None
    per_host: int | None = None
    budget: int | None = None
    until: int = 0
    flag: str = "-"
    """b blocked, x banned"""


class PoliteModel(Model):
    """One queue on one server, polite or not."""

    def __init__(self, now: int = 0) -> None:
        super().__init__(now)
        self.usual: tuple[int, int] | None = None
        """Delay, ms, and visits of a host at once; None: the queue is not polite."""
        self.ending = False
        self.converting = ""
        self.waiting: set[str] = set()
        self.lanes: dict[Pair, int] = {}
        """Host and task: what waits, and by which score."""
        self.places: set[Pair] = set()
        """Host and task: what counts as a visit of the host."""
        self.turns: dict[str, float] = {}
        self.visits: dict[str, int] = {}
        self.broken: dict[str, int] = {}
        self.rests: dict[str, int] = {}
        """Until when a host rests; of '', since when the queue is polite, if it had visits before."""
        self.rules: dict[str, Rules] = {}
        self.groups: dict[str, str] = {}
        self.priorities: dict[str, int] = {}
        self.blockings: dict[str, int] = {}
        self._met: list[str] = []
        self._rested: dict[str, int] = {}

    def copy(self) -> Self:
        """Give another queue in the same state."""
        other = super().copy()
        other._met, other._rested = [], {}
        return other

    def key(self) -> Hashable:
        """Give what tells this state from others."""
        return (
            super().key(),
            self.usual,
            self.ending,
            self.converting,
            frozenset(self.waiting),
            frozenset(self.places),
            *(
                frozenset(each.items())
                for each in (
                    self.lanes, self.turns, self.visits, self.rests, self.groups, self.priorities, self.blockings,
                    self.rules,
                )
            ),
        )  # fmt: skip

    def _states(self) -> Iterable[tuple[str, Collection[str]]]:
        return (*super()._states(), ("w", self.waiting))

    # ---- hosts

    def host(self, task: str) -> str:
        """Give the host of a task, '' where the task does not wait for one."""
        return "" if self.usual is None else self.groups.get(task) or host_of(task)

    def _delay(self, host: str) -> int:
        own = self.rules.get(host, Rules()).delay
        assert self.usual is not None
        return self.usual[0] if own is None else own

    def per_host(self, host: str) -> int:
        """Give how many visits of this host there may be at once."""
        own = self.rules.get(host, Rules()).per_host
        assert self.usual is not None
        places = self.usual[1] if own is None else own
        return min(places, MOST_RESTING) if self._delay(host) else places

    def placed(self, host: str) -> list[str]:
        """Give the tasks that have a place of a host."""
        return sorted(task for name, task in self.places if name == host)

    def lane(self, host: str) -> list[str]:
        """Give the tasks that wait for a host, the next one first."""
        return [task for _, task in sorted((score, task) for (name, task), score in self.lanes.items() if name == host)]

    def _rank(self, task: str) -> int:
        return self.priorities.get(task, 0)

    def _begin(self) -> None:
        self._met.clear()
        self._rested.clear()

    def _meet(self, host: str) -> None:
        if host and host not in self._met:
            self._met.append(host)
            if host not in self.rests and "" in self.rests:
                self._rested[host] = self.rests[""] + self._delay(host)
            self._cut(host)

    def _rests_until(self, host: str) -> int:
        if "" in self.rests and host not in self._met:
            return self.rests.get(host, self.rests[""] + self._delay(host))
        return self.rests.get(host, self._rested.get(host, 0))

    def _cut(self, host: str) -> None:
        most = self.now + self._delay(host)
        if self._rests_until(host) > most:
            self.rests[host] = most

    def _pause(self, host: str) -> None:
        """A visit of this host is over: the host rests, and none of its tasks stays ready."""
        if self._delay(host):
            if self._rests_until(host) <= self.now:
                self._recall(host)
            self.rests[host] = self.now + self._delay(host)

    def _rest(self, ids: Sequence[str]) -> None:
        if self.usual is not None and ((self.usual[0] and self.usual[1] > 1) or self.rules):
            for task in ids:
                if host := self.host(task):
                    self._meet(host)
                    self._pause(host)

    # ---- the doors

    def _arrive(self, ids: Sequence[str]) -> None:
        free = [task for task in ids if not self.host(task)]
        for task in ids:
            host = self.host(task)
            self._meet(host)
            if host:
                self.waiting.add(task)
                self.lanes.setdefault((host, task), self.now - self._rank(task) * POINT)
        super()._arrive(free)

    def _depart(self, ids: Sequence[str], visited: int, broken: int) -> None:
        for task in ids:
            host = self.host(task)
            self._meet(host)
            if host:
                self.places.discard((host, task))
                if visited:
                    self.visits[host] = self.visits.get(host, 0) + visited
                if broken:
                    self.broken[host] = self.broken.get(host, 0) + broken
                self._pause(host)

    def _withdraw(self, ids: Sequence[str]) -> None:
        for task in ids:
            self._meet(self.host(task))
            self.lanes.pop((self.host(task), task), None)
        self._depart([task for task in ids if task not in self.waiting], 0, 0)

    def _turn(self) -> int:
        moved = 0
        out: list[str] = []
        soonest: float = inf
        for host in self._met:
            rules, busy, lane = self.rules.get(host, Rules()), len(self.placed(host)), self.lane(host)
            free, at, score = self.per_host(host) - busy, max(self._rests_until(host), rules.until), inf
            if rules.budget is not None:
                free = min(free, rules.budget - self.visits.get(host, 0) - busy)
            if rules.flag == "x":
                moved += len(lane)
                self._refuse(host, lane)
            elif free > 0 and at > self.now:
                score = at if lane else inf
            elif free > 0:
                for task in lane[:free]:
                    del self.lanes[host, task]
                    self.places.add((host, task))
                    out.append(task)
            self.turns[host] = score
            soonest = min(soonest, score)
        if soonest < inf:
            self._rouse(int(soonest))
        if out:
            self.todos.update(out)
            self.waiting.difference_update(out)
            self._ring()
        return moved + len(out)

    def _refuse(self, host: str, lane: Sequence[str]) -> None:
        for task in lane:
            del self.lanes[host, task]
            self.waiting.discard(task)
            self.failed.add(task)
            self.errors.add(task)
            self.traces.pop(task, None)
            self.counters["gave_up"] += 1

    def _recall(self, host: str) -> None:
        for task in self.placed(host):
            if task in self.todos:
                self.todos.remove(task)
                self.waiting.add(task)
                self.places.remove((host, task))
                self.lanes[host, task] = 1 - self._rank(task) * POINT

    def _block(self, task: str, ms: int) -> None:
        host = self.host(task)
        rules = self.rules.get(host, Rules())
        if host and rules.flag != "x" and self.now + ms > rules.until:
            self._meet(host)
            self._recall(host)
            self._rule(host, replace(rules, until=self.now + ms, flag="b"))

    def _rule(self, host: str, rules: Rules) -> None:
        self.rules[host] = rules
        if rules == Rules():
            del self.rules[host]
        self._cut(host)

    def _next_turn(self) -> list[int]:
        return [int(at) for at in self.turns.values() if at < inf]

    def _due_turns(self) -> int:
        due = [host for host, at in self.turns.items() if at <= self.now]
        for host in due:
            self._meet(host)
        return self._turn() if due else 0

    def _count_release(self, task: str, most: int, block_ms: int) -> int:
        if block_ms and self.host(task):
            self.blockings[task] = self.blockings.get(task, 0) + 1
            return 0
        return super()._count_release(task, most, block_ms)

    def _clear(self, task: str, *, payload: bool = True) -> None:
        super()._clear(task, payload=payload)
        self.blockings.pop(task, None)

    def _gone(self, ids: Sequence[str], *, forgotten: bool) -> None:
        super()._gone(ids, forgotten=forgotten)
        for task in ids:
            self.groups.pop(task, None)
            if forgotten or not self.keeps_done:
                self.priorities.pop(task, None)

    def _rank_anew(self, task: str, level: int) -> None:
        self.priorities[task] = level

    # ---- tasks in

    def _levels(self, ids: Sequence[str], given: Given) -> list[int | None] | None:
        if (given.priority is None and not given.priorities) or not ids:
            return None
        own, groups = dict(given.priorities), dict(given.groups)
        levels = [own.get(i, given.priority) for i in range(len(ids))]
        for i, task in enumerate(ids):
            host = given.group or groups.get(i) or self.host(task)
            if self.usual is None or (levels[i] is not None and not host):
                raise Refused(task)
        return levels

    def put(self, call: str, age: int, ids: Sequence[str], *, given: Given = NOTHING, **how: Any) -> str:
        """Put or, with a due time, schedule. Raises `Refused`."""
        self._levels(ids, given)
        return super().put(call, age, ids, given=given, **how)

    def ack(
        self,
        call: str,
        pairs: Sequence[Pair],
        put: Sequence[str] = (),
        payloads: Mapping[str, Any] | None = None,
        again_ms: int | None = None,
        given: Given = NOTHING,
        until_ms: int | None = None,
    ) -> str:
        """End leases as done, or for a time; the one of a call that found something puts that. Raises `Refused`."""
        self._levels(put, given)
        return super().ack(call, pairs, put, payloads, again_ms, given, until_ms)

    def _add(
        self, ids: Sequence[str], again: bool, due: int | None, payloads: Mapping[str, Any], given: Given = NOTHING
    ) -> str:
        assert given.rerun is None, "the model of polite queues does not know rerun"
        before, levels = {task: self._found(task) for task in ids}, self._levels(ids, given)
        bodies = {i: payloads.get(task) for i, task in enumerate(ids)} | dict(given.payloads)
        counts, lapsed = self._which_counts(ids, levels, before), self._lapsed(ids, given)
        letters: list[str] = []
        fresh: dict[str, int] = {}
        seen: set[str] = set()
        twice = False
        for i, task in enumerate(ids):
            state = before[task]
            raised = self._raised(ids, i, levels, given) if counts[i] else ""
            if counts[i] and (state is None or (again and state in "df") or task in lapsed or raised == "back"):
                fresh[task] = i
                letters.append("A")
            elif raised:
                letters.append("r")
                self._raise(task, levels[i] if levels else 0, bodies[i], raised)
            else:
                letters.append(state if state and task not in seen else "t" if due is None else "s")
                twice = twice or (task in seen if levels is None else not counts[i])
            if letters[-1] in "Ar":
                seen.add(task)
        groups = dict(given.groups)
        for task, i in fresh.items():
            if before[task]:
                self.done.discard(task)
                self.done_until.pop(task, None)
                self.failed.discard(task)
                self._clear(task, payload=False)
            if bodies[i] is not None:
                self.payload[task] = bodies[i]
            self._grade(task, levels[i] if levels else None, isnew=before[task] is None)
            if group := groups.get(i, given.group):
                self.groups[task] = group
        self._enter(ids, before, fresh, due)
        if self.usual is not None and twice:
            letters = [letter if letter in "Ar" else self.state(ids[i]) or "?" for i, letter in enumerate(letters)]
        return "".join(letters).replace("b", "s")

    def _enter(
        self, ids: Sequence[str], before: Mapping[str, str | None], fresh: Collection[str], due: int | None
    ) -> None:
        if due is not None:
            dues = [task for task in ids if task in fresh or before[task] == "s"]
            self.scheduled |= dict.fromkeys(dues, due)
            if dues:
                self._rouse(due)
        elif fresh:
            self._arrive(list(fresh))
            self._turn()
        if fresh:
            self.counters["put"] += len(fresh)

    @staticmethod
    def _which_counts(
        ids: Sequence[str], levels: Sequence[int | None] | None, before: Mapping[str, str | None]
    ) -> list[bool]:
        """Of a task that is named several times, the first counts, or the first of the highest priority.

        No priority is 0 for a new task, and none at all for one that is there.
        """
        chosen: dict[str, int] = {}
        for i, task in enumerate(ids):
            level = levels[i] if levels else None
            if task not in chosen:
                chosen[task] = i
            elif level is not None:
                other = (levels or [])[chosen[task]]
                none = -math.inf if before[task] else 0
                if level > (none if other is None else other):
                    chosen[task] = i
        return [chosen[task] == i for i, task in enumerate(ids)]

    def _raised(self, ids: Sequence[str], i: int, levels: Sequence[int | None] | None, given: Given) -> str:
        task = ids[i]
        level, state = levels[i] if levels else None, self._found(task)
        if level is None or level <= self._rank(task):
            return ""
        improves = given.improve is not None and (given.improve == () or any(ids[at] == task for at in given.improve))
        if state in ("t", "w", "s"):
            return "up"
        if improves and state == "p" and (task not in self.marks or level > self.marks[task][0]):
            return "marked"
        return "back" if improves and state == "d" else ""

    def _raise(self, task: str, level: int | None, payload: Any, how: str) -> None:
        assert level is not None
        if how == "marked":
            self.marks[task] = (level, payload)
            return
        less = (level - self._rank(task)) * POINT
        self.priorities[task] = level
        if payload is not None:
            self.payload[task] = payload
        if task in self.waiting:
            self.lanes[self.host(task), task] -= less

    def _grade(self, task: str, level: int | None, *, isnew: bool) -> None:
        if self.usual is None:
            return
        if level:
            self.priorities[task] = level
        elif level is not None or isnew:
            self.priorities.pop(task, None)

    # ---- rules

    def set_host(self, host: str, rules: Sequence[tuple[str, str]]) -> tuple[Any, ...] | None:
        """Set rules of a host, as `host.lua` takes them; tell what is known of the host; None without politeness."""
        self._begin()
        if self.usual is None:
            return None
        if rules:
            self._meet(host)
            now = self.rules.get(host, Rules())
            for rule, value in rules:
                number = int(value) if value.isdigit() else None
                if rule == "delay":
                    now = replace(now, delay=number)
                elif rule == "per_host":
                    now = replace(now, per_host=number)
                elif rule == "budget":
                    now = replace(now, budget=number)
                elif rule == "block" and now.flag != "x":
                    until = int(value[1:]) if value.startswith("@") else self.now + int(value)
                    now = replace(now, until=until, flag="b")
                elif rule == "ban":
                    now = replace(now, flag="x")
                elif rule == "unblock":
                    now = replace(now, flag="-", until=0)
            self._rule(host, now)
            self._recall(host)
            self._turn()
        own = self.rules.get(host, Rules())
        following = next(iter(self.lane(host)), None)
        level = None if following is None else self.priorities.get(following)
        return (
            host, len(self.lane(host)), self.placed(host)[:20], self.turns.get(host),
            self._delay(host), self.per_host(host), -1 if own.budget is None else own.budget,
            self.visits.get(host, 0), self.broken.get(host, 0),
            min(self._rests_until(host), self.now + self._delay(host)), own.until, own.flag, len(self.placed(host)),
            following, None if level is None else str(level),
        )  # fmt: skip

    def configure_politeness(self, delay: int = 0, per_host: int = 0) -> int:
        """Begin or change politeness, or end it, with no visits of a host at once; give the reply of `configure`."""
        was = (*self.usual, self.ending) if self.usual is not None else None
        wanted = (delay, per_host, False) if per_host else (0, 1_000_000, True)
        if was is None and not per_host and not self.waiting:
            return 1
        # the word 'off' is never what stands there: ending begins anew
        if was == wanted and per_host:
            return 2 if self.converting else 1
        ended = self.counters["claimed"] + self.counters["pulled"] > len(self.in_progress)
        if per_host and (was is None or self.ending) and ended:
            self.rests[""] = self.now
        self.usual, self.ending, self.converting = wanted[:2], wanted[2], "p0"
        return 2

    def convert(self) -> str:
        """Bring the next part of the queue in line with its politeness; give where it goes on."""
        self._begin()
        if self.usual is None or (not self.converting and not self.ending):
            return "end"
        if self.ending:
            return self._end_politeness()
        stage = self.converting[0]
        if stage == "h":
            for host in list(self.turns):
                self._meet(host)
                if len(self.placed(host)) > self.per_host(host):
                    self._recall(host)
            self._turn()
            self.converting = ""
            return "end"
        some: list[str] = []
        for task in sorted(self.todos if stage == "t" else self.in_progress):
            host = self.host(task)
            self._meet(host)
            if host and (host, task) not in self.places:
                if stage == "t":
                    self.todos.remove(task)
                    some.append(task)
                else:
                    self.places.add((host, task))
        self._arrive(some)
        self._turn()
        self.converting = {"p": "t0", "t": "q0", "q": "h0"}[stage]
        return self.converting

    def _end_politeness(self) -> str:
        if self.waiting:
            self.todos |= self.waiting
            self.waiting.clear()
            self.lanes.clear()
            self._ring()
            return "p0"
        self.usual, self.ending, self.converting = None, False, ""
        for each in (self.places, self.turns, self.visits, self.broken, self.rests, self.rules):
            each.clear()
        return "end"

    # ---- what must hold

    def violations(self) -> list[str]:
        """Name the invariants that this state breaks, those of hosts too (I11)."""
        found = super().violations()
        placed = Counter(task for _, task in self.lanes)
        if placed != Counter(self.waiting) or any(self.host(task) != host for host, task in self.lanes):
            found.append(f"I11: waiting {self.waiting}, and lanes {self.lanes}")
        if self.usual is None or self.converting:
            return found
        out = {(self.host(task), task) for task in self.todos | self.in_progress if self.host(task)}
        if out != self.places:
            found.append(f"I11: places {self.places}, and ready or in progress {out}")
        for host in {*self.turns, *(host for host, _ in self.lanes)}:
            ready = [task for task in self.placed(host) if task in self.todos]
            if ready and self._delay(host) and self.rests.get(host, 0) > self.now:
                found.append(f"I11: {host} rests until {self.rests[host]}, it is {self.now}, and {ready} are ready")
            held, lane, turn = self.placed(host), self.lane(host), self.turns.get(host)
            rules, most = self.rules.get(host, Rules()), self.per_host(host)
            if rules.budget is not None:
                most = min(most, rules.budget - self.visits.get(host, 0))
            if len(held) > most and not self.in_progress.issuperset(held):
                found.append(f"I11: {len(held)} visits of {host}, {most} are allowed: {held}")
            if lane and (turn is None or (turn == inf and len(held) < most and rules.flag != "x")):
                found.append(f"I11: {host} has tasks and room, and no turn: {lane}")
            if lane and rules.flag == "x":
                found.append(f"I11: tasks wait for {host}, which is banned: {lane}")
            if turn is not None and turn < inf and not lane:
                found.append(f"I11: {host} has a turn at {turn}, and nothing that waits")
        return found
