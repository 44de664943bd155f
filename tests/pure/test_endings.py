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
from timeoutq.worker.processes.roster import (
    LONGEST_PAUSE,
    YOUNG,
    Done,
    End,
    Ending,
    Order,
    Replace,
    Told,
    asked_for,
    judge,
    young_deaths,
)

LATER = YOUNG + 1


@pytest.mark.parametrize(
    ("told", "code", "stopping", "meaning"),
    [
        # on purpose
        (Told.DRAINED, 0, False, Done(0)),
        (Told.STOPPED, 0, True, Done(0)),
        (Told.STOPPED, 0, False, Replace(0.0)),  # somebody asked it alone to end
        (Told.MAX_TASKS, 0, False, Replace(0.0)),
        (Told.HOPELESS, 2, False, End(2)),
        (Told.HOPELESS, 3, True, End(3)),
        # it was killed after it had said so: it had given back all that it held
        (Told.DRAINED, -9, False, Done(0)),
        # it did not end after it had said so, and was killed
        ((Told.STOPPED, True), -9, True, Done(1)),
        ((Told.DRAINED, True), -9, False, Done(0)),
        # without a word: it died, whatever its exit code is
        (Told.NOTHING, 0, False, Replace(0.0)),
        (Told.NOTHING, 1, False, Replace(0.0)),
        (Told.NOTHING, -9, False, Replace(0.0)),
        (Told.NOTHING, -11, True, Done(1)),
    ],
)
def test_what_follows_the_end_of_a_process(
    told: Told | tuple[Told, bool], code: int, stopping: bool, meaning: object
) -> None:
    said, killed = told if isinstance(told, tuple) else (told, False)
    assert judge(Ending(said, code, LATER, killed), stopping=stopping, young=0) == meaning


def test_the_pause_doubles_while_processes_die_young_and_has_an_end() -> None:
    ending = Ending(Told.NOTHING, -11, 0.1)
    pauses: list[float] = []
    young = 0
    for _ in range(8):
        young = young_deaths(ending, young)
        decision = judge(ending, stopping=False, young=young)
        assert isinstance(decision, Replace)
        pauses.append(decision.pause)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]


@pytest.mark.parametrize(
    ("told", "lived", "before", "after"),
    [
        (Told.NOTHING, 0.0, 0, 1),
        (Told.NOTHING, YOUNG - 0.01, 3, 4),
        (Told.NOTHING, YOUNG, 3, 0),
        (Told.MAX_TASKS, 0.1, 3, 0),  # a process that ends on purpose is no sign of trouble, however young
        (Told.STOPPED, 0.1, 3, 0),
    ],
)
def test_who_has_died_young(told: Told, lived: float, before: int, after: int) -> None:
    assert young_deaths(Ending(told, 0, lived), before) == after


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
    ("number", "stopping_for", "order"),
    [
        (signal.SIGTERM, None, Order.DRAIN),
        (signal.SIGTERM, 0.0, None),  # the same request by two ways, through sudo or a shell and from systemd
        (signal.SIGTERM, 0.4, None),
        (signal.SIGTERM, 0.6, Order.NOW),
        (signal.SIGINT, None, Order.NOW),
        (signal.SIGINT, 0.0, Order.NOW),
    ],
)
def test_what_a_signal_asks_for(number: int, stopping_for: float | None, order: Order | None) -> None:
    assert asked_for(number, stopping_for) is order


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
