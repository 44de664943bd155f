"""The cost of the gateway: work over HTTP, bare requests and work by a `Queue`, and a thousand clients that wait."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from statistics import median
from typing import Any

from tests.bench.ground import Figure, Ground, Readings, measure
from tests.bench.limits import rate
from timeoutq.cli.bench import ids, percentile
from timeoutq.client import Queue
from timeoutq.gateway.serving import allow_many_files

LINES = "application/x-ndjson"
PART = 256 * 1024
"""How many bytes of lines are sent at once."""


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._json: Any = import_module("msgspec.json")  # costs less than Python's; the gateway needs it, too

    def get(self, path: str) -> bytes:
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        return self.answer()

    def post(self, path: str, body: Any) -> Any:
        self.send(path, self._json.encode(body))
        return self._json.decode(self.answer())

    def send(self, path: str, data: bytes, kind: str = "application/json") -> None:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
        if len(data) < PART:
            self.socket.sendall(head.encode() + data)
            return
        self.socket.sendall(head.encode())
        self.socket.sendall(data)

    def answer(self) -> bytes:
        while b"\r\n\r\n" not in self._rest:
            self._read()
        head, _, rest = self._rest.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(f"the gateway answered {head[:60]!r}: {rest[:300]!r}")
        found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        assert found is not None, head
        size = int(found[1])
        self._rest = rest
        while len(self._rest) < size:
            self._read()
        body, self._rest = self._rest[:size], self._rest[size:]
        return body

    def _read(self) -> None:
        part = self.socket.recv(1 << 18)
        if not part:
            raise OSError("the gateway has hung up")
        self._rest += part

    def close(self) -> None:
        self.socket.close()


@contextmanager
def _gateway(ground: Ground) -> Iterator[int]:
    """Run `timeoutq web`, and give its port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])

    def answers() -> bool:
        with suppress(OSError):
            one = Client(port)
            one.get("/healthz")
            one.close()
            return True
        return False

    with ground.command("web", "--port", str(port), "--log-level", "warning") as crew:
        crew.until(answers, "answer")
        yield port


@contextmanager
def _clients(port: int, many: int = 1) -> Iterator[list[Client]]:
    made: list[Client] = []
    try:
        made.extend(Client(port) for _ in range(many))
        yield made
    finally:
        for one in made:
            one.close()


def _filled(ground: Ground, queue: Queue) -> str:
    queue.put("first")
    ground.fill(queue.operations.key("todos"), ground.sizes.backlog)
    queue.ack(queue.claim(1))
    return f"/v1/{queue.name}"


def _work(client: Client, home: str, batch: int) -> None:
    leases = client.post(f"{home}/claim", {"n": batch})["leases"]
    ended = [{"task": lease["task"], "token": lease["token"]} for lease in leases]
    client.post(f"{home}/ack", {"leases": ended})


@measure(
    "gateway-claim-1",
    Figure("gateway-healthz", "two bare requests to the gateway, over one connection", "pairs/s"),
    Figure(
        "gateway-claim-1", "claim + ack of 1 over HTTP, over one connection", "tasks/s", "gateway-healthz", "≥ 0.35×"
    ),
    needs=("uvicorn", "msgspec"),
)
def claim_one(ground: Ground) -> Readings:
    with ground.queue() as queue, _gateway(ground) as port, _clients(port) as (client,):
        home = _filled(ground, queue)

        def bare() -> None:
            client.get("/healthz")
            client.get("/healthz")

        kinds = {"gateway-healthz": bare, "gateway-claim-1": lambda: _work(client, home, 1)}
        return _in_turns(ground, kinds, ground.sizes.trips)


def _in_turns(ground: Ground, kinds: Mapping[str, Callable[[], object]], count: int, each: int = 1) -> Readings:
    """Take `count` steps of each kind, in turns, so that all meet the same load of the machine; give the rates."""
    turns, steps = 20, max(1, count // 20)
    seconds = {name: list[float]() for name in kinds}
    for _ in range(turns):
        for name, step in ground.turned(kinds.items()):
            began = time.perf_counter()
            for _ in range(steps):
                step()
            seconds[name].append(time.perf_counter() - began)
    return {name: steps * each / median(took) for name, took in seconds.items()}


@measure(
    "gateway-claim-100",
    Figure("gateway-claim-100", "claim + ack of 100 over HTTP", "tasks/s", "claim-100", "≥ 0.4×"),
    needs=("uvicorn", "msgspec"),
)
def claim_batches(ground: Ground) -> Readings:
    count = ground.sizes.drained
    with ground.queue() as queue, _gateway(ground) as port, _clients(port) as (client,):
        home = _filled(ground, queue)
        _work(client, home, 100)
        return {"gateway-claim-100": rate(count // 100, lambda number: _work(client, home, 100), 100)}


@measure(
    "gateway-put-lines",
    Figure("gateway-put-lines", "put as NDJSON", "tasks/s", "put-bulk", "≥ 0.3×"),
    needs=("uvicorn", "msgspec"),
)
def put_lines(ground: Ground) -> Readings:
    tasks = ids(ground.sizes.bulk)
    with ground.queue() as queue, _gateway(ground) as port, _clients(port) as (client,):
        client.post(f"/v1/{queue.name}/put", {"tasks": ["first"]})
        data = "".join(f'"{task}"\n' for task in tasks).encode()

        def put(number: int) -> None:
            client.send(f"/v1/{queue.name}/put", data, LINES)
            if json.loads(client.answer())["lines"] != len(tasks):
                raise OSError("the gateway has not taken all lines")

        return {"gateway-put-lines": rate(1, put, len(tasks))}


@measure(
    "gateway-log",
    Figure("gateway-log-off", "claim + ack of 100 through Queue, without an event log", "tasks/s"),
    Figure("gateway-log-on", "the same, with an event log", "tasks/s", "gateway-log-off", "≥ 0.9×"),
)
def with_log(ground: Ground) -> Readings:
    """Claim and ack with and without the event log, in turns, so that both have the same load of the machine."""
    with ground.queue() as off, ground.queue() as on:
        on.configure(events="64MB")
        for queue in (off, on):
            _filled(ground, queue)
        kinds = {"gateway-log-off": lambda: off.ack(off.claim(100)), "gateway-log-on": lambda: on.ack(on.claim(100))}
        return _in_turns(ground, kinds, ground.sizes.drained // 100, 100)


CLIENTS = 1000


@measure(
    "gateway-polls",
    Figure(
        "gateway-polls-blocked",
        "Redis connections that are blocked while 1,000 clients wait",
        "connections",
        None,
        "≤ 1",
    ),
    Figure("gateway-polls-p50", "from put to the answer of one of 1,000 clients that wait: p50", "ms"),
    Figure("gateway-polls-p99", "from put to the answer of one of 1,000 clients that wait: p99", "ms", None, "≤ 50"),
    needs=("uvicorn", "msgspec"),
)
def polls(ground: Ground) -> Readings:
    """Let a thousand clients wait for tasks, and put tasks one by one."""
    took: list[float] = []
    allow_many_files()
    with ground.queue() as queue, _gateway(ground) as port, _clients(port, CLIENTS) as clients:
        queue.put("first")
        queue.ack(queue.claim(1))
        before = int(ground.info("clients")["blocked_clients"])
        chosen = selectors.DefaultSelector()
        body = json.dumps({"wait": 60, "timeout": 120}).encode()
        for client in clients:
            client.send(f"/v1/{queue.name}/claim", body)
            chosen.register(client.socket, selectors.EVENT_READ, client)
        _until_all_wait(ground, queue)
        blocked = 0
        for number in range(ground.sizes.paced):
            time.sleep(ground.sizes.paced_gap)
            blocked = max(blocked, int(ground.info("clients")["blocked_clients"]) - before)
            at = time.monotonic_ns()
            queue.put(f"late {number}")
            [(key, _)] = chosen.select(60)[:1]
            leases = json.loads(key.data.answer())["leases"]
            took.append((time.monotonic_ns() - at) / 1e6)
            assert [lease["task"] for lease in leases] == [f"late {number}"], leases
            key.data.send(f"/v1/{queue.name}/claim", body)
        chosen.close()
    return {
        "gateway-polls-blocked": float(blocked),
        "gateway-polls-p50": percentile(took, 0.5),
        "gateway-polls-p99": percentile(took, 0.99),
    }


def _until_all_wait(ground: Ground, queue: Queue) -> None:
    # all have looked when the server runs no more claims than the cleaner's calls
    last, until = -1, time.monotonic() + 60
    while time.monotonic() < until:
        calls, _ = ground.script_time()
        if last >= 0 and calls - last < 5:
            return
        last = calls
        time.sleep(0.3)
