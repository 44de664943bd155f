"""Defects to be put into today's code: the simulation must find each of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig.mutants import copy


@dataclass(frozen=True, slots=True)
class Change:
    module: str
    """The name of the module; for Lua, the path in the package."""
    old: str
    new: str

    @property
    def path(self) -> str:
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
            Change(
                "worker.threads",
                'waits = came is not None and inspect.isawaitable(cast("object", came))',
                "waits = False",
            ),
            Change(
                "worker.leases",
                "            self.failed(lease, handlers.wrong_result(self.rules.handler, came), hopeless=True)",
                "            self.ends_of(lease).acks.append(lease)",
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
            Change(
                "worker.crews",
                "            self._broken(error)\n        if not self.closing:\n            self._start()",
                "            pass",
            ),
        ),
    ),
    "D4": Defect(
        "an ack that takes longer than 0.3 of the deadline is sent again whole, and stalls its worker for ever",
        (
            Change(
                "server.connections",
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
                "elif not (self.is_stopping or ending.replaced or ending.told is Told.DRAINED):",
                "elif not (self.is_stopping or ending.told is Told.DRAINED or (ending.died and ending.code == 0)):",
            ),
        ),
    ),
    "owner": Defect(
        "a lease is ended or extended by whoever asks, and not by its owner alone",
        (Change("lua/leases.lua", "held[i] = held[i] == tokens[i]", "held[i] = held[i] and true"),),
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
                "    if delay > 0 then hosts.rest_until",
                "    if false then hosts.rest_until",
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
                "            self.claims.miss(claim, sent_at, sent_at)\n            raise",
                "            self.claims.over(claim)\n            raise",
            ),
        ),
    ),
    "away": Defect(
        "a queue with a weight whose server was away is never tried again",
        (
            Change(
                "worker.exchanges",
                "return bool(self.under_way) and (self.failures > 0 or time.monotonic() - self.began > LATE)",
                "return self.failures > 0 or (bool(self.under_way) and time.monotonic() - self.began > LATE)",
            ),
        ),
    ),
    "follower": Defect(
        "what must be there before an ack is asked for once, and a server that is away fails the call",
        (
            Change(
                "worker.leases", "                if isinstance(error, InvalidInput):\n", "                if True:\n"
            ),
        ),
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


def run_with(name: str, words: Sequence[str]) -> int:
    """Run the command with these words in a copy of the tree that has this defect; give its exit code."""
    with tempfile.TemporaryDirectory(prefix="timeoutq-defect-") as folder:
        tree = Path(folder)
        copy(tree)
        for change in DEFECTS[name].changes:
            path = tree / "timeoutq" / change.path
            path.write_text(change.made(path.read_text("utf-8")), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder}
        return subprocess.run(
            [sys.executable, "-m", "tests.rig.simulate", *words], cwd=tree, env=environment
        ).returncode
