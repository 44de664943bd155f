"""The package uses other packages by their public parts alone: what is private there may change with any version."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import timeoutq

PACKAGE = Path(timeoutq.__file__).parent
TREES = {path: ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_getframe", "_replace", "_unregister_task"}
"""Names of the standard library that begin with a _ and are documented."""
HOOKS = {"excepthook", "stdout"}
"""What the standard library says may be set."""
BY_TEXT = ("getattr", "setattr", "delattr", "import_module")
EXCEPTION = PACKAGE / "testing" / "fake.py"
"""What fakeredis must be taught stands here, and is tried when it is first used."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def attribute(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def is_of(node: ast.AST, owners: Collection[str]) -> bool:
    """Say whether this is an attribute of one of these names."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners


def defined(tree: ast.AST) -> Iterator[str]:
    """Give the names that a file gives to things of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_of(node, ("self", "cls")):
            yield node.attr


OURS = {name for tree in TREES.values() for name in defined(tree)} - {"_"}


def touched(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give the line and the text of each private part of another package that a file uses, and of what it changes."""
    foreign = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if not f"{getattr(node, 'module', None) or alias.name}.".startswith("timeoutq.")
    }  # fmt: skip
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.Attribute):
            words = [node.attr]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            words = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "getattr",
            "setattr",
            "delattr",
            "import_module",
        ):
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        elif isinstance(node, ast.Assign):
            changed = [target for target in node.targets if is_of(target, foreign) and attribute(target) not in HOOKS]
            words = ["_"] * len(changed)
        if any(is_private(part) and part not in OURS for word in words for part in word.split(".")):
            yield node.lineno, ast.unparse(node)  # type: ignore[attr-defined]  # all of these stand on a line


def test_no_private_part_of_another_package_is_used_and_nothing_of_another_is_changed() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path, tree in TREES.items() if path != EXCEPTION
        for line, text in touched(tree)
    ]  # fmt: skip
    assert found == []
