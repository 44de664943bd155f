"""Random calls of all verbs against the library and against the scripts that it has replaced: nothing may differ.

`python -m tests.rig.library --calls 200000` starts two servers of a kind, gives one the library of this checkout and
the other the scripts of the last commit that had them, and makes the same calls to both, by the same clock: puts,
claims, acks, failures, imports, settings, repairs, on plain, polite, compact, logged and durable queues, right ones and
wrong ones, some sent again. After each call the reply and every key of the queue must be the same. Where a verb picks
at random, both pick in the order of the ids. With `--plant`, the library has a mistake, and the rig must find it.
"""

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

from tests.rig.servers import redis_server, valkey
from timeoutq import scripts
from timeoutq.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
ORACLE = "b3b43a1"
"""The last commit whose verbs were scripts, called by EVALSHA."""

PLANTS = {
    "an ack leaves the payload": ("call('HDEL', key.payload, unpack(ended)) end\n      failures", "do end end\n      failures"),
    "a host rests a ms less": ("one.next_ms, one.rested = now + delay, true", "one.next_ms, one.rested = now + delay - 1, true"),
    "a second put of a failed task adds it": ("(state == 'd' or state == 'f') or lapsed", "state or lapsed"),
}
"""Mistakes of the library, by what they do."""

READS_IDS = """
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
local function sorted_pairs(flat)
  local rows = {}
  for i = 1, #flat, 2 do rows[#rows + 1] = flat[i] .. '=' .. flat[i + 1] end
  table.sort(rows)
  return table.concat(rows, '|')
end
for _, key in ipairs(keys) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = redis.call('GET', key) .. (redis.call('PTTL', key) > 0 and ' for a time' or ' for ever')
  elseif kind == 'set' then local ids = redis.call('SMEMBERS', key) table.sort(ids) value = table.concat(ids, '|')
  elseif kind == 'hash' then value = sorted_pairs(redis.call('HGETALL', key))
  elseif kind == 'zset' then value = sorted_pairs(redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'))
  elseif kind == 'list' then value = table.concat(redis.call('LRANGE', key, 0, -1), '|')
  elseif kind == 'stream' then
    local rows = {}
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do rows[#rows + 1] = table.concat(entry[2], ',') end
    value = table.concat(rows, '|')
  end
  found[#found + 1] = key .. ' ' .. kind .. ' ' .. value
end
return found
"""
"""All keys of a queue, each as a line."""

Args = list[Any]


def old_scripts() -> dict[str, tuple[list[str], str]]:
    """Give the keys and the text of each script of the oracle."""
    with TemporaryDirectory() as folder:
        tree = subprocess.run(["git", "archive", ORACLE, "timeoutq"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        told = subprocess.run([sys.executable, "-c", READS_IDS], cwd=folder, check=True, capture_output=True, text=True)
    return {name: (keys, text) for name, (keys, text) in json.loads(told.stdout).items()}


def by_the_clock_of_the_rig(text: str) -> str:
    """Have a text read the clock from a key, and pick in the order of the ids."""
    text = re.sub(r"(?:redis\.)?\b(?:call|quiet)\('TIME'\)", "redis.call('LRANGE', 'clock', 0, 1)", text)
    text = re.sub(
        r"(?:redis\.)?\bcall\('SRANDMEMBER', ([^,]+(?:\([^)]*\))?), ([^()]+(?:\([^)]*\)|\[[^]]*\])?)\)", r"__some(\1, \2)", text
    )
    return re.sub(
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
        self.head: Callable[[str, str], list[Any]] = lambda queue, verb: []

    def use_library(self, plant: str | None) -> None:
        """Call the verbs of the library, with a mistake if one is named."""
        first, text = scripts.library().split("\n", 1)
        if plant is not None:
            old, new = PLANTS[plant]
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the library"
            text = text.replace(old, new)
        self.client.function_load(f"{first}\n{IN_ORDER}{by_the_clock_of_the_rig(text)}", replace=True)
        self.head = lambda queue, verb: ["FCALL", scripts.function(verb), 1, f"timeoutq:{{{queue}}}:meta"]

    def use_scripts(self, old: dict[str, tuple[list[str], str]]) -> None:
        """Call the scripts of the oracle."""
        known = {
            name: (self.client.script_load(IN_ORDER + by_the_clock_of_the_rig(text)), keys)
            for name, (keys, text) in old.items()
        }

        def head(queue: str, verb: str) -> list[Any]:
            sha, keys = known[verb]
            named = [f"timeoutq:{{{queue}}}:{'lock:' if key == 'lock' else key}" for key in keys]
            return ["EVALSHA", sha, len(keys), *named]

        self.head = head

    def call(self, queue: str, verb: str, args: Args) -> Any:
        """Call a verb; an error comes as its text, without where it was met."""
        try:
            return self.client.execute_command(*self.head(queue, verb), *args)
        except redis.ResponseError as error:
            return "ERROR " + re.sub(r" script: .*| this (?:function|script) takes.*", "", str(error))

    def set_clock(self, now_ms: int, micros: int) -> None:
        """Set the clock of the rig."""
        pipe = self.client.pipeline(transaction=False)
        pipe.delete("clock")
        pipe.rpush("clock", str(now_ms // 1000), str(now_ms % 1000 * 1000 + micros))
        pipe.execute()

    def state(self, queue: str) -> list[bytes]:
        """Give all keys of a queue, each as a line."""
        rows = [re.sub(rb"run_id=\w+", b"run_id=x", row) for row in self._state(args=[f"timeoutq:{{{queue}}}:"])]
        # repair meets keys in the order of SCAN, so of an entry of the log only the words count, not their order
        return [b" ".join(sorted(re.split(rb"[,\n|]", row))) if b":events stream" in row else row for row in rows]


def canonical(verb: str, reply: Any) -> Any:
    """Give a reply without the order of what has none, and without what is the server's own."""

    def pairs(flat: Sequence[Any]) -> list[tuple[Any, ...]]:
        return sorted(zip(flat[::2], flat[1::2], strict=True))

    if isinstance(reply, str):
        return reply
    if verb == "stats":
        settings = [pair for pair in pairs(reply[10]) if pair[0] != b"run_id"]
        return [*reply[:9], pairs(reply[9]), settings, *reply[11:14], [pairs(one) for one in reply[14]]]
    if verb == "drained" and len(reply) > 2:
        return [*reply[:2], pairs(reply[2])]
    if verb == "repair":
        return [reply[0], pairs(reply[2:])]  # how many keys it has looked at is up to SCAN
    if verb == "batches" and len(reply) > 2 and isinstance(reply[1], int):
        return [*reply[:2], sorted(zip(*[iter(reply[2:])] * 3, strict=True))]
    return reply


def section(name: str, *words: Any) -> Args:
    """Give the words of an option."""
    return [name, len(words), *words]


def pos(r, name, n, word, share=.4):
    found = [(i + 1, word()) for i in range(n) if r.random() < share]
    return section(name, *[x for p in found for x in p]) if found else []

class World:
    """What a client of one queue knows, and the calls that it makes."""
    def __init__(self, r, oracle, queue):
        self.r, self.oracle, self.queue = r, oracle, queue
        self.n = 0
        self.now = 1_700_000_000_000 + r.randrange(10**9)
        hosts = ['a.example', 'b.example', 'c.example:8080', 'XN.Example', 'münchen.example', 'd.example']
        self.ids = [f'https://{r.choice(hosts)}/{i}' for i in range(10)] + ['plain', 'odd id', 'a\nb', 'back\\slash', '', '\0nul', 'https://u@E.example:443/x'] 
        self.ids = [i for i in self.ids if i]
        self.tokens = [f'w{i}#{i}' for i in range(3)]
        self.past = []
        self.batch_names = ['b1', 'b2']
        self.begun = set()
    def key(self, k): return f'timeoutq:{{{self.queue}}}:{k}'
    def cid(self, client='c'):
        self.n += 1
        return f'{client}{self.r.randrange(3)}#{self.n:x}{self.r.choice("0123456789abcdef")}'
    def some(self, low=1, high=4, twice=True):
        k = self.r.randint(low, high)
        return [self.r.choice(self.ids) for _ in range(k)] if twice and self.r.random() < .3 else self.r.sample(self.ids, min(k, len(self.ids)))
    def leases(self, most=4):
        held = self.oracle.hgetall(self.key('owners'))
        pairs = [(k, v) for k, v in held.items()]
        self.r.shuffle(pairs)
        pairs = pairs[:self.r.randint(1, most)]
        if self.r.random() < .15: pairs.append((self.r.choice(self.ids).encode(), b'w9#9'))
        if self.r.random() < .1 and self.past: pairs.append(self.r.choice(self.past))
        if self.r.random() < .05 and pairs: pairs.append(pairs[0])
        self.past = (self.past + pairs)[-20:]
        pairs = pairs or [(self.r.choice(self.ids).encode(), b'w0#0')]
        words = [len(pairs)]
        for i, (id, token) in enumerate(pairs): words += [token, 1, id]
        return pairs, words
    def options(self, n, kind):
        r, o = self.r, []
        if r.random() < .15: o += section('again')
        if r.random() < .2: o += section('group', r.choice(['g.example', 'a.example', 'x' * 30]))
        if r.random() < .25: o += pos(r, 'payloads', n, lambda: r.choice(['{"a":1}', 'x' * 70, '\0']))
        if r.random() < .15: o += pos(r, 'groups', n, lambda: r.choice(['g1', 'b.example']))
        if r.random() < .15: o += section('priority', r.choice([0, 5, -3, 1000, -1000, 1001, 'x']))
        if r.random() < .15: o += pos(r, 'priorities', n, lambda: r.choice([1, -1, 7, 0]))
        if r.random() < .12: o += section('improve', *([] if r.random() < .5 else [r.randint(1, n)]))
        if r.random() < .12: o += section('batch', r.choice(self.batch_names + ['bad name!']))
        if r.random() < .15: o += pos(r, 'unique', n, lambda: r.choice([0, 1000, 60000]))
        if kind == 'put' and r.random() < .12: o += section('rerun', *([] if r.random() < .5 else [r.randint(1, n)]))
        if r.random() < .01: o += section('what', 1)
        return o
    def settings(self):
        """Give the calls with which a queue begins: most have capabilities from the start."""
        r, first = self.r, []
        if r.random() < .6: first.append(('configure', [self.cid(), 0, 'politeness', r.choice(['0 1', '1000 1', '500 2', '0 100', '200 8'])]))
        if r.random() < .25: first.append(('configure', [self.cid(), 0, 'keep_done', r.choice(['no', 'compact salty', 't60000', 'n3'])]))
        if r.random() < .3: first.append(('configure', [self.cid(), 0, 'events', '64000000 all']))
        if r.random() < .2: first.append(('configure', [self.cid(), 0, 'durable', '1']))
        return first
    def passes(self):
        """Let time pass, or not; seldom, the clock steps back."""
        r = self.r
        self.now += r.choice([0, 1, 7, 100, 900, 1000, 5000, 40000]) if r.random() < .6 else 0
        if r.random() < .003: self.now -= 100000
    def age(self): return 0 if self.r.random() < .9 else self.r.choice([1, 700, 70000])
    def again(self):
        # the same call once more, as a client does whose reply was lost
        return None
    def step(self):
        r = self.r
        if r.random() < .08 and getattr(self, 'last', None) and self.last[0] in ('put', 'schedule', 'ack', 'fail', 'release', 'claim', 'cancel', 'restore', 'restore_hosts', 'beat', 'set_schedule', 'tick', 'extend', 'crash', 'kind', 'renew'):
            name, args = self.last
            return name, [args[0], r.choice([0, 5, 900]), *args[2:]]
        name = r.choices(list(VERBS), weights=list(VERBS.values()))[0]
        args = getattr(self, name)()
        self.last = (name, args)
        return name, args
    # verbs
    def put(self):
        ids = self.some()
        o = self.options(len(ids), 'put')
        if self.r.random() < .05: o += section('visited', self.r.choice(self.ids))
        return [self.cid(), self.age(), len(ids), *ids, *o]
    def schedule(self):
        ids = self.some()
        due = self.r.choice([f'+{self.r.choice([0, 100, 5000, 90000])}', str(self.now + self.r.randint(-1000, 100000)), 'soon', '253370764800000'])
        return [self.cid(), self.age(), due, len(ids), *ids, *self.options(len(ids), 'schedule')]
    def claim(self):
        r = self.r
        token = r.choice(self.tokens) if r.random() < .2 else f'w{r.randrange(3)}#{self.n}'
        self.n += 1
        if token not in self.tokens: self.tokens = (self.tokens + [token])[-8:]
        o = []
        if r.random() < .2: o += section('max_runtime', r.choice([20000, 45000, 100000]))
        if r.random() < .2: o += section('share', r.choice([1, 2, 3]))
        return [token, self.age(), r.choice([0, 1, 1, 2, 5, 500]), r.choice([30000, 60000, 45000]), r.choice([0, 0, self.now + 500, self.now - 5]), *o]
    def extend(self):
        return [self.cid(), 0, self.r.choice([30000, 60000, 90000]), *self.leases()[1]]
    def ack(self):
        r = self.r
        one = r.random() < .4
        pairs, words = self.leases(1 if one else 4)
        o = []
        if r.random() < .15: o += section('again', r.choice([0, 1000, 50000]))
        if one and r.random() < .2: o += section('payload', 'new')
        if r.random() < .35:
            found = self.some()
            if r.random() < .2: found[0] = pairs[0][0]
            o += section('put', *found)
            n = len(found)
            if r.random() < .3: o += pos(r, 'payloads', n, lambda: 'body')
            if r.random() < .2: o += pos(r, 'groups', n, lambda: 'g2')
            if r.random() < .2: o += pos(r, 'priorities', n, lambda: r.choice([1, 4, -4]))
            if r.random() < .15: o += section('improve')
            if r.random() < .15: o += pos(r, 'unique', n, lambda: r.choice([0, 5000]))
            if r.random() < .15: o += section('rerun')
        if r.random() < .15:
            o += pos(r, 'results', len(pairs), lambda: 'result', 1)
            if r.random() < .5: o += pos(r, 'times', len(pairs), lambda: r.choice([100000, 300000]), 1)
        if r.random() < .15: o += section('bare', *[i + 1 for i in range(len(pairs)) if r.random() < .6])
        if r.random() < .15: o += pos(r, 'until', len(pairs), lambda: r.choice([1000, 100000]), .7)
        return ['a' + self.cid(), self.age(), *words, *o]
    def fail(self):
        r = self.r
        pairs, words = self.leases()
        n = len(pairs)
        ends = []
        for _ in range(n): ends += [r.choice([-1, -1, 0, 1000, 60000]), r.choice(['boom 42', 'HTTP 404 at https://x/y', 'ValueError: ' + 'z' * 100, 'status 503', ''])]
        o = []
        if r.random() < .2: o += pos(r, 'blocks', n, lambda: r.choice([1000, 60000]))
        if r.random() < .3: o += pos(r, 'traces', n, lambda: r.choice(['d1', 'd2']), .8) + section('texts', 'd1', 'Traceback 1', 'd2', 'Traceback 2')
        if r.random() < .2: o += pos(r, 'results', n, lambda: 'failed result', .7)
        if r.random() < .02: ends[0] = 'x'
        return ['f' + self.cid(), self.age(), *words, *ends, *o]
    def release(self):
        r = self.r
        pairs, words = self.leases()
        o = []
        if r.random() < .3: o += section('delay', r.choice([0, 1000, 60000]))
        if r.random() < .25: o += section('block', r.choice([1000, 60000]))
        if r.random() < .15: o += section('deadline', self.now + 30000)
        if r.random() < .4: o += section('most', r.choice([1, 2, 5]))
        if r.random() < .2:
            o += section('within', r.choice([1000, 100000]))
            if r.random() < .6: o += pos(r, 'functions', len(pairs), lambda: r.choice(['f1 aa\nno such function', 'f1 bb\nx', 'f2 -\ny']), .8)
        return ['r' + self.cid(), self.age(), *words, *o]
    def crash(self): return [self.cid(), 0, 'the process died', *self.leases()[1]]
    def beat(self):
        r = self.r
        o = pos(r, 'durations', 5, lambda: r.randint(1, 4)) if r.random() < .5 else []
        return [self.cid(), self.age(), f'worker{r.randrange(3)}', r.choice(['', '{"pid":1}', '{"pid":2}']), *o]
    def note(self):
        pairs, words = self.leases(1)
        words = [1, pairs[0][1], 1, pairs[0][0]]
        return [self.cid(), 0, *words, '3', self.r.choice(['10', '-']), 'half way']
    def requeue_expired(self): return [self.cid(), 0, self.r.choice([1, 3, 200]), self.r.choice([0, 0, self.now, self.now - 10000])]
    def promote_due(self): return [self.cid(), 0, self.r.choice([1, 3, 500])]
    def plan(self): return [self.cid(), 0, 10000]
    def prune(self): return [self.cid(), 0, self.r.choice([2, 500]), '0']
    def pull(self): return [self.cid(), 0, 500]
    def cancel(self): return [self.cid(), self.age(), self.r.choice(['ann', 'bob']), *self.some()]
    def forget(self): return [self.cid(), 0, *self.some()]
    def retry_failed(self): return [self.cid(), 0, 500, *(self.some() if self.r.random() < .7 else [])]
    def kind(self):
        texts = [k[1:] for k in self.oracle.hkeys(self.key('kinds')) if k.startswith(b'=')] + [b'none', b'']
        return [self.cid(), 0, self.r.choice(['retry', 'forget']), self.r.choice(texts), self.r.choice([0, self.now]), self.r.choice([1, 100])]
    def configure(self):
        r = self.r
        sets = {'keep_done': ['forever', 'no', 't60000', 'n5', 'compact saltsalt', 'compact'], 'max_crashes': ['1', '2', '5'], 'politeness': ['1000 1', '0 1', '0 2', '500 3', '1000 100', 'off', 'bad'],
                'paused': ['0', '1', '0', '0'], 'durable': ['0', '1'], 'events': ['64000000 all', '1000000 ends', '- off', '- all'], 'timeout': ['30']}
        words = []
        for name in r.sample(list(sets), r.choice([1, 1, 2])): words += [name + ('?' if r.random() < .15 else ''), r.choice(sets[name])]
        return [self.cid(), 0, *words]
    def convert(self): return [self.cid(), 0, self.r.choice([3, 500])]
    def host(self):
        r = self.r
        words = []
        for _ in range(r.choice([0, 1, 1, 2])):
            words += r.choice([['delay', r.choice([0, 2000, ''])], ['per_host', r.choice([1, 2, 5, ''])], ['budget', r.choice([0, 1, 3, ''])], ['block', r.choice([5000, f'@{self.now + 9000}'])], ['by', 'me'], ['unblock', ''], ['ban', 'spam'], ['recall', '']])
        return [self.cid(), 0, r.choice(['a.example', 'b.example', 'g.example', 'g1', 'zzz']), *words]
    def hosts(self): return [self.cid(), 0, 0, 10]
    def describe_hosts(self): return [self.cid(), 0, 'a.example', 'b.example', 'g1']
    def inspect(self): return [self.cid(), 0, self.r.choice(self.ids)]
    def why(self): return [self.cid(), 0, self.r.choice(self.ids), self.r.choice(['', 'a.example'])]
    def states(self): return [self.cid(), 0, *self.some()]
    def stats(self): return [self.cid(), 0]
    def describe(self): return [self.cid(), 0, 1000000, *self.some(twice=False)]
    def drained(self): return [self.cid(), 0, self.r.choice(['+inf', self.now + 5000]), '0', self.r.choice([0, 1])]
    def await_(self): return [self.cid(), 0, self.r.choice(['', 'client1', 'client2', 'bad client']), *self.some(twice=False)]
    def batches(self):
        r = self.r
        return [self.cid(), 0, *r.choice([['names', '', 'b1', 'b2'], ['page', 0, 10], ['tasks', 'b1', 1, 100]])]
    def seal_batch(self):
        r = self.r
        name = r.choice(['b1', 'b2', 'b3'])
        o = []
        if r.random() < .5: o += section('callback', r.choice(['callback', *self.ids[:2]]))
        if r.random() < .3: o += section('payload', 'cb')
        if r.random() < .2: o += section('group', 'g1')
        return [self.cid(), 0, name, r.choice('edx'), 60000, r.choice(['dig1', 'dig2']), *o]
    def restore(self):
        r = self.r
        ids = self.some(twice=False)
        n = len(ids)
        letters = ''.join(r.choice('tsdf') for _ in ids)
        o = section('times', *[x for i, c in enumerate(letters) if c in 'sd' for x in (i + 1, self.now + r.randint(-5000, 50000))])
        if r.random() < .4: o += pos(r, 'failures', n, lambda: 2) + pos(r, 'crashes', n, lambda: 1) + pos(r, 'errors', n, lambda: f'{self.now - 10} boom')
        if r.random() < .4: o += pos(r, 'payloads', n, lambda: 'old') + pos(r, 'groups', n, lambda: 'g1') + pos(r, 'priorities', n, lambda: 3)
        if r.random() < .2: o += pos(r, 'untils', n, lambda: self.now + 4000)
        return [self.cid(), self.age(), n, *ids, letters, *o]
    def restore_hosts(self): return [self.cid(), self.age(), 'a.example', '500', '', '3', 2, 1, self.now + 100, 0, '-', '', 'z.example', '', '', '', 0, 0, 0, self.now + 5000, 'b', 'why']
    def restore_batch(self):
        ids = self.some(twice=False)
        return [self.cid(), 0, self.r.choice(['b1', 'b4']), self.r.choice(['e', 'd', '-', '-']), 60000, 'dig1', self.r.choice(['', 'callback']), len(ids), *ids, ''.join(self.r.choice('odl') for _ in ids)]
    def publish(self): return [self.cid(), 0, 'worker1', self.r.choice(['f1', 'f2']), self.r.choice(['aa', 'bb', 'cc']), '{"takes":[]}']
    def set_schedule(self):
        r = self.r
        name = r.choice(['s1', 's2'])
        text = self.oracle.hget(self.key('ticked'), name)
        seen = '-'
        if text:
            w = text.decode().split(' ')
            if len(w) == 10: seen = f'{w[0]} {w[4]} {w[2]}'
        if r.random() < .1: seen = 'r 5 x'
        o = section('definition', '{"every":1}') + section('digest', r.choice(['d1', 'd2'])) + section('source', r.choice('cs')) if r.random() < .7 else []
        if r.random() < .1: o += section('anew')
        if r.random() < .1: o += section('counts', self.now, 1, 2, 3)
        if r.random() < .1: o += section('skipped', 2)
        return [self.cid(), self.age(), name, seen, r.choice('rrrpex'), r.choice([0, self.now + 1000, self.now + 60000]), *o]
    def schedules(self): return [self.cid(), 0, *self.r.choice([['due', 10], ['names', '', 's1', 's2', 's9'], ['page', 0, 10]])]
    def renew(self): return [self.cid(), 0, 's1', self.r.choice(['d1', 'd2']), 's2', 'd1']
    def tick(self):
        r = self.r
        name = r.choice(['s1', 's2'])
        text = self.oracle.hget(self.key('ticked'), name)
        rev, nxt = 'x', 0
        if text:
            w = text.decode().split(' ')
            if len(w) == 10: rev, nxt = w[2], int(w[4])
        ids = self.some(0, 2)
        o = section('payload', 'tick') if r.random() < .3 else []
        if r.random() < .2: o += section('group', 'g1')
        return [self.cid(), self.age(), name, rev, nxt, r.choice([0, self.now + 5000]), self.now, r.choice([0, 1]), 0, len(ids), *ids, *o]
    def repair(self): return [self.cid(), 0, 500, self.r.choice(['', '+']), self.r.choice([0, 1])]
    def purge(self): return [self.cid(), 0, 500, *(['host:a.example'] if self.r.random() < .2 else [])]
    def probe(self): return [self.cid(), 0, 1, 2, 'GET', 'KEY', 1, 3, 'SET', 'KEY', '1']

VERBS = dict(put=16, schedule=6, claim=16, extend=4, ack=14, fail=7, release=6, crash=3, beat=2, note=2, requeue_expired=4, promote_due=6, plan=2, prune=2, pull=1, cancel=3, forget=3,
             retry_failed=3, kind=2, configure=4, convert=3, host=3, hosts=1, describe_hosts=1, inspect=2, why=2, states=1, stats=1, describe=2, drained=2, batches=1, seal_batch=2, restore=2,
             restore_hosts=1, restore_batch=1, publish=1, set_schedule=2, schedules=1, renew=1, tick=2, repair=2, purge=.15, probe=.2, **{'await': 2})


def compare(old: Side, new: Side, calls: int, seed: int, per_queue: int) -> tuple[Counter[str], int, str]:
    """Make random calls until one differs; give how many of each verb were made, how many were refused, and what differs."""
    chance = random.Random(seed)
    made, refused, queues = Counter[str](), 0, 0
    while made.total() < calls:
        queues += 1
        queue = f"q{seed}x{queues}"
        world = World(chance, old.client, queue)
        begins, trail = world.settings(), list[tuple[str, Args]]()
        for _ in range(per_queue):
            world.passes()
            micros = chance.randrange(1000)
            for side in (old, new):
                side.set_clock(world.now, micros)
            verb, args = begins.pop() if begins else world.step()
            trail.append((verb, args))
            made[verb] += 1
            said, says = old.call(queue, verb, args), new.call(queue, verb, args)
            refused += isinstance(said, str)
            was, now = old.state(queue), new.state(queue)
            if canonical(verb, said) != canonical(verb, says) or was != now:
                lines = [f"queue {queue}, call {len(trail)}: {verb} {args}", f"  script   {said}", f"  library  {says}"]
                lines += [f"  - {row!r}" for row in was if row not in now] + [f"  + {row!r}" for row in now if row not in was]
                return made, refused, "\n".join([*lines, *(f"  before: {call}" for call in trail[-6:-1])])
        for side in (old, new):
            side.client.flushall()
    return made, refused, ""


def main() -> int:
    """Compare on servers of the named kinds; exit code 1 if anything differs, or if a planted mistake is not found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=20_000, help="how many calls on each kind of server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-queue", type=int, default=150, help="how many calls on each queue")
    parser.add_argument("--server", choices=["valkey", "redis", "both"], default="both")
    parser.add_argument("--plant", choices=[*PLANTS], help="a mistake that must be found")
    given = parser.parse_args()
    old, failed = old_scripts(), False
    for kind in ("valkey", "redis") if given.server == "both" else (given.server,):
        binary = valkey() if kind == "valkey" else redis_server()
        with EmbeddedServer(binary=binary) as first, EmbeddedServer(binary=binary) as second:
            sides = Side(first.url), Side(second.url)
            sides[0].use_scripts(old)
            sides[1].use_library(given.plant)
            began = time.monotonic()
            made, refused, differs = compare(*sides, given.calls, given.seed, given.per_queue)
        seconds = time.monotonic() - began
        print(f"{kind}: {made.total():,} calls of {len(made)} verbs, {refused:,} refused, {seconds:.0f} s", flush=True)
        print(differs or "  replies and keys are the same", flush=True)
        failed |= bool(differs) != bool(given.plant)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
