"""Servers that are full, busy, slow, away at first, or refuse: what runs goes on, no call outlives its deadline."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis._parsers.base import BaseParser
from redis.exceptions import ClusterDownError

from tests.rig.faces import Blocking
from tests.rig.invariants import check
from tests.rig.waiting import wait_until
from timeoutq import AccessDenied, AsyncQueue, Cleaner, Queue, ServerFull, State, Unavailable, UnsafeServer
from timeoutq.client.heartbeat import Beat, Heartbeat
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.troubles import explain, is_hopeless, is_transient
from timeoutq.verbs import sending

FACES: list[Any] = [Queue, Blocking]
REDIS = shutil.which("redis-server")
BINARIES = [
    pytest.param(None, id="valkey"),
    pytest.param(REDIS, id="redis", marks=pytest.mark.skipif(REDIS is None, reason="no redis-server: apt-get install")),
]


# ---- a full server


@pytest.fixture(params=BINARIES)
def full(request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue whose server has no memory left for another task."""
    with EmbeddedServer(binary=request.param, config={"maxmemory": "6mb"}) as server:
        with Queue("q", server.url, timeout=5) as queue:
            put = 0
            with pytest.raises(ServerFull):
                while True:
                    put += queue.put([f"{put}-{i}" for i in range(500)]).added
            with redis.Redis.from_url(server.url) as raw:  # what is full to the brim may have room a moment later
                raw.config_set("maxmemory", raw.info("memory")["used_memory"] - 100_000)
            yield queue
            check(server.url, "q")
            queue.purge()


def test_a_full_server_leases_with_locks(full: Queue) -> None:
    leases = full.claim(5)
    with redis.Redis.from_url(full.talk.server.url) as raw:
        for lease in leases:
            assert raw.get(f"{full.operations.key('lock')}{lease.task}") == lease.token.encode()


def test_a_full_server_takes_expired_tasks_back(full: Queue) -> None:
    leases = full.claim(5, timeout=0.02)
    assert wait_until(full.requeue_expired) == 5
    assert list(full.ack(leases)) == ["lost"] * 5


def test_a_full_server_lets_the_operator_act(full: Queue) -> None:
    full.pause()
    assert full.claim() == []
    full.resume()
    (lease,) = full.claim()
    full.fail(lease, "x", give_up=True)
    assert full.retry_failed(all=True) == 1
    full.configure(keep_done=0, max_crashes=3)
    full.ack(full.claim(200))
    assert full.prune() == 0
    assert full.forget(*(entry.task for entry in full.list("todos", n=20).entries)).counts().keys() == {"todos"}


def test_a_full_server_takes_the_ack_of_a_task_but_not_what_it_found(full: Queue) -> None:
    (lease,) = full.claim()
    with pytest.raises(ServerFull, match="takes no new tasks"):
        full.ack(lease, put={"child": {"depth": 1}})
    assert full.states("child") == ["unknown"]
    assert full.ack(lease) == "ok"
    (again,) = full.claim()
    assert full.ack(again, again_in=60) == "ok"
    (retried,) = full.claim()
    assert full.fail(retried, "no", retry_in=60) == "ok"
    (released,) = full.claim()
    assert full.release(released, delay=60) == "ok"
    assert full.stats().scheduled == 3


def test_a_full_server_keeps_the_leases_of_those_who_live(full: Queue) -> None:
    leases = full.claim(20, timeout=0.5)
    held = {lease.fence: lease for lease in leases}
    lost: list[Any] = []
    own = AsyncQueue("q", full.talk.server.url, timeout=0.5)
    heart = Heartbeat([Beat(own, held, lost.extend, lambda: {"pid": 1})])
    heart.start()
    wait_until(lambda: full.stats().now > leases[0].deadline + 0.5)
    assert full.requeue_expired() == 0
    assert [worker.pid for worker in full.workers()] == [1]
    heart.stop()
    assert lost == []
    assert full.ack(leases).ok == 20


# ---- restarts


@pytest.mark.parametrize("binary", BINARIES)
def test_already_the_first_restart_gives_live_workers_a_lease_to_extend(binary: str | None, tmp_path: Path) -> None:
    """Nothing had ever expired on this queue, and nobody had cleaned it."""
    config = {"appendfsync": "always"}
    with EmbeddedServer(tmp_path, binary=binary, config=config) as server, Queue("q", server.url, timeout=0.5) as queue:
        queue.put("a")
        (lease,) = queue.claim()
        server.kill()
        wait_until(lambda: time.time() > lease.deadline + 0.1)
        server.start()
        assert queue.requeue_expired() == 0
        assert queue.extend(lease).deadline > lease.deadline
        assert queue.ack(lease) == "ok"


# ---- who was not met is not trusted


@pytest.mark.parametrize("kind", FACES)
def test_a_server_that_was_away_at_first_is_still_judged(kind: Any) -> None:
    with EmbeddedServer() as server:
        port = server.port
    with kind("q", f"redis://127.0.0.1:{port}/0", deadline=0.3, keep_done=7) as queue:
        with pytest.raises(Unavailable, match="is the server up"):
            queue.put("a")
        with EmbeddedServer(port=port, config={"maxmemory-policy": "allkeys-lru"}):
            with pytest.raises(UnsafeServer, match="maxmemory-policy is allkeys-lru"):
                queue.put("a")
        with EmbeddedServer(port=port):
            assert queue.put("a").added == 1
            assert queue.stats().settings["keep_done"] == "n7"


# ---- deadlines


@contextmanager
def deaf() -> Iterator[int]:
    """A port whose connections are never accepted: the queue of those that wait is full."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port: int = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for link in waiting:
                link.setblocking(False)
                link.connect_ex(("127.0.0.1", port))
            yield port
        finally:
            for link in waiting:
                link.close()


@contextmanager
def moody(answers: bytes, after: float) -> Iterator[int]:
    """A server that says the same to everybody after a while, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        stop = threading.Event()
        threads: list[threading.Thread] = []

        def answer(link: socket.socket) -> None:
            with link:
                stop.wait(after)
                if answers:
                    link.sendall(answers)

        def serve() -> None:
            while not stop.is_set():
                try:
                    link, _ = server.accept()
                except TimeoutError:
                    continue
                threads.append(threading.Thread(target=answer, args=(link,)))
                threads[-1].start()

        threads.append(threading.Thread(target=serve))
        threads[0].start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.breaking
@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize("how", ["deaf", "hangs up", "hangs up late", "cuts its reply"])
def test_no_call_takes_longer_than_its_deadline(kind: Any, how: str) -> None:
    servers: dict[str, Callable[[], AbstractContextManager[int]]] = {
        "deaf": deaf,
        "hangs up": lambda: moody(b"", 0),
        "hangs up late": lambda: moody(b"", 0.35),
        "cuts its reply": lambda: moody(b"*2\r\n$10\r\n17", 0.1),
    }
    with servers[how]() as port, kind("q", f"redis://127.0.0.1:{port}/0", deadline=1) as queue:
        acts: list[Callable[[], object]] = [lambda: queue.put("a"), queue.claim, queue.stats]
        for act in acts:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                act()
            assert time.monotonic() - began < 1.2


def test_no_attempt_starts_in_the_second_half_of_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could take the other half; and a claim that leaves at the end is late, which hides the server's reason."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(random, "uniform", lambda _, most: most)  # pyright: ignore[reportUnknownLambdaType]  # as uniform()
    with Queue("q", "redis://nowhere", deadline=0.4) as queue:
        queue.talk.proved = True
        queue.talk.durable.learn(0, now[0])
        flow = sending.settle(queue.talk, queue.operations.forget(("a",)))
        sent: list[float] = []
        reply: object = None
        with pytest.raises(StopIteration) as ended:
            while True:
                step = flow.send(reply)
                if isinstance(step, sending.Send):
                    sent.append(now[0])
                    reply = [redis.ResponseError("BUSY a script runs")]
                else:
                    assert isinstance(step, sending.Sleep)
                    now[0] += step.seconds
                    reply = None
    assert len(sent) > 2
    assert max(sent) <= 0.2
    assert "BUSY" in str(ended.value.value[0])


# ---- servers that refuse for a while, or for good


@pytest.mark.parametrize(
    "code",
    ["LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF", "NOGOODSLAVE", "READONLY"],
)
def test_what_a_server_refuses_only_now_is_known_however_redis_py_gives_it(code: str) -> None:
    """Of some errors it takes the code off and gives a class instead."""
    parser: Any = BaseParser
    error = parser.parse_error(f"{code} the server says why")
    assert is_transient(error)
    assert isinstance(explain(error, "redis://x"), Unavailable)


def test_the_alert_of_a_server_that_speaks_tls_is_explained() -> None:
    error = redis.InvalidResponse(r'Protocol Error, got "\x15" as reply type byte')
    assert "write rediss://" in str(explain(error, "redis://x"))


def test_an_error_that_is_its_own_cause_is_explained() -> None:
    # so redis-py raises what a node of a cluster says that is down
    error = ClusterDownError("CLUSTERDOWN The cluster is down")
    error.__cause__ = error
    assert isinstance(explain(error, "redis+cluster://x"), Unavailable)
    assert not is_hopeless(error)


def as_user(url: str, user: str, password: str) -> str:
    """Give the URL of the same server for another user."""
    return re.sub("//([^@/]*@)?", f"//{user}:{password}@", url)


def test_a_busy_server_is_waited_for(face: Any, raw: redis.Redis, url: str) -> None:
    client: Any = raw
    face.put("a")
    version = "busy-reply-threshold" if client.config_get("busy-reply-threshold") else "lua-time-limit"
    client.config_set(version, 20)

    def loop() -> None:
        with redis.Redis.from_url(url) as other, pytest.raises(redis.ResponseError):
            busy: Any = other
            busy.eval("while true do end", 0)

    thread = threading.Thread(target=loop)
    thread.start()
    killer = threading.Timer(0.3, lambda: client.script_kill())
    killer.start()
    assert face.put("b").added == 1
    thread.join()
    killer.join()
    client.config_set(version, 5000)


@pytest.mark.parametrize("kind", FACES)
def test_a_primary_without_the_replicas_that_it_needs_takes_nothing(kind: Any, url: str, raw: redis.Redis) -> None:
    client: Any = raw
    with kind("q", url, deadline=0.3) as queue:
        queue.stats()
        client.config_set("min-replicas-to-write", 1)
        try:
            with pytest.raises(Unavailable, match="NOREPLICAS"):
                queue.put("a")
        finally:
            client.config_set("min-replicas-to-write", 0)
        assert queue.stats().known == 0
        assert queue.put("a").added == 1


@pytest.mark.parametrize("kind", FACES)
def test_a_password_that_is_changed_is_told_at_once_also_to_a_queue_that_is_open(
    kind: Any, url: str, raw: redis.Redis
) -> None:
    client: Any = raw
    client.acl_setuser("guest", enabled=True, passwords=["+c4n4ry"], commands=["+@all"], keys=["*"])
    try:
        with kind("q", as_user(url, "guest", "c4n4ry"), deadline=20) as queue:
            queue.put("a")
            client.acl_setuser("guest", enabled=True, reset_passwords=True, passwords=["+another"])
            client.client_kill_filter(_type="normal", skipme=True)
            began = time.monotonic()
            with pytest.raises(AccessDenied, match="check user, password and ACL"):
                queue.stats()
            assert time.monotonic() - began < 10
    finally:
        client.acl_deluser("guest")


def test_a_client_does_not_take_a_jump_for_the_way_of_things(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: here[0])
    clock = sending.ServerClock()
    clock.seen(5_000_000, 1000.0)
    here[0] += 1
    clock.seen(5_061_000, 1001.0)  # a minute more than has passed
    assert clock.now_ms == 5_061_000
    assert clock.expected_ms < 5_002_000, "what the next round of a cleaner judges by is what an even clock would show"
    clock.swept(5_061_000, 1001.0)  # it has judged
    assert clock.expected_ms >= 5_061_000


async def test_a_full_server_keeps_its_cleaners(full: Queue) -> None:
    leases = full.claim(20, timeout=0.05)
    async with AsyncQueue("q", full.talk.server.url, timeout=5) as queue:
        task = asyncio.create_task(Cleaner(queue).run())
        async with asyncio.timeout(5):
            while (await queue.stats()).in_progress:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert list(full.ack(leases)) == ["lost"] * 20


@pytest.mark.parametrize("binary", BINARIES)
def test_the_grace_after_a_restart_ends(binary: str | None, tmp_path: Path) -> None:
    config = {"appendfsync": "always"}
    with EmbeddedServer(tmp_path, binary=binary, config=config) as server, Queue("q", server.url, timeout=0.3) as queue:
        queue.put("a")
        (lease,) = queue.claim()
        server.kill()
        wait_until(lambda: time.time() > lease.deadline + 0.1)
        server.start()
        assert queue.requeue_expired() == 0
        began = time.monotonic()
        (again,) = queue.claim(wait=5)
        assert time.monotonic() - began < 1.5
        assert (again.task, again.crashes) == ("a", 1)
        assert queue.stats().counters["restarts"] == 1


@pytest.mark.parametrize("kind", FACES)
def test_a_user_without_rights_is_told_so_and_writes_nothing(kind: Any, url: str, raw: redis.Redis) -> None:
    client: Any = raw
    client.acl_setuser("guest", enabled=True, passwords=["+c4n4ry"], commands=["+@all", "-smove"], keys=["*"])
    client.acl_setuser("other", enabled=True, passwords=["+c4n4ry"], commands=["+@all"], keys=["elsewhere:*"])
    try:
        with Queue("q", url) as owner:
            owner.put("a")
            for user in ("guest", "other"):
                with kind("q", as_user(url, user, "c4n4ry"), deadline=1) as queue:
                    with pytest.raises(AccessDenied, match="refuses access") as caught:
                        queue.claim()
                    assert "c4n4ry" not in f"{caught.value!r}"
                    assert "invalid username-password pair" not in str(caught.value)
            assert owner.inspect("a").state is State.TODOS
    finally:
        client.acl_deluser("guest", "other")
    check(url, "q")


def test_a_password_for_a_server_that_has_none_is_refused_with_the_cure() -> None:
    with EmbeddedServer() as server, Queue("q", as_user(server.url, "", "secret")) as queue:
        with pytest.raises(AccessDenied, match="check user, password and ACL"):
            queue.put("a")
