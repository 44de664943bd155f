"""A deploy that rolls: many old workers beside one new one, and calls that only the new one can run.

`tests/functions/test_calls_under_load.py` runs it small; the long form is

    python -m tests.rig.rolling --old 4 --calls 300

which prints how long the calls took after the new worker had started, and how often the calls were offered in vain.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rig.processes import processes
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.embedded import EmbeddedServer
from timeoutq.functions import App

NAME = "rolls"


@dataclass(slots=True)
class Verdict:
    """What became of the calls."""

    calls: int = 0
    done: int = 0
    failed: int = 0
    wrong: int = 0
    seconds: float = 0.0
    """From the start of the new worker to the end of the last call."""
    releases: int = 0
    """How often calls were given back after that."""
    told: set[str] = field(default_factory=set[str])
    """What `why` said of calls that only the new worker can run."""

    @property
    def good(self) -> bool:
        """Whether all is done within 15 seconds, and `why` has named the trouble before."""
        return self.done == self.calls > 0 and not (self.failed or self.wrong) and self.seconds < 15 and self._is_told

    @property
    def _is_told(self) -> bool:
        return self.told == {"no_function"}

    def line(self) -> str:
        """Say it in one line."""
        return (
            f"{self.calls} calls: {self.done} done, {self.failed} failed, {self.wrong} with a wrong result, "
            f"{self.seconds:.1f} s after the new worker had started; {self.releases} releases meanwhile; "
            f"why said {', '.join(sorted(self.told))}"
        )


def trial(folder: Path, *, old: int = 4, calls: int = 300) -> Verdict:
    """Have old workers meet calls that they cannot run, then start a new one."""
    verdict = Verdict(calls)
    with (
        EmbeddedServer(binary=valkey()) as server,
        processes(server.url, folder) as running,
        Queue(NAME, server.url) as queue,
    ):
        words = ("worker", NAME, "tests.rig.shop:calls", "--no-supervise")
        olds = [running.start(*words, SHOP="old", SHOP_QUEUE=NAME) for _ in range(old)]
        wait_until(lambda: all("starts on queue" in running.log(one) for one in olds), 60)
        app = _shop(server.url)
        greet, bill, moved = (app.functions[name] for name in ("greet", "bill", "moved"))
        put: list[Any] = []
        for n in range(calls // 3):
            put += [greet.call("a"), bill.call(n), moved.call(n, to="b")]
        found = app.put(put)
        lacking = 2 * (calls // 3)
        wait_until(lambda: queue.stats().scheduled == lacking or queue.stats().failed, 60)
        verdict.told = {queue.why(call.id).code for at, call in enumerate(found) if at % 30 in (1, 2)}
        before = queue.stats().counters.get("released", 0)
        new = running.start(*words, SHOP_QUEUE=NAME)
        wait_until(lambda: "starts on queue" in running.log(new), 60)
        began = time.monotonic()
        wait_until(lambda: queue.stats().known == 0 or queue.stats().failed, 60)
        verdict.seconds = time.monotonic() - began
        verdict.releases = queue.stats().counters.get("released", 0) - before
        wanted = [one for n in range(calls // 3) for one in ("hello a", n, f"{n}b")]
        verdict.failed = queue.stats().failed
        verdict.done = len(found) - queue.stats().known
        verdict.wrong = sum(call.wait(10) != value for call, value in zip(found, wanted, strict=True))
        app.close()
    return verdict


def _shop(url: str) -> App:
    app = App(NAME, url=url)

    @app.task(keep_result=60)
    async def greet(name: str) -> str: ...  # type: ignore[empty-body]  # the workers run another

    @app.task(keep_result=60)
    async def bill(number: int) -> int: ...  # type: ignore[empty-body]  # the workers run another

    @app.task(keep_result=60)
    async def moved(number: int, *, to: str) -> str: ...  # type: ignore[empty-body]  # the workers run another

    return app


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run the trial, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=int, default=4)
    parser.add_argument("--calls", type=int, default=300)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="timeoutq-rolling-") as folder:
        verdict = trial(Path(folder), old=given.old, calls=given.calls)
    print(verdict.line())
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
