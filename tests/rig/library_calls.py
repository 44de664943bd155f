"""Random calls of all verbs, with what a client of one queue may say; `library.py` and `log_walk.py` make them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Args = list[Any]
"""The words of a call behind its keys."""

Leases = list[tuple[bytes, bytes]]
"""Tasks, and the tokens that hold them."""

HOSTS = ("a.example", "b.example", "c.example:8080", "XN.Example", "d.example")
ODD = ("plain", "odd id", "a\nb", "back\\slash", "\0nul", "https://u@E.example:443/x")

SETTINGS: dict[str, list[str]] = {
    "keep_done": ["forever", "no", "t60000", "n5", "compact saltsalt", "compact"],
    "max_crashes": ["1", "2", "5"],
    "politeness": ["1000 1", "0 1", "0 2", "500 3", "1000 100", "off", "bad"],
    "paused": ["0", "1", "0", "0"],
    "durable": ["0", "1"],
    "events": ["64000000 all", "1000000 ends", "- off", "- all"],
    "timeout": ["30"],
}
"""Values for each setting, right or wrong."""

WEIGHTS: dict[str, float] = {
    "put": 16, "schedule": 6, "claim": 16, "extend": 4, "ack": 14, "fail": 7, "release": 6, "crash": 3, "beat": 2,
    "note": 2, "requeue_expired": 4, "promote_due": 6, "plan": 2, "prune": 2, "pull": 1, "cancel": 3, "forget": 3,
    "retry_failed": 3, "kind": 2, "configure": 4, "convert": 3, "host": 3, "hosts": 1, "describe_hosts": 1, "inspect":
    2, "why": 2, "states": 1, "stats": 1, "describe": 2, "drained": 2, "batches": 1, "seal_batch": 2, "restore": 2,
    "restore_hosts": 1, "restore_batch": 1, "publish": 1, "set_schedule": 2, "schedules": 1, "renew": 1, "tick": 2,
    "repair": 0.5, "purge": 0.15, "probe": 0.2, "await": 2,
}  # fmt: skip
"""All verbs, and how often each is called, compared with the others."""

_REPEATED = """
put schedule ack fail release claim cancel restore restore_hosts beat set_schedule tick extend crash kind renew
"""

REPEATED = frozenset(_REPEATED.split())
"""The verbs that are sent again at times, as by a client that got no reply."""


def section(name: str, *words: Any) -> Args:
    return [name, len(words), *words]


class World:
    """A client of one queue: its knowledge, and its calls; each verb is a method that gives its words."""

    known = SETTINGS
    weights = WEIGHTS
    callback = "callback"

    def __init__(self, chance: random.Random, oracle: Any, queue: str) -> None:
        self.chance, self.oracle, self.queue = chance, oracle, queue
        self.count = 0
        self.now = 1_700_000_000_000 + chance.randrange(10**9)
        self.ids = [*(f"https://{self.one(*HOSTS)}/{n}" for n in range(10)), *ODD]
        self.tokens = [f"w{n}#{n}" for n in range(3)]
        self.past: Leases = []
        self.last: tuple[str, Args] | None = None

    # what all calls are made of

    def happens(self, share: float) -> bool:
        return self.chance.random() < share

    def one(self, *of: Any) -> Any:
        return self.chance.choice(of)

    def at_times(self, share: float, words: Callable[[], Args]) -> Args:
        """Give these words in this share of the cases, and else none."""
        return words() if self.happens(share) else []

    def pairs(self, name: str, n: int, word: Callable[[], Any], share: float = 0.4) -> Args:
        """Give an option of pairs: some of the positions from 1 to n, each with a word."""
        found = [(at, word()) for at in range(1, n + 1) if self.happens(share)]
        return section(name, *(part for pair in found for part in pair)) if found else []

    def key(self, name: str) -> str:
        return f"timeoutq:{{{self.queue}}}:{name}"

    def call_id(self) -> str:
        self.count += 1
        return f"c{self.chance.randrange(3)}#{self.count:x}{self.one(*'0123456789abcdef')}"

    def age(self) -> int:
        return 0 if self.happens(0.9) else self.one(1, 700, 70_000)

    def some(self, low: int = 1, high: int = 4, twice: bool = True) -> list[str]:
        """Pick some ids; seldom, one stands twice among them."""
        n = self.chance.randint(low, high)
        if twice and self.happens(0.3):
            return [self.one(*self.ids) for _ in range(n)]
        return self.chance.sample(self.ids, n)

    def leases(self, most: int = 4) -> tuple[Leases, Args]:
        """Pick leases, and give the words that name them; a few are over, are another's, or stand twice."""
        found: Leases = sorted(self.oracle.hgetall(self.key("owners")).items())
        self.chance.shuffle(found)
        found = found[: self.chance.randint(1, most)]
        if self.happens(0.15):
            found.append((self.one(*self.ids).encode(), b"w9#9"))
        if self.happens(0.1) and self.past:
            found.append(self.one(*self.past))
        if self.happens(0.05) and found:
            found.append(found[0])
        self.past = (self.past + found)[-20:]
        found = found or [(self.one(*self.ids).encode(), b"w0#0")]
        return found, [len(found), *(word for task, token in found for word in (token, 1, task))]

    def ticked(self, schedule: str) -> list[str]:
        """Give the ten words that the server keeps of a schedule, or none."""
        text: bytes | None = self.oracle.hget(self.key("ticked"), schedule)
        words = text.decode().split(" ") if text else []
        return words if len(words) == 10 else []

    def settings(self) -> list[tuple[str, Args]]:
        """Give the calls with which a queue begins: most have capabilities from the start."""
        calls: list[tuple[str, Args]] = []
        for share, name, texts in (
            (0.6, "politeness", ("0 1", "1000 1", "500 2", "0 100", "200 8")),
            (0.25, "keep_done", ("no", "compact salty", "t60000", "n3")),
            (0.3, "events", ("64000000 all",)),
            (0.2, "durable", ("1",)),
        ):
            if self.happens(share):
                calls.append(("configure", [self.call_id(), 0, name, self.one(*texts)]))
        return calls

    def passes(self) -> None:
        """Let time pass, or not; seldom, the clock steps back."""
        self.now += self.one(0, 1, 7, 100, 900, 1000, 5000, 40_000) if self.happens(0.6) else 0
        if self.happens(0.003):
            self.now -= 100_000

    def step(self) -> tuple[str, Args]:
        """Give the next call: of a verb by its weight, or the last call once more."""
        if self.happens(0.08) and self.last and self.last[0] in REPEATED:
            verb, args = self.last
            return verb, [args[0], self.one(0, 5, 900), *args[2:]]
        (verb,) = self.chance.choices([*self.weights], weights=[*self.weights.values()])
        self.last = verb, self.words(verb)
        return self.last

    def words(self, verb: str) -> Args:
        args: Args = getattr(self, "await_" if verb == "await" else verb)()
        return args

    # tasks come

    def options(self, n: int) -> Args:
        """Give options of put and schedule, which bring n tasks."""
        return [
            *self.at_times(0.15, lambda: section("again")),
            *self.at_times(0.2, lambda: section("group", self.one("g.example", "a.example", "x" * 30))),
            *self.at_times(0.25, lambda: self.pairs("payloads", n, lambda: self.one('{"a":1}', "x" * 70, "\0"))),
            *self.at_times(0.15, lambda: self.pairs("groups", n, lambda: self.one("g1", "b.example"))),
            *self.at_times(0.15, lambda: section("priority", self.one(0, 5, -3, 1000, -1000, 1001, "x"))),
            *self.at_times(0.15, lambda: self.pairs("priorities", n, lambda: self.one(1, -1, 7, 0))),
            *self.at_times(0.12, lambda: self.all_or_one("improve", n)),
            *self.at_times(0.12, lambda: section("batch", self.one("b1", "b2", "bad name!"))),
            *self.at_times(0.15, lambda: self.pairs("unique", n, lambda: self.one(0, 1000, 60_000))),
        ]

    def all_or_one(self, name: str, n: int) -> Args:
        """Give an option that holds for all of n tasks, or for one of them."""
        return section(name) if self.happens(0.5) else section(name, self.chance.randint(1, n))

    def unknown(self) -> Args:
        """Seldom, give an option that no verb has."""
        return self.at_times(0.01, lambda: section("what", 1))

    def put(self) -> Args:
        ids = self.some()
        options = [
            *self.options(len(ids)),
            *self.at_times(0.12, lambda: self.all_or_one("rerun", len(ids))),
            *self.unknown(),
            *self.at_times(0.05, lambda: section("visited", self.one(*self.ids))),
        ]
        return [self.call_id(), self.age(), len(ids), *ids, *options]

    def schedule(self) -> Args:
        ids = self.some()
        due = self.one(
            f"+{self.one(0, 100, 5000, 90_000)}",
            str(self.now + self.chance.randint(-1000, 100_000)),
            "soon",
            "253370764800000",
        )
        return [self.call_id(), self.age(), due, len(ids), *ids, *self.options(len(ids)), *self.unknown()]

    def restore(self) -> Args:
        ids, now = self.some(twice=False), self.now
        n, letters = len(ids), "".join(self.one(*"tsdf") for _ in ids)
        times = [
            (at, now + self.chance.randint(-5000, 50_000)) for at, letter in enumerate(letters, 1) if letter in "sd"
        ]
        options = [
            *section("times", *(part for pair in times for part in pair)),
            *self.at_times(
                0.4,
                lambda: [
                    *self.pairs("failures", n, lambda: 2),
                    *self.pairs("crashes", n, lambda: 1),
                    *self.pairs("errors", n, lambda: f"{now - 10} boom"),
                ],
            ),
            *self.at_times(
                0.4,
                lambda: [
                    *self.pairs("payloads", n, lambda: "old"),
                    *self.pairs("groups", n, lambda: "g1"),
                    *self.pairs("priorities", n, lambda: 3),
                ],
            ),
            *self.at_times(0.2, lambda: self.pairs("untils", n, lambda: now + 4000)),
        ]
        return [self.call_id(), self.age(), n, *ids, letters, *options]

    # tasks run

    def claim(self) -> Args:
        """Claim tasks, with a new token or one that has claimed before."""
        token = self.one(*self.tokens) if self.happens(0.2) else f"w{self.chance.randrange(3)}#{self.count}"
        self.count += 1
        if token not in self.tokens:
            self.tokens = [*self.tokens, token][-8:]
        options = [
            *self.at_times(0.2, lambda: section("max_runtime", self.one(20_000, 45_000, 100_000))),
            *self.at_times(0.2, lambda: section("share", self.one(1, 2, 3))),
        ]
        head = [token, self.age(), self.one(0, 1, 1, 2, 5, 500), self.one(30_000, 60_000, 45_000)]
        return [*head, self.one(0, 0, self.now + 500, self.now - 5), *options]

    def extend(self) -> Args:
        return [self.call_id(), 0, self.one(30_000, 60_000, 90_000), *self.leases()[1]]

    def found(self, task: bytes) -> Args:
        """Give the tasks that a task has found, itself among them at times."""
        ids: list[str | bytes] = [*self.some()]
        n = len(ids)
        if self.happens(0.2):
            ids[0] = task
        return [
            *section("put", *ids),
            *self.at_times(0.3, lambda: self.pairs("payloads", n, lambda: "body")),
            *self.at_times(0.2, lambda: self.pairs("groups", n, lambda: "g2")),
            *self.at_times(0.2, lambda: self.pairs("priorities", n, lambda: self.one(1, 4, -4))),
            *self.at_times(0.15, lambda: section("improve")),
            *self.at_times(0.15, lambda: self.pairs("unique", n, lambda: self.one(0, 5000))),
            *self.at_times(0.15, lambda: section("rerun")),
        ]

    def results(self, n: int, result: str, share: float) -> Args:
        """Give the results of n leases, and for how long they are kept."""
        return [
            *self.pairs("results", n, lambda: result, share),
            *self.at_times(0.5, lambda: self.pairs("times", n, lambda: self.one(100_000, 300_000), share)),
        ]

    def ack(self) -> Args:
        alone = self.happens(0.4)
        held, words = self.leases(1 if alone else 4)
        n = len(held)
        options = [
            *self.at_times(0.15, lambda: section("again", self.one(0, 1000, 50_000))),
            *(self.at_times(0.2, lambda: section("payload", "new")) if alone else []),
            *self.at_times(0.35, lambda: self.found(held[0][0])),
            *self.at_times(0.15, lambda: self.results(n, "result", 1)),
            *self.at_times(0.15, lambda: section("bare", *[at for at in range(1, n + 1) if self.happens(0.6)] or [n])),
            *self.at_times(0.15, lambda: self.pairs("until", n, lambda: self.one(1000, 100_000), 0.7)),
            *self.unknown(),
        ]
        return [f"a{self.call_id()}", self.age(), *words, *options]

    def fail(self) -> Args:
        held, words = self.leases()
        n, ends = len(held), list[Any]()
        errors = ("boom 42", "HTTP 404 at https://x/y", "ValueError: " + "z" * 100, "status 503", "")
        for _ in held:
            ends += [self.one(-1, -1, 0, 1000, 60_000), self.one(*errors)]
        texts = section("texts", "d1", "Traceback 1", "d2", "Traceback 2")
        options = [
            *self.at_times(0.2, lambda: self.pairs("blocks", n, lambda: self.one(1000, 60_000))),
            *self.at_times(0.3, lambda: self.pairs("traces", n, lambda: self.one("d1", "d2"), 0.8) + texts),
            *self.at_times(0.2, lambda: self.results(n, "failed result", 0.7)),
            *self.unknown(),
        ]
        if self.happens(0.02):
            ends[0] = "x"
        return [f"f{self.call_id()}", self.age(), *words, *ends, *options]

    def release(self) -> Args:
        _, words = self.leases()
        options = [
            *self.at_times(0.3, lambda: section("delay", self.one(0, 1000, 60_000))),
            *self.at_times(0.25, lambda: section("block", self.one(1000, 60_000))),
            *self.at_times(0.15, lambda: section("deadline", self.now + 30_000)),
            *self.at_times(0.4, lambda: section("most", self.one(1, 2, 5))),
            *self.at_times(0.2, lambda: section("within", self.one(1000, 100_000))),
            *self.at_times(0.2, lambda: section("why", "no function")),
        ]
        return [f"r{self.call_id()}", self.age(), *words, *options]

    def crash(self) -> Args:
        return [self.call_id(), 0, "the process died", *self.leases()[1]]

    def note(self) -> Args:
        task, token = self.leases(1)[0][0]
        return [self.call_id(), 0, 1, token, 1, task, "3", self.one("10", "-"), "half way"]

    def pull(self) -> Args:
        return [self.call_id(), 0, 500]

    def await_(self) -> Args:
        """Ask for results, and have a client told of those that are missing."""
        return [self.call_id(), 0, self.one("", "client1", "client2", "bad client"), *self.some(twice=False)]

    # people change tasks

    def cancel(self) -> Args:
        return [self.call_id(), self.age(), self.one("ann", "bob"), *self.some()]

    def forget(self) -> Args:
        return [self.call_id(), 0, *self.some()]

    def retry_failed(self) -> Args:
        return [self.call_id(), 0, 500, *self.at_times(0.7, lambda: [*self.some()])]

    def kind(self) -> Args:
        known: list[bytes] = sorted(self.oracle.hkeys(self.key("kinds")))
        texts = [*(name[1:] for name in known if name.startswith(b"=")), b"none", b""]
        head = [self.call_id(), 0, self.one("retry", "forget"), self.one(*texts)]
        return [*head, self.one(0, self.now), self.one(1, 100)]

    # cleaners and workers

    def requeue_expired(self) -> Args:
        return [self.call_id(), 0, self.one(1, 3, 200), self.one(0, 0, self.now, self.now - 10_000)]

    def promote_due(self) -> Args:
        return [self.call_id(), 0, self.one(1, 3, 500)]

    def plan(self) -> Args:
        return [self.call_id(), 0, 10_000]

    def prune(self) -> Args:
        return [self.call_id(), 0, self.one(2, 500), "0"]

    def repair(self) -> Args:
        return [self.call_id(), 0, 500, self.one("", "+"), self.one(0, 1)]

    def purge(self) -> Args:
        return [self.call_id(), 0, 500, *self.at_times(0.2, lambda: ["host:a.example"])]

    def probe(self) -> Args:
        return [self.call_id(), 0, 1, 2, "GET", "KEY", 1, 3, "SET", "KEY", "1"]

    def beat(self) -> Args:
        durations = self.at_times(0.5, lambda: self.pairs("durations", 5, lambda: self.chance.randint(1, 4)))
        head = [self.call_id(), self.age(), f"worker{self.chance.randrange(3)}"]
        return [*head, self.one("", '{"pid":1}', '{"pid":2}'), *durations]

    def publish(self) -> Args:
        return [self.call_id(), 0, "worker1", self.one("f1", "f2"), self.one("aa", "bb", "cc"), '{"takes":[]}']

    # settings and hosts

    def configure(self) -> Args:
        """Change settings, at times only those that the queue has not."""
        words: Args = []
        for name in self.chance.sample([*self.known], self.one(1, 1, 2)):
            words += [name + ("?" if self.happens(0.15) else ""), self.one(*self.known[name])]
        return [self.call_id(), 0, *words]

    def convert(self) -> Args:
        return [self.call_id(), 0, self.one(3, 500)]

    def host(self) -> Args:
        words: Args = []
        for _ in range(self.one(0, 1, 1, 2)):
            words += self.one(
                ["delay", self.one(0, 2000, "")],
                ["per_host", self.one(1, 2, 5, "")],
                ["budget", self.one(0, 1, 3, "")],
                ["block", self.one(5000, f"@{self.now + 9000}")],
                ["by", "me"],
                ["unblock", ""],
                ["ban", "spam"],
                ["recall", ""],
            )
        return [self.call_id(), 0, self.one("a.example", "b.example", "g.example", "g1", "zzz"), *words]

    def restore_hosts(self) -> Args:
        first = ["a.example", "500", "", "3", 2, 1, self.now + 100, 0, "-", ""]
        second = ["z.example", "", "", "", 0, 0, 0, self.now + 5000, "b", "why"]
        return [self.call_id(), self.age(), *first, *second]

    # batches and schedules

    def seal_batch(self) -> Args:
        name = self.one("b1", "b2", "b3")
        options = [
            *self.at_times(0.5, lambda: section("callback", self.one(self.callback, *self.ids[:2]))),
            *self.at_times(0.3, lambda: section("payload", "cb")),
            *self.at_times(0.2, lambda: section("group", "g1")),
        ]
        return [self.call_id(), 0, name, self.one(*"edx"), 60_000, self.one("dig1", "dig2"), *options]

    def restore_batch(self) -> Args:
        ids = self.some(twice=False)
        head = [self.call_id(), 0, self.one("b1", "b4"), self.one("e", "d", "-", "-"), 60_000, "dig1"]
        return [*head, self.one("", self.callback), len(ids), *ids, "".join(self.one(*"odl") for _ in ids)]

    def set_schedule(self) -> Args:
        """Set, pause, resume or cancel a schedule, as the client has seen it or not."""
        name = self.one("s1", "s2")
        words = self.ticked(name)
        seen = f"{words[0]} {words[4]} {words[2]}" if words else "-"
        if self.happens(0.1):
            seen = "r 5 x"
        options = [
            *self.at_times(
                0.7,
                lambda: [
                    *section("definition", '{"every":1}'),
                    *section("digest", self.one("d1", "d2")),
                    *section("source", self.one(*"cs")),
                ],
            ),
            *self.at_times(0.1, lambda: section("anew")),
            *self.at_times(0.1, lambda: section("counts", self.now, 1, 2, 3)),
            *self.at_times(0.1, lambda: section("skipped", 2)),
            *self.at_times(0.3, lambda: section("zones", "2026b")),
        ]
        state = [self.call_id(), self.age(), name, seen, self.one(*"rrrpex")]
        return [*state, self.one(0, self.now + 1000, self.now + 60_000), *options]

    def renew(self) -> Args:
        return [self.call_id(), 0, "s1", self.one("d1", "d2"), "s2", "d1"]

    def tick(self) -> Args:
        name = self.one("s1", "s2")
        words = self.ticked(name)
        call, tick = (words[2], int(words[4])) if words else ("x", 0)
        ids = self.some(0, 2)
        options = [
            *self.at_times(0.3, lambda: section("payload", "tick")),
            *self.at_times(0.3, lambda: section("zones", "2026c")),
            *self.at_times(0.2, lambda: section("group", "g1")),
        ]
        head = [self.call_id(), self.age(), name, call, tick, self.one(0, self.now + 5000), self.now]
        return [*head, self.one(0, 1), 0, len(ids), *ids, *options]

    # readers

    def stats(self) -> Args:
        return [self.call_id(), 0]

    def hosts(self) -> Args:
        return [self.call_id(), 0, 0, 10]

    def describe_hosts(self) -> Args:
        return [self.call_id(), 0, "a.example", "b.example", "g1"]

    def inspect(self) -> Args:
        return [self.call_id(), 0, self.one(*self.ids)]

    def why(self) -> Args:
        return [self.call_id(), 0, self.one(*self.ids), self.one("", "a.example")]

    def states(self) -> Args:
        return [self.call_id(), 0, *self.some()]

    def describe(self) -> Args:
        return [self.call_id(), 0, 1_000_000, *self.some(twice=False)]

    def drained(self) -> Args:
        return [self.call_id(), 0, self.one("+inf", self.now + 5000), "0", self.one(0, 1)]

    def batches(self) -> Args:
        return [self.call_id(), 0, *self.one(["names", "", "b1", "b2"], ["page", 0, 10], ["tasks", "b1", 1, 100])]

    def schedules(self) -> Args:
        return [self.call_id(), 0, *self.one(["due", 10], ["names", "", "s1", "s2", "s9"], ["page", 0, 10])]
