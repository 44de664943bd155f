"""Is `drained()` of a sharded queue ever wrong? A random model asks a million times: `python -m tests.rig.drained`."""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field

from timeoutq.client.shards.looking import LOOKS, Look, agree

MUTANTS = ("one-pass", "ack-first")


class Crawl:
    def __init__(self, chance: random.Random, ack_first: bool) -> None:
        self._random = chance.random
        self._ack_first = ack_first
        self.shards = 2 + int(self._random() * 5)
        self.ready = [0] * self.shards
        self.held = [0] * self.shards
        self.counters = [[0, 0, 0, 0] for _ in range(self.shards)]  # put, claimed, acked, expired
        self.on_their_way = 0
        self.workers: list[list[int] | None] = [None] * (1 + int(self._random() * 4))
        """For each worker: the shard of its lease (-1 after the ack), and the shards of the links that it will put."""
        for _ in range(1 + int(self._random() * 3)):
            self._put(int(self._random() * self.shards))

    def is_over(self) -> bool:
        return not (any(self.ready) or any(self.held) or self.on_their_way)

    def step(self) -> None:
        at = int(self._random() * len(self.workers))
        work = self.workers[at]
        if work is None:
            self.workers[at] = self._claim(int(self._random() * self.shards))
        elif work[0] >= 0 and self._random() < 0.02:
            self._die(work[0])
            self.workers[at] = None
        elif self._ack_first and work[0] >= 0:
            self._ack(work[0])
            work[0], self.on_their_way = -1, self.on_their_way + len(work) - 1
        elif len(work) > 1:
            self._put(work.pop())
            self.on_their_way -= work[0] < 0
        else:
            if work[0] >= 0:
                self._ack(work[0])
            self.workers[at] = None

    def _put(self, shard: int) -> None:
        self.ready[shard] += 1
        self.counters[shard][0] += 1

    def _claim(self, shard: int) -> list[int] | None:
        if not self.ready[shard]:
            return None
        self.ready[shard] -= 1
        self.held[shard] += 1
        self.counters[shard][1] += 1
        # usually no link or one, so that a crawl ends by and by
        links = int(self._random() * self._random() * 3.6)
        return [shard, *(int(self._random() * self.shards) for _ in range(links))]

    def _ack(self, shard: int) -> None:
        self.held[shard] -= 1
        self.counters[shard][2] += 1

    def _die(self, shard: int) -> None:
        # the lease runs out; the links that the worker has put are there
        self.held[shard] -= 1
        self.ready[shard] += 1
        self.counters[shard][3] += 1


class Observer:
    """Finds out whether a crawl is drained, by looks at one shard after another."""

    def __init__(self, crawl: Crawl, chance: random.Random, one_pass: bool) -> None:
        """Prepare; `one_pass` is the mutant that looks only once."""
        self._crawl, self._random, self._one_pass = crawl, chance.random, one_pass

    def ask(self) -> bool:
        last: list[Look] | None = None
        for _ in range(LOOKS):
            looks = self._look_at_all()
            if looks is None:
                return False
            if self._one_pass or (last is not None and agree(last, looks)):
                return True
            last = looks
        return False

    def _look_at_all(self) -> list[Look] | None:
        crawl, looks = self._crawl, list[Look]()
        for shard in range(crawl.shards):
            if crawl.ready[shard] or crawl.held[shard]:
                return None
            counters = tuple(crawl.counters[shard])
            looks.append(Look(True, counters, counters))
            for _ in range(int(self._random() * 4)):
                crawl.step()
        return looks


@dataclass
class Found:
    answers: int = 0
    drained: int = 0
    too_early: int = 0
    """Answers "drained" while there was work."""
    too_late: int = 0
    """Answers "no" after the end."""
    examples: list[str] = field(default_factory=list[str])

    @property
    def wrong(self) -> int:
        return self.too_early + self.too_late


def run(answers: int, mutant: str = "", seed: int = 1) -> Found:
    """Ask for this many answers, of one crawl after another; give what was found."""
    found, number = Found(), 0
    while found.answers < answers:
        number += 1
        chance = random.Random(f"{seed} {number}")
        crawl = Crawl(chance, mutant == "ack-first")
        observer = Observer(crawl, chance, mutant == "one-pass")
        while found.answers < answers:
            for _ in range(int(chance.random() * 12)):
                crawl.step()
            was_over = crawl.is_over()
            said = observer.ask()
            found.answers += 1
            found.drained += said
            if said and not crawl.is_over():
                found.too_early += 1
                if len(found.examples) < 3:
                    found.examples.append(f"crawl {number}: ready {crawl.ready}, held {crawl.held}")
            found.too_late += was_over and not said
            if was_over or said:
                break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.drained", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("answers", nargs="?", type=int, default=1_000_000, help="how often to ask")
    parser.add_argument("--mutant", choices=MUTANTS, default="", help="plant a bug")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    found = run(given.answers, given.mutant, given.seed)
    print(
        f"{found.answers:,} answers in {time.monotonic() - began:.0f} s, {found.drained:,} of them 'drained': "
        f"{found.wrong:,} wrong ({found.too_early:,} too early, {found.too_late:,} too late)"
    )
    for example in found.examples:
        print(f"  too early in {example}")
    return int(found.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
