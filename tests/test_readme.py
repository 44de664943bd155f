"""What the README shows is run here, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from timeoutq.cli import app

README = (Path(__file__).resolve().parent.parent / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_run(number: int, url: str, tmp_path: Path) -> None:
    code = tmp_path / "example.py"
    code.write_text(EXAMPLES[number], "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(code)],
        env={"TIMEOUTQ_URL": url, "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_commands_it_shows_exist() -> None:
    known = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    shown = set(re.findall(r"timeoutq ([a-z]+)", SHELL))
    assert shown
    assert shown <= known


def test_there_are_examples_and_the_two_first_commands() -> None:
    assert len(EXAMPLES) >= 4
    first, second = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[:2]
    assert first.strip() == "pip install '.[demo]' && python -m demo"
    assert second.strip() == "pip install '.[test]' && pytest"
