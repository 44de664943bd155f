"""Reads modules of the package without importing them: docstrings, imports, and the lists of modules in docstrings."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = ", in reading order: each imports only from those above it."


@dataclass(frozen=True, slots=True)
class Module:
    docstring: str
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    """`import a.b` is `("a.b", ())`, and `from a import b` is `("a", ("b",))`."""
    functions: tuple[tuple[str, int], ...]
    calls: tuple[tuple[int, str, str], ...]


@cache
def module(path: Path) -> Module:
    """Read a module: once, for to parse all of them takes seconds."""
    tree = ast.parse(path.read_text("utf-8"))
    imports: list[tuple[str, tuple[str, ...]]] = []
    functions: list[tuple[str, int]] = []
    calls: list[tuple[int, str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imports.append((node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.Import):
            imports += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            calls.append((node.lineno, node.value.id, node.attr))
    return Module(ast.get_docstring(tree) or "", tuple(imports), tuple(functions), tuple(calls))


def listed(package: Path) -> dict[str, str]:
    """Give the modules that the docstring of a package lists, in its order, each with what it is said to be for."""
    rows = module(package / "__init__.py").docstring.partition(LIST)[2]
    found = re.findall(r"^    (\w+)  +(\S.*(?:\n {8,}\S.*)*)", rows, re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in found}
