"""Every order of what two workers, two cleaners, a producer, time and the faults can do, on the model of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from tests.rig import levels
from tests.rig.batch_model import Batch, BatchModel
from tests.rig.beside import processes
from tests.rig.explorer import Explored, Found, explore
from tests.rig.model import Given, Model, Pair
from tests.rig.polite_model import PoliteModel
from tests.rig.polite_world import LINKS, POLITE, SMALL, PoliteLimits
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
ENDED_BATCH = Limits(
    puts=(("a",), ("b",)), seal=("z", "ended"), claims=3, batch=1, ticks=0, faults=0, extends=0, releases=0, fails=0
)
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
    levels.count("explorer", states=seen.states, transitions=seen.transitions)


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


def _cleaner_takes_what_lives(patch: pytest.MonkeyPatch) -> None:
    requeue = Model.requeue_expired

    def wrong(self: Model, expected: int = 0) -> Any:
        self.now += 500
        reply = requeue(self, 0)  # else it would think that the clock had jumped
        self.now -= 500
        return reply

    patch.setattr(Model, "requeue_expired", wrong)


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


def _no_not_after(patch: pytest.MonkeyPatch) -> None:
    claim = Model.claim
    patch.setattr(Model, "claim", lambda self, *words, **settings: claim(self, *words, **{**settings, "not_after": 0}))


def _no_clamp(patch: pytest.MonkeyPatch) -> None:
    requeue = Model.requeue_expired

    def wrong(self: Model, expected: int = 0) -> Any:
        leases = dict(self.leases)
        reply = requeue(self, expected)
        self.leases.update({task: leases[task] for task in self.leases})
        return reply

    patch.setattr(Model, "requeue_expired", wrong)


def _promotes_twice(patch: pytest.MonkeyPatch) -> None:
    promote = Model.promote_due

    def wrong(self: Model) -> Any:
        scheduled = dict(self.scheduled)
        reply = promote(self)
        self.scheduled = scheduled
        return reply

    patch.setattr(Model, "promote_due", wrong)


def _forgets_priorities(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoliteModel, "_grade", lambda self, task, level, isnew: None)


def _lowest_first(patch: pytest.MonkeyPatch) -> None:
    lane = PoliteModel.lane
    turn = PoliteModel._turn

    def wrong(self: PoliteModel) -> int:
        patch.setattr(PoliteModel, "lane", lambda self, host: lane(self, host)[::-1])
        moved = turn(self)
        patch.setattr(PoliteModel, "lane", lane)
        return moved

    patch.setattr(PoliteModel, "_turn", wrong)


def _no_marks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PoliteModel, "_renew", lambda self, ids: [self.marks.pop(task) and task for task in ids if task in self.marks]
    )


def _no_run_follows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Model, "_renew", lambda self, ids: [task for task in ids if self.marks.pop(task, None) is None][:0])


def _old_payload(patch: pytest.MonkeyPatch) -> None:
    run_anew = Model._run_anew

    def wrong(self: Model, task: str, state: str, payload: Any) -> str:
        return run_anew(self, task, state, None if state == "p" else payload)

    patch.setattr(Model, "_run_anew", wrong)


def _first_end_counts(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Batch) -> list[str]:
        return [] if any(end for _, end in self.tasks) else [task for task, _ in self.tasks]

    patch.setattr(Batch, "outstanding", property(wrong))


def _batch_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchModel, "_close", lambda self, name: [])


def _every_run_counts(patch: pytest.MonkeyPatch) -> None:
    renew = Model._renew

    def wrong(self: Model, ids: Sequence[str]) -> list[str]:
        marked = renew(self, ids)
        self._tell_ended(marked, well=True)
        return marked

    patch.setattr(Model, "_renew", wrong)


def _callback_comes_again(patch: pytest.MonkeyPatch) -> None:
    claim = Model.claim

    def wrong(self: Model, *words: Any, **settings: Any) -> Any:
        reply = claim(self, *words, **settings)
        if "z" in self.done:
            self.done.remove("z")
            self.todos.add("z")
        return reply

    patch.setattr(Model, "claim", wrong)


def _no_recall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoliteModel, "_recall", lambda self, host: None)


def _no_pause(patch: pytest.MonkeyPatch) -> None:
    depart = PoliteModel._depart

    def wrong(self: PoliteModel, *words: Any) -> None:
        depart(self, *words)
        self.rests.clear()

    patch.setattr(PoliteModel, "_depart", wrong)


def _links_before_rest(patch: pytest.MonkeyPatch) -> None:
    def pause(self: PoliteModel, host: str) -> None:
        self.rests[host] = self.now + self._delay(host)

    patch.setattr(PoliteModel, "_rest", lambda self, ids: None)
    patch.setattr(PoliteModel, "_pause", pause)


def _ready_stays_ready(patch: pytest.MonkeyPatch) -> None:
    pause = PoliteModel._pause

    def wrong(self: PoliteModel, host: str) -> None:
        patch.setattr(PoliteModel, "_recall", lambda self, host: None)
        pause(self, host)
        patch.undo()
        patch.setattr(PoliteModel, "_pause", wrong)

    patch.setattr(PoliteModel, "_pause", wrong)


def _no_turns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoliteModel, "_due_turns", lambda self: 0)


def _places_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoliteModel, "_depart", lambda self, ids, visited, broken: None)


def polite(**limits: Any) -> PoliteLimits:
    """Give a small polite world."""
    return replace(SMALL, **{"rules": (), "ticks": 1, **limits})


def small(*kinds: str, **limits: Any) -> Limits:
    """Give a small world, with one fault of these kinds."""
    usual: dict[str, Any] = {"puts": ONE, "ticks": 2, "extends": 0, "releases": 0, "fails": 0}
    usual |= {"faults": int(bool(kinds)), "kinds": frozenset(kinds), **limits}
    return Limits(**usual)


SEEDED: dict[str, tuple[Patch, str, Limits]] = {
    "an ack needs no token": (_ack_without_token, "I3", small()),
    "fences forget": (_fences_forget, "I5", small(puts=(("a", "b"),), batch=1)),
    "the cleaner takes what lives": (_cleaner_takes_what_lives, "I4", small()),
    "no grace after a restart": (_no_grace, "I4", small("restart", ticks=3)),
    "no grace after a jump": (_no_grace, "I4", small("forward")),
    "release leaves the task held": (_release_leaves_it, "I1", small(releases=1)),
    "not_after is ignored": (_no_not_after, "nobody knows", small("late")),
    "leases grow when the clock steps back": (_no_clamp, "I8", small("back")),
    "a due task stays scheduled": (_promotes_twice, "I1", small(fails=1)),
    "priorities are forgotten": (_forgets_priorities, "has priority 0, and payload", polite()),
    "the lowest priority goes first": (_lowest_first, "has its turn with priority", polite()),
    "an improved task loses its mark": (_no_marks, "was to run with priority", polite()),
    "no run follows": (_no_run_follows, "no run of a follows", PUT_ANEW),
    "the run that follows has the old payload": (_old_payload, "runs with payload 1, and 2 was put last", PUT_ANEW),
    "an ack has no run follow": (_no_run_follows, "no run of [ab] follows", ACKED_ANEW),
    "the first end of a batch's tasks counts as the last": (_first_end_counts, "batch|have not ended", IN_BATCH),
    "a batch never ends": (_batch_never_ends, "batch is not over", IN_BATCH),
    "a batch counts a run that another one follows": (_every_run_counts, "batch|have not ended", IN_BATCH_ANEW),
    "the callback of a batch comes again": (_callback_comes_again, "became ready twice", ENDED_BATCH),
    "a block leaves what is ready": (_no_recall, "I11|is visited", polite(rules=SMALL.rules)),
    "a host has no pause": (_no_pause, "ms after the last visit", polite(claims=2, finds=())),
    "an ack puts its links before its host rests": (_links_before_rest, "I11|ms after the last visit", LINKS),
    "what is ready when a visit ends stays ready": (
        _ready_stays_ready,
        "I11|ms after the last visit",
        polite(per_host=2, claims=2, finds=()),
    ),
    "hosts have no turns": (_no_turns, "nobody is at work", polite()),
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
    levels.count("explorer", seeded_bugs_found=1)


def test_a_walk_tells_how_many_states_it_saw() -> None:
    seen = explore(Limits(puts=ONE, claims=0, ticks=1, faults=0))
    # nothing, a tick, a put, and both in either order: the call of the put is remembered with its time
    assert seen == Explored(states=5, transitions=4, ends=seen.ends, seconds=seen.seconds)
