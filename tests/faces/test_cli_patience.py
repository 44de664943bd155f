"""Long work at a shell waits for a server that goes away in the middle, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.processes import ROOT
from tests.rig.waiting import wait_until
from timeoutq import Queue, Unavailable
from timeoutq.server.embedded import EmbeddedServer

HEADER = '{"timeoutq": 1}\n'


def lines_of(command: str, numbers: range) -> str:
    if command == "put":
        return "".join(f"t{number}\n" for number in numbers)
    return "".join(f'{{"task": "t{number}", "state": "todos"}}\n' for number in numbers)


def size(queue: Queue) -> int:
    try:
        return queue.stats().todos
    except Unavailable:
        return -1


@pytest.mark.parametrize("command", ["put", "import"])
def test_a_server_that_is_away_in_the_middle_is_waited_for(command: str, tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path, config={"appendfsync": "always"}) as server,
        Queue("crawl", server.url, deadline=1) as queue,
    ):
        words = ["put", "crawl", "--file", "-"] if command == "put" else ["import", "crawl"]
        with subprocess.Popen(
            [sys.executable, "-m", "timeoutq", *words, "--wait", "1m"],
            env={**os.environ, "TIMEOUTQ_URL": server.url, "PYTHONPATH": str(ROOT)},
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as work:  # fmt: skip
            assert work.stdin is not None
            assert work.stderr is not None
            work.stdin.write((HEADER if command == "import" else "") + lines_of(command, range(5200)))
            work.stdin.flush()
            wait_until(lambda: size(queue) >= 5000)
            server.kill()
            work.stdin.write(lines_of(command, range(5200, 6000)))
            work.stdin.close()
            assert "waits for the server, 60 s at most (--wait)" in work.stderr.readline()
            server.start()
            assert "goes on after" in work.stderr.readline()
            assert work.wait(30) == 0
        assert size(queue) == 6000


def test_a_server_that_never_answered_is_not_waited_for(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        url = server.url
    done = subprocess.run(
        [sys.executable, "-m", "timeoutq", "put", "crawl", "--file", "-"],
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)},
        cwd=ROOT, input="a\n", capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "waits" not in done.stderr
