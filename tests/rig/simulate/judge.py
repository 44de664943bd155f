"""The rules that hold at each moment of a run, and at its end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.rig import invariants
from tests.rig.simulate.apps import RETURNS
from tests.rig.simulate.plan import AFTER, ENDS_WELL, HOPELESS, RUDE, PlannedTask
from tests.rig.simulate.witness import COUNTED
from timeoutq.client.shards.route import stem, tags
from timeoutq.worker.processes.roster import PATIENCE

if TYPE_CHECKING:
    from tests.rig.simulate.world import Simulation

LOOK_EVERY = 0.5
AT_ONCE = 0.4
"""Seconds within which a task is taken when all is well."""
HELP = 2.5
"""Seconds more for a queue over shards: after so long, somebody helps a shard whose tenders are busy or gone."""
UNWORKED = 25.0
"""Seconds that a lease may be held without a handler: an ack on its way to a server that is away, or a lease that must
run out because its process was killed."""
ENDED_WELL = {*ENDS_WELL, "ack_raised", "swallow", "slow_cleanup", "cancel_other", "cancel_all", "cancel_self_late"}
"""How a run may have ended whose task is done."""


class Judge:
    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._tags = tags("sim", world.plan.shards) if world.plan.shards else ("sim",)
        self._help = HELP if world.plan.shards else 0.0
        self._idle_since: dict[str, float] = {}
        self._held_since: dict[tuple[str, str], float] = {}
        self._due_at: dict[str, float] = {}
        self._asked_at = -1
        self._answers: dict[str, Any] = {}

    def _raw(self, *words: Any) -> Any:
        return self._world.server.execute([word if isinstance(word, bytes) else str(word).encode() for word in words])

    def _known(self, name: str, *words: Any) -> Any:
        """Ask the server, unless nobody has called since it was asked the last time."""
        if self._asked_at != self._world.server.calls:
            self._asked_at = self._world.server.calls
            self._answers.clear()
        if name not in self._answers:
            self._answers[name] = self._raw(*words)
        return self._answers[name]

    def hash_of(self, name: str) -> dict[bytes, bytes]:
        both: dict[bytes, bytes] = {}
        for tag in self._tags:
            found: Any = self._known(stem(tag) + name, "HGETALL", stem(tag) + name) or {}
            both |= found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
        return both

    def _members(self, state: str, queue: str = "sim") -> list[str]:
        names = [stem(tag) + state for tag in (self._tags if queue == "sim" else (queue,))]
        read, rest = ("ZRANGE", (0, -1)) if state == "scheduled" else ("SMEMBERS", ())
        return sorted(task.decode() for name in names for task in self._known(name, read, name, *rest) or [])

    # ---- while it runs

    def accepted(self, task: PlannedTask) -> None:
        """Note when a task must be taken, if all is well."""
        world = self._world
        if world.is_calm:
            self._due_at[task.name] = world.loop.time() + task.delay

    def unfinished(self) -> list[str]:
        return [
            task
            for queue in ("sim", "second")
            for state in ("todos", "in_progress", "waiting", "scheduled")
            for task in self._members(state, queue)
        ]

    def heard(self, record: logging.LogRecord, said: str) -> None:
        """Hear what timeoutq logs: some lines tell of a defect."""
        world = self._world
        rude = any(what in RUDE for task in world.plan.tasks for what in task.runs)
        if "met an unexpected error" in said and not rude:
            world.broke(f"timeoutq says: {said}")

    def loop_complains(self, what: dict[str, Any]) -> None:
        error = what.get("exception")
        self._world.broke(f"the event loop complains: {what.get('message')}: {error!r}")

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._look()

    def _look(self) -> None:
        world, now = self._world, self._world.loop.time()
        held: dict[tuple[str, str], float] = {}
        for task, token in self.hash_of("owners").items():
            lease = (task.decode(), token.decode())
            if lease not in world.working:
                held[lease] = self._held_since.get(lease, now)
                if now - held[lease] > UNWORKED + world.plan.timeout:
                    world.broke(f"{lease[0]} is held by {lease[1]} for {now - held[lease]:.1f} s, unworked")
        self._held_since = held
        self._look_for_idle(now)
        self._look_for_stopping(now)
        for name, due in list(self._due_at.items()):
            ahead = world.plan.prefetch and any(task == name for task, _ in held)
            if ahead or not self._host_is_open(name) or not self._free():
                # it waits for its host, for a handler that is free, or for one of the worker that has claimed it ahead
                due = self._due_at[name] = max(due, now)
            runs = world.runs.get(name)
            if runs:
                late = runs[0].began - due
                del self._due_at[name]
                if late > AT_ONCE + self._help and self._is_roomy():
                    world.broke(f"all is well, and {name} was taken {late:.2f} s late")
            elif now - due > 1.5 + self._help and self._free():
                world.broke(f"all is well, and {name} is not taken {now - due:.2f} s after it could be")
                del self._due_at[name]

    def _host_is_open(self, task: str) -> bool:
        host = self._world.witness.host_of(task)
        return host is None or host.is_open(self._world.clock.now_us // 1000)

    def _free(self) -> bool:
        busy = Counter(run.who for run in self._world.working.values())
        return any(
            process.claims and busy[process.name] < self._world.plan.concurrency for process in self._world.processes
        )

    def _is_roomy(self) -> bool:
        # calm has three tasks at most: with three places nobody is ever kept from its turn by the others
        plan = self._world.plan
        return plan.processes * plan.concurrency >= 3 and plan.max_tasks is None and not plan.polite

    def _look_for_idle(self, now: float) -> None:
        """See that nothing ready waits while a worker is idle."""
        world = self._world
        ready = self._members("todos") + self._members("todos", "second")
        if world.plan.polite:
            ready += [task for task in self._members("waiting") if self._host_is_open(task)]
        idle = [
            process
            for process in world.processes
            if process.claims and process.worker is not None and not process.worker.held
        ]  # fmt: skip
        if not (ready and idle):
            self._idle_since.clear()
            return
        since = {name: self._idle_since.get(name, now) for name in ready}
        self._idle_since = since
        longest = (1.5 if world.is_calm else 22.0) + self._help
        for name, began in since.items():
            if now - began > longest:
                world.broke(f"{name} is ready for {now - began:.1f} s, and {idle[0].name} is idle")

    def _look_for_stopping(self, now: float) -> None:
        for process in self._world.processes:
            if process.owner.alive and process.stopped_at is not None:
                took = now - process.stopped_at
                if took > self._world.plan.drain_deadline + PATIENCE:
                    self._world.broke(f"{process.name} has not ended {took:.1f} s after it was told to stop")

    def left(self, worker: bytes) -> None:
        """See, when a worker has ended, that it has given back all that it took."""
        if not self._world.is_well:
            return
        left = sorted(task.decode() for task, token in self.hash_of("owners").items() if token.startswith(worker))
        if left:
            self._world.broke(f"the worker {worker.decode()} has ended, and these are leased to it: {left}")

    def check(self) -> None:
        """Check the invariants of the design, which hold between any two calls."""
        try:
            for queue in (*self._tags, "second"):
                invariants.check_keys(self._world.server.raw, queue)
        except AssertionError as error:
            self._world.broke(f"invariant: {error}")

    # ---- at the end

    def at_the_end(self) -> None:
        world = self._world
        if world.violations:
            return
        self.check()
        done, failed = set(self._members("done")), set(self._members("failed"))
        lost = world.witness.accepted - done - failed
        second = set(self._members("done", "second"))
        lost |= {task.name for task in world.plan.second} - second
        if world.plan.worker == "app":
            ends = {name: [run.how for run in world.runs[name] if run.how in ENDED_WELL] for name in done}
            lost |= {name + AFTER for name in done if all(how in RETURNS for how in ends[name])} - second
        if lost:
            world.broke(f"accepted, and lost: {sorted(lost)}")
        for name in sorted(done):
            runs = world.runs.get(name, [])
            if not any(run.how in ENDED_WELL for run in runs):
                world.broke(f"{name} is done, and no handler of it ran to its end: {[run.how for run in runs]}")
        for name in sorted(failed):
            self._judge_failed(name)
        self._judge_children(done, failed)
        counters = Counter[str]()
        for tag in self._tags:
            counters.update({name: int(self._raw("HGET", stem(tag) + "stats", name) or 0) for name in COUNTED})
        for wrong in world.witness.missed(counters):
            world.broke(f"the counters are wrong: {wrong}")
        if world.witness.leases:
            world.broke(f"these leases have not ended: {sorted(world.witness.leases)}")
        for task in world.plan.calm:
            runs = world.runs.get(task.name, [])
            if len(runs) != 1 or runs[0].how != "ok":
                world.broke(f"all was well, and the runs of {task.name} were {[run.how for run in runs]}")

    def _judge_failed(self, name: str) -> None:
        runs = self._world.runs.get(name, [])
        bad = [run for run in runs if run.how not in ENDED_WELL]
        if not any(run.how in HOPELESS for run in runs) and len(bad) < 4:
            self._world.broke(f"{name} is failed, but {[run.how for run in runs]} is no cause")

    def _judge_children(self, done: set[str], failed: set[str]) -> None:
        # the last run of a task that is done put its children with its ack
        world = self._world
        for name in sorted(done):
            runs = world.runs.get(name, [])
            ends = [(at, run) for at, run in enumerate(runs) if run.how in ENDED_WELL]
            if len(ends) == 1 and ends[0][1].how in ("children", "generator", "heavy"):
                first = f"{name}.{ends[0][0] + 1}a"
                if first not in done | failed:
                    world.broke(f"{name} is done, and its child {first} is nowhere")
