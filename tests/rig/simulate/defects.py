"""Defects to be put into today's code: the simulation must find each of them.

D2 to D5 are defects of earlier versions of timeoutq. The others were put into the Lua by hand, to see what the
judges of the simulation notice.

`put_back` changes the source of modules while they are imported, and that of Lua while it is read, so it must be
called before timeoutq is imported. This module itself imports nothing of timeoutq.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.resources.abc import Traversable
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in a module of the package, or in a file of Lua."""

    module: str
    """The name of the module; for Lua, the path in the package."""
    old: str
    new: str

    @property
    def path(self) -> str:
        """Give the path of the file in the package."""
        return self.module if self.module.endswith(".lua") else f"{self.module.replace('.', '/')}.py"

    def made(self, text: str) -> str:
        """Give the text of the file with this change; raises `RuntimeError` if the change has lost its place."""
        if text.count(self.old) != 1:
            raise RuntimeError(f"{self.path} has changed: {self.old!r} stands there {text.count(self.old)} times")
        return text.replace(self.old, self.new)


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
                "worker.handlers",
                "return Shape(name, inspect.iscoroutinefunction(inner),",
                "return Shape(name, inspect.iscoroutinefunction(handler),",
            ),
            Change("worker.threads", "waits = result is not None and inspect.isawaitable(result)", "waits = False"),
            Change(
                "worker.leases",
                "            self.failed(lease, handlers.wrong_result(self.rules.handler, came), hopeless=True)",
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
                "server.road",
                "        if len(packed) <= SLICE:\n            self._transport",
                "        if len(packed) <= 1 << 40:\n            self._transport",
            ),
        ),
    ),
    "D5": Defect(
        "a worker process that exits with 0 counts as drained",
        (
            Change(
                "worker.processes.roster",
                "    if ending.told is Told.DRAINED:\n",
                "    if ending.told is Told.DRAINED or (ending.died and ending.code == 0):\n",
            ),
        ),
    ),
    "owner": Defect(
        "a lease is ended or extended by whoever asks, and not by its owner alone",
        (Change("lua/leases.lua", "yes[i] = held[i] == tokens[i]", "yes[i] = held[i] and true"),),
    ),
    "ack": Defect(
        "an ack is taken with any token, while somebody has a lease",
        (
            Change(
                "lua/verbs/ack.lua",
                "local yes, runs = leases.mine(ids, tokens)",
                "local yes, runs = leases.mine(ids, call('HMGET', key.owners, unpack(ids)))",
            ),
        ),
    ),
    "pause": Defect(
        "a host has no pause after a visit",
        (
            Change(
                "lua/hosts.lua",
                "    if delay == 0 then return end\n    hosts.rest_until",
                "    if true then return end\n    hosts.rest_until",
            ),
        ),
    ),
    "fence": Defect(
        "all leases have the same fence",
        (
            Change(
                "lua/verbs/claim.lua",
                "local fence = math.max(number(setting.fence, 0) + 1, time[1] * 1000000 + time[2])",
                "local fence = 1",
            ),
        ),
    ),
    "cut": Defect(
        "what a claim has taken is not given back if a handler cancels the exchange",
        (
            Change(
                "worker.exchanges",
                "                self.claims.miss(claim, sent_at, sent_at)\n            raise",
                "                self.claims.over(claim)\n            raise",
            ),
        ),
    ),
    "away": Defect(
        "a queue with a weight whose server was away is never tried again",
        (
            Change(
                "worker.exchanges",
                "return bool(self.under_way) and (self.failures > 0 or time.monotonic() - self._began > LATE)",
                "return self.failures > 0 or (bool(self.under_way) and time.monotonic() - self._began > LATE)",
            ),
        ),
    ),
    "follower": Defect(
        "what must be there before an ack is asked for once, and a server that is away fails the call",
        (Change("worker.followers", "                if flows.is_final(error):\n", "                if True:\n"),),
    ),
    "links": Defect(
        "a host with several places does not rest before the links of an ack come: they are claimed at once",
        (
            Change("lua/verbs/ack.lua", "  if #found > 0 then ready.rest(ids, runs) end\n", ""),
            Change("lua/hosts.lua", "    if (one.next_ms or 0) <= now then hosts.recall(one) end\n", ""),
        ),
    ),
    "release": Defect(
        "a task that is released for a while is ready at once",
        (
            Change(
                "lua/verbs/release.lua", "tonumber(given.delay or 0), tonumber(given.block", "0, tonumber(given.block"
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
        texts = [change for change in self._changes if change.module.endswith(".lua")]
        reads = fullname == "timeoutq.server.scripts" and bool(texts)
        spec = PathFinder.find_spec(fullname, path) if changes or reads else None
        if spec is not None and spec.origin is not None and reads:
            spec.loader = _Reading(fullname, spec.origin, texts)
        elif spec is not None and spec.origin is not None:
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
            text = change.made(text)
        return text.encode()


class _Reading(SourceFileLoader):
    """Loads the module that reads the Lua, and has it read them with changes."""

    def __init__(self, fullname: str, path: str, changes: Sequence[Change]) -> None:
        super().__init__(fullname, path)
        self._changes = changes

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        files = module.files
        module.__dict__["files"] = lambda package: _Path(files(package), self._changes)


class _Path:
    """A file or a folder of the package, whose files are read with changes."""

    def __init__(self, path: Traversable, changes: Sequence[Change], name: str = "") -> None:
        self._path, self._changes, self._name = path, changes, name

    def __truediv__(self, name: str) -> _Path:
        return _Path(self._path / name, self._changes, f"{self._name}/{name}".removeprefix("/"))

    def iterdir(self) -> Iterator[Traversable]:
        return self._path.iterdir()

    def read_text(self, encoding: str) -> str:
        text = self._path.read_text(encoding)
        for change in self._changes:
            if change.path == self._name:
                text = change.made(text)
        return text
