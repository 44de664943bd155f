"""Worker processes and the supervisor of a simulation: what `process.py` and `supervisor.py` do with a real machine."""

from __future__ import annotations

import asyncio
import contextvars
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.rig.simulate import apps, handlers
from tests.rig.simulate.clock import Owner, owner_of
from tests.rig.simulate.machine import SimulatedMachine
from tests.rig.simulate.plan import TWO, Plan
from timeoutq.client.heartbeat import Beat, Heartbeat
from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.verbs import flows, sending
from timeoutq.words import exit_codes
from timeoutq.words.errors import TimeoutqError
from timeoutq.worker.processes.ledger import Left, SharedLedger
from timeoutq.worker.processes.roster import Order, Roster, Told
from timeoutq.worker.pump import Pump
from timeoutq.worker.worker import Worker

if TYPE_CHECKING:
    from tests.rig.simulate.world import Simulation

SLOTS = 64


def names_of(plan: Plan) -> tuple[str, ...]:
    return ("sim", "second") if plan.worker in TWO else ("sim",)


def _staffed(plan: Plan, queues: Sequence[AnyAsyncQueue], place: handlers.Place) -> tuple[Any, Any]:
    """Give what a worker takes: queues, with weights or without, and a handler; or an app's staff, and no handler."""
    if plan.worker not in ("weights", "app"):
        return queues, handlers.shaped(plan.shape, place)
    weighted = dict(zip(queues, apps.WEIGHTS.values(), strict=True))
    if plan.worker == "app":
        return apps.staff(weighted, place), None
    return weighted, handlers.shaped(plan.shape, place)


class SimulatedHeartbeat(Heartbeat):
    """A heartbeat that runs in the event loop of the simulation."""

    def __init__(self, beats: Sequence[Beat], machine: SimulatedMachine, on_end: Callable[[], object]) -> None:
        self._machine = machine
        super().__init__(beats, machine.thread, on_end)

    def _live(self) -> None:
        self._machine.block(self._beat_all)


class SimulatedWorker(Worker):
    """A worker whose threads are simulated."""

    def __init__(self, machine: SimulatedMachine, *args: Any, **settings: Any) -> None:
        self.machine = machine
        super().__init__(*args, **settings)

    def _new_heartbeat(self, pump: Pump, is_over: asyncio.Event) -> Heartbeat:
        made, machine = super()._new_heartbeat(pump, is_over), self.machine
        assert isinstance(machine, SimulatedMachine) and made._on_end is not None
        return SimulatedHeartbeat(made._beats, machine, made._on_end)


class Process:
    def __init__(self, world: Simulation, pid: int, name: str, at_exit: Callable[[Process, int], None]) -> None:
        self.world = world
        self.pid = pid
        self.name = name
        self.queues = [world.open(self.worker_name, name) for name in names_of(world.plan)]
        self.ledger = SharedLedger(SLOTS, *(queue.division.key_of for queue in self.queues))
        self.owner = Owner(name)
        self.owner.on_exit = self.die
        self.machine = SimulatedMachine(world.loop, self.owner, f"{world.plan.seed} {pid}")
        self.worker: SimulatedWorker | None = None
        self.stopped_at: float | None = None
        self.was_frozen = False
        self._frozen_at = 0.0
        self._at_exit = at_exit
        self._context = contextvars.Context()
        self._context.run(owner_of.set, self.owner)

    @property
    def worker_name(self) -> str:
        return f"sim:{self.pid}:{self.pid:08x}"

    @property
    def claims(self) -> bool:
        """Whether its worker lives, and claims tasks: it was not told to stop, and does not end by itself."""
        worker, most = self.worker, self.world.plan.max_tasks
        if not self.owner.alive or self.owner.frozen is not None:
            return False
        if worker is None or not worker._ran or worker._life.level:
            return False
        return most is None or sum(desk.runs for desk in worker._leases) + len(worker.held) < most

    @property
    def _is_claiming(self) -> bool:
        pump = None if self.worker is None else self.worker._pump
        return pump is not None and pump.shards[0].claims.claiming > 0

    def start(self) -> None:
        self.world.note(self.name, "starts")
        self.world.loop.create_task(self._live(), name=self.name, context=self._context)

    async def _live(self) -> None:
        code = exit_codes.DIED
        try:
            code = await self._work()
        except asyncio.CancelledError:
            self.world.note(self.name, "was cancelled")
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if not self.owner.alive:
                return
            if isinstance(error, TimeoutqError) and (flows.is_final(error) or isinstance(error, ImportError)):
                code = exit_codes.of(error)
                self.ledger.tell(Told.HOPELESS, str(error))
            elif self.ledger.told()[0] is Told.NOTHING:
                self.ledger.confess(error)
            self.world.note(self.name, f"ends with {type(error).__name__}: {error}")
        self.die(code)

    async def _work(self) -> int:
        plan, world, queues = self.world.plan, self.world, self.queues
        place = handlers.Place(world, self.owner, self.machine, self.die, plan.timeout, lambda: self._is_claiming)
        self.worker = worker = SimulatedWorker(
            self.machine, *_staffed(plan, queues, place),
            concurrency=plan.concurrency, prefetch=plan.prefetch, max_runtime=plan.max_runtime,
            drain_deadline=plan.drain_deadline, signals=False, ledger=self.ledger.pages, burst=world.burst,
            max_tasks=plan.max_tasks, lifespan=handlers.lifespan if plan.shape == "with state" else None,
        )  # fmt: skip
        self.ledger.sign(self.worker_name)

        worker.ending = lambda end: self.ledger.tell(Told[end.upper()])
        world.ran(self)
        if self.stopped_at is not None:
            worker.stop()
        try:
            await worker.run()
        finally:
            if self.owner.alive:
                world.left(self)
            for queue in queues:
                await queue.close()
        return exit_codes.DONE

    def obey(self, order: Order) -> None:
        if self.owner.frozen is not None:  # a signal waits until the process goes on
            self.world.loop.call_soon(self.obey, order, context=self._context.copy())
        elif self.owner.alive:
            if self.stopped_at is None:
                self.stopped_at = self.world.loop.time()
            if self.worker is not None:
                self._context.run(self.worker.stop, now=order is Order.NOW)

    def freeze(self, seconds: float) -> None:
        if self.owner.alive and self.owner.frozen is None:
            self.world.loop.freeze(self.owner)
            self._frozen_at = self.world.loop.time()
            self.world.loop.call_later(seconds, self.thaw)

    def thaw(self) -> None:
        if self.owner.alive and self.owner.frozen is not None:
            if self.stopped_at is not None:
                self.stopped_at += self.world.loop.time() - self._frozen_at
            self.was_frozen = True
            self.world.note(self.name, "goes on")
            self.world.loop.thaw(self.owner)

    def die(self, code: int) -> None:
        """End at this moment: nothing of it goes on, and the system closes its connections."""
        if self.owner.alive:
            self.owner.alive = False
            self.world.note(self.name, f"exits with {code}")
            self.world.network.hang_up(self.owner)
            self.world.died(self)
            contextvars.Context().run(self.world.loop.call_soon, self._over, code)

    def _over(self, code: int) -> None:
        self._at_exit(self, code)  # its threads stand still, and end with the run


class Supervisor:
    """The parent of the worker processes."""

    def __init__(self, world: Simulation, name: str, first_pid: int) -> None:
        self._world = world
        self.name = name
        self._pids = first_pid
        plan, now = world.plan, world.loop.time()
        self.roster = Roster(plan.processes, plan.drain_deadline, now)
        self.children: dict[int, Process] = {}
        self.over = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()

    @property
    def code(self) -> int:
        return self.roster.code

    async def run(self) -> None:
        roster, loop = self.roster, self._world.loop
        while not roster.is_over:
            self._look.clear()
            while roster.is_due(loop.time()):
                self._start()
            told = {pid for pid, child in self.children.items() if child.ledger.told()[0]}
            for pid in roster.overdue(loop.time(), told):
                child = self.children[pid]
                if child.owner.frozen is None and not child.was_frozen:
                    self._world.broke(f"{child.name} does not end, and is killed by its supervisor")
                child.die(-9)
            try:
                async with asyncio.timeout(max(0.001, roster.next_look(loop.time()) - loop.time())):
                    await self._look.wait()
            except TimeoutError:
                pass
        if self._reports:
            await asyncio.wait(self._reports)
        self._world.note(self.name, f"ends with {self.code} {roster.words}")
        self.over.set()

    def _start(self) -> None:
        self._pids += 1
        taken = {child.name for child in self.children.values()}
        name = next(name for i in range(100) if (name := f"p{i}") not in taken)
        child = Process(self._world, self._pids, name, self._ended)
        self.children[child.pid] = child
        self.roster.started(child.pid, self._world.loop.time())
        child.start()

    def signal(self, number: int) -> None:
        order = self.roster.heard(number, self._world.loop.time())
        if order is not None:
            self._order(order)
        self._look.set()

    def stop(self) -> None:
        self._world.note(self.name, "SIGTERM")
        self.signal(signal.SIGTERM)

    def _order(self, order: Order) -> None:
        for child in self.children.values():
            child.obey(order)

    def _ended(self, child: Process, code: int) -> None:
        del self.children[child.pid]
        told, words = child.ledger.told()
        now = self._world.loop.time()
        ending = self.roster.ending(child.pid, told, code, now)
        order = self.roster.ended(ending, words, now)
        if order is not None:
            self._order(order)
        self._reports.add(asyncio.get_running_loop().create_task(self._report(child, blame=ending.blames)))
        self._look.set()

    async def _report(self, child: Process, *, blame: bool) -> None:
        names = names_of(self._world.plan)
        found = {name: child.ledger.read(lane) for lane, name in enumerate(names)}
        child.ledger.close()
        for name, left in found.items():
            if any(left):
                await self._report_on(name, child, left, blame=blame)

    async def _report_on(self, name: str, child: Process, left: Left, *, blame: bool) -> None:
        started, ended, held, asked = left
        queue = self._world.open(f"sim:1:{child.pid:08x}", name)
        try:
            back = held if blame else started + held
            if back:
                await queue.release(back)
            gone = ended + started * blame
            for talk, part in queue.division.parted(gone) if gone else ():
                calls = talk.operations.crash(part, "its worker process died while it ran")
                await queue.run(sending.answers(talk, calls))
            await queue.run(sending.answer(queue.talk, queue.operations.beat(child.worker_name, None)))
            for shard, token, timeout_ms, max_runtime_ms in asked:
                talk = queue.division.talks[shard]
                await queue.run(flows.give_back_unread(talk, token, timeout_ms, max_runtime_ms))
        except TimeoutqError as error:
            self._world.note(self.name, f"the leases of {child.name} run out: {error}")
        finally:
            await queue.close()
