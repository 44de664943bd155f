"""The command inside this process, quick enough for many cases; what it says must steer no terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.rig import canary
from tests.rig.corpus import stray
from timeoutq import cli
from timeoutq.embedded import EmbeddedServer


@dataclass(frozen=True)
class Done:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def facts(self) -> dict[str, str]:
        return {line[0]: line[1] for line in self.lines}

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Say = Callable[..., Done]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One server is enough for what the command says: the scripts run on both elsewhere."""
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], url: str) -> Say:
    """Run `timeoutq` with these words against the server of the test."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TIMEOUTQ_URL", url)

    def call(*words: str, stdin: bytes = b"") -> Done:
        capfd.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        monkeypatch.setattr(sys, "argv", ["timeoutq", *words])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        assert isinstance(left.value.code, int), words
        assert stray(out, "\n\t") == [], words
        assert stray(err) == [], words
        assert "Traceback" not in err, words
        return Done(left.value.code, out, err)

    return call
