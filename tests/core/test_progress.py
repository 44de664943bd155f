"""What handlers say about how far they are: shown while the lease lasts, and gone with it. On real servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from timeoutq import InvalidInput, Lease, LeaseLost
from timeoutq.verbs import sending
from timeoutq.words.model import Progress


def taken(face: Any, task: str = "a") -> Lease:
    face.put(task)
    return face.claim()[0]  # type: ignore[no-any-return]  # a lease


def test_what_a_handler_says_is_shown(face: Any) -> None:
    lease = taken(face)
    assert face.inspect("a").progress is None
    assert face.note(lease, 3, 10, "reading page 3") == "ok"
    found = face.inspect("a").progress
    assert found == Progress(3, 10, "reading page 3", found.at)
    face.note(lease, 0.5)
    assert (face.inspect("a").progress.done, face.inspect("a").progress.total) == (0.5, None)


ENDS: dict[str, Callable[[Any, Lease], object]] = {
    "ack": lambda face, lease: face.ack(lease),
    "ack for a time": lambda face, lease: face.ack(lease, again_in=0),
    "fail": lambda face, lease: face.fail(lease, "no", retry_in=0),
    "release": lambda face, lease: face.release(lease),
    "crash": lambda face, lease: face.run(sending.answers(face.talk, face.operations.crash([lease], "died"))),
    "forget": lambda face, lease: face.forget(lease.task),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_goes_with_the_lease(face: Any, raw: redis.Redis, name: str, end: str) -> None:
    lease, other = taken(face), taken(face, "b")
    face.note(lease, 1)
    face.note(other, 2)
    ENDS[end](face, lease)
    assert raw.hkeys(f"timeoutq:{{{name}}}:progress") == ["b"]
    with pytest.raises(LeaseLost):
        face.note(lease, 2)
    assert raw.hkeys(f"timeoutq:{{{name}}}:progress") == ["b"]


def test_it_tells_a_handler_that_its_task_is_cancelled(face: Any) -> None:
    lease = taken(face)
    face.cancel("a")
    assert face.note(lease, 1) == "cancelled"
    assert face.release(lease) == "cancelled"


@pytest.mark.parametrize("given", [(-1,), ("3",), (True,), (float("nan"),), (1, -1)])
def test_what_is_no_amount_is_refused(face: Any, given: Any) -> None:
    with pytest.raises(InvalidInput, match="number from 0"):
        face.note(taken(face), *given)
