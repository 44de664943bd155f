"""The worker in Node: real processes, on a queue that Python fills and looks into."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.node import CLIENT, node, write_protocol
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import Queue, State

HANDLER = """
import { Ack, GiveUp, Release, Retry } from "FOLDER/worker.mjs";
export default async function handle(lease, { signal }) {
  const [what] = lease.task.split(":");
  if (what === "put") return new Ack({ put: [{ task: "found", payload: { by: lease.task } }] });
  if (what === "again") return new Ack({ againIn: 3600, payload: 2 });
  if (what === "result") return new Ack({ result: Buffer.from("42"), keepResult: 60 });
  if (what === "retry") throw new Retry("later", 3600);
  if (what === "soon") throw new Retry("soon", 0);
  if (what === "back") throw new Release();
  if (what === "giveup") throw new GiveUp("no such page");
  if (what === "release") throw new Release({ delay: 3600 });
  if (what === "error") throw new TypeError("bad \\u001b[31m page");
  if (what === "long") {
    await new Promise((done, fail) => {
      const timer = setTimeout(done, 600_000);
      signal.addEventListener("abort", () => (clearTimeout(timer), fail(signal.reason)));
    });
  }
  if (what === "deaf") await new Promise(() => setTimeout(() => {}, 600_000));
  if (what === "slow") await new Promise((done) => setTimeout(done, 1500));
}
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(url: str, name: str, tmp_path: Path) -> Iterator[Start]:
    """Start a worker on the queue of the test; at the end it is stopped."""
    handler, document = tmp_path / "handler.mjs", write_protocol(tmp_path)
    handler.write_text(HANDLER.replace("FOLDER", str(CLIENT)))
    started: list[subprocess.Popen[bytes]] = []

    def begin(*options: str, to: str = url, protocol: Path = document) -> subprocess.Popen[bytes]:
        words: list[Any] = [CLIENT / "worker.mjs", name, handler, "--protocol", protocol, *options]
        started.append(node().start(*words, url=to, log=tmp_path / "said.log"))
        return started[-1]

    yield begin
    for worker in started:
        if worker.poll() is None:
            worker.kill()
        worker.wait()


def states(queue: Queue, *tasks: str) -> list[State | None]:
    return [queue.inspect(task).state for task in tasks]


def test_what_a_handler_returns_or_throws_ends_the_lease(queue: Queue, start: Start, tmp_path: Path) -> None:
    kinds = ["plain", "put", "again", "result", "retry", "giveup", "release", "error"]
    queue.put([f"{kind}:1" for kind in kinds])
    worker = start()
    wait_until(lambda: queue.stats().todos + queue.stats().in_progress == 0 and queue.stats().known == 9, 20)
    assert states(queue, "plain:1", "put:1", "found", "result:1") == [State.DONE] * 4
    assert states(queue, "again:1", "retry:1", "release:1", "error:1") == [State.SCHEDULED] * 4
    assert queue.inspect("again:1").payload == 2
    assert queue.results.wait("result:1", timeout=1)["result:1"].result == b"42"
    assert (queue.inspect("retry:1").failures, queue.inspect("release:1").failures) == (1, 0)
    gone = queue.inspect("giveup:1")
    assert (gone.state, gone.error) == (State.FAILED, "no such page")
    failed = queue.inspect("error:1")
    assert failed.error == "TypeError: bad \x1b[31m page"
    assert "handler.mjs" in (failed.traceback or "")
    wait_until(lambda: [one.pid for one in queue.workers()] == [worker.pid], 20)
    assert queue.workers()[0].concurrency == 10
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert list(queue.workers()) == []


def test_a_worker_says_that_it_starts_and_which_attempts_fail(queue: Queue, start: Start, tmp_path: Path) -> None:
    queue.put(["error:\x1b[31m\u202e", "giveup:1", "plain:1"])
    start("--concurrency", "3", "--timeout", "20")
    wait_until(lambda: queue.stats().todos + queue.stats().in_progress == 0, 20)
    first, *failed = (tmp_path / "said.log").read_text().splitlines()
    assert first == f"works on queue {queue.name}: concurrency 3, timeout 20 s"
    assert sorted(failed) == [
        r"task error:\u{1b}[31m\u{202e} failed on attempt 1, again in 2 s: TypeError: bad \u{1b}[31m page",
        "task giveup:1 failed on attempt 1, given up: no such page",
    ]


@pytest.mark.breaking
def test_sigterm_lets_handlers_end_and_gives_the_others_back(queue: Queue, start: Start) -> None:
    queue.put(["slow:1", "deaf:1"])
    worker = start("--grace", "3")
    wait_until(lambda: queue.stats().in_progress == 2, 20)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert states(queue, "slow:1", "deaf:1") == [State.DONE, State.TODOS]
    given_back = queue.inspect("deaf:1")
    assert (given_back.failures, given_back.crashes) == (0, 0)


@pytest.mark.breaking
def test_leases_are_kept_alive_and_a_cancelled_handler_is_stopped(queue: Queue, start: Start) -> None:
    queue.put(["slow:1", "long:1"])
    worker = start("--timeout", "0.6")
    wait_until(lambda: queue.stats().in_progress == 2, 20)
    wait_until(lambda: queue.inspect("slow:1").state is State.DONE, 20)
    assert queue.stats().counters.get("expired", 0) == 0
    queue.cancel("long:1", by="me")
    wait_until(lambda: queue.inspect("long:1").state is State.FAILED, 20)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


@pytest.mark.breaking
def test_a_worker_in_node_takes_back_what_a_dead_one_held_and_takes_samples(queue: Queue, start: Start) -> None:
    queue.put("deaf:1")
    victim = start("--timeout", "0.4")
    wait_until(lambda: queue.stats().in_progress == 1, 20)
    victim.kill()
    victim.wait()
    queue.put("plain:1")
    start("--timeout", "5", "--grace", "0")
    wait_until(lambda: queue.inspect("deaf:1").crashes == 1, 20)
    wait_until(lambda: len(queue.history()) > 0, 20)
    wait_until(lambda: queue.inspect("plain:1").state is State.DONE, 20)


def test_a_worker_outlives_connections_that_break_and_a_server_that_refuses(
    queue: Queue, url: str, start: Start, tmp_path: Path
) -> None:
    with Proxy(url) as proxy:
        start("--timeout", "5", to=proxy.url)
        for turn in range(4):
            queue.put([f"slow:{turn}", *(f"plain:{turn}.{number}" for number in range(50))])
            wait_until(lambda: queue.stats().in_progress > 0, 20)
            if turn % 2:
                proxy.arm(Fault.REFUSED, b"FCALL", seconds=0.5)
            else:
                proxy.cut()
        wait_until(lambda: queue.stats().done == 4 * 51, 30)
    assert queue.stats().failed == 0


def test_a_queue_that_this_client_cannot_serve_is_refused_by_name(
    url: str, name: str, raw: Any, start: Start, tmp_path: Path
) -> None:
    raw.hset(f"timeoutq:{{{name}}}:meta", mapping={"schema": "2"})
    assert start().wait(20) == 1
    raw.hset(f"timeoutq:{{{name}}}:meta", mapping={"schema": "3", "durable": "1"})
    assert start().wait(20) == 1
    said = (tmp_path / "said.log").read_text()
    assert "has schema 2" in said
    assert "is durable, and this client does not wait for replicas" in said
    raw.delete(f"timeoutq:{{{name}}}:meta")


def test_words_that_cannot_be_used_end_it_with_2_and_help_with_0(tmp_path: Path) -> None:
    for words, code, said in (
        (("--help",), 0, "usage: node worker.mjs QUEUE HANDLER.mjs"),
        (("crawl", "/no/such/handler.mjs"), 2, "the handler /no/such/handler.mjs"),
        (("crawl", "handler.mjs", "--concurrency", "many"), 2, "--concurrency is a number, not many"),
    ):
        log = tmp_path / "said.log"
        assert node().start(CLIENT / "worker.mjs", *words, url="", log=log).wait(20) == code
        assert said in log.read_text()
        assert "    at " not in log.read_text()
