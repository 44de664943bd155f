"""The defaults, as the help pages functions, from-rq and from-functions name them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.calling import failure
from tests.rig.command import Say, say, server
from tests.rig.processes import Processes
from timeoutq import Queue
from timeoutq.cli.about import pages
from timeoutq.functions import App
from timeoutq.functions.options import KEEP_RESULT

__all__ = ["say", "server"]


@pytest.mark.parametrize("page", ["from-rq", "from-functions"])
def test_the_defaults_that_the_page_names(app: App, queue: Queue, page: str) -> None:
    _, *table = pages()[page].partition("| by default |")[2].partition("\n\n")[0].splitlines()
    rows = [line.split(" | ")[:2] for line in table[1:]]
    named = {what.removeprefix("| "): value for what, value in rows}
    worker = app.worker()
    assert named["calls at once in a worker"] == f"{worker.concurrency}, of these {app.threads} [`def`](threads.md)"
    assert named["SIGTERM"] == f"waits up to {worker.drain_deadline:.0f} s, then gives the call back"
    assert (named["a result is kept"], KEEP_RESULT) == ("an hour; an error a week", 3600)

    @app.task
    async def broken() -> None:
        raise OSError("no")

    @app.task(cron="0 9 * * *")
    async def nine() -> None: ...

    with app.test() as t:
        broken.delay()
        ran = t.run()
        tick = app.schedules.list()[queue.name][0].next
    assert (named["attempts"], sum(ran.runs.values())) == ("5, with 1, 2, 4 and 8 s between", 5)
    assert 15 <= ran.seconds <= 20
    assert (named["time zone of cron"], datetime.fromtimestamp(tick or 0, UTC).hour) == ("UTC", 9)
    functions = pages()["functions"]
    assert f"| `retry` | {sum(ran.runs.values())} attempts, with about 1, 2, 4 and 8 s between them |" in functions
    assert f"| `keep_result` | {KEEP_RESULT:.0f} |" in functions
    assert f"A worker process runs up to {worker.concurrency} calls at once" in functions
    assert broken.settings.max_runtime is None
    assert "| `max_runtime` | none" in functions


def test_a_call_that_kills_its_process_runs_five_times_or_as_often_as_you_say(
    queue: Queue, url: str, run: Processes, tmp_path: Path, say: Say
) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\nfrom timeoutq.functions import App\n"
        f"app = App({queue.name!r})\n@app.task(retry=[])\n"
        "def die() -> None:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    shop = App(queue.name, url=url)

    @shop.task(keep_result=60)
    def die() -> None: ...

    for most in ("5", "1"):
        assert say("configure", queue.name, "--max-crashes", most).code == 0
        result = die.delay()
        worker = run.start(
            "worker", "--app", "deadly:app", "--burst", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path])
        )
        assert worker.wait(60) == 0, run.log(worker)
        assert f"(crash {most} of {most};" in failure(result).message
    shop.close()
