"""What a worker writes down for its supervisor: what it holds, what it runs, and that it ends on purpose."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pytest

from timeoutq import Lease
from timeoutq.worker.decisions import MOST_AHEAD
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
        ledger.ask(b"worker:1:ab#9", 700, (30_000, 1_000))
        os._exit(0)
    os.waitpid(pid, 0)
    started, ended, held, asked = ledger.read()
    assert (tasks(started), tasks(ended), held) == ({"task-2"}, {"task-3"}, [])
    assert [one.token for one in started] == ["worker:1:ab#2"]
    assert asked == [(700, b"worker:1:ab#9", 30_000, 1_000)]


def test_a_handler_that_waits_after_its_start_has_not_begun_and_a_claim_that_is_answered_is_forgotten(
    ledger: SharedLedger,
) -> None:
    ledger.ask(b"worker:1:ab#1", 0, (30_000, 0))
    ledger.hold([lease(1)])
    ledger.answered(b"worker:1:ab#1")
    ledger.start(lease(1))
    ledger.wait(lease(1))
    assert ledger.read() == ([], [], ledger.read().held, [])
    assert tasks(ledger.read().held) == {"task-1"}


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


def test_a_ledger_has_room_for_all_that_a_worker_holds() -> None:
    assert slots_for(10, None) >= 2 * (10 + MOST_AHEAD)
    assert slots_for(10, 5) >= 2 * (10 + 5)


def test_an_id_that_another_program_made_too_long_overwrites_no_other(ledger: SharedLedger) -> None:
    ledger.hold([lease(2), lease(1, "x" * 2000)])
    ledger.end([lease(2)])
    ledger.hold([lease(3)])
    assert tasks(ledger.read().held) == {"x" * 1024, "task-3"}
    ledger.hold([lease(4, "y" * 2000), lease(5)])
    assert tasks(ledger.read().held) == {"x" * 1024, "task-3", "y" * 1024, "task-5"}
