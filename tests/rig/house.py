"""The map of the house in CONTRIBUTING: each module, in reading order, with the first sentence of its docstring.

`python -m tests.rig.house` writes the map again; `test_layout.py` fails when the map is old.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / ".github" / "CONTRIBUTING.md"
BEGIN, END = "<!-- the map: python -m tests.rig.house -->\n", "<!-- the end of the map -->\n"


def purpose(path: Path) -> str:
    """Give the first paragraph of a module's docstring, on one line."""
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
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
