"""Bugs that are seeded into the package, one at a time, to see that tests notice each: a module for each room.

A mutant is one replacement in one file of the package. `python -m tests.rig.mutants` plants each in a copy of the tree,
and runs its killers there. Each module of this folder has a list `MUTANTS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SCHEDULES = "schedules"
POLITE_SCHEDULES = "schedules --polite"
FILES = {path.stem: path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
"""Where each file of tests is, by its name without the ending: no two files have the same name."""
PROPERTIES = f"{FILES['test_core_model']} -k fakeredis"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A seeded bug, and what is expected to notice it."""

    name: str
    file: str
    old: str
    new: str
    killers: Sequence[str] = (SCHEDULES,)


def in_test(file: str, name: str) -> str:
    """Give the killer that runs the tests of a file whose names match."""
    return f"{FILES[file]} -k {name}"
