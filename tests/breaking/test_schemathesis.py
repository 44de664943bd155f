"""schemathesis reads the OpenAPI description, and calls each route with what should and what should not be accepted.

It is a program of its own, because it needs other versions of packages than we do: `TIMEOUTQ_SCHEMATHESIS` says where
`st` is, or `st` is in the path (`pipx install schemathesis`). Without it, the test is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import canary
from tests.rig.served import served
from timeoutq import Queue
from timeoutq.gateway.tokens import SCOPES, TokenBook
from timeoutq.server.embedded import EmbeddedServer

ST = os.environ.get("TIMEOUTQ_SCHEMATHESIS") or shutil.which("st")

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,"
    "allow_header_conformance,ignored_auth"
)
"""All checks of one call but one: a schema cannot say that one of two parameters is wanted, or how many bytes a text
has, so that some calls that are good by the schema are refused."""


SETTINGS = """
[parameters]
"path.queue" = "crawl"

[[operations]]
include-path = "/v1/{queue}/purge"
parameters = { "path.queue" = "purged" }
"""
"""A queue that was purged is unknown: no other route would get further than that."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


@pytest.mark.skipif(ST is None, reason="no schemathesis on this machine: pipx install schemathesis")
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(url: str, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with Queue("purged", url) as purged:
        purged.put("once")
    with Queue("crawl", url, timeout=1) as queue, TokenBook(url) as book, served(url, tmp_path) as gateway:
        queue.put([f"https://a.example/{i}" for i in range(100)])
        secret, _ = book.new("st", queues=["*"], allow=SCOPES)
        words = [
            str(ST), "--config-file", str(tmp_path / "schemathesis.toml"), "run",
            f"http://{gateway.host}/v1/openapi.json", "-H", f"Authorization: Bearer {secret}", "--checks", CHECKS,
            "--phases", "coverage,fuzzing", "--max-examples", "8", "--seed", "7", "--continue-on-failure",
        ]  # fmt: skip
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        cases = re.search(r"(\d+) generated", done.stdout)
        assert cases is not None, done.stdout[-2000:]
        assert int(cases[1]) > 500
        # purge itself: its queue is there once
        assert "Missing test data: 1 operation " in done.stdout, done.stdout[-6000:]
        gateway.is_well()
