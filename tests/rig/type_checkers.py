"""Compares the complaints of type checkers about a sample with its marks: lines that end in `# refused` are wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MARK = "# refused"


def marked(sample: str) -> set[int]:
    """Give the numbers of the lines that must be refused; the first line is 1."""
    return {number for number, line in enumerate(sample.splitlines(), 1) if line.endswith(MARK)}


def refused_by_mypy(sample: str, folder: Path, cache: Path) -> set[int]:
    """Give the numbers of the lines in which mypy finds an error; the sample is written into the folder."""
    path = _written(sample, folder)
    done = _run("mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache), str(path))
    print(done.stdout, done.stderr)
    return {int(line) for line in re.findall(r"^.*sample\.py:(\d+): error", done.stdout, re.MULTILINE)}


def refused_by_basedpyright(sample: str, folder: Path) -> set[int]:
    """Give the numbers of the lines in which basedpyright finds an error; the sample is written into the folder."""
    _written(sample, folder)
    settings = {"typeCheckingMode": "standard", "include": ["sample.py"], "reportUnusedCoroutine": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = _run("basedpyright", "--outputjson", "-p", str(folder), "--pythonpath", sys.executable)
    print(done.stdout, done.stderr)
    problems = json.loads(done.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in problems if one["severity"] == "error"}


def _written(sample: str, folder: Path) -> Path:
    path = folder / "sample.py"
    path.write_text(sample)
    return path


def _run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parent.parent.parent)
    return subprocess.run([sys.executable, "-m", program, *words], capture_output=True, text=True, cwd=root)
