"""The command inside this process, quick enough for many cases; what it says must steer no terminal."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import typer.main

from tests.rig import canary
from tests.rig.corpus import stray
from tests.rig.processes import ROOT
from timeoutq import cli
from timeoutq.server.embedded import EmbeddedServer

_built = cache(typer.main.get_command)
"""The commands, read from their functions once: that takes longer than most commands run."""


@dataclass(frozen=True)
class Done:
    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode("utf-8", "surrogateescape")

    @property
    def texts(self) -> list[str]:
        return self.out.splitlines()

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.texts]

    @property
    def facts(self) -> dict[str, str]:
        return {line[0]: line[1] for line in self.lines}

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.texts]


Say = Callable[..., Done]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One server is enough for what the command says: the scripts run on both elsewhere."""
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as started:
        yield started


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], url: str) -> Say:
    """Run `timeoutq` with these words against the server of the test; `stdin` None: it is closed."""
    for name, value in _environment(url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(typer.main, "get_command", _built)

    def call(*words: object, stdin: bytes | None = b"", **environment: str) -> Done:
        typed = [str(word) for word in words]
        capfdbinary.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            patch.setattr(sys, "argv", ["timeoutq", *typed])
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as left:
                cli.main()
        assert isinstance(left.value.code, int), typed
        said = capfdbinary.readouterr()
        return _checked(typed, left.value.code, said.out, said.err)

    return call


def started(url: str, *words: str | bytes, stdin: bytes = b"", **environment: str) -> Done:
    """Run `python -m timeoutq` with these words as a process of its own: for what only such a process can show."""
    done = subprocess.run(
        [sys.executable, "-m", "timeoutq", *words],
        env={**os.environ, **_environment(url), "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT, input=stdin, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    return _checked(words, done.returncode, done.stdout, done.stderr)


def _environment(url: str) -> dict[str, str]:
    # typer colours its help where it finds itself on GitHub, terminal or not: but not on a terminal without colours
    return {"TIMEOUTQ_URL": url, "COLUMNS": "200", "TERM": "dumb"}


def _checked(words: Sequence[str | bytes], code: int, out: bytes, err: bytes) -> Done:
    done = Done(code, out, err.decode("utf-8"))
    if not {"-0", "--null"} & set(words):  # with these, ids come as they are
        assert stray(done.out, "\n\t") == [], words
    assert stray(done.err) == [], words
    assert "Traceback" not in done.err, words
    return done
