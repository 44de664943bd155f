"""The invariants of the design, checked on the raw keys of a queue; every test that can ends with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import redis

from tests.rig import fingerprints, kinds
from tests.rig.moment import Moment

STATES = ("todos", "waiting", "in_progress", "done", "failed")
RECORDS = ("payload", "attempts", "crashes", "errors", "releases", "traces")
TRACES = 200
"""The most tracebacks that a queue keeps."""
MOST_RESTING = 500
"""How many places a host has at most whose visits are kept apart by a delay."""
SLACK_MS = 100
"""A lock may end so much before the deadline that it stands for: by rounding, and by the time between two looks."""


def check(url: str, name: str) -> None:
    """Check one queue; raises AssertionError that names the invariant and the tasks."""
    with redis.Redis.from_url(url) as client:
        check_keys(Moment(client, f"timeoutq:{{{name}}}:"), name)


def check_keys(client: Any, name: str, *, counters: bool = True) -> None:
    """Check one queue through a client that gives bytes; nobody else may be at work on it.

    Without `counters` it may be one that a hand has touched, or on which a call stopped half-way: then counters, locks,
    times and kinds of failures, and batches may disagree with the tasks; no walk mends that, for no task is lost by it.
    """
    key = f"timeoutq:{{{name}}}:"
    held: dict[bytes, list[str]] = {}
    for state in STATES:
        for task in client.smembers(key + state):
            held.setdefault(task, []).append(state)
    for task in client.zrange(key + "scheduled", 0, -1):
        held.setdefault(task, []).append("scheduled")
    seen = fingerprints.read(client, key)
    for task in fingerprints.holding(seen, held):
        held[task].append("done, by its fingerprint")
    twice = {task: states for task, states in held.items() if len(states) > 1}
    assert not twice, f"I1: in more than one state: {twice}"

    def within(state: str) -> set[bytes]:
        return {task for task, states in held.items() if states == [state]}

    working = within("in_progress")
    leases: dict[bytes, float] = dict(client.zrange(key + "leases", 0, -1, withscores=True))
    owners: dict[bytes, bytes] = client.hgetall(key + "owners")
    assert working == leases.keys(), f"I6: in_progress and leases differ: {working ^ leases.keys()}"
    assert working == owners.keys(), f"I6: in_progress and owners differ: {working ^ owners.keys()}"
    limits = set(client.hkeys(key + "runtime"))
    assert limits <= working, f"I6: a max_runtime without a lease: {limits - working}"
    marked = set(client.hkeys(key + "rerun"))
    assert marked <= working, f"marked to run once more, and not in progress: {marked - working}"
    done = within("done")
    if seen is not None:
        assert not done, f"ids of done tasks on a queue that keeps fingerprints: {done}"
    for what in RECORDS:
        extra = set(client.hkeys(key + what)) - held.keys()
        assert not extra, f"I10: {what} of tasks that are in no state: {extra}"
        left = set(client.hkeys(key + what)) & done
        assert not left, f"{what} of done tasks: {left}"
    if counters:
        check_locks(client, key, leases, owners)
        assert seen is None or fingerprints.wrong(seen) == []
        dated = set(client.zrange(key + "done_at", 0, -1))
        assert dated <= done, f"I10: times of tasks that are not done: {dated - done}"
        check_traces(client, key)
        check_counters(client, key, len(held) + (0 if seen is None else seen.count), len(working))
        kinds.check(client, key, within("failed"))
        check_batches(client, key, held)
    check_hosts(client, key, within)


def check_batches(client: Any, key: str, held: Mapping[bytes, list[str]]) -> None:
    """Check that batches and their tasks agree: who has not ended is known by both, and nobody else."""
    ended = {"done", "failed", "done, by its fingerprint"}
    of: dict[bytes, set[bytes]] = {task: set(names.split()) for task, names in client.hgetall(key + "batch_of").items()}
    for name, record in client.hgetall(key + "batches").items():
        outstanding = set(client.zrangebyscore(key.encode() + b"batch:" + name, "-inf", "(1000000000"))
        over = {task for task in outstanding if not held.get(task) or set(held[task]) & ended}
        assert not over, f"tasks of batch {name!r} that have ended, which it has not counted: {over}"
        counted = {task for task, names in of.items() if name in names}
        assert outstanding == counted, f"batch {name!r} and its tasks differ: {outstanding ^ counted}"
        assert outstanding or record[:1] != b"s", f"batch {name!r} is not over, and has no task left"


def a_minute_later(client: Any, name: str) -> None:
    """Let a minute pass for the records that a walk has found of tasks in no state: the next walk removes them."""
    key = f"timeoutq:{{{name}}}:leftovers"
    for task, seen in client.zrange(key, 0, -1, withscores=True):
        client.zadd(key, {task: max(2, seen - 60_000)}, xx=True)


def check_traces(client: Any, key: str) -> None:
    """Check that tracebacks are kept for tasks that have one, the newest, and for nobody else."""
    traces: dict[bytes, bytes] = client.hgetall(key + "traces")
    bare = traces.keys() - client.hgetall(key + "errors").keys()
    assert not bare, f"tracebacks of tasks without an error: {bare}"
    uses = {digest: int(count) for digest, count in client.hgetall(key + "trace_uses").items()}
    assert uses == Counter(traces.values()), f"digests are used as often as they are counted: {uses}, {traces}"
    texts = set(client.hkeys(key + "trace_texts"))
    assert texts == set(client.zrange(key + "trace_at", 0, -1)), "texts and times of tracebacks differ"
    assert texts <= uses.keys(), f"I10: texts that no task refers to: {texts - uses.keys()}"
    assert len(texts) <= TRACES, f"{len(texts)} tracebacks are kept"


def check_hosts(client: Any, key: str, within: Callable[[str], set[bytes]]) -> None:
    """Check that what waits on a polite queue waits for its host, and that no host has more than it may (I11)."""
    waiting = within("waiting")
    lanes = {
        lane[len(key) + 5 :]: set(client.zrange(lane, 0, -1)) for lane in client.scan_iter(key + "host:*", count=1000)
    }
    placed = [task for tasks in lanes.values() for task in tasks]
    assert sorted(placed) == sorted(waiting), f"I11: waiting, and waiting for a host, differ: {waiting ^ set(placed)}"
    politeness: bytes | None = client.hget(key + "meta", "politeness")
    if politeness is None:
        assert not waiting, f"I11: tasks wait for their hosts on a queue that is not polite: {waiting}"
        return
    hosts: dict[bytes, float] = dict(client.zrange(key + "hosts", 0, -1, withscores=True))
    assert lanes.keys() <= hosts.keys(), f"I11: hosts that will never have a turn: {lanes.keys() - hosts.keys()}"
    kept = {host: text.split(b" ", 1) for host, text in client.hgetall(key + "slots").items()}
    slots = {host: [held] for host, (_, held) in kept.items() if held and held[:1] != b"\0"}
    # of several, a mark stands in `slots`, and behind it how far a recall has come
    marked = {host: held for host, (_, held) in kept.items() if held[:1] == b"\0"}
    for place in client.zrange(key + "places", 0, -1):
        size, _, rest = place.partition(b":")
        host = rest[: int(size)]
        assert host in marked, f"I11: places of a host that is not marked: {place}"
        slots.setdefault(host, []).append(rest[int(size) :])
    assert marked.keys() <= slots.keys(), f"I11: marked as having places, without any: {marked.keys() - slots.keys()}"
    taken = [task for tasks in slots.values() for task in tasks]
    assert len(set(taken)) == len(taken), f"I11: a task has two places: {taken}"
    out = within("todos") | within("in_progress")
    assert set(taken) <= out, f"I11: places that nobody gave back: {set(taken) - out}"
    seconds, micros = client.time()
    now, rests = int(seconds) * 1000 + int(micros) // 1000, client.hgetall(key + "resting")
    ready = within("todos")
    rules = {host: text.split(b" ", 5) for host, text in client.hgetall(key + "policies").items()}
    for host, turn in hosts.items():
        own = rules.get(host, [b"-", b"-", b"-", b"0", b"-", b""])
        most = int(own[1]) if own[1] != b"-" else int(politeness.split()[1])
        delay = int(own[0]) if own[0] != b"-" else int(politeness.split()[0])
        if delay:
            most = min(most, MOST_RESTING)
        early = ready.intersection(slots.get(host, [])) if delay and int(rests.get(host, 0)) > now else set[bytes]()
        assert not early or marked.get(host, b"")[1:], f"I11: {host!r} rests, and of it are ready: {early}"
        held = len(slots.get(host, []))
        # what was claimed by rules that were wider goes on
        recalled = marked.get(host, b"")[1:] != b""
        over = held > most and not recalled and not set(slots[host]) <= within("in_progress")
        assert not over, f"I11: {held} visits of {host!r} at once, {most} are allowed: {slots[host]}"
        if own[2] != b"-":
            most = min(most, int(own[2]) - int(kept.get(host, [b"0"])[0]))
        assert not recalled or turn < float("inf"), f"I11: nobody goes on with the recall of {host!r}"
        stuck = turn == float("inf") and lanes.get(host) and held < most and own[4] != b"x"
        assert not stuck, f"I11: {host!r} has tasks and room, and no turn: {lanes[host]}"
        idle = turn < float("inf") and not lanes.get(host) and not recalled
        assert not idle, f"I11: {host!r} has a turn at {turn}, and nothing that waits"


def check_locks(client: Any, key: str, leases: dict[bytes, float], owners: dict[bytes, bytes]) -> None:
    """Check that the lock keys say what `leases` and `owners` say, as long as they live (I6)."""
    locks = {lock[len(key) + 5 :] for lock in client.scan_iter(key + "lock:*", count=1000)}
    for task in locks:
        token, left = client.get(key.encode() + b"lock:" + task), client.pttl(key.encode() + b"lock:" + task)
        if left == -2:
            continue  # it ran out between the two looks
        assert task in leases, f"I6: a lock without a lease: {task!r}"
        assert token == owners[task], f"I6: the lock on {task!r} names {token!r}, its owner is {owners[task]!r}"
        assert left != -1, f"I6: the lock on {task!r} never ends"
    seconds, micros = client.time()
    now = int(seconds) * 1000 + int(micros) // 1000
    bare = {
        task
        for task, deadline in leases.items()
        if deadline > now + SLACK_MS and task not in locks and owners[task] != b"?"
    }
    assert not bare, f"I6: leases that nobody can see: {bare}"


def check_counters(client: Any, key: str, known: int, working: int) -> None:
    """Check that the counters explain where all tasks are (I2, I7, I9)."""
    count = {name.decode(): int(value) for name, value in client.hgetall(key + "stats").items()}
    of = count.get
    # a task that left: forgotten, pruned, or done and not kept; one that was put `again` is counted once more
    gone = sum(
        of(what, 0) for what in ("forgotten", "pruned", "acked", "pulled", "gave_up", "cancelled", "calls_expired")
    )
    came = of("put", 0) + of("adopted", 0)
    assert of("put", 0) - gone <= known <= came, f"I2: {known} tasks are known, but the counters say {count}"
    ended = sum(of(what, 0) for what in ("acked", "failed", "released", "expired", "crashed", "calls_expired"))
    open_leases = of("claimed", 0) + of("adopted", 0) - ended - working
    assert 0 <= open_leases <= of("forgotten", 0), (
        f"I7: {open_leases} leases ended without a cause; {working} are held and the counters say {count}"
    )
