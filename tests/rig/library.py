"""Random calls of all verbs against two versions of the library, that of a commit and this one: nothing may differ."""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from tests.rig.library_calls import WEIGHTS, Args, World
from tests.rig.servers import binary_of
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]

PLANTS = {
    "an ack leaves the payload": (
        "call('HDEL', key.payload, unpack(ended)) end\n      failures",
        "do end end\n      failures",
    ),
    "a host rests a ms less": ("hosts.rest_until(one, now + delay)", "hosts.rest_until(one, now + delay - 1)"),
    "again adds what waits or runs": ("(state == 'd' or state == 'f') or lapsed", "state or lapsed"),
}
"""Mistakes of the library, by what they do: a text that stands once in it, and what comes in its place."""

IN_ORDER = """
local function __sorted(ids) table.sort(ids) return ids end
local function __some(name, n)
  local all, found = __sorted(redis.call('SMEMBERS', name)), {}
  for i = 1, math.min(#all, tonumber(n)) do found[i] = all[i] end
  return found
end
local function __scan(name) return {'0', __sorted(redis.call('SMEMBERS', name))} end
"""
"""A replacement for SRANDMEMBER and SSCAN, which know no order."""

STATE = """
local found, keys = {}, redis.call('KEYS', ARGV[1] .. '*')
table.sort(keys)
local function sorted(words)
  table.sort(words)
  return table.concat(words, '|')
end
local function sorted_pairs(flat)
  local rows = {}
  for i = 1, #flat, 2 do rows[#rows + 1] = flat[i] .. '=' .. flat[i + 1] end
  return sorted(rows)
end
local reads = {
  string = function(key) return redis.call('GET', key) .. (redis.call('PTTL', key) > 0 and ' for a time' or '') end,
  set = function(key) return sorted(redis.call('SMEMBERS', key)) end,
  hash = function(key) return sorted_pairs(redis.call('HGETALL', key)) end,
  zset = function(key) return sorted_pairs(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')) end,
  list = function(key) return table.concat(redis.call('LRANGE', key, 0, -1), '|') end,
  stream = function(key)
    local rows = {}
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do rows[#rows + 1] = table.concat(entry[2], ',') end
    return table.concat(rows, '|')
  end,
}
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  found[#found + 1] = key .. ' ' .. kind .. ' ' .. reads[kind](key)
end
return found
"""
"""All keys of a queue, each as a line."""

TELLS = "import json, timeoutq.server.scripts as s; print(json.dumps([s.NAME, [*s.verbs()], s.library()]))"


def asked(commit: str, code: str) -> Any:
    """Give what a program prints, as JSON, that runs in the package of a commit."""
    with TemporaryDirectory() as folder:
        tree = subprocess.run(["git", "archive", commit, "timeoutq"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        told = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def library_of(commit: str) -> tuple[str, str]:
    name, verbs, text = asked(commit, TELLS)
    other = {*verbs} ^ {*scripts.verbs()}
    assert not other, f"{commit} and this checkout have not the same verbs: {other}"
    return name, text


def by_the_rig(text: str) -> str:
    """Have a text read the clock from a key, and pick in the order of the ids."""
    text = re.sub(r"(?:redis\.)?\b(?:call|quiet)\('TIME'\)", "redis.call('LRANGE', 'clock', 0, 1)", text)
    text = re.sub(r"(?:redis\.)?\bcall\('SRANDMEMBER', ([^,()]+)\)", r"__some(\1, 1)[1]", text)
    text = re.sub(
        r"(?:redis\.)?\bcall\('SRANDMEMBER', ([^,]+(?:\([^)]*\))?), ([^()]+(?:\([^)]*\)|\[[^]]*\])?)\)",
        r"__some(\1, \2)",
        text,
    )
    return IN_ORDER + re.sub(
        r"(?:redis\.)?\bcall\('SSCAN', ([^,()]+(?: [^,()]+)*(?:\('[a-z]+'\))?), [^\n]*?'COUNT', [^\n]*?\)(?=\n|, |$)",
        r"__scan(\1)",
        text,
    )


class Side:
    """A server with one of the libraries, that of this checkout if none is given."""

    def __init__(self, url: str, name: str = scripts.NAME, text: str | None = None) -> None:
        self.client: Any = redis.Redis.from_url(url, protocol=2)
        self.client.flushall()
        self._state = self.client.register_script(STATE)
        self._name = name
        first, rest = (text or scripts.library()).split("\n", 1)
        self.client.function_load(f"{first}\n{by_the_rig(rest)}", replace=True)

    def call(self, queue: str, verb: str, args: Args) -> Any:
        """Call a verb; an error comes as its text, without where it was met."""
        keys = f"timeoutq:{{{queue}}}:meta", f"timeoutq:{{{queue}}}:lock:"
        try:
            return self.client.execute_command("FCALL", f"{self._name}_{verb}", 2, *keys, *args)
        except redis.ResponseError as error:
            return "ERROR " + re.sub(r" script: .*| this (?:function|script) takes.*", "", str(error))

    def set_clock(self, now_ms: int, micros: int) -> None:
        pipe = self.client.pipeline(transaction=False)
        pipe.delete("clock")
        pipe.rpush("clock", str(now_ms // 1000), str(now_ms % 1000 * 1000 + micros))
        pipe.execute()

    def state(self, queue: str) -> list[bytes]:
        return [re.sub(rb"run_id=\w+", b"run_id=x", row) for row in self._state(args=[f"timeoutq:{{{queue}}}:"])]


def canonical(verb: str, reply: Any) -> Any:
    """Give a reply without the order of what has none, and without what is the server's own."""

    def pairs(flat: Sequence[Any]) -> list[tuple[Any, ...]]:
        return sorted(zip(flat[::2], flat[1::2], strict=True))

    if isinstance(reply, str):
        return reply
    if verb == "stats":
        settings = [pair for pair in pairs(reply[10]) if pair[0] != b"run_id"]
        return [*reply[:9], pairs(reply[9]), settings, *reply[11:14], [pairs(one) for one in reply[14]]]
    if verb == "repair":
        # how many entries a scan shows twice while a set grows is up to the server, by the seed of its hashes
        return [reply[0], pairs(reply[2:])]
    if verb == "claim" and len(reply) > 4:
        # a list in which nothing stands may be left out
        return [
            *reply[:4],
            *(found if found and any(one is not None for one in found) else None for found in reply[4:7]),
        ]
    if verb == "drained":
        return [*reply[:2], *(pairs(found) for found in reply[2:])]
    if verb == "batches" and len(reply) > 2 and isinstance(reply[1], int):
        return [*reply[:2], sorted(zip(*[iter(reply[2:])] * 3, strict=True))]
    return reply


def difference(trail: Sequence[tuple[str, Args]], replies: Sequence[Any], states: Sequence[list[bytes]]) -> str:
    """Say what differs after the last call of a trail: its replies, and the keys."""
    verb, args = trail[-1]
    was, now = states
    lines = [f"call {len(trail)}: {verb} {args}", f"  before  {replies[0]}", f"  now     {replies[1]}"]
    lines += [f"  - {row!r}" for row in was if row not in now] + [f"  + {row!r}" for row in now if row not in was]
    return "\n".join([*lines, *(f"  earlier: {call}" for call in trail[-6:-1])])


def compare(sides: Sequence[Side], calls: int, seed: int, per_queue: int) -> tuple[Counter[str], int, str]:
    """Make random calls until one differs; give how many of each verb were made and were refused, and what differs."""
    chance = random.Random(seed)
    made, refused, queues = Counter[str](), 0, 0
    while made.total() < calls:
        queues += 1
        queue = f"q{seed}x{queues}"
        world = World(chance, sides[0].client, queue)
        begins, trail = world.settings(), list[tuple[str, Args]]()
        for _ in range(per_queue):
            world.passes()
            micros = chance.randrange(1000)
            for side in sides:
                side.set_clock(world.now, micros)
            verb, args = begins.pop() if begins else world.step()
            trail.append((verb, args))
            made[verb] += 1
            replies = [side.call(queue, verb, args) for side in sides]
            refused += isinstance(replies[0], str)
            states = [side.state(queue) for side in sides]
            said, says = (canonical(verb, reply) for reply in replies)
            if said != says or states[0] != states[1]:
                return made, refused, f"queue {queue}, {difference(trail, replies, states)}"
        for side in sides:
            side.client.flushall()
    return made, refused, ""


def main() -> int:
    """Compare on servers of the named kinds; exit code 1 if anything differs, or if a planted mistake is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", default="HEAD", metavar="COMMIT", help="the commit with the other library (HEAD)")
    parser.add_argument("--calls", type=int, default=20_000, help="how many calls on each kind of server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-queue", type=int, default=150, help="how many calls on each queue")
    parser.add_argument("--server", choices=["valkey", "redis", "both"], default="both")
    parser.add_argument("--plant", choices=[*PLANTS], help="a mistake that must be found")
    given = parser.parse_args()
    assert WEIGHTS.keys() == {*scripts.verbs()}, "a verb is never called"
    before, now, failed = library_of(given.against), scripts.library(), False
    if given.plant:
        old, new = PLANTS[given.plant]
        assert now.count(old) == 1, f"{old!r} stands {now.count(old)} times in the library"
        now = now.replace(old, new)
    for kind in ("valkey", "redis") if given.server == "both" else (given.server,):
        binary = binary_of(kind)
        with EmbeddedServer(binary=binary) as first, EmbeddedServer(binary=binary) as second:
            sides = Side(first.url, *before), Side(second.url, text=now)
            began = time.monotonic()
            made, refused, differs = compare(sides, given.calls, given.seed, given.per_queue)
        seconds = time.monotonic() - began
        print(f"{kind}: {made.total():,} calls of {len(made)} verbs, {refused:,} refused, {seconds:.0f} s", flush=True)
        print(differs or "  replies and keys are the same", flush=True)
        failed |= bool(differs) != bool(given.plant)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
