"""Reads all keys of a queue, and says where they are not what its model says they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tests.rig import fingerprints
from tests.rig.model import Model
from tests.rig.model_state import Rules
from tests.rig.moment import Moment
from timeoutq.words.arguments import unpack

SETS = ("todos", "waiting", "in_progress", "done", "failed")
TIMES = ("scheduled", "leases", "hosts", "done_until", "calls")
HASHES = (
    "owners", "attempts", "crashes", "errors", "traces", "releases", "groups", "priorities", "batches", "batch_of",
    "slots", "resting", "host_failures", "policies", "stats", "meta", "runtime", "cancels",
    "progress",
)  # fmt: skip
COUNTS = ("attempts", "crashes", "priorities", "resting", "host_failures", "stats", "runtime")
"""The hashes of numbers."""
NUMBERS = ("wake_at", "lease_ms", "grace_until", "fence")
SAME = (
    "todos", "in_progress", "done", "failed", "scheduled", "leases", "done_until", "owners", "attempts", "crashes",
    "errors", "traces", "payload", "batch_of", "runtime", "cancels", "progress", *NUMBERS, "paused", "bell", "alarm",
)  # fmt: skip
"""The fields of the model that have the name of their key."""


def text(word: object) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def seen(now: Moment) -> dict[str, Any]:
    """Read all keys of a queue, as `means` gives those of the model."""
    key = now.prefix
    found: dict[str, Any] = {name: set(map(text, now.smembers(key + name))) for name in SETS}
    found |= {name: {text(task): at for task, at in now.zrange(key + name, 0, -1, withscores=True)} for name in TIMES}
    found |= {name: {text(field): text(line) for field, line in now.hgetall(key + name).items()} for name in HASHES}
    found |= {name: set(found[name]) for name in ("errors", "progress")}
    found["stats"].pop("todos_since", None)
    found |= {name: {field: int(value) for field, value in found[name].items()} for name in COUNTS}
    found["payload"] = {text(task): unpack(body) for task, body in now.hgetall(key + "payload").items()}
    found["batch_of"] = {task: tuple(names.split()) for task, names in found["batch_of"].items()}
    found["batches"] = {name: _batch(now, name, line) for name, line in found["batches"].items()}
    found["rerun"] = {text(task): _mark(line) for task, line in now.hgetall(key + "rerun").items()}
    found["policies"] = {host: " ".join(line.split(" ")[:5]) for host, line in found["policies"].items()}
    slots = {host: value.split(" ", 1) for host, value in found.pop("slots").items()}
    found["visits"] = {host: int(visits) for host, (visits, _) in slots.items() if visits != "0"}
    found["places"] = {(host, held) for host, (_, held) in slots.items() if held and held[0] != "\0"}
    found["places"] |= set(map(_place, now.zrange(key + "places", 0, -1)))
    found["lanes"] = {
        (host, text(task)): int(score)
        for host in {*found["hosts"], *(host for host, _ in found["places"])}
        for task, score in now.zrange(f"{key}host:{host}", 0, -1, withscores=True)
    }
    meta = found.pop("meta")
    found |= {name: int(meta.get(name, 0)) for name in NUMBERS}
    found |= {"paused": meta.get("paused") == "1", "uses": "politeness" in meta.get("uses", "").split()}
    found |= {name: meta.get(name, "") for name in ("politeness", "converting")}
    locks = {text(lock).removeprefix(f"{key}lock:"): lock for lock in now.scan_iter(f"{key}lock:*", 1000)}
    found["locks"] = {task: (text(now.get(lock)), left) for task, lock in locks.items() if (left := now.pttl(lock)) > 0}
    return found | {"alarm": now.last(key + "alarm", b"at"), "bell": now.has(key + "bell")}


def _batch(now: Moment, name: str, line: str) -> tuple[str, str, str, dict[str, int]]:
    words = line.split(" ", 5)
    members = now.zrange(f"{now.prefix}batch:{name}", 0, -1, withscores=True)
    return words[0], words[1], words[5], {text(task): int(place) for task, place in members}


def _place(member: bytes) -> tuple[str, str]:
    size, _, rest = member.decode().partition(":")
    return rest[: int(size)], rest[int(size) :]


def _mark(line: bytes) -> tuple[int, Any]:
    """Read the mark of a task that runs once more: its priority then, and its payload."""
    level, _, rest = line.partition(b" ")
    return int(level), unpack(rest[1:]) if rest[:1] == b"1" else None


def means(model: Model) -> dict[str, Any]:
    """Give what all keys are by the model."""
    found = {name: getattr(model, name) for name in SAME}
    model.dropped |= {lock for lock in model.locks.values() if lock[1] <= model.now}
    locks = {task: lock for task, lock in model.locks.items() if lock not in model.dropped}
    found |= {
        "rerun": model.marks,
        "locks": {task: (by, until - model.now) for task, (by, until) in locks.items()},
        "stats": {name: count for name, count in model.counters.items() if count},
        "batches": {
            name: (one.state, one.on, one.callback, {t: n + end * 10**9 for n, (t, end) in enumerate(one.tasks, 1)})
            for name, one in model.batches.items()
        },
        "waiting": model.waiting, "groups": model.groups, "priorities": model.priorities, "resting": model.rests,
        "host_failures": model.broken, "places": model.places, "lanes": model.lanes, "hosts": model.turns,
        "releases": {task: _released(model, task) for task in model.releases.keys() | model.blockings.keys()},
        "visits": {host: count for host, count in model.visits.items() if count},
        "policies": {host: _ruled(rules) for host, rules in model.rules.items()},
        "politeness": "" if model.usual is None else f"{model.usual[0]} {model.usual[1]}{' off' * model.ending}",
        "converting": model.converting, "uses": model.usual is not None,
    }  # fmt: skip
    return found


def _released(model: Model, task: str) -> str:
    own, blocking = model.releases.get(task, 0), model.blockings.get(task, 0)
    return f"{own} {blocking}" if blocking else str(own)


def _ruled(rules: Rules) -> str:
    words = ["-" if one is None else str(one) for one in (rules.delay, rules.per_host, rules.budget)]
    return " ".join([*words, str(rules.until), rules.flag])


def differences(model: Model, now: Moment, ids: Collection[str]) -> Iterator[str]:
    """Tell where the keys of a queue and the model differ; `ids` are all tasks that there may be."""
    found = seen(now)
    prints = fingerprints.read(now, now.prefix)
    found["done"] |= {id.decode() for id in fingerprints.holding(prints, map(str.encode, ids))}
    for name, value in means(model).items():
        if found[name] != value:
            yield f"{name}: the server has {found[name]}, the model {value}"
    yield from model.violations()
