"""Plays random schedules of a world on a real server, with the real library: each reply must be the model's."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import redis

from tests.rig import keys, kinds
from tests.rig.beside import processes
from tests.rig.model import NOTHING, Given
from tests.rig.moment import Moment
from tests.rig.polite_world import PoliteWorld, drawn
from tests.rig.servers import redis_server, wrapped
from tests.rig.shims import Clock
from tests.rig.world import LEASE_MS, TASKS, Limits, Request, Step, Violation, World, told
from timeoutq import Lease, Task
from timeoutq.rooms import batches as of_batches
from timeoutq.server import scripts
from timeoutq.server.calls import BATCH_KEPT, Call
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs.operations import Operations
from timeoutq.words import arguments
from timeoutq.words.arguments import How

PART = 600
"""How many schedules one process plays before it tells how far it is."""
LENGTH = 60
"""The most steps of a schedule: a cleaner may look as often as it likes."""

LIMITS = Limits(claims=6, extends=3, releases=2, fails=3, ticks=12, faults=4)
ANEW = replace(
    LIMITS,
    puts=(("a",), ("b", "a"), ("a",), ("b", "b", "a")),
    givens=(
        NOTHING,
        Given(payloads=((0, 1), (1, 1)), rerun=(0,)),
        Given(payloads=((0, 2),), rerun=()),
        Given(payloads=((1, 3), (2, 3)), rerun=(1, 2)),
    ),
    finds=(
        ("b", ("a", "b"), Given(payloads=((0, 4),), rerun=(0,))),
        ("a", ("a",), Given(payloads=((0, 5),), rerun=())),
    ),
)
"""Each fifth schedule: puts have tasks run once more that are in progress or done, and so do the acks of both tasks."""
BATCHED = [
    replace(LIMITS, puts=(("a",), ("b", "a")), seal=("z", "ended")),
    replace(LIMITS, puts=(("a",), ("b", "a")), seal=("z", "done")),
    replace(ANEW, finds=(), seal=("z", "ended")),
]
"""Each fifth schedule, too: all tasks are of a batch."""
VERBS = ("put", "claim", "ack", "release", "fail", "extend", "promote_due", "convert", "seal_batch")
OFTEN = {**dict.fromkeys(VERBS, 1.0), "tick": 1.5, "requeue_expired": 1.5}
"""How likely each kind of step is; those that are not here are faults."""
ELSEWHERE = b"0" * 40


class Differs(Violation):
    """The server did not answer as the model."""


@contextmanager
def still_server() -> Iterator[tuple[EmbeddedServer, Clock]]:
    """Give a Redis server whose clock stands still, and the clock.

    Keys that have expired go when somebody asks for them, and not when the server looks round by a clock of its own: a
    lock that the clock brings back by a step back would be there or not, by luck.
    """
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder))
        program = wrapped(redis_server(), clock.environment, Path(folder))
        config: dict[str, Any] = {"save": '""', "hz": 1, "enable-debug-command": "local"}
        with EmbeddedServer(binary=program, config=config) as server:
            with redis.Redis.from_url(server.url) as client:
                client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
            yield server, clock
        clock.close()


class Player:
    """Plays schedules on one server."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.clock = clock
        self.operations = Operations("schedules")
        self.client.function_load(scripts.library(), replace=True)
        clock.freeze()

    def close(self) -> None:
        self.client.close()

    # ---- a schedule

    def play(self, seed: int, limits: Limits | None = LIMITS) -> int:
        """Play the schedule of a seed; without limits it is in a polite world. Give how many steps it has.

        Raises `Differs`.
        """
        chance = random.Random(seed)
        world = self._begin(seed, limits)
        if world.limits.max_crashes != 5:
            self.client.hset(self._key("meta"), mapping={"max_crashes": world.limits.max_crashes})
        played: list[Step] = []
        try:
            while len(played) < LENGTH and (steps := list(world.steps())):
                step = self._choose(world, steps, chance)
                played.append(step)
                self._take(world, step, steps, played)
                if chance.random() < 0.2:
                    self._compare(world)
                if chance.random() < 0.15:
                    self._sleep(world, hears=chance.random() < 0.5)
            self._compare(world)
            self._count_kinds()
            self._purge()
        except Differs as differs:
            raise Differs(f"seed {seed}: {differs}\n{told(played)}") from None
        return len(played)

    def _count_kinds(self) -> None:
        # the model keeps no texts of errors: the keys say what the kinds of failures are to be
        key = self._key("")
        kinds.check(self.client, key, set(self.client.smembers(f"{key}failed")))

    def _begin(self, seed: int, limits: Limits | None) -> World:
        if limits is LIMITS:
            limits = ANEW if seed % 5 == 2 else BATCHED[seed % 7 % 3] if seed % 5 == 3 else LIMITS
        world = PoliteWorld(drawn(random.Random(seed))) if limits is None else World(limits)
        self.client.flushall()
        self._key = self.operations.key
        self.clock.set_ms(world.model.now)
        if limits is not None and seed % 2 == 1:
            self._run(self.operations.configure({"keep_done": b"compact %d" % seed}).command())
            world.model.exists = True
        if isinstance(world, PoliteWorld):
            self._send(Request("configure", number=1), world)
            while self._send(Request("convert"), world) != "end":
                pass
        return world

    @staticmethod
    def _choose(world: World, steps: list[Step], chance: random.Random) -> Step:
        # whoever lost a lease and does not know it yet is soon told: here he speaks first, often enough
        stale = [each for each in steps if each.request and not all(map(world.model.holds, each.request.pairs))]
        if stale and chance.random() < 0.3:
            steps = stale
        kinds = [each.request.verb if each.request else each.actor for each in steps]
        # one kind is as likely as another, in however many ways it is possible; but for faults, or all would be chaos
        kind = chance.choices(kinds, [OFTEN.get(kind, 0.2) / kinds.count(kind) for kind in kinds])[0]
        return chance.choice([each for each, of in zip(steps, kinds, strict=True) if of == kind])

    def _take(self, world: World, step: Step, steps: list[Step], played: list[Step]) -> None:
        if step.request is None:
            self._strike(world, step)
            return
        if step.fate == "late":
            world.take(step)
            return
        request = step.request
        reply = self._send(request, world)
        if request.verb == "claim" and len(reply) == 4:
            # the server picks at random: it must be one of the model's possibilities
            picked = reply[3]
            step = next(
                (
                    each
                    for each in steps
                    if (each.actor, each.fate, each.request) == (step.actor, step.fate, step.request)
                    and (each.picked or picked) == picked
                ),
                step,
            )
            played[-1] = step
        try:
            answer = world.take(step)
        except Violation as violation:
            raise Differs(str(violation)) from None
        if isinstance(answer, tuple) and len(answer) == 4 and request.verb == "claim":
            answer = (*answer[:3], tuple(sorted(answer[3])))
        if answer != reply:
            raise Differs(f"{request.verb}: the server answers {reply}, the model {answer}")

    def _strike(self, world: World, step: Step) -> None:
        known, before = world.model.known_run, world.model.run
        if step.actor == "replicate":
            self._copy_all(0, 1)
        world.take(step)
        if step.actor == "failover":
            self._copy_all(1, 0)
        # the run of a server cannot be chosen; that the queue was last seen at another one can be
        if step.actor in ("restart", "failover") and known is not None and before != world.model.run:
            meta = self._key("meta")
            if self.client.hexists(meta, "run_id"):
                self.client.hset(meta, "run_id", ELSEWHERE)
        self.clock.set_ms(world.model.now)

    def _copy_all(self, source: int, target: int) -> None:
        client = self.client
        client.execute_command("SELECT", target)
        client.flushdb()
        client.execute_command("SELECT", source)
        pipe = client.pipeline(transaction=False)
        for key in client.keys("*"):
            pipe.execute_command("COPY", key, key, "DB", target)
        pipe.execute()
        client.execute_command("SELECT", 0)

    def _sleep(self, world: World, *, hears: bool) -> None:
        """A cleaner says by when it looks again, and an idle worker may take the stroke of the bell."""
        reply = self._run(self.operations.plan(10_000).command())
        if tuple(reply[:2]) != world.model.plan(10_000):
            raise Differs(f"plan: the server answers {reply}")
        if hears:
            self.client.delete(self._key("bell"))
            world.model.bell = False

    # ---- requests

    def _run(self, words: Any) -> Any:
        return self.client.execute_command(*words)

    def _send(self, request: Request, world: World) -> Any:
        call = self._call(request, world)
        expected = request.number if request.verb == "requeue_expired" else 0
        words = call.command(request.age, not_after=request.not_after, expected=expected)
        try:
            reply = self._run(words)
        except redis.ResponseError as error:
            return str(error).split()[0]
        return _plain(request.verb, reply)

    def _call(self, request: Request, world: World) -> Call[Any]:
        ops = self.operations
        if request.verb == "seal_batch":
            callback, kept = arguments.tasks((request.ids[0],)), round(BATCH_KEPT * 1000)
            on: Any = request.rule[0]
            return of_batches.call_seal(ops, request.call.encode(), request.batch, callback, on, kept)
        if request.verb in ("host", "configure", "convert") or request.given != Request("").given:
            return self._polite_call(request, world)
        leases = [Lease(task, token, 0.0, 1, 0, 0) for task, token in request.pairs]
        if request.verb == "put":
            return ops.put((list(request.ids),), request.call.encode, How(batch=request.batch or None))[0]
        if request.verb == "claim":
            return ops.claim(request.call.encode(), request.number, LEASE_MS)
        if request.verb == "extend":
            return ops.extend(leases, request.number)[0]
        if request.verb == "ack":
            return ops.ack(leases)[0]
        if request.verb == "release":
            return ops.release(leases, block_ms=request.number)[0]
        if request.verb == "fail":
            return ops.fail(leases, [request.number] * len(leases), [b"no"] * len(leases))[0]
        if request.verb == "requeue_expired":
            return ops.requeue_expired()
        assert request.verb == "promote_due", f"_call() does not know which call is {request}"
        return ops.promote_due()

    def _polite_call(self, request: Request, world: World) -> Call[Any]:
        ops, given = self.operations, request.given
        if request.verb == "host":
            return ops.call("host", [request.ids[0], *request.rule], tuple)
        if request.verb == "convert":
            return ops.convert()
        if request.verb == "configure":
            assert isinstance(world, PoliteWorld)
            rules = b"%d %d" % (world.limits.delay_ms, world.limits.per_host) if request.number else b"off"
            return ops.configure({"politeness": rules})
        bodies, groups, levels = dict(given.payloads), dict(given.groups), dict(given.priorities)
        every, anew = given.improve == (), given.rerun == ()
        tasks = [
            Task(
                task, bodies.get(i), group=groups.get(i), priority=levels.get(i),
                improve=i in (given.improve or ()) or (every and request.verb == "ack"),
                rerun=i in (given.rerun or ()) or (anew and request.verb == "ack"),
            )
            for i, task in enumerate(request.ids)
        ]  # fmt: skip
        if request.verb == "ack":
            ((task, token),) = request.pairs
            return ops.ack_put(Lease(task, token, 0.0, 1, 0, 0), arguments.tasks((tasks,)))
        return ops.put((tasks,), request.call.encode, How(improve=every, rerun=anew, batch=request.batch or None))[0]

    # ---- what the keys say

    def _compare(self, world: World) -> None:
        for difference in keys.differences(world.model, Moment(self.client, self._key("")), TASKS):
            raise Differs(difference)

    def _purge(self) -> None:
        call = self.operations.purge()
        while not self._run(call.command()):
            pass
        left = self.client.keys("*")
        if left:
            raise Differs(f"I10: purged, and yet there are {left}")


def _plain(verb: str, reply: Any) -> Any:
    if verb == "claim":
        if len(reply) == 3:
            return tuple(reply)
        now, deadline, fence, ids, *_ = reply
        return now, deadline, int(fence), tuple(sorted(task.decode() for task in ids))
    if verb == "extend":
        return reply[0], reply[1], reply[2].decode()
    if verb == "requeue_expired":
        return tuple(reply[:3])
    if verb == "promote_due":
        return tuple(reply[:2])
    if verb == "host":
        return None if reply is None else _host(reply)
    return reply.decode() if isinstance(reply, bytes) else reply


def _host(reply: Any) -> tuple[Any, ...]:
    turn, following = None if reply[3] is None else float(reply[3]), [word and keys.text(word) for word in reply[15:17]]
    numbers = (*reply[4:9], int(reply[9]), int(reply[10]))
    held = [keys.text(task) for task in reply[2]]
    return (keys.text(reply[0]), reply[1], held, turn, *numbers, keys.text(reply[11]), reply[13], *following)


def play_some(seeds: range, limits: Limits | None = LIMITS) -> int:
    """Play the schedules of some seeds on a server of their own; give how many steps they had. Raises `Differs`."""
    with still_server() as (server, clock):
        player = Player(server.url, clock)
        steps = sum(player.play(seed, limits) for seed in seeds)
        player.close()
    return steps


def play_many(
    count: int, first: int = 0, tell: Callable[[str], object] = lambda _: None, *, limits: Limits | None = LIMITS
) -> int:
    """Play many, on a server a core; give how many steps they had, and `tell` how far it is. Raises `Differs`."""
    parts = [range(at, min(at + PART, first + count)) for at in range(first, first + count, PART)]
    steps = played = 0
    with processes() as pool:
        play = partial(play_some, limits=limits)
        results = pool.map(play, parts) if len(parts) > 1 else map(play, parts)
        for part, more in zip(parts, results, strict=True):
            steps, played = steps + more, played + len(part)
            tell(f"{played:,} schedules, {steps:,} steps")
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.schedules", description="The model against a server.")
    parser.add_argument("count", type=int, nargs="?", default=5000, help="how many schedules")
    parser.add_argument("first", type=int, nargs="?", default=0, help="the seed of the first one")
    parser.add_argument("--polite", action="store_true", help="on a polite queue")
    given = parser.parse_args()
    limits = None if given.polite else LIMITS
    began = time.monotonic()
    try:
        steps = play_many(given.count, given.first, lambda line: print(line, file=sys.stderr), limits=limits)
    except Differs as differs:
        print(f"Differs: {differs}")
        return 1
    speed = given.count / (time.monotonic() - began)
    print(f"{given.count:,} schedules, {steps:,} steps, {speed:.0f} schedules/s, 0 differ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
