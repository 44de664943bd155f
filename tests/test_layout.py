"""The layout of the package: reading order is import order, and each module says what it is for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import timeoutq

PACKAGE = Path(timeoutq.__file__).parent
ORDER = [
    "errors", "model", "arguments", "text", "retry", "operations", "address", "connection", "embedded", "flows",
    "client", "heartbeat", "cleaner", "worker", "supervisor", "dashboard", "testing", "doctor", "logs",
    "cli", "__main__",
]  # fmt: skip


def imported(module: str) -> set[str]:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("timeoutq"):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("timeoutq.")}
    return found


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*ORDER, "__init__"}


def test_each_module_imports_only_what_stands_above_it() -> None:
    for place, module in enumerate(ORDER):
        below = imported(module) - set(ORDER[:place])
        assert not below, f"{module} imports {below}, which stand below it"


def test_each_module_says_what_it_is_for() -> None:
    for module in [*ORDER, "__init__"]:
        tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
        assert ast.get_docstring(tree), module


def test_only_the_links_speak_to_redis_py() -> None:
    for module in ORDER:
        if module not in ("connection", "testing"):
            text = (PACKAGE / f"{module}.py").read_text("utf-8")
            assert "import redis" not in text, module
            assert "from redis" not in text, module


def test_no_pickle_anywhere() -> None:
    for path in PACKAGE.glob("*.py"):
        assert "import pickle" not in path.read_text("utf-8")


def test_all_names_it_exports_can_be_imported() -> None:
    for name in timeoutq.__all__:
        assert getattr(timeoutq, name).__name__ == name
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(timeoutq.__all__) <= typed


def test_help_needs_no_client() -> None:
    code = "import sys, timeoutq.cli; print(*sorted({'redis', 'asyncio', 'tenacity'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
