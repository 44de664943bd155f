"""Which worker processes are started, stopped, replaced and killed: the roster alone, with moments as plain numbers."""

from __future__ import annotations

import signal

from timeoutq.words import exit_codes
from timeoutq.worker.processes.roster import ECHO, MOST_LEAVING, PATIENCE, Order, Roster, Told


def running(processes: int = 2, drain_deadline: float = 10.0) -> Roster:
    """Give a roster whose processes 1, 2, … were started at second 0."""
    roster = Roster(processes, drain_deadline, 0.0)
    for pid in range(1, processes + 1):
        assert roster.is_due(0.0)
        roster.started(pid, 0.0)
    return roster


def ends(roster: Roster, pid: int, told: Told = Told.NOTHING, code: int = 1, now: float = 100.0) -> Order | None:
    return roster.ended(roster.ending(pid, told, code, now), "its last words", now)


def test_a_process_that_died_late_is_replaced_at_once_and_one_that_died_young_after_a_pause() -> None:
    roster = running(2)
    ends(roster, 1, now=100.0)
    assert roster.due == [100.0]
    roster.started(3, 100.0)
    ends(roster, 3, now=100.5)
    assert roster.due == [100.6]
    assert roster.code == exit_codes.DONE


def test_a_process_that_leaves_is_replaced_at_once_and_once_however_it_ends() -> None:
    for told, code in ((Told.WORN_OUT, 0), (Told.LEAVES, -9), (Told.STOPPED, 0)):
        roster = running(2)
        for _ in range(2):
            roster.leaves(1, 50.0)
        assert roster.due == [50.0]
        roster.started(3, 50.0)
        assert roster.overdue(1e6, []) == []
        ending = roster.ending(1, told, code, 100.0)
        assert (ending.died, roster.ended(ending, "", 100.0), roster.due) == (told is Told.LEAVES, None, [])
    roster.heard(signal.SIGTERM, 200.0)
    roster.leaves(3, 200.0)
    assert roster.due == [], "nobody is started who would be stopped"


def test_the_processes_that_leave_are_no_more_than_twenty() -> None:
    roster = running(30)
    for pid in range(1, 31):
        roster.leaves(pid, 1.0)
    assert len(roster.due) == MOST_LEAVING == 20
    roster.ended(roster.ending(1, Told.WORN_OUT, 0, 2.0), "", 2.0)
    roster.leaves(30, 3.0)
    assert len(roster.due) == 21


def test_the_supervisor_ends_when_all_processes_have_drained_the_queue() -> None:
    roster = running(2)
    ends(roster, 1, Told.DRAINED, 0)
    assert not roster.is_over
    ends(roster, 2, Told.DRAINED, 0)
    assert roster.is_over
    assert roster.code == exit_codes.DONE


def test_a_hopeless_process_stops_the_others_and_names_the_exit_code() -> None:
    roster = running(2)
    assert ends(roster, 1, Told.HOPELESS, exit_codes.SERVER) is Order.DRAIN
    assert ends(roster, 2, Told.STOPPED, 0) is None
    assert roster.is_over
    assert (roster.code, roster.words) == (exit_codes.SERVER, "its last words")


def test_after_sigterm_nobody_is_replaced_and_a_death_gives_the_exit_code() -> None:
    roster = running(3)
    ends(roster, 1, now=50.0)
    assert roster.heard(signal.SIGTERM, 50.0) is Order.DRAIN
    assert roster.due == []
    ends(roster, 2, Told.STOPPED, 0, 51.0)
    ends(roster, 3, Told.NOTHING, -9, 51.0)
    assert roster.is_over
    assert roster.code == exit_codes.DIED


def test_a_second_sigterm_gives_back_at_once_unless_it_is_an_echo() -> None:
    roster = running(1)
    assert roster.heard(signal.SIGTERM, 50.0) is Order.DRAIN
    assert roster.heard(signal.SIGTERM, 50.0 + ECHO - 0.1) is None
    assert roster.heard(signal.SIGTERM, 50.0 + ECHO + 0.1) is Order.NOW


def test_who_has_not_ended_after_its_drain_deadline_and_the_patience_is_killed_without_blame() -> None:
    roster = running(2, drain_deadline=10.0)
    roster.heard(signal.SIGTERM, 50.0)
    late = 50.0 + 10.0 + PATIENCE
    assert roster.next_look(late - 0.5) == late
    assert roster.overdue(late - 0.1, ()) == []
    assert roster.overdue(late, ()) == [1, 2]
    ending = roster.ending(1, Told.NOTHING, -9, late)
    assert (ending.killed, ending.blames) == (True, False)


def test_a_process_that_has_said_that_it_ends_and_does_not_is_killed_once() -> None:
    roster = running(2)
    assert roster.overdue(10.0, {2}) == []
    assert roster.overdue(10.0 + PATIENCE - 0.1, {2}) == []
    assert roster.overdue(10.0 + PATIENCE, {2}) == [2]
    assert roster.overdue(11.0 + PATIENCE, {2}) == []


def test_a_lifespan_that_was_left_badly_gives_the_exit_code() -> None:
    roster = running(1)
    ends(roster, 1, Told.DRAINED, exit_codes.DIED)
    assert roster.code == exit_codes.DIED
