"""What a call costs the server: by the scripts of before, by the library, and by functions that only write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from tests.rig.library import Library, Scripts, Side, old_scripts
from tests.rig.library_calls import Args
from tests.rig.servers import redis_server, valkey
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

ROWS = ("put", "claim", "extend", "ack", "empty claim", "claim of 100", "ack of 100")
ONE = ROWS[:4]
"""The calls of one task, whose sum is compared."""


class Floor(Side):
    """The server that has the functions which only write."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.client.function_load(FLOOR, replace=True)

    def head(self, queue: str, verb: str) -> Args:
        return ["FCALL", f"floor_{verb}", 2, f"timeoutq:{{{queue}}}:meta", f"timeoutq:{{{queue}}}:lock:"]


def timed(side: Side, verb: str, calls: Sequence[Args]) -> tuple[float, list[Any]]:
    """Make calls in a pipeline; give the server's µs of one, and the replies."""
    side.client.config_resetstat()
    with side.client.pipeline(transaction=False) as pipe:
        for args in calls:
            pipe.execute_command(*side.head("q", verb), *args)
        replies = pipe.execute()
    told = side.client.info("commandstats")
    return sum(told[name]["usec"] for name in ("cmdstat_fcall", "cmdstat_evalsha") if name in told) / len(
        calls
    ), replies


def one_round(side: Side, n: int) -> dict[str, float]:
    """Bring `n` tasks through a queue one by one, and as many in hundreds; give the server's µs of a call."""
    side.client.flushdb()
    ids, found = [f"https://example.com/{number}" for number in range(n)], dict[str, float]()
    found["put"], _ = timed(side, "put", [[f"p#{i:x}", 0, 1, task] for i, task in enumerate(ids)])
    found["claim"], claimed = timed(side, "claim", [[f"c#{i}", 0, 1, 30_000, 0] for i in range(n)])
    held = [(f"c#{i}", reply[3][0]) for i, reply in enumerate(claimed)]
    found["extend"], _ = timed(side, "extend", [["", 0, 30_000, 1, token, 1, task] for token, task in held])
    found["ack"], _ = timed(side, "ack", [[f"a#{i:x}", 0, 1, t, 1, task] for i, (t, task) in enumerate(held)])
    found["empty claim"], _ = timed(side, "claim", [[f"e#{i}", 0, 1, 30_000, 0] for i in range(n)])
    hundreds = [ids[at : at + 100] for at in range(0, n, 100)]
    timed(side, "put", [[f"h#{i:x}", 0, 100, *(f"{task}/" for task in part)] for i, part in enumerate(hundreds)])
    found["claim of 100"], claimed = timed(side, "claim", [[f"h#{i}", 0, 100, 30_000, 0] for i in range(len(hundreds))])
    parts = [(f"h#{i}", reply[3]) for i, reply in enumerate(claimed)]
    acks: list[Args] = [[f"b#{i:x}", 0, len(part), token, len(part), *part] for i, (token, part) in enumerate(parts)]
    found["ack of 100"], _ = timed(side, "ack", acks)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000, help="how many tasks in a round, in hundreds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server", choices=["valkey", "redis", "both"], default="both")
    given = parser.parse_args()
    old = old_scripts()

    def with_scripts(url: str) -> Side:
        return Scripts(url, old, str)

    def with_library(url: str) -> Side:
        return Library(url, None, str)

    sides: dict[str, Callable[[str], Side]] = {
        "before": with_scripts,
        "a": with_library,
        "b": with_library,
        "floor": Floor,
    }
    for kind in ("valkey", "redis") if given.server == "both" else (given.server,):
        binary = valkey() if kind == "valkey" else redis_server()
        seen: dict[str, dict[str, list[float]]] = {name: {row: [] for row in ROWS} for name in sides}
        for _ in range(given.rounds):
            for name, made in sides.items():
                # a server of its own, so that no side has the memory of another
                with EmbeddedServer(binary=binary) as server:
                    side = made(server.url)
                    one_round(side, 200)
                    for row, micros in one_round(side, given.tasks).items():
                        seen[name][row].append(micros)
                    side.client.close()
        costs = {name: {row: median(found) for row, found in rows.items()} for name, rows in seen.items()}
        for rows in costs.values():
            rows["sum of one"] = sum(rows[row] for row in ONE)
        print(f"{kind}: µs of a call   before  library  again   floor   library/before  library/floor")
        for row in (*ROWS, "sum of one"):
            before, a, b, floor = (costs[name][row] for name in seen)
            print(
                f"  {row:18} {before:9.1f} {a:8.1f} {b:7.1f} {floor:7.1f} {a / before:12.2f} {a / floor:14.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
