"""Any order of calls of either face, on fakeredis and on a real server: each answer is the model's, and then each key.

Hypothesis seeks the order in which `Queue` or `AsyncQueue` and `tests.rig.model.Model` differ, and shrinks it to the
few calls that show it. The clock of the server stands still until a step moves it; of real servers only Redis can be
held so, for Valkey adds a monotonic clock to its idea of the time. Every run takes the same steps, and a failure comes
again; to look elsewhere, `STEPS=1000000 SEED=7 pytest tests/faces/test_core_model.py`. Only what Redis picks for a
claim is chance, and so no rule has a precondition: which steps are possible must not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.rig import keys, schedules, shims
from tests.rig.batch_model import WAITS
from tests.rig.beside import processes
from tests.rig.faces import Blocking
from tests.rig.invariants import check_keys
from tests.rig.keys import text
from tests.rig.model import Given, Model
from tests.rig.model_state import Pair, Refused
from tests.rig.moment import Moment
from timeoutq import InvalidInput, Lease, LeaseLost, Queue, Task
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.testing import Clock
from timeoutq.verbs import sending
from timeoutq.words import tracebacks

STEPS = int(os.environ.get("STEPS", "4000"))
PHASES = [Phase.generate] if "NO_SHRINK" in os.environ else [Phase.generate, Phase.shrink]
SEED = int(os.environ.get("SEED", "1"))
LENGTH = 40
"""The steps of one example."""
NAME = "m"
KEY = f"timeoutq:{{{NAME}}}:"
IDS = ("a", "b", "c", "d", "e")
BATCHES = ("w", "x", "y", "z")
STATES = ("todos", "in_progress", "done", "failed")
ELSEWHERE = Lease(IDS[0], "elsewhere:1:0#1", 0.0)
OTHER_RUN = "0" * 40
RETRIES = (7, 70)
"""The queue's own retries, seconds; who fails a third time goes to failed."""
ANSWERS = {
    "A": "added", "t": "todos", "s": "scheduled", "p": "in_progress", "d": "done", "f": "failed", "u": "unknown",
    "n": "rerun", "O": "ok", "R": "already", "L": "lost", "X": "max_runtime", "c": "cancelled", "m": "cancelling",
}  # fmt: skip


def raised(error: Exception) -> Exception:
    """Give the exception as it is once it has been raised."""
    try:
        raise error
    except Exception as found:
        return found


ERRORS = [raised(ValueError("no")), raised(KeyError("no"))]
ERRORS[1].__cause__ = ERRORS[0]

some_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=4)
some = st.lists(st.sampled_from(IDS), min_size=1, max_size=2)
one_lease = st.tuples(st.sampled_from(["held"] * 6 + ["lost", "elsewhere", "stranger"]), st.integers(0, 4))
some_leases = st.lists(one_lease, min_size=1, max_size=4)
some_payloads = st.dictionaries(
    st.sampled_from(IDS), st.sampled_from([None, b"\0\xff", 0, {"n": 1}]), min_size=1, max_size=3
)
some_anew = st.lists(
    st.tuples(
        st.sampled_from(IDS), st.sampled_from([None, b"\0\xff", 0, {"n": 1}]), st.sampled_from([True, True, False])
    ),
    min_size=1,
    max_size=4,
)


class Watched(sending.ServerClock):
    """A client's knowledge of the server's time: all of it, and that it ran evenly but for a jump."""

    def __init__(self, now: int) -> None:
        super().__init__()
        self.now = now
        self.jumped = 0

    def seen(self, now_ms: int, asked: float) -> None:
        assert now_ms == self.now

    def swept(self, now_ms: int, asked: float) -> None:
        assert now_ms == self.now
        self.jumped = 0

    @property
    def now_ms(self) -> int:
        return self.now

    @property
    def expected_ms(self) -> int:
        return self.now - self.jumped


class Stand:
    """A face of the queue on a server whose clock stands still, and a plain client to look at the keys."""

    def __init__(self, queue: Any, raw: Any, now: int, advance: Callable[[int], None], grain: int = 1) -> None:
        self.queue = queue
        self.raw = raw
        self.clock = queue.talk.clock = Watched(now)
        self._advance = advance
        self.grain = grain
        self.steps = 0

    def advance(self, ms: int) -> int:
        """Let so many ms pass, rounded up to what the server can tell apart; give how many did."""
        ms = -(-ms // self.grain) * self.grain
        self.clock.now += ms
        self._advance(ms)
        return ms


class AnyOrder(RuleBasedStateMachine):
    """Calls in any order; each answer, and each key afterwards, is what the model says."""

    def __init__(self, stand: Stand) -> None:
        super().__init__()
        self.stand = stand
        self.queue = stand.queue
        self.model = Model(stand.clock.now)
        self.leases: list[Lease] = []
        self.ended: list[tuple[str, list[Lease], dict[str, Any]]] = []
        self.looks = 0
        self.runs = count(2)
        self.calls = count(1)

    @initialize(keep_done=st.sampled_from(["forever", 0, "compact"]), max_crashes=st.sampled_from([5, 3]))
    def begin(self, keep_done: str | int, max_crashes: int) -> None:
        self.stand.raw.flushall()
        self.stand.clock.jumped = 0
        self.queue.configure(keep_done=keep_done, max_crashes=max_crashes)
        self.model.exists = True
        self.model.keeps_done, self.model.max_crashes = keep_done != 0, max_crashes
        self.compact = keep_done == "compact"

    def teardown(self) -> None:
        self.queue.purge()
        assert self.stand.raw.keys("*") == [], "I10: a purged queue leaves no key"
        self.stand.steps += max(0, self.looks - 1)

    # ---- what the model says

    def call(self) -> str:
        return f"call {next(self.calls)}"

    def pick(self, wanted: Sequence[tuple[str, int]]) -> list[Lease]:
        """Give leases: held ones and ones that were lost a little while ago; and two that nobody was given."""
        if not self.model.in_progress:
            self.supply()
            self.lease(2, 30)
        held = [lease for lease in reversed(self.leases) if self.model.holds((lease.task, lease.token))]
        lost = [lease for lease in self.leases[:-12:-1] if lease not in held]
        found: list[Lease] = []
        for kind, number in wanted:
            among = (lost if kind == "lost" else held) or held or lost or [ELSEWHERE]
            lease = among[number % len(among)]
            if kind == "elsewhere":
                lease = replace(lease, token=ELSEWHERE.token)
            found.append(replace(lease, task="stranger") if kind == "stranger" else lease)
        return found

    def state(self, task: str) -> str | None:
        letter = self.model.state(task)
        return None if letter is None else ANSWERS[letter]

    def agree(self, letters: str, answers: Sequence[str]) -> None:
        assert [str(answer) for answer in answers] == [ANSWERS[letter] for letter in letters]

    def explained(self, lease: Lease, error: LeaseLost) -> None:
        owner = self.model.owners.get(lease.task)
        assert error.task == lease.task
        assert error.state == self.state(lease.task)
        assert error.holder == (None if owner is None else owner.partition("#")[0])

    # ---- tasks in

    @rule(ids=some_ids, payloads=some_payloads, others=some_payloads, bare=st.booleans(), again=st.booleans())
    def put(self, ids: list[str], payloads: dict[str, Any], others: dict[str, Any], bare: bool, again: bool) -> None:
        given, bodies = (ids, {}) if bare else ([*payloads, *others, *ids], {**others, **payloads})
        answers = self.queue.put(ids, again=again) if bare else self.queue.put(payloads, others, ids, again=again)
        self.agree(self.model.put(self.call(), 0, given, again=again, payloads=bodies), answers)

    @rule(ids=some_ids, payloads=some_payloads, again=st.booleans(), when=st.sampled_from([-3, 0, 5, 9, 50]))
    def schedule(self, ids: list[str], payloads: dict[str, Any], again: bool, when: int) -> None:
        if when in (0, 5, 50):
            due, given, bodies = self.model.now + when * 1000, ids, {}
            answers = self.queue.schedule(ids, after=when, again=again)
        else:
            at = self.model.now // 1000 + when
            due, given, bodies = at * 1000, [*payloads], payloads
            answers = self.queue.schedule(payloads, at=at, again=again)
        self.agree(self.model.put(self.call(), 0, given, again=again, due=due, payloads=bodies), answers)

    @rule(task=st.sampled_from(IDS), unique=st.sampled_from([0, 10, 90]))
    def put_unique(self, task: str, unique: int) -> None:
        if self.compact and unique:
            with pytest.raises(InvalidInput, match="cannot block its id for a time"):
                self.queue.put(Task(task, unique=unique))
            return
        answers = self.queue.put(Task(task, unique=unique))
        self.agree(self.model.put(self.call(), 0, [task], given=Given(unique_ms=unique * 1000)), answers)

    @rule(found=some_anew, again=st.booleans(), every=st.booleans())
    def put_anew(self, found: list[tuple[str, Any, bool]], again: bool, every: bool) -> None:
        """Put tasks of which a run begins then: all of them, or those that say so."""
        tasks, given = anew(found)
        if every:
            given = replace(given, rerun=())
        answers = self.queue.put(tasks, again=again, rerun=every)
        ids = [task for task, _, _ in found]
        self.agree(self.model.put(self.call(), 0, ids, again=again, given=given), answers)

    @rule(name=st.sampled_from(BATCHES), found=some_anew, after=st.sampled_from([None, None, 5]))
    def put_into_a_batch(self, name: str, found: list[tuple[str, Any, bool]], after: int | None) -> None:
        found = found if after is None else [(task, body, False) for task, body, _ in found]
        due = None if after is None else self.model.now + after * 1000
        tasks, given = anew(found)
        try:
            letters = self.model.put(self.call(), 0, [task for task, _, _ in found], due=due, given=given, batch=name)
        except Refused as refused:
            with pytest.raises(InvalidInput, match=str(refused)):
                self.queue.batches.put(name, tasks, after=after)
            return
        self.agree(letters, self.queue.batches.put(name, tasks, after=after))

    @rule(ids=some, callback=st.permutations(["", *IDS]), on=st.sampled_from(["ended", "done"]))
    def a_whole_batch(self, ids: list[str], callback: list[str], on: Any) -> None:
        """Put the tasks of a new batch, if there is a name left, and seal it with a callback that can be one."""
        name = next((one for one in BATCHES if one not in self.model.batches), BATCHES[-1])
        if name not in self.model.batches:
            self.put_into_a_batch(name, [(task, None, False) for task in ids], None)
        able = (one for one in callback if one not in ids and self.model.state(one) in (None, "d", "f"))
        self.seal(name, next(able), on)

    @rule(name=st.sampled_from(BATCHES), callback=st.sampled_from(["", *IDS]), on=st.sampled_from(["ended", "done"]))
    def seal(self, name: str, callback: str, on: Any) -> None:
        try:
            self.model.seal(name, callback, on[:1])
        except Refused as refused:
            with pytest.raises(InvalidInput, match=str(refused)):
                self.queue.batches.seal(name, callback or None, on=on)
            return
        info, one = self.queue.batches.seal(name, callback or None, on=on), self.model.batches[name]
        assert (info.state[:1], info.tasks, info.outstanding) == (one.state, len(one.tasks), len(one.outstanding))

    # ---- leases

    @rule(n=st.sampled_from([1, 2, 500]), timeout=st.sampled_from([10, 30]), runtime=st.sampled_from([None, 20, 5]))
    def claim(self, n: int, timeout: int, runtime: int | None) -> None:
        self.lease(n, timeout, runtime)

    @rule(n=st.sampled_from([1, 2, 500]), noticed=st.booleans())
    def a_worker_dies(self, n: int, noticed: bool) -> None:
        self.supply()
        self.lease(n, 10)
        self.time_passes(0)
        if noticed:
            self.requeue_expired()

    def supply(self) -> None:
        """See to it that something is ready, if that can be."""
        if not self.model.todos:
            self.put([*IDS[:3]], {}, {}, bare=True, again=True)

    def lease(self, n: int, timeout: int, runtime: int | None = None) -> None:
        model, expected = self.model, self.stand.clock.expected_ms
        found: list[Lease] = self.queue.claim(n, timeout=timeout, max_runtime=runtime)
        note(f"claimed: {[lease.task for lease in found]}")
        while model.picks(n) == [()]:
            _, event, paused = model.claim("", 0, timeout * 1000, ())
            if not 0 < event <= model.now:
                break
            # nothing is ready and something is due: the claim does a round of the cleaner, and asks again
            _, back, given_up = model.requeue_expired(expected)
            _, promoted = model.promote_due()
            expected = model.now
            if paused or not back + given_up + promoted:
                break
        assert tuple(sorted(lease.task for lease in found)) in {tuple(sorted(pick)) for pick in model.picks(n)}
        if not found:
            return
        token = found[0].token
        assert token not in {lease.token for lease in self.leases}
        taken = model.claim(token, 0, timeout * 1000, [lease.task for lease in found], runtime_ms=(runtime or 0) * 1000)
        _, deadline, fence, ids = taken
        for i, task in enumerate(ids):
            attempt, crashes = model.attempts.get(task, 0) + 1, model.crashes.get(task, 0)
            assert found[i] == Lease(task, token, deadline / 1000, attempt, crashes, fence + i)
            assert found[i].payload == model.payload.get(task)
        self.leases += found

    @rule(wanted=some_leases)
    def ack(self, wanted: list[tuple[str, int]]) -> None:
        self.end("ack", self.pick(wanted))

    @rule(which=one_lease, put=some_payloads)
    def ack_and_put(self, which: tuple[str, int], put: dict[str, Any]) -> None:
        (lease,) = self.pick([which])
        letter = self.model.ack(named("ack", [lease]), pairs([lease]), list(put), put)
        self.end_one(lease, letter, lambda: self.queue.ack(lease, put=put))

    @rule(which=one_lease, found=some_anew, itself=st.booleans(), after=st.sampled_from([None, None, 3]))
    def ack_and_put_anew(
        self, which: tuple[str, int], found: list[tuple[str, Any, bool]], itself: bool, after: int | None
    ) -> None:
        (lease,) = self.pick([which])
        if itself:
            found = [*found, (lease.task, 7, True)]
        tasks, given = anew(found)
        ids, again_ms = [task for task, _, _ in found], None if after is None else after * 1000
        letter = self.model.ack(named("ack", [lease]), pairs([lease]), ids, again_ms=again_ms, given=given)
        self.end_one(lease, letter, lambda: self.queue.ack(lease, put=tasks, again_in=after))

    @rule(which=one_lease, after=st.sampled_from([0, 3, 90]))
    def ack_for_a_time(self, which: tuple[str, int], after: int) -> None:
        (lease,) = self.pick([which])
        letter = self.model.ack(named("ack", [lease]), pairs([lease]), again_ms=after * 1000)
        self.end_one(lease, letter, lambda: self.queue.ack(lease, again_in=after))

    @rule(which=one_lease, until=st.sampled_from([0, 10, 90]))
    def ack_that_blocks_for_a_time(self, which: tuple[str, int], until: int) -> None:
        """A handler of functions says so; the faces have no word for it."""
        (lease,) = self.pick([which])
        calls = self.queue.operations.ack([lease], until={0: until * 1000})
        until_ms = None if self.compact else until * 1000  # a fingerprint stays
        letters = self.model.ack(named("ack", [lease]), pairs([lease]), until_ms=until_ms)
        self.agree(letters, self.queue.run(sending.answers(self.queue.talk, calls)))

    @rule(which=one_lease)
    def say_how_far(self, which: tuple[str, int]) -> None:
        (lease,) = self.pick([which])
        self.end_one(lease, self.model.note((lease.task, lease.token)), lambda: self.queue.note(lease, 1, 2, "x"))

    @rule(ids=some_ids)
    def cancel(self, ids: list[str]) -> None:
        self.agree(self.model.cancel(self.call(), ids, "me"), self.queue.cancel(ids, by="me"))

    @rule(wanted=some_leases, delay=st.sampled_from([0, 7]))
    def release(self, wanted: list[tuple[str, int]], delay: int) -> None:
        self.end("release", self.pick(wanted), delay=delay)

    @rule(wanted=some_leases, delay=st.sampled_from([0, 7]), most=st.sampled_from([1, 2, 100]))
    def release_by_handler(self, wanted: list[tuple[str, int]], delay: int, most: int) -> None:
        leases = self.pick(wanted)
        letters = self.model.release(named("release", leases), pairs(leases), delay * 1000, most)
        calls = self.queue.operations.release(leases, delay * 1000, most=most)
        self.agree(letters, self.queue.run(sending.answers(self.queue.talk, calls)))

    @rule(
        wanted=some_leases,
        how=st.sampled_from([{}, {"retry_in": 0}, {"retry_in": 9}, {"give_up": True}]),
        error=st.sampled_from(["no", *ERRORS]),
    )
    def fail(self, wanted: list[tuple[str, int]], how: dict[str, Any], error: Exception | str) -> None:
        self.end("fail", self.pick(wanted), error=error, **how)

    @rule(number=st.integers(0, 3))
    def end_again(self, number: int) -> None:
        """Somebody who saw no answer asks for the same once more."""
        if not self.ended:
            self.end("ack", self.pick([("held", number)]))
        verb, leases, words = self.ended[-1 - number % min(4, len(self.ended))]
        self.end(verb, leases, **words)

    def end(self, verb: str, leases: list[Lease], **words: Any) -> None:
        name, model = named(verb, leases), self.model
        self.ended.append((verb, leases, words))
        if verb == "ack":
            letters = model.ack(name, pairs(leases))
        elif verb == "release":
            letters = model.release(name, pairs(leases), words["delay"] * 1000)
        else:
            trace = tracebacks.digest(tracebacks.trace(words["error"])).decode() if words["error"] != "no" else ""
            letters = model.fail(name, pairs(leases), [retry_ms(lease, words) for lease in leases], trace)
        ask: Callable[..., Any] = getattr(self.queue, verb)
        if len(leases) == 1:
            self.end_one(leases[0], letters, lambda: ask(leases[0], **words))
        else:
            self.agree(letters, ask(leases, **words))

    def end_one(self, lease: Lease, letter: str, call: Callable[[], object]) -> None:
        """Make a call with a single lease: it answers, or it raises and tells who has the task."""
        if letter != "L":
            assert str(call()) == ANSWERS[letter]
            return
        with pytest.raises(LeaseLost) as lost:
            call()
        self.explained(lease, lost.value)

    @rule(wanted=some_leases, timeout=st.sampled_from([10, 30]))
    def extend(self, wanted: list[tuple[str, int]], timeout: int) -> None:
        leases = self.pick(wanted)
        _, deadline, letters = self.model.extend(pairs(leases), timeout * 1000)
        if len(leases) > 1:
            self.agree(letters, self.queue.extend(leases, timeout))
        elif letters == "O":
            assert self.queue.extend(leases[0], timeout) == replace(leases[0], deadline=deadline / 1000)
        else:
            why = {"X": "max_runtime", "c": "was cancelled"}.get(letters, "lease on")
            with pytest.raises(LeaseLost, match=why) as lost:
                self.queue.extend(leases[0], timeout)
            self.explained(leases[0], lost.value)

    @rule(wanted=some_leases)
    def crash(self, wanted: list[tuple[str, int]]) -> None:
        """A worker's supervisor saw a process die; the faces have no method for it."""
        leases = self.pick(wanted)
        calls = self.queue.operations.crash(leases, "killed")
        self.agree(self.model.crash(pairs(leases)), self.queue.run(sending.answers(self.queue.talk, calls)))

    # ---- time, the server, the cleaner

    @rule(ms=st.sampled_from([0, 1, -1, 5_000, 10_000, 70_000]))
    def time_passes(self, ms: int) -> None:
        """Let time pass until something is due, or just before or after it; or so long."""
        model = self.model
        if ms <= 1:
            events = [*model.leases.values(), *model.scheduled.values(), *model.runtime.values(), model.grace_until]
            events = [at for at in events if at < WAITS]
            ms = ms * self.stand.grain + min((at for at in events if at > model.now), default=model.now) - model.now
        model.now += self.stand.advance(max(0, ms))

    @rule(ms=st.sampled_from([0, 2_000, 2_001, 15_000]))
    def the_server_restarts_or_its_clock_jumps(self, ms: int) -> None:
        passed = self.stand.advance(ms)
        self.model.now += passed
        self.stand.clock.jumped += passed
        if not ms:
            self.model.run = f"run{next(self.runs)}"
            # the run of a server cannot be chosen; that the queue was last seen at another one can be
            if self.model.known_run is not None:
                self.stand.raw.hset(KEY + "meta", "run_id", OTHER_RUN)

    @rule(promote=st.booleans(), requeue=st.booleans())
    def clean(self, promote: bool, requeue: bool) -> None:
        if promote:
            assert self.queue.promote_due() == self.model.promote_due()[1]
        if requeue or not promote:
            self.requeue_expired()

    @rule(longest=st.sampled_from([10_000, 3_000]), hears=st.booleans())
    def a_cleaner_sleeps_and_a_worker_hears_the_bell(self, longest: int, hears: bool) -> None:
        """A cleaner promises to look again, which later calls must keep it to; an idle worker takes the stroke."""
        plan = self.queue.run(sending.answer(self.queue.talk, self.queue.operations.plan(longest)))
        assert (plan.now_ms, plan.at_ms) == self.model.plan(longest)
        if hears:
            self.hear()

    def hear(self) -> None:
        """Take the stroke of the bell, as an idle worker does."""
        assert (self.stand.raw.lpop(KEY + "bell") is not None) == self.model.bell
        self.model.bell = False

    def requeue_expired(self) -> None:
        _, back, given_up = self.model.requeue_expired(self.stand.clock.expected_ms)
        assert self.queue.requeue_expired() == back + given_up

    # ---- the operator's

    @rule(
        what=st.sampled_from(["look", "look", "retry_failed", "forget", "forget", "pull", "pause", "prune", "purge"]),
        ids=some,
        state=st.sampled_from([*STATES, "scheduled"]),
        hears=st.booleans(),
    )
    def operate(self, what: str, ids: list[str], state: str, hears: bool) -> None:
        """Do what is done rarely; all of it in one rule, so that it is."""
        model = self.model
        if hears:
            self.hear()
        if model.paused:
            self.queue.resume()
            model.paused, model.bell = False, True
        if what == "look":
            self.look(ids[0], state)
        elif what == "retry_failed":
            named = [] if state == "failed" else ids
            moved = model.retry_failed(named)
            assert self.queue.retry_failed(*named, all=not named) == moved
        elif what == "forget":
            self.agree(model.forget(ids), self.queue.forget(ids))
        elif what == "pull":
            self.pull(len(ids))
        elif what == "pause":
            self.queue.pause()
            model.paused = True
        elif what == "prune":
            assert self.queue.prune() == model.prune()
            # a stroke that a hand, or a worker that died, took with it is made up for
            model.bell = model.bell or (bool(model.todos) and not model.paused)
        else:
            self.purge()

    def pull(self, n: int) -> None:
        found = self.queue.pull(n)
        note(f"pulled: {[task.task for task in found]}")
        assert len(found) == (0 if self.model.paused else min(n, len(self.model.todos)))
        for task in found:
            assert task.payload == self.model.payload.get(task.task)
        assert self.model.pull([task.task for task in found]) == tuple(task.task for task in found)

    def purge(self) -> None:
        self.queue.purge()
        assert self.stand.raw.keys("*") == [], "I10: a purged queue leaves no key"
        run = self.model.run
        self.model = Model(self.stand.clock.now)
        self.model.run = run
        if self.compact:
            self.queue.configure(keep_done="compact")

    def look(self, task: str, state: str) -> None:
        model, stats, info = self.model, self.queue.stats(), self.queue.inspect(task)
        for name in (*STATES, "scheduled"):
            assert getattr(stats, name) == len(getattr(model, name)), name
        assert stats.counters == {name: value for name, value in model.counters.items() if value}
        assert stats.paused == model.paused
        assert stats.next_due == min((at / 1000 for at in model.scheduled.values()), default=None)
        assert stats.next_deadline == min((at / 1000 for at in model.leases.values()), default=None)
        assert info.state == self.state(task)
        assert (info.failures, info.crashes) == (model.attempts.get(task, 0), model.crashes.get(task, 0))
        assert info.payload == model.payload.get(task)
        assert (info.error is not None) == (task in model.errors)
        if state == "done" and self.compact:
            with pytest.raises(InvalidInput, match="it keeps fingerprints of its done tasks"):
                self.queue.list(state)
        else:
            assert {entry.task for entry in self.queue.list(state).entries} == set(getattr(model, state))
        assert self.queue.states(*IDS).counts().get("done", 0) == len(model.done)
        assert self.queue.drained() == bool(model.drained())
        later = model.now // 1000 + 9
        assert self.queue.drained(later) == bool(model.drained(later * 1000))
        ended = sum(model.counters[what] for what in ("failed", "expired", "crashed"))
        assert len(self.queue.errors(50)) == min(50, ended + model.spent - model.unlogged)
        assert info.releases == model.releases.get(task, 0)
        assert (info.traceback is not None) == (task in model.traces)

    # ---- after each step

    @invariant()
    def the_keys_say_what_the_model_says(self) -> None:
        self.looks += 1
        model, now = self.model, Moment(self.stand.raw, KEY)
        assert [*keys.differences(model, now, IDS)] == []
        calls = {text(call): at for call, at in now.zrange(KEY + "calls", 0, -1, withscores=True)}
        assert last_minute(calls, model.now) == last_minute(model.calls, model.now)
        meta = {text(name): text(value) for name, value in now.hgetall(KEY + "meta").items()}
        assert int(meta.get("max_crashes", 5)) == model.max_crashes
        assert (meta.get("keep_done") != "no") == model.keeps_done
        run = meta.get("run_id")
        assert (run is None) == (model.known_run is None)
        assert run is None or (run == OTHER_RUN) == (model.known_run != model.run)
        assert now.names <= EVERY_KEY, now.names - EVERY_KEY
        check_keys(now, NAME)


EVERY_KEY = {name for names in scripts.SIZES.values() for name in names.split()} | {
    "meta", "seen:0", *(f"lock:{task}" for task in IDS), *(f"batch:{name}" for name in BATCHES)
}  # fmt: skip


def last_minute(calls: Mapping[str, float], now: int) -> list[float]:
    """Give the times of the calls that still count; older ones go with one of the next calls."""
    return sorted(at for at in calls.values() if at > now - 60_000)


def pairs(leases: Sequence[Lease]) -> list[Pair]:
    return [(lease.task, lease.token) for lease in leases]


def named(verb: str, leases: Sequence[Lease]) -> str:
    """Name a call that ends leases: the same leases ended the same way are the same call."""
    return f"{verb} {pairs(leases)}"


def anew(found: Sequence[tuple[str, Any, bool]]) -> tuple[list[Task], Given]:
    """Give tasks, of which some say that a run begins after the put, as the faces take them, and as the model."""
    bodies = tuple((i, body) for i, (_, body, _) in enumerate(found))
    which = tuple(i for i, (_, _, yes) in enumerate(found) if yes)
    return [Task(task, body, rerun=yes) for task, body, yes in found], Given(payloads=bodies, rerun=which or None)


def retry_ms(lease: Lease, how: Mapping[str, Any]) -> int:
    """Say when `fail` has a task tried again: as the call says, else as the queue does; -1 for never."""
    if how.get("give_up"):
        return -1
    after = how.get("retry_in", RETRIES[lease.attempt - 1] if lease.attempt <= len(RETRIES) else None)
    return -1 if after is None else after * 1000


# ---- the stands


@contextmanager
def fake_stand(face: str) -> Iterator[Stand]:
    clock = Clock()
    kind: Any = Queue if face == "sync" else Blocking
    client: Any = fakeredis.FakeRedis(server=clock.server)
    with kind(NAME, client=client, retry=RETRIES) as queue:
        # its PSETEX cuts the end of a key to whole seconds
        yield Stand(queue, client, clock.now_us // 1000, lambda ms: clock.advance(ms / 1000), grain=1000)
    client.close()


@contextmanager
def real_stand(face: str, server: EmbeddedServer, clock: shims.Clock) -> Iterator[Stand]:
    start = 1_800_000_000_000
    clock.freeze(start / 1000)
    kind: Any = Queue if face == "sync" else Blocking
    with redis.Redis.from_url(server.url) as client, kind(NAME, server.url, retry=RETRIES) as queue:
        made = Stand(queue, client, start, lambda _: clock.set_ms(made.clock.now))
        yield made


STANDS = ("fakeredis-sync", "fakeredis-async", "redis-sync", "redis-async")


def search(stand: Stand, number: int, steps: int, phases: Sequence[Phase] = PHASES) -> None:
    class OnTheStand(AnyOrder):
        def __init__(self) -> None:
            super().__init__(stand)

    while stand.steps < steps:
        run_state_machine_as_test(
            seed(number * 1_000_000 + stand.steps)(OnTheStand),
            settings=settings(
                max_examples=1 + (steps - stand.steps) // LENGTH,
                stateful_step_count=LENGTH + 1,  # and how it begins
                database=None,
                deadline=None,
                phases=phases,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )


def searched(stand: str) -> int:
    """Search at one stand; give how many steps there were."""
    where, _, face = stand.partition("-")
    with ExitStack() as ends:
        if where == "fakeredis":
            made = ends.enter_context(fake_stand(face))
        else:
            made = ends.enter_context(real_stand(face, *ends.enter_context(schedules.still_server())))
        try:
            search(made, SEED * len(STANDS) + STANDS.index(stand), STEPS // len(STANDS))
        except pytest.fail.Exception as failed:  # no other process could read it
            raise AssertionError("\n".join([str(failed), *getattr(failed, "__notes__", ())])) from None
        return made.steps


@pytest.fixture(scope="module")
def searches(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[int]]]:
    chosen = {item.name for item in request.session.items if item.path == request.path}
    with processes() as pool:
        yield {stand: pool.submit(searched, stand) for stand in STANDS if any(stand in name for name in chosen)}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "stand", [pytest.param(stand, marks=pytest.mark.breaking) if "fake" in stand else stand for stand in STANDS]
)
def test_every_answer_and_every_key_is_the_models(stand: str, searches: dict[str, Future[int]]) -> None:
    if stand.startswith("redis"):
        with schedules.still_server():  # which is skipped here where it cannot be had
            pass
    searches[stand].result()


def test_a_model_that_errs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    holds = Model.holds
    monkeypatch.setattr(Model, "holds", lambda self, pair: not self.crashes and holds(self, pair))
    # what a claim picks is chance: played again, the same steps may fail elsewhere, and then they are called flaky
    with fake_stand("sync") as stand, pytest.raises((AssertionError, Flaky)):
        search(stand, SEED, 4000, [Phase.generate])
