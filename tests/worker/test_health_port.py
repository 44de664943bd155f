"""`timeoutq worker --health-port`: the table of health, and each of its conditions on real worker processes."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from demo.processes import free_port
from tests.rig.processes import Processes, processes, run, url
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words import exit_codes
from timeoutq.worker.health import Phase, Signs, Verdict, judge, judge_all
from timeoutq.worker.processes.responder import HEAD, MOST, Responder, answer, read_place

__all__ = ["run", "url"]

NOW = 1000.0
GOOD = Signs(Phase.WORKING, lease=10.0, looped=NOW, turned=NOW, answered=NOW, away=False, running=0)
LATE = NOW - 31  # more than three leases ago
RED = (False, False)
GREEN = (True, True)
WAITS = (True, False)  # alive, and not ready


def signs(**other: object) -> Signs:
    return Signs(**{name: other.get(name, getattr(GOOD, name)) for name in Signs.__dataclass_fields__})  # type: ignore[arg-type]  # each is of its field's type


TABLE = {
    "idle": (signs(), GREEN, "idle"),
    "busy": (signs(running=7), GREEN, "busy: 7 handlers run"),
    "busy with handlers that take hours": (signs(running=1, turned=NOW - 29), GREEN, "busy: 1 handler runs"),
    "paused": (signs(turned=NOW - 5), GREEN, "idle"),
    "redis away": (signs(away=True, turned=LATE, answered=LATE), GREEN, "waiting for the server"),
    "redis away, and the loop does not know yet": (signs(turned=LATE, answered=LATE + 9), GREEN, "idle"),
    "redis back": (signs(turned=NOW - 1, answered=NOW), GREEN, "idle"),
    "hung claim loop": (signs(turned=LATE), RED, "has not completed a turn for 31.0 s"),
    "hung claim loop with handlers": (signs(turned=LATE, running=3), RED, "though the server answers"),
    "hung event loop": (signs(looped=LATE, turned=LATE, answered=LATE), RED, "blocked for 31.0 s"),
    "hung event loop while redis is away": (signs(looped=LATE, away=True), RED, "blocked"),
    "a loop that is late by less than three leases": (signs(looped=NOW - 29, turned=NOW - 29), GREEN, "idle"),
    "starting": (Signs(), WAITS, "starting"),
    "starting for long": (signs(phase=Phase.STARTING, looped=LATE, turned=LATE), WAITS, "starting"),
    "draining": (signs(phase=Phase.DRAINING, running=2), WAITS, "draining: 2 handlers run"),
    "draining while redis is away": (signs(phase=Phase.DRAINING, away=True), WAITS, "draining"),
    "draining, and hung": (signs(phase=Phase.DRAINING, looped=LATE), RED, "blocked"),
}


@pytest.mark.parametrize("condition", TABLE)
def test_each_condition_has_its_answer(condition: str) -> None:
    seen, answers, words = TABLE[condition]
    verdict = judge(seen, NOW)
    assert (verdict.alive, verdict.ready) == answers
    assert words in verdict.words


CREW = (2, 10.0, NOW, 0.0, False)
OF_CREWS = {
    "all work": (CREW, {1: GOOD, 2: signs(running=1)}, GREEN, "2 of 2 processes run: 1 idle, 1 busy"),
    "one has died and comes back": ((2, 10.0, NOW, NOW - 1, False), {2: GOOD}, GREEN, "1 of 2 processes run: 1 idle"),
    "one of them hangs": (CREW, {1: GOOD, 2: signs(turned=LATE)}, RED, "process 2: the claim loop"),
    "all start": (CREW, {1: Signs(), 2: Signs()}, WAITS, "2 starting"),
    "all start for long": ((2, 10.0, LATE, 0.0, False), {1: Signs(), 2: Signs()}, WAITS, "2 starting"),
    "all have just died": ((2, 10.0, NOW - 5, NOW - 1, False), {}, WAITS, "0 of 2 processes run: none yet"),
    "they die again and again": ((2, 10.0, LATE, NOW - 1, False), {}, RED, "die as soon as they are started"),
    "the next one starts, as those before": ((2, 10.0, LATE, NOW - 1, False), {1: Signs()}, RED, "die as soon"),
    "they are asked to stop": ((2, 10.0, LATE, NOW - 1, True), {}, WAITS, "stopping"),
    "one hangs while it is asked to stop": (
        (1, 10.0, NOW, 0.0, True), {1: signs(looped=LATE, phase=Phase.DRAINING)}, RED, "blocked",
    ),
}  # fmt: skip


@pytest.mark.parametrize("condition", OF_CREWS)
def test_a_supervisor_answers_for_all_its_processes(condition: str) -> None:
    crew, seen, answers, words = OF_CREWS[condition]
    verdict = judge_all(seen, NOW, *crew)
    assert (verdict.alive, verdict.ready) == answers
    assert words in verdict.words


# ---- the responder


@pytest.mark.parametrize(
    ("text", "found"),
    [("8081", ("127.0.0.1", 8081)), ("0.0.0.0:8081", ("0.0.0.0", 8081)), ("[::]:1", ("::", 1)), ("h:80", ("h", 80))],
)
def test_where_the_port_is(text: str, found: tuple[str, int]) -> None:
    assert read_place(text) == found


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /readyz?x=1 HTTP/1.0\r\n\r\n", b"503"),
        (b"HEAD /healthz HTTP/1.1\n\n", b"200"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /healthz/ HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /%68ealthz HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\x02\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * HEAD + b"\r\n", b"400"),
    ],
)
def test_each_request_has_its_answer(head: bytes, status: bytes) -> None:
    said = answer(head, lambda: Verdict(True, False, "draining"))
    assert said.split()[1] == status
    assert said.startswith(b"HTTP/1.1 ")
    assert (said.endswith(b"\r\n\r\n")) is head.startswith(b"HEAD")


def test_a_connection_that_makes_room_for_another_is_not_read_any_more() -> None:
    place = ("127.0.0.1", free_port())
    responder = Responder(place, lambda: Verdict(True, True, "idle"))
    clients = []
    for _ in range(MOST):
        clients.append(socket.create_connection(place))
        responder.turn(5)
    clients.append(socket.create_connection(place))
    clients[0].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    responder.turn(5)  # both at once: the new connection closes the oldest, which has sent something
    clients[-1].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    responder.turn(5)
    assert clients[-1].recv(20).startswith(b"HTTP/1.1 200")
    for one in clients:
        one.close()
    responder.close()


def test_a_connection_that_has_not_sent_its_request_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timeoutq.worker.processes.responder.SLOW", 0.0)
    place = ("127.0.0.1", free_port())
    responder = Responder(place, lambda: Verdict(True, True, "idle"))
    with socket.create_connection(place, timeout=5) as client:
        responder.turn(5)
        assert client.recv(1) == b""
    responder.close()


def test_a_port_that_is_taken_is_told(url: str, queue: Queue, run: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = str(taken.getsockname()[1])
        for more in ((), ("--no-supervise",)):
            process = run.start("worker", queue.name, "tests.rig.handlers:work", "--health-port", place, *more)
            assert process.wait(30) == exit_codes.USAGE
            assert "cannot listen for health checks" in run.log(process)


# ---- real workers


def asked(port: int, path: str = "/healthz") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        found = connection.getresponse()
        return found.status, found.read().decode().strip()
    finally:
        connection.close()


def says(port: int, status: int, words: str, path: str = "/healthz") -> bool:
    with suppress(OSError, http.client.HTTPException):
        found, said = asked(port, path)
        return found == status and words in said
    return False


class Watched:
    """A worker with a health port."""

    def __init__(self, run: Processes, queue: Queue, handler: str, *words: str, **environment: str) -> None:
        self.port = free_port()
        self.process = run.start(
            "worker", queue.name, handler, "--timeout", "1s", "--health-port", str(self.port), *words, **environment
        )

    def comes_to(self, status: int, words: str, path: str = "/healthz", timeout: float = 40.0) -> None:
        wait_until(lambda: says(self.port, status, words, path), timeout)

    def stays(self, status: int, seconds: float) -> None:
        """Ask all the time, and get the same answer on both paths."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for path in ("/healthz", "/readyz"):
                found = asked(self.port, path)
                assert found[0] == status, found
            time.sleep(0.05)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, Processes]]:
    with EmbeddedServer() as server, processes(server.url, tmp_path) as started:
        yield server, started


BY_HAND = pytest.param(("--no-supervise",), id="alone")


@pytest.mark.parametrize("more", [BY_HAND, pytest.param(("-p", "2"), id="supervised", marks=pytest.mark.breaking)])
def test_a_healthy_worker_is_green_whatever_it_waits_for(
    own: tuple[EmbeddedServer, Processes], more: tuple[str, ...]
) -> None:
    server, run = own
    with Queue("q", server.url) as queue:
        worker = Watched(run, queue, "tests.rig.handlers:work", "-c", "2", *more, WORK="4")
        worker.comes_to(200, "idle", "/readyz")
        queue.put("a", "b")  # all slots of one process are taken for longer than three leases
        worker.comes_to(200, "busy")
        worker.stays(200, 3.5)
        wait_until(lambda: queue.stats().done == 2)
        queue.pause()
        queue.put("c")
        worker.comes_to(200, "idle")
        worker.stays(200, 3.5)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)  # a server that takes connections and never answers
    worker.stays(200, 4)
    worker.comes_to(200, "waiting for the server")
    os.kill(server.pid, signal.SIGCONT)
    worker.comes_to(200, "idle")
    with Queue("q", server.url) as queue:
        queue.resume()
        worker.comes_to(200, "busy")
        worker.process.terminate()
        worker.comes_to(503, "stopping" if "-p" in more else "draining", "/readyz")
        assert asked(worker.port)[0] == 200
    assert worker.process.wait(20) == exit_codes.DONE


@pytest.mark.parametrize("more", [BY_HAND, pytest.param((), id="supervised", marks=pytest.mark.breaking)])
@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("hang_the_pump", "the claim loop has not completed a turn"),
        ("hang_the_exchanges", "the claim loop has not completed a turn"),
        ("block_the_loop", "the event loop has been blocked"),
    ],
)
def test_a_worker_that_hangs_though_the_server_answers_is_red(
    queue: Queue, run: Processes, defect: str, words: str, more: tuple[str, ...]
) -> None:
    worker = Watched(run, queue, f"tests.rig.defects:{defect}", *more, WORK="60")
    worker.comes_to(200, "idle", "/readyz")
    began = time.monotonic()
    queue.put("a")
    worker.comes_to(503, words)
    assert time.monotonic() - began > 2.5
    assert asked(worker.port, "/readyz")[0] == 503
    assert "tests.rig" not in asked(worker.port)[1]
    worker.process.kill()


def test_a_supervisor_whose_processes_die_again_and_again_is_red(queue: Queue, run: Processes) -> None:
    worker = Watched(run, queue, "tests.rig.handlers:work", "--lifespan", "tests.rig.defects:no_lifespan")
    worker.comes_to(503, "they die as soon as they are started")
    assert asked(worker.port, "/readyz")[0] == 503
