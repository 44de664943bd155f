"""A run of the tests leaves nothing behind, also one that a shell runs in the background."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

CTRL_C = "tests/faces/test_cli.py::test_the_server_command_runs_one_and_ends_with_it"

LEAVES = """
import tempfile
from pathlib import Path

from tests.rig.shims import compiled

def test_that_leaves_files():
    compiled("clock")
    Path(tempfile.mkdtemp(), "left").write_text("left")
"""


def test_a_run_in_the_background_can_be_interrupted_and_leaves_no_file(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    names = ("TMPDIR", "PYTEST_DEBUG_TEMPROOT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        # the shell has SIGINT ignored in what it runs in the background
        ["/bin/sh", "-c", '"$@" & wait $!', "sh", *command, CTRL_C, tmp_path / "test_leaves.py"],
        cwd=ROOT, env={**environment, "TMPDIR": str(temporary)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("pytest-of-")] == []
