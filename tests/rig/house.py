"""The map of the house in CONTRIBUTING: each module, in reading order, with the first sentence of its docstring.

`python -m tests.rig.house` writes the map again; `test_layout.py` fails when the map is old.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / ".github" / "CONTRIBUTING.md"
BEGIN, END = "<!-- the map: python -m tests.rig.house -->\n", "<!-- the end of the map -->\n"


@dataclass(frozen=True, slots=True)
class Module:
    """What the rules of the house ask of a module."""

    docstring: str
    imports: tuple[tuple[str, tuple[str, ...]], ...]
    """`import a.b` is `("a.b", ())`, and `from a import b` is `("a", ("b",))`."""
    functions: tuple[tuple[str, int], ...]
    """Name and lines of each."""
    calls: tuple[tuple[int, str, str], ...]
    """Line, name and attribute of what looks like `log.info`."""


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


def purpose(path: Path) -> str:
    """Give the first paragraph of a module's docstring, on one line."""
    said = module(path).docstring
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")


def drawn(order: Sequence[str], rooms: Mapping[str, Sequence[str]]) -> str:
    """Draw the map of the package: a row for each module, and for each file of a module that is a folder."""
    package = ROOT / "timeoutq"
    rows = ["| module | what it is for |", "|---|---|"]
    for module in order:
        if module not in rooms:
            rows.append(f"| `{module}.py` | {purpose(package / f'{module}.py')} |")
            continue
        rows.append(f"| **`{module}/`** | {purpose(package / module / '__init__.py')} |")
        rows += [
            f"| `{module}/{part}.py` | {purpose(package / module / f'{part}.py')} |"
            for part in rooms[module]
            if part != "__init__"
        ]
    return "\n".join(rows) + "\n"


def shown() -> str:
    """Give the map that the page shows."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Write the map of today into the page."""
    from tests.pure import test_layout  # the order of the modules stands there

    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + drawn(test_layout.ORDER, test_layout.ROOMS) + END + after, "utf-8")


if __name__ == "__main__":
    main()
