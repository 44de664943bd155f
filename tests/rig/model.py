"""The queue as a model: plain sets and dictionaries, one method a script, its reply as the script gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import inf
from typing import Any

from tests.rig.batch_model import WAITS, BatchModel
from tests.rig.host_model import POINT, HostModel
from tests.rig.model_state import Pair

SUSPECT = 2


class Late(Exception):
    """A claim arrived after its caller gave up."""


class NoHost(Exception):
    """A put gave a priority where none can be."""


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a put; pairs and positions are by the place of a task in the call, from 0."""

    payloads: tuple[tuple[int, Any], ...] = ()
    group: str = ""
    groups: tuple[tuple[int, str], ...] = ()
    priority: int | None = None
    priorities: tuple[tuple[int, int], ...] = ()
    improve: tuple[int, ...] | None = None
    """The tasks that may run once more; () for all."""
    unique_ms: int | None = None
    """Failed tasks come back whose last error is so old."""
    rerun: tuple[int, ...] | None = None
    """The tasks of which a run begins after the put; () for all."""


NOTHING = Given()


class Model(HostModel, BatchModel):
    # ---- runs that follow, and ends

    def _renew(self, ids: Sequence[str]) -> list[str]:
        """Give those tasks the priority and the payload of their next run; give the ones that were marked for one."""
        marked = [task for task in dict.fromkeys(ids) if task in self.marks]
        for task in marked:
            level, payload = self.marks.pop(task)
            if self.was_polite:
                self.priorities[task] = level
            if payload is not None:
                self.payload[task] = payload
        return marked

    def _gone(self, ids: Sequence[str], *, forgotten: bool) -> None:
        """These tasks are done, or in no state at all."""
        for task in ids:
            self.groups.pop(task, None)
            if forgotten:
                self.marks.pop(task, None)
            if forgotten or not self.keeps_done:
                self.priorities.pop(task, None)

    # ---- tasks in

    def put(
        self,
        call: str,
        age: int,
        ids: Sequence[str],
        *,
        again: bool = False,
        due: int | None = None,
        payloads: Mapping[str, Any] | None = None,
        given: Given = NOTHING,
        batch: str = "",
    ) -> str:
        """Put or, with a due time, schedule; payloads are by id, or by place in `given`.

        Raises `Refused` and `NoHost`.
        """
        self._begin()
        self._levels(ids, given)
        if batch:
            self._may_join(batch, ids)
        if age > 0 and self.was_called(call):
            self.calls[call] = self.now
            return "".join(self.state(task) or "A" for task in ids)
        letters = self._add(ids, again, due, payloads or {}, given)
        if batch:
            self._join(batch, ids)
        self._remember(call)
        return letters

    def _set_aside(self, task: str) -> None:
        self._add([task], True, WAITS, {})

    def _lapsed(self, ids: Iterable[str], given: Given) -> set[str]:
        """Say which of these tasks do not block their ids any more."""
        found = {task for task in ids if self.done_until.get(task, self.now + 1) <= self.now}
        if given.unique_ms is not None:
            old = self.now - given.unique_ms
            found |= {task for task in ids if task in self.failed and self.error_at.get(task, 0) <= old}
        return found

    def _add(
        self, ids: Sequence[str], again: bool, due: int | None, payloads: Mapping[str, Any], given: Given = NOTHING
    ) -> str:
        before, levels = {task: self._found(task) for task in ids}, self._levels(ids, given)
        bodies = {i: payloads.get(task) for i, task in enumerate(ids)} | dict(given.payloads)
        lapsed, newest = self._lapsed(ids, given), _newest(ids, given)
        if not any(before.values()) and all(body is None for body in bodies.values()):
            newest = {}  # all are new, and alike: the first place of an id is as good as the last
        counts = self._which_counts(ids, levels, before) | newest
        letters: list[str] = []
        fresh: dict[str, int] = {}
        seen: set[str] = set()
        twice = False
        for i, task in enumerate(ids):
            state, anew, is_it = before[task], newest.get(task) == i, counts[task] == i
            raised = self._raised(ids, i, levels, given) if is_it else ""
            back = state is None or (again and state in "df") or task in lapsed or raised == "back"
            if is_it and (back or (anew and state == "d")):
                fresh[task] = i
                letters.append("A")
            elif raised:
                letters.append("r")
                self._raise(task, levels[i] if levels else 0, bodies[i], raised)
            elif anew and state not in (None, "f", "b"):
                letters.append(self._run_anew(task, state, bodies[i]))
            else:
                letters.append(state if state and task not in seen else "t" if due is None else "s")
                twice = twice or (task in seen if levels is None else not is_it)
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
            self.exists = True

    @staticmethod
    def _which_counts(
        ids: Sequence[str], levels: Sequence[int | None] | None, before: Mapping[str, str | None]
    ) -> dict[str, int]:
        """Give the place that counts of each task: the first, or the first of the highest priority.

        No priority is 0 for a new task, and none at all for one that is there.
        """
        chosen: dict[str, int] = {}
        for i, task in enumerate(ids):
            level = levels[i] if levels else None
            if task not in chosen:
                chosen[task] = i
            elif level is not None:
                other = (levels or [])[chosen[task]]
                none = -inf if before[task] else 0
                if level > (none if other is None else other):
                    chosen[task] = i
        return chosen

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

    def _levels(self, ids: Sequence[str], given: Given) -> list[int | None] | None:
        if (given.priority is None and not given.priorities) or not ids:
            return None
        own, groups = dict(given.priorities), dict(given.groups)
        levels = [own.get(i, given.priority) for i in range(len(ids))]
        for i, task in enumerate(ids):
            host = given.group or groups.get(i) or self.host(task)
            if self.usual is None or (levels[i] is not None and not host):
                raise NoHost(task)
        return levels

    def _run_anew(self, task: str, state: str, payload: Any) -> str:
        """A put with rerun has found this task: a run with this payload is to follow; give the letter."""
        if state == "p":
            level, before = self.marks.get(task, (0, None))
            self.marks[task] = level, before if payload is None else payload
            return "n"
        if payload is not None:
            self.payload[task] = payload
        return state

    def _clear(self, task: str, *, payload: bool = True) -> None:
        self.attempts.pop(task, None)
        self.crashes.pop(task, None)
        self.errors.discard(task)
        self.error_at.pop(task, None)
        self.traces.pop(task, None)
        self.releases.pop(task, None)
        self.blockings.pop(task, None)
        if payload:
            self.payload.pop(task, None)

    def _drop(self, task: str) -> None:
        self.leases.pop(task, None)
        self.owners.pop(task, None)
        self.locks.pop(task, None)
        self.runtime.pop(task, None)
        self.cancels.pop(task, None)
        self.progress.discard(task)

    def _stop(self, ids: Sequence[str]) -> None:
        for task in ids:
            self.failed.add(task)
            self._keep_error(task)
        if ids:
            self.counters["cancelled"] += len(ids)
            self._tell_ended(ids)

    # ---- leases

    def picks(self, n: int, share: int = 1) -> list[tuple[str, ...]]:
        """Give all sets of tasks that a claim may take now."""
        if self.paused or not self.todos:
            return [()]
        ready = sorted(self.todos)
        n = min(n, max(1, -(-len(ready) // share)), len(ready))
        suspects = {task for task in ready if self.crashes.get(task, 0) >= SUSPECT}
        if not suspects:
            return list(combinations(ready, n))
        found: set[tuple[str, ...]] = set()
        for drawn in permutations(ready, n):
            if drawn[0] in suspects:
                found.add(drawn[:1])
            else:
                found.add(tuple(sorted(task for task in drawn if task not in suspects)))
        return sorted(found)

    def replayed(self, token: str, age: int, lease_ms: int) -> list[str]:
        """Give the tasks that an earlier sending of this claim took."""
        low, high = self.now - age - 5000 + lease_ms, self.now + lease_ms + 1
        found = [(at, task) for task, at in self.leases.items() if low <= at <= high and self.owners.get(task) == token]
        return [task for _, task in sorted(found)] if age > 0 else []

    def claim(
        self, token: str, age: int, lease_ms: int, picked: Sequence[str], *, runtime_ms: int = 0, not_after: int = 0
    ) -> tuple[Any, ...]:
        """Lease `picked`, one of `picks()`; or give what the call took before."""
        if not_after and self.now > not_after:
            raise Late
        if runtime_ms:
            lease_ms = min(lease_ms, runtime_ms)
        deadline = self.now + lease_ms
        ids = self.replayed(token, age, lease_ms)
        if ids:
            deadline = self.leases[ids[0]]
        else:
            ids = list(picked)
            for task in ids:
                self.todos.remove(task)
                self.in_progress.add(task)
                self.leases[task] = deadline
                self.owners[task] = token
                self.locks[task] = (token, deadline)
                if runtime_ms:
                    self.runtime[task] = self.now + runtime_ms
            if ids:
                self.counters["claimed"] += len(ids)
                self._rouse(deadline)
                if self.todos:
                    self._ring()
        if not ids:
            events = [min(each.values()) for each in (self.leases, self.scheduled) if each]
            at = min([*events, *self._next_turn()], default=0)
            if max(self.leases.values(), default=0) > self.now + (self.lease_ms or lease_ms) + 1000:
                at = self.now
            return self.now, at, int(self.paused)
        first = max(self.fence + 1, self.now * 1000)
        self.fence = first + len(ids) - 1
        self.lease_ms = max(self.lease_ms, lease_ms)
        if self.known_run is None:
            self.known_run = self.run
        return self.now, deadline, first, tuple(ids)

    def extend(self, pairs: Sequence[Pair], lease_ms: int) -> tuple[int, int, str]:
        letters, first = "", self.now + lease_ms
        extended = False
        for pair in pairs:
            task, token = pair
            left = min(lease_ms, self.runtime.get(task, self.now + lease_ms) - self.now)
            if not self.holds(pair):
                letters += "L"
            elif left <= 0:
                letters += "X"
            else:
                letters += "c" if task in self.cancels else "O"
                extended = True
                self.leases[task] = self.now + left
                self.locks[task] = (token, self.now + left)
                first = min(first, self.now + left)
        if extended:
            self.lease_ms = max(self.lease_ms, lease_ms)
            self._rouse(first)
        return self.now, first, letters

    def note(self, pair: Pair) -> str:
        if not self.holds(pair):
            return "L"
        self.progress.add(pair[0])
        return "c" if pair[0] in self.cancels else "O"

    def cancel(self, call: str, ids: Sequence[str], by: str) -> str:
        """Cancel tasks: what waits goes to failed, and what is in progress is marked."""
        self._begin()
        states = {task: self.state(task) for task in ids}
        gone = [task for task, state in states.items() if state in ("t", "w", "s")]
        running = [task for task, state in states.items() if state == "p"]
        if gone or running:
            self._remember(call)
        self._stop(gone)
        self._withdraw([task for task in gone if states[task] != "s"])
        self.todos.difference_update(gone)
        for task in gone:
            self.scheduled.pop(task, None)
        for task in running:
            self.marks.pop(task, None)
        if running:
            fresh = [task for task in running if task not in self.cancels]
            self.cancels.update(dict.fromkeys(fresh, by))
            if fresh:
                self.counters["cancelling"] += len(fresh)
            self._rouse(self.now)
        letters = {"t": "c", "w": "c", "s": "c", "p": "m", None: "u"}
        return "".join(letters.get(states[task], str(states[task])) for task in ids)

    def _end(self, call: str, pairs: Sequence[Pair], counter: str) -> tuple[str, list[str], set[str]]:
        ended: list[str] = []
        letters = ""
        held = [self.holds(pair) for pair in pairs]
        for i, (task, _) in enumerate(pairs):
            if held[i] and task in self.in_progress:
                self.in_progress.remove(task)
                ended.append(task)
                letters += "O"
            elif self.was_called(call) or self.was_called(f"{call}:{i}"):
                letters += "R"
            else:
                letters += "L"
        # whoever puts a task with rerun takes the cancel back
        cancelled = (self.cancels.keys() & ended) - self.marks.keys()
        for task in ended:
            self._drop(task)
        if ended:
            self.counters[counter] += len(ended)
            if len(ended) == len(pairs):
                self._remember(call)
            else:
                for i, letter in enumerate(letters):
                    if letter == "O":
                        self._remember(f"{call}:{i}")
        return letters, ended, cancelled

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
        """End leases as done, or for a time; the one of a call that found something puts that.

        With `until_ms`, done keeps the tasks so long, whatever the queue keeps. Raises `NoHost`.
        """
        self._begin()
        self._levels(put, given)
        task, _ = pairs[0]
        found = put if self.holds(pairs[0]) and task in self.in_progress else ()
        # without the memory of done tasks, a task can put itself again only when its run has ended
        itself = not self.keeps_done and again_ms is None and task in found and task not in _newest(found, given)
        if found:
            self._rest([ended for ended, token in pairs if self.holds((ended, token)) and ended in self.in_progress])
        if found and not itself:
            self._add(found, False, None, payloads or {}, given)
        letters, ended, cancelled = self._end(call, pairs, "acked")
        anew = self._renew(ended)
        stopped = [task for task in ended if task not in anew and again_ms is not None and task in cancelled]
        ended = [task for task in ended if task not in anew and task not in stopped]
        if not self.keeps_done:
            self.lasted += len(anew) + len(stopped)
        if stopped:
            self._stop(stopped)
            self._depart(stopped, 1, 0)
            self._turn()
        if ended and again_ms is not None:
            self._rouse(self.now + again_ms)
        if anew:
            self.counters["reruns"] += len(anew)
            for task in anew:
                self._clear(task, payload=False)
            self._depart(anew, 1, 0)
            self._arrive(anew)
            if not ended:
                self._turn()
        if ended:
            self._finish(ended, again_ms, until_ms)
        if itself:
            self._add(found, False, None, payloads or {}, given)
        return letters

    def _finish(self, ended: Sequence[str], again_ms: int | None, until_ms: int | None = None) -> None:
        for task in ended:
            self._clear(task, payload=again_ms is None)
            if again_ms is not None:
                self.scheduled[task] = self.now + again_ms
            elif until_ms is not None:
                self.done.add(task)
                self.done_until[task] = self.now + until_ms
                self.lasted += not self.keeps_done
            elif self.keeps_done:
                self.done.add(task)
        if again_ms is not None:
            self.counters["again"] += len(ended)
        else:
            self._tell_ended(ended, well=True)
        self._depart(ended, 1, 0)
        self._turn()
        if again_ms is None:
            self._gone(ended, forgotten=False)

    def release(self, call: str, pairs: Sequence[Pair], delay_ms: int = 0, most: int = 0, block_ms: int = 0) -> str:
        """Give leases back; with `most`, as handlers do, who may not do so again and again."""
        self._begin()
        letters, ended, cancelled = self._end(call, pairs, "released")
        anew = self._renew(ended)
        back: list[str] = []
        spent: list[str] = []
        dues: list[int] = []
        stopped = [task for task in ended if task in cancelled]

        def tell(task: str, letter: str) -> str:
            at = next(i for i, pair in enumerate(pairs) if pair[0] == task and letters[i] == "O")
            return letters[:at] + letter + letters[at + 1 :]

        for task in ended:
            if task in cancelled:
                letters = tell(task, "c")
                continue
            wait = delay_ms
            count = self._count_release(task, most, block_ms)
            if count > 1:
                wait = max(delay_ms, min(60_000, 50 * 2 ** (count - 2)))
            if count and count >= most and task in anew:
                self._clear(task, payload=False)
                self.counters["reruns"] += 1
                back.append(task)
            elif count and count >= most:
                self.failed.add(task)
                self._keep_error(task)
                self.counters["gave_up"] += 1
                self.spent += 1
                spent.append(task)
                letters = tell(task, "f")
            elif wait:
                self.scheduled[task] = self.now + wait
                dues.append(self.now + wait)
            else:
                back.append(task)
        if dues:
            self._rouse(min(dues))
        self._stop(stopped)
        self._tell_ended(spent)
        self._depart(ended, 0, 0)
        self._arrive(back)
        if block_ms:
            for task in ended:
                self._block(task, block_ms)
        self._turn()
        return letters

    def _count_release(self, task: str, most: int, block_ms: int) -> int:
        """Count a release, if releases are counted; give how many there were."""
        if block_ms and self.host(task):
            self.blockings[task] = self.blockings.get(task, 0) + 1
            return 0
        if not most:
            return 0
        count = self.releases[task] = self.releases.get(task, 0) + 1
        return count

    def fail(
        self,
        call: str,
        pairs: Sequence[Pair],
        retry_ms: int | Sequence[int],
        trace: str = "",
        blocks: Mapping[int, int] | None = None,
    ) -> str:
        """Fail leases: -1 gives up; one delay for all of them, or one for each; `blocks`: ms, by place of a lease."""
        self._begin()
        letters, ended, cancelled = self._end(call, pairs, "failed")
        delays = [retry_ms] * len(pairs) if isinstance(retry_ms, int) else retry_ms
        at = {pair[0]: i for i, (pair, letter) in enumerate(zip(pairs, letters, strict=True)) if letter == "O"}
        anew = self._renew(ended)
        spent: list[str] = []
        stopped: list[str] = []
        for task in ended:
            self.attempts[task] = self.attempts.get(task, 0) + 1
            self._keep_error(task, trace)
            if task in anew:
                self._clear(task, payload=False)
            elif delays[at[task]] < 0:
                self.failed.add(task)
                spent.append(task)
            elif task in cancelled:
                stopped.append(task)
            else:
                self.scheduled[task] = self.now + delays[at[task]]
                self._rouse(self.now + delays[at[task]])
        if anew:
            self.counters["reruns"] += len(anew)
        self._stop(stopped)
        self._depart(ended, 1, 1)
        for task in ended:
            if blocks and at[task] in blocks:
                self._block(task, blocks[at[task]])
        self._arrive(anew)
        self._turn()
        if spent:
            self.counters["gave_up"] += len(spent)
            self._tell_ended(spent)
        return letters

    def _crash(self, ids: Sequence[str]) -> tuple[int, list[str]]:
        """Take tasks back; give how many are ready again or were cancelled, and those that crashed too often."""
        back: list[str] = []
        given_up: list[str] = []
        stopped: list[str] = []
        cancelled = (self.cancels.keys() & ids) - self.marks.keys()
        anew = self._renew(ids)
        for task in ids:
            if task in self.in_progress:
                self.in_progress.remove(task)
                count = self.crashes[task] = self.crashes.get(task, 0) + 1
                self._keep_error(task)
                if task in cancelled:
                    stopped.append(task)
                elif count >= self.max_crashes and task in anew:
                    self._clear(task, payload=False)
                    self.counters["reruns"] += 1
                    back.append(task)
                elif count >= self.max_crashes:
                    self.failed.add(task)
                    given_up.append(task)
                else:
                    back.append(task)
            self._drop(task)
        self._depart(ids, 0, 1)
        self._arrive(back)
        self._turn()
        self._stop(stopped)
        self.unlogged += len(stopped)
        if given_up:
            self.counters["gave_up"] += len(given_up)
            self._tell_ended(given_up)
        return len(back) + len(stopped), given_up

    def crash(self, pairs: Sequence[Pair]) -> str:
        """Take back what a dead process was running, as its supervisor says."""
        self._begin()
        held = [self.holds(pair) for pair in pairs]
        dead = [task for (task, _), yes in zip(pairs, held, strict=True) if yes]
        back, given_up = self._crash(dead) if dead else (0, [])
        if dead:
            self.counters["crashed"] += back + len(given_up)
        return "".join(
            "L" if not yes else "f" if task in given_up else "O" for (task, _), yes in zip(pairs, held, strict=True)
        )

    # ---- the cleaner's

    def requeue_expired(self, expected: int = 0) -> tuple[int, int, int]:
        """Take back tasks whose lease ran out."""
        self._begin()
        longest = self.lease_ms
        if longest:
            for task, at in self.leases.items():
                if at > self.now + longest + 1000:
                    self.leases[task] = self.now + longest
        ids = [task for task, at in self.leases.items() if at <= self.now]
        jumped = longest > 0 and expected > 0 and self.now - expected > max(500, min(2000, longest / 2))
        if not ids and not (jumped and self.leases):
            return self.now, 0, 0
        self._note_run(longest, jumped=jumped)
        if self.now < self.grace_until:
            # every cleaner looks again when it ends
            known, self.wake_at = self.wake_at, 0
            self._rouse(self.grace_until, known)
            return self.now, 0, 0
        back, given_up = self._crash(ids)
        self.counters["expired"] += back + len(given_up)
        return self.now, back, len(given_up)

    def promote_due(self) -> tuple[int, int]:
        self._begin()
        due = [task for task, at in self.scheduled.items() if at <= self.now]
        for task in due:
            del self.scheduled[task]
        if due:
            self.counters["promoted"] += len(due)
            self._arrive(due)
            self._turn()
        return self.now, len(due) + self._due_turns()

    def plan(self, longest_ms: int) -> tuple[int, int]:
        """Say until when a cleaner may sleep, and note that it looks again by then."""
        self._note_run(self.lease_ms, jumped=False)
        at = self.now + longest_ms
        if self.leases:
            deadline = min(self.leases.values())
            at = min(at, max(deadline, self.grace_until) if self.now < self.grace_until else deadline)
            if self.lease_ms and max(self.leases.values()) > self.now + self.lease_ms + 1000:
                at = self.now
        at = min([at, *self.scheduled.values(), *self._next_turn()])
        if self.exists and (self.wake_at < at or self.wake_at > self.now + 60_000):
            self.wake_at = at
        return self.now, at

    def _note_run(self, longest: int, *, jumped: bool) -> None:
        """Begin a grace after a restart, a failover or a jump of the clock; it never becomes longer by a step back."""
        if jumped or (self.known_run is not None and self.known_run != self.run):
            self.grace_until = self.now + min(longest, 60_000)
            self.known_run = self.run
            self.counters["clock_jumps" if jumped else "restarts"] += 1
        self.grace_until = min(self.grace_until, self.now + min(longest, 60_000))

    def prune(self) -> int:
        over = [task for task, until in self.done_until.items() if until <= self.now]
        for task in over:
            del self.done_until[task]
            self.done.discard(task)
        if over:
            self.counters["pruned"] += len(over)
        return len(over)

    # ---- the operator's

    def forget(self, ids: Sequence[str]) -> str:
        self._begin()
        letters = "".join(self.state(task) or "u" for task in ids)
        count = sum(self.state(task) is not None for task in set(ids))
        self._withdraw([task for task in ids if self.state(task) in ("t", "p", "w")])
        for task in ids:
            for _, where in self._states():
                if isinstance(where, set):
                    where.discard(task)
            self.scheduled.pop(task, None)
            self.done_until.pop(task, None)
            self._clear(task)
            self._drop(task)
        self._turn()
        self._gone(ids, forgotten=True)
        self._tell_ended(ids)
        if count:
            self.counters["forgotten"] += count
        return letters

    def retry_failed(self, ids: Sequence[str]) -> int:
        self._begin()
        moved = [task for task in dict.fromkeys(ids or sorted(self.failed)) if task in self.failed]
        for task in moved:
            self.failed.remove(task)
            self._clear(task, payload=False)
        if moved:
            self.counters["retried"] += len(moved)
            self._arrive(moved)
            self._turn()
        return len(moved)

    def pull(self, picked: Sequence[str]) -> tuple[str, ...]:
        self._begin()
        if self.paused or not picked:
            return ()
        for task in picked:
            self.todos.remove(task)
            self._clear(task)
            if self.keeps_done:
                self.done.add(task)
        self.counters["pulled"] += len(picked)
        self._depart(picked, 1, 0)
        self._turn()
        self._gone(picked, forgotten=False)
        self._tell_ended(picked, well=True)
        return tuple(picked)

    def drained(self, before: float = float("inf")) -> int:
        """Say whether nothing is ready, held, or scheduled before a time."""
        waiting = any(at < before for at in self.scheduled.values())
        return int(not (self.todos or self.in_progress or waiting))

    # ---- what must hold

    def violations(self) -> list[str]:
        """Name the invariants of the design that this state breaks (I1, I6, I7, I9)."""
        found: list[str] = []
        where = Counter(task for _, ids in self._states() for task in ids)
        twice = [task for task, count in where.items() if count > 1]
        if twice:
            found.append(f"I1: in more than one state: {twice}")
        if not self.in_progress == self.leases.keys() == self.owners.keys():
            found.append(f"I6: in_progress {self.in_progress}, leases {self.leases}, owners {self.owners} differ")
        for task, (token, until) in self.locks.items():
            if self.owners.get(task) != token and until >= self.now:
                found.append(f"I6: the lock on {task} names {token}, its owner is {self.owners.get(task)}")
        for task, deadline in self.leases.items():
            if deadline > self.now and self.locks.get(task, ("", 0))[1] < self.now:
                found.append(f"I6: nobody can see the lease on {task}")
        if not self.marks.keys() <= self.in_progress:
            found.append(f"marked, and not in progress: {self.marks.keys() - self.in_progress}")
        count = self.counters
        ended = sum(count[what] for what in ("acked", "failed", "released", "expired", "crashed", "calls_expired"))
        if not 0 <= count["claimed"] - ended - len(self.in_progress) <= count["forgotten"]:
            found.append(f"I7: leases ended without a cause: {dict(count)}, {len(self.in_progress)} are held")
        left = count["forgotten"] + (0 if self.keeps_done else count["acked"] - count["again"] + count["pulled"])
        left -= self.lasted
        again = count["acked"] + count["pulled"] + count["gave_up"] + count["cancelled"]  # each may be put again
        known = len(where)
        if not count["put"] - left - again <= known <= count["put"] - left + count["adopted"]:
            found.append(f"I9: {known} tasks are known, but the counters say {dict(count)}")
        return found + self.wrong_batches() + self.wrong_hosts()


def _newest(ids: Sequence[str], given: Given) -> dict[str, int]:
    """Give of each task with rerun the place that counts: the last one that says so."""
    if given.rerun is None:
        return {}
    return {ids[i]: i for i in given.rerun or range(len(ids))}
