"""CONTRIBUTING: short enough to be read, and each folder, path, name and command in it is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_group

from tests.rig.house import ROOT
from timeoutq.cli import app

PAGE = (ROOT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
CODE = [line.partition("#")[0] for part in re.findall(r"```sh\n.*?```|`[^`\n]+`", PAGE, re.DOTALL)
        for line in re.split(r"\n|&&|;", part.strip("`"))]  # fmt: skip
COMMANDS = sorted({line.strip() for line in CODE if re.match(r"\s*(\.ci/|(pytest|python|pip|ruff|timeoutq) \S)", line)})
PATHS = sorted({*re.findall(r"[\w./*]+\.(?:py|lua|md|toml)\b|[\w.]+/(?:\w+/)*(?=`)", PAGE)})
MADE_UP = {"timeoutq/lua/verbs/peek.lua"}
NAMES = [
    (name, path)
    for names, path in re.findall(r"((?:`\w+`(?:, | and )?)+) (?:of|in) `([\w/.]+\.(?:py|lua))`", PAGE)
    for name in re.findall(r"`(\w+)`", names)
]


def found(path: str) -> list[Path]:
    """Find what a path of the page means: from the root, or from a folder that the text is about."""
    return [file for place in ("", "timeoutq", "timeoutq/lua") for file in (ROOT / place).glob(path)]


def test_it_is_short() -> None:
    assert len(PAGE.encode()) <= 8192


def test_it_says_what_each_folder_is_for() -> None:
    package = {path.name for path in (ROOT / "timeoutq").iterdir() if path.is_dir()} - {"__pycache__"}
    assert {name for name in package if f"`{name}/`" not in PAGE} == set()
    inside = {path.stem for path in (ROOT / "timeoutq").rglob("*")}
    tests = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."}
    assert {name for name in tests - inside if f"`tests/{name}/`" not in PAGE} == set()


def test_each_path_is_there_and_each_name_stands_in_its_file() -> None:
    assert {path for path in PATHS if not found(path)} == MADE_UP
    for name, path in NAMES:
        assert re.search(rf"\b{name}\b", found(path)[0].read_text("utf-8")), (name, path)


def test_the_checkers_come_with_the_second_command() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert "pip install -e '.[lint]'" in COMMANDS
    assert {"ruff", "mypy", "basedpyright"} <= {pin.partition("==")[0] for pin in extras["lint"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_there(command: str) -> None:
    tool, *words = command.split()
    assert [word for word in (tool, *words) if "/" in word and not found(word)] == []
    if tool == ".ci/long":
        parts = subprocess.run([ROOT / tool, "--list"], capture_output=True, text=True, check=True).stdout
        assert set(words) - {"--list"} <= {line.split()[0] for line in parts.splitlines()}
    elif tool == "timeoutq":
        assert words[0] in get_group(app).commands
    elif tool == "python" and words[1] != "venv":
        module = find_spec(words[1])
        assert module
        file = Path(module.origin or "")
        text = (file.parent / "__main__.py" if file.name == "__init__.py" else file).read_text("utf-8")
        assert [word for word in words[2:] if word.startswith("--") and f'"{word}"' not in text] == []
    elif "-k" in words:
        (file,) = found(words[words.index("-k") - 1])
        assert re.search(rf"def test_\w*{words[-1]}", file.read_text("utf-8"))
