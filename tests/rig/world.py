"""A queue and everybody around it: what may happen next, what each one then knows, and what must never be true."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tests.rig.batch_model import WAITS
from tests.rig.model import NOTHING, Given, Late, Model
from tests.rig.model_state import Pair

LEASE_MS = 1000
TICK_MS = 700
"""One tick is within a lease, two are beyond it."""
RETRY_MS = 500
PATIENCE_MS = 300
"""How long a claim's caller waits."""
JUMP_MS = 10_000
START_MS = 1_800_000_000_000
TASKS = ("a", "b", "z")
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Request:
    verb: str
    call: str = ""
    age: int = 0
    pairs: tuple[Pair, ...] = ()
    ids: tuple[str, ...] = ()
    number: int = 0
    """A number for the verb: how many, a delay, the expected time."""
    not_after: int = 0
    given: Given = NOTHING
    """The options of the ids."""
    rule: tuple[str, str] = ("", "")
    """A rule of a host, and its value."""
    batch: str = ""
    """The batch that the ids join, or whose callback the id is."""


@dataclass(frozen=True, slots=True)
class Step:
    """Somebody does something; `fate` is what becomes of the request: seen, lost (its reply) or late (it travels)."""

    actor: str
    request: Request | None
    fate: str = "seen"
    picked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of each may happen, so that what can happen ends."""

    puts: tuple[tuple[str, ...], ...] = (("a",), ("b",))
    givens: tuple[Given, ...] = ()
    """The options of each put; () for none."""
    finds: tuple[tuple[str, tuple[str, ...], Given], ...] = ()
    """The ids that the ack of a task puts, and their options."""
    seal: tuple[str, str] = ("", "")
    """All puts go into a batch, which the producer seals behind them: the callback, and when it becomes ready."""
    claims: int = 2
    """Of each worker."""
    batch: int = 2
    extends: int = 1
    releases: int = 1
    fails: int = 1
    ticks: int = 4
    faults: int = 2
    kinds: frozenset[str] = frozenset({"lost", "late", "crash", "restart", "failover", "forward", "back"})
    max_crashes: int = 3


@dataclass(slots=True)
class Worker:
    held: dict[str, str] = field(default_factory=dict[str, str])
    open: tuple[Request, int] | None = None
    """A request without a reply, and when it was sent."""
    travelling: Request | None = None
    claims: int = 0
    life: int = 0

    def copy(self) -> Worker:
        return Worker(dict(self.held), self.open, self.travelling, self.claims, self.life)

    def key(self) -> Hashable:
        return (frozenset(self.held.items()), self.open, self.travelling, self.claims, self.life)


class Violation(AssertionError):
    """Something happened that never may."""


class World:
    """The queue, its clients, and what an onlooker knows who sees everything."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.model = self._queue()
        self.model.max_crashes = limits.max_crashes
        self.steady = START_MS
        """Real time: it runs evenly whatever the server's clock does."""
        self.workers = {"w1": Worker(), "w2": Worker()}
        self.cleaners: dict[str, int] = {"c1": 0, "c2": 0}
        """How far the server's clock was ahead of real time when this cleaner last swept."""
        self.produced = 0
        self.producer: tuple[Request, int] | None = None
        self.replica: Model | None = None
        self.used = {"ticks": 0, "faults": 0, "extends": 0, "releases": 0, "fails": 0}
        self.faults: tuple[str, ...] = ()
        # the onlooker's
        self.accepted: frozenset[str] = frozenset()
        self.granted: dict[str, tuple[str, int]] = {}
        """The last lease on each task: its token, and the real time until which nobody else may have it."""
        self.fence = 0
        self.owed: dict[str, Any] = {}
        """Tasks of which a run must begin, because of a put with rerun: the newest payload; None for any."""
        self._held: frozenset[str] = frozenset()
        self.over: frozenset[str] = frozenset()
        """The tasks that have been done or failed at some time."""
        self.calls_back = 0
        """How often the callback of the batch has become due."""

    def _queue(self) -> Model:
        return Model(START_MS)

    def copy(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.model = self.model.copy()
        other.workers = {name: worker.copy() for name, worker in self.workers.items()}
        other.cleaners = dict(self.cleaners)
        other.used = dict(self.used)
        other.granted = dict(self.granted)
        other.owed = dict(self.owed)
        return other

    def key(self) -> int:
        return hash(
            (
                self.model.key(),
                self.steady,
                tuple(worker.key() for worker in self.workers.values()),
                tuple(sorted(self.cleaners.values())),  # who of them is who does not matter
                self.produced,
                self.producer,
                None if self.replica is None else self.replica.key(),
                tuple(self.used.values()),
                self.faults,
                self.accepted,
                frozenset(self.granted.items()),
                self.fence,
                frozenset(self.owed.items()),
                self.over,
                self.calls_back,
            )
        )

    # ---- what may happen next

    def steps(self) -> Iterator[Step]:
        """Give every step that is possible now."""
        yield from self._producer_steps()
        for name, worker in self.workers.items():
            yield from self._worker_steps(name, worker)
        model, used, limits = self.model, self.used, self.limits
        for name, ahead in self.cleaners.items():
            if model.leases:
                yield Step(name, Request("requeue_expired", number=ahead + self.steady))
        if any(at <= model.now for at in model.scheduled.values()):
            yield Step("c1", Request("promote_due"))
        if used["ticks"] < limits.ticks:
            yield Step("tick", None)
        if used["faults"] < limits.faults:
            yield from self._fault_steps()

    def _fates(self) -> tuple[str, ...]:
        allowed = self.used["faults"] < self.limits.faults and "lost" in self.limits.kinds
        return ("seen", "lost") if allowed else ("seen",)

    def _producer_steps(self) -> Iterator[Step]:
        if self.producer is not None:
            request, sent = self.producer
            yield Step("producer", _again(request, self.steady - sent))
        elif self.produced < len(self.limits.puts):
            given = self.limits.givens[self.produced] if self.limits.givens else NOTHING
            batch = BATCH if self.limits.seal[0] else ""
            request = Request(
                "put", f"put{self.produced}", ids=self.limits.puts[self.produced], given=given, batch=batch
            )
            for fate in self._fates():
                yield Step("producer", request, fate)
        elif self.limits.seal[0] and self.produced == len(self.limits.puts):
            callback, on = self.limits.seal
            for fate in self._fates():
                yield Step("producer", Request("seal_batch", "seal", ids=(callback,), rule=(on, ""), batch=BATCH), fate)

    def _worker_steps(self, name: str, worker: Worker) -> Iterator[Step]:
        limits, used = self.limits, self.used
        if worker.open is not None:
            request, sent = worker.open
            again = _again(request, self.steady - sent)
            if request.verb == "claim":
                again = _dated(again, self.model.now + PATIENCE_MS)
                yield from self._claims(name, again, ("seen",))
            else:
                yield Step(name, again)
            return
        if worker.travelling is not None:
            yield from self._claims(name, worker.travelling, ("seen",))
            return
        if worker.claims < limits.claims:
            token = f"{name}.{worker.life}#{worker.claims}"
            request = _dated(Request("claim", token, number=limits.batch), self.model.now + PATIENCE_MS)
            yield from self._claims(name, request, self._fates())
            if used["faults"] < limits.faults and "late" in limits.kinds:
                yield Step(name, request, "late")
        for pair in sorted(worker.held.items()):
            for fate in self._fates():
                yield Step(name, self._ack(pair), fate)
                if used["fails"] < limits.fails:
                    yield Step(name, Request("fail", f"fail{pair}", pairs=(pair,), number=RETRY_MS), fate)
                    yield Step(name, Request("fail", f"fail{pair}", pairs=(pair,), number=-1), fate)
                if used["releases"] < limits.releases:
                    yield Step(name, Request("release", f"release{pair}", pairs=(pair,)), fate)
        if worker.held and used["extends"] < limits.extends:
            yield Step(name, Request("extend", pairs=tuple(sorted(worker.held.items())), number=LEASE_MS))

    def _ack(self, pair: Pair) -> Request:
        found = next((each for each in self.limits.finds if each[0] == pair[0]), (pair[0], (), NOTHING))
        return Request("ack", f"ack{pair}", pairs=(pair,), ids=found[1], given=found[2])

    def _claims(self, name: str, request: Request, fates: tuple[str, ...]) -> Iterator[Step]:
        if request.not_after and self.model.now > request.not_after:
            yield Step(name, request, "seen", self.model.picks(request.number)[0])
            return
        if self.model.replayed(request.call, request.age, LEASE_MS):
            yield Step(name, request)
            return
        for picked in self.model.picks(request.number):
            for fate in fates:
                yield Step(name, request, fate, picked)

    def _fault_steps(self) -> Iterator[Step]:
        kinds = self.limits.kinds
        if "crash" in kinds:
            for name, worker in self.workers.items():
                if worker.held or worker.open or worker.travelling:
                    yield Step(f"crash {name}", None)
        time_left = self.used["ticks"] < self.limits.ticks
        if "restart" in kinds and time_left:
            yield Step("restart", None)
        # a fence is the clock's, or one more than the last that was written: a failover that forgets the last one,
        # together with a clock that steps back, is beyond what is promised
        if "failover" in kinds and "back" not in self.faults:
            if self.replica is None:
                yield Step("replicate", None)
            elif time_left:
                yield Step("failover", None)
        # a clock that steps there and back while a cleaner sleeps is seen by nobody
        if all(ahead + self.steady == self.model.now for ahead in self.cleaners.values()):
            if "forward" in kinds:
                yield Step("forward", None)
            if "back" in kinds and "failover" not in self.faults and self.replica is None:
                yield Step("back", None)

    # ---- what then is

    def take(self, step: Step, reply: Any = None) -> Any:
        """Carry a step out, in place; give the reply of the model. Raises `Violation`."""
        request = step.request
        if request is None:
            self._strike(step.actor)
            return None
        if step.fate in ("lost", "late"):
            self._use_fault(step.fate)
        if step.fate == "late":
            worker = self.workers[step.actor]
            worker.travelling, worker.claims = request, worker.claims + 1
            return None
        self._held = frozenset(self.model.in_progress)
        waited = self._waits()
        answer = self._answer(request, step.picked)
        self.calls_back += waited and not self._waits()
        self._look_on(request, answer)
        if step.fate == "lost":
            self._wait_again(step.actor, request)
        else:
            self._learn(step.actor, request, answer)
        self.check()
        return answer

    def _waits(self) -> bool:
        """Say whether the callback of the batch waits for the end of the batch."""
        return self.model.scheduled.get(self.limits.seal[0]) == WAITS

    def _use_fault(self, kind: str) -> None:
        self.used["faults"] += 1
        self.faults = tuple(sorted({*self.faults, kind}))

    def _answer(self, request: Request, picked: tuple[str, ...]) -> Any:
        model = self.model
        if request.verb == "put":
            return model.put(request.call, request.age, request.ids, given=request.given, batch=request.batch)
        if request.verb == "seal_batch":
            model.seal(request.batch, request.ids[0], request.rule[0][:1])
            return "O"
        if request.verb == "claim":
            try:
                return model.claim(request.call, request.age, LEASE_MS, picked, not_after=request.not_after)
            except Late:
                return "LATE"
        if request.verb == "extend":
            return model.extend(request.pairs, request.number)
        if request.verb == "ack":
            return model.ack(request.call, request.pairs, request.ids, given=request.given)
        if request.verb == "release":
            return model.release(request.call, request.pairs, block_ms=request.number)
        if request.verb == "fail":
            return model.fail(request.call, request.pairs, request.number)
        if request.verb == "requeue_expired":
            return model.requeue_expired(request.number)
        assert request.verb == "promote_due", f"_answer() does not know how to carry out {request}"
        return model.promote_due()

    def _wait_again(self, actor: str, request: Request) -> None:
        if actor == "producer":
            self.producer = (request, self.steady)
        else:
            worker = self.workers[actor]
            worker.open = (request, self.steady)
            self._count(worker, request)

    def _count(self, worker: Worker, request: Request) -> None:
        if request.verb == "claim":
            worker.claims += 1
        elif request.verb != "ack":
            self.used[request.verb + "s"] += 1

    def _learn(self, actor: str, request: Request, answer: Any) -> None:
        if actor == "producer":
            self.producer = None
            self.produced += 1
            self.accepted |= set(request.ids)
        elif actor in self.cleaners:
            if request.verb == "requeue_expired":
                self.cleaners[actor] = self.model.now - self.steady
        else:
            worker = self.workers[actor]
            if worker.open is None and worker.travelling is None:
                self._count(worker, request)
            worker.open = worker.travelling = None
            if request.verb == "claim":
                in_time = not request.not_after or self.model.now <= request.not_after
                if in_time and len(answer) == 4 and answer != "LATE":
                    worker.held.update(dict.fromkeys(answer[3], request.call))
            elif request.verb == "extend":
                for (task, _), letter in zip(request.pairs, answer[2], strict=True):
                    if letter == "L":
                        del worker.held[task]
            else:
                for task, _ in request.pairs:
                    worker.held.pop(task, None)

    def _strike(self, what: str) -> None:
        model = self.model
        if what == "tick":
            self._pass(TICK_MS)
        elif what == "replicate":
            self.replica = model.copy()
        else:
            kind, _, victim = what.partition(" ")
            self._use_fault(kind)
            if kind == "crash":
                self.workers[victim] = Worker(claims=self.workers[victim].claims, life=self.workers[victim].life + 1)
            elif kind == "restart":
                self._restart()
            elif kind == "failover":
                assert self.replica is not None
                now, before = model.now, model.owners
                run, self.model = model.run, self.replica.copy()
                self.model.now, self.model.run, self.replica = now, run, None
                self._restart()
                # what the replica had not heard of is lost: tasks, and leases, without anybody's being able to know
                self.accepted = frozenset(task for task in self.accepted if self.model.state(task))
                self.granted = {
                    task: lease
                    for task, lease in self.granted.items()
                    if self.model.owners.get(task) == lease[0] == before.get(task)
                }
                self.owed.clear()
                self.over, self.calls_back = frozenset(), 0
            else:
                model.now += JUMP_MS if kind == "forward" else -JUMP_MS
        self.check()

    def _pass(self, ms: int) -> None:
        self.model.now += ms
        self.steady += ms
        self.used["ticks"] += 1

    def _restart(self) -> None:
        held = {task: lease for task, lease in self.granted.items() if lease[1] > self.steady}
        self._pass(TICK_MS)
        self.model.run += "+"
        # whoever held a valid lease when the server went may extend it first, for one lease
        for task, (token, until) in held.items():
            self.granted[task] = (token, max(until, self.steady + LEASE_MS))

    # ---- what must never be

    def _look_on(self, request: Request, answer: Any) -> None:
        if request.verb == "claim" and len(answer) == 4 and answer != "LATE":
            self._grant(request, answer)
        elif request.verb == "extend":
            for (task, token), letter in zip(request.pairs, answer[2], strict=True):
                if letter == "O":
                    self._of_the_owner(task, token, "extend")
                    self.granted[task] = (token, self.steady + LEASE_MS)
        elif request.verb in ("ack", "release", "fail"):
            for (task, token), letter in zip(request.pairs, answer, strict=True):
                if letter == "O":
                    self._of_the_owner(task, token, request.verb)
                    self.granted.pop(task, None)
                    self.accepted |= set(request.ids)
                    if request.verb == "ack":
                        self._owe(request)
        elif request.verb == "put" and not request.age:
            self._owe(request, answer)

    def _owe(self, request: Request, letters: str = "") -> None:
        """A put with rerun, or an ack, was carried out: a run of each of its tasks must begin, unless it has failed."""
        rerun, bodies = request.given.rerun, dict(request.given.payloads)
        for i in () if rerun is None else rerun or range(len(request.ids)):
            task = request.ids[i]
            if task not in self.model.failed:
                body = bodies.get(i)
                self.owed[task] = self.owed.get(task) if body is None else body

    def _grant(self, request: Request, answer: Any) -> None:
        _, _, fence, ids = answer
        if fence <= self.fence:
            raise Violation(f"I5: fence {fence} after {self.fence}")
        self.fence = fence + len(ids) - 1
        for task in ids:
            if task not in self._held:  # else the claim was sent again, and begins nothing
                self._runs(task)
            token, until = self.granted.get(task, ("", 0))
            if token not in ("", request.call) and self.steady < until:
                raise Violation(f"I4: {request.call} has {task}, which is {token}'s for {until - self.steady} ms more")
            if token != request.call:
                self.granted[task] = (request.call, self.steady + LEASE_MS)

    def _runs(self, task: str) -> None:
        newest, payload = self.owed.pop(task, None), self.model.payload.get(task)
        if newest is not None and payload != newest:
            raise Violation(f"{task} runs with payload {payload}, and {newest} was put last")

    def _of_the_owner(self, task: str, token: str, verb: str) -> None:
        last = self.granted.get(task)
        if last is not None and last[0] != token:
            raise Violation(f"I3: {verb} of {task} by {token} was accepted, but {last[0]} has it")

    def check(self) -> None:
        found = self.model.violations()
        if found:
            raise Violation("; ".join(found))
        lost = [task for task in self.accepted if self.model.state(task) is None]
        if lost:
            raise Violation(f"I2: lost: {lost}")
        if self.limits.seal[0]:
            self._check_batch(self.limits.seal[0])
        for task in self.owed:
            if self.model.state(task) == "d" or (task in self.model.in_progress and task not in self.model.marks):
                raise Violation(f"no run of {task} follows, which a put with rerun wants")
        if not self.faults or set(self.faults) <= {"late", "forward", "back"}:
            known = {(task, token) for worker in self.workers.values() for task, token in worker.held.items()}
            phantoms = self.model.owners.items() - known
            if phantoms:
                raise Violation(f"nobody knows of these leases, and nobody died: {phantoms}")

    def _check_batch(self, callback: str) -> None:
        """Check that the callback becomes ready once, and not before the last task of the batch has ended."""
        model = self.model
        was_over = callback in self.over
        self.over |= {task for task in TASKS if model.state(task) in ("d", "f")}
        one = model.batches.get(BATCH)
        if one is None or one.state == "o":
            return
        running = [task for task, _ in one.tasks if task not in self.over]
        if running and not self._waits():
            raise Violation(f"the callback is in {model.state(callback)}, and {running} have not ended")
        if not running and self._waits():
            raise Violation("the callback waits, and all tasks of its batch have ended")
        if self.calls_back > 1 or (was_over and callback not in self.over & (model.done | model.failed)):
            raise Violation("the callback became ready twice")

    def quiet(self) -> None:
        """Let everybody be gone but the cleaners: all must come back (I8). In place."""
        for _ in range(2 + 2 * len(self.cleaners)):
            self.model.now += LEASE_MS
            self.steady += LEASE_MS
            for name in self.cleaners:
                self.model.requeue_expired(self.cleaners[name] + self.steady)
                self.cleaners[name] = self.model.now - self.steady
            self.model.promote_due()
            # a due time is one of the server's clock: when that steps back, the task waits as much longer
            due = [at for at in self.model.scheduled.values() if at < WAITS]
            if not self.model.in_progress and (not due or "back" in self.faults):
                self.check_quiet()
                return
        raise Violation(f"I8: still held {self.model.leases} or scheduled {self.model.scheduled}")

    def check_quiet(self) -> None:
        found = self.model.violations()
        if found or self.model.leases or self.model.owners:
            raise Violation(f"I6: {found}, {self.model.leases}, {self.model.owners}")


def _again(request: Request, age: int) -> Request:
    return replace(request, age=max(1, age))


def _dated(request: Request, not_after: int) -> Request:
    return replace(request, not_after=not_after)


def told(steps: list[Step]) -> str:
    """Write a schedule down, a line a step."""
    lines: list[str] = []
    for step in steps:
        what: Mapping[str, Any] = {}
        if step.request is not None:
            names = ("call", "age", "pairs", "ids", "number", "rule", "given", "batch")
            plain = Request(step.request.verb)
            said = {name: getattr(step.request, name) for name in names}
            what = {name: value for name, value in said.items() if value != getattr(plain, name)}
        verb = f" {step.request.verb}" if step.request else ""
        lines.append(f"{step.actor}{verb} {what or ''} {step.picked or ''} {step.fate}".rstrip())
    return "\n".join(lines)
