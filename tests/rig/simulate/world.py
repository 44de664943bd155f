"""Runs a plan: first the storm, in which things go wrong; then all must end well; then calm, and a clean stop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import logging
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.rig.simulate import apps
from tests.rig.simulate import clock as virtual
from tests.rig.simulate.clock import Owner, Stuck, VirtualClock, VirtualLoop, owner_of
from tests.rig.simulate.judge import ENDED_WELL, Judge
from tests.rig.simulate.machine import Over
from tests.rig.simulate.network import Network
from tests.rig.simulate.plan import Fault, Plan, PlannedTask
from tests.rig.simulate.processes import Process, Supervisor
from tests.rig.simulate.server import SimulatedServer
from tests.rig.simulate.witness import SUSPECT, Host, Witness
from timeoutq import AsyncQueue, Lease, Politeness, Task
from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue
from timeoutq.words.errors import TimeoutqError
from timeoutq.worker.processes.roster import Order

QUEUE, SECOND = "sim", "second"
URL = "redis://127.0.0.1:6379/0"
RETRY = [0.2, 0.5, 1.0]
SETTLE, TENDED = 12.0, 20.0
"""Seconds after the storm until every wake-up comes at once: so long a stroke of the bell may have been lost; and
seconds more until each shard is tended by workers that live."""
HARMLESS = ("kill", "stop", "deploy", "rule", "block")
"""Faults that neither the network nor the server feels."""
COLLECT_EVERY = 5
"""After one seed in so many, the garbage is collected: while a seed runs, it is not."""
LONGEST = 75.0
"""Seconds after the storm in which all tasks must have ended."""


@dataclass(slots=True)
class Run:
    task: str
    who: str
    what: str
    began: float
    how: str = ""
    crashes: int = 0


@dataclass(slots=True)
class Outcome:
    plan: Plan
    violation: str = ""
    transcript: list[str] = field(default_factory=list)
    calls: int = 0

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.transcript).encode()).hexdigest()


class Violation(Exception):
    """Something that must never be so."""


class Simulation:
    """The world of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.witness = Witness(self, ENDED_WELL, self._host)
        self.server = SimulatedServer(self.clock, self.loop.call_later, self.witness.heard)
        self.network = Network(self.loop, self.server, plan.seed, self.note)
        self.network.weather.slow_part = plan.slow_part
        self.network.weather.rate = plan.rate
        self.transcript: list[str] = []
        self.violations: list[str] = []
        self.burst = False
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.planned: dict[str, PlannedTask] = {}
        self.working: dict[tuple[str, str], Run] = {}
        self._run_of: dict[tuple[str, str], Run] = {}
        self._called = set[tuple[str, str]]()
        self.is_calm = False
        self._ill_until = 0.0
        """Until when a fault may be felt."""
        self.processes: list[Process] = []
        self.judge = Judge(self)
        self._supervisors: list[Supervisor] = []
        self._chance = random.Random(f"world {plan.seed}")
        self._pids = 1
        self._producers: dict[str, AnyAsyncQueue] = {}
        self._app = apps.shop()
        self._app.sender = apps.Sender(self._client)
        self._producing = contextvars.Context()
        self._producing.run(owner_of.set, Owner("producer"))

    # ---- what others ask of it

    def note(self, who: str, what: str) -> None:
        self.transcript.append(f"{self.clock.passed:9.4f} {who:8} {what}")

    def broke(self, what: str) -> None:
        self.note("JUDGE", what)
        self.violations.append(what)

    def open(self, worker: str, name: str = QUEUE) -> AnyAsyncQueue:
        plan = self.plan
        face = partial(AsyncShardedQueue, shards=plan.shards) if plan.shards else AsyncQueue
        queue = face(name, URL, timeout=plan.timeout, deadline=plan.deadline, retry=RETRY, max_runtime=None)
        queue.worker = worker
        return queue

    def ran(self, process: Process) -> None:
        self.processes.append(process)

    @property
    def is_well(self) -> bool:
        """Whether all calls reach the server, and all replies come back, within a moment."""
        weather = self.network.weather
        return not (weather.slow_part or weather.rate) and self.loop.time() > self._ill_until

    def _is_ill(self, seconds: float) -> None:
        """Note a fault of so many seconds: calls that it has struck go on until their deadline."""
        self._ill_until = max(self._ill_until, self.loop.time() + seconds + 2 * self.plan.deadline)

    def left(self, process: Process) -> None:
        self.judge.left(process.worker_name.encode())

    def began(self, lease: Lease, who: str) -> tuple[str, float]:
        """Write down that a handler begins; say what it does."""
        task = self.planned.get(lease.task)
        runs = self.runs[lease.task]
        at = len(runs)
        what = task.runs[at] if task is not None and at < len(task.runs) else "ok"
        if at > 12 or (self.is_calm and not lease.task.startswith("c")):
            what = "ok"
        run = Run(lease.task, who, what, self.loop.time(), crashes=lease.crashes)
        runs.append(run)
        if (lease.task, lease.token) in self._run_of:
            self.broke(f"a second handler of {lease.task} begins with the lease of {lease.token}")
        for (name, token), other in self.working.items():
            suspicious = lease.crashes >= SUSPECT or other.crashes >= SUSPECT
            if other.who == who and suspicious and self.witness.holds(name, token):
                lost = f"they have lost {lease.crashes} and {other.crashes} leases"
                self.broke(f"{lease.task} runs beside {name}, and {lost}")
        self.working[lease.task, lease.token] = self._run_of[lease.task, lease.token] = run
        if not self.plan.is_second(lease.task):
            self.witness.began(lease.task, lease.token, lease.fence, lease.crashes)
        self.note(who, f"handler begins {lease.task}: {what} (attempt {lease.attempt}, crashes {lease.crashes})")
        return what, 0.0 if task is None else task.takes

    def ended(self, lease: Lease, how: str) -> None:
        run = self.working.pop((lease.task, lease.token), None)
        if run is not None:
            run.how = how
            self.note(run.who, f"handler ends {lease.task}: {how}")

    def called(self, lease: Lease) -> None:
        self._called.add((lease.task, lease.token))

    def was_called(self, task: str, token: str) -> bool:
        return (task, token) in self._called or (task, token) in self._run_of

    def how_it_ran(self, task: str, token: str) -> str | None:
        run = self._run_of.get((task, token))
        return None if run is None else run.how

    def owners(self) -> Mapping[bytes, bytes]:
        return self.judge.hash_of("owners")

    def died(self, process: Process) -> None:
        for lease in [lease for lease, run in self.working.items() if run.who == process.name]:
            del self.working[lease]

    def _host(self, name: str) -> Host:
        return Host(name, round(self.plan.delay * 1000), self.plan.per_host)

    def children(self, lease: Lease, n: int) -> list[Task]:
        """Give new tasks of the same host."""
        host, run = self.witness.groups.get(lease.task), self._run_of[lease.task, lease.token]
        number = next(at for at, one in enumerate(self.runs[lease.task], 1) if one is run)
        return [Task(f"{lease.task}.{number}{'ab'[i]}", group=host) for i in range(n)]

    # ---- the run

    async def play(self) -> None:
        plan, loop = self.plan, self.loop
        watching = loop.create_task(self.judge.watch())
        await self._configure()
        self._start()
        producing = [
            loop.create_task(self._put(task, name), context=self._producing.copy())
            for name, tasks in ((QUEUE, plan.tasks), (SECOND, plan.second))
            for task in tasks
        ]
        begin = loop.time()
        for fault in plan.faults:
            await asyncio.sleep(max(0.0, begin + fault.at - loop.time()))
            if fault.who == "busy":
                loop.create_task(self._strike_busy(fault, begin + plan.storm - fault.seconds))
            else:
                await self._strike(fault)
        await asyncio.sleep(max(0.0, begin + plan.storm - loop.time()))
        self.note("WORLD", "the storm is over")
        self.judge.check()
        if self.plan.slow_part:
            self._is_ill(self.network.weather.slow[1])
        self.network.heal()
        for process in self.processes:
            process.thaw()
        if producing:
            await asyncio.wait(producing)
        await self._wait_until_all_have_ended()
        settle = SETTLE + (TENDED if plan.shards else 0.0)
        await asyncio.sleep(max(0.0, begin + plan.storm + settle - loop.time()))
        await self._calm()
        await self._stop_all()
        watching.cancel()
        self.judge.at_the_end()

    async def _configure(self) -> None:
        if self.plan.polite:
            queue = self.open("sim:1:0000000a")
            slow, self.network.weather.slow_part = self.network.weather.slow_part, 0.0
            await queue.configure(politeness=Politeness(delay=self.plan.delay, per_host=self.plan.per_host))
            self.network.weather.slow_part = slow
            await queue.close()

    def _start(self) -> None:
        self._pids += 100
        supervisor = Supervisor(self, f"s{len(self._supervisors)}", self._pids)
        self._supervisors.append(supervisor)
        self.loop.create_task(supervisor.run(), name=supervisor.name)

    async def _put(self, task: PlannedTask, name: str = QUEUE) -> None:
        """Put a task into a queue, again and again until the server has answered."""
        await asyncio.sleep(task.at)
        self.planned[task.name] = task
        group = f"h{len(self.planned) % 2}.example" if self.plan.polite and name == QUEUE else None
        while True:
            try:
                answer = await self._put_once(task, name, group)
            except TimeoutqError as error:
                self.note("producer", f"{task.name} is not put yet: {type(error).__name__}")
                await asyncio.sleep(self._chance.uniform(0, 0.5))
            else:
                break
        self.note("producer", f"{task.name} is accepted: {answer}")
        self.judge.accepted(task)

    async def _put_once(self, task: PlannedTask, name: str, group: str | None) -> str:
        queue = self._client(name)
        if self.plan.worker == "app":
            (result,) = await self._app.aput([apps.call(self._app, name, task.name, task.delay)])
            return "ADDED" if result.added else "THERE"
        if task.delay:
            return (await queue.schedule(task.name, after=task.delay, group=group))[0].name
        return (await queue.put(task.name, group=group))[0].name

    async def _strike_busy(self, fault: Fault, latest: float) -> None:
        """Strike a process with a handler at work, as soon as there is one whose handler works for some time."""
        while self.loop.time() <= latest:
            for run in self.working.values():
                task = self.planned.get(run.task)
                if run.what == "long" or (task is not None and task.takes > 0.2):
                    await self._strike(replace(fault, who=run.who))
                    return
            await asyncio.sleep(0.1)

    async def _strike(self, fault: Fault) -> None:
        self.note("WORLD", f"{fault.kind} {fault.who} {fault.seconds:g}")
        if fault.kind not in HARMLESS:
            self._is_ill(fault.seconds)
        network = self.network
        match fault.kind:
            case "cut" | "deaf":
                network.cut(fault.who, deaf=fault.kind == "deaf")
            case "silence":
                network.silence(fault.who, fault.seconds)
            case "down":
                network.down = True
                network.cut("*", deaf=True)
                self.server.execute([b"FUNCTION", b"FLUSH"])
                self.loop.call_later(fault.seconds, self._come_back)
            case "flush":
                self.server.execute([b"FUNCTION", b"FLUSH"])
            case "kill":
                for child in self._children(fault.who):
                    child.die(-9)
            case "stop":
                for supervisor in self._supervisors:
                    for child in supervisor.children.values():
                        if fault.who in ("*", child.name):
                            child.obey(Order.DRAIN)
            case "deploy":
                old = self._supervisors[-1]
                old.stop()
                await self._await_end(old)
                self._start()
            case "freeze":
                for child in self._children(fault.who):
                    child.freeze(fault.seconds)
            case "rule" | "block":
                self.loop.create_task(self._rule(fault), context=self._producing.copy())
            case _:
                self.clock.sleep(min(fault.seconds, 0.25 * self.plan.timeout))

    async def _rule(self, fault: Fault) -> None:
        """Give a host other rules, or block it, as a person would; if the server is away, nothing comes of it."""
        hosts = self._client().hosts
        host = f"h{fault.number % 2}.example"
        with suppress(TimeoutqError):
            if fault.kind == "block":
                await hosts.block(host, for_=max(0.1, fault.seconds))
            else:
                await hosts.set(host, delay=(0.0, 0.4)[fault.number // 2], per_host=1 + fault.number // 2)

    def _client(self, name: str = QUEUE) -> AnyAsyncQueue:
        if name not in self._producers:
            self._producers[name] = self.open("sim:2:0000000b", name)
        return self._producers[name]

    def _come_back(self) -> None:
        self.network.down = False
        self.note("WORLD", "the server is back")

    def _children(self, who: str) -> list[Process]:
        found = [child for one in self._supervisors for child in one.children.values()]
        return [child for child in found if who in ("*", child.name)]

    async def _wait_until_all_have_ended(self) -> None:
        until = self.loop.time() + LONGEST
        while (left := self.judge.unfinished()) and not self.violations:
            if self.loop.time() > until:
                self.broke(f"{LONGEST:g} s after the storm these tasks have not ended: {left}")
                return
            supervisor = self._supervisors[-1]
            if supervisor.over.is_set():
                self.broke(f"the supervisor ended with {supervisor.code}, and these tasks have not ended: {left}")
                return
            await asyncio.sleep(0.25)

    async def _calm(self) -> None:
        if self.violations:
            return
        self.note("WORLD", "calm")
        self.network.weather.rate = 0.0
        self.is_calm = True
        tasks = [self.loop.create_task(self._put(task), context=self._producing.copy()) for task in self.plan.calm]
        if tasks:
            await asyncio.wait(tasks)
        await self._wait_until_all_have_ended()
        self.is_calm = False

    async def _stop_all(self) -> None:
        if not self.violations:
            supervisor = self._supervisors[-1]
            supervisor.stop()
            await self._await_end(supervisor)

    async def _await_end(self, supervisor: Supervisor) -> None:
        began, longest = self.loop.time(), self.plan.drain_deadline + 40.0
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await supervisor.over.wait()
        if not supervisor.over.is_set():
            self.broke(f"{supervisor.name} has not ended {self.loop.time() - began:.1f} s after SIGTERM")


class _Ear(logging.Handler):
    def __init__(self, world: Simulation) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], Over):
            return  # the thread of a process that has ended
        owner = owner_of.get()
        said = record.getMessage()
        self._world.note("" if owner is None else owner.name, f"{record.levelname.lower()}: {said}")
        self._world.judge.heard(record, said)


def play(plan: Plan) -> Outcome:
    """Run a plan; give what became of it, with the transcript."""
    with warnings.catch_warnings():
        # processes that are killed leave coroutines behind
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        return _play(plan)


def _play(plan: Plan) -> Outcome:
    world = Simulation(plan)
    loop, log = world.loop, logging.getLogger("timeoutq")
    ear, level, propagates = _Ear(world), log.level, log.propagate
    log.addHandler(ear)
    log.setLevel(logging.INFO)
    log.propagate = False
    loop.set_exception_handler(lambda _, what: world.judge.loop_complains(what))
    collects = gc.isenabled()
    gc.disable()
    try:
        with virtual.running(world.clock, plan.seed):
            try:
                loop.run_until_complete(world.play())
            except Stuck as error:
                world.broke(str(error))
            except TimeoutqError as error:
                world.broke(f"the queue cannot be configured: {error}")
            finally:
                _tear_down(world)
    finally:
        log.removeHandler(ear)
        log.setLevel(level)
        log.propagate = propagates
        if collects:
            gc.enable()
    return Outcome(plan, world.violations[0] if world.violations else "", world.transcript, world.server.calls)


def _tear_down(world: Simulation) -> None:
    """End what was left: nothing of it counts any more."""
    transcript, world.transcript = list(world.transcript), []
    violations = list(world.violations)
    hook: Callable[[Any], object] = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        for process in world.processes:
            process.owner.alive = False
            process.machine.end()
        for task in world.loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is not in the stubs
        world.loop.set_exception_handler(lambda _, what: None)
        world.loop.tasks.clear()
        for process in world.processes:
            process.owner.tasks.clear()
        world.loop.close()
        if world.plan.seed % COLLECT_EVERY == 0:
            gc.collect()
    finally:
        sys.unraisablehook = hook
    world.transcript = transcript
    world.violations = violations
