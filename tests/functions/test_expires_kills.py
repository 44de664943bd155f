"""2,000 calls that expire, while their workers are killed with -9: none begins late, and each other one is counted."""

from __future__ import annotations

import random
import subprocess
import time
from datetime import UTC, datetime
from functools import partial

from tests.rig import shop
from tests.rig.processes import Processes
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.functions import App

CALLS, KILLS = 2_000, 12
SLACK = 1.0
"""Seconds for which the machine may take a worker away between its look at the clock and the call."""


def test_of_2_000_calls_under_kills_none_begins_late_and_each_other_is_counted(
    name: str, url: str, run: Processes
) -> None:
    chance, queue = random.Random(11), Queue(name, url, max_crashes=1000)
    app, words = App(name, url=url), ("worker", "--app", "tests.rig.shop:app", "--no-supervise", "--timeout", "1s")
    note = app.task(shop.note.definition.function)

    def start() -> None:
        workers.append(run.start(*words, "-c", "4", SHOP_QUEUE=name))

    def has_moved(to: int) -> bool:
        return len(_lines(run)) > to or queue.stats().drained

    workers, began = list[subprocess.Popen[bytes]](), time.time()
    # half of the calls have time enough, some have none, and for the others it depends on the machine
    spans = [chance.choice((900, 900, 900, chance.uniform(3, 12), chance.uniform(3, 12), 0.001)) for _ in range(CALLS)]
    spans[1::2] = [max(span, 3) for span in spans[1::2]]  # these are told by a date
    by_date = [datetime.fromtimestamp(began + span, UTC) for span in spans]
    app.put(note.options(expires=by_date[at] if at % 2 else spans[at], id=str(at)).call(at) for at in range(CALLS))
    until = [began + span + (0 if at % 2 else time.time() - began) for at, span in enumerate(spans)]
    for _ in range(3):
        start()
    for at in range(KILLS):
        wait_until(partial(has_moved, len(_lines(run)) + 40))
        workers[at].kill()
        start()
    wait_until(lambda: queue.stats().drained, 120)
    stats, begun = queue.stats(), [(int(number), float(moment)) for number, moment in map(str.split, _lines(run))]
    late = [(number, moment - until[number]) for number, moment in begun if moment > until[number] + SLACK]
    assert not late
    failed = list(queue.each("failed"))
    assert {(entry.error or "").partition(":")[0] for entry in failed} == {"expired"}
    assert all((entry.at or 0) > until[int(entry.task)] - SLACK for entry in failed)
    assert stats.counters["calls_expired"] == len(failed) == CALLS - stats.counters["acked"]
    assert len({number for number, _ in begun}) >= stats.counters["acked"] >= spans.count(900)
    assert len(failed) >= spans.count(0.001) > 100
    assert stats.counters["expired"] > 0, "no kill has cut a call off"
    app.close()
    queue.purge()
    queue.close()


def _lines(run: Processes) -> list[str]:
    return run.history.read_text().splitlines() if run.history.exists() else []
