"""What a seed means: the queue, the worker processes, the tasks and what their handlers do, and the faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

ASYNC_SHAPES = ("async def", "lambda", "decorated", "partial", "object", "partial of object", "with state")
THREAD_SHAPES = ("def", "def that gives a coroutine", "object with def", "partial of def")

IN_THE_LOOP = ("async def", "partial", "object", "partial of object", "with state")
"""The shapes that no thread calls: the threads of a worker with two queues are not simulated."""

ENDS_WELL = ("ok", "ack", "children", "generator", "again", "context", "spawn", "block", "long", "heavy", "turns")
"""Behaviours of a handler that end in an ack."""
GIVES_BACK = ("release", "release_raised", "group_of_releases", "release_block", "ack_raised")
FAILS = (
    "raise", "retry", "retry_raised", "give_up", "wrong", "wrong_generator", "wrong_class", "bad_put",
    "timeout_error", "retry_block",
)  # fmt: skip
HOPELESS = ("give_up", "wrong", "wrong_generator", "wrong_class", "bad_put")
"""Failures that no repeat can mend: one such run is enough."""
ODD = (
    "odd_text", "generator_exit", "base", "base_group", "system_exit", "cancel_self", "cancel_self_late",
    "cancelled_error",
)  # fmt: skip
RUDE = ("swallow", "cancel_other", "cancel_all", "hang", "slow_cleanup")
DEADLY = ("die_0", "die_1", "die_9", "die_11")


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task, and what its handler does at each run; after the last run of these it ends well."""

    name: str
    at: float
    """Seconds after the begin at which it is put."""
    runs: tuple[str, ...] = ()
    delay: float = 0.0
    """Above 0 it is scheduled."""
    takes: float = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at: float
    who: str = "*"
    """A process; `*`: all; `busy`: the next whose handler works for some time."""
    seconds: float = 0.0
    number: int = 0


WORKERS = ("one", "strict", "weights", "shards", "app")
"""The kinds of workers: with one queue, with two in a strict order or with weights, with a queue over several shards,
and with an app, whose two queues have weights."""
TWO = ("strict", "weights", "app")
"""The kinds that have a second queue."""
AFTER = ">after"
"""The end of the ids of calls in the second queue that follow a call of an app."""
CALLS = (
    "ok", "ack", "context", "spawn", "block", "long", "turns", "release", "release_raised", "raise", "retry",
    "retry_raised", "give_up", "timeout_error", "hang", "swallow", "slow_cleanup", *DEADLY,
)  # fmt: skip
"""Behaviours of the functions of an app."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    shape: str
    processes: int = 1
    concurrency: int = 3
    timeout: float = 3.0
    deadline: float = 2.0
    drain_deadline: float = 2.0
    max_runtime: float | None = None
    prefetch: int | None = None
    polite: bool = False
    delay: float = 0.05
    """Seconds of pause after a visit of a host; of a polite queue only."""
    per_host: int = 2
    max_tasks: int | None = None
    slow_part: float = 0.0
    rate: float = 0.0
    storm: float = 8.0
    """Seconds after which all faults are over."""
    tasks: tuple[PlannedTask, ...] = ()
    faults: tuple[Fault, ...] = ()
    calm: tuple[PlannedTask, ...] = field(default=())
    worker: str = "one"
    """The kind of its workers."""
    shards: int = 0
    """Over how many shards the queue lies; 0 for a plain one."""
    second: tuple[PlannedTask, ...] = ()

    def is_second(self, task: str) -> bool:
        return task.endswith(AFTER) or any(one.name == task for one in self.second)

    @property
    def in_threads(self) -> bool:
        return self.shape in THREAD_SHAPES


def planned(seed: int, worker: str = "") -> Plan:
    """Draw a plan, with this kind of workers if one is named."""
    chance = random.Random(f"plan {seed}")
    in_threads = chance.random() < 0.3
    shape = chance.choice(THREAD_SHAPES if in_threads else ASYNC_SHAPES)
    timeout = chance.choice((1.5, 2.0, 3.0, 5.0))
    max_runtime = round(timeout * chance.choice((2, 3)), 1) if chance.random() < 0.5 else None
    storm = chance.choice((4.0, 8.0))
    kinds = _kinds(chance, in_threads=in_threads, limited=max_runtime is not None)
    tasks = tuple(
        PlannedTask(
            f"t{i}",
            round(chance.uniform(0, storm * 0.8) if chance.random() < 0.7 else 0.0, 3),
            tuple(chance.choice(kinds) for _ in range(chance.choice((0, 1, 1, 1, 2, 2)))),
            round(chance.uniform(0.2, 3.0), 3) if chance.random() < 0.2 else 0.0,
            round(chance.choice((0.0, 0.01, 0.1, 0.5, 0.5 * timeout)) * chance.uniform(0.5, 1.5), 4),
        )
        for i in range(chance.randint(2, 9))
    )
    processes = chance.choice((1, 1, 2, 2, 3))
    polite = chance.random() < 0.3
    heavy = any("heavy" in task.runs for task in tasks)
    plan = Plan(
        seed, shape, processes,
        concurrency=chance.choice((1, 2, 3, 5)),
        timeout=timeout,
        deadline=chance.choice((1.0, 2.0)),
        drain_deadline=chance.choice((0.5, 2.0, 4.0)),
        max_runtime=max_runtime,
        prefetch=chance.choice((None, None, 0, 2)),
        polite=polite,
        delay=chance.choice((0.05, 0.3, 1.0)),
        per_host=chance.choice((1, 1, 2)),
        max_tasks=chance.randint(2, 5) if chance.random() < 0.1 else None,
        slow_part=chance.choice((0.0, 0.0, 0.02, 0.1)),
        rate=chance.choice((150_000.0, 400_000.0)) if heavy else 0.0,
        storm=storm,
        tasks=tasks,
        faults=_faults(chance, storm, processes, polite=polite),
        calm=_calm(chance, timeout, max_runtime),
    )  # fmt: skip
    plan = _with_a_late_end(chance, plan) if chance.random() < 0.25 else plan
    plan = _with_all_cancelled(chance, plan) if chance.random() < 0.05 else plan
    drawn = random.Random(f"worker {seed}").random()
    worker = worker or ("shards" if drawn < 0.2 else "app" if drawn < 0.4 else "")
    return _of_kind(random.Random(f"second {seed}"), plan, worker)


def _kinds(chance: random.Random, *, in_threads: bool, limited: bool) -> list[str]:
    """Draw what handlers of this run may do: few kinds, so that each has a chance to matter."""
    kinds = ["ok", *chance.sample(ENDS_WELL, 3), *chance.sample(FAILS, 2)]
    if chance.random() < 0.5:
        kinds += chance.sample(GIVES_BACK, 2)
    if chance.random() < 0.5:
        kinds += chance.sample(ODD, 3)
    if chance.random() < 0.4:
        kinds += chance.sample(RUDE, 2)
    if chance.random() < 0.25:
        kinds += chance.sample(DEADLY, 2)
    if not limited:  # without a limit, a handler that hangs holds its task for ever, as promised
        kinds = [kind for kind in kinds if kind not in ("hang",)]
    if in_threads:
        kinds = [kind for kind in kinds if kind not in ("cancel_self", "cancel_self_late", "swallow", "slow_cleanup")]
    return kinds


KINDS = (
    "cut", "cut", "deaf", "silence", "silence", "down", "flush", "kill", "kill", "stop", "deploy", "pause", "freeze",
    "freeze",
)  # fmt: skip
"""Faults. A process that freezes stands still, and then goes on as if no time had passed."""
RULES = ("rule", "rule", "block")
"""Changes that a person makes to the hosts of a polite queue."""


def _faults(chance: random.Random, storm: float, processes: int, *, polite: bool) -> tuple[Fault, ...]:
    """Draw the faults; a third of all runs has none."""
    found: list[Fault] = []
    if chance.random() < 0.33:
        return ()
    for _ in range(chance.randint(1, 5)):
        kind = chance.choice(KINDS + RULES if polite else KINDS)
        who = chance.choice(("*", *(f"p{i}" for i in range(processes))))
        at = round(chance.uniform(0.05, storm * 0.9), 3)
        seconds = chance.choice((0.2, 0.8, 2.0, 4.0))
        seconds = round(min(seconds, storm - at), 3)
        found.append(Fault(kind, at, who, seconds, chance.randrange(4)))
    return tuple(sorted(found, key=lambda fault: fault.at))


def _with_a_late_end(chance: random.Random, plan: Plan) -> Plan:
    """Have a lease run out while its handler works, and another get the task before the first handler ends."""
    at = round(chance.uniform(0, 1), 3)
    takes = round(plan.timeout * chance.uniform(0.3, 0.6), 3)
    task = PlannedTask("slow", at, (chance.choice((*ENDS_WELL[:5], "raise", "release")),), takes=takes)
    seconds = round(plan.timeout * chance.uniform(1.0, 1.4), 3)
    fault = Fault(chance.choice(("freeze", "silence")), at, "busy", seconds)
    return replace(
        plan,
        processes=max(2, plan.processes),
        storm=max(plan.storm, round(at + seconds + 1, 3)),
        tasks=(*plan.tasks, task),
        faults=tuple(sorted((*plan.faults, fault), key=lambda fault: fault.at)),
    )


def _with_all_cancelled(chance: random.Random, plan: Plan) -> Plan:
    """Have a handler cancel all that its process does, while the network is well: no lease may be left."""
    task = PlannedTask("cancels", round(chance.uniform(0, 1), 3), ("cancel_all",) * chance.randint(1, 3), takes=0.01)
    return replace(
        plan, concurrency=max(2, plan.concurrency), slow_part=0.0, rate=0.0, tasks=(*plan.tasks, task), faults=()
    )


def _of_kind(chance: random.Random, plan: Plan, worker: str) -> Plan:
    """Give a plan workers of a kind; if none is named, half of those that can have a second queue get one."""
    # really, the heartbeats of several queues have an event loop of their own, in which no handler can cancel anything
    rude = ("cancel_other", "cancel_all")
    if not worker and (plan.shape not in IN_THE_LOOP or any(what in rude for task in plan.tasks for what in task.runs)):
        return plan
    if worker == "one" or (not worker and chance.random() < 0.5):
        return plan
    if worker == "shards":
        return replace(plan, worker=worker, shards=chance.choice((2, 3)))
    second = tuple(
        PlannedTask(f"s{i}", round(chance.uniform(0, plan.storm), 3), takes=round(chance.uniform(0, 0.3), 3))
        for i in range(chance.randint(1, 5))
    )
    worker, is_app = worker or chance.choice(("strict", "weights")), worker == "app"
    tasks = tuple(
        replace(task, runs=tuple(what for what in task.runs if (what in CALLS if is_app else what not in rude)))
        for task in plan.tasks
    )
    shape = "async def" if is_app or plan.shape not in IN_THE_LOOP else plan.shape
    return replace(
        plan, worker=worker, second=second, tasks=tasks, shape=shape, polite=plan.polite and not is_app,
        faults=tuple(fault for fault in plan.faults if not (is_app and fault.kind in RULES)),
    )  # fmt: skip


def _calm(chance: random.Random, timeout: float, max_runtime: float | None) -> tuple[PlannedTask, ...]:
    found = [PlannedTask("c0", 0.0, takes=0.01)]
    if chance.random() < 0.7:
        found.append(PlannedTask("c1", round(chance.uniform(0, 1), 3), delay=round(chance.uniform(0.3, 2.0), 3)))
    if chance.random() < 0.4 and (max_runtime is None or max_runtime > timeout * 2.5):
        found.append(PlannedTask("c2", 0.2, takes=round(timeout * 1.4, 3)))
    return tuple(found)
