"""Hears each call that the server has carried out and what it answered, and keeps books of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.rig.simulate.world import Simulation

SUSPECT = 2
"""A task with so many lost leases is a suspect."""
COUNTED = ("claimed", "acked", "failed", "released", "expired", "crashed")
"""The counters that the queue keeps, and the witness, too."""
AGAIN_MS = 700
"""The delay of handlers that want their task again, ms."""


@dataclass(slots=True)
class Held:
    token: str
    deadline: int
    limit: int
    crashes: int
    failures: int
    fences: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Asked:
    """A call that ends or extends leases: its leases, and the words behind them."""

    leases: list[tuple[str, str]]
    rest: list[bytes]


Sections = dict[str, list[bytes]]


@dataclass(slots=True)
class Host:
    """One host. All times are milliseconds of the server's clock."""

    name: str
    delay: int
    per_host: int
    visits: int = 0
    rests_until: int = 0
    blocked_until: int = 0

    def is_open(self, now: int) -> bool:
        return self.visits < self.per_host and now >= max(self.rests_until, self.blocked_until)

    def begins(self, now: int) -> str:
        """Note a visit that begins; give what is wrong with it, or nothing."""
        self.visits += 1
        if self.visits > self.per_host:
            return f"{self.name} has {self.visits} visits at once, and may have {self.per_host}"
        if now < self.blocked_until:
            return f"{self.name} is visited, and is blocked for {self.blocked_until - now} ms more"
        if now < self.rests_until:
            return f"{self.name} is visited {self.rests_until - now} ms before its pause of {self.delay} ms ends"
        return ""

    def ends(self, now: int) -> None:
        self.visits -= 1
        if self.delay:
            self.rests_until = now + self.delay

    def block(self, until: int) -> None:
        self.blocked_until = max(self.blocked_until, until)

    def rule(self, name: str, value: str, now: int) -> None:
        match name:
            case "delay":
                self.delay = int(value)
                self.rests_until = min(self.rests_until, now + self.delay)
            case "per_host":
                self.per_host = int(value)
            case "block":
                self.blocked_until = now + int(value)
            case "unblock":
                self.blocked_until = 0
            case _:
                pass


class Witness:
    def __init__(self, world: Simulation, ended_well: set[str], host: Callable[[str], Host]) -> None:
        self._world = world
        self._ended_well = ended_well
        self._new_host = host
        self.leases: dict[str, Held] = {}
        self.given: dict[tuple[str, str], Held] = {}
        self.hosts: dict[str, Host] = {}
        self.groups: dict[str, str] = {}
        """The hosts of tasks."""
        self.accepted: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._ended: dict[tuple[str, str], str] = {}
        self._not_before: dict[str, tuple[int, str]] = {}
        self._failures: Counter[str] = Counter()
        self._crashes: Counter[str] = Counter()
        self._last_fences: dict[str, int] = defaultdict(int)
        """The last fence in each shard; that of a plain queue has no name."""
        self._payloads: dict[str, bytes] = {}
        self._puts: set[bytes] = set()
        self._hears: dict[str, Callable[[list[bytes], Any, int], None]] = {
            "claim": self._claim, "ack": self._ack, "release": self._release, "fail": self._fail,
            "extend": self._extend, "crash": self._crash, "requeue_expired": self._requeue, "put": self._put,
            "schedule": self._schedule, "host": self._host,
        }  # fmt: skip

    def heard(self, verb: str, words: list[bytes], reply: Any, now: int) -> None:
        """Hear of a call that was carried out at a time: its words and its reply."""
        hear = self._hears.get(verb)
        if hear is not None and not isinstance(reply, Exception):
            hear(words, reply, now)

    def holds(self, task: str, token: str) -> bool:
        held = self.leases.get(task)
        return held is not None and held.token == token

    def host_of(self, task: str) -> Host | None:
        name = self.groups.get(task)
        if name is None:
            return None
        if name not in self.hosts:
            self.hosts[name] = self._new_host(name)
        return self.hosts[name]

    # ---- leases begin

    def _claim(self, words: list[bytes], reply: Any, now: int) -> None:
        if len(reply) < 7:
            return
        token, lease_ms, not_after = words[0].decode(), int(words[3]), int(words[4])
        runtime_ms = int(_sections(words, 5).get("max_runtime", [b"0"])[0])
        tasks = [task.decode() for task in reply[3]]
        deadline, fence = int(reply[1]), int(reply[2])
        if not_after and now > not_after:
            self._broke(f"{tasks} are leased {now - not_after} ms after their client has given up")
        part = _part(token)
        if fence <= (last := self._last_fences[part]):
            self._broke(f"the lease of {tasks[0]} has fence {fence}, and an earlier one has {last}")
        self._last_fences[part] = fence + len(tasks) - 1
        for at, task in enumerate(tasks):
            lost, failed = _number(reply[5], at), _number(reply[4], at)
            held = self.leases.get(task)
            if held is None or held.token != token:
                held = Held(token, deadline, now + runtime_ms if runtime_ms else 0, lost, failed)
                self._begin(task, held, now)
                if lost >= SUSPECT and len(tasks) > 1:
                    self._broke(f"{task} has lost {lost} leases, and is handed out together with others: {tasks}")
            held.fences.add(fence + at)
            body = (reply[6][at] if reply[6] else None) or None
            if body != self._payloads.get(task):
                self._broke(f"{task} is leased with another payload than it was put with: {_short(body)}")
            if held.deadline > now + lease_ms:
                self._broke(f"the lease on {task} lasts {held.deadline - now} ms, and was to last {lease_ms} ms")

    def _begin(self, task: str, held: Held, now: int) -> None:
        before = self.leases.get(task)
        if before is not None:
            self._broke(f"{task} is leased to {held.token}, and {before.token} has a lease on it")
        until, why = self._not_before.pop(task, (0, ""))
        if now < until:
            self._broke(f"{task} is leased {until - now} ms before its delay is over: {why}")
        if (held.failures, held.crashes) != (self._failures[task], self._crashes[task]):
            self._broke(
                f"{task} has failed {self._failures[task]} times and lost {self._crashes[task]} leases, and its lease "
                f"says {held.failures} and {held.crashes}"
            )
        self.leases[task] = self.given[task, held.token] = held
        self.counts["claimed"] += 1
        host = self.host_of(task)
        if host is not None and (wrong := host.begins(now)):
            self._broke(f"{task}: {wrong}")

    def began(self, task: str, token: str, fence: int, crashes: int) -> None:
        held = self.given.get((task, token))
        if held is None:
            self._broke(f"a handler of {task} begins, and {token} never got a lease on it")
        elif fence not in held.fences or crashes != held.crashes:
            self._broke(
                f"a handler of {task} begins with fence {fence} and {crashes} crashes, and the server gave "
                f"{sorted(held.fences)} and {held.crashes}"
            )

    def _extend(self, words: list[bytes], reply: Any, now: int) -> None:
        asked = _asked(words, 3)
        for (task, token), letter in zip(asked.leases, reply[2].decode(), strict=True):
            held = self._judged("extend", task, token, letter, "OX")
            if held is None:
                continue
            over = bool(held.limit) and now >= held.limit
            if over != (letter == "X"):
                told = "has used up" if over else "is within"
                self._broke(f"{task} {told} its max_runtime, and extend says {letter}")
            if letter == "O":
                held.deadline = min(now + int(words[2]), held.limit or now + int(words[2]))

    # ---- leases end

    def _judged(self, verb: str, task: str, token: str, letter: str, good: str) -> Held | None:
        """Judge a letter of a reply; give the lease, if the letter says that the call was right."""
        held = self.leases.get(task)
        owned = held is not None and held.token == token
        if letter in good:
            if owned:
                return held
            other = "nobody has a lease on it" if held is None else f"{held.token} has the lease on it"
            self._broke(f"{verb} of {task} by {token} is taken, and {other}")
        elif letter == "L" and owned:
            self._broke(f"{verb} of {task} by {token}, who has the lease on it, is refused")
        elif letter == "R" and self._ended.get((task, token)) != verb:
            self._broke(f"{verb} of {task} by {token} was carried out before, says the server; it was not")
        return None

    def _end(self, task: str, token: str, how: str, now: int) -> None:
        self._ended[task, token] = how
        del self.leases[task]
        host = self.host_of(task)
        if host is not None:
            host.ends(now)

    def _delay(self, task: str, until: int, why: str) -> None:
        self._not_before[task] = until, why

    def _ack(self, words: list[bytes], reply: Any, now: int) -> None:
        asked = _asked(words, 2)
        given = _sections(asked.rest, 0)
        for (task, token), letter in zip(asked.leases, reply.decode(), strict=True):
            if self._judged("ack", task, token, letter, "O") is None:
                continue
            how = self._world.how_it_ran(task, token)
            if how is None or how not in self._ended_well:
                self._broke(f"{task} is acked by {token}, whose handler {_told(how)}")
            self._end(task, token, "ack", now)
            self._failures[task] = self._crashes[task] = 0
            self._payloads.pop(task, None)
            self.counts["acked"] += 1
            again = given.get("again")
            if (how == "again") != (again is not None):
                self._broke(f"{task} is acked {'for a time' if again else 'for good'}, and its handler {_told(how)}")
            if again is not None:
                self._delay(task, now + max(int(again[0]), AGAIN_MS), "its ack said so")
            found = [one.decode() for one in given.get("put", [])]
            if how in ("children", "generator") and len(found) != 2 and not _part(token):
                self._broke(f"{task} is acked, and its handler found two tasks, not {found}")
            self._add([one for one in found if one not in self.accepted], found, given)

    def _release(self, words: list[bytes], reply: Any, now: int) -> None:
        asked = _asked(words, 2)
        given = _sections(asked.rest, 0)
        delay, block = int(given.get("delay", [b"0"])[0]), int(given.get("block", [b"0"])[0])
        blocked: list[str] = []
        for (task, token), letter in zip(asked.leases, reply.decode(), strict=True):
            if self._judged("release", task, token, letter, "Of") is None:
                continue
            how = self._world.how_it_ran(task, token)
            if "most" in given and (how is None or "release" not in how):
                self._broke(f"{task} is released as its handler said, and its handler {_told(how)}")
            self._end(task, token, "release", now)
            self.counts["released"] += 1
            if letter == "O" and delay:
                self._delay(task, now + delay, f"its release said {delay} ms")
            blocked.append(task)
        self._block(blocked, now + block if block else 0)

    def _fail(self, words: list[bytes], reply: Any, now: int) -> None:
        asked = _asked(words, 2)
        size = 2 * len(asked.leases)
        blocks = dict(_pairs(_sections(asked.rest, size).get("blocks", [])))
        for at, ((task, token), letter) in enumerate(zip(asked.leases, reply.decode(), strict=True)):
            held = self._judged("fail", task, token, letter, "O")
            if held is None:
                continue
            how, is_over = self._world.how_it_ran(task, token), 0 < held.limit <= now
            if how is None or (how == "ok" and not is_over):
                self._broke(f"{task} has failed, and its handler {_told(how)}")
            self._end(task, token, "fail", now)
            self._failures[task] += 1
            self.counts["failed"] += 1
            retry = int(asked.rest[2 * at])
            if retry >= 0:
                self._delay(task, now + retry, f"its failure said {retry} ms")
            block = int(blocks.get(b"%d" % (at + 1), b"0"))
            self._block([task], now + block if block else 0)

    def _block(self, tasks: Sequence[str], until: int) -> None:
        for task in tasks:
            host = self.host_of(task)
            if host is not None and until:
                host.block(until)

    def _crash(self, words: list[bytes], reply: Any, now: int) -> None:
        asked = _asked(words, 3)
        for (task, token), letter in zip(asked.leases, reply.decode(), strict=True):
            if self._judged("crash", task, token, letter, "Of") is not None:
                if not self._world.was_called(task, token):
                    self._broke(f"{task} is blamed for the end of a process, and no handler of {token} began")
                self._end(task, token, "crash", now)
                self._crashes[task] += 1
                self.counts["crashed"] += 1

    def _requeue(self, _: list[bytes], reply: Any, now: int) -> None:
        count = reply[1] + reply[2]
        if not count:
            return
        owners = {task.decode(): token.decode() for task, token in self._world.owners().items()}
        gone = [(task, held) for task, held in self.leases.items() if task not in owners]
        if len(gone) != count:
            self._broke(f"{count} leases were taken back, it is said, and these are gone: {gone}")
        for task, held in gone:
            if now < held.deadline:
                self._broke(f"the lease on {task} is taken back {held.deadline - now} ms before it runs out")
            self._end(task, held.token, "expiry", now)
            self._crashes[task] += 1
            self.counts["expired"] += 1

    # ---- tasks come, and rules

    def _put(self, words: list[bytes], reply: Any, now: int) -> None:
        self._come(words, 2, reply)

    def _schedule(self, words: list[bytes], reply: Any, now: int) -> None:
        due = int(words[2]) + (now if words[2].startswith(b"+") else 0)
        for task, letter in self._come(words, 3, reply):
            if letter in "As":
                self._delay(task, due, "it is scheduled")

    def _come(self, words: list[bytes], at: int, reply: Any) -> list[tuple[str, str]]:
        """Note what was put; give the answer for each task, or nothing for a call that changes nothing."""
        if words[0] in self._puts:
            return []  # it was sent again
        self._puts.add(words[0])
        count = int(words[at])
        tasks = [task.decode() for task in words[at + 1 : at + 1 + count]]
        answers = list(zip(tasks, reply.decode(), strict=True))
        for task, letter in answers:
            if (letter == "A") == (task in self.accepted):
                self._broke(
                    f"{task} is put {'again' if letter == 'A' else 'for the first time'}, and answered {letter}"
                )
        self._add([task for task, letter in answers if letter == "A"], tasks, _sections(words, at + 1 + count))
        return answers

    def _add(self, new: list[str], tasks: list[str], given: Sections) -> None:
        """Note the payloads and the hosts of new tasks, which are among those of a call."""
        bodies = {tasks[int(place) - 1]: body for place, body in _pairs(given.get("payloads", []))}
        self._payloads.update((task, bodies[task]) for task in new if task in bodies)
        if "group" in given:
            self.groups.update(dict.fromkeys(new, given["group"][0].decode()))
        hosts = {tasks[int(place) - 1]: host.decode() for place, host in _pairs(given.get("groups", []))}
        self.groups.update((task, hosts[task]) for task in new if task in hosts)
        self.accepted.update(new)

    def _host(self, words: list[bytes], reply: Any, now: int) -> None:
        name = words[2].decode()
        host = self.hosts.setdefault(name, self._new_host(name))
        for rule, value in _pairs(words[3:]):
            host.rule(rule.decode(), value.decode(), now)

    # ---- at the end

    def missed(self, stats: Mapping[str, int]) -> list[str]:
        """Give what the counters of the queue say otherwise than these books."""
        return [
            f"{name} is {stats.get(name, 0)}, and was {self.counts[name]}"
            for name in COUNTED
            if stats.get(name, 0) != self.counts[name]
        ]  # fmt: skip

    def _broke(self, what: str) -> None:
        self._world.broke(what)


def _part(token: str) -> str:
    """Give the number of the shard in which a lease is; nothing for a plain queue."""
    return token.partition("@")[2]


def _told(how: str | None) -> str:
    return "never began" if how is None else f"ended as {how!r}" if how else "is at work"


def _short(body: bytes | None) -> str:
    return "none" if body is None else f"{body[:20]!r}, {len(body)} bytes"


def _number(counts: Any, at: int) -> int:
    return int(counts[at] or 0) if counts else 0


def _asked(words: list[bytes], at: int) -> Asked:
    """Read the leases of a call: count, then runs of token, length and ids."""
    count, found = int(words[at]), list[tuple[str, str]]()
    at += 1
    while len(found) < count:
        token, size = words[at].decode(), int(words[at + 1])
        found += [(task.decode(), token) for task in words[at + 2 : at + 2 + size]]
        at += 2 + size
    return Asked(found, words[at:])


def _sections(words: list[bytes], at: int) -> Sections:
    found: Sections = {}
    while at < len(words):
        size = int(words[at + 1])
        found[words[at].decode()] = words[at + 2 : at + 2 + size]
        at += 2 + size
    return found


def _pairs(words: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(words[::2], words[1::2], strict=False))
