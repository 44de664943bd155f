"""What `demo/worker.sh` hands to a command: every id and every payload, and no task stands in the way of another."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.web import Client, client, server, web
from tests.rig.processes import ROOT
from tests.rig.waiting import wait_until
from timeoutq.words.arguments import MAX_PAYLOAD

__all__ = ["client", "server", "web"]

pytestmark = pytest.mark.skipif(not (shutil.which("jq") and shutil.which("curl")), reason="needs curl and jq")

KEEPS = """#!/bin/sh
# the id, the payload and the lease, each in a file of a folder for this run
mkdir "run$$" && cd "run$$" || exit 9
printf %s "$1" >id; cat >payload; printf %s "$TIMEOUTQ_LEASE" >lease
"""


@contextmanager
def worker(client: Client, folder: Path, script: str, **settings: object) -> Iterator[subprocess.Popen[str]]:
    """Start a worker in bash with this command, until the queue is drained; what it says is in `said`."""
    command = folder / "command"
    command.write_text(script)
    command.chmod(0o755)
    given = {"HTTP": client.web.base, "BURST": 1, **settings}
    environment = {name if name == "PATH" else f"TIMEOUTQ_{name}": str(value) for name, value in given.items()}
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [ROOT / "demo" / "worker.sh", client.queue.name, command], cwd=folder, env={**os.environ, **environment},
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(client: Client, folder: Path, script: str = KEEPS, **settings: object) -> str:
    """Let a worker drain the queue; give what it says."""
    with worker(client, folder, script, **settings) as process:
        code = process.wait(90)
    said = (folder / "said").read_text(errors="replace")
    assert code == 0, said
    return said


def runs(folder: Path, what: str = "payload") -> dict[str, bytes]:
    """Give what the command found, by the id that it was given."""
    return {(one / "id").read_text("utf-8"): (one / what).read_bytes() for one in folder.glob("run*")}


def counted(client: Client, *names: str) -> dict[str, int]:
    """Give those of these counters that have counted anything."""
    counters = client.look("stats")["counters"]
    return {name: counters[name] for name in names if counters.get(name)}


def test_the_largest_and_the_deepest_payload_come_whole(client: Client, tmp_path: Path) -> None:
    largest = "x" * (MAX_PAYLOAD - 2)
    deep = b"[" * 900 + b"]" * 900
    client.put({"task": "large", "payload": largest}, "small")
    assert client.lines(b'{"task": "deep", "payload": %s}' % deep).status_code == 200
    assert run(client, tmp_path, BATCH=3) == ""
    found = runs(tmp_path)
    assert found["large"] == b'"' + largest.encode() + b'"\n'
    assert found["deep"] == deep + b"\n", "jq 1.6 cannot read it"
    assert found["small"] == b"null\n"
    assert counted(client, "acked", "failed", "expired", "crashed") == {"acked": 3}


def test_each_id_has_an_argument_of_its_own(client: Client, tmp_path: Path) -> None:
    ids = ["x\0y", "xy", "\0", "b64:eHk=", "-rf", "a'b\"c\nd\\e $(id)", "two\n\n", "é ü"]
    client.put(*ids, {"b64": "/wBh"})
    assert run(client, tmp_path, BATCH=4) == ""
    plain = {id for id in ids if "\0" not in id and not id.startswith("b64:")}
    coded = {id.encode() for id in ids if id not in plain} | {b"\xff\0a"}
    found = set(runs(tmp_path))
    assert {id for id in found if not id.startswith("b64:")} == plain
    assert {base64.b64decode(id[4:]) for id in found - plain} == coded
    assert client.look("stats")["done"] == len(ids) + 1


def test_an_error_is_the_last_line_of_stderr_also_when_it_is_no_text(client: Client, tmp_path: Path) -> None:
    client.put("a")
    run(
        client, tmp_path, "#!/bin/sh\n[ ! -e seen ] || exit 0; touch seen; printf 'first\\n\\377 last\\n' >&2; exit 4\n"
    )
    (entry,) = client.look("errors")["errors"]
    assert entry["error"] == "exit code 4: \ufffd last"
    client.put("b")
    run(client, tmp_path, "#!/bin/sh\necho gone >&2; exit 100\n")
    assert client.queue.inspect("b").error == "exit code 100: gone"
    assert client.look("task", id="b")["state"] == "failed"


def test_a_lease_is_extended_while_the_command_runs(client: Client, tmp_path: Path) -> None:
    client.put("a")
    waits = "#!/bin/sh\ntouch begun; until [ -e enough ]; do sleep 0.1; done\n"
    with worker(client, tmp_path, waits, SECONDS=2) as process:
        wait_until((tmp_path / "begun").exists, 60)
        first = client.queue.inspect("a").deadline or 0.0
        wait_until(lambda: (client.queue.inspect("a").deadline or 0.0) > first + 2, 60)
        (tmp_path / "enough").touch()
        assert process.wait(30) == 0
    assert counted(client, "claimed", "acked", "expired") == {"claimed": 1, "acked": 1}


def test_a_sigterm_to_all_that_ends_the_command_gives_all_tasks_back(client: Client, tmp_path: Path) -> None:
    client.put(*map(str, range(20)))
    with worker(client, tmp_path, "#!/bin/sh\ntouch begun; exec sleep 600\n", BURST=0, BATCH=20) as process:
        wait_until((tmp_path / "begun").exists, 60)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    assert (tmp_path / "said").read_text() == ""
    assert counted(client, "acked", "failed", "released", "expired") == {"released": 20}
    assert client.look("stats")["todos"] == 20


def test_a_setting_that_cannot_be_used_is_refused(client: Client, tmp_path: Path) -> None:
    with worker(client, tmp_path, KEEPS, SECONDS="1.5") as process:
        assert process.wait(30) == 2
    said = (tmp_path / "said").read_text()
    assert said == "worker.sh: TIMEOUTQ_SECONDS must be a whole number of seconds, 1 or more, not '1.5'\n"


def test_a_command_that_is_not_there_is_refused_before_a_task_is_claimed(client: Client, tmp_path: Path) -> None:
    client.put("a")
    done = subprocess.run(
        [ROOT / "demo" / "worker.sh", client.queue.name, "./nosuch.sh"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "TIMEOUTQ_HTTP": client.web.base}, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "worker.sh: there is no command './nosuch.sh' that may be run\n")
    assert counted(client, "claimed") == {}
