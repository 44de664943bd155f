"""The services of docker-compose.yml, each command started as a plain process, until the crawl has finished."""

from __future__ import annotations

import inspect
import os
import random
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from demo.course import members
from demo.processes import free_port
from demo.site import expected
from tests.rig.servers import redis_server
from tests.rig.waiting import wait_until
from timeoutq import Queue, State, Worker
from timeoutq.cli.about import pages
from timeoutq.cli.lines import seconds
from timeoutq.server.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
NODES = [f"node-{number}" for number in range(1, 7)]


def test_the_page_counts_the_services_that_there_are() -> None:
    [line] = [line for line in pages()["demo"].splitlines() if "docker compose up" in line]
    told = {
        name.removesuffix("s") if count else name: int(count or 1)
        for count, name in re.findall(r"(?:(\d+) )?(\w+)[,.]", line.partition("services:")[2])
    }
    always = {name: service for name, service in SERVICES.items() if "profiles" not in service}
    assert told == {name: service.get("deploy", {}).get("replicas", 1) for name, service in always.items()}


def test_what_a_service_waits_for_can_come() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], (name, other)
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in COMPOSE["volumes"], name
        for network in service.get("networks", []):
            assert network in COMPOSE["networks"], name


def test_a_worker_may_drain_before_docker_kills_it() -> None:
    drains = inspect.signature(Worker).parameters["drain_deadline"].default
    # what is held at the deadline is given back, and the supervisor waits for its children
    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= drains + 5


@pytest.mark.breaking
def test_every_command_runs_as_a_plain_process_and_the_crawl_finishes(tmp_path: Path) -> None:
    port = free_port()
    started: list[subprocess.Popen[bytes]] = []
    settings = SERVICES["redis"]["command"][1:]
    config = {name.removeprefix("--"): value for name, value in zip(settings[::2], settings[1::2], strict=True)}
    with EmbeddedServer(tmp_path / "state", config=config) as server:

        def place(word: str) -> str:
            # the names that Docker's network would resolve
            return (
                word.replace("redis://redis:6379/0", server.url)
                .replace("site:8080", f"127.0.0.1:{port}")
                .replace("0.0.0.0", "127.0.0.1")  # the address in the file, not one to bind
                .replace("8080", str(port))
            )

        def start(service: str, number: int = 0) -> subprocess.Popen[bytes]:
            program, *words = (place(word) for word in SERVICES[service]["command"])
            command = [sys.executable, "-m", "timeoutq"] if program == "timeoutq" else [sys.executable]
            environment = {name: place(value) for name, value in SERVICES[service]["environment"].items()}
            with (tmp_path / f"{service}-{number}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, *words],
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            started.append(process)
            return process

        def healthy(service: str) -> bool:
            _, program, *words = (place(word) for word in SERVICES[service]["healthcheck"]["test"])
            command = [sys.executable, "-m", "timeoutq"] if program == "timeoutq" else [sys.executable]
            environment = {name: place(value) for name, value in SERVICES[service]["environment"].items()}
            done = subprocess.run(
                [*command, *words], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, check=False
            )
            return done.returncode == 0

        try:
            start("site")
            wait_until(lambda: healthy("site"), timeout=20)
            assert start("seeder").wait(20) == 0
            assert not healthy("worker")
            workers = [start("worker", i) for i in range(SERVICES["worker"]["deploy"]["replicas"])]
            cleaners = [start("cleaner", i) for i in range(SERVICES["cleaner"]["deploy"]["replicas"])]
            shown = start("dashboard")
            assert shown.wait(20) == 0  # without a terminal it shows the queue once
            assert "known" in (tmp_path / "dashboard-0.log").read_text("utf-8")
            wait_until(lambda: healthy("worker"), timeout=20)
            with Queue("crawl", server.url) as queue:
                wait_until(lambda: queue.drained() and queue.stats().known > 1, timeout=60)
                done, failed = expected(f"http://127.0.0.1:{port}/")
                assert members(queue, State.DONE) == done
                assert members(queue, State.FAILED) == failed
            for process in (*workers, *cleaners):
                process.send_signal(signal.SIGTERM)
            assert {process.wait(30) for process in (*workers, *cleaners)} == {0}
            assert not healthy("worker")
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()


@pytest.mark.breaking
def test_the_page_is_served_to_who_has_the_token_that_is_printed_once(tmp_path: Path) -> None:
    web, port = SERVICES["web"], free_port()
    assert web["ports"] == ["127.0.0.1:8080:8080"], "what has no TLS is for this machine alone"
    assert "web" in (ROOT / "demo" / "Dockerfile").read_text("utf-8").partition("pip install")[2].partition("]")[0]
    program, *words = (word.replace("0.0.0.0", "127.0.0.1").replace("8080", str(port)) for word in web["command"])
    assert program == "timeoutq"
    check = [word.replace("8080", str(port)) for word in web["healthcheck"]["test"][2:]]

    def is_healthy() -> bool:
        return subprocess.run([sys.executable, *check], capture_output=True, check=False).returncode == 0

    def asked(path: str, token: str = "") -> int:
        with httpx.Client(trust_env=False) as client:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            return client.get(f"http://127.0.0.1:{port}{path}", headers=headers).status_code

    with EmbeddedServer(tmp_path / "state") as server:
        with Queue("crawl", server.url) as queue:
            queue.put("a")
        tokens: list[str] = []
        for turn in range(2):
            log = tmp_path / f"web-{turn}.log"
            with log.open("wb") as said:
                process = subprocess.Popen(
                    [sys.executable, "-m", "timeoutq", *words], cwd=ROOT, stdin=subprocess.DEVNULL,
                    env={**os.environ, "TIMEOUTQ_URL": server.url}, stdout=said, stderr=said,
                )  # fmt: skip
            try:
                wait_until(lambda: "startup complete" in log.read_text("utf-8"), timeout=40)  # noqa: B023  # of this turn
                assert is_healthy()
                tokens += re.findall(r"token compose, .*: (\S+)", log.read_text("utf-8"))
                assert asked("/login") == 200
                assert [asked("/metrics"), asked("/metrics", "tq_wrong"), asked("/metrics", tokens[0])] == [
                    401,
                    401,
                    200,
                ]
                assert asked("/v1/crawl/stats", tokens[0]) == asked("/", tokens[0]) == 200
                process.terminate()
                assert process.wait(20) == 0
            finally:
                process.kill()
                process.wait()
            assert not is_healthy()
        assert len(tokens) == 1, "the token is printed once"


@pytest.mark.breaking
def test_the_nodes_of_the_cluster_run_as_plain_processes_and_are_joined_once(tmp_path: Path) -> None:
    redis_server()
    assert [name for name, service in SERVICES.items() if "profiles" in service] == [*NODES, "cluster"]
    assert SERVICES["cluster"]["depends_on"].keys() == set(NODES)
    # each node has an address of its own there, and here a port; its bus is 10,000 above
    ports = {name: free_port_with_bus() for name in NODES}
    addresses = {name: f"{SERVICES[name]['networks']['cluster']['ipv4_address']}:6379" for name in NODES}

    def join() -> str:
        words = [str(word) for word in SERVICES["cluster"]["command"]]
        for name in NODES:
            words = [word.replace(addresses[name], f"127.0.0.1:{ports[name]}") for word in words]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def on(name: str, words: list[str]) -> list[str]:
        return [str(ports[name]) if word == "6379" else word for word in words]

    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in NODES:
            (tmp_path / name).mkdir()
            command = [*on(name, SERVICES[name]["command"]), "--bind", "127.0.0.1"]
            with (tmp_path / f"{name}.log").open("wb") as log:
                started.append(subprocess.Popen(command, cwd=tmp_path / name, stdout=log, stderr=log))
        for name in NODES:
            _, *check = on(name, SERVICES[name]["healthcheck"]["test"])
            wait_until(partial(answers, check))
        assert "All 16384 slots covered" in join()
        assert join() == ""  # as after a restart of Docker
        # a replica tells the other nodes of itself a moment later
        wait_until(lambda: all(is_whole(port) for port in ports.values()))
        with redis.RedisCluster(host="127.0.0.1", port=ports["node-1"]) as client:
            assert all(client.set(word, "1") for word in "abcdefgh")
    finally:
        for process in started:
            process.kill()
            process.wait()


def answers(check: list[str]) -> bool:
    return subprocess.run(check, capture_output=True, check=False).stdout == b"PONG\n"


def is_whole(port: int) -> bool:
    asked = ["redis-cli", "-p", str(port), "cluster"]
    info, nodes = (subprocess.check_output([*asked, what], text=True) for what in ("info", "nodes"))
    return "cluster_state:ok" in info and nodes.count("slave") == 3


def free_port_with_bus() -> int:
    for port in random.sample(range(10_000, 22_768), 1000):
        with socket.socket() as own, socket.socket() as bus, suppress(OSError):
            own.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port
    raise AssertionError("no two ports are free")
