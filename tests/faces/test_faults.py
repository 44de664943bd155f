"""Every operation of both faces behind a proxy that breaks the one exchange that matters, in each of its eight ways.

A scenario ends in the right result or in a typed error within the deadline; what the operation does is done once or
not at all, and the fault alone decides which; the invariants hold, and no task is held by a lease that nobody knows of.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import Any, cast

import pytest
import redis

from tests.rig.faces import Blocking
from tests.rig.invariants import check, check_keys
from tests.rig.proxy import Fault, Proxy
from tests.rig.waiting import wait_until
from timeoutq import Answer, Lease, Politeness, Queue, State, Task, Unavailable
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer

CARRIED_OUT = {Fault.RESET_AFTER, Fault.SWALLOW, Fault.CUT, Fault.LATENCY, Fault.DRIP}
"""The faults that let the request reach the server."""

SILENT = {Fault.SWALLOW, Fault.HALF_OPEN, Fault.DRIP}
"""The faults that only the clock tells: nothing comes, and nothing says that nothing will."""

PATIENT, SOME, SHORT = 4.0, 2.0, 0.6
"""Deadlines: one that no busy machine eats up before the second attempt, one of which the first attempt is waited for,
and one that is waited for in full."""

LATE = 0.4
"""Each way, seconds: longer than an attempt under the short deadline waits."""

MARGIN = 2.0
"""How much later than its deadline a call may come back on a busy machine, seconds."""

LEASE = 0.3
"""The length of the leases that are claimed here, seconds."""

AT_ONCE = 24
"""How many scenarios are played at once: most of their time is waiting, but each has threads that must come to run."""

_numbers = count(1)


# ---- what each operation finds, does, and leaves behind


@dataclass
class Scene:
    """A queue behind the proxy, the same queue without it, and what was prepared."""

    queue: Any
    watch: Queue
    raw: Any
    leases: list[Lease] = field(default_factory=list[Lease])

    def put(self, *tasks: str) -> None:
        self.watch.put(tasks)

    def lease(self, *tasks: str, timeout: float = 30.0) -> None:
        self.put(*tasks)
        self.leases = self.watch.claim(len(tasks), timeout=timeout)

    def expire(self, *tasks: str) -> None:
        self.lease(*tasks, timeout=0.01)
        wait_until(lambda: all((self.watch.inspect(task).lease_left or 0) < 0 for task in tasks))

    def finish(self, *tasks: str) -> None:
        self.lease(*tasks)
        self.watch.ack(self.leases)
        self.leases = []

    def break_down(self, *tasks: str) -> None:
        self.lease(*tasks)
        self.watch.fail(self.leases, "it broke", give_up=True)
        self.leases = []

    def counted(self, counter: str) -> int:
        return self.watch.stats().counters.get(counter, 0)

    def states(self, *tasks: str) -> list[State | None]:
        return [self.watch.inspect(task).state for task in tasks]


def nothing(scene: Scene) -> None:
    """Prepare nothing."""


def no_effect(scene: Scene) -> int:
    """Tell that nothing has changed: the operation only looks."""
    return 0


@dataclass(frozen=True)
class Operation:
    """One operation of the public API, and how to tell whether it did what it should, once."""

    name: str
    sends: str
    """The verb that the fault waits for, or the command."""
    prepare: Callable[[Scene], object]
    act: Callable[[Scene], Any]
    right: Callable[[Any], bool]
    """Whether this is a right result of a call that was carried out, now or by an attempt whose reply was lost."""
    effect: Callable[[Scene], int] = no_effect
    once: int = 0
    """The result of `effect` when the operation was carried out once; 0 when it was not."""
    replayable: bool = True
    ends: bool = False
    """It ends the leases that were prepared."""
    takes: int = 0
    """How many leases it takes."""
    waits: float = 0.0
    fresh: bool = False
    """It is the very first call of its queue."""
    rounds: bool = False
    """It is carried out in several rounds, of which the fault strikes the first."""


def counted(counter: str) -> Callable[[Scene], int]:
    return lambda scene: scene.counted(counter)


def _extended(scene: Scene) -> int:
    return sum((scene.watch.inspect(lease.task).deadline or 0) > lease.deadline + 30 for lease in scene.leases)


def _acked_and_put(scene: Scene) -> int:
    # both or neither: a half would be neither 0 nor 1
    found = scene.states("a", "found", "more")
    whole = found == [State.DONE, State.TODOS, State.TODOS]
    assert whole or found == [State.IN_PROGRESS, None, None]
    assert scene.counted("put") == (3 if whole else 1)
    return scene.counted("acked")


def _failed_once(scene: Scene) -> int:
    failures = [scene.watch.inspect(lease.task).failures for lease in scene.leases]
    assert sum(failures) == scene.counted("failed")
    return sum(failures)


def _setting(name: str, value: str) -> Callable[[Scene], int]:
    return lambda scene: int(scene.watch.stats().settings.get(name) == value)


def _gone(scene: Scene) -> int:
    return int(not list(scene.raw.scan_iter(f"timeoutq:{{{scene.watch.name}}}:*")))


def _a_host(scene: Scene) -> None:
    scene.watch.configure(politeness=Politeness(0, 1))
    scene.put("http://a.example/")


PAGES = [f"http://a.example/{n}" for n in range(3)]


def _two_pages_wait(scene: Scene) -> None:
    scene.watch.configure(politeness=Politeness(0, 1))
    scene.watch.put([Task(page, {"n": 1}, priority=1) for page in PAGES])


def _raised(scene: Scene) -> int:
    # the priority, the payload and the place among the tasks of the host: all of it or nothing
    page = scene.watch.inspect(PAGES[1])
    score = scene.raw.zscore(scene.watch.operations.key("host:a.example"), page.task)
    found = page.priority, page.payload, math.ceil(-score / 2**41)
    assert found in ((1, {"n": 1}, 1), (9, {"n": 2}, 9)), found
    assert scene.counted("put") == len(PAGES)
    return int(page.priority == 9)


def _one_done_and_one_in_progress(scene: Scene) -> None:
    scene.watch.configure(politeness=Politeness(0, 1))
    for page in PAGES[:2]:
        scene.watch.put(Task(page, priority=-3))
        scene.leases = scene.watch.claim(1)
        if page == PAGES[0]:
            scene.watch.ack(scene.leases)


def _better() -> list[Task]:
    return [Task(page, {"n": 2}, priority=5, improve=True) for page in PAGES]


def _improved(scene: Scene) -> int:
    # a new page, one that comes back, and the mark of one in progress: all of it or nothing
    states, mark = scene.states(PAGES[0], PAGES[2]), scene.raw.hget(scene.watch.operations.key("rerun"), PAGES[1])
    whole = State.DONE not in states and None not in states
    assert mark is None or mark.startswith(b"5 1"), mark
    assert whole or states == [State.DONE, None], states
    assert whole == (mark is not None)
    assert scene.counted("put") == (4 if whole else 2)
    return int(whole)


def _acked_and_improved(scene: Scene) -> int:
    # the page that is acked is improved, too: it runs once more
    states = scene.states(*PAGES)
    whole = scene.counted("acked") == 2
    assert whole == (State.DONE not in states), states
    assert whole == (State.IN_PROGRESS not in states), states
    assert (scene.counted("put"), scene.counted("reruns")) == ((4, 1) if whole else (2, 0))
    assert [scene.watch.inspect(page).priority for page in PAGES] == ([5, 5, 5] if whole else [-3, -3, 0])
    return int(whole)


def _done_too_many(scene: Scene) -> None:
    scene.finish("a", "b", "c")
    scene.watch.configure(keep_done=1)


def one(answer: Any) -> bool:
    return answer in (Answer.OK, Answer.ALREADY)


def all_two(outcome: Any) -> bool:
    return bool(outcome.ok == 2)


def moved(most: int) -> Callable[[Any], bool]:
    """Accept that many; and none, when an attempt whose reply was lost has moved them."""
    return lambda found: found in (0, most)


OPERATIONS = [
    Operation(
        "put", "put", lambda s: s.put("old"), lambda s: s.queue.put({"new": {"n": 1}}, "old"),
        lambda r: list(r) in ([Answer.ADDED, Answer.TODOS], [Answer.TODOS, Answer.TODOS]),
        lambda s: s.counted("put") - 1, 1,
    ),
    Operation(
        "put that raises", "put", _two_pages_wait, lambda s: s.queue.put(Task(PAGES[1], {"n": 2}, priority=9)),
        lambda r: r[0] in (Answer.RAISED, Answer.WAITING), _raised, 1,
    ),
    Operation(
        "put that improves", "put", _one_done_and_one_in_progress, lambda s: s.queue.put(_better()),
        lambda r: Answer.DONE not in r, _improved, 1,
    ),
    Operation(
        "schedule", "schedule", nothing, lambda s: s.queue.schedule("a", "b", after=3600),
        lambda r: all(answer in (Answer.ADDED, Answer.SCHEDULED) for answer in r), counted("put"), 2,
    ),
    Operation(
        "claim", "claim", lambda s: s.put("a", "b"), lambda s: s.queue.claim(2, timeout=LEASE),
        lambda r: {(lease.task, lease.attempt, lease.crashes) for lease in r} == {("a", 1, 0), ("b", 1, 0)},
        counted("claimed"), 2, takes=2,
    ),
    Operation(
        "claim with wait", "claim", lambda s: s.watch.schedule("a", after=0.05),
        lambda s: s.queue.claim(2, timeout=LEASE, wait=0.5), lambda r: [lease.task for lease in r] == ["a"],
        counted("claimed"), 1, takes=1, waits=0.5,
    ),
    Operation(
        "extend one", "extend", lambda s: s.lease("a"), lambda s: s.queue.extend(s.leases[0], 90),
        lambda r: r.task == "a", _extended, 1,
    ),
    Operation(
        "ack one", "ack", lambda s: s.lease("a"), lambda s: s.queue.ack(s.leases[0]),
        one, counted("acked"), 1, ends=True,
    ),
    Operation(
        "ack with put", "ack", lambda s: s.lease("a"), lambda s: s.queue.ack(s.leases[0], put=["found", "more"]),
        one, _acked_and_put, 1, ends=True,
    ),
    Operation(
        "ack that improves", "ack", _one_done_and_one_in_progress, lambda s: s.queue.ack(s.leases[0], put=_better()),
        one, _acked_and_improved, 1, ends=True,
    ),
    Operation(
        "release", "release", lambda s: s.lease("a"), lambda s: s.queue.release(s.leases[0]),
        one, counted("released"), 1, ends=True,
    ),
    Operation(
        "fail with retry", "fail", lambda s: s.lease("a"),
        lambda s: s.queue.fail(s.leases[0], "it broke", retry_in=3600), one, _failed_once, 1, ends=True,
    ),
    Operation(
        "fail and give up", "fail", lambda s: s.lease("a", "b"),
        lambda s: s.queue.fail(s.leases, ValueError("it broke"), give_up=True),
        all_two, counted("gave_up"), 2, ends=True,
    ),
    Operation(
        "pull", "pull", lambda s: s.put("a", "b", "c"), lambda s: s.queue.pull(2), lambda r: len(r) == 2,
        counted("pulled"), 2, replayable=False,
    ),
    Operation(
        "requeue_expired", "requeue_expired", lambda s: s.expire("a", "b"), lambda s: s.queue.requeue_expired(),
        moved(2), counted("expired"), 2, ends=True,
    ),
    Operation(
        "promote_due", "promote_due", lambda s: s.watch.schedule("a", "b", after=0), lambda s: s.queue.promote_due(),
        moved(2), counted("promoted"), 2,
    ),
    Operation("prune", "prune", _done_too_many, lambda s: s.queue.prune(), moved(2), counted("pruned"), 2),
    Operation(
        "retry_failed, all", "retry_failed", lambda s: s.break_down("a", "b"), lambda s: s.queue.retry_failed(all=True),
        moved(2), counted("retried"), 2,
    ),
    Operation(
        "forget", "forget", lambda s: s.put("a", "b"), lambda s: s.queue.forget("a"),
        lambda r: r[0] in (Answer.TODOS, Answer.UNKNOWN), counted("forgotten"), 1,
    ),
    Operation(
        "failures.retry", "kind", lambda s: s.break_down("a", "b"),
        lambda s: s.queue.failures.retry(s.queue.failures.list()[0]),
        lambda r: r.moved in (0, 1, 2) and r.left == 0, counted("retried"), 2,
    ),
    Operation(
        "cancel", "cancel", lambda s: s.put("a", "b"), lambda s: s.queue.cancel("a"),
        lambda r: r[0] is Answer.CANCELLED, counted("cancelled"), 1,
    ),
    Operation(
        "note", "note", lambda s: s.lease("a"), lambda s: s.queue.note(s.leases[0], 3, 10), lambda r: r is Answer.OK,
    ),
    Operation(
        "inspect", "inspect", lambda s: s.put("a"), lambda s: s.queue.inspect("a"), lambda r: r.state is State.TODOS,
    ),
    Operation(
        "states", "states", lambda s: s.put("a"), lambda s: s.queue.states("a", "b"),
        lambda r: list(r) == [Answer.TODOS, Answer.UNKNOWN],
    ),
    Operation("why", "why", lambda s: s.put("a"), lambda s: s.queue.why("a"), lambda r: r.info.state is State.TODOS),
    Operation(
        "page of hosts", "hosts", _a_host, lambda s: s.queue.hosts.list(),
        lambda r: [host.host for host in r.hosts] == ["a.example"],
    ),
    Operation(
        "block of a host", "host", _a_host, lambda s: s.queue.hosts.block("a.example", for_=60),
        lambda r: r.blocked_until is not None,
        lambda s: int(s.watch.hosts.inspect("a.example").blocked_until is not None), 1,
    ),
    Operation(
        "list of ready tasks", "SSCAN", lambda s: s.put("a", "b"), lambda s: s.queue.list("todos"),
        lambda r: {entry.task for entry in r.entries} == {"a", "b"},
    ),
    Operation("stats", "stats", lambda s: s.put("a"), lambda s: s.queue.stats(), lambda r: r.todos == 1),
    Operation(
        "configure", "configure", nothing, lambda s: s.queue.configure(max_crashes=7), lambda r: r is None,
        _setting("max_crashes", "7"), 1,
    ),
    Operation("drained", "drained", lambda s: s.put("a"), lambda s: s.queue.drained(), lambda r: r is False),
    Operation(
        "purge", "purge", lambda s: s.lease("a", "b"), lambda s: s.queue.purge(), lambda r: r is None,
        ends=True, rounds=True,
    ),
    Operation(
        "purge without leases", "purge", lambda s: s.finish("a", "b"), lambda s: s.queue.purge(), lambda r: r is None,
        _gone, 1,
    ),
    Operation("server", "INFO", nothing, lambda s: s.queue.server(), lambda r: len(r) > 0),
    Operation(
        "the first call", "INFO", lambda s: s.put("a"), lambda s: s.queue.stats(), lambda r: r.todos == 1, fresh=True,
    ),
]  # fmt: skip


# ---- one scenario


@dataclass(frozen=True)
class Scenario:
    operation: Operation
    face: Any
    fault: Fault
    times: int | None
    stretch: int = 1
    """How many times longer the deadlines are than usual."""

    def __str__(self) -> str:
        often = "until the end" if self.times is None else f"{self.times} times"
        return f"{self.operation.name} on {self.face.__name__}, {self.fault}, {often}"

    @property
    def deadline(self) -> float:
        """How long the call may take: short where nobody answers."""
        usual = SHORT if self.times is None else SOME if self.fault in SILENT else PATIENT
        return usual * self.stretch

    @property
    def must_succeed(self) -> bool:
        """Whether there is time and leave to ask again, or no need to."""
        if self.times is None:
            return False
        if self.fault is Fault.LATENCY:
            return True
        return self.operation.replayable

    @property
    def must_fail(self) -> bool:
        """Whether no attempt can be answered in time, or none but the first may be made."""
        return self.times is None or (not self.operation.replayable and self.fault is not Fault.LATENCY)

    @property
    def is_late(self) -> bool:
        """Whether requests arrive after their caller has given up."""
        return self.times is None and self.fault is Fault.LATENCY


def sent_by(word: str) -> bytes:
    """Give bytes that only requests of this verb contain; a command stands for itself."""
    return word.encode() if word.isupper() else scripts.function(word).encode()


class NoTime(Exception):
    """A call ended in an error that had leave to ask again; on a busy machine the time for it may have been over."""


def play(scenario: Scenario, url: str, raw: Any) -> None:
    """Play one scenario, again with four times the time if there was too little."""
    try:
        play_once(scenario, url, raw)
    except NoTime:
        play_once(replace(scenario, stretch=4), url, raw)


def play_once(scenario: Scenario, url: str, raw: Any) -> None:
    name, operation = f"f{next(_numbers)}", scenario.operation
    with (
        Proxy(url) as proxy,
        Queue(name, url, deadline=20) as watch,
        scenario.face(name, proxy.url, deadline=scenario.deadline) as queue,
    ):
        scene = Scene(queue, watch, raw)
        if not operation.fresh:
            wait_until(lambda: met(queue))
        operation.prepare(scene)
        before = effect(operation, scene)
        assert before == 0
        proxy.arm(
            scenario.fault, sent_by(operation.sends), times=scenario.times, seconds=LATE if scenario.is_late else None
        )
        began, result, error = time.monotonic(), None, None
        try:
            result = operation.act(scene)
        except Unavailable as caught:
            error = caught
        took = time.monotonic() - began
        try:
            wait_until(lambda: proxy.struck >= 1)  # a busy machine may have shown the request to nobody yet
        except AssertionError:
            if not error or scenario.stretch > 1:
                raise
            watch.purge()  # or the deadline was over before the request was sent
            raise NoTime from error
        assert took < scenario.deadline + operation.waits + MARGIN, f"it took {took:.2f} s"
        if scenario.must_succeed and error:
            if scenario.stretch == 1:
                proxy.disarm()
                watch.purge()
                raise NoTime
            raise AssertionError(f"there was time to ask again, but: {error}") from error
        if scenario.must_fail:
            assert error, f"nobody can have answered, but: {result!r}"
        assert error or operation.right(result), f"a wrong result: {result!r}"
        if not operation.replayable:
            assert proxy.seen == 1, f"sent {proxy.seen} times"
        proxy.settle()
        proxy.disarm()
        judge(scenario, scene, result, error)
        watch.purge()
        assert _gone(scene), "purged, but not all keys are gone"


def met(queue: Any) -> bool:
    """Let the queue meet its server; a busy machine may need more than one short deadline."""
    try:
        queue.stats()
    except Unavailable:
        return False
    return True


def effect(operation: Operation, scene: Scene) -> int:
    """Give the effect of an operation, looked at once more if a request that was held up was carried out meanwhile."""
    try:
        return operation.effect(scene)
    except AssertionError:
        return operation.effect(scene)


def judge(scenario: Scenario, scene: Scene, result: Any, error: Unavailable | None) -> None:
    """Judge what a scenario leaves behind."""
    operation, watch = scenario.operation, scene.watch
    arrived = error is None or scenario.fault in CARRIED_OUT
    if operation.takes and error:
        # a claim is dated: one that arrives after its caller gave up takes nothing
        arrived = scenario.fault in CARRIED_OUT and not scenario.is_late and effect(operation, scene) > 0
    expected = operation.once if arrived else 0
    if arrived:
        wait_until(lambda: effect(operation, scene) >= expected, timeout=20)
    assert effect(operation, scene) == expected, f"carried out: {effect(operation, scene)}, not {expected}"
    if operation.rounds and error and arrived:
        assert not in_progress(scene)
        watch.purge()  # it was cut short between two rounds: asked again, it goes on where it was
        assert _gone(scene) == 1
    check_keys(scene.raw, watch.name)

    held = [] if operation.ends and arrived else scene.leases
    if operation.name == "purge":
        # it takes two rounds: the first ends the leases, whatever becomes of the second
        held = [] if arrived else scene.leases
    taken: Sequence[Lease] = result if operation.takes and result else []
    mine = [*held, *taken]
    if mine:
        assert watch.ack(mine).ok == len(mine), "a lease that the caller holds was not valid"
    left = in_progress(scene)
    if operation.takes and error and arrived:
        # every reply of the claim was lost: its caller knows of no lease, and nobody else may have the tasks; the
        # leases run out by themselves, the tasks come back, and that is counted
        assert len(left) == operation.takes
        wait_until(lambda: watch.requeue_expired() >= 0 and not in_progress(scene))
        assert scene.counted("expired") == operation.takes
        # they are handed out again, with the lost leases on their record
        assert [lease.crashes for lease in watch.claim(9)] == [1] * operation.takes
    else:
        assert not left, f"phantom leases on {left}"
    check_keys(scene.raw, watch.name)


def in_progress(scene: Scene) -> set[bytes]:
    found: set[bytes] = scene.raw.smembers(scene.watch.operations.key("in_progress"))
    return found


def play_all(scenarios: Sequence[Scenario], url: str) -> None:
    """Play scenarios side by side: most of their time is waiting. Tells all that went wrong."""
    wrong: list[str] = []

    def played(scenario: Scenario) -> None:
        try:
            play(scenario, url, raw)
        except Exception as error:  # it is told below, with the scenario that it belongs to
            wrong.append(f"{scenario}: {type(error).__name__}: {error}".splitlines()[0])

    with redis.Redis.from_url(url) as raw, ThreadPoolExecutor(AT_ONCE // 2) as pool:
        list(pool.map(played, scenarios))
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def valkey_url() -> Iterator[str]:
    """A server that knows the library, so that the first request that a fault meets is the one that is carried out."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as raw:
        client: Any = raw
        client.function_load(scripts.library(), replace=True)
        yield server.url


# ---- the matrix


SAMPLE = [
    operation for operation in OPERATIONS if operation.name in ("put", "claim", "ack with put", "release", "pull")
]
FACES = (Queue, Blocking)
BOTH = pytest.mark.parametrize("face", FACES, ids=["Queue", "AsyncQueue"])


def matrix(operation: Operation) -> list[Scenario]:
    """Give the scenarios of an operation: a fault that strikes once on both faces, and one that lasts until the end."""
    twice = FACES if operation in SAMPLE else FACES[:1]  # what is decided when all attempts fail is decided for both
    once = [Scenario(operation, face, fault, 1) for face in FACES for fault in Fault]
    return once + [Scenario(operation, face, fault, None) for face in twice for fault in Fault]


def three_times(operation: Operation) -> list[Scenario]:
    """Give the scenarios of an operation in which a fault strikes again and again, and then no more."""
    told = [fault for fault in Fault if fault not in SILENT]
    return [Scenario(operation, face, fault, 3) for face in FACES for fault in told]


Played = Callable[[Operation], None]


def once(scenarios: Callable[[Operation], list[Scenario]]) -> Callable[..., Iterator[Played]]:
    """Give a fixture that plays what is asked for, a few operations at once: each test waits for its own."""

    def fixture(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Played]:
        name = request.fixturename
        asked: list[Operation] = [
            cast("Operation", item.callspec.params["operation"])
            for item in request.session.items
            if isinstance(item, pytest.Function) and name in item.fixturenames
        ]
        with ThreadPoolExecutor(2) as pool:
            under_way = {one.name: pool.submit(play_all, scenarios(one), valkey_url) for one in asked}
            yield lambda operation: under_way[operation.name].result()
            pool.shutdown(cancel_futures=True)

    return fixture


matrix_played = pytest.fixture(once(matrix), scope="module", name="matrix_played")
three_played = pytest.fixture(once(three_times), scope="module", name="three_played")


@pytest.mark.parametrize(
    "operation",
    [one if one in SAMPLE else pytest.param(one, marks=pytest.mark.alone) for one in OPERATIONS],
    ids=attrgetter("name"),
)
def test_an_operation_whose_exchange_breaks_ends_right_or_in_a_typed_error(
    operation: Operation, matrix_played: Played
) -> None:
    matrix_played(operation)


@pytest.mark.alone
@pytest.mark.parametrize("operation", SAMPLE[:-1], ids=attrgetter("name"))
def test_an_operation_outlasts_faults_that_strike_three_times(operation: Operation, three_played: Played) -> None:
    three_played(operation)


# ---- what remains, told step by step


@BOTH
def test_a_claim_that_waits_gets_its_task_though_the_bell_breaks(face: Any, valkey_url: str) -> None:
    def wait_for_a_task(fault: Fault) -> None:
        name = f"f{next(_numbers)}"
        with (
            Proxy(valkey_url) as proxy,
            Queue(name, valkey_url) as other,
            face(name, proxy.url, deadline=PATIENT) as queue,
            ThreadPoolExecutor(1) as beside,
        ):
            queue.stats()
            proxy.arm(fault, b"BLPOP")
            began = time.monotonic()
            claim = beside.submit(queue.claim, wait=1)
            wait_until(lambda: proxy.struck)
            other.put("a")
            assert [lease.task for lease in claim.result(30)] == ["a"], fault
            assert time.monotonic() - began < 1 + PATIENT + MARGIN, fault
            assert other.stats().counters["claimed"] == 1
            check(valkey_url, name)

    with ThreadPoolExecutor(len(Fault)) as pool:
        for played in [pool.submit(wait_for_a_task, fault) for fault in Fault]:
            played.result()


@BOTH
def test_a_reply_that_trickles_in_without_an_end_is_not_waited_for(face: Any, valkey_url: str) -> None:
    name = f"f{next(_numbers)}"
    with Proxy(valkey_url) as proxy, Queue(name, valkey_url) as other, face(name, proxy.url, deadline=SOME) as queue:
        other.put("a-task-with-a-long-name-" + 100 * "x")
        queue.stats()
        proxy.arm(
            Fault.DRIP, sent_by("claim"), times=None, seconds=0.2
        )  # no pause is longer than an attempt is patient
        began = time.monotonic()
        with pytest.raises(Unavailable):
            queue.claim(timeout=LEASE)
        assert time.monotonic() - began < SOME + MARGIN
        proxy.disarm()
        wait_until(lambda: other.requeue_expired() or other.stats().todos)
        check(valkey_url, name)


# ---- the proxy itself: a fault that does not strike would prove nothing


def talk(url: str, fault: Fault, *, times: int | None = 1, seconds: float = 0.0) -> tuple[Proxy, socket.socket]:
    """Say GET through a proxy that waits for it."""
    with redis.Redis.from_url(url) as raw:
        raw.set("the:key", "before")
    proxy = Proxy(url)
    proxy.arm(fault, b"the:key", times=times, seconds=seconds)
    link = socket.create_connection(("127.0.0.1", proxy.port))
    link.settimeout(10)
    link.sendall(b"PING\r\n")
    assert link.recv(99) == b"+PONG\r\n"
    link.sendall(b"GETSET the:key after\r\n")
    return proxy, link


def value(url: str) -> bytes:
    with redis.Redis.from_url(url) as raw:
        found: Any = raw.get("the:key")
        raw.delete("the:key")
        return bytes(found)


def test_the_proxy_resets_before_and_after_the_server_has_carried_it_out(valkey_url: str) -> None:
    for fault, left in ((Fault.RESET_BEFORE, b"before"), (Fault.RESET_AFTER, b"after")):
        proxy, link = talk(valkey_url, fault)
        with proxy, link:
            with pytest.raises(ConnectionResetError):
                link.recv(99)
            assert value(valkey_url) == left
            assert (proxy.seen, proxy.struck) == (1, 1)


def test_the_proxy_swallows_replies_or_everything_and_leaves_the_connection_open(valkey_url: str) -> None:
    for fault, left in ((Fault.SWALLOW, b"after"), (Fault.HALF_OPEN, b"before")):
        proxy, link = talk(valkey_url, fault)
        with proxy, link:
            wait_until(lambda: proxy.struck)  # noqa: B023  # it is asked here and now
            proxy.settle()
            link.sendall(b"PING\r\n")
            link.settimeout(0.1)
            with pytest.raises(TimeoutError):
                link.recv(99)
            assert value(valkey_url) == left


def test_the_proxy_is_late_both_ways_and_gives_a_byte_at_a_time(valkey_url: str) -> None:
    began = time.monotonic()
    proxy, link = talk(valkey_url, Fault.LATENCY, seconds=0.1)
    with proxy, link:
        assert link.recv(99) == b"$6\r\nbefore\r\n"
        assert time.monotonic() - began >= 0.2
    proxy, link = talk(valkey_url, Fault.DRIP, seconds=0.01)
    with proxy, link:
        assert [link.recv(1) for _ in range(12)] == [b"$", b"6", b"\r", b"\n", *(b"%c" % c for c in b"before\r\n")]
        assert proxy.lost == 1


def test_the_proxy_strikes_as_often_as_it_was_told(valkey_url: str) -> None:
    with Proxy(valkey_url) as proxy:
        proxy.arm(Fault.RESET_BEFORE, b"ECHO", times=2)
        said = [echo(proxy.port) for _ in range(4)]
        assert said == [None, None, b"$1\r\nx\r\n", b"$1\r\nx\r\n"]
        assert (proxy.seen, proxy.struck) == (4, 2)


def echo(port: int) -> bytes | None:
    """Say ECHO on a new connection; None when it is reset."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(10)
        try:
            link.sendall(b"ECHO x\r\n")
            return link.recv(99)
        except ConnectionResetError:
            return None
