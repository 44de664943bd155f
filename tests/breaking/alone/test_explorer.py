"""Every order of what two workers, two cleaners, a producer, time and the faults can do, on the model of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.rig.batch_model import BatchModel
from tests.rig.beside import processes
from tests.rig.explorer import Explored, Found, explore
from tests.rig.model import Given, Model
from tests.rig.model_state import Pair
from tests.rig.polite_world import POLITE, SMALL, PoliteLimits
from tests.rig.world import Limits

pytestmark = pytest.mark.timeout(900)  # all walks begin at once, and a test may wait for most of them

ONE = (("a",),)
PLAIN: dict[str, Limits] = {
    "nothing breaks, two tasks": Limits(puts=(("a", "b"),), claims=1, ticks=3, faults=0),
    "nothing breaks, two claims each": Limits(puts=ONE, ticks=3, faults=0),
    "one fault of any kind": Limits(puts=ONE, claims=1, ticks=2, faults=1, releases=0, fails=0),
    "replies are lost and workers die": Limits(
        puts=ONE, claims=1, ticks=2, releases=0, kinds=frozenset({"lost", "crash"})
    ),
    "the clock steps": Limits(
        puts=ONE, claims=1, ticks=3, extends=0, releases=0, fails=0, kinds=frozenset({"forward", "back"})
    ),
    "the server restarts and its clock steps": Limits(
        puts=ONE, claims=1, ticks=3, extends=0, releases=0, fails=0, kinds=frozenset({"forward", "restart"})
    ),
    "a replica takes over": Limits(
        puts=ONE, claims=1, ticks=3, extends=0, releases=0, fails=0, kinds=frozenset({"failover", "lost"})
    ),
}
PUT_ANEW = Limits(
    puts=(("a",), ("a",)), givens=(Given(payloads=((0, 1),)), Given(payloads=((0, 2),), rerun=())),
    ticks=1, faults=1, extends=0, kinds=frozenset({"lost", "crash"}),
)  # fmt: skip
ACKED_ANEW = Limits(
    puts=(("a", "b"),), givens=(Given(payloads=((0, 1), (1, 1))),),
    finds=(("a", ("b", "a"), Given(payloads=((0, 2), (1, 2)), rerun=())),),
    batch=1, ticks=1, faults=1, extends=0, releases=0, fails=0, kinds=frozenset({"lost", "crash"}),
)  # fmt: skip
IN_BATCH = Limits(
    puts=(("a", "b"),), seal=("z", "done"), claims=2, ticks=1, faults=1, extends=0, releases=0, fails=1,
    kinds=frozenset({"lost", "crash"}),
)  # fmt: skip
IN_BATCH_ANEW = replace(PUT_ANEW, seal=("z", "ended"), claims=1, releases=0)
AGAIN = {
    "a batch of two tasks": IN_BATCH,
    "a batch whose task runs once more": IN_BATCH_ANEW,
    "a put has a task run once more": PUT_ANEW,
    "an ack has tasks run once more, its own too": ACKED_ANEW,
}
OF_HOSTS: dict[str, Limits] = {name: POLITE[name] for name in POLITE if name != "leases run out, are released and fail"}
OF_HOSTS["leases of hosts run out and are released"] = replace(SMALL, releases=1)
WORLDS = PLAIN | AGAIN | OF_HOSTS


@pytest.fixture(scope="module")
def walks() -> Iterator[dict[str, Future[Explored]]]:
    """All walks, several at once."""
    with processes() as pool:
        yield {name: pool.submit(explore, world) for name, world in WORLDS.items()}


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_steps_breaks_an_invariant(name: str, walks: dict[str, Future[Explored]]) -> None:
    seen = walks[name].result()
    assert seen.states > 10_000


def test_no_two_worlds_have_one_name() -> None:
    assert len(WORLDS) == len(PLAIN) + len(AGAIN) + len(OF_HOSTS)


# ---- the explorer finds what is seeded


Patch = Callable[[pytest.MonkeyPatch], None]


def _ack_without_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "holds", lambda self, pair: pair[0] in self.owners)


def _fences_forget(patch: pytest.MonkeyPatch) -> None:
    claim = Model.claim

    def wrong(self: Model, *words: Any, **settings: Any) -> Any:
        reply = claim(self, *words, **settings)
        self.fence = 0
        return reply

    patch.setattr(Model, "claim", wrong)


def _no_grace(patch: pytest.MonkeyPatch) -> None:
    requeue = Model.requeue_expired

    def wrong(self: Model, expected: int = 0) -> Any:
        self.known_run = self.run
        return requeue(self, 0)

    patch.setattr(Model, "requeue_expired", wrong)


def _release_leaves_it(patch: pytest.MonkeyPatch) -> None:
    release = Model.release

    def wrong(self: Model, call: str, pairs: Sequence[Pair], **how: int) -> str:
        letters = release(self, call, pairs, **how)
        self.in_progress |= {task for task, _ in pairs}
        return letters

    patch.setattr(Model, "release", wrong)


def _no_run_follows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "_renew", lambda self, ids: [task for task in ids if self.marks.pop(task, None) is None][:0])


def _batch_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchModel, "_close", lambda self, name: [])


def _lowest_first(patch: pytest.MonkeyPatch) -> None:
    lane = Model.lane
    turn = Model._turn

    def wrong(self: Model) -> int:
        patch.setattr(Model, "lane", lambda self, host: lane(self, host)[::-1])
        moved = turn(self)
        patch.setattr(Model, "lane", lane)
        return moved

    patch.setattr(Model, "_turn", wrong)


def _no_recall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "_recall", lambda self, host: None)


def _places_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "_depart", lambda self, ids, visited, broken: None)


def polite(**limits: Any) -> PoliteLimits:
    return replace(SMALL, **{"rules": (), "ticks": 1, **limits})


def small(*kinds: str, **limits: Any) -> Limits:
    """Give a small world, with one fault of these kinds."""
    usual: dict[str, Any] = {"puts": ONE, "ticks": 2, "extends": 0, "releases": 0, "fails": 0}
    usual |= {"faults": int(bool(kinds)), "kinds": frozenset(kinds), **limits}
    return Limits(**usual)


SEEDED: dict[str, tuple[Patch, str, Limits]] = {
    "an ack needs no token": (_ack_without_token, "I3", small()),
    "fences forget": (_fences_forget, "I5", small(puts=(("a", "b"),), batch=1)),
    "no grace after a restart": (_no_grace, "I4", small("restart", ticks=3)),
    "release leaves the task held": (_release_leaves_it, "I1", small(releases=1)),
    "no run follows": (_no_run_follows, "no run of a follows", PUT_ANEW),
    "a batch never ends": (_batch_never_ends, "batch is not over", IN_BATCH),
    "the lowest priority goes first": (_lowest_first, "has its turn with priority", polite()),
    "a block leaves what is ready": (_no_recall, "I11|is visited", polite(rules=SMALL.rules)),
    "places are kept for ever": (_places_stay, "I11", polite()),
}


@pytest.mark.parametrize("bug", SEEDED)
def test_a_seeded_bug_is_found_with_a_schedule_that_shows_it(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, breaks, limits = SEEDED[bug]
    patch(monkeypatch)
    with pytest.raises(Found, match=breaks) as found:
        explore(limits)
    assert 0 < len(found.value.steps) < 12
    assert "producer put" in str(found.value)


def test_a_walk_tells_how_many_states_it_saw() -> None:
    seen = explore(Limits(puts=ONE, claims=0, ticks=1, faults=0))
    # nothing, a tick, a put, and both in either order: the call of the put is remembered with its time
    assert seen == Explored(states=5, transitions=4, ends=seen.ends, seconds=seen.seconds)
