"""What the end of a worker process means and what a signal asks for: the decisions as tables, without a process."""

from __future__ import annotations

import signal

import pytest

from timeoutq.words import exit_codes
from timeoutq.words.errors import (
    AccessDenied,
    HandlerNotFound,
    InvalidInput,
    LeaseLost,
    MissingExtra,
    TimeoutqError,
    Unavailable,
)
from timeoutq.worker.processes.roster import PATIENCE, YOUNG, Ending, Roster, Told

ON, OVER = "another starts", "no other starts"


@pytest.mark.parametrize(
    ("told", "code", "stopping", "follows", "left"),
    [
        # on purpose
        (Told.DRAINED, 0, False, OVER, 0),
        (Told.DRAINED, 0, True, OVER, 0),
        (Told.STOPPED, 0, True, OVER, 0),
        (Told.STOPPED, 0, False, ON, 0),  # somebody asked it alone to end
        (Told.MAX_TASKS, 0, False, ON, 0),
        (Told.HOPELESS, 2, False, OVER, 2),
        (Told.HOPELESS, 3, True, OVER, 3),
        # it did not end after it had said so, and was killed
        ((Told.STOPPED, True), -9, True, OVER, 1),
        ((Told.DRAINED, True), -9, False, OVER, 0),
        ((Told.MAX_TASKS, True), -9, False, ON, 0),
        # without a word: it died, whatever its exit code is
        (Told.NOTHING, 0, False, ON, 0),
        (Told.NOTHING, 3, False, ON, 0),
        (Told.NOTHING, -9, False, ON, 0),
        (Told.NOTHING, 0, True, OVER, 1),
        (Told.NOTHING, -11, True, OVER, 1),
    ],
)
def test_what_follows_the_end_of_a_process(
    told: Told | tuple[Told, bool], code: int, stopping: bool, follows: str, left: int
) -> None:
    roster = Roster(1, 0.0, 0.0)
    roster.started(1, 0.0)
    said, killed = told if isinstance(told, tuple) else (told, False)
    if killed:
        roster.overdue(1.0, {1})
        assert roster.overdue(1.0 + PATIENCE, {1}) == [1]
    if stopping:
        roster.heard(signal.SIGTERM, YOUNG + PATIENCE)
    roster.ended(roster.ending(1, said, code, YOUNG + PATIENCE), "", YOUNG + PATIENCE)
    assert (ON if roster.due else OVER, roster.code) == (follows, left)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0 without having drained"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-40, "killed by signal 40"),
    ],
)
def test_how_a_process_died_in_words(code: int, words: str) -> None:
    assert Ending(Told.NOTHING, code, 1.0).words == words


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("x"), 2),
        (HandlerNotFound("x"), 2),
        (MissingExtra("x"), 2),
        (AccessDenied("x"), 3),
        (Unavailable("x"), 3),
        (LeaseLost("x", task="t"), 4),
    ],
)
def test_the_exit_code_of_each_error(error: TimeoutqError, code: int) -> None:
    assert exit_codes.of(error) == code
