"""The gateway under kills, in short; `python -m tests.rig.gateway all` is the long form."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rig import gateway

needs_jq = pytest.mark.skipif(not (shutil.which("jq") and shutil.which("curl")), reason="needs curl and jq")


@needs_jq
def test_bash_workers_lose_nothing_when_the_gateway_is_killed(tmp_path: Path) -> None:
    assert "lost 0" in gateway.drain(tmp_path, tasks=40, kills=2, workers=2, batch=3)


def test_the_leases_of_clients_that_vanish_are_back_within_a_second(tmp_path: Path) -> None:
    assert "all back" in gateway.vanish(tmp_path)


def test_those_who_wait_get_an_empty_answer_on_sigterm(tmp_path: Path) -> None:
    assert "all got an empty answer" in gateway.stop(tmp_path, clients=20)
