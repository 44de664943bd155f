"""Bugs seeded into the event log: in what the verbs note and write, in its length, in its cursors and its fold."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

WALK = in_test("test_log_walk", "valkey-functions")
POLITE = in_test("test_log_walk", "valkey-polite")


def _test(name: str) -> str:
    return in_test("test_events", f"{name} and not async")


MUTANTS: list[Mutant] = [
    Mutant(
        "claims are not logged",
        "lua/verbs/claim.lua",
        "    if logging then events.moved(ids, key.todos, key.in_progress) end\n",
        "",
        [WALK],
    ),
    Mutant(
        "a removal from a set is not noted",
        "lua/events.lua",
        "if command == 'SMOVE' or command == 'SREM' or command == 'SADD'",
        "if command == 'SMOVE' or command == 'SADD'",
        [WALK],
    ),
    Mutant(
        "what leaves scheduled is not noted",
        "lua/events.lua",
        "or command == 'ZADD' or command == 'ZREM' then\n      local",
        "or command == 'ZADD' then\n      local",
        [WALK],
    ),
    Mutant(
        "a task that was not there has left",
        "lua/events.lua",
        "if (was_there and true or false) == there then",
        "if true then",
        [WALK],
    ),
    Mutant(
        "tasks that were told together and move again are told once",
        "lua/events.lua",
        "    if told or some_twice or order then spill() end\n",
        "",
        [_test("each_call_that_moves")],
    ),
    Mutant(
        "a task that comes back to where it was has moved",
        "lua/events.lua",
        "if left[id][state] then left[id][state] = nil else",
        "if false then else",
        [POLITE],
    ),
    Mutant(
        "ids with line feeds are not escaped",
        "lua/events.lua",
        "string.find(text, '\\n', 1, true) or ",
        "",
        [_test("line_feeds_gives_the_ids")],
    ),
    Mutant(
        "an escaped id is given to the worker",
        "lua/events.lua",
        "    local escaped = {} --",
        "    local escaped = ids --",
        [_test("line_feeds_gives_the_ids")],
    ),
    Mutant(
        "an entry has any number of bytes",
        "lua/events.lua",
        "while last < #ids and size < 65536 do",
        "while last < #ids do",
        [_test("many_bytes_of_ids")],
    ),
    Mutant(
        "the level ends logs all",
        "lua/events.lua",
        " and (ended or not has('ends')) do",
        " do",
        [_test("the_level_ends")],
    ),
    Mutant(
        "a log is never trimmed",
        "lua/events.lua",
        "logged - offset_of(first) <= most",
        "logged - offset_of(first) <= 1e15",
        [_test("prune_trims")],
    ),
    Mutant(
        "a log is trimmed too far",
        "lua/events.lua",
        "offset_of(entry) < logged - most then",
        "offset_of(entry) < logged - most / 10 then",
        [_test("prune_trims")],
    ),
    Mutant(
        "a log that was off for a time tells of all",
        "rooms/events/fold.py",
        'event.level == "all" and event.tasks == 0',
        'event.level == "all"',
        [_test("off_for_a_time")],
    ),
    Mutant(
        "a cursor of shards forgets the other shards",
        "rooms/events/flows.py",
        "places[event.shard or 0] = event.id",
        "places[0] = event.id",
        [_test("a_shard_has_a_log")],
    ),
    Mutant(
        "who follows begins at the beginning",
        "rooms/events/flows.py",
        "self._known = yield from self._flows.ends()",
        'self._known = ["0-0"]',
        [_test("log_is_followed")],
    ),
]
