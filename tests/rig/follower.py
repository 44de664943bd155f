"""Holds a queue at work against its model: each function that a client calls, its reply, and all keys afterwards.

The links of a client that is followed tell the follower what they have sent and heard, and the server's time before and
after the call; the model then does the same at that time. `polite.py` walks so, on Valkey and on Redis.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import redis

from tests.rig.model import Given, Late, Model, Pair
from tests.rig.polite_model import PoliteModel, Refused, Rules
from timeoutq import Queue
from timeoutq.server import scripts
from timeoutq.server.calls import Argument, Command
from timeoutq.server.link import Link
from timeoutq.server.troubles import is_library_missing

LOOKING = {"stats", "inspect", "why", "drained", "hosts", "states", "describe", "probe", "purge"}
"""Verbs that change nothing that the model knows; a purge is the end."""
SETS = ("todos", "waiting", "in_progress", "done", "failed")
TIMES = ("scheduled", "leases", "hosts")
HASHES = (
    "owners", "attempts", "crashes", "errors", "releases", "payload", "groups", "priorities", "rerun",
    "slots", "resting", "host_failures", "policies", "stats", "meta",
)  # fmt: skip


class Differs(AssertionError):
    """The server did not answer as the model, or its keys are not the model's."""


def text(word: Argument | bytes) -> str:
    """Give a word of a command as text."""
    return word.decode() if isinstance(word, bytes) else str(word)


def read_payload(data: bytes | None) -> Any:
    """Give a payload as the model keeps it."""
    return None if data is None else json.loads(data)


# ---- the words of a call


class Words:
    """The arguments of a call, read one after the other."""

    def __init__(self, words: Sequence[Argument]) -> None:
        self._words = words
        self._at = 0

    def word(self) -> str:
        """Read a word."""
        self._at += 1
        return text(self._words[self._at - 1])

    def number(self) -> int:
        """Read a number."""
        return int(self.word())

    def some(self, count: int) -> list[str]:
        """Read some words."""
        return [self.word() for _ in range(count)]

    def rest(self) -> list[str]:
        """Read all words that are left."""
        return self.some(len(self._words) - self._at)

    def leases(self) -> list[Pair]:
        """Read leases."""
        count, found = self.number(), list[Pair]()
        while len(found) < count:
            token, length = self.word(), self.number()
            found += [(task, token) for task in self.some(length)]
        return found

    def sections(self) -> dict[str, list[str]]:
        """Read the options."""
        found: dict[str, list[str]] = {}
        while self._at < len(self._words):
            name = self.word()
            found[name] = self.some(self.number())
        return found


def _by_place(words: Sequence[str]) -> list[tuple[int, str]]:
    return [(int(words[i]) - 1, words[i + 1]) for i in range(0, len(words), 2)]


def given_by(sections: Mapping[str, Sequence[str]]) -> Given:
    """Read what a put says of its tasks."""
    improve, rerun = sections.get("improve"), sections.get("rerun")
    return Given(
        payloads=tuple((i, json.loads(body)) for i, body in _by_place(sections.get("payloads", ()))),
        group="".join(sections.get("group", ())),
        groups=tuple(_by_place(sections.get("groups", ()))),
        priority=int(sections["priority"][0]) if "priority" in sections else None,
        priorities=tuple((i, int(level)) for i, level in _by_place(sections.get("priorities", ()))),
        improve=None if improve is None else tuple(int(at) - 1 for at in improve),
        rerun=None if rerun is None else tuple(int(at) - 1 for at in rerun),
    )


def host_row(heard: Any) -> tuple[Any, ...]:
    """Give what the verb `host` replies as the model does."""
    turn = None if heard[3] is None else float(heard[3])
    held, flag = [text(task) for task in heard[2]], text(heard[11])
    following = [None if word is None else text(word) for word in heard[15:17]]
    numbers = (*heard[4:9], int(heard[9]), int(heard[10]))
    return (text(heard[0]), heard[1], held, turn, *numbers, flag, heard[13], *following)


# ---- what the keys say


def seen(raw: Any, key: Callable[[str], str]) -> dict[str, Any]:
    """Read all keys of a queue, as `means` gives those of the model."""
    pipe = raw.pipeline(transaction=False)
    for name in SETS:
        pipe.smembers(key(name))
    for name in TIMES:
        pipe.zrange(key(name), 0, -1, withscores=True)
    for name in HASHES:
        pipe.hgetall(key(name))
    pipe.zrange(key("places"), 0, -1)
    pipe.xrevrange(key("alarm"), count=1).exists(key("bell"))
    replies = pipe.execute()
    alarm, bell = replies[-2:]
    found: dict[str, Any] = {name: {text(task) for task in replies.pop(0)} for name in SETS}
    found |= {name: {text(task): at for task, at in replies.pop(0)} for name in TIMES}
    found |= {name: {text(field): text(value) for field, value in replies.pop(0).items()} for name in HASHES}
    found["errors"] = set(found["errors"])
    found["stats"].pop("todos_since", None)
    for name in ("attempts", "crashes", "priorities", "resting", "host_failures", "stats"):
        found[name] = {field: int(value) for field, value in found[name].items()}
    found["payload"] = {task: json.loads(body) for task, body in found["payload"].items()}
    slots = {host: value.split(" ", 1) for host, value in found.pop("slots").items()}
    found["visits"] = {host: int(visits) for host, (visits, _) in slots.items() if visits != "0"}
    found["places"] = {(host, held) for host, (_, held) in slots.items() if held and held[0] != "\0"}
    found["places"] |= set(map(_place, replies.pop(0)))
    names = sorted({*found["hosts"], *(host for host, _ in found["places"])})
    for host in names:
        pipe.zrange(key("host:" + host), 0, -1, withscores=True)
    lanes: Iterator[tuple[str, Any]] = zip(names, pipe.execute() if names else [], strict=True)
    found["lanes"] = {(host, text(task)): int(score) for host, lane in lanes for task, score in lane}
    meta = found.pop("meta")
    found["uses"] = set(meta.get("uses", "").split())
    found |= {name: meta.get(name, "") for name in ("politeness", "converting")}
    found |= {name: int(meta.get(name, 0)) for name in ("wake_at", "lease_ms", "grace_until")}
    return {**found, "alarm": next((int(said[b"at"]) for _, said in alarm), None), "bell": bool(bell)}


def _place(member: bytes) -> Pair:
    size, _, rest = member.decode().partition(":")
    return rest[: int(size)], rest[int(size) :]


def means(model: PoliteModel) -> dict[str, Any]:
    """Give what all keys are by the model."""
    found = {name: getattr(model, name) for name in (*SETS, "scheduled", "leases", "owners", "attempts", "crashes")}
    uses = {"politeness"} if model.usual is not None else set[str]()
    releases = model.releases.keys() | model.blockings.keys()
    found |= {
        "errors": model.errors,
        "releases": {task: _released(model, task) for task in releases},
        "payload": model.payload, "groups": model.groups, "priorities": model.priorities,
        "rerun": model.marks,
        "resting": model.rests, "host_failures": model.broken, "places": model.places, "lanes": model.lanes,
        "hosts": model.turns, "visits": {host: count for host, count in model.visits.items() if count},
        "policies": {host: _ruled(rules) for host, rules in model.rules.items()},
        "politeness": "" if model.usual is None else f"{model.usual[0]} {model.usual[1]}{' off' * model.ending}",
        "converting": model.converting, "uses": uses,
        "stats": {name: count for name, count in model.counters.items() if count},
        **{name: getattr(model, name) for name in ("wake_at", "lease_ms", "grace_until", "alarm", "bell")},
    }  # fmt: skip
    return found


def _released(model: Model, task: str) -> str:
    assert isinstance(model, PoliteModel)
    own, blocking = model.releases.get(task, 0), model.blockings.get(task, 0)
    return f"{own} {blocking}" if blocking else str(own)


def _ruled(rules: Rules) -> str:
    words = ["-" if one is None else str(one) for one in (rules.delay, rules.per_host, rules.budget)]
    return " ".join([*words, str(rules.until), rules.flag])


def differences(model: PoliteModel, raw: Any, key: Callable[[str], str]) -> Iterator[str]:
    """Tell where the keys of a queue and the model differ."""
    keys, mine = seen(raw, key), means(model)
    keys["policies"] = {host: " ".join(line.split(" ")[:5]) for host, line in keys["policies"].items()}
    keys["rerun"] = {task: mark(line) for task, line in keys["rerun"].items()}
    keys["uses"] -= {"priority", "rerun"}  # which say only that a queue has ever had one
    for name, value in mine.items():
        if keys[name] != value:
            yield f"{name}: the server has {keys[name]}, the model {value}"
    yield from model.violations()


def mark(line: str) -> tuple[int, Any]:
    """Read the mark of a task that runs once more: its priority then, and its payload."""
    level, _, rest = line.partition(" ")
    return int(level), json.loads(rest[1:]) if rest[0] == "1" else None


# ---- the follower


class Follower:
    """Follows the clients of one queue."""

    def __init__(self, url: str, name: str) -> None:
        self.raw: Any = redis.Redis.from_url(url)
        self.model = PoliteModel()
        self.key: Callable[[str], str] = lambda what: f"timeoutq:{{{name}}}:{what}"
        self.calls = 0
        self.last: list[str] = []

    def close(self) -> None:
        """End the connection."""
        self.raw.close()

    def follow(self, queue: Queue) -> None:
        """Have this client tell what it does."""
        queue._held = (os.getpid(), FollowedLink(queue, self))

    def called(self, command: Command, reply: Any, times: tuple[int, int]) -> None:
        """A call was carried out between these times: the model does the same. Raises `Differs`."""
        name = _names()[text(command[1])]
        words = Words(command[3 + int(command[2]) :])
        if name in LOOKING:
            return
        self.calls += 1
        self.last = [*self.last[-30:], f"{times[0]} {name} {words.rest()} -> {reply}"]
        found: list[str] = []
        for now in range(times[0], times[1] + 1):
            # a server that reads its clock twice may have changed the millisecond in between
            model = self.model.copy()
            model.now = now
            words = Words(command[3 + int(command[2]) :])
            found = self._compare(model, name, words, reply)
            if not found:
                self.model = model
                return
        raise Differs("\n".join([*found[:5], *self.last]))

    def _compare(self, model: PoliteModel, name: str, words: Words, reply: Any) -> list[str]:
        try:
            answer, heard = Answers(model, reply).of(name, words)
        except Refused:
            answer, heard = "PRIORITY", str(reply).split()[0]
        except Late:
            answer, heard = "LATE", str(reply).split()[0]
        if answer != heard:
            return [f"{name}: the server answers {heard}, the model {answer}"]
        return list(differences(model, self.raw, self.key))

    def heard_the_bell(self) -> None:
        """A client waited for the bell."""
        self.model.bell = bool(self.raw.exists(self.key("bell")))


class Answers:
    """What the model answers to a call, and what the server answered, in the same form."""

    def __init__(self, model: PoliteModel, reply: Any) -> None:
        self.model = model
        self.reply = reply

    def of(self, name: str, words: Words) -> tuple[Any, Any]:
        """Carry a call out on the model; give both answers."""
        method: Callable[[str, int, Words], tuple[Any, Any]] = getattr(self, name)
        return method(words.word(), words.number(), words)

    def _letters(self, letters: str) -> tuple[Any, Any]:
        return letters, self.reply.decode() if isinstance(self.reply, bytes) else str(self.reply)

    def put(self, call: str, age: int, words: Words, due: int | None = None) -> tuple[Any, Any]:
        ids, sections = words.some(words.number()), words.sections()
        given = given_by(sections)
        return self._letters(self.model.put(call, age, ids, again="again" in sections, due=due, given=given))

    def schedule(self, call: str, age: int, words: Words) -> tuple[Any, Any]:
        due = words.word()
        return self.put(call, age, words, int(due) + self.model.now * due.startswith("+"))

    def claim(self, token: str, age: int, words: Words) -> tuple[Any, Any]:
        n, lease_ms, not_after, sections = words.number(), words.number(), words.number(), words.sections()
        model, reply = self.model, self.reply
        late = isinstance(reply, Exception)
        found = [] if late or len(reply) == 3 else [task.decode() for task in reply[3]]
        if late:
            return model.claim(token, age, lease_ms, found, not_after=not_after), reply
        if not found or not model.replayed(token, age, lease_ms):
            share = int(sections.get("share", ["1"])[0])
            ready, suspects = len(model.todos), [task for task in model.todos if model.crashes.get(task, 0) >= 2]
            most = 0 if model.paused else min(n, max(1, -(-ready // share)), ready)
            if not set(found) <= model.todos or not (len(found) == most or (suspects and 0 < len(found) < most)):
                return f"some {most} of {model.todos}", found
        runtime_ms = int(sections.get("max_runtime", ["0"])[0])
        answer = model.claim(token, age, lease_ms, found, runtime_ms=runtime_ms, not_after=not_after)
        if not found:
            return answer, tuple(reply)
        now, deadline, fence, ids, failures, crashes, bodies = reply
        # a model knows ms, and a fence has µs
        grown = int(fence) >= answer[2] and int(fence) // 1000 <= max(now, answer[2] // 1000)
        model.fence = int(fence) + len(ids) - 1
        records = [
            [int(count or 0) for count in failures or ()] or [0] * len(ids),
            [int(count or 0) for count in crashes or ()] or [0] * len(ids),
            [read_payload(body) for body in bodies or ()] or [None] * len(ids),
        ]
        known = [
            [model.attempts.get(task, 0) for task in found],
            [model.crashes.get(task, 0) for task in found],
            [model.payload.get(task) for task in found],
        ]
        return (answer[0], answer[1], True, sorted(answer[3]), known), (now, deadline, grown, sorted(found), records)

    def extend(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        lease_ms, pairs = words.number(), words.leases()
        now, deadline, letters = self.reply
        return self.model.extend(pairs, lease_ms), (now, deadline, letters.decode())

    def ack(self, call: str, _: int, words: Words) -> tuple[Any, Any]:
        pairs, sections = words.leases(), words.sections()
        again = sections.get("again")
        return self._letters(
            self.model.ack(
                call, pairs, sections.get("put", ()), None, int(again[0]) if again else None, given_by(sections)
            )
        )

    def release(self, call: str, _: int, words: Words) -> tuple[Any, Any]:
        pairs, sections = words.leases(), words.sections()
        delay, most, block = (int(sections.get(name, ["0"])[0]) for name in ("delay", "most", "block"))
        return self._letters(self.model.release(call, pairs, delay, most, block))

    def fail(self, call: str, _: int, words: Words) -> tuple[Any, Any]:
        pairs = words.leases()
        ends = words.some(2 * len(pairs))
        sections = words.sections()
        blocks = {i: int(ms) for i, ms in _by_place(sections.get("blocks", ()))}
        return self._letters(self.model.fail(call, pairs, [int(ms) for ms in ends[::2]], blocks=blocks))

    def crash(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        words.word()
        return self._letters(self.model.crash(words.leases()))

    def requeue_expired(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        words.word()
        return self.model.requeue_expired(words.number()), tuple(self.reply[:3])

    def promote_due(self, _: str, __: int, ___: Words) -> tuple[Any, Any]:
        return self.model.promote_due(), tuple(self.reply[:2])

    def plan(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        return self.model.plan(words.number()), tuple(self.reply[:2])

    def forget(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        return self._letters(self.model.forget(words.rest()))

    def retry_failed(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        words.word()
        ids, model = words.rest(), self.model
        failed = [task for task in ids if task in model.failed]
        moved = model.retry_failed(ids)
        if not ids:
            return moved, self.reply
        letters = ""
        for i, task in enumerate(ids):
            letters += "O" if task in failed and task not in ids[:i] else model.state(task) or "u"
        return self._letters(letters)

    def pull(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        model, n = self.model, words.number()
        ids, bodies = [task.decode() for task in self.reply[0]], [read_payload(body) for body in self.reply[1]]
        if len(ids) != (0 if model.paused else min(n, len(model.todos))) or not model.todos.issuperset(ids):
            return f"some of {model.todos}", ids
        known = [model.payload.get(task) for task in ids]
        return (list(model.pull(ids)), known), (ids, bodies or known)

    def host(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        name, rules = words.word(), words.rest()
        row = self.model.set_host(name, [(a, b) for a, b in list(pairwise(rules))[::2]])
        if row is None:
            return None, self.reply
        return row, host_row(self.reply)

    def configure(self, _: str, __: int, words: Words) -> tuple[Any, Any]:
        rest, model, reply = words.rest(), self.model, 1
        for name, value in list(pairwise(rest))[::2]:
            if name == "politeness":
                delay, per_host = value.split() if value != "off" else ("0", "0")
                reply = model.configure_politeness(int(delay), int(per_host))
            elif name == "max_crashes":
                model.max_crashes = int(value)
            elif name == "keep_done":
                model.keeps_done = value != "no"
            elif name == "paused":
                model.paused = value == "1"
                model.bell = model.bell or not model.paused
        return reply, self.reply

    def convert(self, _: str, __: int, ___: Words) -> tuple[Any, Any]:
        return self.model.convert(), text(self.reply)


@cache
def _names() -> Mapping[str, str]:
    return {scripts.function(f"{verb}{end}"): verb for verb in scripts.verbs() for end in ("", "_if_room")}


class FollowedLink(Link):
    """A link whose calls go one by one, each between two looks at the server's clock."""

    def __init__(self, queue: Queue, follower: Follower) -> None:
        super().__init__(queue.server_at, 5.0)
        self._follower = follower

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands, and tell the follower of each call."""
        return [self._one(command) for command in commands]

    def _one(self, command: Command) -> Any:
        if command[0] != b"FCALL":
            return super().send([command])[0]
        wrapped: list[Command] = [(b"MULTI",), (b"TIME",), command, (b"TIME",), (b"EXEC",)]
        before, reply, after = super().send(wrapped)[-1]
        if not is_library_missing(reply):
            first, last = (int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in (before, after))
            self._follower.called(command, reply, (first, last))
        return reply

    def wait_bell(self, key: str, seconds: float, then: Sequence[Command] = ()) -> list[Any]:
        """Wait for a stroke of the bell, and only then send the commands, so that the follower is told of each."""
        heard = super().wait_bell(key, seconds)
        self._follower.heard_the_bell()
        return [*heard, *self.send(then)]
