"""Generates calls from a seed, as steps of transcripts, for both languages: what they make of a call is compared."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.rig.transcripts import Player
from timeoutq import Lease, Queue
from timeoutq.server.calls import Call
from timeoutq.words.model import Outcome, text

FOREIGN = ("http://bücher.example/", "https://ПРИМЕР.example:8080?", "https://例え.テスト:443/", "http://ß.example./")
"""URLs whose host is not plain ASCII: each client sends their hosts, too."""
ALPHABET = "abcdefghij/:.?&=%#-_ éßñ漢🐟\"'\\{}\n\t\x7f\u2028"


class Built(Exception):
    """The call was built; nothing is to be made of an answer."""


class Builder(Player):
    """A player that keeps the words of its calls, and sends nothing."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self.built: list[list[bytes]] = []

    def _keep(self, call: Call[Any]) -> None:
        words = call.command()
        self.built.append([word if isinstance(word, bytes) else str(word).encode() for word in words])

    def _once(self, call: Call[Any]) -> Any:
        self._keep(call)
        raise Built

    def _letters(self, calls: Sequence[Call[Outcome]]) -> str:
        for call in calls:
            self._keep(call)
        return ""

    def build(self, step: Mapping[str, Any]) -> list[list[bytes]]:
        """Give the words of the calls that a step makes, FCALL first."""
        self.built = []
        self.kept = {"x": [Lease(text(raw_id(one)), token, 0.0) for one, token in step.get("leases", ())]}
        act: Callable[..., Any] = getattr(self, step["call"])
        with suppress(Built):
            act(**step["args"])
        return self.built


def raw_id(value: Any) -> bytes:
    """Give the bytes of an id as JSON has it."""
    return value.encode() if isinstance(value, str) else base64.b64decode(value["b64"])


class Generator:
    """Makes steps; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def steps(self, n: int) -> list[dict[str, Any]]:
        return [self.step() for _ in range(n)]

    def step(self) -> dict[str, Any]:
        kinds = [
            self.put, self.schedule, self.claim, self.lease_call, self.lease_call, self.fail, self.ack, self.by_id,
            self.cleaning, self.setting,
        ]  # fmt: skip
        return self.random.choice(kinds)() | {"nonce": f"w{self.random.randrange(99)}#{self.random.randrange(10**6)}"}

    def text(self, most: int = 40) -> str:
        return "".join(self.random.choices(ALPHABET, k=self.random.randint(1, most)))

    def id(self) -> Any:
        if self.random.random() < 0.1:
            return {"b64": base64.b64encode(bytes([255, *self.random.randbytes(self.random.randint(0, 30))])).decode()}
        return self.random.choice(FOREIGN) + self.text() if self.random.random() < 0.1 else self.text()

    def ids(self, most: int = 12) -> list[Any]:
        many = 1200 if self.random.random() < 0.02 else self.random.randint(1, most)
        found = {str(one): one for one in (self.id() for _ in range(many))}
        return list(found.values())

    def payload(self, depth: int = 0) -> Any:
        kind = self.random.randrange(6 if depth else 7)
        if kind == 0:
            return self.random.choice([True, False, 0, -1, 2**53 - 1, -(2**53) + 1, 12345])
        if kind == 1:
            return self.random.choice([0.5, -2.25, 1e-3, 3.14159])
        if kind == 2:
            return self.text(300)
        if kind in (3, 4):
            return [self.payload(2) for _ in range(self.random.randrange(4))]
        if kind == 5:
            return {f"k{i}{self.text(5)}": self.payload(2) for i in range(self.random.randrange(4))}
        return {"b64": base64.b64encode(self.random.randbytes(self.random.randrange(40))).decode()}

    def maybe(self, chance: float, name: str, make: Callable[[], Any]) -> dict[str, Any]:
        return {name: make()} if self.random.random() < chance else {}

    def priority(self) -> int:
        return self.random.randint(-1000, 1000)

    def task(self, schedule: bool = False, improve: bool = True) -> Any:
        if self.random.random() < 0.4:
            return self.id()
        found = {"task": self.id()}
        found |= self.maybe(0.5, "payload", self.payload) | self.maybe(0.2, "group", self.host)
        found |= self.maybe(0.3, "unique", lambda: self.random.choice([0, 1, 0.25, 86400]))
        found |= self.maybe(0.4, "priority", self.priority)
        if "priority" in found and improve:
            found |= self.maybe(0.4, "improve", lambda: True)
        return found if schedule else found | self.maybe(0.2, "rerun", lambda: True)

    def host(self) -> str:
        return self.random.choice(["a.example", "b.example", "news.example.org"])

    def tasks(self, **options: bool) -> list[Any]:
        # of one id that stands twice, Python sends what came with the last
        found = {str(raw_id(one["task"] if isinstance(one, dict) and "task" in one else one)): one
                 for one in (self.task(**options) for _ in range(self.random.randint(1, 8)))}  # fmt: skip
        return list(found.values())

    def how(self) -> dict[str, Any]:
        found = self.maybe(0.2, "again", lambda: True) | self.maybe(0.2, "group", self.host)
        found |= self.maybe(0.2, "priority", self.priority)
        if "priority" in found:
            found |= self.maybe(0.5, "improve", lambda: True)
        return found | self.maybe(0.2, "batch", lambda: "nightly")

    def put(self) -> dict[str, Any]:
        return {"call": "put", "args": {"tasks": self.tasks()} | self.how() | self.maybe(0.2, "rerun", lambda: True)}

    def schedule(self) -> dict[str, Any]:
        when = (
            {"at": 1_790_000_000 + self.random.randrange(999)}
            if self.random.random() < 0.5
            else {"after": self.seconds()}
        )
        return {"call": "schedule", "args": {"tasks": self.tasks(schedule=True)} | when | self.how()}

    def seconds(self) -> float:
        return self.random.randrange(0, 100_000) / 1000

    def claim(self) -> dict[str, Any]:
        args = {"n": self.random.randint(1, 700), "timeout": 0.01 + self.seconds()}
        return {"call": "claim", "args": args | self.maybe(0.3, "max_runtime", lambda: 1 + self.seconds())}

    def leases(self, ids: list[Any]) -> list[list[Any]]:
        token, found = "w#1", []
        for one in ids:
            if self.random.random() < 0.3:
                token = f"w#{self.random.randrange(4)}"
            found.append([one, token])
        return found

    def lease_call(self) -> dict[str, Any]:
        call = self.random.choice(["extend", "release", "crash", "ack", "note"])
        args: dict[str, Any] = {"leases": {"of": "x"}}
        ids = self.ids()[: 500 if call in ("extend", "crash") else 1 if call == "note" else 2000]
        if call == "extend":
            args["timeout"] = 0.01 + self.seconds()
        elif call == "release":
            args |= self.maybe(0.4, "delay", self.seconds) | self.maybe(
                0.3, "most", lambda: self.random.randint(1, 100)
            )
        elif call == "crash":
            args["reason"] = self.text()
        elif call == "note":
            args |= {"done": "1.5", "of": self.random.choice(["-", "10"]), "text": self.text()}
        else:
            args |= self.maybe(0.4, "again_in", self.seconds) or self.maybe(0.3, "bare", lambda: True)
        return {"call": call, "args": args, "leases": self.leases(ids)}

    def fail(self) -> dict[str, Any]:
        ids = self.ids(6)[:500]
        ends = [
            {"error": self.text(200)} | self.maybe(0.6, "retry_in", self.seconds)
            | self.maybe(0.5, "trace", lambda: self.random.choice(["at a\n", "at b\nat c\n"]))
            for _ in ids
        ]  # fmt: skip
        return {"call": "fail", "args": {"leases": {"of": "x"}, "ends": ends}, "leases": self.leases(ids)}

    def ack(self) -> dict[str, Any]:
        args = {"leases": {"of": "x"}} | self.maybe(0.7, "put", lambda: self.tasks())
        args |= self.maybe(0.3, "again_in", self.seconds)
        if "again_in" in args:
            args |= self.maybe(0.5, "payload", lambda: self.payload(2))
        else:
            args |= self.maybe(0.4, "result", lambda: {"b64": "eyJhIjoxfQ=="}) | self.maybe(0.3, "bare", lambda: True)
            if "result" in args:
                args |= self.maybe(0.5, "keep_result", lambda: 1 + self.seconds())
        return {"call": "ack", "args": args, "leases": self.leases([self.id()])}

    def by_id(self) -> dict[str, Any]:
        call = self.random.choice(["forget", "retry_failed", "cancel", "states", "inspect", "pull", "retry_any"])
        if call == "cancel":
            return {"call": call, "args": {"ids": self.ids(), "by": self.text()}}
        if call == "inspect":
            return {"call": call, "args": {"id": self.id()}}
        if call == "pull":
            return {"call": call, "args": {"n": self.random.randint(1, 500)}}
        return {"call": call, "args": {} if call == "retry_any" else {"ids": self.ids()}}

    def cleaning(self) -> dict[str, Any]:
        call = self.random.choice(["requeue_expired", "promote_due", "prune", "stats", "drained", "convert"])
        return (
            {"call": call, "args": {}}
            if self.random.random() < 0.8
            else {"call": "plan", "args": {"longest": self.seconds()}}
        )

    def setting(self) -> dict[str, Any]:
        if self.random.random() < 0.5:
            return {
                "call": "configure",
                "args": {"settings": {"paused": "1", f"x{self.random.randrange(9)}?": self.text()}},
            }
        rules = [["delay", self.random.randrange(9999)], ["by", self.text(9)]][: self.random.randint(0, 2)]
        return {"call": "host", "args": {"host": self.host(), "rules": rules}}
