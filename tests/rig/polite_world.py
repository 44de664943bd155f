"""A polite queue and everybody around it: hosts and their rules, priorities, second runs, and an operator."""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from tests.rig.model import NOTHING, Given, Model, NoHost
from tests.rig.model_state import Rules
from tests.rig.world import LEASE_MS, START_MS, Limits, Request, Step, Violation, World

DELAY_MS = 500
"""Less than a tick: after it, the next visit may begin."""
BLOCK_MS = 900
"""More than a tick, and less than two."""
A, B, C, D = "http://h/a", "http://h/b", "http://g/c", "http://g/d"


def levels(*found: int, improve: bool = False) -> Given:
    """Give tasks priorities, and payloads that tell them."""
    pairs = tuple(enumerate(found))
    return Given(payloads=pairs, priorities=pairs, improve=() if improve else None)


@dataclass(frozen=True, slots=True)
class PoliteLimits(Limits):
    """How much of each may happen in a polite world."""

    delay_ms: int = DELAY_MS
    per_host: int = 1
    rules: tuple[tuple[str, str, str], ...] = ()
    blocks: int = 0
    """Releases that block their host."""
    switches: int = 0
    """How often politeness ends or begins."""


SMALL = PoliteLimits(
    puts=((A, B, C), (B,)),
    givens=(levels(-1, -2, 0), levels(-1, improve=True)),
    finds=((A, (B, C), levels(-2, 1, improve=True)),),
    rules=(("h", "block", str(BLOCK_MS)), ("g", "ban", "so it is")),
    claims=1, batch=1, extends=0, releases=0, fails=0, ticks=2, faults=0, kinds=frozenset({"lost", "crash"}),
)  # fmt: skip
"""Two hosts, three tasks with priorities; a put and an ack that raise and improve; a block and a ban."""

LINKS = replace(
    SMALL,
    per_host=2,
    rules=(),
    puts=((A, C),),
    givens=(levels(0, 0),),
    finds=((A, (B,), levels(0)), (C, (D,), levels(0))),
    ticks=0,
)
"""Two hosts with two places each; each ack puts a link to a new page of its host."""

POLITE = {
    "leases run out, are released and fail": replace(SMALL, releases=1, fails=1),
    "two claims each": replace(SMALL, claims=2, ticks=1),
    "replies about hosts are lost and workers die": replace(SMALL, ticks=1, faults=1),
    "two visits at once, budgets and blocks by workers": replace(
        SMALL, per_host=2, blocks=1, ticks=1, rules=(("h", "budget", "1"), ("h", "per_host", "1"), ("h", "budget", "3"))
    ),
    "two visits at once, and acks with links": replace(LINKS, claims=2, ticks=1, faults=1),
    "politeness ends and begins": replace(SMALL, switches=2, ticks=1, rules=SMALL.rules[:1]),
}


class PoliteWorld(World):
    """A polite queue, its clients and its operator, and what an onlooker knows who sees everything."""

    limits: PoliteLimits

    def __init__(self, limits: PoliteLimits) -> None:
        super().__init__(limits)
        self.used |= {"blocks": 0, "switches": 0}
        self.ruled: frozenset[int] = frozenset()
        # the onlooker's
        self.ended: dict[str, int] = {}
        """When the last visit of a host ended, in real time."""
        self.best: dict[str, int] = {}
        """The highest priority with which a task was to run."""

    def _queue(self) -> Model:
        model = Model(START_MS)
        assert isinstance(self.limits, PoliteLimits)
        model.configure_politeness(self.limits.delay_ms, self.limits.per_host)
        while model.convert() != "end":
            pass
        return model

    def copy(self) -> Self:
        other = super().copy()
        other.ended, other.best = dict(self.ended), dict(self.best)
        return other

    def key(self) -> int:
        seen: tuple[Hashable, ...] = (frozenset(self.ended.items()), frozenset(self.best.items()))
        return hash((super().key(), self.ruled, *seen))

    # ---- what may happen next

    def steps(self) -> Iterator[Step]:
        yield from super().steps()
        model = self.model
        if any(at <= model.now for at in model.turns.values()) and not any(
            at <= model.now for at in model.scheduled.values()
        ):
            yield Step("c1", Request("promote_due"))
        for i, (host, rule, value) in enumerate(self.limits.rules):
            if i not in self.ruled and model.usual is not None:
                yield Step("operator", Request("host", ids=(host,), rule=(rule, value), number=i))
        if self.used["switches"] < self.limits.switches and not model.converting:
            yield Step("operator", Request("configure", number=0 if model.usual else 1))
        if model.converting:
            yield Step("operator", Request("convert"))

    def _worker_steps(self, name: str, worker: Any) -> Iterator[Step]:
        yield from super()._worker_steps(name, worker)
        if worker.open is None and worker.travelling is None and self.used["blocks"] < self.limits.blocks:
            for pair in sorted(worker.held.items()):
                yield Step(name, Request("release", f"release{pair}", pairs=(pair,), number=BLOCK_MS))

    # ---- what then is

    def take(self, step: Step, reply: Any = None) -> Any:
        self._held = held = frozenset(self.model.in_progress)
        ready, waited = set(self.model.todos), set(self.model.waiting)
        if step.request is not None and step.request.verb == "release" and step.request.number:
            self.used["blocks"] += 1
        answer = super().take(step, reply)
        for task in held - self.model.in_progress:
            self.ended[self.model.host(task)] = self.steady
        if step.request is not None and step.request.verb == "put":
            waited |= set(step.request.ids)
        self._in_order(self.model.todos - ready, waited)
        return answer

    def _answer(self, request: Request, picked: tuple[str, ...]) -> Any:
        model = self.model
        if request.verb == "host":
            self.ruled |= {request.number}
            return model.set_host(request.ids[0], [request.rule])
        if request.verb == "configure":
            self.used["switches"] += 1
            self.ended.clear()
            limits = self.limits
            return model.configure_politeness(*((limits.delay_ms, limits.per_host) if request.number else (0, 0)))
        if request.verb == "convert":
            return model.convert()
        try:
            return super()._answer(request, picked)
        except NoHost:
            return "PRIORITY"

    def _learn(self, actor: str, request: Request, answer: Any) -> None:
        if answer == "PRIORITY" and actor == "producer":
            self.producer, self.produced = None, self.produced + 1
        elif answer == "PRIORITY":
            self.workers[actor].open = None  # it keeps the lease
        elif actor != "operator":
            super()._learn(actor, request, answer)

    # ---- what must never be

    def _look_on(self, request: Request, answer: Any) -> None:
        if answer == "PRIORITY":
            return
        super()._look_on(request, answer)
        if request.verb == "claim" and len(answer) == 4 and answer != "LATE":
            # a claim that is sent again begins nothing
            for task in set(answer[3]) - self._held:
                self._begins(self.model.host(task))
        elif request.verb in ("put", "ack") and not request.age:
            improved = request.given.improve if request.verb == "put" or answer == "O" else None
            for i, level in request.given.priorities if improved is not None else ():
                task = request.ids[i]
                # of a task that is named twice, only one place counts
                named = improved == () or (i in (improved or ()) and request.ids.count(task) == 1)
                if named and task not in self.model.failed:
                    self.best[task] = max(level, self.best.get(task, level))

    def _begins(self, host: str) -> None:
        model, limits = self.model, self.limits
        if not host or model.converting or model.ending:
            return
        rules, running = (
            model.rules.get(host, Rules()),
            [task for task in model.in_progress if model.host(task) == host],
        )
        if rules.delay is None and self.steady < self.ended.get(host, -limits.delay_ms) + limits.delay_ms:
            raise Violation(f"{host} is visited {self.steady - self.ended[host]} ms after the last visit ended")
        if self.used["switches"]:
            return
        if rules.flag == "x" or model.now < rules.until:
            raise Violation(f"{host} is visited, and is banned, or blocked until {rules.until}")
        if len(running) > (rules.per_host or limits.per_host):
            raise Violation(f"{host} has visits at once: {running}")
        if rules.budget is not None and model.visits.get(host, 0) + len(running) > rules.budget:
            raise Violation(f"{host} has more visits than {rules.budget}")

    def _in_order(self, fresh: Collection[str], waited: Collection[str]) -> None:
        """Of what waited, or came in one put, the highest priority has its turn first."""
        model = self.model
        for task in fresh:
            host, level = model.host(task), model.priorities.get(task, 0)
            over = [other for other in model.lane(host) if other in waited and model.priorities.get(other, 0) > level]
            if host and over:
                raise Violation(f"{task} has its turn with priority {level}, and {over} wait")

    def check(self) -> None:
        super().check()
        model = self.model
        for task, level in self.best.items():
            reached = max(model.priorities.get(task, 0), model.marks.get(task, (-1000, None))[0])
            if task not in model.failed and reached < level:
                raise Violation(f"{task} was to run with priority {level}, and has {reached}")
        for task, payload in model.payload.items():
            if payload != model.priorities.get(task, 0):
                raise Violation(f"{task} has priority {model.priorities.get(task, 0)}, and payload {payload}")

    def check_quiet(self) -> None:
        """Check what must hold when nobody holds anything: one worker more, and all is done (I8)."""
        super().check_quiet()
        model = self.model
        for number in range(60):
            while model.converting:
                model.convert()
            model.promote_due()
            reply = model.claim(f"calm#{number}", 0, LEASE_MS, model.picks(1)[0])
            if len(reply) == 4:
                model.ack(f"calm{number}", [(reply[3][0], f"calm#{number}")])
            elif not model.turns or min(model.turns.values()) > model.now + 10 * LEASE_MS:
                break
            model.now += DELAY_MS
        spent = {task for task in model.waiting if model.rules.get(model.host(task), Rules()).budget is not None}
        if model.todos or model.waiting - spent:
            raise Violation(f"I8: nobody is at work, and there is {model.todos} to do, and {model.waiting} wait")
        self.check()


def drawn(chance: random.Random) -> PoliteLimits:
    """Draw a world for a schedule: its puts, its rules, and how much of each may happen."""
    tasks = (A, B, C, "http://h/d", "http://g/e", "free", "grouped")
    puts, givens = list[tuple[str, ...]](), list[Given]()
    for _ in range(chance.randint(2, 6)):
        some = tuple(chance.choices(tasks[:5], k=chance.randint(1, 4)))
        kind = chance.random()
        if kind < 0.5:
            ranks = tuple((i, chance.randint(-3, 3)) for i in range(len(some)))
            improve = chance.choice([None, (), tuple(range(0, len(some), 2))])
            puts.append(some)
            givens.append(Given(payloads=ranks, priorities=ranks, improve=improve))
        elif kind < 0.7:
            puts.append((*some, "grouped"))
            givens.append(Given(groups=((len(some), chance.choice("hg")),)))
        else:
            puts.append((*some, "free"))
            givens.append(NOTHING)
    found = tuple(chance.choices(tasks[:5], k=3))
    ranks = tuple((i, chance.randint(-3, 3)) for i in range(3))
    rules = [
        (host, *rule)
        for host in "hg"
        for rule in (
            ("block", str(BLOCK_MS)), ("ban", "so"), ("unblock", ""), ("budget", "2"), ("budget", ""), ("delay", "0"),
            ("delay", "1200"), ("per_host", "3"), ("per_host", "1"), ("unblock", ""),
        )
    ]  # fmt: skip
    return PoliteLimits(
        puts=tuple(puts),
        givens=tuple(givens),
        finds=((chance.choice(tasks[:5]), found, Given(payloads=ranks, priorities=ranks, improve=())),),
        delay_ms=chance.choice([0, 1, DELAY_MS]),
        per_host=chance.choice([1, 1, 2, 3]),
        rules=tuple(chance.sample(rules, chance.randint(0, 4))),
        blocks=chance.randint(0, 2),
        switches=chance.choice([0, 0, 0, 2]),
        claims=6, extends=2, releases=2, fails=3, ticks=12, faults=3, batch=chance.choice([1, 2]),
        kinds=frozenset({"lost", "late", "crash"}),
    )  # fmt: skip
