"""The hosts of a polite queue as a model: their turns, rests and rules, and the tasks that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from tests.rig.invariants import MOST_RESTING
from tests.rig.model_state import QueueState, Rules

POINT = 2**41
"""How far one point of priority goes before the time, ms."""


def host_of(task: str) -> str:
    """Give the host that the name of a task tells, '' for a task that has none."""
    return task.split("/")[2] if task.startswith("http://") else ""


class HostModel(QueueState):
    # ---- hosts

    def host(self, task: str) -> str:
        """Give the host of a task, '' where the task does not wait for one."""
        return "" if self.usual is None else self.groups.get(task) or host_of(task)

    def _delay(self, host: str) -> int:
        own = self.rules.get(host, Rules()).delay
        assert self.usual is not None
        return self.usual[0] if own is None else own

    def per_host(self, host: str) -> int:
        own = self.rules.get(host, Rules()).per_host
        assert self.usual is not None
        places = self.usual[1] if own is None else own
        return min(places, MOST_RESTING) if self._delay(host) else places

    def placed(self, host: str) -> list[str]:
        return sorted(task for name, task in self.places if name == host)

    def lane(self, host: str) -> list[str]:
        """Give the tasks that wait for a host, the next one first."""
        return [task for _, task in sorted((score, task) for (name, task), score in self.lanes.items() if name == host)]

    def _rank(self, task: str) -> int:
        return self.priorities.get(task, 0)

    def _begin(self) -> None:
        """A script begins."""
        self._met.clear()
        self._rested.clear()

    def _meet(self, host: str) -> None:
        if host and host not in self._met:
            if (until := self._rests_until(host)) != self.rests.get(host, 0):
                self._rested[host] = until
            self._met.append(host)
            self._cut(host)

    def _rests_until(self, host: str) -> int:
        if host in self._met:
            return self._rested.get(host, self.rests.get(host, 0))
        until = self.rests.get(host)
        least = self.rests[""] + self._delay(host) if "" in self.rests else 0
        return least if until is None or (until < least and self.rules.get(host, Rules()).delay is None) else until

    def _rest_until(self, host: str, at: int) -> None:
        self.rests[host] = at
        self._rested.pop(host, None)

    def _cut(self, host: str) -> None:
        most = self.now + self._delay(host)
        if self._rests_until(host) > most:
            self._rest_until(host, most)

    def _pause(self, host: str) -> None:
        """A visit of this host is over: the host rests, and none of its tasks stays ready."""
        if self._delay(host):
            if self._rests_until(host) <= self.now:
                self._recall(host)
            self._rest_until(host, self.now + self._delay(host))

    def _rest(self, ids: Sequence[str]) -> None:
        """The visits of these tasks are about to end, and other tasks become ready first."""
        if self.usual is not None and ((self.usual[0] and self.usual[1] > 1) or self.rules):
            for task in ids:
                if host := self.host(task):
                    self._meet(host)
                    self._pause(host)

    # ---- the doors

    def _arrive(self, ids: Sequence[str]) -> None:
        """Make tasks ready that are in no state now, or let them wait for their hosts."""
        free = [task for task in ids if not self.host(task)]
        for task in ids:
            host = self.host(task)
            self._meet(host)
            if host:
                self.waiting.add(task)
                self.lanes.setdefault((host, task), self.now - self._rank(task) * POINT)
        self.todos.update(free)
        if free:
            self._ring()

    def _depart(self, ids: Sequence[str], visited: int, broken: int) -> None:
        """The visits of these tasks are over, or will not be made."""
        for task in ids:
            host = self.host(task)
            self._meet(host)
            if host:
                self.places.discard((host, task))
                if visited:
                    self.visits[host] = self.visits.get(host, 0) + visited
                elif not self.visits.get(host):
                    self._rest_until(host, self._rests_until(host) or self.now)
                if broken:
                    self.broken[host] = self.broken.get(host, 0) + broken
                self._pause(host)

    def _withdraw(self, ids: Sequence[str]) -> None:
        """Let tasks, which are ready, in progress or waiting, give up their places."""
        for task in ids:
            self._meet(self.host(task))
            self.lanes.pop((self.host(task), task), None)
        self._depart([task for task in ids if task not in self.waiting], 0, 0)

    def _turn(self) -> int:
        """Give their turns to the hosts that this script has met; give how many tasks have moved."""
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
        before = self._delay(host)
        self.rules[host] = rules
        if rules == Rules():
            del self.rules[host]
        raised = self._delay(host) - before
        if raised > 0 and (self.visits.get(host, 0) > 0 or host in self.rests):
            until = self._rests_until(host) if before else 0
            self._rest_until(host, (until or self.now + before) + raised)
        self._cut(host)

    def _next_turn(self) -> list[int]:
        return [int(at) for at in self.turns.values() if at < inf]

    def _due_turns(self) -> int:
        due = [host for host, at in self.turns.items() if at <= self.now]
        for host in due:
            self._meet(host)
        return self._turn() if due else 0

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
        if per_host and (was is None or self.ending or delay > was[0]) and ended:
            self.rests[""] = self.now
        self.usual, self.ending, self.converting, self.was_polite = wanted[:2], wanted[2], "p0", True
        self.exists = True
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
                if len(self.placed(host)) > self.per_host(host) or self._rests_until(host) > self.now:
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

    def wrong_hosts(self) -> list[str]:
        """Name what hosts, and the tasks that wait for them or visit them, do not agree on (I11)."""
        found: list[str] = []
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
