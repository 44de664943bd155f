"""The raw limits of the server: how fast a bare client is in the same run, without timeoutq."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from tests.bench.ground import Figure, Ground, Measure, Readings, measure
from timeoutq.cli.bench import ids

_CLAIM = """
local time = redis.call('TIME')
local deadline = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
local ids, deadlines, tokens = redis.call('SRANDMEMBER', KEYS[1], ARGV[2]), {}, {}
for i = 1, #ids do
  redis.call('SMOVE', KEYS[1], KEYS[2], ids[i])
  redis.call('PSETEX', KEYS[5] .. ids[i], ARGV[3], ARGV[1])
  deadlines[2 * i - 1], deadlines[2 * i] = deadline, ids[i]
  tokens[2 * i - 1], tokens[2 * i] = ids[i], ARGV[1]
end
redis.call('ZADD', KEYS[3], unpack(deadlines))
redis.call('HSET', KEYS[4], unpack(tokens))
return ids
"""
_ACK = """
local ids = {unpack(ARGV, 2)}
local held, locks = redis.call('HMGET', KEYS[4], unpack(ids)), {}
for i = 1, #ids do
  if held[i] ~= ARGV[1] then return i end
  locks[i] = KEYS[5] .. ids[i]
end
for i = 1, #ids do
  redis.call('SMOVE', KEYS[2], KEYS[6], ids[i])
end
redis.call('DEL', unpack(locks))
redis.call('ZREM', KEYS[3], unpack(ids))
redis.call('HDEL', KEYS[4], unpack(ids))
return 0
"""
_ONE = "return redis.call('SADD', KEYS[1], ARGV[1])"


SLICES = 10


def slices(count: int) -> list[range]:
    """Cut `count` steps into slices; the median of their rates is told: a moment of the machine does not count."""
    parts = min(SLICES, count)
    return [range(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def rate(count: int, step: Callable[[int], object], each: int = 1) -> float:
    """Take `count` steps, each of which handles `each` tasks; give the tasks per second."""
    rates: list[float] = []
    for part in slices(count):
        began = time.perf_counter()
        for number in part:
            step(number)
        rates.append(each * len(part) / (time.perf_counter() - began))
    return median(rates)


@measure("ping", Figure("ping", "a raw PING, round trip", "µs"))
def ping(ground: Ground) -> Readings:
    return {"ping": 1e6 / rate(ground.sizes.trips, lambda _: ground.bare.execute_command("PING"))}


@measure("sadd", Figure("sadd", "a raw SADD of 1,000 ids a command", "tasks/s"))
def sadd(ground: Ground) -> Readings:
    with ground.queue() as queue:
        key, tasks = queue.operations.key("todos"), ids(ground.sizes.bulk)

        def add(number: int) -> None:
            ground.bare.execute_command("SADD", key, *tasks[number * 1000 : (number + 1) * 1000])

        return {"sadd": rate(len(tasks) // 1000, add, 1000)}


@measure("evalsha", Figure("evalsha", "a bare EVALSHA that writes one id", "tasks/s"))
def evalsha(ground: Ground) -> Readings:
    with ground.queue() as queue:
        key, sha, tasks = queue.operations.key("todos"), ground.load(_ONE), ids(ground.sizes.trips)

        def put(number: int) -> None:
            ground.bare.execute_command("EVALSHA", sha, 1, key, tasks[number])

        return {"evalsha": rate(len(tasks), put)}


def _bare(name: str, batch: int, *, one_flush: bool = False) -> Measure:
    how = "an ack and the next claim in one flush" if one_flush else "two round trips"

    @measure(name, Figure(name, f"bare Lua claim + ack of {batch}, {how}", "tasks/s"))
    def take(ground: Ground) -> Readings:
        count = ground.sizes.drained
        with ground.queue() as queue:
            ground.fill(queue.operations.key("todos"), ground.sizes.backlog)
            names = ("todos", "in_progress", "leases", "owners", "lock", "done")
            keys = [queue.operations.key(key) for key in names]
            claim = ground.evalsha(_CLAIM, keys, "bench#1", batch, 30_000)
            ack = ground.evalsha(_ACK, keys, "bench#1")
            found: Any = []

            def apart(_: int) -> None:
                found = ground.bare.execute_command(*claim)
                ground.bare.execute_command(*ack, *found)

            def together(_: int) -> None:
                nonlocal found
                pipe = ground.bare.pipeline(transaction=False)
                pipe.execute_command(*ack, *found)
                pipe.execute_command(*claim)
                _, found = pipe.execute()

            if one_flush:
                found = ground.bare.execute_command(*claim)
            fast = rate(count // batch, together if one_flush else apart, batch)
            if one_flush:
                ground.bare.execute_command(*ack, *found)
            return {name: fast}

    return take


BARE_100 = _bare("bare-100", 100, one_flush=True)
BARE_100_APART = _bare("bare-100-apart", 100)
