"""What a worker writes down for its supervisor: what it holds, what it runs, and that it ends on purpose."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from timeoutq import AsyncQueue, GiveUp, Lease, Queue, Release, Worker
from timeoutq.worker.processes.endings import Told
from timeoutq.worker.processes.ledger import SharedLedger, slots_for


def lease(number: int, task: str = "") -> Lease:
    return Lease(task or f"task-{number}", f"worker:1:ab#{number}", deadline=0.0, fence=number)


@pytest.fixture
def ledger() -> Iterator[SharedLedger]:
    opened = SharedLedger(4)
    yield opened
    opened.close()


def tasks(leases: Iterable[Lease]) -> set[str]:
    return {one.task for one in leases}


def test_a_parent_reads_what_its_child_held_and_ran(ledger: SharedLedger) -> None:
    pid = os.fork()
    if pid == 0:
        ledger.hold([lease(1), lease(2), lease(3)])
        ledger.start(lease(2))
        ledger.start(lease(3))
        ledger.finish(lease(3))
        ledger.end([lease(1)])
        os._exit(0)
    os.waitpid(pid, 0)
    started, ended, held = ledger.read()
    assert (tasks(started), tasks(ended), held) == ({"task-2"}, {"task-3"}, [])
    assert [one.token for one in started] == ["worker:1:ab#2"]


def test_a_handler_that_has_ended_is_told_from_one_that_runs_and_one_that_has_not_begun(ledger: SharedLedger) -> None:
    ledger.hold([lease(1)])
    ledger.start(lease(1))
    ledger.finish(lease(1))
    started, ended, held = ledger.read()
    assert (started, tasks(ended), held) == ([], {"task-1"}, [])


def test_a_slot_is_used_again_after_its_lease_has_ended(ledger: SharedLedger) -> None:
    for number in range(0, 400, 4):
        four = [lease(number + i) for i in range(4)]
        ledger.hold(four)
        assert tasks(ledger.read().held) == tasks(four)
        ledger.end(four)
    assert not any(ledger.read())


def test_ids_of_any_bytes_are_read_as_they_were_written(ledger: SharedLedger) -> None:
    longest, odd = "x" * 1024, b"\xff\x00\n".decode("utf-8", "surrogateescape")
    ledger.hold([lease(1, longest), lease(2, odd)])
    assert tasks(ledger.read().held) == {longest, odd}


def test_a_full_ledger_says_so_once(ledger: SharedLedger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        ledger.hold([lease(i) for i in range(6)])
        ledger.hold([lease(7)])
        ledger.start(lease(7))
        ledger.end([lease(7)])
    assert tasks(ledger.read().held) == {"task-0", "task-1", "task-2", "task-3"}
    (said,) = caplog.messages
    assert "more than 4 leases are held" in said


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 0), (100, None), (5_000, None), (100_000, 500)])
def test_there_is_room_for_what_runs_waits_and_is_on_the_way(concurrency: int, prefetch: int | None) -> None:
    ahead = 1000 if prefetch is None else prefetch
    slots = slots_for(concurrency, prefetch)
    assert slots >= 2 * (concurrency + ahead)
    ledger = SharedLedger(slots)
    ledger.hold([lease(1)])  # memory of a million slots is not touched, and not walked
    began = time.monotonic()
    assert tasks(ledger.read().held) == {"task-1"}
    assert time.monotonic() - began < 0.1
    ledger.close()


def test_last_words_are_kept_and_cut(ledger: SharedLedger) -> None:
    assert ledger.told() == (Told.NOTHING, "")
    ledger.tell(Told.HOPELESS, "naïve " + "x" * 10_000)
    told, words = ledger.told()
    assert told is Told.HOPELESS
    assert words.startswith("naïve xxx")
    assert 4_000 < len(words) <= 4_096


class Noting(SharedLedger):
    """A ledger that keeps what it was told of each task."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.said: defaultdict[str, list[str]] = defaultdict(list)

    def hold(self, leases: Iterable[Lease]) -> None:
        leases = list(leases)
        for one in leases:
            self.said[one.task].append("hold")
        super().hold(leases)

    def start(self, lease: Lease) -> None:
        self.said[lease.task].append("start")
        super().start(lease)

    def finish(self, lease: Lease) -> None:
        self.said[lease.task].append("finish")
        super().finish(lease)

    def end(self, leases: Iterable[Lease]) -> None:
        leases = list(leases)
        for one in leases:
            self.said[one.task].append("end")
        super().end(leases)


async def handle(lease: Lease) -> Any:
    return handle_in_thread(lease)


def handle_in_thread(lease: Lease) -> Any:
    if lease.task.startswith("fails"):
        raise GiveUp("no")
    if lease.task.startswith("later"):
        return Release(delay=3600)
    return None


@pytest.mark.parametrize("handler", [handle, handle_in_thread])
def test_a_worker_writes_down_each_lease_from_its_claim_to_its_end(url: str, queue: Queue, handler: Any) -> None:
    kinds = [f"{kind}-{i}" for kind in ("works", "fails", "later") for i in range(20)]
    queue.put(kinds)
    ledger = Noting(200)

    async def main() -> None:
        async with AsyncQueue(queue.name, url) as opened:
            worker = Worker(opened, handler, concurrency=4, signals=False, ledger=ledger)
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(20):
                while worker.tally.acked + worker.tally.failed + worker.tally.released < len(kinds):
                    await asyncio.sleep(0.01)
            worker.stop()
            await running

    asyncio.run(main())
    assert dict(ledger.said) == {task: ["hold", "start", "finish", "end"] for task in kinds}
    assert not any(ledger.read())
    ledger.close()
