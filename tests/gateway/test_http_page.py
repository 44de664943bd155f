"""What the help page about HTTP shows is run here as it stands there, with curl and jq."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gateway.web import Client, client, server, web
from tests.rig.gateways import WebProcess
from tests.rig.processes import ROOT
from timeoutq import Queue
from timeoutq.cli.about import pages
from timeoutq.gateway.tokens import TokenBook
from timeoutq.server.embedded import EmbeddedServer

__all__ = ["client", "server", "web"]

PAGE = pages()["http"]
EXAMPLES = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.skipif(not (shutil.which("jq") and shutil.which("curl")), reason="needs curl and jq")


def bash(code: str, folder: Path) -> str:
    """Run a script as a person would; give what it prints."""
    done = subprocess.run(
        ["bash", "-e", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_of_curl_run(client: Client, tmp_path: Path) -> None:
    code = EXAMPLES[0].replace("http://localhost:8080", client.web.base).replace("/crawl", f"/{client.queue.name}")
    said = re.sub(r"}\s*{", "}\n{", bash(code, tmp_path)).splitlines()
    put, ack, task, lines = map(json.loads, said)
    assert put["answers"] == ["added", "added"]
    assert ack["counts"] == {"ok": 2}
    assert task["state"] == "done"
    assert lines == {"lines": 3, "counts": {"added": 3}}
    assert client.queue.stats().done == 2


def test_the_example_of_a_worker_runs(client: Client, tmp_path: Path) -> None:
    fetch = tmp_path / "fetch.sh"
    fetch.write_text('#!/bin/sh\necho "$@" >>ran; cat >>ran\n')
    fetch.chmod(0o755)
    client.put("https://a.example/", {"task": "https://b.example/", "payload": {"depth": 1}})
    code = EXAMPLES[1].replace("http://localhost:8080", client.web.base).replace("tq_…", "''")
    code = code.replace("demo/worker.sh crawl", f"TIMEOUTQ_BURST=1 {ROOT}/demo/worker.sh {client.queue.name}")
    bash(code, tmp_path)
    ran = (tmp_path / "ran").read_text().splitlines()
    assert sorted(ran) == ["--fast https://a.example/", "--fast https://b.example/", "null", '{"depth":1}']


def test_a_worker_that_may_not_see_whether_the_queue_is_drained_says_so_and_ends(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with (
        TokenBook(server.url) as book,
        WebProcess(server.url, tmp_path) as started,
        Queue("burst", server.url) as queue,
    ):
        try:
            secret = book.new("ci", queues=["burst"], allow=["put", "work"])[0]
            seeing = book.new("seeing", queues=["burst"], allow=["work", "look"])[0]
            queue.put("a")
            worker = [str(ROOT / "demo" / "worker.sh"), "burst", "true"]
            environment = {**os.environ, "TIMEOUTQ_BURST": "1", "TIMEOUTQ_HTTP": started.base}
            for token, code in ((secret, 1), (seeing, 0)):
                done = subprocess.run(
                    worker, env={**environment, "TIMEOUTQ_TOKEN": token}, capture_output=True, text=True, timeout=30
                )
                assert done.returncode == code, done.stderr
                assert ("may `work` and `look`" in done.stderr) is bool(code)
            assert queue.stats().done == 1
        finally:
            queue.purge()
            for name in ("ci", "seeing"):
                book.revoke(name)


def test_the_verbs_and_looks_it_names_are_those_that_there_are(client: Client) -> None:
    paths = client.http.get(f"{client.web.base}/v1/openapi.json").json()["paths"]
    found = {path.rpartition("/")[2] for path in paths if path.startswith("/v1/{queue}/")}
    [line] = re.findall(r"^- `POST /v1/QUEUE/VERB`: (.*?)\n- ", PAGE, re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"[a-z]+", re.sub(r"`[^`]*`|\([^)]*\)", "", line).partition("lists the")[0]))
    assert found <= named, found - named
