"""The gateway under kills: workers in bash, clients that vanish, and SIGTERM while clients wait; with a judge for each.

python -m tests.rig.gateway all
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import redis

from tests.rig.processes import ROOT
from tests.rig.served import Served
from tests.rig.waiting import wait_until
from timeoutq import Answer, Queue
from timeoutq.server.embedded import EmbeddedServer

WORKER = ROOT / "demo" / "worker.sh"
COMMAND = '#!/bin/sh\nprintf "%s\\n" "$1" >>"$DONE"\n'
BACK = 1.0
"""Within how many seconds the leases of vanished clients are back."""


class Lost(Exception):
    """The judge says no."""


def drain(folder: Path, tasks: int = 1000, kills: int = 10, workers: int = 2, batch: int = 5) -> str:
    """Let workers in bash drain a queue while the gateway is killed again and again."""
    if shutil.which("jq") is None or shutil.which("curl") is None:
        raise Lost("this needs curl and jq")
    done = folder / "done"
    done.touch()
    command = folder / "command"
    command.write_text(COMMAND)
    command.chmod(0o755)
    with EmbeddedServer() as server, Served(server.url, folder) as web, Queue("bash", server.url) as queue:
        ids = [f"https://example.com/{number} ü'\"$" for number in range(tasks)]
        lines = "".join(json.dumps(id) + "\n" for id in ids)
        put = httpx.post(f"{web.base}/v1/bash/put", content=lines, headers={"content-type": "application/x-ndjson"})
        assert put.json()["lines"] == tasks, put.text
        environment = {
            **os.environ, "TIMEOUTQ_HTTP": web.base, "TIMEOUTQ_BURST": "1", "TIMEOUTQ_BATCH": str(batch),
            "TIMEOUTQ_SECONDS": "6", "DONE": str(done),
        }  # fmt: skip
        log = (folder / "bash.log").open("wb")
        crew = [
            subprocess.Popen([str(WORKER), "bash", str(command)], env=environment, stdout=log, stderr=log)
            for _ in range(workers)
        ]
        began, killed = time.monotonic(), 0
        try:
            for number in range(1, kills + 1):
                goal = tasks * number // (kills + 1)
                wait_until(partial(_is_done, queue, goal), 300)
                web.kill()
                killed += 1
                web.start()
            for one in crew:
                if one.wait(300):
                    raise Lost(f"a worker ended with {one.returncode}: {(folder / 'bash.log').read_text()[-2000:]}")
        finally:
            for one in crew:
                if one.poll() is None:
                    one.terminate()
                    one.wait(60)
            log.close()
        ran, stats = Counter(done.read_text("utf-8").splitlines()), queue.stats()
        lost = set(ids) - ran.keys()
        if lost or stats.done != tasks or stats.failed or stats.known != tasks:
            raise Lost(f"{len(lost)} tasks were lost, {stats.done} are done, {stats.failed} failed")
        again = sum(ran.values()) - tasks
        return (
            f"drain: {tasks} tasks by {workers} bash workers through {killed} kills -9 of the gateway in "
            f"{time.monotonic() - began:.0f} s: lost 0, done {stats.done}, ran twice {again}"
        )


def _is_done(queue: Queue, many: int) -> bool:
    return queue.stats().done >= many


def _claiming(web: Served, queue: str, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    made = socket.create_connection(("127.0.0.1", web.port))
    head = f"POST /v1/{queue}/claim HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    made.sendall(head.encode() + data)
    return made


def _vanish(clients: Sequence[socket.socket], *, reset: bool) -> None:
    for number, client in enumerate(clients):
        if reset and number % 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


def _answer(client: socket.socket) -> bytes:
    with http.client.HTTPResponse(client) as answer:
        answer.begin()
        return answer.read()


def _back(queue: Queue, tasks: int, held: int, what: str) -> float:
    began = time.monotonic()
    while ((stats := queue.stats()).todos, stats.in_progress) != (tasks, held):
        if time.monotonic() - began > 10:
            raise Lost(f"{what}: {stats.in_progress} leases are with clients that are gone")
        time.sleep(0.005)
    return time.monotonic() - began


def vanish(folder: Path, clients: int = 100) -> str:
    """Let clients vanish while their claims are on the way to Redis, and while they wait; time until all is back."""
    with EmbeddedServer() as server, Served(server.url, folder) as web, Queue("gone", server.url) as queue:
        with redis.Redis.from_url(server.url) as raw:
            queue.put(f"task {number}" for number in range(clients))
            queue.ack(queue.claim(1))
            queue.put("one more")
            httpx.post(f"{web.base}/v1/gone/claim", json={"n": 1, "timeout": 60})
            httpx.post(f"{web.base}/v1/gone/purge")
            queue.put(f"task {number}" for number in range(clients))
            # Redis holds the claims up, and carries them out when their clients are gone
            raw.execute_command("CLIENT", "PAUSE", 20_000, "WRITE")
            asked = [_claiming(web, "gone", {"n": 1, "timeout": 60}) for _ in range(clients)]
            wait_until(lambda: web.unread == [0] * clients, 10)
            wait_until(lambda: int(raw.info("clients")["blocked_clients"]) >= 1, 10)
            _vanish(asked, reset=True)
            wait_until(lambda: web.unread == [], 10)
            raw.execute_command("CLIENT", "UNPAUSE")
            wait_until(lambda: queue.stats().counters.get("claimed", 0) >= min(30, clients), 10)
            held = _back(queue, clients, 0, "claims on the way")
            took = queue.stats().counters["claimed"]
        # the same with clients that wait: what comes later must not be leased to them. In a queue of its own: claims of
        # the first one that are carried out only now would take its tasks, and give them back
        with Queue("waited", server.url) as queue, redis.Redis.from_url(server.url) as raw:
            queue.put("first")
            assert queue.ack(queue.claim(1)) == [Answer.OK]
            asked = [_claiming(web, "waited", {"n": 1, "timeout": 60, "wait": 30}) for _ in range(clients)]
            with _claiming(web, "waited", {"n": 1, "timeout": 60, "wait": 30}) as stays:
                wait_until(lambda: web.unread == [0] * (clients + 1), 10)
                wait_until(lambda: int(raw.info("clients")["blocked_clients"]) >= 1, 30)
                _vanish(asked, reset=True)
                wait_until(lambda: web.unread == [0], 10)
                queue.put(f"late {number}" for number in range(clients))
                answer = _answer(stays)
                later = _back(queue, clients - 1, 1, "claims that waited")
            if b'"task":"late' not in answer:
                raise Lost(f"the one client that stayed got {answer!r}")
        slowest = max(held, later)
        if slowest > BACK:
            raise Lost(f"the leases of clients that are gone came back after {slowest:.2f} s")
        return (
            f"vanish: {clients} clients gone in mid-claim ({took} leases taken for them): all back after {held:.2f} s; "
            f"{clients} gone while they waited: all ready after {later:.2f} s, the one that stayed was served"
        )


def stop(folder: Path, clients: int = 50) -> str:
    """Send SIGTERM to a gateway while clients wait: each gets an empty answer, and the gateway goes."""
    with EmbeddedServer() as server, Served(server.url, folder) as web, Queue("stop", server.url) as queue:
        queue.put("first")
        queue.ack(queue.claim(1))
        answers: list[httpx.Response | Exception] = []

        def wait(number: int) -> None:
            try:
                answers.append(httpx.post(f"{web.base}/v1/stop/claim", json={"wait": 50}, timeout=60))
            except httpx.HTTPError as error:
                answers.append(error)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        with redis.Redis.from_url(server.url) as raw:
            wait_until(lambda: int(raw.info("clients")["blocked_clients"]) >= 1, 30)
            wait_until(lambda: web.connections >= clients, 60)
            time.sleep(0.3)
            blocked = int(raw.info("clients")["blocked_clients"])
        began = time.monotonic()
        code = web.terminate()
        took = time.monotonic() - began
        for thread in threads:
            thread.join(20)
        empty = [one for one in answers if isinstance(one, httpx.Response) and one.json() == {"leases": []}]
        if len(empty) != clients or code or took > 5 or queue.stats().in_progress:
            raise Lost(
                f"{len(empty)} of {clients} got an empty answer, exit code {code}, after {took:.1f} s: {web.said}"
            )
        return f"stop: {clients} waited on {blocked} blocked connection, all got an empty answer, ended in {took:.2f} s"


TRIALS: dict[str, Callable[[Path], str]] = {"drain": drain, "vanish": vanish, "stop": stop}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=[*TRIALS, "all"])
    given = parser.parse_args(words)
    bad = 0
    for name, trial in TRIALS.items():
        if given.trial in (name, "all"):
            with tempfile.TemporaryDirectory(prefix="timeoutq-gateway-") as folder:
                try:
                    print(trial(Path(folder)), flush=True)
                except (Lost, AssertionError) as error:
                    bad += 1
                    print(f"{name}: BAD: {error}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
