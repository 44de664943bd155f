"""Defects of earlier versions of timeoutq, to be put back into today's code: the simulation must find each of them.

`put_back` changes the source of modules while they are imported, so it must be called before timeoutq is. This module
itself imports nothing of timeoutq.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in a module of the package."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect, and what brings it back."""

    what: str
    changes: Sequence[Change]


DEFECTS: Mapping[str, Defect] = {
    "D2": Defect(
        "handlers that never ran are acked: a call that only gives a coroutine counts as done",
        (
            Change(
                "handlers",
                "return Shape(name, inspect.iscoroutinefunction(inner),",
                "return Shape(name, inspect.iscoroutinefunction(handler),",
            ),
            Change("worker.threads", "waits = result is not None and inspect.isawaitable(result)", "waits = False"),
            Change(
                "worker.desk",
                "            self.failed(lease, handlers.wrong_result(self.rules.handler, came))",
                "            self.ends.acks.append(lease)",
            ),
        ),
    ),
    "D3": Defect(
        "an exception that escapes a consumer kills the consumer, and its lease is extended for ever",
        (
            Change(
                "worker.crews",
                "except BaseException as error:  # whatever a handler raises is its task's failure",
                "except Exception as error:",
            ),
            Change("worker.crews", "        if not self.closing:\n            self._start()", "        pass"),
            Change("worker.interrupts", "if times >= LOOKS]", "if times >= 1_000_000]"),
        ),
    ),
    "D4": Defect(
        "an ack that takes longer than 0.3 of the deadline is sent again whole, and stalls its worker for ever",
        (
            Change(
                "link",
                "if (size := sum(map(len, packed))) <= SLICE:\n                    await",
                "if (size := sum(map(len, packed))) <= 1 << 40:\n                    await",
            ),
        ),
    ),
    "D5": Defect(
        "a worker process that exits with 0 counts as drained",
        (
            Change(
                "endings",
                "    if ending.told is Told.DRAINED:\n",
                "    if ending.told is Told.DRAINED or (ending.died and ending.code == 0):\n",
            ),
        ),
    ),
}


def put_back(name: str) -> None:
    """Have timeoutq imported with this defect; raises `RuntimeError` if timeoutq was imported already."""
    if "timeoutq" in sys.modules:
        raise RuntimeError("timeoutq is imported already: a defect must be put back before")
    sys.meta_path.insert(0, _Finder(DEFECTS[name].changes))


class _Finder(MetaPathFinder):
    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        changes = [change for change in self._changes if fullname == f"timeoutq.{change.module}"]
        spec = PathFinder.find_spec(fullname, path) if changes else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Changing(fullname, spec.origin, changes)
        return spec


class _Changing(SourceFileLoader):
    def __init__(self, fullname: str, path: str, changes: Sequence[Change]) -> None:
        super().__init__(fullname, path)
        self._changes = changes

    def path_stats(self, path: str | bytes) -> Mapping[str, object]:
        raise OSError("compiled code of this module is not kept")

    def get_data(self, path: str | bytes) -> bytes:
        text = super().get_data(str(path)).decode()
        for change in self._changes:
            if text.count(change.old) != 1:
                raise RuntimeError(
                    f"{change.module} has changed: {change.old!r} stands there {text.count(change.old)} times"
                )
            text = text.replace(change.old, change.new)
        return text.encode()
