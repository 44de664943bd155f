"""What a call costs the server: by the library, and by functions that make the same writes without any check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import redis

from tests.rig.library import asked, library_of
from tests.rig.servers import binary_of
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer

FLOOR = """#!lua name=floor
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function key(keys, name) return string.sub(keys[1], 1, -5) .. name end
local functions = {}
function functions.put(keys, words)
  local count = redis.call('SADD', key(keys, 'todos'), unpack(words, 4))
  redis.call('HINCRBY', key(keys, 'stats'), 'put', count)
  redis.call('ZADD', key(keys, 'calls'), now(), words[1])
  return count
end
function functions.claim(keys, words)
  local todos, running, prefix = key(keys, 'todos'), key(keys, 'in_progress'), key(keys, 'lock:')
  local ids, deadline, rows, owners = redis.call('SRANDMEMBER', todos, words[3]), now() + words[4], {}, {}
  if #ids == 0 then return {} end
  for i = 1, #ids do
    redis.call('SMOVE', todos, running, ids[i])
    redis.call('PSETEX', prefix .. ids[i], words[4], words[1])
    rows[2 * i - 1], rows[2 * i] = deadline, ids[i]
    owners[2 * i - 1], owners[2 * i] = ids[i], words[1]
  end
  redis.call('ZADD', key(keys, 'leases'), unpack(rows))
  redis.call('HSET', key(keys, 'owners'), unpack(owners))
  redis.call('HINCRBY', key(keys, 'stats'), 'claimed', #ids)
  redis.call('HSET', keys[1], 'fence', deadline)
  return {deadline, deadline, deadline, ids}
end
function functions.extend(keys, words)
  redis.call('PEXPIRE', key(keys, 'lock:') .. words[7], words[3])
  return redis.call('ZADD', key(keys, 'leases'), now() + words[3], words[7])
end
function functions.ack(keys, words)
  local from, into, locks = key(keys, 'in_progress'), key(keys, 'done'), {}
  for i = 6, #words do
    redis.call('SMOVE', from, into, words[i])
    locks[#locks + 1] = key(keys, 'lock:') .. words[i]
  end
  redis.call('DEL', unpack(locks))
  redis.call('ZREM', key(keys, 'leases'), unpack(words, 6))
  redis.call('HDEL', key(keys, 'owners'), unpack(words, 6))
  redis.call('HINCRBY', key(keys, 'stats'), 'acked', #locks)
  redis.call('ZADD', key(keys, 'calls'), now(), words[1])
  return #locks
end
redis.register_function('floor_put', functions.put)
redis.register_function('floor_claim', functions.claim)
redis.register_function('floor_extend', functions.extend)
redis.register_function('floor_ack', functions.ack)
"""

ONE = ("put", "claim", "extend", "ack")
"""The calls of one task, whose sum is compared."""

ROWS = (*ONE, "sum of one", "empty claim", "claim of 100", "ack of 100")


SCRIPTS = "b3b43a1"
"""The last commit whose verbs were scripts, called by EVALSHA."""

READ_SCRIPTS = f"""
import json, timeoutq.scripts as scripts
print(json.dumps({{verb: [scripts.script(verb).keys, scripts.script(verb).text] for verb in {ONE}}}))
"""


class Side:
    """A server with one library, and calls of it in a pipeline."""

    def __init__(self, url: str, name: str, text: str) -> None:
        self.client: Any = redis.Redis.from_url(url, protocol=2)
        self.client.function_load(text, replace=True)
        self._name = name

    def head(self, verb: str) -> list[Any]:
        return ["FCALL", f"{self._name}_{verb}", 2, "timeoutq:{q}:meta", "timeoutq:{q}:lock:"]

    def timed(self, verb: str, calls: Sequence[Sequence[Any]]) -> tuple[float, list[Any]]:
        """Give the server's µs of a call, and the replies."""
        self.client.config_resetstat()
        with self.client.pipeline(transaction=False) as pipe:
            for args in calls:
                pipe.execute_command(*self.head(verb), *args)
            replies = pipe.execute()
        told = self.client.info("commandstats")
        return sum(told.get(f"cmdstat_{how}", {"usec": 0})["usec"] for how in ("fcall", "evalsha")) / len(
            calls
        ), replies

    def round(self, n: int) -> dict[str, float]:
        """Bring `n` tasks through a queue one by one, and as many in hundreds; give the server's µs of each call."""
        self.client.flushdb()
        ids, found = [f"https://example.com/{number}" for number in range(n)], dict[str, float]()
        found["put"], _ = self.timed("put", [[f"p#{i:x}", 0, 1, task] for i, task in enumerate(ids)])
        found["claim"], claimed = self.timed("claim", [[f"c#{i}", 0, 1, 30_000, 0] for i in range(n)])
        held = [(f"c#{i}", reply[3][0]) for i, reply in enumerate(claimed)]
        found["extend"], _ = self.timed("extend", [["", 0, 30_000, 1, token, 1, task] for token, task in held])
        found["ack"], _ = self.timed("ack", [[f"a#{i:x}", 0, 1, t, 1, task] for i, (t, task) in enumerate(held)])
        found["sum of one"] = sum(found.values())
        found["empty claim"], _ = self.timed("claim", [[f"e#{i}", 0, 1, 30_000, 0] for i in range(n)])
        hundreds = [[f"{task}/" for task in ids[at : at + 100]] for at in range(0, n, 100)]
        self.timed("put", [[f"h#{i:x}", 0, len(part), *part] for i, part in enumerate(hundreds)])
        taken = [[f"h#{i}", 0, 100, 30_000, 0] for i in range(len(hundreds))]
        found["claim of 100"], claimed = self.timed("claim", taken)
        acks = [[f"b#{i:x}", 0, len(r[3]), f"h#{i}", len(r[3]), *r[3]] for i, r in enumerate(claimed)]
        found["ack of 100"], _ = self.timed("ack", acks)
        return found


class Scripts(Side):
    """A server with the scripts of before, which are called by EVALSHA."""

    def __init__(self, url: str, texts: dict[str, tuple[list[str], str]]) -> None:
        self.client = redis.Redis.from_url(url, protocol=2)
        self._known = {verb: (self.client.script_load(text), keys) for verb, (keys, text) in texts.items()}

    def head(self, verb: str) -> list[Any]:
        sha, keys = self._known[verb]
        return ["EVALSHA", sha, len(keys), *(f"timeoutq:{{q}}:{'lock:' if key == 'lock' else key}" for key in keys)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--against", metavar="COMMIT", help=f"the commit whose library runs beside (scripts of {SCRIPTS})"
    )
    parser.add_argument("--tasks", type=int, default=2000, help="how many tasks in a round, in hundreds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server", choices=["valkey", "redis", "both"], default="both")
    given = parser.parse_args()
    ours = scripts.NAME, scripts.library()
    before = library_of(given.against) if given.against else asked(SCRIPTS, READ_SCRIPTS)
    sides = {"before": before, "library": ours, "again": ours, "floor": ("floor", FLOOR)}
    for kind in ("valkey", "redis") if given.server == "both" else (given.server,):
        seen: dict[str, dict[str, list[float]]] = {name: {row: [] for row in ROWS} for name in sides}
        for _ in range(given.rounds):
            for name, how in sides.items():
                # a server of its own, so that no side has the memory of another
                with EmbeddedServer(binary=binary_of(kind)) as server:
                    side = Scripts(server.url, how) if isinstance(how, dict) else Side(server.url, *how)
                    side.round(200)
                    for row, micros in side.round(given.tasks).items():
                        seen[name][row].append(micros)
                    side.client.close()
        print(f"{kind}, µs of a call".ljust(20), *(f"{name:>8}" for name in sides), "  of before", "  of the floor")
        for row in ROWS:
            costs = [median(seen[name][row]) for name in sides]
            ratios = f"{costs[1] / costs[0]:11.2f} {costs[1] / costs[3]:14.2f}"
            print(f"{row:20}", *(f"{cost:8.1f}" for cost in costs), ratios, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
