"""Measures the longest script of each verb on a queue of a million tasks. During a script, all other clients wait."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from tests.bench.ground import Figure, Ground, Readings, cpu_ms, measure
from timeoutq.client import Queue
from timeoutq.rooms import batches as of_batches
from timeoutq.rooms import failures as of_failures
from timeoutq.rooms import hosts as of_hosts
from timeoutq.rooms import results as of_results
from timeoutq.rooms.hosts import Rule
from timeoutq.rooms.schedules import definition as of_schedules
from timeoutq.rooms.schedules.definition import Definition
from timeoutq.rooms.schedules.timing import Timing
from timeoutq.server import rights, scripts
from timeoutq.server.calls import BATCH, Call, Command
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs import sending
from timeoutq.words import arguments
from timeoutq.words.arguments import How
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import HostRecord, Lease, Politeness, Record, State, Task

HOUR_MS = 3_600_000
REPLAY = "claim-again"
"""The name of a claim that is sent again: it looks for its leases among all leases."""
TRIES = 3
LONGEST = 50
"""The longest time that a script may take, ms."""

VERBS = scripts.verbs()


class Scene:
    """The queue that is measured, and the acts that use its verbs."""

    def __init__(self, ground: Ground, queue: Queue) -> None:
        self.ground = ground
        self.queue = queue
        self.big, self.hosts, self.leased, self.flying = ground.sizes.pauses
        self.held: list[Lease] = []
        self.flown: list[Lease] = []
        self._numbers = count()
        self._ranks = count(1)
        self.ops = queue.operations
        self.longest: dict[str, float] = {}
        """For each verb, how long its longest script took, ms of the server's CPU."""

    # ---- the queue and its tasks

    def urls(self, n: int) -> list[str]:
        """Give `n` new URLs of the huge host."""
        return [f"https://big.example.com/articles/2026/{next(self._numbers):09d}.html" for _ in range(n)]

    def strangers(self, n: int) -> list[str]:
        """Give `n` new URLs, each of another small host."""
        return [f"https://small{next(self._numbers)}.example.com/articles/2026.html" for _ in range(n)]

    def run(self, *calls: Call[Any]) -> Any:
        """Run calls one by one, note how long each script took, and give the result of the last call."""
        found = None
        for call in calls:
            pipe = self.ground.bare.pipeline(transaction=False)
            pipe.execute_command("INFO", "cpu")
            pipe.execute_command(*call.command())
            pipe.execute_command("INFO", "cpu")
            before, reply, after = pipe.execute()
            took = cpu_ms(after) - cpu_ms(before)
            self.longest[call.name] = max(self.longest.get(call.name, 0.0), took)
            found = call.read(reply)
        return found

    def promote(self, most: int) -> None:
        """Let hosts have their turns, in `most` rounds at most."""
        for _ in range(most):
            if not self.run(self.queue.operations.promote_due()).moved:
                break

    def rule(self, *rules: Rule) -> None:
        host = self.run(of_hosts.call_host(self.ops, "big.example.com", rules))
        while host.recalling:
            host = self.run(of_hosts.call_host(self.ops, "big.example.com", [("recall", "")]))

    def claim(self, n: int) -> list[Lease]:
        found: list[Lease] = []
        while len(found) < n:
            some = self.queue.claim(min(BATCH, n - len(found)))
            if not some:
                break
            found += some
        return found

    def build(self) -> None:
        """Make the queue. Leases come first: so they are leases of tasks without a host."""
        queue, chunk = self.queue, 10_000
        for at in range(0, self.leased, chunk):
            queue.put([f"no host at all, {number:09d}" for number in range(at, min(at + chunk, self.leased))])
            self.held += self.claim(chunk)
        for _ in range(0, self.big, chunk):
            queue.put(self.urls(min(chunk, self.big)))
        queue.hosts.set("big.example.com", per_host=10_000)
        while queue.promote_due():
            pass
        for _ in range(0, self.hosts, chunk):
            some = self.strangers(min(chunk, self.hosts))
            queue.put(some)
            queue.put([f"{url}?again" for url in some])
        queue.put(self.urls(BATCH), again=True)

    def fly(self) -> None:
        """Claim until `flying` tasks of hosts are held, in three rounds at most."""
        for _ in range(3):
            if len(self.flown) >= self.flying:
                break
            self.flown += self.claim(self.flying - len(self.flown))
            self.promote(20)

    # ---- the acts; each is tried three times

    def acts(self) -> Iterator[Callable[[], object]]:
        yield self.rank  # from now on, the queue has priorities
        yield from (self.put, self.schedule, self.claims, self.replay, self.extend, self.ack, self.fail, self.release)
        yield self.cancel
        yield self.fail_for_good
        yield from (self.crash, self.pull, self.forget, self.clean, self.prune, self.repair, self.look, self.transfer)
        yield from (self.batch, self.tick, self.rules, self.block, self.ban, self.end_politeness, self.begin_politeness)

    def put(self) -> None:
        """Put tasks of one host, tasks of many hosts, and tasks without a host; put each of them twice."""
        for some in (self.urls(BATCH), self.strangers(BATCH), [f"x{next(self._numbers)}" for _ in range(BATCH)]):
            for _ in range(2):
                self.run(*self.ops.put((some,), self.queue.talk.nonce))

    def rank(self) -> None:
        """Put tasks with priorities, and raise them; have some in progress run once more, and bring done tasks back."""

        def put(tasks: list[str]) -> None:
            how = arguments.How(priority=next(self._ranks), improve=True)
            self.run(*self.ops.put((tasks,), self.queue.talk.nonce, how))

        for some in (self.urls(BATCH), self.strangers(BATCH)):
            put(some)
            put(some)
        again, done = _taken(self.flown, BATCH), _taken(self.flown, BATCH)
        put([lease.task for lease in again])
        self.run(*self.ops.ack(again), *self.ops.ack(done))
        put([lease.task for lease in done])

    def schedule(self) -> None:
        """Schedule tasks that are due at once, and make them ready."""
        for some in (self.urls(BATCH), self.strangers(BATCH)):
            for _ in range(2):
                self.run(*self.ops.schedule((some,), self.queue.talk.nonce, after=0))
        self.promote(5)

    def claims(self) -> None:
        for _ in range(4):
            self.flown += self.run(self.ops.claim(self.queue.token(), BATCH, HOUR_MS)).leases
            self.run(*self.ops.put((self.strangers(BATCH),), self.queue.talk.nonce))

    def replay(self) -> None:
        """Claim, then send the claim again as one from before all leases: it looks for its leases among all leases."""
        call = self.ops.claim(self.queue.token(), BATCH, HOUR_MS)
        self.flown += self.queue.run(sending.answer(self.queue.talk, call)).leases
        found = self.run(_Aged(call))
        while found.rest is not None:
            found = self.run(found.rest)

    def extend(self) -> None:
        for leases in (self.held, self.flown):
            self.run(*self.ops.extend(leases[-BATCH:], HOUR_MS))

    def ack(self) -> None:
        """Ack tasks with a host and without: for good, for an hour, and some together with tasks that they found."""
        for leases in (self.flown, self.held):
            self.run(*self.ops.ack(_taken(leases, BATCH)))
            self.run(*self.ops.ack(_taken(leases, BATCH), HOUR_MS))
        for leases, found in ((self.flown, self.urls), (self.flown, self.strangers), (self.held, self.strangers)):
            for lease in _taken(leases, 2):
                self.run(self.ops.ack_put(lease, arguments.tasks((found(BATCH - 1),))))

    def fail(self) -> None:
        """Fail tasks, each with its own traceback: some for another attempt, some for good; then retry failed ones."""
        for leases in (self.flown, self.held):
            for retry_ms in (0, -1):
                some = _taken(leases, BATCH)
                traces = [b"%09d " % next(self._numbers) + b"no\n" * 2700 for _ in some]
                self.run(*self.ops.fail(some, [retry_ms] * len(some), [b"no" * 1000] * len(some), traces))
        for _ in range(3):
            self.run(self.ops.retry_any())
        self.promote(5)

    def release(self) -> None:
        """Release tasks: to be ready now, to be ready in an hour, and with a block of their hosts."""
        self.run(*self.ops.release(_taken(self.flown, BATCH)))
        self.run(*self.ops.release(_taken(self.held, BATCH), HOUR_MS))
        self.run(*self.ops.release(_taken(self.flown, BATCH), 0, 20))
        self.promote(30)

    def crash(self) -> None:
        for leases in (self.flown, self.held):
            self.run(*self.ops.crash(_taken(leases, BATCH), "it died"))

    def pull(self) -> None:
        self.run(*[self.ops.pull(BATCH) for _ in range(3)])

    def forget(self) -> None:
        some = self.urls(BATCH)
        self.run(*self.ops.put((some,), self.queue.talk.nonce))
        for tasks in (some, *([lease.task for lease in _taken(leases, BATCH)] for leases in (self.flown, self.held))):
            self.run(*self.ops.forget((tasks,)))

    def cancel(self) -> None:
        """Cancel tasks that wait, and tasks that are held, and end the leases on the latter."""
        some = self.urls(BATCH)
        self.run(*self.ops.put((some,), self.queue.talk.nonce))
        self.run(*self.ops.cancel((some,), b"bench", self.queue.talk.nonce))
        for leases in (self.held, self.flown):
            ended = _taken(leases, BATCH)
            self.run(*self.ops.cancel(([lease.task for lease in ended],), b"bench", self.queue.talk.nonce))
            self.run(*self.ops.extend(ended, HOUR_MS))
            self.run(*(self.ops.note(lease, "1", "2", b"x" * 200) for lease in ended[:5]))
            self.run(*self.ops.release(ended))

    def fail_for_good(self) -> None:
        """Retry and forget all tasks of one kind of failure; give up tasks of five hundred kinds."""
        for verb, some in (("retry", self.urls(BATCH)), ("forget", self.strangers(BATCH))):
            self.run(*self.ops.put((some,), self.queue.talk.nonce))
            self.run(*self.ops.cancel((some,), b"bench", self.queue.talk.nonce))
            self.run(of_failures.move_kind(self.ops, verb, b"cancelled", 0.0, BATCH))
        ended = _taken(self.flown, BATCH)
        errors = [f"Broken: page {chr(97 + n // 26)}{chr(97 + n % 26)}".encode() for n in range(len(ended))]
        self.run(*self.ops.fail(ended, [-1] * len(ended), errors, [b""] * len(ended)))

    def clean(self) -> None:
        """Do what a cleaner does, after leases ran out."""
        for _ in range(3):
            self.run(self.ops.claim(self.queue.token(), BATCH, 10))
        time.sleep(0.02)
        for _ in range(10):
            self.run(self.ops.requeue_expired(BATCH), self.ops.promote_due(), self.ops.plan(10_000))
        self.run(self.ops.beat("bench", {"pid": 1}))
        self.run(*self.ops.publish("bench", {f"function{n}": ("0" * 16, "{}" * 1000) for n in range(BATCH)}))

    def prune(self) -> None:
        """Prune with two settings: all done tasks but the newest hundred are dropped, then none is dropped."""
        for keep in (b"n100", b"forever"):
            self.run(self.ops.configure({"keep_done": keep}))
            cursor = b"0"
            for _ in range(10):
                cursor = self.run(self.ops.prune(cursor=cursor)).cursor

    def repair(self) -> None:
        """Walk through some of each state, each hash and the tasks of each host, and mend what is wrong."""
        cursor = b"1 0"
        while cursor:
            stage = int(cursor.split()[0])
            for _ in range(15):
                if cursor.startswith(b"%d " % stage):
                    cursor = self.run(self.ops.repair(cursor=cursor)).cursor
            if cursor.startswith(b"%d " % stage):
                cursor = b"%d 0" % (stage + 1)

    def look(self) -> None:
        task = self.urls(1)[0]
        self.run(self.ops.stats(), self.ops.drained(), self.ops.inspect(task), self.ops.why(task))
        self.run(of_hosts.call_host(self.ops, "big.example.com"))
        self.run(of_hosts.call_page(self.ops, 0, 500), of_hosts.call_page(self.ops, self.hosts // 2, 500))
        self.run(*self.ops.states((self.urls(BATCH),)))
        self.run(of_results.call_look(self.ops, [id.encode() for id in self.urls(BATCH)]))
        self.run(self.ops.probe(*rights.trials()))

    def tick(self) -> None:
        """Let a schedule tick, as often as one call takes; declare as many as one call takes; read one."""
        definition, nonce = Definition(Timing(), b"tick"), self.queue.talk.nonce
        self.run(of_schedules.call_write(self.ops, nonce(), b"s", None, ["r", 1, *definition.sections("d", "set")]))
        (stored,) = self.run(of_schedules.call_rows(self.ops, "names", 0, b"s")).found
        ids = [b"tick@%d" % number for number in range(BATCH)]
        self.run(of_schedules.call_tick(self.ops, nonce(), stored, definition, ids, 0, 1, 0))
        self.run(of_schedules.call_renew(self.ops, {b"s%d" % number: "d" for number in range(BATCH)}))
        self.run(of_schedules.call_write(self.ops, nonce(), b"s", stored, ["x", 0]))
        self.run(*self.ops.forget((ids,)))

    def batch(self) -> None:
        """End the last tasks of as many batches as one call takes; put, look at and end a large batch."""
        nonce = self.queue.talk.nonce
        ids = [f"member{number}" for number in range(BATCH)]
        names = [f"batch{number}" for number in range(BATCH)]
        for id, name in zip(ids, names, strict=True):
            self.run(*self.ops.put((id,), nonce, How(batch=name)))
            callback = arguments.tasks((Task(f"after {name}", "x" * 2000),))
            self.run(of_batches.call_seal(self.ops, nonce(), name, callback, "ended", 1000))
        self.run(*self.ops.put((ids,), nonce, How(batch="large")))
        joined = [of_batches.Joined("large", id.encode(), "open") for id in ids]
        self.run(of_batches.restore_batch(self.ops, nonce, "large", joined, None))
        self.run(of_batches.call_forget(self.ops, nonce(), "large"))
        self.run(of_batches.restore_batch(self.ops, nonce, "large", joined, None))
        self.run(of_batches.call_seal(self.ops, nonce(), "large", arguments.tasks(()), "done", 1000))
        self.run(
            of_batches.call_members(self.ops, "large", 1, BATCH), of_batches.call_batches(self.ops, "page", "0", BATCH)
        )
        self.run(*self.ops.forget((ids,)))
        self.run(of_batches.call_batches(self.ops, "names", 0, *names))
        self.run(*[of_batches.call_forget(self.ops, nonce(), name) for name in ("large", *names)])
        self.promote(2)
        self.run(*self.ops.forget(([f"after {name}" for name in names],)))

    def transfer(self) -> None:
        self.run(self.ops.describe([lease.task.encode() for lease in self.flown[:BATCH]] or [b"x"]))
        for urls in (self.urls(BATCH), self.strangers(BATCH)):
            records = [Record(url.encode(), State.TODOS, payload=1) for url in urls]
            self.run(self.ops.restore(records, self.queue.talk.nonce))
        hosts = [b"big.example.com", *(b"new%d.example.com" % next(self._numbers) for _ in range(BATCH - 1))]
        self.run(of_hosts.describe_hosts(self.ops, hosts))
        known = [HostRecord(host, budget=10**9, visits=1, next_allowed=1.0) for host in hosts]
        self.run(of_hosts.restore_hosts(self.ops, known, self.queue.talk.nonce))

    def rules(self) -> None:
        for per_host in (9_000, 1, 10_000):
            self.rule(("per_host", per_host))
            self.promote(25)

    def block(self) -> None:
        """Block the huge host, then end the block."""
        self.rule(("block", HOUR_MS), ("by", "bench"))
        self.rule(("unblock", ""))
        self.promote(25)

    def ban(self) -> None:
        """Ban the huge host for a moment: a part of its waiting tasks goes to failed."""
        self.rule(("ban", "they asked"))
        self.promote(10)
        self.rule(("unblock", ""))

    def end_politeness(self) -> None:
        """End the politeness of the queue, and convert a part of the tasks."""
        self.run(self.ops.configure({"politeness": b"off"}))
        for lease in _taken(self.flown, 100):
            self.run(self.ops.convert(), *self.ops.ack([lease]))

    def begin_politeness(self) -> None:
        """Begin politeness again, and do a part of each of the four walks of its conversion."""
        self.run(self.ops.configure({"politeness": b"0 1"}))
        for state in (b"p", b"t", b"q", b"h"):
            cursor = state + b"0"
            self.ground.bare.hset(self.ops.key("meta"), "converting", cursor.decode())
            for _ in range(100):
                if cursor[:1] == state:
                    cursor = self.run(self.ops.convert())

    def purge(self) -> None:
        self.run(*[self.ops.purge() for _ in range(300)])


class _Aged(Call[Any]):
    """A call that says that it was sent before, ten minutes ago."""

    def __init__(self, call: Call[Any]) -> None:
        super().__init__(REPLAY, call.head, call.id, call.args, call.read, dated=call.dated)

    def command(self, age_ms: int = 0, *, not_after: int = 0, expected: int = 0) -> Command:
        return super().command(age_ms or 600_000, not_after=not_after, expected=expected)


def _taken(leases: list[Lease], n: int) -> list[Lease]:
    found = leases[-n:]
    del leases[-n:]
    return found


# ---- on a server


@contextmanager
def busy(ground: Ground, queue: Queue) -> Iterator[None]:
    """Claim and ack from another thread, as workers do."""
    ended = threading.Event()

    def work() -> None:
        with Queue(queue.name, ground.url, timeout=HOUR_MS / 1000) as mine:
            while not ended.wait(0.01):
                with suppress(TimeoutqError):
                    mine.ack(mine.claim(10))

    thread = threading.Thread(target=work, name="busy")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measured(ground: Ground) -> dict[str, float]:
    """Build the queue on one server and try all acts; give the longest script of each verb, ms."""
    found: dict[str, float] = {}
    with ground.queue(timeout=HOUR_MS / 1000, politeness=Politeness(0, 1)) as queue:
        scene = Scene(ground, queue)
        scene.build()

        def tried(act: Callable[[], object]) -> None:
            tries: list[dict[str, float]] = []
            for _ in range(TRIES):
                if act != scene.purge:
                    scene.fly()
                scene.longest = {}
                act()
                tries.append(scene.longest)
            for verb in tries[0].keys() & tries[1].keys() & tries[2].keys():
                found[verb] = max(found.get(verb, 0.0), min(longest[verb] for longest in tries))

        with busy(ground, queue):
            for act in scene.acts():
                tried(act)
        tried(scene.purge)
    return found


# ---- the table


OTHER = "redis-server"
"""The second server to measure, if PATH has it."""


@measure(
    "pauses",
    *(
        Figure(f"pauses-{name}{end}", f"the longest script of {about}{where}, CPU time", "ms", None, f"≤ {LONGEST:g}")
        for end, where in (("", ""), ("-redis", ", on redis-server"))
        for name, about in [*((verb, verb) for verb in VERBS), (REPLAY, "a claim that is sent again")]
    ),
    once=True,
    heavy=True,
    asked=True,
)
def pauses(ground: Ground) -> Readings:
    taken: dict[str, float | None] = {}
    here = measured(ground)
    taken |= {f"pauses-{name}": value for name, value in here.items()}
    if ground.embedded and shutil.which(OTHER):
        with EmbeddedServer(binary=OTHER) as server, Ground(server.url, ground.sizes) as other:
            there = measured(other)
        taken |= {f"pauses-{name}-redis": value for name, value in there.items()}
    return taken
