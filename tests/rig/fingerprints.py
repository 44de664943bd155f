"""`lua/by_print.lua` in Python: fingerprints, the sets they belong to, and when sets divide."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

FULL = 192
"""With more fingerprints for each set than this, the next set divides."""


def fingerprint(salt: bytes, task: bytes) -> int:
    """Give the fingerprint of a task: a number of 19 digits, below 2^63."""
    digest = hashlib.sha1(salt + task, usedforsecurity=False).hexdigest()
    high = int(digest[:10], 16) % 8_000_000_000 + 1_000_000_000
    return high * 10**9 + int(digest[10:21], 16) % 10**9


class Sets:
    """Fingerprints in sets that divide, one after the other."""

    def __init__(self, salt: bytes, full: int = FULL) -> None:
        self.salt = salt
        self.full = full
        self.level = self.split = self.count = 0
        self.sets: dict[int, set[int]] = {}

    def number(self, print: int) -> int:
        """Give the number of the set to which a fingerprint belongs."""
        at = print // 10**9 % (1 << self.level)
        return print // 10**9 % (1 << self.level + 1) if at < self.split else at

    def add(self, task: bytes) -> None:
        """Add a task; a set divides if there are too many fingerprints now."""
        print = fingerprint(self.salt, task)
        found = self.sets.setdefault(self.number(print), set())
        self.count += print not in found
        found.add(print)
        if self.count > self.full * ((1 << self.level) + self.split):
            self._divide()

    def _divide(self) -> None:
        old = self.sets.pop(self.split, set())
        self.split += 1
        if self.split == (1 << self.level):
            self.level, self.split = self.level + 1, 0
        for print in old:
            self.sets.setdefault(self.number(print), set()).add(print)

    def remove(self, task: bytes) -> None:
        print = fingerprint(self.salt, task)
        found = self.sets.get(self.number(print), set())
        if print in found:
            found.remove(print)
            self.count -= 1

    def __contains__(self, task: bytes) -> bool:
        print = fingerprint(self.salt, task)
        return print in self.sets.get(self.number(print), set())

    @property
    def filled(self) -> dict[int, set[int]]:
        return {number: found for number, found in self.sets.items() if found}


def read(client: Any, key: str, full: int = FULL) -> Sets | None:
    """Read what a queue keeps of its done tasks, whose keys begin with `key`; None if it keeps no fingerprints."""
    seen = client.hgetall(key + "seen")
    if not seen:
        return None
    found = Sets(seen[b"salt"], full)
    found.level, found.split, found.count = (int(seen[name]) for name in (b"level", b"split", b"count"))
    for name in client.scan_iter(key + "seen:*", count=1000):
        found.sets[int(name[len(key) + 5 :])] = {int(member) for member in client.smembers(name)}
    return found


def wrong(found: Sets) -> list[str]:
    """Say what is wrong with the fingerprints of a queue that nobody works on."""
    said: list[str] = []
    if not 0 <= found.split < 2**found.level:
        said.append(f"level {found.level} and split {found.split} do not agree")
    for number, prints in found.sets.items():
        lost = {print for print in prints if found.number(print) != number}
        if lost:
            said.append(f"set {number} has fingerprints that nobody finds there: {lost}")
        if any(len(str(print)) != 19 for print in prints):
            said.append(f"set {number} has a fingerprint that has not 19 digits: {prints}")
    total = sum(map(len, found.sets.values()))
    if total != found.count:
        said.append(f"there are {total} fingerprints, and the count is {found.count}")
    return said


def holding(found: Sets | None, tasks: Iterable[bytes]) -> set[bytes]:
    return set() if found is None else {task for task in tasks if task in found}
