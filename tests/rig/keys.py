"""Reads all keys of a queue, and says where they are not what its model says they are. `schedules.py` asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.rig.model import Model
from tests.rig.polite_model import PoliteModel, Rules

SETS = ("todos", "waiting", "in_progress", "done", "failed")
TIMES = ("scheduled", "leases", "hosts")
HASHES = (
    "owners", "attempts", "crashes", "errors", "releases", "payload", "groups", "priorities", "rerun", "batch_of",
    "slots", "resting", "host_failures", "policies", "stats", "meta",
)  # fmt: skip
NUMBERS = ("wake_at", "lease_ms", "grace_until")
SAME = ("scheduled", "leases", "owners", "attempts", "crashes", "errors", "payload", "batch_of", *NUMBERS, "alarm")
"""What the model has by the name of its key."""
Key = Callable[[str], str]
"""Gives the name of a key."""


def text(word: object) -> str:
    """Give a word of a command or a reply as text."""
    return word.decode() if isinstance(word, bytes) else str(word)


def seen(raw: Any, key: Key) -> dict[str, Any]:
    """Read all keys of a queue, as `means` gives those of the model."""
    pipe = raw.pipeline(transaction=False)
    for name in SETS:
        pipe.smembers(key(name))
    for name in TIMES:
        pipe.zrange(key(name), 0, -1, withscores=True)
    for name in HASHES:
        pipe.hgetall(key(name))
    pipe.keys(key("lock") + "*").zrange(key("places"), 0, -1)
    pipe.xrevrange(key("alarm"), count=1).exists(key("bell"))
    *replies, locks, places, alarm, bell = pipe.execute()
    found: dict[str, Any] = {name: {text(task) for task in replies.pop(0)} for name in SETS}
    found |= {name: {text(task): at for task, at in replies.pop(0)} for name in TIMES}
    found |= {name: {text(field): text(value) for field, value in replies.pop(0).items()} for name in HASHES}
    found["errors"] = set(found["errors"])
    found["stats"].pop("todos_since", None)
    for name in ("attempts", "crashes", "priorities", "resting", "host_failures", "stats"):
        found[name] = {field: int(value) for field, value in found[name].items()}
    found["payload"] = {task: json.loads(body) for task, body in found["payload"].items()}
    found["batch_of"] = {task: tuple(names.split()) for task, names in found["batch_of"].items()}
    found["rerun"] = {task: _mark(line) for task, line in found["rerun"].items()}
    found["policies"] = {host: " ".join(line.split(" ")[:5]) for host, line in found["policies"].items()}
    slots = {host: value.split(" ", 1) for host, value in found.pop("slots").items()}
    found["visits"] = {host: int(visits) for host, (visits, _) in slots.items() if visits != "0"}
    found["places"] = {(host, held) for host, (_, held) in slots.items() if held and held[0] != "\0"}
    found["places"] |= set(map(_place, places))
    names = sorted({*found["hosts"], *(host for host, _ in found["places"])})
    for host in names:
        pipe.zrange(key("host:" + host), 0, -1, withscores=True)
    lanes: Iterator[tuple[str, Any]] = zip(names, pipe.execute() if names else [], strict=True)
    found["lanes"] = {(host, text(task)): int(score) for host, lane in lanes for task, score in lane}
    meta = found.pop("meta")
    found["uses"] = "politeness" in meta.get("uses", "").split()
    found |= {name: meta.get(name, "") for name in ("politeness", "converting")}
    found |= {name: int(meta.get(name, 0)) for name in NUMBERS}
    found["locks"] = {text(lock).removeprefix(key("lock")) for lock in locks}
    return {**found, "alarm": next((int(said[b"at"]) for _, said in alarm), None), "bell": bool(bell)}


def _place(member: bytes) -> tuple[str, str]:
    size, _, rest = member.decode().partition(":")
    return rest[: int(size)], rest[int(size) :]


def _mark(line: str) -> tuple[int, Any]:
    """Read the mark of a task that runs once more: its priority then, and its payload."""
    level, _, rest = line.partition(" ")
    return int(level), json.loads(rest[1:]) if rest[0] == "1" else None


def means(model: Model) -> dict[str, Any]:
    """Give what all keys are by the model."""
    found = {name: getattr(model, name) for name in (*SAME, "bell", "todos", "in_progress", "done", "failed")}
    found |= {
        "rerun": model.marks,
        "locks": {task for task, (_, until) in model.locks.items() if until >= model.now},
        "stats": {name: count for name, count in model.counters.items() if count},
    }
    return found | _of_hosts(model) if isinstance(model, PoliteModel) else found


def _of_hosts(model: PoliteModel) -> dict[str, Any]:
    return {
        "waiting": model.waiting, "groups": model.groups, "priorities": model.priorities, "resting": model.rests,
        "host_failures": model.broken, "places": model.places, "lanes": model.lanes, "hosts": model.turns,
        "releases": {task: _released(model, task) for task in model.releases.keys() | model.blockings.keys()},
        "visits": {host: count for host, count in model.visits.items() if count},
        "policies": {host: _ruled(rules) for host, rules in model.rules.items()},
        "politeness": "" if model.usual is None else f"{model.usual[0]} {model.usual[1]}{' off' * model.ending}",
        "converting": model.converting, "uses": model.usual is not None,
    }  # fmt: skip


def _released(model: PoliteModel, task: str) -> str:
    own, blocking = model.releases.get(task, 0), model.blockings.get(task, 0)
    return f"{own} {blocking}" if blocking else str(own)


def _ruled(rules: Rules) -> str:
    words = ["-" if one is None else str(one) for one in (rules.delay, rules.per_host, rules.budget)]
    return " ".join([*words, str(rules.until), rules.flag])


def differences(model: Model, raw: Any, key: Key, done: set[str] | None = None) -> Iterator[str]:
    """Tell where the keys of a queue and the model differ; `done` are tasks of which only fingerprints are kept."""
    keys = seen(raw, key)
    keys["done"] |= done or set()
    for name, value in means(model).items():
        if keys[name] != value:
            yield f"{name}: the server has {keys[name]}, the model {value}"
    yield from model.violations()
