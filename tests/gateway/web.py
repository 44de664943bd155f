"""A gateway for the tests of this folder: one process for a file, and a client for each test on a queue of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.rig import canary
from tests.rig.gateways import NO_TLS, WebProcess
from tests.rig.invariants import check
from timeoutq import Queue
from timeoutq.server.embedded import EmbeddedServer

_numbers = count(1)


class Client:
    """A queue, as a program sees it over HTTP, and as we see it through `Queue`."""

    def __init__(self, web: WebProcess, http: httpx.Client, queue: Queue) -> None:
        self.web = web
        self.http = http
        self.queue = queue
        self.home = f"{web.base}/v1/{queue.name}"

    def ask(self, verb: str, body: Any = None, **more: Any) -> httpx.Response:
        """Send a POST."""
        return self.http.post(f"{self.home}/{verb}", json={} if body is None else body, **more)

    def post(self, verb: str, body: Any = None, **more: Any) -> Any:
        """Send a POST that must be answered."""
        found = self.ask(verb, body, **more)
        assert found.status_code == 200, found.text
        return found.json()

    def look(self, what: str, **parameters: Any) -> Any:
        """Send a GET that must be answered."""
        found = self.http.get(f"{self.home}/{what}", params=parameters)
        assert found.status_code == 200, found.text
        return found.json()

    def put(self, *tasks: Any, **more: Any) -> list[str]:
        """Put tasks; give the answers."""
        found: list[str] = self.post("put", {"tasks": list(tasks), **more})["answers"]
        return found

    def claim(self, n: int = 1, **more: Any) -> list[dict[str, Any]]:
        """Claim tasks."""
        found: list[dict[str, Any]] = self.post("claim", {"n": n, **more})["leases"]
        return found

    def lines(self, data: bytes | Iterator[bytes], **parameters: Any) -> httpx.Response:
        """Put lines."""
        headers = {"content-type": "application/x-ndjson"}
        return self.http.post(f"{self.home}/put", content=data, headers=headers, params=parameters)


def refused(found: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """Check that this is the problem of this name; give its fields."""
    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = found.json()
    assert body["type"] == f"/problems/{name}", body
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server for this file; its password is the canary."""
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """A gateway for this file."""
    with WebProcess(server.url, tmp_path_factory.mktemp("web")) as started:
        yield started
        assert "Traceback" not in started.said, started.said


@pytest.fixture
def client(web: WebProcess) -> Iterator[Client]:
    """A client of a queue of its own; after the test the queue's invariants must hold."""
    name = f"http{next(_numbers)}"
    with httpx.Client(timeout=30, verify=NO_TLS) as http, Queue(name, web.redis, timeout=5) as queue:
        yield Client(web, http, queue)
        check(web.redis, name)
        queue.purge()
