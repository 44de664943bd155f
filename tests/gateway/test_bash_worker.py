"""What `demo/worker.sh` hands to a command: every id and every payload, and no task stands in the way of another."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import httpx
import pytest

from tests.gateway.web import Client, client, server, web
from tests.rig.gateways import WebProcess
from tests.rig.processes import ROOT
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.gateway.tokens import TokenBook
from timeoutq.server.embedded import EmbeddedServer
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


def test_the_largest_payload_there_is_comes_whole(client: Client, tmp_path: Path) -> None:
    largest = "x" * (MAX_PAYLOAD - 2)
    client.put({"task": "large", "payload": largest}, {"task": "half", "payload": ["ü" * 100_000]}, "small")
    assert run(client, tmp_path, BATCH=3) == ""
    found = runs(tmp_path)
    assert found["large"] == b'"' + largest.encode() + b'"\n'
    assert json.loads(found["half"]) == ["ü" * 100_000]
    assert found["small"] == b"null\n"
    assert counted(client, "acked", "failed", "expired", "crashed") == {"acked": 3}


@pytest.mark.parametrize("depth", [400, 900])
def test_a_payload_comes_as_deep_as_it_was_put_and_so_do_the_others(client: Client, tmp_path: Path, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    body = b'{"tasks": ["a", {"task": "deep", "payload": %s}, "b", {"task": "c", "payload": {"x": 1}}]}' % deep
    assert client.http.post(f"{client.home}/put", content=body).status_code == 200
    assert run(client, tmp_path, BATCH=4) == ""
    assert runs(tmp_path) == {"a": b"null\n", "b": b"null\n", "c": b'{"x":1}\n', "deep": deep + b"\n"}
    assert counted(client, "acked", "failed", "expired", "crashed") == {"acked": 4}


def test_numbers_come_with_all_their_digits(client: Client, tmp_path: Path) -> None:
    numbers = {"id": 12345678901234567890, "larger": 2**70, "least": -(2**63), "part": 0.1, "whole": 1.0, "far": 1e300}
    client.put({"task": "a", "payload": numbers})
    run(client, tmp_path)
    assert json.loads(runs(tmp_path)["a"]) == numbers


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


def test_the_lease_in_the_environment_has_no_payload_and_is_good_for_an_ack(client: Client, tmp_path: Path) -> None:
    client.put({"task": "a", "payload": {"x": "y" * 500_000}})
    run(client, tmp_path)
    lease = json.loads(runs(tmp_path, "lease")["a"])
    assert (lease["task"], lease["attempt"], "payload" in lease) == ("a", 1, False)
    assert client.post("ack", {"leases": [lease]})["answers"] == ["already"]


def test_a_command_cannot_read_the_tasks_of_others(client: Client, tmp_path: Path) -> None:
    client.put("a", "b", "c")
    run(client, tmp_path, KEEPS + "{ cat <&3; } 2>/dev/null; exit 0\n", BATCH=3)
    assert set(runs(tmp_path)) == {"a", "b", "c"}
    assert counted(client, "acked", "expired") == {"acked": 3}


def test_an_error_is_the_last_line_of_stderr_also_when_it_is_no_text(client: Client, tmp_path: Path) -> None:
    client.put("a")
    run(
        client, tmp_path, "#!/bin/sh\n[ ! -e seen ] || exit 0; touch seen; printf 'first\\n\\377 last\\n' >&2; exit 4\n"
    )
    (entry,) = client.look("errors")["errors"]
    assert entry["error"] == "exit code 4: \ufffd last"


def jq_that(folder: Path, does: str) -> str:
    """Write a jq that first does something of its own; give the PATH that finds it."""
    place = folder / "bin"
    place.mkdir()
    (place / "jq").write_text(f'#!/bin/bash\n{does}\nexec {shutil.which("jq")} "$@"\n')
    (place / "jq").chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def test_a_task_that_cannot_be_unpacked_fails_with_the_reason_and_the_others_are_done(
    client: Client, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    no_room = f'if [[ $* == *" number 0 "* && ! -e {seen} ]]; then touch {seen}; echo "jq: no room" >&2; exit 2; fi'
    client.put("a", "b", "c")
    said = run(client, tmp_path, PATH=jq_that(tmp_path, no_room), BATCH=3)
    assert "worker.sh: cannot unpack a task: jq: no room" in said
    (entry,) = client.look("errors")["errors"]
    assert entry["error"] == "worker.sh cannot unpack the task: jq: no room"
    assert set(runs(tmp_path)) == {"a", "b", "c"}
    assert counted(client, "acked", "failed", "expired") == {"acked": 3, "failed": 1}


def test_a_ctrl_c_that_comes_while_a_task_is_unpacked_does_not_change_its_id(client: Client, tmp_path: Path) -> None:
    slow = f"if [[ $* == *startswith* ]]; then touch {tmp_path}/begun; sleep 1; fi"
    client.put("a")
    with worker(client, tmp_path, KEEPS, PATH=jq_that(tmp_path, slow)) as process:
        wait_until((tmp_path / "begun").exists, 60)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
    assert set(runs(tmp_path)) == {"a"}
    assert client.look("stats")["done"] == 1


class Garbling(BaseHTTPRequestHandler):
    """A proxy that loses the first answer to a claim, and answers with a page of its own."""

    gateway = ""
    lost = False

    def forward(self) -> None:
        """Ask the gateway, and give its answer."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        found = httpx.request(self.command, self.gateway + self.path, content=body, timeout=60)
        answer = found.content
        if b'"task"' in answer and not Garbling.lost:
            Garbling.lost, answer = True, b"<html>we are back soon</html>"
        self.send_response(found.status_code)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = forward  # noqa: N815  # http.server calls these names

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_claim_whose_answer_cannot_be_read_is_sent_again_and_gives_its_leases(client: Client, tmp_path: Path) -> None:
    client.put("a", "b")
    Garbling.gateway = client.web.base
    with ThreadingHTTPServer(("127.0.0.1", 0), Garbling) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        said = run(client, tmp_path, HTTP=f"http://127.0.0.1:{proxy.server_port}", BATCH=2)
        proxy.shutdown()
    assert Garbling.lost
    assert "waits for the gateway (000): parse error" in said
    assert set(runs(tmp_path)) == {"a", "b"}
    assert counted(client, "claimed", "acked", "expired") == {"claimed": 2, "acked": 2}


class Withholding(Garbling):
    """A proxy that never gives the answer to the first claim, and answers the next request with a 503."""

    claimed = Event()
    refused = False
    over = Event()

    def do_POST(self) -> None:  # http.server calls this name
        """Pass a request on, but for these two."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if Withholding.claimed.is_set() and not Withholding.refused:
            Withholding.refused = True
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        answer = httpx.post(self.gateway + self.path, content=body, timeout=60).content
        if not Withholding.claimed.is_set():
            Withholding.claimed.set()
            Withholding.over.wait(60)
            return
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def test_a_worker_that_goes_gives_back_what_its_claim_has_brought_also_when_the_gateway_is_busy(
    client: Client, tmp_path: Path
) -> None:
    client.put("a", "b", "c")
    Garbling.gateway = client.web.base
    with ThreadingHTTPServer(("127.0.0.1", 0), Withholding) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        with worker(client, tmp_path, KEEPS, HTTP=f"http://127.0.0.1:{proxy.server_port}", BURST=0, BATCH=2) as process:
            assert Withholding.claimed.wait(30)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        Withholding.over.set()
        proxy.shutdown()
    assert Withholding.refused
    assert client.look("stats")["todos"] == 3


class Noting(Garbling):
    """A proxy that notes the bodies of extends, and passes everything on."""

    extends: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:  # http.server calls this name
        """Note the body of an extend, and ask the gateway."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.endswith("/extend"):
            Noting.extends.append(json.loads(body))
        found = httpx.post(self.gateway + self.path, content=body, timeout=60)
        self.send_response(found.status_code)
        self.send_header("content-length", str(len(found.content)))
        self.end_headers()
        self.wfile.write(found.content)


def test_a_lease_is_extended_by_its_own_seconds_while_the_command_runs(client: Client, tmp_path: Path) -> None:
    client.put("a")
    Noting.gateway, Noting.extends = client.web.base, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Noting) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{proxy.server_port}"
        waits = "#!/bin/sh\nuntil [ -e enough ]; do sleep 0.1; done\n"
        with worker(client, tmp_path, waits, HTTP=base, SECONDS=3) as process:
            wait_until(lambda: len(Noting.extends) >= 4, 60)
            (tmp_path / "enough").touch()
            assert process.wait(30) == 0
        proxy.shutdown()
    assert {(body["timeout"], body["leases"][0]["task"]) for body in Noting.extends} == {(3, "a")}
    assert counted(client, "claimed", "acked", "expired") == {"claimed": 1, "acked": 1}


GRACEFUL = """#!/bin/bash
# ends with 0 soon after SIGTERM has come; bash sees a signal that comes just before a `read` only at the end of it
trap 'exit 0' TERM
touch begun
while :; do read -r -t 0.2 <> <(:); done
"""


def test_a_command_that_ends_well_on_a_sigterm_to_all_is_acked(client: Client, tmp_path: Path) -> None:
    client.put(*map(str, range(12)))
    for _ in range(12):
        with worker(client, tmp_path, GRACEFUL, BURST=0) as process:
            wait_until((tmp_path / "begun").exists, 60)
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(30) == 0
        (tmp_path / "begun").unlink()
    assert counted(client, "acked", "failed", "released", "expired") == {"acked": 12}


def test_a_sigterm_to_all_that_ends_the_command_gives_all_tasks_back(client: Client, tmp_path: Path) -> None:
    client.put(*map(str, range(20)))
    with worker(client, tmp_path, "#!/bin/sh\ntouch begun; exec sleep 600\n", BURST=0, BATCH=20) as process:
        wait_until((tmp_path / "begun").exists, 60)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    assert (tmp_path / "said").read_text() == ""
    assert counted(client, "acked", "failed", "released", "expired") == {"released": 20}
    assert client.look("stats")["todos"] == 20


def test_the_programs_of_a_worker_outlive_a_sigterm_to_all(client: Client, tmp_path: Path) -> None:
    slow = f"if [[ $* == *startswith* ]]; then touch {tmp_path}/begun; sleep 1; fi"
    client.put("a", "b", "c")
    with worker(client, tmp_path, KEEPS, PATH=jq_that(tmp_path, slow), BURST=0, BATCH=3) as process:
        wait_until((tmp_path / "begun").exists, 60)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 0
    assert (tmp_path / "said").read_text() == ""
    assert counted(client, "acked", "failed", "released", "expired") == {"acked": 1, "released": 2}


NO_SECONDS = "TIMEOUTQ_SECONDS must be a whole number of seconds, 1 or more, not '{}'"
NO_BATCH = "TIMEOUTQ_BATCH must be a whole number of tasks, 1 or more, not '{}'"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        *(("SECONDS", value, NO_SECONDS) for value in ("0", "1.5", "30s", "-1", "08")),
        *(("BATCH", value, NO_BATCH) for value in ("0", "x", "2.0")),
        ("BURST", "yes", "TIMEOUTQ_BURST must be 0 or 1, not '{}'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    client: Client, tmp_path: Path, name: str, value: str, why: str
) -> None:
    with worker(client, tmp_path, KEEPS, **{name: value}) as process:
        assert process.wait(30) == 2
    assert (tmp_path / "said").read_text() == f"worker.sh: {why.format(value)}\n"


def test_a_command_that_is_not_there_is_refused_before_a_task_is_claimed(client: Client, tmp_path: Path) -> None:
    client.put("a")
    done = subprocess.run(
        [ROOT / "demo" / "worker.sh", client.queue.name, "./nosuch.sh"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "TIMEOUTQ_HTTP": client.web.base}, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "worker.sh: there is no command './nosuch.sh' that may be run\n")
    assert counted(client, "claimed") == {}


def test_a_burst_that_may_not_look_is_refused_before_a_task_is_claimed(tmp_path: Path) -> None:
    with EmbeddedServer() as server, WebProcess(server.url, tmp_path) as web, Queue("burst", server.url) as queue:
        queue.put("a")
        with TokenBook(server.url) as book:
            secret, _ = book.new("ci", queues=["*"], allow=["put", "work"])
        given = {"HTTP": web.base, "TOKEN": secret, "BURST": "1"}
        done = subprocess.run(
            [ROOT / "demo" / "worker.sh", "burst", "true"], capture_output=True, text=True, timeout=30, check=False,
            env={**os.environ, **{f"TIMEOUTQ_{name}": value for name, value in given.items()}},
        )  # fmt: skip
        assert done.returncode == 1
        assert "use a token that may `work` and `look`" in done.stderr
        assert queue.stats().todos == 1
