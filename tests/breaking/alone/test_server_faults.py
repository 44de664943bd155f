"""Servers that fail for a second while real workers are at work: full, busy, deaf, read-only, forbidding, dead, back.

Each fault is one context manager: what strikes stands above its `yield`, what lifts it below. One test runs them all:
it starts workers, lets the fault strike, asks the queue through both faces meanwhile, lifts it, and wants the same
processes to finish every task, each redelivery with its cause counted.
"""

from __future__ import annotations

import resource
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from tests.rig.faces import Blocking
from tests.rig.handlers import history
from tests.rig.invariants import check
from tests.rig.processes import Processes, processes
from tests.rig.servers import binary_of
from tests.rig.waiting import wait_until
from timeoutq import AccessDenied, Lease, Outcome, Queue, ReadOnly, ServerFull, TimeoutqError, Unavailable
from timeoutq.server.embedded import EmbeddedServer

T = TypeVar("T")

TASKS = 150
"""How many there are when the fault strikes, less those that are done by then."""

MORE = 50
"""How many come after it, so that there is work whatever the fault let through."""

ASKED = ("asked-by-queue", "asked-by-async-queue")
"""The tasks that the test itself puts during a fault, through either face."""

LONG_LEASE = 60.0
"""The lease of a claim made during a fault: if it takes tasks and its caller hears nothing, the queue never drains."""

LEEWAY = 5.0
"""The time that a stalled machine may add to a call, seconds."""


@dataclass
class Site:
    server: EmbeddedServer
    admin: Any
    folder: Path

    @property
    def pid(self) -> int:
        assert self.server.pid is not None
        return self.server.pid

    def end_connections(self) -> int:
        return int(self.admin.client_kill_filter(_type="normal", skipme=True))


@dataclass(frozen=True)
class Fault:
    """A fault of a server, and the errors that its clients meet."""

    during: Callable[[Site], AbstractContextManager[None]]
    put: type[TimeoutqError] | None
    """The error of a put meanwhile; None if it goes through."""
    others: type[TimeoutqError] | None = None
    """The error of other calls, if not the same, or that they are late."""
    config: Mapping[str, str | int | bool] = field(default_factory=dict[str, "str | int | bool"])
    kept: bool = False
    lasts: float = 0.8
    deadline: float = 0.8
    lease: float = 1.0
    expires: bool = True
    """Whether leases may run out meanwhile."""


# ---- the faults


@contextmanager
def no_memory(site: Site) -> Iterator[None]:
    site.admin.config_set("maxmemory", 1)
    yield
    site.admin.config_set("maxmemory", 0)


@contextmanager
def snapshots_fail(site: Site) -> Iterator[None]:
    # the file of the snapshot is renamed at its end: a directory in its place stops even root
    in_the_way = site.folder / "data" / "dump.rdb"
    site.admin.config_set("save", "3600 100000")
    in_the_way.mkdir()
    snapshot(site, "err")
    yield
    in_the_way.rmdir()
    snapshot(site, "ok")


def snapshot(site: Site, status: str) -> None:
    """Have a snapshot written, and wait until it ended as expected."""
    site.admin.bgsave()

    def ended() -> bool:
        told = site.admin.info("persistence")
        return not told["rdb_bgsave_in_progress"] and told["rdb_last_bgsave_status"] == status

    wait_until(ended)


@contextmanager
def disk_is_full(site: Site) -> Iterator[None]:
    limits = limit_files(site)
    wait_until(lambda: site.admin.info("persistence")["aof_last_write_status"] == "err")
    yield
    resource.prlimit(site.pid, resource.RLIMIT_FSIZE, limits)
    wait_until(lambda: site.admin.info("persistence")["aof_last_write_status"] == "ok")


@contextmanager
def disk_is_full_and_the_server_ends(site: Site) -> Iterator[None]:
    limit_files(site)
    wait_until(lambda: site.server.pid is None)
    yield
    site.server.start()


def limit_files(site: Site) -> tuple[int, int]:
    """Let no file grow beyond what the append-only file has now; give the limits that were."""
    (log,) = (site.folder / "data" / "appendonlydir").glob("*.incr.aof")
    _, most = resource.prlimit(site.pid, resource.RLIMIT_FSIZE)
    return resource.prlimit(site.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, most))


@contextmanager
def no_connection_is_free(site: Site) -> Iterator[None]:
    before = site.admin.config_get("maxclients")["maxclients"]
    site.admin.config_set("maxclients", 1)
    assert site.end_connections() > 2
    yield
    site.admin.config_set("maxclients", before)


@contextmanager
def a_script_runs_on_and_on(site: Site) -> Iterator[None]:
    site.admin.config_set("lua-time-limit", 100)

    def run_script() -> None:
        with redis.Redis.from_url(site.server.url) as other, pytest.raises(redis.ResponseError, match=r"(?i)kill"):
            busy: Any = other
            busy.eval("while true do end", 0)

    with ThreadPoolExecutor(1) as pool:
        script = pool.submit(run_script)
        wait_until(lambda: is_busy(site))
        try:
            yield
        finally:
            site.admin.script_kill()
        script.result()


def is_busy(site: Site) -> bool:
    try:
        return not site.admin.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error) or "busy" in str(error)


@contextmanager
def a_replica_of_nobody(site: Site) -> Iterator[None]:
    # nothing listens there, so what it holds stays
    site.admin.replicaof("127.0.0.1", 1)
    yield
    site.admin.replicaof("NO", "ONE")


@contextmanager
def a_password_comes(site: Site) -> Iterator[None]:
    site.admin.config_set("requirepass", "c4n4ry")
    assert site.end_connections() > 2
    yield
    site.admin.config_set("requirepass", "")


def forbidden(*rights: str) -> Callable[[Site], AbstractContextManager[None]]:
    @contextmanager
    def lacking(site: Site) -> Iterator[None]:
        site.admin.execute_command("ACL", "SETUSER", "default", *(f"-{right}" for right in rights))
        yield
        site.admin.execute_command("ACL", "SETUSER", "default", "+@all")

    return lacking


@contextmanager
def the_process_is_killed(site: Site) -> Iterator[None]:
    site.server.kill()
    yield
    site.server.start()


FAULTS: Mapping[str, Fault] = {
    "no memory": Fault(no_memory, ServerFull),
    "snapshots fail": Fault(snapshots_fail, ServerFull, kept=True, config={"appendonly": False}),
    "disk full, written every second": Fault(disk_is_full, ServerFull, kept=True),
    "disk full, written at once": Fault(
        disk_is_full_and_the_server_ends, Unavailable, kept=True, config={"appendfsync": "always"}, deadline=0.4
    ),
    "no connection is free": Fault(no_connection_is_free, Unavailable, deadline=0.4),
    "a script runs on": Fault(a_script_runs_on_and_on, Unavailable, deadline=0.4, lasts=1.4),
    "a read-only replica": Fault(a_replica_of_nobody, ReadOnly),
    "a password comes": Fault(a_password_comes, AccessDenied),
    "writing is forbidden": Fault(forbidden("@write"), AccessDenied),
    "killed, written every second": Fault(
        the_process_is_killed, Unavailable, kept=True, deadline=0.4, lasts=1.3
    ),
    "killed, written at once": Fault(
        the_process_is_killed, Unavailable, kept=True, config={"appendfsync": "always"}, deadline=0.4, lasts=2.3,
        lease=2.0, expires=False,
    ),
}  # fmt: skip

BOTH = ("writing is forbidden",)
"""The faults that the two servers put into words of their own; the others strike one of them, in turn."""

CASES = [
    pytest.param(fault, kind, id=f"{name}, {kind}")
    for number, (name, fault) in enumerate(FAULTS.items())
    for turn, kind in enumerate(("valkey", "redis"))
    if name in BOTH or number % 2 == turn
]


# ---- what is done meanwhile, and after


@contextmanager
def a_server(fault: Fault, kind: str, folder: Path) -> Iterator[Site]:
    # the signal of a file that may not grow would end it; on a full disk, it gets an error
    script = folder / "server.sh"
    script.write_text(f"#!/bin/sh\ntrap '' XFSZ\nexec {shlex.quote(binary_of(kind))} \"$@\"\n")
    script.chmod(0o755)
    with EmbeddedServer(folder / "data" if fault.kept else None, binary=script, config=fault.config) as server:
        with redis.Redis.from_url(server.url, single_connection_client=True, decode_responses=True) as admin:
            yield Site(server, admin, folder)


def ask(queue: Any, fault: Fault, task: str) -> Sequence[Lease]:
    """Use a queue during a fault: each call gives its answer, or says in time what is wrong. Gives what it claimed."""

    def call(what: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return what()
        except TimeoutqError as error:
            return error
        finally:
            assert time.monotonic() - began < fault.deadline + LEEWAY, task

    # the claim goes first: what it sent on a connection that was open before may reach the server long after
    found, told, stats = (
        call(lambda: queue.claim(1, timeout=LONG_LEASE)),
        call(lambda: queue.put(task)),
        call(queue.stats),
    )
    # of a replica without its primary, Redis says first that it is read-only
    assert isinstance(told, fault.put or Outcome), f"{task}: {told!r}"
    for answer in (found, stats):
        if isinstance(answer, TimeoutqError):
            assert type(answer) in (fault.put, fault.others, Unavailable), f"{task}: {answer!r}"
    return [] if isinstance(found, TimeoutqError) else found


def after(act: Callable[[], T]) -> T:
    def tried() -> list[T]:
        with suppress(Unavailable):
            return [act()]
        return []

    return wait_until(tried, timeout=20)[0]


def explain(run: Processes, tasks: set[str], taken: set[str], counters: Mapping[str, int]) -> None:
    """Check that every task was worked on and acked once, and that each time it came back has its cause."""
    of = Counter(counters)
    assert of["acked"] == len(tasks), counters
    back = of["expired"] + of["released"] + of["failed"]
    assert of["claimed"] + of["adopted"] == of["acked"] + back, counters
    starts = Counter(task for event, task, *_ in history(run.history) if event == "start")
    assert starts.keys() | taken == tasks
    assert starts.total() - len(starts) <= back, (starts.most_common(5), counters)


def logs(run: Processes) -> str:
    return "\n".join(run.log(process) for process in run.all)


Lived = dict[str, Future[None]]


@pytest.fixture(scope="module")
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """All that this run is to see, two at once: most of the time they wait."""
    chosen = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    with ThreadPoolExecutor(2) as pool:

        def begin(item: pytest.Function) -> Future[None]:
            case: dict[str, Any] = item.callspec.params
            return pool.submit(outlive, case["fault"], case["kind"], tmp_path_factory.mktemp("fault"))

        yield {item.name: begin(item) for item in chosen}


@pytest.mark.parametrize(("fault", "kind"), CASES)
def test_workers_outlive_what_befalls_their_server(
    fault: Fault, kind: str, lived: Lived, request: pytest.FixtureRequest
) -> None:
    lived[request.node.name].result()


def outlive(fault: Fault, kind: str, folder: Path) -> None:
    """Have a fault strike two workers, and see that all is done in the end, and why what was done twice."""
    tasks, more = {f"t{i}" for i in range(TASKS)}, {f"m{i}" for i in range(MORE)}
    with a_server(fault, kind, folder) as site, processes(site.server.url, folder) as run:
        url = site.server.url
        workers = [
            run.worker("q", "work", "--concurrency", "4", "--timeout", f"{fault.lease:g}", WORK="0.015")
            for _ in range(2)
        ]
        with Queue("q", url, deadline=fault.deadline) as queue, Blocking("q", url, deadline=fault.deadline) as other:
            assert after(other.stats).known == 0
            wait_until(lambda: len(after(queue.workers)) == 2, timeout=30)
            faces: list[Any] = [queue, other]
            for face in faces:  # a queue tries its rights before it puts something for the first time
                after(partial(face.put, sorted(tasks)))
            wait_until(lambda: len({pid for *_, pid, _ in history(run.history)}) == 2)

            with fault.during(site), ThreadPoolExecutor(2) as pool:
                began = time.monotonic()
                asked = pool.map(ask, (queue, other), (fault, fault), ASKED)
                taken = [list(leases) for leases in asked]
                wait_until(lambda: time.monotonic() - began > fault.lasts)

            for face, task, leases in zip(faces, ASKED, taken, strict=True):
                after(partial(face.put, task))
                assert after(partial(face.ack, leases)).ok == len(leases)
            after(lambda: queue.put(sorted(more)))
            after(queue.prune)  # what rights cut in half is adopted now; each worker does it every thirty seconds
            wait_until(lambda: after(queue.drained), timeout=30)

            assert [worker.poll() for worker in workers] == [None, None], logs(run)
            counters = after(queue.stats).counters
            explain(run, tasks | more | set(ASKED), {lease.task for leases in taken for lease in leases}, counters)
            assert fault.expires or "expired" not in counters, counters
            check(url, "q")
