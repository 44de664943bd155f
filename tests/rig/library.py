"""Random calls of all verbs against the library and against the scripts that it has replaced: nothing may differ."""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from tests.rig.library_calls import VERBS, Args, World
from tests.rig.servers import redis_server, valkey
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
ORACLE = "b3b43a1"
"""The last commit whose verbs were scripts, called by EVALSHA."""

PLANTS = {
    "an ack leaves the payload": (
        "call('HDEL', key.payload, unpack(ended)) end\n      failures",
        "do end end\n      failures",
    ),
    "a host rests a ms less": (
        "hosts.rest_until(one, now + delay)",
        "hosts.rest_until(one, now + delay - 1)",
    ),
    "again adds what waits or runs": ("(state == 'd' or state == 'f') or lapsed", "state or lapsed"),
}
"""Mistakes of the library, by what they do: a text that stands once in it, and what comes in its place."""

READS_SCRIPTS = """
import json, pathlib, timeoutq.scripts as scripts
names = [path.stem for path in (pathlib.Path(scripts.__file__).parent / "lua").glob("*.lua")]
print(json.dumps({name: [list(scripts.script(name).keys), scripts.script(name).text] for name in names}))
"""

IN_ORDER = """
local function __sorted(ids) table.sort(ids) return ids end
local function __some(name, n)
  local all, found = __sorted(redis.call('SMEMBERS', name)), {}
  for i = 1, math.min(#all, tonumber(n)) do found[i] = all[i] end
  return found
end
local function __scan(name) return {'0', __sorted(redis.call('SMEMBERS', name))} end
"""
"""What stands in the place of SRANDMEMBER and SSCAN, which know no order."""

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

Script = tuple[list[str], str]
"""The keys of a script, and its text."""


def old_scripts() -> dict[str, Script]:
    """Give the scripts of the oracle, by their verbs."""
    with TemporaryDirectory() as folder:
        tree = subprocess.run(["git", "archive", ORACLE, "timeoutq"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        code = [sys.executable, "-c", READS_SCRIPTS]
        told = subprocess.run(code, cwd=folder, check=True, capture_output=True, text=True)
    return {name: (keys, text) for name, (keys, text) in json.loads(told.stdout).items()}


def by_the_rig(text: str) -> str:
    """Have a text read the clock from a key, and pick in the order of the ids."""
    text = re.sub(r"(?:redis\.)?\b(?:call|quiet)\('TIME'\)", "redis.call('LRANGE', 'clock', 0, 1)", text)
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
    """One of the two servers."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url, protocol=2)
        self.client.flushall()
        self._state = self.client.register_script(STATE)

    def head(self, queue: str, verb: str) -> Args:
        """Give the words of a call that say what is called, and its keys."""
        raise NotImplementedError

    def call(self, queue: str, verb: str, args: Args) -> Any:
        """Call a verb; an error comes as its text, without where it was met."""
        try:
            return self.client.execute_command(*self.head(queue, verb), *args)
        except redis.ResponseError as error:
            return "ERROR " + re.sub(r" script: .*| this (?:function|script) takes.*", "", str(error))

    def set_clock(self, now_ms: int, micros: int) -> None:
        pipe = self.client.pipeline(transaction=False)
        pipe.delete("clock")
        pipe.rpush("clock", str(now_ms // 1000), str(now_ms % 1000 * 1000 + micros))
        pipe.execute()

    def state(self, queue: str) -> list[bytes]:
        """Give all keys of a queue, each as a line."""
        return [re.sub(rb"run_id=\w+", b"run_id=x", row) for row in self._state(args=[f"timeoutq:{{{queue}}}:"])]


class Library(Side):
    """The server that has the library of this checkout."""

    def __init__(self, url: str, plant: str | None, prepared: Callable[[str], str] = by_the_rig) -> None:
        super().__init__(url)
        first, text = scripts.library().split("\n", 1)
        if plant is not None:
            old, new = PLANTS[plant]
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the library"
            text = text.replace(old, new)
        self.client.function_load(f"{first}\n{prepared(text)}", replace=True)

    def head(self, queue: str, verb: str) -> Args:
        return ["FCALL", scripts.function(verb), 2, f"timeoutq:{{{queue}}}:meta", f"timeoutq:{{{queue}}}:lock:"]


class Scripts(Side):
    """The server that has the scripts of the oracle."""

    def __init__(self, url: str, old: dict[str, Script], prepared: Callable[[str], str] = by_the_rig) -> None:
        super().__init__(url)
        self.known = {name: (self.client.script_load(prepared(text)), keys) for name, (keys, text) in old.items()}

    def head(self, queue: str, verb: str) -> Args:
        sha, keys = self.known[verb]
        named = [f"timeoutq:{{{queue}}}:{'lock:' if key == 'lock' else key}" for key in keys]
        return ["EVALSHA", sha, len(keys), *named]


def canonical(verb: str, reply: Any) -> Any:
    """Give a reply without the order of what has none, and without what is the server's own."""

    def pairs(flat: Sequence[Any]) -> list[tuple[Any, ...]]:
        return sorted(zip(flat[::2], flat[1::2], strict=True))

    if isinstance(reply, str):
        return reply
    if verb == "stats":
        settings = [pair for pair in pairs(reply[10]) if pair[0] != b"run_id"]
        return [*reply[:9], pairs(reply[9]), settings, *reply[11:14], [pairs(one) for one in reply[14]]]
    if verb == "claim" and len(reply) > 4:
        # the library gives the fence as a number, and nil for what no task has
        return [*reply[:2], int(reply[2]), reply[3], *(some or None for some in reply[4:7]), *reply[7:]]
    if verb == "drained":
        # the scripts looked through the names of all keys, too
        return [reply[0], reply[1].removeprefix(b"k"), *(pairs(found) for found in reply[2:])]
    if verb == "batches" and len(reply) > 2 and isinstance(reply[1], int):
        return [*reply[:2], sorted(zip(*[iter(reply[2:])] * 3, strict=True))]
    return reply


def difference(trail: Sequence[tuple[str, Args]], replies: Sequence[Any], states: Sequence[list[bytes]]) -> str:
    """Say what differs after the last call of a trail: its replies, and the keys."""
    verb, args = trail[-1]
    was, now = states
    lines = [f"call {len(trail)}: {verb} {args}", f"  script   {replies[0]}", f"  library  {replies[1]}"]
    lines += [f"  - {row!r}" for row in was if row not in now] + [f"  + {row!r}" for row in now if row not in was]
    return "\n".join([*lines, *(f"  before: {call}" for call in trail[-6:-1])])


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
    parser.add_argument("--calls", type=int, default=20_000, help="how many calls on each kind of server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-queue", type=int, default=150, help="how many calls on each queue")
    parser.add_argument("--server", choices=["valkey", "redis", "both"], default="both")
    parser.add_argument("--plant", choices=[*PLANTS], help="a mistake that must be found")
    given = parser.parse_args()
    old, failed = old_scripts(), False
    assert VERBS.keys() == old.keys() == {*scripts.verbs()}, "a verb is never called"
    for kind in ("valkey", "redis") if given.server == "both" else (given.server,):
        binary = valkey() if kind == "valkey" else redis_server()
        with EmbeddedServer(binary=binary) as first, EmbeddedServer(binary=binary) as second:
            sides = Scripts(first.url, old), Library(second.url, given.plant)
            began = time.monotonic()
            made, refused, differs = compare(sides, given.calls, given.seed, given.per_queue)
        seconds = time.monotonic() - began
        print(f"{kind}: {made.total():,} calls of {len(made)} verbs, {refused:,} refused, {seconds:.0f} s", flush=True)
        print(differs or "  replies and keys are the same", flush=True)
        failed |= bool(differs) != bool(given.plant)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
